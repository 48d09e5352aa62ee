//! Reads that fail: ten in a row are borne, eleven stop the reader, and the shard is read on all the same.

use std::time::Duration;

use shardfleet::{FleetSettings, KinesisError, KinesisPosition, Subscription};
use shardfleet_local::{FaultAction, FaultRule};

use crate::support::{FastClock, World, acked, delivery, error, numbered, open, text, until};

/// A second's wait takes a twentieth.
async fn subscribe(world: &World, shard_sync: Duration) -> Subscription {
    let builder = world.reader("a").await.start_at(KinesisPosition::horizon());
    // These shards stand still on purpose.
    let mut fleet = FleetSettings::default();
    fleet.stall_warning_after = Duration::from_hours(1);
    let builder = builder
        .fleet(fleet)
        .failover_time(Duration::from_secs(60))
        .shard_sync_interval(shard_sync);
    open(builder.clock(FastClock::shared(20))).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_failures_are_told_and_reading_goes_on_with_the_same_iterator() {
    let world = World::new(1).await;
    world.put_many(0, "r", 2);
    let fault = FaultRule::new("GetRecords", FaultAction::ServerError);
    world.controls.add_fault(fault.times(10));
    let mut subscription = subscribe(&world, Duration::from_secs(60)).await;
    for n in 1..=10 {
        match error(&mut subscription).await {
            KinesisError::Read { attempt, .. } => assert_eq!(attempt, n),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(acked(&mut subscription, 2).await, numbered("r", 0..2));
    assert_eq!(world.controls.calls("GetShardIterator"), 1);
    assert!(world.controls.calls("GetRecords") >= 11);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eleven_failures_give_the_lease_back_until_shards_are_listed_again() {
    let world = World::new(1).await;
    let receipts = world.put_many(0, "r", 3);
    let mut subscription = subscribe(&world, Duration::from_secs(60)).await;
    assert_eq!(acked(&mut subscription, 2).await, numbered("r", 0..2));
    let held = delivery(&mut subscription).await;
    let fault = FaultRule::new("GetRecords", FaultAction::ServerError);
    world.controls.add_fault(fault.times(11));
    let mut reads = 0;
    let failures = loop {
        match error(&mut subscription).await {
            KinesisError::Read { .. } => reads += 1,
            KinesisError::ReaderStopped { failures, .. } => break failures,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((reads, failures), (11, 11));
    // The reader waits a while for what was handed out, which here never comes.
    until("the lease to be free", || async {
        world.lease(0).await.owner.is_none()
    })
    .await;
    assert_eq!(
        world.lease(0).await.checkpoint.checkpoint_text(),
        receipts[1].sequence_number
    );
    held.ack();
    let again = delivery(&mut subscription).await;
    assert_eq!(text(&again), "r2");
    assert!(world.lease(0).await.owner.is_some());
    again.ack();
    world.until_checkpoint(0, &receipts[2].sequence_number).await;
}
