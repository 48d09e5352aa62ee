//! Settings that make no sense, streams that are not there, endpoints where nobody listens.

use std::time::Duration;

use shardfleet::{AwsKinesis, ErrorKind, KinesisError, KinesisStream};

use crate::support::{World, quick, settings_of};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_problem_is_named_at_once() {
    let world = World::new(1).await;
    let builder = KinesisStream::builder("a stream", world.api().await)
        .application("an application")
        .worker_id(" ")
        .batch_size(10_001)
        .poll_interval(Duration::ZERO)
        .failover_time(Duration::from_secs(7200))
        .shard_sync_interval(Duration::from_millis(1))
        .open_deadline(Duration::from_millis(1))
        .unsettled_records_max(0)
        .unsettled_bytes_max(0)
        .memory_budget(1);
    let error = builder.build().expect_err("nothing of it makes sense");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let KinesisError::Settings(settings) = &error else {
        panic!("{error:?}")
    };
    let named: Vec<_> = settings.problems.iter().map(|p| p.setting.as_str()).collect();
    assert_eq!(
        named,
        [
            "stream",
            "application",
            "worker_id",
            "batch_size",
            "poll_interval",
            "failover_time",
            "shard_sync_interval",
            "open_deadline",
            "unsettled_records_max",
            "unsettled_bytes_max",
            "memory_budget"
        ]
    );
    let text = error.to_string();
    assert!(
        text.contains("batch_size: is 10001; 1 to 10,000 records"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_not_there_is_told_at_once() {
    let world = World::new(1).await;
    let stream = quick(KinesisStream::builder("no-such-stream", world.api().await))
        .open_deadline(Duration::from_secs(3600))
        .build()
        .expect("settings");
    let opened = tokio::time::timeout(Duration::from_secs(5), stream.subscribe()).await;
    let error = opened.expect("at once").expect_err("no stream");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.full_text().contains("no-such-stream"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_where_nobody_listens_is_named_when_opening_takes_too_long() {
    // A port that was free a moment ago.
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("address").port()
    };
    let api = AwsKinesis::new(&settings_of(&format!("http://127.0.0.1:{port}")).await);
    let stream = quick(KinesisStream::builder("orders", api))
        .open_deadline(Duration::from_secs(1))
        .build()
        .expect("settings");
    let error = stream.subscribe().await.expect_err("nobody listens");
    match &error {
        KinesisError::OpenDeadline {
            seconds, waiting_for, ..
        } => {
            assert_eq!(*seconds, 1);
            assert!(waiting_for.contains("DescribeStreamSummary"), "{waiting_for}");
            assert!(
                waiting_for.to_lowercase().contains("connection refused"),
                "{waiting_for}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}
