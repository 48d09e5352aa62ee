use super::*;
use crate::sequence::ExtendedSequenceNumber;

const FAILOVER: Duration = Duration::from_secs(10);

fn second(s: u64) -> Moment {
    Moment::new(Duration::from_secs(s))
}

fn row(counter: u64) -> Lease {
    Lease {
        owner: Some("me".into()),
        counter,
        ..Lease::new("shardId-000000000000", ExtendedSequenceNumber::TrimHorizon)
    }
}

fn in_handoff(counter: u64) -> Lease {
    Lease {
        owner: Some("next".into()),
        checkpoint_owner: Some("me".into()),
        ..row(counter)
    }
}

fn holding() -> Holding {
    Holding::new("me".into(), row(5), FAILOVER, second(0))
}

fn conflict(current: Lease) -> WriteOutcome {
    WriteOutcome::Conflict(Some(current))
}

/// Sends a renewal at `now` to a store that holds `stored`.
fn renew(holding: &mut Holding, now: Moment, stored: &mut Lease) -> HoldVerdict {
    assert!(holding.begin(now), "held");
    let write = LeaseWrite::renew(holding.row(), None);
    let outcome = match write.apply(stored) {
        Some(after) => {
            stored.clone_from(&after);
            WriteOutcome::Written(after)
        }
        None => WriteOutcome::Conflict(Some(stored.clone())),
    };
    holding.on_answer(&write, outcome)
}

#[test]
fn it_is_held_from_the_begin_of_the_last_write_for_the_failover_time() {
    let (mut held, mut stored) = (holding(), row(5));
    assert_eq!(renew(&mut held, second(4), &mut stored), HoldVerdict::Written);
    assert_eq!((held.row().counter, held.valid_until()), (6, second(14)));
    assert!(held.is_held(second(14)));
    assert!(!held.is_held(second(15)));
    assert!(!held.begin(second(5)), "losing is final, whatever the clock says");
    assert_eq!(held.lost(), Some(&Lost::Expired(FAILOVER)));
}

#[test]
fn a_write_without_an_answer_may_have_happened() {
    let (mut held, mut stored) = (holding(), row(5));
    assert!(held.begin(second(1)));
    let write = LeaseWrite::renew(held.row(), None);
    stored = write.apply(&stored).expect("it happened");
    assert_eq!(held.on_failure(false), HoldVerdict::Failed);
    assert_eq!(held.valid_until(), second(10), "nobody said that it was renewed");
    assert_eq!(renew(&mut held, second(2), &mut stored), HoldVerdict::Again);
    assert_eq!(renew(&mut held, second(2), &mut stored), HoldVerdict::Written);

    assert!(held.begin(second(3)));
    assert_eq!(held.on_failure(true), HoldVerdict::Failed);
    stored.counter += 1;
    assert_eq!(
        renew(&mut held, second(3), &mut stored),
        HoldVerdict::Lost,
        "the counter moved, and not by this worker"
    );
}

#[test]
fn a_handoff_shows_in_the_refused_renewal_and_the_next_write_goes_on() {
    let (mut held, mut stored) = (holding(), in_handoff(5));
    assert_eq!(held.next_owner(), None);
    assert_eq!(renew(&mut held, second(3), &mut stored), HoldVerdict::Again);
    assert_eq!(held.next_owner(), Some(&"next".into()));
    assert_eq!(renew(&mut held, second(3), &mut stored), HoldVerdict::Written);
    assert_eq!(held.row().counter, 6);

    assert!(held.begin(second(4)));
    let transfer = LeaseWrite::assign(held.row(), &"next".into());
    let after = transfer.apply(&stored).expect("the owners are as seen");
    let outcome = WriteOutcome::Written(after);
    assert_eq!(held.on_answer(&transfer, outcome), HoldVerdict::Written);
    assert_eq!(held.lost(), Some(&Lost::HandedOver("next".into())));
}

#[test]
fn a_handoff_shows_in_the_row_that_a_checkpoint_returns() {
    let (mut held, stored) = (holding(), in_handoff(5));
    assert!(held.begin(second(1)));
    let write = LeaseWrite::checkpoint(held.row(), ExtendedSequenceNumber::ShardEnd);
    let after = write
        .apply(&stored)
        .expect("checkpoints ask for the counter only");
    let outcome = WriteOutcome::Written(after);
    assert_eq!(held.on_answer(&write, outcome), HoldVerdict::Written);
    assert_eq!(held.next_owner(), Some(&"next".into()));
}

#[test]
fn a_renewal_that_landed_unheard_during_a_handoff_is_still_ours() {
    // KCL compares leaseOwner, which is the next owner by then, and loses the lease.
    let (mut held, mut stored) = (holding(), in_handoff(5));
    assert_eq!(renew(&mut held, second(1), &mut stored), HoldVerdict::Again);
    assert!(held.begin(second(2)));
    let write = LeaseWrite::renew(held.row(), None);
    stored = write.apply(&stored).expect("it happened");
    assert_eq!(held.on_failure(false), HoldVerdict::Failed);
    assert_eq!(renew(&mut held, second(3), &mut stored), HoldVerdict::Again);
    assert_eq!(renew(&mut held, second(3), &mut stored), HoldVerdict::Written);
}

#[test]
fn a_handoff_that_is_called_off_leaves_the_lease_with_its_holder() {
    let (mut held, mut stored) = (holding(), in_handoff(5));
    assert_eq!(renew(&mut held, second(1), &mut stored), HoldVerdict::Again);
    stored = LeaseWrite::assign(&stored, &"me".into())
        .apply(&stored)
        .expect("the owners are as seen");
    assert_eq!(renew(&mut held, second(2), &mut stored), HoldVerdict::Again);
    assert_eq!(held.next_owner(), None);
    assert_eq!(renew(&mut held, second(2), &mut stored), HoldVerdict::Written);
}

#[test]
fn whoever_else_writes_the_row_has_the_lease() {
    let others = [
        Lease {
            owner: Some("other".into()),
            ..row(6)
        },
        Lease {
            owner: None,
            ..row(6)
        },
        // Another process under the same worker id.
        row(6),
        row(7),
        row(4),
    ];
    for current in others {
        let mut held = holding();
        assert!(held.begin(second(1)));
        let write = LeaseWrite::renew(held.row(), None);
        assert_eq!(
            held.on_answer(&write, conflict(current.clone())),
            HoldVerdict::Lost,
            "{current:?}"
        );
    }
    let mut held = holding();
    assert!(held.begin(second(1)));
    let write = LeaseWrite::record_children(held.row(), vec!["shardId-1".into()]);
    let taken = Lease {
        owner: Some("other".into()),
        ..row(6)
    };
    let outcome = WriteOutcome::Written(taken);
    assert_eq!(
        held.on_answer(&write, outcome),
        HoldVerdict::Lost,
        "an unconditional write shows it too"
    );
    assert!(held.begin(second(2)) || held.lost().is_some());
    let mut held = holding();
    assert!(held.begin(second(1)));
    let gone = WriteOutcome::Conflict(None);
    assert_eq!(held.on_answer(&write, gone), HoldVerdict::Lost);
    assert_eq!(held.lost(), Some(&Lost::Deleted));
}

#[test]
fn a_write_that_leaves_the_counter_alone_renews_nothing() {
    let mut held = holding();
    assert!(held.begin(second(9)));
    let write = LeaseWrite::record_children(held.row(), vec!["shardId-1".into()]);
    let after = write.apply(&row(5)).expect("unconditional");
    assert_eq!(
        held.on_answer(&write, WriteOutcome::Written(after)),
        HoldVerdict::Written
    );
    assert_eq!(held.valid_until(), second(10), "others have seen nothing move");
}

#[test]
fn throughput_is_a_moving_average_that_starts_from_the_stored_one() {
    let mut meter = ThroughputMeter::new(second(0), None);
    assert_eq!(meter.report(second(0), 0), None);
    assert_eq!(meter.report(second(4), 4 * 1024 * 10), Some(10.0));
    assert_eq!(meter.report(second(8), 4 * 1024 * 10), Some(5.0), "nothing since");
    assert_eq!(
        meter.report(second(8), 9 * 1024 * 10),
        Some(5.0),
        "no time has passed"
    );
    let mut meter = ThroughputMeter::new(second(0), Some(100.0));
    assert_eq!(meter.report(second(1), 0), Some(50.0));
    let mut meter = ThroughputMeter::new(second(0), Some(f64::NAN));
    assert_eq!(meter.report(second(1), 1024), Some(1.0));
}
