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
    let mut asked: Vec<ShardId> = within(&*context.clock, context.settings.failover_time, asked)
        .await
        .unwrap_or_else(|| Err(late()))
        .map_err(KinesisError::Store)?;
    asked.sort();
    // Those that are read here need not wait for their next renewal.
    for (key, entry) in context.shards().iter() {
        if asked.binary_search(&key.shard_id()).is_ok() {
            entry.lease.look_now();
        }
    }
    Ok(asked)
}

async fn ask_all(
    context: &Arc<Context>,
    request: ControlRequest,
    shards: Option<&BTreeSet<ShardId>>,
) -> Result<Vec<ShardId>, StoreError> {
    let scan = persist(context, || context.store.scan()).await?;
    let is_concerned = |lease: &Lease| {
        let is_named = shards.is_none_or(|shards| shards.contains(&lease.lease_key.shard_id()));
        is_named && !lease.is_finished()
    };
    let leases = scan.leases.into_iter().filter(is_concerned);
    let writes: Vec<_> = leases
        .map(|lease| ask(Arc::clone(context), lease, request).boxed())
        .collect();
    let asked: Vec<Option<ShardId>> = futures::stream::iter(writes)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    Ok(asked.into_iter().flatten().collect())
}

/// The shard, if its lease is still there.
async fn ask(
    context: Arc<Context>,
    lease: Lease,
    request: ControlRequest,
) -> Result<Option<ShardId>, StoreError> {
    let shard_id = lease.lease_key.shard_id();
    if lease.control().with(request) == lease.control() {
        return Ok(Some(shard_id));
    }
    let write = LeaseWrite::control(&lease, request);
    let outcome = persist(&context, || context.store.update(&write)).await?;
    Ok(matches!(outcome, WriteOutcome::Written(_)).then_some(shard_id))
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
