//! Splits, merges, and what a reader sees of them.

use serde_json::{Value, json};

use super::records::payloads;
use crate::probe::{Probe, shard_id};

/// The middle of the whole range of hash keys.
const MIDDLE: &str = "170141183460469231731687303715884105728";

fn split_body(stream: &str, shard: u32, at: &str) -> Value {
    json!({"StreamName": stream, "ShardToSplit": shard_id(shard), "NewStartingHashKey": at})
}

fn merge_body(stream: &str, shard: u32, adjacent: u32) -> Value {
    json!({"StreamName": stream, "ShardToMerge": shard_id(shard), "AdjacentShardToMerge": shard_id(adjacent)})
}

fn scale_body(stream: &str, target: u32) -> Value {
    json!({"StreamName": stream, "TargetShardCount": target, "ScalingType": "UNIFORM_SCALING"})
}

fn is_closed(shard: &Value) -> bool {
    shard["SequenceNumberRange"]["EndingSequenceNumber"].is_string()
}

async fn open_ranges(p: &mut Probe, stream: &str) -> Value {
    let shards = p
        .call("ListShards", json!({"StreamName": stream}))
        .await
        .list("/Shards");
    let open = shards.iter().filter(|s| !is_closed(s));
    let start = |s: &Value| {
        s["HashKeyRange"]["StartingHashKey"]
            .as_str()
            .and_then(|t| t.parse::<u128>().ok())
    };
    let mut starts: Vec<u128> = open.filter_map(start).collect();
    starts.sort_unstable();
    starts.into_iter().map(|s| Value::from(s.to_string())).collect()
}

pub(super) async fn split(p: &mut Probe) {
    // Each on a stream of its own: kinesis-local lets some through.
    let last = "340282366920938463463374607431768211455";
    for (stream, step, hash_key) in [
        ("split-0", "at the start", "0"),
        ("split-1", "at one", "1"),
        ("split-last", "at the end", last),
    ] {
        p.make(stream, 1).await;
        p.step(step, "SplitShard", split_body(stream, 0, hash_key)).await;
    }
    p.make("split", 1).await;
    p.step("unknown shard", "SplitShard", split_body("split", 7, MIDDLE))
        .await;
    p.settled("split").await;
    p.step("in the middle", "SplitShard", split_body("split", 0, MIDDLE))
        .await;
    let summary = p
        .call("DescribeStreamSummary", json!({"StreamName": "split"}))
        .await;
    p.note(
        "status at first",
        summary.text("/StreamDescriptionSummary/StreamStatus"),
    );
    p.step(
        "again while UPDATING",
        "SplitShard",
        split_body("split", 0, MIDDLE),
    )
    .await;
    p.settled("split").await;
    p.step("shards", "ListShards", json!({"StreamName": "split"}))
        .await;
    p.step("a closed shard", "SplitShard", split_body("split", 0, MIDDLE))
        .await;
    p.settled("split").await;
}

pub(super) async fn merge(p: &mut Probe) {
    p.make("merge", 4).await;
    p.step("not adjacent", "MergeShards", merge_body("merge", 0, 2))
        .await;
    p.settled("merge").await;
    p.step("with itself", "MergeShards", merge_body("merge", 0, 0))
        .await;
    p.settled("merge").await;
    p.step("unknown shard", "MergeShards", merge_body("merge", 0, 9))
        .await;
    p.settled("merge").await;
    p.step("adjacent", "MergeShards", merge_body("merge", 0, 1)).await;
    p.step("others while UPDATING", "MergeShards", merge_body("merge", 2, 3))
        .await;
    p.settled("merge").await;
    let shards = p
        .call("ListShards", json!({"StreamName": "merge"}))
        .await
        .list("/Shards");
    let child = shards.iter().find(|s| s["ShardId"] == json!(shard_id(4)));
    p.note(
        "parent of the child",
        child.map_or(Value::Null, |c| c["ParentShardId"].clone()),
    );
    p.note(
        "other parent of the child",
        child.map_or(Value::Null, |c| c["AdjacentParentShardId"].clone()),
    );
    let closed = shards.iter().filter(|s| is_closed(s));
    p.note(
        "closed shards",
        closed.map(|s| s["ShardId"].clone()).collect::<Value>(),
    );
    p.step("closed shards again", "MergeShards", merge_body("merge", 0, 1))
        .await;
    p.settled("merge").await;
    p.make("merge-upper-first", 2).await;
    p.step(
        "upper one first",
        "MergeShards",
        merge_body("merge-upper-first", 1, 0),
    )
    .await;
    p.settled("merge-upper-first").await;
    let shards = p
        .call("ListShards", json!({"StreamName": "merge-upper-first"}))
        .await;
    p.note(
        "parent when the upper one is first",
        shards.text("/Shards/2/ParentShardId"),
    );
}

pub(super) async fn scale(p: &mut Probe) {
    p.make("scale", 2).await;
    p.step("beyond double", "UpdateShardCount", scale_body("scale", 5))
        .await;
    p.settled("scale").await;
    p.step("no shards", "UpdateShardCount", scale_body("scale", 0))
        .await;
    let how = json!({"StreamName": "scale", "TargetShardCount": 3, "ScalingType": "RANDOM_SCALING"});
    p.step("unknown way", "UpdateShardCount", how).await;
    p.step("double", "UpdateShardCount", scale_body("scale", 4)).await;
    p.step("again while UPDATING", "UpdateShardCount", scale_body("scale", 8))
        .await;
    p.settled("scale").await;
    let ranges = open_ranges(p, "scale").await;
    p.note("open shards after double", ranges.as_array().map_or(0, Vec::len));
    let after_double = lineage(p, "scale").await;
    p.note("lineage after double", after_double);
    p.step("half", "UpdateShardCount", scale_body("scale", 2)).await;
    p.settled("scale").await;
    let ranges = open_ranges(p, "scale").await;
    p.note("open shards after half", ranges.as_array().map_or(0, Vec::len));
    let after_half = lineage(p, "scale").await;
    p.note("lineage after half", after_half);
    p.make("scale-below", 3).await;
    p.step("below half", "UpdateShardCount", scale_body("scale-below", 1))
        .await;
    p.make("scale-odd", 3).await;
    p.step("uneven", "UpdateShardCount", scale_body("scale-odd", 2))
        .await;
    p.settled("scale-odd").await;
    let ranges = open_ranges(p, "scale-odd").await;
    p.note("open shards after uneven", ranges);
}

/// Each shard with a parent, as "child < parent" or "child < parent + parent".
async fn lineage(p: &mut Probe, stream: &str) -> Value {
    let shards = p
        .call("ListShards", json!({"StreamName": stream}))
        .await
        .list("/Shards");
    let short = |v: &Value| {
        v.as_str()
            .map(|id| id.trim_start_matches("shardId-00000000").to_owned())
    };
    let line = |s: &Value| {
        let parents = [short(&s["ParentShardId"]), short(&s["AdjacentParentShardId"])];
        let parents: Vec<String> = parents.into_iter().flatten().collect();
        let child = short(&s["ShardId"])?;
        (!parents.is_empty()).then(|| format!("{child} < {}", parents.join(" + ")))
    };
    shards.iter().filter_map(line).map(Value::from).collect()
}

pub(super) async fn end_of_shard(p: &mut Probe) {
    p.make("end", 1).await;
    p.put("end", "first").await;
    p.put("end", "last").await;
    let latest = p.iterator("end", 0, json!({"ShardIteratorType": "LATEST"})).await;
    p.call("SplitShard", split_body("end", 0, MIDDLE)).await;
    p.settled("end").await;
    p.put("end", "into a child").await;
    let start = json!({"ShardIteratorType": "TRIM_HORIZON"});
    let iterator = p.iterator("end", 0, start.clone()).await;
    let page = p
        .step(
            "one record",
            "GetRecords",
            json!({"ShardIterator": iterator, "Limit": 1}),
        )
        .await;
    let next = page.text("/NextShardIterator");
    let page = p
        .step("the last record", "GetRecords", json!({"ShardIterator": next}))
        .await;
    let next = page.text("/NextShardIterator");
    if !next.is_empty() {
        p.step("the end", "GetRecords", json!({"ShardIterator": next}))
            .await;
    }
    p.step(
        "from LATEST of before",
        "GetRecords",
        json!({"ShardIterator": latest}),
    )
    .await;
    let body = json!({"StreamName": "end", "ShardId": shard_id(0), "ShardIteratorType": "LATEST"});
    let iterator = p.call("GetShardIterator", body).await.text("/ShardIterator");
    p.step(
        "from LATEST of a closed shard",
        "GetRecords",
        json!({"ShardIterator": iterator}),
    )
    .await;
    let iterator = p.iterator("end", 1, start).await;
    let child = p.call("GetRecords", json!({"ShardIterator": iterator})).await;
    p.note("the child", payloads(&child.list("/Records")));
}
