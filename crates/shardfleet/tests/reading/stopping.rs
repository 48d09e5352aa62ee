//! Shutdowns: what they leave, how long they take, and who reads on.

use std::sync::Arc;
use std::time::Duration;

use shardfleet::clock::{Clock, SystemClock};
use shardfleet::core::time::Moment;
use shardfleet::store::{DynamoDbLeaseStore, LeaseStore, SqliteLeaseStore};
use shardfleet::{ApplicationName, ErrorPolicy, KinesisError, KinesisPosition, ShardOutcome};
use shardfleet_local::LocalDynamoDb;
use tokio::sync::Semaphore;

use crate::script::{Act, process};
use crate::support::{World, acked, deliveries, item, lease_of, numbered, open, settings_of, until};

const SHORT: Duration = Duration::from_secs(5);

fn seconds(clock: &SystemClock, since: Moment) -> Duration {
    clock.now().since(since)
}

/// A worker stops and another reads on at once, over any store.
async fn hand_over(world: &World, store: Arc<dyn LeaseStore>) {
    let clock = SystemClock::new();
    let receipts = world.put_many(0, "r", 6);
    let reader = async |worker: &str| {
        let reader = world.reader(worker).await.shared_lease_store(Arc::clone(&store));
        reader.failover_time(Duration::from_secs(30))
    };
    let first = reader("first").await.start_at(KinesisPosition::horizon());
    let mut first = open(first).await;
    assert_eq!(acked(&mut first, 3).await, numbered("r", 0..3));
    let held = deliveries(&mut first, 3).await;
    let report = first.shutdown(Duration::from_millis(50)).await;
    assert!(!report.is_clean());
    assert_eq!(
        (report.shards[0].unsettled, &report.shards[0].outcome),
        (3, &ShardOutcome::Released)
    );
    let lease = lease_of(&*store, 0).await.expect("a lease");
    assert_eq!(lease.checkpoint.checkpoint_text(), receipts[2].sequence_number);
    assert_eq!(lease.owner, None);
    let since = clock.now();
    let mut second = open(reader("second").await).await;
    assert_eq!(acked(&mut second, 3).await, numbered("r", 3..6));
    assert!(seconds(&clock, since) < Duration::from_secs(1));
    let report = second.shutdown(SHORT).await;
    assert!(report.is_clean(), "{report:?}");
    let lease = lease_of(&*store, 0).await.expect("a lease");
    assert_eq!(lease.checkpoint.checkpoint_text(), receipts[5].sequence_number);
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_worker_reads_on_at_once_over_memory() {
    let world = World::new(1).await;
    hand_over(&world, Arc::new(world.store.clone())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_worker_reads_on_at_once_over_sqlite() {
    let world = World::new(1).await;
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("leases.db");
    let store = SqliteLeaseStore::new(path, &ApplicationName::new("reading-tests")).expect("store");
    hand_over(&world, Arc::new(store)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_worker_reads_on_at_once_over_dynamodb() {
    let world = World::new(1).await;
    let dynamodb = LocalDynamoDb::builder().start().await.expect("DynamoDB");
    let settings = settings_of(&dynamodb.endpoint()).await;
    let store = DynamoDbLeaseStore::builder("reading-tests", &settings).build();
    hand_over(&world, Arc::new(store)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_waits_for_acks_that_come() {
    let world = World::new(1).await;
    world.put_many(0, "r", 3);
    let mut subscription = world.at_horizon("a").await;
    let held = deliveries(&mut subscription, 3).await;
    let handle = subscription.handle();
    let shutdown = tokio::spawn(async move { handle.shutdown(SHORT).await });
    // Its lease is renewed while it waits.
    let counter = world.lease(0).await.counter;
    until("a renewal", || async { world.lease(0).await.counter > counter }).await;
    assert!(!shutdown.is_finished());
    for delivery in held {
        delivery.ack();
    }
    assert!(shutdown.await.expect("no panic").is_clean());
    // The stream ends with it.
    assert!(item(&mut subscription).await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_hands_out_nothing_more() {
    let world = World::new(1).await;
    let receipts = world.put_many(0, "r", 5);
    let mut subscription = world.at_horizon("a").await;
    let mut held = deliveries(&mut subscription, 1).await;
    let handle = subscription.handle();
    let shutdown = tokio::spawn(async move { handle.shutdown(SHORT).await });
    let counter = world.lease(0).await.counter;
    until("a renewal", || async { world.lease(0).await.counter > counter }).await;
    // Four more are buffered, and are left for the next reader.
    let rest = tokio::spawn(async move { item(&mut subscription).await });
    held.remove(0).ack();
    assert!(rest.await.expect("no panic").is_none());
    assert!(shutdown.await.expect("no panic").is_clean());
    let checkpoint = world.lease(0).await.checkpoint;
    assert_eq!(checkpoint.checkpoint_text(), receipts[0].sequence_number);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_ends_at_its_deadline_though_a_handler_hangs() {
    let world = World::new(1).await;
    world.put(0, "r0");
    let gate = Arc::new(Semaphore::new(0));
    let plan = move |_: &shardfleet::Record, _: u32| Act::WaitFor(Arc::clone(&gate));
    let reader = world.reader("a").await.start_at(KinesisPosition::horizon());
    let (handle, seen) = process(reader, ErrorPolicy::default(), plan).await;
    until("the handler to hang", || async { seen.count("wait 0 r0") == 1 }).await;
    let clock = SystemClock::new();
    let since = clock.now();
    let report = handle.shutdown(Duration::from_millis(300)).await;
    let took = seconds(&clock, since);
    assert!(
        took >= Duration::from_millis(290) && took < Duration::from_secs(2),
        "{took:?}"
    );
    assert!(!report.is_clean());
    assert_eq!(report.shards[0].unsettled, 1);
    assert_eq!(world.lease(0).await.owner, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_is_dropped_releases_its_leases() {
    let world = World::new(2).await;
    let receipt = world.put(0, "r0");
    let mut subscription = world.at_horizon("a").await;
    assert_eq!(acked(&mut subscription, 1).await, ["r0"]);
    // A handle does not keep it alive.
    let handle = subscription.handle();
    drop(subscription);
    until("both leases to be free", || async {
        world.lease(0).await.owner.is_none() && world.lease(1).await.owner.is_none()
    })
    .await;
    world.until_checkpoint(0, &receipt.sequence_number).await;
    until("nothing to be read", || async { handle.status().is_empty() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_under_the_same_id_takes_the_lease_and_the_loser_says_so() {
    let world = World::new(1).await;
    world.put(0, "r0");
    let mut first = world.at_horizon("a").await;
    let held = deliveries(&mut first, 1).await;
    let mut second = world.resumed("a").await;
    let lost = match item(&mut first).await {
        Some(Err(error)) => error,
        other => panic!("{other:?}"),
    };
    assert!(matches!(lost, KinesisError::LeaseLost { .. }), "{lost:?}");
    // An ack of the loser moves nothing.
    for delivery in held {
        delivery.ack();
    }
    drop(first);
    assert_eq!(acked(&mut second, 1).await, ["r0"]);
}
