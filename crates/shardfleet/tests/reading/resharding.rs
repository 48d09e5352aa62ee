//! Splits and merges while records come: order per key, children after parents.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shardfleet::core::lease::Lease;
use shardfleet::store::LeaseStore;
use shardfleet::{ExtendedSequenceNumber, KinesisPosition, Subscription};

use crate::support::{
    CutStore, STREAM, World, acked, deliveries, delivery, lease_of, open, shard_id, text, until,
};

const SHORT: Duration = Duration::from_secs(5);
const KEYS: usize = 8;

async fn finished(world: &World) -> Vec<String> {
    let scan = world.store.scan().await.expect("leases");
    scan.leases
        .iter()
        .filter(|lease| lease.is_finished())
        .map(|lease| lease.lease_key.to_string())
        .collect()
}

/// Puts one more record of each key.
fn put_round(world: &World, round: usize) {
    for key in 0..KEYS {
        let key = format!("key-{key}");
        world
            .controls
            .put(STREAM, &key, format!("{key} {round}"))
            .expect("put");
    }
}

/// Reads so many rounds and checks the order of each key.
async fn check_rounds(subscription: &mut Subscription, next: &mut BTreeMap<String, usize>, rounds: usize) {
    for _ in 0..rounds * KEYS {
        let delivery = delivery(subscription).await;
        let text = text(&delivery);
        let (key, round) = text.split_once(' ').expect("key and round");
        let expected = next.entry(key.to_owned()).or_default();
        assert_eq!(round, expected.to_string(), "of {key}");
        *expected += 1;
        delivery.ack();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_keep_their_order_through_splits_and_merges_under_load() {
    let world = World::new(2).await;
    let mut subscription = world.at_horizon("a").await;
    let mut next = BTreeMap::new();
    let rounds = AtomicBool::new(false);
    let put = async {
        for round in 0..60 {
            put_round(&world, round);
            match round {
                10 => world.split(0),
                20 => world.split(1),
                35 => world.merge(2, 3),
                45 => world.merge(6, 4),
                _ => {}
            }
            tokio::task::yield_now().await;
        }
        rounds.store(true, Ordering::SeqCst);
    };
    let read = check_rounds(&mut subscription, &mut next, 60);
    tokio::join!(put, read);
    assert!(rounds.load(Ordering::SeqCst));
    until("the ends of six shards", || async {
        finished(&world).await.len() == 6
    })
    .await;
    let lease = world.lease(0).await;
    assert_eq!(lease.checkpoint, ExtendedSequenceNumber::ShardEnd);
    assert_eq!(lease.child_shard_ids, [shard_id(2), shard_id(3)]);
    assert_eq!(lease.owner, None);
    assert_eq!(world.lease(7).await.parent_shard_ids.len(), 2);
    world.assert_quiet(&mut subscription).await;
    assert!(subscription.shutdown(SHORT).await.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_wait_until_their_parent_is_settled() {
    let world = World::new(1).await;
    world.put(0, "parent");
    let mut subscription = world.at_horizon("a").await;
    let parent = delivery(&mut subscription).await;
    world.split(0);
    world.put(1, "child");
    world.put(2, "child");
    world.assert_quiet_for_listings(&mut subscription).await;
    assert!(finished(&world).await.is_empty());
    parent.ack();
    assert_eq!(acked(&mut subscription, 2).await, ["child", "child"]);
    // The children's leases were there before the end of their parent.
    let leases: Vec<Lease> = world.store.scan().await.expect("leases").leases;
    assert_eq!(leases.len(), 3);
    assert_eq!(finished(&world).await.len(), 1);
    assert!(subscription.shutdown(SHORT).await.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merged_child_waits_for_the_parent_that_ends_last() {
    let world = World::new(2).await;
    world.put(0, "first");
    world.put(1, "second");
    let mut subscription = world.at_horizon("a").await;
    let mut parents = deliveries(&mut subscription, 2).await;
    parents.sort_by(|a, b| a.shard_id.cmp(&b.shard_id));
    world.merge(0, 1);
    world.put(2, "child");
    parents.remove(0).ack();
    until("the end of the first", || async {
        finished(&world).await.len() == 1
    })
    .await;
    world.assert_quiet_for_listings(&mut subscription).await;
    assert!(!subscription.handle().status().contains_key(&shard_id(2)));
    parents.remove(0).ack();
    assert_eq!(acked(&mut subscription, 1).await, ["child"]);
    assert_eq!(finished(&world).await.len(), 2);
    assert!(subscription.shutdown(SHORT).await.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_that_waits_costs_no_more_scans_than_the_leader_makes_anyway() {
    let world = World::new(2).await;
    world.put(0, "first");
    world.put(1, "second");
    let store = CutStore::default();
    let reader = world.reader("a").await.lease_store(store.clone());
    let reader = reader
        .start_at(KinesisPosition::horizon())
        .failover_time(Duration::from_millis(600))
        .shard_sync_interval(Duration::from_secs(60));
    let mut subscription = open(reader).await;
    let mut parents = deliveries(&mut subscription, 2).await;
    parents.sort_by(|a, b| a.shard_id.cmp(&b.shard_id));
    world.merge(0, 1);
    parents.remove(0).ack();
    until("the child's lease", || async {
        lease_of(store.inner(), 2).await.is_some()
    })
    .await;
    let counter = async || lease_of(store.inner(), 1).await.expect("a lease").counter;
    // Two failover times are six renewals of the other parent's lease.
    let before = counter().await;
    until("six renewals", || async { counter().await >= before + 6 }).await;
    let scans = store.scans();
    let before = counter().await;
    until("six more", || async { counter().await >= before + 6 }).await;
    // Four in a failover time, and those at both ends.
    assert!(store.scans() <= scans + 10, "{} scans", store.scans() - scans);
    parents.remove(0).ack();
    until("the child to be read", || async {
        subscription.handle().status().contains_key(&shard_id(2))
    })
    .await;
}
