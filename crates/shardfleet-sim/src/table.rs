//! The simulated table: every row with its recent past, so that reads can lag behind.
//!
//! Writes are executed by [`LeaseWrite::apply`] and [`LockWrite::apply`] and nothing else, atomically each.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use shardfleet_core::fleet::FleetSnapshot;
use shardfleet_core::ids::{LeaseKey, WorkerId};
use shardfleet_core::leader::{LockRow, LockWrite};
use shardfleet_core::lease::{Expectation, Lease, LeaseWrite, WriteOutcome};
use shardfleet_core::worker_metrics::WorkerMetricStats;

use crate::exec::{Micros, SECOND};

/// For how long the past of a row is kept; no read lags behind by more.
const PAST: Micros = 30 * SECOND;

/// A row now and as it was.
#[derive(Debug)]
struct Versions<T> {
    /// The newest last; never empty once written.
    list: VecDeque<(Micros, Option<Rc<T>>)>,
    /// Older ones were forgotten.
    is_trimmed: bool,
}

impl<T> Default for Versions<T> {
    fn default() -> Self {
        Self {
            list: VecDeque::new(),
            is_trimmed: false,
        }
    }
}

impl<T> Versions<T> {
    fn now(&self) -> Option<&Rc<T>> {
        self.list.back().and_then(|(_, row)| row.as_ref())
    }

    /// The row as it was at `at`.
    fn at(&self, at: Micros) -> Option<&Rc<T>> {
        let known = self.list.iter().rev().find(|(since, _)| *since <= at);
        // A process that stood still may get its answer much later: what is forgotten is not what was not there.
        let (_, row) = known.or_else(|| self.list.front().filter(|_| self.is_trimmed))?;
        row.as_ref()
    }

    fn set(&mut self, now: Micros, row: Option<T>) {
        while self.list.len() > 1 && self.list[1].0 + PAST < now {
            self.list.pop_front();
            self.is_trimmed = true;
        }
        self.list.push_back((now, row.map(Rc::new)));
    }
}

/// The table that the fleet shares.
#[derive(Debug, Default)]
pub(crate) struct Table {
    leases: BTreeMap<LeaseKey, Versions<Lease>>,
    lock: Versions<LockRow>,
    metrics: BTreeMap<WorkerId, Versions<WorkerMetricStats>>,
}

impl Table {
    pub(crate) fn lease(&self, key: &LeaseKey) -> Option<&Lease> {
        self.leases.get(key)?.now().map(|row| &**row)
    }

    pub(crate) fn lease_at(&self, key: &LeaseKey, at: Micros) -> Option<Lease> {
        self.leases.get(key)?.at(at).map(|row| (**row).clone())
    }

    pub(crate) fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.values().filter_map(|row| row.now().map(|row| &**row))
    }

    /// A scan whose parts show the table as it was at different moments: `as_of` says when, for each.
    pub(crate) fn scan(&self, mut as_of: impl FnMut() -> Micros) -> FleetSnapshot {
        let mut snapshot = FleetSnapshot::default();
        for (key, row) in &self.leases {
            if let Some(lease) = row.at(as_of()) {
                snapshot.leases.insert(key.clone(), (**lease).clone());
            }
        }
        for row in self.metrics.values() {
            if let Some(stats) = row.at(as_of()) {
                snapshot.workers.push((**stats).clone());
            }
        }
        snapshot.leader_lock = self.lock.at(as_of()).map(|row| (**row).clone());
        snapshot
    }

    pub(crate) fn owned_by(&self, worker: &WorkerId, mut as_of: impl FnMut() -> Micros) -> Vec<LeaseKey> {
        self.leases
            .iter()
            .filter(|(_, row)| {
                row.at(as_of())
                    .is_some_and(|lease| lease.owner.as_ref() == Some(worker))
            })
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Whether there was no such row.
    pub(crate) fn create(&mut self, now: Micros, lease: &Lease) -> bool {
        let row = self.leases.entry(lease.lease_key.clone()).or_default();
        let is_new = row.now().is_none();
        if is_new {
            row.set(now, Some(lease.clone()));
        }
        is_new
    }

    pub(crate) fn update(&mut self, now: Micros, write: &LeaseWrite) -> WriteOutcome {
        let Some(row) = self.leases.get_mut(&write.lease_key) else {
            return WriteOutcome::Conflict(None);
        };
        let Some(before) = row.now() else {
            return WriteOutcome::Conflict(None);
        };
        match write.apply(before) {
            Some(after) => {
                row.set(now, Some(after.clone()));
                WriteOutcome::Written(after)
            }
            None => WriteOutcome::Conflict(Some((**before).clone())),
        }
    }

    /// Whether the row is gone now.
    pub(crate) fn delete(&mut self, now: Micros, key: &LeaseKey, expect: &Expectation) -> bool {
        let Some(row) = self.leases.get_mut(key) else {
            return true;
        };
        match row.now() {
            None => true,
            Some(lease) if expect.holds(lease) => {
                row.set(now, None);
                true
            }
            Some(_) => false,
        }
    }

    pub(crate) fn lock(&self) -> Option<LockRow> {
        self.lock.now().map(|row| (**row).clone())
    }

    pub(crate) fn lock_at(&self, at: Micros) -> Option<LockRow> {
        self.lock.at(at).map(|row| (**row).clone())
    }

    pub(crate) fn write_lock(&mut self, now: Micros, write: &LockWrite) -> bool {
        let mut row = self.lock();
        let has_held = write.apply(&mut row);
        if has_held {
            self.lock.set(now, row);
        }
        has_held
    }

    pub(crate) fn put_metrics(&mut self, now: Micros, stats: WorkerMetricStats) {
        let row = self.metrics.entry(stats.worker_id.clone()).or_default();
        row.set(now, Some(stats));
    }

    pub(crate) fn delete_metrics(&mut self, now: Micros, worker: &WorkerId, seen: Option<u64>) {
        if let Some(row) = self.metrics.get_mut(worker) {
            let is_as_seen = row
                .now()
                .is_some_and(|stats| seen.is_none() || stats.last_update_seconds == seen);
            if is_as_seen {
                row.set(now, None);
            }
        }
    }
}
