//! The application, and the tasks that nobody speaks of: the leader's part.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Insistence, Speaker, StatusWrite, generation_of, task_number};
use crate::ids::LeaseKey;
use crate::lease::{Lease, TargetState};
use crate::status::{StatusKey, StatusState, StatusValue, StatusView, TopicStatus, WorkStatus, WriteMode};
use crate::time::{Moment, Timestamp};

/// How long a lease may be nobody's before the leader says so: who released it says it first.
const UNOWNED_AFTER: Duration = Duration::from_secs(2);
/// How long a worker may hold a lease and not say so. Workers of the Java KCL never do.
const SILENT_AFTER: Duration = Duration::from_secs(10);
/// How long a task that was stopped may have a status: its holder deletes it first.
const STOPPED_AFTER: Duration = Duration::from_secs(10);
/// How long a finished lease may have a status: who finished it deletes it first.
const FINISHED_AFTER: Duration = Duration::from_secs(10);
/// How long a status may have no lease. A look at a table that was cut short must not delete anything.
const MISSING_AFTER: Duration = Duration::from_secs(30);

/// What the application does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplicationState {
    /// In Connect's words.
    pub state: StatusState,
    /// Why it failed, if it did.
    pub trace: Option<String>,
}

/// What the leader sees.
pub struct FleetSight<'a> {
    /// When.
    pub now: Moment,
    /// The same by the wall clock.
    pub wall: Timestamp,
    /// What the application does.
    pub application: &'a ApplicationState,
    /// The stream that it reads.
    pub stream: &'a str,
    /// The rows of the lease table at the last look.
    pub leases: &'a BTreeMap<LeaseKey, Lease>,
    /// When that was. Rows grow old between two looks: something is wrong for long only if a later look finds it again.
    pub scanned: Moment,
    /// Whether a lease was not renewed for too long.
    pub is_expired: &'a dyn Fn(&Lease) -> bool,
    /// The tasks that this worker holds or held a moment ago, and speaks of itself.
    pub own: &'a BTreeSet<i32>,
    /// What the status store shows.
    pub view: &'a StatusView,
    /// Whether something of a key was taken in by the store and has not been read back.
    pub is_pending: &'a dyn Fn(&StatusKey) -> bool,
}

/// Says what the application does and what becomes of tasks whose workers are dead or dumb. Of use while this worker leads; made anew when it begins to.
#[derive(Debug)]
pub struct FleetPublisher {
    speaker: Speaker,
    /// What is wrong with the status of a task, and since when.
    wrongs: BTreeMap<i32, (Wrong, Moment)>,
    /// What was said of the application last: something else is news, and waits for nothing.
    said: Option<ApplicationState>,
    insistence: Insistence,
}

/// What is wrong with the status of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Wrong {
    /// Nobody holds the lease, and the status does not say so.
    Unowned,
    /// The lease ran out.
    Expired,
    /// It is another worker's than the status says.
    Silent(String),
    /// An operator has stopped it, so that it is no task.
    Stopped,
    /// The shard was read to its end.
    Finished,
    /// There is no lease.
    Missing,
}

impl Wrong {
    fn patience(&self) -> Duration {
        match self {
            Self::Unowned => UNOWNED_AFTER,
            Self::Expired => Duration::ZERO,
            Self::Silent(_) => SILENT_AFTER,
            Self::Stopped => STOPPED_AFTER,
            Self::Finished => FINISHED_AFTER,
            Self::Missing => MISSING_AFTER,
        }
    }
}

impl FleetPublisher {
    /// A leader that has said nothing yet.
    pub fn new(speaker: Speaker) -> Self {
        Self {
            speaker,
            wrongs: BTreeMap::new(),
            said: None,
            insistence: Insistence::default(),
        }
    }

    /// What to write, in this order.
    pub fn observe(&mut self, sight: &FleetSight<'_>) -> Vec<StatusWrite> {
        let mut writes = Vec::new();
        writes.extend(self.application(sight));
        writes.extend(self.topic(sight));
        let mut leases = BTreeMap::new();
        for lease in sight.leases.values() {
            if let Some(task) = task_number(&lease.lease_key.shard_id()) {
                leases.insert(task, lease);
            }
        }
        let shown = sight.view.tasks_of(&self.speaker.connector).map(|(task, _)| task);
        let tasks: BTreeSet<i32> = leases.keys().copied().chain(shown).collect();
        self.wrongs.retain(|task, _| tasks.contains(task));
        for task in tasks {
            if sight.own.contains(&task) {
                self.wrongs.remove(&task);
                continue;
            }
            writes.extend(self.task(sight, task, leases.get(&task).copied()));
        }
        writes
    }

    /// What to write when this worker leaves, for a reason that is a failure or for none: nobody runs the application until another worker leads, which says so.
    pub fn leave(&self, view: &StatusView, failure: Option<String>) -> Option<StatusWrite> {
        let key = StatusKey::connector(self.speaker.connector.as_str());
        let shown = view.work(&key)?;
        // The generation stays: of a connector readers believe it, and whoever leads next is ahead of it.
        let state = failure
            .as_ref()
            .map_or(StatusState::Unassigned, |_| StatusState::Failed);
        let status = self.speaker.status(state, failure, shown.generation);
        (shown.worker_id == self.speaker.worker_id && *shown != status).then(|| StatusWrite {
            key,
            value: Some(status.into()),
            mode: WriteMode::Safe,
        })
    }

    fn application(&mut self, sight: &FleetSight<'_>) -> Option<StatusWrite> {
        let key = StatusKey::connector(self.speaker.connector.as_str());
        let shown = sight.view.work(&key);
        let ours = shown.filter(|shown| shown.worker_id == self.speaker.worker_id);
        let generation = match (ours, shown) {
            (Some(ours), _) => ours.generation,
            (None, shown) => shown.map_or(1, |shown| shown.generation.saturating_add(1)),
        };
        if self.said.as_ref() != Some(sight.application) {
            self.said = Some(sight.application.clone());
            self.insistence.forget(&key);
        }
        let ApplicationState { state, trace } = sight.application.clone();
        let status = self.speaker.status(state, trace, generation);
        if shown == Some(&status) {
            self.insistence.forget(&key);
            return None;
        }
        self.insist(sight, key, Some(status.into()), WriteMode::Plain)
    }

    /// That the application reads the stream is said once, and stays (Connect: `recordTopicActive`).
    fn topic(&mut self, sight: &FleetSight<'_>) -> Option<StatusWrite> {
        if sight.view.topic(&self.speaker.connector, sight.stream).is_some() {
            return None;
        }
        let status = TopicStatus {
            topic: sight.stream.to_owned(),
            connector: self.speaker.connector.clone(),
            task: sight.own.first().copied().unwrap_or_default(),
            discovered_ms: i64::try_from(sight.wall.millis()).unwrap_or(i64::MAX),
        };
        let key = StatusKey::topic(self.speaker.connector.as_str(), sight.stream);
        self.insist(sight, key, Some(status.into()), WriteMode::Plain)
    }

    fn task(&mut self, sight: &FleetSight<'_>, task: i32, lease: Option<&Lease>) -> Option<StatusWrite> {
        let key = StatusKey::task(self.speaker.connector.as_str(), task);
        let shown = sight.view.work(&key);
        let Some(wrong) = wrong_with(sight, lease, shown) else {
            self.wrongs.remove(&task);
            self.insistence.forget(&key);
            return None;
        };
        let known = self
            .wrongs
            .entry(task)
            .or_insert_with(|| (wrong.clone(), sight.scanned));
        if known.0 != wrong {
            *known = (wrong.clone(), sight.scanned);
            self.insistence.forget(&key);
        }
        if sight.scanned.since(known.1) < wrong.patience() {
            return None;
        }
        let counter = generation_of(lease.map_or(0, |lease| lease.counter));
        let after = shown.map_or(0, |shown| shown.generation.saturating_add(1));
        let value = match wrong {
            Wrong::Unowned | Wrong::Expired => {
                let status = self
                    .speaker
                    .status(StatusState::Unassigned, None, counter.max(after));
                Some(status)
            }
            Wrong::Silent(holder) => {
                let status = self
                    .speaker
                    .status(StatusState::Running, None, counter.max(after));
                Some(WorkStatus {
                    worker_id: holder,
                    ..status
                })
            }
            Wrong::Stopped | Wrong::Finished | Wrong::Missing => None,
        };
        self.insist(sight, key, value.map(Into::into), WriteMode::Safe)
    }

    fn insist(
        &mut self,
        sight: &FleetSight<'_>,
        key: StatusKey,
        value: Option<StatusValue>,
        mode: WriteMode,
    ) -> Option<StatusWrite> {
        if !self.insistence.is_due(sight.now, &key) || (sight.is_pending)(&key) {
            return None;
        }
        self.insistence.note(sight.now, &key);
        Some(StatusWrite { key, value, mode })
    }
}

fn wrong_with(sight: &FleetSight<'_>, lease: Option<&Lease>, shown: Option<&WorkStatus>) -> Option<Wrong> {
    let says_unassigned = shown.is_some_and(|shown| shown.state == StatusState::Unassigned);
    let Some(lease) = lease else {
        return shown.map(|_| Wrong::Missing);
    };
    if lease.is_finished() {
        return shown.map(|_| Wrong::Finished);
    }
    if lease.control().target == TargetState::Stopped {
        return shown.map(|_| Wrong::Stopped);
    }
    match lease.actual_owner() {
        None if says_unassigned => None,
        None => Some(Wrong::Unowned),
        Some(_) if (sight.is_expired)(lease) => (!says_unassigned).then_some(Wrong::Expired),
        Some(holder) => {
            let is_told = shown.is_some_and(|shown| shown.worker_id == holder.as_str() && !says_unassigned);
            (!is_told).then(|| Wrong::Silent(holder.as_str().to_owned()))
        }
    }
}

#[cfg(test)]
mod tests;
