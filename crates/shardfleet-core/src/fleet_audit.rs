//! Whether the unfinished leases cover all hash keys, and how sure that is.
//!
//! An accumulator for the leader's periodic audit (`KCL: PeriodicShardSyncManager`). A hole can be a moment's: between two writes of a parent that ends, or between two pages of a scan.
//! So a shard sync is called for only when the same hole was seen several times in a row; an empty table calls for it at once. It never repairs anything itself.

use std::collections::{BTreeMap, BTreeSet};

use crate::hash_range::{self, HashKeyRange};
use crate::ids::{LeaseKey, ShardId};
use crate::lease::{Lease, LeaseWrite};
use crate::shard::Shard;

/// `leasesRecoveryAuditorInconsistencyConfidenceThreshold`: how often the same hole is seen before shards are synced, by default.
pub const DEFAULT_CONFIDENCE_THRESHOLD: u32 = 3;

/// What an audit found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuditVerdict {
    /// There is no lease at all: sync now.
    Empty,
    /// Every hash key belongs to an unfinished lease.
    Covered,
    /// Hash keys are left out.
    Hole {
        /// The first hole.
        hole: HashKeyRange,
        /// How often it was seen in a row, this time included.
        seen: u32,
        /// It was seen often enough: sync now.
        sync: bool,
    },
}

impl AuditVerdict {
    /// Whether shards are to be synced now.
    pub fn calls_for_sync(&self) -> bool {
        matches!(self, Self::Empty | Self::Hole { sync: true, .. })
    }
}

/// What an audit found, and what it learned on the way.
#[derive(Clone, Debug, PartialEq)]
pub struct Audit {
    /// The finding.
    pub verdict: AuditVerdict,
    /// Hash key ranges that rows of old releases lack, to be stored; by lease key.
    pub fill_in: Vec<LeaseWrite>,
    /// Unfinished leases without a range whose shards are not listed: they do not count.
    pub unknown: Vec<LeaseKey>,
}

/// The memory of the audits of one stream.
#[derive(Clone, Debug)]
pub struct HoleAudit {
    threshold: u32,
    last: Option<(HashKeyRange, u32)>,
}

impl Default for HoleAudit {
    fn default() -> Self {
        Self::new(DEFAULT_CONFIDENCE_THRESHOLD)
    }
}

impl HoleAudit {
    /// Begins without having seen a hole. A `threshold` below 1 acts as 1.
    pub fn new(threshold: u32) -> Self {
        Self {
            threshold: threshold.max(1),
            last: None,
        }
    }

    /// Forgets what was seen, as on becoming leader.
    pub fn reset(&mut self) {
        self.last = None;
    }

    /// Whether [`Self::audit`] can do without a listing: every unfinished lease has its range.
    pub fn needs_listing(leases: &[Lease]) -> bool {
        leases
            .iter()
            .any(|lease| !lease.is_finished() && lease.hash_key_range.is_none())
    }

    /// Looks at the stream's leases, in any order. `shards` are what the service lists, where that was asked for.
    pub fn audit(&mut self, leases: &[Lease], shards: &[Shard]) -> Audit {
        let listed: BTreeMap<&ShardId, HashKeyRange> = shards
            .iter()
            .map(|shard| (&shard.shard_id, shard.hash_key_range))
            .collect();
        let mut ranges = BTreeSet::new();
        let mut fill_in = Vec::new();
        let mut unknown = Vec::new();
        for lease in leases.iter().filter(|lease| !lease.is_finished()) {
            if let Some(range) = lease.hash_key_range {
                ranges.insert(range);
            } else if let Some(range) = listed.get(&lease.lease_key.shard_id()) {
                ranges.insert(*range);
                fill_in.push(LeaseWrite::record_hash_key_range(lease, *range));
            } else {
                unknown.push(lease.lease_key.clone());
            }
        }
        fill_in.sort_by(|a, b| a.lease_key.cmp(&b.lease_key));
        unknown.sort_unstable();
        let verdict = if leases.is_empty() {
            self.last = None;
            AuditVerdict::Empty
        } else {
            self.judge(hash_range::gaps(ranges).first().copied())
        };
        Audit {
            verdict,
            fill_in,
            unknown,
        }
    }

    fn judge(&mut self, hole: Option<HashKeyRange>) -> AuditVerdict {
        let Some(hole) = hole else {
            self.last = None;
            return AuditVerdict::Covered;
        };
        let seen = match self.last {
            Some((last, seen)) if last == hole => seen.saturating_add(1),
            _ => 1,
        };
        let sync = seen >= self.threshold;
        // A sync that does not help is not called for each time.
        self.last = (!sync).then_some((hole, seen));
        AuditVerdict::Hole { hole, seen, sync }
    }
}

#[cfg(test)]
mod tests;
