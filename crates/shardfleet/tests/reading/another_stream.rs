//! A stream that was deleted and created again under its old name.

use std::time::Duration;

use shardfleet::core::lease::Lease;
use shardfleet::store::{LeaseStore, MemoryLeaseStore};
use shardfleet::{ErrorKind, KinesisError};

use crate::support::{STREAM, World, acked, item, until};

/// Some records are read and settled, and the stream is another one afterwards.
async fn replaced() -> World {
    let world = World::new(2).await;
    world.put_many(0, "a", 3);
    world.put_many(1, "b", 3);
    let mut subscription = world.at_horizon("a").await;
    acked(&mut subscription, 6).await;
    assert!(subscription.shutdown(Duration::from_secs(5)).await.is_clean());
    replace(&world);
    world
}

fn replace(world: &World) {
    world.controls.delete_stream(STREAM).expect("deleted");
    world.controls.advance(Duration::from_secs(10));
    world.controls.create_stream(STREAM, 2).expect("created");
}

async fn assert_refused(world: &World) {
    let stream = world.reader("a").await.build().expect("settings");
    let error = stream.subscribe().await.expect_err("another stream");
    assert!(matches!(error, KinesisError::AnotherStream { .. }), "{error:?}");
    assert!(error.is_fatal());
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn is_refused_by_its_creation_time() {
    let world = replaced().await;
    assert_refused(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn is_refused_by_its_sequence_numbers() {
    let mut world = replaced().await;
    // As a Java worker writes the rows.
    let bare = MemoryLeaseStore::new();
    for lease in world.store.scan().await.expect("leases").leases {
        let lease = Lease {
            stream_created_at: None,
            opened_at: None,
            ..lease
        };
        assert!(bare.create(&lease).await.expect("created"));
    }
    world.store = bare;
    assert_refused(&world).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_a_subscription_that_runs() {
    let world = World::new(2).await;
    world.put_many(0, "a", 3);
    let mut subscription = world.at_horizon("a").await;
    let handle = subscription.handle();
    acked(&mut subscription, 3).await;
    replace(&world);
    world.put_many(0, "other", 3);
    let mut last = None;
    while let Some(next) = item(&mut subscription).await {
        match next {
            Ok(delivery) => panic!("{delivery:?} is of the other stream"),
            Err(error) => last = Some(error),
        }
    }
    assert!(
        matches!(last, Some(KinesisError::AnotherStream { .. })),
        "{last:?}"
    );
    until("the shards to be let go", || async { handle.status().is_empty() }).await;
}
