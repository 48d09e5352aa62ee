//! SIGKILL at random moments: nothing is lost, and only what was not checkpointed comes again.

use std::collections::{BTreeMap, BTreeSet};

use shardfleet::store::{DynamoDbLeaseStore, LeaseStore, SqliteLeaseStore};
use shardfleet::{ApplicationName, ExtendedSequenceNumber};

use crate::harness::{Chance, Process, World, parse};

const KILLS: usize = 20;
const RECORDS: usize = 20_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_twenty_times_on_sqlite_nothing_is_lost() {
    let world = World::start().await;
    let path = world.path("leases.sqlite");
    let store = SqliteLeaseStore::new(&path, &ApplicationName::new("killed")).expect("a store");
    let section = format!("type = \"sqlite\"\npath = {:?}", path.to_str().expect("UTF-8"));
    kill_often(&world, &store, &section, 0x5eed_0001).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_twenty_times_on_dynamodb_nothing_is_lost() {
    let world = World::start().await;
    let store = DynamoDbLeaseStore::builder("killed", &world.dynamodb_settings).build();
    kill_often(&world, &store, "type = \"dynamodb\"", 0x5eed_0002).await;
}

fn config(world: &World, lease_store: &str, start_at: &str) -> std::path::PathBuf {
    // A stable worker id takes its leases back at once; checkpoints are written every 500 ms.
    let text = format!(
        "stream = \"orders\"\napplication = \"killed\"\nworker_id = \"w1\"\n{start_at}\n\
         [lease_store]\n{lease_store}\n\
         [leases]\nfailover_time = \"1500ms\"\n\
         [reading]\nbatch_size = 100\npoll_interval = \"20ms\"\n"
    );
    world.write("worker.toml", &text)
}

type Places = BTreeMap<String, ExtendedSequenceNumber>;

async fn checkpoints(store: &dyn LeaseStore) -> Places {
    let scan = store.scan().await.expect("a scan");
    scan.leases
        .into_iter()
        .map(|lease| (lease.lease_key.to_string(), lease.checkpoint))
        .collect()
}

#[expect(clippy::print_stdout, reason = "the figures of the run")]
async fn kill_often(world: &World, store: &dyn LeaseStore, lease_store: &str, seed: u64) {
    world
        .kinesis
        .controls()
        .create_stream("orders", 4)
        .expect("a stream");
    let records: Vec<_> = (0..RECORDS)
        .map(|n| (format!("key-{}", n % 97), format!("record-{n}")))
        .collect();
    world.put("orders", &records).await;
    let config = config(world, lease_store, "start_at = \"horizon\"");
    let mut chance = Chance(seed);
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let (mut repeated, mut kills) = (0_usize, 0_usize);
    let mut before = Places::new();
    loop {
        // `start_at` goes ahead of checkpoints at every start, so only the first may say it.
        if kills == 1 {
            self::config(world, lease_store, "");
        }
        let worker = Process::start(world.command().arg("run").arg("--config").arg(&config));
        let is_last = kills == KILLS;
        let enough = chance.below(2000);
        let (mut all, mut looked_at) = (seen.clone(), 0);
        let came = worker.stdout().wait(|lines| {
            all.extend(
                lines[looked_at..]
                    .iter()
                    .map(|line| parse(line)["data"].to_string()),
            );
            looked_at = lines.len();
            if is_last {
                all.len() == RECORDS
            } else {
                lines.len() > enough
            }
        });
        let stderr = worker.stderr().all();
        let lines = if is_last {
            worker.terminate().1
        } else {
            worker.kill()
        };
        assert!(
            came || seen.len() == RECORDS,
            "kill {kills}: only {} records came; {stderr:?}",
            lines.len()
        );
        for line in &lines {
            // The last line of a killed process may be cut off.
            let Ok(record) = serde_json::from_str::<serde_json::Value>(line) else {
                continue;
            };
            let (shard, number) = (
                record["shard_id"].as_str().expect("shard"),
                record["sequence_number"].as_str(),
            );
            let place = ExtendedSequenceNumber::parse(number.expect("number"), 0).expect("a place");
            if let Some(checkpoint) = before.get(shard) {
                assert!(
                    place > *checkpoint,
                    "{shard}: {place} came again, although {checkpoint} was checkpointed"
                );
            }
            repeated += usize::from(!seen.insert(record["data"].to_string()));
        }
        if is_last && seen.len() == RECORDS {
            break;
        }
        assert!(!is_last, "lost: {} of {RECORDS} came", seen.len());
        before = checkpoints(store).await;
        kills += 1;
    }
    println!(
        "{kills} kills: {} records delivered, 0 lost, {repeated} repeated",
        seen.len()
    );
}

/// A LATEST start that dies before its first checkpoint: what arrived in between comes all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_before_the_first_checkpoint_of_a_latest_start_nothing_is_lost() {
    let world = World::start().await;
    world
        .kinesis
        .controls()
        .create_stream("orders", 2)
        .expect("a stream");
    let path = world.path("leases.sqlite");
    let store = SqliteLeaseStore::new(&path, &ApplicationName::new("killed")).expect("a store");
    // Checkpoints come with renewals, so a long failover time means none for minutes.
    let text = format!(
        "stream = \"orders\"\napplication = \"killed\"\nworker_id = \"w1\"\n\
         [lease_store]\ntype = \"sqlite\"\npath = {:?}\n[leases]\nfailover_time = \"1h\"\n\
         [reading]\npoll_interval = \"20ms\"\n",
        path.to_str().expect("UTF-8")
    );
    let config = world.write("worker.toml", &text);
    let start = || Process::start(world.command().arg("run").arg("--config").arg(&config));
    let is_reading = |lines: &[String]| lines.iter().any(|line| line.starts_with("reading orders"));

    let first = start();
    assert!(first.stderr().wait(is_reading), "{:?}", first.stderr().all());
    let records = |from: usize| -> Vec<_> {
        (from..from + 50)
            .map(|n| (n.to_string(), format!("r{n}")))
            .collect()
    };
    world.put("orders", &records(0)).await;
    assert!(first.stdout().wait(|lines| !lines.is_empty()), "a record comes");
    let mut seen: BTreeSet<String> = first
        .kill()
        .iter()
        .map(|line| parse(line)["data"].to_string())
        .collect();
    for (_, checkpoint) in checkpoints(&store).await {
        assert_eq!(
            checkpoint,
            ExtendedSequenceNumber::Latest,
            "nothing was checkpointed yet"
        );
    }
    world.put("orders", &records(50)).await;
    let second = start();
    let all_came = second.stdout().wait(|lines| {
        let fresh: BTreeSet<_> = lines.iter().map(|line| parse(line)["data"].to_string()).collect();
        fresh.len() == 100
    });
    assert!(
        all_came,
        "{} of 100 came; {:?}",
        second.stdout().all().len(),
        second.stderr().all()
    );
    seen.extend(second.kill().iter().map(|line| parse(line)["data"].to_string()));
    assert_eq!(seen.len(), 100);
}
