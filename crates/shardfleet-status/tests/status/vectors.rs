//! What `KafkaStatusBackingStore` of Kafka Connect 4.3.1 was recorded to write and to make of what it reads.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use shardfleet_core::status::{Applied, may_write};
use shardfleet_status::codec::{decode, encode};
use shardfleet_status::{StatusKey, StatusState, StatusValue, StatusView, TopicStatus, WorkStatus};

fn recorded() -> Value {
    serde_json::from_str(include_str!("vectors/connect-status.json")).expect("JSON")
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn int(value: &Value) -> i32 {
    i32::try_from(value.as_i64().expect("an integer")).expect("32 bits")
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
    (0..hex.len()).step_by(2).map(digits).collect()
}

fn key_of(write: &Value) -> StatusKey {
    let connector = write["connector"].as_str().expect("a name");
    match write["kind"].as_str().expect("a kind") {
        "connector" => StatusKey::connector(connector),
        "task" => StatusKey::task(connector, int(&write["task"])),
        "topic" => StatusKey::topic(connector, write["topic"].as_str().expect("a topic")),
        other => panic!("{other}"),
    }
}

fn value_of(write: &Value) -> StatusValue {
    if write["kind"] == "topic" {
        return StatusValue::Topic(TopicStatus {
            topic: text(&write["topic"]).expect("a topic"),
            connector: text(&write["connector"]).expect("a name"),
            task: int(&write["task"]),
            discovered_ms: write["discoverTimestamp"].as_i64().expect("a time"),
        });
    }
    StatusValue::Work(WorkStatus {
        state: write["state"].as_str().expect("a state").parse().expect("known"),
        trace: text(&write["trace"]),
        worker_id: text(&write["worker_id"]).expect("a worker"),
        generation: int(&write["generation"]),
        version: text(&write["version"]),
    })
}

#[test]
fn the_states_are_connects_in_its_order() {
    let names: Vec<String> = StatusState::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(json!(names), recorded()["states"]);
}

/// All 200: keys and values byte for byte, tombstones included.
#[test]
fn every_write_gives_the_same_bytes() {
    let recorded = recorded();
    let writes = recorded["writes"].as_array().expect("writes");
    assert_eq!(writes.len(), 200);
    let mut compared = 0;
    for write in writes {
        if let Some(thrown) = write["throws"].as_str() {
            // Ours has no null to give: a worker's id is a text.
            assert!(
                write["worker_id"].is_null() && thrown.contains("worker_id"),
                "{write}"
            );
            continue;
        }
        let key = key_of(write);
        assert_eq!(
            key.to_string().into_bytes(),
            bytes(write["key_hex"].as_str().expect("a key"))
        );
        match write["value_hex"].as_str() {
            None => assert!(
                write["op"] == "deleteTopic" || write["state"] == "DESTROYED",
                "{write}"
            ),
            Some(hex) => {
                let value = value_of(write);
                let ours = encode(&value);
                assert!(
                    ours == bytes(hex),
                    "{write}\nours: {}",
                    String::from_utf8_lossy(&ours)
                );
                assert_eq!(decode(&key, &ours).expect("valid"), value);
            }
        }
        compared += 1;
    }
    assert_eq!(compared, 198);
}

/// What is read otherwise on purpose, by the record's key or value, and why.
fn why_otherwise(read: &Value) -> Option<&'static str> {
    let note = read["note"].as_str().unwrap_or_default();
    let record = &read["records"][0];
    let key = record["key"].as_str().unwrap_or_default();
    let value = record["value"].as_str().unwrap_or_default();
    if value.contains("\"generation\":04") || value.contains("\"task\":04") {
        return Some("a number with a leading nought is no JSON; no writer makes one");
    }
    if key == "status-task-a-٣" {
        return Some("a task's number in other digits than ASCII's; no writer makes one");
    }
    if key.starts_with("status-topic-foo:xxxxxxxxxx") {
        return Some(
            "what stands between topic and connector must be :connector-, and is not compared by Connect",
        );
    }
    if key == "status-topic-a:b:connector-c" {
        return Some(
            "Connect cuts a topic's name at its first colon, and the connector's after eleven characters",
        );
    }
    if note == "task UNASSIGNED of the same worker and generation after RUNNING" {
        return Some("a worker's own UNASSIGNED is believed, before and after compaction alike");
    }
    if record.get("key_hex").is_some() {
        return Some("a key that is not UTF-8 is skipped; Connect takes it for a name with U+FFFD in it");
    }
    None
}

fn shown(status: &WorkStatus) -> Value {
    // Connect holds null where a record names no worker.
    let worker = Some(&status.worker_id).filter(|id| !id.is_empty());
    json!({
        "state": status.state.name(), "trace": status.trace, "worker_id": worker, "generation": status.generation,
        "version": status.version,
    })
}

fn with(mut value: Value, more: &[(&str, Value)]) -> Value {
    for (name, member) in more {
        value[*name] = member.clone();
    }
    value
}

fn holds(view: &StatusView) -> Value {
    let connectors: BTreeMap<&str, Value> = view.connectors().map(|(name, s)| (name, shown(s))).collect();
    let tasks: Vec<Value> = view
        .tasks()
        .map(|(connector, task, s)| {
            with(
                shown(s),
                &[("connector", json!(connector)), ("task", json!(task))],
            )
        })
        .collect();
    let topics: Vec<Value> = view
        .topics()
        .map(|(connector, topic, s)| {
            json!({"connector": connector, "topic": topic, "value": {
                "name": s.topic, "connector": s.connector, "task": s.task, "discoverTimestamp": s.discovered_ms,
            }})
        })
        .collect();
    json!({"connectors": connectors, "tasks": tasks, "topics": topics})
}

fn sorted(mut holds: Value) -> Value {
    for list in ["tasks", "topics"] {
        if let Some(list) = holds[list].as_array_mut() {
            list.sort_by_key(ToString::to_string);
        }
    }
    // An empty id and none are the same for us.
    let nameless = |status: &mut Value| {
        if status["worker_id"] == "" {
            status["worker_id"] = Value::Null;
        }
    };
    if let Some(tasks) = holds["tasks"].as_array_mut() {
        tasks.iter_mut().for_each(nameless);
    }
    if let Some(connectors) = holds["connectors"].as_object_mut() {
        connectors.values_mut().for_each(nameless);
    }
    holds
}

/// All 170, but for those that are read otherwise on purpose.
#[test]
fn every_read_leaves_the_same_behind() {
    let recorded = recorded();
    let reads = recorded["reads"].as_array().expect("reads");
    assert_eq!(reads.len(), 170);
    let mut otherwise = Vec::new();
    let mut faults = Vec::new();
    for read in reads {
        let mut view = StatusView::default();
        let mut skipped = 0;
        for record in read["records"].as_array().expect("records") {
            let key = match (record["key"].as_str(), record["key_hex"].as_str()) {
                (Some(key), None) => StatusKey::parse(key).ok(),
                _ => None,
            };
            let value = match (record["value"].as_str(), record["value_hex"].as_str()) {
                (_, Some(hex)) => Some(bytes(hex)),
                (Some(text), None) => Some(text.as_bytes().to_vec()),
                (None, None) => None,
            };
            let decoded = key.map(|key| match value {
                None => Ok((key, None)),
                Some(bytes) => decode(&key, &bytes).map(|value| (key, Some(value))),
            });
            match decoded {
                Some(Ok((key, value))) => assert_ne!(view.apply(&key, value), Applied::Misfit),
                Some(Err(_)) | None => skipped += 1,
            }
        }
        let (ours, theirs) = (sorted(holds(&view)), sorted(read["holds"].clone()));
        let complaints =
            read["errors"].as_u64().expect("a number") + read["warns"].as_u64().expect("a number");
        let has_thrown = read["records"]
            .as_array()
            .expect("records")
            .iter()
            .any(|r| r.get("throws").is_some());
        let is_same = ours == theirs && (skipped > 0) == (complaints > 0 || has_thrown);
        match (is_same, why_otherwise(read)) {
            (true, None) => {}
            (false, Some(why)) => otherwise.push(why),
            (true, Some(why)) => faults.push(format!("read alike, so it needs no reason ({why}): {read}")),
            (false, None) => faults.push(format!("{read}\nours: {ours}")),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(otherwise.len() <= 10, "{otherwise:#?}");
}

#[test]
fn every_put_rule_is_connects() {
    let recorded = recorded();
    let rules = recorded["put_rules"].as_array().expect("rules");
    assert_eq!(rules.len(), 34);
    let of = |value: &Value| WorkStatus {
        state: StatusState::Running,
        trace: None,
        worker_id: text(&value["worker_id"]).unwrap_or_default(),
        generation: int(&value["generation"]),
        version: None,
    };
    for rule in rules {
        let held = (!rule["held"].is_null()).then(|| of(&rule["held"]));
        let is_sent = rule["op"] == "put" || may_write(held.as_ref(), &of(&rule["given"]));
        if rule.get("throws").is_some() {
            // Where a record names no worker Connect's check fails on the null; ours compares.
            assert!(is_sent, "{rule}");
        } else {
            assert_eq!(json!(is_sent), rule["sent"], "{rule}");
        }
    }
}
