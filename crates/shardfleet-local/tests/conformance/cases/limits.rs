//! Rate limits. Ours are switched on for these cases only.

use serde_json::json;
use shardfleet_local::ServiceLimits;

use crate::client::base64;
use crate::probe::Probe;

pub(super) async fn reads(p: &mut Probe) {
    p.make("slow-reads", 1).await;
    let iterator = p
        .iterator("slow-reads", 0, json!({"ShardIteratorType": "LATEST"}))
        .await;
    p.limit(ServiceLimits::aws());
    let client = p.client.clone();
    let call = || async {
        client
            .call("GetRecords", &json!({"ShardIterator": iterator}))
            .await
    };
    let answers = futures::future::join_all((0..15).map(|_| call())).await;
    p.limit(ServiceLimits::off());
    let refused = answers.iter().find(|a| !a.is_ok());
    p.note(
        "15 at once",
        refused.map_or_else(|| "200".into(), crate::normal::answer),
    );
}

pub(super) async fn writes(p: &mut Probe) {
    p.make("slow-writes", 1).await;
    let entry = json!({"PartitionKey": "k", "Data": base64(vec![b'x'; 300 * 1024])});
    let entries: Vec<_> = (0..5).map(|_| entry.clone()).collect();
    p.limit(ServiceLimits::aws());
    let answer = p
        .call(
            "PutRecords",
            json!({"StreamName": "slow-writes", "Records": entries}),
        )
        .await;
    p.limit(ServiceLimits::off());
    let codes = answer
        .list("/Records")
        .into_iter()
        .map(|r| r["ErrorCode"].clone());
    p.note("1.5 MB in one call", codes.collect::<serde_json::Value>());
}
