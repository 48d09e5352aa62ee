//! Putting and getting records.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::client::base64;
use crate::probe::{Probe, merge, poll, shard_id};

/// Seconds to the next millisecond, with room for a service that cuts a fraction off.
const NEXT_MILLI: f64 = 0.001_5;

fn entries(count: usize) -> Value {
    let entry = |n: usize| json!({"PartitionKey": format!("key-{n}"), "Data": base64(n.to_string())});
    (0..count).map(entry).collect()
}

pub(super) async fn put(p: &mut Probe) {
    p.make("put", 2).await;
    let one = |more: Value| {
        let mut body = json!({"StreamName": "put", "PartitionKey": "key", "Data": base64("one")});
        merge(&mut body, more);
        body
    };
    // "a" hashes into the lower half and "key" into the upper one.
    let answer = p.step("one", "PutRecord", one(json!({}))).await;
    let order = json!({"SequenceNumberForOrdering": answer.text("/SequenceNumber")});
    p.step("one in order", "PutRecord", one(order)).await;
    p.step("one by key", "PutRecord", one(json!({"PartitionKey": "a"})))
        .await;
    p.step(
        "one by hash key",
        "PutRecord",
        one(json!({"ExplicitHashKey": "0"})),
    )
    .await;
    let last = json!({"ExplicitHashKey": "340282366920938463463374607431768211455"});
    p.step("one by the last hash key", "PutRecord", one(last)).await;
    p.step("empty payload", "PutRecord", one(json!({"Data": ""})))
        .await;
    p.step(
        "key of 256 characters",
        "PutRecord",
        one(json!({"PartitionKey": "ä".repeat(256)})),
    )
    .await;
    p.step(
        "three",
        "PutRecords",
        json!({"StreamName": "put", "Records": entries(3)}),
    )
    .await;
    let many = p
        .call(
            "PutRecords",
            json!({"StreamName": "put", "Records": entries(500)}),
        )
        .await;
    p.note("500", many.list("/Records").len());
    let too_many = p
        .call(
            "PutRecords",
            json!({"StreamName": "put", "Records": entries(501)}),
        )
        .await;
    p.note("501", if too_many.is_ok() { "taken" } else { "refused" });
    let numbers = many.list("/Records");
    let rising = ["shardId-000000000000", "shardId-000000000001"]
        .iter()
        .all(|shard| {
            let of_shard = numbers.iter().filter(|r| r["ShardId"] == **shard);
            let texts: Vec<&str> = of_shard.filter_map(|r| r["SequenceNumber"].as_str()).collect();
            texts
                .windows(2)
                .all(|pair| (pair[0].len(), pair[0]) < (pair[1].len(), pair[1]))
        });
    p.note("sequence numbers rise within a shard", rising);
}

pub(super) async fn put_refused(p: &mut Probe) {
    p.make("picky", 1).await;
    let one = |more: Value| {
        let mut body = json!({"StreamName": "picky", "PartitionKey": "key", "Data": base64("one")});
        merge(&mut body, more);
        body
    };
    p.step("empty key", "PutRecord", one(json!({"PartitionKey": ""})))
        .await;
    p.step(
        "key of 257 characters",
        "PutRecord",
        one(json!({"PartitionKey": "k".repeat(257)})),
    )
    .await;
    let beyond = json!({"ExplicitHashKey": "340282366920938463463374607431768211456"});
    p.step("hash key beyond the last", "PutRecord", one(beyond)).await;
    p.step(
        "hash key with a leading zero",
        "PutRecord",
        one(json!({"ExplicitHashKey": "01"})),
    )
    .await;
    p.step(
        "hash key no number",
        "PutRecord",
        one(json!({"ExplicitHashKey": "low"})),
    )
    .await;
    p.step("payload no base64", "PutRecord", one(json!({"Data": "***"})))
        .await;
    p.step(
        "no payload",
        "PutRecord",
        json!({"StreamName": "picky", "PartitionKey": "key"}),
    )
    .await;
    p.step(
        "no records",
        "PutRecords",
        json!({"StreamName": "picky", "Records": []}),
    )
    .await;
    let bad_one = json!({"StreamName": "picky", "Records": [
        {"PartitionKey": "good", "Data": base64("good")}, {"PartitionKey": "", "Data": base64("bad")}]});
    p.step("one of two without a key", "PutRecords", bad_one).await;
}

pub(super) async fn large(p: &mut Probe) {
    p.make("large", 1).await;
    let one =
        |bytes: usize| json!({"StreamName": "large", "PartitionKey": "k", "Data": base64(vec![b'x'; bytes])});
    p.step("payload of 1 MiB less the key", "PutRecord", one(1024 * 1024 - 1))
        .await;
    p.step("payload of 1 MiB and a key", "PutRecord", one(1024 * 1024))
        .await;
    p.step("payload over 1 MiB", "PutRecord", one(1024 * 1024 + 1))
        .await;
}

pub(super) async fn get(p: &mut Probe) {
    p.make("get", 1).await;
    for n in 0..5 {
        p.put("get", &format!("record {n}")).await;
    }
    let start = json!({"ShardIteratorType": "TRIM_HORIZON"});
    let iterator = p.iterator("get", 0, start).await;
    let first = p
        .step(
            "two",
            "GetRecords",
            json!({"ShardIterator": iterator, "Limit": 2}),
        )
        .await;
    let next = json!({"ShardIterator": first.text("/NextShardIterator")});
    let rest = p.step("the rest", "GetRecords", next.clone()).await;
    p.step("the rest again, by the same iterator", "GetRecords", next)
        .await;
    let end = json!({"ShardIterator": rest.text("/NextShardIterator")});
    p.step("nothing more", "GetRecords", end.clone()).await;
    p.put("get", "late").await;
    p.step("what came later", "GetRecords", end).await;
    p.step(
        "limit 10000",
        "GetRecords",
        json!({"ShardIterator": iterator, "Limit": 10_000}),
    )
    .await;
    p.step(
        "limit 10001",
        "GetRecords",
        json!({"ShardIterator": iterator, "Limit": 10_001}),
    )
    .await;
    p.step(
        "limit 0",
        "GetRecords",
        json!({"ShardIterator": iterator, "Limit": 0}),
    )
    .await;
    p.step(
        "rubbish as iterator",
        "GetRecords",
        json!({"ShardIterator": "rubbish"}),
    )
    .await;
    let base64_rubbish = base64([7u8; 96]);
    p.step(
        "base64 rubbish as iterator",
        "GetRecords",
        json!({"ShardIterator": base64_rubbish}),
    )
    .await;
    p.step("empty iterator", "GetRecords", json!({"ShardIterator": ""}))
        .await;
    p.step(
        "iterator of 600 characters",
        "GetRecords",
        json!({"ShardIterator": "x".repeat(600)}),
    )
    .await;
}

pub(super) async fn iterators(p: &mut Probe) {
    p.make("start", 2).await;
    let mut numbers = Vec::new();
    for n in 0..4 {
        numbers.push(p.put("start", &format!("record {n}")).await);
    }
    let at = |kind: &str, number: &str| json!({"ShardIteratorType": kind, "StartingSequenceNumber": number});
    let starts = [
        ("TRIM_HORIZON", json!({"ShardIteratorType": "TRIM_HORIZON"})),
        ("LATEST", json!({"ShardIteratorType": "LATEST"})),
        ("AT the third", at("AT_SEQUENCE_NUMBER", &numbers[2])),
        ("AFTER the third", at("AFTER_SEQUENCE_NUMBER", &numbers[2])),
        ("AFTER the last", at("AFTER_SEQUENCE_NUMBER", &numbers[3])),
    ];
    let mut iterators = Vec::new();
    for (name, start) in starts {
        iterators.push((name, p.iterator("start", 0, start).await));
    }
    p.put("start", "record 4").await;
    for (name, iterator) in iterators {
        let answer = p.call("GetRecords", json!({"ShardIterator": iterator})).await;
        p.note(name, payloads(&answer.list("/Records")));
    }
    let body = |shard: String, more: Value| {
        let mut body = json!({"StreamName": "start", "ShardId": shard});
        merge(&mut body, more);
        body
    };
    let refused = [
        (
            "AT without a number",
            shard_id(0),
            json!({"ShardIteratorType": "AT_SEQUENCE_NUMBER"}),
        ),
        (
            "AFTER without a number",
            shard_id(0),
            json!({"ShardIteratorType": "AFTER_SEQUENCE_NUMBER"}),
        ),
        (
            "AT_TIMESTAMP without a time",
            shard_id(0),
            json!({"ShardIteratorType": "AT_TIMESTAMP"}),
        ),
        (
            "unknown type",
            shard_id(0),
            json!({"ShardIteratorType": "SOMEWHERE"}),
        ),
        (
            "unknown shard",
            shard_id(9),
            json!({"ShardIteratorType": "LATEST"}),
        ),
        (
            "shard by another name",
            "mine".to_owned(),
            json!({"ShardIteratorType": "LATEST"}),
        ),
        (
            "another shard's number",
            shard_id(1),
            at("AT_SEQUENCE_NUMBER", &numbers[0]),
        ),
        (
            "a number of no shard",
            shard_id(0),
            at("AT_SEQUENCE_NUMBER", "12345"),
        ),
        ("number 0", shard_id(0), at("AT_SEQUENCE_NUMBER", "0")),
        ("no number at all", shard_id(0), at("AT_SEQUENCE_NUMBER", "first")),
    ];
    for (name, shard, more) in refused {
        p.step(name, "GetShardIterator", body(shard, more)).await;
    }
    let described = p.call("ListShards", json!({"StreamName": "start"})).await;
    let first = described.text("/Shards/0/SequenceNumberRange/StartingSequenceNumber");
    let iterator = p.iterator("start", 0, at("AT_SEQUENCE_NUMBER", &first)).await;
    let answer = p.call("GetRecords", json!({"ShardIterator": iterator})).await;
    p.note("AT the shard's first number", payloads(&answer.list("/Records")));
}

/// The payloads of records, as text.
pub(super) fn payloads(records: &[Value]) -> Value {
    records.iter().map(|r| r["Data"].clone()).collect()
}

pub(super) async fn timestamps(p: &mut Probe) {
    p.make("times", 1).await;
    p.put("times", "early").await;
    // Records a little apart, so that a time lies between them.
    let client = p.client.clone();
    let early = read_all(p, "times").await;
    let early_at = early[0]["ApproximateArrivalTimestamp"]
        .as_f64()
        .unwrap_or_default();
    let late_at = poll("the clock to move on", async || {
        let body = json!({"StreamName": "times", "PartitionKey": "k", "Data": base64("late")});
        client.call("PutRecord", &body).await;
        let iterator =
            json!({"StreamName": "times", "ShardId": shard_id(0), "ShardIteratorType": "TRIM_HORIZON"});
        let iterator = client
            .call("GetShardIterator", &iterator)
            .await
            .text("/ShardIterator");
        let records = client
            .call("GetRecords", &json!({"ShardIterator": iterator}))
            .await
            .list("/Records");
        let last = records.last()?["ApproximateArrivalTimestamp"].as_f64()?;
        (last > early_at + 0.2).then_some(last)
    })
    .await;
    let records = read_all(p, "times").await;
    let parts: BTreeSet<bool> = records
        .iter()
        .filter_map(|r| r["ApproximateArrivalTimestamp"].as_f64())
        .map(|t| t.fract() != 0.0)
        .collect();
    p.note("arrival times have milliseconds", parts.contains(&true));
    let at = |time: f64| json!({"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": time});
    for (name, time, of) in [
        ("before the first record", early_at - 10.0, "first"),
        ("at the first record", early_at, "first"),
        ("right after the first record", early_at + NEXT_MILLI, "later"),
        ("at the last record", late_at, "last"),
        ("after the last record", late_at + NEXT_MILLI, "none"),
    ] {
        let iterator = p.iterator("times", 0, at(time)).await;
        let got = p
            .call("GetRecords", json!({"ShardIterator": iterator}))
            .await
            .list("/Records");
        let holds = match of {
            "first" => got.len() == records.len(),
            "later" => !got.is_empty() && got.len() < records.len(),
            "last" => got.last() == records.last() && got.len() < records.len(),
            _ => got.is_empty(),
        };
        p.note(
            name,
            if holds {
                json!(of)
            } else {
                json!(format!("{} of {} records", got.len(), records.len()))
            },
        );
    }
    let mut body = json!({"StreamName": "times", "ShardId": shard_id(0)});
    merge(&mut body, at(late_at + 3600.0));
    p.step("in the future", "GetShardIterator", body).await;
}

async fn read_all(p: &mut Probe, stream: &str) -> Vec<Value> {
    let iterator = p
        .iterator(stream, 0, json!({"ShardIteratorType": "TRIM_HORIZON"}))
        .await;
    p.call("GetRecords", json!({"ShardIterator": iterator}))
        .await
        .list("/Records")
}

pub(super) async fn lag(p: &mut Probe) {
    p.make("lag", 1).await;
    let iterator = p
        .iterator("lag", 0, json!({"ShardIteratorType": "TRIM_HORIZON"}))
        .await;
    p.step("empty shard", "GetRecords", json!({"ShardIterator": iterator}))
        .await;
    for n in 0..3 {
        p.put("lag", &format!("record {n}")).await;
    }
    // The records age until the oldest one read leaves unread ones behind.
    let client = p.client.clone();
    poll("the reader to be behind", async || {
        let answer = client
            .call("GetRecords", &json!({"ShardIterator": iterator, "Limit": 1}))
            .await;
        (answer.body["MillisBehindLatest"].as_u64()? > 0).then_some(())
    })
    .await;
    p.step(
        "two of three",
        "GetRecords",
        json!({"ShardIterator": iterator, "Limit": 2}),
    )
    .await;
    p.step("all three", "GetRecords", json!({"ShardIterator": iterator}))
        .await;
}
