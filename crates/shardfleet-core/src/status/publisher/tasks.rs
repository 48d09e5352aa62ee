//! The tasks of one worker.

use std::collections::BTreeMap;

use super::{Insistence, Speaker, StatusWrite, generation_of};
use crate::status::{StatusKey, StatusState, StatusView, WorkStatus, WriteMode};
use crate::time::Moment;

/// A shard that this worker holds a valid lease of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldTask {
    /// What it does.
    pub state: StatusState,
    /// Why it failed, if it did.
    pub trace: Option<String>,
    /// The lease's counter when this worker took it. Another one is another life of the task.
    pub taken_at: u64,
    /// The lease's counter as last written.
    pub counter: u64,
}

/// How a shard stopped being this worker's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskEnd {
    /// It was read to its end, and there is nothing left to say of it.
    Finished,
    /// Its reader died with the lease in hand.
    Failed {
        /// How.
        trace: String,
        /// The lease's counter as last written.
        counter: u64,
    },
    /// It begins anew in this worker's hands.
    Restarting,
    /// The lease was released, handed over or lost.
    Left {
        /// Why, if it was not meant to.
        trace: Option<String>,
        /// The lease's counter as last written.
        counter: u64,
    },
}

/// Says what a worker's shards do, from the moment that it takes one to the moment that it has left it.
#[derive(Debug)]
pub struct TaskPublisher {
    speaker: Speaker,
    lives: BTreeMap<i32, Life>,
    insistence: Insistence,
}

/// A task while this worker holds it.
#[derive(Debug)]
struct Life {
    taken_at: u64,
    counter: u64,
    said: WorkStatus,
}

impl TaskPublisher {
    /// Nothing is held yet.
    pub fn new(speaker: Speaker) -> Self {
        Self {
            speaker,
            lives: BTreeMap::new(),
            insistence: Insistence::default(),
        }
    }

    /// What to write, in this order, now that these shards are held by task number, and those have ended since the last time.
    ///
    /// `is_pending` says whether something of a key was taken in by the store and has not been read back; it is asked only where the store shows something else than was said.
    pub fn observe(
        &mut self,
        now: Moment,
        held: &BTreeMap<i32, HeldTask>,
        ended: Vec<(i32, TaskEnd)>,
        view: &StatusView,
        mut is_pending: impl FnMut(&StatusKey) -> bool,
    ) -> Vec<StatusWrite> {
        let mut writes = Vec::new();
        for (task, end) in ended {
            if end == TaskEnd::Restarting {
                writes.extend(self.restart(now, task));
            } else if !held.contains_key(&task) {
                // One that was taken anew is in its next life already.
                writes.extend(self.end(task, end));
            }
        }
        let gone: Vec<i32> = self
            .lives
            .keys()
            .copied()
            .filter(|task| !held.contains_key(task))
            .collect();
        for task in gone {
            let end = TaskEnd::Left {
                trace: None,
                counter: 0,
            };
            writes.extend(self.end(task, end));
        }
        for (task, held) in held {
            writes.extend(self.say(now, *task, held, view, &mut is_pending));
        }
        writes
    }

    fn say(
        &mut self,
        now: Moment,
        task: i32,
        held: &HeldTask,
        view: &StatusView,
        is_pending: &mut impl FnMut(&StatusKey) -> bool,
    ) -> Option<StatusWrite> {
        let key = self.speaker.task(task);
        let shown = view.work(&key);
        let life = self
            .lives
            .get_mut(&task)
            .filter(|life| life.taken_at == held.taken_at);
        let before = life.as_ref().map(|life| life.said.generation);
        let mut generation = before.unwrap_or_else(|| generation_of(held.taken_at));
        // A lease table that was made anew counts from zero again, while a topic remembers; and a leader may have taken us for dead. The lease is ours: we have the last word.
        if let Some(shown) = shown
            && shown.worker_id != self.speaker.worker_id
            && shown.generation >= generation
        {
            generation = shown.generation.saturating_add(1);
        }
        let status = self.speaker.status(held.state, held.trace.clone(), generation);
        let mode = if before.is_none() || held.state == StatusState::Stopped {
            WriteMode::Plain
        } else {
            WriteMode::Safe
        };
        let is_news = match life {
            Some(life) => {
                life.counter = life.counter.max(held.counter);
                (life.said.state, &life.said.trace) != (status.state, &status.trace)
            }
            None => true,
        };
        // A task that was stopped is none (Connect: a stopped connector has no tasks).
        let value = (held.state != StatusState::Stopped).then(|| status.clone());
        if !is_news {
            if shown == value.as_ref() {
                self.insistence.forget(&key);
                return None;
            }
            if !self.insistence.is_due(now, &key) || is_pending(&key) {
                return None;
            }
        }
        if is_news {
            self.insistence.forget(&key);
        }
        self.insistence.note(now, &key);
        let life = Life {
            taken_at: held.taken_at,
            counter: held.counter,
            said: status.clone(),
        };
        self.lives.insert(task, life);
        Some(StatusWrite {
            key,
            value: value.map(Into::into),
            mode,
        })
    }

    /// Said even where the next life has begun, so that whoever asked for the restart sees that there was one. It stays the same life, as in Connect.
    fn restart(&mut self, now: Moment, task: i32) -> Option<StatusWrite> {
        let life = self.lives.get_mut(&task)?;
        if matches!(life.said.state, StatusState::Stopped | StatusState::Restarting) {
            return None;
        }
        let key = self.speaker.task(task);
        let trace = life.said.trace.take();
        life.said = self
            .speaker
            .status(StatusState::Restarting, trace, life.said.generation);
        self.insistence.note(now, &key);
        Some(StatusWrite {
            key,
            value: Some(life.said.clone().into()),
            mode: WriteMode::Safe,
        })
    }

    fn end(&mut self, task: i32, end: TaskEnd) -> Option<StatusWrite> {
        let key = self.speaker.task(task);
        self.insistence.forget(&key);
        let life = self.lives.remove(&task);
        let said = life.as_ref().map(|life| life.said.generation);
        let seen = life.as_ref().map_or(0, |life| life.counter);
        let (status, mode) = match end {
            TaskEnd::Restarting => return None,
            TaskEnd::Finished => (None, WriteMode::Plain),
            TaskEnd::Failed { trace, counter } => {
                let generation = generation_of(counter.max(seen)).max(said.unwrap_or_default());
                let status = self.speaker.status(StatusState::Failed, Some(trace), generation);
                (Some(status), WriteMode::Safe)
            }
            TaskEnd::Left { .. }
                if life
                    .as_ref()
                    .is_some_and(|life| life.said.state == StatusState::Stopped) =>
            {
                return None;
            }
            TaskEnd::Left { trace, counter } => {
                // Readers take an UNASSIGNED for late that has no higher generation than the RUNNING before it. Of a life that nobody heard of, or whose end was
                // told, there is nothing to tell but why.
                let after = match said {
                    Some(said) => said.saturating_add(1),
                    None => trace.as_ref().map(|_| 0)?,
                };
                let generation = generation_of(counter.max(seen)).max(after);
                let status = self.speaker.status(StatusState::Unassigned, trace, generation);
                (Some(status), WriteMode::Safe)
            }
        };
        Some(StatusWrite {
            key,
            value: status.map(Into::into),
            mode,
        })
    }
}

#[cfg(test)]
mod tests;
