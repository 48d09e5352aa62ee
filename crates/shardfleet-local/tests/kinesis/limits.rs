//! Service limits, when switched on.

use std::time::Duration;

use serde_json::json;
use shardfleet_local::ServiceLimits;

use crate::client::{base64, shard, with_stream};

const START: u64 = 1_900_000_000_000;

#[tokio::test]
async fn no_limit_by_default() {
    let k = with_stream(1).await;
    let iterator = k.client.iterator("s", &shard(0), "LATEST").await;
    for _ in 0..30 {
        k.client.get(&iterator).await;
    }
}

#[tokio::test]
async fn five_reads_a_second() {
    let k = with_stream(2).await;
    let c = &k.client;
    k.controls.use_manual_clock(START);
    k.controls.set_limits(ServiceLimits::aws());
    let iterator = c.iterator("s", &shard(0), "LATEST").await;
    let other = c.iterator("s", &shard(1), "LATEST").await;
    for _ in 0..5 {
        c.get(&iterator).await;
    }
    let body = json!({"ShardIterator": iterator});
    let message = c
        .err("GetRecords", body, "ProvisionedThroughputExceededException")
        .await;
    assert!(
        message.starts_with("Rate exceeded for shard shardId-000000000000 in stream s"),
        "{message}"
    );
    c.get(&other).await;
    k.controls.advance(Duration::from_secs(1));
    c.get(&iterator).await;
    k.controls.set_limits(ServiceLimits::off());
    for _ in 0..10 {
        c.get(&iterator).await;
    }
}

#[tokio::test]
async fn reading_too_many_bytes_blocks_the_shard() {
    let k = with_stream(1).await;
    let c = &k.client;
    k.controls.use_manual_clock(START);
    for _ in 0..11 {
        k.controls.put("s", "k", vec![0; 1_000_000]).unwrap();
    }
    k.controls.set_limits(ServiceLimits::aws());
    let iterator = c.iterator("s", &shard(0), "TRIM_HORIZON").await;
    let page = c.get(&iterator).await;
    assert_eq!(page["Records"].as_array().unwrap().len(), 10);
    let next = json!({"ShardIterator": page["NextShardIterator"]});
    k.controls.advance(Duration::from_millis(4700));
    c.err(
        "GetRecords",
        next.clone(),
        "ProvisionedThroughputExceededException",
    )
    .await;
    k.controls.advance(Duration::from_millis(300));
    assert_eq!(
        c.ok("GetRecords", next).await["Records"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test]
async fn writing_too_much_fails_record_by_record() {
    let k = with_stream(1).await;
    let c = &k.client;
    k.controls.use_manual_clock(START);
    k.controls.set_limits(ServiceLimits::aws());
    let records = vec![json!({"Data": base64([0; 10_000]), "PartitionKey": "k"}); 200];
    let answer = c
        .ok("PutRecords", json!({"StreamName": "s", "Records": records}))
        .await;
    assert_eq!(answer["FailedRecordCount"], 96);
    assert_eq!(
        answer["Records"][199]["ErrorCode"],
        "ProvisionedThroughputExceededException"
    );
    assert_eq!(answer["Records"][199].get("SequenceNumber"), None);
    let one = json!({"StreamName": "s", "Data": base64(vec![0; 20_000]), "PartitionKey": "k"});
    c.err("PutRecord", one.clone(), "ProvisionedThroughputExceededException")
        .await;
    k.controls.advance(Duration::from_millis(100));
    c.ok("PutRecord", one).await;
}

#[tokio::test]
async fn listing_and_scaling_too_often() {
    let k = with_stream(1).await;
    let c = &k.client;
    k.controls.use_manual_clock(START);
    let reply = c
        .control(
            "POST",
            "limits",
            json!({"list_shards_per_second": 2, "update_shard_count_per_day": 1}),
        )
        .await;
    assert_eq!(reply.body["list_shards_per_second"], 2);
    for _ in 0..2 {
        c.ok("ListShards", json!({"StreamName": "s"})).await;
    }
    c.err("ListShards", json!({"StreamName": "s"}), "LimitExceededException")
        .await;
    let count = json!({"StreamName": "s", "TargetShardCount": 1, "ScalingType": "UNIFORM_SCALING"});
    c.ok("UpdateShardCount", count.clone()).await;
    c.wait_for("s", "ACTIVE").await;
    c.err("UpdateShardCount", count, "LimitExceededException").await;
    assert_eq!(
        c.control("POST", "limits", json!({"preset": "all"})).await.status,
        400
    );
    assert_eq!(
        c.control("POST", "limits", json!({"nonsense": 1})).await.status,
        400
    );
    c.control("POST", "limits", json!({"preset": "aws"})).await;
    assert_eq!(k.controls.settings().limits, ServiceLimits::aws());
}
