//! Statuses in this process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use shardfleet_core::status::{
    Applied, Counters, LateStatus, StatusKey, StatusValue, StatusView, WriteMode, may_write,
};
use tokio::sync::broadcast;

use crate::store::{CloseReport, StatusChange, StatusError, StatusStore, check};

const CHANGES_MAX: usize = 4096;

/// Keeps statuses in memory: what a worker without a status topic does. Clones share what they keep, as workers on one topic do.
#[derive(Clone)]
pub struct MemoryStatusStore {
    state: Arc<Mutex<State>>,
    changes: broadcast::Sender<StatusChange>,
}

#[derive(Default)]
struct State {
    view: Arc<StatusView>,
    counters: Counters,
    is_closed: bool,
}

impl MemoryStatusStore {
    /// An empty one.
    pub fn new() -> Self {
        Self {
            state: Arc::default(),
            changes: broadcast::channel(CHANGES_MAX).0,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryStatusStore {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl StatusStore for MemoryStatusStore {
    fn write(
        &self,
        key: &StatusKey,
        value: Option<StatusValue>,
        mode: WriteMode,
    ) -> Result<bool, StatusError> {
        check(key, value.as_ref())?;
        let applied = {
            let mut state = self.state();
            if state.is_closed {
                return Err(StatusError::Closed { key: key.to_string() });
            }
            let given = value.as_ref().and_then(StatusValue::work);
            if mode == WriteMode::Safe && given.is_some_and(|given| !may_write(state.view.work(key), given)) {
                state.counters.refused += 1;
                return Ok(false);
            }
            state.counters.accepted += 1;
            state.counters.success += 1;
            Arc::make_mut(&mut state.view).apply(key, value.clone())
        };
        if applied == Applied::Changed {
            let key = key.clone();
            // Nobody need be listening.
            self.changes.send(StatusChange { key, value }).ok();
        }
        Ok(true)
    }

    fn view(&self) -> Arc<StatusView> {
        Arc::clone(&self.state().view)
    }

    fn watch(&self) -> broadcast::Receiver<StatusChange> {
        self.changes.subscribe()
    }

    fn counters(&self) -> Counters {
        self.state().counters
    }

    fn late(&self) -> Vec<LateStatus> {
        Vec::new()
    }

    fn skipped(&self) -> u64 {
        0
    }

    async fn flush(&self, _: Duration) -> u64 {
        0
    }

    async fn close(&self, _: Duration) -> CloseReport {
        self.state().is_closed = true;
        CloseReport::default()
    }
}
