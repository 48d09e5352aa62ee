//! The leader's work: plans made by the core from one look at the table, carried out as conditional writes.
//!
//! The executor chooses nothing. A write that loses is an outcome, and the next run plans anew.

use std::sync::Arc;

use futures::{FutureExt, StreamExt};
use shardfleet_core::assignment::{AssignmentReport, BalanceVerdict, MoveKind, PlannedMove};
use shardfleet_core::cleanup::{self, CleanupView, DeleteReason, Deletion, ShardListing};
use shardfleet_core::fleet::FleetSnapshot;
use shardfleet_core::lease::{Expectation, Lease, LeaseWrite, WriteOutcome};
use shardfleet_core::time::Moment;

use super::coordinator::Coordinator;
use super::listing::Listing;
use super::{Context, HoldError};
use crate::error::KinesisError;
use crate::store::StoreError;

/// How many rows are written at the same time.
const AT_ONCE: usize = 16;

/// What the leader remembers from run to run, besides what the watch knows.
#[derive(Debug, Default)]
pub(super) struct Duties {
    is_leading: bool,
    finished_checked: Option<Moment>,
    garbage_checked: Option<Moment>,
}

impl Duties {
    pub(super) fn is_leading(&self) -> bool {
        self.is_leading
    }

    pub(super) fn stop_leading(&mut self) {
        self.is_leading = false;
    }
}

impl Coordinator {
    /// One run of the leader's work.
    pub(super) async fn lead(
        &mut self,
        snapshot: &FleetSnapshot,
        listing: Option<&Listing>,
    ) -> Result<(), KinesisError> {
        let context = Arc::clone(&self.context);
        if !self.duties.is_leading {
            self.duties.is_leading = true;
            self.audit.reset();
            self.watch.on_leading();
            tracing::info!(worker_id = %context.settings.worker_id, "leading the fleet");
        }
        let (now, wall) = (context.clock.now(), context.clock.wall());
        let (plan, report) = self.watch.plan_assignment(now, wall, snapshot);
        log_plan(&plan.moves, &report);
        context.fleet.note_assignment(report);
        let assigned = self.carry_out(plan.moves).await;
        // Rows that nobody needs wait for whatever is read.
        self.clean_up(snapshot, listing).await?;
        assigned
    }

    async fn carry_out(&mut self, moves: Vec<PlannedMove>) -> Result<(), KinesisError> {
        let context = Arc::clone(&self.context);
        let me = &context.settings.worker_id;
        let (mine, others): (Vec<_>, Vec<_>) = moves.into_iter().partition(|planned| {
            planned.to == *me
                && matches!(
                    planned.kind,
                    MoveKind::Give | MoveKind::TakeOver | MoveKind::ForceHandoff
                )
        });
        let mine = mine
            .into_iter()
            // Leases that this worker has just failed to read are left alone for a while.
            .filter(|planned| !self.resting.contains(&planned.lease_key))
            .map(|planned| planned.write)
            .collect();
        let taken = self.take_all(mine).await;
        let writes = others
            .into_iter()
            .map(|planned| assign(Arc::clone(&context), planned).boxed());
        let mut written = futures::stream::iter(writes).buffer_unordered(AT_ONCE);
        let mut failed = None;
        while let Some(outcome) = written.next().await {
            match outcome {
                Ok(Some(row)) => self.watch.observe_one(context.clock.now(), &row),
                Ok(None) => {}
                Err(error) => failed = Some(KinesisError::Store(error)),
            }
        }
        taken.and(failed.map_or(Ok(()), Err))
    }

    async fn clean_up(
        &mut self,
        snapshot: &FleetSnapshot,
        listing: Option<&Listing>,
    ) -> Result<(), KinesisError> {
        let context = Arc::clone(&self.context);
        let policy = &context.settings.fleet.cleanup;
        let now = context.clock.now();
        let since = |at: Option<Moment>| at.map(|at| now.since(at));
        let leases: Vec<Lease> = snapshot.leases.values().cloned().collect();
        let view = CleanupView {
            leases: &leases,
            listing: listing.map(|listing| ShardListing {
                shards: &listing.shards,
                // Leases that were created by this very listing are newer than the scan before it.
                complete: listing.is_complete && !listing.has_changed,
                stream_created_at: listing.stream_created_at,
            }),
            since_finished_check: since(self.duties.finished_checked),
            since_garbage_check: since(self.duties.garbage_checked),
        };
        let (plan, report) = cleanup::plan(&view, policy);
        for (lease_key, reason) in &report.kept {
            tracing::debug!(%lease_key, ?reason, "a lease stays");
        }
        for deletion in &plan.delete {
            self.delete(deletion, snapshot).await?;
        }
        for stale in cleanup::stale_metrics(&snapshot.workers, context.clock.wall(), policy) {
            let seen = Some(stale.last_update_seconds);
            context
                .store
                .delete_worker_metrics(&stale.worker_id, seen)
                .await
                .map_err(KinesisError::Store)?;
            tracing::info!(worker_id = %stale.worker_id, "the metrics of a worker that is gone are deleted");
        }
        if plan.checked_finished {
            self.duties.finished_checked = Some(now);
        }
        if plan.checked_garbage {
            self.duties.garbage_checked = Some(now);
        }
        Ok(())
    }

    async fn delete(&self, deletion: &Deletion, snapshot: &FleetSnapshot) -> Result<(), KinesisError> {
        let context = &self.context;
        let expect = Expectation {
            counter: Some(deletion.counter),
            ..Expectation::default()
        };
        let is_gone = context
            .store
            .delete(&deletion.lease_key, &expect)
            .await
            .map_err(KinesisError::Store)?;
        tracing::info!(lease_key = %deletion.lease_key, reason = ?deletion.reason, is_gone, "a lease is deleted");
        let unread = snapshot
            .leases
            .get(&deletion.lease_key)
            .filter(|_| is_gone && deletion.reason == DeleteReason::ShardGoneUnread)
            .and_then(|lease| lease.checkpoint.sequence_number());
        if let Some(after) = unread {
            let error = KinesisError::DataLoss {
                stream: context.settings.stream.clone(),
                shard_id: deletion.lease_key.shard_id(),
                after: after.clone(),
                before: None,
            };
            context.report(error).await;
        }
        Ok(())
    }
}

/// Executes one move; the row after it, or nothing when somebody else was faster.
async fn assign(context: Arc<Context>, planned: PlannedMove) -> Result<Option<Lease>, StoreError> {
    let held = context
        .shards()
        .get(&planned.lease_key)
        .map(|entry| Arc::clone(&entry.lease));
    let key = &planned.lease_key;
    tracing::info!(lease_key = %key, from = planned.from.as_ref().map(tracing::field::display), to = %planned.to, kind = ?planned.kind, "assigning a lease");
    if let (Some(lease), MoveKind::Handoff) = (held, planned.kind) {
        // Through its own holding, so that the handoff begins at once.
        let to = planned.to.clone();
        let write = lease.write(move |row| {
            LeaseWrite::start_handoff(row, &to).unwrap_or_else(|| LeaseWrite::renew(row, None))
        });
        return match write.await {
            Ok(()) => Ok(Some(lease.lease().await)),
            Err(HoldError::Lost) => Ok(None),
            Err(HoldError::Store(error)) => Err(error),
        };
    }
    match context.store.update(&planned.write).await? {
        WriteOutcome::Written(row) => Ok(Some(row)),
        WriteOutcome::Conflict(_) => {
            tracing::debug!(lease_key = %key, "the lease has changed meanwhile; the next run plans anew");
            Ok(None)
        }
    }
}

fn log_plan(moves: &[PlannedMove], report: &AssignmentReport) {
    if !moves.is_empty() || matches!(report.balance, BalanceVerdict::Uneven { .. }) {
        tracing::info!(
            moves = moves.len(),
            balance = ?report.balance,
            workers = report.workers.len(),
            "an assignment run"
        );
    }
}
