//! The lease stores: one conformance suite over all of them, and what each has of its own.

mod dynamodb;
mod dynamodb_faults;
mod sqlite;

#[path = "../support/dynamo_json.rs"]
mod dynamo_json;

use std::sync::Arc;

use async_trait::async_trait;
use shardfleet::store::{LeaseScan, LeaseStore, MemoryLeaseStore, StoreError, conformance};
use shardfleet_core::ids::{LeaseKey, WorkerId};
use shardfleet_core::leader::{LockRow, LockWrite};
use shardfleet_core::lease::{Expectation, Lease, LeaseWrite, WriteOutcome};
use shardfleet_core::sequence::ExtendedSequenceNumber;
use shardfleet_core::worker_metrics::WorkerMetricStats;

/// A lease as shard sync creates it.
fn new_lease(number: u32) -> Lease {
    Lease::new(
        LeaseKey::from(format!("shardId-{number:012}")),
        ExtendedSequenceNumber::TrimHorizon,
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_conforms() {
    let make = || async { Ok(Arc::new(MemoryLeaseStore::new()) as Arc<dyn LeaseStore>) };
    conformance::run(make).await.assert_passed();
}

/// A store that breaks one rule.
struct Broken {
    inner: MemoryLeaseStore,
    fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    CreateReplaces,
    ConditionsAreIgnored,
    ConflictsHideTheRow,
    TwoWinners,
    ScanIsUnordered,
    OwnerIsForgotten,
    DeleteDoesNotAsk,
    CountersStay,
}

#[async_trait]
impl LeaseStore for Broken {
    async fn prepare(&self) -> Result<(), StoreError> {
        self.inner.prepare().await
    }

    async fn get(&self, lease_key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        self.inner.get(lease_key).await
    }

    async fn scan(&self) -> Result<LeaseScan, StoreError> {
        let mut scan = self.inner.scan().await?;
        if self.fault == Fault::ScanIsUnordered {
            scan.leases.reverse();
        }
        Ok(scan)
    }

    async fn owned_by(&self, worker: &WorkerId) -> Result<Vec<LeaseKey>, StoreError> {
        let mut owned = self.inner.owned_by(worker).await?;
        if self.fault == Fault::OwnerIsForgotten {
            owned.pop();
        }
        Ok(owned)
    }

    async fn create(&self, lease: &Lease) -> Result<bool, StoreError> {
        if self.fault == Fault::CreateReplaces {
            self.inner
                .delete(&lease.lease_key, &Expectation::default())
                .await?;
        }
        self.inner.create(lease).await
    }

    async fn update(&self, write: &LeaseWrite) -> Result<WriteOutcome, StoreError> {
        let mut write = write.clone();
        match self.fault {
            Fault::ConditionsAreIgnored => write.expect = Expectation::default(),
            Fault::CountersStay => write.change.counter = shardfleet_core::lease::CountChange::Keep,
            Fault::TwoWinners => {
                // Looks first and writes later, with everybody else in between.
                let Some(row) = self.inner.get(&write.lease_key).await? else {
                    return Ok(WriteOutcome::Conflict(None));
                };
                if !write.expect.holds(&row) {
                    return Ok(WriteOutcome::Conflict(Some(row)));
                }
                tokio::task::yield_now().await;
                write.expect = Expectation::default();
            }
            _ => {}
        }
        match self.inner.update(&write).await? {
            WriteOutcome::Conflict(_) if self.fault == Fault::ConflictsHideTheRow => {
                Ok(WriteOutcome::Conflict(None))
            }
            outcome => Ok(outcome),
        }
    }

    async fn delete(&self, lease_key: &LeaseKey, expect: &Expectation) -> Result<bool, StoreError> {
        let anything = Expectation::default();
        let expect = if self.fault == Fault::DeleteDoesNotAsk {
            &anything
        } else {
            expect
        };
        self.inner.delete(lease_key, expect).await
    }

    async fn read_leader_lock(&self) -> Result<Option<LockRow>, StoreError> {
        self.inner.read_leader_lock().await
    }

    async fn write_leader_lock(&self, write: &LockWrite) -> Result<bool, StoreError> {
        self.inner.write_leader_lock(write).await
    }

    async fn put_worker_metrics(&self, row: &WorkerMetricStats) -> Result<(), StoreError> {
        self.inner.put_worker_metrics(row).await
    }

    async fn delete_worker_metrics(
        &self,
        worker: &WorkerId,
        last_update_seconds: Option<u64>,
    ) -> Result<bool, StoreError> {
        self.inner
            .delete_worker_metrics(worker, last_update_seconds)
            .await
    }

    fn describe(&self) -> String {
        format!("leases in memory with {:?}", self.fault)
    }
}

// On a clock that runs ahead when nothing else happens, waiting for a scan that lags takes no time.
#[tokio::test(start_paused = true)]
async fn the_suite_notices_each_broken_rule() {
    for (fault, case) in [
        (Fault::CreateReplaces, "create makes a row once"),
        (Fault::ConditionsAreIgnored, "renew"),
        (Fault::ConflictsHideTheRow, "assign"),
        (Fault::TwoWinners, "one writer of many wins"),
        (Fault::ScanIsUnordered, "a scan finds every lease in order"),
        (Fault::OwnerIsForgotten, "owned_by follows leaseOwner"),
        (Fault::DeleteDoesNotAsk, "delete asks its expectation"),
        (Fault::CountersStay, "checkpoint"),
    ] {
        let make = || async {
            Ok(Arc::new(Broken {
                inner: MemoryLeaseStore::new(),
                fault,
            }) as Arc<dyn LeaseStore>)
        };
        let report = conformance::run(make).await;
        assert!(
            report.failed.iter().any(|failure| failure.case == case),
            "{fault:?}: {report}"
        );
        assert!(!report.passed.is_empty(), "{fault:?}: {report}");
    }
}
