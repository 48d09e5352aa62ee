//! Where reading starts: LATEST that is remembered, positions ahead of checkpoints, and seeks.

use std::time::Duration;

use shardfleet::{ExtendedSequenceNumber, KinesisError, KinesisPosition, SequenceNumber};

use crate::support::{
    Killable, World, acked, deliveries, delivery, numbered, open, place, sequence, shard_id, shard_name, text,
};

const SHORT: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_means_reading() {
    let world = World::new(3).await;
    let mut subscription = world.resumed("a").await;
    for shard in 0..3 {
        world.put(shard, &format!("r{shard}"));
    }
    let mut texts = acked(&mut subscription, 3).await;
    texts.sort_unstable();
    assert_eq!(texts, numbered("r", 0..3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latest_start_outlives_a_worker_that_settled_nothing() {
    let world = World::new(1).await;
    let victim = Killable::new();
    let builder = world.reader("a").await;
    let first = victim.run(async move { open(builder).await }).await;
    let opened = world.lease(0).await;
    assert_eq!(opened.checkpoint, ExtendedSequenceNumber::Latest);
    assert!(opened.opened_at.is_some());
    victim.kill();
    drop(first);
    world.put_many(0, "r", 5);
    let mut second = world.resumed("a").await;
    assert_eq!(acked(&mut second, 5).await, numbered("r", 0..5));
    world.assert_quiet(&mut second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_named_start_goes_ahead_of_the_checkpoint_once() {
    let world = World::new(1).await;
    let receipts = world.put_many(0, "r", 6);
    let mut subscription = world.at_horizon("a").await;
    assert_eq!(acked(&mut subscription, 4).await, numbered("r", 0..4));
    assert!(subscription.shutdown(SHORT).await.in_time);
    world.until_checkpoint(0, &receipts[3].sequence_number).await;

    let positions = [
        (KinesisPosition::horizon(), 0),
        (
            KinesisPosition::sequence(shard_name(0), sequence(&receipts[2])),
            2,
        ),
        (KinesisPosition::timestamp(world.controls.now_ms() - 60_000), 0),
    ];
    for (position, first) in positions {
        let builder = world.reader("a").await.start_at(position);
        let mut subscription = open(builder).await;
        assert_eq!(
            text(&delivery(&mut subscription).await),
            format!("r{first}"),
            "the first one is not settled"
        );
        assert!(!subscription.shutdown(Duration::from_millis(50)).await.is_clean());
        // Nothing was settled since, so the place that was named still stands.
        let mut subscription = world.resumed("a").await;
        let rest = 6 - first;
        assert_eq!(acked(&mut subscription, rest).await, numbered("r", first..6));
        assert!(subscription.shutdown(SHORT).await.is_clean());
        // What was settled is a checkpoint again, and without a named start it counts.
        let mut subscription = world.resumed("a").await;
        world.assert_quiet(&mut subscription).await;
        assert!(subscription.shutdown(SHORT).await.is_clean());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seeks_go_back_and_forth_and_old_acks_move_nothing() {
    let world = World::new(1).await;
    let receipts = world.put_many(0, "r", 10);
    let mut subscription = world.at_horizon("a").await;
    let old = deliveries(&mut subscription, 10).await;
    let back = KinesisPosition::sequence(shard_name(0), sequence(&receipts[3]));
    let moved = subscription.seek(back.clone()).await.expect("repositioned");
    assert_eq!(moved, [shard_id(0)]);
    for delivery in old {
        delivery.ack();
    }
    let mut again = deliveries(&mut subscription, 7).await;
    let texts: Vec<_> = again.iter().map(text).collect();
    assert_eq!(texts, numbered("r", 3..10));
    // The first of the second round settles alone.
    again.remove(0).ack();
    world.until_checkpoint(0, &receipts[3].sequence_number).await;
    let before = world.lease(0).await;
    assert_eq!(before.checkpoint, place(&receipts[3]));

    // LATEST leaves everything behind, and what is put after it is read.
    subscription
        .seek(KinesisPosition::latest())
        .await
        .expect("repositioned");
    world.put_many(0, "new", 3);
    assert_eq!(acked(&mut subscription, 3).await, numbered("new", 0..3));
    drop(again);

    subscription
        .seek(KinesisPosition::horizon())
        .await
        .expect("repositioned");
    let all = [numbered("r", 0..10), numbered("new", 0..3)].concat();
    assert_eq!(acked(&mut subscription, 13).await, all);
    assert!(subscription.shutdown(SHORT).await.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seek_is_remembered_before_it_is_answered() {
    let world = World::new(1).await;
    let receipts = world.put_many(0, "r", 6);
    let victim = Killable::new();
    let builder = world.reader("a").await.start_at(KinesisPosition::horizon());
    let back = KinesisPosition::sequence(shard_name(0), sequence(&receipts[1]));
    let first = victim
        .run(async move {
            let mut subscription = open(builder).await;
            acked(&mut subscription, 6).await;
            subscription.seek(back).await.expect("repositioned");
            subscription
        })
        .await;
    victim.kill();
    drop(first);
    let mut second = world.resumed("a").await;
    assert_eq!(acked(&mut second, 5).await, numbered("r", 1..6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seek_that_the_service_refuses_changes_nothing() {
    let world = World::new(1).await;
    world.put_many(0, "r", 4);
    let mut subscription = world.at_horizon("a").await;
    assert_eq!(acked(&mut subscription, 4).await, numbered("r", 0..4));
    let foreign =
        SequenceNumber::parse("49680724282063333980312405140460926000268222225054695475").expect("digits");
    let refused = subscription
        .seek(KinesisPosition::sequence(shard_name(0), foreign))
        .await;
    assert!(matches!(refused, Err(KinesisError::Kinesis(_))), "{refused:?}");
    world.put_many(0, "more", 2);
    assert_eq!(acked(&mut subscription, 2).await, numbered("more", 0..2));
    assert!(subscription.shutdown(SHORT).await.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_shard_can_be_started_at_one_of_its_records() {
    let world = World::new(1).await;
    let receipts = world.put_many(0, "r", 4);
    world.split(0);
    let builder = world.reader("a").await;
    let position = KinesisPosition::sequence(shard_name(0), sequence(&receipts[2]));
    let mut subscription = open(builder.start_at(position)).await;
    assert_eq!(acked(&mut subscription, 2).await, numbered("r", 2..4));
    // And what descends from it after that.
    world.put(1, "child");
    assert_eq!(acked(&mut subscription, 1).await, ["child"]);
    assert!(subscription.shutdown(SHORT).await.is_clean());
}
