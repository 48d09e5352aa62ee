//! Reads the metrics in the background.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::join_all;
use shardfleet_core::ids::WorkerId;
use shardfleet_core::time::Timestamp;
use shardfleet_core::worker_metrics::WorkerMetricStats;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::source::metrics_of;
use super::{
    MetricError, MetricsEnvironment, WorkerMetric, WorkerMetricsReporter, WorkerMetricsSettings, lock,
};
use crate::clock::{Clock, within};
use crate::error::SettingsError;

/// Within this a reading has to be done. Longer than the deadlines of a file and of an agent, which say more.
const READ_DEADLINE: Duration = Duration::from_secs(5);

/// Starts the reading of a worker's metrics.
#[derive(Debug)]
pub struct WorkerMetricsSampler;

/// How far the background work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Begun,
    /// Every metric gave a figure or failed, or there are none.
    Tried,
    Ended,
}

/// The figures of a running sampler. Clones share them; dropping them stops nothing.
#[derive(Clone, Debug)]
pub struct WorkerMetricsHandle {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    reporter: Mutex<WorkerMetricsReporter>,
    stage: watch::Sender<Stage>,
}

impl WorkerMetricsSampler {
    /// Starts to read what `settings` say, in this process's surroundings, until `stop` is cancelled. Returns at once: the surroundings are looked at in the
    /// background. Has to be called within a Tokio runtime.
    ///
    /// # Errors
    /// Every setting that makes no sense.
    pub fn start(
        settings: &WorkerMetricsSettings,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) -> Result<WorkerMetricsHandle, SettingsError> {
        Self::start_in(settings, MetricsEnvironment::from_process(), clock, stop)
    }

    /// As [`start`](Self::start), in other surroundings.
    ///
    /// # Errors
    /// Every setting that makes no sense.
    pub fn start_in(
        settings: &WorkerMetricsSettings,
        environment: MetricsEnvironment,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) -> Result<WorkerMetricsHandle, SettingsError> {
        settings.check()?;
        let settings = settings.clone();
        let handle = WorkerMetricsHandle::new();
        let shared = handle.shared.clone();
        handle.spawn(stop, async move {
            match metrics_of(&settings, &environment, &clock).await {
                Ok(metrics) => sample(&shared, metrics, settings.capture_interval, &*clock).await,
                Err(reason) => {
                    tracing::info!(
                        reason,
                        "this worker does not measure its load and is balanced by throughput"
                    );
                }
            }
        });
        Ok(handle)
    }

    /// Starts to read metrics of the caller's own (`KCL: workerMetricList`), each once in `capture_interval`, until `stop` is cancelled. Of two with the same
    /// short name the second is left out. Has to be called within a Tokio runtime.
    pub fn start_with(
        metrics: Vec<Arc<dyn WorkerMetric>>,
        capture_interval: Duration,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) -> WorkerMetricsHandle {
        let handle = WorkerMetricsHandle::new();
        let shared = handle.shared.clone();
        handle.spawn(stop, async move {
            sample(&shared, metrics, capture_interval, &*clock).await;
        });
        handle
    }
}

impl WorkerMetricsHandle {
    fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                reporter: Mutex::default(),
                stage: watch::Sender::new(Stage::Begun),
            }),
        }
    }

    fn spawn(&self, stop: CancellationToken, work: impl Future<Output = ()> + Send + 'static) {
        let shared = self.shared.clone();
        tokio::spawn(async move {
            // A stop drops the readings that are under way: nothing of them has to be finished.
            if stop.run_until_cancelled(work).await.is_some() {
                // There is nothing to measure, but the end is the token's to say.
                shared.reach(Stage::Tried);
                stop.cancelled().await;
            }
            shared.reach(Stage::Ended);
        });
    }

    /// Closes the window since the last call and answers the row to write now, by the wall clock `now`. May be called at any time: right after the start
    /// the row is that of a worker that is balanced by throughput. Call it once for each report, since each call makes a window.
    pub fn next_row(&self, worker_id: &WorkerId, now: Timestamp) -> WorkerMetricStats {
        lock(&self.shared.reporter).next_row(worker_id, now)
    }

    /// The latest CPU utilisation in percent, for display; `None` without one, and when the last reading failed.
    pub fn latest_cpu(&self) -> Option<f64> {
        lock(&self.shared.reporter).latest_cpu()
    }

    /// The latest figure of the metric with this short name in percent, as with [`latest_cpu`](Self::latest_cpu).
    pub fn latest(&self, short_name: &str) -> Option<f64> {
        lock(&self.shared.reporter).latest(short_name)
    }

    /// Returns once every metric gave a figure or failed to, or it is known that there are none: when a first row with figures can be made. With working
    /// sources that takes a capture interval; set a limit, since an EC2 instance whose metadata service is silent takes half a minute.
    pub async fn first_figures(&self) {
        self.shared.wait_for(Stage::Tried).await;
    }

    /// Returns once the background work has ended, after its token was cancelled.
    pub async fn ended(&self) {
        self.shared.wait_for(Stage::Ended).await;
    }
}

impl Shared {
    fn reach(&self, stage: Stage) {
        self.stage
            .send_if_modified(|now| std::mem::replace(now, stage.max(*now)) != *now);
    }

    async fn wait_for(&self, stage: Stage) {
        // An error means that the sender is gone, which `self` holds.
        self.stage.subscribe().wait_for(|now| *now >= stage).await.ok();
    }
}

/// Reads all of `metrics` for ever, each at its own pace; returns at once when there are none.
async fn sample(
    shared: &Shared,
    metrics: Vec<Arc<dyn WorkerMetric>>,
    capture_interval: Duration,
    clock: &dyn Clock,
) {
    let mut indexed = Vec::new();
    for metric in metrics {
        let name = metric.short_name();
        let index = lock(&shared.reporter).add_metric(name, metric.operating_range());
        if let Some(index) = index {
            indexed.push((index, metric));
        } else {
            tracing::warn!(metric = name, "is there twice; the second is left out");
        }
    }
    let loops = indexed
        .iter()
        .map(|(index, metric)| sample_one(shared, *index, &**metric, capture_interval, clock));
    join_all(loops).await;
}

async fn sample_one(
    shared: &Shared,
    index: usize,
    metric: &dyn WorkerMetric,
    capture_interval: Duration,
    clock: &dyn Clock,
) {
    // The first look is only a base for most metrics, so it need not wait. The second is half an interval to a whole one later, so that the workers of a
    // fleet which start together do not go on in step.
    let mut pause = capture_interval.mul_f64(0.5 + clock.chance() / 2.0);
    loop {
        let reading = AssertUnwindSafe(metric.read()).catch_unwind();
        let outcome = match within(clock, READ_DEADLINE, reading).await {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => Err(MetricError::new(metric.short_name(), "the reading panicked")),
            None => {
                let reason = format!("no answer within {} s", READ_DEADLINE.as_secs());
                Err(MetricError::new(metric.short_name(), reason))
            }
        };
        let all_tried = {
            let mut reporter = lock(&shared.reporter);
            reporter.observe(index, outcome);
            reporter.all_tried()
        };
        if all_tried {
            shared.reach(Stage::Tried);
        }
        // KCL: a fixed pause between readings, not a fixed rate.
        clock.sleep_until(clock.now() + pause).await;
        pause = capture_interval;
    }
}
