//! The fleet as a plan sees and changes it: who holds what, how loaded that makes each worker, and who has room.

use std::collections::BTreeSet;

use super::{
    AssignmentPlan, AssignmentPolicy, AssignmentReport, AssignmentStrategy, BalanceVerdict, FleetView,
    HeldBack, LeaseVerdict, MoveKind, ObservedLease, PlannedMove, RecentMove, Refusal, Standing,
    WorkerVerdict,
};
use crate::ids::WorkerId;
use crate::lease::LeaseWrite;

mod load;
mod setup;

/// More than any shard delivers, in KiB a second; keeps sums finite whatever a row holds.
const MOST_THROUGHPUT: f64 = 1e9;

/// What a worker may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// Leases of both kinds.
    Receives,
    /// Leases that nobody holds, if no other worker has room.
    LastResort,
    /// Nothing.
    Bystander,
}

/// The policy with every value in its range.
pub(super) struct Rules {
    pub(super) threshold: f64,
    pub(super) dampening: f64,
    pub(super) overshoot: bool,
    pub(super) minimum_gain: f64,
    by_count: bool,
    floor: f64,
    most_throughput: f64,
    most_leases: usize,
    lease_base: f64,
    alpha: f64,
    report_seconds: f64,
    minimum_stay: std::time::Duration,
}

impl Rules {
    fn new(policy: &AssignmentPolicy) -> Self {
        let within = |value: f64, most: f64, default: f64| {
            if value.is_nan() {
                default
            } else {
                value.clamp(0.0, most)
            }
        };
        Self {
            threshold: within(policy.rebalance_threshold_percentage, 1000.0, 10.0) / 100.0,
            dampening: within(policy.dampening_percentage, 100.0, 80.0) / 100.0,
            overshoot: policy.allow_throughput_overshoot,
            minimum_gain: within(policy.minimum_gain_percentage, 1000.0, 5.0) / 100.0,
            by_count: policy.strategy == AssignmentStrategy::LeaseCountBased,
            floor: within(policy.utilization_floor, 100.0, 5.0),
            most_throughput: within(policy.max_throughput_per_host_kbps, f64::INFINITY, f64::INFINITY),
            most_leases: policy.max_leases_for_worker,
            lease_base: within(policy.lease_base_kbps, MOST_THROUGHPUT, 0.1),
            alpha: within(policy.worker_metrics_ema_alpha, 1.0, 0.5),
            report_seconds: policy.worker_metrics_report_interval.as_secs_f64().max(1.0),
            minimum_stay: policy.minimum_stay,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Situation {
    Finished,
    Free,
    Held(usize),
    InHandoff { from: usize, to: usize },
    Overdue { from: usize, to: usize },
}

struct LeaseState<'a> {
    observed: &'a ObservedLease<'a>,
    throughput: f64,
    weight: f64,
    situation: Situation,
    decision: Option<(usize, MoveKind)>,
    refused: bool,
}

struct WorkerState {
    id: WorkerId,
    standing: Option<Standing>,
    role: Role,
    suspect: bool,
    /// Unfinished leases that it holds or is to hold, those it is handing over included: what limits are about.
    held: usize,
    held_throughput: f64,
    /// The same without those it is handing over: what load is about.
    leases: usize,
    weight: f64,
    load_before: f64,
    load: f64,
    /// How much load one unit of its leases' weight makes here.
    load_per_weight: f64,
    /// It gets nothing that lifts its load above this.
    ceiling: f64,
    /// Smaller distances from the average do not count.
    floor: f64,
    above_range: bool,
    gets: usize,
    gives: usize,
    held_back: Option<HeldBack>,
}

/// Role, load, leases, throughput (as ordered bits), worker: the least loaded comes first, and ties are settled.
type Rank = (Role, u64, usize, u64, usize);

pub(super) struct Fleet<'a> {
    pub(super) rules: Rules,
    /// Sorted by key.
    leases: Vec<LeaseState<'a>>,
    /// Sorted by id.
    workers: Vec<WorkerState>,
    /// The workers that may get another lease.
    order: BTreeSet<Rank>,
    /// The weight that makes a load of 1.
    fair_share: f64,
    level: f64,
}

impl<'a> Fleet<'a> {
    pub(super) fn new(view: &FleetView<'a>, policy: &AssignmentPolicy) -> Self {
        let rules = Rules::new(policy);
        let observed = setup::sorted_leases(view.leases);
        let views = setup::merged_views(view.workers);
        let mut workers = setup::workers_of(&views, &observed);
        let mut leases = setup::states_of(&observed, &workers, &rules);
        for lease in &mut leases {
            if let Situation::Overdue { from, to } = lease.situation {
                lease.decision = Some(if workers[to].role == Role::Receives {
                    (to, MoveKind::ForceHandoff)
                } else {
                    (from, MoveKind::CallOffHandoff)
                });
            }
        }
        setup::count_holdings(&leases, &mut workers);
        let fair_share = fair_share(&leases, &workers);
        load::set_loads(&rules, &leases, &views, &mut workers, fair_share);
        let mut fleet = Self {
            rules,
            leases,
            workers,
            order: BTreeSet::new(),
            fair_share,
            level: 1.0,
        };
        for worker in 0..fleet.workers.len() {
            fleet.enter(worker);
        }
        fleet
    }

    pub(super) fn free_leases(&self) -> Vec<usize> {
        (0..self.leases.len())
            .filter(|lease| self.leases[*lease].situation == Situation::Free)
            .collect()
    }

    /// The leases that each worker can be asked to hand over, the heaviest first.
    pub(super) fn movable_leases(&self) -> Vec<Vec<usize>> {
        let mut movable = vec![Vec::new(); self.workers.len()];
        for (index, lease) in self.leases.iter().enumerate() {
            if let Situation::Held(worker) = lease.situation
                && lease.decision.is_none()
                && !self.rests(lease)
            {
                movable[worker].push(index);
            }
        }
        for list in &mut movable {
            list.sort_by(|a, b| self.weight(*b).total_cmp(&self.weight(*a)));
        }
        movable
    }

    /// A lease that was handed over a moment ago stays where it is for a while.
    fn rests(&self, lease: &LeaseState<'_>) -> bool {
        let moved: Option<&RecentMove> = lease.observed.moved.as_ref();
        moved.is_some_and(|moved| moved.by_handoff && moved.age < self.rules.minimum_stay)
    }

    /// The workers that leases may be moved away from, the most loaded first.
    pub(super) fn givers(&self) -> Vec<usize> {
        let mut givers: Vec<usize> = (0..self.workers.len())
            .filter(|worker| {
                let worker = &self.workers[*worker];
                worker.leases > 0 && takes_part(worker) && worker.role != Role::LastResort
            })
            .collect();
        givers.sort_by(|a, b| self.load(*b).total_cmp(&self.load(*a)));
        givers
    }

    /// The workers that may get another lease: the least loaded first, suspects last.
    pub(super) fn receivers(&self) -> impl Iterator<Item = usize> {
        self.order.iter().map(|rank| rank.4)
    }

    /// The same without suspects.
    pub(super) fn handoff_receivers(&self) -> impl DoubleEndedIterator<Item = usize> {
        self.order
            .iter()
            .filter(|rank| rank.0 == Role::Receives)
            .map(|rank| rank.4)
    }

    pub(super) fn weight(&self, lease: usize) -> f64 {
        self.leases[lease].weight
    }

    pub(super) fn throughput(&self, lease: usize) -> f64 {
        self.leases[lease].throughput
    }

    pub(super) fn load(&self, worker: usize) -> f64 {
        self.workers[worker].load
    }

    pub(super) fn worker_weight(&self, worker: usize) -> f64 {
        self.workers[worker].weight
    }

    pub(super) fn lease_count(&self, worker: usize) -> usize {
        self.workers[worker].leases
    }

    /// The average load that workers are measured against.
    pub(super) fn level(&self) -> f64 {
        self.level
    }

    /// Takes the average anew, once it is decided who gets what nobody held: that lifts everybody.
    #[expect(clippy::cast_precision_loss, reason = "no fleet has 2^52 workers")]
    pub(super) fn settle_level(&mut self) {
        let loads: Vec<f64> = self
            .workers
            .iter()
            .filter(|worker| takes_part(worker))
            .map(|worker| worker.load)
            .collect();
        let mean = loads.iter().sum::<f64>() / loads.len().max(1) as f64;
        self.level = mean.max(1.0);
    }

    /// Above the average by more than the threshold and the floor, or above its operating range.
    pub(super) fn is_over(&self, worker: usize) -> bool {
        let state = &self.workers[worker];
        state.above_range || (state.load > 1.0 + self.rules.threshold && state.load - 1.0 > state.floor)
    }

    /// Below the average by more than the threshold and the floor.
    pub(super) fn is_under(&self, worker: usize) -> bool {
        let state = &self.workers[worker];
        state.load < self.level * (1.0 - self.rules.threshold) && self.level - state.load > state.floor
    }

    /// Whether the limits let a worker have another lease of this throughput. A lease that exceeds the limit alone must be read all the same: by a worker
    /// that has nothing else.
    pub(super) fn has_room(&self, worker: usize, throughput: f64) -> bool {
        let worker = &self.workers[worker];
        worker.held < self.rules.most_leases
            && (worker.held == 0 || worker.held_throughput + throughput <= self.rules.most_throughput)
    }

    /// The load that the lease would add to a receiver: by what it costs its holder or by its share of the throughput, whichever is more.
    pub(super) fn added_load(&self, lease: usize, giver: usize) -> f64 {
        let weight = self.weight(lease);
        (weight / self.fair_share).max(weight * self.workers[giver].load_per_weight)
    }

    pub(super) fn stays_in_range(&self, worker: usize, added: f64) -> bool {
        self.load(worker) + added <= self.workers[worker].ceiling
    }

    pub(super) fn give(&mut self, lease: usize, to: usize) {
        let kind = if self.leases[lease].observed.lease.actual_owner().is_some() {
            MoveKind::TakeOver
        } else {
            MoveKind::Give
        };
        let added = self.weight(lease) / self.fair_share;
        self.receive(lease, to, kind, added);
    }

    pub(super) fn hand_over(&mut self, lease: usize, from: usize, to: usize) {
        let added = self.added_load(lease, from);
        self.leave(from);
        let weight = self.weight(lease);
        let giver = &mut self.workers[from];
        giver.load = (giver.load - weight * giver.load_per_weight).max(0.0);
        giver.weight = (giver.weight - weight).max(0.0);
        giver.leases = giver.leases.saturating_sub(1);
        giver.gives += 1;
        self.enter(from);
        self.receive(lease, to, MoveKind::Handoff, added);
    }

    fn receive(&mut self, lease: usize, to: usize, kind: MoveKind, added: f64) {
        self.leave(to);
        let (weight, throughput) = (self.weight(lease), self.throughput(lease));
        let receiver = &mut self.workers[to];
        receiver.load += added;
        receiver.weight += weight;
        receiver.leases += 1;
        receiver.held += 1;
        receiver.held_throughput += throughput;
        receiver.gets += 1;
        self.enter(to);
        self.leases[lease].decision = Some((to, kind));
    }

    pub(super) fn refuse(&mut self, lease: usize) {
        self.leases[lease].refused = true;
    }

    pub(super) fn hold_back(&mut self, worker: usize, why: HeldBack) {
        self.workers[worker].held_back = Some(why);
    }

    fn rank(&self, worker: usize) -> Rank {
        let state = &self.workers[worker];
        // The bits of numbers that are not negative are in the numbers' order.
        let bits = |value: f64| value.max(0.0).to_bits();
        (
            state.role,
            bits(state.load),
            state.leases,
            bits(state.held_throughput),
            worker,
        )
    }

    fn leave(&mut self, worker: usize) {
        let rank = self.rank(worker);
        self.order.remove(&rank);
    }

    fn enter(&mut self, worker: usize) {
        let state = &self.workers[worker];
        if state.role != Role::Bystander && state.held < self.rules.most_leases {
            self.order.insert(self.rank(worker));
        }
    }

    fn why_refused(&self) -> Refusal {
        let mut receivers = self
            .workers
            .iter()
            .filter(|worker| worker.role != Role::Bystander)
            .peekable();
        if receivers.peek().is_none() {
            Refusal::NoWorker
        } else if receivers.all(|worker| worker.held >= self.rules.most_leases) {
            Refusal::LeaseLimit
        } else {
            Refusal::ThroughputLimit
        }
    }

    pub(super) fn into_plan(self, balance: BalanceVerdict) -> (AssignmentPlan, AssignmentReport) {
        let refusal = self.why_refused();
        let mut plan = AssignmentPlan::default();
        let mut verdicts = Vec::with_capacity(self.leases.len());
        for state in &self.leases {
            let lease = state.observed.lease;
            let verdict = match (state.decision, state.situation) {
                (Some((to, kind)), _) => {
                    let to = &self.workers[to].id;
                    let write = match kind {
                        MoveKind::Handoff => LeaseWrite::start_handoff(lease, to),
                        MoveKind::TakeOver => Some(LeaseWrite::take(lease, to)),
                        MoveKind::Give | MoveKind::ForceHandoff | MoveKind::CallOffHandoff => {
                            Some(LeaseWrite::assign(lease, to))
                        }
                    };
                    plan.moves.extend(write.map(|write| PlannedMove {
                        lease_key: lease.lease_key.clone(),
                        from: lease.actual_owner().cloned(),
                        to: to.clone(),
                        kind,
                        write,
                    }));
                    LeaseVerdict::Moves { to: to.clone(), kind }
                }
                (None, _) if state.refused => LeaseVerdict::Waits(refusal),
                (None, Situation::Finished) => LeaseVerdict::Finished,
                (None, Situation::InHandoff { to, .. }) => LeaseVerdict::HandoffUnderWay {
                    to: self.workers[to].id.clone(),
                },
                (None, _) => LeaseVerdict::Kept,
            };
            verdicts.push((lease.lease_key.clone(), verdict));
        }
        let workers = self
            .workers
            .into_iter()
            .map(|worker| WorkerVerdict {
                worker_id: worker.id,
                standing: worker.standing,
                suspect: worker.suspect,
                load_before: worker.load_before,
                load_after: worker.load,
                leases_after: worker.leases,
                gets: worker.gets,
                gives: worker.gives,
                held_back: worker.held_back,
            })
            .collect();
        let report = AssignmentReport {
            leases: verdicts,
            workers,
            balance,
        };
        (plan, report)
    }
}

/// Whether the worker's share of the load belongs to the average.
fn takes_part(worker: &WorkerState) -> bool {
    match worker.role {
        Role::Receives => true,
        Role::LastResort => false,
        // It renews leases, or is expected to: it works, even though it does not say how much.
        Role::Bystander => worker.standing != Some(Standing::Leaving) && !worker.suspect && worker.held > 0,
    }
}

#[expect(clippy::cast_precision_loss, reason = "no fleet has 2^52 workers")]
fn fair_share(leases: &[LeaseState<'_>], workers: &[WorkerState]) -> f64 {
    let total: f64 = leases
        .iter()
        .filter(|lease| lease.situation != Situation::Finished)
        .map(|lease| lease.weight)
        .sum();
    let regular = workers.iter().filter(|worker| takes_part(worker)).count();
    let others = workers
        .iter()
        .filter(|worker| worker.role == Role::LastResort)
        .count();
    let share = total / (if regular > 0 { regular } else { others.max(1) }) as f64;
    if share.is_finite() && share > 0.0 {
        share
    } else {
        1.0
    }
}
