//! A process's way to the table: latency, and everything that can go wrong on the way.
//!
//! A write reaches the table at a moment of its own, whether the process still waits for it or not; a crashed process's last writes happen after it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use shardfleet_core::fleet::FleetSnapshot;
use shardfleet_core::ids::{LeaseKey, WorkerId};
use shardfleet_core::leader::{LockRow, LockWrite};
use shardfleet_core::lease::{Expectation, Lease, LeaseWrite, WriteOutcome};
use shardfleet_core::worker_metrics::WorkerMetricStats;

use crate::chance::Chance;
use crate::exec::{MILLI, Micros, SECOND, sleep_until};
use crate::faults::FaultKind;
use crate::log::What;
use crate::setup::{STORE_PATIENCE, micros};
use crate::sim::Sim;

/// A request that failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreFailure {
    /// It is known that nothing was written.
    pub(crate) surely_not_written: bool,
}

const REFUSED: StoreFailure = StoreFailure {
    surely_not_written: true,
};
const UNKNOWN: StoreFailure = StoreFailure {
    surely_not_written: false,
};

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Fine,
    Slow,
    Throttled,
    Failed,
    LostAnswer,
    LateWrite,
    CutOff,
}

/// The table as one process reaches it.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) sim: Rc<Sim>,
    pub(crate) process: usize,
    pub(crate) slot: usize,
}

impl Store {
    fn fate(&self, is_write: bool) -> Fate {
        let kinds = [
            (FaultKind::CutOff, Fate::CutOff),
            (FaultKind::StoreThrottled, Fate::Throttled),
            (FaultKind::StoreFailed, Fate::Failed),
            (FaultKind::SlowStore, Fate::Slow),
            (FaultKind::LostAnswer, Fate::LostAnswer),
            (FaultKind::LateWrite, Fate::LateWrite),
        ];
        let kinds = if is_write { &kinds[..] } else { &kinds[..4] };
        let struck = kinds.iter().find(|(kind, _)| self.sim.strikes(*kind, self.slot));
        struck.map_or(Fate::Fine, |(_, fate)| *fate)
    }

    /// The way there and the way back.
    fn latency(&self, fate: Fate) -> (Micros, Micros) {
        self.sim.draw(|chance| {
            let way = |chance: &mut Chance| match fate {
                Fate::Slow => chance.between(500 * MILLI, 4 * SECOND),
                _ if chance.happens(10) => chance.between(30 * MILLI, 300 * MILLI),
                _ => chance.between(2 * MILLI, 20 * MILLI),
            };
            (way(chance), way(chance))
        })
    }

    async fn sleep_until(&self, at: Micros) {
        sleep_until(&self.sim.executor, at).await;
    }

    /// Fails as `fate` says, for requests that never reach the table.
    async fn fail(&self, fate: Fate, answered: Micros, given_up: Micros) -> StoreFailure {
        let (kind, failure) = match fate {
            Fate::Throttled => (FaultKind::StoreThrottled, REFUSED),
            Fate::Failed => (FaultKind::StoreFailed, UNKNOWN),
            _ => (FaultKind::CutOff, UNKNOWN),
        };
        let hangs = fate == Fate::CutOff && self.sim.draw(|chance| chance.happens(200));
        self.sleep_until(if hangs { given_up } else { answered.min(given_up) })
            .await;
        self.sim.fault(kind, Some(self.process));
        self.note_failure();
        failure
    }

    fn note_failure(&self) {
        self.sim.log(What::StoreFailure, Some(self.process), None, 0, 0);
        self.sim.checks.borrow_mut().note_trouble(self.sim.now());
    }

    async fn write<T: 'static>(
        &self,
        patience: Duration,
        apply: impl FnOnce(&Sim) -> T + 'static,
    ) -> Result<T, StoreFailure> {
        let now = self.sim.now();
        self.sim.checks.borrow_mut().on_request(now, self.process);
        let fate = self.fate(true);
        let (there, back) = self.latency(fate);
        let given_up = now + micros(patience);
        let reaches = match fate {
            Fate::Throttled | Fate::Failed | Fate::CutOff => {
                return Err(self.fail(fate, now + there + back, given_up).await);
            }
            Fate::LateWrite => given_up + self.sim.draw(|chance| chance.between(MILLI, 6 * SECOND)),
            _ => now + there,
        };
        let answer = Rc::new(RefCell::new(None));
        let (sim, slot, process) = (Rc::clone(&self.sim), Rc::clone(&answer), self.process);
        self.sim.executor.at(reaches, move || {
            if fate == Fate::LateWrite {
                sim.fault(FaultKind::LateWrite, Some(process));
                sim.checks.borrow_mut().note_trouble(sim.now());
            }
            slot.replace(Some(apply(&sim)));
        });
        let answered = reaches + back;
        if answered > given_up {
            self.sleep_until(given_up).await;
            if fate == Fate::Slow {
                self.sim.fault(FaultKind::SlowStore, Some(self.process));
            }
            self.note_failure();
            return Err(UNKNOWN);
        }
        self.sleep_until(answered).await;
        self.note_slow(fate);
        match answer.take() {
            Some(_) if fate == Fate::LostAnswer => {
                self.sim.fault(FaultKind::LostAnswer, Some(self.process));
                self.note_failure();
                Err(UNKNOWN)
            }
            Some(value) => Ok(value),
            None => Err(UNKNOWN),
        }
    }

    fn note_slow(&self, fate: Fate) {
        if fate == Fate::Slow {
            self.sim.fault(FaultKind::SlowStore, Some(self.process));
            self.sim.checks.borrow_mut().note_trouble(self.sim.now());
        }
    }

    /// Reads the table as it was when the request reached it.
    async fn read<T>(
        &self,
        patience: Duration,
        look: impl FnOnce(&Sim, Micros) -> T,
    ) -> Result<T, StoreFailure> {
        let now = self.sim.now();
        self.sim.checks.borrow_mut().on_request(now, self.process);
        let fate = self.fate(false);
        let (there, back) = self.latency(fate);
        let given_up = now + micros(patience);
        if !matches!(fate, Fate::Fine | Fate::Slow) {
            return Err(self.fail(fate, now + there + back, given_up).await);
        }
        let answered = now + there + back;
        self.sleep_until(answered.min(given_up)).await;
        self.note_slow(fate);
        if answered > given_up {
            self.note_failure();
            return Err(UNKNOWN);
        }
        Ok(look(&self.sim, now + there))
    }

    /// By how much each part of an eventually consistent read lags: a little, or a lot.
    fn lag(&self, kind: FaultKind) -> impl FnMut(Micros) -> Micros {
        let is_stale = self.sim.strikes(kind, self.slot);
        if is_stale {
            self.sim.fault(kind, Some(self.process));
            // It is no failure, but news travels as slowly as if it were.
            self.sim.checks.borrow_mut().note_trouble(self.sim.now());
        }
        let mut chance = self.sim.draw(Chance::fork);
        let most = if is_stale {
            chance.between(SECOND, 6 * SECOND)
        } else {
            150 * MILLI
        };
        move |at| {
            at.saturating_sub(if is_stale && chance.happens(300) {
                0
            } else {
                chance.below(most)
            })
        }
    }

    /// The whole table, row by row as of different moments.
    pub(crate) async fn scan(&self) -> Result<FleetSnapshot, StoreFailure> {
        let mut lag = self.lag(FaultKind::StaleScan);
        let process = self.process;
        self.read(STORE_PATIENCE, move |sim, at| {
            let snapshot = sim.table.borrow().scan(|| lag(at));
            let rows = snapshot.leases.len() as u64;
            sim.log(
                What::Scanned,
                Some(process),
                None,
                rows,
                snapshot.workers.len() as u64,
            );
            snapshot
        })
        .await
    }

    pub(crate) async fn owned_by(&self, worker: &WorkerId) -> Result<Vec<LeaseKey>, StoreFailure> {
        let mut lag = self.lag(FaultKind::IndexLag);
        self.read(STORE_PATIENCE, move |sim, at| {
            sim.table.borrow().owned_by(worker, || lag(at))
        })
        .await
    }

    pub(crate) async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreFailure> {
        self.read(STORE_PATIENCE, |sim, at| sim.table.borrow().lease_at(key, at))
            .await
    }

    pub(crate) async fn create(&self, lease: Lease) -> Result<bool, StoreFailure> {
        let process = self.process;
        self.write(STORE_PATIENCE, move |sim| sim.create(process, &lease))
            .await
    }

    pub(crate) async fn update(
        &self,
        write: LeaseWrite,
        patience: Duration,
    ) -> Result<WriteOutcome, StoreFailure> {
        let process = self.process;
        self.sim
            .checks
            .borrow_mut()
            .on_row_request(self.sim.now(), process, &write.lease_key);
        self.write(patience, move |sim| sim.update(process, &write)).await
    }

    pub(crate) async fn delete(&self, row: Lease, expect: Expectation) -> Result<bool, StoreFailure> {
        let process = self.process;
        self.write(STORE_PATIENCE, move |sim| sim.delete(process, &row, &expect))
            .await
    }

    pub(crate) async fn read_lock(&self, patience: Duration) -> Result<Option<LockRow>, StoreFailure> {
        self.read(patience, |sim, at| sim.table.borrow().lock_at(at))
            .await
    }

    pub(crate) async fn write_lock(
        &self,
        write: LockWrite,
        patience: Duration,
    ) -> Result<bool, StoreFailure> {
        let process = self.process;
        self.write(patience, move |sim| {
            let is_written = sim.table.borrow_mut().write_lock(sim.now(), &write);
            let what = if is_written {
                What::LockWritten
            } else {
                What::LockConflict
            };
            sim.log(what, Some(process), None, 0, 0);
            is_written
        })
        .await
    }

    pub(crate) async fn put_metrics(&self, stats: WorkerMetricStats) -> Result<(), StoreFailure> {
        self.write(STORE_PATIENCE, move |sim| {
            sim.table.borrow_mut().put_metrics(sim.now(), stats);
        })
        .await
    }

    pub(crate) async fn delete_metrics(
        &self,
        worker: WorkerId,
        seen: Option<u64>,
    ) -> Result<(), StoreFailure> {
        self.write(STORE_PATIENCE, move |sim| {
            sim.table.borrow_mut().delete_metrics(sim.now(), &worker, seen);
        })
        .await
    }
}
