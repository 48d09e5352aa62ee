//! Who leads the fleet: a lock in the table, as the DynamoDB lock client keeps it.
//!
//! A machine. The driver asks [`LeaderElection::next_action`] when [`LeaderElection::next_deadline`] has come, carries the action out and reports how it came
//! out; between two reports nothing else is started. The rules (`KCL: DynamoDBLockBasedLeaderDecider`, `AmazonDynamoDBLockClient`):
//!
//! * Each write gives the lock a new record version. Whoever sees the same version for longer than the lock's duration, by its own monotonic clock and
//!   counted from when its first read of it came back, may take the lock.
//! * A holder leads until that duration after it *began* its last successful write. As others count from later, no two lead at once while clocks run at the
//!   same rate.
//! * A holder that cannot do the work gives the lock up after some failed runs, and does not take it straight back.
//!
//! It never believes that a lock under its own name is its own unless it wrote that version itself: after a restart it waits like everybody else.

use std::time::Duration;

use crate::ids::WorkerId;
use crate::time::Moment;

/// The key of the lock's row.
pub const LOCK_KEY: &str = "Leader";
/// Its `entityType`.
pub const LOCK_ENTITY_TYPE: &str = "LEADER";
/// A noted duration beyond this is garbage, not a lock that somebody keeps.
const LONGEST_LOCK: Duration = Duration::from_hours(24);
/// How many writes of unknown outcome are remembered.
const MOST_UNCONFIRMED: usize = 8;

/// The lock's attributes as they are stored, each of them text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockFields {
    /// `ownerName`
    pub owner_name: Option<String>,
    /// `leaseDuration`: milliseconds as text.
    pub lease_duration: Option<String>,
    /// `recordVersionNumber`
    pub record_version_number: Option<String>,
    /// `isReleased`: `1` where a client released the lock without deleting it.
    pub is_released: Option<String>,
}

/// The lock's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRow {
    /// Who holds it; nobody in a row that does not say.
    pub owner: Option<WorkerId>,
    /// The version of its last write, different each time.
    pub version: Option<String>,
    /// For how long nobody else may take it after that.
    pub lease_duration: Duration,
    /// Free to take at once.
    pub is_released: bool,
}

impl LockRow {
    /// Reads what is stored. A duration that is missing, unreadable or longer than a day is taken to be `default_duration`: a row that somebody broke must not
    /// keep the fleet without a leader.
    pub fn decode(fields: &LockFields, default_duration: Duration) -> Self {
        let stored = fields
            .lease_duration
            .as_deref()
            .and_then(|text| text.trim().parse().ok());
        Self {
            owner: fields.owner_name.as_deref().map(WorkerId::new),
            version: fields.record_version_number.clone(),
            lease_duration: stored
                .map(Duration::from_millis)
                .filter(|duration| *duration <= LONGEST_LOCK)
                .unwrap_or(default_duration),
            is_released: fields.is_released.as_deref() == Some("1"),
        }
    }

    /// What is stored for it.
    pub fn encode(&self) -> LockFields {
        LockFields {
            owner_name: self.owner.as_ref().map(ToString::to_string),
            lease_duration: Some(self.lease_duration.as_millis().to_string()),
            record_version_number: self.version.clone(),
            is_released: self.is_released.then(|| "1".to_owned()),
        }
    }
}

/// What the row must look like for a write to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockCondition {
    /// `attribute_not_exists(pk)`
    Absent,
    /// `attribute_exists(pk) AND isReleased = "1"`
    Released,
    /// `attribute_exists(pk) AND recordVersionNumber = :seen`, absent where nothing was seen.
    VersionIs(Option<String>),
    /// `attribute_exists(pk) AND recordVersionNumber = :mine AND ownerName = :me`
    Mine {
        /// The version of this worker's last write.
        version: String,
        /// This worker.
        owner: WorkerId,
    },
}

impl LockCondition {
    /// Whether it holds for the row as it is.
    pub fn holds(&self, row: Option<&LockRow>) -> bool {
        match (self, row) {
            (Self::Absent, row) => row.is_none(),
            (_, None) => false,
            (Self::Released, Some(row)) => row.is_released,
            (Self::VersionIs(seen), Some(row)) => row.version == *seen,
            (Self::Mine { version, owner }, Some(row)) => {
                row.version.as_ref() == Some(version) && row.owner.as_ref() == Some(owner)
            }
        }
    }
}

/// A conditional write of the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockWrite {
    /// Puts the whole row.
    Acquire {
        /// When it may.
        condition: LockCondition,
        /// The new row.
        row: LockRow,
    },
    /// Sets the version and the duration of the row, and nothing else.
    Heartbeat {
        /// When it may.
        condition: LockCondition,
        /// The new version.
        version: String,
        /// The duration.
        lease_duration: Duration,
    },
    /// Deletes the row.
    Release {
        /// When it may.
        condition: LockCondition,
    },
}

impl LockWrite {
    /// The condition.
    pub fn condition(&self) -> &LockCondition {
        match self {
            Self::Acquire { condition, .. }
            | Self::Heartbeat { condition, .. }
            | Self::Release { condition } => condition,
        }
    }

    /// Executes it on a row. Answers whether the condition held. This is what every store must do.
    pub fn apply(&self, row: &mut Option<LockRow>) -> bool {
        if !self.condition().holds(row.as_ref()) {
            return false;
        }
        match self {
            Self::Acquire { row: new, .. } => *row = Some(new.clone()),
            Self::Heartbeat {
                version,
                lease_duration,
                ..
            } => {
                if let Some(row) = row {
                    row.version = Some(version.clone());
                    row.lease_duration = *lease_duration;
                }
            }
            Self::Release { .. } => *row = None,
        }
        true
    }
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaderAction {
    /// Read the row consistently, and report with [`LeaderElection::on_read`].
    Read,
    /// Write it, and report with [`LeaderElection::on_written`].
    Write(LockWrite),
}

/// How a conditional write came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockOutcome {
    /// It happened.
    Written,
    /// The condition did not hold.
    Conflict,
    /// No answer, or an error: it may have happened.
    Unknown,
}

/// The settings of the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderPolicy {
    /// How long the lock is good for after a write. Default 120 s.
    pub lease_duration: Duration,
    /// How often the holder writes. Default 30 s; half of `lease_duration` is used if it is more.
    pub heartbeat: Duration,
    /// How often others read. Default 10 s.
    pub poll: Duration,
    /// How long after a read or write without an answer the next begins. Default 5 s.
    pub retry: Duration,
    /// After how many failed runs in a row the holder gives the lock up. Default 3.
    pub max_failed_runs: u32,
    /// For how long it leaves the lock to others then. Default 60 s.
    pub cool_down: Duration,
}

impl Default for LeaderPolicy {
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_mins(2),
            heartbeat: Duration::from_secs(30),
            poll: Duration::from_secs(10),
            retry: Duration::from_secs(5),
            max_failed_runs: 3,
            cool_down: Duration::from_mins(1),
        }
    }
}

/// The row as this worker has seen it.
#[derive(Clone, Debug)]
struct Seen {
    row: LockRow,
    /// When the first read of this version came back.
    first: Moment,
    /// Its holder is silent: it is taken before it has run out.
    is_silent: bool,
}

#[derive(Clone, Debug)]
struct Held {
    version: String,
    /// When the write that is known to have happened began.
    since: Moment,
}

#[derive(Clone, Debug)]
enum InFlight {
    Read,
    Acquire { version: String },
    Heartbeat { version: String },
    Release,
}

/// The election as one worker sees it.
#[derive(Clone, Debug)]
pub struct LeaderElection {
    me: WorkerId,
    policy: LeaderPolicy,
    held: Option<Held>,
    seen: Option<Seen>,
    /// The row was read and was not there, or is free.
    free: bool,
    /// Versions of writes whose outcome is not known, with when each began.
    unconfirmed: Vec<(String, Moment)>,
    in_flight: Option<(InFlight, Moment)>,
    next: Moment,
    failed_runs: u32,
    resting_until: Moment,
    giving_up: bool,
    stopping: bool,
}

impl LeaderElection {
    /// Begins as a standby that has seen nothing.
    pub fn new(me: WorkerId, policy: LeaderPolicy) -> Self {
        Self {
            me,
            policy,
            held: None,
            seen: None,
            free: false,
            unconfirmed: Vec::new(),
            in_flight: None,
            next: Moment::default(),
            failed_runs: 0,
            resting_until: Moment::default(),
            giving_up: false,
            stopping: false,
        }
    }

    /// Whether this worker leads at `now`. Ask before each thing that only a leader may do.
    pub fn is_leader(&self, now: Moment) -> bool {
        let valid = |held: &Held| now <= held.since + self.policy.lease_duration;
        !self.giving_up && !self.stopping && self.held.as_ref().is_some_and(valid)
    }

    /// Who holds the lock, as far as this worker knows.
    pub fn known_leader(&self) -> Option<&WorkerId> {
        match (&self.held, &self.seen) {
            (Some(_), _) => Some(&self.me),
            (None, Some(seen)) if !seen.row.is_released => seen.row.owner.as_ref(),
            _ => None,
        }
    }

    /// When to ask for the next action; not before the one under way is reported.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.in_flight.is_none().then_some(self.next)
    }

    /// The run of the leader's work that ended at `now` failed or did not. After [`LeaderPolicy::max_failed_runs`] failures in a row the lock is given up.
    pub fn on_run(&mut self, now: Moment, succeeded: bool) {
        if succeeded {
            self.failed_runs = 0;
            return;
        }
        self.failed_runs = self.failed_runs.saturating_add(1);
        if self.failed_runs >= self.policy.max_failed_runs && self.is_leader(now) {
            self.step_down(now);
        }
    }

    /// Something hints that the lock is free, such as a scan that does not show it: a standby reads it at `now` instead of when it would have. Whether anything changes by that.
    pub fn look_now(&mut self, now: Moment) -> bool {
        let may =
            self.held.is_none() && self.in_flight.is_none() && now >= self.resting_until && self.next > now;
        // A lock that was seen free, or is being waited for without an answer, has its own pace.
        let may = may && self.seen.is_some() && self.unconfirmed.is_empty();
        if may {
            self.next = now;
        }
        may
    }

    /// The leases of `holder` have all expired and it has shown no sign of life since: a standby takes the lock at `now`, unless it is written meanwhile, and does not
    /// wait for it to run out. Whether anything changes by that. Should the holder wake up, a scan shows it the new row ([`doubt`](Self::doubt)); what it writes
    /// until then is as conditional as everything that a leader writes.
    pub fn on_silent(&mut self, now: Moment, holder: &WorkerId) -> bool {
        if self.held.is_some() || self.in_flight.is_some() || self.stopping || now < self.resting_until {
            return false;
        }
        let seen = self.seen.as_mut().filter(|seen| !seen.is_silent);
        let Some(seen) = seen.filter(|seen| seen.row.owner.as_ref() == Some(holder)) else {
            return false;
        };
        seen.is_silent = true;
        self.next = now;
        true
    }

    /// A scan shows the lock in another worker's name: the holder makes its next heartbeat at `now`, which tells. Whether anything changes by that.
    pub fn doubt(&mut self, now: Moment) -> bool {
        let may = self.held.is_some() && self.in_flight.is_none() && self.next > now;
        if may {
            self.next = now;
        }
        may
    }

    /// Gives the lock up, and leaves it to others for a while.
    pub fn step_down(&mut self, now: Moment) {
        self.failed_runs = 0;
        self.resting_until = now + self.policy.cool_down;
        if self.held.is_some() {
            self.giving_up = true;
            self.next = now;
        }
    }

    /// This worker is going to stop: it leads no more, and takes the lock no more. What [`Self::next_action`] answers from now on releases it.
    pub fn stop(&mut self, now: Moment) {
        self.stopping = true;
        self.next = now;
    }

    /// Whether there is nothing left to do after [`Self::stop`].
    pub fn is_stopped(&self) -> bool {
        self.stopping && self.in_flight.is_none() && self.held.is_none() && self.unconfirmed.is_empty()
    }

    /// What to do at `now`, if anything. `fresh_version` is a new random version (a UUID), used if a write comes of it.
    pub fn next_action(&mut self, now: Moment, fresh_version: &str) -> Option<LeaderAction> {
        if self.in_flight.is_some() || now < self.next {
            return None;
        }
        let (flight, action) = if let Some(held) = &self.held {
            let condition = LockCondition::Mine {
                version: held.version.clone(),
                owner: self.me.clone(),
            };
            if self.giving_up || self.stopping {
                (
                    InFlight::Release,
                    LeaderAction::Write(LockWrite::Release { condition }),
                )
            } else {
                let heartbeat = LockWrite::Heartbeat {
                    condition,
                    version: fresh_version.to_owned(),
                    lease_duration: self.policy.lease_duration,
                };
                (
                    InFlight::Heartbeat {
                        version: fresh_version.to_owned(),
                    },
                    LeaderAction::Write(heartbeat),
                )
            }
        } else if self.stopping && self.unconfirmed.is_empty() {
            return None;
        } else if self.stopping || self.giving_up {
            // A write without an answer may have left the lock in this worker's name.
            (InFlight::Read, LeaderAction::Read)
        } else if let Some(condition) = self.may_acquire(now) {
            let row = LockRow {
                owner: Some(self.me.clone()),
                version: Some(fresh_version.to_owned()),
                lease_duration: self.policy.lease_duration,
                is_released: false,
            };
            // What was seen is used once: whatever comes of the write, the row is read again before the next.
            self.free = false;
            (
                InFlight::Acquire {
                    version: fresh_version.to_owned(),
                },
                LeaderAction::Write(LockWrite::Acquire { condition, row }),
            )
        } else {
            (InFlight::Read, LeaderAction::Read)
        };
        self.in_flight = Some((flight, now));
        Some(action)
    }

    fn may_acquire(&self, now: Moment) -> Option<LockCondition> {
        if now < self.resting_until {
            return None;
        }
        match &self.seen {
            None => self.free.then_some(LockCondition::Absent),
            Some(seen) if seen.row.is_released => self.free.then_some(LockCondition::Released),
            // A read right before is not needed: the condition fails if the version has changed.
            Some(seen) => (now.since(seen.first) > seen.row.lease_duration || seen.is_silent)
                .then(|| LockCondition::VersionIs(seen.row.version.clone())),
        }
    }

    /// A read came back at `now` with this row, or with none.
    pub fn on_read(&mut self, now: Moment, row: Option<LockRow>) {
        self.in_flight = None;
        let is_mine = |row: &LockRow| row.owner.as_ref() == Some(&self.me) && !row.is_released;
        let own = row.as_ref().filter(|row| is_mine(row)).and_then(|row| {
            let version = row.version.as_ref()?;
            self.unconfirmed
                .iter()
                .find(|(known, _)| known == version)
                .cloned()
        });
        // A write without an answer may still be on its way: its version stays known until this worker holds the lock again.
        if let Some((version, since)) = own {
            self.hold(version, since, now);
            return;
        }
        if self.stopping || self.giving_up {
            self.let_go(now);
            return;
        }
        self.free = row.as_ref().is_none_or(|row| row.is_released);
        match (row, &mut self.seen) {
            (Some(row), Some(seen)) if seen.row.version == row.version && seen.row.owner == row.owner => {
                seen.row = row;
            }
            (Some(row), seen) => {
                *seen = Some(Seen {
                    row,
                    first: now,
                    is_silent: false,
                });
            }
            (None, seen) => *seen = None,
        }
        let may_soon = self.seen.as_ref().map(|seen| {
            // Strictly later than the duration.
            seen.first + seen.row.lease_duration + Duration::from_millis(1)
        });
        self.next = now + self.policy.poll;
        if self.free {
            self.next = now;
        } else if let Some(expires) = may_soon {
            self.next = self.next.min(expires.max(now));
        }
        if now < self.resting_until {
            self.next = now + self.policy.poll;
        }
    }

    /// A read failed.
    pub fn on_read_failed(&mut self, now: Moment) {
        self.in_flight = None;
        self.next = now + self.policy.retry;
    }

    /// The write under way came out like this, at `now`.
    pub fn on_written(&mut self, now: Moment, outcome: LockOutcome) {
        let Some((flight, began)) = self.in_flight.take() else {
            return;
        };
        match (flight, outcome) {
            (InFlight::Acquire { version } | InFlight::Heartbeat { version }, LockOutcome::Written) => {
                self.hold(version, began, now);
            }
            (InFlight::Acquire { version }, LockOutcome::Unknown) => {
                self.remember(version, began);
                self.next = now + self.policy.retry;
                // The row is to be read, to see whether it happened.
                self.seen = None;
            }
            (InFlight::Heartbeat { version }, LockOutcome::Unknown) => {
                self.remember(version, began);
                self.next = now + self.policy.retry;
            }
            (InFlight::Acquire { .. }, LockOutcome::Conflict) => {
                self.seen = None;
                self.next = now + self.policy.retry;
            }
            // Lost, unless one of the writes without an answer happened: the row tells.
            (InFlight::Heartbeat { .. }, LockOutcome::Conflict) => {
                self.held = None;
                self.seen = None;
                self.next = now;
            }
            (InFlight::Release, LockOutcome::Conflict) if !self.unconfirmed.is_empty() => {
                self.held = None;
                self.next = now;
            }
            (InFlight::Release, LockOutcome::Written | LockOutcome::Conflict) => self.let_go(now),
            (InFlight::Release, LockOutcome::Unknown) => {
                self.next = now + self.policy.retry;
                let expired = self
                    .held
                    .as_ref()
                    .is_none_or(|held| now > held.since + self.policy.lease_duration);
                if expired {
                    self.let_go(now);
                }
            }
            // A write answered a read: the driver's mistake, and the row is read again.
            (InFlight::Read, _) => self.next = now,
        }
    }

    fn hold(&mut self, version: String, since: Moment, now: Moment) {
        if self.held.is_none() {
            self.failed_runs = 0;
        }
        self.held = Some(Held { version, since });
        self.seen = None;
        self.free = false;
        self.unconfirmed.clear();
        let heartbeat = self.policy.heartbeat.min(self.policy.lease_duration / 2);
        self.next = if self.giving_up || self.stopping {
            now
        } else {
            (since + heartbeat).max(now)
        };
        if now < self.resting_until {
            // An acquisition without an answer happened after all, while this worker leaves the lock to others.
            self.giving_up = true;
            self.next = now;
        }
    }

    fn let_go(&mut self, now: Moment) {
        self.held = None;
        self.seen = None;
        self.free = false;
        self.giving_up = false;
        self.unconfirmed.clear();
        self.next = now + self.policy.poll;
    }

    fn remember(&mut self, version: String, began: Moment) {
        if self.unconfirmed.len() == MOST_UNCONFIRMED {
            self.unconfirmed.remove(0);
        }
        self.unconfirmed.push((version, began));
    }
}

#[cfg(test)]
mod tests;
