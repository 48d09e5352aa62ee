use super::*;

mod simulation;

fn at(millis: u64) -> Moment {
    Moment::new(Duration::from_millis(millis))
}

fn policy() -> LeaderPolicy {
    LeaderPolicy {
        lease_duration: Duration::from_secs(12),
        heartbeat: Duration::from_secs(3),
        poll: Duration::from_secs(1),
        retry: Duration::from_millis(500),
        max_failed_runs: 3,
        cool_down: Duration::from_secs(6),
    }
}

fn row(owner: &str, version: &str) -> LockRow {
    LockRow {
        owner: Some(owner.into()),
        version: Some(version.to_owned()),
        lease_duration: Duration::from_secs(12),
        is_released: false,
    }
}

/// Carries out what the machine wants at `now`, at once; whether there was anything.
fn act(machine: &mut LeaderElection, table: &mut Option<LockRow>, now: u64, version: &str) -> bool {
    match machine.next_action(at(now), version) {
        Some(LeaderAction::Read) => machine.on_read(at(now), table.clone()),
        Some(LeaderAction::Write(write)) => {
            let outcome = if write.apply(table) {
                LockOutcome::Written
            } else {
                LockOutcome::Conflict
            };
            machine.on_written(at(now), outcome);
        }
        None => return false,
    }
    true
}

fn leading(table: &mut Option<LockRow>, now: u64) -> LeaderElection {
    let mut machine = LeaderElection::new("w1".into(), policy());
    act(&mut machine, table, now, "unused");
    act(&mut machine, table, now, "v1");
    assert!(machine.is_leader(at(now)));
    machine
}

#[test]
fn fields_are_text_as_the_java_client_writes_them() {
    let fields = LockFields {
        owner_name: Some("worker-1".into()),
        lease_duration: Some("120000".into()),
        record_version_number: Some("d91f4f94-1cf8-43d0-96a1-46d35fb301f9".into()),
        is_released: None,
    };
    let row = LockRow::decode(&fields, Duration::from_secs(1));
    assert_eq!(
        (row.lease_duration, row.is_released),
        (Duration::from_mins(2), false)
    );
    assert_eq!(row.encode(), fields);
    for garbage in [None, Some("soon"), Some("-1"), Some("99999999999999999")] {
        let fields = LockFields {
            lease_duration: garbage.map(Into::into),
            ..fields.clone()
        };
        assert_eq!(
            LockRow::decode(&fields, Duration::from_secs(7)).lease_duration,
            Duration::from_secs(7)
        );
    }
}

#[test]
fn an_absent_lock_is_acquired_and_kept_by_heartbeats() {
    let mut table = None;
    let mut machine = leading(&mut table, 1_000);
    assert_eq!(table, Some(row("w1", "v1")));
    assert_eq!(machine.next_deadline(), Some(at(4_000)));
    assert!(!act(&mut machine, &mut table, 3_999, "v2"));
    assert!(act(&mut machine, &mut table, 4_000, "v2"));
    assert_eq!(table, Some(row("w1", "v2")));
    assert!(machine.is_leader(at(16_000)) && !machine.is_leader(at(16_001)));
}

#[test]
fn a_released_lock_is_acquired_under_its_own_condition() {
    let mut table = Some(LockRow {
        is_released: true,
        ..row("w9", "old")
    });
    let machine = leading(&mut table, 0);
    assert_eq!(machine.known_leader(), Some(&"w1".into()));
    assert_eq!(table, Some(row("w1", "v1")));
}

#[test]
fn a_standby_waits_out_the_items_duration_from_its_own_first_sight() {
    let mut table = Some(LockRow {
        lease_duration: Duration::from_secs(20),
        ..row("w9", "a")
    });
    let mut machine = LeaderElection::new("w1".into(), policy());
    for now in (0..=20_000).step_by(500) {
        act(&mut machine, &mut table, now, "mine");
        assert!(!machine.is_leader(at(now)));
    }
    assert_eq!(machine.known_leader(), Some(&"w9".into()));
    assert_eq!(machine.next_deadline(), Some(at(20_001)), "as soon as it may");
    act(&mut machine, &mut table, 20_001, "mine");
    assert!(machine.is_leader(at(20_001)));
    assert_eq!(table, Some(row("w1", "mine")));
}

#[test]
fn a_heartbeat_at_the_last_moment_wins_over_the_takeover() {
    let mut table = Some(row("w9", "a"));
    let mut machine = LeaderElection::new("w1".into(), policy());
    act(&mut machine, &mut table, 0, "x");
    table = Some(row("w9", "b"));
    assert!(
        act(&mut machine, &mut table, 12_001, "mine"),
        "its condition names the version that was seen"
    );
    assert!(!machine.is_leader(at(12_001)));
    assert_eq!(table, Some(row("w9", "b")));
    // What was seen counts from anew.
    act(&mut machine, &mut table, 12_501, "x");
    act(&mut machine, &mut table, 24_501, "x");
    assert!(!machine.is_leader(at(24_501)));
}

#[test]
fn a_restart_under_the_same_name_does_not_inherit_the_lock() {
    let mut table = Some(row("w1", "before"));
    let mut machine = LeaderElection::new("w1".into(), policy());
    act(&mut machine, &mut table, 0, "x");
    assert!(!machine.is_leader(at(0)));
    act(&mut machine, &mut table, 12_001, "after");
    assert!(machine.is_leader(at(12_001)));
}

#[test]
fn a_lost_lock_ends_leadership_at_once() {
    let mut table = None;
    let mut machine = leading(&mut table, 0);
    table = Some(row("w2", "theirs"));
    act(&mut machine, &mut table, 3_000, "v2");
    assert!(!machine.is_leader(at(3_000)));
}

#[test]
fn a_write_without_an_answer_is_recognised_in_the_row() {
    let mut table = None;
    let mut machine = LeaderElection::new("w1".into(), policy());
    act(&mut machine, &mut table, 0, "x");
    let lost = |machine: &mut LeaderElection, table: &mut Option<LockRow>, now: u64, version: &str| {
        let Some(LeaderAction::Write(write)) = machine.next_action(at(now), version) else {
            panic!("no write")
        };
        assert!(write.apply(table));
        machine.on_written(at(now + 100), LockOutcome::Unknown);
    };
    lost(&mut machine, &mut table, 0, "v1");
    assert!(!machine.is_leader(at(100)));
    act(&mut machine, &mut table, 600, "x");
    assert!(
        machine.is_leader(at(12_000)) && !machine.is_leader(at(12_001)),
        "from when the write began"
    );

    lost(&mut machine, &mut table, 3_000, "v2");
    act(&mut machine, &mut table, 3_600, "v3");
    assert!(
        !machine.is_leader(at(3_600)),
        "a conflict, until the row was read"
    );
    act(&mut machine, &mut table, 3_600, "x");
    assert!(machine.is_leader(at(15_000)));

    lost(&mut machine, &mut table, 6_000, "v4");
    machine.stop(at(6_100));
    while act(&mut machine, &mut table, 7_000, "x") {}
    assert!(machine.is_stopped());
    assert_eq!(table, None, "released though its version was in doubt");
}

#[test]
fn three_failed_runs_give_the_lock_up_and_leave_it_to_others() {
    let mut table = None;
    let mut machine = leading(&mut table, 0);
    machine.on_run(at(10), false);
    machine.on_run(at(20), false);
    machine.on_run(at(30), true);
    machine.on_run(at(40), false);
    machine.on_run(at(50), false);
    assert!(machine.is_leader(at(50)), "not in a row");
    machine.on_run(at(60), false);
    assert!(!machine.is_leader(at(60)));
    act(&mut machine, &mut table, 60, "x");
    assert_eq!(table, None);
    for now in (100..6_060).step_by(100) {
        act(&mut machine, &mut table, now, "again");
        assert_eq!(table, None, "it rests");
    }
    for now in (6_060..8_000).step_by(100) {
        act(&mut machine, &mut table, now, "again");
    }
    assert!(machine.is_leader(at(8_000)), "nobody else wanted it");
    machine.on_run(at(8_000), false);
    assert!(
        machine.is_leader(at(8_000)),
        "failures count from the start again"
    );
}

#[test]
fn stopping_releases_and_acquires_no_more() {
    let mut table = None;
    let mut machine = leading(&mut table, 0);
    machine.stop(at(100));
    assert!(!machine.is_leader(at(100)) && !machine.is_stopped());
    act(&mut machine, &mut table, 100, "x");
    assert_eq!((table.as_ref(), machine.is_stopped()), (None, true));
    assert!(!act(&mut machine, &mut table, 60_000, "x"));
}

#[test]
fn a_row_without_a_version_does_not_keep_the_fleet_without_a_leader() {
    let mut table = Some(LockRow::decode(&LockFields::default(), Duration::from_secs(12)));
    let mut machine = LeaderElection::new("w1".into(), policy());
    act(&mut machine, &mut table, 0, "x");
    act(&mut machine, &mut table, 12_001, "v1");
    assert!(machine.is_leader(at(12_001)));
}

#[test]
fn the_lock_of_a_silent_holder_is_taken_unless_it_writes() {
    let silent = WorkerId::from("w9");
    let mut table = Some(row("w9", "a"));
    let mut machine = LeaderElection::new("w1".into(), policy());
    assert!(!machine.on_silent(at(0), &silent), "nothing is known of the lock");
    act(&mut machine, &mut table, 0, "x");
    assert!(!machine.on_silent(at(100), &"w8".into()), "it is not the holder");
    assert!(machine.on_silent(at(100), &silent));
    // The holder has written meanwhile: what was seen is not taken, and what is seen then is another version.
    table = Some(row("w9", "b"));
    act(&mut machine, &mut table, 100, "mine");
    assert_eq!(table, Some(row("w9", "b")));
    act(&mut machine, &mut table, 600, "x");
    assert!(!act(&mut machine, &mut table, 700, "mine"));
    assert!(machine.on_silent(at(700), &silent));
    act(&mut machine, &mut table, 700, "mine");
    assert!(machine.is_leader(at(700)));
    assert!(!machine.on_silent(at(701), &silent), "it leads itself");
}

#[test]
fn a_leader_that_sees_another_name_finds_out_with_its_next_write() {
    let mut table = None;
    let mut machine = leading(&mut table, 0);
    assert!(machine.doubt(at(100)));
    act(&mut machine, &mut table, 100, "v2");
    assert!(machine.is_leader(at(100)), "the scan was an old one");
    table = Some(row("w2", "theirs"));
    assert!(machine.doubt(at(200)));
    act(&mut machine, &mut table, 200, "v3");
    assert!(!machine.is_leader(at(200)));
    assert!(!machine.doubt(at(200)));
}
