//! What a worker reports about its own load, and what a leader may conclude from it.
//!
//! [`WorkerMetricStats`] is the row as the table stores it; attribute names in the docs are the Java KCL's
//! (`KCL: WorkerMetricStats`). [`SampleWindow`] and [`WorkerMetricStats::append`] make it, [`ema`] and the predicates read it. The modules
//! below turn what an operating system or a container agent prints into percentages. Nothing here opens a file or calls an
//! endpoint, and no formula can answer NaN.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::WorkerId;
use crate::time::Timestamp;

mod cpu;
mod ecs;
mod source;

pub use cpu::{CpuUsage, ProcStat, cgroup_v1_limit, cgroup_v2_limit, cgroup_v2_usage, cpuset_count};
pub use ecs::{EcsContainer, EcsStats, EcsTask, NetworkTotals, bandwidth_percent, ecs_cpu_limit};
pub use source::{MetricSource, NoSource, Platform, select_source};

/// Short name of CPU utilisation in percent.
pub const CPU: &str = "C";
/// Short name of memory utilisation in percent.
pub const MEMORY: &str = "M";
/// Short name of incoming network traffic in percent of the configured bandwidth.
pub const NETWORK_IN: &str = "NI";
/// Short name of outgoing network traffic in percent of the configured bandwidth.
pub const NETWORK_OUT: &str = "NO";
/// Short name of throughput in percent of the fair share; no worker reports it, the leader computes it.
pub const THROUGHPUT: &str = "T";
/// What a window without a sample is stored as.
pub const CAPTURE_FAILED: f64 = -1.0;
/// How many averages are stored for each metric (`KCL: noOfPersistedMetricsPerWorkerMetrics`).
pub const KEPT_AVERAGES: usize = 10;
/// How many samples a window holds before the oldest goes.
pub const SAMPLES_IN_WINDOW: usize = 300;
/// The support code of KCL 3.5: this worker can use a single table. A worker without it holds the fleet's table migration up.
pub const SUPPORT_CODE: u64 = 1;

/// What of a source's text or figures cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{field} reads {value:?}; expected {expected}; this worker is balanced by throughput until it can be read"
)]
pub struct SourceError {
    /// Which file, field or setting.
    pub field: &'static str,
    /// What it holds, shortened.
    pub value: String,
    /// What it should hold.
    pub expected: &'static str,
}

impl SourceError {
    pub(crate) fn new(field: &'static str, value: &str, expected: &'static str) -> Self {
        Self {
            field,
            value: value.chars().take(80).collect(),
            expected,
        }
    }
}

/// A worker's row as the table stores it.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerMetricStats {
    /// The key: `wid`, or `leaseKey` in a single table. Equals the `leaseOwner` of the worker's leases.
    pub worker_id: WorkerId,
    /// `lut`: when the row was written last, in seconds since the epoch by the worker's wall clock.
    pub last_update_seconds: Option<u64>,
    /// `sts`: metric short name → at most [`KEPT_AVERAGES`] averages in percent, the oldest first; −1 where nothing was captured.
    pub averages: BTreeMap<String, Vec<f64>>,
    /// `opr`: metric short name → its operating range; the first element, the highest utilisation in percent, is all that is used.
    pub operating_range: BTreeMap<String, Vec<i64>>,
    /// `sup`: what the worker supports, see [`SUPPORT_CODE`].
    pub support_code: Option<u64>,
    /// `slu`: when `sup` was confirmed last, in seconds since the epoch.
    pub support_code_updated_seconds: Option<u64>,
}

impl WorkerMetricStats {
    /// The row of a worker that measures nothing yet, written at `now`: balanced by throughput.
    pub fn new(worker_id: WorkerId, now: Timestamp) -> Self {
        let seconds = Some(now.millis() / 1000);
        Self {
            worker_id,
            last_update_seconds: seconds,
            averages: BTreeMap::new(),
            operating_range: BTreeMap::new(),
            support_code: Some(SUPPORT_CODE),
            support_code_updated_seconds: seconds,
        }
    }

    /// Adds a window's average of `metric` as the newest, and drops what is too old. Values that are no percentage count as not captured.
    pub fn append(&mut self, metric: &str, average: f64, max_utilization: i64) {
        let value = if (0.0..=100.0).contains(&average) {
            average
        } else {
            CAPTURE_FAILED
        };
        let list = self.averages.entry(metric.to_owned()).or_default();
        list.push(value);
        let surplus = list.len().saturating_sub(KEPT_AVERAGES);
        list.drain(..surplus);
        self.operating_range
            .insert(metric.to_owned(), vec![max_utilization]);
    }

    /// Notes that the row is written at `now`, support code included.
    pub fn touch(&mut self, now: Timestamp) {
        let seconds = Some(now.millis() / 1000);
        self.last_update_seconds = seconds;
        self.support_code = Some(SUPPORT_CODE);
        self.support_code_updated_seconds = seconds;
    }

    /// How long ago the row was written, by two machines' wall clocks; zero for a time to come. `None` when no time is noted.
    pub fn age(&self, now: Timestamp) -> Option<Duration> {
        self.last_update_seconds.map(|seconds| age_at(now, seconds))
    }

    /// Not written for more than two report intervals: its worker is not active. A row without a time is expired.
    pub fn is_expired(&self, now: Timestamp, report_interval: Duration) -> bool {
        self.age(now)
            .is_none_or(|age| age > report_interval.saturating_mul(2))
    }

    /// Not written for longer than `keep`: to be deleted. A row without a time is never stale, since nothing says how old it is.
    pub fn is_stale(&self, now: Timestamp, keep: Duration) -> bool {
        self.age(now).is_some_and(|age| age > keep)
    }

    /// The newest window of any metric captured nothing.
    pub fn is_failing(&self) -> bool {
        self.averages
            .values()
            .any(|list| list.last().is_some_and(|value| !is_captured(*value)))
    }

    /// The worker measures nothing and is balanced by throughput.
    pub fn is_default(&self) -> bool {
        (self.averages.is_empty() && self.operating_range.is_empty())
            || self.averages.contains_key("THROUGHPUT")
    }

    /// Whether a leader can use the row: it has a time, and an operating range for each metric.
    pub fn is_valid(&self) -> bool {
        self.last_update_seconds.is_some()
            && (self.is_default()
                || (self
                    .averages
                    .keys()
                    .all(|name| self.operating_range.contains_key(name))
                    && self
                        .operating_range
                        .values()
                        .all(|range| range.first().is_some_and(|max| *max != 0))))
    }

    /// What the worker is known to support at `now`: zero without a code, or with one that was not confirmed for three report intervals.
    pub fn confirmed_support(&self, now: Timestamp, report_interval: Duration) -> u64 {
        match (self.support_code, self.support_code_updated_seconds) {
            (Some(code), Some(seconds)) if age_at(now, seconds) <= report_interval.saturating_mul(3) => code,
            _ => 0,
        }
    }
}

/// What every owner of a lease supports: the least of the `owners`' codes, zero when one has no row. Without owners, zero.
pub fn fleet_support<'a>(
    owners: impl IntoIterator<Item = &'a WorkerId>,
    rows: &BTreeMap<WorkerId, WorkerMetricStats>,
    now: Timestamp,
    report_interval: Duration,
) -> u64 {
    owners
        .into_iter()
        .map(|owner| {
            rows.get(owner)
                .map_or(0, |row| row.confirmed_support(now, report_interval))
        })
        .min()
        .unwrap_or(0)
}

fn age_at(now: Timestamp, seconds: u64) -> Duration {
    Duration::from_millis(now.millis().saturating_sub(seconds.saturating_mul(1000)))
}

fn is_captured(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

/// The exponential moving average of `values`, the oldest first: `alpha × value + (1 − alpha) × before`, begun by the first. What was not
/// captured is left out; `None` when nothing was (`KCL: ExponentialMovingAverage`, which answers 0 then). An `alpha` outside 0 to 1 is moved to
/// the nearer end, NaN to 0.5, the default.
pub fn ema(values: &[f64], alpha: f64) -> Option<f64> {
    let alpha = if alpha.is_nan() {
        0.5
    } else {
        alpha.clamp(0.0, 1.0)
    };
    values
        .iter()
        .copied()
        .filter(|value| is_captured(*value))
        .reduce(|before, value| alpha * value + (1.0 - alpha) * before)
}

/// The newest value of a list that was captured.
pub fn latest(values: &[f64]) -> Option<f64> {
    values.iter().rev().copied().find(|value| is_captured(*value))
}

/// The samples of one metric between two reports. Holds [`SAMPLES_IN_WINDOW`]; the oldest goes first.
#[derive(Clone, Debug, Default)]
pub struct SampleWindow {
    samples: std::collections::VecDeque<f64>,
}

impl SampleWindow {
    /// Adds a sample in percent. Says whether it was one: what is not within 0 to 100 is dropped.
    pub fn add(&mut self, percent: f64) -> bool {
        if !(0.0..=100.0).contains(&percent) {
            return false;
        }
        if self.samples.len() == SAMPLES_IN_WINDOW {
            self.samples.pop_front();
        }
        self.samples.push_back(percent);
        true
    }

    /// How many samples there are.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Empties the window and answers its average, with six decimals rounded half up; −1 for an empty one.
    pub fn drain_average(&mut self) -> f64 {
        let (sum, count) = self
            .samples
            .drain(..)
            .fold((0.0, 0.0), |(sum, count), sample| (sum + sample, count + 1.0));
        if count == 0.0 {
            return CAPTURE_FAILED;
        }
        // `round` rounds half away from zero, which is half up here: no sample is negative.
        (sum / count * 1e6_f64).round() / 1e6
    }
}

#[cfg(test)]
mod tests;
