//! The tables `[leases]`, `[fleet]` and `[worker_metrics]`: how the workers of an application share its shards.

use std::time::Duration;

use shardfleet::FleetSettings;
use shardfleet::core::assignment::AssignmentStrategy;
use shardfleet::worker_metrics::{BalancedMetric, WorkerMetricsChoice};

use super::section::Section;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// Where the library's own check of its settings names them otherwise than the file does.
const LIBRARY_NAMES: &[(&str, &str)] = &[
    ("failover_time", "leases.failover_time"),
    ("shard_sync_interval", "leases.shard_sync_interval"),
    ("batch_size", "reading.batch_size"),
    ("poll_interval", "reading.poll_interval"),
    ("memory_budget", "reading.memory_budget"),
    ("unsettled_records_max", "reading.unsettled_records_max"),
    ("unsettled_bytes_max", "reading.unsettled_bytes_max"),
    (
        "fleet.assignment.max_leases_for_worker",
        "leases.max_leases_for_worker",
    ),
    ("fleet.lease_writes_max", "leases.lease_writes_max"),
    (
        "fleet.hole_confidence_threshold",
        "leases.hole_confidence_threshold",
    ),
    ("fleet.stall_warning_after", "leases.stall_warning_after"),
    (
        "fleet.cleanup.finished_interval",
        "leases.finished_cleanup_interval",
    ),
    (
        "fleet.cleanup.garbage_interval",
        "leases.garbage_cleanup_interval",
    ),
    (
        "fleet.cleanup.stale_metrics_after",
        "worker_metrics.stale_metrics_after",
    ),
    (
        "fleet.assignment.worker_metrics_report_interval",
        "worker_metrics.report_interval",
    ),
    (
        "fleet.assignment.worker_metrics_ema_alpha",
        "worker_metrics.ema_alpha",
    ),
];

/// The key of a setting that the library names.
pub(super) fn key_of(setting: &str) -> String {
    let named = LIBRARY_NAMES.iter().find(|(name, _)| *name == setting);
    if let Some((_, key)) = named {
        return (*key).to_owned();
    }
    if let Some(rest) = setting.strip_prefix("fleet.worker_metrics.") {
        return format!("worker_metrics.{rest}");
    }
    if let Some(rest) = setting.strip_prefix("fleet.assignment.") {
        return format!("fleet.{rest}");
    }
    setting.to_owned()
}

/// What `[leases]` says apart from the fleet's settings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeasesConfig {
    pub(crate) failover_time: Duration,
    pub(crate) shard_sync_interval: Duration,
}

/// Reads `[leases]`; some of it goes into `fleet`.
pub(super) fn leases(mut section: Section<'_>, fleet: &mut FleetSettings) -> LeasesConfig {
    let ms = Duration::from_millis;
    let config = LeasesConfig {
        failover_time: section.duration("failover_time", Duration::from_secs(10), ms(300), HOUR),
        shard_sync_interval: section.duration("shard_sync_interval", Duration::from_secs(60), ms(50), DAY),
    };
    if let Some(leases) = section.limit("max_leases_for_worker") {
        fleet.assignment.max_leases_for_worker = leases;
    }
    let writes = section.integer("lease_writes_max", fleet.lease_writes_max as u64, 1, 10_000);
    fleet.lease_writes_max = usize::try_from(writes).unwrap_or(fleet.lease_writes_max);
    let cleanup = &mut fleet.cleanup;
    cleanup.cleanup_finished = section.flag("cleanup_finished", cleanup.cleanup_finished);
    cleanup.finished_interval = section.duration(
        "finished_cleanup_interval",
        cleanup.finished_interval,
        ms(10),
        DAY,
    );
    cleanup.garbage_interval =
        section.duration("garbage_cleanup_interval", cleanup.garbage_interval, ms(10), DAY);
    fleet.hole_confidence_threshold = small(
        &mut section,
        "hole_confidence_threshold",
        fleet.hole_confidence_threshold,
        1000,
    );
    fleet.stall_warning_after =
        section.duration("stall_warning_after", fleet.stall_warning_after, ms(100), DAY);
    section.finish();
    config
}

/// Reads `[fleet]`.
pub(super) fn fleet(mut section: Section<'_>, fleet: &mut FleetSettings) {
    let ms = Duration::from_millis;
    fleet.lease_assignment_interval = section.optional_duration(
        "lease_assignment_interval",
        "a quarter of leases.failover_time",
        ms(20),
        HOUR,
    );
    fleet.discovery_interval =
        section.optional_duration("discovery_interval", "18 % of leases.failover_time", ms(20), HOUR);
    fleet.follower_scan_interval = section.optional_duration(
        "follower_scan_interval",
        "three times leases.failover_time",
        ms(20),
        DAY,
    );
    fleet.takeover_grace = section.optional_duration(
        "takeover_grace",
        "the same as discovery_interval",
        Duration::ZERO,
        HOUR,
    );
    fleet.handoff_enabled = section.flag("handoff_enabled", fleet.handoff_enabled);
    fleet.handoff_timeout = section.duration("handoff_timeout", fleet.handoff_timeout, ms(10), HOUR);
    fleet.variance_balancing_frequency = small(
        &mut section,
        "variance_balancing_frequency",
        fleet.variance_balancing_frequency,
        1000,
    );
    fleet.leader_lease_duration =
        section.duration("leader_lease_duration", fleet.leader_lease_duration, ms(100), DAY);
    fleet.leader_heartbeat = section.duration("leader_heartbeat", fleet.leader_heartbeat, ms(10), DAY / 2);
    assignment(&mut section, fleet);
    section.finish();
}

fn assignment(section: &mut Section<'_>, fleet: &mut FleetSettings) {
    let policy = &mut fleet.assignment;
    policy.strategy = section.choice(
        "assignment_strategy",
        &[
            (
                "worker-utilization-aware",
                AssignmentStrategy::WorkerUtilizationAware,
            ),
            ("lease-count-based", AssignmentStrategy::LeaseCountBased),
        ],
    );
    section.also("dampening_percentage_value", "dampening_percentage");
    for (key, value, high, unit) in [
        (
            "rebalance_threshold_percentage",
            &mut policy.rebalance_threshold_percentage,
            1000.0,
            " percent",
        ),
        (
            "dampening_percentage",
            &mut policy.dampening_percentage,
            100.0,
            " percent",
        ),
        (
            "utilization_floor",
            &mut policy.utilization_floor,
            100.0,
            " points of utilisation",
        ),
        (
            "minimum_gain_percentage",
            &mut policy.minimum_gain_percentage,
            1000.0,
            " percent",
        ),
        (
            "lease_base_kbps",
            &mut policy.lease_base_kbps,
            1e9,
            " KiB a second",
        ),
    ] {
        *value = section.number(key, *value, 0.0, high, unit);
    }
    policy.allow_throughput_overshoot =
        section.flag("allow_throughput_overshoot", policy.allow_throughput_overshoot);
    if let Some(limit) = section.positive("max_throughput_per_host_kbps", " KiB a second", true) {
        policy.max_throughput_per_host_kbps = limit;
    }
    policy.minimum_stay = section.duration("minimum_stay", policy.minimum_stay, Duration::ZERO, DAY);
}

/// Reads `[worker_metrics]`.
pub(super) fn worker_metrics(mut section: Section<'_>, fleet: &mut FleetSettings) {
    let ms = Duration::from_millis;
    let metrics = &mut fleet.worker_metrics;
    let has_percent = section.has("fixed_percent");
    let percent = section.number("fixed_percent", 0.0, 0.0, 100.0, " percent");
    metrics.source = section.choice(
        "source",
        &[
            ("auto", WorkerMetricsChoice::Auto),
            ("none", WorkerMetricsChoice::None),
            ("host", WorkerMetricsChoice::Host),
            ("container", WorkerMetricsChoice::Container),
            ("ecs", WorkerMetricsChoice::Ecs),
            ("process", WorkerMetricsChoice::Process),
            ("fixed", WorkerMetricsChoice::Fixed(percent)),
        ],
    );
    match (metrics.source, has_percent) {
        (WorkerMetricsChoice::Fixed(_), false) => {
            section.problem(
                "fixed_percent",
                "is missing; source = \"fixed\" needs a number from 0 to 100 percent",
            );
        }
        (WorkerMetricsChoice::Fixed(_), true) | (_, false) => {}
        (_, true) => section.problem(
            "fixed_percent",
            "makes no sense without source = \"fixed\"; remove it, or set source",
        ),
    }
    let balanced = section.choices(
        "metrics",
        &[
            ("cpu", BalancedMetric::Cpu),
            ("memory", BalancedMetric::Memory),
            ("network-in", BalancedMetric::NetworkIn),
            ("network-out", BalancedMetric::NetworkOut),
        ],
    );
    if let Some(balanced) = balanced {
        metrics.metrics = balanced;
    }
    let highest = section.integer("max_utilization", u64::from(metrics.max_utilization), 1, 100);
    metrics.max_utilization = u8::try_from(highest).unwrap_or(metrics.max_utilization);
    metrics.capture_interval = section.duration(
        "capture_interval",
        metrics.capture_interval,
        ms(100),
        Duration::from_secs(10),
    );
    let unit = " of mebibytes a second";
    metrics.network_in_bandwidth_mb = section.positive("network_in_bandwidth_mb", unit, false);
    metrics.network_out_bandwidth_mb = section.positive("network_out_bandwidth_mb", unit, false);
    metrics.network_interface = section.text("network_interface");
    let policy = &mut fleet.assignment;
    policy.worker_metrics_report_interval = section.duration(
        "report_interval",
        policy.worker_metrics_report_interval,
        ms(100),
        HOUR,
    );
    policy.worker_metrics_ema_alpha =
        section.number("ema_alpha", policy.worker_metrics_ema_alpha, 0.0, 1.0, "");
    fleet.cleanup.stale_metrics_after = section.duration(
        "stale_metrics_after",
        fleet.cleanup.stale_metrics_after,
        ms(200),
        DAY * 365,
    );
    section.finish();
}

fn small(section: &mut Section<'_>, key: &'static str, default: u32, high: u64) -> u32 {
    let value = section.integer(key, u64::from(default), 1, high);
    u32::try_from(value).unwrap_or(default)
}
