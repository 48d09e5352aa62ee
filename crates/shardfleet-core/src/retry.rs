//! How long to wait before trying again.

use std::time::Duration;

/// Exponential back-off with jitter: attempt `n` (from 0) waits `initial × multiplier^n`, at most `max`, plus up to
/// `jitter` of itself. Every value is total: nothing overflows and nothing becomes NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The wait before the first retry.
    pub initial: Duration,
    /// No wait before jitter is longer.
    pub max: Duration,
    /// By how much each wait exceeds the one before; below 1 counts as 1.
    pub multiplier: f64,
    /// The share of a wait that chance may add, from 0 to 1.
    pub jitter: f64,
}

impl Backoff {
    /// Doubling waits from `initial` to `max` with a quarter of jitter.
    pub const fn new(initial: Duration, max: Duration) -> Self {
        Self {
            initial,
            max,
            multiplier: 2.0,
            jitter: 0.25,
        }
    }

    /// The wait before retry number `attempt` (0 is the first). `chance` is a random number from 0 to 1.
    pub fn delay(&self, attempt: u32, chance: f64) -> Duration {
        let multiplier = if self.multiplier > 1.0 {
            self.multiplier
        } else {
            1.0
        };
        let exponent = i32::try_from(attempt).unwrap_or(i32::MAX);
        let base = self.initial.as_secs_f64() * multiplier.powi(exponent);
        let cap = self.max.as_secs_f64();
        // The comparison is false for an infinite base, and for 0 × infinity, which is not a number.
        let capped = if base < cap { base } else { cap.min(f64::MAX) };
        let capped = if self.initial.is_zero() { 0.0 } else { capped };
        let jitter = capped * unit(self.jitter) * unit(chance);
        Duration::try_from_secs_f64(capped + jitter).unwrap_or(Duration::MAX)
    }
}

fn unit(value: f64) -> f64 {
    if value.is_nan() {
        0.0
    } else {
        value.clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn doubles_up_to_the_cap() {
        let backoff = Backoff::new(Duration::from_millis(300), Duration::from_secs(10));
        let waits: Vec<_> = (0..8)
            .map(|attempt| backoff.delay(attempt, 0.0).as_millis())
            .collect();
        assert_eq!(waits, [300, 600, 1200, 2400, 4800, 9600, 10_000, 10_000]);
        assert_eq!(backoff.delay(0, 1.0).as_millis(), 375);
    }

    proptest! {
        #[test]
        fn stays_between_the_first_wait_and_the_cap_with_jitter(
            initial in 0_u64.., longer in 0_u64.., multiplier in prop::num::f64::ANY,
            jitter in prop::num::f64::ANY, attempt in 0_u32.., chance in prop::num::f64::ANY,
        ) {
            let max = Duration::from_millis(initial.saturating_add(longer));
            let initial = Duration::from_millis(initial);
            let backoff = Backoff { initial, max, multiplier, jitter };
            let wait = backoff.delay(attempt, chance).as_secs_f64();
            // Durations of centuries lose a little in floating point.
            prop_assert!(wait >= initial.as_secs_f64() * 0.999_999);
            prop_assert!(wait <= max.as_secs_f64() * 2.000_001);
        }
    }
}
