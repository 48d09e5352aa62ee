//! `shardfleet dev --workers`: worker processes share the shards, one is killed, one joins, and every record is accounted for.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Process, deadline, now, parse, root, run, run_within};

/// What a run with chaos has to keep.
const LIMIT: Duration = Duration::from_mins(2);

fn dev(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shardfleet"));
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .arg("dev")
        .args(args);
    command
}

fn count(summary: &Value, key: &str) -> u64 {
    let value = summary[key].as_u64();
    value.unwrap_or_else(|| panic!("no count {key} in {summary}"))
}

fn members(summary: &Value) -> &Vec<Value> {
    summary["members"].as_array().expect("members")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_joined_split_and_stopped_within_two_minutes_and_nothing_is_lost() {
    let (code, out, err) = run_within(dev(&["--workers", "3", "--chaos", "--json"]), LIMIT).await;
    println!("{out}");
    assert_eq!(code, Some(0), "{out}{err}");
    let summary = parse(&out);
    let put = count(&summary, "put");
    assert!(put >= 20_000, "{put} put");
    assert_eq!(count(&summary, "settled"), put);
    assert_eq!(
        count(&summary, "delivered"),
        put + count(&summary, "repeated"),
        "each came, and only repeats came beside"
    );
    for key in ["lost", "out_of_order", "unexpected"] {
        assert_eq!(count(&summary, key), 0, "{key} of {summary}");
    }
    assert_eq!(
        count(&summary, "repeated"),
        count(&summary, "repeated_after_kill"),
        "only what the killed worker had not settled comes again"
    );
    assert_eq!(count(&summary, "workers"), 4);
    assert!(count(&summary, "failovers") >= 1);
    let ends: Vec<_> = members(&summary).iter().map(|m| m["ended"].as_str()).collect();
    assert_eq!(
        ends.iter().filter(|end| **end == Some("killed")).count(),
        1,
        "{ends:?}"
    );
    assert_eq!(
        ends.iter().filter(|end| **end == Some("stopped")).count(),
        3,
        "{ends:?}"
    );
    assert_eq!(summary["left_out"], Value::Array(Vec::new()));
    assert!(summary["gap_ms_max"]["kill"].is_u64(), "{summary}");
    // Eight shards to begin with, and two that a split made.
    assert_eq!(summary["shards"].as_array().map(Vec::len), Some(10));
    assert_eq!(err, "", "--json is quiet");
}

#[test]
fn a_file_goes_through_several_processes() {
    let mut command = dev(&["--workers", "2", "--json", "--key-field", "state", "--input"]);
    command.arg(root().join("data/airports.jsonl"));
    let (code, out, err) = run(&mut command);
    assert_eq!(code, Some(0), "{err}");
    let summary = parse(&out);
    for key in ["put", "delivered", "settled"] {
        assert_eq!(count(&summary, key), 3376, "{key} of {summary}");
    }
    for key in ["lost", "repeated", "out_of_order", "failovers"] {
        assert_eq!(count(&summary, key), 0, "{key} of {summary}");
    }
    assert_eq!((count(&summary, "workers"), members(&summary).len()), (2, 2));
    assert!(summary["gap_ms_max"]["kill"].is_null(), "{summary}");
}

#[test]
fn workers_end_with_the_process_that_started_them() {
    let parent = Process::start(&mut dev(&["--workers", "2", "--chaos"]));
    let mut pids = Vec::new();
    let are_reading = parent.stderr().wait(|lines| {
        let pid = |line: &String| {
            Some(
                line.split_once("is started (pid ")?
                    .1
                    .strip_suffix(')')?
                    .to_owned(),
            )
        };
        pids = lines.iter().filter_map(pid).collect();
        lines.iter().any(|line| line.contains("-> worker-"))
    });
    assert!(are_reading && pids.len() == 2, "{:?}", parent.stderr().all());
    let is_alive = |pid: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // Dead and not waited for by whoever takes orphans in is dead all the same.
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| !rest.starts_with('Z'))
    };
    assert!(pids.iter().all(is_alive), "{pids:?}");
    parent.kill();
    let until = deadline();
    while pids.iter().any(is_alive) {
        assert!(now() < until, "{pids:?} live on");
        std::thread::yield_now();
    }
}

#[test]
fn bad_arguments_are_refused_before_anything_starts() {
    for (args, expected) in [
        (&["--workers", "0"][..], "1..=64"),
        (&["--workers", "65"], "1..=64"),
        (&["--workers", "many"], "many"),
        (&["--workers", "2", "--input", "/dev/null"], "no lines"),
        (&["--chaos", "--input", "nowhere"], "nowhere"),
        (&["--chaos", "--stream", "two words"], "two words"),
    ] {
        let (code, out, err) = run(&mut dev(args));
        assert_eq!(code, Some(2), "{args:?}: {err}");
        assert!(err.contains(expected) && out.is_empty(), "{args:?}: {err}");
    }
    let (code, help, _) = run(&mut dev(&["--help"]));
    assert_eq!(code, Some(0));
    for word in ["--workers", "--chaos", "failovers", "gap_ms_max"] {
        assert!(help.contains(word), "{word}");
    }
}
