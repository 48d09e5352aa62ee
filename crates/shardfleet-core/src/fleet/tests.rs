use super::*;
use crate::assignment::MoveKind;
use crate::sequence::ExtendedSequenceNumber;

fn second(s: u64) -> Moment {
    Moment::new(Duration::from_secs(s))
}

fn wall(s: u64) -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000 + s * 1000)
}

fn lease(shard: u32, owner: Option<&str>, counter: u64) -> Lease {
    let id = format!("shardId-{shard:012}");
    Lease {
        owner: owner.map(WorkerId::from),
        counter,
        throughput_kbps: Some(100.0),
        ..Lease::new(id.as_str(), ExtendedSequenceNumber::TrimHorizon)
    }
}

fn snapshot(leases: impl IntoIterator<Item = Lease>, workers: &[&str], at: u64) -> FleetSnapshot {
    FleetSnapshot {
        leases: leases
            .into_iter()
            .map(|lease| (lease.lease_key.clone(), lease))
            .collect(),
        workers: workers
            .iter()
            .map(|id| WorkerMetricStats::new(WorkerId::from(*id), wall(at)))
            .collect(),
        leader_lock: None,
    }
}

fn watch(me: &str) -> FleetWatch {
    FleetWatch::new(me.into(), FleetPolicy::default())
}

fn question(leader: Option<&WorkerId>, at_start: bool) -> TakeoverQuestion<'_> {
    TakeoverQuestion {
        excluded: &|_| false,
        leader,
        at_start,
    }
}

fn taken(takes: &[Take]) -> Vec<u64> {
    takes
        .iter()
        .filter_map(|take| take.lease_key.shard_id().number())
        .collect()
}

#[test]
fn workers_that_start_together_share_out_what_nobody_holds() {
    let fleet = snapshot((0..9).map(|n| lease(n, None, 0)), &["a", "b", "c"], 0);
    let mut all = Vec::new();
    for me in ["a", "b", "c"] {
        let mut watch = watch(me);
        watch.observe(second(1), wall(0), &fleet);
        let takes = watch.plan_takeover(second(1), wall(0), &fleet, &question(None, true));
        assert_eq!(takes.len(), 3, "{me}");
        all.extend(taken(&takes));
    }
    all.sort_unstable();
    assert_eq!(all, (0..9).collect::<Vec<_>>(), "each by one of them");

    // A worker whose own row the scan does not show yet counts itself.
    let mut watch = watch("d");
    watch.observe(second(1), wall(0), &fleet);
    let takes = watch.plan_takeover(second(1), wall(0), &fleet, &question(None, true));
    assert!((1..=3).contains(&takes.len()), "{takes:?}");
}

#[test]
fn the_leader_goes_first_and_is_not_waited_for_longer_than_the_grace() {
    let leader = WorkerId::from("b");
    let fleet = snapshot([lease(0, None, 0), lease(1, Some("b"), 7)], &["a", "b"], 0);
    let mut watch = watch("a");
    watch.observe(second(10), wall(0), &fleet);
    let ask =
        |watch: &FleetWatch, at| watch.plan_takeover(at, wall(0), &fleet, &question(Some(&leader), false));
    assert_eq!(taken(&ask(&watch, second(11))), []);
    assert_eq!(watch.next_free(), Some(second(10) + Duration::from_millis(1800)));
    assert_eq!(taken(&ask(&watch, second(12))), [0]);
}

#[test]
fn a_dead_leaders_leases_are_taken_at_once_and_others_after_the_grace() {
    let leader = WorkerId::from("z");
    let rows = [
        lease(0, Some("z"), 7),
        lease(1, Some("y"), 7),
        lease(2, Some("a"), 1),
    ];
    let fleet = snapshot(rows.clone(), &["a", "y", "z"], 0);
    let mut watch = watch("a");
    watch.observe(second(100), wall(0), &fleet);
    assert_eq!(
        watch.next_expiry(&fleet),
        Some(second(110) + Duration::from_millis(1))
    );
    let later = snapshot(
        [rows[0].clone(), rows[1].clone(), lease(2, Some("a"), 5)],
        &["a", "y", "z"],
        0,
    );
    watch.observe(second(110) + Duration::from_millis(1), wall(10), &later);
    let excluded = |key: &LeaseKey| key.shard_id().number() == Some(2);
    let ask = |at| {
        let question = TakeoverQuestion {
            excluded: &excluded,
            leader: Some(&leader),
            at_start: false,
        };
        taken(&watch.plan_takeover(at, wall(10), &later, &question))
    };
    assert_eq!(ask(second(110)), []);
    assert_eq!(ask(second(110) + Duration::from_millis(1)), [0]);
    assert_eq!(ask(second(112)), [0, 1]);
}

#[test]
fn leases_under_the_own_name_are_taken_back_but_not_those_in_handoff_or_held() {
    let mut in_handoff = lease(1, Some("a"), 3);
    in_handoff.checkpoint_owner = Some("b".into());
    let fleet = snapshot(
        [lease(0, Some("a"), 3), in_handoff, lease(2, Some("a"), 4)],
        &["a", "b"],
        0,
    );
    let mut watch = watch("a");
    watch.observe(second(1), wall(0), &fleet);
    let excluded = |key: &LeaseKey| key.shard_id().number() == Some(2);
    let question = TakeoverQuestion {
        excluded: &excluded,
        leader: None,
        at_start: false,
    };
    let takes = watch.plan_takeover(second(1), wall(0), &fleet, &question);
    assert_eq!(taken(&takes), [0]);
    assert_eq!(takes[0].reason, TakeReason::OwnName);
}

#[test]
fn a_shard_that_waits_for_its_parent_is_nobodys() {
    let mut child = lease(2, None, 0);
    child.parent_shard_ids = vec!["shardId-000000000000".into()];
    let fleet = snapshot([lease(0, Some("b"), 3), child.clone()], &["a", "b"], 0);
    let mut watch = watch("a");
    watch.observe(second(1), wall(0), &fleet);
    assert!(
        watch
            .plan_takeover(second(9), wall(0), &fleet, &question(None, true))
            .is_empty()
    );
    let (plan, _) = watch.plan_assignment(second(1), wall(0), &fleet);
    assert!(plan.moves.is_empty(), "{plan:?}");

    let mut ended = lease(0, None, 4);
    ended.checkpoint = ExtendedSequenceNumber::ShardEnd;
    let fleet = snapshot([ended, child], &["a", "b"], 0);
    watch.observe(second(20), wall(0), &fleet);
    let (plan, _) = watch.plan_assignment(second(20), wall(0), &fleet);
    assert_eq!(plan.moves.len(), 1, "its parent was read to the end");
    let excluded = |_: &LeaseKey| true;
    let nothing = TakeoverQuestion {
        excluded: &excluded,
        leader: None,
        at_start: true,
    };
    assert!(
        watch
            .plan_takeover(second(30), wall(0), &fleet, &nothing)
            .is_empty()
    );
}

#[test]
fn a_full_worker_takes_nothing_more() {
    let mut policy = FleetPolicy::default();
    policy.assignment.max_leases_for_worker = 2;
    let mut watch = FleetWatch::new("a".into(), policy);
    let fleet = snapshot(
        [
            lease(0, Some("a"), 3),
            lease(1, None, 0),
            lease(2, None, 0),
            lease(3, None, 0),
        ],
        &["a"],
        0,
    );
    watch.observe(second(1), wall(0), &fleet);
    let held = |key: &LeaseKey| key.shard_id().number() == Some(0);
    for at in [1, 60] {
        let question = TakeoverQuestion {
            excluded: &held,
            leader: None,
            at_start: false,
        };
        assert!(watch.plan_takeover(second(at), wall(0), &fleet, &question).len() <= 1);
    }
}

#[test]
fn a_stopping_worker_hands_its_leases_to_those_with_room() {
    let rows = [
        lease(0, Some("a"), 1),
        lease(1, Some("a"), 1),
        lease(2, Some("b"), 1),
        lease(3, Some("c"), 1),
    ];
    let fleet = snapshot(rows, &["a", "b", "c"], 0);
    let mut watch = watch("a");
    watch.observe(second(1), wall(0), &fleet);
    let departures = watch.plan_departure(second(1), wall(0), &fleet);
    let to: Vec<&str> = departures.iter().map(|d| d.to.as_str()).collect();
    assert_eq!(to, ["b", "c"]);
    // Alone, or among the dead only, it has nobody to hand them to.
    let dead = snapshot([lease(0, Some("a"), 1)], &["a", "b"], 0);
    assert!(watch.plan_departure(second(1), wall(3600), &dead).is_empty());
}

#[test]
fn leases_move_on_the_first_run_then_at_intervals_and_after_a_join() {
    let alone = |at| snapshot((0..4).map(|n| lease(n, Some("a"), at)), &["a"], at);
    let joined = |at| snapshot((0..4).map(|n| lease(n, Some("a"), at)), &["a", "b"], at);
    let mut watch = watch("a");
    watch.on_leading();
    let mut run = |at: u64, fleet: &FleetSnapshot| {
        watch.observe(second(at), wall(at), fleet);
        watch.plan_assignment(second(at), wall(at), fleet).1.balance
    };
    assert_eq!(run(1, &alone(1)), BalanceVerdict::Even);
    assert_eq!(run(3, &alone(3)), BalanceVerdict::NotDue);
    let after_join = run(5, &joined(5));
    assert!(
        matches!(after_join, BalanceVerdict::Uneven { handoffs: 1.. }),
        "{after_join:?}"
    );
    assert_ne!(
        run(8, &joined(8)),
        BalanceVerdict::NotDue,
        "until the fleet is even"
    );
    assert_ne!(run(65, &joined(65)), BalanceVerdict::NotDue);
}

#[test]
fn two_dead_workers_are_not_given_each_others_leases_in_turn() {
    let mut watch = watch("c");
    watch.on_leading();
    let mut rows: Vec<Lease> = (0..6)
        .map(|n| lease(n, Some(["a", "b", "c"][n as usize % 3]), 1))
        .collect();
    let mut given_to_the_dead = 0;
    for run in 0..60_u64 {
        for row in &mut rows {
            // Both die after the first run, one a little earlier, so that their leases do not expire in the same run.
            let is_alive = match row.owner.as_ref().map(WorkerId::as_str) {
                Some("a") => run == 0,
                Some("b") => run < 3,
                _ => true,
            };
            row.counter += u64::from(is_alive);
        }
        let fleet = snapshot(rows.clone(), &["a", "b", "c"], 0);
        watch.observe(second(run * 3), wall(0), &fleet);
        let (plan, _) = watch.plan_assignment(second(run * 3), wall(0), &fleet);
        for planned in plan.moves {
            given_to_the_dead += u64::from(planned.to.as_str() != "c" && run > 3);
            let number = planned.lease_key.shard_id().number().expect("a number");
            let row = &mut rows[usize::try_from(number).expect("small")];
            row.owner = Some(planned.to);
            row.counter += 1;
        }
    }
    let owners: Vec<_> = rows.iter().filter_map(|row| row.owner.as_ref()).collect();
    assert!(owners.iter().all(|owner| owner.as_str() == "c"), "{owners:?}");
    // Those of the first to die may go to the second as long as that one seems to live.
    assert!(given_to_the_dead <= 1, "{given_to_the_dead}");
}

#[test]
fn a_worker_is_silent_once_all_its_leases_have_expired_and_until_it_shows_life() {
    let mut watch = watch("b");
    let (a, b) = (WorkerId::from("a"), WorkerId::from("b"));
    let of = |first, second, owner: &str, reported| {
        let rows = [
            lease(0, Some(owner), first),
            lease(1, Some(owner), second),
            lease(2, Some("b"), 1),
        ];
        snapshot(rows, &["a", "b"], reported)
    };
    let mut look = |at, fleet: &FleetSnapshot| {
        watch.observe(second(at), wall(at), fleet);
        (watch.is_silent(&a), watch.is_silent(&b))
    };
    assert_eq!(look(0, &of(1, 1, "a", 0)), (false, false));
    assert_eq!(look(5, &of(1, 2, "a", 0)), (false, false));
    assert_eq!(
        look(11, &of(1, 2, "a", 0)),
        (false, false),
        "one of them is alive"
    );
    assert_eq!(look(16, &of(1, 2, "a", 0)), (true, false));
    assert_eq!(
        look(17, &of(3, 4, "b", 0)),
        (true, false),
        "others took them meanwhile"
    );
    assert_eq!(look(18, &of(4, 5, "b", 18)), (false, false), "it reports");
}

#[test]
fn a_worker_that_shows_life_again_is_given_leases_again() {
    let revived = |renews: bool, reports: bool| {
        let mut watch = watch("b");
        let of = |counter, at| {
            let rows = [lease(0, Some("a"), counter), lease(1, Some("b"), at + 1)];
            snapshot(rows, &["a", "b"], at)
        };
        watch.observe(second(0), wall(0), &of(1, 0));
        watch.observe(second(11), wall(11), &of(1, 0));
        let later = of(if renews { 2 } else { 1 }, if reports { 12 } else { 0 });
        watch.observe(second(12), wall(12), &later);
        let view = watch.views(wall(12), &later);
        view.iter()
            .any(|view| view.worker_id.as_str() == "a" && !view.suspect)
    };
    assert!(!revived(false, false));
    assert!(revived(true, false));
    assert!(revived(false, true));
}

/// Another worker may take what expired before this one sees it expire.
#[test]
fn whoever_lost_a_lease_to_somebody_quicker_is_taken_for_dead_too() {
    let is_suspect = |taken_at: u64, by_handoff: bool| {
        let mut watch = watch("c");
        let row = |owner: &str, counter| lease(0, Some(owner), counter);
        let mine = |at| lease(1, Some("c"), at);
        let mut look = |at: u64, first: Lease| {
            let fleet = snapshot([first, mine(at)], &["a", "b", "c"], 0);
            watch.observe(second(at), wall(0), &fleet);
            let views = watch.views(wall(0), &fleet);
            views
                .iter()
                .any(|view| view.worker_id.as_str() == "a" && view.suspect)
        };
        for at in (0..taken_at).step_by(2) {
            let mut first = row("a", 1);
            if by_handoff && at + 2 >= taken_at {
                first = row("b", 1);
                first.checkpoint_owner = Some("a".into());
            }
            assert!(!look(at, first));
        }
        look(taken_at, row("b", 2))
    };
    assert!(is_suspect(10, false));
    assert!(!is_suspect(4, false), "it may have let go of it");
    assert!(!is_suspect(10, true), "it has handed it over");
}

#[test]
fn whoever_wakes_with_nothing_left_gets_its_share_again() {
    let mut watch = watch("a");
    watch.on_leading();
    let mut owners: Vec<String> = (0..6).map(|n| ["a", "b"][n % 2].to_owned()).collect();
    let mut moved_back = 0;
    for run in 0..40_u64 {
        let at = run * 3;
        let is_frozen = (1..12).contains(&run);
        let rows = owners.iter().zip(0..).map(|(owner, n)| {
            let frozen_since = if is_frozen && owner == "b" { 0 } else { at };
            lease(n, Some(owner), frozen_since)
        });
        let mut fleet = snapshot(rows.collect::<Vec<_>>(), &["a", "b"], at);
        if is_frozen {
            fleet.workers[1] = WorkerMetricStats::new(WorkerId::from("b"), wall(0));
        }
        watch.observe(second(at), wall(at), &fleet);
        let (plan, _) = watch.plan_assignment(second(at), wall(at), &fleet);
        for planned in plan.moves {
            let number = planned.lease_key.shard_id().number().expect("a number");
            moved_back += usize::from(run >= 12 && planned.to.as_str() == "b");
            owners[usize::try_from(number).expect("small")] = planned.to.as_str().to_owned();
        }
    }
    assert_eq!(moved_back, 3, "{owners:?}");
    assert_eq!(owners.iter().filter(|owner| *owner == "b").count(), 3);
}

/// A worker that comes after a death sees a report that is less than a minute old, and nothing else of the dead.
#[test]
fn whoever_died_before_this_worker_came_is_given_nothing() {
    let rows = |counter| [lease(0, Some("leader"), 1), lease(1, Some("me"), counter)];
    let dead_reported = |age: u64| {
        let mut fleet = snapshot(rows(1), &["leader", "me"], 100);
        let dead = WorkerMetricStats::new(WorkerId::from("dead"), wall(100 - age));
        fleet.workers.push(dead);
        let mut watch = watch("me");
        watch.observe(second(0), wall(100), &fleet);
        let mut views = watch.views(wall(100), &fleet).into_iter();
        views.any(|view| view.worker_id.as_str() == "dead" && view.suspect)
    };
    assert!(dead_reported(30), "it may be dead");
    assert!(!dead_reported(5), "it has just started");

    let mut fleet = snapshot(rows(1), &["leader", "me"], 100);
    let dead = WorkerMetricStats::new(WorkerId::from("dead"), wall(80));
    fleet.workers.push(dead);
    let mut watch = watch("me");
    watch.observe(second(0), wall(100), &fleet);
    // The leader dies, and its lease is this worker's to take.
    fleet
        .leases
        .extend(rows(2).map(|lease| (lease.lease_key.clone(), lease)));
    watch.observe(second(9), wall(109), &fleet);
    watch.on_leading();
    watch.observe(second(11), wall(111), &fleet);
    let (plan, _) = watch.plan_assignment(second(11), wall(111), &fleet);
    let owners: Vec<&str> = plan.moves.iter().map(|planned| planned.to.as_str()).collect();
    assert_eq!(owners, ["me"]);
}

/// What moved to a worker a moment ago does not rest there while others have next to nothing.
#[test]
fn workers_that_join_one_after_another_end_up_even() {
    let mut watch = watch("a");
    watch.on_leading();
    let mut owners = vec!["a".to_owned(); 8];
    let mut under_way: Vec<(usize, String)> = Vec::new();
    for run in 0..12_u64 {
        let workers: &[&str] = match run {
            0 => &["a"],
            1 => &["a", "b"],
            _ => &["a", "b", "c"],
        };
        let row = |(number, owner): (usize, &String)| {
            let mut row = lease(u32::try_from(number).expect("small"), Some(owner), run);
            if let Some((_, to)) = under_way.iter().find(|(moving, _)| *moving == number) {
                row.checkpoint_owner = Some(owner.as_str().into());
                row.owner = Some(to.as_str().into());
            }
            row
        };
        let fleet = snapshot(owners.iter().enumerate().map(row), workers, run);
        let at = second(run * 3);
        watch.observe(at, wall(run * 3), &fleet);
        let (plan, _) = watch.plan_assignment(at, wall(run * 3), &fleet);
        // Those of the run before are complete; so the second join meets handoffs under way.
        for (number, to) in under_way.drain(..) {
            owners[number] = to;
        }
        under_way = plan
            .moves
            .iter()
            .map(|planned| {
                let number = planned.lease_key.shard_id().number().expect("a number");
                (usize::try_from(number).expect("small"), planned.to.to_string())
            })
            .collect();
    }
    assert_eq!(under_way, []);
    for worker in ["a", "b", "c"] {
        let has = owners.iter().filter(|owner| *owner == worker).count();
        assert!((2..=3).contains(&has), "{worker} has {has}: {owners:?}");
    }
}

#[test]
fn a_worker_that_only_seems_to_come_and_go_lets_moved_leases_rest() {
    let mut watch = watch("a");
    watch.on_leading();
    let rows = |owner: &str, counter| {
        let rest = (1..4).map(|n| lease(n, Some("a"), counter));
        std::iter::once(lease(0, Some(owner), counter))
            .chain(rest)
            .collect::<Vec<_>>()
    };
    let at = |run: u64| second(run * 3);
    watch.observe(at(0), wall(0), &snapshot(rows("a", 1), &["a", "b"], 0));
    watch.observe(at(1), wall(0), &snapshot(rows("b", 2), &["a", "b"], 0));
    let rests = |watch: &FleetWatch, run| {
        let row = lease(0, Some("b"), run);
        watch.observed(at(run), &row).moved.is_some()
    };
    assert!(rests(&watch, 1));
    // By this worker's clock the other's report is old, then new again.
    watch.observe(at(2), wall(3600), &snapshot(rows("b", 3), &["b"], 0));
    watch.observe(at(3), wall(0), &snapshot(rows("b", 4), &["a", "b"], 0));
    assert!(rests(&watch, 3));
    // Somebody who had no row before is another matter.
    watch.observe(at(4), wall(0), &snapshot(rows("b", 5), &["a", "b", "c"], 0));
    assert!(!rests(&watch, 4));
}

#[test]
fn an_overdue_handoff_is_forced_by_the_pair_of_owners_it_began_with() {
    let in_handoff = |to: &str, counter| {
        let mut lease = lease(0, Some(to), counter);
        lease.checkpoint_owner = Some("b".into());
        snapshot([lease], &["a", "b", "c"], 0)
    };
    let mut watch = watch("a");
    let mut moves = |at: u64, to: &str| {
        let fleet = in_handoff(to, at);
        watch.observe(second(at), wall(0), &fleet);
        let (plan, _) = watch.plan_assignment(second(at), wall(0), &fleet);
        plan.moves
            .iter()
            .map(|m| (m.kind, m.to.as_str().to_owned()))
            .collect::<Vec<_>>()
    };
    assert_eq!(moves(1, "c"), []);
    assert_eq!(moves(30, "c"), []);
    assert_eq!(moves(42, "c"), [(MoveKind::ForceHandoff, "c".to_owned())]);
    assert_eq!(moves(43, "a"), [], "another handoff has its own time");
}

#[test]
fn two_workers_besides_the_leader_watch_closely() {
    let all: Vec<String> = (0..12).map(|n| format!("w{n:02}")).collect();
    let names: Vec<&str> = all.iter().map(String::as_str).collect();
    let leader = WorkerId::from("w01");
    let deputies = |names: &[&str], dead: &[&str]| -> Vec<String> {
        // The dead have reported not long ago, and others have their leases.
        let holders = names.iter().filter(|name| !dead.contains(name));
        let rows = holders.zip(0..).map(|(name, n)| lease(n, Some(name), 1));
        let fleet = snapshot(rows, names, 0);
        let is_deputy = |me: &&&str| {
            let mut watch = watch(me);
            watch.observe(second(1), wall(0), &fleet);
            watch.duty(Some(&leader)) == Duty::Deputy
        };
        let living = names.iter().filter(|name| !dead.contains(name));
        living.filter(is_deputy).map(ToString::to_string).collect()
    };
    assert_eq!(deputies(&names, &[]), ["w00", "w02"]);
    assert_eq!(deputies(&names, &["w00", "w02"]), ["w03", "w04"]);
    // In a small fleet everybody does.
    assert_eq!(deputies(&names[..4], &[]), ["w00", "w02", "w03"]);
}
