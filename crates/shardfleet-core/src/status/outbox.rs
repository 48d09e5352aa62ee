//! What is to be written, in which order, and when again: at most one write of a key is under way and one waits, and the newest always wins.
//!
//! A machine. A driver puts statuses in, hands out what [`take_due`](Outbox::take_due) gives, and says how each write came out. It never waits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{RetrySettings, StatusKey, StatusValue, StatusView, may_write};
use crate::time::Moment;

/// A write whose answer did not come may lie in a broker's buffers and land after a newer one. What was written last is looked for so long after, at each of these times,
/// and is written once more where an older one has come over it.
const CHECKS: [Duration; 4] = [
    Duration::from_millis(300),
    Duration::from_millis(700),
    Duration::from_secs(2),
    Duration::from_secs(5),
];

/// No wait is longer, whatever the settings say, since timers have an end.
const WAIT_MAX: Duration = Duration::from_secs(365 * 86_400);

/// Whether a write asks who has spoken last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// It does not (Connect: `put`).
    Plain,
    /// It is not written where another worker of a later life has spoken (Connect: `putSafe`).
    Safe,
}

/// What became of all writes so far. `accepted` is always the sum of `success`, `failure`, `superseded`, `dropped` and what is pending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Statuses taken in.
    pub accepted: u64,
    /// Statuses that are in the log (KIP-1278: `status-update-success-total`).
    pub success: u64,
    /// Statuses that were given up (KIP-1278: `status-update-failure-total`).
    pub failure: u64,
    /// Writes that were tried once more (KIP-1278: `status-update-retry-total`).
    pub retry: u64,
    /// Statuses that a newer one replaced before they were in the log.
    pub superseded: u64,
    /// Statuses that were not written when the store was closed.
    pub dropped: u64,
    /// Safe writes that were refused, since another worker has spoken. They are not counted as accepted.
    pub refused: u64,
}

/// Too many keys wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxFull {
    /// How many may.
    pub keys_max: usize,
}

/// Why a status was not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutRefused {
    /// The store is closed.
    Closed,
    /// Too many keys wait; the status counts as a failure.
    Full(OutboxFull),
    /// A safe write, and another worker of a later life has spoken.
    Stale,
}

/// A write to hand to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sending {
    /// The key.
    pub key: StatusKey,
    /// The status; `None` is a tombstone.
    pub value: Option<StatusValue>,
    /// Names the write to [`Outbox::settle`].
    pub sequence: u64,
    /// How often it was sent before.
    pub retries: u64,
}

/// How a write came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is in the log.
    Written,
    /// It may come out better later.
    Retriable(String),
    /// It never will.
    Final(String),
}

/// What a write's outcome led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It is written.
    Written {
        /// Retries before that.
        retries: u64,
    },
    /// It is tried again.
    Retrying {
        /// Retries so far, this one included.
        retry: u64,
        /// When.
        at: Moment,
    },
    /// It is given up.
    Failed {
        /// Retries before that.
        retries: u64,
    },
    /// A newer one takes its place.
    Superseded,
    /// Nobody asked for it.
    Unknown,
}

/// A status that is not in the log yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateStatus {
    /// The key.
    pub key: StatusKey,
    /// The newest status of it; `None` is a tombstone.
    pub value: Option<StatusValue>,
    /// Since when.
    pub since: Moment,
    /// How often its write was tried again.
    pub retries: u64,
    /// What the last attempt said.
    pub error: Option<String>,
    /// When it is tried next; `None` while a write is under way.
    pub next_attempt: Option<Moment>,
}

/// A status that was not written before the end.
pub type Unwritten = LateStatus;

#[derive(Clone, Debug)]
struct Write {
    sequence: u64,
    value: Option<StatusValue>,
    mode: WriteMode,
    retries: u64,
    since: Moment,
    error: Option<String>,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    in_flight: Option<Write>,
    /// With the moment at which it is sent, unless a write is under way then.
    waiting: Option<(Moment, Write)>,
    /// An attempt came to an end that is not known.
    has_doubt: bool,
}

/// A status that is written while an older one of its key may land yet.
#[derive(Clone, Debug)]
struct Doubt {
    value: Option<StatusValue>,
    mode: WriteMode,
    checks: usize,
}

/// The writes that are under way or wait.
#[derive(Clone, Debug)]
pub struct Outbox {
    settings: RetrySettings,
    keys_max: usize,
    slots: BTreeMap<StatusKey, Slot>,
    /// What waits and has nothing under way, by its time.
    due: BTreeSet<(Moment, StatusKey)>,
    doubts: BTreeMap<StatusKey, Doubt>,
    checks: BTreeSet<(Moment, StatusKey)>,
    counters: Counters,
    sequence: u64,
    is_closed: bool,
}

impl Outbox {
    /// One that holds at most so many keys.
    pub fn new(settings: RetrySettings, keys_max: usize) -> Self {
        Self {
            settings,
            keys_max,
            slots: BTreeMap::new(),
            due: BTreeSet::new(),
            doubts: BTreeMap::new(),
            checks: BTreeSet::new(),
            counters: Counters::default(),
            sequence: 0,
            is_closed: false,
        }
    }

    /// Takes a status in; `None` is a tombstone. It replaces an older one of its key that waits. After a failure it waits as long as a first retry would, so that
    /// a log in trouble is not asked faster than the back-off says however often statuses change.
    pub fn put(
        &mut self,
        now: Moment,
        key: StatusKey,
        value: Option<StatusValue>,
        mode: WriteMode,
        view: &StatusView,
    ) -> Result<(), PutRefused> {
        if self.is_closed {
            return Err(PutRefused::Closed);
        }
        if mode == WriteMode::Safe && is_stale(view, &key, value.as_ref()) {
            self.counters.refused += 1;
            return Err(PutRefused::Stale);
        }
        self.counters.accepted += 1;
        if !self.slots.contains_key(&key) && self.slots.len() >= self.keys_max {
            self.counters.failure += 1;
            return Err(PutRefused::Full(OutboxFull {
                keys_max: self.keys_max,
            }));
        }
        self.enqueue(now, key, value, mode);
        Ok(())
    }

    fn enqueue(&mut self, now: Moment, key: StatusKey, value: Option<StatusValue>, mode: WriteMode) {
        self.sequence += 1;
        // What was written last has had its day, and what may land yet is a danger to this one as well.
        let has_doubt = self.doubts.remove(&key).is_some();
        let write = Write {
            sequence: self.sequence,
            value,
            mode,
            retries: 0,
            since: now,
            error: None,
        };
        let slot = self.slots.entry(key.clone()).or_default();
        slot.has_doubt |= has_doubt;
        let at = match slot.waiting.take() {
            None => now,
            Some((at, older)) => {
                self.counters.superseded += 1;
                self.due.remove(&(at, key.clone()));
                if older.error.is_some() {
                    // What failed was no longer ago than its wait; a fresh count begins with the shortest.
                    let first = self.settings.delay(0, 0.0).min(WAIT_MAX);
                    at.min(now + first)
                } else {
                    at
                }
            }
        };
        if slot.in_flight.is_none() {
            self.due.insert((at, key));
        }
        slot.waiting = Some((at, write));
    }

    /// When the next write is due, or is to be looked for.
    pub fn next_due(&self) -> Option<Moment> {
        let first = |set: &BTreeSet<(Moment, StatusKey)>| set.first().map(|(at, _)| *at);
        [first(&self.due), first(&self.checks)]
            .into_iter()
            .flatten()
            .min()
    }

    /// Looks for what was written last where an older write may have landed since.
    fn check(&mut self, now: Moment, view: &StatusView) {
        while let Some((at, key)) = self.checks.pop_first() {
            if at > now {
                self.checks.insert((at, key));
                return;
            }
            let Some(mut doubt) = self.doubts.remove(&key) else {
                continue;
            };
            let is_overtaken = is_stale(view, &key, doubt.value.as_ref());
            if is_overtaken || self.is_closed {
                continue;
            }
            if view.get(&key) != doubt.value && doubt.checks > 0 && self.slots.len() < self.keys_max {
                self.counters.accepted += 1;
                self.slots.entry(key.clone()).or_default().has_doubt = true;
                self.enqueue(now, key, doubt.value, doubt.mode);
                continue;
            }
            doubt.checks += 1;
            if let Some(wait) = CHECKS.get(doubt.checks) {
                self.checks.insert((now + *wait, key.clone()));
                self.doubts.insert(key, doubt);
            }
        }
    }

    /// The next write that is due. One that was tried before and that another worker has overtaken since is dropped on the way.
    pub fn take_due(&mut self, now: Moment, view: &StatusView) -> Option<Sending> {
        self.check(now, view);
        loop {
            let (at, _) = self.due.first()?;
            if *at > now {
                return None;
            }
            let (_, key) = self.due.pop_first()?;
            let Some(slot) = self.slots.get_mut(&key) else {
                continue;
            };
            let Some((_, write)) = slot.waiting.take() else {
                continue;
            };
            let asks = write.retries > 0 || write.mode == WriteMode::Safe;
            if asks && is_stale(view, &key, write.value.as_ref()) {
                self.counters.superseded += 1;
                self.slots.remove(&key);
                continue;
            }
            if write.retries > 0 {
                self.counters.retry += 1;
            }
            let sending = Sending {
                key,
                value: write.value.clone(),
                sequence: write.sequence,
                retries: write.retries,
            };
            slot.in_flight = Some(write);
            return Some(sending);
        }
    }

    /// Takes in how a write came out. `chance` is a random number from 0 (included) to 1 (excluded).
    pub fn settle(
        &mut self,
        now: Moment,
        key: &StatusKey,
        sequence: u64,
        outcome: Outcome,
        chance: f64,
    ) -> Settled {
        let Some(slot) = self.slots.get_mut(key) else {
            return Settled::Unknown;
        };
        let Some(mut write) = slot.in_flight.take_if(|write| write.sequence == sequence) else {
            return Settled::Unknown;
        };
        let delay = |retries| self.settings.delay(retries, chance).min(WAIT_MAX);
        slot.has_doubt |= matches!(outcome, Outcome::Retriable(_));
        let (value, mode) = (write.value.clone(), write.mode);
        let settled = match outcome {
            Outcome::Written => {
                self.counters.success += 1;
                Settled::Written {
                    retries: write.retries,
                }
            }
            Outcome::Retriable(_) if slot.waiting.is_some() => {
                self.counters.superseded += 1;
                if let Some((at, newer)) = &mut slot.waiting {
                    *at = (*at).max(now + delay(0));
                    newer.error = Some("an older status of the key could not be written".to_owned());
                }
                Settled::Superseded
            }
            Outcome::Retriable(error) if self.settings.allows(write.retries) => {
                let at = now + delay(write.retries);
                write.retries = write.retries.saturating_add(1);
                write.error = Some(error);
                let retry = write.retries;
                slot.waiting = Some((at, write));
                Settled::Retrying { retry, at }
            }
            Outcome::Retriable(_) | Outcome::Final(_) => {
                self.counters.failure += 1;
                Settled::Failed {
                    retries: write.retries,
                }
            }
        };
        if let Some((at, _)) = &slot.waiting {
            self.due.insert((*at, key.clone()));
            return settled;
        }
        let is_written = matches!(settled, Settled::Written { .. });
        let has_doubt = self.slots.remove(key).is_some_and(|slot| slot.has_doubt);
        if is_written && has_doubt && self.doubts.len() < self.keys_max {
            let doubt = Doubt {
                value,
                mode,
                checks: 0,
            };
            self.checks.insert((now + CHECKS[0], key.clone()));
            self.doubts.insert(key.clone(), doubt);
        }
        settled
    }

    /// Takes no more statuses in. What is here may still be written.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Gives everything up that is not written, and closes. Outcomes that come later are nobody's.
    pub fn abandon(&mut self) -> Vec<Unwritten> {
        self.is_closed = true;
        let unwritten = self.late();
        self.counters.dropped += self.pending();
        self.due.clear();
        self.slots.clear();
        self.doubts.clear();
        self.checks.clear();
        unwritten
    }

    /// How many statuses are under way or wait.
    pub fn pending(&self) -> u64 {
        let of_slot = |slot: &Slot| u64::from(slot.in_flight.is_some()) + u64::from(slot.waiting.is_some());
        self.slots.values().map(of_slot).sum()
    }

    /// What became of all writes so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The newest status of each key that is not in the log yet.
    pub fn late(&self) -> Vec<LateStatus> {
        let late = |(key, slot): (&StatusKey, &Slot)| {
            let (next_attempt, write) = match (&slot.waiting, &slot.in_flight) {
                (Some((_, write)), Some(_)) | (None, Some(write)) => (None, write),
                (Some((at, write)), None) => (Some(*at), write),
                (None, None) => return None,
            };
            Some(LateStatus {
                key: key.clone(),
                value: write.value.clone(),
                since: write.since,
                retries: write.retries,
                error: write.error.clone(),
                next_attempt,
            })
        };
        self.slots.iter().filter_map(late).collect()
    }
}

/// Whether another worker of a later life has spoken since.
fn is_stale(view: &StatusView, key: &StatusKey, value: Option<&StatusValue>) -> bool {
    let given = value.and_then(StatusValue::work);
    given.is_some_and(|given| !may_write(view.work(key), given))
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;
