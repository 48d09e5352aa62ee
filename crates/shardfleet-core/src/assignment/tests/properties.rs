//! What holds for any fleet.

use super::*;
use proptest::prelude::*;

fn any_percent() -> impl Strategy<Value = f64> {
    prop_oneof![8 => 0.0..100.0_f64, 1 => Just(0.0), 1 => any::<f64>()]
}

fn any_worker(id: usize) -> impl Strategy<Value = WorkerView> {
    let standing = prop_oneof![
        6 => Just(Standing::Active),
        1 => Just(Standing::Failing),
        1 => Just(Standing::Expired),
        1 => Just(Standing::Leaving),
    ];
    (
        standing,
        prop::option::of((any_percent(), any_percent(), prop::option::of(any_percent()))),
    )
        .prop_map(move |(standing, reading)| WorkerView {
            standing,
            suspect: false,
            readings: reading
                .map(|(average, latest, limit)| {
                    (
                        "C".to_owned(),
                        Reading {
                            average,
                            latest,
                            limit,
                        },
                    )
                })
                .into_iter()
                .collect(),
            ..WorkerView::without_metrics(format!("w{id}"))
        })
}

type AnyLease = (
    Option<usize>,
    Option<usize>,
    Option<f64>,
    bool,
    bool,
    bool,
    Option<(usize, u64)>,
);

fn any_lease() -> impl Strategy<Value = AnyLease> {
    let throughput =
        prop_oneof![4 => (0.0..1000.0_f64).prop_map(Some), 1 => Just(None), 1 => any::<f64>().prop_map(Some)];
    (
        prop::option::weighted(0.8, 0..7_usize),
        prop::option::weighted(0.15, 0..7_usize),
        throughput,
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
        prop::option::weighted(0.2, (0..7_usize, 0..600_u64)),
    )
}

fn name(worker: usize) -> WorkerId {
    format!("w{worker}").into()
}

fn observed(rows: &[Lease], facts: &[AnyLease]) -> Vec<ObservedLease<'static>> {
    rows.iter()
        .zip(facts)
        .map(|(row, facts)| ObservedLease {
            // Leaked: a test's rows live as long as it does.
            lease: Box::leak(Box::new(row.clone())),
            expired: facts.3,
            handoff_overdue: facts.5,
            moved: facts.6.map(|(from, age)| RecentMove {
                by_handoff: age % 2 == 0,
                from: Some(name(from)),
                age: Duration::from_secs(age),
            }),
        })
        .collect()
}

fn rows(facts: &[AnyLease]) -> Vec<Lease> {
    facts
        .iter()
        .enumerate()
        .map(|(i, (owner, holder, throughput, _, finished, ..))| Lease {
            owner: owner.map(name),
            checkpoint_owner: holder.filter(|_| owner.is_some()).map(name),
            throughput_kbps: *throughput,
            checkpoint: if *finished {
                ExtendedSequenceNumber::ShardEnd
            } else {
                ExtendedSequenceNumber::TrimHorizon
            },
            ..lease(i, None, 0.0)
        })
        .collect()
}

fn any_policy() -> impl Strategy<Value = AssignmentPolicy> {
    (
        any::<bool>(),
        prop_oneof![Just(usize::MAX), 0..8_usize],
        prop_oneof![Just(f64::INFINITY), 10.0..3000.0_f64, any::<f64>()],
        any::<f64>(),
        any::<f64>(),
    )
        .prop_map(|(count, leases, throughput, odd, odd_too)| AssignmentPolicy {
            strategy: if count {
                AssignmentStrategy::LeaseCountBased
            } else {
                AssignmentStrategy::WorkerUtilizationAware
            },
            max_leases_for_worker: leases,
            max_throughput_per_host_kbps: throughput,
            rebalance_threshold_percentage: odd,
            minimum_gain_percentage: odd_too,
            worker_metrics_ema_alpha: odd,
            ..AssignmentPolicy::default()
        })
}

fn any_fleet() -> impl Strategy<Value = Vec<WorkerView>> {
    (
        any_worker(0),
        any_worker(1),
        any_worker(2),
        any_worker(3),
        any_worker(4),
    )
        .prop_map(|(a, b, c, d, e)| vec![a, b, c, d, e])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_view_is_answered_within_the_limits(
        workers in any_fleet(),
        facts in prop::collection::vec(any_lease(), 0..24),
        policy in any_policy(),
        balance in any::<bool>(),
    ) {
        let rows = rows(&facts);
        let leases = observed(&rows, &facts);
        let (plan, report) = super::plan(&FleetView { leases: &leases, workers: &workers, balance }, &policy);

        for worker in &report.workers {
            prop_assert!(worker.load_before.is_finite() && worker.load_after.is_finite());
        }
        let limit = if policy.max_throughput_per_host_kbps.is_nan() { f64::INFINITY } else { policy.max_throughput_per_host_kbps.max(0.0) };
        for planned in &plan.moves {
            let lease = leases.iter().find(|observed| observed.lease.lease_key == planned.lease_key).expect("exists");
            prop_assert!(planned.write.apply(lease.lease).is_some());
            prop_assert!(!lease.lease.is_finished());
            if planned.kind == MoveKind::CallOffHandoff {
                prop_assert_eq!(Some(&planned.to), lease.lease.actual_owner());
                continue;
            }
            let to = workers.iter().find(|worker| worker.worker_id == planned.to);
            prop_assert_eq!(to.map(|to| to.standing), Some(Standing::Active));
            let direct = lease.expired || lease.lease.actual_owner().is_none();
            prop_assert_eq!(direct, matches!(planned.kind, MoveKind::Give | MoveKind::TakeOver), "L1");
            prop_assert!(planned.kind != MoveKind::ForceHandoff || lease.handoff_overdue);
            prop_assert!(balance || planned.kind != MoveKind::Handoff);
        }
        for worker in &workers {
            let id = &worker.worker_id;
            let given = plan.moves.iter().filter(|planned| planned.to == *id && matches!(planned.kind, MoveKind::Give | MoveKind::TakeOver | MoveKind::Handoff));
            let before = |observed: &&ObservedLease<'_>| {
                let lease = observed.lease;
                !lease.is_finished() && !observed.expired && lease.actual_owner().is_some()
                    && (lease.owner.as_ref() == Some(id) || lease.checkpoint_owner.as_ref() == Some(id))
            };
            let known = |lease: &Lease| lease.throughput_kbps.filter(|value| *value >= 0.0).map(|value| value.min(1e9));
            let held: Vec<_> = leases.iter().filter(before).collect();
            let added: Vec<_> = given.map(|planned| leases.iter().find(|observed| observed.lease.lease_key == planned.lease_key).expect("exists")).collect();
            if !added.is_empty() {
                prop_assert!(held.len() + added.len() <= policy.max_leases_for_worker, "A2");
                let sum: f64 = held.iter().chain(&added).filter_map(|observed| known(observed.lease)).sum();
                prop_assert!(held.len() + added.len() == 1 || sum <= limit * (1.0 + 1e-9), "A2");
            }
        }
        let room = report.workers.iter().filter(|worker| worker.standing == Some(Standing::Active));
        let unlimited = policy.max_leases_for_worker == usize::MAX && limit == f64::INFINITY;
        if unlimited && room.count() > 0 {
            prop_assert!(report.leases.iter().all(|(_, verdict)| !matches!(verdict, LeaseVerdict::Waits(_))));
        }
    }

    #[test]
    fn the_order_of_the_input_does_not_matter(
        workers in any_fleet(),
        facts in prop::collection::vec(any_lease(), 0..16),
        policy in any_policy(),
        shift in 0..16_usize,
    ) {
        let rows = rows(&facts);
        let leases = observed(&rows, &facts);
        let mut other_leases = leases.clone();
        let mut other_workers = workers.clone();
        other_leases.reverse();
        other_workers.reverse();
        let by = shift % other_leases.len().max(1);
        other_leases.rotate_left(by);
        let here = super::plan(&FleetView { leases: &leases, workers: &workers, balance: true }, &policy);
        let there = super::plan(&FleetView { leases: &other_leases, workers: &other_workers, balance: true }, &policy);
        prop_assert_eq!(format!("{here:?}"), format!("{there:?}"));
    }

    #[test]
    fn replanning_dies_out_and_moves_no_lease_back(
        owners in prop::collection::vec((prop::option::weighted(0.9, 0..4_usize), 0.0..1000.0_f64), 1..40),
        with_cpu in any::<bool>(),
        by_count in any::<bool>(),
    ) {
        let mut fleet = sim(&[("w0", &[]), ("w1", &[]), ("w2", &[]), ("w3", &[])]);
        fleet.leases = owners
            .iter()
            .enumerate()
            .map(|(i, (owner, throughput))| Lease { owner: owner.map(name), ..lease(i, None, *throughput) })
            .collect();
        if by_count {
            fleet.policy.strategy = AssignmentStrategy::LeaseCountBased;
        }
        if with_cpu {
            fleet.cpu_per_kbps = 0.01;
            fleet.carry_out(&AssignmentPlan::default());
        }
        let mut were: BTreeMap<LeaseKey, Vec<WorkerId>> = BTreeMap::new();
        for round in 0.. {
            let (plan, _) = fleet.plan(true);
            if plan.moves.is_empty() {
                break;
            }
            prop_assert!(round < 8, "still moving: {:?}", fleet.throughputs());
            for planned in &plan.moves {
                let past = were.entry(planned.lease_key.clone()).or_default();
                past.extend(planned.from.clone());
                prop_assert!(!past.contains(&planned.to), "{planned:?} goes back");
            }
            fleet.carry_out(&plan);
        }
        prop_assert!(fleet.leases.iter().all(|lease| lease.owner.is_some()));
    }
}
