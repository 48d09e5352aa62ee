//! Much of everything: shards, and records behind one that is not settled.

use std::time::Duration;

use shardfleet::core::kpl::Aggregator;
use shardfleet::{Bytes, KinesisPosition, ShardStatus};
use shardfleet_local::{FaultAction, FaultRule};

use crate::support::{
    FastClock, STREAM, World, acked, acked_with_errors, delivery, numbered, open, shard_id, text, until,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eleven_hundred_shards_are_listed_in_pages_and_all_opened() {
    let world = World::new(1100).await;
    let shards = world.controls.shards(STREAM).expect("shards");
    for at in [0, 999, 1000, 1099] {
        let key = shards[at].starting_hash_key;
        world
            .controls
            .put_at(STREAM, "key", key, at.to_string())
            .expect("put");
    }
    let builder = world.reader("a").await.start_at(KinesisPosition::horizon());
    let builder = builder
        .poll_interval(Duration::from_secs(60))
        .shard_sync_interval(Duration::from_secs(60))
        .failover_time(Duration::from_secs(60));
    let mut subscription = open(builder.memory_budget(1 << 30)).await;
    assert_eq!(subscription.handle().status().len(), 1100);
    assert!(world.controls.calls("ListShards") >= 2);
    let mut texts = acked(&mut subscription, 4).await;
    texts.sort_unstable();
    assert_eq!(texts, ["0", "1000", "1099", "999"]);
    let report = subscription.shutdown(Duration::from_secs(10)).await;
    assert!(report.is_clean());
    assert_eq!(report.shards.len(), 1100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_and_records_that_nobody_takes_yet_do_not_hold_up_opening() {
    let world = World::new(40).await;
    for shard in 0..40 {
        world.put(shard, &format!("r{shard}"));
    }
    // More than what is buffered for a subscription that is not polled.
    let fault = FaultRule::new("GetShardIterator", FaultAction::ServerError);
    world.controls.add_fault(fault.skip(20).times(60));
    let builder = world.reader("a").await.start_at(KinesisPosition::horizon());
    let builder = builder.failover_time(Duration::from_secs(60));
    let mut subscription = open(builder.clock(FastClock::shared(20))).await;
    let (mut texts, _) = acked_with_errors(&mut subscription, 40).await;
    texts.sort_unstable();
    let mut all = numbered("r", 0..40);
    all.sort_unstable();
    assert_eq!(texts, all);
}

const MILLION: usize = 1_000_000;
const AGGREGATED: usize = 5_000;

/// Puts a million small records onto shard 0, five thousand in each Kinesis record.
fn put_a_million(world: &World) {
    let mut number = 0_u32;
    for _ in 0..MILLION / AGGREGATED {
        let mut aggregator = Aggregator::with_max_bytes(1 << 20).expect("size");
        for _ in 0..AGGREGATED {
            let data = Bytes::copy_from_slice(&number.to_be_bytes());
            let full = aggregator.add("k", Some(0), data).expect("added");
            assert_eq!(full, None);
            number += 1;
        }
        let record = aggregator.finish().expect("a record");
        world.controls.put_at(STREAM, "k", 0, record.data).expect("put");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_record_that_is_not_settled_holds_a_million_back_and_no_more_memory_than_allowed() {
    const BUDGET: u64 = 4 << 20;
    let world = World::new(2).await;
    put_a_million(&world);
    let builder = world.reader("a").await.start_at(KinesisPosition::horizon());
    let mut subscription = open(builder.batch_size(1).memory_budget(BUDGET)).await;
    let handle = subscription.handle();
    let held = delivery(&mut subscription).await;
    let mut delivered: usize = 1;
    let shard = shard_id(0);
    // Everything else is settled as it comes, until nothing comes any more.
    loop {
        tokio::select! {
            biased;
            next = delivery(&mut subscription) => {
                next.ack();
                delivered += 1;
                assert!(handle.memory_used() <= BUDGET);
            }
            () = until("the reader to wait", || async {
                matches!(handle.status().get(&shard), Some(ShardStatus::WaitingForAcks { .. }))
            }) => break,
        }
    }
    match handle.status().get(&shard) {
        Some(ShardStatus::WaitingForAcks { held_by }) => {
            assert_eq!(held_by.as_ref(), Some(&held.position));
        }
        other => panic!("{other:?}"),
    }
    // The bound, and one page on top. What the status ran ahead of may still be buffered.
    while delivered < 10_000 {
        delivery(&mut subscription).await.ack();
        delivered += 1;
    }
    assert!(delivered <= 10_000 + AGGREGATED, "{delivered}");
    // The other shard goes on.
    world.put(1, "other");
    let other = loop {
        let next = delivery(&mut subscription).await;
        if next.shard_id != shard {
            break next;
        }
        next.ack();
        delivered += 1;
    };
    assert_eq!(text(&other), "other");
    assert!(delivered <= 10_000 + AGGREGATED, "{delivered}");
    other.ack();
    held.ack();
    while delivered < MILLION {
        let next = delivery(&mut subscription).await;
        assert_eq!(
            next.data,
            u32::try_from(delivered).expect("small").to_be_bytes()[..]
        );
        next.ack();
        delivered += 1;
    }
    assert!(subscription.shutdown(Duration::from_secs(5)).await.is_clean());
}
