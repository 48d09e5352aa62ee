//! Reads that lag behind writes.

use std::time::Duration;

use serde_json::json;
use shardfleet_local::DynamoLag;

use crate::client::{poll, put, renew, start};

#[tokio::test]
async fn an_index_lags_by_writes_and_the_table_does_not() {
    let db = start().await;
    db.client.put("a", "one").await;
    db.controls.set_lag(Some(DynamoLag::by_writes(2)));
    db.client.ok("UpdateItem", renew("a", "two", 0)).await;
    assert_eq!(db.client.owned_by("one").await, ["a"]);
    assert!(db.client.owned_by("two").await.is_empty());
    assert_eq!(db.client.owner_of("a", true).await, "two");
    assert_eq!(db.client.owner_of("a", false).await, "two");

    // A write that was refused counts for nothing.
    let refused = "ConditionalCheckFailedException";
    db.client
        .err("UpdateItem", renew("a", "x", 0), 400, refused)
        .await;
    db.client.put("b", "three").await;
    assert!(db.client.owned_by("two").await.is_empty());
    db.client.put("c", "three").await;
    assert_eq!(db.client.owned_by("two").await, ["a"]);
    assert!(db.client.owned_by("three").await.is_empty());

    db.controls.set_lag(None);
    assert_eq!(db.client.owned_by("three").await, ["b", "c"]);
}

#[tokio::test]
async fn an_index_lags_by_time() {
    let db = start().await;
    db.controls
        .set_lag(Some(DynamoLag::by_time(Duration::from_millis(200))));
    db.client.put("a", "w").await;
    assert!(db.client.owned_by("w").await.is_empty());
    poll("the index to catch up", async || {
        db.client.owned_by("w").await == ["a"]
    })
    .await;
}

#[tokio::test]
async fn a_frozen_index_begins_with_what_is_there() {
    let db = start().await;
    for round in 0..3 {
        db.controls.set_lag(Some(DynamoLag::frozen()));
        let before = db.client.owned_by("w").await;
        assert_eq!(before.len(), round);
        for _ in 0..5 {
            db.client.put(&format!("lease-{round}"), "w").await;
        }
        assert_eq!(db.client.owned_by("w").await, before);
        db.controls.set_lag(None);
        assert_eq!(db.client.owned_by("w").await.len(), round + 1);
    }
}

#[tokio::test]
async fn eventually_consistent_reads_lag_too_where_asked_for() {
    let db = start().await;
    db.client.put("a", "one").await;
    db.controls.set_lag(Some(DynamoLag::frozen().all_reads()));
    db.client.put("a", "two").await;
    assert_eq!(db.client.owner_of("a", false).await, "one");
    assert_eq!(db.client.owner_of("a", true).await, "two");
    let scan = |consistent: bool| json!({"TableName": "leases", "ConsistentRead": consistent});
    let owner = |answer: &serde_json::Value| answer["Items"][0]["leaseOwner"]["S"].clone();
    assert_eq!(owner(&db.client.ok("Scan", scan(false)).await), "one");
    assert_eq!(owner(&db.client.ok("Scan", scan(true)).await), "two");
}

#[tokio::test]
async fn batches_transactions_and_new_tables_reach_the_lagging_copy() {
    let db = start().await;
    db.controls.set_lag(Some(DynamoLag::by_writes(1)));
    let item = |lease: &str| put(lease, "w")["Item"].clone();
    let batch = json!({"RequestItems": {"leases": [
        {"PutRequest": {"Item": item("a")}}, {"PutRequest": {"Item": item("b")}},
    ]}});
    db.client.ok("BatchWriteItem", batch).await;
    assert!(db.client.owned_by("w").await.is_empty());
    let transaction = json!({"TransactItems": [{"Put": put("c", "w")}, {"Put": put("d", "w")}]});
    db.client.ok("TransactWriteItems", transaction).await;
    assert_eq!(db.client.owned_by("w").await, ["a", "b"]);

    db.client.ok("DeleteTable", json!({"TableName": "leases"})).await;
    db.client.create_leases().await;
    db.client.put("e", "w").await;
    assert!(db.client.owned_by("w").await.is_empty());
    db.client.put("f", "w").await;
    assert_eq!(db.client.owned_by("w").await, ["e"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_writers_and_a_lag_leave_one_order() {
    let db = start().await;
    db.client.put("a", "nobody").await;
    db.controls.set_lag(Some(DynamoLag::by_writes(3)));
    for round in 0..5 {
        let calls = (0..16).map(|worker| {
            let client = db.client.clone();
            tokio::spawn(async move {
                client
                    .call("UpdateItem", renew("a", &format!("w{worker}"), round))
                    .await
                    .status
            })
        });
        let statuses = futures::future::join_all(calls).await;
        let winners = statuses.into_iter().filter(|s| matches!(s, Ok(200))).count();
        assert_eq!(winners, 1);
    }
    // Five renewals were performed, and the index shows the second one's.
    let all = db
        .client
        .ok("Scan", json!({"TableName": "leases", "IndexName": "byOwner"}))
        .await;
    assert_eq!(all["Items"][0]["leaseCounter"]["N"], "2");
}
