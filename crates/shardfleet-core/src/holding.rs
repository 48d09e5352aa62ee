//! A lease that this worker holds, as its holder sees it: when it is lost, what a refused write means, and whether it is to be handed over.
//!
//! A machine for one lease. The driver makes a write from [`Holding::row`], says [`Holding::begin`] before it sends it and [`Holding::on_answer`] or
//! [`Holding::on_failure`] when it knows how it came out; one write is under way at a time. A lease is held from before the request that won it until
//! the failover time after the last write that is known to have happened *began*: others count from later, so none of them can take it
//! while its holder still believes in it. Losing is final: what comes back late does not make a lease held again.
//!
//! A leader asks for a graceful handoff by naming the next owner and leaving the counter alone (`KCL: DynamoDBLeaseRefresher#initiateGracefulLeaseHandoff`); the
//! holder learns of it from the row that its next write returns, or from the one that refuses it.

use std::fmt;
use std::time::Duration;

use crate::ids::WorkerId;
use crate::lease::{Change, Lease, LeaseWrite, WriteOutcome};
use crate::time::Moment;

/// Why a lease is not held any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// No write of it succeeded for the failover time.
    Expired(Duration),
    /// The row says so: who holds it, and its counter.
    Taken(Option<WorkerId>, u64),
    /// The row is gone.
    Deleted,
    /// This worker gave it up.
    Released,
    /// This worker handed it over.
    HandedOver(WorkerId),
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired(time) => write!(f, "it was not renewed for {time:?}"),
            Self::Taken(Some(owner), counter) => write!(f, "{owner} holds it (counter {counter})"),
            Self::Taken(None, counter) => write!(f, "somebody released it (counter {counter})"),
            Self::Deleted => write!(f, "its row was deleted"),
            Self::Released => write!(f, "it was released"),
            Self::HandedOver(to) => write!(f, "it was handed over to {to}"),
        }
    }
}

/// What the driver is to make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldVerdict {
    /// It happened.
    Written,
    /// It did not happen, and [`Holding::row`] is newer now: make it anew from there.
    Again,
    /// Nothing is known. The lease may still be held; try again after a wait.
    Failed,
    /// The lease is lost.
    Lost,
}

/// One held lease.
#[derive(Clone, Debug)]
pub struct Holding {
    me: WorkerId,
    failover_time: Duration,
    row: Lease,
    valid_until: Moment,
    lost: Option<Lost>,
    /// A write may have happened although nobody said so.
    unsure: bool,
    was_unsure: bool,
    began: Moment,
}

impl Holding {
    /// A lease that was won by a write that began at `began` and left `row`.
    pub fn new(me: WorkerId, row: Lease, failover_time: Duration, began: Moment) -> Self {
        Self {
            me,
            failover_time,
            row,
            valid_until: began + failover_time,
            lost: None,
            unsure: false,
            was_unsure: false,
            began,
        }
    }

    /// The row as this worker knows it.
    pub fn row(&self) -> &Lease {
        &self.row
    }

    /// Until when the lease is surely held.
    pub fn valid_until(&self) -> Moment {
        self.valid_until
    }

    /// Why the lease is lost, once it is.
    pub fn lost(&self) -> Option<&Lost> {
        self.lost.as_ref()
    }

    /// Who is to have the lease next, where a handoff was asked for.
    pub fn next_owner(&self) -> Option<&WorkerId> {
        match &self.row.checkpoint_owner {
            Some(holder) if *holder == self.me => self.row.owner.as_ref().filter(|next| **next != self.me),
            _ => None,
        }
    }

    /// Whether the lease is held at `now`; a no is final.
    pub fn is_held(&mut self, now: Moment) -> bool {
        if self.lost.is_none() && now > self.valid_until {
            self.lose(Lost::Expired(self.failover_time));
        }
        self.lost.is_none()
    }

    /// A write is about to be sent; `false` when the lease is not held any more and nothing may be written. Whoever waits for the answer may stop waiting at
    /// any moment: until it is known, the write may have happened.
    pub fn begin(&mut self, now: Moment) -> bool {
        if !self.is_held(now) {
            return false;
        }
        self.was_unsure = self.unsure;
        self.unsure = true;
        self.began = now;
        true
    }

    /// The store answered the write that was begun last.
    pub fn on_answer(&mut self, write: &LeaseWrite, outcome: WriteOutcome) -> HoldVerdict {
        if self.lost.is_some() {
            return HoldVerdict::Lost;
        }
        match outcome {
            WriteOutcome::Written(row) => self.on_written(write, row),
            WriteOutcome::Conflict(Some(current)) if self.is_still_ours(&current) => {
                self.row = current;
                self.unsure = false;
                HoldVerdict::Again
            }
            WriteOutcome::Conflict(Some(current)) => {
                self.lose(Lost::Taken(current.actual_owner().cloned(), current.counter))
            }
            WriteOutcome::Conflict(None) => self.lose(Lost::Deleted),
        }
    }

    /// The write that was begun last failed, or was not answered in time. `surely_not_written` where it is known that nothing happened.
    pub fn on_failure(&mut self, surely_not_written: bool) -> HoldVerdict {
        if self.lost.is_some() {
            return HoldVerdict::Lost;
        }
        self.unsure = self.was_unsure || !surely_not_written;
        HoldVerdict::Failed
    }

    fn on_written(&mut self, write: &LeaseWrite, row: Lease) -> HoldVerdict {
        self.unsure = false;
        let holder = row.actual_owner().cloned();
        if holder.as_ref() == Some(&self.me) {
            // Others judge by the counter: a write that leaves it alone renews nothing.
            if row.counter != self.row.counter {
                self.valid_until = self.began + self.failover_time;
            }
            self.row = row;
            return HoldVerdict::Written;
        }
        // A write that gives the lease up does what it was meant to; any other one was not conditional on the holder, and shows that the lease changed hands.
        let gives_up = write.change.owner != Change::Keep || write.change.checkpoint_owner == Change::Remove;
        if !gives_up {
            return self.lose(Lost::Taken(holder, row.counter));
        }
        self.row = row;
        self.lose(holder.map_or(Lost::Released, Lost::HandedOver));
        HoldVerdict::Written
    }

    /// Whether a row that refused a write shows nothing but what this worker wrote itself without being told, or a handoff that was asked for or called
    /// off meanwhile. (The Java KCL gives a lease up whose renewal was answered by nothing during a handoff.)
    fn is_still_ours(&self, current: &Lease) -> bool {
        if current.actual_owner() != Some(&self.me) {
            return false;
        }
        let own_writes = u64::from(self.was_unsure);
        let steps = current.counter.checked_sub(self.row.counter);
        let is_handoff_begun = current.checkpoint_owner.is_some();
        let is_handoff_over = self.row.checkpoint_owner.is_some() && current.checkpoint_owner.is_none();
        match steps {
            Some(0) => is_handoff_begun && self.row.checkpoint_owner.is_none(),
            Some(1) if own_writes == 1 && !is_handoff_over => true,
            // The leader gives the lease back to its holder, which moves the counter by one.
            Some(steps) => is_handoff_over && (steps == 1 || steps == 1 + own_writes),
            None => false,
        }
    }

    fn lose(&mut self, why: Lost) -> HoldVerdict {
        self.lost.get_or_insert(why);
        HoldVerdict::Lost
    }
}

/// The bytes that were delivered of one shard, as the moving average that its lease row reports (`KCL: LeaseStatsRecorder`: KiB a second between two renewals,
/// averaged with weight one half).
#[derive(Clone, Debug)]
pub struct ThroughputMeter {
    since: Moment,
    counted: u64,
    average: Option<f64>,
}

impl ThroughputMeter {
    /// Begins at `now`, with what the row of the lease says: the holder before measured the same shard.
    pub fn new(now: Moment, stored_kbps: Option<f64>) -> Self {
        Self {
            since: now,
            counted: 0,
            average: stored_kbps.filter(|kbps| kbps.is_finite() && *kbps >= 0.0),
        }
    }

    /// The value to report at `now`, in KiB a second with six decimals, `delivered` being all bytes since this worker holds the lease. `None` until there is something to say.
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 52 bits")]
    pub fn report(&mut self, now: Moment, delivered: u64) -> Option<f64> {
        let elapsed = now.since(self.since);
        // Two writes in quick succession say nothing about a rate.
        if elapsed >= Duration::from_millis(500) || (elapsed > Duration::ZERO && self.average.is_none()) {
            let kbps = delivered.saturating_sub(self.counted) as f64 / 1024.0 / elapsed.as_secs_f64();
            self.average = Some(self.average.map_or(kbps, |before| kbps.midpoint(before)));
            self.since = now;
            self.counted = delivered;
        }
        self.average.map(|kbps| (kbps * 1e6).round() / 1e6)
    }
}

#[cfg(test)]
mod tests;
