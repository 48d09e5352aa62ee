//! Why a shard does not move, and whether that has lasted too long.
//!
//! An accumulator. A driver says at each look what holds each shard up, if anything; [`Watchdog::observe`] keeps since when, and names what has just lasted
//! beyond the limit, once for each time. A shard that waits for new records at its tip stands still for a good reason, and is never a warning.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::ids::{LeaseKey, ShardId, WorkerId};
use crate::sequence::ExtendedSequenceNumber;
use crate::time::Moment;

/// Why a shard does not move.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standstill {
    /// Everything was read; it waits for new records.
    AtTheTip,
    /// A parent is not read to its end.
    WaitingForParent(ShardId),
    /// An operator has paused it.
    Paused,
    /// An operator has stopped it.
    Stopped,
    /// Its handler is ending, and another will go on.
    Restarting,
    /// Its first iterator is asked for.
    Opening,
    /// The service answers that too much is read.
    Throttled,
    /// Reads fail, this often in a row.
    ReadsFail(u32),
    /// Its handler is in a call.
    HandlerBusy,
    /// Too much is handed out and not settled; this record was handed out first.
    BufferFull(Option<ExtendedSequenceNumber>),
    /// The worker's memory budget is used up by other shards.
    MemoryFull,
    /// Everything was read, and some of it is not settled.
    Draining,
    /// A handler failed for good, with these words.
    Failed(String),
    /// It is being handed over to this worker.
    HandoffUnderWay(WorkerId),
    /// Nobody holds its lease.
    NoOwner,
    /// Nobody holds its lease, and nobody leads.
    NoLeader,
    /// Its lease is this worker's, who does not renew it.
    OwnerSilent(WorkerId),
    /// The lease store cannot be reached.
    StoreUnreachable,
    /// It is read and nothing comes of it, for no reason that is known.
    NoProgress,
}

impl Standstill {
    /// Whether it may last: it is a fault of nothing.
    pub fn is_healthy(&self) -> bool {
        matches!(
            self,
            Self::AtTheTip | Self::WaitingForParent(_) | Self::Paused | Self::Stopped
        )
    }

    /// Whether it is the same reason, whatever its numbers.
    fn is_same(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl fmt::Display for Standstill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtTheTip => write!(f, "everything was read; it waits for new records"),
            Self::WaitingForParent(parent) => write!(f, "its parent {parent} is not read to its end"),
            Self::Paused => write!(f, "it is paused; resume it to read on"),
            Self::Stopped => write!(f, "it is stopped; resume it to read on"),
            Self::Restarting => write!(f, "it is being restarted"),
            Self::Opening => write!(f, "its first iterator is asked for"),
            Self::Throttled => write!(f, "Kinesis throttles its reads"),
            Self::ReadsFail(failures) => write!(f, "its reads fail ({failures} in a row)"),
            Self::HandlerBusy => write!(f, "its handler is in a call"),
            Self::BufferFull(Some(first)) => {
                write!(
                    f,
                    "too much is handed out and not settled, {first} for the longest time"
                )
            }
            Self::BufferFull(None) => write!(f, "too much is handed out and not settled"),
            Self::MemoryFull => write!(f, "other shards use up the worker's memory budget"),
            Self::Draining => write!(f, "everything was read, and some of it is not settled"),
            Self::Failed(reason) => write!(f, "its handler failed for good: {reason}"),
            Self::HandoffUnderWay(to) => write!(f, "it is being handed over to {to}"),
            Self::NoOwner => write!(f, "nobody holds its lease"),
            Self::NoLeader => write!(f, "nobody holds its lease, and nobody leads the fleet"),
            Self::OwnerSilent(owner) => write!(f, "{owner} holds its lease and does not renew it"),
            Self::StoreUnreachable => write!(f, "the lease store cannot be reached"),
            Self::NoProgress => write!(f, "it is read, and nothing comes of it"),
        }
    }
}

/// A shard that stands still, and since when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Which.
    pub lease_key: LeaseKey,
    /// Why.
    pub reason: Standstill,
    /// Since when for this reason.
    pub since: Moment,
}

/// What a driver saw of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// What would hold it up if it does not move.
    pub reason: Option<Standstill>,
    /// Anything that grows while the shard moves, such as the bytes that were handed out and settled.
    pub progress: u64,
}

/// Since when shards stand still.
#[derive(Clone, Debug)]
pub struct Watchdog {
    limit: Duration,
    shards: BTreeMap<LeaseKey, Watched>,
}

#[derive(Clone, Debug)]
struct Watched {
    reason: Option<Standstill>,
    since: Moment,
    progress: u64,
    is_told: bool,
}

impl Watchdog {
    /// Warns of what lasts longer than `limit`.
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            shards: BTreeMap::new(),
        }
    }

    /// Notes what was seen at `now`: every shard of the stream that is not finished. Answers those that have stood still for longer than the limit and were not named
    /// for the same reason before.
    pub fn observe(&mut self, now: Moment, seen: BTreeMap<LeaseKey, Sighting>) -> Vec<Stall> {
        self.shards.retain(|key, _| seen.contains_key(key));
        let mut stalls = Vec::new();
        for (key, Sighting { reason, progress }) in seen {
            let watched = self.shards.entry(key.clone()).or_insert_with(|| Watched {
                reason: reason.clone(),
                since: now,
                progress,
                is_told: false,
            });
            let is_same = match (&watched.reason, &reason) {
                (Some(known), Some(reason)) => known.is_same(reason) && watched.progress == progress,
                (None, None) => true,
                _ => false,
            };
            if !is_same {
                watched.since = now;
                watched.is_told = false;
            }
            watched.progress = progress;
            watched.reason = reason;
            if let Some(reason) = watched.reason.as_ref().filter(|reason| !reason.is_healthy())
                && !watched.is_told
                && now.since(watched.since) >= self.limit
            {
                watched.is_told = true;
                stalls.push(Stall {
                    lease_key: key,
                    reason: reason.clone(),
                    since: watched.since,
                });
            }
        }
        stalls
    }

    /// What holds each shard up at present, by key.
    pub fn standstills(&self) -> impl Iterator<Item = Stall> {
        self.shards.iter().filter_map(|(lease_key, watched)| {
            Some(Stall {
                lease_key: lease_key.clone(),
                reason: watched.reason.clone()?,
                since: watched.since,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(s: u64) -> Moment {
        Moment::new(Duration::from_secs(s))
    }

    fn look(
        dog: &mut Watchdog,
        at: u64,
        reason: Option<Standstill>,
        progress: u64,
    ) -> Vec<(u64, Standstill)> {
        let seen = BTreeMap::from([(LeaseKey::from("shardId-0"), Sighting { reason, progress })]);
        dog.observe(second(at), seen)
            .into_iter()
            .map(|stall| (stall.since.since_origin().as_secs(), stall.reason))
            .collect()
    }

    #[test]
    fn what_lasts_beyond_the_limit_is_named_once() {
        let mut dog = Watchdog::new(Duration::from_secs(60));
        let busy = Some(Standstill::HandlerBusy);
        assert_eq!(look(&mut dog, 10, busy.clone(), 5), []);
        assert_eq!(look(&mut dog, 69, busy.clone(), 5), []);
        assert_eq!(
            look(&mut dog, 70, busy.clone(), 5),
            [(10, Standstill::HandlerBusy)]
        );
        assert_eq!(look(&mut dog, 300, busy.clone(), 5), []);
        assert_eq!(dog.standstills().count(), 1);
        assert_eq!(look(&mut dog, 301, busy.clone(), 6), [], "it moved");
        assert_eq!(look(&mut dog, 361, busy, 6), [(301, Standstill::HandlerBusy)]);
    }

    #[test]
    fn another_reason_counts_from_its_own_begin_and_numbers_do_not_make_another() {
        let mut dog = Watchdog::new(Duration::from_secs(60));
        assert_eq!(look(&mut dog, 0, Some(Standstill::Throttled), 0), []);
        assert_eq!(look(&mut dog, 50, Some(Standstill::ReadsFail(1)), 0), []);
        assert_eq!(look(&mut dog, 90, Some(Standstill::ReadsFail(2)), 0), []);
        assert_eq!(
            look(&mut dog, 110, Some(Standstill::ReadsFail(3)), 0),
            [(50, Standstill::ReadsFail(3))]
        );
        assert_eq!(look(&mut dog, 111, None, 0), []);
        assert_eq!(dog.standstills().count(), 0);
    }

    #[test]
    fn the_tip_is_no_fault_and_a_shard_that_is_gone_is_forgotten() {
        let mut dog = Watchdog::new(Duration::from_secs(60));
        for at in [0, 1000] {
            assert_eq!(look(&mut dog, at, Some(Standstill::AtTheTip), 0), []);
        }
        assert!(dog.observe(second(1001), BTreeMap::new()).is_empty());
        assert_eq!(dog.standstills().count(), 0);
    }

    #[test]
    fn every_reason_is_said_in_words() {
        let all = [
            Standstill::WaitingForParent("shardId-1".into()),
            Standstill::BufferFull(Some(ExtendedSequenceNumber::TrimHorizon)),
            Standstill::OwnerSilent("w1".into()),
            Standstill::Failed("out of paper".to_owned()),
        ];
        let words: Vec<String> = all.iter().map(ToString::to_string).collect();
        let expected = [
            "its parent shardId-1 is not read to its end",
            "too much is handed out and not settled, TRIM_HORIZON for the longest time",
            "w1 holds its lease and does not renew it",
            "its handler failed for good: out of paper",
        ];
        assert_eq!(words, expected);
    }
}
