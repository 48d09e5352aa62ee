//! The documents of the task metadata endpoint, version 4, as far as they count. Whatever a document leaves out, or holds as null, is absent.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use shardfleet_core::worker_metrics::{EcsContainer, EcsStats, EcsTask, NetworkTotals};

/// `{uri}/stats`. The agent answers `null` before it has any.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StatsDocument {
    /// When the engine took the figures.
    read: Option<String>,
    cpu_stats: Option<CpuStats>,
    precpu_stats: Option<CpuStats>,
    memory_stats: Option<MemoryStats>,
    networks: Option<BTreeMap<String, Interface>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CpuStats {
    cpu_usage: Option<CpuUsage>,
    system_cpu_usage: Option<u64>,
    online_cpus: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CpuUsage {
    total_usage: Option<u64>,
    percpu_usage: Option<Vec<IgnoredAny>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MemoryStats {
    usage: Option<u64>,
    limit: Option<u64>,
    stats: Option<MemoryDetails>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MemoryDetails {
    inactive_file: Option<u64>,
    total_inactive_file: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Interface {
    rx_bytes: Option<u64>,
    tx_bytes: Option<u64>,
}

impl StatsDocument {
    pub(super) fn read_at(&self) -> Option<&str> {
        self.read.as_deref()
    }

    pub(super) fn stats(&self) -> EcsStats {
        let usage = |stats: &Option<CpuStats>| stats.as_ref()?.cpu_usage.as_ref()?.total_usage;
        let system = |stats: &Option<CpuStats>| stats.as_ref()?.system_cpu_usage;
        let memory = self.memory_stats.as_ref();
        let details = memory.and_then(|memory| memory.stats.as_ref());
        EcsStats {
            total_usage: usage(&self.cpu_stats),
            previous_total_usage: usage(&self.precpu_stats),
            system_usage: system(&self.cpu_stats),
            previous_system_usage: system(&self.precpu_stats),
            online_cpus: self.cpu_stats.as_ref().and_then(online_cpus),
            memory_usage: memory.and_then(|memory| memory.usage),
            // With version 1 of cgroups the total contains the groups below; version 2 knows no other.
            memory_inactive_file: details
                .and_then(|details| details.total_inactive_file.or(details.inactive_file)),
            memory_limit: memory.and_then(|memory| memory.limit),
            network: self.networks.as_ref().map(totals),
        }
    }
}

/// Older engines leave the number out, or 0; then it is that of the counters there are one of for each CPU.
fn online_cpus(stats: &CpuStats) -> Option<u32> {
    let counters = || {
        let each = stats.cpu_usage.as_ref()?.percpu_usage.as_ref()?;
        u32::try_from(each.len()).ok()
    };
    stats
        .online_cpus
        .filter(|count| *count > 0)
        .or_else(|| counters().filter(|count| *count > 0))
}

fn totals(networks: &BTreeMap<String, Interface>) -> NetworkTotals {
    let sum = |bytes: fn(&Interface) -> Option<u64>| {
        networks.values().filter_map(bytes).fold(0, u64::saturating_add)
    };
    NetworkTotals {
        received: sum(|interface| interface.rx_bytes),
        sent: sum(|interface| interface.tx_bytes),
    }
}

/// `{uri}`, and each container of `{uri}/task`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct ContainerDocument {
    docker_id: Option<String>,
    limits: Option<Limits>,
}

/// `{uri}/task`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct TaskDocument {
    limits: Option<Limits>,
    containers: Option<Vec<ContainerDocument>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Limits {
    #[serde(rename = "CPU")]
    cpu: Option<f64>,
    /// In mebibytes.
    #[serde(rename = "Memory")]
    memory: Option<f64>,
}

impl Limits {
    fn memory_bytes(&self) -> Option<u64> {
        let mebibytes = self.memory.filter(|memory| *memory >= 1.0 && *memory < 1e12)?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at least 1 and below 2^60"
        )]
        let bytes = (mebibytes * 1_048_576.0) as u64;
        Some(bytes)
    }
}

/// What a container may use. Does not change while it runs.
#[derive(Clone, Debug)]
pub(super) struct ContainerLimits {
    pub(super) docker_id: String,
    pub(super) task: EcsTask,
    /// The container's own limit, or else the task's.
    pub(super) memory_bytes: Option<u64>,
}

impl ContainerLimits {
    /// Both documents together; the error is the field that is missing.
    pub(super) fn new(container: &ContainerDocument, task: TaskDocument) -> Result<Self, &'static str> {
        let memory_of = |limits: &Option<Limits>| limits.as_ref().and_then(Limits::memory_bytes);
        let docker_id = container.docker_id.clone().ok_or("DockerId")?;
        let containers = task.containers.ok_or("Containers")?;
        let containers = containers.into_iter().map(|container| EcsContainer {
            docker_id: container.docker_id.unwrap_or_default(),
            cpu_limit: container.limits.and_then(|limits| limits.cpu),
        });
        Ok(Self {
            memory_bytes: memory_of(&container.limits).or_else(|| memory_of(&task.limits)),
            task: EcsTask {
                cpu_limit: task.limits.and_then(|limits| limits.cpu),
                containers: containers.collect(),
            },
            docker_id,
        })
    }
}
