//! Leases in this process's memory, for tests and for a single worker that may forget everything.
//!
//! It is also the shortest reading of what a [`LeaseStore`] does: [`LeaseWrite::apply`] under a lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use shardfleet_core::ids::{LeaseKey, WorkerId};
use shardfleet_core::leader::{LockRow, LockWrite};
use shardfleet_core::lease::{Expectation, Lease, LeaseWrite, WriteOutcome};
use shardfleet_core::worker_metrics::WorkerMetricStats;

use super::{LeaseScan, LeaseStore, StoreError};

/// A lease store in memory. Clones share the same leases.
#[derive(Clone, Debug, Default)]
pub struct MemoryLeaseStore {
    rows: Arc<Mutex<Rows>>,
}

#[derive(Debug, Default)]
struct Rows {
    leases: BTreeMap<LeaseKey, Lease>,
    workers: BTreeMap<WorkerId, WorkerMetricStats>,
    leader_lock: Option<LockRow>,
}

impl MemoryLeaseStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        // Every change is one insert or remove, so a panic of another holder leaves nothing half done.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl LeaseStore for MemoryLeaseStore {
    async fn prepare(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn get(&self, lease_key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        Ok(self.rows().leases.get(lease_key).cloned())
    }

    async fn scan(&self) -> Result<LeaseScan, StoreError> {
        let rows = self.rows();
        Ok(LeaseScan {
            leases: rows.leases.values().cloned().collect(),
            unreadable: Vec::new(),
            workers: rows.workers.values().cloned().collect(),
            leader_lock: rows.leader_lock.clone(),
        })
    }

    async fn owned_by(&self, worker: &WorkerId) -> Result<Vec<LeaseKey>, StoreError> {
        let rows = self.rows();
        let owned = rows
            .leases
            .values()
            .filter(|lease| lease.owner.as_ref() == Some(worker));
        Ok(owned.map(|lease| lease.lease_key.clone()).collect())
    }

    async fn create(&self, lease: &Lease) -> Result<bool, StoreError> {
        let leases = &mut self.rows().leases;
        if leases.contains_key(&lease.lease_key) {
            return Ok(false);
        }
        leases.insert(lease.lease_key.clone(), lease.clone());
        Ok(true)
    }

    async fn update(&self, write: &LeaseWrite) -> Result<WriteOutcome, StoreError> {
        let leases = &mut self.rows().leases;
        let Some(lease) = leases.get_mut(&write.lease_key) else {
            return Ok(WriteOutcome::Conflict(None));
        };
        let Some(after) = write.apply(lease) else {
            return Ok(WriteOutcome::Conflict(Some(lease.clone())));
        };
        *lease = after.clone();
        Ok(WriteOutcome::Written(after))
    }

    async fn delete(&self, lease_key: &LeaseKey, expect: &Expectation) -> Result<bool, StoreError> {
        let leases = &mut self.rows().leases;
        if leases.get(lease_key).is_some_and(|lease| !expect.holds(lease)) {
            return Ok(false);
        }
        leases.remove(lease_key);
        Ok(true)
    }

    async fn read_leader_lock(&self) -> Result<Option<LockRow>, StoreError> {
        Ok(self.rows().leader_lock.clone())
    }

    async fn write_leader_lock(&self, write: &LockWrite) -> Result<bool, StoreError> {
        Ok(write.apply(&mut self.rows().leader_lock))
    }

    async fn put_worker_metrics(&self, row: &WorkerMetricStats) -> Result<(), StoreError> {
        self.rows().workers.insert(row.worker_id.clone(), row.clone());
        Ok(())
    }

    async fn delete_worker_metrics(
        &self,
        worker: &WorkerId,
        last_update_seconds: Option<u64>,
    ) -> Result<bool, StoreError> {
        let workers = &mut self.rows().workers;
        let is_expected = |row: &WorkerMetricStats| {
            last_update_seconds.is_none() || row.last_update_seconds == last_update_seconds
        };
        if workers.get(worker).is_some_and(|row| !is_expected(row)) {
            return Ok(false);
        }
        workers.remove(worker);
        Ok(true)
    }

    fn describe(&self) -> String {
        "leases in memory".to_owned()
    }
}
