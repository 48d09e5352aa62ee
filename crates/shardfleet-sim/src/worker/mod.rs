//! The simulated worker: the core's planners and machines, driven as the real drivers drive them, over a simulated table and stream.
//!
//! Each module mirrors one of the engine's. What the engine does by tasks, deadlines and notices is done the same way here, so that a process can be frozen or
//! killed at any await.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use shardfleet_core::ids::{LeaseKey, ShardId, WorkerId};
use shardfleet_core::leader::LeaderElection;
use shardfleet_core::retry::Backoff;
use shardfleet_core::time::{Moment, Timestamp};
use shardfleet_core::worker_metrics::WorkerMetricStats;

use crate::exec::{MILLI, Micros, sleep_until};
use crate::log::What;
use crate::mutation::Mutation;
use crate::setup::micros;
use crate::sim::Sim;
use crate::store::Store;
use crate::stream::EPOCH_MILLIS;
use crate::sync::{First, Flag, Notice, first};

mod coordinator;
mod departure;
mod election;
mod ending;
mod held;
mod intake;
mod leading;
mod listing;
mod reading;
mod reporting;

pub(crate) use held::Held;

/// How the reading of a shard ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ended,
    Lost,
    Released,
    HandedOver,
    ReaderStopped,
}

/// One process of the fleet, from its start to its end.
pub(crate) struct Process {
    pub(crate) sim: Rc<Sim>,
    /// Its number in the run, which it shares with no other.
    pub(crate) number: usize,
    /// Where it runs.
    pub(crate) slot: usize,
    pub(crate) id: WorkerId,
    pub(crate) store: Store,
    /// Its monotonic clock had counted so far when the run began, or so.
    origin: Micros,
    /// By how many milliseconds its wall clock is wrong.
    pub(crate) wall_skew: Cell<i64>,
    pub(crate) is_alive: Cell<bool>,
    pub(crate) is_frozen: Cell<bool>,
    pub(crate) election: RefCell<LeaderElection>,
    election_poke: Notice,
    leader_changed: Notice,
    /// What it reads.
    pub(crate) shards: RefCell<BTreeMap<LeaseKey, Rc<Held>>>,
    ends: RefCell<VecDeque<(LeaseKey, Outcome)>>,
    has_ends: Notice,
    /// It is to stop, and takes nothing more.
    pub(crate) departing: Flag,
    /// It gives its leases up now.
    stop: Flag,
    stop_deadline: Cell<Micros>,
    metrics: RefCell<WorkerMetricStats>,
    /// Bytes that were handed out since the last report.
    bytes: Cell<u64>,
    measures: bool,
    /// The children of shards that ended here, to be taken.
    ended_children: RefCell<Vec<ShardId>>,
}

impl Process {
    /// Starts a process in `slot`. It runs until it is killed, or has stopped in order.
    pub(crate) fn start(sim: &Rc<Sim>, slot: usize, id: &WorkerId) -> Rc<Self> {
        let number = sim.executor.add_owner();
        let (origin, skew, measures) = sim.draw(|chance| {
            let origin = chance.below(3_600_000) * MILLI;
            // Beyond that, a clock has jumped: then a worker's reports look out of date to the others.
            let skew = i64::try_from(chance.below(10_000)).unwrap_or(0) - 5_000;
            (origin, skew, chance.below(10) < sim.setup.measuring)
        });
        let process = Rc::new(Self {
            store: Store {
                sim: Rc::clone(sim),
                process: number,
                slot,
            },
            sim: Rc::clone(sim),
            number,
            slot,
            id: id.clone(),
            origin,
            wall_skew: Cell::new(skew),
            is_alive: Cell::new(true),
            is_frozen: Cell::new(false),
            election: RefCell::new(LeaderElection::new(id.clone(), sim.setup.leader)),
            election_poke: Notice::default(),
            leader_changed: Notice::default(),
            shards: RefCell::default(),
            ends: RefCell::default(),
            has_ends: Notice::default(),
            departing: Flag::default(),
            stop: Flag::default(),
            stop_deadline: Cell::new(Micros::MAX),
            metrics: RefCell::new(WorkerMetricStats::new(id.clone(), Timestamp::default())),
            bytes: Cell::new(0),
            measures,
            ended_children: RefCell::default(),
        });
        sim.processes.borrow_mut().push(Rc::clone(&process));
        sim.by_id.borrow_mut().insert(id.clone(), number);
        sim.checks.borrow_mut().on_started(sim.now(), number);
        sim.log(What::Started, Some(number), None, slot as u64, 0);
        let worker = Rc::clone(&process);
        process.spawn(async move {
            coordinator::run(&worker).await;
            worker.exit();
        });
        process
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.sim.executor.spawn(self.number, task);
    }

    /// The process is gone with everything in its memory.
    pub(crate) fn kill(&self) {
        self.sim.log(What::Crashed, Some(self.number), None, 0, 0);
        self.exit();
    }

    fn exit(&self) {
        if self.is_alive.replace(false) {
            self.sim.log(What::Stopped, Some(self.number), None, 0, 0);
            self.sim.checks.borrow_mut().on_gone(self.sim.now());
            self.sim.executor.kill(self.number);
            self.shards.borrow_mut().clear();
        }
    }

    pub(crate) fn freeze(&self) {
        self.is_frozen.set(true);
        self.sim.log(What::Frozen, Some(self.number), None, 0, 0);
        self.sim.executor.freeze(self.number);
    }

    pub(crate) fn thaw(&self) {
        if self.is_alive.get() && self.is_frozen.replace(false) {
            self.sim.log(What::Thawed, Some(self.number), None, 0, 0);
            self.sim.checks.borrow_mut().on_gone(self.sim.now());
            self.sim.executor.thaw(self.number);
        }
    }

    /// Asks the process to stop in order.
    pub(crate) fn ask_to_stop(&self) {
        self.sim.log(What::Stopping, Some(self.number), None, 0, 0);
        self.sim.checks.borrow_mut().on_gone(self.sim.now());
        self.departing.set();
    }

    /// Its monotonic clock.
    pub(crate) fn now(&self) -> Moment {
        Moment::new(Duration::from_micros(self.sim.now() + self.origin))
    }

    /// Its wall clock.
    pub(crate) fn wall(&self) -> Timestamp {
        let millis = EPOCH_MILLIS + self.sim.now() / MILLI;
        Timestamp::from_millis(millis.saturating_add_signed(self.wall_skew.get()))
    }

    async fn sleep_until(&self, at: Moment) {
        let at = micros(at.since_origin()).saturating_sub(self.origin);
        sleep_until(&self.sim.executor, at).await;
    }

    async fn sleep(&self, time: Duration) {
        sleep_until(&self.sim.executor, self.sim.now() + micros(time)).await;
    }

    /// The answer of `work`, unless `time` passes first.
    async fn within<T>(&self, time: Duration, work: impl Future<Output = T>) -> Option<T> {
        match first(work, self.sleep(time)).await {
            First::Left(value) => Some(value),
            First::Right(()) => None,
        }
    }

    fn delay(&self, backoff: &Backoff, attempt: u32) -> Duration {
        backoff.delay(attempt, self.sim.draw(crate::chance::Chance::unit))
    }

    fn has(&self, mutation: Mutation) -> bool {
        self.sim.setup.mutation == Some(mutation)
    }

    fn failover_time(&self) -> Duration {
        self.sim.setup.fleet.failover_time
    }

    pub(crate) fn is_leader(&self) -> bool {
        if self.has(Mutation::EternalLeader) && self.election.borrow().known_leader() == Some(&self.id) {
            return true;
        }
        self.election.borrow().is_leader(self.now())
    }

    fn leader(&self) -> Option<WorkerId> {
        self.election.borrow().known_leader().cloned()
    }
}
