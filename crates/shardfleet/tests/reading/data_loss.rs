//! Checkpoints whose records have aged out.

use std::time::Duration;

use shardfleet::KinesisError;

use crate::support::{World, acked, error, numbered, sequence};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_that_aged_out_names_what_is_gone() {
    let world = World::new(1).await;
    world.controls.use_manual_clock(world.controls.now_ms());
    let old = world.put_many(0, "old", 5);
    let mut subscription = world.at_horizon("a").await;
    assert_eq!(acked(&mut subscription, 2).await, numbered("old", 0..2));
    assert!(subscription.shutdown(Duration::from_secs(5)).await.in_time);
    world.controls.advance(25 * HOUR);
    let new = world.put_many(0, "new", 2);
    let mut subscription = world.resumed("a").await;
    match error(&mut subscription).await {
        KinesisError::DataLoss { after, before, .. } => {
            assert_eq!(after, sequence(&old[1]));
            assert_eq!(before, Some(sequence(&new[0])));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(acked(&mut subscription, 2).await, numbered("new", 0..2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_that_is_still_there_says_nothing() {
    let world = World::new(1).await;
    world.put_many(0, "r", 3);
    let mut subscription = world.at_horizon("a").await;
    assert_eq!(acked(&mut subscription, 2).await, numbered("r", 0..2));
    subscription.shutdown(Duration::from_secs(5)).await;
    let mut subscription = world.resumed("a").await;
    assert_eq!(acked(&mut subscription, 1).await, ["r2"]);
    world.assert_quiet(&mut subscription).await;
}
