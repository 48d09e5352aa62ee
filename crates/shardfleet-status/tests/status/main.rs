//! The status stores through their public face: recorded truth of the real Connect, a log that fails on demand, a broker in this process.

mod failing_log;
#[cfg(feature = "kafka")]
mod mock_broker;
mod races;
mod retries;
mod stores;
mod vectors;

use std::time::Duration;

use shardfleet_status::{StatusState, StatusValue, WorkStatus};

/// How long anything may take.
const DEADLINE: Duration = Duration::from_secs(60);

fn status(state: StatusState, worker: &str, generation: i32) -> StatusValue {
    StatusValue::Work(WorkStatus {
        state,
        trace: None,
        worker_id: worker.to_owned(),
        generation,
        version: Some("shardfleet-test".to_owned()),
    })
}

/// Waits until something holds.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let clock = shardfleet_clock::SystemClock::new();
    let shown = async {
        while !holds() {
            shardfleet_clock::sleep(&clock, Duration::from_millis(2)).await;
        }
    };
    let in_time = shardfleet_clock::within(&clock, DEADLINE, shown).await;
    assert!(in_time.is_some(), "not in time: {what}");
}
