//! CPU of this process alone: what tells several workers on one machine apart.

use std::sync::Mutex;

use async_trait::async_trait;
use shardfleet_core::worker_metrics::CPU;

use super::{Files, MetricError, WorkerMetric, lock, share_percent};

const PROC_STAT: &str = "proc/stat";
const SELF_STAT: &str = "proc/self/stat";

/// The share of the machine's CPU time that this process uses, from `/proc/self/stat` and `/proc/stat`. The Java KCL has nothing like it.
pub struct ProcessCpu {
    files: Files,
    max_utilization: i64,
    earlier: Mutex<Option<Ticks>>,
}

#[derive(Clone, Copy)]
struct Ticks {
    process: u64,
    machine: u64,
}

impl ProcessCpu {
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
impl WorkerMetric for ProcessCpu {
    fn short_name(&self) -> &str {
        CPU
    }

    fn operating_range(&self) -> i64 {
        self.max_utilization
    }

    async fn read(&self) -> Result<Option<f64>, MetricError> {
        let refuse = |path: &str, expected: &str| MetricError::new(self.files.name(path), expected);
        let process = process_ticks(&self.files.read(SELF_STAT).await?)
            .ok_or_else(|| refuse(SELF_STAT, "expected a command in brackets and 13 more fields"))?;
        let machine = machine_ticks(&self.files.read(PROC_STAT).await?)
            .ok_or_else(|| refuse(PROC_STAT, "expected `cpu` and at least four counters"))?;
        let now = Ticks { process, machine };
        let Some(earlier) = lock(&self.earlier).replace(now) else {
            return Ok(None);
        };
        let (Some(used), Some(passed)) = (
            now.process.checked_sub(earlier.process),
            now.machine.checked_sub(earlier.machine),
        ) else {
            return Ok(None);
        };
        Ok(share_percent(used, passed))
    }
}

/// `utime` and `stime`. The command in brackets may itself hold spaces and brackets, so that fields are counted from the last one.
fn process_ticks(text: &str) -> Option<u64> {
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()?.saturating_add(next()?))
}

/// All time of all CPUs: user to steal. Guests' time, which follows, is contained in the user's.
fn machine_ticks(text: &str) -> Option<u64> {
    let mut words = text.lines().next()?.split_ascii_whitespace();
    if words.next() != Some("cpu") {
        return None;
    }
    let counters: Vec<u64> = words
        .take(8)
        .map(|word| word.parse().ok())
        .collect::<Option<_>>()?;
    (counters.len() >= 4).then(|| counters.into_iter().fold(0, u64::saturating_add))
}
