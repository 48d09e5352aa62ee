//! Counters, and control over HTTP.

use serde_json::{Value, json};

use crate::client::{put, start};

#[tokio::test]
async fn calls_are_counted_by_operation_and_table() {
    let db = start().await;
    db.client.put("a", "w").await;
    db.client.put("b", "w").await;
    db.client
        .call("PutItem", json!({"TableName": "other-table", "Item": {}}))
        .await;
    assert_eq!(db.controls.calls("PutItem"), 3);
    assert_eq!(db.controls.calls_on("PutItem", "leases"), 2);
    assert_eq!(db.controls.calls("CreateTable"), 1);
    db.controls.reset_calls();
    assert!(db.controls.all_calls().is_empty());
    assert_eq!(db.controls.calls_on("PutItem", "leases"), 0);
}

#[tokio::test]
async fn everything_can_be_asked_for_over_http() {
    let db = start().await;
    let client = &db.client;
    let nothing = Value::Null;
    assert_eq!(
        client.control("GET", "health", &nothing).await.body["status"],
        "ok"
    );

    let rule = json!({
        "operation": "PutItem", "table": "leases", "containing": "a", "skip": 0, "times": 1,
        "action": {"type": "error", "code": "ThrottlingException"},
    });
    let id = client.control("POST", "faults", &rule).await.body["id"].clone();
    client
        .err("PutItem", put("a", "w"), 400, "ThrottlingException")
        .await;
    let listed = client.control("GET", "faults", &nothing).await.body;
    assert_eq!((&listed[0]["id"], &listed[0]["hits"]), (&id, &json!(1)));
    assert_eq!(listed[0]["rule"]["times"], 1);
    let path = format!("faults/{id}");
    assert_eq!(client.control("DELETE", &path, &nothing).await.status, 200);
    assert_eq!(client.control("GET", "faults", &nothing).await.body, json!([]));

    client.control("POST", "cut", &json!({"cut": true})).await;
    assert!(client.try_call("PutItem", put("a", "w")).await.is_none());
    client.control("POST", "cut", &json!({"cut": false})).await;

    let lag = json!({"lag": {"writes": 1, "all_reads": true}});
    client.control("POST", "lag", &lag).await;
    client.put("a", "w").await;
    assert_eq!(client.owner_of("a", false).await, "");
    let told = client.control("GET", "lag", &nothing).await.body;
    assert_eq!(told["lag"]["writes"], 1);
    client.control("POST", "lag", &json!({"lag": null})).await;
    assert_eq!(client.owner_of("a", false).await, "w");

    let calls = client.control("GET", "calls", &nothing).await.body;
    assert_eq!(calls["tables"]["PutItem"]["leases"], 3);
    assert_eq!(calls["faults"], 2);
    client.control("DELETE", "calls", &nothing).await;
    assert_eq!(db.controls.calls("PutItem"), 0);
}

#[tokio::test]
async fn wrong_controls_are_refused_with_the_reason() {
    let db = start().await;
    let throttle = json!({"type": "throttle"});
    let both = json!({"operation": "*", "times": 1, "share": 0.5, "action": throttle});
    let beyond = json!({"operation": "*", "share": 1.5, "action": throttle});
    for (path, body) in [
        ("faults", both),
        ("faults", beyond),
        ("faults", json!({"operation": "*"})),
        ("lag", json!({"lag": {"millis": 1, "writes": 1}})),
        ("cut", json!({})),
    ] {
        let reply = db.client.control("POST", path, &body).await;
        assert_eq!(reply.status, 400, "{path} {body}: {}", reply.body);
        assert!(reply.body["error"].is_string());
    }
    let reply = db.client.control("GET", "nonsense", &Value::Null).await;
    assert_eq!(reply.status, 404);
    let reply = db.client.control("DELETE", "faults/x", &Value::Null).await;
    assert_eq!(reply.status, 400);
}
