//! Registered consumers and their subscriptions.

use std::time::Duration;

use serde_json::{Value, json};

use super::records::payloads;
use crate::client::{EventStream, Next};
use crate::normal;
use crate::probe::{Probe, arn, merge, poll, shard_id};

/// How long a stream may be silent before its silence counts: kinesis-local sends once a second.
const SILENCE: Duration = Duration::from_secs(3);

async fn registered(p: &mut Probe, stream: &str, name: &str) -> String {
    let body = json!({"StreamARN": arn(stream), "ConsumerName": name});
    let answer = p.call("RegisterStreamConsumer", body).await;
    let consumer = answer.text("/Consumer/ConsumerARN");
    active(p, &consumer).await;
    consumer
}

async fn active(p: &mut Probe, consumer: &str) {
    let client = p.client.clone();
    poll("the consumer to become ACTIVE", async || {
        let answer = client
            .call("DescribeStreamConsumer", &json!({"ConsumerARN": consumer}))
            .await;
        (answer.text("/ConsumerDescription/ConsumerStatus") == "ACTIVE").then_some(())
    })
    .await;
}

pub(super) async fn register(p: &mut Probe) {
    p.make("fans", 1).await;
    let stream = arn("fans");
    let named = |name: &str| json!({"StreamARN": stream, "ConsumerName": name});
    let first = p.step("register", "RegisterStreamConsumer", named("one")).await;
    let consumer = first.text("/Consumer/ConsumerARN");
    p.step("register again", "RegisterStreamConsumer", named("one"))
        .await;
    p.step("bad name", "RegisterStreamConsumer", named("o n e")).await;
    active(p, &consumer).await;
    p.step("describe by name", "DescribeStreamConsumer", named("one"))
        .await;
    p.step(
        "describe by ARN",
        "DescribeStreamConsumer",
        json!({"ConsumerARN": consumer}),
    )
    .await;
    p.step(
        "describe by stream only",
        "DescribeStreamConsumer",
        json!({"StreamARN": stream}),
    )
    .await;
    p.step("describe another", "DescribeStreamConsumer", named("two"))
        .await;
    let second = registered(p, "fans", "two").await;
    p.step("list", "ListStreamConsumers", json!({"StreamARN": stream}))
        .await;
    let page = p
        .step(
            "list one",
            "ListStreamConsumers",
            json!({"StreamARN": stream, "MaxResults": 1}),
        )
        .await;
    let more = json!({"StreamARN": stream, "NextToken": page.text("/NextToken")});
    let more = p.call("ListStreamConsumers", more).await;
    p.note("list the other", more.text("/Consumers/0/ConsumerName"));
    let summary = p
        .call("DescribeStreamSummary", json!({"StreamARN": stream}))
        .await;
    let count = summary.body.pointer("/StreamDescriptionSummary/ConsumerCount");
    p.note("consumer count", count.cloned().unwrap_or_default());
    p.step("delete the stream", "DeleteStream", json!({"StreamName": "fans"}))
        .await;
    p.step(
        "deregister by ARN",
        "DeregisterStreamConsumer",
        json!({"ConsumerARN": second}),
    )
    .await;
    let status = p
        .call("DescribeStreamConsumer", json!({"ConsumerARN": second}))
        .await;
    p.note(
        "status after deregister",
        status.text("/ConsumerDescription/ConsumerStatus"),
    );
    p.step("deregister by name", "DeregisterStreamConsumer", named("one"))
        .await;
    p.step("deregister another", "DeregisterStreamConsumer", named("three"))
        .await;
    p.step(
        "subscribe without a consumer",
        "SubscribeToShard",
        from_horizon(&format!("{stream}/consumer/none:1")),
    )
    .await;
}

fn from_horizon(consumer: &str) -> Value {
    json!({"ConsumerARN": consumer, "ShardId": shard_id(0), "StartingPosition": {"Type": "TRIM_HORIZON"}})
}

/// Opens a subscription; notes how that went, and its first frame.
async fn open(p: &mut Probe, step: &str, body: Value) -> Option<EventStream> {
    match p.client.subscribe(&body).await {
        Ok(stream) => {
            p.count("SubscribeToShard", true);
            p.note(step, "200");
            Some(stream)
        }
        Err(answer) => {
            p.count("SubscribeToShard", false);
            p.note(step, normal::answer(&answer));
            None
        }
    }
}

/// What a subscription brought: kinds of frames other than records, records, the last event's children, how it went on.
#[derive(Debug, Default)]
struct Seen {
    first: String,
    records: Vec<Value>,
    last: Value,
    continued: bool,
    outcome: &'static str,
}

/// Reads until so many records came and, where `to_the_end`, until the stream ends or is silent.
async fn watch(stream: &mut EventStream, records: usize, to_the_end: bool) -> Seen {
    let mut seen = Seen::default();
    let reading = async {
        while to_the_end || seen.records.len() < records {
            match stream.next(SILENCE).await {
                Next::Event(event) => {
                    if seen.first.is_empty() {
                        seen.first.clone_from(&event.kind);
                    }
                    if event.kind == "SubscribeToShardEvent" {
                        let batch = event.payload["Records"].as_array().cloned();
                        seen.records.extend(batch.unwrap_or_default());
                        seen.continued = event.payload["ContinuationSequenceNumber"].is_string();
                        seen.last = event.payload;
                    }
                }
                Next::Ended => return "ended",
                Next::Silence => return "silent",
            }
        }
        "open"
    };
    let outcome = tokio::time::timeout(SILENCE * 2, reading).await;
    seen.outcome = outcome.unwrap_or("open");
    seen
}

pub(super) async fn subscribe(p: &mut Probe) {
    p.make("sub", 1).await;
    for n in 0..3 {
        p.put("sub", &format!("record {n}")).await;
    }
    let consumer = registered(p, "sub", "reader").await;
    if let Some(mut stream) = open(p, "from TRIM_HORIZON", from_horizon(&consumer)).await {
        let seen = watch(&mut stream, 3, false).await;
        p.note("first frame", seen.first);
        p.note("records", payloads(&seen.records));
        p.note("an open shard has a continuation", seen.continued);
        p.put("sub", "record 3").await;
        let seen = watch(&mut stream, 1, false).await;
        p.note("a record that came later", payloads(&seen.records));
        let second = open(p, "a second subscription at once", from_horizon(&consumer)).await;
        drop(second);
    }
    let mut unknown = from_horizon(&consumer);
    merge(&mut unknown, json!({"ShardId": shard_id(9)}));
    drop(open(p, "unknown shard", unknown).await);
    let mut bad = from_horizon(&consumer);
    merge(
        &mut bad,
        json!({"StartingPosition": {"Type": "AT_SEQUENCE_NUMBER"}}),
    );
    drop(open(p, "AT_SEQUENCE_NUMBER without a number", bad).await);
    let mut bad = from_horizon(&consumer);
    merge(&mut bad, json!({"StartingPosition": {"Type": "SOMEWHERE"}}));
    drop(open(p, "unknown type", bad).await);
}

pub(super) async fn subscribe_to_the_end(p: &mut Probe) {
    p.make("sub-end", 1).await;
    p.put("sub-end", "before the split").await;
    let consumer = registered(p, "sub-end", "reader").await;
    let Some(mut stream) = open(p, "subscribe", from_horizon(&consumer)).await else {
        return;
    };
    let seen = watch(&mut stream, 1, false).await;
    p.note("records before the split", payloads(&seen.records));
    p.put("sub-end", "right before the split").await;
    let body = json!({"StreamName": "sub-end", "ShardToSplit": shard_id(0), "NewStartingHashKey": "1000"});
    p.call("SplitShard", body).await;
    p.settled("sub-end").await;
    let seen = watch(&mut stream, 0, true).await;
    p.note("records at the split", payloads(&seen.records));
    let children = seen.last["ChildShards"].as_array().map_or(0, Vec::len);
    p.note("children in the last event", children);
    p.note("continuation in the last event", seen.continued);
    p.note("after the split", seen.outcome);
}
