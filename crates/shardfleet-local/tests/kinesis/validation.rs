//! What the service refuses, and in which words.

use serde_json::json;

use crate::client::{base64, shard, with_stream};

#[tokio::test]
async fn records_that_are_refused() {
    let k = with_stream(1).await;
    let c = &k.client;
    let record = |size: usize, key: &str| json!({"Data": base64(vec![0; size]), "PartitionKey": key});
    let puts = |records: Vec<serde_json::Value>| json!({"StreamName": "s", "Records": records});
    c.err("PutRecords", puts(vec![]), "ValidationException").await;
    let message = c
        .err(
            "PutRecords",
            puts(vec![record(1, "k"); 501]),
            "ValidationException",
        )
        .await;
    assert_eq!(
        message,
        "1 validation error detected: Value '[...]' at 'records' failed to satisfy constraint: Member must have length less \
         than or equal to 500"
    );
    c.ok("PutRecords", puts(vec![record((1 << 20) - 1, "k")])).await;
    c.err(
        "PutRecords",
        puts(vec![record(1 << 20, "k")]),
        "ValidationException",
    )
    .await;
    c.err(
        "PutRecords",
        puts(vec![record(1_000_000, "k"); 11]),
        "InvalidArgumentException",
    )
    .await;
    c.ok("PutRecords", puts(vec![record(1_000_000, "k"); 10])).await;
    let message = c
        .err(
            "PutRecords",
            puts(vec![record(1, "k"), record(1, "")]),
            "ValidationException",
        )
        .await;
    assert!(message.contains("'records.2.member.partitionKey'"), "{message}");
    c.ok("PutRecords", puts(vec![record(1, &"é".repeat(256))])).await;
    c.err(
        "PutRecords",
        puts(vec![record(1, &"é".repeat(257))]),
        "ValidationException",
    )
    .await;
    c.err(
        "PutRecords",
        puts(vec![json!({"Data": "", "PartitionKey": 5})]),
        "SerializationException",
    )
    .await;
    c.err(
        "PutRecords",
        puts(vec![json!({"Data": "%%", "PartitionKey": "k"})]),
        "SerializationException",
    )
    .await;
    c.err(
        "PutRecords",
        puts(vec![json!({"PartitionKey": "k"})]),
        "ValidationException",
    )
    .await;
    c.err(
        "PutRecords",
        puts(vec![json!({"Data": ""})]),
        "ValidationException",
    )
    .await;
}

#[tokio::test]
async fn explicit_hash_keys() {
    let k = with_stream(2).await;
    let c = &k.client;
    let put = |key: &str| json!({"StreamName": "s", "Data": "", "PartitionKey": "k", "ExplicitHashKey": key});
    let max = u128::MAX.to_string();
    assert_eq!(c.ok("PutRecord", put("0")).await["ShardId"], shard(0));
    assert_eq!(c.ok("PutRecord", put(&max)).await["ShardId"], shard(1));
    c.err(
        "PutRecord",
        put("340282366920938463463374607431768211456"),
        "InvalidArgumentException",
    )
    .await;
    for key in ["00", "-1", "+1", "1.0", "", " 1", &"9".repeat(40)] {
        c.err("PutRecord", put(key), "ValidationException").await;
    }
}

#[tokio::test]
async fn requests_that_are_refused() {
    let k = with_stream(2).await;
    let c = &k.client;
    let message = c.err("UnheardOf", json!({}), "UnknownOperationException").await;
    assert!(message.contains("UnheardOf"), "{message}");
    let untargeted = hyper::Request::post(k.service.endpoint())
        .body(http_body_util::Full::new(bytes::Bytes::new()))
        .unwrap();
    let untargeted = c.http().request(untargeted).await.unwrap();
    assert_eq!(untargeted.status(), 403);
    assert_eq!(untargeted.headers()["x-amzn-errortype"], "AccessDeniedException");
    let broken = c.send("ListStreams", crate::client::JSON, "{").await.unwrap();
    assert_eq!(broken.status(), 400);
    c.err("ListStreams", json!([]), "SerializationException").await;
    c.err("ListStreams", json!({"Limit": "5"}), "SerializationException")
        .await;
    c.err("ListStreams", json!({"Limit": 0}), "ValidationException")
        .await;
    c.err("DescribeStream", json!({}), "InvalidArgumentException")
        .await;
    c.err(
        "DescribeStream",
        json!({"StreamName": "no such"}),
        "ValidationException",
    )
    .await;
    c.err(
        "DescribeStream",
        json!({"StreamName": "none"}),
        "ResourceNotFoundException",
    )
    .await;
    c.err(
        "DescribeStream",
        json!({"StreamARN": "arn:x"}),
        "ValidationException",
    )
    .await;
    let elsewhere = "arn:aws:kinesis:us-east-1:123456789012:stream/s";
    c.err(
        "DescribeStream",
        json!({"StreamARN": elsewhere}),
        "ResourceNotFoundException",
    )
    .await;
    c.err("CreateStream", json!({"StreamName": "n"}), "ValidationException")
        .await;
    let both = c
        .err(
            "CreateStream",
            json!({"StreamName": "n n", "ShardCount": 0}),
            "ValidationException",
        )
        .await;
    assert!(both.starts_with("2 validation errors detected: "), "{both}");
    c.err(
        "CreateStream",
        json!({"StreamName": "n", "ShardCount": 20_001}),
        "LimitExceededException",
    )
    .await;
}

#[tokio::test]
async fn positions_and_reshards_that_are_refused() {
    let k = with_stream(2).await;
    let c = &k.client;
    c.err("GetRecords", json!({}), "ValidationException").await;
    c.err(
        "GetRecords",
        json!({"ShardIterator": "x", "Limit": 10_001}),
        "ValidationException",
    )
    .await;
    let iterator = |kind: &str| json!({"StreamName": "s", "ShardId": shard(0), "ShardIteratorType": kind});
    c.err("GetShardIterator", iterator("SOMEWHERE"), "ValidationException")
        .await;
    c.err(
        "GetShardIterator",
        iterator("AT_SEQUENCE_NUMBER"),
        "InvalidArgumentException",
    )
    .await;
    c.err(
        "GetShardIterator",
        iterator("AT_TIMESTAMP"),
        "InvalidArgumentException",
    )
    .await;
    let nowhere = json!({"StreamName": "s", "ShardId": shard(9), "ShardIteratorType": "LATEST"});
    c.err("GetShardIterator", nowhere, "ResourceNotFoundException")
        .await;
    for sequence in ["0", "7", &"4".repeat(56), &"9".repeat(129)] {
        let at = json!({
            "StreamName": "s", "ShardId": shard(0), "ShardIteratorType": "AT_SEQUENCE_NUMBER",
            "StartingSequenceNumber": sequence,
        });
        c.err("GetShardIterator", at, "InvalidArgumentException").await;
    }
    let merge = json!({"StreamName": "s", "ShardToMerge": shard(0), "AdjacentShardToMerge": shard(0)});
    c.err("MergeShards", merge, "InvalidArgumentException").await;
    let split = |shard: String, key: &str| json!({"StreamName": "s", "ShardToSplit": shard, "NewStartingHashKey": key});
    c.err("SplitShard", split(shard(7), "5"), "ResourceNotFoundException")
        .await;
    c.err(
        "SplitShard",
        split(shard(0), &u128::MAX.to_string()),
        "InvalidArgumentException",
    )
    .await;
    c.err(
        "SplitShard",
        json!({"StreamName": "s", "ShardToSplit": shard(0)}),
        "ValidationException",
    )
    .await;
}
