//! What becomes of figures in the row that is written.

use shardfleet::worker_metrics::{FAILED_WINDOWS_MAX, MetricError, WorkerMetricsReporter};
use shardfleet::{Timestamp, WorkerId};

struct Report {
    reporter: WorkerMetricsReporter,
    seconds: u64,
}

impl Report {
    fn new(metrics: &[&str]) -> Self {
        let mut reporter = WorkerMetricsReporter::new();
        for (index, name) in metrics.iter().enumerate() {
            assert_eq!(reporter.add_metric(name, 100), Some(index));
        }
        Self {
            reporter,
            seconds: 1000,
        }
    }

    fn figures(&mut self, index: usize, figures: &[f64]) {
        for figure in figures {
            self.reporter.observe(index, Ok(Some(*figure)));
        }
    }

    fn failures(&mut self, index: usize, count: u32) {
        for _ in 0..count {
            self.reporter
                .observe(index, Err(MetricError::new("/proc/stat", "no such file")));
        }
    }

    /// The next row's list of this metric.
    fn list(&mut self, name: &str) -> Option<Vec<f64>> {
        self.seconds += 30;
        let now = Timestamp::from_millis(self.seconds * 1000);
        let row = self.reporter.next_row(&WorkerId::new("w1"), now);
        assert_eq!(row.worker_id.as_str(), "w1");
        assert_eq!(row.last_update_seconds, Some(self.seconds));
        assert_eq!(
            (row.support_code, row.support_code_updated_seconds),
            (Some(1), Some(self.seconds))
        );
        assert!(row.is_valid(), "{row:?}");
        assert!(row.averages.keys().eq(row.operating_range.keys()));
        row.averages.get(name).cloned()
    }
}

#[test]
fn the_first_row_can_be_made_at_once_and_is_balanced_by_throughput() {
    let mut reporter = WorkerMetricsReporter::new();
    reporter.add_metric("C", 100);
    let row = reporter.next_row(&WorkerId::new("w1"), Timestamp::from_millis(5_000));
    assert!(row.is_default() && row.is_valid() && !row.is_failing());
    assert_eq!(row.support_code, Some(1));
}

#[test]
fn ten_averages_are_kept_the_oldest_first() {
    let mut report = Report::new(&["C"]);
    report.figures(0, &[10.0, 20.0, 40.0]);
    assert_eq!(report.list("C"), Some(vec![23.333_333]));
    for i in 0..12_u8 {
        report.figures(0, &[f64::from(i)]);
        report.list("C");
    }
    report.figures(0, &[99.0]);
    let list = report.list("C").expect("a list");
    assert_eq!((list.len(), list[0], list[9]), (10, 3.0, 99.0));
}

#[test]
fn a_window_in_which_nothing_was_tried_changes_nothing() {
    let mut report = Report::new(&["C"]);
    report.figures(0, &[50.0]);
    assert_eq!(report.list("C"), Some(vec![50.0]));
    report.reporter.observe(0, Ok(None));
    assert_eq!(report.list("C"), Some(vec![50.0]));
}

#[test]
fn what_never_worked_is_never_failing() {
    let mut report = Report::new(&["C", "M"]);
    for _ in 0..20 {
        report.failures(0, 30);
        report.figures(1, &[5.0]);
        assert_eq!(report.list("C"), None);
        assert!(report.list("M").is_some(), "the other is not its affair");
    }
    report.figures(0, &[70.0]);
    assert_eq!(report.list("C"), Some(vec![70.0]));
}

#[test]
fn what_fails_is_failing_then_left_out_then_back() {
    let mut report = Report::new(&["C"]);
    report.figures(0, &[50.0]);
    assert_eq!(report.list("C"), Some(vec![50.0]));
    report.failures(0, 29);
    report.figures(0, &[60.0]);
    assert_eq!(report.list("C"), Some(vec![50.0, 60.0]), "one figure is enough");
    let mut expected = vec![50.0, 60.0];
    for _ in 1..FAILED_WINDOWS_MAX {
        report.failures(0, 30);
        expected.push(-1.0);
        assert_eq!(report.list("C"), Some(expected.clone()));
    }
    for _ in 0..5 {
        report.failures(0, 30);
        assert_eq!(report.list("C"), None);
    }
    report.figures(0, &[30.0]);
    assert_eq!(
        report.list("C"),
        Some(vec![30.0]),
        "what was before the gap is too old"
    );
    report.failures(0, 1);
    assert_eq!(
        report.list("C"),
        Some(vec![30.0, -1.0]),
        "and counted from the start"
    );
    report.figures(0, &[31.0]);
    assert_eq!(report.list("C"), Some(vec![30.0, -1.0, 31.0]));
}

#[test]
fn figures_that_are_no_percentages_are_failures() {
    let mut report = Report::new(&["C"]);
    report.figures(0, &[f64::NAN, f64::INFINITY, -0.1, 100.1]);
    assert_eq!(report.list("C"), None);
    report.figures(0, &[f64::NAN, 40.0, 250.0]);
    assert_eq!(report.list("C"), Some(vec![40.0]));
    assert_eq!(report.reporter.latest_cpu(), None, "the last reading failed");
    report.figures(0, &[41.0]);
    assert_eq!(report.reporter.latest_cpu(), Some(41.0));
}

#[test]
fn names_are_unique_and_operating_ranges_usable() {
    let mut reporter = WorkerMetricsReporter::new();
    assert_eq!(reporter.add_metric("C", 0), Some(0));
    assert_eq!(reporter.add_metric("C", 50), None);
    assert_eq!(reporter.add_metric("M", 1000), Some(1));
    reporter.observe(0, Ok(Some(1.0)));
    reporter.observe(1, Ok(Some(1.0)));
    reporter.observe(7, Ok(Some(1.0)));
    let row = reporter.next_row(&WorkerId::new("w"), Timestamp::from_millis(1));
    assert_eq!(row.operating_range["C"], [1]);
    assert_eq!(row.operating_range["M"], [100]);
    assert!(row.is_valid());
}
