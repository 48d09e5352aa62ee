//! A status store over a log: what both the Kafka store and tests are made of.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use shardfleet_clock::{Clock, within};
use shardfleet_core::status::{
    Applied, Counters, LateStatus, Outbox, PutRefused, RetrySettings, StatusKey, StatusValue, StatusView,
    WriteMode,
};
use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::codec;
use crate::log::StatusLog;
use crate::store::{CloseReport, StatusChange, StatusError, StatusStore, check};
use crate::writer;

/// How many keys may wait to be written at once.
pub(crate) const KEYS_MAX: usize = 100_000;

/// Changes that a receiver may lag behind.
const CHANGES_MAX: usize = 4096;

/// A store whose statuses go to a [`StatusLog`] and come back through [`read`](Self::read). Dropping it ends its work at once;
/// [`close`](StatusStore::close) ends it in order.
pub struct LoggedStatusStore {
    shared: Arc<Shared>,
    _writer: AbortOnDropHandle<()>,
}

pub(crate) struct Shared {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) log: Arc<dyn StatusLog>,
    pub(crate) state: Mutex<State>,
    /// There is something to send, or somebody waits for the end.
    pub(crate) wake: Notify,
    /// Something came out.
    pub(crate) settled: Notify,
    pub(crate) stop: CancellationToken,
    changes: broadcast::Sender<StatusChange>,
}

pub(crate) struct State {
    pub(crate) outbox: Outbox,
    pub(crate) view: Arc<StatusView>,
    skipped: u64,
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LoggedStatusStore {
    /// Starts one. It must be called within a Tokio runtime.
    pub fn start(log: Arc<dyn StatusLog>, retry: RetrySettings, clock: Arc<dyn Clock>) -> Self {
        let shared = Arc::new(Shared {
            clock,
            log,
            state: Mutex::new(State {
                outbox: Outbox::new(retry, KEYS_MAX),
                view: Arc::default(),
                skipped: 0,
            }),
            wake: Notify::new(),
            settled: Notify::new(),
            stop: CancellationToken::new(),
            changes: broadcast::channel(CHANGES_MAX).0,
        });
        let task = tokio::spawn(writer::run(Arc::clone(&shared)));
        Self {
            shared,
            _writer: AbortOnDropHandle::new(task),
        }
    }

    /// Takes in a record that was read from the log, in its order. A malformed one is skipped, counted, and logged; what was known of its key stays.
    pub fn read(&self, key: Option<&[u8]>, value: Option<&[u8]>) {
        self.shared.read(key, value);
    }

    /// Takes in records as [`read`](Self::read) does, from another task, for as long as this store lives or is closed.
    pub fn reader(&self) -> StatusReader {
        StatusReader {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Drop for LoggedStatusStore {
    fn drop(&mut self) {
        // Readers have a hold on what they read for.
        self.shared.stop.cancel();
    }
}

/// Hands records that were read from the log to a store.
#[derive(Clone)]
pub struct StatusReader {
    shared: Arc<Shared>,
}

impl StatusReader {
    /// Takes in a record that was read from the log, in its order.
    pub fn read(&self, key: Option<&[u8]>, value: Option<&[u8]>) {
        self.shared.read(key, value);
    }

    /// What is known of all keys.
    pub fn view(&self) -> Arc<StatusView> {
        Arc::clone(&self.shared.state().view)
    }

    /// Waits until the store is closed.
    pub async fn closed(&self) {
        self.shared.stop.cancelled().await;
    }
}

impl Shared {
    fn read(&self, key: Option<&[u8]>, value: Option<&[u8]>) {
        let (key, value) = match parse(key, value) {
            Ok(record) => record,
            Err(why) => {
                tracing::warn!("a record of the status topic is skipped: {why}");
                self.state().skipped += 1;
                return;
            }
        };
        let applied = {
            let mut state = self.state();
            Arc::make_mut(&mut state.view).apply(&key, value.clone())
        };
        match applied {
            Applied::Changed => {
                // Nobody need be listening.
                self.changes.send(StatusChange { key, value }).ok();
            }
            Applied::Late => tracing::debug!(%key, "an UNASSIGNED of an earlier life came late"),
            Applied::Same | Applied::Misfit => {}
        }
    }
}

fn parse(key: Option<&[u8]>, value: Option<&[u8]>) -> Result<(StatusKey, Option<StatusValue>), String> {
    let key = key.ok_or("it has no key")?;
    let text = std::str::from_utf8(key).map_err(|_| format!("its key {key:?} is not UTF-8"))?;
    let key = StatusKey::parse(text).map_err(|error| error.to_string())?;
    let value = value
        .map(|bytes| codec::decode(&key, bytes).map_err(|error| format!("the value of {key}: {error}")))
        .transpose()?;
    Ok((key, value))
}

#[async_trait]
impl StatusStore for LoggedStatusStore {
    fn write(
        &self,
        key: &StatusKey,
        value: Option<StatusValue>,
        mode: WriteMode,
    ) -> Result<bool, StatusError> {
        check(key, value.as_ref())?;
        let now = self.shared.clock.now();
        let result = {
            let mut state = self.shared.state();
            let view = Arc::clone(&state.view);
            state.outbox.put(now, key.clone(), value, mode, &view)
        };
        match result {
            Ok(()) => {
                self.shared.wake.notify_one();
                Ok(true)
            }
            Err(PutRefused::Stale) => {
                tracing::debug!(%key, "not written: another worker of a later life has spoken");
                Ok(false)
            }
            Err(PutRefused::Closed) => Err(StatusError::Closed { key: key.to_string() }),
            Err(PutRefused::Full(full)) => {
                let error = StatusError::Full {
                    key: key.to_string(),
                    keys_max: full.keys_max,
                };
                tracing::error!("{error}");
                Err(error)
            }
        }
    }

    fn view(&self) -> Arc<StatusView> {
        Arc::clone(&self.shared.state().view)
    }

    fn watch(&self) -> broadcast::Receiver<StatusChange> {
        self.shared.changes.subscribe()
    }

    fn counters(&self) -> Counters {
        self.shared.state().outbox.counters()
    }

    fn late(&self) -> Vec<LateStatus> {
        self.shared.state().outbox.late()
    }

    fn skipped(&self) -> u64 {
        self.shared.state().skipped
    }

    async fn flush(&self, patience: Duration) -> u64 {
        let shared = &self.shared;
        let empty = async {
            loop {
                let settled = shared.settled.notified();
                tokio::pin!(settled);
                settled.as_mut().enable();
                if shared.state().outbox.pending() == 0 {
                    return;
                }
                settled.await;
            }
        };
        within(&*shared.clock, patience, empty).await;
        shared.state().outbox.pending()
    }

    async fn close(&self, grace: Duration) -> CloseReport {
        self.shared.state().outbox.close();
        self.flush(grace).await;
        let unwritten = self.shared.state().outbox.abandon();
        for status in &unwritten {
            let state = status.value.as_ref().map_or("deleted", writer::state_of);
            let error = status.error.as_deref().unwrap_or("no answer in time");
            tracing::warn!(
                key = %status.key, state, retries = status.retries, error,
                "a status was not written before the end"
            );
        }
        self.shared.log.purge();
        self.shared.stop.cancel();
        CloseReport { unwritten }
    }
}
