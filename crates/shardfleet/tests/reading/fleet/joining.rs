//! Workers that join, and what they are given.

use std::time::Duration;

use shardfleet::core::watchdog::Standstill;

use super::support::Fleet;
use crate::support::until;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_join_get_their_shares_and_nothing_comes_twice() {
    let fleet = Fleet::over_memory(8).await;
    let first = fleet.start("a").await;
    fleet.produce();
    fleet.until_all_move(8).await;
    let second = fleet.start("b").await;
    fleet.until_even(&[&first, &second]).await;
    let third = fleet.start("c").await;
    fleet.until_even(&[&first, &second, &third]).await;
    let since = fleet.books.now();
    fleet.until_moving(&(0..8).collect(), since).await;
    for member in [&first, &second, &third] {
        let has = fleet.books.shards_of(&member.name, since);
        assert!((2..=3).contains(&has.len()), "{} reads {has:?}", member.name);
    }
    fleet.settled().await.assert_exact();
    // Each lease moved once at most for each worker that joined: 4 to the second, 2 to the third.
    assert!(
        fleet.books.starts().len() <= 8 + 4 + 2 + 1,
        "{:?}",
        fleet.books.starts()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_even_fleet_is_left_alone() {
    let mut fleet = Fleet::over_memory(7).await;
    fleet.failover_time = Duration::from_secs(1);
    fleet.settings.variance_balancing_frequency = 1;
    let first = fleet.start("a").await;
    let second = fleet.start("b").await;
    fleet.produce();
    fleet.until_even(&[&first, &second]).await;
    let starts = fleet.books.starts().len();
    // So many records that dozens of assignment runs have happened, some of them for the balance.
    let now = fleet.books.now();
    until("ten seconds of records", || async {
        fleet.books.now().since(now) > Duration::from_secs(10)
    })
    .await;
    assert_eq!(fleet.books.starts().len(), starts, "{:?}", fleet.books.starts());
    fleet.settled().await.assert_exact();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_that_start_at_once_on_an_empty_account_all_work() {
    let fleet = Fleet::over_dynamodb(8).await;
    fleet.produce();
    let (a, b, c, d) = tokio::join!(
        fleet.start("a"),
        fleet.start("b"),
        fleet.start("c"),
        fleet.start("d")
    );
    let members = [&a, &b, &c, &d];
    fleet.until_even(&members).await;
    let since = fleet.books.now();
    until("records for all of them", || async {
        members
            .iter()
            .all(|member| !fleet.books.shards_of(&member.name, since).is_empty())
    })
    .await;
    fleet.until_led(&members).await;
    fleet.settled().await.complete();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_given_more_than_the_limit() {
    let mut fleet = Fleet::over_memory(8).await;
    fleet.settings.assignment.max_leases_for_worker = 3;
    fleet.produce();
    let first = fleet.start("a").await;
    let second = fleet.start("b").await;
    until("six leases held", || async {
        fleet.counts().await.values().sum::<usize>() == 6
    })
    .await;
    // The other two are said to have nobody.
    until("two without an owner", || async {
        let members = [&first, &second];
        members.iter().any(|member| {
            let status = member.handle.fleet();
            let alone = status.shards.iter().filter(|shard| {
                matches!(
                    shard.standstill,
                    Some((Standstill::NoOwner | Standstill::NoLeader, _))
                )
            });
            alone.count() == 2
        })
    })
    .await;
    assert!(fleet.counts().await.values().all(|count| *count <= 3));
    let third = fleet.start("c").await;
    let since = fleet.books.now();
    fleet.until_moving(&(0..8).collect(), since).await;
    let counts = fleet.counts().await;
    assert!(counts.values().all(|count| *count <= 3), "{counts:?}");
    fleet.settled().await.assert_exact();
    drop(third);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_of_a_split_and_a_merge_are_read_by_somebody_and_only_after_their_parents() {
    let fleet = Fleet::over_memory(4).await;
    let first = fleet.start("a").await;
    let second = fleet.start("b").await;
    fleet.until_even(&[&first, &second]).await;
    fleet.put_one_on_each();
    fleet.world.split(0);
    fleet.world.merge(2, 3);
    fleet.put_one_on_each();
    let since = shardfleet::core::time::Moment::default();
    fleet.until_moving(&(0..7).collect(), since).await;
    let at = |shard: u64| {
        let delivered = fleet.books.delivered();
        let first = delivered.iter().position(|d| d.shard == shard);
        first.unwrap_or_else(|| panic!("nothing of {shard}"))
    };
    for (child, parents) in [(4, vec![0]), (5, vec![0]), (6, vec![2, 3])] {
        for parent in parents {
            assert!(at(parent) < at(child), "{:?}", fleet.books.delivered());
        }
    }
    fleet.settled().await.assert_exact();
}
