//! Each operation does what the service's does.

use std::time::Duration;

use serde_json::json;
use shardfleet_local::{KinesisControls, KinesisSettings};

use crate::client::{base64, payloads, shard, start, text, with_stream};

const MIDDLE: &str = "170141183460469231731687303715884105728";

#[tokio::test]
async fn a_stream_comes_and_goes() {
    let settings = KinesisSettings::default().with_transition_time(Duration::from_millis(100));
    let k = start(settings).await;
    let c = &k.client;
    c.ok(
        "CreateStream",
        json!({"StreamName": "s", "ShardCount": 2, "Tags": {"a": "b"}}),
    )
    .await;
    let creating = c.ok("DescribeStream", json!({"StreamName": "s"})).await;
    assert_eq!(creating["StreamDescription"]["StreamStatus"], "CREATING");
    assert_eq!(creating["StreamDescription"]["Shards"], json!([]));
    c.err("ListShards", json!({"StreamName": "s"}), "ResourceInUseException")
        .await;
    let put = json!({"StreamName": "s", "Data": "", "PartitionKey": "k"});
    c.err("PutRecord", put, "ResourceNotFoundException").await;
    c.err(
        "CreateStream",
        json!({"StreamName": "s", "ShardCount": 2}),
        "ResourceInUseException",
    )
    .await;
    c.wait_for("s", "ACTIVE").await;

    let described = c
        .ok(
            "DescribeStream",
            json!({"StreamARN": KinesisControls::stream_arn("s"), "Limit": 1}),
        )
        .await;
    let described = &described["StreamDescription"];
    assert_eq!(described["HasMoreShards"], true);
    assert_eq!(described["Shards"][0]["HashKeyRange"]["StartingHashKey"], "0");
    assert_eq!(described["RetentionPeriodHours"], 24);
    assert_eq!(described["EncryptionType"], "NONE");
    let rest = c
        .ok(
            "DescribeStream",
            json!({"StreamName": "s", "ExclusiveStartShardId": shard(0)}),
        )
        .await;
    assert_eq!(
        rest["StreamDescription"]["Shards"][0]["HashKeyRange"]["StartingHashKey"],
        MIDDLE
    );

    k.controls.create_stream("t", 1).unwrap();
    let first = c.ok("ListStreams", json!({"Limit": 1})).await;
    assert_eq!(
        (&first["StreamNames"], &first["HasMoreStreams"]),
        (&json!(["s"]), &json!(true))
    );
    let second = c
        .ok("ListStreams", json!({"NextToken": first["NextToken"]}))
        .await;
    assert_eq!(
        (&second["StreamNames"], &second["HasMoreStreams"]),
        (&json!(["t"]), &json!(false))
    );
    assert_eq!(second["StreamSummaries"][0]["StreamStatus"], "ACTIVE");
    let limits = c.ok("DescribeLimits", json!({})).await;
    assert_eq!(limits["OpenShardCount"], 3);
    c.ok("DescribeAccountSettings", json!({})).await;

    let created = c.ok("DescribeStreamSummary", json!({"StreamName": "s"})).await;
    c.ok("DeleteStream", json!({"StreamName": "s"})).await;
    let deleting = c.ok("DescribeStreamSummary", json!({"StreamName": "s"})).await;
    assert_eq!(deleting["StreamDescriptionSummary"]["StreamStatus"], "DELETING");
    while c
        .call("DescribeStreamSummary", json!({"StreamName": "s"}))
        .await
        .status
        == 200
    {
        crate::client::pause().await;
    }
    k.controls.create_stream("s", 2).unwrap();
    let again = c.ok("DescribeStreamSummary", json!({"StreamName": "s"})).await;
    let time = |v: &serde_json::Value| {
        v["StreamDescriptionSummary"]["StreamCreationTimestamp"]
            .as_f64()
            .unwrap()
    };
    assert!(time(&created) < time(&again));
}

#[tokio::test]
async fn records_are_put_and_read_in_order() {
    let k = with_stream(1).await;
    let c = &k.client;
    let put = c
        .ok(
            "PutRecord",
            json!({"StreamName": "s", "Data": base64("a"), "PartitionKey": "k"}),
        )
        .await;
    assert_eq!(put["ShardId"], shard(0));
    let records: Vec<_> = (0..500)
        .map(|i| json!({"Data": base64(format!("{i}")), "PartitionKey": format!("k\"{i}\n")}))
        .collect();
    let puts = c
        .ok(
            "PutRecords",
            json!({"StreamARN": KinesisControls::stream_arn("s"), "Records": records}),
        )
        .await;
    assert_eq!(puts["FailedRecordCount"], 0);
    assert_eq!(puts["Records"].as_array().unwrap().len(), 500);

    let iterator = c.iterator("s", &shard(0), "TRIM_HORIZON").await;
    let page = c
        .ok("GetRecords", json!({"ShardIterator": iterator, "Limit": 3}))
        .await;
    assert_eq!(payloads(&page), ["a", "0", "1"]);
    assert_eq!(page["Records"][1]["PartitionKey"], "k\"0\n");
    assert_eq!(page["Records"][0]["SequenceNumber"], put["SequenceNumber"]);
    assert!(
        page["Records"][0]["ApproximateArrivalTimestamp"]
            .as_f64()
            .unwrap()
            > 1.0e9
    );
    let rest = c.get(&text(&page["NextShardIterator"])).await;
    assert_eq!(payloads(&rest).len(), 498);
    assert_eq!(rest["MillisBehindLatest"], 0);
    let empty = c.get(&text(&rest["NextShardIterator"])).await;
    assert_eq!(
        (payloads(&empty).len(), empty["NextShardIterator"].is_string()),
        (0, true)
    );

    let after = text(&puts["Records"][497]["SequenceNumber"]);
    let iterator = c
        .iterator_at("s", &shard(0), "AFTER_SEQUENCE_NUMBER", &after)
        .await;
    assert_eq!(payloads(&c.get(&iterator).await), ["498", "499"]);
    let iterator = c.iterator_at("s", &shard(0), "AT_SEQUENCE_NUMBER", &after).await;
    assert_eq!(payloads(&c.get(&iterator).await), ["497", "498", "499"]);
}

#[tokio::test]
async fn lag_and_timestamps_are_true_to_the_millisecond() {
    let k = with_stream(1).await;
    k.controls.use_manual_clock(1_900_000_000_000);
    for i in 0..3 {
        k.controls.put("s", "k", format!("{i}")).unwrap();
        k.controls.advance(Duration::from_millis(7));
    }
    k.controls.advance(Duration::from_secs(10));
    let c = &k.client;
    let at = json!({
        "StreamName": "s", "ShardId": shard(0), "ShardIteratorType": "AT_TIMESTAMP", "Timestamp": 1_900_000_000.007,
    });
    let iterator = text(&c.ok("GetShardIterator", at).await["ShardIterator"]);
    let page = c
        .ok("GetRecords", json!({"ShardIterator": iterator, "Limit": 1}))
        .await;
    assert_eq!(payloads(&page), ["1"]);
    assert_eq!(page["MillisBehindLatest"], 10_014);
    assert_eq!(
        page["Records"][0]["ApproximateArrivalTimestamp"],
        json!(1_900_000_000.007)
    );
    let future = json!({
        "StreamName": "s", "ShardId": shard(0), "ShardIteratorType": "AT_TIMESTAMP", "Timestamp": 1_900_000_100,
    });
    let message = c
        .err("GetShardIterator", future, "InvalidArgumentException")
        .await;
    assert!(
        message.contains("cannot be greater than the currentTimestampInMillis"),
        "{message}"
    );
}

#[tokio::test]
async fn a_page_has_at_most_ten_mebibytes() {
    let k = with_stream(1).await;
    for _ in 0..12 {
        k.controls.put("s", "k", vec![7; (1 << 20) - 1]).unwrap();
    }
    let c = &k.client;
    let page = c.get(&c.iterator("s", &shard(0), "TRIM_HORIZON").await).await;
    assert_eq!(page["Records"].as_array().unwrap().len(), 10);
    assert!(page["NextShardIterator"].is_string());
}

#[tokio::test]
async fn split_merge_and_the_end_of_a_shard() {
    let settings = KinesisSettings::default().with_transition_time(Duration::from_millis(100));
    let k = start(settings).await;
    k.controls.create_stream("s", 1).unwrap();
    let c = &k.client;
    k.controls.put("s", "k", "last").unwrap();
    let iterator = c.iterator("s", &shard(0), "TRIM_HORIZON").await;
    let split = json!({"StreamName": "s", "ShardToSplit": shard(0), "NewStartingHashKey": MIDDLE});
    c.ok("SplitShard", split.clone()).await;
    c.err("SplitShard", split.clone(), "ResourceInUseException").await;
    assert_eq!(
        c.shard_ids(json!({"StreamName": "s"})).await,
        [shard(0)],
        "still UPDATING"
    );
    c.wait_for("s", "ACTIVE").await;
    let message = c.err("SplitShard", split, "InvalidArgumentException").await;
    assert!(message.contains("already been merged or split"), "{message}");

    let end = c.get(&iterator).await;
    assert_eq!(payloads(&end), ["last"]);
    assert_eq!(end.get("NextShardIterator"), None);
    assert_eq!(end["ChildShards"][1]["ShardId"], shard(2));
    assert_eq!(end["ChildShards"][1]["ParentShards"], json!([shard(0)]));
    assert_eq!(end["ChildShards"][1]["HashKeyRange"]["StartingHashKey"], MIDDLE);

    let merge = json!({"StreamName": "s", "ShardToMerge": shard(1), "AdjacentShardToMerge": shard(2)});
    c.ok("MergeShards", merge).await;
    c.wait_for("s", "ACTIVE").await;
    let shards = c.ok("ListShards", json!({"StreamName": "s"})).await;
    let (first, child, merged) = (&shards["Shards"][0], &shards["Shards"][1], &shards["Shards"][3]);
    assert!(first["SequenceNumberRange"]["EndingSequenceNumber"].is_string());
    assert_eq!(child["ParentShardId"], shard(0));
    assert_eq!(
        (&merged["ParentShardId"], &merged["AdjacentParentShardId"]),
        (&json!(shard(1)), &json!(shard(2)))
    );
    let parent_end = text(&child["SequenceNumberRange"]["EndingSequenceNumber"]);
    assert!(parent_end < text(&merged["SequenceNumberRange"]["StartingSequenceNumber"]));
    let children = c.get(&c.iterator("s", &shard(1), "LATEST").await).await;
    assert_eq!(
        children["ChildShards"][0]["ParentShards"],
        json!([shard(1), shard(2)])
    );
}

#[tokio::test]
async fn the_shard_count_changes_by_real_splits_and_merges() {
    let k = with_stream(2).await;
    let c = &k.client;
    let count = |n: u32| json!({"StreamName": "s", "TargetShardCount": n, "ScalingType": "UNIFORM_SCALING"});
    c.err("UpdateShardCount", count(5), "LimitExceededException")
        .await;
    let answer = c.ok("UpdateShardCount", count(4)).await;
    assert_eq!(
        (&answer["CurrentShardCount"], &answer["TargetShardCount"]),
        (&json!(2), &json!(4))
    );
    c.wait_for("s", "ACTIVE").await;
    let open = json!({"StreamName": "s", "ShardFilter": {"Type": "AT_LATEST"}});
    assert_eq!(
        c.shard_ids(open.clone()).await,
        [shard(2), shard(3), shard(4), shard(5)]
    );
    c.err("UpdateShardCount", count(1), "LimitExceededException")
        .await;
    c.ok("UpdateShardCount", count(2)).await;
    c.wait_for("s", "ACTIVE").await;
    assert_eq!(c.shard_ids(open).await, [shard(6), shard(7)]);
}

#[tokio::test]
async fn listing_shards_in_pages_and_by_filter() {
    let k = with_stream(3).await;
    let c = &k.client;
    k.controls.split("s", &shard(0)).unwrap();
    let first = c
        .ok("ListShards", json!({"StreamName": "s", "MaxResults": 2}))
        .await;
    assert_eq!(first["Shards"].as_array().unwrap().len(), 2);
    let token = text(&first["NextToken"]);
    let arn = KinesisControls::stream_arn("s");
    assert_eq!(
        c.shard_ids(json!({"NextToken": token})).await,
        [shard(2), shard(3), shard(4)]
    );
    assert_eq!(
        c.shard_ids(json!({"NextToken": token, "StreamARN": arn}))
            .await
            .len(),
        3
    );
    let both = json!({"NextToken": token, "StreamName": "s"});
    c.err("ListShards", both, "InvalidArgumentException").await;
    c.err(
        "ListShards",
        json!({"NextToken": "x"}),
        "InvalidArgumentException",
    )
    .await;
    k.controls.advance(Duration::from_secs(301));
    c.err(
        "ListShards",
        json!({"NextToken": token}),
        "ExpiredNextTokenException",
    )
    .await;

    let filtered = |filter| json!({"StreamARN": arn, "ShardFilter": filter});
    let after = filtered(json!({"Type": "AFTER_SHARD_ID", "ShardId": shard(2)}));
    assert_eq!(c.shard_ids(after).await, [shard(3), shard(4)]);
    assert_eq!(
        c.shard_ids(filtered(json!({"Type": "AT_LATEST"}))).await,
        [1, 2, 3, 4].map(shard)
    );
    assert_eq!(
        c.shard_ids(filtered(json!({"Type": "FROM_TRIM_HORIZON"})))
            .await
            .len(),
        5
    );
    let exclusive = json!({"StreamName": "s", "ExclusiveStartShardId": shard(3)});
    assert_eq!(c.shard_ids(exclusive).await, [shard(4)]);
    c.err(
        "ListShards",
        filtered(json!({"Type": "AT_TIMESTAMP"})),
        "InvalidArgumentException",
    )
    .await;
    c.err(
        "ListShards",
        filtered(json!({"Type": "NONE"})),
        "ValidationException",
    )
    .await;
    c.err("ListShards", filtered(json!({})), "ValidationException")
        .await;
}

#[tokio::test]
async fn retention_trims_records_and_then_shards() {
    let k = with_stream(1).await;
    let c = &k.client;
    let hours = |n: u32| json!({"StreamName": "s", "RetentionPeriodHours": n});
    c.err(
        "IncreaseStreamRetentionPeriod",
        hours(23),
        "InvalidArgumentException",
    )
    .await;
    c.err(
        "IncreaseStreamRetentionPeriod",
        hours(8761),
        "InvalidArgumentException",
    )
    .await;
    c.ok("IncreaseStreamRetentionPeriod", hours(48)).await;
    c.err(
        "IncreaseStreamRetentionPeriod",
        hours(30),
        "InvalidArgumentException",
    )
    .await;
    c.err(
        "DecreaseStreamRetentionPeriod",
        hours(72),
        "InvalidArgumentException",
    )
    .await;
    let old = k.controls.put("s", "k", "old").unwrap();
    k.controls.advance(Duration::from_hours(30));
    k.controls.put("s", "k", "new").unwrap();
    let horizon = c.iterator("s", &shard(0), "TRIM_HORIZON").await;
    assert_eq!(payloads(&c.get(&horizon).await), ["old", "new"]);
    c.ok("DecreaseStreamRetentionPeriod", hours(24)).await;
    assert_eq!(payloads(&c.get(&horizon).await), ["new"]);
    for kind in ["AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"] {
        let iterator = c.iterator_at("s", &shard(0), kind, &old.sequence_number).await;
        assert_eq!(payloads(&c.get(&iterator).await), ["new"], "{kind}");
    }
    k.controls.split("s", &shard(0)).unwrap();
    k.controls.advance(Duration::from_hours(25));
    assert_eq!(
        c.shard_ids(json!({"StreamName": "s"})).await,
        [shard(1), shard(2)]
    );
}

#[tokio::test]
async fn a_stream_made_again_refuses_the_old_one_s_numbers() {
    let k = with_stream(1).await;
    let c = &k.client;
    let old = k.controls.put("s", "k", "x").unwrap().sequence_number;
    let old_iterator = c.iterator("s", &shard(0), "LATEST").await;
    k.controls.delete_stream("s").unwrap();
    c.err(
        "GetRecords",
        json!({"ShardIterator": old_iterator}),
        "ResourceNotFoundException",
    )
    .await;
    k.controls.create_stream("s", 1).unwrap();
    let at = json!({
        "StreamName": "s", "ShardId": shard(0), "ShardIteratorType": "AFTER_SEQUENCE_NUMBER", "StartingSequenceNumber": old,
    });
    let message = c.err("GetShardIterator", at, "InvalidArgumentException").await;
    assert!(message.contains("did not come from this stream"), "{message}");
    c.err(
        "GetRecords",
        json!({"ShardIterator": old_iterator}),
        "ResourceNotFoundException",
    )
    .await;
}

#[tokio::test]
async fn iterators_expire_by_the_service_s_clock() {
    let k = with_stream(1).await;
    let c = &k.client;
    k.controls.set_iterator_lifetime(Duration::from_secs(60));
    let iterator = c.iterator("s", &shard(0), "TRIM_HORIZON").await;
    k.controls.advance(Duration::from_secs(59));
    c.get(&iterator).await;
    k.controls.advance(Duration::from_secs(2));
    c.err(
        "GetRecords",
        json!({"ShardIterator": iterator}),
        "ExpiredIteratorException",
    )
    .await;
    let iterator = c.iterator("s", &shard(0), "TRIM_HORIZON").await;
    k.controls.expire_iterators("s", &shard(0)).unwrap();
    c.err(
        "GetRecords",
        json!({"ShardIterator": iterator}),
        "ExpiredIteratorException",
    )
    .await;
    c.err(
        "GetRecords",
        json!({"ShardIterator": "garbage"}),
        "InvalidArgumentException",
    )
    .await;
}
