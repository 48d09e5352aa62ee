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
    /// The children that the end of a closed shard names.
    pub children: Vec<ChildShard>,
}

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
        self.budget.on_answer(now, page.bytes);
        let is_empty = page.last.is_none();
        let gap = self.find_gap(page.first);
        if let Some(last) = page.last {
            self.resume = IteratorPosition::AfterSequenceNumber(last);
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

    /// The shards were listed to confirm an end. `closed` says whether the listing has an ending sequence number for the shard, `children` who
    /// follows it, `is_listed` whether the shard is still in the listing at all. An end that nothing confirms counts as a failure, and reading goes on.
    pub fn on_listing(
        &mut self,
        now: Moment,
        is_listed: bool,
        closed: bool,
        children: Vec<ChildShard>,
    ) -> (FailureReport, Option<Gap>) {
        if is_listed && !closed && children.is_empty() {
            self.leave_latest();
            self.next = Next::Iterator;
            return (self.count_failure(now), None);
        }
        self.next = Next::Ended(children);
        // A shard that is no longer listed aged out as a whole, together with what a checkpoint had yet to come.
        let gap = self.expects_first.take().filter(|_| !is_listed);
        (FailureReport::Quiet, gap.map(|after| Gap { after, before: None }))
    }

    /// A call failed at `now`.
    pub fn on_failure(&mut self, now: Moment, failure: ReadFailure) -> FailureReport {
        match failure {
            ReadFailure::IteratorExpired => {
                self.leave_latest();
                let again_at_once = matches!(self.next, Next::Records(_));
                self.next = Next::Iterator;
                if !again_at_once {
                    return self.count_failure(now);
                }
                FailureReport::Quiet
            }
            ReadFailure::Throttled => {
                self.not_before = now + self.policy.poll_interval;
                FailureReport::Quiet
            }
            ReadFailure::NotFound => {
                let report = self.count_failure(now);
                if !matches!(self.next, Next::GivenUp) {
                    self.next = Next::ConfirmEnd;
                }
                report
            }
            ReadFailure::Other => self.count_failure(now),
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
