//! A table that throttles, that is cut off, and whose first calls fail.

use std::time::Duration;

use shardfleet_local::{DynamoFault, DynamoFaultRule, DynamoFaultTimes, FaultAction, FaultRule};

use super::support::Fleet;
use crate::support::{FAILOVER, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_third_of_all_writes_is_throttled_and_no_lease_is_lost() {
    let fleet = Fleet::over_dynamodb(6).await;
    let first = fleet.start("a").await;
    let second = fleet.start("b").await;
    fleet.produce();
    fleet.until_even(&[&first, &second]).await;
    let starts = fleet.books.starts();
    for (seed, operation) in [(1, "UpdateItem"), (2, "PutItem"), (3, "DeleteItem")] {
        let rule = DynamoFaultRule::on(operation, DynamoFault::Throttle);
        let times = DynamoFaultTimes::Share { share: 0.3, seed };
        fleet.dynamo().add_fault(rule.times(times));
    }
    // Six leases are renewed at least once a second each.
    let now = fleet.books.now();
    until("several lease durations", || async {
        fleet.books.now().since(now) > FAILOVER * 4
    })
    .await;
    let throttled = fleet.dynamo().faults();
    fleet.dynamo().clear_faults();
    assert!(throttled > 10, "{throttled} throttled only");
    fleet.settled().await.assert_exact();
    assert_eq!(fleet.books.starts(), starts, "a lease was lost");
    drop((first, second));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_outage_longer_than_leases_last_everything_is_read_again() {
    let fleet = Fleet::over_dynamodb(6).await;
    let first = fleet.start("a").await;
    let second = fleet.start("b").await;
    fleet.produce();
    fleet.until_even(&[&first, &second]).await;
    fleet.dynamo().cut(true);
    let cut = fleet.books.now();
    until("the leases to run out", || async {
        fleet.books.now().since(cut) > FAILOVER * 3 / 2
    })
    .await;
    let unreachable = |member: &super::support::Member| member.handle.fleet().store_unreachable_for;
    until("both to say so", || async {
        unreachable(&first).is_some() && unreachable(&second).is_some()
    })
    .await;
    // Nobody may read what another one may hold by now.
    let since = fleet.books.now();
    let calls = fleet.dynamo().all_calls().values().sum::<u64>();
    until("calls in vain", || async {
        fleet.dynamo().all_calls().values().sum::<u64>() > calls + 5
    })
    .await;
    assert!(
        fleet.books.moving(since).is_empty(),
        "{:?}",
        fleet.books.moving(since)
    );
    fleet.dynamo().cut(false);
    let back = fleet.books.now();
    fleet.until_moving(&(0..6).collect(), back).await;
    tracing::info!(
        "all is read again {:?} after it returned",
        fleet.books.now().since(back)
    );
    fleet.until_led(&[&first, &second]).await;
    fleet.settled().await.complete();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_call_of_any_kind_fails_once_and_the_start_succeeds() {
    for operation in [
        "CreateTable",
        "DescribeTable",
        "UpdateTable",
        "GetItem",
        "PutItem",
        "UpdateItem",
        "DeleteItem",
        "Query",
        "Scan",
    ] {
        for fault in [
            DynamoFault::InternalError,
            DynamoFault::Cut,
            DynamoFault::LoseAnswer,
            DynamoFault::error("LimitExceededException"),
        ] {
            let fleet = Fleet::over_dynamodb(1).await;
            let said = format!("{operation} {fault:?}");
            fleet
                .dynamo()
                .add_fault(DynamoFaultRule::on(operation, fault).once());
            let only = fleet.start("a").await;
            fleet.put_one_on_each();
            fleet.until_all_move_since_start(1).await;
            let balance = fleet.settled().await;
            assert!(balance.lost.is_empty(), "{said}: {balance:?}");
            drop(only);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_call_of_kinesis_fails_once_and_the_start_succeeds() {
    for operation in [
        "ListShards",
        "DescribeStreamSummary",
        "GetShardIterator",
        "GetRecords",
    ] {
        for action in [
            FaultAction::throttled(),
            FaultAction::error("InternalFailure", "a fault"),
            FaultAction::error("LimitExceededException", "a fault"),
        ] {
            let fleet = Fleet::over_memory(1).await;
            fleet
                .kinesis()
                .add_fault(FaultRule::new(operation, action).once());
            let only = fleet.start("a").await;
            fleet.put_one_on_each();
            fleet.until_all_move_since_start(1).await;
            fleet.settled().await.assert_exact();
            drop(only);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_answers_slowly_costs_no_lease() {
    let fleet = Fleet::over_dynamodb(4).await;
    let first = fleet.start("a").await;
    let second = fleet.start("b").await;
    fleet.produce();
    fleet.until_even(&[&first, &second]).await;
    let starts = fleet.books.starts();
    fleet.dynamo().add_fault(DynamoFaultRule::on(
        "*",
        DynamoFault::delay(Duration::from_millis(400)),
    ));
    let now = fleet.books.now();
    until("several lease durations", || async {
        fleet.books.now().since(now) > FAILOVER * 3
    })
    .await;
    fleet.dynamo().clear_faults();
    fleet.settled().await.assert_exact();
    assert_eq!(fleet.books.starts(), starts, "a lease was lost");
    drop((first, second));
}
