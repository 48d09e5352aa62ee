//! An agent that fails in every way it can.

use std::sync::Arc;
use std::time::Duration;

use shardfleet::clock::SystemClock;
use shardfleet::worker_metrics::{
    EcsCpu, EcsEndpoint, EcsMemory, HostMemory, WorkerMetric, WorkerMetricsSampler,
};
use shardfleet::{Timestamp, WorkerId};
use tokio_util::sync::CancellationToken;

use crate::support::{Answer, FakeAgent, Machine, assert_near, document, soon, until};

/// The reason for which a reading fails while `/stats` is answered so; it succeeds once the agent is well again.
async fn reason(answer: Answer) -> String {
    let agent = FakeAgent::of("fargate").await;
    let metric = EcsCpu::new(agent.endpoint(), 100);
    agent.tell("/stats", answer);
    let error = soon("a reading", metric.read())
        .await
        .expect_err("the agent is ill");
    assert!(error.what.ends_with("/stats"), "{error}");
    agent.tell("/stats", Answer::Json(document("fargate-stats")));
    assert_near(metric.read().await.expect("the agent is well"), 25.0);
    error.reason
}

#[tokio::test]
async fn every_fault_is_told_apart_and_passes() {
    let json = document("fargate-stats");
    let half = &json[..json.len() / 2];
    let head = |length: usize| format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
    let cases = [
        (Answer::Status(500), "the answer is 500"),
        (Answer::Status(429), "the answer is 429"),
        (Answer::Status(302), "the answer is 302"),
        (Answer::Status(204), "the answer is 204"),
        (
            Answer::Json(half.to_owned()),
            "the answer is not the JSON that was expected: EOF",
        ),
        (
            Answer::Json("[1, 2]".to_owned()),
            "the answer is not the JSON that was expected",
        ),
        (
            Answer::Json(String::new()),
            "the answer is not the JSON that was expected",
        ),
        (
            Answer::Json("[".repeat(100_000)),
            "the answer is not the JSON that was expected",
        ),
        (
            Answer::Json(json.replace("912402000000000", "-5")),
            "the answer is not the JSON that was expected",
        ),
        (
            Answer::Raw([head(json.len()).as_bytes(), half.as_bytes()].concat()),
            "end of file before message length reached",
        ),
        (
            Answer::Raw(b"\x16\x03\x01\x00\xffgarbage\r\n\r\n".to_vec()),
            "HTTP",
        ),
        (Answer::Raw(Vec::new()), "before message completed"),
        (Answer::Endless, "the answer is longer than 1048576 bytes"),
        (
            Answer::Raw(head(1 << 40).into_bytes()),
            "the answer is longer than 1048576 bytes",
        ),
    ];
    for (answer, expected) in cases {
        let name: String = format!("{answer:?}").chars().take(60).collect();
        let reason = reason(answer).await;
        assert!(
            reason.contains(expected),
            "{name}: {reason:?} does not contain {expected:?}"
        );
    }
}

#[tokio::test]
async fn an_agent_that_hangs_is_given_two_seconds() {
    let json = document("fargate-stats");
    let start = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{{", json.len());
    let hung = [
        Answer::Stall(Vec::new()),
        Answer::Stall(start.into_bytes()),
        Answer::Stall(b"HTTP/1.1 200 OK\r\nX-Slow:".to_vec()),
        Answer::Drip,
    ];
    let all = futures::future::join_all(hung.map(reason)).await;
    assert_eq!(all, vec!["no answer within 2 s"; 4]);
}

#[tokio::test]
async fn an_answer_in_chunks_is_read() {
    let agent = FakeAgent::of("fargate").await;
    let json = document("fargate-stats");
    let (first, second) = json.split_at(300);
    let body = format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n",
        first.len(),
        second.len()
    );
    agent.tell("/stats", Answer::Raw(body.into_bytes()));
    assert_near(
        EcsCpu::new(agent.endpoint(), 100).read().await.expect("chunks"),
        25.0,
    );
}

#[tokio::test]
async fn nobody_listens() {
    let endpoint = EcsEndpoint::new("http://127.0.0.1:1/v4/x", Duration::ZERO, SystemClock::shared());
    let metric = EcsCpu::new(endpoint.expect("a neighbour"), 100);
    let error = metric.read().await.expect_err("nobody").to_string();
    assert!(error.contains("connecting failed"), "{error}");
}

#[tokio::test]
async fn limits_are_asked_for_until_they_are_known() {
    let agent = FakeAgent::of("fargate").await;
    let metric = EcsCpu::new(agent.endpoint(), 100);
    agent.tell("/task", Answer::Status(503));
    for _ in 0..3 {
        let error = metric.read().await.expect_err("no limits");
        assert!(error.what.ends_with("/task"), "{error}");
    }
    agent.tell("/task", Answer::Json(document("fargate-task")));
    assert_near(metric.read().await.expect("limits"), 25.0);
    agent.tell("/task", Answer::Status(503));
    assert_near(metric.read().await.expect("limits are known"), 25.0);
    assert_eq!(agent.asked("/task"), 4);
}

#[tokio::test]
async fn a_hung_agent_delays_nothing_else() {
    let agent = FakeAgent::of("fargate").await;
    for path in ["", "/task", "/stats"] {
        agent.tell(path, Answer::Stall(Vec::new()));
    }
    let machine = Machine::new();
    machine.write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 250 kB\n");
    let metrics: Vec<Arc<dyn WorkerMetric>> = vec![
        Arc::new(EcsCpu::new(agent.endpoint(), 100)),
        Arc::new(HostMemory::new(machine.files(), 100)),
    ];
    let stop = CancellationToken::new();
    let handle = WorkerMetricsSampler::start_with(
        metrics,
        Duration::from_millis(100),
        SystemClock::shared(),
        stop.clone(),
    );
    until("memory", || handle.latest("M").is_some()).await;
    let (id, now) = (WorkerId::new("w"), Timestamp::from_millis(1_764_550_000_000));
    let row = handle.next_row(&id, now);
    assert_eq!(row.averages.get("M"), Some(&vec![75.0]));
    assert!(!row.averages.contains_key("C") && !row.is_failing(), "{row:?}");
    assert_eq!(handle.latest_cpu(), None);

    // It hangs still, and a stop does not wait for it.
    until("a second question", || agent.asked("/stats") >= 2).await;
    stop.cancel();
    soon("the end", handle.ended()).await;
}

#[tokio::test]
async fn the_failure_of_one_answer_is_shared_too() {
    let agent = FakeAgent::of("fargate").await;
    agent.tell("/stats", Answer::Stall(Vec::new()));
    let endpoint = EcsEndpoint::new(&agent.uri, Duration::from_secs(600), SystemClock::shared());
    let endpoint = endpoint.expect("a neighbour");
    let cpu = EcsCpu::new(endpoint.clone(), 100);
    let memory = EcsMemory::new(endpoint, 100);
    let (cpu, memory) = futures::join!(cpu.read(), memory.read());
    assert_eq!(cpu.expect_err("hung"), memory.expect_err("hung"));
    assert_eq!(agent.asked("/stats"), 1);
}
