//! CPU of the container around this process, from its cgroup.
//!
//! Limits are read anew each time, since a pod may be given another size while it runs; the Java KCL reads them once.

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use shardfleet_core::worker_metrics::{CPU, CpuUsage, cgroup_v1_limit, cgroup_v2_limit, cgroup_v2_usage};

use super::{Files, MetricError, WorkerMetric, lock};

/// The machine's CPUs: the set of a cgroup that has no set of its own.
const ONLINE: &str = "sys/devices/system/cpu/online";

const V2_STAT: &str = "sys/fs/cgroup/cpu.stat";
const V2_MAX: &str = "sys/fs/cgroup/cpu.max";
const V2_SET: &[&str] = &["sys/fs/cgroup/cpuset.cpus.effective", ONLINE];

// Where cpu and cpuacct are mounted apart, the Java KCL finds nothing.
const V1_USAGE: &[&str] = &[
    "sys/fs/cgroup/cpu/cpuacct.usage",
    "sys/fs/cgroup/cpuacct/cpuacct.usage",
];
const V1_QUOTA: &str = "sys/fs/cgroup/cpu/cpu.cfs_quota_us";
const V1_PERIOD: &str = "sys/fs/cgroup/cpu/cpu.cfs_period_us";
const V1_SET: &[&str] = &[
    "sys/fs/cgroup/cpuset/cpuset.effective_cpus",
    "sys/fs/cgroup/cpuset/cpuset.cpus",
    ONLINE,
];

/// CPU utilisation of a cgroup of version 2 in percent of its limit (`KCL: Cgroupv2CpuWorkerMetric`).
pub struct CgroupV2Cpu {
    files: Files,
    max_utilization: i64,
    earlier: Mutex<Option<CpuUsage>>,
}

impl CgroupV2Cpu {
    /// Reads below `files`.
    pub fn new(files: Files, max_utilization: i64) -> Self {
        Self {
            files,
            max_utilization,
            earlier: Mutex::default(),
        }
    }

    async fn limit(&self) -> Result<f64, MetricError> {
        // The root cgroup has no such file, and no limit.
        let max = self
            .files
            .read_if_there(V2_MAX)
            .await?
            .unwrap_or_else(|| "max".to_owned());
        let set = if max.trim_start().starts_with("max") {
            self.files.read_first(V2_SET).await?
        } else {
            String::new()
        };
        cgroup_v2_limit(&max, &set).map_err(|error| MetricError::content(self.files.name(V2_MAX), &error))
    }
}

#[async_trait]
impl WorkerMetric for CgroupV2Cpu {
    fn short_name(&self) -> &str {
        CPU
    }

    fn operating_range(&self) -> i64 {
        self.max_utilization
    }

    async fn read(&self) -> Result<Option<f64>, MetricError> {
        let limit = self.limit().await?;
        let text = self.files.read(V2_STAT).await?;
        let used =
            cgroup_v2_usage(&text).map_err(|error| MetricError::content(self.files.name(V2_STAT), &error))?;
        Ok(compare(&self.files, &self.earlier, used, limit))
    }
}

/// CPU utilisation of a cgroup of version 1 in percent of its limit (`KCL: Cgroupv1CpuWorkerMetric`).
pub struct CgroupV1Cpu {
    files: Files,
    max_utilization: i64,
    earlier: Mutex<Option<CpuUsage>>,
}

impl CgroupV1Cpu {
    /// Reads below `files`.
    pub fn new(files: Files, max_utilization: i64) -> Self {
        Self {
            files,
            max_utilization,
            earlier: Mutex::default(),
        }
    }

    async fn limit(&self) -> Result<f64, MetricError> {
        let quota = self.files.read(V1_QUOTA).await?;
        let (period, set) = if quota.trim() == "-1" {
            (String::new(), self.files.read_first(V1_SET).await?)
        } else {
            (self.files.read(V1_PERIOD).await?, String::new())
        };
        cgroup_v1_limit(&quota, &period, &set)
            .map_err(|error| MetricError::content(self.files.name(V1_QUOTA), &error))
    }
}

#[async_trait]
impl WorkerMetric for CgroupV1Cpu {
    fn short_name(&self) -> &str {
        CPU
    }

    fn operating_range(&self) -> i64 {
        self.max_utilization
    }

    async fn read(&self) -> Result<Option<f64>, MetricError> {
        let limit = self.limit().await?;
        let text = self.files.read_first(V1_USAGE).await?;
        let nanos: u64 = text.trim().parse().map_err(|_| {
            let value: String = text.chars().take(80).collect();
            MetricError::new(
                "cpuacct.usage",
                format!("it reads {value:?}; expected nanoseconds"),
            )
        })?;
        let used = Duration::from_nanos(nanos);
        Ok(compare(&self.files, &self.earlier, used, limit))
    }
}

/// The usage since the last reading; `None` for the first, and for a counter that began anew.
fn compare(files: &Files, earlier: &Mutex<Option<CpuUsage>>, used: Duration, limit: f64) -> Option<f64> {
    let now = CpuUsage {
        used,
        at: files.clock().now(),
    };
    let earlier = lock(earlier).replace(now)?;
    (now.at > earlier.at && now.used >= earlier.used).then(|| now.busy_percent(&earlier, limit))
}
