//! Writes the end of a shard, once everything of it is settled.
//!
//! The children get their leases first, then they are noted on the parent's row, then the end itself is written, so that a crash in between leaves
//! something to go on from (`KCL: ShutdownTask`).

use std::sync::PoisonError;
use std::time::Duration;

use shardfleet_core::ids::{LeaseKey, ShardId};
use shardfleet_core::lease::{Lease, LeaseWrite};
use shardfleet_core::retry::Backoff;
use shardfleet_core::sequence::ExtendedSequenceNumber;
use shardfleet_core::shard::{ChildShard, Shard};
use shardfleet_core::shard_sync::child_leases;

use super::{Context, HeldLease, HoldError};
use crate::kinesis::ShardFilter;

/// How many listings in a row may lack the children of a shard that has ended, before its end is written all the same: about half a minute.
const STALE_LISTINGS_MAX: u32 = 10;

const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));

/// Ends the shard of `lease`, which is released with it. Failures that may pass are retried as long as the caller lets it; `children` are those that the end of
/// the shard named.
pub(super) async fn write(
    context: &Context,
    lease: &HeldLease,
    shard_id: &ShardId,
    children: Vec<ChildShard>,
) -> Result<(), HoldError> {
    let (children, shards) = find_children(context, shard_id, children).await;
    // What an operator has asked since the last write holds for the children too.
    lease.persist(|row| LeaseWrite::renew(row, None)).await?;
    let control = lease.control();
    for child in child_leases(&children, context.stream_created_at(), control) {
        // A merged child must not start before its other parent was read. That one's end, or the next shard sync, creates the lease.
        if !another_parent_comes_later(context, shard_id, &child, &shards).await {
            // Whoever lost the lease meanwhile leaves this to its next holder, who may be done with the child by now.
            if !lease.is_valid() {
                return Err(HoldError::Lost);
            }
            create(context, &child).await;
        }
    }
    let ids: Vec<ShardId> = children.iter().map(|child| child.shard_id.clone()).collect();
    if !ids.is_empty() {
        lease
            .persist(|row| LeaseWrite::record_children(row, ids.clone()))
            .await?;
    }
    lease
        .persist(|row| LeaseWrite::checkpoint(row, ExtendedSequenceNumber::ShardEnd))
        .await?;
    // Nothing is left to renew for; whoever cleans up takes an unowned lease as well.
    lease.release(context.settings.failover_time).await;
    context
        .ended_children
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .extend(ids);
    Ok(())
}

/// The children, listed anew where the end named none, and the listing where one of them has another parent.
async fn find_children(
    context: &Context,
    shard_id: &ShardId,
    children: Vec<ChildShard>,
) -> (Vec<ChildShard>, Vec<Shard>) {
    if !children.is_empty() && children.iter().all(|child| child.parent_shard_ids.len() == 1) {
        return (children, Vec::new());
    }
    let mut attempt = 0;
    loop {
        match context
            .kinesis
            .list_shards(&context.settings.stream, ShardFilter::All)
            .await
        {
            Ok(shards) if children.is_empty() => match ChildShard::of_ended(shard_id, &shards) {
                Some(children) => return (children, shards),
                None if attempt >= STALE_LISTINGS_MAX => {
                    tracing::warn!(shard_id = %shard_id, "no listing shows the children of this shard, which has ended; the next that does creates their leases");
                    return (children, shards);
                }
                None => {
                    tracing::debug!(shard_id = %shard_id, attempt, "the listing does not show the children yet");
                    wait_to_retry(context, &mut attempt).await;
                }
            },
            Ok(shards) => return (children, shards),
            Err(error) => {
                tracing::warn!(shard_id = %shard_id, error = %error, attempt, "listing the children failed");
                wait_to_retry(context, &mut attempt).await;
            }
        }
    }
}

async fn another_parent_comes_later(
    context: &Context,
    shard_id: &ShardId,
    child: &Lease,
    shards: &[Shard],
) -> bool {
    for parent in child.parent_shard_ids.iter().filter(|parent| *parent != shard_id) {
        let is_listed = shards.iter().any(|shard| shard.shard_id == *parent);
        if is_listed && !has_lease(context, parent).await {
            return true;
        }
    }
    false
}

async fn has_lease(context: &Context, shard_id: &ShardId) -> bool {
    let mut attempt = 0;
    loop {
        match context.store.get(&LeaseKey::from(shard_id)).await {
            Ok(lease) => return lease.is_some(),
            Err(error) => {
                tracing::warn!(shard_id = %shard_id, error = %error, attempt, "looking up a lease failed");
                wait_to_retry(context, &mut attempt).await;
            }
        }
    }
}

async fn create(context: &Context, child: &Lease) {
    let mut attempt = 0;
    while let Err(error) = context.store.create(child).await {
        tracing::warn!(lease_key = %child.lease_key, error = %error, attempt, "creating a child's lease failed");
        wait_to_retry(context, &mut attempt).await;
    }
}

async fn wait_to_retry(context: &Context, attempt: &mut u32) {
    let wait = RETRY.delay(*attempt, context.clock.chance());
    *attempt = attempt.saturating_add(1);
    crate::clock::sleep(&*context.clock, wait).await;
}
