//! From settings and surroundings to the metrics that are read.

use std::sync::Arc;

use shardfleet_core::worker_metrics::{MetricSource, NoSource, select_source};

use super::environment::CGROUP_V2;
use super::{
    BalancedMetric, CgroupMemory, CgroupV1Cpu, CgroupV2Cpu, Direction, EcsCpu, EcsEndpoint, EcsMemory,
    EcsNetwork, Files, FixedMetric, HostMemory, LinuxCpu, MetricsEnvironment, ProcNetDev, ProcessCpu,
    WorkerMetric, WorkerMetricsChoice, WorkerMetricsSettings,
};
use crate::clock::Clock;

/// Where figures are read, once that is known.
enum Source {
    Ecs(Arc<EcsEndpoint>),
    CgroupV2(Files),
    CgroupV1(Files),
    Host(Files),
    Process(Files),
    Fixed(f64),
}

/// The metrics to read; or why there are none, in words for an operator.
pub(super) async fn metrics_of(
    settings: &WorkerMetricsSettings,
    environment: &MetricsEnvironment,
    clock: &Arc<dyn Clock>,
) -> Result<Vec<Arc<dyn WorkerMetric>>, String> {
    let source = source_of(settings, environment, clock).await?;
    let metrics = settings.metrics.iter();
    Ok(metrics
        .filter_map(|metric| make(settings, &source, *metric))
        .collect())
}

async fn source_of(
    settings: &WorkerMetricsSettings,
    environment: &MetricsEnvironment,
    clock: &Arc<dyn Clock>,
) -> Result<Source, String> {
    let files = environment.files(clock);
    match settings.source {
        WorkerMetricsChoice::None => Err(why(NoSource::Disabled).to_owned()),
        WorkerMetricsChoice::Fixed(percent) => Ok(Source::Fixed(percent)),
        WorkerMetricsChoice::Host => Ok(Source::Host(files)),
        WorkerMetricsChoice::Process => Ok(Source::Process(files)),
        WorkerMetricsChoice::Ecs => ecs(settings, environment, clock),
        WorkerMetricsChoice::Container => Ok(if files.exists(CGROUP_V2).await.unwrap_or(false) {
            Source::CgroupV2(files)
        } else {
            Source::CgroupV1(files)
        }),
        WorkerMetricsChoice::Auto => match select_source(&environment.platform(clock).await, false) {
            MetricSource::EcsV4 => ecs(settings, environment, clock),
            MetricSource::CgroupV2 => Ok(Source::CgroupV2(files)),
            MetricSource::CgroupV1 => Ok(Source::CgroupV1(files)),
            MetricSource::ProcStat => Ok(Source::Host(files)),
            MetricSource::Nowhere(reason) => Err(why(reason).to_owned()),
        },
    }
}

fn ecs(
    settings: &WorkerMetricsSettings,
    environment: &MetricsEnvironment,
    clock: &Arc<dyn Clock>,
) -> Result<Source, String> {
    let uri = environment.ecs_v4_uri().ok_or_else(|| {
        "ECS_CONTAINER_METADATA_URI_V4 is not set; it is in tasks of Fargate 1.4.0 and of container agent 1.39.0, or later ones"
            .to_owned()
    })?;
    let endpoint = EcsEndpoint::new(uri, settings.capture_interval / 2, clock.clone());
    endpoint.map(Source::Ecs).map_err(|error| error.to_string())
}

fn make(
    settings: &WorkerMetricsSettings,
    source: &Source,
    metric: BalancedMetric,
) -> Option<Arc<dyn WorkerMetric>> {
    let max = i64::from(settings.max_utilization);
    Some(match (metric, source) {
        (_, Source::Fixed(percent)) => Arc::new(FixedMetric::new(metric.short_name(), max, *percent)),
        (BalancedMetric::Cpu, Source::Ecs(endpoint)) => Arc::new(EcsCpu::new(endpoint.clone(), max)),
        (BalancedMetric::Cpu, Source::CgroupV2(files)) => Arc::new(CgroupV2Cpu::new(files.another(), max)),
        (BalancedMetric::Cpu, Source::CgroupV1(files)) => Arc::new(CgroupV1Cpu::new(files.another(), max)),
        (BalancedMetric::Cpu, Source::Host(files)) => Arc::new(LinuxCpu::new(files.another(), max)),
        (BalancedMetric::Cpu, Source::Process(files)) => Arc::new(ProcessCpu::new(files.another(), max)),
        (BalancedMetric::Memory, Source::Ecs(endpoint)) => Arc::new(EcsMemory::new(endpoint.clone(), max)),
        (BalancedMetric::Memory, Source::CgroupV2(files)) => Arc::new(CgroupMemory::v2(files.another(), max)),
        (BalancedMetric::Memory, Source::CgroupV1(files)) => Arc::new(CgroupMemory::v1(files.another(), max)),
        (BalancedMetric::Memory, Source::Host(files)) => Arc::new(HostMemory::new(files.another(), max)),
        // Refused by the settings' own check.
        (BalancedMetric::Memory, Source::Process(_)) => return None,
        (BalancedMetric::NetworkIn, source) => network(settings, source, metric, Direction::In)?,
        (BalancedMetric::NetworkOut, source) => network(settings, source, metric, Direction::Out)?,
    })
}

fn network(
    settings: &WorkerMetricsSettings,
    source: &Source,
    metric: BalancedMetric,
    direction: Direction,
) -> Option<Arc<dyn WorkerMetric>> {
    let max = i64::from(settings.max_utilization);
    // Whoever names the metric without a bandwidth is refused by the settings' own check.
    let bandwidth = settings.bandwidth(metric)?;
    let interface = settings.network_interface.clone();
    Some(match source {
        Source::Ecs(endpoint) => Arc::new(EcsNetwork::new(endpoint.clone(), max, direction, bandwidth)),
        Source::CgroupV2(files) | Source::CgroupV1(files) | Source::Host(files) | Source::Process(files) => {
            Arc::new(ProcNetDev::new(
                files.another(),
                max,
                direction,
                interface,
                bandwidth,
            ))
        }
        Source::Fixed(percent) => Arc::new(FixedMetric::new(direction.short_name(), max, *percent)),
    })
}

fn why(reason: NoSource) -> &'static str {
    match reason {
        NoSource::Disabled => "the settings say so",
        NoSource::EcsWithoutV4 => {
            "this is an ECS task, but version 4 of its metadata endpoint is not offered, or the system is not Linux"
        }
        NoSource::NoCgroup => "this is a Kubernetes pod, but no cgroup is mounted at /sys/fs/cgroup",
        NoSource::NoProcStat => "this is an EC2 instance, but there is no /proc/stat",
        NoSource::UnknownPlatform => {
            "this is no ECS task, Kubernetes pod or EC2 instance; to measure all the same, set the source to host, container or process"
        }
    }
}
