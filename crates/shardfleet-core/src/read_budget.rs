//! What a shard lets its readers read: five calls and 2 MB a second (`AWS: GetRecords`).

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Moment;

/// How much may be read from one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadLimits {
    /// Calls in any second; 0 is no limit.
    pub calls_per_second: u32,
    /// Bytes of payload a second; 0 is no limit.
    pub bytes_per_second: u32,
}

impl ReadLimits {
    /// The service's own: 5 calls and 2,000,000 bytes a second. All shared-throughput readers of a shard share them, so an application
    /// among several may want less.
    pub const SERVICE: Self = Self {
        calls_per_second: 5,
        bytes_per_second: 2_000_000,
    };

    /// None, for a service that enforces none.
    pub const UNLIMITED: Self = Self {
        calls_per_second: 0,
        bytes_per_second: 0,
    };

    /// Limits of one's own; 0 is no limit.
    pub const fn new(calls_per_second: u32, bytes_per_second: u32) -> Self {
        Self {
            calls_per_second,
            bytes_per_second,
        }
    }
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self::SERVICE
    }
}

/// Counts what was read from one shard and says when the next call may be made.
///
/// An answer cannot be cut short, so a large one is paid for afterwards: one of 10 MB keeps the shard quiet for five seconds, as the service itself would.
#[derive(Clone, Debug)]
pub struct ReadBudget {
    limits: ReadLimits,
    calls: VecDeque<Moment>,
    paid_off_at: Moment,
}

impl ReadBudget {
    /// An unused budget.
    pub fn new(limits: ReadLimits) -> Self {
        Self {
            limits,
            calls: VecDeque::new(),
            paid_off_at: Moment::default(),
        }
    }

    /// The earliest moment at which a call may be made.
    pub fn next_call_at(&self) -> Moment {
        let kept = self.limits.calls_per_second as usize;
        let by_calls = match self.calls.front() {
            Some(oldest) if kept > 0 && self.calls.len() >= kept => *oldest + Duration::from_secs(1),
            _ => Moment::default(),
        };
        by_calls.max(self.paid_off_at)
    }

    /// Notes a call that is made at `now`.
    pub fn on_call(&mut self, now: Moment) {
        let kept = self.limits.calls_per_second as usize;
        if kept == 0 {
            return;
        }
        while self.calls.len() >= kept {
            self.calls.pop_front();
        }
        self.calls.push_back(now);
    }

    /// Notes an answer of `bytes` of payload that came at `now`. One that never came used the service's budget all the same, but
    /// nobody knows by how much.
    pub fn on_answer(&mut self, now: Moment, bytes: u64) {
        // The service counted the call some time before its answer came; only from then on is its second surely over.
        if let Some(last) = self.calls.back_mut() {
            *last = (*last).max(now);
        }
        if self.limits.bytes_per_second == 0 {
            return;
        }
        let micros = bytes.saturating_mul(1_000_000) / u64::from(self.limits.bytes_per_second);
        self.paid_off_at = self.paid_off_at.max(now) + Duration::from_micros(micros);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(millis: u64) -> Moment {
        Moment::new(Duration::from_millis(millis))
    }

    #[test]
    fn the_sixth_call_waits_for_the_first_to_be_a_second_old() {
        let mut budget = ReadBudget::new(ReadLimits::SERVICE);
        for call in 0..5 {
            assert!(budget.next_call_at() <= ms(1000 + call));
            budget.on_call(ms(1000 + call));
        }
        assert_eq!(budget.next_call_at(), ms(2000));
    }

    #[test]
    fn the_second_of_a_call_ends_a_second_after_its_answer() {
        let mut budget = ReadBudget::new(ReadLimits::new(1, 0));
        budget.on_call(ms(1000));
        budget.on_answer(ms(1040), 10);
        assert_eq!(budget.next_call_at(), ms(2040));
    }

    #[test]
    fn ten_megabytes_keep_the_shard_quiet_for_five_seconds() {
        let mut budget = ReadBudget::new(ReadLimits::SERVICE);
        budget.on_call(ms(1000));
        budget.on_answer(ms(1100), 10_000_000);
        assert_eq!(budget.next_call_at(), ms(6100));
    }

    #[test]
    fn no_limits_never_wait() {
        let mut budget = ReadBudget::new(ReadLimits::UNLIMITED);
        for _ in 0..100 {
            budget.on_call(ms(5));
            budget.on_answer(ms(5), u64::MAX);
        }
        assert_eq!(budget.next_call_at(), ms(0));
    }

    proptest! {
        #[test]
        fn no_second_ever_sees_a_sixth_call_or_more_bytes_than_one_answer_beyond_the_rate(
            answers in prop::collection::vec((0_u64..3_000_000, 0_u64..400), 1..60),
        ) {
            let mut budget = ReadBudget::new(ReadLimits::SERVICE);
            let mut now = ms(10_000);
            let mut calls: Vec<(Moment, u64)> = Vec::new();
            for (bytes, pause) in answers {
                now = (now + Duration::from_millis(pause)).max(budget.next_call_at());
                budget.on_call(now);
                budget.on_answer(now, bytes);
                calls.push((now, bytes));
            }
            for (i, (start, _)) in calls.iter().enumerate() {
                let window: Vec<_> = calls[i..].iter().take_while(|(at, _)| at.since(*start) < Duration::from_secs(1)).collect();
                prop_assert!(window.len() <= 5);
                let before_last: u64 = window[..window.len() - 1].iter().map(|(_, bytes)| bytes).sum();
                prop_assert!(before_last <= 2_000_000);
            }
        }
    }
}
