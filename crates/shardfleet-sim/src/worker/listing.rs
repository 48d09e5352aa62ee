//! Brings leases in line with the stream: lists the shards and creates the leases that they lack.

use shardfleet_core::fleet::FleetSnapshot;
use shardfleet_core::lease::Lease;
use shardfleet_core::shard::Shard;
use shardfleet_core::shard_sync::{self, InitialPosition, ShardSyncView};
use shardfleet_core::time::Timestamp;

use super::Process;
use super::coordinator::Coordinator;
use crate::exec::{MILLI, SECOND, sleep_until};
use crate::faults::FaultKind;
use crate::setup::micros;
use crate::store::StoreFailure;
use crate::stream::EPOCH_MILLIS;

/// When the stream was created.
pub(super) const CREATED_AT: Timestamp = Timestamp::from_millis(EPOCH_MILLIS);

/// What a listing found.
pub(super) struct Listing {
    pub(super) shards: Vec<Shard>,
    pub(super) has_changed: bool,
}

impl Process {
    /// Lists the shards.
    pub(super) async fn list_shards(&self) -> Result<Vec<Shard>, StoreFailure> {
        let sim = &self.sim;
        let fails = sim.strikes(FaultKind::ListingFailed, self.slot);
        let is_stale = sim.strikes(FaultKind::StaleListing, self.slot);
        let (takes, lag) = sim.draw(|chance| {
            (
                chance.between(10 * MILLI, 80 * MILLI),
                chance.between(SECOND, 8 * SECOND),
            )
        });
        sleep_until(&sim.executor, sim.now() + takes).await;
        if fails {
            sim.fault(FaultKind::ListingFailed, Some(self.number));
            sim.checks.borrow_mut().note_trouble(sim.now());
            return Err(StoreFailure {
                surely_not_written: true,
            });
        }
        if is_stale {
            sim.fault(FaultKind::StaleListing, Some(self.number));
            sim.checks.borrow_mut().note_trouble(sim.now());
        }
        let as_of = sim.now().saturating_sub(if is_stale { lag } else { 0 });
        Ok(sim.stream.borrow_mut().list(as_of))
    }
}

impl Coordinator {
    /// Lists the shards and creates the leases that they lack.
    pub(super) async fn sync_shards(&mut self, snapshot: &FleetSnapshot) -> Result<Listing, StoreFailure> {
        let began = self.process.sim.now();
        let shards = self.process.list_shards().await?;
        let leases: Vec<Lease> = snapshot.leases.values().cloned().collect();
        let view = ShardSyncView {
            shards: &shards,
            leases: &leases,
            initial_position: InitialPosition::TrimHorizon,
            named_shard: None,
            stream_created_at: Some(CREATED_AT),
        };
        // A listing that leaves hash keys out is made again, like one that failed.
        let plan = shard_sync::plan(&view).map_err(|_| StoreFailure {
            surely_not_written: true,
        })?;
        self.audit.audit(&leases, &shards);
        let has_changed = !plan.create.is_empty();
        for lease in plan.create {
            // Whoever stood still meanwhile knows an old world: a shard may have been read to its end since, and its row been deleted.
            if self.process.sim.now() - self.scan_began > micros(self.process.failover_time()) {
                return Err(StoreFailure {
                    surely_not_written: true,
                });
            }
            self.process.store.create(lease).await?;
        }
        let sim = &self.process.sim;
        sim.checks.borrow_mut().on_synced(sim, began, &shards);
        Ok(Listing { shards, has_changed })
    }
}
