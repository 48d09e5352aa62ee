//! The service's clock: real, or set by hand.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::model::Now;
use crate::settings::millis;

/// Where the service takes its time from.
#[derive(Debug)]
pub(crate) struct ServiceClock {
    started: Instant,
    mode: Mutex<Mode>,
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    /// The machine's clock, so many milliseconds ahead.
    Real { ahead_ms: u64 },
    /// Stands still until it is advanced.
    Manual { epoch_ms: u64 },
}

impl ServiceClock {
    pub(crate) fn new() -> Self {
        Self {
            started: machine_instant(),
            mode: Mutex::new(Mode::Real { ahead_ms: 0 }),
        }
    }

    pub(crate) fn now(&self) -> Now {
        let uptime_ms = millis(machine_instant().saturating_duration_since(self.started));
        let epoch_ms = match *self.mode.lock().unwrap_or_else(PoisonError::into_inner) {
            Mode::Real { ahead_ms } => machine_epoch_ms().saturating_add(ahead_ms),
            Mode::Manual { epoch_ms } => epoch_ms,
        };
        Now { epoch_ms, uptime_ms }
    }

    /// Stops the clock at a time.
    pub(crate) fn set(&self, epoch_ms: u64) {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner) = Mode::Manual { epoch_ms };
    }

    /// Follows the machine's clock again.
    pub(crate) fn follow(&self) {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner) = Mode::Real { ahead_ms: 0 };
    }

    /// Moves the clock on, whether it stands or runs.
    pub(crate) fn advance(&self, by: Duration) {
        match &mut *self.mode.lock().unwrap_or_else(PoisonError::into_inner) {
            Mode::Real { ahead_ms: at } | Mode::Manual { epoch_ms: at } => {
                *at = at.saturating_add(millis(by));
            }
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where this crate reads the machine's clock"
)]
fn machine_instant() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place where this crate reads the machine's clock"
)]
fn machine_epoch_ms() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, millis)
}
