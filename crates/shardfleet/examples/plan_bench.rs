//! Plans who reads what in a fleet of 100,000 leases and 1,000 workers, and prints how long that takes; `cargo xtask bench plan` runs it optimised.
//!
//! Three plans: everything is free, one worker in ten has just joined, and the fleet is even.

use std::collections::BTreeMap;

use shardfleet::clock::{Clock, SystemClock};
use shardfleet::core::assignment::{
    AssignmentPolicy, FleetView, MoveKind, ObservedLease, Reading, Standing, WorkerView, plan,
};
use shardfleet::core::ids::WorkerId;
use shardfleet::core::lease::Lease;
use shardfleet::core::sequence::ExtendedSequenceNumber;

const LEASES: usize = 100_000;
const WORKERS: usize = 1_000;

fn worker(number: usize) -> WorkerId {
    WorkerId::new(format!("worker-{number:04}"))
}

/// Shards differ in what they carry: some carry fifty times as much as others.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn lease(number: usize, owner: Option<usize>) -> Lease {
    Lease {
        owner: owner.map(worker),
        counter: 7,
        throughput_kbps: Some(1.0 + (number * 7919 % 50) as f64),
        ..Lease::new(
            format!("shardId-{number:012}").as_str(),
            ExtendedSequenceNumber::TrimHorizon,
        )
    }
}

fn view(number: usize, percent: f64) -> WorkerView {
    let reading = Reading {
        average: percent,
        latest: percent,
        limit: None,
    };
    let mut view = WorkerView::without_metrics(worker(number));
    view.standing = Standing::Active;
    view.readings = BTreeMap::from([("C".to_owned(), reading)]);
    view
}

#[expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
fn measure(name: &str, rows: &[Lease], workers: &[WorkerView]) {
    let leases: Vec<ObservedLease<'_>> = rows.iter().map(ObservedLease::live).collect();
    let view = FleetView {
        leases: &leases,
        workers,
        balance: true,
    };
    let clock = SystemClock::new();
    let policy = AssignmentPolicy::default();
    let mut times = Vec::new();
    let mut moves = (0, 0);
    for _ in 0..5 {
        let began = clock.now();
        let (planned, _) = plan(&view, &policy);
        times.push(clock.now().since(began).as_millis());
        let handoffs = planned
            .moves
            .iter()
            .filter(|m| m.kind == MoveKind::Handoff)
            .count();
        moves = (planned.moves.len() - handoffs, handoffs);
    }
    times.sort_unstable();
    println!(
        "{name:<22}{:>8} ms at the median of 5, {:>4} ms at most{:>9} given out{:>8} handed over",
        times[2], times[4], moves.0, moves.1
    );
}

fn main() {
    let even: Vec<WorkerView> = (0..WORKERS).map(|number| view(number, 50.0)).collect();
    let free: Vec<Lease> = (0..LEASES).map(|number| lease(number, None)).collect();
    measure("everything is free", &free, &even);
    let old = WORKERS * 9 / 10;
    let crowded: Vec<Lease> = (0..LEASES).map(|n| lease(n, Some(n % old))).collect();
    let joined: Vec<WorkerView> = (0..WORKERS)
        .map(|number| view(number, if number < old { 50.0 } else { 0.0 }))
        .collect();
    measure("one in ten has joined", &crowded, &joined);
    let shared: Vec<Lease> = (0..LEASES).map(|n| lease(n, Some(n % WORKERS))).collect();
    measure("the fleet is even", &shared, &even);
}
