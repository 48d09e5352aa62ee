//! The config file of `shardfleet run`: read as TOML, checked as a whole, every problem named at once.

use std::path::PathBuf;
use std::time::Duration;

use shardfleet::Aggregates;
use toml::{Table, Value};

use crate::args::{From, parse_position};

/// What the file comes to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkerConfig {
    pub(crate) stream: String,
    pub(crate) application: String,
    pub(crate) worker_id: Option<String>,
    pub(crate) start_at: Option<From>,
    pub(crate) shutdown_deadline: Duration,
    pub(crate) aws: AwsConfig,
    pub(crate) lease_store: LeaseStoreConfig,
    pub(crate) leases: LeasesConfig,
    pub(crate) reading: ReadingConfig,
    pub(crate) handler: HandlerConfig,
    pub(crate) errors: ErrorsConfig,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AwsConfig {
    pub(crate) endpoint_url: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) profile: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LeaseStoreConfig {
    DynamoDb { table: String },
    Sqlite { path: PathBuf },
    Memory,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeasesConfig {
    pub(crate) failover_time: Duration,
    pub(crate) shard_sync_interval: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReadingConfig {
    pub(crate) batch_size: u32,
    pub(crate) poll_interval: Duration,
    pub(crate) memory_budget: u64,
    pub(crate) unsettled_records_max: u64,
    pub(crate) unsettled_bytes_max: u64,
    pub(crate) aggregated: Aggregates,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum HandlerConfig {
    Stdout,
    Command { command: Vec<String>, timeout: Duration },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ErrorsConfig {
    /// 0 tries for ever.
    pub(crate) attempts: u32,
    pub(crate) dead_letter_file: Option<PathBuf>,
}

/// Reads the text of a config file.
///
/// # Errors
/// Every problem, each with its key, its value, what is allowed, and for an unknown key the nearest known one.
pub(crate) fn parse(text: &str) -> Result<WorkerConfig, Vec<String>> {
    let table: Table = text
        .parse()
        .map_err(|e: toml::de::Error| vec![e.to_string().trim_end().to_owned()])?;
    let mut problems = Vec::new();
    let mut root = Section::new("", table, &mut problems);
    let version = root.integer("version", 1, 1, 1);
    debug_assert_eq!(version, 1, "the only one allowed");
    let stream = root.required_text("stream");
    let application = root.text("application").unwrap_or_else(|| stream.clone());
    let worker_id = root.text("worker_id");
    let start_at = root
        .text("start_at")
        .and_then(|text| match parse_position(&text) {
            Ok(position) => Some(position),
            Err(reason) => {
                root.problem("start_at", &reason);
                None
            }
        });
    let shutdown_deadline = root.duration(
        "shutdown_deadline",
        Duration::from_secs(30),
        Duration::ZERO,
        Duration::from_secs(3600),
    );
    let tables =
        ["aws", "lease_store", "leases", "reading", "handler", "errors"].map(|name| root.table(name));
    root.finish();
    let [aws, lease_store, leases, reading, handler, errors] = tables;
    let config = WorkerConfig {
        lease_store: lease_store_config(
            Section::new("lease_store", lease_store, &mut problems),
            &application,
        ),
        aws: aws_config(Section::new("aws", aws, &mut problems)),
        leases: leases_config(Section::new("leases", leases, &mut problems)),
        reading: reading_config(Section::new("reading", reading, &mut problems)),
        handler: handler_config(Section::new("handler", handler, &mut problems)),
        errors: errors_config(Section::new("errors", errors, &mut problems)),
        stream,
        application,
        worker_id,
        start_at,
        shutdown_deadline,
    };
    if problems.is_empty() {
        Ok(config)
    } else {
        Err(problems)
    }
}

fn aws_config(mut section: Section<'_>) -> AwsConfig {
    let config = AwsConfig {
        endpoint_url: section.text("endpoint_url"),
        region: section.text("region"),
        profile: section.text("profile"),
    };
    section.finish();
    config
}

fn lease_store_config(mut section: Section<'_>, application: &str) -> LeaseStoreConfig {
    let kind = section.choice("type", "dynamodb", &["dynamodb", "sqlite", "memory"]);
    let config = match kind.as_str() {
        "sqlite" => LeaseStoreConfig::Sqlite {
            path: section.required_text("path").into(),
        },
        "memory" => LeaseStoreConfig::Memory,
        _ => LeaseStoreConfig::DynamoDb {
            table: section.text("table").unwrap_or_else(|| application.to_owned()),
        },
    };
    section.finish();
    config
}

fn leases_config(mut section: Section<'_>) -> LeasesConfig {
    let day = Duration::from_secs(86_400);
    let config = LeasesConfig {
        failover_time: section.duration(
            "failover_time",
            Duration::from_secs(10),
            Duration::from_millis(300),
            Duration::from_secs(3600),
        ),
        shard_sync_interval: section.duration(
            "shard_sync_interval",
            Duration::from_secs(60),
            Duration::from_millis(50),
            day,
        ),
    };
    section.finish();
    config
}

fn reading_config(mut section: Section<'_>) -> ReadingConfig {
    let config = ReadingConfig {
        batch_size: u32::try_from(section.integer("batch_size", 1000, 1, 10_000)).unwrap_or(1000),
        poll_interval: section.duration(
            "poll_interval",
            Duration::from_secs(1),
            Duration::from_millis(1),
            Duration::from_secs(3600),
        ),
        memory_budget: section.bytes("memory_budget", 32 << 20, 1 << 20),
        unsettled_records_max: section.integer("unsettled_records_max", 10_000, 1, 10_000_000),
        unsettled_bytes_max: section.bytes("unsettled_bytes_max", 16 << 20, 1),
        aggregated: match section
            .choice("aggregated", "unpack", &["unpack", "refuse"])
            .as_str()
        {
            "refuse" => Aggregates::Refuse,
            _ => Aggregates::Unpack,
        },
    };
    section.finish();
    config
}

fn handler_config(mut section: Section<'_>) -> HandlerConfig {
    let command = section.texts("command");
    let default = if command.is_some() { "command" } else { "stdout" };
    let kind = section.choice("type", default, &["stdout", "command"]);
    let timeout = section.duration(
        "timeout",
        Duration::from_secs(60),
        Duration::from_millis(10),
        Duration::from_secs(86_400),
    );
    let config = match (kind.as_str(), command) {
        ("command", Some(command)) if !command.is_empty() => HandlerConfig::Command { command, timeout },
        ("command", _) => {
            section.problem(
                "command",
                "is missing; a program and its arguments are expected, such as [\"python3\", \"handler.py\"]",
            );
            HandlerConfig::Stdout
        }
        (_, Some(_)) => {
            section.problem(
                "command",
                "makes no sense beside type = \"stdout\"; remove one of the two",
            );
            HandlerConfig::Stdout
        }
        _ => HandlerConfig::Stdout,
    };
    section.finish();
    config
}

fn errors_config(mut section: Section<'_>) -> ErrorsConfig {
    let then = section.choice("then", "stop", &["stop", "dead-letter"]);
    let file = section.text("dead_letter_file");
    match (then.as_str(), &file) {
        ("dead-letter", None) => {
            section.problem(
                "dead_letter_file",
                "is missing; then = \"dead-letter\" needs a file to write to",
            );
        }
        ("stop", Some(_)) => {
            section.problem(
                "dead_letter_file",
                "makes no sense without then = \"dead-letter\"",
            );
        }
        _ => {}
    }
    let attempts = section.integer("attempts", 10, 0, u64::from(u32::MAX));
    if attempts == 0 && then == "dead-letter" {
        section.problem(
            "attempts",
            "is 0, which tries for ever; then nothing is ever set aside",
        );
    }
    section.finish();
    ErrorsConfig {
        attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
        dead_letter_file: file.map(PathBuf::from),
    }
}

/// One table of the file: values are taken out of it, and what is left at the end is unknown.
struct Section<'a> {
    name: &'static str,
    table: Table,
    known: Vec<&'static str>,
    problems: &'a mut Vec<String>,
}

impl<'a> Section<'a> {
    fn new(name: &'static str, table: Table, problems: &'a mut Vec<String>) -> Self {
        Self {
            name,
            table,
            known: Vec::new(),
            problems,
        }
    }

    fn path(&self, key: &str) -> String {
        if self.name.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.name)
        }
    }

    fn problem(&mut self, key: &str, reason: &str) {
        let path = self.path(key);
        self.problems.push(format!("{path}: {reason}"));
    }

    fn take(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.table.remove(key)
    }

    fn wrong(&mut self, key: &str, value: &Value, expected: &str) {
        self.problem(key, &format!("is {value}; {expected} is expected"));
    }

    fn text(&mut self, key: &'static str) -> Option<String> {
        match self.take(key)? {
            Value::String(text) if !text.is_empty() => Some(text),
            other => {
                self.wrong(key, &other, "a text that is not empty");
                None
            }
        }
    }

    fn required_text(&mut self, key: &'static str) -> String {
        let is_there = self.table.contains_key(key);
        let text = self.text(key);
        if !is_there {
            self.problem(key, "is missing");
        }
        text.unwrap_or_default()
    }

    fn texts(&mut self, key: &'static str) -> Option<Vec<String>> {
        let value = self.take(key)?;
        let texts = value.as_array().and_then(|array| {
            array
                .iter()
                .map(|item| item.as_str().map(str::to_owned))
                .collect::<Option<Vec<_>>>()
        });
        if texts.is_none() {
            self.wrong(key, &value, "a list of texts");
        }
        texts
    }

    fn choice(&mut self, key: &'static str, default: &str, allowed: &[&str]) -> String {
        let Some(value) = self.take(key) else {
            return default.to_owned();
        };
        match value.as_str() {
            Some(text) if allowed.contains(&text) => text.to_owned(),
            text => {
                let near = text.and_then(|text| nearest(text, allowed));
                let hint = near
                    .map(|near| format!(" (did you mean {near:?}?)"))
                    .unwrap_or_default();
                self.wrong(key, &value, &format!("one of {}{hint}", allowed.join(", ")));
                default.to_owned()
            }
        }
    }

    fn integer(&mut self, key: &'static str, default: u64, low: u64, high: u64) -> u64 {
        let Some(value) = self.take(key) else {
            return default;
        };
        match value.as_integer().and_then(|n| u64::try_from(n).ok()) {
            Some(n) if (low..=high).contains(&n) => n,
            _ => {
                self.wrong(key, &value, &format!("a whole number from {low} to {high}"));
                default
            }
        }
    }

    fn duration(&mut self, key: &'static str, default: Duration, low: Duration, high: Duration) -> Duration {
        let Some(value) = self.take(key) else {
            return default;
        };
        match value
            .as_str()
            .and_then(|text| humantime::parse_duration(text).ok())
        {
            Some(time) if (low..=high).contains(&time) => time,
            _ => {
                let (low, high) = (humantime::format_duration(low), humantime::format_duration(high));
                self.wrong(
                    key,
                    &value,
                    &format!("a time such as \"10s\" or \"250ms\", from {low} to {high},"),
                );
                default
            }
        }
    }

    fn bytes(&mut self, key: &'static str, default: u64, low: u64) -> u64 {
        let Some(value) = self.take(key) else {
            return default;
        };
        let bytes = match &value {
            Value::Integer(n) => u64::try_from(*n).ok(),
            Value::String(text) => parse_bytes(text),
            _ => None,
        };
        match bytes {
            Some(bytes) if bytes >= low => bytes,
            _ => {
                self.wrong(
                    key,
                    &value,
                    &format!("a size such as \"32MiB\" or a number of bytes, at least {low} bytes,"),
                );
                default
            }
        }
    }

    fn table(&mut self, key: &'static str) -> Table {
        match self.take(key) {
            None => Table::new(),
            Some(Value::Table(table)) => table,
            Some(other) => {
                self.wrong(key, &other, &format!("a table, [{key}],"));
                Table::new()
            }
        }
    }

    /// Whatever nobody asked for is unknown.
    fn finish(self) {
        for key in self.table.keys() {
            let path = self.path(key);
            let hint = nearest(key, &self.known).map_or_else(
                || format!("; known here: {}", self.known.join(", ")),
                |near| format!("; did you mean {near}?"),
            );
            self.problems.push(format!("{path}: is not a known key{hint}"));
        }
    }
}

fn nearest<'k>(text: &str, known: &[&'k str]) -> Option<&'k str> {
    let scored = known.iter().map(|k| (strsim::damerau_levenshtein(text, k), *k));
    scored
        .filter(|(distance, k)| *distance <= k.len().max(4) / 3)
        .min()
        .map(|(_, k)| k)
}

fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim() {
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_file_gets_the_defaults() {
        let config = parse("stream = \"orders\"").expect("a config");
        assert_eq!(config.application, "orders");
        assert_eq!(
            config.lease_store,
            LeaseStoreConfig::DynamoDb {
                table: "orders".into()
            }
        );
        assert_eq!(config.handler, HandlerConfig::Stdout);
        assert_eq!((config.reading.batch_size, config.errors.attempts), (1000, 10));
    }

    #[test]
    fn every_key_is_read() {
        let text = include_str!("../../../../docs/worker.example.toml");
        let config = parse(text).expect("the documented example is valid");
        assert_eq!(config.reading.memory_budget, 64 << 20);
        assert!(matches!(config.handler, HandlerConfig::Command { .. }));
    }

    #[test]
    fn all_problems_are_named_at_once_with_key_value_range_and_the_nearest_key() {
        let text = "
            stream = 5
            aplication = \"x\"
            [leases]
            failover_time = \"1ms\"
            [reading]
            batch_size = 20000
            memory_budget = \"lots\"
            [handler]
            type = \"stduot\"
            [errors]
            then = \"dead-letter\"
        ";
        let problems = parse(text).expect_err("much is wrong");
        let expected = [
            "stream: is 5; a text that is not empty is expected",
            "aplication: is not a known key; did you mean application?",
            "leases.failover_time: is \"1ms\"; a time such as \"10s\" or \"250ms\", from 300ms to 1h, is expected",
            "reading.batch_size: is 20000; a whole number from 1 to 10000 is expected",
            "reading.memory_budget: is \"lots\"; a size such as \"32MiB\" or a number of bytes, at least 1048576 bytes, is expected",
            "handler.type: is \"stduot\"; one of stdout, command (did you mean \"stdout\"?) is expected",
            "errors.dead_letter_file: is missing; then = \"dead-letter\" needs a file to write to",
        ];
        assert_eq!(problems, expected);
    }

    #[test]
    fn a_missing_stream_and_broken_toml_are_said() {
        assert_eq!(parse(""), Err(vec!["stream: is missing".to_owned()]));
        assert!(parse("stream = ").expect_err("broken")[0].contains("line 1"));
    }
}
