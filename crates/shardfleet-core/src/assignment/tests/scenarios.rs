//! Fleets whose course is known, by figures.

use super::*;

fn within(values: &[f64], share: f64) -> bool {
    let mean = values.iter().sum::<f64>() / f64::from(u32::try_from(values.len()).expect("few"));
    values
        .iter()
        .all(|value| (value - mean).abs() <= mean * share + 1e-9)
}

#[test]
fn ninety_thirty_thirty_is_even_after_three_runs_and_then_rests() {
    let mut fleet = sim(&[("a", &[22.5; 4]), ("b", &[7.5; 4]), ("c", &[7.5; 4])]);
    fleet.cpu_per_kbps = 1.0;
    fleet.workers = vec![cpu("a", 90.0), cpu("b", 30.0), cpu("c", 30.0)];
    let moves = fleet.run(4);
    assert!(moves.len() <= 3, "{moves:?}");
    assert!(within(&fleet.throughputs(), 0.1), "{:?}", fleet.throughputs());
    for _ in 0..30 {
        assert!(fleet.plan(true).0.moves.is_empty());
    }
}

#[test]
fn one_and_two_percent_with_twenty_quiet_shards_move_nothing() {
    let mut fleet = sim(&[("a", &[0.0; 10]), ("b", &[0.0; 10])]);
    for _ in 0..10 {
        for (a, b) in [(1.0, 2.0), (2.0, 1.0), (0.0, 2.0)] {
            fleet.workers = vec![cpu("a", a), cpu("b", b)];
            assert!(fleet.plan(true).0.moves.is_empty());
        }
    }
}

#[test]
fn a_hot_shard_ends_alone_against_the_rest() {
    for hot in 0..8 {
        let throughputs: Vec<f64> = (0..8).map(|i| if i == hot { 100.0 } else { 10.0 }).collect();
        let mut fleet = sim(&[("a", &throughputs[..4]), ("b", &throughputs[4..])]);
        fleet.run(5);
        let mut result = fleet.throughputs();
        result.sort_by(f64::total_cmp);
        assert!((result[0] - 70.0).abs() < 1e-9, "{result:?}");
    }
}

#[test]
fn two_leases_at_eighty_and_ten_percent_are_split() {
    let mut fleet = sim(&[("a", &[40.0, 40.0]), ("b", &[10.0])]);
    fleet.cpu_per_kbps = 1.0;
    fleet.workers = vec![cpu("a", 80.0), cpu("b", 10.0)];
    assert_eq!(fleet.run(3), [1]);
    assert_eq!(fleet.counts(), [1, 2]);
}

#[test]
fn a_newcomer_on_a_busy_shared_machine_gets_its_part_in_one_run() {
    // All processes read the same machine's CPU.
    let mut fleet = sim(&[("a", &[1.0; 4]), ("b", &[1.0; 4]), ("c", &[1.0; 4]), ("d", &[])]);
    fleet.workers = ["a", "b", "c", "d"].map(|id| cpu(id, 40.0)).to_vec();
    let (plan, _) = fleet.plan(true);
    fleet.carry_out(&plan);
    assert_eq!(fleet.counts(), [3, 3, 3, 3]);
    assert!(fleet.plan(true).0.moves.is_empty());
}

#[test]
fn workers_with_and_without_metrics_share_one_fleet() {
    let mut fleet = sim(&[("cpu", &[10.0; 9]), ("plain", &[10.0; 3])]);
    fleet.workers[0] = cpu("cpu", 50.0);
    let moves = fleet.run(3);
    assert!(moves.iter().sum::<usize>() <= 3, "{moves:?}");
}

#[test]
fn counts_even_out_in_one_run() {
    let mut fleet = sim(&[("a", &[1.0; 10]), ("b", &[90.0]), ("c", &[])]);
    fleet.policy.strategy = AssignmentStrategy::LeaseCountBased;
    assert_eq!(fleet.run(2), [6]);
    assert_eq!(fleet.counts(), [4, 3, 4]);
}

#[test]
fn a_large_fleet_moves_few_leases() {
    // 50 workers with 100 leases each, and 5 newcomers: 5 / 55 of 5,000 leases have to move, 455, or 444 to be within the threshold.
    let names: Vec<String> = (0..55).map(|i| format!("w{i:02}")).collect();
    let throughputs = [1.0; 100];
    let owned: Vec<(&str, &[f64])> = names
        .iter()
        .enumerate()
        .map(|(i, name)| (name.as_str(), if i < 50 { &throughputs[..] } else { &[] }))
        .collect();
    let mut fleet = sim(&owned);
    let moves: usize = fleet.run(4).iter().sum();
    assert!(moves <= 460, "{moves}");
    let counts = fleet.counts();
    assert!(
        counts.iter().all(|count| (81..=100).contains(count)),
        "{counts:?}"
    );
}

/// The fewest moves after which no worker carries more than `highest`.
fn fewest_moves(fleet: &Sim, highest: f64) -> usize {
    let (leases, workers) = (fleet.leases.len(), fleet.workers.len());
    let mut fewest = usize::MAX;
    for code in 0..workers.pow(u32::try_from(leases).expect("few")) {
        let mut rest = code;
        let mut loads = vec![0.0; workers];
        let mut moves = 0;
        for lease in &fleet.leases {
            let to = rest % workers;
            rest /= workers;
            loads[to] += lease.throughput_kbps.unwrap_or(0.0);
            moves += usize::from(lease.owner.as_ref() != Some(&fleet.workers[to].worker_id));
        }
        if loads.iter().all(|load| *load <= highest + 1e-9) {
            fewest = fewest.min(moves);
        }
    }
    fewest
}

#[test]
fn small_fleets_move_little_more_than_the_least_possible() {
    let (mut moved, mut least) = (0, 0);
    let mut state = 7_u32;
    let mut next = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    for _ in 0..300 {
        let mut fleet = sim(&[("a", &[]), ("b", &[]), ("c", &[])]);
        for i in 0..8 {
            // Two of three leases are the first worker's.
            let owner = ["a", "a", "a", "a", "b", "c"][usize::try_from(next(6)).expect("small")];
            fleet.leases.push(lease(i, Some(owner), f64::from(5 + next(20))));
        }
        let before = fleet.clone();
        moved += fleet.run(8).iter().sum::<usize>();
        let highest = fleet.throughputs().into_iter().fold(0.0, f64::max);
        least += fewest_moves(&before, highest);
    }
    assert!(moved * 10 <= least * 11, "{moved} moves, {least} at least");
}
