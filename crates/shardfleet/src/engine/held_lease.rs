//! A lease that this worker holds, and the task that keeps it.
//!
//! All writes of the row go through one place, one at a time, so that the counter this worker expects is always the one it wrote last. What an answer
//! means, and when the lease is lost, is the core's [`Holding`] to say; here it is carried out, with a deadline on each request and a wait before each retry.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shardfleet_core::holding::{HoldVerdict, Holding, ThroughputMeter};
use shardfleet_core::ids::{LeaseKey, WorkerId};
use shardfleet_core::lease::{Control, Lease, LeaseWrite, TargetState, WriteOutcome};
use shardfleet_core::retry::Backoff;
use shardfleet_core::time::Moment;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::progress::ShardProgress;
use crate::clock::{Clock, within};
use crate::store::{LeaseStore, StoreError, StoreErrorKind};

const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));

/// How often a row that turned out to be newer is written anew at once.
const REWRITES: u32 = 4;

/// What holding leases takes: the table, the clock, and how.
#[derive(Clone)]
pub(crate) struct LeaseTerms {
    pub(crate) store: Arc<dyn LeaseStore>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) worker_id: WorkerId,
    pub(crate) failover_time: Duration,
    /// How many lease writes of this worker may be under way.
    pub(crate) writes: Arc<Semaphore>,
}

/// A lease that this worker holds until [`lost`](Self::lost) says otherwise.
pub(crate) struct HeldLease {
    lease_key: LeaseKey,
    terms: LeaseTerms,
    holding: tokio::sync::Mutex<Holding>,
    valid_until: Mutex<Moment>,
    /// The row's counter as last written.
    counter: AtomicU64,
    lost: CancellationToken,
    reason: Mutex<Option<String>>,
    /// Who is to have the lease next, while that is so.
    next_owner: watch::Sender<Option<WorkerId>>,
    /// What an operator asks of the shard, as of the last write.
    control: watch::Sender<Control>,
    /// Makes the keeper write at once.
    nudge: Notify,
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
    /// Executes a write that gives this worker a lease; `None` when somebody else was faster.
    pub(crate) async fn take(terms: &LeaseTerms, write: &LeaseWrite) -> Result<Option<Self>, StoreError> {
        let permit = terms.writes.acquire().await;
        // The lease counts from before the request, since others see the write from when it happened.
        let began = terms.clock.now();
        let outcome = within(&*terms.clock, terms.failover_time / 3, terms.store.update(write)).await;
        drop(permit);
        let lease = match outcome {
            Some(Ok(WriteOutcome::Written(lease))) => lease,
            Some(Ok(WriteOutcome::Conflict(_))) => return Ok(None),
            Some(Err(error)) => return Err(error),
            None => return Err(no_answer(terms, &write.lease_key)),
        };
        let holding = Holding::new(terms.worker_id.clone(), lease, terms.failover_time, began);
        Ok(Some(Self {
            lease_key: write.lease_key.clone(),
            terms: terms.clone(),
            valid_until: Mutex::new(holding.valid_until()),
            counter: AtomicU64::new(holding.row().counter),
            control: watch::Sender::new(holding.row().control()),
            holding: tokio::sync::Mutex::new(holding),
            lost: CancellationToken::new(),
            reason: Mutex::new(None),
            next_owner: watch::Sender::new(None),
            nudge: Notify::new(),
        }))
    }

    pub(crate) fn lease_key(&self) -> &LeaseKey {
        &self.lease_key
    }

    /// The row as last written by this worker.
    pub(crate) async fn lease(&self) -> Lease {
        self.holding.lock().await.row().clone()
    }

    /// The row's counter as last written by this worker.
    pub(crate) fn counter(&self) -> u64 {
        self.counter.load(Ordering::Relaxed)
    }

    /// Whether the lease is surely still this worker's. A no is final: records are dropped on it, so a late answer to a renewal must not make the
    /// lease valid again, or they would be missing from what is read on.
    pub(crate) fn is_valid(&self) -> bool {
        if self.lost.is_cancelled() {
            return false;
        }
        let valid_until = *self.valid_until.lock().unwrap_or_else(PoisonError::into_inner);
        if self.terms.clock.now() <= valid_until {
            return true;
        }
        self.lose(format!("it was not renewed for {:?}", self.terms.failover_time));
        false
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

    /// Who is to have the lease next, while a handoff is under way.
    pub(crate) fn next_owner(&self) -> Option<WorkerId> {
        self.next_owner.borrow().clone()
    }

    /// Waits until a handoff is asked for; to whom.
    pub(crate) async fn handoff_wanted(&self) -> WorkerId {
        let mut next_owner = self.next_owner.subscribe();
        match next_owner
            .wait_for(Option::is_some)
            .await
            .map(|next| next.clone())
        {
            Ok(Some(next)) => next,
            _ => std::future::pending().await,
        }
    }

    /// What an operator asks of the shard. Each write shows it, so a request of another worker's arrives within a third of the failover time.
    pub(crate) fn control(&self) -> Control {
        *self.control.borrow()
    }

    /// Waits until an operator asks of the shard what only a new life of it can do, which began when `began_as` was asked: a restart, the end of the handler, or a
    /// handler after all. What is to become of the shard.
    pub(crate) async fn new_life_wanted(&self, began_as: Control) -> TargetState {
        let mut control = self.control.subscribe();
        let wanted = control.wait_for(|asked| asked.needs_new_life(began_as));
        match wanted.await.map(|asked| asked.target) {
            Ok(target) => target,
            Err(_) => std::future::pending().await,
        }
    }

    /// Waits while the shard is paused.
    pub(crate) async fn not_paused(&self) {
        let mut control = self.control.subscribe();
        let wait = control.wait_for(|asked| asked.target != TargetState::Paused);
        if wait.await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Makes the keeper write at once, which shows what others did to the row.
    pub(crate) fn look_now(&self) {
        self.nudge.notify_one();
    }

    /// Writes the row once. `make` may be called again, on a row that turned out to be newer.
    pub(crate) async fn write(&self, make: impl Fn(&Lease) -> LeaseWrite) -> Result<(), HoldError> {
        let mut holding = self.holding.lock().await;
        let limit = self.terms.failover_time / 3;
        for _ in 0..REWRITES {
            let Some(Ok(permit)) = within(&*self.terms.clock, limit, self.terms.writes.acquire()).await
            else {
                return Err(HoldError::Store(no_answer(&self.terms, &self.lease_key)));
            };
            if self.lost.is_cancelled() {
                return Err(HoldError::Lost);
            }
            // Whoever waits for this may stop waiting at any moment, while the write goes on: `begin` remembers that.
            if !holding.begin(self.terms.clock.now()) {
                return Err(self.publish_loss(&holding));
            }
            let write = make(holding.row());
            let answer = within(&*self.terms.clock, limit, self.terms.store.update(&write)).await;
            drop(permit);
            let verdict = match answer {
                Some(Ok(outcome)) => holding.on_answer(&write, outcome),
                Some(Err(error)) => {
                    holding.on_failure(error.has_no_side_effects());
                    return Err(HoldError::Store(error));
                }
                None => {
                    holding.on_failure(false);
                    return Err(HoldError::Store(no_answer(&self.terms, &self.lease_key)));
                }
            };
            self.publish(&holding);
            match verdict {
                HoldVerdict::Written => return Ok(()),
                HoldVerdict::Lost => return Err(HoldError::Lost),
                HoldVerdict::Again | HoldVerdict::Failed => {}
            }
        }
        let doing = format!(
            "writing lease {} in {}",
            self.lease_key,
            self.terms.store.describe()
        );
        let reason = "the row changed again and again";
        Err(HoldError::Store(StoreError::new(
            StoreErrorKind::Unavailable,
            doing,
            reason,
        )))
    }

    fn publish(&self, holding: &Holding) {
        self.counter.store(holding.row().counter, Ordering::Relaxed);
        *self.valid_until.lock().unwrap_or_else(PoisonError::into_inner) = holding.valid_until();
        let asked = holding.row().control();
        self.control
            .send_if_modified(|known| std::mem::replace(known, asked) != asked);
        self.next_owner.send_if_modified(|known| {
            let next = holding.next_owner();
            let is_new = known.as_ref() != next;
            if is_new {
                *known = next.cloned();
            }
            is_new
        });
        if holding.lost().is_some() {
            self.publish_loss(holding);
        }
    }

    fn publish_loss(&self, holding: &Holding) -> HoldError {
        let why = holding.lost().map(ToString::to_string);
        self.lose(why.unwrap_or_else(|| "it is not held".to_owned()))
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
        let clock = &self.terms.clock;
        let wait = RETRY.delay(attempt, clock.chance());
        clock.sleep_until(clock.now() + wait).await;
    }

    /// Gives the lease up, to its next owner if a handoff was asked for, so that others need not wait for it to expire. Tries again while the store fails
    /// and until `patience` is over. Whether it did.
    pub(crate) async fn release(&self, patience: Duration) -> bool {
        let write = self.persist(give_up);
        let released = within(&*self.terms.clock, patience, write).await;
        self.lose("it was released".to_owned());
        matches!(released, Some(Ok(())))
    }

    /// Keeps the lease: checkpoints what was settled since the last write, or else renews, three times within the failover time. One write serves
    /// both, since a checkpoint moves the counter too. Returns when the lease is lost.
    pub(crate) async fn keep(&self, progress: &ShardProgress) {
        let clock = &self.terms.clock;
        let interval = self.terms.failover_time / 3;
        let mut meter = ThroughputMeter::new(clock.now(), self.lease().await.throughput_kbps);
        // Another keeper may have renewed it last, before the shard began anew.
        let valid_until = *self.valid_until.lock().unwrap_or_else(PoisonError::into_inner);
        let mut due = valid_until - self.terms.failover_time + interval;
        let mut attempt = 0;
        loop {
            tokio::select! {
                biased;
                () = self.lost() => return,
                () = self.nudge.notified() => {}
                () = clock.sleep_until(due) => {}
            }
            let throughput_kbps = meter.report(clock.now(), progress.handed_out_bytes());
            match self
                .write(|lease| next_write(lease, progress, throughput_kbps))
                .await
            {
                Ok(()) => {
                    attempt = 0;
                    due = clock.now() + interval;
                }
                Err(HoldError::Lost) => return,
                Err(HoldError::Store(error)) => {
                    tracing::warn!(lease_key = %self.lease_key, error = %error, attempt, "a renewal failed");
                    due = clock.now() + RETRY.delay(attempt, clock.chance());
                    attempt += 1;
                }
            }
        }
    }

    /// Writes a checkpoint if there is anything new to say.
    pub(crate) async fn flush(&self, progress: &ShardProgress) -> Result<(), HoldError> {
        let stored = self.lease().await;
        if has_news(&stored, progress) {
            self.write(|lease| next_write(lease, progress, None)).await?;
        }
        Ok(())
    }

    /// As [`flush`](Self::flush), trying again while the store fails and the lease lasts.
    pub(crate) async fn flush_persistently(&self, progress: &ShardProgress) -> Result<(), HoldError> {
        let stored = self.lease().await;
        if has_news(&stored, progress) {
            self.persist(|lease| next_write(lease, progress, None)).await?;
        }
        Ok(())
    }
}

/// A handoff that was asked for is completed; else the lease becomes nobody's.
fn give_up(row: &Lease) -> LeaseWrite {
    match (&row.checkpoint_owner, &row.owner) {
        (Some(_), Some(next)) => LeaseWrite::assign(row, next),
        _ => LeaseWrite::release(row),
    }
}

fn has_news(lease: &Lease, progress: &ShardProgress) -> bool {
    progress.committable().is_some_and(|at| at > lease.checkpoint)
}

fn next_write(lease: &Lease, progress: &ShardProgress, throughput_kbps: Option<f64>) -> LeaseWrite {
    match progress.committable() {
        Some(at) if has_news(lease, progress) => {
            let mut write = LeaseWrite::checkpoint(lease, at);
            write.change.throughput_kbps = throughput_kbps;
            write
        }
        _ => LeaseWrite::renew(lease, throughput_kbps),
    }
}

fn no_answer(terms: &LeaseTerms, lease_key: &LeaseKey) -> StoreError {
    let doing = format!("writing lease {lease_key} in {}", terms.store.describe());
    let reason = format!("no answer within {:?}", terms.failover_time / 3);
    StoreError::new(StoreErrorKind::Unavailable, doing, reason)
}

#[cfg(test)]
mod tests;
