//! Memory of the machine or of the container around this process. File cache that can be dropped at once counts as free.

use async_trait::async_trait;
use shardfleet_core::worker_metrics::MEMORY;

use super::{Files, MetricError, WorkerMetric, share_percent};

const MEMINFO: &str = "proc/meminfo";

/// Memory of the machine that is not available, in percent, from `/proc/meminfo`.
pub struct HostMemory {
    files: Files,
    max_utilization: i64,
}

impl HostMemory {
    /// Reads below `files`.
    pub fn new(files: Files, max_utilization: i64) -> Self {
        Self {
            files,
            max_utilization,
        }
    }
}

#[async_trait]
impl WorkerMetric for HostMemory {
    fn short_name(&self) -> &str {
        MEMORY
    }

    fn operating_range(&self) -> i64 {
        self.max_utilization
    }

    async fn read(&self) -> Result<Option<f64>, MetricError> {
        let text = self.files.read(MEMINFO).await?;
        let find = |field: &str| {
            field_of(&text, field).ok_or_else(|| missing(&self.files, MEMINFO, field, "kilobytes"))
        };
        let (total, available) = (find("MemTotal:")?, find("MemAvailable:")?);
        Ok(share_percent(total.saturating_sub(available), total))
    }
}

/// Memory of a cgroup in percent of its limit, or of the machine's memory where it has none.
pub struct CgroupMemory {
    files: Files,
    max_utilization: i64,
    paths: &'static Paths,
}

struct Paths {
    usage: &'static str,
    limit: &'static str,
    stat: &'static str,
    /// The field of `stat` for file cache that was not used lately.
    inactive: &'static str,
}

const V2: Paths = Paths {
    usage: "sys/fs/cgroup/memory.current",
    limit: "sys/fs/cgroup/memory.max",
    stat: "sys/fs/cgroup/memory.stat",
    inactive: "inactive_file",
};

const V1: Paths = Paths {
    usage: "sys/fs/cgroup/memory/memory.usage_in_bytes",
    limit: "sys/fs/cgroup/memory/memory.limit_in_bytes",
    stat: "sys/fs/cgroup/memory/memory.stat",
    inactive: "total_inactive_file",
};

impl CgroupMemory {
    /// Of a cgroup of version 2, below `files`.
    pub fn v2(files: Files, max_utilization: i64) -> Self {
        Self {
            files,
            max_utilization,
            paths: &V2,
        }
    }

    /// Of a cgroup of version 1, below `files`.
    pub fn v1(files: Files, max_utilization: i64) -> Self {
        Self {
            files,
            max_utilization,
            paths: &V1,
        }
    }

    async fn bytes(&self, path: &str) -> Result<u64, MetricError> {
        let text = self.files.read(path).await?;
        text.trim()
            .parse()
            .map_err(|_| missing(&self.files, path, "the file", "bytes"))
    }
}

#[async_trait]
impl WorkerMetric for CgroupMemory {
    fn short_name(&self) -> &str {
        MEMORY
    }

    fn operating_range(&self) -> i64 {
        self.max_utilization
    }

    async fn read(&self) -> Result<Option<f64>, MetricError> {
        let usage = self.bytes(self.paths.usage).await?;
        let stat = self.files.read(self.paths.stat).await?;
        let inactive = field_of(&stat, self.paths.inactive)
            .ok_or_else(|| missing(&self.files, self.paths.stat, self.paths.inactive, "bytes"))?;
        let machine = self.files.read(MEMINFO).await?;
        let machine = field_of(&machine, "MemTotal:")
            .ok_or_else(|| missing(&self.files, MEMINFO, "MemTotal:", "kilobytes"))?
            .saturating_mul(1024);
        // "No limit" is `max` in version 2 and a number beyond all memory in version 1.
        let limit = self.files.read(self.paths.limit).await?;
        let limit = limit.trim().parse().unwrap_or(u64::MAX).min(machine);
        Ok(share_percent(usage.saturating_sub(inactive), limit))
    }
}

fn field_of(text: &str, field: &str) -> Option<u64> {
    let mut found = text
        .lines()
        .filter_map(|line| line.split_once(char::is_whitespace))
        .filter(|(name, _)| *name == field);
    let (_, value) = found.next()?;
    value.split_ascii_whitespace().next()?.parse().ok()
}

fn missing(files: &Files, path: &str, field: &str, unit: &str) -> MetricError {
    MetricError::new(
        files.name(path),
        format!("{field} should hold a number of {unit}"),
    )
}
