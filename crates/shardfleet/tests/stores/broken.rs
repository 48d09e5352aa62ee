//! Stores that break one rule each, so that every case of the suite is seen to fail.

use std::sync::Arc;

use async_trait::async_trait;
use shardfleet::store::{LeaseScan, LeaseStore, MemoryLeaseStore, StoreError, conformance};
use shardfleet_core::ids::{LeaseKey, WorkerId};
use shardfleet_core::leader::{LockCondition, LockRow, LockWrite};
use shardfleet_core::lease::{Expectation, Lease, LeaseWrite, WriteOutcome};
use shardfleet_core::sequence::ExtendedSequenceNumber;
use shardfleet_core::worker_metrics::WorkerMetricStats;

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
    LockIsTakenBlindly,
    LockIsKeptBlindly,
    LockOwnerIsNotAsked,
    LockIsReleasedBlindly,
    ReleasedLockIsNotFree,
    HeartbeatForgetsTheOwner,
    TwoLeaders,
    ScanHidesTheLock,
    MetricsAreRounded,
    MetricsAreUnordered,
    MetricsAreMerged,
    MetricsGoUnasked,
    MetricsThatAreGoneAreRefused,
    MetricsAreLeases,
}

impl Broken {
    async fn has_metrics(&self, worker: &WorkerId) -> Result<bool, StoreError> {
        let workers = self.inner.scan().await?.workers;
        Ok(workers.iter().any(|row| row.worker_id == *worker))
    }
}

#[async_trait]
impl LeaseStore for Broken {
    async fn prepare(&self) -> Result<(), StoreError> {
        self.inner.prepare().await
    }

    async fn get(&self, lease_key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        if self.fault == Fault::MetricsAreLeases
            && self.has_metrics(&WorkerId::new(lease_key.as_str())).await?
        {
            return Ok(Some(Lease::new(
                lease_key.clone(),
                ExtendedSequenceNumber::Latest,
            )));
        }
        self.inner.get(lease_key).await
    }

    async fn scan(&self) -> Result<LeaseScan, StoreError> {
        let mut scan = self.inner.scan().await?;
        match self.fault {
            Fault::ScanIsUnordered => scan.leases.reverse(),
            Fault::ScanHidesTheLock => scan.leader_lock = None,
            Fault::MetricsAreUnordered => scan.workers.reverse(),
            _ => {}
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
        let mut write = write.clone();
        let row = self.inner.read_leader_lock().await?;
        let anything = match &row {
            Some(row) => LockCondition::VersionIs(row.version.clone()),
            None => LockCondition::Absent,
        };
        match (self.fault, &mut write) {
            (Fault::LockIsTakenBlindly, LockWrite::Acquire { condition, .. })
            | (Fault::LockIsKeptBlindly, LockWrite::Heartbeat { condition, .. })
            | (Fault::LockIsReleasedBlindly, LockWrite::Release { condition }) => *condition = anything,
            (Fault::LockOwnerIsNotAsked, LockWrite::Heartbeat { condition, .. }) => {
                if let LockCondition::Mine { version, .. } = condition {
                    *condition = LockCondition::VersionIs(Some(version.clone()));
                }
            }
            (Fault::ReleasedLockIsNotFree, LockWrite::Acquire { condition, .. })
                if *condition == LockCondition::Released =>
            {
                return Ok(false);
            }
            (
                Fault::HeartbeatForgetsTheOwner,
                LockWrite::Heartbeat {
                    condition,
                    version,
                    lease_duration,
                },
            ) => {
                let row = LockRow {
                    owner: None,
                    version: Some(version.clone()),
                    lease_duration: *lease_duration,
                    is_released: row.is_some_and(|row| row.is_released),
                };
                let condition = condition.clone();
                write = LockWrite::Acquire { condition, row };
            }
            (Fault::TwoLeaders, LockWrite::Acquire { condition, .. }) => {
                // Looks first and writes later, with everybody else in between.
                if !condition.holds(row.as_ref()) {
                    return Ok(false);
                }
                tokio::task::yield_now().await;
                *condition = match self.inner.read_leader_lock().await? {
                    Some(row) => LockCondition::VersionIs(row.version),
                    None => LockCondition::Absent,
                };
            }
            _ => {}
        }
        self.inner.write_leader_lock(&write).await
    }

    async fn put_worker_metrics(&self, row: &WorkerMetricStats) -> Result<(), StoreError> {
        let mut row = row.clone();
        match self.fault {
            Fault::MetricsAreRounded => {
                let averages = row.averages.values_mut().flatten();
                averages.for_each(|average| *average = average.round());
            }
            Fault::MetricsAreMerged => {
                let workers = self.inner.scan().await?.workers;
                let before = workers.into_iter().find(|it| it.worker_id == row.worker_id);
                row.support_code = row.support_code.or(before.and_then(|before| before.support_code));
            }
            _ => {}
        }
        self.inner.put_worker_metrics(&row).await
    }

    async fn delete_worker_metrics(
        &self,
        worker: &WorkerId,
        last_update_seconds: Option<u64>,
    ) -> Result<bool, StoreError> {
        let mut expected = last_update_seconds;
        match self.fault {
            Fault::MetricsGoUnasked => expected = None,
            Fault::MetricsThatAreGoneAreRefused if !self.has_metrics(worker).await? => return Ok(false),
            _ => {}
        }
        self.inner.delete_worker_metrics(worker, expected).await
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

#[tokio::test(start_paused = true)]
async fn each_broken_rule_of_the_lock_and_the_metrics_fails_its_own_cases() {
    const TAKEN: &str = "the leader's lock is taken only as it was seen";
    const KEPT: &str = "the leader's lock is kept only by its holder";
    const GIVEN_UP: &str = "the leader's lock is given up only by its holder";
    const ONE_LEADER: &str = "one worker of many gets the leader's lock";
    const LOCK_BESIDE: &str = "the leader's lock lies beside the leases";
    const FIELDS: &str = "every field of worker metrics survives, in order";
    const WHOLE: &str = "worker metrics are written whole";
    const DELETED: &str = "worker metrics are deleted only if unchanged";
    const METRICS_BESIDE: &str = "worker metrics lie beside the leases";
    let faults: [(Fault, &[&str]); 14] = [
        // Who asks nothing at all also lets everybody win.
        (Fault::LockIsTakenBlindly, &[TAKEN, ONE_LEADER]),
        (Fault::LockIsKeptBlindly, &[KEPT]),
        (Fault::LockOwnerIsNotAsked, &[KEPT]),
        (Fault::LockIsReleasedBlindly, &[GIVEN_UP]),
        (Fault::ReleasedLockIsNotFree, &[TAKEN]),
        (Fault::HeartbeatForgetsTheOwner, &[KEPT]),
        (Fault::TwoLeaders, &[ONE_LEADER]),
        (Fault::ScanHidesTheLock, &[LOCK_BESIDE]),
        // These are seen wherever rows with averages, or several rows, are compared.
        (Fault::MetricsAreRounded, &[FIELDS, WHOLE, METRICS_BESIDE]),
        (Fault::MetricsAreUnordered, &[FIELDS, DELETED]),
        (Fault::MetricsAreMerged, &[WHOLE]),
        (Fault::MetricsGoUnasked, &[DELETED]),
        (Fault::MetricsThatAreGoneAreRefused, &[DELETED]),
        (Fault::MetricsAreLeases, &[METRICS_BESIDE]),
    ];
    for (fault, expected) in faults {
        let make = || async {
            Ok(Arc::new(Broken {
                inner: MemoryLeaseStore::new(),
                fault,
            }) as Arc<dyn LeaseStore>)
        };
        let report = conformance::run(make).await;
        let failed: Vec<_> = report.failed.iter().map(|failure| failure.case).collect();
        assert_eq!(failed, expected, "{fault:?}: {report}");
    }
}
