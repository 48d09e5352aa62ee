//! The simulated stream: shards with records that arrive by themselves, splits, merges, iterators and listings.
//!
//! Records are numbered from 0 in each shard; a sequence number is the shard's base plus that. Bases rise with time, so a child's records have
//! higher sequence numbers than its parents'. What arrives is made up when somebody looks, from a generator of the shard's own.

use shardfleet_core::hash_range::HashKeyRange;
use shardfleet_core::ids::{LeaseKey, ShardId};
use shardfleet_core::position::IteratorPosition;
use shardfleet_core::sequence::{ExtendedSequenceNumber, SequenceNumber};
use shardfleet_core::shard::{ChildShard, Shard};
use shardfleet_core::time::Timestamp;

use crate::chance::Chance;
use crate::exec::{MILLI, Micros, SECOND};

/// The wall-clock time at which every run begins, in milliseconds.
pub(crate) const EPOCH_MILLIS: u64 = 1_700_000_000_000;

/// Between the bases of two shards that are created one after the other.
const BASE_STEP: u64 = 1_000_000_000;

/// No stream of a run has more open shards.
const OPEN_SHARDS_MAX: usize = 70;

struct Record {
    arrived: Micros,
    bytes: u32,
}

struct SimShard {
    id: ShardId,
    parents: Vec<usize>,
    children: Vec<usize>,
    range: HashKeyRange,
    base: u64,
    created: Micros,
    closed: Option<Micros>,
    records: Vec<Record>,
    next_arrival: Micros,
    /// The mean time between two records.
    mean_gap: Micros,
    mean_bytes: u64,
    chance: Chance,
}

impl SimShard {
    fn materialize(&mut self, until: Micros) {
        let until = self.closed.map_or(until, |closed| closed.min(until));
        while self.next_arrival <= until {
            self.records.push(Record {
                arrived: self.next_arrival,
                bytes: u32::try_from(self.chance.between(self.mean_bytes / 2, self.mean_bytes * 3 / 2))
                    .unwrap_or(u32::MAX),
            });
            self.next_arrival += self
                .chance
                .between(self.mean_gap / 10, self.mean_gap * 19 / 10)
                .max(1);
        }
    }

    fn sequence_number(&self, record: u64) -> u64 {
        self.base + record
    }
}

/// A page as a read answers it.
pub(crate) struct Page {
    /// The first record's number, and how many bytes each of them has.
    pub(crate) first: u64,
    pub(crate) bytes: Vec<u32>,
    pub(crate) next_iterator: Option<String>,
    pub(crate) millis_behind_latest: u64,
    pub(crate) children: Vec<ChildShard>,
}

/// The stream of a run.
pub(crate) struct Stream {
    shards: Vec<SimShard>,
    chance: Chance,
    /// Nothing arrives any more from then on.
    ends: Micros,
}

impl Stream {
    pub(crate) fn new(mut chance: Chance, shards: usize, ends: Micros) -> Self {
        let mut stream = Self {
            shards: Vec::new(),
            chance: chance.fork(),
            ends,
        };
        let width = u128::MAX / shards as u128;
        for number in 0..shards {
            let start = width * number as u128;
            let end = if number + 1 == shards {
                u128::MAX
            } else {
                start + width - 1
            };
            let range = HashKeyRange::new(start, end).unwrap_or(HashKeyRange::FULL);
            // From a record in a hundred milliseconds to one in ten seconds; most shards are slow, some are hot.
            let mean_gap = 300 * MILLI + chance.below(4 * SECOND) * (1 + chance.below(3));
            stream.add(0, Vec::new(), range, mean_gap);
        }
        stream
    }

    fn add(&mut self, now: Micros, parents: Vec<usize>, range: HashKeyRange, mean_gap: Micros) -> usize {
        let number = self.shards.len();
        let mut chance = self.chance.fork();
        self.shards.push(SimShard {
            id: ShardId::new(format!("shardId-{number:012}")),
            parents,
            children: Vec::new(),
            range,
            base: BASE_STEP * (number as u64 + 1),
            created: now,
            closed: None,
            records: Vec::new(),
            next_arrival: now + 1 + chance.below(mean_gap),
            mean_gap,
            mean_bytes: chance.between(500, 20_000),
            chance,
        });
        number
    }

    fn close(&mut self, now: Micros, shard: usize) {
        self.shards[shard].materialize(now.min(self.ends));
        self.shards[shard].closed = Some(now);
    }

    fn open_shards(&self) -> Vec<usize> {
        (0..self.shards.len())
            .filter(|shard| self.shards[*shard].closed.is_none())
            .collect()
    }

    /// Splits an open shard, chosen by chance; whether there was one.
    pub(crate) fn split(&mut self, now: Micros) -> Option<usize> {
        let open = self.open_shards();
        if open.is_empty() || open.len() >= OPEN_SHARDS_MAX {
            return None;
        }
        let parent = open[self.chance.index(open.len())];
        let (start, end) = (self.shards[parent].range.start(), self.shards[parent].range.end());
        let middle = start + (end - start) / 2;
        let mean_gap = self.shards[parent].mean_gap * 2;
        self.close(now, parent);
        for (start, end) in [(start, middle), (middle + 1, end)] {
            let range = HashKeyRange::new(start, end).ok()?;
            let child = self.add(now, vec![parent], range, mean_gap);
            self.shards[parent].children.push(child);
        }
        Some(parent)
    }

    /// Merges two open neighbours, chosen by chance.
    pub(crate) fn merge(&mut self, now: Micros) -> Option<usize> {
        let mut open = self.open_shards();
        open.sort_by_key(|shard| self.shards[*shard].range);
        if open.len() < 2 {
            return None;
        }
        let left = self.chance.index(open.len() - 1);
        let (left, right) = (open[left], open[left + 1]);
        let range =
            HashKeyRange::new(self.shards[left].range.start(), self.shards[right].range.end()).ok()?;
        let mean_gap = self.shards[left].mean_gap.min(self.shards[right].mean_gap) * 2 / 3;
        self.close(now, left);
        self.close(now, right);
        let child = self.add(now, vec![left, right], range, mean_gap);
        self.shards[left].children.push(child);
        self.shards[right].children.push(child);
        Some(left)
    }

    /// All shards that had been created by `as_of`, as a listing at that time shows them.
    pub(crate) fn list(&mut self, as_of: Micros) -> Vec<Shard> {
        let ends = self.ends;
        let known: Vec<usize> = (0..self.shards.len())
            .filter(|shard| self.shards[*shard].created <= as_of)
            .collect();
        let mut listed = Vec::with_capacity(known.len());
        for number in known {
            self.shards[number].materialize(as_of.min(ends));
            let shard = &self.shards[number];
            let parent = |at: usize| {
                shard
                    .parents
                    .get(at)
                    .map(|parent| self.shards[*parent].id.clone())
            };
            let is_closed = shard.closed.is_some_and(|closed| closed <= as_of);
            let ending = is_closed.then(|| shard.sequence_number(shard.records.len() as u64));
            listed.push(Shard {
                shard_id: shard.id.clone(),
                parent_shard_id: parent(0),
                adjacent_parent_shard_id: parent(1),
                hash_key_range: shard.range,
                starting_sequence_number: digits(shard.base),
                ending_sequence_number: ending.map(digits),
            });
        }
        listed
    }

    /// An iterator at `position`; its text is the shard and the record that it points at.
    pub(crate) fn iterator(&mut self, shard: usize, position: &IteratorPosition, now: Micros) -> String {
        let ends = self.ends;
        let shard_state = &mut self.shards[shard];
        shard_state.materialize(now.min(ends));
        let count = shard_state.records.len() as u64;
        let index_of = |at: &SequenceNumber| number_of(at).saturating_sub(shard_state.base);
        let record = match position {
            IteratorPosition::TrimHorizon => 0,
            IteratorPosition::Latest => count,
            IteratorPosition::AtTimestamp(at) => {
                let at = micros_of(*at);
                shard_state.records.partition_point(|record| record.arrived < at) as u64
            }
            IteratorPosition::AtSequenceNumber(at) => index_of(at),
            IteratorPosition::AfterSequenceNumber(at) => index_of(at) + 1,
        };
        format!("{shard}:{record}")
    }

    /// Reads up to `limit` records. `knows_children` is whether the service has heard of a reshard a moment ago.
    pub(crate) fn read(
        &mut self,
        iterator: &str,
        limit: usize,
        now: Micros,
        knows_children: bool,
    ) -> Option<Page> {
        let (shard, first) = iterator.split_once(':')?;
        let (number, first): (usize, u64) = (shard.parse().ok()?, first.parse().ok()?);
        let ends = self.ends;
        let shard = self.shards.get_mut(number)?;
        shard.materialize(now.min(ends));
        let start = usize::try_from(first).ok()?.min(shard.records.len());
        let taken = &shard.records[start..];
        let taken = &taken[..taken.len().min(limit)];
        let bytes: Vec<u32> = taken.iter().map(|record| record.bytes).collect();
        let next = start + taken.len();
        let behind = shard
            .records
            .get(next)
            .map_or(0, |record| (now - record.arrived.min(now)) / MILLI);
        let has_ended = shard.closed.is_some_and(|closed| closed <= now) && next >= shard.records.len();
        let children = if has_ended && knows_children {
            shard.children.clone()
        } else {
            Vec::new()
        };
        Some(Page {
            first: start as u64,
            bytes,
            next_iterator: (!has_ended).then(|| format!("{number}:{next}")),
            millis_behind_latest: behind,
            children: children.into_iter().map(|child| self.child(child)).collect(),
        })
    }

    fn child(&self, child: usize) -> ChildShard {
        let shard = &self.shards[child];
        ChildShard {
            shard_id: shard.id.clone(),
            parent_shard_ids: shard
                .parents
                .iter()
                .map(|parent| self.shards[*parent].id.clone())
                .collect(),
            hash_key_range: shard.range,
        }
    }

    pub(crate) fn range(&self, shard: usize) -> HashKeyRange {
        self.shards[shard].range
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.len()
    }

    pub(crate) fn parents(&self, shard: usize) -> &[usize] {
        &self.shards[shard].parents
    }

    pub(crate) fn is_closed(&self, shard: usize) -> bool {
        self.shards[shard].closed.is_some()
    }

    /// How many records have arrived by `now`.
    pub(crate) fn record_count(&mut self, shard: usize, now: Micros) -> u64 {
        let ends = self.ends;
        self.shards[shard].materialize(now.min(ends));
        self.shards[shard].records.len() as u64
    }
}

/// The number of the shard that a lease is of.
pub(crate) fn shard_number(key: &LeaseKey) -> usize {
    let digits = key.as_str().rsplit('-').next().unwrap_or_default();
    digits.parse().unwrap_or(usize::MAX)
}

/// The sequence number of a record.
pub(crate) fn sequence_number(shard: usize, record: u64) -> SequenceNumber {
    digits(BASE_STEP * (shard as u64 + 1) + record)
}

/// The number of the record that a checkpoint of `shard` names; `None` for a sentinel.
pub(crate) fn record_number(shard: usize, at: &ExtendedSequenceNumber) -> Option<u64> {
    let base = BASE_STEP * (shard as u64 + 1);
    at.sequence_number().map(|at| number_of(at).saturating_sub(base))
}

fn number_of(at: &SequenceNumber) -> u64 {
    at.as_str().parse().unwrap_or(u64::MAX)
}

fn digits(number: u64) -> SequenceNumber {
    match SequenceNumber::parse(&number.to_string()) {
        Ok(parsed) => parsed,
        Err(error) => unreachable!("a number is made of digits: {error}"),
    }
}

fn micros_of(at: Timestamp) -> Micros {
    at.millis().saturating_sub(EPOCH_MILLIS) * MILLI
}
