//! The one place of the harness that asks for the time and waits.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Between two looks at something that is waited for.
const STEP: Duration = Duration::from_millis(50);

/// Wall time in milliseconds since 1970, as the Java worker stamps its events.
#[expect(
    clippy::disallowed_methods,
    reason = "the harness watches real processes in real time"
)]
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Waits.
#[expect(
    clippy::disallowed_methods,
    reason = "the harness watches real processes in real time"
)]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[expect(
    clippy::disallowed_methods,
    reason = "the harness watches real processes in real time"
)]
fn now() -> Instant {
    Instant::now()
}

/// A point in time by which something has to have happened.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    /// So long from now.
    pub(crate) fn after(time: Duration) -> Self {
        Self(now() + time)
    }

    /// Whether it is over.
    pub(crate) fn has_passed(self) -> bool {
        now() >= self.0
    }
}

/// Measures.
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    /// From now.
    pub(crate) fn start() -> Self {
        Self(now())
    }

    /// Seconds until now.
    pub(crate) fn seconds(&self) -> f64 {
        now().duration_since(self.0).as_secs_f64()
    }
}

/// Asks until there is an answer. `missing` says, when time is up, what there was instead.
pub(crate) fn wait<T>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> Result<Option<T>, String>,
    missing: impl FnOnce() -> String,
) -> Result<T, String> {
    let deadline = Deadline::after(limit);
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if deadline.has_passed() {
            return Err(format!("{what}: not within {} s; {}", limit.as_secs(), missing()));
        }
        pause(STEP);
    }
}
