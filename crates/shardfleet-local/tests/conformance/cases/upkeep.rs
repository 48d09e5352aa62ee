//! What a stream has besides shards and records: retention, tags, monitoring, encryption, sizes.

use serde_json::{Value, json};

use crate::probe::{Probe, arn, merge};

fn with(stream: &str, more: Value) -> Value {
    let mut body = json!({"StreamName": stream});
    merge(&mut body, more);
    body
}

pub(super) async fn retention(p: &mut Probe) {
    p.make("keep", 1).await;
    let hours = |hours: i64| json!({"StreamName": "keep", "RetentionPeriodHours": hours});
    p.step("increase", "IncreaseStreamRetentionPeriod", hours(48))
        .await;
    p.settled("keep").await;
    p.step("increase to fewer", "IncreaseStreamRetentionPeriod", hours(24))
        .await;
    p.step("increase to the same", "IncreaseStreamRetentionPeriod", hours(48))
        .await;
    p.settled("keep").await;
    p.step(
        "increase beyond a year",
        "IncreaseStreamRetentionPeriod",
        hours(8761),
    )
    .await;
    p.step("decrease to more", "DecreaseStreamRetentionPeriod", hours(72))
        .await;
    p.step("decrease below a day", "DecreaseStreamRetentionPeriod", hours(23))
        .await;
    p.step("decrease", "DecreaseStreamRetentionPeriod", hours(24))
        .await;
    p.settled("keep").await;
    let summary = p
        .call("DescribeStreamSummary", json!({"StreamName": "keep"}))
        .await;
    let hours = summary
        .body
        .pointer("/StreamDescriptionSummary/RetentionPeriodHours");
    p.note("hours afterwards", hours.cloned().unwrap_or_default());
}

pub(super) async fn tags(p: &mut Probe) {
    p.make("tagged", 1).await;
    let add = with("tagged", json!({"Tags": {"team": "fleet", "stage": "test"}}));
    p.step("add", "AddTagsToStream", add).await;
    p.step("list", "ListTagsForStream", with("tagged", json!({})))
        .await;
    p.step(
        "list one",
        "ListTagsForStream",
        with("tagged", json!({"Limit": 1})),
    )
    .await;
    let after = with("tagged", json!({"ExclusiveStartTagKey": "stage"}));
    p.step("list from a key on", "ListTagsForStream", after).await;
    p.step(
        "remove",
        "RemoveTagsFromStream",
        with("tagged", json!({"TagKeys": ["stage"]})),
    )
    .await;
    p.step(
        "remove what is not there",
        "RemoveTagsFromStream",
        with("tagged", json!({"TagKeys": ["none"]})),
    )
    .await;
    p.step(
        "list after remove",
        "ListTagsForStream",
        with("tagged", json!({})),
    )
    .await;
    let many: serde_json::Map<String, Value> = (0..51).map(|n| (format!("key-{n}"), "v".into())).collect();
    p.step("add 51", "AddTagsToStream", with("tagged", json!({"Tags": many})))
        .await;
    p.step("add none", "AddTagsToStream", with("tagged", json!({"Tags": {}})))
        .await;
    let resource = |more: Value| {
        let mut body = json!({"ResourceARN": arn("tagged")});
        merge(&mut body, more);
        body
    };
    p.step(
        "add by ARN",
        "TagResource",
        resource(json!({"Tags": {"by": "arn"}})),
    )
    .await;
    p.step("list by ARN", "ListTagsForResource", resource(json!({})))
        .await;
    p.step(
        "remove by ARN",
        "UntagResource",
        resource(json!({"TagKeys": ["by"]})),
    )
    .await;
    p.step(
        "list by ARN after remove",
        "ListTagsForResource",
        resource(json!({})),
    )
    .await;
}

pub(super) async fn monitoring(p: &mut Probe) {
    p.make("watched", 1).await;
    let metrics = |metrics: &[&str]| with("watched", json!({"ShardLevelMetrics": metrics}));
    let two = metrics(&["IncomingBytes", "OutgoingRecords"]);
    p.step("enable two", "EnableEnhancedMonitoring", two).await;
    p.settled("watched").await;
    p.step("enable all", "EnableEnhancedMonitoring", metrics(&["ALL"]))
        .await;
    p.settled("watched").await;
    p.step(
        "disable one",
        "DisableEnhancedMonitoring",
        metrics(&["IncomingBytes"]),
    )
    .await;
    p.settled("watched").await;
    p.step("disable all", "DisableEnhancedMonitoring", metrics(&["ALL"]))
        .await;
    p.settled("watched").await;
    p.step("unknown metric", "EnableEnhancedMonitoring", metrics(&["Mood"]))
        .await;
    p.step("no metric", "DisableEnhancedMonitoring", metrics(&[]))
        .await;
}

pub(super) async fn encryption(p: &mut Probe) {
    p.make("sealed", 1).await;
    let key = json!({"StreamName": "sealed", "EncryptionType": "KMS", "KeyId": "alias/aws/kinesis"});
    p.step("start", "StartStreamEncryption", key.clone()).await;
    p.settled("sealed").await;
    p.step(
        "summary",
        "DescribeStreamSummary",
        json!({"StreamName": "sealed"}),
    )
    .await;
    let record = json!({"StreamName": "sealed", "PartitionKey": "k", "Data": "aGVsbG8="});
    p.step("put", "PutRecord", record.clone()).await;
    let records = json!({"StreamName": "sealed", "Records": [{"PartitionKey": "k", "Data": "aGVsbG8="}]});
    p.step("put many", "PutRecords", records).await;
    let iterator = p
        .iterator("sealed", 0, json!({"ShardIteratorType": "TRIM_HORIZON"}))
        .await;
    p.step("get", "GetRecords", json!({"ShardIterator": iterator}))
        .await;
    p.step("stop", "StopStreamEncryption", key).await;
    p.settled("sealed").await;
    p.step("put after stop", "PutRecord", record).await;
    let none = json!({"StreamName": "sealed", "EncryptionType": "NONE", "KeyId": "alias/aws/kinesis"});
    p.step("start without a type", "StartStreamEncryption", none.clone())
        .await;
    p.step("stop without a type", "StopStreamEncryption", none).await;
}

pub(super) async fn newer_settings(p: &mut Probe) {
    p.make("newer", 1).await;
    let size = |kib: u64| json!({"StreamARN": arn("newer"), "MaxRecordSizeInKiB": kib});
    p.step("record size", "UpdateMaxRecordSize", size(2048)).await;
    p.settled("newer").await;
    p.step("record size out of range", "UpdateMaxRecordSize", size(20_000))
        .await;
    let strategy = |name: &str| json!({"StreamARN": arn("newer"), "RecordDistributionStrategy": name});
    let operation = "UpdateStreamRecordDistributionStrategy";
    p.step("distribution by key", operation, strategy("USER_PARTITION_KEY"))
        .await;
    p.settled("newer").await;
    p.step("distribution unknown", operation, strategy("BY_MOOD"))
        .await;
    let warm = |stream: &str, rate: i64| json!({"StreamARN": arn(stream), "WarmThroughputMiBps": rate});
    let operation = "UpdateStreamWarmThroughput";
    p.step("warm throughput", operation, warm("newer", 10)).await;
    p.step("warm throughput negative", operation, warm("newer", -1))
        .await;
    let mode = json!({"StreamName": "newer-demand", "StreamModeDetails": {"StreamMode": "ON_DEMAND"}});
    p.call("CreateStream", mode).await;
    p.settled("newer-demand").await;
    p.step("warm throughput on demand", operation, warm("newer-demand", 10))
        .await;
}
