//! Figures of containers in ECS, from documents as the agent gives them.

use std::time::Duration;

use serde_json::{Value, json};
use shardfleet::clock::SystemClock;
use shardfleet::worker_metrics::{Direction, EcsCpu, EcsEndpoint, EcsMemory, EcsNetwork, WorkerMetric};

use crate::support::{Answer, FakeAgent, StillClock, assert_near, document};

/// A document with one field changed; `null` removes nothing but says nothing either.
fn changed(name: &str, pointer: &str, value: Value) -> Answer {
    let mut json: Value = serde_json::from_str(&document(name)).expect("JSON");
    *json.pointer_mut(pointer).expect("such a field") = value;
    Answer::Json(json.to_string())
}

#[tokio::test]
async fn cpu_is_a_share_of_what_the_container_may_use() {
    for (name, expected) in [
        // 0.125 CPUs; the task has half a CPU, and no container has shares of it.
        ("fargate", 25.0),
        // 0.8 CPUs; 1,024 of 1,280 shares of two CPUs are 1.6.
        ("ec2", 50.0),
        // 1 CPU; half of the shares of the machine's four.
        ("ec2-bridge", 50.0),
    ] {
        let agent = FakeAgent::of(name).await;
        let metric = EcsCpu::new(agent.endpoint(), 100);
        assert_eq!((metric.short_name(), metric.operating_range()), ("C", 100));
        assert_near(metric.read().await.expect(name), expected);
        assert_near(metric.read().await.expect(name), expected);
        assert_eq!(
            (agent.asked("/task"), agent.asked("")),
            (1, 1),
            "limits are asked for once"
        );
        assert_eq!(agent.asked("/stats"), 2);
    }
}

#[tokio::test]
async fn fargate_containers_with_the_least_shares_and_with_shares_of_their_own() {
    let agent = FakeAgent::of("fargate").await;
    // The agent says 2 for a container without shares; the pause container has none.
    agent.tell(
        "/task",
        changed("fargate-task", "/Containers/0/Limits/CPU", json!(2)),
    );
    assert_near(
        EcsCpu::new(agent.endpoint(), 100)
            .read()
            .await
            .expect("all of it"),
        25.0,
    );
    let mut task: Value = serde_json::from_str(&document("fargate-task")).expect("JSON");
    task["Containers"][0]["Limits"]["CPU"] = json!(128);
    task["Containers"][1]["Limits"]["CPU"] = json!(384);
    agent.tell("/task", Answer::Json(task.to_string()));
    assert_near(
        EcsCpu::new(agent.endpoint(), 100)
            .read()
            .await
            .expect("a quarter"),
        100.0,
    );
}

#[tokio::test]
async fn no_shares_at_all_are_no_nan() {
    let agent = FakeAgent::of("ec2").await;
    let mut task: Value = serde_json::from_str(&document("ec2-task")).expect("JSON");
    for container in task["Containers"].as_array_mut().expect("a list") {
        container["Limits"]["CPU"] = json!(0);
    }
    agent.tell("/task", Answer::Json(task.to_string()));
    assert_near(
        EcsCpu::new(agent.endpoint(), 100)
            .read()
            .await
            .expect("all of the task"),
        40.0,
    );
    // Nor is a task that lists no container, or not this one.
    task["Containers"] = json!([]);
    agent.tell("/task", Answer::Json(task.to_string()));
    assert_near(
        EcsCpu::new(agent.endpoint(), 100)
            .read()
            .await
            .expect("all of the task"),
        40.0,
    );
}

#[tokio::test]
async fn a_containers_first_second_is_no_figure_and_then_we_compare_ourselves() {
    let agent = FakeAgent::of("fargate").await;
    let first = |total: u64, system: u64| {
        let mut json: Value = serde_json::from_str(&document("first-second-stats")).expect("JSON");
        json["cpu_stats"]["cpu_usage"]["total_usage"] = json!(total);
        json["cpu_stats"]["system_cpu_usage"] = json!(system);
        Answer::Json(json.to_string())
    };
    let metric = EcsCpu::new(agent.endpoint(), 100);
    agent.tell("/stats", Answer::Json("null".to_owned()));
    let error = metric
        .read()
        .await
        .expect_err("the agent has none yet")
        .to_string();
    assert!(error.contains("there are no figures yet"), "{error}");
    agent.tell("/stats", first(120_000_000, 900_000_000_000));
    assert_eq!(metric.read().await, Ok(None));
    assert_eq!(metric.read().await, Ok(None), "the same figures once more");
    agent.tell("/stats", first(370_000_000, 902_000_000_000));
    assert_near(
        metric.read().await.expect("a quarter of a CPU of half a one"),
        50.0,
    );
}

#[tokio::test]
async fn what_a_document_lacks_is_named() {
    let agent = FakeAgent::of("fargate").await;
    let cases = [
        ("/cpu_stats", "cpu_stats.cpu_usage.total_usage"),
        ("/cpu_stats/cpu_usage", "cpu_stats.cpu_usage.total_usage"),
        ("/cpu_stats/system_cpu_usage", "cpu_stats.system_cpu_usage"),
    ];
    for (pointer, named) in cases {
        agent.tell("/stats", changed("fargate-stats", pointer, Value::Null));
        let error = EcsCpu::new(agent.endpoint(), 100)
            .read()
            .await
            .expect_err(pointer);
        assert!(
            error.what.ends_with("/stats") && error.reason.contains(named),
            "{error}"
        );
    }
    let mut stats: Value = serde_json::from_str(&document("fargate-stats")).expect("JSON");
    stats["cpu_stats"]["online_cpus"] = json!(0);
    agent.tell("/stats", Answer::Json(stats.to_string()));
    let metric = EcsCpu::new(agent.endpoint(), 100);
    assert_near(metric.read().await.expect("counted by their counters"), 25.0);
    stats["cpu_stats"]["cpu_usage"]["percpu_usage"] = Value::Null;
    agent.tell("/stats", Answer::Json(stats.to_string()));
    let error = metric
        .read()
        .await
        .expect_err("nothing to count them by")
        .to_string();
    assert!(error.contains("cpu_stats.online_cpus"), "{error}");

    for (path, name, pointer, named) in [
        ("", "fargate-container", "/DockerId", "DockerId"),
        ("/task", "fargate-task", "/Containers", "Containers"),
    ] {
        let agent = FakeAgent::of("fargate").await;
        agent.tell(path, changed(name, pointer, Value::Null));
        let error = EcsCpu::new(agent.endpoint(), 100)
            .read()
            .await
            .expect_err(named)
            .to_string();
        assert!(error.contains(named), "{error}");
    }
}

#[tokio::test]
async fn memory_is_a_share_of_the_containers_limit_or_the_tasks() {
    for (name, expected) in [
        // 384 MiB without inactive files; the engine's limit is beyond all memory, the task's is 1 GiB.
        ("fargate", 37.5),
        // 768 MiB of 2 GiB.
        ("ec2", 37.5),
        // 300 MB of the machine's 16 GB: neither the container nor the task has a limit.
        ("ec2-bridge", 1.875),
    ] {
        let agent = FakeAgent::of(name).await;
        let metric = EcsMemory::new(agent.endpoint(), 100);
        assert_eq!(metric.short_name(), "M");
        assert_near(metric.read().await.expect(name), expected);
    }
    let agent = FakeAgent::of("fargate").await;
    agent.tell("/stats", changed("fargate-stats", "/memory_stats", json!({})));
    let error = EcsMemory::new(agent.endpoint(), 100)
        .read()
        .await
        .expect_err("empty")
        .to_string();
    assert!(error.contains("memory_stats.usage"), "{error}");
}

#[tokio::test]
async fn traffic_is_a_share_of_the_configured_bandwidth() {
    let agent = FakeAgent::of("ec2").await;
    let clock = std::sync::Arc::new(StillClock::default());
    let endpoint = EcsEndpoint::new(&agent.uri, Duration::ZERO, clock.clone()).expect("a neighbour");
    let tell = |received: u64, sent: u64, read: &str| {
        let mut stats: Value = serde_json::from_str(&document("ec2-stats")).expect("JSON");
        stats["read"] = json!(read);
        stats["networks"] = json!({
            "eth0": {"rx_bytes": received, "tx_bytes": 0},
            "eth1": {"rx_bytes": 7, "tx_bytes": sent},
        });
        agent.tell("/stats", Answer::Json(stats.to_string()));
    };
    let received = EcsNetwork::new(endpoint.clone(), 100, Direction::In, 4.0);
    let sent = EcsNetwork::new(endpoint, 100, Direction::Out, 4.0);
    assert_eq!((received.short_name(), sent.short_name()), ("NI", "NO"));
    tell(0, 0, "t0");
    assert_eq!(
        (received.read().await, sent.read().await),
        (Ok(None), Ok(None)),
        "nothing to compare with"
    );
    clock.pass(Duration::from_secs(1));
    assert_eq!(received.read().await, Ok(None), "the agent has no newer figures");
    clock.pass(Duration::from_secs(1));
    tell(2 << 20, 16 << 20, "t2");
    assert_near(received.read().await.expect("1 MiB/s"), 25.0);
    assert_near(sent.read().await.expect("8 MiB/s"), 100.0);

    agent.tell("/stats", changed("ec2-stats", "/networks", Value::Null));
    let error = received.read().await.expect_err("the host's network").to_string();
    assert!(error.contains("networks"), "{error}");
}

#[tokio::test]
async fn metrics_read_together_share_one_answer() {
    let agent = FakeAgent::of("ec2").await;
    let endpoint = EcsEndpoint::new(&agent.uri, Duration::from_secs(600), SystemClock::shared());
    let endpoint = endpoint.expect("a neighbour");
    let cpu = EcsCpu::new(endpoint.clone(), 100);
    let memory = EcsMemory::new(endpoint.clone(), 100);
    let network = EcsNetwork::new(endpoint, 100, Direction::In, 1.0);
    let (cpu, memory, network) = futures::join!(cpu.read(), memory.read(), network.read());
    assert_near(cpu.expect("cpu"), 50.0);
    assert_near(memory.expect("memory"), 37.5);
    assert_eq!(network, Ok(None));
    assert_eq!((agent.asked("/stats"), agent.asked("/task")), (1, 1));
}
