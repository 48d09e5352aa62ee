//! The leader's work: plans made by the core from one look at the table, carried out as conditional writes.

use std::pin::Pin;

use shardfleet_core::assignment::{MoveKind, PlannedMove};
use shardfleet_core::cleanup::{self, CleanupView, ShardListing};
use shardfleet_core::fleet::FleetSnapshot;
use shardfleet_core::lease::{Expectation, Lease, LeaseWrite, WriteOutcome};
use shardfleet_core::time::Moment;

use super::Process;
use super::coordinator::Coordinator;
use super::held::HoldError;
use super::listing::{CREATED_AT, Listing};
use crate::log::What;
use crate::setup::STORE_PATIENCE;
use crate::store::StoreFailure;
use crate::stream::shard_number;
use crate::sync::all;

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
    ) -> Result<(), StoreFailure> {
        if !self.duties.is_leading {
            self.duties.is_leading = true;
            self.audit.reset();
            self.watch.on_leading();
        }
        let (now, wall) = (self.process.now(), self.process.wall());
        let (plan, report) = self.watch.plan_assignment(now, wall, snapshot);
        let sim = &self.process.sim;
        sim.checks
            .borrow_mut()
            .on_planned(sim, self.process.number, &plan, &report);
        for planned in &plan.moves {
            let shard = shard_number(&planned.lease_key);
            let number = Some(self.process.number);
            sim.log(What::Planned, number, Some(shard), planned.kind as u64, 0);
        }
        let assigned = self.carry_out(plan.moves).await;
        self.clean_up(snapshot, listing).await?;
        assigned
    }

    async fn carry_out(&mut self, moves: Vec<PlannedMove>) -> Result<(), StoreFailure> {
        let me = self.process.id.clone();
        let (mine, others): (Vec<_>, Vec<_>) = moves.into_iter().partition(|planned| {
            let gives = matches!(
                planned.kind,
                MoveKind::Give | MoveKind::TakeOver | MoveKind::ForceHandoff
            );
            planned.to == me && gives
        });
        let mine = mine
            .into_iter()
            // Leases that this worker has just failed to read are left alone for a while.
            .filter(|planned| !self.resting.contains(&planned.lease_key))
            .map(|planned| planned.write)
            .collect();
        let taken = self.take_all(mine).await;
        let mut failed = None;
        for moves in others.chunks(AT_ONCE) {
            let process = &self.process;
            let writes = moves
                .iter()
                .map(|planned| Box::pin(assign(process, planned)) as Pin<Box<dyn Future<Output = _>>>)
                .collect();
            for written in all(writes).await {
                match written {
                    Ok(Some(row)) => self.watch.observe_one(self.process.now(), &row),
                    Ok(None) => {}
                    Err(failure) => failed = Some(failure),
                }
            }
        }
        taken.and(failed.map_or(Ok(()), Err))
    }

    async fn clean_up(
        &mut self,
        snapshot: &FleetSnapshot,
        listing: Option<&Listing>,
    ) -> Result<(), StoreFailure> {
        let policy = self.process.sim.setup.cleanup;
        let now = self.process.now();
        let since = |at: Option<Moment>| at.map(|at| now.since(at));
        let leases: Vec<Lease> = snapshot.leases.values().cloned().collect();
        let view = CleanupView {
            leases: &leases,
            listing: listing.map(|listing| ShardListing {
                shards: &listing.shards,
                complete: !listing.has_changed,
                stream_created_at: Some(CREATED_AT),
            }),
            since_finished_check: since(self.duties.finished_checked),
            since_garbage_check: since(self.duties.garbage_checked),
        };
        let (plan, _) = cleanup::plan(&view, &policy);
        for deletion in plan.delete {
            let Some(row) = snapshot.leases.get(&deletion.lease_key) else {
                continue;
            };
            let expect = Expectation {
                counter: Some(deletion.counter),
                ..Expectation::default()
            };
            self.process.store.delete(row.clone(), expect).await?;
        }
        for stale in cleanup::stale_metrics(&snapshot.workers, self.process.wall(), &policy) {
            let seen = Some(stale.last_update_seconds);
            self.process.store.delete_metrics(stale.worker_id, seen).await?;
        }
        if plan.checked_finished {
            self.duties.finished_checked = Some(now);
        }
        if plan.checked_garbage {
            self.duties.garbage_checked = Some(now);
        }
        Ok(())
    }
}

/// Executes one move; the row after it, or nothing when somebody else was faster.
async fn assign(process: &Process, planned: &PlannedMove) -> Result<Option<Lease>, StoreFailure> {
    let held = process.shards.borrow().get(&planned.lease_key).cloned();
    if let (Some(held), MoveKind::Handoff) = (held, planned.kind) {
        // Through its own holding, so that the handoff begins at once.
        let write = held.write(process, |row| {
            LeaseWrite::start_handoff(row, &planned.to).unwrap_or_else(|| LeaseWrite::renew(row, None))
        });
        return match write.await {
            Ok(()) => Ok(Some(held.row())),
            Err(HoldError::Lost) => Ok(None),
            Err(HoldError::Store) => Err(StoreFailure {
                surely_not_written: false,
            }),
        };
    }
    match process
        .store
        .update(planned.write.clone(), STORE_PATIENCE)
        .await?
    {
        WriteOutcome::Written(row) => Ok(Some(row)),
        WriteOutcome::Conflict(_) => Ok(None),
    }
}
