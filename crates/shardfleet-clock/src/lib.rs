//! The one place that asks for the time, waits, and draws chance.
//!
//! Everything else takes a [`Clock`], so that one clock rules a worker and tests or simulations can replace it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::BoxFuture;
use shardfleet_core::time::{Moment, Timestamp};

/// Time and chance.
pub trait Clock: Send + Sync + 'static {
    /// The present moment of the monotonic clock.
    fn now(&self) -> Moment;

    /// The present wall-clock time.
    fn wall(&self) -> Timestamp;

    /// Waits until `moment`; returns at once if it has passed.
    fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()>;

    /// A random number from 0 (included) to 1 (excluded). Not for secrets.
    fn chance(&self) -> f64;
}

/// The machine's clock, over Tokio's timer.
#[derive(Clone, Debug)]
pub struct SystemClock {
    origin: tokio::time::Instant,
}

impl SystemClock {
    /// A clock whose origin is a day before now, so that "some time ago" can be said of its first moments too.
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn new() -> Self {
        let now = tokio::time::Instant::now();
        Self {
            origin: now.checked_sub(Duration::from_secs(86_400)).unwrap_or(now),
        }
    }

    /// The clock that workers use unless they are given another.
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(Self::new())
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment::new(self.origin.elapsed())
    }

    fn wall(&self) -> Timestamp {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }

    fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()> {
        let wait = moment.since(self.now());
        Box::pin(async move {
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
        })
    }

    fn chance(&self) -> f64 {
        use std::hash::{BuildHasher, Hasher};
        // Each `RandomState` is seeded anew by the standard library; 53 bits are what a double can hold.
        let bits = std::hash::RandomState::new().build_hasher().finish() >> 11;
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
        let chance = bits as f64 / (1_u64 << 53) as f64;
        chance
    }
}

/// Waits for `duration` of `clock`.
pub async fn sleep(clock: &dyn Clock, duration: Duration) {
    clock.sleep_until(clock.now() + duration).await;
}

/// Runs `work`, but no longer than `limit`; `None` when it took longer.
pub async fn within<T>(clock: &dyn Clock, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = sleep(clock, limit) => None,
    }
}

/// A random UUID (version 4), in the usual form.
pub fn fresh_uuid(clock: &dyn Clock) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a chance below 1 times 2^32 fits"
    )]
    let word = || u128::from((clock.chance() * 4_294_967_296.0) as u32);
    let bits = word() << 96 | word() << 64 | word() << 32 | word();
    let bits = bits & !(0xf << 76) & !(0x3 << 62) | (4 << 76) | (2 << 62);
    let hex = format!("{bits:032x}");
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_its_form_and_differs_from_the_next() {
        let clock = SystemClock::new();
        let (a, b) = (fresh_uuid(&clock), fresh_uuid(&clock));
        assert_ne!(a, b);
        let parts: Vec<usize> = a.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert_eq!(a.as_bytes()[14], b'4');
        assert!(b"89ab".contains(&a.as_bytes()[19]), "{a}");
    }
}
