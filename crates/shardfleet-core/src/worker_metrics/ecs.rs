//! Utilisation of a container in Amazon ECS, from the documents of the task metadata endpoint, version 4.
//!
//! The driver fills the structs from the JSON of `{uri}/stats`, `{uri}/task` and `{uri}`; what a document leaves out stays `None`
//! (`KCL: EcsCpuWorkerMetric`).

/// What of `{uri}/stats` counts (the engine's container statistics).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EcsStats {
    /// `cpu_stats.cpu_usage.total_usage`, in nanoseconds.
    pub total_usage: Option<u64>,
    /// `precpu_stats.cpu_usage.total_usage`, in nanoseconds.
    pub previous_total_usage: Option<u64>,
    /// `cpu_stats.system_cpu_usage`, in nanoseconds.
    pub system_usage: Option<u64>,
    /// `precpu_stats.system_cpu_usage`, in nanoseconds.
    pub previous_system_usage: Option<u64>,
    /// `cpu_stats.online_cpus`.
    pub online_cpus: Option<u32>,
    /// `memory_stats.usage`, in bytes.
    pub memory_usage: Option<u64>,
    /// `memory_stats.stats.inactive_file`, or `total_inactive_file`: file cache that can be dropped at once, in bytes.
    pub memory_inactive_file: Option<u64>,
    /// `memory_stats.limit`, in bytes.
    pub memory_limit: Option<u64>,
    /// The sums over `networks`.
    pub network: Option<NetworkTotals>,
}

/// Bytes over all network interfaces since the container started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkTotals {
    /// `rx_bytes`.
    pub received: u64,
    /// `tx_bytes`.
    pub sent: u64,
}

/// What of `{uri}/task` counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EcsTask {
    /// `Limits.CPU` of the task, in vCPUs. Absent where the task has no size of its own.
    pub cpu_limit: Option<f64>,
    /// All containers of the task, the pause container included.
    pub containers: Vec<EcsContainer>,
}

/// What of a container in `{uri}/task` counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EcsContainer {
    /// `DockerId`.
    pub docker_id: String,
    /// `Limits.CPU` of the container, in CPU shares (1024 to a vCPU).
    pub cpu_limit: Option<f64>,
}

/// The CPU shares that a container without shares has, as the engine decides it.
const LEAST_SHARES: f64 = 2.0;

/// The CPUs that the container `docker_id` may use: its share of the task, by CPU shares, times the task's size (the machine's `online_cpus` where
/// the task has no size). Where no container has shares, all of the task is there for each. Always finite and above 0.
pub fn ecs_cpu_limit(task: &EcsTask, docker_id: &str, online_cpus: u32) -> f64 {
    let usable = |value: Option<f64>| value.filter(|value| value.is_finite() && *value > 0.0);
    let size = usable(task.cpu_limit).unwrap_or_else(|| f64::from(online_cpus.max(1)));
    let sum: f64 = task
        .containers
        .iter()
        .filter_map(|container| usable(container.cpu_limit))
        .sum();
    if !sum.is_finite() || sum <= 0.0 {
        return size;
    }
    let own = task
        .containers
        .iter()
        .find(|container| container.docker_id == docker_id);
    let limit = match own.map(|container| usable(container.cpu_limit)) {
        Some(Some(shares)) => shares / sum * size,
        // The container is there without shares: the engine gives it the least, which the sum does not contain.
        Some(None) => LEAST_SHARES / (sum + LEAST_SHARES) * size,
        None => LEAST_SHARES / sum.max(LEAST_SHARES) * size,
    };
    if limit.is_finite() && limit > 0.0 {
        limit
    } else {
        size
    }
}

impl EcsStats {
    /// CPU utilisation in percent (0 to 100) of `limit` CPUs: `cpu delta / system delta × online CPUs / limit × 100`. 0 at the container's first reading, and
    /// when counters went back; 100 when CPU was used in no time. `None` when the document leaves out what is needed.
    pub fn cpu_percent(&self, limit: f64) -> Option<f64> {
        let (total, system) = (self.total_usage?, self.system_usage?);
        let (previous_total, previous_system) = (
            self.previous_total_usage.unwrap_or(0),
            self.previous_system_usage.unwrap_or(0),
        );
        if previous_total == 0 && previous_system == 0 {
            return Some(0.0);
        }
        let cpu_delta = total.saturating_sub(previous_total);
        if cpu_delta == 0 {
            return Some(0.0);
        }
        let system_delta = system.saturating_sub(previous_system);
        if system_delta == 0 {
            return Some(100.0);
        }
        let cores = as_f64(cpu_delta) / as_f64(system_delta) * f64::from(self.online_cpus?.max(1));
        let limit = if limit.is_finite() && limit > 0.0 {
            limit
        } else {
            1.0
        };
        Some((cores / limit * 100.0).clamp(0.0, 100.0))
    }

    /// Memory utilisation in percent (0 to 100) of the limit, without the file cache that can be dropped. `None` without a usage or a limit.
    pub fn memory_percent(&self) -> Option<f64> {
        let usage = self
            .memory_usage?
            .saturating_sub(self.memory_inactive_file.unwrap_or(0));
        let limit = self.memory_limit.filter(|limit| *limit > 0)?;
        Some((as_f64(usage) / as_f64(limit) * 100.0).clamp(0.0, 100.0))
    }
}

/// How much of a bandwidth of `limit_bytes_per_second` was used by `bytes` in `seconds`, in percent (0 to 100). `None` when no time passed or the limit is
/// not above 0.
pub fn bandwidth_percent(bytes: u64, seconds: f64, limit_bytes_per_second: f64) -> Option<f64> {
    let usable = |value: f64| value.is_finite() && value > 0.0;
    (usable(seconds) && usable(limit_bytes_per_second))
        .then(|| (as_f64(bytes) / seconds / limit_bytes_per_second * 100.0).clamp(0.0, 100.0))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a share in percent needs no more than 52 bits"
)]
fn as_f64(value: u64) -> f64 {
    value as f64
}
