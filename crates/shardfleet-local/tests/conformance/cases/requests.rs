//! Requests that name no operation, no stream or no fields.

use serde_json::{Value, json};

use crate::normal;
use crate::probe::{Probe, arn, shard_id};

pub(super) async fn malformed(p: &mut Probe) {
    let cases: [(&str, &str, &[u8]); 5] = [
        ("unknown operation", "Kinesis_20131202.Ponder", b"{}"),
        ("no operation", "", b"{}"),
        ("body no JSON", "Kinesis_20131202.ListStreams", b"{"),
        ("body no object", "Kinesis_20131202.ListStreams", b"[]"),
        (
            "field of another kind",
            "Kinesis_20131202.DescribeStream",
            b"{\"StreamName\": 7}",
        ),
    ];
    for (step, target, body) in cases {
        let answer = p.client.raw(target, body.to_vec()).await;
        let answer = answer.unwrap_or_else(|e| panic!("{step}: {e}"));
        p.note(step, normal::answer(&answer));
    }
}

/// Operations on one stream, with all that they need but the stream.
fn requests(name: &str) -> Vec<(&'static str, Value)> {
    let arn = arn(name);
    let consumer = format!("{arn}/consumer/reader:1700000000");
    let kms = json!({"StreamName": name, "EncryptionType": "KMS", "KeyId": "alias/aws/kinesis"});
    vec![
        ("AddTagsToStream", json!({"StreamName": name, "Tags": {"a": "b"}})),
        (
            "DecreaseStreamRetentionPeriod",
            json!({"StreamName": name, "RetentionPeriodHours": 24}),
        ),
        ("DeleteStream", json!({"StreamName": name})),
        (
            "DeregisterStreamConsumer",
            json!({"StreamARN": arn, "ConsumerName": "reader"}),
        ),
        ("DescribeStream", json!({"StreamName": name})),
        ("DescribeStreamConsumer", json!({"ConsumerARN": consumer})),
        ("DescribeStreamSummary", json!({"StreamName": name})),
        (
            "DisableEnhancedMonitoring",
            json!({"StreamName": name, "ShardLevelMetrics": ["ALL"]}),
        ),
        (
            "EnableEnhancedMonitoring",
            json!({"StreamName": name, "ShardLevelMetrics": ["ALL"]}),
        ),
        (
            "GetShardIterator",
            json!({"StreamName": name, "ShardId": shard_id(0), "ShardIteratorType": "LATEST"}),
        ),
        (
            "IncreaseStreamRetentionPeriod",
            json!({"StreamName": name, "RetentionPeriodHours": 48}),
        ),
        ("ListShards", json!({"StreamName": name})),
        ("ListStreamConsumers", json!({"StreamARN": arn})),
        ("ListTagsForResource", json!({"ResourceARN": arn})),
        ("ListTagsForStream", json!({"StreamName": name})),
        (
            "MergeShards",
            json!({"StreamName": name, "ShardToMerge": shard_id(0), "AdjacentShardToMerge": shard_id(1)}),
        ),
        (
            "PutRecord",
            json!({"StreamName": name, "PartitionKey": "k", "Data": ""}),
        ),
        (
            "PutRecords",
            json!({"StreamName": name, "Records": [{"PartitionKey": "k", "Data": ""}]}),
        ),
        (
            "RegisterStreamConsumer",
            json!({"StreamARN": arn, "ConsumerName": "reader"}),
        ),
        (
            "RemoveTagsFromStream",
            json!({"StreamName": name, "TagKeys": ["a"]}),
        ),
        (
            "SplitShard",
            json!({"StreamName": name, "ShardToSplit": shard_id(0), "NewStartingHashKey": "1000"}),
        ),
        ("StartStreamEncryption", kms.clone()),
        ("StopStreamEncryption", kms),
        (
            "SubscribeToShard",
            json!({"ConsumerARN": consumer, "ShardId": shard_id(0), "StartingPosition": {"Type": "LATEST"}}),
        ),
        ("TagResource", json!({"ResourceARN": arn, "Tags": {"a": "b"}})),
        ("UntagResource", json!({"ResourceARN": arn, "TagKeys": ["a"]})),
        (
            "UpdateMaxRecordSize",
            json!({"StreamARN": arn, "MaxRecordSizeInKiB": 2048}),
        ),
        (
            "UpdateShardCount",
            json!({"StreamName": name, "TargetShardCount": 2, "ScalingType": "UNIFORM_SCALING"}),
        ),
        (
            "UpdateStreamMode",
            json!({"StreamARN": arn, "StreamModeDetails": {"StreamMode": "ON_DEMAND"}}),
        ),
        (
            "UpdateStreamRecordDistributionStrategy",
            json!({"StreamARN": arn, "RecordDistributionStrategy": "USER_PARTITION_KEY"}),
        ),
        (
            "UpdateStreamWarmThroughput",
            json!({"StreamARN": arn, "WarmThroughputMiBps": 10}),
        ),
    ]
}

pub(super) async fn missing_stream(p: &mut Probe) {
    for (operation, body) in requests("nowhere") {
        p.step(operation, operation, body).await;
    }
}

pub(super) async fn missing_fields(p: &mut Probe) {
    p.step("CreateStream", "CreateStream", json!({})).await;
    p.step("GetRecords", "GetRecords", json!({})).await;
    for (operation, _) in requests("") {
        p.step(operation, operation, json!({})).await;
    }
}
