//! Leases in one SQLite file that several processes of a machine share.
//!
//! For fleets without DynamoDB: local development and single hosts. The file must be on a local disk, since SQLite's locks do
//! not work over most network file systems. Every write is a transaction that is on disk before it is answered, so a
//! checkpoint survives the death of the process and of the machine.
//!
//! SQLite blocks, so it has a thread of its own and never runs on the async runtime's workers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{OptionalExtension as _, Transaction, TransactionBehavior, params};
use shardfleet_core::ids::{ApplicationName, LeaseKey, WorkerId};
use shardfleet_core::leader::{LockRow, LockWrite};
use shardfleet_core::lease::{Expectation, Lease, LeaseWrite, WriteOutcome};
use shardfleet_core::worker_metrics::WorkerMetricStats;
use tokio::sync::{mpsc, oneshot};

use self::file::LeaseFile;
use super::{LeaseScan, LeaseStore, StoreError, StoreErrorKind, UnreadableRow};

mod file;
mod fleet;
mod row;

// Calls of one worker: renewals, checkpoints and a scan; more than this many waiting means the disk hangs.
const WAITING_CALLS: usize = 256;
/// Within this the file's thread has to answer. Longer than SQLite's own wait for another process's lock.
const ANSWER_DEADLINE: Duration = Duration::from_secs(15);

type Job = Box<dyn FnOnce(&mut LeaseFile) + Send>;

/// A lease store in a SQLite file. Clones share one connection; further stores, in this process or another, may open the
/// same file.
#[derive(Clone, Debug)]
pub struct SqliteLeaseStore {
    path: Arc<Path>,
    jobs: mpsc::Sender<Job>,
}

impl SqliteLeaseStore {
    /// A store in the file at `path`, which is created when it is first used; its folder has to exist. The file belongs to
    /// one application: another name is refused.
    ///
    /// # Errors
    /// When the operating system gives no thread. What is wrong with the file shows in the first call.
    pub fn new(path: impl Into<PathBuf>, application_name: &ApplicationName) -> Result<Self, StoreError> {
        let path: Arc<Path> = Arc::from(path.into());
        let (jobs, mut queue) = mpsc::channel::<Job>(WAITING_CALLS);
        let mut file = LeaseFile::new(path.clone(), application_name.clone());
        std::thread::Builder::new()
            .name("shardfleet-leases".to_owned())
            .spawn(move || {
                while let Some(job) = queue.blocking_recv() {
                    job(&mut file);
                }
            })
            .map_err(|error| {
                let doing = format!("starting the thread of lease file {}", path.display());
                StoreError::new(StoreErrorKind::Internal, doing, "no thread to be had").with_source(error)
            })?;
        Ok(Self { path, jobs })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `job` on the file's thread in one transaction, which is committed if `job` succeeds.
    async fn run<T: Send + 'static>(
        &self,
        doing: String,
        behavior: TransactionBehavior,
        job: impl FnOnce(&Transaction<'_>, &str) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let what = doing.clone();
        let job: Job = Box::new(move |file| {
            // The caller may have given up; its answer then goes nowhere.
            answer
                .send(file.transaction(&what, behavior, |transaction| job(transaction, &what)))
                .ok();
        });
        let whole = async {
            if self.jobs.send(job).await.is_err() {
                return None;
            }
            answered.await.ok()
        };
        match tokio::time::timeout(ANSWER_DEADLINE, whole).await {
            Ok(Some(result)) => result,
            Ok(None) => Err(StoreError::new(
                StoreErrorKind::Internal,
                doing,
                "the file's thread has ended",
            )),
            Err(_) => {
                let reason = format!("the disk did not answer within {} s", ANSWER_DEADLINE.as_secs());
                Err(StoreError::new(StoreErrorKind::Unavailable, doing, reason))
            }
        }
    }

    fn doing(&self, what: &str, lease_key: &LeaseKey) -> String {
        format!("{what} lease {lease_key} in {}", self.describe())
    }
}

/// The lease with this key.
fn select(transaction: &Transaction<'_>, doing: &str, key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
    let sql = format!("SELECT {} FROM lease WHERE lease_key = ?1", row::COLUMNS);
    let mut statement = transaction.prepare_cached(&sql).map_err(file::failed(doing))?;
    let found = statement
        .query_row(params![key.as_str()], |found| Ok(row::read(found)))
        .optional();
    match found.map_err(file::failed(doing))? {
        None => Ok(None),
        Some(Ok(lease)) => Ok(Some(lease)),
        Some(Err(unreadable)) => Err(StoreError::new(StoreErrorKind::Data, doing, unreadable.reason)),
    }
}

#[async_trait]
impl LeaseStore for SqliteLeaseStore {
    async fn prepare(&self) -> Result<(), StoreError> {
        let doing = format!("preparing {}", self.describe());
        // Opening the file creates what is missing.
        self.run(doing, TransactionBehavior::Deferred, |_, _| Ok(()))
            .await
    }

    async fn get(&self, lease_key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        let key = lease_key.clone();
        self.run(
            self.doing("reading", lease_key),
            TransactionBehavior::Deferred,
            move |transaction, doing| select(transaction, doing, &key),
        )
        .await
    }

    async fn scan(&self) -> Result<LeaseScan, StoreError> {
        let doing = format!("scanning {}", self.describe());
        self.run(doing, TransactionBehavior::Deferred, |transaction, doing| {
            let sql = format!("SELECT {} FROM lease ORDER BY lease_key", row::COLUMNS);
            let mut statement = transaction.prepare_cached(&sql).map_err(file::failed(doing))?;
            let rows = statement
                .query_map([], |found| Ok(row::read(found)))
                .map_err(file::failed(doing))?;
            let mut scan = LeaseScan::default();
            for found in rows {
                match found.map_err(file::failed(doing))? {
                    Ok(lease) => scan.leases.push(lease),
                    Err(row::Unreadable { lease_key, reason }) => {
                        scan.unreadable.push(UnreadableRow::new(lease_key, reason));
                    }
                }
            }
            scan.leader_lock = fleet::lock(transaction).map_err(file::failed(doing))?;
            let (workers, unreadable) = fleet::workers(transaction).map_err(file::failed(doing))?;
            scan.workers = workers;
            scan.unreadable.extend(unreadable);
            Ok(scan)
        })
        .await
    }

    async fn owned_by(&self, worker: &WorkerId) -> Result<Vec<LeaseKey>, StoreError> {
        let doing = format!("listing the leases of worker {worker} in {}", self.describe());
        let worker = worker.clone();
        self.run(doing, TransactionBehavior::Deferred, move |transaction, doing| {
            let sql = "SELECT lease_key FROM lease WHERE owner = ?1 ORDER BY lease_key";
            let mut statement = transaction.prepare_cached(sql).map_err(file::failed(doing))?;
            let keys = statement
                .query_map(params![worker.as_str()], |found| found.get::<_, String>(0))
                .map_err(file::failed(doing))?;
            keys.map(|key| key.map(LeaseKey::from).map_err(file::failed(doing)))
                .collect()
        })
        .await
    }

    async fn create(&self, lease: &Lease) -> Result<bool, StoreError> {
        let created = lease.clone();
        let doing = self.doing("creating", &lease.lease_key);
        self.run(
            doing,
            TransactionBehavior::Immediate,
            move |transaction, doing| {
                let inserted = row::insert(transaction, &created).map_err(file::failed(doing))?;
                Ok(inserted == 1)
            },
        )
        .await
    }

    async fn update(&self, write: &LeaseWrite) -> Result<WriteOutcome, StoreError> {
        let doing = self.doing("writing", &write.lease_key);
        let write = write.clone();
        self.run(
            doing,
            TransactionBehavior::Immediate,
            move |transaction, doing| {
                let Some(lease) = select(transaction, doing, &write.lease_key)? else {
                    return Ok(WriteOutcome::Conflict(None));
                };
                let Some(after) = write.apply(&lease) else {
                    return Ok(WriteOutcome::Conflict(Some(lease)));
                };
                row::update(transaction, &after).map_err(file::failed(doing))?;
                Ok(WriteOutcome::Written(after))
            },
        )
        .await
    }

    async fn delete(&self, lease_key: &LeaseKey, expect: &Expectation) -> Result<bool, StoreError> {
        let (key, expect) = (lease_key.clone(), expect.clone());
        let doing = self.doing("deleting", lease_key);
        self.run(
            doing,
            TransactionBehavior::Immediate,
            move |transaction, doing| {
                // Without an expectation even a row that cannot be read may go.
                if expect != Expectation::default() {
                    let lease = select(transaction, doing, &key)?;
                    if lease.is_some_and(|lease| !expect.holds(&lease)) {
                        return Ok(false);
                    }
                }
                transaction
                    .execute("DELETE FROM lease WHERE lease_key = ?1", params![key.as_str()])
                    .map_err(file::failed(doing))?;
                Ok(true)
            },
        )
        .await
    }

    async fn read_leader_lock(&self) -> Result<Option<LockRow>, StoreError> {
        let doing = format!("reading the leader's lock in {}", self.describe());
        self.run(doing, TransactionBehavior::Deferred, |transaction, doing| {
            fleet::lock(transaction).map_err(file::failed(doing))
        })
        .await
    }

    async fn write_leader_lock(&self, write: &LockWrite) -> Result<bool, StoreError> {
        let doing = format!("writing the leader's lock in {}", self.describe());
        let write = write.clone();
        self.run(
            doing,
            TransactionBehavior::Immediate,
            move |transaction, doing| fleet::write_lock(transaction, &write).map_err(file::failed(doing)),
        )
        .await
    }

    async fn put_worker_metrics(&self, row: &WorkerMetricStats) -> Result<(), StoreError> {
        let doing = format!("writing the metrics of {} in {}", row.worker_id, self.describe());
        let row = row.clone();
        self.run(
            doing,
            TransactionBehavior::Immediate,
            move |transaction, doing| {
                fleet::put_worker(transaction, &row)
                    .map(drop)
                    .map_err(file::failed(doing))
            },
        )
        .await
    }

    async fn delete_worker_metrics(
        &self,
        worker: &WorkerId,
        last_update_seconds: Option<u64>,
    ) -> Result<bool, StoreError> {
        let doing = format!("deleting the metrics of {worker} in {}", self.describe());
        let worker = worker.clone();
        self.run(
            doing,
            TransactionBehavior::Immediate,
            move |transaction, doing| {
                fleet::delete_worker(transaction, &worker, last_update_seconds).map_err(file::failed(doing))
            },
        )
        .await
    }

    fn describe(&self) -> String {
        format!("lease file {}", self.path.display())
    }
}
