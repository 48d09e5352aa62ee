//! Where the topic is, what it should be like, and how its clients are set up.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use shardfleet_core::status::{RetryProblem, RetrySettings};

/// Client settings that the store decides, since its promises rest on them; with the reason that an error gives.
const FORCED: [(&str, &str); 10] = [
    ("bootstrap.servers", "it has a setting of its own"),
    ("client.id", "it has a setting of its own"),
    ("acks", "it is all, so that no status is lost with a broker"),
    (
        "retries",
        "it is 0: the store retries by itself, in order of the keys",
    ),
    (
        "message.send.max.retries",
        "it is 0: the store retries by itself, in order of the keys",
    ),
    (
        "enable.idempotence",
        "it is false: the store retries by itself, in order of the keys",
    ),
    (
        "max.in.flight.requests.per.connection",
        "it is 1, for the order of statuses",
    ),
    (
        "partitioner",
        "it is murmur2_random, so that Connect and this store put a key into the same partition",
    ),
    (
        "enable.auto.commit",
        "it is false: the topic is read from its start",
    ),
    ("isolation.level", "it is read_uncommitted, as in Connect"),
];

/// A store's settings. Every value comes from outside; [`KafkaSettings::problems`] names all that are invalid.
#[derive(Clone, PartialEq)]
pub struct KafkaSettings {
    /// `bootstrap.servers`: `HOST:PORT`, several with commas.
    pub bootstrap_servers: String,
    /// `status.storage.topic`: the topic's name.
    pub topic: String,
    /// `status.storage.partitions`: how many the topic gets when it is created, from 1, or -1 for the broker's default. The default is 5.
    pub partitions: i32,
    /// `status.storage.replication.factor`: how many replicas it gets, from 1, or -1 for the broker's default. The default is 3.
    pub replication_factor: i32,
    /// `status.storage.*`: other settings that the topic gets when it is created, without the prefix. `cleanup.policy` is always `compact`.
    pub topic_settings: BTreeMap<String, String>,
    /// Settings of librdkafka's clients under its own names, such as `security.protocol`, `sasl.mechanism`, `sasl.username`, `ssl.ca.location`.
    pub client_settings: BTreeMap<String, String>,
    /// `group.id` and `client.id`: the clients call themselves `GROUP-CLIENT-statuses`. Both may be empty.
    pub group_id: String,
    /// See `group_id`.
    pub client_id: String,
    /// `status.storage.retry.*`: KIP-1278's five.
    pub retry: RetrySettings,
    /// Whether a topic may be written to that holds statuses of somebody else. A Connect cluster deletes, at its next rebalance, every status of its topic that is not of
    /// a connector of its own, and takes a status under a name of its own for its own.
    pub is_shared: bool,
    /// Whether the topic is created where it is missing, and its cleanup policy checked where it is there. Without, it is taken to be there and compacted. The default is true.
    pub manage_topic: bool,
    /// How long the start may take before it fails, or, where the worker goes on without the broker, is reported. The default is 60 s, as Connect's `default.api.timeout.ms`.
    pub start_deadline: Duration,
}

impl fmt::Debug for KafkaSettings {
    /// Shows no secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaSettings")
            .field("bootstrap_servers", &self.bootstrap_servers)
            .field("topic", &self.topic)
            .field("partitions", &self.partitions)
            .field("replication_factor", &self.replication_factor)
            .field("topic_settings", &self.topic_settings)
            .field("client_settings", &Shown(&self.client_settings))
            .field("group_id", &self.group_id)
            .field("client_id", &self.client_id)
            .field("retry", &self.retry)
            .field("is_shared", &self.is_shared)
            .field("manage_topic", &self.manage_topic)
            .field("start_deadline", &self.start_deadline)
            .finish()
    }
}

/// Settings without the values that nobody may see.
struct Shown<'a>(&'a BTreeMap<String, String>);

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.iter().map(|(name, value)| {
            let value = if is_secret(name) { "…" } else { value.as_str() };
            (name, value)
        });
        f.debug_map().entries(shown).finish()
    }
}

/// Whether the value of a client setting, of Java's or librdkafka's, is a secret.
pub fn is_secret(name: &str) -> bool {
    let last = name.rsplit('.').next();
    let is_place = matches!(last, Some("location" | "type"));
    let words = [
        "password",
        "secret",
        "jaas",
        ".pem",
        "private",
        "ssl.key",
        "oauthbearer.config",
    ];
    !is_place && words.iter().any(|word| name.contains(word))
}

/// Everything that is wrong with settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the status store's settings are invalid:\n  {}", .problems.join("\n  "))]
pub struct KafkaSettingsError {
    /// One line for each.
    pub problems: Vec<String>,
}

impl KafkaSettings {
    /// The defaults for a topic.
    pub fn new(bootstrap_servers: impl Into<String>, topic: impl Into<String>) -> Self {
        Self {
            bootstrap_servers: bootstrap_servers.into(),
            topic: topic.into(),
            partitions: 5,
            replication_factor: 3,
            topic_settings: BTreeMap::new(),
            client_settings: BTreeMap::new(),
            group_id: String::new(),
            client_id: String::new(),
            retry: RetrySettings::default(),
            is_shared: false,
            manage_topic: true,
            start_deadline: Duration::from_secs(60),
        }
    }

    /// Everything that is invalid, one line each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.bootstrap_servers.trim().is_empty() {
            problems
                .push("bootstrap.servers is empty: HOST:PORT is expected, several with commas".to_owned());
        }
        if let Some(why) = topic_problem(&self.topic) {
            problems.push(format!("status.storage.topic is {:?}: {why}", self.topic));
        }
        let mut count = |name: &str, value: i32, most: i32| {
            if value != -1 && !(1..=most).contains(&value) {
                problems.push(format!(
                    "status.storage.{name} is {value}: 1 to {most}, or -1 for the broker's default, is expected"
                ));
            }
        };
        count("partitions", self.partitions, i32::MAX);
        count("replication.factor", self.replication_factor, i32::from(i16::MAX));
        problems.extend(self.retry.problems().iter().map(RetryProblem::to_string));
        for name in self.topic_settings.keys() {
            if let Some(retry) = name.strip_prefix("retry.") {
                problems.push(unknown_retry(retry));
            }
        }
        for (name, why) in FORCED {
            if self.client_settings.contains_key(name) {
                problems.push(format!("the client setting {name} cannot be set: {why}"));
            }
        }
        problems
    }

    /// The same as an error.
    pub fn check(&self) -> Result<(), KafkaSettingsError> {
        let problems = self.problems();
        if problems.is_empty() {
            Ok(())
        } else {
            Err(KafkaSettingsError { problems })
        }
    }

    /// What the clients call themselves (Connect: `ConnectUtils.clientIdBase`).
    pub fn full_client_id(&self) -> String {
        let parts = [&*self.group_id, &*self.client_id, "statuses"];
        let given: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        given.join("-")
    }
}

pub(super) fn unknown_retry(name: &str) -> String {
    format!(
        "status.storage.retry.{name} is unknown: status.storage.retry. goes on with {}",
        RetrySettings::NAMES.join(", ")
    )
}

/// Why no topic may have this name (Kafka: `Topic.validate`).
fn topic_problem(name: &str) -> Option<String> {
    if name.trim().is_empty() {
        return Some("a topic's name is expected".to_owned());
    }
    if name == "." || name == ".." {
        return Some("a topic may not be called so".to_owned());
    }
    if name.len() > 249 {
        return Some(format!(
            "it has {} characters, and a topic's name at most 249",
            name.len()
        ));
    }
    let odd = name
        .chars()
        .find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '_' | '-'))?;
    Some(format!(
        "{odd:?} is none of ASCII letters, digits, '.', '_' and '-'"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_connects() {
        let settings = KafkaSettings::new("localhost:9092", "statuses");
        assert_eq!(settings.problems(), Vec::<String>::new());
        assert_eq!((settings.partitions, settings.replication_factor), (5, 3));
        assert_eq!(settings.full_client_id(), "statuses");
        let named = KafkaSettings {
            group_id: "g".to_owned(),
            client_id: "c".to_owned(),
            ..settings
        };
        assert_eq!(named.full_client_id(), "g-c-statuses");
    }

    #[test]
    fn secrets_are_not_shown() {
        let mut settings = KafkaSettings::new("localhost:9092", "statuses");
        for name in [
            "sasl.password",
            "ssl.key.password",
            "ssl.key.pem",
            "sasl.jaas.config",
            "ssl.keystore.password",
        ] {
            settings
                .client_settings
                .insert(name.to_owned(), "hush".to_owned());
        }
        for name in [
            "sasl.username",
            "ssl.key.location",
            "ssl.keystore.type",
            "security.protocol",
        ] {
            settings
                .client_settings
                .insert(name.to_owned(), "told".to_owned());
        }
        let shown = format!("{settings:?}");
        assert!(!shown.contains("hush"), "{shown}");
        assert_eq!(shown.matches("told").count(), 4, "{shown}");
    }

    #[test]
    fn all_problems_are_named_at_once() {
        let mut settings = KafkaSettings::new(" ", "a b");
        settings.partitions = 0;
        settings.replication_factor = 40_000;
        settings.retry.max_retries = -1;
        settings
            .topic_settings
            .insert("retry.max.tries".into(), "5".into());
        settings.client_settings.insert("acks".into(), "1".into());
        let problems = settings.check().expect_err("invalid").problems;
        let expected = [
            "bootstrap.servers is empty",
            "status.storage.topic is \"a b\": ' ' is none of",
            "status.storage.partitions is 0",
            "status.storage.replication.factor is 40000: 1 to 32767",
            "status.storage.retry.max.retries is -1",
            "status.storage.retry.max.tries is unknown",
            "the client setting acks cannot be set",
        ];
        assert_eq!(problems.len(), expected.len(), "{problems:#?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.starts_with(expected), "{problem}");
        }
    }

    #[test]
    fn topics_are_named_as_kafka_wants() {
        for good in ["a", "a.b_c-D9", &"x".repeat(249)] {
            assert_eq!(topic_problem(good), None, "{good}");
        }
        for bad in ["", ".", "..", "a/b", "é", &"x".repeat(250)] {
            assert!(topic_problem(bad).is_some(), "{bad}");
        }
    }
}
