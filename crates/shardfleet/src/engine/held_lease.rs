//! A lease that this worker holds, and the task that keeps it.
//!
//! All writes of the row go through one place, one at a time, so that the counter this worker expects is always the one it wrote last. A worker
//! that has not been able to write for the failover time treats the lease as lost by its own clock, without asking: by then others may
//! have taken it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shardfleet_core::ids::{LeaseKey, WorkerId};
use shardfleet_core::lease::{Change, Lease, LeaseWrite, WriteOutcome};
use shardfleet_core::retry::Backoff;
use shardfleet_core::time::Moment;
use tokio_util::sync::CancellationToken;

use super::progress::ShardProgress;
use crate::clock::{Clock, within};
use crate::store::{LeaseStore, StoreError, StoreErrorKind};

const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));

/// A lease that this worker holds until [`lost`](Self::lost) says otherwise.
pub(crate) struct HeldLease {
    lease_key: LeaseKey,
    worker_id: WorkerId,
    store: Arc<dyn LeaseStore>,
    clock: Arc<dyn Clock>,
    failover_time: Duration,
    row: tokio::sync::Mutex<Row>,
    valid_until: Mutex<Moment>,
    lost: CancellationToken,
    reason: Mutex<Option<String>>,
}

struct Row {
    lease: Lease,
    /// Whether the last write may have happened although it answered an error.
    unsure: bool,
}

/// Why a write of a held lease did not happen.
#[derive(Debug)]
pub(crate) enum HoldError {
    /// The lease is not ours any more.
    Lost,
    /// The store failed; the lease may still be ours.
    Store(StoreError),
}

impl HeldLease {
    /// Takes a lease for this worker; `None` when somebody else was faster.
    pub(crate) async fn take(
        store: &Arc<dyn LeaseStore>,
        clock: &Arc<dyn Clock>,
        write: &LeaseWrite,
        worker_id: &WorkerId,
        failover_time: Duration,
    ) -> Result<Option<Self>, StoreError> {
        // The lease counts from before the request, since others see the write from when it happened.
        let started = clock.now();
        match store.update(write).await? {
            WriteOutcome::Conflict(_) => Ok(None),
            WriteOutcome::Written(lease) => Ok(Some(Self {
                lease_key: lease.lease_key.clone(),
                worker_id: worker_id.clone(),
                store: Arc::clone(store),
                clock: Arc::clone(clock),
                failover_time,
                row: tokio::sync::Mutex::new(Row { lease, unsure: false }),
                valid_until: Mutex::new(started + failover_time),
                lost: CancellationToken::new(),
                reason: Mutex::new(None),
            })),
        }
    }

    pub(crate) fn lease_key(&self) -> &LeaseKey {
        &self.lease_key
    }

    /// The row as last written by this worker.
    pub(crate) async fn lease(&self) -> Lease {
        self.row.lock().await.lease.clone()
    }

    /// Whether the lease is surely still this worker's. A no is final: records are dropped on it, so a late answer to a renewal must not make the
    /// lease valid again, or they would be missing from what is read on.
    pub(crate) fn is_valid(&self) -> bool {
        if self.lost.is_cancelled() {
            return false;
        }
        if self.clock.now() <= self.valid_until() {
            return true;
        }
        self.lose(self.expired());
        false
    }

    fn expired(&self) -> String {
        format!("it was not renewed for {:?}", self.failover_time)
    }

    fn valid_until(&self) -> Moment {
        *self.valid_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the lease is lost.
    pub(crate) async fn lost(&self) {
        self.lost.cancelled().await;
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// How it became known that the lease is lost.
    pub(crate) fn lost_reason(&self) -> String {
        self.reason
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
            .unwrap_or_default()
    }

    fn lose(&self, reason: String) -> HoldError {
        self.reason
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(reason);
        self.lost.cancel();
        HoldError::Lost
    }

    /// Writes the row once. `make` may be called again, on a row that this worker wrote without knowing it.
    pub(crate) async fn write(&self, make: impl Fn(&Lease) -> LeaseWrite) -> Result<(), HoldError> {
        let mut row = self.row.lock().await;
        loop {
            let started = self.clock.now();
            if self.lost.is_cancelled() {
                return Err(HoldError::Lost);
            }
            if started > self.valid_until() {
                return Err(self.lose(self.expired()));
            }
            let write = make(&row.lease);
            let limit = self.failover_time / 3;
            // Whoever waits for this may stop waiting at any moment, while the write goes on.
            let was_unsure = std::mem::replace(&mut row.unsure, true);
            match within(&*self.clock, limit, self.store.update(&write)).await {
                Some(Ok(WriteOutcome::Written(lease))) => {
                    // A write that is not conditional on the counter shows a lease that changed hands meanwhile.
                    let is_given_up = write.change.owner == Change::Remove;
                    if !is_given_up && lease.actual_owner() != Some(&self.worker_id) {
                        return Err(self.lose(taken_by(Some(&lease))));
                    }
                    *row = Row { lease, unsure: false };
                    *self.valid_until.lock().unwrap_or_else(PoisonError::into_inner) =
                        started + self.failover_time;
                    return Ok(());
                }
                // The row as this worker wrote it without being told: go on from there.
                Some(Ok(WriteOutcome::Conflict(Some(current))))
                    if was_unsure && self.is_own_write(&row, &current) =>
                {
                    *row = Row {
                        lease: current,
                        unsure: false,
                    };
                }
                Some(Ok(WriteOutcome::Conflict(current))) => {
                    return Err(self.lose(taken_by(current.as_ref())));
                }
                Some(Err(error)) => {
                    row.unsure = was_unsure || !error.has_no_side_effects();
                    return Err(HoldError::Store(error));
                }
                None => {
                    let doing = format!("writing lease {} in {}", self.lease_key, self.store.describe());
                    let reason = format!("no answer within {limit:?}");
                    return Err(HoldError::Store(StoreError::new(
                        StoreErrorKind::Unavailable,
                        doing,
                        reason,
                    )));
                }
            }
        }
    }

    // A write whose answer was lost shows as a conflict at the next one. It was ours if the owner still is and the counter moved by exactly that write.
    fn is_own_write(&self, row: &Row, current: &Lease) -> bool {
        current.actual_owner() == Some(&self.worker_id)
            && current.counter == row.lease.counter.saturating_add(1)
    }

    /// Writes the row, trying again while the store fails and the lease lasts.
    pub(crate) async fn persist(&self, make: impl Fn(&Lease) -> LeaseWrite) -> Result<(), HoldError> {
        let mut attempt = 0;
        loop {
            match self.write(&make).await {
                Err(HoldError::Store(error)) => {
                    tracing::warn!(lease_key = %self.lease_key, error = %error, attempt, "a lease write failed");
                    self.wait_to_retry(attempt).await;
                    attempt += 1;
                }
                done => return done,
            }
        }
    }

    async fn wait_to_retry(&self, attempt: u32) {
        let wait = RETRY.delay(attempt, self.clock.chance());
        self.clock.sleep_until(self.clock.now() + wait).await;
    }

    /// Gives the lease up, so that others need not wait for it to expire, trying again while the store fails and until `patience` is over. Whether it did.
    pub(crate) async fn release(&self, patience: Duration) -> bool {
        let released = within(&*self.clock, patience, self.persist(LeaseWrite::release)).await;
        self.lose("it was released".to_owned());
        matches!(released, Some(Ok(())))
    }

    /// Keeps the lease: checkpoints what was settled since the last write, or else renews, three times within the failover time. One write serves
    /// both, since a checkpoint moves the counter too. Returns when the lease is lost.
    pub(crate) async fn keep(&self, progress: &ShardProgress) {
        let interval = self.failover_time / 3;
        let mut due = self.clock.now() + interval;
        let mut attempt = 0;
        loop {
            tokio::select! {
                biased;
                () = self.lost() => return,
                () = self.clock.sleep_until(due) => {}
            }
            match self.write(|lease| next_write(lease, progress)).await {
                Ok(()) => {
                    attempt = 0;
                    due = self.clock.now() + interval;
                }
                Err(HoldError::Lost) => return,
                Err(HoldError::Store(error)) => {
                    tracing::warn!(lease_key = %self.lease_key, error = %error, attempt, "a renewal failed");
                    due = self.clock.now() + RETRY.delay(attempt, self.clock.chance());
                    attempt += 1;
                }
            }
        }
    }

    /// Writes a checkpoint if there is anything new to say.
    pub(crate) async fn flush(&self, progress: &ShardProgress) -> Result<(), HoldError> {
        let stored = self.lease().await;
        if has_news(&stored, progress) {
            self.write(|lease| next_write(lease, progress)).await?;
        }
        Ok(())
    }

    /// As [`flush`](Self::flush), trying again while the store fails and the lease lasts.
    pub(crate) async fn flush_persistently(&self, progress: &ShardProgress) -> Result<(), HoldError> {
        let stored = self.lease().await;
        if has_news(&stored, progress) {
            self.persist(|lease| next_write(lease, progress)).await?;
        }
        Ok(())
    }
}

fn has_news(lease: &Lease, progress: &ShardProgress) -> bool {
    progress.committable().is_some_and(|at| at > lease.checkpoint)
}

fn next_write(lease: &Lease, progress: &ShardProgress) -> LeaseWrite {
    match progress.committable() {
        Some(at) if has_news(lease, progress) => LeaseWrite::checkpoint(lease, at),
        _ => LeaseWrite::renew(lease, None),
    }
}

fn taken_by(current: Option<&Lease>) -> String {
    match current.map(|lease| (lease.actual_owner(), lease.counter)) {
        Some((Some(owner), counter)) => format!("{owner} holds it (counter {counter})"),
        Some((None, counter)) => format!("somebody released it (counter {counter})"),
        None => "its row was deleted".to_owned(),
    }
}

#[cfg(test)]
mod tests;
