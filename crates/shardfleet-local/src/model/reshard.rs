//! Splitting and merging shards.

use serde::{Deserialize, Serialize};

use super::hash::{HashRange, even_ranges};
use super::shard::{Shard, ShardMeta, shard_name};
use super::stream::{MadeClock, Stream};
use super::{ApiError, Now};
use crate::ACCOUNT_ID;

/// A change of the shard map that was accepted and is to be carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reshard {
    Split {
        shard: u32,
        at: u128,
    },
    Merge {
        shard: u32,
        adjacent: u32,
    },
    /// To so many shards of equal size, by splits and merges.
    Scale {
        target: u32,
    },
}

impl Stream {
    /// Checks a split (AWS: `SplitShard`).
    pub(crate) fn plan_split(&self, shard: &str, at: u128) -> Result<Reshard, ApiError> {
        let meta = &self.shard_to_change(shard)?.meta;
        if !meta.is_open() {
            return Err(self.already_resharded(meta.number));
        }
        let range = meta.range;
        // Both halves need at least one key, and the service wants two in the lower one.
        if at <= range.start.saturating_add(1) || at >= range.end {
            return Err(ApiError::invalid(format!(
                "NewStartingHashKey {at} used in SplitShard() on shard {shard} in stream {} under account {ACCOUNT_ID} is not \
                 both greater than one plus the shard's StartingHashKey {} and less than the shard's EndingHashKey {}.",
                self.meta.name, range.start, range.end
            )));
        }
        Ok(Reshard::Split {
            shard: meta.number,
            at,
        })
    }

    /// Checks a merge (AWS: `MergeShards`).
    pub(crate) fn plan_merge(&self, shard: &str, adjacent: &str) -> Result<Reshard, ApiError> {
        let (first, second) = (
            &self.shard_to_change(shard)?.meta,
            &self.shard_to_change(adjacent)?.meta,
        );
        if let Some(closed) = [first, second].into_iter().find(|s| !s.is_open()) {
            return Err(self.already_resharded(closed.number));
        }
        if !first.range.adjoins(second.range) {
            return Err(ApiError::invalid(format!(
                "Shards {shard} and {adjacent} in stream {} under account {ACCOUNT_ID} are not an adjacent pair of shards eligible \
                 for merging",
                self.meta.name
            )));
        }
        Ok(Reshard::Merge {
            shard: first.number,
            adjacent: second.number,
        })
    }

    /// Checks a change of the shard count (AWS: `UpdateShardCount`, at most double and at least half).
    pub(crate) fn plan_scale(&self, target: u32) -> Result<Reshard, ApiError> {
        let open = u32::try_from(self.open_shards().count()).unwrap_or(u32::MAX);
        if target > open.saturating_mul(2) {
            return Err(ApiError::limit(format!(
                "UpdateShardCount cannot scale up over double your current open shard count. Current open shard count: {open} \
                 Target shard count: {target}"
            )));
        }
        if target < open.div_ceil(2) {
            return Err(ApiError::limit(format!(
                "UpdateShardCount cannot scale down below half your current open shard count. Current open shard count: {open} \
                 Target shard count: {target}"
            )));
        }
        Ok(Reshard::Scale { target })
    }

    /// Carries out an accepted change. One that has become impossible meanwhile changes nothing.
    pub(crate) fn carry_out(&mut self, reshard: &Reshard, now: Now, made: &mut MadeClock) {
        match *reshard {
            Reshard::Split { shard, at } => {
                self.split(shard, at, now, made);
            }
            Reshard::Merge { shard, adjacent } => {
                self.merge(shard, adjacent, now, made);
            }
            Reshard::Scale { target } => self.scale(target, now, made),
        }
        self.rebuild_routes();
        self.dirty = true;
    }

    fn split(&mut self, shard: u32, at: u128, now: Now, made: &mut MadeClock) -> Option<(u32, u32)> {
        let range = self.shards.get(&shard).filter(|s| s.meta.is_open())?.meta.range;
        if at <= range.start || at > range.end {
            return None;
        }
        let closed_ms = self.close(shard, now)?;
        let made_secs = made.next(now);
        let low = self.open(
            HashRange {
                start: range.start,
                end: at - 1,
            },
            shard,
            None,
            closed_ms,
            made_secs,
        );
        let high = self.open(
            HashRange {
                start: at,
                end: range.end,
            },
            shard,
            None,
            closed_ms,
            made_secs,
        );
        Some((low, high))
    }

    fn merge(&mut self, shard: u32, adjacent: u32, now: Now, made: &mut MadeClock) -> Option<u32> {
        let open = |n: u32| {
            self.shards
                .get(&n)
                .filter(|s| s.meta.is_open())
                .map(|s| s.meta.range)
        };
        let (first, second) = (open(shard)?, open(adjacent)?);
        if !first.adjoins(second) {
            return None;
        }
        let closed_ms = self.close(shard, now)?.max(self.close(adjacent, now)?);
        let range = HashRange {
            start: first.start.min(second.start),
            end: first.end.max(second.end),
        };
        Some(self.open(range, shard, Some(adjacent), closed_ms, made.next(now)))
    }

    /// Cuts at every boundary of the even map, then merges the pieces of each of its ranges. A shard that already is one
    /// of those ranges stays as it is. Pieces that live only in between are closed as soon as they are made.
    fn scale(&mut self, target: u32, now: Now, made: &mut MadeClock) {
        let ranges = even_ranges(target);
        for range in &ranges {
            let holder = self
                .open_shards()
                .find(|s| s.range.contains(range.start))
                .map(|s| (s.number, s.range));
            if let Some((number, held)) = holder
                && held.start != range.start
            {
                self.split(number, range.start, now, made);
            }
        }
        for range in ranges {
            self.rebuild_routes();
            let mut pieces = self
                .open_by_range()
                .into_iter()
                .filter(|(_, r)| range.contains(r.start));
            let Some((mut whole, _)) = pieces.next() else {
                continue;
            };
            let rest: Vec<u32> = pieces.map(|(number, _)| number).collect();
            for piece in rest {
                if let Some(merged) = self.merge(whole, piece, now, made) {
                    whole = merged;
                }
            }
        }
    }

    fn close(&mut self, number: u32, now: Now) -> Option<u64> {
        let shard = self.shards.get_mut(&number)?;
        // Never before its newest record or its own opening, whatever the clock does.
        let newest = shard
            .records()
            .last()
            .map_or(shard.meta.opened_ms, |r| r.arrival_ms);
        let closed_ms = now.epoch_ms.max(newest);
        shard.meta.closed_ms = Some(closed_ms);
        Some(closed_ms)
    }

    fn open(
        &mut self,
        range: HashRange,
        parent: u32,
        adjacent_parent: Option<u32>,
        opened_ms: u64,
        made_secs: u64,
    ) -> u32 {
        let number = self.meta.next_shard;
        self.meta.next_shard += 1;
        let meta = ShardMeta {
            number,
            range,
            parent: Some(parent),
            adjacent_parent,
            made_secs,
            opened_ms,
            closed_ms: None,
        };
        self.shards.insert(number, Shard::new(meta));
        number
    }

    /// The names of shards, for messages.
    pub(crate) fn names_of(numbers: &[u32]) -> Vec<String> {
        numbers.iter().map(|n| shard_name(*n)).collect()
    }
}
