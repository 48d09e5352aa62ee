//! The loop that every worker runs: it looks at the table, finds out what is this worker's to read, and does the leader's work where this worker leads.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use shardfleet_core::fleet::{Duty, FleetSnapshot, FleetWatch, TakeReason, TakeoverQuestion};
use shardfleet_core::fleet_audit::HoleAudit;
use shardfleet_core::ids::LeaseKey;
use shardfleet_core::retry::Backoff;
use shardfleet_core::time::Moment;

use super::leading::Duties;
use super::{Outcome, Process, election, reporting};
use crate::exec::Micros;
use crate::log::What;
use crate::mutation::Mutation;
use crate::store::StoreFailure;
use crate::sync::{First, Flag, first};

const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// The shortest time between two looks that were called for by a clock.
const SHORTEST_LOOK: Duration = Duration::from_millis(20);

/// Runs the loop until the worker has stopped.
pub(super) async fn run(process: &Rc<Process>) {
    let mut coordinator = Coordinator::new(Rc::clone(process));
    if let First::Right(()) = first(process.departing.raised(), coordinator.open()).await {
        coordinator.serve().await;
    }
    coordinator.stop().await;
}

pub(super) struct Coordinator {
    pub(super) process: Rc<Process>,
    pub(super) watch: FleetWatch,
    pub(super) audit: HoleAudit,
    pub(super) duties: Duties,
    /// Leases whose readers gave up: they are left alone until shards are next listed.
    pub(super) resting: BTreeSet<LeaseKey>,
    /// Leases that are being handed to this worker.
    pub(super) pending: BTreeSet<LeaseKey>,
    /// Finished leases under this worker's name.
    pub(super) finished: BTreeSet<LeaseKey>,
    /// Raised once the election is over.
    pub(super) election_end: Option<Rc<Flag>>,
    next_listing: Moment,
    next_look: Moment,
    next_pending: Moment,
    next_alarm: Option<Moment>,
    last_scan: Moment,
    /// When the last scan was asked for.
    pub(super) scan_began: Micros,
    has_just_scanned: bool,
    failures: u32,
    is_first_pass: bool,
}

impl Coordinator {
    fn new(process: Rc<Process>) -> Self {
        let mut policy = process.sim.setup.fleet.clone();
        if process.has(Mutation::Restless) {
            policy.balance_interval = Duration::from_secs(10);
            policy.assignment.minimum_stay = Duration::ZERO;
            policy.assignment.rebalance_threshold_percentage = 0.0;
            policy.assignment.minimum_gain_percentage = 0.0;
            policy.assignment.utilization_floor = 0.0;
        }
        if process.has(Mutation::NoLimit) {
            policy.assignment.max_leases_for_worker = usize::MAX;
        }
        Self {
            watch: FleetWatch::new(process.id.clone(), policy),
            audit: HoleAudit::default(),
            duties: Duties::default(),
            resting: BTreeSet::new(),
            pending: BTreeSet::new(),
            finished: BTreeSet::new(),
            election_end: None,
            next_listing: Moment::default(),
            next_look: Moment::default(),
            next_pending: Moment::default(),
            next_alarm: None,
            last_scan: Moment::default(),
            scan_began: 0,
            has_just_scanned: false,
            failures: 0,
            is_first_pass: true,
            process,
        }
    }

    async fn open(&mut self) {
        let mut attempt = 0;
        while self.try_open().await.is_err() {
            self.process.sleep(self.process.delay(&RETRY, attempt)).await;
            attempt += 1;
        }
        self.is_first_pass = false;
    }

    async fn try_open(&mut self) -> Result<(), StoreFailure> {
        // The others are to know of this worker before leases are shared out.
        reporting::report(&self.process).await?;
        if self.election_end.is_none() {
            let end = Rc::new(Flag::default());
            self.election_end = Some(Rc::clone(&end));
            let worker = Rc::clone(&self.process);
            self.process.spawn(async move {
                election::run(&worker).await;
                end.set();
            });
            let worker = Rc::clone(&self.process);
            self.process.spawn(async move { reporting::run(&worker).await });
        }
        self.look().await
    }

    async fn serve(&mut self) {
        let process = Rc::clone(&self.process);
        loop {
            let due = self.next_due();
            let wakes = first(process.leader_changed.taken(), process.sleep_until(due));
            let wakes = first(process.has_ends.taken(), wakes);
            match first(process.departing.raised(), wakes).await {
                First::Left(()) => return,
                First::Right(First::Left(())) => self.put_away().await,
                First::Right(First::Right(_)) => self.look_and_report().await,
            }
        }
    }

    fn next_due(&self) -> Moment {
        let mut due = self.next_look;
        if !self.pending.is_empty() {
            due = due.min(self.next_pending);
        }
        self.next_alarm.map_or(due, |alarm| due.min(alarm))
    }

    async fn look_and_report(&mut self) {
        let process = Rc::clone(&self.process);
        let outcome = match first(process.departing.raised(), self.look()).await {
            // A store that hangs must not hold up a stop.
            First::Left(()) => return,
            First::Right(outcome) => outcome,
        };
        if process.is_leader() {
            process
                .election
                .borrow_mut()
                .on_run(process.now(), outcome.is_ok());
            if outcome.is_err() {
                process.election_poke.give();
            }
        }
        if outcome.is_ok() {
            self.failures = 0;
        } else {
            let again = process.now() + process.delay(&RETRY, self.failures);
            self.failures += 1;
            self.next_look = again;
            self.next_pending = again;
            self.next_alarm = self.next_alarm.map(|alarm| alarm.max(again));
            self.next_listing = self.next_listing.max(again);
        }
    }

    /// One look at what is due.
    async fn look(&mut self) -> Result<(), StoreFailure> {
        let now = self.process.now();
        let pace = self.process.sim.setup.pace;
        self.process
            .sim
            .log(What::Looked, Some(self.process.number), None, 0, 0);
        let is_alarm = self.next_alarm.is_some_and(|alarm| now >= alarm);
        let is_due = self.is_first_pass || is_alarm || now >= self.next_look;
        if is_due || self.process.is_leader() != self.duties.is_leading() {
            self.next_alarm = None;
            let duty = self.duty();
            let scans = match duty {
                Duty::Leader => true,
                Duty::Deputy => !self.has_just_scanned,
                Duty::Follower => now.since(self.last_scan) >= pace.follower_scan,
            };
            let interval = if duty == Duty::Leader {
                pace.assignment
            } else {
                pace.discovery
            };
            self.next_look = now + interval;
            if scans || is_alarm || self.is_first_pass || self.lists_alone(now) {
                self.look_at_all(duty).await?;
            } else {
                self.has_just_scanned = false;
                self.look_at_own().await?;
            }
        }
        if !self.pending.is_empty() && now >= self.next_pending {
            self.look_at_pending().await?;
            self.next_pending = self.process.now() + pace.pending;
        }
        Ok(())
    }

    fn duty(&self) -> Duty {
        if self.process.is_leader() {
            return Duty::Leader;
        }
        match self.watch.duty(self.process.leader().as_ref()) {
            // Its lock has run out, or is being given up.
            Duty::Leader => Duty::Deputy,
            duty => duty,
        }
    }

    /// Listing the shards is the leader's work, and everybody's while nobody leads.
    fn lists_alone(&self, now: Moment) -> bool {
        now >= self.next_listing && self.process.leader().is_none()
    }

    async fn look_at_all(&mut self, duty: Duty) -> Result<(), StoreFailure> {
        let process = Rc::clone(&self.process);
        let mut snapshot = self.scan().await?;
        let now = process.now();
        let mut listed = Ok(None);
        let lists = duty == Duty::Leader || self.is_first_pass || self.lists_alone(now);
        let lists = lists && (snapshot.leases.is_empty() || !process.has(Mutation::ForgetChildren));
        if lists && (now >= self.next_listing || snapshot.leases.is_empty()) {
            match self.sync_shards(&snapshot).await {
                Ok(listing) => {
                    if listing.has_changed {
                        snapshot = self.scan().await?;
                    }
                    self.next_listing = process.now() + process.sim.setup.pace.listing;
                    self.resting.clear();
                    listed = Ok(Some(listing));
                }
                // Leases that others lost or released can be read on all the same.
                Err(failure) => listed = Err(failure),
            }
        } else if now >= self.next_listing {
            self.resting.clear();
            self.next_listing = now + process.sim.setup.pace.listing;
        }
        self.note_own_rows(&snapshot);
        self.finished.clear();
        self.take_over(duty, &snapshot).await?;
        let holder = snapshot.leader_lock.as_ref().and_then(|row| row.owner.as_ref());
        let is_anothers = holder.is_some_and(|holder| *holder != process.id);
        if duty == Duty::Leader && is_anothers && !process.has(Mutation::EternalLeader) {
            if process.election.borrow_mut().doubt(process.now()) {
                process.election_poke.give();
            }
        } else if duty == Duty::Leader {
            let listing = listed.as_ref().ok().and_then(Option::as_ref);
            self.lead(&snapshot, listing).await?;
        } else {
            self.duties.stop_leading();
            let has_changed = match holder {
                None => process.election.borrow_mut().look_now(process.now()),
                Some(holder) if self.watch.is_silent(holder) => {
                    process.election.borrow_mut().on_silent(process.now(), holder)
                }
                Some(_) => false,
            };
            if has_changed {
                process.election_poke.give();
            }
        }
        self.set_alarm(duty, &snapshot);
        listed.map(|_| ())
    }

    async fn scan(&mut self) -> Result<FleetSnapshot, StoreFailure> {
        self.scan_began = self.process.sim.now();
        let snapshot = self.process.store.scan().await?;
        let now = self.process.now();
        self.watch.observe(now, self.process.wall(), &snapshot);
        self.last_scan = now;
        self.has_just_scanned = true;
        Ok(snapshot)
    }

    /// Finds what the table says of this worker's leases that their tasks do not know yet.
    fn note_own_rows(&mut self, snapshot: &FleetSnapshot) {
        let me = &self.process.id;
        let shards = self.process.shards.borrow();
        self.pending.retain(|key| snapshot.leases.contains_key(key));
        for (key, lease) in &snapshot.leases {
            let is_coming = lease.owner.as_ref() == Some(me)
                && lease.checkpoint_owner.as_ref().is_some_and(|holder| holder != me);
            match shards.get(key) {
                Some(held) => {
                    if lease.actual_owner() != Some(me) || lease.checkpoint_owner.is_some() {
                        held.look_now();
                    }
                }
                None if is_coming && !lease.is_finished() => {
                    self.pending.insert(key.clone());
                }
                None => {
                    self.pending.remove(key);
                }
            }
        }
    }

    /// Takes what this worker may take without being told to.
    async fn take_over(&mut self, duty: Duty, snapshot: &FleetSnapshot) -> Result<(), StoreFailure> {
        let process = Rc::clone(&self.process);
        let leader = process.leader();
        let takes = {
            let shards = process.shards.borrow();
            let excluded = |key: &LeaseKey| shards.contains_key(key) || self.resting.contains(key);
            let question = TakeoverQuestion {
                excluded: &excluded,
                leader: leader.as_ref(),
                at_start: self.is_first_pass,
            };
            self.watch
                .plan_takeover(process.now(), process.wall(), snapshot, &question)
        };
        // What the leader may take it gives to itself, with all others in view.
        let writes = takes
            .into_iter()
            .filter(|take| duty != Duty::Leader || take.reason == TakeReason::OwnName)
            .map(|take| take.write)
            .collect();
        self.take_all(writes).await
    }

    fn set_alarm(&mut self, duty: Duty, snapshot: &FleetSnapshot) {
        let now = self.process.now();
        self.next_alarm = if duty == Duty::Follower {
            None
        } else {
            let expiry = self.watch.next_expiry(snapshot);
            let free = self.watch.next_free().filter(|_| duty == Duty::Deputy);
            let alarm = [expiry, free].into_iter().flatten().min();
            // What has run out already and could not be taken is looked at again in the ordinary pace.
            alarm.filter(|at| *at > now).map(|at| at.max(now + SHORTEST_LOOK))
        };
    }

    /// Puts away the shards whose tasks have ended.
    async fn put_away(&mut self) {
        let ends = self.process.ends.take();
        for (key, outcome) in ends {
            self.process.shards.borrow_mut().remove(&key);
            match outcome {
                Outcome::ReaderStopped => {
                    self.resting.insert(key);
                }
                Outcome::Ended => self.take_children().await,
                Outcome::HandedOver => {}
                // Somebody else's now, or released: look again soon, but not at once, so that two workers never spin.
                Outcome::Lost | Outcome::Released => {
                    self.next_look = self.next_look.min(self.process.now() + Duration::from_secs(1));
                }
            }
        }
    }
}
