//! How writes of statuses are retried: KIP-1278's five settings.

use std::time::Duration;

use crate::retry::Backoff;

/// The settings under `status.storage.retry.` (KIP-1278). All values come from outside: [`problems`](Self::problems) names those out of range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetrySettings {
    /// `max.retries`: how often a write is retried, 0 to 2147483647. The default is 5; 2147483647 means for ever.
    pub max_retries: i64,
    /// `initial.backoff.ms`: the wait before the first retry in milliseconds, from 0. The default is 300.
    pub initial_backoff_ms: i64,
    /// `max.backoff.ms`: no wait, before jitter, is longer. In milliseconds, at least `initial.backoff.ms`. The default is 10,000.
    pub max_backoff_ms: i64,
    /// `backoff.multiplier`: by how much each wait exceeds the one before it, from 1. The default is 2.
    pub backoff_multiplier: f64,
    /// `jitter.factor`: the share of a wait that chance may add to it, 0 to 1. The default is 0.25.
    pub jitter_factor: f64,
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            max_retries: 5,
            initial_backoff_ms: 300,
            max_backoff_ms: 10_000,
            backoff_multiplier: 2.0,
            jitter_factor: 0.25,
        }
    }
}

/// A setting that is out of range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("status.storage.retry.{name} is {value}: {wanted}")]
pub struct RetryProblem {
    /// The property, without `status.storage.retry.`.
    pub name: &'static str,
    /// What it was set to.
    pub value: String,
    /// What is valid.
    pub wanted: String,
}

impl RetrySettings {
    /// The names of the five, without `status.storage.retry.`.
    pub const NAMES: [&'static str; 5] = [
        "max.retries",
        "initial.backoff.ms",
        "max.backoff.ms",
        "backoff.multiplier",
        "jitter.factor",
    ];

    /// Everything that is out of range; empty for valid settings.
    pub fn problems(&self) -> Vec<RetryProblem> {
        let mut problems = Vec::new();
        let mut check = |is_valid: bool, name, value: String, wanted: String| {
            if !is_valid {
                problems.push(RetryProblem { name, value, wanted });
            }
        };
        check(
            (0..=i64::from(i32::MAX)).contains(&self.max_retries),
            "max.retries",
            self.max_retries.to_string(),
            "0 to 2147483647 is expected".to_owned(),
        );
        check(
            self.initial_backoff_ms >= 0,
            "initial.backoff.ms",
            self.initial_backoff_ms.to_string(),
            format!("0 to {} is expected", i64::MAX),
        );
        check(
            self.max_backoff_ms >= 0,
            "max.backoff.ms",
            self.max_backoff_ms.to_string(),
            format!("0 to {} is expected", i64::MAX),
        );
        check(
            self.initial_backoff_ms <= self.max_backoff_ms,
            "initial.backoff.ms",
            self.initial_backoff_ms.to_string(),
            format!(
                "at most status.storage.retry.max.backoff.ms is expected, which is {}",
                self.max_backoff_ms
            ),
        );
        check(
            self.backoff_multiplier.is_finite() && self.backoff_multiplier >= 1.0,
            "backoff.multiplier",
            self.backoff_multiplier.to_string(),
            "a number of at least 1.0 is expected".to_owned(),
        );
        check(
            (0.0..=1.0).contains(&self.jitter_factor),
            "jitter.factor",
            self.jitter_factor.to_string(),
            "0.0 to 1.0 is expected".to_owned(),
        );
        problems
    }

    /// Whether a write that was retried this often may be retried once more.
    pub fn allows(&self, retries: u64) -> bool {
        self.max_retries >= i64::from(i32::MAX)
            || u64::try_from(self.max_retries).is_ok_and(|most| retries < most)
    }

    /// The wait before retry number `retries` (0 is the first): `min(initial × multiplier^retries, max)`, and up to `jitter` of that on top. So no wait exceeds
    /// `max × (1 + jitter)`. `chance` is a random number from 0 (included) to 1 (excluded).
    pub fn delay(&self, retries: u64, chance: f64) -> Duration {
        let millis = |ms: i64| Duration::from_millis(u64::try_from(ms).unwrap_or(0));
        let backoff = Backoff {
            initial: millis(self.initial_backoff_ms),
            max: millis(self.max_backoff_ms),
            multiplier: self.backoff_multiplier,
            jitter: self.jitter_factor,
        };
        backoff.delay(u32::try_from(retries).unwrap_or(u32::MAX), chance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn waits(settings: &RetrySettings, count: u64, chance: f64) -> Vec<u128> {
        (0..count)
            .map(|n| settings.delay(n, chance).as_millis())
            .collect()
    }

    #[test]
    fn the_defaults_wait_as_the_kip_says() {
        let settings = RetrySettings::default();
        assert_eq!(settings.problems(), []);
        assert_eq!(
            waits(&settings, 8, 0.0),
            [300, 600, 1200, 2400, 4800, 9600, 10_000, 10_000]
        );
        assert_eq!(waits(&settings, 5, 0.0).iter().sum::<u128>(), 9_300);
        assert_eq!(settings.delay(0, 0.5).as_micros(), 337_500);
        assert!(settings.delay(1_000_000_000_000, 0.999) < Duration::from_millis(12_500));
    }

    #[test]
    fn nothing_at_first_means_nothing_for_ever() {
        let settings = RetrySettings {
            initial_backoff_ms: 0,
            ..RetrySettings::default()
        };
        assert_eq!(settings.problems(), []);
        assert_eq!(waits(&settings, 3, 0.9), [0, 0, 0]);
        assert_eq!(settings.delay(u64::MAX, 0.9), Duration::ZERO);
    }

    #[test]
    fn retries_end_where_the_limit_says() {
        let with = |max_retries| RetrySettings {
            max_retries,
            ..RetrySettings::default()
        };
        assert!(!with(0).allows(0));
        assert!(with(5).allows(4) && !with(5).allows(5));
        assert!(with(2_147_483_646).allows(2_147_483_645) && !with(2_147_483_646).allows(2_147_483_646));
        assert!(with(2_147_483_647).allows(u64::MAX));
    }

    #[test]
    fn every_problem_is_named_at_once_with_its_range() {
        let settings = RetrySettings {
            max_retries: 2_147_483_648,
            initial_backoff_ms: -1,
            max_backoff_ms: -2,
            backoff_multiplier: f64::INFINITY,
            jitter_factor: f64::NAN,
        };
        let names: Vec<_> = settings.problems().iter().map(|problem| problem.name).collect();
        assert_eq!(
            names,
            [
                "max.retries",
                "initial.backoff.ms",
                "max.backoff.ms",
                "initial.backoff.ms",
                "backoff.multiplier",
                "jitter.factor"
            ]
        );
        let settings = RetrySettings {
            initial_backoff_ms: 10_001,
            ..RetrySettings::default()
        };
        let text = settings.problems().first().expect("a problem").to_string();
        assert_eq!(
            text,
            "status.storage.retry.initial.backoff.ms is 10001: at most status.storage.retry.max.backoff.ms is expected, which is 10000"
        );
    }

    proptest! {
        #[test]
        fn no_wait_is_below_the_first_or_above_the_cap_and_its_jitter(
            initial in 0..=i64::MAX, more in 0..=i64::MAX, multiplier in 1.0..1e300_f64, jitter in 0.0..=1.0_f64,
            retries in any::<u64>(), chance in 0.0..1.0_f64,
        ) {
            let settings = RetrySettings {
                max_retries: 5,
                initial_backoff_ms: initial,
                max_backoff_ms: initial.saturating_add(more),
                backoff_multiplier: multiplier,
                jitter_factor: jitter,
            };
            prop_assert_eq!(settings.problems(), []);
            let wait = settings.delay(retries, chance).as_secs_f64();
            let [initial, max] = [settings.initial_backoff_ms, settings.max_backoff_ms]
                .map(|ms| Duration::from_millis(ms.unsigned_abs()).as_secs_f64());
            prop_assert!(wait >= initial * (1.0 - 1e-9), "{wait} below {initial}");
            prop_assert!(wait <= max * (1.0 + jitter) * (1.0 + 1e-9) + 1e-9, "{wait} above {max}");
            let before_jitter = |n| settings.delay(n, 0.0);
            prop_assert!(before_jitter(retries.saturating_add(1)) >= before_jitter(retries));
        }
    }
}
