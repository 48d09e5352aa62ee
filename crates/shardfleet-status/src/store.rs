//! What a status store is.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use shardfleet_core::status::{
    Counters, LateStatus, StatusKey, StatusState, StatusValue, StatusView, Unwritten, WriteMode,
};
use tokio::sync::broadcast;

/// Why a status was not taken in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StatusError {
    /// The store was closed.
    #[error("the status store is closed: {key} is not written")]
    Closed {
        /// What was put.
        key: String,
    },
    /// Too many keys wait to be written. The status counts as a failure.
    #[error(
        "{keys_max} keys wait to be written, and no more may: {key} is not. Is the broker away? Statuses go on when it is back"
    )]
    Full {
        /// What was put.
        key: String,
        /// How many keys may wait.
        keys_max: usize,
    },
    /// A status of the wrong kind: of a topic for a connector or a task, or the other way around.
    #[error("{key} takes another kind of status")]
    Misfit {
        /// What was put.
        key: String,
    },
    /// The state `DESTROYED` is never written: what is deleted gets a tombstone.
    #[error("{key}: DESTROYED is never written; delete the key")]
    Destroyed {
        /// What was put.
        key: String,
    },
    /// A name that no record can carry.
    #[error("{key:?}: {why}")]
    Name {
        /// What was put.
        key: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Something that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusChange {
    /// What it is about.
    pub key: StatusKey,
    /// The status; `None` when it was deleted.
    pub value: Option<StatusValue>,
}

/// What a store left behind when it was closed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct CloseReport {
    /// The newest status of each key that was not written, with what the last attempt said.
    pub unwritten: Vec<Unwritten>,
}

/// Where statuses are kept.
///
/// Every write returns at once; what becomes of it shows in [`counters`](Self::counters), [`late`](Self::late) and the log. Reads show what was read back, so a
/// write shows when it is in the log and not before (Connect: `KafkaStatusBackingStore`).
#[async_trait]
pub trait StatusStore: Send + Sync + 'static {
    /// Takes a status in; `None` is a tombstone, which deletes. A newer status replaces one of the same key that waits.
    fn write(
        &self,
        key: &StatusKey,
        value: Option<StatusValue>,
        mode: WriteMode,
    ) -> Result<bool, StatusError>;

    /// What is known of all keys.
    fn view(&self) -> Arc<StatusView>;

    /// Every change that is read from now on. A receiver that is too slow misses some, and is told so.
    fn watch(&self) -> broadcast::Receiver<StatusChange>;

    /// What became of all writes so far.
    fn counters(&self) -> Counters;

    /// What is not in the log yet.
    fn late(&self) -> Vec<LateStatus>;

    /// How many records were read that say nothing, since they were malformed.
    fn skipped(&self) -> u64;

    /// Waits until nothing is under way or waits any more, at most so long. Retries are not hurried. Answers how many statuses are left.
    async fn flush(&self, patience: Duration) -> u64;

    /// Takes nothing in any more, writes what can be written within `grace`, gives the rest up and ends.
    async fn close(&self, grace: Duration) -> CloseReport;

    /// Takes a status in.
    fn put(&self, key: &StatusKey, value: StatusValue) -> Result<(), StatusError> {
        self.write(key, Some(value), WriteMode::Plain).map(|_| ())
    }

    /// Takes a status in unless another worker of a later life has spoken (Connect: `putSafe`). Answers whether it was taken.
    fn put_safe(&self, key: &StatusKey, value: StatusValue) -> Result<bool, StatusError> {
        self.write(key, Some(value), WriteMode::Safe)
    }

    /// Deletes what is known of a key. Deleting a connector deletes its tasks for every reader.
    fn delete(&self, key: &StatusKey) -> Result<(), StatusError> {
        self.write(key, None, WriteMode::Plain).map(|_| ())
    }
}

/// Whether a record can say this.
pub(crate) fn check(key: &StatusKey, value: Option<&StatusValue>) -> Result<(), StatusError> {
    let fail = |why| StatusError::Name {
        key: key.to_string(),
        why,
    };
    match key {
        StatusKey::Connector { connector } | StatusKey::Topic { connector, .. } if connector.is_empty() => {
            return Err(fail("the connector's name is empty"));
        }
        StatusKey::Topic { topic, .. } if topic.is_empty() => return Err(fail("the topic's name is empty")),
        StatusKey::Topic { topic, .. } if topic.contains(':') => {
            return Err(fail(
                "a topic's name may not hold a colon, which ends it in the record's key",
            ));
        }
        StatusKey::Task { task, .. } if *task < 0 => return Err(fail("a task's number is at least 0")),
        _ => {}
    }
    match (key, value) {
        (StatusKey::Topic { .. }, Some(StatusValue::Work(_)))
        | (StatusKey::Connector { .. } | StatusKey::Task { .. }, Some(StatusValue::Topic(_))) => {
            Err(StatusError::Misfit { key: key.to_string() })
        }
        (_, Some(StatusValue::Work(status))) if status.state == StatusState::Destroyed => {
            Err(StatusError::Destroyed { key: key.to_string() })
        }
        _ => Ok(()),
    }
}
