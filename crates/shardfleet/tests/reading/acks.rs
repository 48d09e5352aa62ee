//! Acks in any order, and checkpoints that never pass what is not acked.

use std::time::Duration;

use shardfleet::core::kpl::Aggregator;
use shardfleet::{Aggregates, Bytes, ErrorKind, ExtendedSequenceNumber, KinesisError, KinesisPosition};

use crate::support::{STREAM, World, acked, deliveries, error, item, numbered, open, sequence, text};

const SHORT: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_never_passes_a_record_that_is_not_acked() {
    let world = World::new(1).await;
    let receipts = world.put_many(0, "r", 40);
    let mut subscription = world.at_horizon("a").await;
    let mut held: Vec<_> = deliveries(&mut subscription, 40)
        .await
        .into_iter()
        .map(Some)
        .collect();
    let mut ack = |i: usize| held[i].take().expect("once").ack();
    // Backwards, but for two.
    for i in (0..40).rev().filter(|i| *i != 7 && *i != 20) {
        ack(i);
    }
    world.until_checkpoint(0, &receipts[6].sequence_number).await;
    ack(7);
    world.until_checkpoint(0, &receipts[19].sequence_number).await;
    let report = subscription.shutdown(Duration::from_millis(100)).await;
    assert_eq!(report.shards[0].unsettled, 1);
    assert_eq!(
        world.lease(0).await.checkpoint.checkpoint_text(),
        receipts[19].sequence_number
    );
    // What comes again begins with the one that was not acked.
    let mut subscription = world.resumed("a").await;
    assert_eq!(acked(&mut subscription, 20).await, numbered("r", 20..40));
    assert!(subscription.shutdown(SHORT).await.is_clean());
    let mut subscription = world.resumed("a").await;
    world.assert_quiet(&mut subscription).await;
}

/// Puts `prefix0` and so on in one Kinesis record.
fn put_aggregate(world: &World, prefix: &str, count: usize) -> shardfleet_local::PutReceipt {
    let mut aggregator = Aggregator::default();
    for i in 0..count {
        let data = Bytes::from(format!("{prefix}{i}"));
        assert_eq!(aggregator.add("k", Some(0), data).expect("added"), None);
    }
    let record = aggregator.finish().expect("a record");
    world.controls.put_at(STREAM, "k", 0, record.data).expect("put")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_inside_an_aggregate_goes_on_at_the_right_user_record() {
    let world = World::new(1).await;
    let receipt = put_aggregate(&world, "u", 10);
    world.put(0, "after");
    let mut subscription = world.at_horizon("a").await;
    let all = deliveries(&mut subscription, 11).await;
    for (i, delivery) in all.into_iter().enumerate() {
        assert_eq!(delivery.is_aggregated, i < 10);
        if i < 4 {
            delivery.ack();
        }
    }
    let report = subscription.shutdown(Duration::from_millis(50)).await;
    assert_eq!(report.shards[0].unsettled, 7);
    assert_eq!(
        world.lease(0).await.checkpoint,
        ExtendedSequenceNumber::At(sequence(&receipt), 3)
    );
    let mut subscription = world.resumed("a").await;
    assert_eq!(acked(&mut subscription, 6).await, numbered("u", 4..10));
    assert_eq!(acked(&mut subscription, 1).await, ["after"]);
    assert!(subscription.shutdown(SHORT).await.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aggregates_that_are_refused_are_told_and_reading_goes_on() {
    let world = World::new(1).await;
    world.put(0, "before");
    let receipt = put_aggregate(&world, "u", 3);
    world.put(0, "after");
    let builder = world.reader("a").await.start_at(KinesisPosition::horizon());
    let mut subscription = open(builder.aggregated(Aggregates::Refuse).batch_size(1)).await;
    assert_eq!(acked(&mut subscription, 1).await, ["before"]);
    let refused = error(&mut subscription).await;
    assert_eq!(refused.kind(), ErrorKind::Data);
    match refused {
        KinesisError::AggregatedRecord { sequence_number, .. } => {
            assert_eq!(sequence_number, sequence(&receipt));
        }
        other => panic!("{other:?}"),
    }
    match item(&mut subscription).await {
        Some(Ok(delivery)) => {
            assert_eq!(text(&delivery), "after");
            delivery.ack();
        }
        other => panic!("{other:?}"),
    }
    assert!(subscription.shutdown(SHORT).await.is_clean());
}
