//! A lease that a simulated worker holds, and the task that keeps it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use shardfleet_core::holding::{HoldVerdict, Holding, ThroughputMeter};
use shardfleet_core::ids::{LeaseKey, WorkerId};
use shardfleet_core::lease::{Lease, LeaseWrite};
use shardfleet_core::retry::Backoff;
use shardfleet_core::sequence::ExtendedSequenceNumber;
use shardfleet_core::time::Moment;
use shardfleet_core::watermark::{Ticket, Watermark};

use super::Process;
use crate::log::What;
use crate::mutation::Mutation;
use crate::stream::{sequence_number, shard_number};
use crate::sync::{Changes, First, Flag, Notice, Turns, first};

const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));

/// How often a row that turned out to be newer is written anew at once.
const REWRITES: u32 = 4;

/// Records on their way to the handler.
pub(super) struct Batch {
    pub(super) records: Vec<(u64, Ticket)>,
}

/// Why a write of a held lease did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldError {
    Lost,
    Store,
}

/// A held lease with the reading of its shard.
pub(crate) struct Held {
    pub(super) key: LeaseKey,
    pub(crate) shard: usize,
    /// Its number in the run.
    pub(super) serial: u64,
    holding: RefCell<Holding>,
    turns: Turns,
    nudge: Notice,
    pub(super) lost: Flag,
    /// Anything below has changed.
    pub(super) changes: Changes,
    next_owner: RefCell<Option<WorkerId>>,
    pub(super) watermark: RefCell<Watermark>,
    pub(super) queue: RefCell<VecDeque<Batch>>,
    pub(super) last_handed_out: Cell<Option<u64>>,
    pub(super) bytes: Cell<u64>,
    /// The handler gets nothing more.
    pub(super) is_stopping: Cell<bool>,
    pub(super) is_handler_busy: Cell<bool>,
}

impl Held {
    /// The holding that a write which began at `began` has won.
    pub(super) fn new(process: &Process, row: Lease, began: Moment) -> Rc<Self> {
        let shard = shard_number(&row.lease_key);
        let failover_time = if process.has(Mutation::HoldAfterExpiry) {
            process.failover_time() * 20
        } else {
            process.failover_time()
        };
        let key = row.lease_key.clone();
        process
            .sim
            .log(What::Held, Some(process.number), Some(shard), row.counter, 0);
        Rc::new(Self {
            key,
            shard,
            serial: process.sim.checks.borrow_mut().next_serial(),
            holding: RefCell::new(Holding::new(process.id.clone(), row, failover_time, began)),
            turns: Turns::default(),
            nudge: Notice::default(),
            lost: Flag::default(),
            changes: Changes::default(),
            next_owner: RefCell::default(),
            watermark: RefCell::default(),
            queue: RefCell::default(),
            last_handed_out: Cell::new(None),
            bytes: Cell::new(0),
            is_stopping: Cell::new(false),
            is_handler_busy: Cell::new(false),
        })
    }

    /// The row as last written by this worker.
    pub(super) fn row(&self) -> Lease {
        self.holding.borrow().row().clone()
    }

    /// Whether the lease is surely still this worker's. A no is final.
    pub(crate) fn is_valid(&self, process: &Process) -> bool {
        if self.lost.is_set() {
            return false;
        }
        let is_held = self.holding.borrow_mut().is_held(process.now());
        if !is_held {
            self.lose(process);
        }
        is_held
    }

    /// Whether its worker would say that it holds the lease, and hands out records of the shard. Asking changes nothing.
    pub(crate) fn reads(&self, process: &Process) -> bool {
        !self.lost.is_set() && !self.is_stopping.get() && self.holding.borrow().valid_until() >= process.now()
    }

    /// Records that were handed out and not settled.
    pub(crate) fn unsettled(&self) -> u64 {
        self.watermark.borrow().unsettled()
    }

    /// Batches that wait for the handler.
    pub(crate) fn queued(&self) -> usize {
        self.queue.borrow().len()
    }

    fn lose(&self, process: &Process) -> HoldError {
        if !self.lost.is_set() {
            process
                .sim
                .log(What::Lost, Some(process.number), Some(self.shard), 0, 0);
            self.lost.set();
            self.changes.tell();
        }
        HoldError::Lost
    }

    pub(super) fn next_owner(&self) -> Option<WorkerId> {
        self.next_owner.borrow().clone()
    }

    /// Waits until a handoff is asked for.
    pub(super) async fn handoff_wanted(&self) -> WorkerId {
        self.changes.until(|| self.next_owner()).await
    }

    /// Makes the keeper write at once, which shows what others did to the row.
    pub(super) fn look_now(&self) {
        self.nudge.give();
    }

    /// Writes the row once. `make` may be called again, on a row that turned out to be newer.
    pub(super) async fn write(
        &self,
        process: &Process,
        make: impl Fn(&Lease) -> LeaseWrite,
    ) -> Result<(), HoldError> {
        let _turn = self.turns.next().await;
        for _ in 0..REWRITES {
            if self.lost.is_set() {
                return Err(HoldError::Lost);
            }
            if !self.holding.borrow_mut().begin(process.now()) {
                return Err(self.lose(process));
            }
            let write = make(self.holding.borrow().row());
            let patience = process.failover_time() / 3;
            let verdict = match process.store.update(write.clone(), patience).await {
                Ok(outcome) => self.holding.borrow_mut().on_answer(&write, outcome),
                Err(failure) => {
                    self.holding.borrow_mut().on_failure(failure.surely_not_written);
                    return Err(HoldError::Store);
                }
            };
            self.publish(process);
            match verdict {
                HoldVerdict::Written => return Ok(()),
                HoldVerdict::Lost => return Err(HoldError::Lost),
                HoldVerdict::Again | HoldVerdict::Failed => {}
            }
        }
        Err(HoldError::Store)
    }

    fn publish(&self, process: &Process) {
        let holding = self.holding.borrow();
        let next = holding.next_owner();
        if self.next_owner.borrow().as_ref() != next {
            self.next_owner.replace(next.cloned());
            self.changes.tell();
        }
        if holding.lost().is_some() {
            self.lose(process);
        }
    }

    /// Writes the row, trying again while the store fails and the lease lasts.
    pub(super) async fn persist(
        &self,
        process: &Process,
        make: impl Fn(&Lease) -> LeaseWrite,
    ) -> Result<(), HoldError> {
        let mut attempt = 0;
        loop {
            match self.write(process, &make).await {
                Err(HoldError::Store) => {
                    process.sleep(process.delay(&RETRY, attempt)).await;
                    attempt += 1;
                }
                done => return done,
            }
        }
    }

    /// Gives the lease up, to its next owner if a handoff was asked for. Whether it did, within `patience`.
    pub(super) async fn release(&self, process: &Process, patience: Duration) -> bool {
        let released = process.within(patience, self.persist(process, give_up)).await;
        self.lose(process);
        matches!(released, Some(Ok(())))
    }

    /// Keeps the lease: checkpoints what was settled, or else renews, three times within the failover time. Returns when it is lost.
    pub(super) async fn keep(&self, process: &Process) {
        let interval = process.failover_time() / 3;
        let mut meter = ThroughputMeter::new(process.now(), self.row().throughput_kbps);
        let mut due = process.now() + interval;
        let mut attempt = 0;
        loop {
            let wakes = first(self.nudge.taken(), process.sleep_until(due));
            if let First::Left(()) = first(self.lost.raised(), wakes).await {
                return;
            }
            let throughput_kbps = meter.report(process.now(), self.bytes.get());
            match self
                .write(process, |row| self.next_write(process, row, throughput_kbps))
                .await
            {
                Ok(()) => {
                    attempt = 0;
                    due = process.now() + interval;
                }
                Err(HoldError::Lost) => return,
                Err(HoldError::Store) if process.has(Mutation::NoBackoff) => due = process.now(),
                Err(HoldError::Store) => {
                    due = process.now() + process.delay(&RETRY, attempt);
                    attempt += 1;
                }
            }
        }
    }

    /// Writes a checkpoint if there is anything new to say, trying again while the store fails and the lease lasts.
    pub(super) async fn flush(&self, process: &Process) -> Result<(), HoldError> {
        if process.has(Mutation::HandOffUnflushed) && self.next_owner().is_some() {
            return Ok(());
        }
        if self.has_news(process, &self.row()) {
            self.persist(process, |row| self.next_write(process, row, None))
                .await?;
        }
        Ok(())
    }

    fn committable(&self, process: &Process) -> Option<ExtendedSequenceNumber> {
        if process.has(Mutation::CheckpointUnsettled) {
            let last = self.last_handed_out.get()?;
            return Some(ExtendedSequenceNumber::At(sequence_number(self.shard, last), 0));
        }
        self.watermark.borrow().committable().cloned()
    }

    fn has_news(&self, process: &Process, row: &Lease) -> bool {
        self.committable(process).is_some_and(|at| at > row.checkpoint)
    }

    fn next_write(&self, process: &Process, row: &Lease, throughput_kbps: Option<f64>) -> LeaseWrite {
        match self.committable(process) {
            Some(at) if at > row.checkpoint => {
                let mut write = LeaseWrite::checkpoint(row, at);
                write.change.throughput_kbps = throughput_kbps;
                write
            }
            _ => LeaseWrite::renew(row, throughput_kbps),
        }
    }
}

/// A handoff that was asked for is completed; else the lease becomes nobody's.
fn give_up(row: &Lease) -> LeaseWrite {
    match (&row.checkpoint_owner, &row.owner) {
        (Some(_), Some(next)) => LeaseWrite::assign(row, next),
        _ => LeaseWrite::release(row),
    }
}
