//! A clock that all processes of one machine share.
//!
//! [`Clock`](shardfleet::clock::Clock) counts from an origin of each process's own, so its moments say nothing in another one. Where the parent of a fleet
//! puts deliveries of several workers into one order, it goes by this. It never decides about leases.

use rustix::time::{ClockId, clock_gettime};

/// The machine's monotonic time in microseconds, since some moment that is the same for every process.
pub(crate) fn micros() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let micros = u64::try_from(time.tv_nsec).unwrap_or_default() / 1000;
    seconds.saturating_mul(1_000_000).saturating_add(micros)
}
