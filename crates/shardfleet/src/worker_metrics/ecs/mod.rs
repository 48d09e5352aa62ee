//! CPU, memory and network of a container in Amazon ECS, from the task metadata endpoint, version 4, of the container agent.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use shardfleet_core::time::Moment;
use shardfleet_core::worker_metrics::{CPU, EcsStats, MEMORY, ecs_cpu_limit};

use self::documents::{ContainerDocument, ContainerLimits, StatsDocument, TaskDocument};
use super::http::Agent;
use super::network::{Direction, RateMeter};
use super::{MetricError, WorkerMetric, lock};
use crate::clock::Clock;

mod documents;

/// The endpoint of this container. Metrics that are read at the same time share one answer, a failed one too.
pub struct EcsEndpoint {
    agent: Agent,
    clock: Arc<dyn Clock>,
    answers_last: Duration,
    // Held across a question, so that those who come meanwhile share its answer.
    last: tokio::sync::Mutex<Last>,
}

#[derive(Default)]
struct Last {
    snapshot: Option<(Moment, Snapshot)>,
    /// Asked for until they are known, then never again.
    limits: Option<Arc<ContainerLimits>>,
}

/// What the endpoint said, all at once.
#[derive(Clone)]
struct Snapshot {
    at: Moment,
    stats: Result<Arc<StatsDocument>, MetricError>,
    limits: Result<Arc<ContainerLimits>, MetricError>,
}

impl EcsEndpoint {
    /// The endpoint at `uri`, the value of `ECS_CONTAINER_METADATA_URI_V4`. An answer serves all who ask within `answers_last`, half a capture interval.
    ///
    /// # Errors
    /// When `uri` is not plain HTTP to a loopback or link-local address.
    pub fn new(uri: &str, answers_last: Duration, clock: Arc<dyn Clock>) -> Result<Arc<Self>, MetricError> {
        Ok(Arc::new(Self {
            agent: Agent::new(uri)?,
            clock,
            answers_last,
            last: tokio::sync::Mutex::default(),
        }))
    }

    async fn snapshot(&self) -> Snapshot {
        let mut last = self.last.lock().await;
        if let Some((at, snapshot)) = &last.snapshot
            && self.clock.now().since(*at) < self.answers_last
        {
            return snapshot.clone();
        }
        let limits = async {
            match &last.limits {
                Some(limits) => Ok(limits.clone()),
                None => self.limits().await.map(Arc::new),
            }
        };
        let stats = async {
            // The agent has no figures during a container's first second, and says so by `null`.
            let document: Option<StatsDocument> = self.document("/stats").await?;
            let document =
                document.ok_or_else(|| self.missing("/stats", "everything: there are no figures yet"))?;
            Ok(Arc::new(document))
        };
        let (stats, limits) = futures::join!(stats, limits);
        let snapshot = Snapshot {
            at: self.clock.now(),
            stats,
            limits,
        };
        if let Ok(limits) = &snapshot.limits {
            last.limits = Some(limits.clone());
        }
        last.snapshot = Some((snapshot.at, snapshot.clone()));
        snapshot
    }

    async fn limits(&self) -> Result<ContainerLimits, MetricError> {
        let (container, task) = futures::join!(
            self.document::<Option<ContainerDocument>>(""),
            self.document::<Option<TaskDocument>>("/task"),
        );
        ContainerLimits::new(&container?.unwrap_or_default(), task?.unwrap_or_default())
            .map_err(|field| self.missing("/task", field))
    }

    async fn document<T: DeserializeOwned>(&self, path: &str) -> Result<T, MetricError> {
        let body = self.agent.get(&*self.clock, path).await?;
        serde_json::from_slice(&body).map_err(|error| {
            let reason = format!("the answer is not the JSON that was expected: {error}");
            MetricError::new(self.agent.uri(path), reason)
        })
    }

    fn missing(&self, path: &str, field: &str) -> MetricError {
        MetricError::new(self.agent.uri(path), format!("the answer lacks {field}"))
    }
}

/// CPU utilisation of the container in percent of its share of the task (`KCL: EcsCpuWorkerMetric`).
pub struct EcsCpu {
    endpoint: Arc<EcsEndpoint>,
    max_utilization: i64,
    earlier: Mutex<Option<(u64, u64)>>,
}

impl EcsCpu {
    /// Asks `endpoint`.
    pub fn new(endpoint: Arc<EcsEndpoint>, max_utilization: i64) -> Self {
        Self {
            endpoint,
            max_utilization,
            earlier: Mutex::default(),
        }
    }

    /// Engines may leave out the figures before. The Java KCL reads such a container as idle, for ever; we compare with what we were told last.
    fn complete(&self, mut stats: EcsStats) -> Option<EcsStats> {
        let now = stats.total_usage.zip(stats.system_usage)?;
        let earlier = lock(&self.earlier).replace(now);
        let absent = |value: Option<u64>| value.is_none_or(|value| value == 0);
        if absent(stats.previous_total_usage) && absent(stats.previous_system_usage) {
            let (total, system) = earlier.filter(|earlier| *earlier != now)?;
            stats.previous_total_usage = Some(total);
            stats.previous_system_usage = Some(system);
        }
        Some(stats)
    }
}

#[async_trait]
impl WorkerMetric for EcsCpu {
    fn short_name(&self) -> &str {
        CPU
    }

    fn operating_range(&self) -> i64 {
        self.max_utilization
    }

    async fn read(&self) -> Result<Option<f64>, MetricError> {
        let snapshot = self.endpoint.snapshot().await;
        let stats = snapshot.stats?.stats();
        let limits = snapshot.limits?;
        let missing = |field| Err(self.endpoint.missing("/stats", field));
        let (Some(_), Some(_)) = (stats.total_usage, stats.system_usage) else {
            return missing("cpu_stats.cpu_usage.total_usage or cpu_stats.system_cpu_usage");
        };
        let Some(online) = stats.online_cpus else {
            return missing("cpu_stats.online_cpus");
        };
        let limit = ecs_cpu_limit(&limits.task, &limits.docker_id, online);
        Ok(self.complete(stats).and_then(|stats| stats.cpu_percent(limit)))
    }
}

/// Memory utilisation of the container in percent of its limit, or of the task's.
pub struct EcsMemory {
    endpoint: Arc<EcsEndpoint>,
    max_utilization: i64,
}

impl EcsMemory {
    /// Asks `endpoint`.
    pub fn new(endpoint: Arc<EcsEndpoint>, max_utilization: i64) -> Self {
        Self {
            endpoint,
            max_utilization,
        }
    }
}

#[async_trait]
impl WorkerMetric for EcsMemory {
    fn short_name(&self) -> &str {
        MEMORY
    }

    fn operating_range(&self) -> i64 {
        self.max_utilization
    }

    async fn read(&self) -> Result<Option<f64>, MetricError> {
        let snapshot = self.endpoint.snapshot().await;
        let mut stats = snapshot.stats?.stats();
        // Without a limit of its own the engine says the machine's memory, or a number beyond all memory.
        let limits = [stats.memory_limit, snapshot.limits?.memory_bytes];
        stats.memory_limit = limits.into_iter().flatten().min();
        let percent = stats.memory_percent();
        percent.map(Some).ok_or_else(|| {
            self.endpoint
                .missing("/stats", "memory_stats.usage or memory_stats.limit")
        })
    }
}

/// Traffic of the container, all its interfaces together, in percent of a configured bandwidth.
pub struct EcsNetwork {
    endpoint: Arc<EcsEndpoint>,
    max_utilization: i64,
    direction: Direction,
    meter: RateMeter,
    /// When the engine took the figures of the last answer.
    read_at: Mutex<Option<String>>,
}

impl EcsNetwork {
    /// Asks `endpoint`; 100 % is `bandwidth_mb` mebibytes a second.
    pub fn new(
        endpoint: Arc<EcsEndpoint>,
        max_utilization: i64,
        direction: Direction,
        bandwidth_mb: f64,
    ) -> Self {
        Self {
            endpoint,
            max_utilization,
            direction,
            meter: RateMeter::new(bandwidth_mb),
            read_at: Mutex::default(),
        }
    }
}

#[async_trait]
impl WorkerMetric for EcsNetwork {
    fn short_name(&self) -> &str {
        self.direction.short_name()
    }

    fn operating_range(&self) -> i64 {
        self.max_utilization
    }

    async fn read(&self) -> Result<Option<f64>, MetricError> {
        let snapshot = self.endpoint.snapshot().await;
        let document = snapshot.stats?;
        let network = document.stats().network.ok_or_else(|| {
            let field = "networks, as it does in the network modes `host` and `none`";
            self.endpoint.missing("/stats", field)
        })?;
        if let Some(read_at) = document.read_at() {
            // The same figures once more would read as a pause, and the next ones as a burst.
            let earlier = lock(&self.read_at).replace(read_at.to_owned());
            if earlier.as_deref() == Some(read_at) {
                return Ok(None);
            }
        }
        let bytes = match self.direction {
            Direction::In => network.received,
            Direction::Out => network.sent,
        };
        Ok(self.meter.percent(snapshot.at, bytes))
    }
}
