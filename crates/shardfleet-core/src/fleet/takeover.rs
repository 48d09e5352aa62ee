//! What a worker takes without being told to, and to whom it hands its leases when it stops.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Departure, FleetSnapshot, FleetWatch, Take, TakeReason};
use crate::assignment::{self, FleetView, MoveKind, ObservedLease, Standing};
use crate::ids::{LeaseKey, WorkerId};
use crate::lease::{Lease, LeaseWrite};
use crate::shard_sync::blocking_parent;
use crate::time::{Moment, Timestamp};

impl FleetWatch {
    /// Which leases this worker takes without being told to. `held` are those that it reads already, `resting` those that it gave up and leaves alone for now;
    /// `leader` is who leads, as far as this worker knows. With `at_start` what nobody holds is shared out at once among the workers that are there; else the leader goes first.
    ///
    /// The share that each worker takes is what the assignment planner would give it, so several that act at once seldom ask for the same lease; and what its taker
    /// should have taken and did not is taken by whoever sees it a grace later.
    pub fn plan_takeover(
        &self,
        now: Moment,
        wall: Timestamp,
        snapshot: &FleetSnapshot,
        question: &TakeoverQuestion<'_>,
    ) -> Vec<Take> {
        let is_open_to_me = |lease: &Lease| {
            !lease.is_finished()
                && !(question.excluded)(&lease.lease_key)
                && blocking_parent(lease, &snapshot.leases).is_none()
        };
        let mut takes: BTreeMap<LeaseKey, Take> = BTreeMap::new();
        let mut candidates: BTreeMap<&LeaseKey, (TakeReason, Duration)> = BTreeMap::new();
        for lease in snapshot.leases.values().filter(|lease| is_open_to_me(lease)) {
            if lease.checkpoint_owner.is_none() && lease.owner.as_ref() == Some(&self.me) {
                takes.insert(lease.lease_key.clone(), self.take(lease, TakeReason::OwnName));
                continue;
            }
            if let Some(overdue) = self.overdue(now, lease, question) {
                candidates.insert(&lease.lease_key, overdue);
            }
        }
        if !candidates.is_empty() {
            let leases = self.assignable(now, snapshot);
            let mut workers = self.views_with_me(wall, snapshot);
            for view in &mut workers {
                // It holds leases that it let expire, so it takes none; others do.
                let is_dead = |observed: &ObservedLease<'_>| {
                    observed.expired
                        && !observed.lease.is_finished()
                        && observed.lease.actual_owner() == Some(&view.worker_id)
                };
                if view.worker_id != self.me && (view.suspect || leases.iter().any(is_dead)) {
                    view.standing = Standing::Expired;
                }
            }
            let view = FleetView {
                leases: &leases,
                workers: &workers,
                balance: false,
            };
            let (plan, _) = assignment::plan(&view, &self.policy.assignment);
            let mut room = self.room(snapshot).saturating_sub(takes.len());
            let is_mine: BTreeSet<&LeaseKey> = plan
                .moves
                .iter()
                .filter(|planned| planned.to == self.me)
                .filter(|planned| matches!(planned.kind, MoveKind::Give | MoveKind::TakeOver))
                .map(|planned| &planned.lease_key)
                .collect();
            for (key, (reason, late)) in candidates {
                let is_neglected = late > self.policy.takeover_grace;
                if room > 0
                    && (is_mine.contains(key) || is_neglected)
                    && let Some(lease) = snapshot.leases.get(key)
                {
                    room -= 1;
                    takes.insert(key.clone(), self.take(lease, reason));
                }
            }
        }
        takes.into_values().collect()
    }

    /// Whether a lease may be taken without the leader, why, and for how long that has been so.
    fn overdue(
        &self,
        now: Moment,
        lease: &Lease,
        question: &TakeoverQuestion<'_>,
    ) -> Option<(TakeReason, Duration)> {
        let grace = self.policy.takeover_grace;
        let late = |since: Moment, grace: Duration| now.since(since).checked_sub(grace);
        match lease.actual_owner() {
            None => {
                let since = self.free_since.get(&lease.lease_key).copied().unwrap_or(now);
                let grace = if question.at_start { Duration::ZERO } else { grace };
                Some((TakeReason::Unowned, late(since, grace)?))
            }
            Some(owner) => {
                let since = self.expired_since(now, lease)?;
                // A leader that lets its own leases expire gives out nothing.
                let grace = match question.leader {
                    Some(leader) if leader != owner => grace,
                    _ => Duration::ZERO,
                };
                Some((TakeReason::Expired, late(since, grace)?))
            }
        }
    }

    /// How many leases this worker may hold on top of those that the table shows under its name.
    fn room(&self, snapshot: &FleetSnapshot) -> usize {
        let mine = |lease: &&Lease| !lease.is_finished() && lease.owner.as_ref() == Some(&self.me);
        let held = snapshot.leases.values().filter(mine).count();
        self.policy.assignment.max_leases_for_worker.saturating_sub(held)
    }

    fn take(&self, lease: &Lease, reason: TakeReason) -> Take {
        Take {
            lease_key: lease.lease_key.clone(),
            write: LeaseWrite::take(lease, &self.me),
            reason,
        }
    }

    /// To whom this worker hands its leases when it stops. Leases for which nobody has room are missing: they are released, and the fleet gives them out
    /// when it can.
    pub fn plan_departure(&self, now: Moment, wall: Timestamp, snapshot: &FleetSnapshot) -> Vec<Departure> {
        let is_mine = |lease: &Lease| lease.actual_owner() == Some(&self.me);
        let rows: Vec<Lease> = snapshot
            .leases
            .values()
            .filter(|lease| !lease.is_finished())
            .map(|lease| {
                if is_mine(lease) && lease.checkpoint_owner.is_none() {
                    Lease {
                        owner: None,
                        ..lease.clone()
                    }
                } else {
                    lease.clone()
                }
            })
            .collect();
        let leases: Vec<ObservedLease<'_>> = rows
            .iter()
            .filter(|lease| {
                lease.actual_owner().is_some() || snapshot.leases.get(&lease.lease_key).is_some_and(is_mine)
            })
            .map(|lease| self.observed(now, lease))
            .collect();
        let mut workers = self.views(wall, snapshot);
        workers.retain(|view| view.worker_id != self.me && !view.suspect);
        let view = FleetView {
            leases: &leases,
            workers: &workers,
            balance: false,
        };
        let (plan, _) = assignment::plan(&view, &self.policy.assignment);
        plan.moves
            .into_iter()
            .filter(|planned| planned.kind == MoveKind::Give)
            .filter(|planned| snapshot.leases.get(&planned.lease_key).is_some_and(is_mine))
            .map(|planned| Departure {
                lease_key: planned.lease_key,
                to: planned.to,
            })
            .collect()
    }
}

/// What [`FleetWatch::plan_takeover`] must know besides the table.
pub struct TakeoverQuestion<'a> {
    /// Leases that are not to be taken: read already, or given up for a while.
    pub excluded: &'a dyn Fn(&LeaseKey) -> bool,
    /// Who leads, as far as this worker knows.
    pub leader: Option<&'a WorkerId>,
    /// The worker is starting, and shares out at once what nobody holds.
    pub at_start: bool,
}
