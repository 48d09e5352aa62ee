//! Where a worker's load is read, and by which figures the fleet is balanced. Plain data.

use std::time::Duration;

use shardfleet_core::worker_metrics::{CPU, MEMORY, NETWORK_IN, NETWORK_OUT};

use crate::error::{SettingsError, SettingsProblem};

/// Where figures come from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum WorkerMetricsChoice {
    /// The first place that is recognised: an ECS task, a Kubernetes pod (its cgroup), an EC2 instance (`KCL: WorkerMetricsSelector`). Elsewhere nothing is measured.
    ///
    /// The instance metadata service at 169.254.169.254 is asked in the background, and only on Linux machines whose firmware says that they are Amazon EC2's.
    /// The answer decides as it does for the Java KCL, so that both kinds of workers on such a machine measure the same; and no other machine
    /// sends a packet to an address that means something else there.
    #[default]
    Auto,
    /// Nowhere: the worker is balanced by its throughput (`KCL: disableWorkerMetrics`).
    None,
    /// The whole Linux machine. For machines that run one worker each.
    Host,
    /// The container around this process, by its cgroup: version 2 where it is mounted, else version 1.
    Container,
    /// The container, by the task metadata endpoint of Amazon ECS.
    Ecs,
    /// CPU time of this process alone in percent of the machine's. For several workers on one machine, which [`Host`](Self::Host) cannot tell apart.
    Process,
    /// This figure in percent, 0 to 100, for every metric. For tests and demonstrations.
    Fixed(f64),
}

/// A figure by which the fleet is balanced. A leader balances by the one that is furthest out of balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum BalancedMetric {
    /// CPU: `C`.
    Cpu,
    /// Memory: `M`.
    Memory,
    /// Incoming network traffic in percent of a configured bandwidth: `NI`.
    NetworkIn,
    /// Outgoing network traffic in percent of a configured bandwidth: `NO`.
    NetworkOut,
}

impl BalancedMetric {
    /// Its name in the table.
    pub fn short_name(self) -> &'static str {
        match self {
            Self::Cpu => CPU,
            Self::Memory => MEMORY,
            Self::NetworkIn => NETWORK_IN,
            Self::NetworkOut => NETWORK_OUT,
        }
    }
}

/// How a worker measures its load.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct WorkerMetricsSettings {
    /// Where figures come from. Default: [`WorkerMetricsChoice::Auto`].
    pub source: WorkerMetricsChoice,
    /// Which figures. Default: CPU alone. All workers of a fleet should report the same ones: a worker is compared only with those that report
    /// the same.
    pub metrics: Vec<BalancedMetric>,
    /// The pause between two readings, 100 ms to 10 s. Default: 1 s (`KCL: inMemoryWorkerMetricsCaptureFrequencyMillis`).
    pub capture_interval: Duration,
    /// The highest utilisation in percent at which this worker is to be given more, 1 to 100. Default: 100 (`KCL: OperatingRange`).
    pub max_utilization: u8,
    /// 100 % of incoming traffic, in mebibytes a second, above 0. Needed by [`BalancedMetric::NetworkIn`] (`KCL: maxBandwidthInMB`).
    pub network_in_bandwidth_mb: Option<f64>,
    /// 100 % of outgoing traffic, in mebibytes a second, above 0. Needed by [`BalancedMetric::NetworkOut`] (`KCL: maxBandwidthInMB`).
    pub network_out_bandwidth_mb: Option<f64>,
    /// The network interface outside ECS. Default: that of the default route, or else `eth0`.
    pub network_interface: Option<String>,
}

impl Default for WorkerMetricsSettings {
    fn default() -> Self {
        Self {
            source: WorkerMetricsChoice::Auto,
            metrics: vec![BalancedMetric::Cpu],
            capture_interval: Duration::from_secs(1),
            max_utilization: 100,
            network_in_bandwidth_mb: None,
            network_out_bandwidth_mb: None,
            network_interface: None,
        }
    }
}

impl WorkerMetricsSettings {
    /// The defaults, from another place.
    pub fn from_source(source: WorkerMetricsChoice) -> Self {
        Self {
            source,
            ..Self::default()
        }
    }

    pub(super) fn bandwidth(&self, metric: BalancedMetric) -> Option<f64> {
        match metric {
            BalancedMetric::NetworkIn => self.network_in_bandwidth_mb,
            BalancedMetric::NetworkOut => self.network_out_bandwidth_mb,
            BalancedMetric::Cpu | BalancedMetric::Memory => None,
        }
    }

    /// Every setting that makes no sense, each named as `worker_metrics.` and its field.
    ///
    /// # Errors
    /// When there is one.
    pub fn check(&self) -> Result<(), SettingsError> {
        let mut problems = Vec::new();
        let mut refuse = |setting: &str, reason: String| {
            problems.push(SettingsProblem {
                setting: format!("worker_metrics.{setting}"),
                reason,
            });
        };
        if let WorkerMetricsChoice::Fixed(percent) = self.source
            && !(0.0..=100.0).contains(&percent)
        {
            refuse("fixed_percent", format!("is {percent}; 0 to 100 is allowed"));
        }
        if self.metrics.is_empty() {
            let reason = "is empty; name at least one, or set source to none to balance by throughput";
            refuse("metrics", reason.to_owned());
        }
        let mut sorted = self.metrics.clone();
        sorted.sort();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            refuse("metrics", "names one twice; leave out the second".to_owned());
        }
        if self.source == WorkerMetricsChoice::Process && self.metrics.contains(&BalancedMetric::Memory) {
            let reason =
                "contains memory, which is not measured for a process; choose source host, container or ecs";
            refuse("metrics", reason.to_owned());
        }
        let (low, high) = (Duration::from_millis(100), Duration::from_secs(10));
        if !(low..=high).contains(&self.capture_interval) {
            let value = self.capture_interval;
            refuse(
                "capture_interval",
                format!("is {value:?}; {low:?} to {high:?} is allowed"),
            );
        }
        if !(1..=100).contains(&self.max_utilization) {
            refuse(
                "max_utilization",
                format!("is {}; 1 to 100 percent is allowed", self.max_utilization),
            );
        }
        for (metric, setting) in [
            (BalancedMetric::NetworkIn, "network_in_bandwidth_mb"),
            (BalancedMetric::NetworkOut, "network_out_bandwidth_mb"),
        ] {
            match self.bandwidth(metric) {
                Some(value) if !(value.is_finite() && value > 0.0) => refuse(
                    setting,
                    format!("is {value}; mebibytes a second above 0 are allowed"),
                ),
                None if self.metrics.contains(&metric)
                    && !matches!(
                        self.source,
                        WorkerMetricsChoice::None | WorkerMetricsChoice::Fixed(_)
                    ) =>
                {
                    let reason = "is missing; say how many mebibytes a second are 100 % of the traffic that metrics names";
                    refuse(setting, reason.to_owned());
                }
                _ => {}
            }
        }
        let name_is_usual = |name: &String| {
            (1..=15).contains(&name.len()) && !name.contains(|c: char| c.is_whitespace() || c == '/')
        };
        if let Some(name) = &self.network_interface
            && !name_is_usual(name)
        {
            refuse(
                "network_interface",
                format!("is {name:?}; 1 to 15 bytes without spaces and slashes are allowed"),
            );
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(SettingsError { problems })
        }
    }
}
