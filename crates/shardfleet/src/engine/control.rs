//! Puts what an operator asks onto lease rows, where whoever holds the leases finds it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt, TryStreamExt};
use shardfleet_core::ids::ShardId;
use shardfleet_core::lease::{ControlRequest, Lease, LeaseWrite, WriteOutcome};
use shardfleet_core::retry::Backoff;

use super::Context;
use crate::clock::within;
use crate::error::KinesisError;
use crate::store::{StoreError, StoreErrorKind};

const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
/// How many rows are written at the same time.
const AT_ONCE: usize = 16;

/// Asks something of the shards that are not finished, or of those of them that are named.
pub(super) async fn request(
    context: &Arc<Context>,
    request: ControlRequest,
    shards: Option<&BTreeSet<ShardId>>,
) -> Result<Vec<ShardId>, KinesisError> {
    let asked = ask_all(context, request, shards);
    let late = || {
        let doing = format!("asking something of shards in {}", context.store.describe());
        let reason = format!(
            "not done within {:?} (failover_time)",
            context.settings.failover_time
        );
        StoreError::new(StoreErrorKind::Unavailable, doing, reason)
    };
    let asked = within(&*context.clock, context.settings.failover_time, asked)
        .await
        .unwrap_or_else(|| Err(late()))
        .map_err(KinesisError::Store)?;
    // Those that are read here need not wait for their next renewal.
    for (key, entry) in context.shards().iter() {
        if asked.contains(&key.shard_id()) {
            entry.lease.look_now();
        }
    }
    Ok(asked.into_iter().collect())
}

async fn ask_all(
    context: &Arc<Context>,
    request: ControlRequest,
    shards: Option<&BTreeSet<ShardId>>,
) -> Result<BTreeSet<ShardId>, StoreError> {
    let mut asked = BTreeSet::new();
    // Looked at twice: shards may begin while the first are asked.
    for _ in 0..2 {
        let scan = persist(context, || context.store.scan()).await?;
        let is_concerned = |lease: &Lease| {
            let shard_id = lease.lease_key.shard_id();
            let is_named = shards.is_none_or(|shards| shards.contains(&shard_id));
            is_named && !lease.is_finished() && !asked.contains(&shard_id)
        };
        let leases = scan.leases.into_iter().filter(is_concerned);
        let writes: Vec<_> = leases
            .map(|lease| ask(Arc::clone(context), lease, request).boxed())
            .collect();
        let written: Vec<Option<ShardId>> = futures::stream::iter(writes)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        asked.extend(written.into_iter().flatten());
    }
    Ok(asked)
}

/// The shard, if its lease is still there. Somebody who asks for something else at the same time makes the write conflict, and both requests count. Each
/// conflict is another's success, so this ends.
async fn ask(
    context: Arc<Context>,
    lease: Lease,
    request: ControlRequest,
) -> Result<Option<ShardId>, StoreError> {
    let shard_id = lease.lease_key.shard_id();
    let mut seen = lease;
    loop {
        // Written even where it seems to be asked already: a scan may be older than a request that was answered a moment ago.
        let write = LeaseWrite::control(&seen, request);
        match persist(&context, || context.store.update(&write)).await? {
            WriteOutcome::Written(_) => return Ok(Some(shard_id)),
            WriteOutcome::Conflict(None) => return Ok(None),
            // Its answer was lost, or another asked for the same at the same time: one serves both.
            WriteOutcome::Conflict(Some(row)) if row.control == write.change.control => {
                return Ok(Some(shard_id));
            }
            WriteOutcome::Conflict(Some(row)) => seen = row,
        }
    }
}

/// Tries again while the store says that it may pass. What is written may be written twice.
async fn persist<T, F: Future<Output = Result<T, StoreError>>>(
    context: &Context,
    attempt: impl Fn() -> F,
) -> Result<T, StoreError> {
    let mut failures = 0;
    loop {
        match attempt().await {
            Err(error) if error.is_retryable() => {
                tracing::debug!(error = %error, failures, "an operator's request is tried again");
                let wait = RETRY.delay(failures, context.clock.chance());
                crate::clock::sleep(&*context.clock, wait).await;
                failures += 1;
            }
            done => return done,
        }
    }
}
