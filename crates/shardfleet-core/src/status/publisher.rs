//! What a worker says of the shards that it holds, and what the leader says of the rest.
//!
//! Both look at how things are and at what the store has read back, and answer what has to be written so that the two agree. Nothing is remembered that a restart
//! would miss: a status that was lost on its way, or that somebody else overwrote, is said again.

mod fleet;
mod tasks;

use std::collections::BTreeMap;
use std::time::Duration;

pub use fleet::{ApplicationState, FleetPublisher, FleetSight};
pub use tasks::{HeldTask, TaskEnd, TaskPublisher};

use super::{StatusKey, StatusState, StatusValue, WorkStatus, WriteMode};
use crate::ids::ShardId;
use crate::time::Moment;

/// How soon something is said again that the store does not show, for the first time; each time after that takes twice as long.
const SAY_AGAIN: Duration = Duration::from_secs(5);
/// How long it takes at most.
const SAY_AGAIN_MAX: Duration = Duration::from_secs(60);

/// A status that has to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusWrite {
    /// What it is about.
    pub key: StatusKey,
    /// The status; `None` deletes.
    pub value: Option<StatusValue>,
    /// Whether a later life of the work forbids it.
    pub mode: WriteMode,
}

/// The number of the task that reads a shard: the digits at the end of its id. `None` where there are none, or where they are more than a task's number can be
/// (2,147,483,647); such a shard has no status.
pub fn task_number(shard_id: &ShardId) -> Option<i32> {
    i32::try_from(shard_id.number()?).ok()
}

/// Who speaks, and of which application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Speaker {
    /// The application's name.
    pub connector: String,
    /// The worker's identifier.
    pub worker_id: String,
    /// What every status says of who wrote it.
    pub version: String,
}

impl Speaker {
    /// A worker of this release of shardfleet.
    pub fn new(application: impl Into<String>, worker_id: impl Into<String>) -> Self {
        Self {
            connector: application.into(),
            worker_id: worker_id.into(),
            version: concat!("shardfleet-", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }

    fn task(&self, task: i32) -> StatusKey {
        StatusKey::task(self.connector.as_str(), task)
    }

    fn status(&self, state: StatusState, trace: Option<String>, generation: i32) -> WorkStatus {
        WorkStatus {
            state,
            trace,
            worker_id: self.worker_id.clone(),
            generation,
            version: Some(self.version.clone()),
        }
    }
}

/// A lease counter as a generation. Connect's has 31 bits; a counter beyond them, after two centuries of renewals every 3 s, stays at the end of the range.
fn generation_of(counter: u64) -> i32 {
    i32::try_from(counter).unwrap_or(i32::MAX)
}

/// How often things were said that the store does not show.
#[derive(Debug, Default)]
struct Insistence {
    said: BTreeMap<StatusKey, (Moment, u32)>,
}

impl Insistence {
    /// Whether something that was said already is due to be said again.
    fn is_due(&self, now: Moment, key: &StatusKey) -> bool {
        self.said.get(key).is_none_or(|(at, times)| {
            let wait = SAY_AGAIN.saturating_mul(1 << times.saturating_sub(1).min(8));
            now.since(*at) >= wait.min(SAY_AGAIN_MAX)
        })
    }

    fn note(&mut self, now: Moment, key: &StatusKey) {
        let (at, times) = self.said.entry(key.clone()).or_insert((now, 0));
        *at = now;
        *times = times.saturating_add(1);
    }

    fn forget(&mut self, key: &StatusKey) {
        self.said.remove(key);
    }
}
