//! Subscriptions in batches.

use std::time::Duration;

use futures::StreamExt;
use shardfleet::KinesisPosition;

use crate::support::{DEADLINE, World};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_have_the_size_that_was_asked_for() {
    let world = World::new(1).await;
    let receipts = world.put_many(0, "r", 25);
    let stream = world.reader("a").await.start_at(KinesisPosition::horizon());
    let stream = stream.build().expect("settings");
    let mut batches = stream.subscribe_batches(10).await.expect("subscribed");
    let mut sizes = Vec::new();
    let mut next = 0;
    while next < 25 {
        let batch = tokio::time::timeout(DEADLINE, batches.next())
            .await
            .expect("in time");
        let batch = batch.expect("not ended").expect("no error");
        sizes.push(batch.deliveries().len());
        assert!(batch.millis_behind_latest().is_some());
        for delivery in batch {
            assert_eq!(delivery.data, format!("r{next}").as_bytes());
            delivery.ack();
            next += 1;
        }
    }
    assert_eq!(sizes, [10, 10, 5]);
    assert!(batches.shutdown(Duration::from_secs(5)).await.is_clean());
    assert_eq!(
        world.lease(0).await.checkpoint.checkpoint_text(),
        receipts[24].sequence_number
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_size_that_makes_no_sense_is_refused() {
    let world = World::new(1).await;
    let stream = world.reader("a").await.build().expect("settings");
    for size in [0, 10_001] {
        let error = stream.subscribe_batches(size).await.expect_err("no such size");
        assert!(error.to_string().contains("batch_size"), "{error}");
    }
}
