//! Real time, for delays that are asked for and for lags.

use std::time::{Duration, Instant};

/// Longest delay that a fault rule can ask for.
const DELAY_MAX: Duration = Duration::from_mins(10);

#[expect(clippy::disallowed_methods, reason = "a lag that was asked for, in real time")]
pub(super) fn now() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a delay that was asked for, in real time"
)]
pub(super) async fn delay(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time.min(DELAY_MAX)).await;
    }
}
