//! CPU utilisation from `/proc/stat` and from cgroups, as functions of their text.

use std::time::Duration;

use super::SourceError;
use crate::time::Moment;

/// The ticks of a machine's CPUs since it started: the first line of `/proc/stat` (`KCL: LinuxCpuWorkerMetric`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcStat {
    busy: u64,
    idle: u64,
    io_wait: u64,
}

impl ProcStat {
    /// Reads the text of `/proc/stat`.
    ///
    /// # Errors
    /// When its first line is not `cpu` and at least five counters.
    pub fn parse(text: &str) -> Result<Self, SourceError> {
        let line = text.lines().next().unwrap_or_default();
        let refuse = || SourceError::new("/proc/stat", line, "`cpu` and at least five counters");
        let mut words = line.split_ascii_whitespace();
        if words.next() != Some("cpu") {
            return Err(refuse());
        }
        let mut next = || -> Option<u64> { words.next()?.parse().ok() };
        let mut counters = [0; 5];
        for counter in &mut counters {
            *counter = next().ok_or_else(refuse)?;
        }
        let [user, nice, system, idle, io_wait] = counters;
        // Interrupts and stolen time are left out, as the Java KCL leaves them out: readings of a mixed fleet must agree.
        Ok(Self {
            busy: user.saturating_add(nice).saturating_add(system),
            idle,
            io_wait,
        })
    }

    /// The share of the time since `earlier` that was not idle, in percent (0 to 100). Waiting for I/O counts as busy. 0 when no time passed, and
    /// when the counters went back.
    pub fn busy_percent(&self, earlier: &Self) -> f64 {
        let total = |stat: &Self| u128::from(stat.busy) + u128::from(stat.idle) + u128::from(stat.io_wait);
        let (Some(total), Some(idle)) = (
            total(self).checked_sub(total(earlier)),
            self.idle.checked_sub(earlier.idle),
        ) else {
            return 0.0;
        };
        // The counter of I/O wait may go back, so idle time can exceed the total.
        match total.checked_sub(u128::from(idle)) {
            Some(busy) if total > 0 => percent(ratio(busy, total)),
            _ => 0.0,
        }
    }
}

/// How much CPU a cgroup has used, and when that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuUsage {
    /// CPU time used so far, of all CPUs together.
    pub used: Duration,
    /// When it was read.
    pub at: Moment,
}

impl CpuUsage {
    /// The usage since `earlier` in percent (0 to 100) of `limit` CPUs. 0 when no time passed or the counter went back; a limit that is not
    /// above 0 counts as one CPU.
    pub fn busy_percent(&self, earlier: &Self, limit: f64) -> f64 {
        let wall = self.at.since(earlier.at).as_secs_f64();
        let used = self.used.saturating_sub(earlier.used).as_secs_f64();
        let limit = if limit.is_finite() && limit > 0.0 {
            limit
        } else {
            1.0
        };
        if wall > 0.0 {
            percent(used / wall / limit)
        } else {
            0.0
        }
    }
}

/// Reads the CPU time used from the text of `cpu.stat` (`KCL: Cgroupv2CpuWorkerMetric`). For cgroup v1, `cpuacct.usage` is the figure in nanoseconds.
///
/// # Errors
/// When no line `usage_usec` with a number is there.
pub fn cgroup_v2_usage(cpu_stat: &str) -> Result<Duration, SourceError> {
    cpu_stat
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(name, _)| *name == "usage_usec")
        .and_then(|(_, value)| value.trim().parse().ok())
        .map(Duration::from_micros)
        .ok_or_else(|| SourceError::new("cpu.stat", cpu_stat, "a line `usage_usec` with microseconds"))
}

/// The CPUs that a cgroup v2 may use, from the texts of `cpu.max` (`MAX PERIOD`) and `cpuset.cpus.effective`.
///
/// # Errors
/// When the text that counts is malformed, or allows nothing.
pub fn cgroup_v2_limit(cpu_max: &str, cpuset: &str) -> Result<f64, SourceError> {
    let refuse = || SourceError::new("cpu.max", cpu_max, "`max` or microseconds, and a period above 0");
    let mut words = cpu_max.split_ascii_whitespace();
    match (words.next(), words.next()) {
        (Some("max"), _) => cpuset_count(cpuset).map(f64::from),
        (Some(quota), Some(period)) => quota_ratio(quota, period).ok_or_else(refuse),
        _ => Err(refuse()),
    }
}

/// The CPUs that a cgroup v1 may use, from the texts of `cpu.cfs_quota_us` (−1: no limit), `cpu.cfs_period_us` and
/// `cpuset.effective_cpus` (`KCL: Cgroupv1CpuWorkerMetric`).
///
/// # Errors
/// When the text that counts is malformed, or allows nothing.
pub fn cgroup_v1_limit(quota: &str, period: &str, cpuset: &str) -> Result<f64, SourceError> {
    if quota.trim() == "-1" {
        return cpuset_count(cpuset).map(f64::from);
    }
    quota_ratio(quota.trim(), period.trim()).ok_or_else(|| {
        SourceError::new(
            "cpu.cfs_quota_us",
            quota,
            "-1 or microseconds, with a period above 0",
        )
    })
}

fn quota_ratio(quota: &str, period: &str) -> Option<f64> {
    let quota: u64 = quota.parse().ok()?;
    let period: u64 = period.parse().ok()?;
    (quota > 0 && period > 0).then(|| ratio(quota.into(), period.into()))
}

/// How many CPUs a list such as `0-3,8` names.
///
/// # Errors
/// When it names none, or is no such list.
pub fn cpuset_count(list: &str) -> Result<u32, SourceError> {
    let refuse = || SourceError::new("cpuset", list, "a list of CPUs such as `0-3,8`");
    let mut count = 0_u32;
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) else {
            return Err(refuse());
        };
        let width = last.checked_sub(first).ok_or_else(refuse)?;
        count = count.saturating_add(width).saturating_add(1);
    }
    Ok(count)
}

/// `part / whole`, where `whole` is above 0.
#[expect(
    clippy::cast_precision_loss,
    reason = "a share in percent needs no more than 52 bits"
)]
fn ratio(part: u128, whole: u128) -> f64 {
    part as f64 / whole as f64
}

fn percent(share: f64) -> f64 {
    (share * 100.0).clamp(0.0, 100.0)
}
