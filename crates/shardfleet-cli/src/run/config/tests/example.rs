//! The documented example is true: every key is in it, every value is the default, and every setting of the library can be set by one.

use std::collections::{BTreeMap, BTreeSet};

use shardfleet::AwsSettings;
use toml::Value;

use super::super::super::{described, dynamodb_store};
use super::*;

const EXAMPLE: &str = include_str!("../../../../../../docs/worker.example.toml");

/// The keys behind `# `, in full, with the values shown.
fn shown() -> BTreeMap<String, Value> {
    let mut table = String::new();
    let mut shown = BTreeMap::new();
    for line in EXAMPLE.lines() {
        if let Some((name, _)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            table = format!("{name}.");
        }
        let Some(line) = line.strip_prefix("# ").filter(|line| line.contains(" = ")) else {
            continue;
        };
        // Prose has no value.
        if let Ok(parsed) = line.parse::<Table>() {
            shown.extend(
                parsed
                    .into_iter()
                    .map(|(key, value)| (format!("{table}{key}"), value)),
            );
        }
    }
    shown
}

fn written() -> Table {
    EXAMPLE.parse().expect("TOML")
}

fn flat(table: &Table) -> BTreeMap<String, Value> {
    let mut flat = BTreeMap::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) => {
                flat.extend(
                    inner
                        .iter()
                        .map(|(inner, value)| (format!("{key}.{inner}"), value.clone())),
                );
            }
            value => {
                flat.insert(key.clone(), value.clone());
            }
        }
    }
    flat
}

fn with(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        Some((name, key)) => {
            let inner = table.entry(name).or_insert_with(|| Table::new().into());
            inner
                .as_table_mut()
                .expect("a table")
                .insert(key.to_owned(), value);
        }
        None => {
            table.insert(key.to_owned(), value);
        }
    }
}

fn config_of(table: &Table) -> WorkerConfig {
    let parsed = parse(&table.to_string()).expect("TOML");
    assert_eq!(parsed.problems, [""; 0], "{table}");
    parsed.config
}

#[test]
fn its_values_are_the_defaults() {
    let bare = parse("stream = \"orders\"").expect("TOML");
    assert_eq!(config_of(&written()), bare.config);
}

#[test]
fn every_key_is_in_it() {
    let mut findings = Findings::default();
    read(Table::new(), &mut findings);
    let is_table = |key: &&String| TABLES.contains(&key.as_str());
    let known: BTreeSet<String> = findings
        .known()
        .iter()
        .filter(|key| !is_table(key))
        .cloned()
        .collect();
    let mut there: BTreeSet<String> = flat(&written()).into_keys().collect();
    there.extend(shown().into_keys());
    assert_eq!(there, known);
}

/// What a key needs beside itself to make sense.
fn company(key: &str) -> &'static [(&'static str, &'static str)] {
    match key {
        "lease_store.path" => &[("lease_store.type", "sqlite")],
        "lease_store.read_capacity" => &[("lease_store.write_capacity", "7")],
        "lease_store.write_capacity" => &[("lease_store.read_capacity", "7")],
        "worker_metrics.fixed_percent" => &[("worker_metrics.source", "fixed")],
        "handler.command" => &[("handler.type", "command")],
        key if key.starts_with("status.") => &[("status.type", "kafka")],
        "errors.dead_letter_file" => &[("errors.then", "dead-letter")],
        _ => &[],
    }
}

#[test]
fn what_it_shows_is_read_and_makes_a_difference() {
    let default = config_of(&written());
    for (key, value) in shown() {
        let mut table = written();
        with(&mut table, &key, value);
        for (other, value) in company(&key) {
            with(
                &mut table,
                other,
                value.parse::<i64>().map_or(Value::from(*value), Value::from),
            );
        }
        assert_ne!(config_of(&table), default, "{key}");
    }
}

/// Other values than the defaults, for keys whose kind of value does not tell one.
fn another(key: &str, value: &Value) -> Value {
    match key {
        "lease_store.type" => Value::from("memory"),
        "leases.max_leases_for_worker" | "fleet.max_throughput_per_host_kbps" => Value::from(7),
        "fleet.assignment_strategy" => Value::from("lease-count-based"),
        "worker_metrics.source" => Value::from("process"),
        "worker_metrics.metrics" => Value::from(vec![Value::from("cpu"), Value::from("memory")]),
        "worker_metrics.ema_alpha" => Value::from(0.25),
        "fleet.leader_lease_duration" => Value::from("90s"),
        "worker_metrics.stale_metrics_after" => Value::from("2h"),
        "reading.aggregated" => Value::from("refuse"),
        "reading.hash_range_filter" => Value::from("off"),
        _ => match value {
            Value::Integer(n) => Value::from(n - 1),
            Value::Float(n) => Value::from(n + 1.0),
            Value::Boolean(is_set) => Value::from(!is_set),
            Value::String(text) if text.ends_with("MiB") => Value::from("8MiB"),
            // Within every range of the others.
            Value::String(text) if humantime::parse_duration(text).is_ok() => Value::from("7s"),
            other => panic!("{key}: no other value than {other} is known"),
        },
    }
}

/// The fields of what `{:#?}` prints, by their paths.
fn fields(debug: &str) -> BTreeMap<String, String> {
    let mut path: Vec<String> = Vec::new();
    let mut fields: BTreeMap<String, String> = BTreeMap::new();
    for line in debug.lines() {
        let line = line.trim().trim_end_matches(',');
        let opens = line.ends_with(['{', '(', '[']);
        if let Some((name, value)) = line.split_once(": ") {
            fields.insert([path.join("."), name.to_owned()].join("."), value.to_owned());
            if opens {
                path.push(name.to_owned());
            }
        } else if opens {
            path.push(String::new());
        } else if matches!(line, "}" | ")" | "]") {
            path.pop();
        } else {
            // Within an option or a list.
            let parent = fields
                .entry(path.join(".").trim_end_matches('.').to_owned())
                .or_default();
            parent.push_str(line);
        }
    }
    fields
}

/// What the library is told, field by field.
async fn told(config: &WorkerConfig) -> BTreeMap<String, String> {
    let aws = AwsSettings::builder().region("us-east-1");
    let aws = aws.credentials("id", "secret").load().await;
    let stream = described(config, &aws).build().expect("it makes sense");
    fields(&format!("{stream:#?}"))
}

#[tokio::test]
async fn every_setting_of_the_library_is_in_it_and_arrives() {
    // The same worker id each time, since a made-up one would differ.
    let mut base = written();
    with(&mut base, "worker_id", Value::from("w"));
    let default = told(&config_of(&base)).await;
    let mut settings = flat(&base);
    settings.extend(shown());
    let mut reached: BTreeSet<String> = BTreeSet::new();
    for (key, value) in settings {
        let is_ours = ["version", "shutdown_deadline"].contains(&key.as_str())
            || ["aws.", "lease_store.", "handler.", "errors.", "status.", "rest."]
                .iter()
                .any(|table| key.starts_with(table));
        if is_ours {
            continue;
        }
        let is_shown = shown().contains_key(&key);
        let other = match key.as_str() {
            "stream" => Value::from("others"),
            "worker_id" => Value::from("v"),
            _ if is_shown => value,
            _ => another(&key, &value),
        };
        let mut table = base.clone();
        with(&mut table, &key, other);
        for (other, value) in company(&key) {
            with(&mut table, other, Value::from(*value));
        }
        let told = told(&config_of(&table)).await;
        let changed = told
            .iter()
            .filter(|(field, value)| default.get(*field) != Some(value));
        let before = reached.len();
        let changed: Vec<String> = changed.map(|(field, _)| field.clone()).collect();
        assert!(!changed.is_empty(), "{key} changes nothing");
        reached.extend(changed);
        // The application is the stream's name by default, and a source with a figure is still a source.
        let may_be_known = ["application", "worker_metrics.source"].contains(&key.as_str());
        assert!(
            reached.len() > before || may_be_known,
            "{key} changes only what others do"
        );
    }
    let missed: Vec<&String> = default.keys().filter(|field| !reached.contains(*field)).collect();
    // Fields that only hold other fields.
    let holds_others = |field: &&&String| {
        let prefix = format!("{field}.");
        default.keys().any(|other| other.starts_with(&prefix))
    };
    let missed: Vec<_> = missed.into_iter().filter(|field| !holds_others(&field)).collect();
    assert!(missed.is_empty(), "no key sets {missed:?}");
}

#[tokio::test]
async fn every_setting_of_the_lease_table_is_in_it_and_arrives() {
    let aws = AwsSettings::builder().region("us-east-1");
    let aws = aws.credentials("id", "secret").load().await;
    let store = |table: &Table| match config_of(table).lease_store {
        LeaseStoreConfig::DynamoDb(config) => fields(&format!("{:#?}", dynamodb_store(&config, &aws))),
        other => panic!("{other:?}"),
    };
    let mut base = written();
    with(&mut base, "application", Value::from("order-mailer"));
    let default = store(&base);
    // What is shown behind `# Default` is the library's own default.
    let mut shown_limits = base.clone();
    for key in ["attempt_timeout", "prepare_deadline", "scan_deadline"] {
        let key = format!("lease_store.{key}");
        with(&mut shown_limits, &key, shown()[&key].clone());
    }
    assert_eq!(store(&shown_limits), default);
    let mut reached = BTreeSet::new();
    for (key, value) in shown().into_iter().chain(flat(&base)) {
        if !key.starts_with("lease_store.")
            || ["lease_store.type", "lease_store.path"].contains(&key.as_str())
        {
            continue;
        }
        let mut table = base.clone();
        let value = match value {
            Value::String(text) if humantime::parse_duration(&text).is_ok() => Value::from("7s"),
            Value::String(text) => Value::from(format!("another-{text}")),
            value => value,
        };
        with(&mut table, &key, value);
        for (other, value) in company(&key) {
            with(
                &mut table,
                other,
                value.parse::<i64>().map_or(Value::from(*value), Value::from),
            );
        }
        let told = store(&table);
        let changed: Vec<String> = told
            .iter()
            .filter(|(field, value)| default.get(*field) != Some(value))
            .map(|(field, _)| field.clone())
            .collect();
        assert!(!changed.is_empty(), "{key} changes nothing");
        reached.extend(changed);
    }
    let is_ours = |field: &&String| !field.contains("sdk_config") && !field.contains("application");
    let settings = [
        "attempt_timeout",
        "prepare_deadline",
        "scan_deadline",
        "coordinator_table",
        "metrics_table",
    ];
    for setting in settings {
        let field = format!(".{setting}");
        assert!(
            reached.iter().filter(is_ours).any(|reached| *reached == field),
            "no key sets {setting}: {reached:?}"
        );
    }
}
