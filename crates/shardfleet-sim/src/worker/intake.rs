//! Takes leases and starts to read their shards.

use std::time::Duration;

use shardfleet_core::ids::{LeaseKey, ShardId};
use shardfleet_core::lease::{Lease, LeaseWrite, WriteOutcome};

use super::coordinator::Coordinator;
use super::{Held, Process, reading};
use crate::mutation::Mutation;
use crate::store::StoreFailure;
use crate::sync::all;

/// How many rows are read, or leases taken, at the same time.
const AT_ONCE: usize = 16;

impl Coordinator {
    /// Looks for leases that were given to this worker, through the index of owners.
    pub(super) async fn look_at_own(&mut self) -> Result<(), StoreFailure> {
        let listed = self.process.store.owned_by(&self.process.id).await?;
        let unknown: Vec<LeaseKey> = {
            let shards = self.process.shards.borrow();
            for (key, held) in shards.iter() {
                // A lease that has vanished from the index is one that somebody asked for.
                if listed.binary_search(key).is_err() {
                    held.look_now();
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
    pub(super) async fn look_at_pending(&mut self) -> Result<(), StoreFailure> {
        let pending = self.pending.iter().cloned().collect();
        self.route(pending).await
    }

    /// Reads rows and takes those that are this worker's.
    async fn route(&mut self, keys: Vec<LeaseKey>) -> Result<(), StoreFailure> {
        let mut takes = Vec::new();
        let mut failed = None;
        for keys in keys.chunks(AT_ONCE) {
            let store = &self.process.store;
            let reads = keys
                .iter()
                .map(|key| Box::pin(store.get(key)) as std::pin::Pin<Box<dyn Future<Output = _>>>)
                .collect();
            let rows = all(reads).await;
            for (key, row) in keys.iter().zip(rows) {
                match row {
                    Ok(row) => takes.extend(self.sort_in(key, row)),
                    Err(failure) => failed = Some(failure),
                }
            }
        }
        self.take_all(takes).await?;
        failed.map_or(Ok(()), Err)
    }

    fn sort_in(&mut self, key: &LeaseKey, row: Option<Lease>) -> Option<LeaseWrite> {
        let me = &self.process.id;
        let Some(lease) = row else {
            self.pending.remove(key);
            return None;
        };
        self.watch.observe_one(self.process.now(), &lease);
        let is_mine = lease.owner.as_ref() == Some(me);
        if lease.is_finished() {
            self.pending.remove(key);
            self.finished.insert(key.clone());
            None
        } else if is_mine
            && (lease.checkpoint_owner.is_none() || self.process.has(Mutation::IgnoreCheckpointOwner))
        {
            Some(LeaseWrite::take(&lease, me))
        } else {
            if is_mine {
                self.pending.insert(key.clone());
            } else {
                self.pending.remove(key);
            }
            None
        }
    }

    /// Takes the children of shards that ended here, so that nobody has to find them first.
    pub(super) async fn take_children(&mut self) {
        let children: Vec<ShardId> = self.process.ended_children.take();
        let mut takes = Vec::new();
        for child in children {
            if let Ok(Some(lease)) = free_child(&self.process, &child).await {
                takes.push(LeaseWrite::take(&lease, &self.process.id));
            }
        }
        let most = self.process.sim.setup.fleet.assignment.max_leases_for_worker;
        takes.truncate(most.saturating_sub(self.process.shards.borrow().len()));
        // The leader sees what could not be taken.
        self.take_all(takes).await.ok();
    }

    /// Executes writes that give this worker leases, and starts to read those that it got.
    pub(super) async fn take_all(&mut self, writes: Vec<LeaseWrite>) -> Result<(), StoreFailure> {
        let mut failed = None;
        for writes in writes.chunks(AT_ONCE) {
            let process = &self.process;
            let takes = writes
                .iter()
                .map(|write| {
                    let mut write = write.clone();
                    if process.has(Mutation::TakeWithoutCounter) {
                        write.expect.counter = None;
                    }
                    Box::pin(take(process, write)) as std::pin::Pin<Box<dyn Future<Output = _>>>
                })
                .collect();
            for taken in all(takes).await {
                match taken {
                    Ok(Some(key)) => {
                        self.pending.remove(&key);
                        self.resting.remove(&key);
                        let held = self.process.shards.borrow().get(&key).map(|held| held.row());
                        if let Some(row) = held {
                            self.watch.observe_one(self.process.now(), &row);
                        }
                    }
                    // Another worker was faster.
                    Ok(None) => {}
                    Err(failure) => failed = Some(failure),
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// Executes a write that gives this worker a lease and starts to read; `None` when somebody else was faster.
async fn take(process: &std::rc::Rc<Process>, write: LeaseWrite) -> Result<Option<LeaseKey>, StoreFailure> {
    let write = write.with_stream_created_at(Some(super::listing::CREATED_AT));
    // The lease counts from before the request, since others see the write from when it happened.
    let began = process.now();
    let patience: Duration = process.failover_time() / 3;
    match process.store.update(write, patience).await? {
        WriteOutcome::Written(lease) => {
            let key = lease.lease_key.clone();
            let held = Held::new(process, lease, began);
            process
                .shards
                .borrow_mut()
                .insert(key.clone(), std::rc::Rc::clone(&held));
            reading::start(process, &held);
            Ok(Some(key))
        }
        WriteOutcome::Conflict(_) => Ok(None),
    }
}

/// The child's lease, if nobody holds it and its parents have all ended.
async fn free_child(process: &Process, child: &ShardId) -> Result<Option<Lease>, StoreFailure> {
    let Some(lease) = process.store.get(&LeaseKey::from(child)).await? else {
        return Ok(None);
    };
    if lease.actual_owner().is_some() || lease.is_finished() {
        return Ok(None);
    }
    if process.has(Mutation::ChildEarly) {
        return Ok(Some(lease));
    }
    for parent in &lease.parent_shard_ids {
        let parent = process.store.get(&LeaseKey::from(parent)).await?;
        if parent.is_some_and(|parent| !parent.is_finished()) {
            return Ok(None);
        }
    }
    Ok(Some(lease))
}
