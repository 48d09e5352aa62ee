//! Each fault, and which calls a rule acts on.

use std::time::{Duration, Instant};

use serde_json::json;
use shardfleet_local::{DynamoFault, DynamoFaultRule, DynamoFaultTimes};

use crate::client::{put, renew, start};

#[tokio::test]
async fn errors_are_answered_and_nothing_is_performed() {
    let db = start().await;
    let cases = [
        (
            DynamoFault::Throttle,
            400,
            "ProvisionedThroughputExceededException",
        ),
        (
            DynamoFault::error("ThrottlingException"),
            400,
            "ThrottlingException",
        ),
        (DynamoFault::InternalError, 500, "InternalServerError"),
    ];
    for (fault, status, code) in cases {
        let id = db
            .controls
            .add_fault(DynamoFaultRule::on("PutItem", fault).once());
        db.client.err("PutItem", put("a", "w"), status, code).await;
        assert_eq!(db.client.owner_of("a", true).await, "", "{code}");
        assert_eq!(db.controls.hits(id), 1);
        db.controls.remove_fault(id);
    }
    db.client.put("a", "w").await;
    assert_eq!(db.client.owner_of("a", true).await, "w");
    assert_eq!(db.controls.faults(), 3);
}

#[tokio::test]
async fn a_lost_answer_was_performed_and_a_cut_call_was_not() {
    let db = start().await;
    db.client.put("a", "one").await;
    db.controls
        .add_fault(DynamoFaultRule::on("UpdateItem", DynamoFault::Cut).once());
    db.controls
        .add_fault(DynamoFaultRule::on("UpdateItem", DynamoFault::LoseAnswer).once());
    assert!(
        db.client
            .try_call("UpdateItem", renew("a", "two", 0))
            .await
            .is_none()
    );
    assert_eq!(db.client.owner_of("a", true).await, "one");
    assert!(
        db.client
            .try_call("UpdateItem", renew("a", "two", 0))
            .await
            .is_none()
    );
    assert_eq!(db.client.owner_of("a", true).await, "two");
    // A repeated call finds its own work done.
    let refused = "ConditionalCheckFailedException";
    db.client
        .err("UpdateItem", renew("a", "two", 0), 400, refused)
        .await;
}

#[tokio::test]
async fn a_delayed_call_is_performed_later_and_other_faults_go_on_behind_it() {
    let db = start().await;
    let time = Duration::from_millis(80);
    db.controls
        .add_fault(DynamoFaultRule::on("PutItem", DynamoFault::delay(time)));
    db.controls
        .add_fault(DynamoFaultRule::on("PutItem", DynamoFault::Throttle).skip(1));
    let started = now();
    db.client.put("a", "w").await;
    assert!(started.elapsed() >= time);
    let started = now();
    let code = "ProvisionedThroughputExceededException";
    db.client.err("PutItem", put("a", "w"), 400, code).await;
    assert!(started.elapsed() >= time);
}

#[expect(clippy::disallowed_methods, reason = "a delay in real time is measured")]
fn now() -> Instant {
    Instant::now()
}

#[tokio::test]
async fn a_rule_acts_on_its_table_key_and_turn_only() {
    let db = start().await;
    let rule = DynamoFaultRule::on("*", DynamoFault::InternalError)
        .table("leases")
        .containing("shardId-1")
        .skip(1)
        .times(DynamoFaultTimes::Times(2));
    let other_table = DynamoFaultRule::on("*", DynamoFault::Cut).table("other");
    db.controls.add_fault(other_table);
    db.controls.add_fault(rule);
    let mut statuses = Vec::new();
    for _ in 0..5 {
        statuses.push(db.client.call("PutItem", put("shardId-1", "w")).await.status);
        db.client.put("shardId-2", "w").await;
    }
    assert_eq!(statuses, [200, 500, 500, 200, 200]);
}

#[tokio::test]
async fn a_share_of_calls_fails_and_the_same_seed_chooses_the_same() {
    let db = start().await;
    let mut runs = Vec::new();
    for _ in 0..2 {
        db.controls.clear_faults();
        let times = DynamoFaultTimes::Share { share: 0.3, seed: 7 };
        db.controls
            .add_fault(DynamoFaultRule::on("PutItem", DynamoFault::Throttle).times(times));
        let mut failed = Vec::new();
        for turn in 0..100 {
            if db.client.call("PutItem", put("a", "w")).await.status != 200 {
                failed.push(turn);
            }
        }
        runs.push(failed);
    }
    assert_eq!(runs[0], runs[1]);
    assert!((15..45).contains(&runs[0].len()), "{}", runs[0].len());
}

#[tokio::test]
async fn a_cut_service_answers_nothing_until_it_is_restored() {
    let db = start().await;
    db.client.put("a", "w").await;
    db.controls.cut(true);
    for _ in 0..3 {
        assert!(db.client.try_call("PutItem", put("b", "w")).await.is_none());
        assert!(db.client.try_call("ListTables", json!({})).await.is_none());
    }
    db.controls.cut(false);
    assert_eq!(db.client.owned_by("w").await, ["a"]);
}

#[tokio::test]
async fn calls_that_are_under_way_lose_their_answers_to_an_outage() {
    let db = start().await;
    db.controls.add_fault(DynamoFaultRule::on(
        "PutItem",
        DynamoFault::delay(Duration::from_millis(300)),
    ));
    let client = db.client.clone();
    let call = tokio::spawn(async move { client.try_call("PutItem", put("a", "w")).await.is_none() });
    crate::client::poll("the call to come", async || db.controls.calls("PutItem") == 1).await;
    db.controls.cut(true);
    assert!(call.await.expect("no panic"), "an answer came through an outage");
    db.controls.clear_faults();
    assert_eq!(db.client.owner_of("a", true).await, "w");
}
