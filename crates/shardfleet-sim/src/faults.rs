//! The kinds of faults, when each of them happens, and how often it did.
//!
//! Requests fail in *spells*: for a while, with some probability. Processes crash, freeze and stop at moments of their own. The checks know nothing of this
//! file but [`FaultKind`]'s names: they judge by what workers, table and stream did.

use std::collections::BTreeMap;
use std::fmt;

use crate::chance::Chance;
use crate::exec::{Micros, SECOND};

macro_rules! fault_kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// A kind of fault. Each happens in every run, or the run has failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum FaultKind {
            $($(#[$doc])* $kind,)*
        }

        impl FaultKind {
            /// Every kind there is.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// Its name in reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

fault_kinds! {
    /// The table refused a request because there were too many.
    StoreThrottled = "store_throttled",
    /// A request to the table failed, and nothing happened; the caller cannot know.
    StoreFailed = "store_failed",
    /// A write happened, and its caller was told that it failed.
    LostAnswer = "lost_answer",
    /// A write happened later than its caller waited.
    LateWrite = "late_write",
    /// A request to the table took seconds.
    SlowStore = "slow_store",
    /// A scan showed rows as they had been a second or more before.
    StaleScan = "stale_scan",
    /// The index of owners lagged by a second or more.
    IndexLag = "index_lag",
    /// One worker could not reach the table at all for longer than the failover time.
    CutOff = "cut_off",
    /// A read of the stream was throttled.
    ReadThrottled = "read_throttled",
    /// A read of the stream failed.
    ReadFailed = "read_failed",
    /// An iterator expired.
    IteratorExpired = "iterator_expired",
    /// A listing of shards failed.
    ListingFailed = "listing_failed",
    /// A listing of shards, or the end of one, did not know of the newest ones yet.
    StaleListing = "stale_listing",
    /// A shard was split.
    Split = "split",
    /// Two shards were merged.
    Merge = "merge",
    /// A process was killed; another one started later under a new name.
    Crash = "crash",
    /// A process was killed; another one started at once under the same name.
    Restart = "restart",
    /// The leader was killed.
    LeaderCrash = "leader_crash",
    /// A process stood still for less than the failover time.
    Pause = "pause",
    /// A process stood still for longer than the failover time, and went on.
    Freeze = "freeze",
    /// The leader stood still for longer than its lock is good for, and went on.
    ZombieLeader = "zombie_leader",
    /// A worker was stopped in order.
    PlannedStop = "planned_stop",
    /// A worker joined the fleet.
    Join = "join",
    /// A handler took longer than a handoff may take.
    SlowHandler = "slow_handler",
    /// A wall clock was set to another time.
    ClockJump = "clock_jump",
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A time in which requests fail in one way.
#[derive(Clone, Copy, Debug)]
struct Spell {
    kind: FaultKind,
    from: Micros,
    to: Micros,
    per_mille: u32,
    /// Only this slot's worker is concerned.
    slot: Option<usize>,
}

/// The faults of a run.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    spells: Vec<Spell>,
    counts: BTreeMap<FaultKind, u64>,
}

/// The kinds that come in spells, and how likely each is then, at least and at most.
const SPELLS: &[(FaultKind, u64, u64)] = &[
    (FaultKind::StoreThrottled, 50, 400),
    (FaultKind::StoreFailed, 50, 300),
    (FaultKind::LostAnswer, 50, 300),
    (FaultKind::LateWrite, 30, 150),
    (FaultKind::SlowStore, 50, 300),
    (FaultKind::StaleScan, 300, 900),
    (FaultKind::IndexLag, 300, 900),
    (FaultKind::CutOff, 1000, 1000),
    (FaultKind::ReadThrottled, 100, 500),
    (FaultKind::ReadFailed, 100, 500),
    (FaultKind::IteratorExpired, 50, 300),
    (FaultKind::ListingFailed, 300, 1000),
    (FaultKind::StaleListing, 300, 900),
    (FaultKind::SlowHandler, 20, 100),
];

impl Faults {
    /// Plans the spells of a storm. Each kind gets one at least; between them there is clear weather.
    pub(crate) fn plan(chance: &mut Chance, from: Micros, to: Micros, slots: usize) -> Self {
        let mut spells = Vec::new();
        // Spells begin at a few moments only, so that faults of several kinds meet, and clear weather lies between.
        let fronts: Vec<Micros> = (0..chance.between(4, 7))
            .map(|_| chance.between(from, to.saturating_sub(100 * SECOND)))
            .collect();
        for (kind, low, high) in SPELLS {
            for _ in 0..chance.between(1, 2) {
                let begins = fronts[chance.index(fronts.len())] + chance.below(10 * SECOND);
                let lasts = match kind {
                    FaultKind::CutOff => chance.between(12, 40) * SECOND,
                    FaultKind::ListingFailed | FaultKind::StaleListing => 75 * SECOND,
                    FaultKind::SlowHandler => chance.between(40, 80) * SECOND,
                    _ => chance.between(15, 45) * SECOND,
                };
                let per_mille = u32::try_from(chance.between(*low, *high)).unwrap_or(1000);
                let slot = (*kind == FaultKind::CutOff).then(|| chance.index(slots));
                spells.push(Spell {
                    kind: *kind,
                    from: begins,
                    to: (begins + lasts).min(to),
                    per_mille,
                    slot,
                });
            }
        }
        Self {
            spells,
            counts: BTreeMap::new(),
        }
    }

    /// Each kind of spell that has not struck yet does so from now on, as often as it can, the worker of `slot` being cut off if that one is missing.
    pub(crate) fn call(&mut self, now: Micros, slot: Option<usize>) {
        let is_missing = |kind: &FaultKind| !self.counts.contains_key(kind);
        let missing: Vec<FaultKind> = SPELLS.iter().map(|(kind, ..)| *kind).filter(is_missing).collect();
        for kind in &missing {
            // A listing that fails cannot be an old one as well.
            let is_next = *kind == FaultKind::StaleListing && missing.contains(&FaultKind::ListingFailed);
            if !is_next {
                let is_cut_off = *kind == FaultKind::CutOff;
                let is_rare = matches!(
                    kind,
                    FaultKind::CutOff | FaultKind::ListingFailed | FaultKind::StaleListing
                );
                self.spells.push(Spell {
                    kind: *kind,
                    from: now,
                    to: now + if is_cut_off { 20 * SECOND } else { 90 * SECOND },
                    per_mille: if is_rare { 1000 } else { 400 },
                    slot: if is_cut_off { slot } else { None },
                });
            }
        }
    }

    /// Whether a fault of this kind befalls the worker of `slot` now. It is counted by the caller, once it has happened.
    pub(crate) fn strikes(&self, chance: &mut Chance, kind: FaultKind, now: Micros, slot: usize) -> bool {
        self.spells.iter().any(|spell| {
            spell.kind == kind
                && spell.from <= now
                && now < spell.to
                && spell.slot.is_none_or(|only| only == slot)
                && chance.happens(spell.per_mille)
        })
    }

    /// Whether there is a spell of any kind now; most of the time there is none, which is quickly seen.
    pub(crate) fn is_stormy(&self, now: Micros) -> bool {
        self.spells
            .iter()
            .any(|spell| spell.from <= now && now < spell.to)
    }

    pub(crate) fn count(&mut self, kind: FaultKind) {
        *self.counts.entry(kind).or_insert(0) += 1;
    }

    pub(crate) fn counts(&self) -> &BTreeMap<FaultKind, u64> {
        &self.counts
    }

    /// The first kind that never happened.
    pub(crate) fn missing(&self) -> Option<FaultKind> {
        FaultKind::ALL
            .iter()
            .copied()
            .find(|kind| self.counts.get(kind).is_none_or(|count| *count == 0))
    }
}
