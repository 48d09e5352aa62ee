//! Each rough edge of the Java KCL's decider, as a test that it is not here.

use super::*;

fn kinds(plan: &AssignmentPlan) -> Vec<(&str, MoveKind)> {
    plan.moves
        .iter()
        .map(|planned| (planned.to.as_str(), planned.kind))
        .collect()
}

#[test]
fn a_first_start_without_metrics_spreads_over_all_workers_and_not_over_two() {
    for workers in [2, 3, 5, 8] {
        let names: Vec<String> = (0..workers).map(|i| format!("w{i}")).collect();
        let mut fleet = sim(&names
            .iter()
            .map(|name| (name.as_str(), [].as_slice()))
            .collect::<Vec<_>>());
        fleet.leases = (0..100)
            .map(|i| Lease {
                throughput_kbps: None,
                ..lease(i, None, 0.0)
            })
            .collect();
        let (plan, report) = fleet.plan(true);
        fleet.carry_out(&plan);
        let counts = fleet.counts();
        assert!(
            counts.iter().max().expect("some") - counts.iter().min().expect("some") <= 1,
            "{counts:?}"
        );
        assert!(report.workers.iter().all(|worker| worker.load_after.is_finite()));
    }
}

#[test]
fn an_idle_newcomer_comes_before_a_worker_that_is_merely_below_average() {
    let mut fleet = sim(&[("busy", &[10.0]), ("low", &[1.0]), ("new", &[]), ("", &[1.0])]);
    fleet.workers = vec![cpu("busy", 90.0), cpu("low", 10.0), cpu("new", 0.0)];
    assert_eq!(kinds(&fleet.plan(false).0), [("new", MoveKind::Give)]);
}

#[test]
fn leases_on_their_way_count_for_the_receiver_and_are_not_moved_again() {
    let mut fleet = sim(&[("a", &[1.0; 8]), ("b", &[])]);
    let (first, _) = fleet.plan(true);
    assert_eq!(first.moves.len(), 3, "the dampened half");
    for planned in &first.moves {
        let lease = fleet
            .leases
            .iter_mut()
            .find(|lease| lease.lease_key == planned.lease_key)
            .expect("exists");
        *lease = planned.write.apply(lease).expect("begins");
    }
    let (second, report) = fleet.plan(true);
    assert!(
        second.moves.len() <= 1,
        "what is missing, and not the half again: {second:?}"
    );
    let on_their_way = report
        .leases
        .iter()
        .filter(|(_, verdict)| matches!(verdict, LeaseVerdict::HandoffUnderWay { .. }));
    assert_eq!(on_their_way.count(), 3);
}

#[test]
fn a_lease_that_is_given_out_is_not_moved_on_in_the_same_plan() {
    let mut fleet = sim(&[("a", &[5.0; 6]), ("b", &[1.0]), ("", &[30.0, 1.0])]);
    fleet.workers.push(WorkerView::without_metrics("c"));
    let (plan, _) = fleet.plan(true);
    let mut keys: Vec<_> = plan.moves.iter().map(|planned| &planned.lease_key).collect();
    keys.dedup();
    assert_eq!(keys.len(), plan.moves.len());
}

#[test]
fn the_best_worker_is_still_there_for_the_second_giver() {
    // The first giver's smallest lease is too large for anyone; the second giver's fit the newcomer.
    let mut fleet = sim(&[("a", &[20.0]), ("b", &[2.0; 8]), ("c", &[2.0])]);
    let (plan, report) = fleet.plan(true);
    assert!(!plan.moves.is_empty() && plan.moves.iter().all(|planned| planned.to.as_str() == "c"));
    assert_eq!(report.workers[0].gives, 0);
    assert_eq!(report.workers[0].held_back, Some(HeldBack::NoGain));
    fleet.run(5);
}

#[test]
fn a_worker_below_average_but_above_its_operating_range_gives_nothing_it_should_not() {
    let mut fleet = sim(&[("a", &[1.0, 1.0]), ("b", &[2.0, 2.0])]);
    fleet.workers = vec![cpu("a", 40.0), cpu("b", 44.0)];
    fleet.workers[0].readings.get_mut("C").expect("there").limit = Some(30.0);
    assert!(fleet.plan(true).0.moves.is_empty());
}

#[test]
fn overshoot_moves_nothing_when_it_would_only_turn_the_scales() {
    let fleet = sim(&[("a", &[10.0, 10.0]), ("b", &[10.0])]);
    let (plan, report) = fleet.plan(true);
    assert!(plan.moves.is_empty());
    assert_eq!(report.balance, BalanceVerdict::Uneven { handoffs: 0 });
    assert_eq!(report.workers[0].held_back, Some(HeldBack::NoGain));
}

#[test]
fn overshoot_can_be_forbidden() {
    let mut fleet = sim(&[("a", &[10.0, 10.0]), ("b", &[])]);
    assert_eq!(fleet.plan(true).0.moves.len(), 1);
    fleet.policy.allow_throughput_overshoot = false;
    let (plan, report) = fleet.plan(true);
    assert!(plan.moves.is_empty());
    assert_eq!(report.workers[0].held_back, Some(HeldBack::LeasesTooLarge));
}

#[test]
fn the_count_strategy_never_exceeds_the_limit_on_leases() {
    let mut fleet = sim(&[("a", &[1.0; 3]), ("b", &[1.0; 3]), ("", &[1.0; 4])]);
    fleet.policy.strategy = AssignmentStrategy::LeaseCountBased;
    fleet.policy.max_leases_for_worker = 3;
    let (plan, report) = fleet.plan(true);
    assert!(plan.moves.is_empty());
    assert_eq!(report.leases[9].1, LeaseVerdict::Waits(Refusal::LeaseLimit));
}

#[test]
fn a_worker_with_two_rows_is_one_worker() {
    let mut fleet = sim(&[("a", &[]), ("b", &[]), ("", &[1.0; 8])]);
    fleet.workers.push(WorkerView {
        standing: Standing::Expired,
        ..WorkerView::without_metrics("a")
    });
    let (plan, report) = fleet.plan(false);
    fleet.carry_out(&plan);
    assert_eq!(report.workers.len(), 2);
    assert_eq!(fleet.counts(), [4, 4, 4]);
}

#[test]
fn a_live_worker_with_stale_metrics_is_relieved_too_but_gets_nothing() {
    let mut fleet = sim(&[("a", &[1.0; 6]), ("b", &[]), ("", &[1.0])]);
    fleet.workers[0].standing = Standing::Expired;
    let (plan, _) = fleet.plan(true);
    assert!(plan.moves.len() > 1);
    assert!(plan.moves.iter().all(|planned| planned.to.as_str() == "b"));
}

#[test]
fn finished_leases_are_no_load_and_are_given_to_nobody() {
    let mut fleet = sim(&[("a", &[9.0, 9.0, 1.0]), ("b", &[1.0]), ("", &[9.0])]);
    for finished in [0, 1, 4] {
        fleet.leases[finished].checkpoint = ExtendedSequenceNumber::ShardEnd;
    }
    fleet.policy.max_leases_for_worker = 1;
    let (plan, report) = fleet.plan(true);
    assert!(plan.moves.is_empty());
    assert_eq!(report.leases[4].1, LeaseVerdict::Finished);
    assert_eq!(
        (report.workers[0].leases_after, report.balance),
        (1, BalanceVerdict::Even)
    );
}

#[test]
fn who_let_a_lease_expire_gets_nothing_while_others_have_room() {
    let mut fleet = sim(&[("alive", &[5.0; 4]), ("dead", &[1.0, 1.0])]);
    fleet.workers[1].readings = cpu("dead", 0.0).readings;
    fleet.expired = vec![fleet.leases[4].lease_key.clone()];
    let (plan, report) = fleet.plan(true);
    assert_eq!(kinds(&plan), [("alive", MoveKind::TakeOver)]);
    assert!(report.workers[1].suspect);
    fleet.workers.remove(0);
    fleet.leases.drain(..4);
    assert_eq!(
        kinds(&fleet.plan(true).0),
        [("dead", MoveKind::TakeOver)],
        "there is nobody else"
    );
}

#[test]
fn an_expired_lease_is_taken_only_if_its_counter_stands_still() {
    let mut fleet = sim(&[("a", &[1.0]), ("b", &[])]);
    fleet.expired = vec![fleet.leases[0].lease_key.clone()];
    let (plan, _) = fleet.plan(false);
    let came_back = Lease {
        counter: 9,
        ..fleet.leases[0].clone()
    };
    assert_eq!(plan.moves[0].write.apply(&came_back), None);
}

#[test]
fn live_leases_move_by_handoff_only() {
    let fleet = sim(&[("a", &[1.0; 8]), ("b", &[])]);
    let (plan, _) = fleet.plan(true);
    assert!(plan.moves.iter().all(|planned| planned.kind == MoveKind::Handoff));
    assert!(fleet.plan(false).0.moves.is_empty(), "not a balancing run");
}

#[test]
fn a_handoff_waits_until_its_deadline_and_is_then_forced_or_called_off() {
    let mut fleet = sim(&[("a", &[1.0, 1.0]), ("b", &[])]);
    fleet.leases[0].checkpoint_owner = Some("a".into());
    fleet.leases[0].owner = Some("b".into());
    let at = |overdue: bool, workers: &[WorkerView]| {
        let observed: Vec<_> = fleet
            .leases
            .iter()
            .map(|lease| ObservedLease {
                handoff_overdue: overdue,
                ..ObservedLease::live(lease)
            })
            .collect();
        let view = FleetView {
            leases: &observed,
            workers,
            balance: true,
        };
        plan(&view, &fleet.policy).0
    };
    assert!(at(false, &fleet.workers).moves.is_empty());
    assert_eq!(kinds(&at(true, &fleet.workers)), [("b", MoveKind::ForceHandoff)]);
    assert_eq!(
        kinds(&at(true, &fleet.workers[..1])),
        [("a", MoveKind::CallOffHandoff)]
    );
}

#[test]
fn limits_count_leases_that_are_coming_and_that_have_not_gone() {
    let mut fleet = sim(&[("a", &[1.0; 2]), ("b", &[1.0]), ("", &[1.0])]);
    fleet.policy.max_leases_for_worker = 2;
    fleet.leases[0].checkpoint_owner = Some("a".into());
    fleet.leases[0].owner = Some("b".into());
    let (plan, report) = fleet.plan(true);
    assert!(plan.moves.is_empty());
    assert_eq!(report.leases[3].1, LeaseVerdict::Waits(Refusal::LeaseLimit));
}

#[test]
fn throughput_is_limited_but_a_lease_above_the_limit_is_read_all_the_same() {
    let mut fleet = sim(&[("a", &[5.0]), ("b", &[]), ("", &[30.0, 4.0, 2.0])]);
    fleet.policy.max_throughput_per_host_kbps = 10.0;
    let (plan, report) = fleet.plan(true);
    assert_eq!(kinds(&plan), [("b", MoveKind::Give), ("a", MoveKind::Give)]);
    assert_eq!(report.leases[3].1, LeaseVerdict::Waits(Refusal::ThroughputLimit));
}

#[test]
fn without_an_active_worker_everything_waits() {
    let mut fleet = sim(&[("a", &[1.0]), ("", &[1.0])]);
    for standing in [Standing::Failing, Standing::Expired, Standing::Leaving] {
        fleet.workers[0].standing = standing;
        let (plan, report) = fleet.plan(true);
        assert!(plan.moves.is_empty());
        assert_eq!(report.leases[1].1, LeaseVerdict::Waits(Refusal::NoWorker));
    }
    assert_eq!(sim(&[]).plan(true).0, AssignmentPlan::default());
}

#[test]
fn quiet_leases_beside_a_hot_one_do_not_pile_up_on_one_worker() {
    let mut fleet = sim(&[("a", &[]), ("b", &[]), ("c", &[])]);
    fleet.leases = (0..31)
        .map(|i| lease(i, None, if i == 0 { 1000.0 } else { 0.0 }))
        .collect();
    let (plan, _) = fleet.plan(true);
    fleet.carry_out(&plan);
    let mut counts = fleet.counts();
    counts.sort_unstable();
    assert_eq!(counts, [1, 15, 15]);
}

#[test]
fn a_lagging_average_moves_nothing_more() {
    let lease_of = |key, owner| lease(key, Some(owner), 10.0);
    let leases: Vec<_> = (0..10)
        .map(|i| lease_of(i, if i < 5 { "a" } else { "b" }))
        .collect();
    // Four leases went from a to b half a minute ago: the newest reports are even, the averages are not yet.
    let observed: Vec<_> = leases
        .iter()
        .enumerate()
        .map(|(i, lease)| ObservedLease {
            moved: (6..10).contains(&i).then(|| RecentMove {
                by_handoff: true,
                from: Some("a".into()),
                age: Duration::from_secs(30),
            }),
            ..ObservedLease::live(lease)
        })
        .collect();
    let mut workers = [cpu("a", 70.0), cpu("b", 30.0)];
    for worker in &mut workers {
        worker.readings.get_mut("C").expect("there").latest = 50.0;
    }
    let view = FleetView {
        leases: &observed,
        workers: &workers,
        balance: true,
    };
    assert!(plan(&view, &AssignmentPolicy::default()).0.moves.is_empty());
}

#[test]
fn a_lease_that_was_handed_over_stays_for_a_while() {
    let leases: Vec<_> = (0..4).map(|i| lease(i, Some("a"), 10.0)).collect();
    let moves = |by_handoff, age| {
        let observed: Vec<_> = leases
            .iter()
            .map(|lease| ObservedLease {
                moved: Some(RecentMove {
                    from: Some("b".into()),
                    by_handoff,
                    age: Duration::from_secs(age),
                }),
                ..ObservedLease::live(lease)
            })
            .collect();
        let workers = [WorkerView::without_metrics("a"), WorkerView::without_metrics("b")];
        let view = FleetView {
            leases: &observed,
            workers: &workers,
            balance: true,
        };
        plan(&view, &AssignmentPolicy::default()).0.moves.len()
    };
    assert_eq!(moves(true, 299), 0);
    assert!(moves(true, 300) > 0);
    assert!(
        moves(false, 1) > 0,
        "a worker that crashed and came back gets leases at once"
    );
}

#[test]
fn rows_of_metrics_become_views() {
    let policy = AssignmentPolicy::default();
    let now = Timestamp::from_millis(1_000_000);
    let mut stats = WorkerMetricStats::new("w".into(), now);
    assert_eq!(
        WorkerView::from_stats(&stats, now, &policy),
        Some(WorkerView::without_metrics("w"))
    );
    stats.append("C", 90.0, 100);
    stats.append("C", 30.0, 100);
    let view = WorkerView::from_stats(&stats, now, &policy).expect("valid");
    assert_eq!(
        view.readings["C"],
        Reading {
            average: 60.0,
            latest: 30.0,
            limit: Some(100.0)
        }
    );
    stats.append("C", -1.0, 100);
    assert_eq!(
        WorkerView::from_stats(&stats, now, &policy).map(|view| view.standing),
        Some(Standing::Failing)
    );
    let later = Timestamp::from_millis(1_061_000);
    assert_eq!(
        WorkerView::from_stats(&stats, later, &policy).map(|view| view.standing),
        Some(Standing::Expired)
    );
    stats.operating_range.clear();
    assert_eq!(WorkerView::from_stats(&stats, now, &policy), None);
}
