//! A run: the fleet that a seed decides, what befalls it and when, and how it came out.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use shardfleet_core::ids::WorkerId;

use crate::chance::Chance;
use crate::checks::{Checks, Violation};
use crate::exec::{Executor, MILLI, Micros, SECOND};
use crate::faults::{FaultKind, Faults};
use crate::log::{Log, NONE, What};
use crate::setup::{SLOTS, Setup};
use crate::sim::Sim;
use crate::stream::Stream;
use crate::table::Table;
use crate::worker::Process;
use crate::{Options, Report};

/// Workers that may be missing at a time, so that the limits leave room for their leases.
const MISSING_MAX: usize = 2;

/// After so long something that could not happen is tried again.
const TRY_AGAIN: Micros = 3 * SECOND;

/// A kind of fault that has not struck by so long before the storm ends is helped along, and for as long after it.
const LAST_CALL: Micros = 200 * SECOND;

/// Steps of tasks at one moment; the most that a fleet makes at once is when a frozen process goes on.
const STEPS_MAX: u32 = 100_000;

/// Events shown with a violation.
const TRACE: usize = 60;

/// What the script does to the fleet or the stream.
#[derive(Clone, Debug)]
enum Deed {
    /// A fault that needs no plan of its own, but somebody whom it can befall.
    Fault(FaultKind),
    /// A process starts where none is.
    Start(WorkerId),
    /// A process that stood still goes on.
    Thaw(usize),
    /// A wall clock is set right again.
    SetRight(usize),
}

struct Runner {
    sim: Rc<Sim>,
    /// What is to come, in the order in which it was planned.
    script: Vec<(Micros, Deed)>,
    chance: Chance,
    names: u64,
    /// Workers that the fleet should have.
    target: usize,
    last_call: Option<Micros>,
}

/// Runs the simulation of one seed: 26 virtual minutes, or less when an invariant is violated.
pub fn run(seed: u64, options: Options) -> Report {
    let mut chance = Chance::new(seed);
    let setup = Setup::draw(&mut chance, options.mutation);
    let faults = Faults::plan(&mut chance.fork(), setup.storm_from, setup.quiet_from, SLOTS);
    let sim = Rc::new(Sim {
        executor: Rc::new(Executor::default()),
        stream: RefCell::new(Stream::new(chance.fork(), setup.shards, setup.records_until)),
        table: RefCell::new(Table::default()),
        faults: RefCell::new(faults),
        checks: RefCell::new(Checks::default()),
        log: RefCell::new(Log::new(options.keep_log)),
        processes: RefCell::default(),
        by_id: RefCell::default(),
        chance: RefCell::new(chance.fork()),
        setup,
    });
    let mut runner = Runner {
        target: sim.setup.workers,
        script: Vec::new(),
        names: 0,
        last_call: None,
        chance,
        sim: Rc::clone(&sim),
    };
    runner.plan();
    runner.play();
    report(seed, &sim)
}

fn report(seed: u64, sim: &Sim) -> Report {
    let finding = sim.checks.borrow_mut().take_finding();
    let violation = finding.map(|finding| {
        let shard = finding.shard.and_then(|shard| u32::try_from(shard).ok());
        let processes = sim.processes.borrow();
        let name = |number: u32| {
            let process = usize::try_from(number)
                .ok()
                .and_then(|number| processes.get(number));
            process.map_or("nobody".to_owned(), |process| format!("{}#{number}", process.id))
        };
        Violation {
            invariant: finding.invariant,
            at: Duration::from_micros(finding.at),
            what: finding.what,
            trace: sim.log.borrow().tail(shard, TRACE, name),
        }
    });
    let missing = sim.faults.borrow().missing();
    let log = sim.log.replace(Log::new(false));
    let report = Report {
        seed,
        digest: log.digest(),
        events: log.count(),
        log: log.into_bytes(),
        simulated: Duration::from_micros(sim.now()),
        processes: sim.processes.borrow().len(),
        shards: sim.stream.borrow().len(),
        records: sim.checks.borrow().handed(),
        faults: sim.faults.borrow().counts().clone(),
        missing_fault: missing.filter(|_| violation.is_none()),
        peaks: sim.checks.borrow().peaks,
        violation,
    };
    // Tasks, processes and the run hold each other.
    let processes = sim.processes.take();
    sim.executor.clear();
    drop(processes);
    report
}

impl Runner {
    fn at(&mut self, at: Micros, deed: Deed) {
        self.script.push((at, deed));
    }

    fn between(&mut self, from: Micros, to: Micros, kind: FaultKind, low: u64, high: u64) {
        for _ in 0..self.chance.between(low, high) {
            let at = self.chance.between(from, to);
            self.at(at, Deed::Fault(kind));
        }
    }

    fn new_name(&mut self) -> WorkerId {
        self.names += 1;
        // Who watches closely is decided by the order of names: it must not be that of the starts.
        let order = self.chance.below(0x1_0000);
        WorkerId::new(format!("w{order:04x}-{}", self.names))
    }

    fn plan(&mut self) {
        let setup = &self.sim.setup;
        let (fleet_from, storm_from, quiet_from) = (setup.fleet_from, setup.storm_from, setup.quiet_from);
        for _ in 0..setup.workers {
            let at = fleet_from + self.chance.below(5 * SECOND);
            let name = self.new_name();
            self.at(at, Deed::Start(name));
        }
        let fair = fleet_from + 60 * SECOND;
        self.between(fair, storm_from, FaultKind::Join, 1, 1);
        self.between(fair, storm_from, FaultKind::PlannedStop, 1, 2);
        self.between(fair, storm_from, FaultKind::Split, 1, 2);
        self.between(fair, storm_from, FaultKind::Merge, 1, 2);
        // The leader's long sleep has to end within the storm.
        self.between(
            storm_from,
            storm_from + 180 * SECOND,
            FaultKind::ZombieLeader,
            1,
            1,
        );
        let last = quiet_from - 100 * SECOND;
        self.between(storm_from, last, FaultKind::Split, 1, 2);
        self.between(storm_from, last, FaultKind::Merge, 1, 2);
        self.between(storm_from, last, FaultKind::Crash, 1, 3);
        self.between(storm_from, last, FaultKind::Restart, 1, 2);
        self.between(storm_from, last, FaultKind::LeaderCrash, 1, 2);
        self.between(storm_from, last, FaultKind::Pause, 1, 4);
        self.between(storm_from, last, FaultKind::Freeze, 1, 3);
        self.between(storm_from, last, FaultKind::PlannedStop, 0, 1);
        self.between(storm_from, last, FaultKind::ClockJump, 1, 3);
    }

    fn play(&mut self) {
        let (end, records_until) = (self.sim.setup.end, self.sim.setup.records_until);
        let mut second = 0;
        while second < end {
            second += SECOND;
            self.run_until(second);
            self.act();
            self.sim.checks.borrow_mut().look(&self.sim);
            if self.sim.checks.borrow().has_found() {
                return;
            }
        }
        self.sim
            .checks
            .borrow_mut()
            .look_at_the_end(&self.sim, records_until);
    }

    fn run_until(&self, until: Micros) {
        let (mut instant, mut steps) = (self.sim.now(), 0);
        while !self.sim.checks.borrow().has_found() && self.sim.executor.step(until) {
            let now = self.sim.now();
            if now != instant {
                (instant, steps) = (now, 0);
            }
            steps += 1;
            if steps > STEPS_MAX {
                self.sim.checks.borrow_mut().on_standstill(now, steps);
            }
        }
    }

    /// Does what is due; what cannot be done now is put off.
    fn act(&mut self) {
        let now = self.sim.now();
        let (due, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.script)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.script = later;
        for (_, deed) in due {
            if !self.is_done(&deed) {
                self.script.push((now + TRY_AGAIN, deed));
            }
        }
        self.help_along(now);
        if now == self.sim.setup.records_until {
            // All load is gone at once.
            self.sim.checks.borrow_mut().on_gone(now);
        }
    }

    /// Makes sure that every kind of failing request happens in every run.
    fn help_along(&mut self, now: Micros) {
        let (storm_from, quiet_from) = (self.sim.setup.storm_from, self.sim.setup.quiet_from);
        let is_time = now >= quiet_from - LAST_CALL && now < quiet_from + LAST_CALL;
        let has_just = self.last_call.is_some_and(|at| now - at < 30 * SECOND);
        if now < storm_from || !is_time || has_just {
            return;
        }
        self.last_call = Some(now);
        let mut slots: Vec<usize> = self.running().iter().map(|process| process.slot).collect();
        self.chance.shuffle(&mut slots);
        let mut faults = self.sim.faults.borrow_mut();
        faults.call(now, slots.first().copied());
    }

    /// Processes that are there, move, and are not about to stop.
    fn running(&self) -> Vec<Rc<Process>> {
        let is_running = |process: &&Rc<Process>| {
            process.is_alive.get() && !process.is_frozen.get() && !process.departing.is_set()
        };
        self.sim
            .processes
            .borrow()
            .iter()
            .filter(is_running)
            .cloned()
            .collect()
    }

    fn leader(&self) -> Option<Rc<Process>> {
        self.running().into_iter().find(|process| process.is_leader())
    }

    /// Somebody whom the fleet can do without for a while.
    fn victim(&mut self) -> Option<Rc<Process>> {
        let mut running = self.running();
        if running.len() + MISSING_MAX <= self.target || running.len() < 2 {
            return None;
        }
        let chosen = self.chance.index(running.len());
        Some(running.swap_remove(chosen))
    }

    fn start(&mut self, id: &WorkerId, slot: Option<usize>) -> bool {
        let is_free = |slot: &usize| {
            let processes = self.sim.processes.borrow();
            !processes
                .iter()
                .any(|process| process.slot == *slot && process.is_alive.get())
        };
        let Some(slot) = slot.or_else(|| (0..SLOTS).find(is_free)) else {
            return false;
        };
        Process::start(&self.sim, slot, id);
        true
    }

    fn start_later(&mut self) {
        let at = self.sim.now() + self.chance.between(5 * SECOND, 60 * SECOND);
        let name = self.new_name();
        self.at(at, Deed::Start(name));
    }

    fn is_done(&mut self, deed: &Deed) -> bool {
        match deed {
            Deed::Fault(kind) => self.has_befallen(*kind),
            Deed::Start(id) => self.start(id, None),
            Deed::Thaw(process) => {
                let process = self.sim.processes.borrow()[*process].clone();
                process.thaw();
                true
            }
            Deed::SetRight(process) => {
                self.sim.processes.borrow()[*process].wall_skew.set(0);
                true
            }
        }
    }

    fn has_befallen(&mut self, kind: FaultKind) -> bool {
        let is_for_leaders = matches!(kind, FaultKind::LeaderCrash | FaultKind::ZombieLeader);
        let process = match kind {
            FaultKind::Split | FaultKind::Merge => return self.reshard(kind),
            FaultKind::Join => {
                self.target += 1;
                let name = self.new_name();
                let has_started = self.start(&name, None);
                self.sim.fault(kind, None);
                return has_started;
            }
            _ => match self.victim() {
                Some(_) if is_for_leaders => self.leader(),
                victim => victim,
            },
        };
        let Some(process) = process else { return false };
        let now = self.sim.now();
        self.sim.fault(kind, Some(process.number));
        match kind {
            FaultKind::PlannedStop => {
                process.ask_to_stop();
                self.start_later();
            }
            FaultKind::Crash | FaultKind::LeaderCrash => {
                process.kill();
                self.start_later();
            }
            FaultKind::Restart => {
                process.kill();
                let slot = Some(process.slot);
                self.start(&process.id, slot);
            }
            FaultKind::ClockJump => {
                let by = i64::try_from(self.chance.between(20_000, 600_000)).unwrap_or(20_000);
                let by = if self.chance.happens(500) { by } else { -by };
                process.wall_skew.set(process.wall_skew.get() + by);
                let right = now + self.chance.between(20 * SECOND, 120 * SECOND);
                self.at(right, Deed::SetRight(process.number));
            }
            _ => {
                let time = match kind {
                    FaultKind::Pause => self.chance.between(500 * MILLI, 9 * SECOND),
                    FaultKind::Freeze => self.chance.between(12 * SECOND, 45 * SECOND),
                    _ => self.chance.between(130 * SECOND, 160 * SECOND),
                };
                process.freeze();
                self.at(now + time, Deed::Thaw(process.number));
            }
        }
        true
    }

    fn reshard(&mut self, kind: FaultKind) -> bool {
        let now = self.sim.now();
        let (parent, what) = if kind == FaultKind::Split {
            (self.sim.stream.borrow_mut().split(now), What::Split)
        } else {
            (self.sim.stream.borrow_mut().merge(now), What::Merged)
        };
        if parent.is_some() {
            self.sim.fault(kind, None);
            self.sim.log(what, None, parent, u64::from(NONE), 0);
        }
        parent.is_some()
    }
}
