//! Where a worker's CPU utilisation can be read, decided from what exists.

/// What a driver found out about the place it runs in, once at its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent findings, each a yes or no"
)]
pub struct Platform {
    /// The operating system is Linux.
    pub is_linux: bool,
    /// `ECS_CONTAINER_METADATA_URI` is set and not empty.
    pub ecs_v3_uri: bool,
    /// `ECS_CONTAINER_METADATA_URI_V4` is set and not empty.
    pub ecs_v4_uri: bool,
    /// `/var/run/secrets/kubernetes.io/serviceaccount/token` exists.
    pub kubernetes_token: bool,
    /// `/sys/fs/cgroup/cgroup.controllers` exists.
    pub cgroup_v2: bool,
    /// `/sys/fs/cgroup/memory` or `/sys/fs/cgroup/cpu` exists.
    pub cgroup_v1: bool,
    /// The instance metadata service answered.
    pub ec2: bool,
    /// `/proc/stat` exists.
    pub proc_stat: bool,
}

/// Where CPU utilisation is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricSource {
    /// The ECS task metadata endpoint, version 4.
    EcsV4,
    /// `cpu.stat` and `cpu.max` of the container.
    CgroupV2,
    /// `cpuacct.usage` and `cpu.cfs_quota_us` of the container.
    CgroupV1,
    /// `/proc/stat` of the machine.
    ProcStat,
    /// Nowhere: the worker is balanced by throughput.
    Nowhere(NoSource),
}

/// Why there is no source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSource {
    /// The settings say that nothing is to be measured (`KCL: disableWorkerMetrics`).
    Disabled,
    /// In ECS, but the agent offers no version 4 of the endpoint, or the system is not Linux.
    EcsWithoutV4,
    /// In Kubernetes, but no cgroup is mounted.
    NoCgroup,
    /// On EC2, but without `/proc/stat`.
    NoProcStat,
    /// None of the places that are known.
    UnknownPlatform,
}

/// Chooses the source; the first that fits, in the order ECS, Kubernetes, EC2 (`KCL: WorkerMetricsSelector`). A place that is recognised but cannot be
/// measured ends the search: the figures of the machine around a container say nothing about the container.
pub fn select_source(platform: &Platform, disabled: bool) -> MetricSource {
    if disabled {
        return MetricSource::Nowhere(NoSource::Disabled);
    }
    if platform.ecs_v3_uri || platform.ecs_v4_uri {
        return if platform.is_linux && platform.ecs_v4_uri {
            MetricSource::EcsV4
        } else {
            MetricSource::Nowhere(NoSource::EcsWithoutV4)
        };
    }
    if platform.kubernetes_token {
        return match (platform.cgroup_v2, platform.cgroup_v1) {
            (true, _) => MetricSource::CgroupV2,
            (false, true) => MetricSource::CgroupV1,
            (false, false) => MetricSource::Nowhere(NoSource::NoCgroup),
        };
    }
    if platform.ec2 {
        return if platform.is_linux && platform.proc_stat {
            MetricSource::ProcStat
        } else {
            MetricSource::Nowhere(NoSource::NoProcStat)
        };
    }
    MetricSource::Nowhere(NoSource::UnknownPlatform)
}
