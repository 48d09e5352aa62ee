//! Where leases are kept: the [`LeaseStore`] trait and its implementations in memory, in a SQLite file and in DynamoDB.
//!
//! A store executes conditional writes and decides nothing. What a write means is [`LeaseWrite::apply`] of the core; every
//! store must give the same answers, which the [`conformance`] suite checks on any implementation.

use std::sync::Arc;

use async_trait::async_trait;
use shardfleet_core::ids::{LeaseKey, WorkerId};
use shardfleet_core::leader::{LockRow, LockWrite};
use shardfleet_core::lease::{Expectation, Lease, LeaseWrite, WriteOutcome};
use shardfleet_core::worker_metrics::WorkerMetricStats;

pub mod conformance;
mod dynamodb;
mod memory;
mod sqlite;

pub use dynamodb::{DynamoDbLeaseStore, DynamoDbLeaseStoreBuilder};
pub use memory::MemoryLeaseStore;
pub use sqlite::SqliteLeaseStore;

/// What one scan of a store found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LeaseScan {
    /// Every lease that could be read, by key.
    pub leases: Vec<Lease>,
    /// Rows that look like leases and could not be read. The fleet goes on without them.
    pub unreadable: Vec<UnreadableRow>,
    /// The workers' metrics, by worker id.
    pub workers: Vec<WorkerMetricStats>,
    /// The leader's lock, if there is one.
    pub leader_lock: Option<LockRow>,
}

/// A row that could not be read as a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnreadableRow {
    /// The row's key, or its printed form when even that is not a text.
    pub lease_key: String,
    /// The attribute, its value and what was expected.
    pub reason: String,
}

impl UnreadableRow {
    /// A row and why it could not be read.
    pub fn new(lease_key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            lease_key: lease_key.into(),
            reason: reason.into(),
        }
    }
}

/// A table of leases that several workers share.
///
/// **Atomicity**: each call changes at most one row, and a conditional write is atomic against every other write of that row.
/// **Consistency**: [`get`](Self::get) sees every write that was answered before it was called. [`scan`](Self::scan) and
/// [`owned_by`](Self::owned_by) may lag behind, by an unstated but short time.
/// **Errors**: an error of a write leaves open whether it happened, unless [`StoreError::has_no_side_effects`] says that it did not.
/// Callers read the row back before they decide. **Deadlines**: every call ends within a bound of the store's own.
#[async_trait]
pub trait LeaseStore: Send + Sync + 'static {
    /// Makes the store ready: creates what is missing and waits until it can be used. Called once before anything else;
    /// calling it again, or from several workers at once, does no harm.
    async fn prepare(&self) -> Result<(), StoreError>;

    /// The lease with this key, read consistently; `None` when there is none.
    async fn get(&self, lease_key: &LeaseKey) -> Result<Option<Lease>, StoreError>;

    /// Every lease, in the order of the keys.
    async fn scan(&self) -> Result<LeaseScan, StoreError>;

    /// The keys of the leases whose `leaseOwner` is `worker`, in order.
    async fn owned_by(&self, worker: &WorkerId) -> Result<Vec<LeaseKey>, StoreError>;

    /// Creates the row unless one with its key exists; whether it did.
    async fn create(&self, lease: &Lease) -> Result<bool, StoreError>;

    /// Executes a conditional write.
    async fn update(&self, write: &LeaseWrite) -> Result<WriteOutcome, StoreError>;

    /// Deletes the row if it is as expected; whether it is gone now (true as well when there was none).
    async fn delete(&self, lease_key: &LeaseKey, expect: &Expectation) -> Result<bool, StoreError>;

    /// The leader's lock, read consistently; `None` when there is none.
    async fn read_leader_lock(&self) -> Result<Option<LockRow>, StoreError>;

    /// Executes a conditional write of the leader's lock; whether its condition held.
    async fn write_leader_lock(&self, write: &LockWrite) -> Result<bool, StoreError>;

    /// Writes a worker's metrics, whatever its row said before.
    async fn put_worker_metrics(&self, row: &WorkerMetricStats) -> Result<(), StoreError>;

    /// Deletes a worker's metrics, if they were last written at `last_update_seconds` where that is given; whether they are gone now (true as well when there
    /// were none).
    async fn delete_worker_metrics(
        &self,
        worker: &WorkerId,
        last_update_seconds: Option<u64>,
    ) -> Result<bool, StoreError>;

    /// What the store is, for messages: `DynamoDB table orders-app`.
    fn describe(&self) -> String;
}

/// What a caller should do about a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// Too many requests: wait, then try again.
    Throttled,
    /// The store cannot be reached, or took too long: try again.
    Unavailable,
    /// The credentials are missing, wrong or not allowed to do this. Nothing helps but a change of them.
    Unauthorized,
    /// The table, file or index is not there.
    NotFound,
    /// What was asked makes no sense to the store, or the store is not ours to use (another schema, another application).
    Invalid,
    /// The row exists and cannot be read.
    Data,
    /// A fault of this program's.
    Internal,
}

/// A failure of a lease store: what was being done to what, and the cause.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{doing} failed: {reason}")]
#[non_exhaustive]
pub struct StoreError {
    kind: StoreErrorKind,
    doing: String,
    reason: String,
    has_no_side_effects: bool,
    #[source]
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl StoreError {
    /// An error. `doing` completes "... failed", such as `renewing lease shardId-000000000001 in DynamoDB table orders`;
    /// `reason` says what came back and, where something can be done about it, what.
    pub fn new(kind: StoreErrorKind, doing: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            kind,
            doing: doing.into(),
            reason: reason.into(),
            has_no_side_effects: false,
            source: None,
        }
    }

    /// The same error with its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// The same error, for a write that surely did not happen.
    #[must_use]
    pub fn without_side_effects(mut self) -> Self {
        self.has_no_side_effects = true;
        self
    }

    /// What to do about it.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether trying again can help.
    pub fn is_retryable(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Throttled | StoreErrorKind::Unavailable)
    }

    /// Whether a failed write surely did not happen.
    pub fn has_no_side_effects(&self) -> bool {
        self.has_no_side_effects
    }
}
