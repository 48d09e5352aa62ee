//! Measures this worker's own load, for the row by which a leader shares the shards out.
//!
//! A [`WorkerMetric`] gives one figure in percent. [`WorkerMetricsSettings`] say where figures come from, and by which of them the fleet is balanced.
//! [`WorkerMetricsSampler`] reads them in the background, once each capture interval, and its [`WorkerMetricsHandle`] makes the next row to be written out of
//! what was read. The formulas are the core's (`shardfleet_core::worker_metrics`); here files are read and the container agent is asked.
//!
//! What cannot be measured is not made up: a metric that never gave a figure is left out of the row, and a worker without metrics is balanced by its throughput
//! (`KCL: WorkerMetricStats`, the form with empty maps). Nothing here writes to a store, and nothing waits for a reading: a source that hangs delays
//! only its own figures.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use shardfleet_core::worker_metrics::SourceError;

mod cgroup;
mod ecs;
mod environment;
mod files;
mod fixed;
mod host;
mod http;
mod memory;
mod network;
mod process;
mod reporter;
mod sampler;
mod settings;
mod source;

pub use cgroup::{CgroupV1Cpu, CgroupV2Cpu};
pub use ecs::{EcsCpu, EcsEndpoint, EcsMemory, EcsNetwork};
pub use environment::MetricsEnvironment;
pub use files::Files;
pub use fixed::FixedMetric;
pub use host::LinuxCpu;
pub use memory::{CgroupMemory, HostMemory};
pub use network::{Direction, ProcNetDev};
pub use process::ProcessCpu;
pub use reporter::{FAILED_WINDOWS_MAX, WorkerMetricsReporter};
pub use sampler::{WorkerMetricsHandle, WorkerMetricsSampler};
pub use settings::{BalancedMetric, WorkerMetricsChoice, WorkerMetricsSettings};

/// One figure of a worker's load (`KCL: WorkerMetric`).
///
/// Readings are taken one after another, each within five seconds; an implementation must not block its thread.
#[async_trait]
pub trait WorkerMetric: Send + Sync {
    /// Its name in the table: `C`, `M`, `NI` or `NO`.
    fn short_name(&self) -> &str;

    /// The highest utilisation in percent at which the worker is still to be given more, 1 to 100 (`KCL: OperatingRange`). Values outside count as the nearer end.
    fn operating_range(&self) -> i64 {
        100
    }

    /// A figure in percent, 0 to 100. `None` while there is nothing to compare with: a first look at a counter says nothing about its pace.
    ///
    /// # Errors
    /// What could not be read, and why.
    async fn read(&self) -> Result<Option<f64>, MetricError>;
}

/// A figure that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} cannot be read: {reason}")]
pub struct MetricError {
    /// The file, address or field.
    pub what: String,
    /// Why, and what was expected.
    pub reason: String,
}

impl MetricError {
    /// An error about `what`.
    pub fn new(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            reason: reason.into(),
        }
    }

    /// What the core says about a text that was read from `what`.
    fn content(what: impl Into<String>, error: &SourceError) -> Self {
        let SourceError {
            field,
            value,
            expected,
        } = error;
        Self::new(what, format!("{field} reads {value:?}; expected {expected}"))
    }
}

/// A lock that is held for a few instructions, never across an await.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `part` of `whole` in percent, 0 to 100; `None` of nothing.
fn share_percent(part: u64, whole: u64) -> Option<f64> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "a share in percent needs no more than 52 bits"
    )]
    let share = || part as f64 / whole as f64;
    (whole > 0).then(|| (share() * 100.0).clamp(0.0, 100.0))
}
