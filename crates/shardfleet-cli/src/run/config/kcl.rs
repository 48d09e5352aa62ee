//! The Java KCL's names of settings, for those who come with one.

use super::section::nearest;

/// A property of the Java KCL 3.x, and the key that it is here.
pub(super) const NAMES: &[(&str, &str)] = &[
    ("applicationName", "application"),
    ("streamName", "stream"),
    ("workerIdentifier", "worker_id"),
    ("initialPositionInStreamExtended", "initial_position"),
    ("shutdownGraceMillis", "shutdown_deadline"),
    ("regionName", "aws.region"),
    ("kinesisEndpoint", "aws.endpoint_url"),
    ("tableName", "lease_store.table"),
    ("leaseTableName", "lease_store.table"),
    (
        "coordinatorStateTableConfig",
        "lease_store.coordinator_state_table",
    ),
    ("workerMetricsTableConfig", "lease_store.worker_metrics_table"),
    ("leaseTablePitrEnabled", "lease_store.point_in_time_recovery"),
    (
        "leaseTableDeletionProtectionEnabled",
        "lease_store.deletion_protection",
    ),
    ("tags", "lease_store.tags"),
    ("initialLeaseTableReadCapacity", "lease_store.read_capacity"),
    ("initialLeaseTableWriteCapacity", "lease_store.write_capacity"),
    ("dynamoDbRequestTimeout", "lease_store.attempt_timeout"),
    ("failoverTimeMillis", "leases.failover_time"),
    ("shardSyncIntervalMillis", "leases.shard_sync_interval"),
    ("maxLeasesForWorker", "leases.max_leases_for_worker"),
    ("maxLeaseRenewalThreads", "leases.lease_writes_max"),
    ("cleanupLeasesUponShardCompletion", "leases.cleanup_finished"),
    (
        "completedLeaseCleanupIntervalMillis",
        "leases.finished_cleanup_interval",
    ),
    (
        "garbageLeaseCleanupIntervalMillis",
        "leases.garbage_cleanup_interval",
    ),
    (
        "leasesRecoveryAuditorInconsistencyConfidenceThreshold",
        "leases.hole_confidence_threshold",
    ),
    ("leaseAssignmentIntervalMillis", "fleet.lease_assignment_interval"),
    ("leaseAssignmentStrategy", "fleet.assignment_strategy"),
    (
        "reBalanceThresholdPercentage",
        "fleet.rebalance_threshold_percentage",
    ),
    ("dampeningPercentage", "fleet.dampening_percentage"),
    ("dampeningPercentageValue", "fleet.dampening_percentage"),
    ("allowThroughputOvershoot", "fleet.allow_throughput_overshoot"),
    ("maxThroughputPerHostKBps", "fleet.max_throughput_per_host_kbps"),
    ("varianceBalancingFrequency", "fleet.variance_balancing_frequency"),
    ("gracefulLeaseHandoffTimeoutMillis", "fleet.handoff_timeout"),
    ("isGracefulLeaseHandoffEnabled", "fleet.handoff_enabled"),
    (
        "dynamoDbLockBasedLeaderLeaseDurationInMillis",
        "fleet.leader_lease_duration",
    ),
    (
        "dynamoDbLockBasedLeaderHeartbeatPeriodInMillis",
        "fleet.leader_heartbeat",
    ),
    ("disableWorkerMetrics", "worker_metrics.source"),
    ("workerMetricList", "worker_metrics.metrics"),
    (
        "inMemoryWorkerMetricsCaptureFrequencyMillis",
        "worker_metrics.capture_interval",
    ),
    (
        "workerMetricsReporterFreqInMillis",
        "worker_metrics.report_interval",
    ),
    ("workerMetricsEMAAlpha", "worker_metrics.ema_alpha"),
    (
        "staleWorkerMetricsEntryCleanupDuration",
        "worker_metrics.stale_metrics_after",
    ),
    ("maxUtilization", "worker_metrics.max_utilization"),
    ("maxBandwidthInMB", "worker_metrics.network_in_bandwidth_mb"),
    ("maxRecords", "reading.batch_size"),
    ("idleTimeBetweenReadsInMillis", "reading.poll_interval"),
];

/// Properties of the Java KCL 3.x that mean nothing here, and why.
const WITHOUT_COUNTERPART: &[(&str, &str)] = &[
    (
        "epsilonMillis",
        "leases are renewed three times within leases.failover_time",
    ),
    (
        "maxLeasesToStealAtOneTime",
        "leases are handed over, as many as fleet.dampening_percentage says",
    ),
    (
        "enablePriorityLeaseAssignment",
        "leases that nobody holds are given out at once",
    ),
    (
        "leaseCleanupIntervalMillis",
        "finished leases and garbage have an interval each",
    ),
    (
        "noOfPersistedMetricsPerWorkerMetrics",
        "ten values of each metric are kept",
    ),
    (
        "parentShardPollIntervalMillis",
        "the end of a parent is told to its children",
    ),
    (
        "leasesRecoveryAuditorExecutionFrequencyMillis",
        "each listing of the shards is audited",
    ),
    (
        "migrateAllEntitiesToLeaseTable",
        "everything lies in the lease table",
    ),
    ("clientVersionConfig", "the protocol is that of the KCL 3.x"),
];

/// What an unknown key is here, if it is a name of the Java KCL's, in its own spelling or in snake case.
pub(super) fn hint(key: &str) -> Option<String> {
    let wanted = bare(key);
    let named = NAMES.iter().find(|(name, _)| bare(name) == wanted);
    named.map(|(name, here)| said(name, here)).or_else(|| {
        let (name, why) = WITHOUT_COUNTERPART
            .iter()
            .find(|(name, _)| bare(name) == wanted)?;
        Some(format!(
            "the Java KCL's {name} has no counterpart ({why}); remove it"
        ))
    })
}

/// The same for a slip of such a name.
pub(super) fn near_hint(key: &str) -> Option<String> {
    let bare_names: Vec<String> = NAMES.iter().map(|(name, _)| bare(name)).collect();
    let near = nearest(&bare(key), bare_names.iter().map(String::as_str))?;
    let (name, here) = NAMES.iter().find(|(name, _)| bare(name) == near)?;
    Some(said(name, here))
}

fn said(name: &str, here: &str) -> String {
    let how = match name {
        "disableWorkerMetrics" => " = \"none\"",
        "maxBandwidthInMB" => " or worker_metrics.network_out_bandwidth_mb",
        _ => "",
    };
    format!("the Java KCL's {name} is {here}{how} here; did you mean that?")
}

/// Letters and digits alone, small.
fn bare(name: &str) -> String {
    let letters = name.chars().filter(char::is_ascii_alphanumeric);
    letters.map(|c| c.to_ascii_lowercase()).collect()
}
