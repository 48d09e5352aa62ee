//! Network traffic of a machine or container against a configured bandwidth.

use std::sync::Mutex;

use async_trait::async_trait;
use shardfleet_core::time::Moment;
use shardfleet_core::worker_metrics::{NETWORK_IN, NETWORK_OUT, bandwidth_percent};

use super::{Files, MetricError, WorkerMetric, lock};

const PROC_NET_DEV: &str = "proc/net/dev";
const PROC_NET_ROUTE: &str = "proc/net/route";
/// The interface that is read where no route says which (`KCL: LinuxNetworkWorkerMetricBase`).
const USUAL_INTERFACE: &str = "eth0";
/// KCL's unit: its `maxBandwidthInMB` counts mebibytes a second.
const BYTES_PER_MB: f64 = 1_048_576.0;

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received: `NI`.
    In,
    /// Sent: `NO`.
    Out,
}

impl Direction {
    pub(super) fn short_name(self) -> &'static str {
        match self {
            Self::In => NETWORK_IN,
            Self::Out => NETWORK_OUT,
        }
    }
}

/// Turns a byte counter into a share of a bandwidth.
#[derive(Debug)]
pub(super) struct RateMeter {
    bytes_per_second_max: f64,
    earlier: Mutex<Option<(Moment, u64)>>,
}

impl RateMeter {
    pub(super) fn new(bandwidth_mb: f64) -> Self {
        Self {
            bytes_per_second_max: bandwidth_mb * BYTES_PER_MB,
            earlier: Mutex::default(),
        }
    }

    /// The share since the last reading; `None` for the first, and for a counter that began anew.
    pub(super) fn percent(&self, at: Moment, bytes: u64) -> Option<f64> {
        let (earlier_at, earlier) = lock(&self.earlier).replace((at, bytes))?;
        let moved = bytes.checked_sub(earlier)?;
        bandwidth_percent(
            moved,
            at.since(earlier_at).as_secs_f64(),
            self.bytes_per_second_max,
        )
    }
}

/// Traffic of one network interface, from `/proc/net/dev` (`KCL: LinuxNetworkInWorkerMetric`, `LinuxNetworkOutWorkerMetric`).
pub struct ProcNetDev {
    files: Files,
    max_utilization: i64,
    direction: Direction,
    interface: Option<String>,
    meter: RateMeter,
}

impl ProcNetDev {
    /// Traffic of `interface`, or of the one with the default route where none is named, in percent of `bandwidth_mb` mebibytes a second.
    pub fn new(
        files: Files,
        max_utilization: i64,
        direction: Direction,
        interface: Option<String>,
        bandwidth_mb: f64,
    ) -> Self {
        Self {
            files,
            max_utilization,
            direction,
            interface,
            meter: RateMeter::new(bandwidth_mb),
        }
    }

    async fn interface(&self) -> Result<String, MetricError> {
        if let Some(interface) = &self.interface {
            return Ok(interface.clone());
        }
        let routes = self.files.read_if_there(PROC_NET_ROUTE).await?;
        let found = routes.as_deref().and_then(default_interface);
        Ok(found.unwrap_or(USUAL_INTERFACE).to_owned())
    }
}

#[async_trait]
impl WorkerMetric for ProcNetDev {
    fn short_name(&self) -> &str {
        self.direction.short_name()
    }

    fn operating_range(&self) -> i64 {
        self.max_utilization
    }

    async fn read(&self) -> Result<Option<f64>, MetricError> {
        let interface = self.interface().await?;
        let text = self.files.read(PROC_NET_DEV).await?;
        let bytes = interface_bytes(&text, &interface, self.direction).ok_or_else(|| {
            let reason = format!(
                "no counters of interface {interface:?}; set network_interface to one of those listed there"
            );
            MetricError::new(self.files.name(PROC_NET_DEV), reason)
        })?;
        Ok(self.meter.percent(self.files.clock().now(), bytes))
    }
}

/// `name: received-bytes` and, eight columns on, the bytes sent; there may be no space behind the colon.
fn interface_bytes(text: &str, interface: &str, direction: Direction) -> Option<u64> {
    let mut found = text.lines().filter_map(|line| line.rsplit_once(':'));
    let (_, counters) = found.find(|(name, _)| name.trim() == interface)?;
    let column = match direction {
        Direction::In => 0,
        Direction::Out => 8,
    };
    counters.split_ascii_whitespace().nth(column)?.parse().ok()
}

/// The interface of the default route with the least metric.
fn default_interface(routes: &str) -> Option<&str> {
    let parse = |line| {
        let fields: Vec<&str> = str::split_ascii_whitespace(line).collect();
        match fields[..] {
            [interface, "00000000", _, _, _, _, metric, "00000000", ..] => {
                Some((metric.parse::<u32>().ok()?, interface))
            }
            _ => None,
        }
    };
    let found = routes
        .lines()
        .filter_map(parse)
        .min_by_key(|(metric, _)| *metric)?;
    Some(found.1)
}
