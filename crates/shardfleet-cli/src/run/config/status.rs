//! The table `[status]`: where the worker says what the application and its shards do.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shardfleet::status::KafkaSettings;
use shardfleet::status::kafka::is_secret;
use toml::{Table, Value};

use super::section::Section;

/// The topic where none is named.
pub(crate) const DEFAULT_TOPIC: &str = "shardfleet-status";

const BOOTSTRAP_SERVERS: &str = "bootstrap.servers";
const TOPIC: &str = "status.storage.topic";
const GROUP_ID: &str = "group.id";

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StatusConfig {
    Memory,
    Kafka(Box<KafkaConfig>),
}

/// A status topic. What is not said is as the library has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KafkaConfig {
    application: String,
    bootstrap_servers: Option<String>,
    topic: Option<String>,
    is_shared: bool,
    manage_topic: bool,
    start_deadline: Duration,
    properties_file: Option<PathBuf>,
    /// In Connect's names; ahead of the file.
    properties: Properties,
    /// In librdkafka's names; ahead of both.
    client: Properties,
}

/// Names and values, shown without secrets.
#[derive(Clone, Default, PartialEq)]
struct Properties(BTreeMap<String, String>);

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.iter().map(|(name, value)| {
            let value = if is_secret(name) { "…" } else { value.as_str() };
            (name, value)
        });
        f.debug_map().entries(shown).finish()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum StoreKind {
    Memory,
    Kafka,
}

const OF_KAFKA: [&str; 8] = [
    "bootstrap_servers",
    "topic",
    "shared",
    "manage_topic",
    "start_deadline",
    "properties_file",
    "properties",
    "client",
];

/// Reads `[status]`.
pub(super) fn read(mut section: Section<'_>, application: &str) -> StatusConfig {
    let kind = section.choice(
        "type",
        &[("memory", StoreKind::Memory), ("kafka", StoreKind::Kafka)],
    );
    for key in OF_KAFKA {
        if section.has(key) && kind != StoreKind::Kafka {
            section.problem(
                key,
                "makes no sense without type = \"kafka\"; remove it, or set type",
            );
        }
    }
    let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
    let config = KafkaConfig {
        application: application.to_owned(),
        bootstrap_servers: section.text("bootstrap_servers"),
        topic: section.text("topic"),
        is_shared: section.flag("shared", false),
        manage_topic: section.flag("manage_topic", true),
        start_deadline: section.duration("start_deadline", Duration::from_secs(60), second, hour),
        properties_file: section.text("properties_file").map(PathBuf::from),
        properties: properties(&mut section, "properties"),
        client: properties(&mut section, "client"),
    };
    section.finish();
    match kind {
        StoreKind::Memory => StatusConfig::Memory,
        StoreKind::Kafka => StatusConfig::Kafka(Box::new(config)),
    }
}

/// A table of names that hold dots: they are written in quotes, or TOML makes tables of them, which are put together again.
fn properties(section: &mut Section<'_>, key: &'static str) -> Properties {
    let mut found = BTreeMap::new();
    let mut odd = Vec::new();
    flatten("", section.table(key), &mut found, &mut odd);
    for name in odd {
        section.problem(
            key,
            &format!("{name} has a value that is no text, number, true or false"),
        );
    }
    Properties(found)
}

fn flatten(prefix: &str, table: Table, found: &mut BTreeMap<String, String>, odd: &mut Vec<String>) {
    for (name, value) in table {
        let name = if prefix.is_empty() {
            name
        } else {
            format!("{prefix}.{name}")
        };
        match value {
            Value::String(text) => drop(found.insert(name, text)),
            Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => {
                found.insert(name, value.to_string());
            }
            Value::Table(below) => flatten(&name, below, found, odd),
            Value::Array(_) | Value::Datetime(_) => odd.push(name),
        }
    }
}

impl KafkaConfig {
    /// The settings of the store. `read` reads the properties file.
    ///
    /// # Errors
    /// Every problem, with its key.
    pub(crate) fn settings(
        &self,
        read: impl FnOnce(&Path) -> std::io::Result<String>,
    ) -> Result<KafkaSettings, Vec<String>> {
        let mut all = BTreeMap::new();
        if let Some(path) = &self.properties_file {
            let fail = |why: String| vec![format!("status.properties_file: {}: {why}", path.display())];
            let text = read(path).map_err(|error| fail(error.to_string()))?;
            all = KafkaSettings::read_properties(&text).map_err(|error| fail(error.problems.join("; ")))?;
        }
        all.extend(self.properties.0.clone());
        let named = [(BOOTSTRAP_SERVERS, &self.bootstrap_servers), (TOPIC, &self.topic)];
        for (name, value) in named {
            if let Some(value) = value {
                all.insert(name.to_owned(), value.clone());
            }
        }
        if !all.contains_key(BOOTSTRAP_SERVERS) {
            let missing =
                "status.bootstrap_servers: is missing; name the brokers, HOST:PORT, several with commas";
            return Err(vec![missing.to_owned()]);
        }
        for (name, default) in [(TOPIC, DEFAULT_TOPIC), (GROUP_ID, self.application.as_str())] {
            all.entry(name.to_owned()).or_insert_with(|| default.to_owned());
        }
        let prefixed = |problems: Vec<String>| {
            problems
                .into_iter()
                .map(|problem| format!("status: {problem}"))
                .collect::<Vec<_>>()
        };
        let mut settings = KafkaSettings::from_map(all).map_err(|error| prefixed(error.problems))?;
        settings.client_settings.extend(self.client.0.clone());
        settings.is_shared = self.is_shared;
        settings.manage_topic = self.manage_topic;
        settings.start_deadline = self.start_deadline;
        settings.check().map_err(|error| prefixed(error.problems))?;
        Ok(settings)
    }
}

impl StatusConfig {
    /// The settings of a topic; `None` where statuses stay in memory.
    ///
    /// # Errors
    /// Every problem, with its key.
    pub(crate) fn kafka(&self) -> Result<Option<KafkaSettings>, Vec<String>> {
        match self {
            Self::Memory => Ok(None),
            Self::Kafka(config) => config.settings(|path| std::fs::read_to_string(path)).map(Some),
        }
    }
}
