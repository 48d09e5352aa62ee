//! What a run consists of, shared by everything in it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use shardfleet_core::ids::WorkerId;
use shardfleet_core::lease::{Expectation, Lease, LeaseWrite, WriteOutcome};

use crate::chance::Chance;
use crate::checks::Checks;
use crate::exec::{Executor, Micros};
use crate::faults::{FaultKind, Faults};
use crate::log::{Event, Log, NONE, What};
use crate::setup::Setup;
use crate::stream::{Stream, shard_number};
use crate::table::Table;
use crate::worker::Process;

/// A run.
pub(crate) struct Sim {
    pub(crate) executor: Rc<Executor>,
    pub(crate) setup: Setup,
    pub(crate) chance: RefCell<Chance>,
    pub(crate) table: RefCell<Table>,
    pub(crate) stream: RefCell<Stream>,
    pub(crate) faults: RefCell<Faults>,
    pub(crate) checks: RefCell<Checks>,
    pub(crate) log: RefCell<Log>,
    pub(crate) processes: RefCell<Vec<Rc<Process>>>,
    /// The newest process of each name.
    pub(crate) by_id: RefCell<BTreeMap<WorkerId, usize>>,
}

impl Sim {
    pub(crate) fn now(&self) -> Micros {
        self.executor.now()
    }

    pub(crate) fn draw<T>(&self, draw: impl FnOnce(&mut Chance) -> T) -> T {
        draw(&mut self.chance.borrow_mut())
    }

    pub(crate) fn log(&self, what: What, process: Option<usize>, shard: Option<usize>, a: u64, b: u64) {
        let number = |number: Option<usize>| number.and_then(|n| u32::try_from(n).ok()).unwrap_or(NONE);
        self.log.borrow_mut().add(Event {
            at: self.now(),
            what,
            process: number(process),
            shard: number(shard),
            a,
            b,
        });
    }

    /// A fault of this kind has happened.
    pub(crate) fn fault(&self, kind: FaultKind, process: Option<usize>) {
        self.faults.borrow_mut().count(kind);
        self.log(What::Fault, process, None, kind as u64, 0);
    }

    /// Whether a fault befalls the worker of `slot` now.
    pub(crate) fn strikes(&self, kind: FaultKind, slot: usize) -> bool {
        let now = self.now();
        let faults = self.faults.borrow();
        faults.is_stormy(now) && faults.strikes(&mut self.chance.borrow_mut(), kind, now, slot)
    }

    fn log_row(&self, what: What, process: usize, row: &Lease) {
        let by_id = self.by_id.borrow();
        let number = |id: Option<&WorkerId>| {
            let number = id.and_then(|id| by_id.get(id)).copied();
            number.map_or(u64::from(NONE), |number| number as u64)
        };
        let owners = number(row.owner.as_ref()) << 32 | number(row.checkpoint_owner.as_ref());
        let shard = shard_number(&row.lease_key);
        self.log(what, Some(process), Some(shard), row.counter, owners);
    }

    /// A write of `process` reaches the table.
    pub(crate) fn update(&self, process: usize, write: &LeaseWrite) -> WriteOutcome {
        let now = self.now();
        let before = self.table.borrow().lease(&write.lease_key).cloned();
        let outcome = self.table.borrow_mut().update(now, write);
        match (&outcome, before) {
            (WriteOutcome::Written(after), Some(before)) => {
                self.log_row(What::Written, process, after);
                self.checks.borrow_mut().on_written(self, process, &before, after);
            }
            (WriteOutcome::Conflict(Some(row)), _) => self.log_row(What::Conflict, process, row),
            _ => {}
        }
        outcome
    }

    pub(crate) fn create(&self, process: usize, lease: &Lease) -> bool {
        let is_new = self.table.borrow_mut().create(self.now(), lease);
        if is_new {
            self.log_row(What::Created, process, lease);
            self.checks.borrow_mut().on_created(self.now(), lease);
        }
        is_new
    }

    pub(crate) fn delete(&self, process: usize, row: &Lease, expect: &Expectation) -> bool {
        let now = self.now();
        let existed = self.table.borrow().lease(&row.lease_key).is_some();
        let is_gone = self.table.borrow_mut().delete(now, &row.lease_key, expect);
        if existed && is_gone {
            self.log_row(What::Deleted, process, row);
            self.checks.borrow_mut().on_deleted(now, row);
        }
        is_gone
    }
}
