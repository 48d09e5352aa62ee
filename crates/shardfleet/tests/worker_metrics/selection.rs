//! Which source is chosen where.

use std::time::Duration;

use shardfleet::clock::SystemClock;
use shardfleet::worker_metrics::{
    BalancedMetric, MetricsEnvironment, WorkerMetricsChoice, WorkerMetricsHandle, WorkerMetricsSampler,
    WorkerMetricsSettings,
};
use shardfleet::{Timestamp, WorkerId};
use tokio_util::sync::CancellationToken;

use crate::support::{Answer, FakeAgent, Machine, assert_near, soon, until};

const TOKEN: &str = "var/run/secrets/kubernetes.io/serviceaccount/token";

fn start(choice: WorkerMetricsChoice, environment: MetricsEnvironment) -> WorkerMetricsHandle {
    let mut settings = WorkerMetricsSettings::from_source(choice);
    settings.capture_interval = Duration::from_millis(100);
    // Ends with the test's runtime.
    WorkerMetricsSampler::start_in(
        &settings,
        environment,
        SystemClock::shared(),
        CancellationToken::new(),
    )
    .expect("good settings")
}

/// A machine of which everything can be read: all sources but ECS.
fn well_equipped() -> Machine {
    let machine = Machine::new();
    machine
        .write("proc/stat", "cpu  1 1 1 1 1\n")
        .write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
        .write("sys/fs/cgroup/cpu.stat", "usage_usec 5\n")
        .write("sys/fs/cgroup/cpu.max", "100000 100000\n");
    machine
}

/// Moves the machine's own counters on: busy by 80 % of the ticks.
fn busy(machine: &Machine, round: &mut u64) {
    *round += 1;
    machine.write(
        "proc/stat",
        &format!("cpu  {} 1 1 {} 1\n", 80 * *round, 20 * *round),
    );
}

fn nothing_is_measured(handle: &WorkerMetricsHandle) -> bool {
    let row = handle.next_row(&WorkerId::new("w"), Timestamp::from_millis(1_764_550_000_000));
    row.is_default() && handle.latest_cpu().is_none()
}

#[tokio::test]
async fn an_ecs_task_comes_first() {
    let agent = FakeAgent::of("fargate").await;
    let machine = well_equipped();
    machine
        .write(TOKEN, "secret")
        .write("sys/class/dmi/id/sys_vendor", "Amazon EC2\n");
    for choice in [WorkerMetricsChoice::Auto, WorkerMetricsChoice::Ecs] {
        let environment = MetricsEnvironment {
            ecs_metadata_uri_v4: Some(format!(" {} ", agent.uri)),
            instance_metadata_uri: agent.origin(),
            ..machine.environment()
        };
        let handle = start(choice, environment);
        soon("figures", handle.first_figures()).await;
        assert_near(handle.latest_cpu(), 25.0);
    }
    assert!(
        agent
            .requests()
            .iter()
            .all(|request| !request.contains("/latest/")),
        "no instance is asked from within a container"
    );
}

#[tokio::test]
async fn an_ecs_task_that_cannot_be_measured_ends_the_search() {
    let machine = well_equipped();
    for environment in [
        MetricsEnvironment {
            ecs_metadata_uri: Some("http://169.254.170.2/v3/x".to_owned()),
            ..machine.environment()
        },
        MetricsEnvironment {
            ecs_metadata_uri_v4: Some("http://169.254.170.2/v4/x".to_owned()),
            is_linux: false,
            ..machine.environment()
        },
        // An address that no agent has.
        MetricsEnvironment {
            ecs_metadata_uri_v4: Some("http://agent.example.com/v4/x".to_owned()),
            ..machine.environment()
        },
    ] {
        let handle = start(WorkerMetricsChoice::Auto, environment);
        soon("the search", handle.first_figures()).await;
        assert!(nothing_is_measured(&handle));
    }
}

#[tokio::test]
async fn a_pod_is_measured_by_its_cgroup() {
    let machine = well_equipped();
    machine.write(TOKEN, "secret");
    let handle = start(WorkerMetricsChoice::Auto, machine.environment());
    let mut used = 5;
    until("the pod's CPU", || {
        used += 1;
        machine.write("sys/fs/cgroup/cpu.stat", &format!("usage_usec {used}\n"));
        handle.latest_cpu().is_some()
    })
    .await;
    assert!(
        handle.latest_cpu().is_none_or(|cpu| cpu < 50.0),
        "the pod's few microseconds"
    );

    let machine = Machine::new();
    machine
        .write(TOKEN, "secret")
        .write("proc/stat", "cpu  1 1 1 1 1\n");
    let handle = start(WorkerMetricsChoice::Auto, machine.environment());
    soon("the search", handle.first_figures()).await;
    assert!(nothing_is_measured(&handle), "no cgroup, no figures");
}

#[tokio::test]
async fn version_1_is_read_where_version_2_is_not_mounted() {
    let machine = Machine::new();
    machine
        .write(TOKEN, "secret")
        .write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n")
        .write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    for choice in [WorkerMetricsChoice::Auto, WorkerMetricsChoice::Container] {
        let handle = start(choice, machine.environment());
        let mut used = 5;
        until("the container's CPU", || {
            used += 1000;
            machine.write("sys/fs/cgroup/cpu/cpuacct.usage", &format!("{used}\n"));
            handle.latest_cpu().is_some()
        })
        .await;
    }
}

#[tokio::test]
async fn an_instance_is_measured_once_its_metadata_service_has_answered() {
    for dmi in [
        ("sys/class/dmi/id/sys_vendor", "Amazon EC2\n"),
        ("sys/class/dmi/id/bios_version", "4.11.amazon\n"),
    ] {
        let service = FakeAgent::start().await;
        service
            .tell_absolute("/latest/api/token", Answer::Json("AQAEAtoken==".to_owned()))
            .tell_absolute(
                "/latest/dynamic/instance-identity/document",
                Answer::Json("{\"region\": \"eu-west-1\"}".to_owned()),
            );
        let machine = well_equipped();
        machine.write(dmi.0, dmi.1);
        let environment = MetricsEnvironment {
            instance_metadata_uri: service.origin(),
            ..machine.environment()
        };
        let handle = start(WorkerMetricsChoice::Auto, environment);
        let mut round = 0;
        until("the machine's CPU", || {
            busy(&machine, &mut round);
            handle.latest_cpu().is_some_and(|cpu| cpu > 50.0)
        })
        .await;
        let requests = service.requests();
        assert!(
            requests[0].starts_with("PUT /latest/api/token ")
                && requests[0].contains("x-aws-ec2-metadata-token-ttl-seconds: 600")
        );
        assert!(requests[1].contains("x-aws-ec2-metadata-token: AQAEAtoken=="));
    }
}

#[tokio::test]
async fn a_silent_metadata_service_delays_no_start() {
    let service = FakeAgent::start().await;
    service.tell_absolute("/latest/api/token", Answer::Stall(Vec::new()));
    let machine = well_equipped();
    machine.write("sys/class/dmi/id/sys_vendor", "Amazon EC2\n");
    let environment = MetricsEnvironment {
        instance_metadata_uri: service.origin(),
        ..machine.environment()
    };
    let stop = CancellationToken::new();
    let settings = WorkerMetricsSettings::default();
    let handle = WorkerMetricsSampler::start_in(&settings, environment, SystemClock::shared(), stop.clone())
        .expect("good settings");
    assert!(nothing_is_measured(&handle), "a row can be made at once");
    until("the question", || !service.requests().is_empty()).await;
    stop.cancel();
    soon("the end", handle.ended()).await;
}

#[tokio::test]
async fn elsewhere_nobody_is_asked_and_nothing_measured() {
    let service = FakeAgent::start().await;
    let machine = well_equipped();
    machine.write("sys/class/dmi/id/sys_vendor", "QEMU\n");
    let environment = || MetricsEnvironment {
        instance_metadata_uri: service.origin(),
        ..machine.environment()
    };
    let not_linux = MetricsEnvironment {
        is_linux: false,
        ..environment()
    };
    let cases = [
        (WorkerMetricsChoice::Auto, environment()),
        (WorkerMetricsChoice::Auto, not_linux),
        (WorkerMetricsChoice::None, environment()),
        (WorkerMetricsChoice::Ecs, environment()),
    ];
    for (choice, environment) in cases {
        let handle = start(choice, environment);
        soon("the search", handle.first_figures()).await;
        assert!(nothing_is_measured(&handle), "{choice:?}");
    }
    assert!(service.requests().is_empty());
}

#[tokio::test]
async fn a_source_can_be_named() {
    let machine = well_equipped();
    let handle = start(WorkerMetricsChoice::Host, machine.environment());
    let mut round = 0;
    until("the machine's CPU", || {
        busy(&machine, &mut round);
        handle.latest_cpu().is_some_and(|cpu| cpu > 50.0)
    })
    .await;
}

#[tokio::test]
async fn every_metric_that_is_named_is_reported() {
    let agent = FakeAgent::of("ec2").await;
    let mut settings = WorkerMetricsSettings::from_source(WorkerMetricsChoice::Ecs);
    settings.capture_interval = Duration::from_millis(100);
    settings.max_utilization = 85;
    settings.metrics = vec![
        BalancedMetric::Cpu,
        BalancedMetric::Memory,
        BalancedMetric::NetworkIn,
        BalancedMetric::NetworkOut,
    ];
    settings.network_in_bandwidth_mb = Some(100.0);
    settings.network_out_bandwidth_mb = Some(50.0);
    let environment = MetricsEnvironment {
        ecs_metadata_uri_v4: Some(agent.uri.clone()),
        ..Machine::new().environment()
    };
    let handle = WorkerMetricsSampler::start_in(
        &settings,
        environment,
        SystemClock::shared(),
        CancellationToken::new(),
    )
    .expect("good settings");
    let stats: serde_json::Value =
        serde_json::from_str(&crate::support::document("ec2-stats")).expect("JSON");
    let mut round = 0;
    until("all four", || {
        let mut stats = stats.clone();
        round += 1;
        stats["read"] = serde_json::json!(round.to_string());
        agent.tell("/stats", Answer::Json(stats.to_string()));
        ["C", "M", "NI", "NO"]
            .iter()
            .all(|name| handle.latest(name).is_some())
    })
    .await;
    let row = handle.next_row(&WorkerId::new("w"), Timestamp::from_millis(1));
    let names: Vec<_> = row.averages.keys().map(String::as_str).collect();
    assert_eq!(names, ["C", "M", "NI", "NO"]);
    assert!(row.operating_range.values().all(|range| *range == [85]));
}
