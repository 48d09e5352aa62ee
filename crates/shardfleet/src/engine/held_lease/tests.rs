use async_trait::async_trait;
use shardfleet_core::leader::{LockRow, LockWrite};
use shardfleet_core::lease::Expectation;
use shardfleet_core::sequence::ExtendedSequenceNumber;
use shardfleet_core::worker_metrics::WorkerMetricStats;

use super::*;
use crate::clock::SystemClock;
use crate::store::{LeaseScan, MemoryLeaseStore};

const FAILOVER: Duration = Duration::from_millis(900);

/// A store whose writes take a while.
struct Slow(MemoryLeaseStore);

const TAKES: Duration = Duration::from_millis(200);

#[async_trait]
impl LeaseStore for Slow {
    async fn prepare(&self) -> Result<(), StoreError> {
        self.0.prepare().await
    }

    async fn get(&self, lease_key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        self.0.get(lease_key).await
    }

    async fn scan(&self) -> Result<LeaseScan, StoreError> {
        self.0.scan().await
    }

    async fn owned_by(&self, worker: &WorkerId) -> Result<Vec<LeaseKey>, StoreError> {
        self.0.owned_by(worker).await
    }

    async fn create(&self, lease: &Lease) -> Result<bool, StoreError> {
        self.0.create(lease).await
    }

    async fn update(&self, write: &LeaseWrite) -> Result<WriteOutcome, StoreError> {
        crate::clock::sleep(&SystemClock::new(), TAKES).await;
        self.0.update(write).await
    }

    async fn delete(&self, lease_key: &LeaseKey, expect: &Expectation) -> Result<bool, StoreError> {
        self.0.delete(lease_key, expect).await
    }

    async fn read_leader_lock(&self) -> Result<Option<LockRow>, StoreError> {
        self.0.read_leader_lock().await
    }

    async fn write_leader_lock(&self, write: &LockWrite) -> Result<bool, StoreError> {
        self.0.write_leader_lock(write).await
    }

    async fn put_worker_metrics(&self, row: &WorkerMetricStats) -> Result<(), StoreError> {
        self.0.put_worker_metrics(row).await
    }

    async fn delete_worker_metrics(
        &self,
        worker: &WorkerId,
        last_update_seconds: Option<u64>,
    ) -> Result<bool, StoreError> {
        self.0.delete_worker_metrics(worker, last_update_seconds).await
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}

async fn held() -> (HeldLease, Arc<dyn Clock>) {
    let memory = MemoryLeaseStore::new();
    let lease = Lease::new("shardId-000000000000", ExtendedSequenceNumber::TrimHorizon);
    assert!(memory.create(&lease).await.expect("created"));
    let worker = WorkerId::new("a");
    let clock = SystemClock::shared();
    let write = LeaseWrite::take(&lease, &worker);
    let terms = LeaseTerms {
        store: Arc::new(Slow(memory)),
        clock: Arc::clone(&clock),
        worker_id: worker,
        failover_time: FAILOVER,
        writes: Arc::new(Semaphore::new(1)),
    };
    let held = HeldLease::take(&terms, &write).await;
    (held.expect("no error").expect("no conflict"), clock)
}

#[tokio::test(start_paused = true)]
async fn a_lease_counts_from_before_the_write_that_took_it() {
    let (lease, clock) = held().await;
    crate::clock::sleep(&*clock, Duration::from_millis(700)).await;
    assert!(lease.is_valid());
    crate::clock::sleep(&*clock, Duration::from_millis(2)).await;
    assert!(!lease.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_answered_late_does_not_bring_back_a_lease_that_was_given_up() {
    let (lease, clock) = held().await;
    // It begins while the lease lasts, and is answered 100 ms after its end.
    crate::clock::sleep(&*clock, Duration::from_millis(600)).await;
    let renewal = lease.write(|lease| LeaseWrite::renew(lease, None));
    let look = async {
        crate::clock::sleep(&*clock, Duration::from_millis(150)).await;
        lease.is_valid()
    };
    let (renewed, was_valid) = tokio::join!(renewal, look);
    assert!(!was_valid);
    // Records were dropped meanwhile: the shard has to be opened again.
    drop(renewed);
    assert!(!lease.is_valid() && lease.is_lost());
    assert!(lease.lost_reason().contains("not renewed"));
}
