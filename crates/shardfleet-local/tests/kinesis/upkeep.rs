//! Tags, consumers, modes, encryption, monitoring and sizes.

use std::time::Duration;

use serde_json::json;
use shardfleet_local::{KinesisControls, KinesisSettings};

use crate::client::{base64, shard, start, text, with_stream};

#[tokio::test]
async fn tags_of_streams_and_consumers() {
    let k = with_stream(1).await;
    let c = &k.client;
    let arn = KinesisControls::stream_arn("s");
    c.ok(
        "AddTagsToStream",
        json!({"StreamName": "s", "Tags": {"b": "2", "a": "1", "c": "3"}}),
    )
    .await;
    let page = c
        .ok("ListTagsForStream", json!({"StreamName": "s", "Limit": 2}))
        .await;
    assert_eq!(
        page["Tags"],
        json!([{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}])
    );
    assert_eq!(page["HasMoreTags"], true);
    let rest = c
        .ok(
            "ListTagsForStream",
            json!({"StreamName": "s", "ExclusiveStartTagKey": "b"}),
        )
        .await;
    assert_eq!(rest["Tags"], json!([{"Key": "c", "Value": "3"}]));
    c.ok(
        "RemoveTagsFromStream",
        json!({"StreamName": "s", "TagKeys": ["a", "c"]}),
    )
    .await;
    c.ok("TagResource", json!({"ResourceARN": arn, "Tags": {"d": "4"}}))
        .await;
    c.ok("UntagResource", json!({"ResourceARN": arn, "TagKeys": ["b"]}))
        .await;
    let tags = c.ok("ListTagsForResource", json!({"ResourceARN": arn})).await;
    assert_eq!(tags["Tags"], json!([{"Key": "d", "Value": "4"}]));
    let consumer = k.controls.register_consumer("s", "c").unwrap();
    c.ok(
        "TagResource",
        json!({"ResourceARN": consumer, "Tags": {"x": "y"}}),
    )
    .await;
    let tags = c
        .ok("ListTagsForResource", json!({"ResourceARN": consumer}))
        .await;
    assert_eq!(tags["Tags"], json!([{"Key": "x", "Value": "y"}]));
    let many: serde_json::Map<_, _> = (0..51).map(|i| (format!("t{i}"), json!("v"))).collect();
    c.err(
        "AddTagsToStream",
        json!({"StreamName": "s", "Tags": many}),
        "InvalidArgumentException",
    )
    .await;
}

#[tokio::test]
async fn consumers_are_registered_listed_and_deregistered() {
    let k = start(KinesisSettings::default().with_transition_time(Duration::from_millis(50))).await;
    k.controls.create_stream("s", 1).unwrap();
    let c = &k.client;
    let arn = KinesisControls::stream_arn("s");
    let registered = c
        .ok(
            "RegisterStreamConsumer",
            json!({"StreamARN": arn, "ConsumerName": "one"}),
        )
        .await;
    let consumer = &registered["Consumer"];
    assert_eq!(consumer["ConsumerStatus"], "CREATING");
    let consumer_arn = text(&consumer["ConsumerARN"]);
    assert!(consumer_arn.contains("stream/s/consumer/one:"), "{consumer_arn}");
    let again = json!({"StreamARN": arn, "ConsumerName": "one"});
    c.err("RegisterStreamConsumer", again.clone(), "ResourceInUseException")
        .await;
    let by_arn = json!({"ConsumerARN": consumer_arn});
    while c.ok("DescribeStreamConsumer", by_arn.clone()).await["ConsumerDescription"]["ConsumerStatus"]
        != "ACTIVE"
    {
        crate::client::pause().await;
    }
    let described = c.ok("DescribeStreamConsumer", again.clone()).await;
    assert_eq!(described["ConsumerDescription"]["StreamARN"], arn);
    for i in 0..19 {
        k.controls.register_consumer("s", &format!("c{i:02}")).unwrap();
    }
    let too_many = json!({"StreamARN": arn, "ConsumerName": "more"});
    c.err("RegisterStreamConsumer", too_many, "LimitExceededException")
        .await;
    let page = c
        .ok("ListStreamConsumers", json!({"StreamARN": arn, "MaxResults": 15}))
        .await;
    assert_eq!(page["Consumers"].as_array().unwrap().len(), 15);
    let rest = c
        .ok(
            "ListStreamConsumers",
            json!({"StreamARN": arn, "NextToken": page["NextToken"]}),
        )
        .await;
    assert_eq!(rest["Consumers"].as_array().unwrap().len(), 5);
    let summary = c.ok("DescribeStreamSummary", json!({"StreamName": "s"})).await;
    assert_eq!(summary["StreamDescriptionSummary"]["ConsumerCount"], 20);
    c.err(
        "DeleteStream",
        json!({"StreamName": "s"}),
        "ResourceInUseException",
    )
    .await;
    c.ok("DeregisterStreamConsumer", again.clone()).await;
    while c.call("DescribeStreamConsumer", by_arn.clone()).await.status == 200 {
        crate::client::pause().await;
    }
    c.ok("RegisterStreamConsumer", again.clone()).await;
    let new_arn = text(&c.ok("DescribeStreamConsumer", again).await["ConsumerDescription"]["ConsumerARN"]);
    assert_ne!(new_arn, consumer_arn);
    c.err("DescribeStreamConsumer", by_arn, "ResourceNotFoundException")
        .await;
    c.err(
        "DescribeStreamConsumer",
        json!({"StreamARN": arn}),
        "InvalidArgumentException",
    )
    .await;
    c.ok(
        "DeleteStream",
        json!({"StreamName": "s", "EnforceConsumerDeletion": true}),
    )
    .await;
}

#[tokio::test]
async fn modes_encryption_monitoring_and_sizes() {
    let k = with_stream(1).await;
    let c = &k.client;
    let arn = KinesisControls::stream_arn("s");
    let on_demand = json!({"StreamName": "d", "StreamModeDetails": {"StreamMode": "ON_DEMAND"}});
    c.ok("CreateStream", on_demand).await;
    c.wait_for("d", "ACTIVE").await;
    assert_eq!(c.shard_ids(json!({"StreamName": "d"})).await.len(), 4);
    let split = json!({"StreamName": "d", "ShardToSplit": shard(0), "NewStartingHashKey": "5"});
    c.err("SplitShard", split, "ValidationException").await;
    let provisioned = json!({
        "StreamARN": KinesisControls::stream_arn("d"), "StreamModeDetails": {"StreamMode": "PROVISIONED"},
    });
    c.ok("UpdateStreamMode", provisioned).await;
    c.wait_for("d", "ACTIVE").await;
    let summary = c.ok("DescribeStreamSummary", json!({"StreamName": "d"})).await;
    assert_eq!(
        summary["StreamDescriptionSummary"]["StreamModeDetails"]["StreamMode"],
        "PROVISIONED"
    );

    let key = json!({"StreamName": "s", "EncryptionType": "KMS", "KeyId": "alias/k"});
    c.ok("StartStreamEncryption", key.clone()).await;
    c.wait_for("s", "ACTIVE").await;
    let described = c.ok("DescribeStream", json!({"StreamName": "s"})).await;
    assert_eq!(described["StreamDescription"]["KeyId"], "alias/k");
    let put = c
        .ok(
            "PutRecord",
            json!({"StreamName": "s", "Data": base64("x"), "PartitionKey": "k"}),
        )
        .await;
    assert_eq!(put["EncryptionType"], "KMS");
    let page = c.get(&c.iterator("s", &shard(0), "TRIM_HORIZON").await).await;
    assert_eq!(page["Records"][0]["EncryptionType"], "KMS");
    c.ok("StopStreamEncryption", key).await;
    c.wait_for("s", "ACTIVE").await;

    let metrics = json!({"StreamName": "s", "ShardLevelMetrics": ["IncomingBytes", "OutgoingBytes"]});
    let enabled = c.ok("EnableEnhancedMonitoring", metrics).await;
    assert_eq!(
        enabled["DesiredShardLevelMetrics"],
        json!(["IncomingBytes", "OutgoingBytes"])
    );
    let all = json!({"StreamName": "s", "ShardLevelMetrics": ["ALL"]});
    assert_eq!(
        c.ok("DisableEnhancedMonitoring", all).await["DesiredShardLevelMetrics"],
        json!([])
    );

    let big = json!({"StreamName": "s", "Data": base64(vec![1; 1 << 20]), "PartitionKey": "k"});
    c.err("PutRecord", big.clone(), "ValidationException").await;
    c.err(
        "UpdateMaxRecordSize",
        json!({"StreamARN": arn, "MaxRecordSizeInKiB": 10_241}),
        "ValidationException",
    )
    .await;
    c.ok(
        "UpdateMaxRecordSize",
        json!({"StreamARN": arn, "MaxRecordSizeInKiB": 10_240}),
    )
    .await;
    c.wait_for("s", "ACTIVE").await;
    c.ok("PutRecord", big).await;
    let huge = json!({"StreamName": "s", "Data": base64(vec![1; (10 << 20) - 1]), "PartitionKey": "k"});
    c.ok("PutRecord", huge).await;
    let warm = json!({"StreamName": "s", "WarmThroughputMiBps": 9});
    c.err("UpdateStreamWarmThroughput", warm.clone(), "ValidationException")
        .await;
    let on_demand = json!({"StreamARN": arn, "StreamModeDetails": {"StreamMode": "ON_DEMAND"}});
    c.ok("UpdateStreamMode", on_demand).await;
    c.wait_for("s", "ACTIVE").await;
    let answer = c.ok("UpdateStreamWarmThroughput", warm).await;
    assert_eq!(answer["WarmThroughput"]["TargetMiBps"], 9);
}

#[tokio::test]
async fn the_auto_strategy_needs_no_partition_keys() {
    let k = start(KinesisSettings::default()).await;
    let c = &k.client;
    let auto = json!({
        "StreamName": "a", "StreamModeDetails": {"StreamMode": "ON_DEMAND"}, "RecordDistributionStrategy": "AUTO",
    });
    c.ok("CreateStream", auto).await;
    c.wait_for("a", "ACTIVE").await;
    let mut shards = std::collections::BTreeSet::new();
    for _ in 0..50 {
        shards.insert(text(
            &c.ok("PutRecord", json!({"StreamName": "a", "Data": ""})).await["ShardId"],
        ));
    }
    assert_eq!(shards.len(), 4);
    let page = c.get(&c.iterator("a", &shard(0), "TRIM_HORIZON").await).await;
    assert_eq!(page["Records"][0].get("PartitionKey"), None);
    let arn = KinesisControls::stream_arn("a");
    let keyed = json!({"StreamARN": arn, "RecordDistributionStrategy": "USER_PARTITION_KEY"});
    c.ok("UpdateStreamRecordDistributionStrategy", keyed).await;
    c.wait_for("a", "ACTIVE").await;
    c.err(
        "PutRecord",
        json!({"StreamName": "a", "Data": ""}),
        "ValidationException",
    )
    .await;
}
