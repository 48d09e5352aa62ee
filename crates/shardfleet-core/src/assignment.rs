//! Which worker is to hold which lease.
//!
//! A planner for the leader: the leases and workers as observed go in, conditional writes and a report in words come out. What nobody holds is given
//! out at once (`place`), and on balancing runs leases go from loaded workers to idle ones by handoff (`balance`, `counts`). Load is
//! relative: 1 is the fleet's average, by the worst of a worker's metrics, or by its share of the throughput where it measures nothing (`fleet`).
//! Parameters and their names are the Java KCL's (`KCL: WorkerUtilizationAwareAssignmentConfig`).
//!
//! It never moves a live holder's lease in any other way than by handoff (invariant L1), never exceeds a limit (A2), answers the same whatever the order
//! of its input, and comes to rest when its plans are carried out (A1). It plans from scratch each time; what it must remember is part of the view.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::{LeaseKey, WorkerId};
use crate::lease::{Lease, LeaseWrite};
use crate::time::Timestamp;
use crate::worker_metrics::{self, WorkerMetricStats};

mod balance;
mod counts;
mod fleet;
mod place;

/// Everything a plan depends on besides the policy.
#[derive(Clone, Debug)]
pub struct FleetView<'a> {
    /// Every lease of the table, in any order.
    pub leases: &'a [ObservedLease<'a>],
    /// Every worker with a row of metrics, in any order.
    pub workers: &'a [WorkerView],
    /// Whether leases may be moved between workers in this run. The leader's driver says yes on every `varianceBalancingFrequency`th run and when a
    /// worker has joined.
    pub balance: bool,
}

/// A lease row, and what the leader observed about it.
#[derive(Clone, Debug)]
pub struct ObservedLease<'a> {
    /// The row.
    pub lease: &'a Lease,
    /// The counter has stood still for longer than the failover time, by the leader's own clock.
    pub expired: bool,
    /// A handoff is under way and its deadline has passed.
    pub handoff_overdue: bool,
    /// The last change of holder, as far as the leader saw it.
    pub moved: Option<RecentMove>,
}

impl<'a> ObservedLease<'a> {
    /// A lease about which nothing but the row is known, its holder being alive.
    pub fn live(lease: &'a Lease) -> Self {
        Self {
            lease,
            expired: false,
            handoff_overdue: false,
            moved: None,
        }
    }
}

/// A change of holder. Utilisation is averaged, so readings lag behind it; and a lease is not to
/// wander about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentMove {
    /// Who held the lease before; nobody for a lease that was unowned.
    pub from: Option<WorkerId>,
    /// It was handed over, so its holder was alive; not given out after it had expired.
    pub by_handoff: bool,
    /// How long ago the leader saw the change.
    pub age: Duration,
}

/// Whether a worker takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It reports, and its metrics can be read.
    Active,
    /// It reports that it cannot measure (`KCL: isAnyWorkerMetricFailing`).
    Failing,
    /// It has not reported for too long.
    Expired,
    /// It is stopping and gives its leases back by itself.
    Leaving,
}

/// What one metric of a worker reads, in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// The moving average.
    pub average: f64,
    /// The newest report's value.
    pub latest: f64,
    /// The highest utilisation that is wanted (the operating range).
    pub limit: Option<f64>,
}

/// A worker as the leader sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerView {
    /// Who.
    pub worker_id: WorkerId,
    /// Whether it takes part.
    pub standing: Standing,
    /// It let a lease expire and has shown no sign of life since. It is given nothing that anybody else has room for.
    pub suspect: bool,
    /// Its metrics by short name; none for a worker that is balanced by throughput.
    pub readings: BTreeMap<String, Reading>,
}

impl WorkerView {
    /// A worker that measures nothing.
    pub fn without_metrics(worker_id: impl Into<WorkerId>) -> Self {
        Self {
            worker_id: worker_id.into(),
            standing: Standing::Active,
            suspect: false,
            readings: BTreeMap::new(),
        }
    }

    /// What a row of metrics says at `now`. `None` for a row that is not valid.
    pub fn from_stats(stats: &WorkerMetricStats, now: Timestamp, policy: &AssignmentPolicy) -> Option<Self> {
        if !stats.is_valid() {
            return None;
        }
        let standing = if stats.is_expired(now, policy.worker_metrics_report_interval) {
            Standing::Expired
        } else if stats.is_failing() {
            Standing::Failing
        } else {
            Standing::Active
        };
        let reading = |(name, values): (&String, &Vec<f64>)| {
            let limit = stats.operating_range.get(name).and_then(|range| range.first());
            let reading = Reading {
                average: worker_metrics::ema(values, policy.worker_metrics_ema_alpha)?,
                latest: worker_metrics::latest(values)?,
                limit: limit.and_then(|max| i32::try_from(*max).ok()).map(f64::from),
            };
            Some((name.clone(), reading))
        };
        let readings = if stats.is_default() {
            BTreeMap::new()
        } else {
            stats.averages.iter().filter_map(reading).collect()
        };
        Some(Self {
            worker_id: stats.worker_id.clone(),
            standing,
            suspect: false,
            readings,
        })
    }
}

/// How leases are shared out (`KCL: leaseAssignmentStrategy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AssignmentStrategy {
    /// `WORKER_UTILIZATION_AWARE`: by what the workers measure, and by throughput where they measure nothing.
    #[default]
    WorkerUtilizationAware,
    /// `LEASE_COUNT_BASED`: the same number of leases to each.
    LeaseCountBased,
}

/// The settings of assignment. Values outside their range act as the nearest end, NaN as the default.
#[derive(Clone, Debug, PartialEq)]
pub struct AssignmentPolicy {
    /// How leases are shared out. Default: by utilisation.
    pub strategy: AssignmentStrategy,
    /// `reBalanceThresholdPercentage`: how far from the average a worker may be, in percent of it. 0 to 1000, default 10.
    pub rebalance_threshold_percentage: f64,
    /// `dampeningPercentage`: how much of the surplus moves in one run, in percent. 0 to 100, default 80.
    pub dampening_percentage: f64,
    /// `allowThroughputOvershoot`: where no lease is small enough for the surplus, the smallest one may move. Default true.
    pub allow_throughput_overshoot: bool,
    /// `maxThroughputPerHostKBps`: no worker gets more, in KiB a second. A lease that exceeds it alone goes to a worker without leases. Default unlimited.
    pub max_throughput_per_host_kbps: f64,
    /// `maxLeasesForWorker`: no worker gets more leases. Default unlimited.
    pub max_leases_for_worker: usize,
    /// `workerMetricsEMAAlpha`: the weight of a new value in the moving average. 0 to 1, default 0.5.
    pub worker_metrics_ema_alpha: f64,
    /// `workerMetricsReporterFreqInMillis`: how often workers report. Default 30 s.
    pub worker_metrics_report_interval: Duration,
    /// No worker counts as loaded or idle unless it is further from the average than this, in points of utilisation. Default 5: at 1 % and 2 %
    /// nothing moves.
    pub utilization_floor: f64,
    /// A move must leave the receiver this much below where the giver was, in percent of the average load. Default 5.
    pub minimum_gain_percentage: f64,
    /// What a lease counts for however quiet it is, in KiB a second (or a twentieth of the average lease, if that is more). Default 0.1.
    pub lease_base_kbps: f64,
    /// Balancing lets a lease that was handed over stay where it is for this long. Default 5 minutes.
    pub minimum_stay: Duration,
}

impl Default for AssignmentPolicy {
    fn default() -> Self {
        Self {
            strategy: AssignmentStrategy::default(),
            rebalance_threshold_percentage: 10.0,
            dampening_percentage: 80.0,
            allow_throughput_overshoot: true,
            max_throughput_per_host_kbps: f64::INFINITY,
            max_leases_for_worker: usize::MAX,
            worker_metrics_ema_alpha: 0.5,
            worker_metrics_report_interval: Duration::from_secs(30),
            utilization_floor: 5.0,
            minimum_gain_percentage: 5.0,
            lease_base_kbps: 0.1,
            minimum_stay: Duration::from_mins(5),
        }
    }
}

/// How a lease gets to its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveKind {
    /// Nobody holds it: it is given.
    Give,
    /// Its holder renews no more: it is taken, unless the counter moves before the write.
    TakeOver,
    /// Its holder is asked to hand it over.
    Handoff,
    /// Its holder was asked and did not hand it over in time: it is given to the receiver.
    ForceHandoff,
    /// The receiver of a handoff is gone: the holder keeps it.
    CallOffHandoff,
}

/// One lease that is to change hands.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedMove {
    /// Which lease.
    pub lease_key: LeaseKey,
    /// Who holds it at present.
    pub from: Option<WorkerId>,
    /// Who is to hold it.
    pub to: WorkerId,
    /// How it gets there.
    pub kind: MoveKind,
    /// The write that begins it. A lost condition is an outcome: the next run plans anew.
    pub write: LeaseWrite,
}

/// The moves of one run, by lease key. Each lease is in it once at most.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AssignmentPlan {
    /// What to write; independent of each other.
    pub moves: Vec<PlannedMove>,
}

/// Which limit a worker, or the whole fleet, has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No worker is active.
    NoWorker,
    /// `maxLeasesForWorker`.
    LeaseLimit,
    /// `maxThroughputPerHostKBps`.
    ThroughputLimit,
}

/// What becomes of a lease, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseVerdict {
    /// Its holder keeps it.
    Kept,
    /// It is read to its end and is no load.
    Finished,
    /// Waits for its holder to hand it over.
    HandoffUnderWay {
        /// Who will hold it.
        to: WorkerId,
    },
    /// It moves.
    Moves {
        /// Who is to hold it.
        to: WorkerId,
        /// How.
        kind: MoveKind,
    },
    /// Nobody holds it, and nobody can be given it.
    Waits(Refusal),
}

/// Why a worker that has too much gives nothing, or not more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBack {
    /// Each of its leases is larger than what is to move, or came a moment ago.
    LeasesTooLarge,
    /// A move would not make the fleet more even by the minimum gain.
    NoGain,
    /// The others have reached their limits.
    NoReceiver,
}

/// One worker in a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerVerdict {
    /// Who.
    pub worker_id: WorkerId,
    /// Whether it takes part; `None` for a holder of leases without a row of metrics.
    pub standing: Option<Standing>,
    /// It holds an expired lease, so it gets new ones only if nobody else can.
    pub suspect: bool,
    /// Its load before the plan; 1 is the average.
    pub load_before: f64,
    /// Its load once the plan is carried out.
    pub load_after: f64,
    /// Unfinished leases once the plan is carried out.
    pub leases_after: usize,
    /// How many leases it gets.
    pub gets: usize,
    /// How many live leases it hands over.
    pub gives: usize,
    /// Why it does not give more, if it has too much.
    pub held_back: Option<HeldBack>,
}

/// What happened to the balance of the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalanceVerdict {
    /// This run only gives out what nobody holds.
    NotDue,
    /// Every worker is close enough to the average.
    Even,
    /// Some worker is not; this many leases are handed over.
    Uneven {
        /// Handoffs begun by the plan.
        handoffs: usize,
    },
}

/// Why the plan is as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct AssignmentReport {
    /// Each lease, by key.
    pub leases: Vec<(LeaseKey, LeaseVerdict)>,
    /// Each worker, by id.
    pub workers: Vec<WorkerVerdict>,
    /// The fleet.
    pub balance: BalanceVerdict,
}

/// Plans who is to hold which lease.
pub fn plan(view: &FleetView<'_>, policy: &AssignmentPolicy) -> (AssignmentPlan, AssignmentReport) {
    let mut fleet = fleet::Fleet::new(view, policy);
    place::give_out(&mut fleet);
    let balance = match (view.balance, policy.strategy) {
        (false, _) => BalanceVerdict::NotDue,
        (true, AssignmentStrategy::WorkerUtilizationAware) => balance::balance(&mut fleet),
        (true, AssignmentStrategy::LeaseCountBased) => counts::balance(&mut fleet),
    };
    fleet.into_plan(balance)
}

#[cfg(test)]
mod tests;
