//! A log in this process that fails on demand and is read back in its order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;
use shardfleet_clock::SystemClock;
use shardfleet_status::{LoggedStatusStore, Outcome, RetrySettings, StatusLog};
use tokio::sync::{oneshot, watch};

/// A record: key and value.
pub(crate) type Record = (String, Option<String>);

/// What happens to a write.
pub(crate) enum Fate {
    /// It is written at once.
    Written,
    /// It fails at once.
    Fails(Outcome),
    /// It fails, and yet it is in the log.
    FailsWritten(Outcome),
    /// Its outcome waits for the test.
    Waits(oneshot::Receiver<Outcome>),
}

pub(crate) fn retriable() -> Outcome {
    Outcome::Retriable("no replicas".to_owned())
}

#[derive(Default)]
struct State {
    fates: VecDeque<Fate>,
    is_down: bool,
    records: Vec<Record>,
    sends: Vec<Record>,
}

/// The log. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct FailingLog {
    state: Arc<Mutex<State>>,
    grown: Arc<watch::Sender<usize>>,
}

impl FailingLog {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What happens to the next write that has no fate yet.
    pub(crate) fn next(&self, fate: Fate) {
        self.state().fates.push_back(fate);
    }

    /// The next write's outcome is up to the test.
    pub(crate) fn next_waits(&self) -> oneshot::Sender<Outcome> {
        let (tell, told) = oneshot::channel();
        self.next(Fate::Waits(told));
        tell
    }

    /// Whether every write without a fate fails.
    pub(crate) fn set_down(&self, is_down: bool) {
        self.state().is_down = is_down;
    }

    /// Everything that is in the log.
    pub(crate) fn records(&self) -> Vec<Record> {
        self.state().records.clone()
    }

    /// The last record of a key.
    pub(crate) fn last(&self, key: &str) -> Option<Record> {
        let state = self.state();
        let mut of_key = state.records.iter().filter(|(of, _)| of == key);
        of_key.next_back().cloned()
    }

    /// How many writes were tried.
    pub(crate) fn sends(&self) -> usize {
        self.state().sends.len()
    }

    fn append(&self, state: &mut State, record: Record) {
        state.records.push(record);
        self.grown.send_replace(state.records.len());
    }

    /// A store over this log, whose reader follows the log.
    pub(crate) fn store(&self, retry: RetrySettings) -> LoggedStatusStore {
        let store = LoggedStatusStore::start(Arc::new(self.clone()), retry, SystemClock::shared());
        let (reader, log) = (store.reader(), self.clone());
        tokio::spawn(async move {
            let mut at = 0;
            let mut grown = log.grown.subscribe();
            grown.mark_changed();
            loop {
                tokio::select! {
                    () = reader.closed() => return,
                    changed = grown.changed() => changed.expect("the log is here"),
                }
                let new = log
                    .state()
                    .records
                    .get(at..)
                    .map(<[Record]>::to_vec)
                    .unwrap_or_default();
                at += new.len();
                for (key, value) in new {
                    reader.read(Some(key.as_bytes()), value.as_deref().map(str::as_bytes));
                }
            }
        });
        store
    }
}

impl StatusLog for FailingLog {
    fn send(&self, key: String, value: Option<Vec<u8>>) -> BoxFuture<'static, Outcome> {
        let value = value.map(|bytes| String::from_utf8(bytes).expect("JSON"));
        let record = (key, value);
        let mut state = self.state();
        state.sends.push(record.clone());
        let fate = state.fates.pop_front();
        match fate {
            None if state.is_down => std::future::ready(retriable()).boxed(),
            None | Some(Fate::Written) => {
                self.append(&mut state, record);
                std::future::ready(Outcome::Written).boxed()
            }
            Some(Fate::Fails(outcome)) => std::future::ready(outcome).boxed(),
            Some(Fate::FailsWritten(outcome)) => {
                self.append(&mut state, record);
                std::future::ready(outcome).boxed()
            }
            Some(Fate::Waits(told)) => {
                let log = self.clone();
                async move {
                    let outcome = told.await.expect("the test decides");
                    if outcome == Outcome::Written {
                        log.append(&mut log.state(), record);
                    }
                    outcome
                }
                .boxed()
            }
        }
    }
}
