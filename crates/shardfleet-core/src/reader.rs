//! The reader of one shard, as a machine: what happened goes in, what to do next comes out.
//!
//! It owns the iterator and the place to resume from, counts failures, keeps the pace, and decides when the shard has ended.
//! It never decides how records are handled, and it does no I/O: a driver executes each [`Action`] and reports the result.

use std::time::Duration;

use crate::position::{IteratorPosition, LATEST_MARGIN};
use crate::read_budget::{ReadBudget, ReadLimits};
use crate::sequence::SequenceNumber;
use crate::shard::ChildShard;
use crate::time::{Moment, Timestamp};

/// How a reader paces itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderPolicy {
    /// The wait after an empty answer, and after a throttled call.
    pub poll_interval: Duration,
    /// The wait after any other failure.
    pub failure_wait: Duration,
    /// The reader stops after so many failures in a row.
    pub failures_max: u32,
    /// What the shard lets its readers read.
    pub limits: ReadLimits,
}

impl Default for ReaderPolicy {
    /// One second, one second, eleven, the service's limits.
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(1),
            failure_wait: Duration::from_secs(1),
            failures_max: 11,
            limits: ReadLimits::SERVICE,
        }
    }
}

/// What the driver is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask for an iterator at this position.
    GetIterator(IteratorPosition),
    /// Read with this iterator.
    GetRecords(String),
    /// Wait until this moment, then ask again.
    WaitUntil(Moment),
    /// An answer had no next iterator and named no children: list the shards and report what they say.
    ListShards,
    /// The shard is closed and was read to its end.
    End(Vec<ChildShard>),
    /// Too many failures: give the lease back.
    GiveUp,
}

/// A failed call, by what it asks of the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFailure {
    /// The iterator expired, or the service does not know it.
    IteratorExpired,
    /// Too much was read.
    Throttled,
    /// The stream or shard was not found.
    NotFound,
    /// Anything else.
    Other,
}

/// What of a failure the user is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReport {
    /// Nothing: it belongs to reading.
    Quiet,
    /// It goes onto the subscription's stream.
    Report,
}

/// What an answer held, as far as reading is concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageFacts {
    /// The first record's sequence number, unless the answer was empty.
    pub first: Option<SequenceNumber>,
    /// The last record's.
    pub last: Option<SequenceNumber>,
    /// Bytes of payload.
    pub bytes: u64,
    /// The iterator of the next read.
    pub next_iterator: Option<String>,
    /// How far behind the newest record the answer's end is.
    pub millis_behind_latest: Option<u64>,
    /// The children that the end of a closed shard names.
    pub children: Vec<ChildShard>,
}

/// No stream keeps its records for a shorter time (`AWS: DecreaseStreamRetentionPeriod`).
const RETENTION_MIN: Duration = Duration::from_secs(24 * 60 * 60);

/// In how many listings in a row a shard must be missing before it is believed to be gone.
const MISSING_LISTINGS: u32 = 3;

/// Records that were promised by a checkpoint and are no longer in the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The checkpointed record, which is gone itself.
    pub after: SequenceNumber,
    /// The first record that is still there; `None` when nothing is left of the shard.
    pub before: Option<SequenceNumber>,
}

/// The reader of one shard.
#[derive(Clone, Debug)]
pub struct Reader {
    policy: ReaderPolicy,
    budget: ReadBudget,
    resume: IteratorPosition,
    latest_asked_at: Option<Timestamp>,
    expects_first: Option<SequenceNumber>,
    /// The last record taken; an iterator may lie at or before it.
    taken: Option<SequenceNumber>,
    /// When an answer last said that there is nothing more: what arrived later is younger than this.
    caught_up_at: Option<Moment>,
    has_expired: bool,
    missing_listings: u32,
    next: Next,
    not_before: Moment,
    failures: u32,
}

#[derive(Clone, Debug)]
enum Next {
    Iterator,
    Records(String),
    ConfirmEnd,
    Ended(Vec<ChildShard>),
    GivenUp,
}

impl Reader {
    /// A reader that opens at `start`.
    pub fn new(policy: ReaderPolicy, start: IteratorPosition) -> Self {
        let expects_first = match &start {
            IteratorPosition::AtSequenceNumber(at) => Some(at.clone()),
            _ => None,
        };
        Self {
            budget: ReadBudget::new(policy.limits),
            policy,
            resume: start,
            latest_asked_at: None,
            expects_first,
            taken: None,
            caught_up_at: None,
            has_expired: false,
            missing_listings: 0,
            next: Next::Iterator,
            not_before: Moment::default(),
            failures: 0,
        }
    }

    /// What to do at `now`.
    pub fn next_action(&self, now: Moment) -> Action {
        match &self.next {
            Next::Ended(children) => return Action::End(children.clone()),
            Next::GivenUp => return Action::GiveUp,
            _ => {}
        }
        let mut at = self.not_before;
        if matches!(self.next, Next::Records(_)) {
            at = at.max(self.budget.next_call_at());
        }
        if now < at {
            return Action::WaitUntil(at);
        }
        match &self.next {
            Next::Records(iterator) => Action::GetRecords(iterator.clone()),
            Next::ConfirmEnd => Action::ListShards,
            _ => Action::GetIterator(self.resume.clone()),
        }
    }

    /// An iterator came that was asked for at `asked_at` of the wall clock.
    pub fn on_iterator(&mut self, iterator: String, asked_at: Timestamp) {
        if self.resume == IteratorPosition::Latest {
            self.latest_asked_at.get_or_insert(asked_at);
        }
        self.next = Next::Records(iterator);
    }

    /// A read is made at `now`.
    pub fn on_call(&mut self, now: Moment) {
        self.budget.on_call(now);
    }

    /// An answer came at `now` and its records were taken. Returns the records that a checkpoint promised and that are gone.
    pub fn on_page(&mut self, now: Moment, page: PageFacts) -> Option<Gap> {
        self.failures = 0;
        self.has_expired = false;
        self.missing_listings = 0;
        self.budget.on_answer(now, page.bytes);
        let is_empty = page.last.is_none();
        let gap = self.find_gap(page.first);
        if let Some(last) = page.last {
            self.taken = Some(last.clone());
            self.resume = IteratorPosition::AfterSequenceNumber(last);
        }
        if page.millis_behind_latest == Some(0) {
            self.caught_up_at = Some(now);
        }
        self.next = match page.next_iterator {
            Some(iterator) => {
                if is_empty {
                    self.not_before = now + self.policy.poll_interval;
                }
                Next::Records(iterator)
            }
            None if page.children.is_empty() => Next::ConfirmEnd,
            None => Next::Ended(page.children),
        };
        gap
    }

    fn find_gap(&mut self, first: Option<SequenceNumber>) -> Option<Gap> {
        let first = first?;
        let expected = self.expects_first.take()?;
        (first > expected).then_some(Gap {
            after: expected,
            before: Some(first),
        })
    }

    /// Kinesis records up to this one were taken before: an iterator that had to be placed on it gives it once more.
    pub fn taken(&self) -> Option<&SequenceNumber> {
        self.taken.as_ref()
    }

    /// Whether records behind the last one taken can have aged out by `now`. Not if that was the newest one a short time ago.
    fn may_have_lost(&self, now: Moment) -> bool {
        self.caught_up_at.is_none_or(|at| now.since(at) >= RETENTION_MIN)
    }

    /// The shards were listed to confirm an end. `closed` says whether the listing has an ending sequence number for the shard, `children` who
    /// follows it, `is_listed` whether the shard is still in the listing at all; one listing that lacks it proves nothing. An end that nothing confirms counts
    /// as a failure, and reading goes on.
    pub fn on_listing(
        &mut self,
        now: Moment,
        is_listed: bool,
        closed: bool,
        children: Vec<ChildShard>,
    ) -> (FailureReport, Option<Gap>) {
        self.missing_listings = if is_listed { 0 } else { self.missing_listings + 1 };
        if is_listed && (closed || !children.is_empty()) {
            self.next = Next::Ended(children);
            return (FailureReport::Quiet, None);
        }
        if is_listed {
            self.leave_latest();
            self.next = Next::Iterator;
            return (self.count_failure(now), None);
        }
        if self.missing_listings < MISSING_LISTINGS {
            return (self.count_failure(now), None);
        }
        // The shard aged out as a whole, together with what was yet to come of it.
        self.next = Next::Ended(children);
        let expected = self.expects_first.take().or_else(|| self.taken.clone());
        let gap = expected
            .filter(|_| self.may_have_lost(now))
            .map(|after| Gap { after, before: None });
        (FailureReport::Quiet, gap)
    }

    /// A call failed at `now`.
    pub fn on_failure(&mut self, now: Moment, failure: ReadFailure) -> FailureReport {
        self.budget.on_answer(now, 0);
        match failure {
            ReadFailure::IteratorExpired => {
                self.leave_latest();
                self.expect_the_last_one_taken(now);
                // The first time is part of reading; an iterator that expires at once is a failure of the service.
                let is_usual = matches!(self.next, Next::Records(_)) && !self.has_expired;
                self.has_expired = true;
                self.next = Next::Iterator;
                if is_usual {
                    FailureReport::Quiet
                } else {
                    self.count_failure(now)
                }
            }
            ReadFailure::Throttled => {
                self.not_before = now + self.policy.poll_interval;
                FailureReport::Quiet
            }
            // Whether that is a failure the listing shows.
            ReadFailure::NotFound => {
                self.next = Next::ConfirmEnd;
                FailureReport::Quiet
            }
            ReadFailure::Other => self.count_failure(now),
        }
    }

    /// Where records may have aged out while nothing was read, the next iterator is placed on the last one taken: if another comes first, they have.
    fn expect_the_last_one_taken(&mut self, now: Moment) {
        if let IteratorPosition::AfterSequenceNumber(last) = &self.resume
            && self.may_have_lost(now)
        {
            self.expects_first = Some(last.clone());
            self.resume = IteratorPosition::AtSequenceNumber(last.clone());
        }
    }

    /// Nothing was read since LATEST was asked for: going on from a new LATEST would skip what arrived in between.
    fn leave_latest(&mut self) {
        if let (IteratorPosition::Latest, Some(asked_at)) = (&self.resume, self.latest_asked_at) {
            self.resume = IteratorPosition::AtTimestamp(asked_at.saturating_sub(LATEST_MARGIN));
        }
    }

    fn count_failure(&mut self, now: Moment) -> FailureReport {
        self.failures += 1;
        self.not_before = now + self.policy.failure_wait;
        if self.failures >= self.policy.failures_max {
            self.next = Next::GivenUp;
        }
        FailureReport::Report
    }

    /// How many calls failed since the last that succeeded, throttled ones aside.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Where reading would go on with a new iterator.
    pub fn resume_position(&self) -> &IteratorPosition {
        &self.resume
    }

    /// Starts over at another position, as a seek asks for.
    pub fn seek(&mut self, start: IteratorPosition) {
        let budget = self.budget.clone();
        *self = Self {
            budget,
            ..Self::new(self.policy, start)
        };
    }
}

#[cfg(test)]
mod tests;
