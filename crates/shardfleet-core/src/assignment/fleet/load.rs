//! How loaded each worker is, relative to the fleet's average.
//!
//! A worker's readings are compared with the averages of the same metrics; the worst one is its load. What the readings cannot show yet is added:
//! leases on their way (for the receiver, and no longer for the giver), and leases that moved a moment ago. Of several estimates the one nearest to the
//! average counts, so that a lag or a single odd report never moves anything.

use std::collections::BTreeMap;

use super::{LeaseState, Role, Rules, Situation, WorkerState, takes_part};
use crate::assignment::{Reading, WorkerView};
use crate::ids::WorkerId;

/// No reading in percent is larger; keeps sums finite whatever a row holds.
const MOST_PERCENT: f64 = 1e6;
/// An average below this says nothing.
const LEAST_AVERAGE: f64 = 1e-6;

/// Weights that a worker's readings do not show, or show too much of.
#[derive(Clone, Copy, Default)]
struct Unseen {
    arriving: f64,
    departing: f64,
    /// Gained and lost a moment ago: what the moving average misses, and what the newest report misses.
    gained: [f64; 2],
    lost: [f64; 2],
}

pub(super) fn set_loads(
    rules: &Rules,
    leases: &[LeaseState<'_>],
    views: &BTreeMap<&WorkerId, WorkerView>,
    workers: &mut [WorkerState],
    fair_share: f64,
) {
    let unseen = unseen_weights(rules, leases, workers);
    let mut readings: Vec<BTreeMap<&str, Reading>> = workers
        .iter()
        .map(|worker| match views.get(&worker.id) {
            Some(view) if !rules.by_count && worker.role != Role::Bystander => usable(view),
            _ => BTreeMap::new(),
        })
        .collect();
    let averages = averages(workers, &readings);
    let mut idle = vec![false; workers.len()];
    for (worker, state) in workers.iter().enumerate() {
        // What the machine of a worker without leases is busy with is not our load, unless it is busier than the others.
        let above = |(name, reading): (&&str, &Reading)| {
            let average = averages.get(name).copied().unwrap_or(0.0);
            reading.average > average * (1.0 + rules.threshold) + rules.floor
        };
        idle[worker] = state.held == 0 && !readings[worker].iter().any(above);
        if idle[worker] {
            for reading in readings[worker].values_mut() {
                reading.average = 0.0;
                reading.latest = 0.0;
            }
        }
    }
    let averages = self::averages(workers, &readings);
    for (worker, state) in workers.iter_mut().enumerate() {
        let unseen = unseen[worker];
        let held = state.weight + unseen.departing - unseen.arriving;
        let mut load: Option<f64> = None;
        let mut headroom = f64::INFINITY;
        for (name, reading) in &readings[worker] {
            let Some(average) = averages
                .get(name)
                .copied()
                .filter(|average| *average > LEAST_AVERAGE)
            else {
                continue;
            };
            let value = if idle[worker] {
                0.0
            } else {
                estimate(*reading, average, held.max(0.0), &unseen, fair_share)
            };
            if load.is_none_or(|load| value / average > load) {
                load = Some(value / average);
                state.floor = rules.floor / average;
            }
            if let Some(limit) = reading.limit.filter(|limit| *limit > 0.0) {
                headroom = headroom.min((limit - value) / average);
                state.above_range |= value > limit;
            }
        }
        state.load = match load {
            Some(load) => {
                state.ceiling = load + headroom;
                let share_departing = if held > 0.0 {
                    (unseen.departing / held).min(1.0)
                } else {
                    0.0
                };
                load * (1.0 - share_departing) + unseen.arriving / fair_share
            }
            None => state.weight / fair_share,
        };
        state.load_before = state.load;
        if state.weight > 0.0 {
            state.load_per_weight = state.load / state.weight;
        }
    }
}

fn usable(view: &WorkerView) -> BTreeMap<&str, Reading> {
    let sane = |value: f64| value.is_finite() && value >= 0.0;
    view.readings
        .iter()
        .filter(|(_, reading)| sane(reading.average))
        .map(|(name, reading)| {
            let average = reading.average.min(MOST_PERCENT);
            let latest = if sane(reading.latest) {
                reading.latest.min(MOST_PERCENT)
            } else {
                average
            };
            let limit = reading.limit.filter(|limit| limit.is_finite());
            (
                name.as_str(),
                Reading {
                    average,
                    latest,
                    limit,
                },
            )
        })
        .collect()
}

/// The mean of each metric over the workers that take part, or over the suspects if there are no others.
fn averages<'a>(workers: &[WorkerState], readings: &[BTreeMap<&'a str, Reading>]) -> BTreeMap<&'a str, f64> {
    let regular = workers.iter().any(|worker| worker.role == Role::Receives);
    let counts = |worker: &WorkerState| if regular { takes_part(worker) } else { true };
    let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (worker, readings) in workers.iter().zip(readings) {
        for (name, reading) in readings.iter().filter(|_| counts(worker)) {
            let (sum, count) = sums.entry(name).or_default();
            *sum += reading.average;
            *count += 1.0;
        }
    }
    sums.into_iter()
        .map(|(name, (sum, count))| (name, sum / count))
        .collect()
}

fn unseen_weights(rules: &Rules, leases: &[LeaseState<'_>], workers: &[WorkerState]) -> Vec<Unseen> {
    let mut unseen = vec![Unseen::default(); workers.len()];
    for lease in leases {
        let (holder, owner) = match (lease.situation, lease.decision) {
            (Situation::Finished | Situation::Free, _) => continue,
            (Situation::Held(holder), _) => (holder, holder),
            (Situation::Overdue { from, .. }, Some((to, _))) => (from, to),
            (Situation::InHandoff { from, to } | Situation::Overdue { from, to }, _) => (from, to),
        };
        if holder != owner {
            unseen[holder].departing += lease.weight;
            unseen[owner].arriving += lease.weight;
        }
        let Some(moved) = &lease.observed.moved else {
            continue;
        };
        let windows = moved.age.as_secs_f64() / rules.report_seconds;
        let missing = [(1.0 - rules.alpha).powf(windows), (1.0 - windows).max(0.0)];
        let before = moved
            .from
            .as_ref()
            .and_then(|id| workers.binary_search_by(|worker| worker.id.cmp(id)).ok());
        if before == Some(holder) {
            continue;
        }
        for (i, missing) in missing.into_iter().enumerate() {
            unseen[holder].gained[i] += lease.weight * missing;
            if let Some(before) = before {
                unseen[before].lost[i] += lease.weight * missing;
            }
        }
    }
    unseen
}

/// What the metric is likely to read once everything that happened shows in it: of the estimates the one nearest to the average, and the average
/// itself if they disagree on which side of it the worker is.
fn estimate(reading: Reading, average: f64, held: f64, unseen: &Unseen, fair_share: f64) -> f64 {
    let corrected = |value: f64, i: usize| {
        let before = held + unseen.lost[i];
        let kept = if before > 0.0 { held / before } else { 1.0 };
        value * kept + average * unseen.gained[i] / fair_share
    };
    let estimates = [
        reading.average,
        corrected(reading.average, 0),
        corrected(reading.latest, 1),
    ];
    let least = estimates.iter().copied().fold(f64::INFINITY, f64::min);
    let most = estimates.iter().copied().fold(0.0, f64::max);
    if least > average {
        least
    } else if most < average {
        most
    } else {
        average
    }
}
