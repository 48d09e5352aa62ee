//! Planned stops: the peers read on at once, and nothing comes twice.

use std::time::Duration;

use shardfleet::ShardOutcome;

use super::support::{Fleet, Member};

/// Three workers that share six shards, and which of them leads.
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

/// Stops one of three; its shards are read on by the others.
async fn stop(stops_the_leader: bool) {
    let fleet = Fleet::over_dynamodb(6).await;
    let (mut members, leader) = three(&fleet).await;
    let leaving = members.remove(if stops_the_leader {
        leader
    } else {
        (leader + 1) % members.len()
    });
    let since = fleet.books.now();
    let shards = fleet.shards_held_by(&leaving.name).await;
    let report = leaving.stop().await;
    assert!(report.is_clean(), "{report:?}");
    for shard in &report.shards {
        let to_whom = match &shard.outcome {
            ShardOutcome::HandedOver { to } => to.to_string(),
            other => panic!("{other:?}"),
        };
        assert!(members.iter().any(|m| m.name == to_whom), "{to_whom}");
    }
    assert_eq!(report.shards.len(), 2);
    let stopped = fleet.books.now();
    fleet.until_moving(&(0..6).collect(), stopped).await;
    // Printed, never judged: how busy this machine is has a say in it.
    tracing::info!("gaps of {shards:?}: {:?}", fleet.books.gaps(&shards, since));
    let rest: Vec<&Member> = members.iter().collect();
    fleet.until_led(&rest).await;
    fleet.until_even(&rest).await;
    fleet.settled().await.assert_exact();
    // The row that says who is there is gone with the worker.
    let workers = fleet.store().await.scan().await.expect("a scan").workers;
    assert_eq!(workers.len(), 2, "{workers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_stops_hands_its_leases_over() {
    stop(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stops_hands_its_leases_and_the_lead_over() {
    stop(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_one_to_stop_releases_everything() {
    let fleet = Fleet::over_dynamodb(3).await;
    fleet.produce();
    let only = fleet.start("a").await;
    fleet.until_all_move(3).await;
    fleet.until_led(&[&only]).await;
    let report = only.stop().await;
    assert!(report.is_clean(), "{report:?}");
    let scan = fleet.store().await.scan().await.expect("a scan");
    assert!(scan.leases.iter().all(|lease| lease.owner.is_none()), "{scan:?}");
    assert!(scan.leader_lock.is_none() && scan.workers.is_empty(), "{scan:?}");
    let next = fleet.start("b").await;
    fleet.until_all_move(3).await;
    fleet.settled().await.assert_exact();
    drop(next);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_within_its_deadline_although_a_handler_hangs_and_the_table_is_cut() {
    let fleet = Fleet::over_dynamodb(2).await;
    fleet.produce();
    let only = fleet.start("a").await;
    fleet.until_all_move(2).await;
    fleet.books.set_stuck("a", 0, true);
    fleet.dynamo().cut(true);
    let began = fleet.books.now();
    let report = only.handle.shutdown(Duration::from_secs(2)).await;
    let took = fleet.books.now().since(began);
    assert!(!report.is_clean(), "{report:?}");
    // The grace that the end of a stop has is that of one failover time.
    tracing::info!("the stop took {took:?}: {report:?}");
    fleet.dynamo().cut(false);
    fleet.books.set_stuck("a", 0, false);
    drop(only);
    let next = fleet.start("b").await;
    fleet.until_all_move(2).await;
    fleet.settled().await.complete();
    drop(next);
}
