//! What a seed decides before a run begins: the fleet, its settings, and when its weather changes.

use std::time::Duration;

use shardfleet_core::assignment::{AssignmentPolicy, AssignmentStrategy};
use shardfleet_core::cleanup::CleanupPolicy;
use shardfleet_core::fleet::FleetPolicy;
use shardfleet_core::leader::LeaderPolicy;
use shardfleet_core::reader::ReaderPolicy;

use crate::chance::Chance;
use crate::exec::{Micros, SECOND};
use crate::mutation::Mutation;

/// The most processes that run at a time.
pub(crate) const SLOTS: usize = 8;

/// How long a request to the table may take.
pub(crate) const STORE_PATIENCE: Duration = Duration::from_secs(10);

/// How a worker spreads its looks at the table over time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) assignment: Duration,
    pub(crate) discovery: Duration,
    pub(crate) follower_scan: Duration,
    pub(crate) pending: Duration,
    pub(crate) listing: Duration,
    pub(crate) report: Duration,
}

/// The settings of a run.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Workers at the beginning; one more joins.
    pub(crate) workers: usize,
    /// Open shards at the beginning.
    pub(crate) shards: usize,
    pub(crate) fleet: FleetPolicy,
    pub(crate) leader: LeaderPolicy,
    pub(crate) cleanup: CleanupPolicy,
    pub(crate) reader: ReaderPolicy,
    pub(crate) pace: Pace,
    /// Records in a page, at most.
    pub(crate) batch: usize,
    /// Records of a shard that may be unsettled.
    pub(crate) unsettled_max: u64,
    /// Of ten workers, how many measure their CPU.
    pub(crate) measuring: u64,
    /// The fleet starts.
    pub(crate) fleet_from: Micros,
    /// Until here nothing happens but joins, planned stops and reshards; from here on, everything.
    pub(crate) storm_from: Micros,
    /// Faults stop.
    pub(crate) quiet_from: Micros,
    /// Records stop.
    pub(crate) records_until: Micros,
    pub(crate) end: Micros,
    pub(crate) mutation: Option<Mutation>,
}

impl Setup {
    /// The fleet of a seed.
    pub(crate) fn draw(chance: &mut Chance, mutation: Option<Mutation>) -> Self {
        let workers = usize::try_from(chance.between(3, 7)).unwrap_or(3);
        let shards = usize::try_from(chance.between(10, 60)).unwrap_or(10);
        let failover_time = Duration::from_secs(10);
        let assignment = AssignmentPolicy {
            strategy: if chance.happens(250) {
                AssignmentStrategy::LeaseCountBased
            } else {
                AssignmentStrategy::WorkerUtilizationAware
            },
            max_leases_for_worker: if chance.happens(300) {
                // Room for all shards, and for those of two missing workers.
                80 / (workers - 2).max(1) + 6
            } else {
                usize::MAX
            },
            ..AssignmentPolicy::default()
        };
        let mut assignment = assignment;
        if mutation == Some(Mutation::NoLimit) {
            // Near enough to what each should have that somebody who does not know it passes it.
            assignment.max_leases_for_worker = shards / workers;
        }
        let heartbeat = Duration::from_secs(30);
        Self {
            workers,
            shards,
            fleet: FleetPolicy {
                failover_time,
                assignment,
                ..FleetPolicy::default()
            },
            leader: LeaderPolicy {
                lease_duration: heartbeat * 4,
                heartbeat,
                // As often as its holder writes it, like the Java KCL's standbys.
                poll: heartbeat,
                retry: failover_time / 4,
                cool_down: heartbeat * 2,
                ..LeaderPolicy::default()
            },
            cleanup: CleanupPolicy {
                finished_interval: Duration::from_secs(chance.between(30, 300)),
                garbage_interval: Duration::from_secs(chance.between(60, 600)),
                stale_metrics_after: Duration::from_mins(10),
                ..CleanupPolicy::default()
            },
            reader: ReaderPolicy {
                poll_interval: Duration::from_secs(chance.between(1, 2)),
                ..ReaderPolicy::default()
            },
            pace: Pace {
                assignment: failover_time / 4,
                discovery: failover_time * 18 / 100,
                follower_scan: failover_time * 3,
                pending: Duration::from_millis(400),
                listing: Duration::from_mins(1),
                report: Duration::from_secs(30),
            },
            batch: usize::try_from(chance.between(5, 100)).unwrap_or(5),
            unsettled_max: chance.between(50, 500),
            measuring: [0, 10, 10, 5][chance.index(4)],
            fleet_from: 30 * SECOND,
            storm_from: 6 * 60 * SECOND,
            quiet_from: 15 * 60 * SECOND,
            records_until: 25 * 60 * SECOND,
            end: 26 * 60 * SECOND,
            mutation,
        }
    }
}

/// A duration of the cores in the time of the simulation. It is rounded up: who waits until a moment must not find that it is yet to come.
pub(crate) fn micros(duration: Duration) -> Micros {
    Micros::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(Micros::MAX)
}
