//! Figures that somebody made up: for tests and demonstrations.

use async_trait::async_trait;

use super::{MetricError, WorkerMetric};

/// The same figure each time.
#[derive(Clone, Debug)]
pub struct FixedMetric {
    short_name: &'static str,
    max_utilization: i64,
    percent: f64,
}

impl FixedMetric {
    /// `percent`, 0 to 100, under `short_name`.
    pub fn new(short_name: &'static str, max_utilization: i64, percent: f64) -> Self {
        Self {
            short_name,
            max_utilization,
            percent,
        }
    }
}

#[async_trait]
impl WorkerMetric for FixedMetric {
    fn short_name(&self) -> &str {
        self.short_name
    }

    fn operating_range(&self) -> i64 {
        self.max_utilization
    }

    async fn read(&self) -> Result<Option<f64>, MetricError> {
        Ok(Some(self.percent))
    }
}
