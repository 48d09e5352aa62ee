//! Takes leases and starts the tasks that read their shards.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, PoisonError};

use futures::{FutureExt, StreamExt};
use shardfleet_core::ids::{LeaseKey, ShardId};
use shardfleet_core::lease::{Lease, LeaseWrite};
use tokio::sync::{mpsc, oneshot, watch};

use super::coordinator::Coordinator;
use super::progress::ShardProgress;
use super::shard_start::start_of;
use super::shard_task::{LifeEnd, ShardTask};
use super::{Context, HeldLease, Seek, ShardEntry, ShardReport, ShardStatus};
use crate::error::KinesisError;
use crate::store::StoreError;

/// How many rows are read, or leases taken, at the same time.
const AT_ONCE: usize = 16;

impl Coordinator {
    /// Looks for leases that were given to this worker, through the index of owners.
    pub(super) async fn look_at_own(&mut self) -> Result<(), KinesisError> {
        let context = Arc::clone(&self.context);
        let me = &context.settings.worker_id;
        let listed = context.store.owned_by(me).await.map_err(KinesisError::Store)?;
        let unknown: Vec<LeaseKey> = {
            let shards = context.shards();
            for (key, entry) in shards.iter() {
                // The index shows the next owner of a handoff: a lease that has vanished from it is one that somebody asked for. (Or one that was taken a moment
                // ago; then a write too many does no harm.)
                if listed.binary_search(key).is_err() {
                    entry.lease.look_now();
                }
            }
            listed
                .into_iter()
                .filter(|key| !shards.contains_key(key) && !self.pending.contains(key))
                .filter(|key| !self.finished.contains(key))
                .collect()
        };
        self.route(unknown).await
    }

    /// Looks at the leases that are being handed to this worker.
    pub(super) async fn look_at_pending(&mut self) -> Result<(), KinesisError> {
        let pending = self.pending.iter().cloned().collect();
        self.route(pending).await
    }

    /// Reads rows and takes those that are this worker's.
    async fn route(&mut self, keys: Vec<LeaseKey>) -> Result<(), KinesisError> {
        if keys.is_empty() {
            return Ok(());
        }
        let context = Arc::clone(&self.context);
        let reads = keys.into_iter().map(|key| {
            let context = Arc::clone(&context);
            async move {
                let row = context.store.get(&key).await;
                (key, row)
            }
            .boxed()
        });
        let mut rows = futures::stream::iter(reads).buffer_unordered(AT_ONCE);
        let mut takes = Vec::new();
        let mut failed = None;
        while let Some((key, row)) = rows.next().await {
            let lease = match row {
                Ok(lease) => lease,
                Err(error) => {
                    failed = Some(KinesisError::Store(error));
                    continue;
                }
            };
            let Some(lease) = lease else {
                self.pending.remove(&key);
                continue;
            };
            self.watch.observe_one(context.clock.now(), &lease);
            if lease.is_finished() {
                self.note_finished(key);
            } else if self.is_given_to_me(&lease) {
                takes.push(LeaseWrite::take(&lease, &context.settings.worker_id));
            } else if lease.owner.as_ref() == Some(&context.settings.worker_id) {
                self.pending.insert(key);
            } else {
                self.pending.remove(&key);
            }
        }
        self.take_all(takes).await?;
        failed.map_or(Ok(()), Err)
    }

    fn note_finished(&mut self, key: LeaseKey) {
        self.pending.remove(&key);
        if self.finished.len() < 10_000 {
            self.finished.insert(key);
        }
    }

    /// Takes the children of shards that ended here, so that nobody has to find them first. What is more than this worker's share the leader moves on.
    pub(super) async fn take_children(&mut self) {
        let context = Arc::clone(&self.context);
        let children: Vec<ShardId> = std::mem::take(
            &mut *context
                .ended_children
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        let mut takes = Vec::new();
        for child in children {
            match free_child(&context, &child).await {
                Ok(Some(lease)) => takes.push(LeaseWrite::take(&lease, &context.settings.worker_id)),
                Ok(None) => {}
                // The leader sees it too.
                Err(error) => {
                    tracing::debug!(shard_id = %child, error = %error, "looking up a child failed");
                }
            }
        }
        let room = context
            .settings
            .fleet
            .assignment
            .max_leases_for_worker
            .saturating_sub(context.shards().len());
        takes.truncate(room);
        if let Err(error) = self.take_all(takes).await {
            tracing::debug!(error = %error, "taking the children of a shard failed");
        }
    }

    /// Executes writes that give this worker leases, and starts to read those that it got.
    pub(super) async fn take_all(&mut self, writes: Vec<LeaseWrite>) -> Result<(), KinesisError> {
        if writes.is_empty() {
            return Ok(());
        }
        let context = Arc::clone(&self.context);
        let takes = writes.into_iter().map(|write| {
            let write = write.with_stream_created_at(context.stream_created_at());
            take(Arc::clone(&context), write).boxed()
        });
        // Each is started as it comes: a lease counts from when it was taken, and many may take long.
        let mut taken = futures::stream::iter(takes).buffer_unordered(AT_ONCE);
        let mut failed = None;
        while let Some(outcome) = taken.next().await {
            match outcome {
                Ok(Some(lease)) => self.start(lease).await,
                // Another worker was faster.
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), |error| Err(KinesisError::Store(error)))
    }

    async fn start(&mut self, lease: HeldLease) {
        let context = Arc::clone(&self.context);
        let key = lease.lease_key().clone();
        let row = lease.lease().await;
        self.pending.remove(&key);
        self.resting.remove(&key);
        self.watch.observe_one(context.clock.now(), &row);
        let mut start = start_of(&row, &context.settings, self.is_first_pass);
        if !self.is_first_pass {
            start = start.not_after(self.opened_at);
        }
        let (seek, seeks) = mpsc::channel(1);
        let (status_to, status) = watch::channel(ShardStatus::Opening);
        let (opened_to, opened) = oneshot::channel();
        if self.is_first_pass {
            self.opening.push((key.clone(), opened));
        }
        tracing::info!(lease_key = %key, checkpoint = %row.checkpoint, counter = row.counter, "lease taken");
        let lease = Arc::new(lease);
        let progress = Arc::new(ShardProgress::new(key.shard_id()));
        let entry = ShardEntry {
            seek,
            status,
            lease: Arc::clone(&lease),
            taken_at: row.counter,
            progress: Arc::clone(&progress),
        };
        context.shards().insert(key.clone(), entry);
        context.publishing.nudge();
        let opened_to = Some(opened_to);
        let task = ShardTask::new(
            Arc::clone(&context),
            (lease, &row),
            progress,
            start,
            opened_to,
            status_to.clone(),
        );
        self.tasks.spawn(async move {
            let lives = live(&context, task, seeks, status_to);
            let report = AssertUnwindSafe(lives).catch_unwind().await;
            if report.is_err() {
                tracing::error!(lease_key = %key, "the task of a shard panicked; this is a bug of shardfleet");
            }
            (key, report.ok())
        });
    }
}

/// Reads a shard for as long as its lease is held, through as many lives as operators ask for.
async fn live(
    context: &Arc<Context>,
    mut task: ShardTask,
    mut seeks: mpsc::Receiver<Seek>,
    status: watch::Sender<ShardStatus>,
) -> ShardReport {
    loop {
        let lease = Arc::clone(&task.lease);
        let start = match task.run(&mut seeks).await {
            LifeEnd::Over(report) => return report,
            LifeEnd::Restarts(start) => start,
        };
        let row = lease.lease().await;
        let progress = Arc::new(ShardProgress::new(row.lease_key.shard_id()));
        if let Some(entry) = context.shards().get_mut(&row.lease_key) {
            entry.progress = Arc::clone(&progress);
        }
        status.send_replace(ShardStatus::Opening);
        context.note_restart(&row.lease_key);
        let held = (lease, &row);
        task = ShardTask::new(Arc::clone(context), held, progress, start, None, status.clone());
    }
}

async fn take(context: Arc<Context>, write: LeaseWrite) -> Result<Option<HeldLease>, StoreError> {
    HeldLease::take(&context.terms, &write).await
}

/// The child's lease, if nobody holds it and its parents have all ended.
async fn free_child(context: &Context, child: &ShardId) -> Result<Option<Lease>, StoreError> {
    let Some(lease) = context.store.get(&LeaseKey::from(child)).await? else {
        return Ok(None);
    };
    if lease.actual_owner().is_some() || lease.is_finished() {
        return Ok(None);
    }
    for parent in &lease.parent_shard_ids {
        let parent = context.store.get(&LeaseKey::from(parent)).await?;
        if parent.is_some_and(|parent| !parent.is_finished()) {
            return Ok(None);
        }
    }
    Ok(Some(lease))
}
