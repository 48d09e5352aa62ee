//! Which rows nobody needs any more: leases that are read to their end, leases of shards that are gone, metrics of workers that are gone.
//!
//! A planner for the leader. A finished lease goes once all of its children are past their start, and never while a lease of one of its parents exists
//! (`KCL: LeaseCleanupManager`); so a plan deletes one generation at most, and breaking it off anywhere is safe. A lease whose shard is listed no more goes only if the listing
//! is complete and surely of the same stream. It never deletes what it is not sure of: keeping a row costs little, and the report says why.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::ids::{LeaseKey, ShardId, WorkerId};
use crate::lease::Lease;
use crate::sequence::ExtendedSequenceNumber;
use crate::shard::Shard;
use crate::time::Timestamp;
use crate::worker_metrics::WorkerMetricStats;

/// The settings of cleaning up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanupPolicy {
    /// `cleanupLeasesUponShardCompletion`: whether finished leases are deleted at all. Default true.
    pub cleanup_finished: bool,
    /// `completedLeaseCleanupIntervalMillis`: how often finished leases are looked at. Default 5 minutes.
    pub finished_interval: Duration,
    /// `garbageLeaseCleanupIntervalMillis`: how often leases of shards that are gone are looked for. Default 30 minutes.
    pub garbage_interval: Duration,
    /// `staleWorkerMetricsEntryCleanupDuration`: for how long a worker's metrics are kept after its last report. Default 1 day.
    pub stale_metrics_after: Duration,
}

impl Default for CleanupPolicy {
    fn default() -> Self {
        Self {
            cleanup_finished: true,
            finished_interval: Duration::from_mins(5),
            garbage_interval: Duration::from_mins(30),
            stale_metrics_after: Duration::from_hours(24),
        }
    }
}

/// A listing of the stream's shards, begun after the leases were scanned (else the lease of a shard that is younger than the listing would look like garbage).
#[derive(Clone, Copy, Debug)]
pub struct ShardListing<'a> {
    /// The shards, open and closed.
    pub shards: &'a [Shard],
    /// Every page was read without a filter.
    pub complete: bool,
    /// When the stream was created.
    pub stream_created_at: Option<Timestamp>,
}

/// Everything a plan depends on besides the policy.
#[derive(Clone, Debug)]
pub struct CleanupView<'a> {
    /// Every lease of the stream, in any order.
    pub leases: &'a [Lease],
    /// The shards; without a listing nothing is garbage.
    pub listing: Option<ShardListing<'a>>,
    /// How long ago finished leases were looked at; `None` for never.
    pub since_finished_check: Option<Duration>,
    /// How long ago garbage was looked for; `None` for never.
    pub since_garbage_check: Option<Duration>,
}

/// Why a lease is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteReason {
    /// It is read to its end, and its children are under way.
    Finished,
    /// Its shard is gone, and it was read to its end.
    ShardGone,
    /// Its shard is gone with records that nobody has read: a loss of data to be reported.
    ShardGoneUnread,
}

/// Why a finished lease, or one of a shard that is gone, stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepReason {
    /// A lease of this parent still exists: it goes first.
    ParentExists(ShardId),
    /// This child has no lease yet: it is for shard sync to create it.
    ChildMissing(ShardId),
    /// This child has a checkpoint at its start.
    ChildNotStarted(ShardId),
    /// Neither its row nor the listing names a child.
    ChildrenUnknown,
    /// The shard is not listed, but the listing is not complete.
    ListingIncomplete,
    /// The shard is not listed, but nothing shows that the listed stream is the one that the leases are of.
    StreamUncertain,
    /// The settings keep finished leases.
    Disabled,
}

/// A lease to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// Which lease.
    pub lease_key: LeaseKey,
    /// The counter that was seen. A store that can is to make it the condition.
    pub counter: u64,
    /// Why.
    pub reason: DeleteReason,
}

/// What to delete, by lease key; independent of each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanupPlan {
    /// The leases.
    pub delete: Vec<Deletion>,
    /// Finished leases were looked at: their interval begins anew once the plan is carried out.
    pub checked_finished: bool,
    /// Garbage was looked for: likewise.
    pub checked_garbage: bool,
}

/// The leases that were looked at and stay, by key, with the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanupReport {
    /// They.
    pub kept: Vec<(LeaseKey, KeepReason)>,
}

/// Plans which leases to delete.
pub fn plan(view: &CleanupView<'_>, policy: &CleanupPolicy) -> (CleanupPlan, CleanupReport) {
    let due = |since: Option<Duration>, interval| since.is_none_or(|since| since >= interval);
    let mut plan = CleanupPlan {
        delete: Vec::new(),
        checked_finished: due(view.since_finished_check, policy.finished_interval),
        checked_garbage: view.listing.is_some() && due(view.since_garbage_check, policy.garbage_interval),
    };
    let mut report = CleanupReport::default();
    let table = Table::new(view);
    for lease in table.leases.values() {
        let is_listed = table.listed.contains(lease.lease_key.as_str());
        let verdict = if plan.checked_garbage && !is_listed {
            Some(table.judge_garbage(lease))
        } else if plan.checked_finished && lease.is_finished() {
            Some(if policy.cleanup_finished {
                table.judge_finished(lease)
            } else {
                Err(KeepReason::Disabled)
            })
        } else {
            None
        };
        match verdict {
            Some(Ok(reason)) => plan.delete.push(Deletion {
                lease_key: lease.lease_key.clone(),
                counter: lease.counter,
                reason,
            }),
            Some(Err(reason)) => report.kept.push((lease.lease_key.clone(), reason)),
            None => {}
        }
    }
    (plan, report)
}

struct Table<'a> {
    leases: BTreeMap<&'a str, &'a Lease>,
    listed: BTreeSet<&'a str>,
    /// By parent.
    listed_children: BTreeMap<&'a ShardId, BTreeSet<&'a ShardId>>,
    listing: Option<ShardListing<'a>>,
}

impl<'a> Table<'a> {
    fn new(view: &CleanupView<'a>) -> Self {
        let shards = view.listing.map_or([].as_slice(), |listing| listing.shards);
        let mut listed_children: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for shard in shards {
            for parent in shard.parents() {
                listed_children.entry(parent).or_default().insert(&shard.shard_id);
            }
        }
        Self {
            leases: view
                .leases
                .iter()
                .map(|lease| (lease.lease_key.as_str(), lease))
                .collect(),
            listed: shards.iter().map(|shard| shard.shard_id.as_str()).collect(),
            listed_children,
            listing: view.listing,
        }
    }

    fn children(&self, lease: &'a Lease) -> BTreeSet<&'a ShardId> {
        let noted = lease.child_shard_ids.iter();
        let listed = self
            .listed_children
            .get(&lease.lease_key.shard_id())
            .into_iter()
            .flatten();
        noted.chain(listed.copied()).collect()
    }

    fn no_parent_exists(&self, lease: &Lease) -> Result<(), KeepReason> {
        let parent = lease.parent_shard_ids.iter().find(|parent| {
            parent.as_str() != lease.lease_key.as_str() && self.leases.contains_key(parent.as_str())
        });
        parent.map_or(Ok(()), |parent| Err(KeepReason::ParentExists(parent.clone())))
    }

    fn judge_finished(&self, lease: &'a Lease) -> Result<DeleteReason, KeepReason> {
        self.no_parent_exists(lease)?;
        let children = self.children(lease);
        if children.is_empty() {
            return Err(KeepReason::ChildrenUnknown);
        }
        for child in children {
            match self.leases.get(child.as_str()) {
                None => return Err(KeepReason::ChildMissing(child.clone())),
                Some(child_lease) if !is_past_start(child_lease) => {
                    return Err(KeepReason::ChildNotStarted(child.clone()));
                }
                Some(_) => {}
            }
        }
        Ok(DeleteReason::Finished)
    }

    fn judge_garbage(&self, lease: &'a Lease) -> Result<DeleteReason, KeepReason> {
        if !self.listing.is_some_and(|listing| listing.complete) {
            return Err(KeepReason::ListingIncomplete);
        }
        if !self.is_same_stream() {
            return Err(KeepReason::StreamUncertain);
        }
        self.no_parent_exists(lease)?;
        // A child that is listed still needs its parent's row, which tells where it begins; one that is gone as well does not.
        let waiting = self.children(lease).into_iter().find(|child| {
            self.listed.contains(child.as_str())
                && self
                    .leases
                    .get(child.as_str())
                    .is_none_or(|child| !is_past_start(child))
        });
        match waiting {
            Some(child) if self.leases.contains_key(child.as_str()) => {
                Err(KeepReason::ChildNotStarted(child.clone()))
            }
            Some(child) => Err(KeepReason::ChildMissing(child.clone())),
            None if lease.is_finished() => Ok(DeleteReason::ShardGone),
            None => Ok(DeleteReason::ShardGoneUnread),
        }
    }

    /// The leases that note when their stream was created agree with the listing, and there is one at least. Shard ids say nothing: a stream
    /// that was created again has the same ones.
    fn is_same_stream(&self) -> bool {
        let Some(created) = self.listing.and_then(|listing| listing.stream_created_at) else {
            return false;
        };
        let mut noted = self
            .leases
            .values()
            .filter_map(|lease| lease.stream_created_at)
            .peekable();
        // Services print this time with more or fewer digits depending on the protocol: whole seconds decide.
        noted.peek().is_some() && noted.all(|noted| noted.millis() / 1000 == created.millis() / 1000)
    }
}

fn is_past_start(lease: &Lease) -> bool {
    matches!(
        lease.checkpoint,
        ExtendedSequenceNumber::At(..) | ExtendedSequenceNumber::ShardEnd
    )
}

/// A row of metrics to delete, under the condition that it was not written since (`lut = :seen`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleMetrics {
    /// Whose.
    pub worker_id: WorkerId,
    /// Its `lut`.
    pub last_update_seconds: u64,
}

/// The rows of workers that have not reported for [`CleanupPolicy::stale_metrics_after`], in the order of their ids.
pub fn stale_metrics(
    rows: &[WorkerMetricStats],
    now: Timestamp,
    policy: &CleanupPolicy,
) -> Vec<StaleMetrics> {
    let mut stale: Vec<StaleMetrics> = rows
        .iter()
        .filter(|row| row.is_stale(now, policy.stale_metrics_after))
        .filter_map(|row| {
            Some(StaleMetrics {
                worker_id: row.worker_id.clone(),
                last_update_seconds: row.last_update_seconds?,
            })
        })
        .collect();
    stale.sort_by(|a, b| (&a.worker_id, a.last_update_seconds).cmp(&(&b.worker_id, b.last_update_seconds)));
    stale
}

#[cfg(test)]
mod tests;
