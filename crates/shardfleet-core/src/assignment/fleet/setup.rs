//! Turns the view into working state: each row once, in order, with its situation, its weight and its place in the limits.

use std::collections::{BTreeMap, BTreeSet};

use super::{LeaseState, MOST_THROUGHPUT, Role, Rules, Situation, WorkerState};
use crate::assignment::{ObservedLease, Standing, WorkerView};
use crate::ids::WorkerId;

/// By key; of a row that a scan returned twice, the newer version.
pub(super) fn sorted_leases<'a>(leases: &'a [ObservedLease<'a>]) -> Vec<&'a ObservedLease<'a>> {
    let mut sorted: Vec<&ObservedLease<'_>> = leases.iter().collect();
    sorted.sort_by(|a, b| {
        let (a, b) = (a.lease, b.lease);
        a.lease_key.cmp(&b.lease_key).then_with(|| {
            let rest = |lease: &'a crate::lease::Lease| (&lease.checkpoint_owner, &lease.owner);
            b.counter.cmp(&a.counter).then_with(|| rest(b).cmp(&rest(a)))
        })
    });
    sorted.dedup_by(|a, b| a.lease.lease_key == b.lease.lease_key);
    sorted
}

/// By id. While tables are migrated a worker can have two rows: the better standing and the higher readings count.
pub(super) fn merged_views(views: &[WorkerView]) -> BTreeMap<&WorkerId, WorkerView> {
    let mut merged: BTreeMap<&WorkerId, WorkerView> = BTreeMap::new();
    for view in views {
        let Some(known) = merged.get_mut(&view.worker_id) else {
            merged.insert(&view.worker_id, view.clone());
            continue;
        };
        known.standing = known.standing.min(view.standing);
        known.suspect &= view.suspect;
        for (name, reading) in &view.readings {
            known
                .readings
                .entry(name.clone())
                .and_modify(|known| {
                    known.average = known.average.max(reading.average);
                    known.latest = known.latest.max(reading.latest);
                    known.limit = match (known.limit, reading.limit) {
                        (Some(a), Some(b)) => Some(a.max(b)),
                        (a, b) => a.or(b),
                    };
                })
                .or_insert(*reading);
        }
    }
    merged
}

pub(super) fn workers_of(
    views: &BTreeMap<&WorkerId, WorkerView>,
    leases: &[&ObservedLease<'_>],
) -> Vec<WorkerState> {
    let suspects: BTreeSet<&WorkerId> = leases
        .iter()
        .filter(|observed| observed.expired && !observed.lease.is_finished())
        .filter_map(|observed| observed.lease.actual_owner())
        .collect();
    // Holders without a row of metrics belong to the fleet, too.
    let ids: BTreeSet<&WorkerId> = leases
        .iter()
        .flat_map(|observed| [&observed.lease.owner, &observed.lease.checkpoint_owner])
        .flatten()
        .chain(views.keys().copied())
        .collect();
    ids.into_iter()
        .map(|id| {
            let standing = views.get(id).map(|view| view.standing);
            let suspect = suspects.contains(id) || views.get(id).is_some_and(|view| view.suspect);
            let role = match (standing, suspect) {
                (Some(Standing::Active), false) => Role::Receives,
                (Some(Standing::Active), true) => Role::LastResort,
                _ => Role::Bystander,
            };
            WorkerState {
                id: id.clone(),
                standing,
                role,
                suspect,
                held: 0,
                held_throughput: 0.0,
                leases: 0,
                weight: 0.0,
                load_before: 0.0,
                load: 0.0,
                load_per_weight: 0.0,
                ceiling: f64::INFINITY,
                floor: 0.0,
                above_range: false,
                gets: 0,
                gives: 0,
                held_back: None,
            }
        })
        .collect()
}

pub(super) fn states_of<'a>(
    leases: &[&'a ObservedLease<'a>],
    workers: &[WorkerState],
    rules: &Rules,
) -> Vec<LeaseState<'a>> {
    let known = |observed: &ObservedLease<'_>| {
        observed
            .lease
            .throughput_kbps
            .filter(|value| *value >= 0.0)
            .map(|value| value.min(MOST_THROUGHPUT))
    };
    let (sum, count) = leases
        .iter()
        .filter(|observed| !observed.lease.is_finished())
        .filter_map(|observed| known(observed))
        .fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    let average = if count > 0.0 { sum / count } else { 0.0 };
    let base = rules.lease_base.max(average / 20.0).max(f64::MIN_POSITIVE);
    let index = |id: &WorkerId| workers.binary_search_by(|worker| worker.id.cmp(id)).ok();
    leases
        .iter()
        .map(|observed| {
            let lease = observed.lease;
            let throughput = known(observed).unwrap_or(average);
            let holder = lease.actual_owner().and_then(index);
            let next = match &lease.checkpoint_owner {
                Some(_) => lease.owner.as_ref().and_then(index),
                None => holder,
            };
            let situation = match (holder, next) {
                _ if lease.is_finished() => Situation::Finished,
                (None, _) => Situation::Free,
                _ if observed.expired => Situation::Free,
                (Some(from), Some(to)) if lease.checkpoint_owner.is_some() => {
                    if observed.handoff_overdue {
                        Situation::Overdue { from, to }
                    } else {
                        Situation::InHandoff { from, to }
                    }
                }
                (Some(holder), _) => Situation::Held(holder),
            };
            LeaseState {
                observed,
                throughput,
                weight: if rules.by_count { 1.0 } else { throughput + base },
                situation,
                decision: None,
                refused: false,
            }
        })
        .collect()
}

pub(super) fn count_holdings(leases: &[LeaseState<'_>], workers: &mut [WorkerState]) {
    for lease in leases {
        let (holder, next) = match lease.situation {
            Situation::Held(holder) => (holder, holder),
            Situation::InHandoff { from, to } | Situation::Overdue { from, to } => (from, to),
            Situation::Finished | Situation::Free => continue,
        };
        // Whoever hands a lease over has it until it has gone, and whoever is to get it has promised the room.
        for worker in [Some(holder), (next != holder).then_some(next)]
            .into_iter()
            .flatten()
        {
            workers[worker].held += 1;
            workers[worker].held_throughput += lease.throughput;
        }
        let owner = lease.decision.map_or(next, |(to, _)| to);
        workers[owner].leases += 1;
        workers[owner].weight += lease.weight;
    }
}
