//! Whole workers: `shardfleet dev` publishes on a real topic, `shardfleet status` and Connect's own store read it.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use shardfleet_status::StatusStore;

use crate::{Lab, Verdict, ensure, pause, peer, until};

/// What `dev` publishes on.
const TOPIC: &str = "shardfleet-status";
/// Two workers have six shards, and the chaos splits one: seven that are read on, and one that was read to its end.
const LIVE_SHARDS: usize = 7;
/// For so long the broker stands still while workers start.
const STANDSTILL: Duration = Duration::from_secs(8);

fn binary() -> Result<PathBuf, String> {
    let path = std::env::var_os("SHARDFLEET_BIN");
    path.map(PathBuf::from)
        .ok_or_else(|| "SHARDFLEET_BIN names no binary; `cargo xtask peers kafka` sets it".to_owned())
}

fn chaos(lab: &Lab) -> Result<Child, String> {
    let broker = lab.broker.bootstrap.as_str();
    Command::new(binary()?)
        .args([
            "dev",
            "--workers",
            "2",
            "--chaos",
            "--json",
            "--status-kafka",
            broker,
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("shardfleet dev: {error}"))
}

/// The summary of a run in which nothing was lost.
fn summary(run: Child) -> Result<Value, String> {
    let output = run.wait_with_output().map_err(|error| error.to_string())?;
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    ensure(output.status.success(), || format!("shardfleet dev: {out}{err}"))?;
    let summary = peer::parse(&out)?;
    ensure(summary["lost"] == 0 && summary["out_of_order"] == 0, || {
        summary.to_string()
    })?;
    Ok(summary)
}

/// What `shardfleet status` prints of the topic.
fn status(lab: &Lab) -> Result<Value, String> {
    let output = Command::new(binary()?)
        .args(["status", "--json", "--kafka", &lab.broker.bootstrap])
        .output()
        .map_err(|error| format!("shardfleet status: {error}"))?;
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(output.status.success(), || format!("shardfleet status: {err}"))?;
    let all = peer::parse(&String::from_utf8_lossy(&output.stdout))?;
    let applications = all["applications"].as_array().map_or(0, Vec::len);
    ensure(applications == 1, || {
        format!("{applications} applications: {all}")
    })?;
    Ok(all["applications"][0].clone())
}

/// After a clean end the topic holds the application and a task of each live shard, which nobody reads; Connect's own store says the same.
fn ensure_clean_end(lab: &Lab) -> Result<(), String> {
    let application = status(lab)?;
    let tasks = application["tasks"].as_array().cloned().unwrap_or_default();
    let is_unassigned = |work: &Value| work["state"] == "UNASSIGNED";
    ensure(
        is_unassigned(&application) && tasks.len() == LIVE_SHARDS && tasks.iter().all(is_unassigned),
        || application.to_string(),
    )?;
    let judged = lab.broker.judged(TOPIC)?;
    let theirs = judged["tasks"].as_array().cloned().unwrap_or_default();
    ensure(
        theirs.len() == LIVE_SHARDS && judged["connectors"].as_object().is_some_and(|all| all.len() == 1),
        || judged.to_string(),
    )
}

/// A fleet under faults: what is told while it runs, and what is left at its end.
pub(crate) async fn fleet(lab: &Lab) -> Verdict {
    let run = chaos(lab)?;
    let store = {
        let mut settings = lab.settings(TOPIC);
        settings.is_shared = true;
        shardfleet_status::KafkaStatusStore::start(settings).map_err(|error| error.to_string())?
    };
    let count = |state: &str| {
        let view = store.view();
        view.tasks()
            .filter(|(_, _, task)| task.state.name() == state)
            .count()
    };
    until("six shards are read", || count("RUNNING") >= 6).await?;
    let summary = summary(run)?;
    ensure_clean_end(lab)?;
    let failovers = &summary["failovers"];
    Ok(format!(
        "{} records, {failovers} failovers; nothing lost, and {LIVE_SHARDS} tasks and the application UNASSIGNED at the end",
        summary["put"]
    ))
}

/// A fleet whose broker stands still when it starts reads all the same, and its statuses catch up.
pub(crate) async fn fleet_without_broker(lab: &Lab) -> Verdict {
    lab.broker.tell("pause")?;
    let run = chaos(lab)?;
    pause(STANDSTILL).await;
    lab.broker.tell("resume")?;
    let summary = summary(run)?;
    ensure_clean_end(lab)?;
    Ok(format!(
        "the broker stood still for {} s; {} records, nothing lost, and the topic is right at the end",
        STANDSTILL.as_secs(),
        summary["put"]
    ))
}
