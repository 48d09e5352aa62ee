//! Readings in the background, in virtual time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shardfleet::clock::{Clock, SystemClock};
use shardfleet::worker_metrics::{
    FixedMetric, MetricError, WorkerMetric, WorkerMetricsChoice, WorkerMetricsHandle, WorkerMetricsSampler,
    WorkerMetricsSettings,
};
use shardfleet::{Timestamp, WorkerId, async_trait};
use tokio_util::sync::CancellationToken;

use crate::support::{soon, until};

/// Answers by a script, and with its last line when that is at its end.
struct Scripted {
    name: &'static str,
    script: Mutex<VecDeque<Line>>,
    readings: AtomicUsize,
}

#[derive(Clone, Copy)]
enum Line {
    Figure(f64),
    Fail,
    Hang,
    Panic,
}

impl Scripted {
    fn new(name: &'static str, script: impl IntoIterator<Item = Line>) -> Arc<Self> {
        Arc::new(Self {
            name,
            script: Mutex::new(script.into_iter().collect()),
            readings: AtomicUsize::new(0),
        })
    }
}

#[async_trait]
impl WorkerMetric for Scripted {
    fn short_name(&self) -> &str {
        self.name
    }

    async fn read(&self) -> Result<Option<f64>, MetricError> {
        self.readings.fetch_add(1, Ordering::SeqCst);
        let line = {
            let mut script = self.script.lock().expect("no panic");
            let line = *script.front().expect("a line");
            if script.len() > 1 {
                script.pop_front();
            }
            line
        };
        match line {
            Line::Figure(percent) => Ok(Some(percent)),
            Line::Fail => Err(MetricError::new(self.name, "as written")),
            Line::Hang => std::future::pending().await,
            Line::Panic => panic!("as written"),
        }
    }
}

struct Sampling {
    clock: Arc<dyn Clock>,
    handle: WorkerMetricsHandle,
    stop: CancellationToken,
}

impl Sampling {
    fn start(metrics: Vec<Arc<dyn WorkerMetric>>) -> Self {
        let (clock, stop) = (SystemClock::shared(), CancellationToken::new());
        let handle =
            WorkerMetricsSampler::start_with(metrics, Duration::from_secs(1), clock.clone(), stop.clone());
        Self { clock, handle, stop }
    }

    async fn pass(&self, seconds: u64) {
        self.clock
            .sleep_until(self.clock.now() + Duration::from_secs(seconds))
            .await;
    }

    fn list(&self, name: &str) -> Option<Vec<f64>> {
        let now = Timestamp::from_millis(1_764_550_000_000);
        let row = self.handle.next_row(&WorkerId::new("w"), now);
        row.averages.get(name).cloned()
    }
}

#[tokio::test(start_paused = true)]
async fn each_metric_is_read_once_a_capture_interval() {
    let (cpu, memory) = (
        Scripted::new("C", [Line::Figure(10.0), Line::Figure(30.0)]),
        Scripted::new("M", [Line::Figure(5.0)]),
    );
    let sampling = Sampling::start(vec![cpu.clone(), memory]);
    let row = sampling
        .handle
        .next_row(&WorkerId::new("w"), Timestamp::from_millis(1000));
    assert!(row.is_default(), "nothing was read yet");
    soon("figures", sampling.handle.first_figures()).await;
    assert_eq!(sampling.list("C"), Some(vec![10.0]));
    sampling.pass(30).await;
    assert_eq!(sampling.list("C"), Some(vec![10.0, 30.0]));
    assert_eq!(sampling.handle.latest_cpu(), Some(30.0));
    let readings = cpu.readings.load(Ordering::SeqCst);
    assert!((30..=32).contains(&readings), "{readings} readings");
}

#[tokio::test(start_paused = true)]
async fn readings_that_hang_or_panic_fail_by_themselves() {
    let hangs = Scripted::new("C", [Line::Hang]);
    let panics = Scripted::new("M", [Line::Panic]);
    let works = Scripted::new("NI", [Line::Figure(1.0)]);
    let sampling = Sampling::start(vec![hangs.clone(), panics.clone(), works.clone()]);
    soon("figures or failures", sampling.handle.first_figures()).await;
    sampling.pass(60).await;
    assert_eq!((sampling.list("C"), sampling.list("M")), (None, None));
    assert_eq!(sampling.list("NI"), Some(vec![1.0]));
    let readings = |metric: &Scripted| metric.readings.load(Ordering::SeqCst);
    assert!((9..=13).contains(&readings(&hangs)), "each is given five seconds");
    assert!(readings(&panics) >= 60 && readings(&works) >= 60);
}

#[tokio::test(start_paused = true)]
async fn a_metric_that_breaks_and_recovers() {
    let script = [Line::Figure(50.0); 20]
        .into_iter()
        .chain([Line::Fail; 140])
        .chain([Line::Figure(70.0)]);
    let sampling = Sampling::start(vec![Scripted::new("C", script)]);
    let mut lists = Vec::new();
    for _ in 0..7 {
        sampling.pass(30).await;
        lists.push(sampling.list("C"));
    }
    let list = |values: &[f64]| Some(values.to_vec());
    assert_eq!(
        lists,
        [
            list(&[50.0]),
            list(&[50.0, -1.0]),
            list(&[50.0, -1.0, -1.0]),
            None,
            None,
            list(&[70.0]),
            list(&[70.0, 70.0]),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_it_and_rows_can_still_be_made() {
    let hangs = Scripted::new("M", [Line::Hang]);
    let cpu = Scripted::new("C", [Line::Figure(40.0)]);
    let sampling = Sampling::start(vec![hangs, cpu.clone()]);
    sampling.pass(10).await;
    sampling.stop.cancel();
    soon("the end", sampling.handle.ended()).await;
    let readings = cpu.readings.load(Ordering::SeqCst);
    assert_eq!(sampling.list("C"), Some(vec![40.0]));
    sampling.pass(100).await;
    assert_eq!(cpu.readings.load(Ordering::SeqCst), readings);
    assert_eq!(sampling.list("C"), Some(vec![40.0]));
}

#[tokio::test(start_paused = true)]
async fn two_of_one_name_are_not_mixed_and_none_at_all_is_no_trouble() {
    let fixed = |percent| Arc::new(FixedMetric::new("C", 80, percent)) as Arc<dyn WorkerMetric>;
    let sampling = Sampling::start(vec![fixed(10.0), fixed(90.0)]);
    sampling.pass(30).await;
    assert_eq!(sampling.list("C"), Some(vec![10.0]));

    let none = Sampling::start(Vec::new());
    soon("nothing", none.handle.first_figures()).await;
    assert_eq!(none.list("C"), None);
    none.stop.cancel();
    soon("the end", none.handle.ended()).await;
}

#[tokio::test(start_paused = true)]
async fn a_fixed_figure_is_reported_for_every_metric_at_once() {
    let stop = CancellationToken::new();
    let settings = WorkerMetricsSettings::from_source(WorkerMetricsChoice::Fixed(42.5));
    let clock = SystemClock::shared();
    let handle = WorkerMetricsSampler::start(&settings, clock.clone(), stop.clone()).expect("good settings");
    let begun = clock.now();
    soon("figures", handle.first_figures()).await;
    assert_eq!(handle.latest_cpu(), Some(42.5));
    assert_eq!(clock.now().since(begun), Duration::ZERO);
    let row = handle.next_row(&WorkerId::new("w"), clock.wall());
    assert_eq!(row.averages["C"], [42.5]);
    assert_eq!(row.operating_range["C"], [100]);
    stop.cancel();
    soon("the end", handle.ended()).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn this_machine_can_be_measured() {
    for source in [WorkerMetricsChoice::Host, WorkerMetricsChoice::Process] {
        let mut settings = WorkerMetricsSettings::from_source(source);
        settings.capture_interval = Duration::from_millis(100);
        let stop = CancellationToken::new();
        let handle = WorkerMetricsSampler::start(&settings, SystemClock::shared(), stop.clone())
            .expect("good settings");
        until("this machine's CPU", || handle.latest_cpu().is_some()).await;
        let row = handle.next_row(&WorkerId::new("w"), SystemClock::new().wall());
        assert!(
            (0.0..=100.0).contains(&row.averages["C"][0]) && row.is_valid(),
            "{row:?}"
        );
        stop.cancel();
        soon("the end", handle.ended()).await;
    }
}
