//! Workers that die, the leader among them.

use std::collections::BTreeSet;
use std::time::Duration;

use super::support::{Fleet, Member};
use crate::support::until;

async fn three(fleet: &Fleet) -> (Vec<Member>, usize) {
    fleet.produce();
    let mut members = Vec::new();
    for name in ["a", "b", "c"] {
        members.push(fleet.start(name).await);
    }
    let all: Vec<&Member> = members.iter().collect();
    fleet.until_even(&all).await;
    let leader = fleet.until_led(&all).await;
    (members, leader)
}

/// Kills one; the others read on. Only shards of the dead one may repeat anything.
async fn kill(fleet: &Fleet, kills_the_leader: bool) {
    let (mut members, leader) = three(fleet).await;
    let victim = if kills_the_leader {
        leader
    } else {
        (leader + 1) % members.len()
    };
    let victim = members.remove(victim);
    let name = victim.name.clone();
    let since = fleet.books.now();
    let shards: BTreeSet<u64> = fleet.shards_held_by(&name).await;
    assert_eq!(shards.len(), 2);
    victim.kill();
    let killed = fleet.books.now();
    until("others to read on", || async {
        let delivered = fleet.books.delivered();
        shards.iter().all(|shard| {
            let by_others = delivered.iter().filter(|d| d.worker != name && d.at > killed);
            by_others.map(|d| d.shard).any(|of| of == *shard)
        })
    })
    .await;
    tracing::info!(
        "failover {:?}, gaps of {shards:?}: {:?}",
        fleet.failover_time,
        fleet.books.gaps(&shards, since)
    );
    let rest: Vec<&Member> = members.iter().collect();
    fleet.until_led(&rest).await;
    fleet.until_even(&rest).await;
    let balance = fleet.settled().await;
    balance.complete();
    // The dead one's last checkpoint may be a renewal old; nobody else's records come again.
    let delivered = fleet.books.delivered();
    let mut seen = BTreeSet::new();
    for d in &delivered {
        if !seen.insert((d.shard, d.number)) {
            assert!(shards.contains(&d.shard), "{d:?} came twice");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_workers_shards_are_read_on() {
    kill(&Fleet::over_dynamodb(6).await, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_leaders_shards_are_read_on_long_before_its_lock_runs_out() {
    let mut fleet = Fleet::over_dynamodb(6).await;
    // Longer than the test may wait for the next leader.
    fleet.settings.leader_lease_duration = Duration::from_secs(60);
    fleet.settings.leader_heartbeat = Duration::from_secs(1);
    kill(&fleet, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_who_die_at_once_leaves_the_rest_to_the_last() {
    let fleet = Fleet::over_memory(6).await;
    let (mut members, leader) = three(&fleet).await;
    let last = members.remove((leader + 1) % 3);
    for member in members {
        member.kill();
    }
    fleet.until_all_move(6).await;
    fleet.until_led(&[&last]).await;
    fleet.until_even(&[&last]).await;
    fleet.settled().await.complete();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_comes_back_under_its_name_reads_on() {
    let fleet = Fleet::over_dynamodb(4).await;
    fleet.produce();
    let first = fleet.start("a").await;
    let second = fleet.start("b").await;
    fleet.until_even(&[&first, &second]).await;
    first.kill();
    let again = fleet.start("a").await;
    fleet.until_all_move(4).await;
    fleet.until_even(&[&again, &second]).await;
    fleet.settled().await.complete();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_handler_hangs_keeps_its_lease_and_says_so() {
    let mut fleet = Fleet::over_memory(2).await;
    fleet.settings.stall_warning_after = Duration::from_secs(1);
    fleet.failover_time = Duration::from_secs(1);
    let only = fleet.start("a").await;
    fleet.produce();
    fleet.until_all_move(2).await;
    fleet.books.set_stuck("a", 0, true);
    until("a warning", || async {
        only.errors().iter().any(|error| {
            let text = error.full_text();
            text.contains("shardId-000000000000") && text.contains("handler is in a call")
        })
    })
    .await;
    // Several failover times have passed by then; the other shard was not held up.
    let since = fleet.books.now();
    fleet.until_moving(&BTreeSet::from([1]), since).await;
    assert_eq!(fleet.counts().await["a"], 2);
    fleet.books.set_stuck("a", 0, false);
    fleet.settled().await.assert_exact();
    assert_eq!(fleet.books.starts().len(), 2, "no lease was lost");
}
