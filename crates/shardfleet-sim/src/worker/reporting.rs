//! Reports the worker's metrics, by which the others know that it is there and how loaded it is.

use std::time::Duration;

use shardfleet_core::retry::Backoff;
use shardfleet_core::worker_metrics::CPU;

use super::Process;
use crate::store::StoreFailure;

const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// How many bytes a second make the simulated processor busy.
const BYTES_AT_FULL_LOAD: f64 = 400_000.0;

/// Writes the row once.
pub(super) async fn report(process: &Process) -> Result<(), StoreFailure> {
    let row = {
        let mut row = process.metrics.borrow_mut();
        if process.measures && row.last_update_seconds.is_some_and(|seconds| seconds > 0) {
            row.append(CPU, utilization(process), 80);
        }
        row.touch(process.wall());
        row.clone()
    };
    process.store.put_metrics(row).await
}

/// What the handlers cost, and some noise.
#[expect(clippy::cast_precision_loss, reason = "a load needs no more than 52 bits")]
fn utilization(process: &Process) -> f64 {
    let bytes = process.bytes.replace(0) as f64;
    let seconds = process.sim.setup.pace.report.as_secs_f64();
    let noise = process.sim.draw(crate::chance::Chance::unit);
    (4.0 + noise + bytes / seconds / BYTES_AT_FULL_LOAD * 100.0).min(100.0)
}

/// Writes the row again and again, for as long as the worker runs.
pub(super) async fn run(process: &Process) {
    let interval = process.sim.setup.pace.report;
    let mut due = process.now() + interval;
    let mut attempt = 0;
    loop {
        process.sleep_until(due).await;
        if process.departing.is_set() {
            return;
        }
        if report(process).await.is_ok() {
            attempt = 0;
            due = process.now() + interval;
        } else {
            due = process.now() + process.delay(&RETRY, attempt).min(interval);
            attempt += 1;
        }
    }
}
