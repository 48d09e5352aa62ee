//! The keys of status records.

use std::fmt;

const CONNECTOR: &str = "status-connector-";
const TASK: &str = "status-task-";
const TOPIC: &str = "status-topic-";
const OF_CONNECTOR: &str = ":connector-";

/// What a status record is about (Connect: `KafkaStatusBackingStore`).
///
/// The text form is the record's key: `status-connector-NAME`, `status-task-NAME-NUMBER`, `status-topic-TOPIC:connector-NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StatusKey {
    /// A connector.
    Connector {
        /// Its name.
        connector: String,
    },
    /// A task of a connector.
    Task {
        /// The connector's name.
        connector: String,
        /// The task's number.
        task: i32,
    },
    /// A topic that a connector uses.
    Topic {
        /// The connector's name.
        connector: String,
        /// The topic's name.
        topic: String,
    },
}

impl StatusKey {
    /// The key of a connector.
    pub fn connector(connector: impl Into<String>) -> Self {
        let connector = connector.into();
        Self::Connector { connector }
    }

    /// The key of a task.
    pub fn task(connector: impl Into<String>, task: i32) -> Self {
        let connector = connector.into();
        Self::Task { connector, task }
    }

    /// The key of a topic that a connector uses.
    pub fn topic(connector: impl Into<String>, topic: impl Into<String>) -> Self {
        let (connector, topic) = (connector.into(), topic.into());
        Self::Topic { connector, topic }
    }

    /// The connector's name, whatever the key is about.
    pub fn connector_name(&self) -> &str {
        match self {
            Self::Connector { connector } | Self::Task { connector, .. } | Self::Topic { connector, .. } => {
                connector
            }
        }
    }

    /// Reads a record's key. Stricter than Connect in one thing: `:connector-` must stand between topic and connector, where Connect counts eleven characters.
    pub fn parse(text: &str) -> Result<Self, StatusKeyError> {
        let fail = |why| StatusKeyError {
            key: text.to_owned(),
            why,
        };
        if let Some(connector) = text.strip_prefix(CONNECTOR) {
            if connector.is_empty() {
                return Err(fail("the connector's name is missing"));
            }
            return Ok(Self::connector(connector));
        }
        if let Some(rest) = text.strip_prefix(TASK) {
            let (connector, number) = rest
                .rsplit_once('-')
                .ok_or_else(|| fail("NAME-NUMBER is expected after status-task-"))?;
            let task = number
                .parse()
                .map_err(|_| fail("the task's number is not from -2147483648 to 2147483647"))?;
            return Ok(Self::task(connector, task));
        }
        if let Some(rest) = text.strip_prefix(TOPIC) {
            let (topic, connector) = rest
                .split_once(OF_CONNECTOR)
                .ok_or_else(|| fail("TOPIC:connector-NAME is expected after status-topic-"))?;
            if topic.is_empty() {
                return Err(fail("the topic's name is missing"));
            }
            if connector.is_empty() {
                return Err(fail("the connector's name is missing"));
            }
            return Ok(Self::topic(connector, topic));
        }
        Err(fail(
            "it begins with none of status-connector-, status-task- and status-topic-",
        ))
    }
}

impl fmt::Display for StatusKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connector { connector } => write!(f, "{CONNECTOR}{connector}"),
            Self::Task { connector, task } => write!(f, "{TASK}{connector}-{task}"),
            Self::Topic { connector, topic } => write!(f, "{TOPIC}{topic}{OF_CONNECTOR}{connector}"),
        }
    }
}

/// A record's key that is no status key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key:?} is no key of a status: {why}")]
pub struct StatusKeyError {
    /// The key.
    pub key: String,
    /// What is wrong with it.
    pub why: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_with_dashes_and_colons_are_found_again() {
        let keys = [
            (StatusKey::connector("a-b"), "status-connector-a-b"),
            (StatusKey::task("a-b", 12), "status-task-a-b-12"),
            (StatusKey::task("", 7), "status-task--7"),
            (StatusKey::topic("a:b", "foo"), "status-topic-foo:connector-a:b"),
            (
                StatusKey::topic("a:connector-b", "foo"),
                "status-topic-foo:connector-a:connector-b",
            ),
        ];
        for (key, text) in keys {
            assert_eq!(key.to_string(), text);
            assert_eq!(StatusKey::parse(text), Ok(key));
        }
    }

    #[test]
    fn what_is_no_key_is_refused_with_the_reason() {
        for (text, why) in [
            ("status-connector-", "name is missing"),
            ("status-task-a", "NAME-NUMBER"),
            ("status-task-a-", "number"),
            ("status-task-a-2147483648", "number"),
            ("status-topic-foo", "TOPIC:connector-NAME"),
            ("status-topic-:connector-a", "topic's name"),
            ("status-topic-a:connector-", "connector's name"),
            ("status-", "begins with none"),
            ("", "begins with none"),
        ] {
            let error = StatusKey::parse(text).expect_err(text).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    proptest! {
        #[test]
        fn every_key_that_can_be_written_is_read_as_the_same(connector in ".+", topic in "[^:]+", task in any::<i32>()) {
            for key in [
                StatusKey::connector(connector.clone()),
                StatusKey::topic(connector.clone(), topic),
            ] {
                prop_assert_eq!(StatusKey::parse(&key.to_string()), Ok(key));
            }
            // A negative number's sign is one more dash of the name, for Connect as well.
            let key = StatusKey::task(connector, task & i32::MAX);
            prop_assert_eq!(StatusKey::parse(&key.to_string()), Ok(key));
        }

        #[test]
        fn no_text_is_too_odd(text in ".*") {
            if let Ok(key) = StatusKey::parse(&format!("status-{text}")) {
                prop_assert!(key.to_string().starts_with("status-"));
            }
        }
    }
}
