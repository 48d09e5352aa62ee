//! What connectors and tasks are doing, in Kafka Connect's words, and when a status may be written.
//!
//! An application is a *connector* and each of its shards is one of its *tasks*; a stream that it reads is a *topic*. Values only: the bytes of records are the
//! business of `shardfleet-status`.

mod key;
mod outbox;
pub mod publisher;
mod retry_settings;
mod view;

use std::fmt;
use std::str::FromStr;

pub use key::{StatusKey, StatusKeyError};
pub use outbox::{
    Counters, LateStatus, Outbox, OutboxFull, Outcome, PutRefused, Sending, Settled, Unwritten, WriteMode,
};
pub use retry_settings::{RetryProblem, RetrySettings};
pub use view::{Applied, StatusView, may_write};

/// What the `version` of every status that shardfleet writes begins with. Records of others begin otherwise, or have none.
pub const VERSION_PREFIX: &str = "shardfleet-";

/// The state of a connector or of a task (Connect: `AbstractStatus.State`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StatusState {
    /// Nobody runs it.
    Unassigned,
    /// It runs.
    Running,
    /// It was paused by an operator.
    Paused,
    /// It failed and waits for a restart.
    Failed,
    /// It was deleted. Connect never writes this; what is deleted gets a tombstone.
    Destroyed,
    /// It was told to start again.
    Restarting,
    /// It was stopped by an operator and holds nothing.
    Stopped,
}

impl StatusState {
    /// All, in Connect's order.
    pub const ALL: [Self; 7] = [
        Self::Unassigned,
        Self::Running,
        Self::Paused,
        Self::Failed,
        Self::Destroyed,
        Self::Restarting,
        Self::Stopped,
    ];

    /// The name in records and answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unassigned => "UNASSIGNED",
            Self::Running => "RUNNING",
            Self::Paused => "PAUSED",
            Self::Failed => "FAILED",
            Self::Destroyed => "DESTROYED",
            Self::Restarting => "RESTARTING",
            Self::Stopped => "STOPPED",
        }
    }
}

impl fmt::Display for StatusState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A state that Connect does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no state: UNASSIGNED, RUNNING, PAUSED, FAILED, DESTROYED, RESTARTING and STOPPED are, in upper case"
)]
pub struct UnknownState(pub String);

impl FromStr for StatusState {
    type Err = UnknownState;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|state| state.name() == text);
        found.ok_or_else(|| UnknownState(text.to_owned()))
    }
}

/// The status of a connector or of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkStatus {
    /// What it does.
    pub state: StatusState,
    /// Why it failed.
    pub trace: Option<String>,
    /// Who says so. Empty where a record of somebody else names nobody.
    pub worker_id: String,
    /// Which life of the work this is about; a later life has a higher one.
    pub generation: i32,
    /// What runs it.
    pub version: Option<String>,
}

impl WorkStatus {
    /// Whether shardfleet wrote it.
    pub fn is_ours(&self) -> bool {
        let version = self.version.as_deref();
        version.is_some_and(|version| version.starts_with(VERSION_PREFIX))
    }
}

/// That a task of a connector uses a topic; for us, that an application reads a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicStatus {
    /// The topic.
    pub topic: String,
    /// The connector.
    pub connector: String,
    /// The task that was seen to use it first.
    pub task: i32,
    /// When, in milliseconds since 1970.
    pub discovered_ms: i64,
}

/// What a record says of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatusValue {
    /// Of a connector or a task.
    Work(WorkStatus),
    /// Of a topic.
    Topic(TopicStatus),
}

impl StatusValue {
    /// The status of a connector or a task.
    pub fn work(&self) -> Option<&WorkStatus> {
        match self {
            Self::Work(status) => Some(status),
            Self::Topic(_) => None,
        }
    }
}

impl From<WorkStatus> for StatusValue {
    fn from(status: WorkStatus) -> Self {
        Self::Work(status)
    }
}

impl From<TopicStatus> for StatusValue {
    fn from(status: TopicStatus) -> Self {
        Self::Topic(status)
    }
}
