//! A producer that is not ours: boto3 and `aws-kinesis-agg`, in a process of its own, with shards split and merged meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use shardfleet::ExtendedSequenceNumber;
use shardfleet::store::{DynamoDbLeaseStore, LeaseStore};

use crate::harness::{Process, World, parse, root};

const RECORDS: usize = 100_000;

/// The Python that has the producer's packages. A machine without them is told how to get them; only outside CI, and only if asked for, the test
/// is left out.
fn python() -> Option<String> {
    let found = Command::new(root().join("scripts/peers.sh"))
        .args(["path", "python"])
        .output();
    if let Ok(output) = &found
        && output.status.success()
    {
        return Some(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let skip = std::env::var_os("CI").is_none() && std::env::var_os("SHARDFLEET_WITHOUT_PEERS").is_some();
    assert!(
        skip,
        "the producer's packages are missing; run scripts/peers.sh install ({found:?})"
    );
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_records_of_boto3_come_once_and_in_order_through_reshards() {
    let Some(python) = python() else {
        eprintln!("NOT RUN: the packages of peers/requirements.txt are missing");
        return;
    };
    let world = World::start().await;
    world
        .kinesis
        .controls()
        .create_stream("orders", 4)
        .expect("a stream");
    let config = world.write(
        "worker.toml",
        "stream = \"orders\"\napplication = \"produced\"\nstart_at = \"horizon\"\n[reading]\npoll_interval = \"50ms\"\n",
    );
    let worker = Process::start(world.command().arg("run").arg("--config").arg(config));
    let producer = Command::new(python)
        .arg(root().join("peers/producer.py"))
        .args([
            "--endpoint-url",
            &world.kinesis.endpoint(),
            "--stream",
            "orders",
            "--reshard",
            "--seed",
            "11",
        ])
        .args(["--records", &RECORDS.to_string(), "--ledger", "ledger.jsonl"])
        .current_dir(world.dir.path())
        .stdin(Stdio::null())
        .output()
        .expect("the producer runs");
    let said = String::from_utf8_lossy(&producer.stderr).into_owned();
    assert!(producer.status.success(), "{said}");
    let all_came = worker.stdout().wait(|lines| lines.len() >= RECORDS);
    let errors = worker.stderr().all();
    assert!(
        all_came,
        "{} of {RECORDS} came; {errors:?}",
        worker.stdout().all().len()
    );
    let (code, lines) = worker.terminate();
    assert_eq!(code, Some(0), "{errors:?}");

    let ledger = std::fs::read_to_string(world.path("ledger.jsonl")).expect("the ledger");
    let place = |shard: &serde_json::Value, number: &serde_json::Value, sub: &serde_json::Value| {
        let number = number.as_str().expect("number");
        let at = ExtendedSequenceNumber::parse(number, sub.as_u64().expect("sub")).expect("a place");
        (shard.as_str().expect("shard").to_owned(), at)
    };
    let mut put: BTreeMap<String, (String, ExtendedSequenceNumber)> = BTreeMap::new();
    for entry in ledger.lines().map(parse) {
        let at = place(&entry["shard_id"], &entry["sequence_number"], &entry["sub"]);
        put.insert(entry["id"].to_string(), at);
    }
    assert_eq!(put.len(), RECORDS, "the producer acknowledged each once");

    let mut delivered = BTreeSet::new();
    let mut last_of_key: BTreeMap<String, u64> = BTreeMap::new();
    let mut last_of_shard: BTreeMap<String, ExtendedSequenceNumber> = BTreeMap::new();
    for record in lines.iter().map(|line| parse(line)) {
        let payload = parse(record["data"].as_str().expect("text"));
        let (id, key, n) = (
            payload["id"].to_string(),
            payload["key"].to_string(),
            payload["n"].as_u64().expect("n"),
        );
        let (shard, at) = place(
            &record["shard_id"],
            &record["sequence_number"],
            &record["sub_sequence_number"],
        );
        assert_eq!(
            put.get(&id),
            Some(&(shard.clone(), at.clone())),
            "{id} came from where it was put"
        );
        assert!(delivered.insert(id), "{record} came twice");
        let last = last_of_key.insert(key.clone(), n);
        assert_eq!(last.map_or(0, |last| last + 1), n, "{key} in order");
        let last = last_of_shard.insert(shard.clone(), at.clone());
        assert!(last.is_none_or(|last| last < at), "{shard} in order");
    }
    assert_eq!(delivered.len(), RECORDS);
    let store = DynamoDbLeaseStore::builder("produced", &world.dynamodb_settings).build();
    let leases = store.scan().await.expect("a scan").leases;
    let finished = leases.iter().filter(|lease| lease.is_finished()).count();
    assert!(
        finished >= 4,
        "the shards that were split or merged are finished: {finished} of {}",
        leases.len()
    );
}
