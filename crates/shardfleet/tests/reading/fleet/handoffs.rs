//! Handoffs that go wrong: whoever fails, and when, the shard is read again within the handoff's timeout and a lease's.

use std::collections::BTreeSet;
use std::time::Duration;

use shardfleet::LeaseKey;
use shardfleet::core::ids::WorkerId;
use shardfleet::core::lease::{Lease, LeaseWrite, WriteOutcome};

use super::support::{Fleet, Member};
use crate::support::{FAILOVER, shard_name, until};

const TIMEOUT: Duration = Duration::from_secs(2);

/// Two workers that share four shards.
async fn two(fleet: &mut Fleet) -> (Member, Member) {
    fleet.settings.handoff_timeout = TIMEOUT;
    // What a test moves by force is soon put right.
    fleet.settings.assignment.minimum_stay = TIMEOUT;
    fleet.settings.variance_balancing_frequency = 1;
    fleet.produce();
    let first = fleet.start("a").await;
    let second = fleet.start("b").await;
    fleet.until_even(&[&first, &second]).await;
    (first, second)
}

async fn lease(fleet: &Fleet, shard: usize) -> Lease {
    let key = LeaseKey::new(shard_name(shard));
    fleet
        .store()
        .await
        .get(&key)
        .await
        .expect("a read")
        .expect("a lease")
}

/// A shard that this worker reads.
async fn shard_of(fleet: &Fleet, member: &Member) -> usize {
    for shard in 0..4 {
        if lease(fleet, shard).await.owner.as_ref().map(ToString::to_string) == Some(member.name.clone()) {
            return shard;
        }
    }
    panic!("{} has nothing", member.name);
}

/// Asks for a handoff, as a leader does.
async fn ask(fleet: &Fleet, shard: usize, to: &str) {
    let store = fleet.store().await;
    until("the request for a handoff", || async {
        let row = lease(fleet, shard).await;
        let write = LeaseWrite::start_handoff(&row, &WorkerId::new(to)).expect("a held lease");
        matches!(store.update(&write).await, Ok(WriteOutcome::Written(_)))
    })
    .await;
}

async fn until_read_by_others(fleet: &Fleet, shard: usize, not: &str) {
    let since = fleet.books.now();
    let number = u64::try_from(shard).expect("small");
    until("another reader", || async {
        let delivered = fleet.books.delivered();
        let of = delivered.iter().filter(|d| d.shard == number && d.at > since);
        of.into_iter().any(|d| d.worker != not)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handoff_moves_a_shard_without_a_repeat() {
    let mut fleet = Fleet::over_dynamodb(4).await;
    let (first, second) = two(&mut fleet).await;
    let shard = shard_of(&fleet, &first).await;
    let since = fleet.books.now();
    ask(&fleet, shard, "b").await;
    until_read_by_others(&fleet, shard, "a").await;
    let shards = BTreeSet::from([u64::try_from(shard).expect("small")]);
    tracing::info!("gap: {:?}", fleet.books.gaps(&shards, since));
    fleet.settled().await.assert_exact();
    drop((first, second));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receiver_is_dead() {
    let mut fleet = Fleet::over_dynamodb(4).await;
    let (first, second) = two(&mut fleet).await;
    let shard = shard_of(&fleet, &first).await;
    // Nobody has this name, so the handoff is completed for nobody.
    ask(&fleet, shard, "never-there").await;
    let number = u64::try_from(shard).expect("small");
    until("the holder to let go", || async {
        lease(&fleet, shard).await.checkpoint_owner.is_none()
    })
    .await;
    let since = fleet.books.now();
    fleet.until_moving(&BTreeSet::from([number]), since).await;
    fleet.until_even(&[&first, &second]).await;
    fleet.settled().await.complete();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holder_dies_in_the_middle() {
    let mut fleet = Fleet::over_dynamodb(4).await;
    let (first, second) = two(&mut fleet).await;
    let shard = shard_of(&fleet, &first).await;
    // Its handler holds the handoff up.
    let number = u64::try_from(shard).expect("small");
    fleet.books.set_stuck("a", number, true);
    ask(&fleet, shard, "b").await;
    first.kill();
    until_read_by_others(&fleet, shard, "a").await;
    fleet.until_all_move(4).await;
    fleet.until_even(&[&second]).await;
    fleet.settled().await.complete();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holders_handler_hangs() {
    let mut fleet = Fleet::over_dynamodb(4).await;
    let (first, second) = two(&mut fleet).await;
    let shard = shard_of(&fleet, &first).await;
    let number = u64::try_from(shard).expect("small");
    fleet.books.set_stuck("a", number, true);
    let since = fleet.books.now();
    ask(&fleet, shard, "b").await;
    // Read by the other although the first still has a record in hand, once the handoff is overdue.
    until_read_by_others(&fleet, shard, "a").await;
    let took = fleet.books.now().since(since);
    tracing::info!("{took:?} for a handoff that took {TIMEOUT:?} at most and leases of {FAILOVER:?}");
    fleet.books.set_stuck("a", number, false);
    until("the first to be told", || async {
        first
            .errors()
            .iter()
            .any(|error| error.full_text().contains(&shard_name(shard)))
    })
    .await;
    let balance = fleet.settled().await;
    assert!(balance.lost.is_empty(), "{balance:?}");
    drop((first, second));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_is_cut_in_the_middle() {
    let mut fleet = Fleet::over_dynamodb(4).await;
    let (first, second) = two(&mut fleet).await;
    let shard = shard_of(&fleet, &first).await;
    let number = u64::try_from(shard).expect("small");
    fleet.books.set_stuck("a", number, true);
    ask(&fleet, shard, "b").await;
    fleet.dynamo().cut(true);
    fleet.books.set_stuck("a", number, false);
    let calls = |fleet: &Fleet| fleet.dynamo().all_calls().values().sum::<u64>();
    let before = calls(&fleet);
    until("a few calls in vain", || async { calls(&fleet) > before + 5 }).await;
    fleet.dynamo().cut(false);
    fleet.until_all_move(4).await;
    fleet.until_even(&[&first, &second]).await;
    fleet.settled().await.complete();
}
