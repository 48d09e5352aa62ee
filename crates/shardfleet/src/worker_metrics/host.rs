//! CPU of the whole machine.

use std::sync::Mutex;

use async_trait::async_trait;
use shardfleet_core::worker_metrics::{CPU, ProcStat};

use super::{Files, MetricError, WorkerMetric, lock};

const PROC_STAT: &str = "proc/stat";

/// CPU utilisation of the machine, from `/proc/stat` (`KCL: LinuxCpuWorkerMetric`).
pub struct LinuxCpu {
    files: Files,
    max_utilization: i64,
    earlier: Mutex<Option<ProcStat>>,
}

impl LinuxCpu {
    /// Reads below `files`.
    pub fn new(files: Files, max_utilization: i64) -> Self {
        Self {
            files,
            max_utilization,
            earlier: Mutex::default(),
        }
    }
}

#[async_trait]
impl WorkerMetric for LinuxCpu {
    fn short_name(&self) -> &str {
        CPU
    }

    fn operating_range(&self) -> i64 {
        self.max_utilization
    }

    async fn read(&self) -> Result<Option<f64>, MetricError> {
        let text = self.files.read(PROC_STAT).await?;
        let now = ProcStat::parse(&text)
            .map_err(|error| MetricError::content(self.files.name(PROC_STAT), &error))?;
        let earlier = lock(&self.earlier).replace(now);
        // The Java KCL counts a first look as a reading of 0, which halves what it reports first; and so it counts counters that stood still.
        Ok(earlier
            .filter(|earlier| *earlier != now)
            .map(|earlier| now.busy_percent(&earlier)))
    }
}
