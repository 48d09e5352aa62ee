//! Settings that make no sense are refused, all at once.

use std::time::Duration;

use shardfleet::worker_metrics::{BalancedMetric, WorkerMetricsChoice, WorkerMetricsSettings};

#[test]
fn the_defaults_are_kcls() {
    let settings = WorkerMetricsSettings::default();
    assert!(settings.check().is_ok());
    assert_eq!(settings.source, WorkerMetricsChoice::Auto);
    assert_eq!(settings.metrics, [BalancedMetric::Cpu]);
    assert_eq!(
        (settings.capture_interval, settings.max_utilization),
        (Duration::from_secs(1), 100)
    );
}

#[test]
fn every_problem_is_named() {
    let mut settings = WorkerMetricsSettings::from_source(WorkerMetricsChoice::Process);
    settings.metrics = vec![
        BalancedMetric::Memory,
        BalancedMetric::NetworkIn,
        BalancedMetric::NetworkIn,
    ];
    settings.capture_interval = Duration::from_millis(99);
    settings.max_utilization = 0;
    settings.network_out_bandwidth_mb = Some(f64::NAN);
    settings.network_interface = Some("eth 0".to_owned());
    let problems = settings.check().expect_err("all of it is wrong").problems;
    let named: Vec<_> = problems.iter().map(|problem| problem.setting.as_str()).collect();
    let expected = [
        "metrics",
        "metrics",
        "capture_interval",
        "max_utilization",
        "network_in_bandwidth_mb",
        "network_out_bandwidth_mb",
        "network_interface",
    ];
    assert_eq!(named, expected.map(|name| format!("worker_metrics.{name}")));

    let mut empty = WorkerMetricsSettings::default();
    empty.metrics.clear();
    assert!(empty.check().is_err());
    for percent in [f64::NAN, -1.0, 100.5] {
        let fixed = WorkerMetricsSettings::from_source(WorkerMetricsChoice::Fixed(percent));
        assert!(fixed.check().is_err(), "{percent}");
    }
}
