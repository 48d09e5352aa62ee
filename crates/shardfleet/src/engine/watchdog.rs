//! Says of every shard why it does not move, and warns of what lasts too long.
//!
//! What it shows comes from the shards that are read here and from the last look at the table; it asks nobody anything itself.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardfleet_core::assignment::AssignmentReport;
use shardfleet_core::fleet::FleetSnapshot;
use shardfleet_core::ids::{LeaseKey, ShardId, WorkerId};
use shardfleet_core::lease::{Lease, LeaseClock, TargetState};
use shardfleet_core::sequence::ExtendedSequenceNumber;
use shardfleet_core::time::Moment;
use shardfleet_core::watchdog::{Sighting, Standstill, Watchdog};

use super::{Context, ShardEntry, ShardStatus};
use crate::error::KinesisError;

/// What the worker knows of its fleet, for those who ask.
pub(crate) struct FleetBoard {
    state: Mutex<BoardState>,
}

#[derive(Default)]
struct BoardState {
    leases: BTreeMap<LeaseKey, Lease>,
    workers: Vec<shardfleet_core::worker_metrics::WorkerMetricStats>,
    clock: LeaseClock,
    scanned: Option<Moment>,
    assignment: Option<AssignmentReport>,
    store_fails_since: Option<Moment>,
    stalls: BTreeMap<LeaseKey, (Standstill, Moment)>,
}

/// The leases as the worker saw them last.
#[derive(Clone, Copy)]
pub(super) struct LeaseBoard<'a> {
    pub(super) leases: &'a BTreeMap<LeaseKey, Lease>,
    /// Since when each stands still.
    pub(super) clock: &'a LeaseClock,
    /// When that was.
    pub(super) scanned: Moment,
}

/// A fleet as one of its workers sees it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FleetStatus {
    /// Who leads, as far as this worker knows.
    pub leader: Option<WorkerId>,
    /// Whether this worker leads.
    pub is_leader: bool,
    /// For how long the lease store has not been reached; `None` while it is.
    pub store_unreachable_for: Option<Duration>,
    /// How old this view of the others is; this worker's own shards are as of now. `None` before the first look.
    pub age: Option<Duration>,
    /// The workers that report, by id.
    pub workers: Vec<WorkerStatus>,
    /// The shards with leases, by id.
    pub shards: Vec<FleetShard>,
    /// Why leases are where they are, on the leader.
    pub assignment: Option<AssignmentReport>,
}

/// One worker of a fleet.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct WorkerStatus {
    /// Who.
    pub worker_id: WorkerId,
    /// How many unfinished leases it holds.
    pub leases: usize,
    /// The newest reading of each metric it reports, in percent, by short name (`C` is CPU).
    pub metrics: BTreeMap<String, f64>,
}

/// One shard of a fleet.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FleetShard {
    /// Which.
    pub shard_id: ShardId,
    /// Who reads it.
    pub owner: Option<WorkerId>,
    /// Who is to read it next, while a handoff is under way.
    pub next_owner: Option<WorkerId>,
    /// What is asked of it.
    pub target: TargetState,
    /// Up to where it is settled.
    pub checkpoint: ExtendedSequenceNumber,
    /// Why it does not move, and for how long; `None` for a shard that moves, is finished, or is read by another worker.
    pub standstill: Option<(Standstill, Duration)>,
}

impl FleetBoard {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note_scan(&self, now: Moment, snapshot: FleetSnapshot) {
        let mut state = self.state();
        state.clock.observe(now, snapshot.leases.values());
        state.clock.retain(|key| snapshot.leases.contains_key(key));
        state.leases = snapshot.leases;
        state.workers = snapshot.workers;
        state.scanned = Some(now);
    }

    /// The leases at the last look at the table; `None` before the first.
    pub(super) fn with_leases<R>(&self, look: impl FnOnce(LeaseBoard<'_>) -> R) -> Option<R> {
        let state = self.state();
        let scanned = state.scanned?;
        Some(look(LeaseBoard {
            leases: &state.leases,
            clock: &state.clock,
            scanned,
        }))
    }

    pub(super) fn note_assignment(&self, report: AssignmentReport) {
        self.state().assignment = Some(report);
    }

    /// A look at the store came out like this.
    pub(super) fn note_store(&self, now: Moment, is_reachable: bool) {
        let mut state = self.state();
        if is_reachable {
            state.store_fails_since = None;
        } else {
            state.store_fails_since.get_or_insert(now);
        }
    }
}

impl Context {
    /// What this worker knows of its fleet.
    pub(crate) fn fleet_status(&self) -> FleetStatus {
        let now = self.clock.now();
        let state = self.fleet.state();
        let holds = |worker: &WorkerId| {
            let held = |lease: &&Lease| !lease.is_finished() && lease.actual_owner() == Some(worker);
            state.leases.values().filter(held).count()
        };
        let latest = |values: &Vec<f64>| shardfleet_core::worker_metrics::latest(values);
        let is_leader = self.leadership.is_leader(now);
        FleetStatus {
            leader: self.leadership.leader(),
            is_leader,
            store_unreachable_for: state.store_fails_since.map(|at| now.since(at)),
            age: state.scanned.map(|at| now.since(at)),
            workers: state
                .workers
                .iter()
                .map(|row| WorkerStatus {
                    worker_id: row.worker_id.clone(),
                    leases: holds(&row.worker_id),
                    metrics: row
                        .averages
                        .iter()
                        .filter_map(|(name, values)| Some((name.clone(), latest(values)?)))
                        .collect(),
                })
                .collect(),
            shards: state
                .leases
                .values()
                .map(|lease| FleetShard {
                    shard_id: lease.lease_key.shard_id(),
                    owner: lease.actual_owner().cloned(),
                    next_owner: lease.checkpoint_owner.as_ref().and(lease.owner.clone()),
                    target: lease.control().target,
                    checkpoint: lease.checkpoint.clone(),
                    standstill: state
                        .stalls
                        .get(&lease.lease_key)
                        .map(|(reason, since)| (reason.clone(), now.since(*since))),
                })
                .collect(),
            assignment: state.assignment.clone().filter(|_| is_leader),
        }
    }

    /// Every unfinished shard that is this worker's business, and what would hold it up.
    fn sightings(&self, now: Moment) -> BTreeMap<LeaseKey, Sighting> {
        let shards = self.shards();
        let state = self.fleet.state();
        let failing = state.store_fails_since.is_some();
        let mut seen: BTreeMap<LeaseKey, Sighting> = shards
            .iter()
            .map(|(key, entry)| (key.clone(), sighting_of(entry)))
            .collect();
        for (key, lease) in state.leases.iter().filter(|(_, lease)| !lease.is_finished()) {
            if seen.contains_key(key) {
                continue;
            }
            let is_silent = || state.clock.is_expired(now, lease, self.settings.failover_time);
            let reason = match (lease.actual_owner(), &lease.owner) {
                _ if failing => Standstill::StoreUnreachable,
                (None, _) => match shardfleet_core::shard_sync::blocking_parent(lease, &state.leases) {
                    Some(parent) => Standstill::WaitingForParent(parent.clone()),
                    None if self.leadership.leader().is_none() => Standstill::NoLeader,
                    None => Standstill::NoOwner,
                },
                // A worker that seldom looks at the whole table cannot tell who is silent; the leader and its deputies can.
                (Some(owner), _) if is_silent() => Standstill::OwnerSilent(owner.clone()),
                (Some(_), Some(next)) if lease.checkpoint_owner.is_some() => {
                    Standstill::HandoffUnderWay(next.clone())
                }
                _ => continue,
            };
            let sighting = Sighting {
                reason: Some(reason),
                progress: lease.counter,
            };
            seen.insert(key.clone(), sighting);
        }
        seen
    }
}

fn sighting_of(entry: &ShardEntry) -> Sighting {
    let is_busy = entry.progress.busy_since().is_some();
    let reason = match entry.status() {
        ShardStatus::Opening => Standstill::Opening,
        ShardStatus::WaitingForParent { parent } => Standstill::WaitingForParent(parent),
        ShardStatus::Throttled => Standstill::Throttled,
        ShardStatus::ReadsFail { failures } => Standstill::ReadsFail(failures),
        ShardStatus::Failed { reason } => Standstill::Failed(reason),
        ShardStatus::Paused => Standstill::Paused,
        ShardStatus::Stopped => Standstill::Stopped,
        ShardStatus::Restarting => Standstill::Restarting,
        ShardStatus::HandingOver { to } => Standstill::HandoffUnderWay(to),
        _ if is_busy => Standstill::HandlerBusy,
        ShardStatus::WaitingForAcks { held_by } => Standstill::BufferFull(held_by),
        ShardStatus::WaitingForMemory => Standstill::MemoryFull,
        ShardStatus::Draining => Standstill::Draining,
        ShardStatus::Reading {
            millis_behind_latest: Some(0),
        } => Standstill::AtTheTip,
        ShardStatus::Reading { .. } => Standstill::NoProgress,
    };
    Sighting {
        reason: Some(reason),
        progress: entry.progress.moved(),
    }
}

/// Looks at everything once in a while, for as long as the worker runs.
pub(super) async fn run(context: &Context) {
    let limit = context.settings.fleet.stall_warning_after;
    let interval = (limit / 10).clamp(Duration::from_millis(20), Duration::from_secs(1));
    let mut watchdog = Watchdog::new(limit);
    loop {
        tokio::select! {
            biased;
            () = context.stop.cancelled() => return,
            () = crate::clock::sleep(&*context.clock, interval) => {}
        }
        let now = context.clock.now();
        let stalls = watchdog.observe(now, context.sightings(now));
        context.fleet.state().stalls = watchdog
            .standstills()
            .map(|stall| (stall.lease_key, (stall.reason, stall.since)))
            .collect();
        for stall in stalls {
            context.report_now(KinesisError::Stalled {
                stream: context.settings.stream.clone(),
                shard_id: stall.lease_key.shard_id(),
                reason: stall.reason,
                for_time: now.since(stall.since),
            });
        }
    }
}
