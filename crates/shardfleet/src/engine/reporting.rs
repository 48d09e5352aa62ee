//! Reports this worker's metrics, by which the others know that it is there and how loaded it is.

use std::time::Duration;

use shardfleet_core::retry::Backoff;
use shardfleet_core::worker_metrics::WorkerMetricStats;

use super::Context;
use crate::clock::within;
use crate::store::StoreError;

const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// How long the first figures are waited for before a newcomer is reported with them.
const FIRST_FIGURES: Duration = Duration::from_secs(5);

/// Writes a row once, as of now.
pub(super) async fn report(context: &Context) -> Result<(), StoreError> {
    context.store.put_worker_metrics(&next_row(context)).await
}

fn next_row(context: &Context) -> WorkerMetricStats {
    context
        .metrics
        .next_row(&context.settings.worker_id, context.clock.wall())
}

/// Writes the row again and again, for as long as the worker runs.
pub(super) async fn run(context: &Context) {
    let clock = &*context.clock;
    let interval = context.settings.fleet.assignment.worker_metrics_report_interval;
    // A newcomer is compared with the others as soon as there is something to compare.
    let work = async {
        within(
            clock,
            FIRST_FIGURES.min(interval),
            context.metrics.first_figures(),
        )
        .await;
        loop {
            let next = clock.now() + interval;
            write_persistently(context, interval).await;
            clock.sleep_until(next).await;
        }
    };
    context.departing.run_until_cancelled(work).await;
}

/// Each row closes a window of readings, so one that could not be written is tried again as it is until the next one is due.
async fn write_persistently(context: &Context, patience: Duration) {
    let row = next_row(context);
    let until = context.clock.now() + patience;
    let mut attempt = 0;
    while context.clock.now() < until {
        match within(&*context.clock, patience, context.store.put_worker_metrics(&row)).await {
            Some(Ok(())) => return,
            Some(Err(error)) => {
                tracing::warn!(error = %error, attempt, "reporting this worker's metrics failed");
            }
            None => {}
        }
        let wait = RETRY.delay(attempt, context.clock.chance());
        attempt = attempt.saturating_add(1);
        crate::clock::sleep(&*context.clock, wait).await;
    }
}
