//! `shardfleet run` with a handler that is a program: settling, failing, dying, talking nonsense.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use shardfleet::store::{LeaseStore, SqliteLeaseStore};
use shardfleet::{ApplicationName, ExtendedSequenceNumber};

use crate::harness::{Process, World, deadline, now, parse, run};

/// A handler that writes each record it settles to a file, and misbehaves as its first argument says.
const HANDLER: &str = r#"
import base64, json, os, sys
how, log = sys.argv[1], open(sys.argv[2], "a")
for line in sys.stdin:
    event = json.loads(line)
    if event["event"] == "initialize":
        continue
    if event["event"] != "records":
        print(json.dumps({"done": event["event"]}), flush=True)
        continue
    for record in event["records"]:
        data = base64.b64decode(record["data_base64"]).decode()
        if how == "refuses" and data == "record-7":
            print(json.dumps({"batch": event["batch"], "failed": record["id"], "reason": "seven is bad"}), flush=True)
            break
        if how == "dies" and data == "record-7" and not os.path.exists(sys.argv[2] + ".died"):
            open(sys.argv[2] + ".died", "w").close()
            sys.exit(3)
        if how == "babbles" and data == "record-7" and not os.path.exists(sys.argv[2] + ".died"):
            open(sys.argv[2] + ".died", "w").close()
            print("what?", flush=True)
            break
        log.write(data + "\n")
        log.flush()
        print(json.dumps({"batch": event["batch"], "settled": [record["id"]]}), flush=True)
"#;

struct Run {
    world: World,
    log: std::path::PathBuf,
}

impl Run {
    async fn new(records: usize) -> Self {
        let world = World::start().await;
        world
            .kinesis
            .controls()
            .create_stream("orders", 1)
            .expect("a stream");
        world.write("handler.py", HANDLER);
        let records: Vec<_> = (0..records)
            .map(|n| ("one".to_owned(), format!("record-{n}")))
            .collect();
        world.put("orders", &records).await;
        let log = world.path("log");
        Self { world, log }
    }

    fn start(&self, how: &str, errors: &str) -> Process {
        let text = format!(
            "stream = \"orders\"\napplication = \"handled\"\nworker_id = \"w1\"\nstart_at = \"horizon\"\n\
             [lease_store]\ntype = \"sqlite\"\npath = \"leases.sqlite\"\n\
             [leases]\nfailover_time = \"600ms\"\n[reading]\npoll_interval = \"20ms\"\nbatch_size = 5\n\
             [handler]\ncommand = [\"python3\", \"handler.py\", \"{how}\", \"log\"]\ntimeout = \"20s\"\n\
             [errors]\n{errors}\n"
        );
        let config = self.world.write("worker.toml", &text);
        Process::start(self.world.command().arg("run").arg("--config").arg(config))
    }

    fn logged(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn wait_for(&self, what: &str, worker: &Process, done: impl Fn(&[String]) -> bool) -> Vec<String> {
        let until = deadline();
        loop {
            let logged = self.logged();
            if done(&logged) {
                return logged;
            }
            assert!(now() < until, "{what}: {logged:?}; {:?}", worker.stderr().all());
            std::thread::yield_now();
        }
    }

    async fn checkpoint(&self) -> ExtendedSequenceNumber {
        let store = SqliteLeaseStore::new(self.world.path("leases.sqlite"), &ApplicationName::new("handled"));
        let scan = store.expect("a store").scan().await.expect("a scan");
        scan.leases[0].checkpoint.clone()
    }
}

fn names(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| format!("record-{n}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_settles_records_and_sigterm_stops_in_order() {
    let run = Run::new(40).await;
    let worker = run.start("works", "");
    let logged = run.wait_for("all settled", &worker, |logged| logged.len() >= 40);
    assert_eq!(logged, names(0..40));
    let stderr = worker.stderr().clone();
    let (code, _) = worker.terminate();
    assert_eq!(code, Some(0), "{:?}", stderr.all());
    assert!(
        run.checkpoint().await.sequence_number().is_some(),
        "the last checkpoint is written"
    );
    let again = run.start("works", "");
    // `start_at` goes ahead of the checkpoint: everything comes once more.
    run.wait_for("replayed", &again, |logged| logged.len() >= 80);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_dies_or_talks_nonsense_is_started_again_and_nothing_is_skipped() {
    for how in ["dies", "babbles"] {
        let run = Run::new(20).await;
        let worker = run.start(how, "attempts = 5");
        let logged = run.wait_for(how, &worker, |logged| logged.contains(&"record-19".to_owned()));
        let unique: BTreeSet<_> = logged.iter().cloned().collect();
        assert_eq!(unique, names(0..20).into_iter().collect(), "{how}");
        let first_of_each: Vec<_> = logged
            .iter()
            .enumerate()
            .filter(|(i, name)| !logged[..*i].contains(name))
            .map(|(_, name)| name.clone())
            .collect();
        assert_eq!(first_of_each, names(0..20), "{how}: in order");
        let errors = worker.stderr().all().join("\n");
        assert!(
            errors.contains(if how == "dies" { "it ended" } else { "what?" }),
            "{errors}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_record_stops_the_shard_and_nothing_behind_it_is_settled() {
    let run = Run::new(20).await;
    let worker = run.start("refuses", "attempts = 2");
    assert!(
        worker
            .stderr()
            .wait(|lines| lines.iter().any(|line| line.contains("stands still")))
    );
    let unique: BTreeSet<_> = run.logged().into_iter().collect();
    assert_eq!(unique, names(0..7).into_iter().collect());
    assert!(worker.stderr().all().join("\n").contains("seven is bad"));
    let (code, _) = worker.terminate();
    assert_eq!(code, Some(1), "a shard stood still");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_record_is_set_aside_and_can_be_redriven() {
    let run_ = Run::new(20).await;
    let worker = run_.start(
        "refuses",
        "attempts = 2\nthen = \"dead-letter\"\ndead_letter_file = \"dead.jsonl\"",
    );
    let logged = run_.wait_for("the rest", &worker, |logged| {
        logged.contains(&"record-19".to_owned())
    });
    let unique: BTreeSet<_> = logged.into_iter().collect();
    assert_eq!(unique.len(), 19);
    assert!(!unique.contains("record-7"));
    drop(worker);
    let dead = std::fs::read_to_string(run_.world.path("dead.jsonl")).expect("the file");
    let letters: Vec<Value> = dead.lines().map(parse).collect();
    assert_eq!(letters.len(), 1, "{dead}");
    assert!(
        letters[0]["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("seven is bad"))
    );

    let (code, out, err) = run(run_.world.command().args(["redrive", "dead.jsonl"]));
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(out.trim(), "1 records put onto orders");
    let (_, out, _) = run(run_.world.command().args([
        "tail", "orders", "--from", "horizon", "--json", "--max", "21", "--idle", "5s",
    ]));
    let last = out.lines().last().map(parse).expect("a record");
    assert_eq!(
        (last["data"].as_str(), last["partition_key"].as_str()),
        (Some("record-7"), Some("one"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_is_not_there_is_named() {
    let run = Run::new(1).await;
    let config = run.world.write(
        "worker.toml",
        "stream = \"orders\"\nstart_at = \"horizon\"\n[lease_store]\ntype = \"memory\"\n\
         [handler]\ncommand = [\"no-such-program\"]\n[errors]\nattempts = 1\n",
    );
    let worker = Process::start(run.world.command().arg("run").arg("--config").arg(config));
    let is_named = |lines: &[String]| lines.iter().any(|line| line.contains("no-such-program"));
    assert!(worker.stderr().wait(is_named), "{:?}", worker.stderr().all());
    assert!(Path::new(&run.world.path("worker.toml")).exists());
}

/// A worker over memory with this handler section, which gives up after two attempts and could set records aside.
fn with_handler(run: &Run, handler: &str) -> Process {
    let text = format!(
        "stream = \"orders\"\nstart_at = \"horizon\"\n[lease_store]\ntype = \"memory\"\n[handler]\n{handler}\n\
         [errors]\nattempts = 2\nthen = \"dead-letter\"\ndead_letter_file = \"dead.jsonl\"\n"
    );
    let config = run.world.write("worker.toml", &text);
    Process::start(run.world.command().arg("run").arg("--config").arg(config))
}

fn stands_still(lines: &[String]) -> bool {
    lines.iter().any(|line| line.contains("stands still"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_cannot_work_at_all_sets_nothing_aside() {
    let run = Run::new(5).await;
    let worker = with_handler(&run, "command = [\"false\"]");
    assert!(worker.stderr().wait(stands_still), "{:?}", worker.stderr().all());
    let dead = std::fs::read_to_string(run.world.path("dead.jsonl")).expect("the file");
    assert_eq!(dead, "");
    let (code, _) = worker.terminate();
    assert_eq!(code, Some(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_handler_started_is_gone_with_it() {
    let run = Run::new(5).await;
    let handler = "command = [\"sh\", \"-c\", \"sleep 777 & echo $! >> pids; wait\"]\ntimeout = \"300ms\"";
    let worker = with_handler(&run, handler);
    assert!(worker.stderr().wait(stands_still), "{:?}", worker.stderr().all());
    let pids = std::fs::read_to_string(run.world.path("pids")).expect("the handler ran");
    assert_eq!(pids.lines().count(), 2, "once for each attempt");
    let is_alive = |pid: &str| {
        // A process that has ended and that nobody has asked after yet is dead as well.
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status
            .lines()
            .any(|line| line.starts_with("State:") && !line.contains('Z'))
    };
    let until = deadline();
    while pids.lines().any(is_alive) {
        assert!(now() < until, "still there: {pids}");
        std::thread::yield_now();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_output_is_closed_ends() {
    let run = Run::new(5).await;
    let config = run.world.write(
        "worker.toml",
        "stream = \"orders\"\nstart_at = \"horizon\"\n[lease_store]\ntype = \"memory\"\n",
    );
    let mut child = run.world.command();
    child
        .arg("run")
        .arg("--config")
        .arg(config)
        .stdout(std::process::Stdio::piped());
    let mut child = child
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    let until = deadline();
    while child.try_wait().expect("wait").is_none() {
        assert!(now() < until, "it goes on");
        std::thread::yield_now();
    }
}
