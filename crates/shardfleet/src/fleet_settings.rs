//! How the workers of an application share its shards: settings with the Java KCL's names in their docs.

use std::time::Duration;

use shardfleet_core::assignment::AssignmentPolicy;
use shardfleet_core::cleanup::CleanupPolicy;
use shardfleet_core::fleet::FleetPolicy;
use shardfleet_core::leader::LeaderPolicy;

use crate::error::SettingsProblem;
use crate::worker_metrics::WorkerMetricsSettings;

/// How often an assignment run of the Java KCL happens, in failover times; `variance_balancing_frequency` counts these.
const KCL_RUN_IN_FAILOVER_TIMES: u32 = 2;

/// How the workers of an application share its shards. All of them should be set alike, Java workers included.
///
/// ```
/// let mut fleet = shardfleet::FleetSettings::default();
/// fleet.assignment.max_leases_for_worker = 20;
/// fleet.leader_heartbeat = std::time::Duration::from_secs(10);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FleetSettings {
    /// How often the leader looks at the whole table and plans, 20 ms to 1 h. Default: a quarter of the failover time, 2.5 s
    /// (`KCL: leaseAssignmentIntervalMillis`, which is 20 s there).
    pub lease_assignment_interval: Option<Duration>,
    /// How often the others look for leases that were given to them, 20 ms to 1 h. Default: 18 % of the failover time, 1.8 s (the Java KCL derives 10 s from
    /// `leaseAssignmentIntervalMillis`). A request to the owner index each time, so longer is cheaper.
    pub discovery_interval: Option<Duration>,
    /// How often a worker that is neither leader nor one of its two deputies reads the whole table, 20 ms to 24 h. Default: three failover times, 30 s.
    pub follower_scan_interval: Option<Duration>,
    /// How long the leader has to give out a lease that nobody holds before others take it, up to 1 h. Default: as `discovery_interval`.
    pub takeover_grace: Option<Duration>,
    /// How long a worker may take to hand a lease over, 10 ms to 1 h. Default 30 s (`KCL: gracefulLeaseHandoffTimeoutMillis`).
    pub handoff_timeout: Duration,
    /// Whether leases of live workers are moved, by asking their holders. Default true (`KCL: isGracefulLeaseHandoffEnabled`).
    pub handoff_enabled: bool,
    /// Every how many assignment runs of the Java KCL (two failover times each) leases may be moved to even out the load, 1 to 1000. Default 3, so each minute
    /// (`KCL: varianceBalancingFrequency`). After a worker has joined they may be moved at once.
    pub variance_balancing_frequency: u32,
    /// Who gets what: strategy, thresholds, limits.
    pub assignment: AssignmentPolicy,
    /// How long the leader's lock is good for after a heartbeat, 100 ms to 24 h. Default 2 min
    /// (`KCL: dynamoDbLockBasedLeaderLeaseDurationInMillis`).
    pub leader_lease_duration: Duration,
    /// How often the leader writes its lock, up to half of `leader_lease_duration`. Default 30 s
    /// (`KCL: dynamoDbLockBasedLeaderHeartbeatPeriodInMillis`).
    pub leader_heartbeat: Duration,
    /// How this worker measures its load, and what it reports.
    pub worker_metrics: WorkerMetricsSettings,
    /// When rows that nobody needs are deleted.
    pub cleanup: CleanupPolicy,
    /// How many listings in a row must show the same hole in the hash key ranges before it is reported, 1 to 1000. Default 3
    /// (`KCL: leasesRecoveryAuditorInconsistencyConfidenceThreshold`).
    pub hole_confidence_threshold: u32,
    /// How many lease writes of this worker may be under way at once, 1 to 10,000. Default 64 (`KCL: maxLeaseRenewalThreads`).
    pub lease_writes_max: usize,
    /// For how long a shard may stand still for the same reason before that is reported, 100 ms to 24 h. Default 1 min.
    pub stall_warning_after: Duration,
}

impl Default for FleetSettings {
    fn default() -> Self {
        let leader = LeaderPolicy::default();
        let fleet = FleetPolicy::default();
        Self {
            lease_assignment_interval: None,
            discovery_interval: None,
            follower_scan_interval: None,
            takeover_grace: None,
            handoff_timeout: fleet.handoff_timeout,
            handoff_enabled: fleet.handoff_enabled,
            variance_balancing_frequency: 3,
            assignment: fleet.assignment,
            leader_lease_duration: leader.lease_duration,
            leader_heartbeat: leader.heartbeat,
            worker_metrics: WorkerMetricsSettings::default(),
            cleanup: CleanupPolicy::default(),
            hole_confidence_threshold: shardfleet_core::fleet_audit::DEFAULT_CONFIDENCE_THRESHOLD,
            lease_writes_max: 64,
            stall_warning_after: Duration::from_mins(1),
        }
    }
}

/// Intervals with their defaults filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    pub(crate) assignment: Duration,
    pub(crate) discovery: Duration,
    pub(crate) follower_scan: Duration,
    /// How often a lease that is being handed to this worker is looked at.
    pub(crate) pending: Duration,
}

impl FleetSettings {
    pub(crate) fn pace(&self, failover_time: Duration) -> Pace {
        let discovery = self.discovery_interval.unwrap_or(failover_time * 18 / 100);
        Pace {
            assignment: self.lease_assignment_interval.unwrap_or(failover_time / 4),
            discovery,
            follower_scan: self.follower_scan_interval.unwrap_or(failover_time * 3),
            pending: (discovery / 4).clamp(Duration::from_millis(20), Duration::from_millis(400)),
        }
    }

    pub(crate) fn policy(&self, failover_time: Duration) -> FleetPolicy {
        FleetPolicy {
            failover_time,
            handoff_timeout: self.handoff_timeout,
            handoff_enabled: self.handoff_enabled,
            takeover_grace: self.takeover_grace.unwrap_or(self.pace(failover_time).discovery),
            balance_interval: failover_time * KCL_RUN_IN_FAILOVER_TIMES * self.variance_balancing_frequency,
            assignment: self.assignment.clone(),
        }
    }

    pub(crate) fn leader_policy(&self, failover_time: Duration) -> LeaderPolicy {
        LeaderPolicy {
            lease_duration: self.leader_lease_duration,
            heartbeat: self.leader_heartbeat,
            // The Java KCL's standbys read the lock as often as its holder writes it.
            poll: self.leader_heartbeat,
            retry: (failover_time / 4).min(LeaderPolicy::default().retry),
            cool_down: self.leader_heartbeat * 2,
            ..LeaderPolicy::default()
        }
    }

    /// Every setting that makes no sense.
    pub(crate) fn problems(&self, failover_time: Duration) -> Vec<SettingsProblem> {
        let mut checks = Checks::default();
        self.check_times(&mut checks);
        self.check_numbers(&mut checks);
        if let Err(error) = self.worker_metrics.check() {
            for problem in error.problems {
                checks.refuse(&problem.setting, problem.reason);
            }
        }
        let pace = self.pace(failover_time);
        for (setting, value) in [
            ("lease_assignment_interval", pace.assignment),
            ("discovery_interval", pace.discovery),
        ] {
            if value >= failover_time {
                let reason = format!(
                    "is {value:?}; less than the failover time ({failover_time:?}) is allowed, or leases that are given out expire before they are found"
                );
                checks.refuse(setting, reason);
            }
        }
        checks.problems
    }

    fn check_times(&self, checks: &mut Checks) {
        let (ms, hour) = (Duration::from_millis, Duration::from_hours(1));
        let day = 24 * hour;
        checks.optional_time(
            "lease_assignment_interval",
            self.lease_assignment_interval,
            ms(20),
            hour,
        );
        checks.optional_time("discovery_interval", self.discovery_interval, ms(20), hour);
        checks.optional_time("follower_scan_interval", self.follower_scan_interval, ms(20), day);
        checks.optional_time("takeover_grace", self.takeover_grace, Duration::ZERO, hour);
        checks.time("handoff_timeout", self.handoff_timeout, ms(10), hour);
        checks.time("leader_lease_duration", self.leader_lease_duration, ms(100), day);
        checks.time("leader_heartbeat", self.leader_heartbeat, ms(10), day / 2);
        checks.time("stall_warning_after", self.stall_warning_after, ms(100), day);
        let report = self.assignment.worker_metrics_report_interval;
        checks.time("assignment.worker_metrics_report_interval", report, ms(100), hour);
        checks.time(
            "assignment.minimum_stay",
            self.assignment.minimum_stay,
            Duration::ZERO,
            day,
        );
        checks.time(
            "cleanup.finished_interval",
            self.cleanup.finished_interval,
            ms(10),
            day,
        );
        checks.time(
            "cleanup.garbage_interval",
            self.cleanup.garbage_interval,
            ms(10),
            day,
        );
        if self.leader_heartbeat * 2 > self.leader_lease_duration {
            let reason = format!(
                "is {:?}; at most half of leader_lease_duration ({:?}) is allowed, so that one heartbeat may fail",
                self.leader_heartbeat, self.leader_lease_duration
            );
            checks.refuse("leader_heartbeat", reason);
        }
        if self.cleanup.stale_metrics_after < report * 2 {
            let reason = format!(
                "is {:?}; at least two report intervals ({:?}) are needed, or metrics of live workers would be deleted",
                self.cleanup.stale_metrics_after,
                report * 2
            );
            checks.refuse("cleanup.stale_metrics_after", reason);
        }
    }

    fn check_numbers(&self, checks: &mut Checks) {
        let assignment = &self.assignment;
        for (setting, value, most) in [
            (
                "rebalance_threshold_percentage",
                assignment.rebalance_threshold_percentage,
                1000.0,
            ),
            ("dampening_percentage", assignment.dampening_percentage, 100.0),
            (
                "worker_metrics_ema_alpha",
                assignment.worker_metrics_ema_alpha,
                1.0,
            ),
            ("utilization_floor", assignment.utilization_floor, 100.0),
            (
                "minimum_gain_percentage",
                assignment.minimum_gain_percentage,
                1000.0,
            ),
            ("lease_base_kbps", assignment.lease_base_kbps, 1e9),
        ] {
            if !(0.0..=most).contains(&value) {
                let reason = format!("is {value}; 0 to {most} is allowed");
                checks.refuse(&format!("assignment.{setting}"), reason);
            }
        }
        let limit = assignment.max_throughput_per_host_kbps;
        if limit.is_nan() || limit <= 0.0 {
            let reason = format!("is {limit}; more than 0 KiB a second is allowed");
            checks.refuse("assignment.max_throughput_per_host_kbps", reason);
        }
        for (setting, value, most) in [
            (
                "assignment.max_leases_for_worker",
                assignment.max_leases_for_worker,
                usize::MAX,
            ),
            (
                "variance_balancing_frequency",
                self.variance_balancing_frequency as usize,
                1000,
            ),
            (
                "hole_confidence_threshold",
                self.hole_confidence_threshold as usize,
                1000,
            ),
            ("lease_writes_max", self.lease_writes_max, 10_000),
        ] {
            if !(1..=most).contains(&value) {
                checks.refuse(setting, format!("is {value}; 1 to {most} is allowed"));
            }
        }
    }
}

#[derive(Default)]
struct Checks {
    problems: Vec<SettingsProblem>,
}

impl Checks {
    fn refuse(&mut self, setting: &str, reason: String) {
        self.problems.push(SettingsProblem {
            setting: format!("fleet.{setting}"),
            reason,
        });
    }

    fn time(&mut self, setting: &str, value: Duration, low: Duration, high: Duration) {
        if value < low || value > high {
            self.refuse(setting, format!("is {value:?}; {low:?} to {high:?} is allowed"));
        }
    }

    fn optional_time(&mut self, setting: &str, value: Option<Duration>, low: Duration, high: Duration) {
        if let Some(value) = value {
            self.time(setting, value, low, high);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_make_sense_for_every_failover_time() {
        for millis in [300, 1000, 10_000, 3_600_000] {
            let problems = FleetSettings::default().problems(Duration::from_millis(millis));
            assert!(problems.is_empty(), "{millis} ms: {problems:?}");
        }
    }

    #[test]
    fn all_problems_are_named_at_once() {
        let mut fleet = FleetSettings {
            discovery_interval: Some(Duration::from_secs(11)),
            leader_heartbeat: Duration::from_secs(90),
            lease_writes_max: 0,
            ..FleetSettings::default()
        };
        fleet.assignment.dampening_percentage = f64::NAN;
        fleet.assignment.max_leases_for_worker = 0;
        fleet.cleanup.stale_metrics_after = Duration::from_secs(59);
        let problems = fleet.problems(Duration::from_secs(10));
        let named: Vec<&str> = problems.iter().map(|p| p.setting.as_str()).collect();
        let expected = [
            "fleet.leader_heartbeat",
            "fleet.cleanup.stale_metrics_after",
            "fleet.assignment.dampening_percentage",
            "fleet.assignment.max_leases_for_worker",
            "fleet.lease_writes_max",
            "fleet.discovery_interval",
        ];
        assert_eq!(named, expected, "{problems:?}");
    }
}
