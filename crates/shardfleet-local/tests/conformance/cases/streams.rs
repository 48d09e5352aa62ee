//! Making, describing, listing and deleting streams.

use serde_json::json;

use crate::probe::{Probe, arn, poll};

/// Comes first: the account has no streams yet.
pub(super) async fn account(p: &mut Probe) {
    p.step("limits of an empty account", "DescribeLimits", json!({}))
        .await;
    p.step("settings", "DescribeAccountSettings", json!({})).await;
    p.step("no streams", "ListStreams", json!({})).await;
}

pub(super) async fn lifecycle(p: &mut Probe) {
    let name = json!({"StreamName": "life"});
    p.step(
        "create",
        "CreateStream",
        json!({"StreamName": "life", "ShardCount": 2}),
    )
    .await;
    let summary = p.call("DescribeStreamSummary", name.clone()).await;
    p.note(
        "status at first",
        summary.text("/StreamDescriptionSummary/StreamStatus"),
    );
    p.step("describe while CREATING", "DescribeStream", name.clone())
        .await;
    p.step("list shards while CREATING", "ListShards", name.clone())
        .await;
    let record = json!({"StreamName": "life", "PartitionKey": "k", "Data": ""});
    p.step("put while CREATING", "PutRecord", record).await;
    let again = json!({"StreamName": "life", "ShardCount": 2});
    p.step("create again", "CreateStream", again).await;
    p.settled("life").await;
    p.step("describe", "DescribeStream", name.clone()).await;
    p.step(
        "describe one shard",
        "DescribeStream",
        json!({"StreamName": "life", "Limit": 1}),
    )
    .await;
    let after = json!({"StreamName": "life", "ExclusiveStartShardId": "shardId-000000000000"});
    p.step("describe from a shard on", "DescribeStream", after).await;
    p.step("summary", "DescribeStreamSummary", name.clone()).await;
    p.step(
        "summary by ARN",
        "DescribeStreamSummary",
        json!({"StreamARN": arn("life")}),
    )
    .await;
    let both = json!({"StreamARN": arn("life"), "StreamName": "death"});
    p.step("name and ARN disagree", "DescribeStreamSummary", both)
        .await;
    p.step("delete", "DeleteStream", name.clone()).await;
    let client = p.client.clone();
    poll("the stream to be gone", async || {
        let answer = client.call("DescribeStreamSummary", &name).await;
        (!answer.is_ok()).then_some(())
    })
    .await;
    p.step("describe when gone", "DescribeStream", name).await;
}

pub(super) async fn create_refused(p: &mut Probe) {
    p.step("no shard count", "CreateStream", json!({"StreamName": "refused"}))
        .await;
    p.step(
        "no shards",
        "CreateStream",
        json!({"StreamName": "refused", "ShardCount": 0}),
    )
    .await;
    p.step(
        "bad name",
        "CreateStream",
        json!({"StreamName": "re fused", "ShardCount": 1}),
    )
    .await;
    p.step(
        "over the shard limit",
        "CreateStream",
        json!({"StreamName": "refused", "ShardCount": 30000}),
    )
    .await;
    let mode = json!({"StreamName": "refused", "ShardCount": 1, "StreamModeDetails": {"StreamMode": "BOTH"}});
    p.step("unknown mode", "CreateStream", mode).await;
}

pub(super) async fn listing(p: &mut Probe) {
    for name in ["list-a", "list-b", "list-c"] {
        p.make(name, 1).await;
    }
    let page = json!({"ExclusiveStartStreamName": "list-", "Limit": 2});
    let first = p.step("first page", "ListStreams", page).await;
    if !first.text("/NextToken").is_empty() {
        let more = json!({"NextToken": first.text("/NextToken"), "Limit": 2});
        let second = p.call("ListStreams", more).await;
        p.note(
            "second page by token",
            second.list("/StreamNames").first().cloned().unwrap_or_default(),
        );
    }
    let page = json!({"ExclusiveStartStreamName": "list-b", "Limit": 1});
    p.step("from a name on", "ListStreams", page).await;
    p.step("limit 0", "ListStreams", json!({"Limit": 0})).await;
    p.step("limit 10001", "ListStreams", json!({"Limit": 10_001}))
        .await;
    p.step("bad token", "ListStreams", json!({"NextToken": "rubbish"}))
        .await;
}

pub(super) async fn on_demand(p: &mut Probe) {
    let create = json!({"StreamName": "demand", "StreamModeDetails": {"StreamMode": "ON_DEMAND"}});
    p.step("create", "CreateStream", create).await;
    p.settled("demand").await;
    p.step(
        "summary",
        "DescribeStreamSummary",
        json!({"StreamName": "demand"}),
    )
    .await;
    let scale = json!({"StreamName": "demand", "TargetShardCount": 5, "ScalingType": "UNIFORM_SCALING"});
    p.step("scale", "UpdateShardCount", scale).await;
    p.settled("demand").await;
    let split =
        json!({"StreamName": "demand", "ShardToSplit": "shardId-000000000000", "NewStartingHashKey": "1000"});
    p.step("split", "SplitShard", split).await;
    p.settled("demand").await;
    let mode = |mode: &str| json!({"StreamARN": arn("demand"), "StreamModeDetails": {"StreamMode": mode}});
    p.step("to PROVISIONED", "UpdateStreamMode", mode("PROVISIONED"))
        .await;
    p.settled("demand").await;
    let summary = p
        .call("DescribeStreamSummary", json!({"StreamName": "demand"}))
        .await;
    p.note(
        "mode afterwards",
        summary.text("/StreamDescriptionSummary/StreamModeDetails/StreamMode"),
    );
    p.step("unknown mode", "UpdateStreamMode", mode("BOTH")).await;
}
