//! Leases in this process's memory, for tests and for a single worker that may forget everything.
//!
//! It is also the shortest reading of what a [`LeaseStore`] does: [`LeaseWrite::apply`] under a lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use shardfleet_core::ids::{LeaseKey, WorkerId};
use shardfleet_core::lease::{Expectation, Lease, LeaseWrite, WriteOutcome};

use super::{LeaseScan, LeaseStore, StoreError};

/// A lease store in memory. Clones share the same leases.
#[derive(Clone, Debug, Default)]
pub struct MemoryLeaseStore {
    leases: Arc<Mutex<BTreeMap<LeaseKey, Lease>>>,
}

impl MemoryLeaseStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn leases(&self) -> MutexGuard<'_, BTreeMap<LeaseKey, Lease>> {
        // Every change is one insert or remove, so a panic of another holder leaves nothing half done.
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl LeaseStore for MemoryLeaseStore {
    async fn prepare(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn get(&self, lease_key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        Ok(self.leases().get(lease_key).cloned())
    }

    async fn scan(&self) -> Result<LeaseScan, StoreError> {
        Ok(LeaseScan {
            leases: self.leases().values().cloned().collect(),
            unreadable: Vec::new(),
        })
    }

    async fn owned_by(&self, worker: &WorkerId) -> Result<Vec<LeaseKey>, StoreError> {
        let leases = self.leases();
        let owned = leases
            .values()
            .filter(|lease| lease.owner.as_ref() == Some(worker));
        Ok(owned.map(|lease| lease.lease_key.clone()).collect())
    }

    async fn create(&self, lease: &Lease) -> Result<bool, StoreError> {
        let mut leases = self.leases();
        if leases.contains_key(&lease.lease_key) {
            return Ok(false);
        }
        leases.insert(lease.lease_key.clone(), lease.clone());
        Ok(true)
    }

    async fn update(&self, write: &LeaseWrite) -> Result<WriteOutcome, StoreError> {
        let mut leases = self.leases();
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
        let mut leases = self.leases();
        if leases.get(lease_key).is_some_and(|lease| !expect.holds(lease)) {
            return Ok(false);
        }
        leases.remove(lease_key);
        Ok(true)
    }

    fn describe(&self) -> String {
        "leases in memory".to_owned()
    }
}
