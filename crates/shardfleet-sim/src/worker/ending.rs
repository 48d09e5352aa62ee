//! How the reading of a shard ends: at the shard's end, by a handoff, or because the worker stops.

use std::time::Duration;

use shardfleet_core::ids::{LeaseKey, ShardId};
use shardfleet_core::lease::{Control, Lease, LeaseWrite};
use shardfleet_core::retry::Backoff;
use shardfleet_core::sequence::ExtendedSequenceNumber;
use shardfleet_core::shard::{ChildShard, Shard};
use shardfleet_core::shard_sync::child_leases;

use super::held::{Held, HoldError};
use super::listing::CREATED_AT;
use super::{Outcome, Process};
use crate::log::What;
use crate::mutation::Mutation;

const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));

impl Held {
    /// Brings a closed shard to its end, once everything of it is settled: children get their leases first, then the end is written.
    pub(super) async fn end(&self, process: &Process, children: Vec<ChildShard>) -> Result<(), HoldError> {
        self.drained(process, None).await;
        let (children, shards) = self.find_children(process, children).await;
        if !process.has(Mutation::ForgetChildren) {
            for child in child_leases(&children, Some(CREATED_AT), Control::default()) {
                // A merged child must not start before its other parent was read. That one's end, or the next shard sync, creates the lease.
                if !self.another_parent_comes_later(process, &child, &shards).await {
                    // Whoever lost the lease leaves this to its next holder, who may be done with the child by now.
                    if !self.is_valid(process) {
                        return Err(HoldError::Lost);
                    }
                    create(process, child).await;
                }
            }
        }
        let ids: Vec<ShardId> = children.iter().map(|child| child.shard_id.clone()).collect();
        if !ids.is_empty() {
            self.persist(process, |row| LeaseWrite::record_children(row, ids.clone()))
                .await?;
        }
        let end = ExtendedSequenceNumber::ShardEnd;
        self.persist(process, |row| LeaseWrite::checkpoint(row, end.clone()))
            .await?;
        process
            .sim
            .log(What::ShardEnd, Some(process.number), Some(self.shard), 0, 0);
        process.ended_children.borrow_mut().extend(ids);
        self.release(process, process.failover_time()).await;
        Ok(())
    }

    async fn find_children(
        &self,
        process: &Process,
        children: Vec<ChildShard>,
    ) -> (Vec<ChildShard>, Vec<Shard>) {
        if !children.is_empty() && children.iter().all(|child| child.parent_shard_ids.len() == 1) {
            return (children, Vec::new());
        }
        let mut attempt = 0;
        loop {
            match process.list_shards().await {
                Ok(shards) if children.is_empty() => {
                    match ChildShard::of_ended(&self.key.shard_id(), &shards) {
                        Some(children) => return (children, shards),
                        None => wait_to_retry(process, &mut attempt).await,
                    }
                }
                Ok(shards) => return (children, shards),
                Err(_) => wait_to_retry(process, &mut attempt).await,
            }
        }
    }

    async fn another_parent_comes_later(&self, process: &Process, child: &Lease, shards: &[Shard]) -> bool {
        let own = self.key.shard_id();
        for parent in child.parent_shard_ids.iter().filter(|parent| **parent != own) {
            let is_listed = shards.iter().any(|shard| shard.shard_id == *parent);
            if is_listed && !has_lease(process, parent).await {
                return true;
            }
        }
        false
    }

    /// Nothing more is read; what the handler works on may still be settled, then the lease is given up.
    pub(super) async fn stop(&self, process: &Process) -> Outcome {
        self.is_stopping.set(true);
        self.changes.tell();
        let patience = process.patience().max(process.failover_time());
        self.drained(process, Some(patience)).await;
        self.flush_and_release(process).await
    }

    /// The same for a lease that another worker is to have.
    pub(super) async fn hand_over(&self, process: &Process) -> Outcome {
        self.is_stopping.set(true);
        self.changes.tell();
        let timeout = process.sim.setup.fleet.handoff_timeout;
        self.drained(process, Some(timeout)).await;
        match self.flush_and_release(process).await {
            Outcome::Released => Outcome::HandedOver,
            outcome => outcome,
        }
    }

    async fn flush_and_release(&self, process: &Process) -> Outcome {
        let patience = process.patience();
        process.within(patience, self.flush(process)).await;
        if self.lost.is_set() {
            return Outcome::Lost;
        }
        self.release(process, process.patience()).await;
        Outcome::Released
    }
}

impl Process {
    /// How long the last writes may take.
    fn patience(&self) -> Duration {
        if !self.stop.is_set() {
            return self.failover_time();
        }
        let left = self.stop_deadline.get().saturating_sub(self.sim.now());
        Duration::from_micros(left).max(self.failover_time() / 3)
    }
}

async fn has_lease(process: &Process, shard_id: &ShardId) -> bool {
    let mut attempt = 0;
    loop {
        match process.store.get(&LeaseKey::from(shard_id)).await {
            Ok(lease) => return lease.is_some(),
            Err(_) => wait_to_retry(process, &mut attempt).await,
        }
    }
}

async fn create(process: &Process, child: Lease) {
    let mut attempt = 0;
    while process.store.create(child.clone()).await.is_err() {
        wait_to_retry(process, &mut attempt).await;
    }
}

async fn wait_to_retry(process: &Process, attempt: &mut u32) {
    process.sleep(process.delay(&RETRY, *attempt)).await;
    *attempt += 1;
}
