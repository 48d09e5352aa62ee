//! Listing shards, and naming streams by ARN.

use serde_json::{Value, json};

use crate::client::base64;
use crate::probe::{Probe, arn, merge, shard_id};

/// The ids of listed shards.
pub(super) fn ids(shards: &[Value]) -> Value {
    shards.iter().map(|s| s["ShardId"].clone()).collect()
}

pub(super) async fn by_arn(p: &mut Probe) {
    p.make("by-arn", 2).await;
    let name = json!({"StreamARN": arn("by-arn")});
    let with = |more: Value| {
        let mut body = name.clone();
        merge(&mut body, more);
        body
    };
    p.step("list shards", "ListShards", name.clone()).await;
    p.step("describe", "DescribeStream", name.clone()).await;
    let record = json!({"PartitionKey": "k", "ExplicitHashKey": "0", "Data": base64("x")});
    p.step("put many", "PutRecords", with(json!({"Records": [record]})))
        .await;
    p.step("put", "PutRecord", with(record)).await;
    let start = with(json!({"ShardId": shard_id(0), "ShardIteratorType": "TRIM_HORIZON"}));
    let iterator = p
        .step("iterator", "GetShardIterator", start)
        .await
        .text("/ShardIterator");
    let read = with(json!({"ShardIterator": iterator}));
    let page = p.call("GetRecords", read).await;
    p.note("get", page.list("/Records").len());
    p.make("by-arn-other", 1).await;
    let other = json!({"StreamARN": arn("by-arn-other"), "ShardIterator": iterator});
    p.step("get with another stream's ARN", "GetRecords", other).await;
    p.step("neither name nor ARN", "ListShards", json!({})).await;
    p.step("no ARN at all", "ListShards", json!({"StreamARN": "by-arn"}))
        .await;
    let absent = json!({"StreamARN": arn("absent")});
    p.step("ARN of no stream", "ListShards", absent).await;
}

pub(super) async fn pages(p: &mut Probe) {
    p.make("pages", 5).await;
    let first = p
        .step(
            "first two",
            "ListShards",
            json!({"StreamName": "pages", "MaxResults": 2}),
        )
        .await;
    let token = first.text("/NextToken");
    let second = p
        .call("ListShards", json!({"NextToken": token, "MaxResults": 2}))
        .await;
    p.note("next two", ids(&second.list("/Shards")));
    let last = p
        .call("ListShards", json!({"NextToken": second.text("/NextToken")}))
        .await;
    p.note("the last", ids(&last.list("/Shards")));
    p.note("no token at the end", last.text("/NextToken").is_empty());
    let by_arn = p
        .call(
            "ListShards",
            json!({"NextToken": token, "StreamARN": arn("pages")}),
        )
        .await;
    p.note(
        "token with ARN",
        if by_arn.is_ok() {
            ids(&by_arn.list("/Shards"))
        } else {
            json!("refused")
        },
    );
    p.step(
        "token with name",
        "ListShards",
        json!({"NextToken": token, "StreamName": "pages"}),
    )
    .await;
    let start = json!({"NextToken": token, "ExclusiveStartShardId": shard_id(0)});
    p.step("token with a start", "ListShards", start).await;
    p.step("bad token", "ListShards", json!({"NextToken": "rubbish"}))
        .await;
    let after = json!({"StreamName": "pages", "ExclusiveStartShardId": shard_id(2)});
    let after = p.call("ListShards", after).await;
    p.note("after the third", ids(&after.list("/Shards")));
    p.step(
        "MaxResults 0",
        "ListShards",
        json!({"StreamName": "pages", "MaxResults": 0}),
    )
    .await;
    p.step(
        "MaxResults 10001",
        "ListShards",
        json!({"StreamName": "pages", "MaxResults": 10_001}),
    )
    .await;
    let other_time = json!({"StreamName": "pages", "StreamCreationTimestamp": 1_000_000_000});
    p.step("another creation time", "ListShards", other_time).await;
}

pub(super) async fn filters(p: &mut Probe) {
    p.make("filters", 2).await;
    p.put("filters", "before").await;
    let before = now_of(p, "filters").await;
    // A while on either side of the split: kinesis-local is in two minds about the moments next to it.
    a_second_passes(p, "filters").await;
    let split = json!({"StreamName": "filters", "ShardToSplit": shard_id(0), "NewStartingHashKey": "1000"});
    p.call("SplitShard", split).await;
    p.settled("filters").await;
    a_second_passes(p, "filters").await;
    let after = now_of(p, "filters").await;
    let all = [
        ("none", json!({})),
        ("AT_LATEST", json!({"ShardFilter": {"Type": "AT_LATEST"}})),
        (
            "AT_TRIM_HORIZON",
            json!({"ShardFilter": {"Type": "AT_TRIM_HORIZON"}}),
        ),
        (
            "FROM_TRIM_HORIZON",
            json!({"ShardFilter": {"Type": "FROM_TRIM_HORIZON"}}),
        ),
        (
            "AFTER_SHARD_ID",
            json!({"ShardFilter": {"Type": "AFTER_SHARD_ID", "ShardId": shard_id(1)}}),
        ),
        (
            "AT_TIMESTAMP before the split",
            json!({"ShardFilter": {"Type": "AT_TIMESTAMP", "Timestamp": before}}),
        ),
        (
            "FROM_TIMESTAMP before the split",
            json!({"ShardFilter": {"Type": "FROM_TIMESTAMP", "Timestamp": before}}),
        ),
        (
            "AT_TIMESTAMP after the split",
            json!({"ShardFilter": {"Type": "AT_TIMESTAMP", "Timestamp": after}}),
        ),
        (
            "FROM_TIMESTAMP after the split",
            json!({"ShardFilter": {"Type": "FROM_TIMESTAMP", "Timestamp": after}}),
        ),
    ];
    for (name, mut body) in all {
        merge(&mut body, json!({"StreamName": "filters"}));
        let answer = p.call("ListShards", body).await;
        p.note(
            name,
            if answer.is_ok() {
                ids(&answer.list("/Shards"))
            } else {
                json!("refused")
            },
        );
    }
    let refused = [
        ("unknown type", json!({"Type": "SOME"})),
        (
            "AFTER_SHARD_ID without a shard",
            json!({"Type": "AFTER_SHARD_ID"}),
        ),
        ("AT_TIMESTAMP without a time", json!({"Type": "AT_TIMESTAMP"})),
    ];
    for (name, filter) in refused {
        let body = json!({"StreamName": "filters", "ShardFilter": filter});
        p.step(name, "ListShards", body).await;
    }
}

/// Puts records until they come a second later than the first of them.
async fn a_second_passes(p: &mut Probe, stream: &str) {
    p.put(stream, "at first").await;
    let start = now_of(p, stream).await;
    while now_of(p, stream).await < start + 1.1 {
        p.put(stream, "a little later").await;
    }
}

/// The arrival time of a stream's newest record, as that service tells time.
async fn now_of(p: &mut Probe, stream: &str) -> f64 {
    let mut newest = 0.0;
    let shards = p
        .call("ListShards", json!({"StreamName": stream}))
        .await
        .list("/Shards");
    for number in 0..u32::try_from(shards.len()).unwrap_or(0) {
        let iterator = p
            .iterator(stream, number, json!({"ShardIteratorType": "TRIM_HORIZON"}))
            .await;
        let records = p
            .call("GetRecords", json!({"ShardIterator": iterator}))
            .await
            .list("/Records");
        for record in records {
            newest = record["ApproximateArrivalTimestamp"]
                .as_f64()
                .unwrap_or(0.0)
                .max(newest);
        }
    }
    newest
}
