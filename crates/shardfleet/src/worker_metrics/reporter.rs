//! Gathers figures between two reports and makes the next row of them. Reads nothing, waits for nothing, asks for no time.

use shardfleet_core::ids::WorkerId;
use shardfleet_core::time::Timestamp;
use shardfleet_core::worker_metrics::{CAPTURE_FAILED, CPU, SampleWindow, WorkerMetricStats};

use super::MetricError;

/// This many windows in a row without a figure, and a metric that used to work is left out of the row until it works again.
pub const FAILED_WINDOWS_MAX: u32 = 3;

/// What is known of this worker's load, and the row made of it (`KCL: WorkerMetricStatsReporter`).
///
/// A window is the time between two rows. A window with figures adds their average to the row. One whose readings all failed adds −1, by which a leader gives
/// the worker no more leases; but a metric that never worked, or failed for [`FAILED_WINDOWS_MAX`] windows in a row, is left out, so that the worker is balanced by
/// throughput rather than set aside for ever. One in which nothing was tried leaves the row's figures as they are.
#[derive(Debug, Default)]
pub struct WorkerMetricsReporter {
    metrics: Vec<Metric>,
    row: Option<WorkerMetricStats>,
}

#[derive(Debug)]
struct Metric {
    short_name: String,
    max_utilization: i64,
    window: SampleWindow,
    failures: u32,
    last_error: Option<MetricError>,
    latest: Option<f64>,
    tried: bool,
    standing: Standing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// No window had a figure yet. Whether that was said.
    NeverWorked { said: bool },
    /// The last windows had figures, all but so many.
    Works { failed_windows: u32 },
    /// It used to work.
    LeftOut,
}

impl WorkerMetricsReporter {
    /// A reporter that knows no metric yet: its rows are those of a worker that is balanced by throughput.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metric; its index. `None` when there is one of this name: two would mix their averages.
    pub fn add_metric(&mut self, short_name: &str, max_utilization: i64) -> Option<usize> {
        if self.metrics.iter().any(|metric| metric.short_name == short_name) {
            return None;
        }
        self.metrics.push(Metric {
            short_name: short_name.to_owned(),
            // A leader takes 0 for an invalid row.
            max_utilization: max_utilization.clamp(1, 100),
            window: SampleWindow::default(),
            failures: 0,
            last_error: None,
            latest: None,
            tried: false,
            standing: Standing::NeverWorked { said: false },
        });
        Some(self.metrics.len() - 1)
    }

    /// Notes the outcome of a reading of the metric at `index`. A figure that is no percentage counts as a failure.
    pub fn observe(&mut self, index: usize, reading: Result<Option<f64>, MetricError>) {
        let Some(metric) = self.metrics.get_mut(index) else {
            return;
        };
        let error = match reading {
            Ok(None) => return,
            Ok(Some(percent)) if metric.window.add(percent) => {
                metric.latest = Some(percent);
                metric.tried = true;
                return;
            }
            Ok(Some(percent)) => MetricError::new(
                &metric.short_name,
                format!("{percent} is no percentage, 0 to 100"),
            ),
            Err(error) => error,
        };
        tracing::debug!(metric = metric.short_name, %error, "a reading failed");
        metric.latest = None;
        metric.tried = true;
        metric.failures = metric.failures.saturating_add(1);
        metric.last_error = Some(error);
    }

    /// The latest figure of a metric in percent; `None` without one, and when the last reading failed.
    pub fn latest(&self, short_name: &str) -> Option<f64> {
        let mut metrics = self.metrics.iter();
        metrics
            .find(|metric| metric.short_name == short_name)
            .and_then(|metric| metric.latest)
    }

    /// The latest CPU utilisation in percent.
    pub fn latest_cpu(&self) -> Option<f64> {
        self.latest(CPU)
    }

    /// Every metric has given a figure, or failed to.
    pub fn all_tried(&self) -> bool {
        self.metrics.iter().all(|metric| metric.tried)
    }

    /// Closes the window and answers the row to write now.
    pub fn next_row(&mut self, worker_id: &WorkerId, now: Timestamp) -> WorkerMetricStats {
        let row = self
            .row
            .get_or_insert_with(|| WorkerMetricStats::new(worker_id.clone(), now));
        row.worker_id = worker_id.clone();
        for metric in &mut self.metrics {
            metric.close_window(row);
        }
        row.touch(now);
        row.clone()
    }
}

impl Metric {
    fn close_window(&mut self, row: &mut WorkerMetricStats) {
        let failures = std::mem::take(&mut self.failures);
        if !self.window.is_empty() {
            let average = self.window.drain_average();
            row.append(&self.short_name, average, self.max_utilization);
            if matches!(
                self.standing,
                Standing::LeftOut | Standing::NeverWorked { said: true }
            ) {
                tracing::info!(
                    metric = self.short_name,
                    "can be read again; this worker is balanced by it"
                );
            }
            self.standing = Standing::Works { failed_windows: 0 };
            return;
        }
        if failures == 0 {
            return;
        }
        match &mut self.standing {
            Standing::LeftOut => {}
            Standing::NeverWorked { said } => {
                if !std::mem::replace(said, true) {
                    self.warn("cannot be read and is left out of what this worker reports until it can");
                }
            }
            Standing::Works { failed_windows } => {
                *failed_windows += 1;
                if *failed_windows < FAILED_WINDOWS_MAX {
                    row.append(&self.short_name, CAPTURE_FAILED, self.max_utilization);
                    self.warn("cannot be read at present; this worker is given no further leases");
                } else {
                    row.averages.remove(&self.short_name);
                    row.operating_range.remove(&self.short_name);
                    self.standing = Standing::LeftOut;
                    self.warn(
                        "cannot be read for three reports and is left out of what this worker reports until it can",
                    );
                }
            }
        }
    }

    fn warn(&self, what: &str) {
        let reason = self.last_error.as_ref().map(ToString::to_string);
        let metric = &self.short_name;
        tracing::warn!(
            metric,
            reason,
            "{what}; a worker without metrics is balanced by throughput"
        );
    }
}
