//! Statuses that arrive, and what Connect's own store makes of them.

use std::time::Duration;

use serde_json::{Value, json};
use shardfleet_status::{StatusKey, StatusState, StatusStore, StatusView, TopicStatus};

use crate::peer::{Watch, parse};
use crate::{Lab, Verdict, ensure, flushed, open, pause, put, status, until};

const STATES: [StatusState; 6] = [
    StatusState::Unassigned,
    StatusState::Running,
    StatusState::Paused,
    StatusState::Failed,
    StatusState::Restarting,
    StatusState::Stopped,
];

/// What a view holds, as the judge prints what Connect's store holds.
fn shown(view: &StatusView) -> Value {
    let work = |s: &shardfleet_status::WorkStatus| {
        json!([s.state.name(), s.trace, s.worker_id, s.generation, s.version])
    };
    let connectors: Vec<Value> = view
        .connectors()
        .map(|(name, s)| json!([name, work(s)]))
        .collect();
    let tasks: Vec<Value> = view
        .tasks()
        .map(|(name, task, s)| json!([name, task, work(s)]))
        .collect();
    let topics: Vec<Value> = view
        .topics()
        .map(|(name, topic, s)| json!([name, topic, s.task, s.discovered_ms]))
        .collect();
    json!([connectors, tasks, topics])
}

/// The judge's words in the same form.
fn judged(document: &Value) -> Value {
    let work = |s: &Value| {
        json!([
            s["state"],
            s["trace"],
            s["worker_id"],
            s["generation"],
            s["version"]
        ])
    };
    let list = |name: &str| document[name].as_array().cloned().unwrap_or_default();
    let connectors = document["connectors"].as_object().cloned().unwrap_or_default();
    let mut connectors: Vec<Value> = connectors
        .iter()
        .map(|(name, s)| json!([name, work(s)]))
        .collect();
    let mut tasks: Vec<Value> = list("tasks")
        .iter()
        .map(|s| json!([s["connector"], s["task"], work(s)]))
        .collect();
    let mut topics: Vec<Value> = list("topics")
        .iter()
        .map(|s| {
            json!([
                s["connector"],
                s["topic"],
                s["value"]["task"],
                s["value"]["discoverTimestamp"]
            ])
        })
        .collect();
    let by_name = |a: &Value, b: &Value| {
        let key = |v: &Value| {
            (
                v[0].as_str().map(str::to_owned),
                v[1].as_i64(),
                v[1].as_str().map(str::to_owned),
            )
        };
        key(a).cmp(&key(b))
    };
    for list in [&mut connectors, &mut tasks, &mut topics] {
        list.sort_by(by_name);
    }
    json!([connectors, tasks, topics])
}

fn agree(ours: &Value, theirs: &Value) -> Result<(), String> {
    ensure(ours == theirs, || format!("ours: {ours}\nConnect's: {theirs}"))
}

/// KIP-1278's success criterion: everything arrives, and the counters say so.
pub(crate) async fn healthy(lab: &Lab) -> Verdict {
    let (first, second) = (lab.open("st").await?, lab.open("st").await?);
    for generation in 0..25 {
        for task in 0..10 {
            let state = if generation % 2 == 0 {
                StatusState::Running
            } else {
                StatusState::Paused
            };
            put(
                &first,
                &StatusKey::task("orders", task),
                status(state, "w1", generation),
            )?;
            put(
                &second,
                &StatusKey::task("orders", 100 + task),
                status(state, "w2", generation),
            )?;
        }
        pause(Duration::from_millis(5)).await;
    }
    flushed(&first).await?;
    flushed(&second).await?;
    for store in [&first, &second] {
        until("both to know all", || {
            store
                .view()
                .tasks_of("orders")
                .filter(|(_, s)| s.generation == 24)
                .count()
                == 20
        })
        .await?;
        let counters = store.counters();
        ensure(
            counters.accepted == 250
                && counters.success + counters.superseded == 250
                && counters.failure == 0,
            || format!("{counters:?}"),
        )?;
    }
    agree(&shown(&first.view()), &judged(&lab.broker.judged("st")?))?;
    let counters = first.counters();
    Ok(format!(
        "250 statuses of each of two stores: {} written and {} superseded by the first; Connect's store holds the same 20",
        counters.success, counters.superseded
    ))
}

/// Every state, tombstones, odd names: Connect's own store holds what ours does.
pub(crate) async fn judge_reads_ours(lab: &Lab) -> Verdict {
    let store = lab.open("st").await?;
    let long = "n".repeat(1000);
    let names = ["orders", "a-b--c-", "é😀", "a:b", "a/b", "..", "a b", &long];
    for name in names {
        for (task, state) in (0..).zip(STATES) {
            put(
                &store,
                &StatusKey::task(name, task),
                status(state, "10.0.0.1:8083", task),
            )?;
        }
        put(
            &store,
            &StatusKey::connector(name),
            status(StatusState::Failed, "w", -1),
        )?;
        let topic = TopicStatus {
            topic: "stream.1".to_owned(),
            connector: name.to_owned(),
            task: 3,
            discovered_ms: 1_700_000_000_123,
        };
        put(&store, &StatusKey::topic(name, "stream.1"), topic.into())?;
    }
    put(
        &store,
        &StatusKey::connector("gone"),
        status(StatusState::Running, "w", 1),
    )?;
    put(
        &store,
        &StatusKey::task("gone", 0),
        status(StatusState::Running, "w", 1),
    )?;
    flushed(&store).await?;
    let delete = |key: &StatusKey| store.delete(key).map_err(|error| error.to_string());
    delete(&StatusKey::connector("gone"))?;
    delete(&StatusKey::task("orders", 0))?;
    delete(&StatusKey::topic("a/b", "stream.1"))?;
    flushed(&store).await?;
    until("the deletions", || {
        store.view().topics().count() == names.len() - 1
    })
    .await?;
    let document = lab.broker.judged("st")?;
    agree(&shown(&store.view()), &judged(&document))?;
    ensure(
        document["log"]["error"] == 0 && document["log"]["warn"] == 0,
        || document["log"].to_string(),
    )?;
    Ok(format!(
        "{} connectors with 6 states each; Connect's store logged no complaint",
        names.len()
    ))
}

/// What Connect's own store writes, ours reads.
pub(crate) async fn ours_reads_judges(lab: &Lab) -> Verdict {
    lab.broker.create("st", &["--partitions", "5"])?;
    let mut commands = Vec::new();
    let mut command = |value: Value| commands.push(value.to_string());
    for name in ["orders", "a-b", "é😀", "a:b"] {
        for (task, state) in (0..).zip(STATES) {
            command(
                json!({"op": "put", "kind": "task", "name": name, "task": task, "state": state.name(), "worker_id": "w:1",
                "generation": 3, "trace": if state == StatusState::Failed { json!("boom\n\u{1b}") } else { Value::Null }, "version": "4.3.1"}),
            );
        }
        command(
            json!({"op": "put", "kind": "connector", "name": name, "state": "RUNNING", "worker_id": "w:1", "generation": 3}),
        );
        command(
            json!({"op": "put", "kind": "topic", "name": name, "task": 0, "topic": "foo", "discoverTimestamp": 1_700_000_000_123_i64}),
        );
    }
    command(json!({"op": "delete", "kind": "task", "name": "orders", "task": 5}));
    command(json!({"op": "flush"}));
    lab.broker.judge(&["write"], "st", &[], &commands.join("\n"))?;
    let mut settings = lab.settings("st");
    let refused = open(settings.clone()).await.map(|_| ());
    ensure(
        refused
            .as_ref()
            .is_err_and(|why| why.contains("not shardfleet's")),
        || format!("{refused:?}"),
    )?;
    settings.is_shared = true;
    let store = open(settings).await?;
    agree(&shown(&store.view()), &judged(&lab.broker.judged("st")?))?;
    ensure(store.skipped() == 0, || format!("{} skipped", store.skipped()))?;
    Ok(
        "4 connectors with 23 tasks of Connect's, refused until the topic was to be shared, and read alike"
            .to_owned(),
    )
}

pub(crate) async fn restart(lab: &Lab) -> Verdict {
    let store = lab.open("st").await?;
    for task in 0..200 {
        put(
            &store,
            &StatusKey::task("orders", task),
            status(StatusState::Running, "w", task),
        )?;
    }
    let before = store.close(crate::PATIENCE).await;
    ensure(before.unwritten.is_empty(), || format!("{before:?}"))?;
    let watch = Watch::start();
    let again = lab.open("st").await?;
    let time = watch.time();
    ensure(again.view().tasks_of("orders").count() == 200, || {
        format!("{:?}", again.view())
    })?;
    Ok(format!("200 statuses known again after {time:.1?}"))
}

/// A reader sees the same before and after the cleaner, a clean stop's UNASSIGNED included.
pub(crate) async fn compaction(lab: &Lab) -> Verdict {
    let store = lab.open("st").await?;
    for round in 0..20 {
        for task in 0..10 {
            put(
                &store,
                &StatusKey::task("orders", task),
                status(StatusState::Running, "w", round),
            )?;
        }
        flushed(&store).await?;
    }
    for task in 0..4 {
        store
            .delete(&StatusKey::task("orders", task))
            .map_err(|error| error.to_string())?;
    }
    for task in 4..7 {
        put(
            &store,
            &StatusKey::task("orders", task),
            status(StatusState::Unassigned, "w", 20),
        )?;
    }
    flushed(&store).await?;
    let count = |text: &str| text.lines().count();
    let before = count(&lab.broker.judge(&["dump"], "st", &[], "")?);
    let fresh = lab.open("st").await?;
    let seen = shown(&fresh.view());
    let ours = |view: &StatusView| {
        let of_orders = |state| view.tasks_of("orders").filter(|(_, s)| s.state == state).count();
        (
            of_orders(StatusState::Running),
            of_orders(StatusState::Unassigned),
        )
    };
    ensure(ours(&fresh.view()) == (3, 3), || format!("{seen}"))?;
    // One more record on each partition lets the cleaner have what came before.
    let mut after = before;
    for tick in 0..40 {
        for task in 0..12 {
            put(
                &store,
                &StatusKey::task("tick", task),
                status(StatusState::Running, "w", tick),
            )?;
        }
        flushed(&store).await?;
        pause(Duration::from_millis(700)).await;
        after = count(&lab.broker.judge(&["dump"], "st", &[], "")?);
        if after < 40 {
            break;
        }
    }
    ensure(after < before / 2, || {
        format!("{before} records before, {after} after")
    })?;
    let later = lab.open("st").await?;
    ensure(ours(&later.view()) == (3, 3), || {
        format!("{}", shown(&later.view()))
    })?;
    Ok(format!(
        "{before} records before the cleaner and {after} after it: 3 RUNNING and 3 UNASSIGNED both times"
    ))
}

/// The states of a key's records in the log, oldest first.
pub(crate) fn states_in_log(lab: &Lab, topic: &str, key: &str) -> Result<Vec<String>, String> {
    let dump = lab.broker.judge(&["dump"], topic, &[], "")?;
    let mut states = Vec::new();
    for line in dump.lines() {
        let record = parse(line)?;
        if record["key"] == key {
            let value = record["value"].as_str().map(parse).transpose()?;
            states.push(value.map_or("deleted".to_owned(), |v| {
                v["state"].as_str().unwrap_or("?").to_owned()
            }));
        }
    }
    Ok(states)
}
