//! How do I keep leases somewhere else? Implement `LeaseStore`, and let the conformance suite say whether it keeps its promises.
#![allow(clippy::print_stdout, reason = "an example speaks to whoever runs it")]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shardfleet::core::leader::{LockRow, LockWrite};
use shardfleet::core::lease::{Expectation, Lease, LeaseWrite, WriteOutcome};
use shardfleet::core::worker_metrics::WorkerMetricStats;
use shardfleet::store::{LeaseScan, LeaseStore, StoreError, conformance};
use shardfleet::{LeaseKey, WorkerId, async_trait};

/// Leases in a map. A real store would turn `LeaseWrite` into a conditional write of its database's.
#[derive(Default)]
struct MapStore(Mutex<Rows>);

#[derive(Default)]
struct Rows {
    leases: BTreeMap<LeaseKey, Lease>,
    workers: BTreeMap<WorkerId, WorkerMetricStats>,
    lock: Option<LockRow>,
}

impl MapStore {
    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl LeaseStore for MapStore {
    async fn prepare(&self) -> Result<(), StoreError> {
        Ok(())
    }
    async fn get(&self, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        Ok(self.rows().leases.get(key).cloned())
    }
    async fn scan(&self) -> Result<LeaseScan, StoreError> {
        let mut scan = LeaseScan::default();
        let rows = self.rows();
        scan.leases = rows.leases.values().cloned().collect();
        scan.workers = rows.workers.values().cloned().collect();
        scan.leader_lock.clone_from(&rows.lock);
        drop(rows);
        Ok(scan)
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
        let rows = &mut self.rows().leases;
        let count = rows.len();
        rows.entry(lease.lease_key.clone()).or_insert(lease.clone());
        Ok(rows.len() > count)
    }
    async fn update(&self, write: &LeaseWrite) -> Result<WriteOutcome, StoreError> {
        let rows = &mut self.rows().leases;
        let before = rows.get(&write.lease_key).cloned();
        // What the condition and the change mean is said once, in the core.
        let Some(after) = before.as_ref().and_then(|row| write.apply(row)) else {
            return Ok(WriteOutcome::Conflict(before));
        };
        rows.insert(write.lease_key.clone(), after.clone());
        Ok(WriteOutcome::Written(after))
    }
    async fn delete(&self, key: &LeaseKey, expect: &Expectation) -> Result<bool, StoreError> {
        let rows = &mut self.rows().leases;
        let may_go = rows.get(key).is_none_or(|row| expect.holds(row));
        rows.retain(|k, _| !(may_go && k == key));
        Ok(may_go)
    }
    async fn read_leader_lock(&self) -> Result<Option<LockRow>, StoreError> {
        Ok(self.rows().lock.clone())
    }
    async fn write_leader_lock(&self, write: &LockWrite) -> Result<bool, StoreError> {
        Ok(write.apply(&mut self.rows().lock))
    }
    async fn put_worker_metrics(&self, row: &WorkerMetricStats) -> Result<(), StoreError> {
        self.rows().workers.insert(row.worker_id.clone(), row.clone());
        Ok(())
    }
    async fn delete_worker_metrics(&self, id: &WorkerId, at: Option<u64>) -> Result<bool, StoreError> {
        let workers = &mut self.rows().workers;
        let may_go = workers
            .get(id)
            .is_none_or(|row| at.is_none() || row.last_update_seconds == at);
        workers.retain(|worker, _| !(may_go && worker == id));
        Ok(may_go)
    }
    fn describe(&self) -> String {
        "leases in a map".to_owned()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    run().await
}

pub(crate) async fn run() -> Result<(), Box<dyn Error>> {
    let report =
        conformance::run(|| async { Ok(Arc::new(MapStore::default()) as Arc<dyn LeaseStore>) }).await;
    println!("{report}");
    let passed = report.failed.is_empty().then_some(());
    passed.ok_or("the store breaks rules".into())
}
