//! Workers that die, and workers that cannot reach the lease store.

use std::sync::Arc;
use std::time::Duration;

use shardfleet::clock::{Clock, SystemClock};
use shardfleet::store::{DynamoDbLeaseStore, LeaseStore, SqliteLeaseStore};
use shardfleet::{ApplicationName, KinesisError, KinesisPosition};
use shardfleet_local::{FaultAction, FaultRule, LocalDynamoDb};

use crate::support::{
    CutStore, DEADLINE, Killable, World, acked, acked_with_errors, delivery, item, lease_of, numbered, open,
    settings_of, text, until,
};

const FAILOVER: Duration = Duration::from_millis(1500);

async fn take_over(world: &World, store: Arc<dyn LeaseStore>) {
    world.put_many(0, "r", 6);
    let reader = async |worker: &str| {
        let reader = world.reader(worker).await.shared_lease_store(Arc::clone(&store));
        reader.failover_time(FAILOVER)
    };
    let victim = Killable::new();
    let builder = reader("victim").await.start_at(KinesisPosition::horizon());
    let first = victim
        .run(async move {
            let mut subscription = open(builder).await;
            assert_eq!(acked(&mut subscription, 4).await, numbered("r", 0..4));
            subscription
        })
        .await;
    until("the checkpoint", || async {
        let lease = lease_of(&*store, 0).await.expect("a lease");
        lease.checkpoint.sequence_number().is_some()
    })
    .await;
    let mut second = open(reader("heir").await).await;
    assert!(second.handle().status().is_empty());
    victim.kill();
    let clock = SystemClock::new();
    let since = clock.now();
    let texts = acked(&mut second, 2).await;
    let took = clock.now().since(since);
    assert_eq!(texts, numbered("r", 4..6));
    // No sooner than the lease had run out; how much later depends on what else the machine does.
    assert!(took > FAILOVER / 2, "{took:?}");
    drop(first);
    assert!(second.shutdown(Duration::from_secs(5)).await.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_worker_takes_over_over_memory() {
    let world = World::new(1).await;
    take_over(&world, Arc::new(world.store.clone())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_worker_takes_over_over_sqlite() {
    let world = World::new(1).await;
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("leases.db");
    let store = SqliteLeaseStore::new(path, &ApplicationName::new("reading-tests")).expect("store");
    take_over(&world, Arc::new(store)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_worker_takes_over_over_dynamodb() {
    let world = World::new(1).await;
    let dynamodb = LocalDynamoDb::builder().start().await.expect("DynamoDB");
    let settings = settings_of(&dynamodb.endpoint()).await;
    let store = DynamoDbLeaseStore::builder("reading-tests", &settings).build();
    take_over(&world, Arc::new(store)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_without_its_store_hands_out_nothing_once_its_lease_may_be_anothers() {
    let world = World::new(1).await;
    world.put_many(0, "r", 3);
    let store = CutStore::default();
    let reader = world.reader("a").await.lease_store(store.clone());
    let reader = reader.failover_time(Duration::from_millis(900));
    let mut subscription = open(reader.start_at(KinesisPosition::horizon())).await;
    assert_eq!(acked(&mut subscription, 3).await, numbered("r", 0..3));
    until("the checkpoint", || async {
        let lease = lease_of(store.inner(), 0).await.expect("a lease");
        lease.checkpoint.sequence_number().is_some()
    })
    .await;
    store.set_cut(true);
    // Errors of the store and of the lease come, and no record but those that come while the lease lasts.
    let lost = async {
        loop {
            match item(&mut subscription).await {
                Some(Err(KinesisError::LeaseLost { reason, .. })) => break reason,
                Some(Err(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    };
    let reason = tokio::time::timeout(DEADLINE, lost).await.expect("lost");
    assert!(reason.contains("not renewed"), "{reason}");
    world.put_many(0, "new", 3);
    let reads = world.controls.calls("GetRecords");
    // The worker looks for its leases, in vain.
    for _ in 0..2 {
        match item(&mut subscription).await {
            Some(Err(KinesisError::Store(_))) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(world.controls.calls("GetRecords"), reads);
    store.set_cut(false);
    let first = loop {
        match item(&mut subscription).await {
            Some(Ok(delivery)) => break delivery,
            Some(Err(KinesisError::Store(_))) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(text(&first), "new0");
    first.ack();
    for n in 1..3 {
        let next = delivery(&mut subscription).await;
        assert_eq!(text(&next), format!("new{n}"));
        next.ack();
    }
    assert!(subscription.shutdown(Duration::from_secs(5)).await.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_buffered_is_not_handed_out_after_the_lease_ran_out() {
    let world = World::new(1).await;
    world.put_many(0, "r", 3);
    let store = CutStore::default();
    let reader = world.reader("a").await.lease_store(store.clone());
    let reader = reader.failover_time(Duration::from_millis(900));
    let mut subscription = open(reader.start_at(KinesisPosition::horizon())).await;
    let handle = subscription.handle();
    let first = delivery(&mut subscription).await;
    store.set_cut(true);
    until("the lease to run out", || async { handle.status().is_empty() }).await;
    match item(&mut subscription).await {
        Some(Err(_)) => {}
        other => panic!("r1 was of a lease that is lost: {other:?}"),
    }
    first.ack();
    store.set_cut(false);
    // The ack came too late, so everything comes again.
    for n in 0..3 {
        let next = loop {
            match item(&mut subscription).await {
                Some(Ok(delivery)) => break delivery,
                Some(Err(_)) => {}
                None => panic!("ended"),
            }
        };
        assert_eq!(text(&next), format!("r{n}"));
        next.ack();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_that_fails_does_not_hold_up_a_takeover() {
    let world = World::new(1).await;
    world.put_many(0, "r", 3);
    let victim = Killable::new();
    let builder = world.reader("victim").await.failover_time(FAILOVER);
    let builder = builder.start_at(KinesisPosition::horizon());
    let first = victim.run(async move { open(builder).await }).await;
    let mut second = open(world.reader("heir").await.failover_time(FAILOVER)).await;
    for operation in ["ListShards", "DescribeStreamSummary"] {
        world
            .controls
            .add_fault(FaultRule::new(operation, FaultAction::throttled()));
    }
    victim.kill();
    drop(first);
    let (texts, errors) = acked_with_errors(&mut second, 3).await;
    assert_eq!(texts, numbered("r", 0..3));
    assert!(
        errors
            .iter()
            .all(|error| matches!(error, KinesisError::Kinesis(_))),
        "{errors:?}"
    );
}
