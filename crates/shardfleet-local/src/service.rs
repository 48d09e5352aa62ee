//! The running service: the model behind its lock, with the clock, the journal, the fault rules and the counters.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::clock::ServiceClock;
use crate::faults::FaultTable;
use crate::journal::Journal;
use crate::model::{Account, ApiError, Now};
use crate::ops::{Operation, Subject};

/// Most shards that calls are counted for.
const MAX_COUNTED_SHARDS: usize = 100_000;

#[derive(Debug)]
struct State {
    account: Account,
    journal: Option<Journal>,
}

/// Everything that connections, controls and subscriptions share.
#[derive(Debug)]
pub(crate) struct Service {
    state: Mutex<State>,
    pub(crate) clock: ServiceClock,
    faults: Mutex<FaultTable>,
    calls: Mutex<Calls>,
    /// Rings when something happened that a subscription may wait for.
    pub(crate) changed: Notify,
}

/// How often operations were called.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) operations: BTreeMap<&'static str, u64>,
    pub(crate) shards: BTreeMap<(&'static str, String), u64>,
    pub(crate) streams: BTreeMap<(&'static str, String), u64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere is reported by whoever panicked; the data are still the best there are.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Service {
    pub(crate) fn new(account: Account, journal: Option<Journal>, clock: ServiceClock) -> Self {
        Self {
            state: Mutex::new(State { account, journal }),
            clock,
            faults: Mutex::new(FaultTable::default()),
            calls: Mutex::new(Calls::default()),
            changed: Notify::new(),
        }
    }

    /// Does something with the model, and keeps what it changed before anybody hears of it.
    pub(crate) fn transact<T>(
        &self,
        action: impl FnOnce(&mut Account, Now) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        let State { account, journal } = &mut *state;
        let result = action(account, now);
        if let Some(journal) = journal {
            let changes = account.take_changes();
            if let Err(error) = journal.append(&changes) {
                tracing::error!(%error, "the journal cannot be written");
                return Err(ApiError {
                    code: "InternalFailure".into(),
                    message: format!("The journal cannot be written: {error}"),
                    status: 500,
                });
            }
        }
        result
    }

    /// Looks at the model or its settings.
    pub(crate) fn with_account<T>(&self, action: impl FnOnce(&mut Account, Now) -> T) -> T {
        let now = self.clock.now();
        action(&mut lock(&self.state).account, now)
    }

    /// Lets go of the data folder. Whoever still has controls of the service changes nothing but memory from here on.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.journal = None;
        state.account.keep_no_changes();
    }

    /// Carries out everything that is due, and tells the subscriptions.
    pub(crate) fn tick(&self) {
        let done = self.transact(|account, now| {
            account.settle(now);
            Ok(())
        });
        if let Err(error) = done {
            tracing::error!(error = %error.message, "what was due could not be kept");
        }
        self.changed.notify_waiters();
    }

    /// Milliseconds until something is due, if anything is.
    pub(crate) fn due_in_ms(&self) -> Option<u64> {
        self.with_account(|account, now| {
            account
                .next_due_uptime_ms()
                .map(|due| due.saturating_sub(now.uptime_ms))
        })
    }

    pub(crate) fn faults(&self) -> MutexGuard<'_, FaultTable> {
        lock(&self.faults)
    }

    pub(crate) fn calls(&self) -> MutexGuard<'_, Calls> {
        lock(&self.calls)
    }

    /// Counts a call.
    pub(crate) fn count(&self, operation: Operation, subject: &Subject) {
        let mut calls = self.calls();
        *calls.operations.entry(operation.name()).or_default() += 1;
        let Calls { shards, streams, .. } = &mut *calls;
        for (table, name) in [(shards, &subject.shard), (streams, &subject.stream)] {
            if let Some(name) = name
                && table.len() < MAX_COUNTED_SHARDS
            {
                *table.entry((operation.name(), name.clone())).or_default() += 1;
            }
        }
    }
}
