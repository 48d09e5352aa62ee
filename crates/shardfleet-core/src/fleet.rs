//! What a worker knows of its fleet from looking at the table, and what follows from it.
//!
//! An accumulator with planners. Every worker feeds each of its scans to [`FleetWatch::observe`], which keeps the clocks: since when a lease's counter stands
//! still, nobody holds it, or a handoff is under way, and who held it before. So whoever becomes leader knows at once what is expired. From the same
//! [`FleetSnapshot`] four plans can be made:
//!
//! * [`FleetWatch::plan_assignment`], the leader's: who is to hold what (`assignment`);
//! * [`FleetWatch::plan_takeover`], any worker's: what it may take although no leader said so;
//! * [`FleetWatch::plan_departure`], of a worker that stops: to whom it hands each of its leases;
//! * [`FleetWatch::duty`]: how closely this worker is to watch the others.
//!
//! It never looks at a wall clock but to compare the times in workers' metrics, and writes nothing itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::assignment::{
    self, AssignmentPlan, AssignmentPolicy, AssignmentReport, BalanceVerdict, FleetView, ObservedLease,
    RecentMove, Standing, WorkerView,
};
use crate::ids::{LeaseKey, WorkerId};
use crate::leader::LockRow;
use crate::lease::{Lease, LeaseClock, LeaseWrite};
use crate::shard_sync::blocking_parent;
use crate::time::{Moment, Timestamp};
use crate::worker_metrics::WorkerMetricStats;

mod takeover;

pub use takeover::TakeoverQuestion;

/// How many workers besides the leader watch the leases closely, so that a leader's death is noticed as soon as any other worker's.
pub const DEPUTIES: usize = 2;

/// Up to so many workers all of them do: whoever died lately still counts as one, and deputies that died before their leader would be no help.
pub const SMALL_FLEET: usize = 8;

/// In how many runs after a worker has joined leases may be moved in each run, at most.
const SETTLING_RUNS: u32 = 12;

/// What one scan of the table found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FleetSnapshot {
    /// Every lease that could be read.
    pub leases: BTreeMap<LeaseKey, Lease>,
    /// The workers' metrics.
    pub workers: Vec<WorkerMetricStats>,
    /// The leader's lock, as far as a scan shows it: it may lag behind.
    pub leader_lock: Option<LockRow>,
}

/// The settings of a fleet; the same for all of its workers.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetPolicy {
    /// `failoverTimeMillis`: a lease that was not written for longer is expired. Default 10 s.
    pub failover_time: Duration,
    /// `gracefulLeaseHandoffTimeoutMillis`: how long a holder may take to hand a lease over. Default 30 s; on top of it the leader waits for the failover time.
    pub handoff_timeout: Duration,
    /// `isGracefulLeaseHandoffEnabled`: whether live leases are moved by asking their holders. Without it they are not moved at all. Default true.
    pub handoff_enabled: bool,
    /// How long the leader has to give out a lease that nobody holds before others take it. Default 1.8 s.
    pub takeover_grace: Duration,
    /// How often leases may be moved between live workers (`varianceBalancingFrequency` times `leaseAssignmentIntervalMillis` of the Java KCL). Default 60 s.
    pub balance_interval: Duration,
    /// How leases are shared out.
    pub assignment: AssignmentPolicy,
}

impl Default for FleetPolicy {
    fn default() -> Self {
        Self {
            failover_time: Duration::from_secs(10),
            handoff_timeout: Duration::from_secs(30),
            handoff_enabled: true,
            takeover_grace: Duration::from_millis(1800),
            balance_interval: Duration::from_mins(1),
            assignment: AssignmentPolicy::default(),
        }
    }
}

/// How closely a worker is to watch the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// It leads, and sees everything.
    Leader,
    /// It keeps clocks of all leases, in case the leader dies.
    Deputy,
    /// It looks for its own leases, and at the rest now and then.
    Follower,
}

/// Why a worker takes a lease by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeReason {
    /// Nobody holds it.
    Unowned,
    /// Its holder has not renewed it.
    Expired,
    /// It is under this worker's own name, and nothing in this process reads it.
    OwnName,
}

/// A lease to take.
#[derive(Clone, Debug, PartialEq)]
pub struct Take {
    /// Which.
    pub lease_key: LeaseKey,
    /// The write that takes it, unless somebody else writes the row first.
    pub write: LeaseWrite,
    /// Why.
    pub reason: TakeReason,
}

/// A lease that a stopping worker hands over.
#[derive(Clone, Debug, PartialEq)]
pub struct Departure {
    /// Which.
    pub lease_key: LeaseKey,
    /// To whom.
    pub to: WorkerId,
}

/// What a worker has seen of its fleet.
#[derive(Clone, Debug)]
pub struct FleetWatch {
    me: WorkerId,
    policy: FleetPolicy,
    clock: LeaseClock,
    /// Since when nobody holds a lease that could be read.
    free_since: BTreeMap<LeaseKey, Moment>,
    /// The pair of owners of a handoff under way, and since when.
    handoffs: BTreeMap<LeaseKey, ((Option<WorkerId>, WorkerId), Moment)>,
    holders: BTreeMap<LeaseKey, Holder>,
    /// Active workers other than this one, as of the last scan.
    roster: BTreeSet<WorkerId>,
    /// Workers that had a row of metrics in the last scan, however old.
    reporters: BTreeSet<WorkerId>,
    /// Workers that held an unfinished lease in the last scan.
    holding: BTreeSet<WorkerId>,
    has_seen_roster: bool,
    /// When the last scan was made.
    scanned: Option<Moment>,
    /// Workers that let a lease expire and have shown no sign of life since.
    suspects: BTreeMap<WorkerId, Suspect>,
    last_balance: Option<Moment>,
    settling: u32,
    /// When the last worker joined.
    joined_at: Option<Moment>,
}

#[derive(Clone, Debug)]
struct Holder {
    now: Option<WorkerId>,
    counter: u64,
    moved: Option<SeenMove>,
}

#[derive(Clone, Debug)]
struct Suspect {
    /// When it last reported before that, in seconds of its own clock.
    reported: u64,
    /// None of its leases was alive at some time since.
    is_silent: bool,
    /// It let leases expire, which others have now.
    has_lost: bool,
}

#[derive(Clone, Debug)]
struct SeenMove {
    /// Who held the lease before.
    from: Option<WorkerId>,
    /// That one was alive.
    by_handoff: bool,
    /// When it was first seen to begin.
    began: Moment,
    /// When the change was seen.
    at: Moment,
}

impl FleetWatch {
    /// A watch that has seen nothing.
    pub fn new(me: WorkerId, policy: FleetPolicy) -> Self {
        Self {
            me,
            policy,
            clock: LeaseClock::default(),
            free_since: BTreeMap::new(),
            handoffs: BTreeMap::new(),
            holders: BTreeMap::new(),
            roster: BTreeSet::new(),
            reporters: BTreeSet::new(),
            holding: BTreeSet::new(),
            has_seen_roster: false,
            scanned: None,
            suspects: BTreeMap::new(),
            last_balance: None,
            settling: 0,
            joined_at: None,
        }
    }

    /// Notes a scan that was made at `now`.
    pub fn observe(&mut self, now: Moment, wall: Timestamp, snapshot: &FleetSnapshot) {
        let leases = &snapshot.leases;
        for lease in leases.values() {
            let was_expired = self.is_expired(now, lease);
            self.note_life(now, lease, was_expired, snapshot);
            self.note_holder(now, lease, was_expired);
            self.note_handoff(now, lease);
            let is_free = lease.actual_owner().is_none()
                && !lease.is_finished()
                && blocking_parent(lease, leases).is_none();
            if is_free {
                self.free_since.entry(lease.lease_key.clone()).or_insert(now);
            } else {
                self.free_since.remove(&lease.lease_key);
            }
        }
        let alive: BTreeSet<&WorkerId> = leases
            .values()
            .filter(|lease| !lease.is_finished() && !self.is_expired(now, lease))
            .filter_map(Lease::actual_owner)
            .collect();
        for (id, suspect) in &mut self.suspects {
            suspect.is_silent |= !alive.contains(id);
        }
        self.clock.observe(now, leases.values());
        self.clock.retain(|key| leases.contains_key(key));
        self.free_since.retain(|key, _| leases.contains_key(key));
        self.handoffs.retain(|key, _| leases.contains_key(key));
        self.holders.retain(|key, _| leases.contains_key(key));
        let mut is_back = false;
        self.suspects
            .retain(|id, suspect| match last_report(id, snapshot) {
                None => false,
                Some(at) if at <= suspect.reported => true,
                Some(_) => {
                    is_back |= suspect.has_lost && suspect.is_silent;
                    false
                }
            });
        if is_back {
            // It has lost what it held, such as one that was frozen, and gets its share again as one who joins does.
            self.settling = SETTLING_RUNS;
            self.joined_at = Some(now);
        }
        let unfinished = leases.values().filter(|lease| !lease.is_finished());
        self.holding = unfinished.filter_map(Lease::actual_owner).cloned().collect();
        if !self.has_seen_roster {
            self.doubt_idlers(wall, snapshot);
        }
        self.note_roster(now, wall, snapshot);
        self.scanned = Some(now);
    }

    /// Whoever lets a lease expire is taken for dead until it renews one or reports again. Without that memory two dead workers would be given each other's leases
    /// in turn, each looking alive for as long as it takes what it was given to expire.
    fn note_life(&mut self, now: Moment, lease: &Lease, is_expired: bool, snapshot: &FleetSnapshot) {
        let Some(holder) = lease.actual_owner().filter(|holder| **holder != self.me) else {
            return;
        };
        self.note_taken(now, lease, snapshot);
        if is_expired && !lease.is_finished() {
            if let Some(reported) = last_report(holder, snapshot) {
                let suspect = Suspect {
                    reported,
                    is_silent: false,
                    has_lost: true,
                };
                self.suspects.entry(holder.clone()).or_insert(suspect);
            }
            return;
        }
        let has_renewed = self
            .holders
            .get(&lease.lease_key)
            .is_some_and(|known| known.now.as_ref() == Some(holder) && known.counter != lease.counter);
        if has_renewed {
            self.suspects.remove(holder);
        }
    }

    /// Somebody else may have taken an expired lease before this worker saw it expire. A holder that is alive renews thrice in that time; one whose lease stood still for
    /// most of it, and was then taken from it without a handoff, is taken for dead as well.
    fn note_taken(&mut self, now: Moment, lease: &Lease, snapshot: &FleetSnapshot) {
        let Some(known) = self.holders.get(&lease.lease_key) else {
            return;
        };
        let Some(before) = known.now.as_ref().filter(|before| **before != self.me) else {
            return;
        };
        // Who looks seldom cannot tell a still lease from one that was renewed meanwhile.
        let looks_often = self.scanned;
        let looks_often = looks_often.is_some_and(|at| now.since(at) <= self.policy.failover_time / 2);
        let stood_still = self.clock.still_since(&lease.lease_key);
        let stood_still = stood_still.is_some_and(|at| now.since(at) >= self.policy.failover_time * 3 / 5);
        let is_handoff = self.handoffs.contains_key(&lease.lease_key);
        if lease.actual_owner() == Some(before) || is_handoff || !looks_often || !stood_still {
            return;
        }
        if let Some(reported) = last_report(before, snapshot) {
            let suspect = Suspect {
                reported,
                is_silent: false,
                has_lost: true,
            };
            self.suspects.entry(before.clone()).or_insert(suspect);
        }
    }

    /// On the first scan, whoever holds nothing and has not reported for longer than a lease lives may have died before this worker came: its report counts for a minute,
    /// and leases given to it would stand still once more until they expire. It is taken for dead until it reports again.
    fn doubt_idlers(&mut self, wall: Timestamp, snapshot: &FleetSnapshot) {
        let silent_before = Timestamp::from_millis(
            wall.millis()
                .saturating_sub(u64::try_from(self.policy.failover_time.as_millis()).unwrap_or(u64::MAX)),
        );
        for stats in &snapshot.workers {
            let reported = stats.last_update_seconds.unwrap_or(0);
            let holds = self.holding.contains(&stats.worker_id);
            if stats.worker_id != self.me && !holds && reported < silent_before.millis() / 1000 {
                let suspect = Suspect {
                    reported,
                    is_silent: true,
                    has_lost: false,
                };
                self.suspects.insert(stats.worker_id.clone(), suspect);
            }
        }
    }

    /// Notes a row that this worker wrote or read by itself at `now`.
    pub fn observe_one(&mut self, now: Moment, lease: &Lease) {
        let was_expired = self.is_expired(now, lease);
        self.note_holder(now, lease, was_expired);
        self.note_handoff(now, lease);
        if lease.actual_owner().is_some() {
            self.free_since.remove(&lease.lease_key);
        }
        self.clock.observe(now, [lease]);
    }

    fn note_holder(&mut self, now: Moment, lease: &Lease, was_expired: bool) {
        let holder = lease.actual_owner();
        match self.holders.get_mut(&lease.lease_key) {
            None => {
                let holder = Holder {
                    now: holder.cloned(),
                    counter: lease.counter,
                    moved: None,
                };
                self.holders.insert(lease.lease_key.clone(), holder);
            }
            Some(known) if known.now.as_ref() != holder => {
                known.counter = lease.counter;
                let from = std::mem::replace(&mut known.now, holder.cloned());
                let by_handoff = from.is_some() && !was_expired;
                let began = self
                    .handoffs
                    .get(&lease.lease_key)
                    .map_or(now, |(_, since)| *since);
                known.moved = Some(SeenMove {
                    from,
                    by_handoff,
                    began,
                    at: now,
                });
            }
            Some(known) => known.counter = lease.counter,
        }
    }

    fn note_handoff(&mut self, now: Moment, lease: &Lease) {
        let Some(from) = &lease.checkpoint_owner else {
            self.handoffs.remove(&lease.lease_key);
            return;
        };
        let pair = (lease.owner.clone(), from.clone());
        match self.handoffs.get(&lease.lease_key) {
            Some((known, _)) if *known == pair => {}
            _ => {
                self.handoffs.insert(lease.lease_key.clone(), (pair, now));
            }
        }
    }

    fn note_roster(&mut self, now: Moment, wall: Timestamp, snapshot: &FleetSnapshot) {
        let active: BTreeSet<WorkerId> = self
            .views(wall, snapshot)
            .into_iter()
            .filter(|view| view.standing == Standing::Active && view.worker_id != self.me)
            .map(|view| view.worker_id)
            .collect();
        let has_new = active.difference(&self.roster).next().is_some();
        if has_new && self.has_seen_roster {
            self.settling = SETTLING_RUNS;
            // Whoever only seems to come and go, such as one whose clock is wrong, is no reason to move leases again that have just moved.
            if active.iter().any(|id| !self.reporters.contains(id)) {
                self.joined_at = Some(now);
            }
        }
        self.reporters = snapshot
            .workers
            .iter()
            .map(|stats| stats.worker_id.clone())
            .collect();
        self.roster = active;
        self.has_seen_roster = true;
    }

    fn is_expired(&self, now: Moment, lease: &Lease) -> bool {
        self.clock.is_expired(now, lease, self.policy.failover_time)
    }

    /// When the first lease that another worker holds expires, unless it is renewed. A look right then tells.
    pub fn next_expiry(&self, snapshot: &FleetSnapshot) -> Option<Moment> {
        let others = snapshot.leases.values().filter(|lease| {
            !lease.is_finished() && lease.actual_owner().is_some_and(|owner| *owner != self.me)
        });
        others
            .filter_map(|lease| self.clock.expires_at(lease, self.policy.failover_time))
            .map(|at| at + Duration::from_millis(1))
            .min()
    }

    /// When the first lease that nobody holds may be taken without the leader.
    pub fn next_free(&self) -> Option<Moment> {
        let since = self.free_since.values().min()?;
        Some(*since + self.policy.takeover_grace)
    }

    /// Since when the counter of a lease that another worker holds has stood still for longer than the failover time.
    pub fn expired_since(&self, now: Moment, lease: &Lease) -> Option<Moment> {
        let at = self.clock.expires_at(lease, self.policy.failover_time)?;
        (now > at).then_some(at)
    }

    /// The other workers that were active in the last scan.
    pub fn roster(&self) -> &BTreeSet<WorkerId> {
        &self.roster
    }

    /// Whether all leases of this worker have expired, and it has neither renewed one nor reported since: its lock need not be waited for.
    pub fn is_silent(&self, worker_id: &WorkerId) -> bool {
        self.suspects
            .get(worker_id)
            .is_some_and(|suspect| suspect.is_silent)
    }

    /// How closely to watch, given who leads.
    pub fn duty(&self, leader: Option<&WorkerId>) -> Duty {
        if leader == Some(&self.me) {
            return Duty::Leader;
        }
        if self.roster.len() < SMALL_FLEET {
            return Duty::Deputy;
        }
        // The dead report no more, but that shows late; that others have their leases shows at once.
        let may_live = |worker: &WorkerId| {
            self.holding.contains(worker) && !self.suspects.contains_key(worker) && Some(worker) != leader
        };
        let before_me = self
            .roster
            .iter()
            .filter(|worker| **worker < self.me && may_live(worker))
            .count();
        if before_me < DEPUTIES {
            Duty::Deputy
        } else {
            Duty::Follower
        }
    }

    fn views(&self, wall: Timestamp, snapshot: &FleetSnapshot) -> Vec<WorkerView> {
        snapshot
            .workers
            .iter()
            .filter_map(|stats| WorkerView::from_stats(stats, wall, &self.policy.assignment))
            .map(|view| WorkerView {
                suspect: self.suspects.contains_key(&view.worker_id),
                ..view
            })
            .collect()
    }

    /// The workers' views with this one among the active ones, whatever a scan that lags behind shows.
    fn views_with_me(&self, wall: Timestamp, snapshot: &FleetSnapshot) -> Vec<WorkerView> {
        let mut views = self.views(wall, snapshot);
        match views.iter_mut().find(|view| view.worker_id == self.me) {
            Some(view) => {
                if view.standing == Standing::Expired {
                    view.standing = Standing::Active;
                }
            }
            None => views.push(WorkerView::without_metrics(&self.me)),
        }
        views
    }

    fn observed<'a>(&self, now: Moment, lease: &'a Lease) -> ObservedLease<'a> {
        let patience = self.policy.handoff_timeout + self.policy.failover_time;
        let handoff_overdue = self
            .handoffs
            .get(&lease.lease_key)
            .is_some_and(|(_, since)| now.since(*since) > patience);
        let moved = self.holders.get(&lease.lease_key).and_then(|holder| {
            // What moved before somebody joined may move on to them at once: workers that start one after another are no reason to wait.
            let moved = holder.moved.as_ref()?;
            if self.joined_at.is_some_and(|joined| moved.began < joined) {
                return None;
            }
            Some(RecentMove {
                from: moved.from.clone(),
                by_handoff: moved.by_handoff,
                age: now.since(moved.at),
            })
        });
        ObservedLease {
            lease,
            expired: self.is_expired(now, lease),
            handoff_overdue,
            moved,
        }
    }

    /// The leases that an assignment is about: those that wait for their parents are nobody's yet.
    fn assignable<'a>(&self, now: Moment, snapshot: &'a FleetSnapshot) -> Vec<ObservedLease<'a>> {
        snapshot
            .leases
            .values()
            .filter(|lease| {
                lease.actual_owner().is_some()
                    || lease.is_finished()
                    || blocking_parent(lease, &snapshot.leases).is_none()
            })
            .map(|lease| self.observed(now, lease))
            .collect()
    }

    /// Plans who is to hold what, for the leader. Leases are moved between live workers on the first run, every [`FleetPolicy::balance_interval`], and in
    /// the runs after a worker joined until the fleet is even.
    pub fn plan_assignment(
        &mut self,
        now: Moment,
        wall: Timestamp,
        snapshot: &FleetSnapshot,
    ) -> (AssignmentPlan, AssignmentReport) {
        let is_due = self
            .last_balance
            .is_none_or(|at| now.since(at) >= self.policy.balance_interval);
        let balance = self.policy.handoff_enabled && (is_due || self.settling > 0);
        let leases = self.assignable(now, snapshot);
        let workers = self.views_with_me(wall, snapshot);
        let view = FleetView {
            leases: &leases,
            workers: &workers,
            balance,
        };
        let (plan, report) = assignment::plan(&view, &self.policy.assignment);
        if balance {
            self.last_balance = Some(now);
            self.settling = self.settling.saturating_sub(1);
            let is_quiet = snapshot
                .leases
                .values()
                .all(|lease| lease.checkpoint_owner.is_none());
            let is_even = matches!(
                report.balance,
                BalanceVerdict::Even | BalanceVerdict::Uneven { handoffs: 0 }
            );
            if is_even && is_quiet && plan.moves.is_empty() {
                self.settling = 0;
            }
        }
        (plan, report)
    }

    /// This worker begins to lead: its first run balances.
    pub fn on_leading(&mut self) {
        self.last_balance = None;
    }
}

/// When a worker last reported, in seconds of its own clock; `None` for one that has no row.
fn last_report(worker_id: &WorkerId, snapshot: &FleetSnapshot) -> Option<u64> {
    let reports = snapshot
        .workers
        .iter()
        .filter(|stats| stats.worker_id == *worker_id);
    reports.map(|stats| stats.last_update_seconds.unwrap_or(0)).max()
}

#[cfg(test)]
mod tests;
