//! Several `run` processes on one SQLite file share the shards of a stream, whatever happens to one of them.

use std::collections::{BTreeMap, BTreeSet};

use shardfleet::store::{LeaseStore, SqliteLeaseStore};
use shardfleet::{ApplicationName, ExtendedSequenceNumber};

use crate::harness::{PATIENCE, Process, World, deadline, now, parse};

const SHARDS: u32 = 6;
/// Records that a worker hands out at once.
const BATCH: usize = 100;

/// A stream, the lease file, and what was put.
struct Shared {
    world: World,
    store: SqliteLeaseStore,
    put: BTreeSet<String>,
}

impl Shared {
    async fn start() -> Self {
        let world = World::start().await;
        let controls = world.kinesis.controls();
        controls.create_stream("orders", SHARDS).expect("a stream");
        let path = world.path("leases.sqlite");
        let store = SqliteLeaseStore::new(path, &ApplicationName::new("shared")).expect("a store");
        Self {
            world,
            store,
            put: BTreeSet::new(),
        }
    }

    /// Starts a worker and waits until it reads.
    fn worker(&self, id: &str) -> Process {
        let text = format!(
            "stream = \"orders\"\napplication = \"shared\"\nworker_id = \"{id}\"\ninitial_position = \"horizon\"\n\
             [lease_store]\ntype = \"sqlite\"\npath = \"leases.sqlite\"\n\
             [leases]\nfailover_time = \"1500ms\"\n\
             [fleet]\nassignment_strategy = \"lease-count-based\"\nvariance_balancing_frequency = 1\nminimum_stay = \"0s\"\n\
             [worker_metrics]\nsource = \"none\"\nreport_interval = \"500ms\"\n\
             [reading]\nbatch_size = {BATCH}\npoll_interval = \"50ms\"\n"
        );
        let config = self.world.write(&format!("{id}.toml"), &text);
        let worker = Process::start(self.world.command().arg("run").arg("--config").arg(config));
        let is_open = worker
            .stderr()
            .wait(|lines| lines.iter().any(|line| line.contains("reading orders")));
        assert!(is_open, "{id}: {:?}", worker.stderr().all());
        worker
    }

    /// Stops a worker between two of its writes: one that sleeps with the file locked keeps everybody from writing, which no other process can change.
    fn freeze(&self, worker: &Process) {
        let file = rusqlite::Connection::open(self.world.path("leases.sqlite")).expect("the file");
        file.busy_timeout(PATIENCE).expect("a time");
        file.execute_batch("BEGIN IMMEDIATE").expect("the lock");
        worker.freeze();
        file.execute_batch("ROLLBACK").expect("unlocked");
    }

    /// Puts `count` records, each named after `phase`.
    async fn put(&mut self, phase: &str, count: usize) {
        let first = self.put.len();
        let records: Vec<_> = (first..first + count)
            .map(|n| (format!("key-{}", n % 997), format!("{phase}-{n}")))
            .collect();
        self.world.put("orders", &records).await;
        self.put.extend(records.into_iter().map(|(_, data)| data));
    }

    /// How many leases each worker holds.
    async fn held(&self) -> BTreeMap<String, usize> {
        let mut held = BTreeMap::new();
        for lease in self.store.scan().await.expect("a scan").leases {
            let holder = lease.checkpoint_owner.or(lease.owner);
            *held
                .entry(holder.map_or_else(String::new, |id| id.to_string()))
                .or_default() += 1;
        }
        held
    }

    async fn checkpoints(&self) -> BTreeMap<String, ExtendedSequenceNumber> {
        let leases = self.store.scan().await.expect("a scan").leases;
        let leases = leases.into_iter();
        leases
            .map(|lease| (lease.lease_key.to_string(), lease.checkpoint))
            .collect()
    }

    /// Waits until leases are held as `enough` says.
    async fn wait_held(&self, what: &str, enough: impl Fn(&BTreeMap<String, usize>) -> bool) {
        let until = deadline();
        loop {
            let held = self.held().await;
            if enough(&held) {
                return;
            }
            assert!(now() < until, "{what}: {held:?}");
            tokio::task::yield_now().await;
        }
    }

    /// Waits until every record that was put was printed by one of `workers`, or is in `printed`.
    fn wait_printed(&self, what: &str, printed: &[String], workers: &[&Process]) {
        let until = deadline();
        loop {
            let mut come: BTreeSet<String> = printed.iter().filter_map(|line| data(line)).collect();
            for worker in workers {
                come.extend(worker.stdout().all().iter().filter_map(|line| data(line)));
            }
            if self.put.is_subset(&come) {
                return;
            }
            let lost: Vec<_> = self.put.difference(&come).collect();
            assert!(
                now() < until,
                "{what}: {} never came, such as {:?}",
                lost.len(),
                lost.first()
            );
            std::thread::yield_now();
        }
    }
}

/// The payload of a line; the last one of a killed process may be cut off.
fn data(line: &str) -> Option<String> {
    let record: serde_json::Value = serde_json::from_str(line).ok()?;
    record["data"].as_str().map(str::to_owned)
}

fn everyone_has_two(held: &BTreeMap<String, usize>) -> bool {
    ["w1", "w2", "w3"].iter().all(|id| held.get(*id) == Some(&2))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_is_stopped_and_one_is_killed_and_every_record_comes() {
    let mut shared = Shared::start().await;
    let [first, second, third] = ["w1", "w2", "w3"].map(|id| shared.worker(id));
    shared.wait_held("they share", everyone_has_two).await;
    shared.put("shared", 3_000).await;
    shared.wait_printed("shared", &[], &[&first, &second, &third]);
    for worker in [&first, &second, &third] {
        assert!(!worker.stdout().all().is_empty(), "each reads some");
    }

    // Both ends come in the middle of a load.
    shared.put("stopping", 3_000).await;
    let (code, mut printed) = first.terminate();
    assert_eq!(code, Some(0));
    shared.put("stopped", 1_000).await;
    shared.wait_printed("stopped", &printed, &[&second, &third]);
    assert!(!shared.held().await.contains_key("w1"), "it gave its leases back");

    shared.put("killing", 3_000).await;
    printed.extend(second.kill());
    shared.put("killed", 1_000).await;
    shared.wait_printed("killed", &printed, &[&third]);
    shared
        .wait_held("the last one reads all", |held| {
            held.get("w3") == Some(&(SHARDS as usize))
        })
        .await;
    assert_eq!(third.terminate().0, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_beyond_expiry_a_worker_wakes_without_harm_and_joins_again() {
    let mut shared = Shared::start().await;
    let [sleeper, second, third] = ["w1", "w2", "w3"].map(|id| shared.worker(id));
    shared.wait_held("they share", everyone_has_two).await;
    shared.put("before", 6_000).await;
    let reads = sleeper.stdout().wait(|lines| !lines.is_empty());
    assert!(reads, "{:?}", sleeper.stderr().all());
    shared.freeze(&sleeper);
    shared.put("frozen", 2_000).await;
    shared
        .wait_held("the others read its shards", |held| {
            !held.contains_key("w1") && !held.contains_key("")
        })
        .await;
    shared.wait_printed("frozen", &[], &[&sleeper, &second, &third]);

    // What the others printed is checkpointed before the sleeper wakes, so that an old checkpoint of its would go back.
    let mut places = BTreeMap::new();
    for line in second.stdout().all().iter().chain(&third.stdout().all()) {
        let record = parse(line);
        let number = record["sequence_number"].as_str().expect("number");
        let at = ExtendedSequenceNumber::parse(number, 0).expect("a place");
        let last = places.entry(record["shard_id"].as_str().expect("shard").to_owned());
        let last = last.or_insert_with(|| at.clone());
        *last = at.max(last.clone());
    }
    assert_eq!(places.len(), SHARDS as usize, "the others read every shard");
    let until = deadline();
    let mut checkpoints = shared.checkpoints().await;
    while places
        .iter()
        .any(|(shard, last)| checkpoints.get(shard).is_none_or(|at| at < last))
    {
        assert!(now() < until, "{checkpoints:?} do not reach {places:?}");
        tokio::task::yield_now().await;
        checkpoints = shared.checkpoints().await;
    }

    let printed_before = sleeper.stdout().all().len();
    sleeper.signal("CONT");
    let until = deadline();
    loop {
        let later = shared.checkpoints().await;
        for (shard, at) in &checkpoints {
            assert!(later.get(shard) >= Some(at), "{shard} went back from {at}");
        }
        checkpoints = later;
        if everyone_has_two(&shared.held().await) {
            break;
        }
        assert!(
            now() < until,
            "{:?}; {:?}",
            shared.held().await,
            sleeper.stderr().all()
        );
        tokio::task::yield_now().await;
    }
    shared.put("after", 2_000).await;
    shared.wait_printed("after", &[], &[&sleeper, &second, &third]);
    let lines = sleeper.stdout().all();
    let woken: Vec<String> = lines[printed_before..]
        .iter()
        .filter_map(|line| data(line))
        .collect();
    let of = |phase: &str| woken.iter().filter(|data| data.starts_with(phase)).count();
    assert_eq!(of("frozen"), 0, "others had settled these");
    // It held two shards, and so two batches.
    assert!(
        of("before") <= 2 * BATCH,
        "{} of the shards it had lost",
        of("before")
    );
    assert!(of("after") > 0, "it reads again");
    for worker in [sleeper, second, third] {
        assert_eq!(worker.terminate().0, Some(0));
    }
}
