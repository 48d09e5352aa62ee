//! What the database does where nobody interferes.

use serde_json::json;

use crate::client::{Client, keys, put, renew, start};

#[tokio::test]
async fn conditional_updates_hold_or_are_refused() {
    let db = start().await;
    db.client.put("a", "one").await;
    db.client.ok("UpdateItem", renew("a", "two", 0)).await;
    let refused = "ConditionalCheckFailedException";
    db.client
        .err("UpdateItem", renew("a", "three", 0), 400, refused)
        .await;
    assert_eq!(db.client.owner_of("a", true).await, "two");
    let mut only_new = put("a", "four");
    only_new["ConditionExpression"] = json!("attribute_not_exists(leaseKey)");
    db.client.err("PutItem", only_new, 400, refused).await;
    assert_eq!(db.client.owned_by("two").await, ["a"]);
    assert!(db.client.owned_by("one").await.is_empty());
    db.service.stop().await;
}

#[tokio::test]
async fn an_index_shows_every_write_at_once() {
    let db = start().await;
    for lease in ["b", "a", "c"] {
        db.client.put(lease, "w").await;
    }
    assert_eq!(db.client.owned_by("w").await, ["a", "b", "c"]);
    let scanned = db.client.ok("Scan", json!({"TableName": "leases"})).await;
    assert_eq!(keys(&scanned), ["a", "b", "c"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_compare_and_sets_have_one_winner() {
    let db = start().await;
    db.client.put("a", "nobody").await;
    for round in 0..20 {
        let calls = (0..16).map(|worker| {
            let client = db.client.clone();
            tokio::spawn(async move {
                client
                    .call("UpdateItem", renew("a", &format!("w{worker}"), round))
                    .await
            })
        });
        let mut winners = 0;
        for reply in futures::future::join_all(calls).await {
            let reply = reply.expect("no panic");
            match reply.status {
                200 => winners += 1,
                _ => assert_eq!(reply.code(), "ConditionalCheckFailedException"),
            }
        }
        assert_eq!(winners, 1, "round {round}");
    }
}

#[tokio::test]
async fn http2_by_prior_knowledge_works() {
    let db = start().await;
    let client = Client::http2(&db.service.endpoint());
    client.put("a", "w").await;
    assert_eq!(client.owner_of("a", true).await, "w");
}

#[tokio::test]
async fn continuous_backups_are_answered() {
    let db = start().await;
    let table = json!({"TableName": "leases"});
    let status = |answer: &serde_json::Value| {
        let description = &answer["ContinuousBackupsDescription"]["PointInTimeRecoveryDescription"];
        description["PointInTimeRecoveryStatus"]
            .as_str()
            .map(str::to_owned)
    };
    let before = db.client.ok("DescribeContinuousBackups", table.clone()).await;
    assert_eq!(status(&before).as_deref(), Some("DISABLED"));
    let switch_on = json!({
        "TableName": "leases", "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": true},
    });
    let answer = db.client.ok("UpdateContinuousBackups", switch_on.clone()).await;
    assert_eq!(status(&answer).as_deref(), Some("ENABLED"));
    let after = db.client.ok("DescribeContinuousBackups", table.clone()).await;
    assert_eq!(status(&after).as_deref(), Some("ENABLED"));

    let missing = json!({"TableName": "no-such-table"});
    let refused = "TableNotFoundException";
    db.client
        .err("DescribeContinuousBackups", missing, 400, refused)
        .await;
    db.client
        .err(
            "UpdateContinuousBackups",
            table.clone(),
            400,
            "ValidationException",
        )
        .await;

    db.client.ok("DeleteTable", table.clone()).await;
    db.client.create_leases().await;
    let of_new = db.client.ok("DescribeContinuousBackups", table).await;
    assert_eq!(status(&of_new).as_deref(), Some("DISABLED"));
}

#[tokio::test]
async fn what_is_not_a_call_is_refused() {
    let db = start().await;
    db.client
        .err("NoSuchOperation", json!({}), 400, "UnknownOperationException")
        .await;
    assert_eq!(db.controls.calls("NoSuchOperation"), 1);
    db.client
        .err(
            "PutItem",
            json!({"TableName": "no-such-table", "Item": {}}),
            400,
            "ResourceNotFoundException",
        )
        .await;
}
