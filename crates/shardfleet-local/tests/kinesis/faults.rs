//! Each fault does what it says, in process and over HTTP.

use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::json;
use shardfleet_local::{FaultAction, FaultRule};

use crate::client::{Client, JSON, base64, payloads, shard, text, with_stream};

#[tokio::test]
async fn errors_on_order() {
    let k = with_stream(2).await;
    let c = &k.client;
    let rule = FaultRule::new("GetRecords", FaultAction::throttled())
        .on_stream("s")
        .on_shard(shard(1))
        .skip(1)
        .times(2);
    let id = k.controls.add_fault(rule);
    let (other, hit) = (
        c.iterator("s", &shard(0), "LATEST").await,
        c.iterator("s", &shard(1), "LATEST").await,
    );
    c.get(&hit).await;
    for _ in 0..2 {
        c.get(&other).await;
        let body = json!({"ShardIterator": hit});
        c.err("GetRecords", body, "ProvisionedThroughputExceededException")
            .await;
    }
    c.get(&hit).await;
    assert_eq!(k.controls.fault_hits(id), 2);
    assert_eq!(k.controls.calls("GetRecords"), 6);
    assert_eq!(k.controls.calls_for("GetRecords", &shard(1)), 4);
    assert_eq!(k.controls.calls_for_stream("GetRecords", "s"), 6);
    k.controls.reset_calls();
    assert_eq!(k.controls.calls("GetRecords"), 0);

    let denied = FaultAction::Error {
        code: "AccessDeniedException".into(),
        message: "no".into(),
        status: 403,
    };
    let id = k.controls.add_fault(FaultRule::new("*", denied));
    let reply = c.call("ListStreams", json!({})).await;
    assert_eq!(
        (reply.status.as_u16(), &reply.body["__type"]),
        (403, &json!("AccessDeniedException"))
    );
    k.controls.remove_fault(id);
    c.ok("ListStreams", json!({})).await;
}

#[tokio::test]
async fn a_500_without_a_body() {
    let k = with_stream(1).await;
    k.controls
        .add_fault(FaultRule::new("PutRecord", FaultAction::ServerError).once());
    let put = json!({"StreamName": "s", "Data": "", "PartitionKey": "k"});
    let response = k.client.send("PutRecord", JSON, put.to_string()).await.unwrap();
    assert_eq!(response.status(), 500);
    assert!(
        response
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes()
            .is_empty()
    );
    assert_eq!(k.controls.shards("s").unwrap()[0].records, 0);
}

#[tokio::test]
async fn a_lost_answer_was_carried_out_and_a_cut_call_was_not() {
    let k = with_stream(1).await;
    let put = json!({"StreamName": "s", "Data": base64("x"), "PartitionKey": "k"}).to_string();
    for client in [k.client.clone(), Client::http2(&k.service.endpoint())] {
        let before = k.controls.shards("s").unwrap()[0].records;
        k.controls
            .add_fault(FaultRule::new("PutRecord", FaultAction::AnswerLost).once());
        assert!(client.send("PutRecord", JSON, put.clone()).await.is_err());
        assert_eq!(k.controls.shards("s").unwrap()[0].records, before + 1);
        k.controls
            .add_fault(FaultRule::new("PutRecord", FaultAction::CutBefore).once());
        assert!(client.send("PutRecord", JSON, put.clone()).await.is_err());
        assert_eq!(k.controls.shards("s").unwrap()[0].records, before + 1);
        client.ok("ListStreams", json!({})).await;
    }
}

#[tokio::test]
async fn delays_hold_a_call_back() {
    let k = with_stream(1).await;
    k.controls
        .add_fault(FaultRule::new("ListStreams", FaultAction::delay(Duration::from_millis(150))).once());
    let slow = k.client.ok("ListStreams", json!({}));
    let waited = tokio::time::timeout(Duration::from_millis(100), slow).await;
    assert!(waited.is_err(), "answered at once");
    k.client.ok("ListStreams", json!({})).await;
}

#[tokio::test]
async fn pages_that_lie() {
    let k = with_stream(1).await;
    let c = &k.client;
    k.controls.put("s", "k", "a").unwrap();
    let iterator = c.iterator("s", &shard(0), "TRIM_HORIZON").await;
    k.controls
        .add_fault(FaultRule::new("GetRecords", FaultAction::NoNextIterator).once());
    let page = c.get(&iterator).await;
    assert_eq!(payloads(&page), ["a"]);
    assert_eq!(
        (page.get("NextShardIterator"), page.get("ChildShards")),
        (None, None)
    );
    k.controls.advance(Duration::from_secs(5));
    k.controls
        .add_fault(FaultRule::new("GetRecords", FaultAction::EmptyPage).once());
    let page = c.get(&iterator).await;
    assert_eq!(payloads(&page).len(), 0);
    assert!(page["MillisBehindLatest"].as_u64().unwrap() >= 5000);
    assert_eq!(payloads(&c.get(&text(&page["NextShardIterator"])).await), ["a"]);
    k.controls.split("s", &shard(0)).unwrap();
    k.controls
        .add_fault(FaultRule::new("GetRecords", FaultAction::EmptyPage).once());
    let page = c.get(&iterator).await;
    assert!(page["NextShardIterator"].is_string());
    assert_eq!(page.get("ChildShards"), None);
}

#[tokio::test]
async fn an_iterator_expires_on_order() {
    let k = with_stream(2).await;
    let c = &k.client;
    let (hit, other) = (
        c.iterator("s", &shard(0), "LATEST").await,
        c.iterator("s", &shard(1), "LATEST").await,
    );
    k.controls.add_fault(
        FaultRule::new("GetRecords", FaultAction::ExpireIterator)
            .on_shard(shard(0))
            .once(),
    );
    for _ in 0..2 {
        c.err(
            "GetRecords",
            json!({"ShardIterator": hit}),
            "ExpiredIteratorException",
        )
        .await;
    }
    c.get(&other).await;
    c.get(&c.iterator("s", &shard(0), "LATEST").await).await;
}

#[tokio::test]
async fn faults_clock_and_counters_over_http() {
    let k = with_stream(1).await;
    let c = &k.client;
    let rule = json!({
        "operation": "ListStreams", "times": 1, "action": {"type": "error", "code": "LimitExceededException"},
    });
    let added = c.control("POST", "faults", rule).await;
    assert_eq!(added.status, 200);
    c.err("ListStreams", json!({}), "LimitExceededException").await;
    c.ok("ListStreams", json!({})).await;
    let listed = c.control("GET", "faults", json!(null)).await.body;
    assert_eq!(
        (&listed[0]["hits"], &listed[0]["rule"]["operation"]),
        (&json!(1), &json!("ListStreams"))
    );
    let id = &listed[0]["id"];
    assert_eq!(
        c.control("DELETE", &format!("faults/{id}"), json!(null))
            .await
            .status,
        200
    );
    assert_eq!(c.control("GET", "faults", json!(null)).await.body, json!([]));
    assert_eq!(c.control("DELETE", "faults", json!(null)).await.status, 200);
    assert_eq!(
        c.control("POST", "faults", json!({"operation": "x"}))
            .await
            .status,
        400
    );
    for action in [
        json!({"type": "stream_cut", "after_events": 1}),
        json!({"type": "answer_lost"}),
    ] {
        let rule = json!({"operation": "None", "stream": "s", "shard": "x", "skip": 2, "action": action});
        assert_eq!(c.control("POST", "faults", rule).await.status, 200);
    }

    let set = c.control("POST", "clock", json!({"epoch_ms": 5000})).await;
    assert_eq!(set.body, json!({"epoch_ms": 5000}));
    c.control("POST", "clock", json!({"advance_ms": 10})).await;
    assert_eq!(
        c.control("GET", "clock", json!(null)).await.body,
        json!({"epoch_ms": 5010})
    );
    c.control("POST", "clock", json!({"real": true})).await;
    assert!(k.controls.now_ms() > 1_000_000_000_000);

    let calls = c.control("GET", "calls", json!(null)).await.body;
    assert_eq!(calls["calls"]["ListStreams"], 2);
    c.control("DELETE", "calls", json!(null)).await;
    assert_eq!(k.controls.all_calls().len(), 0);

    c.control(
        "POST",
        "settings",
        json!({"iterator_lifetime_ms": 1000, "page_bytes": 5, "transition_ms": 0}),
    )
    .await;
    assert_eq!(k.controls.settings().iterator_lifetime, Duration::from_secs(1));
    let iterator = c.iterator("s", &shard(0), "LATEST").await;
    c.control(
        "POST",
        "expire-iterators",
        json!({"stream": "s", "shard": shard(0)}),
    )
    .await;
    c.err(
        "GetRecords",
        json!({"ShardIterator": iterator}),
        "ExpiredIteratorException",
    )
    .await;
    assert_eq!(
        c.control("POST", "retention", json!({"stream": "s", "hours": 1}))
            .await
            .status,
        200
    );
    assert_eq!(
        c.control("POST", "retention", json!({"stream": "none", "hours": 1}))
            .await
            .status,
        400
    );
    assert_eq!(c.control("GET", "health", json!(null)).await.body["streams"], 1);
    assert_eq!(c.control("GET", "nothing", json!(null)).await.status, 404);
}
