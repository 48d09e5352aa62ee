//! What a reader of status records knows.

use std::collections::BTreeMap;

use super::{StatusKey, StatusState, StatusValue, TopicStatus, WorkStatus};

/// Every status, as the records that were read leave it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusView {
    connectors: BTreeMap<String, WorkStatus>,
    tasks: BTreeMap<(String, i32), WorkStatus>,
    topics: BTreeMap<(String, String), TopicStatus>,
}

/// What a record did to a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It says something new.
    Changed,
    /// It says what was known.
    Same,
    /// It is late: another worker of a later life has taken the task over since.
    Late,
    /// Its value is of another kind than its key, and says nothing.
    Misfit,
}

/// Whether a worker may write this status where `held` is what was read last: not where another worker of a later life has spoken (Connect: `canWriteSafely`).
pub fn may_write(held: Option<&WorkStatus>, given: &WorkStatus) -> bool {
    held.is_none_or(|held| held.worker_id == given.worker_id || held.generation <= given.generation)
}

impl StatusView {
    /// Takes a record in, in the order of the log; `None` is a tombstone.
    ///
    /// An UNASSIGNED that reports the end of an earlier life after RUNNING of another worker is late and changes nothing. Connect hides a worker's own UNASSIGNED,
    /// too, until compaction has removed what came before it; here one sees the same before and after.
    pub fn apply(&mut self, key: &StatusKey, value: Option<StatusValue>) -> Applied {
        match (key, value) {
            (StatusKey::Connector { connector }, None) => {
                let had_tasks = self.tasks.len();
                self.tasks.retain(|(of, _), _| of != connector);
                let had = self.connectors.remove(connector).is_some();
                changed(had || self.tasks.len() != had_tasks)
            }
            (StatusKey::Task { connector, task }, None) => {
                changed(self.tasks.remove(&(connector.clone(), *task)).is_some())
            }
            (StatusKey::Topic { connector, topic }, None) => {
                let topic = (connector.clone(), topic.clone());
                changed(self.topics.remove(&topic).is_some())
            }
            (StatusKey::Connector { connector }, Some(StatusValue::Work(status))) => {
                insert(&mut self.connectors, connector.clone(), status)
            }
            (StatusKey::Task { connector, task }, Some(StatusValue::Work(status))) => {
                let task = (connector.clone(), *task);
                if self.tasks.get(&task).is_some_and(|held| is_late(held, &status)) {
                    return Applied::Late;
                }
                insert(&mut self.tasks, task, status)
            }
            (StatusKey::Topic { connector, topic }, Some(StatusValue::Topic(status))) => {
                insert(&mut self.topics, (connector.clone(), topic.clone()), status)
            }
            (StatusKey::Connector { .. } | StatusKey::Task { .. }, Some(StatusValue::Topic(_)))
            | (StatusKey::Topic { .. }, Some(StatusValue::Work(_))) => Applied::Misfit,
        }
    }

    /// The status of a connector or a task.
    pub fn work(&self, key: &StatusKey) -> Option<&WorkStatus> {
        match key {
            StatusKey::Connector { connector } => self.connector(connector),
            StatusKey::Task { connector, task } => self.task(connector, *task),
            StatusKey::Topic { .. } => None,
        }
    }

    /// What is known of a key.
    pub fn get(&self, key: &StatusKey) -> Option<StatusValue> {
        match key {
            StatusKey::Topic { connector, topic } => {
                self.topic(connector, topic).cloned().map(StatusValue::Topic)
            }
            _ => self.work(key).cloned().map(StatusValue::Work),
        }
    }

    /// A connector.
    pub fn connector(&self, connector: &str) -> Option<&WorkStatus> {
        self.connectors.get(connector)
    }

    /// A task.
    pub fn task(&self, connector: &str, task: i32) -> Option<&WorkStatus> {
        self.tasks.get(&(connector.to_owned(), task))
    }

    /// A topic of a connector.
    pub fn topic(&self, connector: &str, topic: &str) -> Option<&TopicStatus> {
        self.topics.get(&(connector.to_owned(), topic.to_owned()))
    }

    /// The connectors by name.
    pub fn connectors(&self) -> impl Iterator<Item = (&str, &WorkStatus)> {
        self.connectors
            .iter()
            .map(|(name, status)| (name.as_str(), status))
    }

    /// The tasks of a connector by number. Tasks may be known of a connector that is not.
    pub fn tasks_of<'a>(&'a self, connector: &'a str) -> impl Iterator<Item = (i32, &'a WorkStatus)> {
        let first = (connector.to_owned(), i32::MIN);
        let of_connector = self
            .tasks
            .range(first..)
            .take_while(move |((of, _), _)| of == connector);
        of_connector.map(|((_, task), status)| (*task, status))
    }

    /// All tasks, by connector and number.
    pub fn tasks(&self) -> impl Iterator<Item = (&str, i32, &WorkStatus)> {
        self.tasks
            .iter()
            .map(|((connector, task), status)| (connector.as_str(), *task, status))
    }

    /// The topics of a connector by name.
    pub fn topics_of<'a>(&'a self, connector: &'a str) -> impl Iterator<Item = (&'a str, &'a TopicStatus)> {
        let first = (connector.to_owned(), String::new());
        let of_connector = self
            .topics
            .range(first..)
            .take_while(move |((of, _), _)| of == connector);
        of_connector.map(|((_, topic), status)| (topic.as_str(), status))
    }

    /// All topics, by connector and name.
    pub fn topics(&self) -> impl Iterator<Item = (&str, &str, &TopicStatus)> {
        self.topics
            .iter()
            .map(|((connector, topic), status)| (connector.as_str(), topic.as_str(), status))
    }
}

fn is_late(held: &WorkStatus, status: &WorkStatus) -> bool {
    status.state == StatusState::Unassigned
        && held.state == StatusState::Running
        && held.worker_id != status.worker_id
        && held.generation >= status.generation
}

fn changed(is_changed: bool) -> Applied {
    if is_changed {
        Applied::Changed
    } else {
        Applied::Same
    }
}

fn insert<K: Ord, V: PartialEq>(map: &mut BTreeMap<K, V>, key: K, value: V) -> Applied {
    if map.get(&key) == Some(&value) {
        return Applied::Same;
    }
    map.insert(key, value);
    Applied::Changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(state: StatusState, worker: &str, generation: i32) -> WorkStatus {
        WorkStatus {
            state,
            trace: None,
            worker_id: worker.to_owned(),
            generation,
            version: None,
        }
    }

    #[test]
    fn another_workers_late_goodbye_is_not_believed_and_ones_own_is() {
        let key = StatusKey::task("a", 0);
        let running = status(StatusState::Running, "w2", 5);
        for (worker, generation, state) in [
            ("w1", 4, StatusState::Running),
            ("w1", 5, StatusState::Running),
            ("w1", 6, StatusState::Unassigned),
            ("w2", 5, StatusState::Unassigned),
        ] {
            let mut view = StatusView::default();
            view.apply(&key, Some(StatusValue::Work(running.clone())));
            let goodbye = status(StatusState::Unassigned, worker, generation);
            view.apply(&key, Some(StatusValue::Work(goodbye)));
            assert_eq!(
                view.task("a", 0).expect("known").state,
                state,
                "{worker} {generation}"
            );
        }
    }

    #[test]
    fn a_connectors_tombstone_takes_its_tasks_and_leaves_its_topics() {
        let mut view = StatusView::default();
        let running = || Some(StatusValue::Work(status(StatusState::Running, "w", 1)));
        for connector in ["a", "a-b"] {
            view.apply(&StatusKey::connector(connector), running());
            view.apply(&StatusKey::task(connector, 0), running());
        }
        let topic = TopicStatus {
            topic: "t".to_owned(),
            connector: "a".to_owned(),
            task: 0,
            discovered_ms: 1,
        };
        view.apply(&StatusKey::topic("a", "t"), Some(StatusValue::Topic(topic)));
        assert_eq!(view.apply(&StatusKey::connector("a"), None), Applied::Changed);
        assert_eq!(view.tasks_of("a").count(), 0);
        assert_eq!(view.tasks_of("a-b").count(), 1);
        assert_eq!(view.topics_of("a").count(), 1);
        assert_eq!(view.apply(&StatusKey::connector("a"), None), Applied::Same);
    }

    #[test]
    fn a_value_of_the_wrong_kind_says_nothing() {
        let mut view = StatusView::default();
        let work = StatusValue::Work(status(StatusState::Running, "w", 1));
        assert_eq!(
            view.apply(&StatusKey::topic("a", "t"), Some(work)),
            Applied::Misfit
        );
        assert_eq!(view, StatusView::default());
    }
}
