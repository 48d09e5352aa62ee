use std::time::Duration;

use super::*;
use crate::time::Moment;

fn at(text: &str) -> ExtendedSequenceNumber {
    ExtendedSequenceNumber::parse(text, 0).expect("sequence number")
}

fn held_by(worker: &str, counter: u64) -> Lease {
    Lease {
        owner: Some(worker.into()),
        counter,
        hash_key_range: Some(HashKeyRange::FULL),
        ..Lease::new("shardId-000000000001", at("TRIM_HORIZON"))
    }
}

fn written(write: &LeaseWrite, lease: &Lease) -> Lease {
    write.apply(lease).expect("the condition holds")
}

#[test]
fn renewal_moves_the_counter_alone_and_only_for_who_saw_it_last() {
    let lease = held_by("w1", 7);
    let after = written(&LeaseWrite::renew(&lease, Some(1.5)), &lease);
    assert_eq!(
        after,
        Lease {
            counter: 8,
            throughput_kbps: Some(1.5),
            ..lease.clone()
        }
    );
    assert_eq!(
        LeaseWrite::renew(&lease, None).apply(&after),
        None,
        "a stale counter conflicts"
    );
}

#[test]
fn a_handoff_makes_the_holders_next_renewal_conflict_once() {
    let lease = held_by("w1", 7);
    let handoff = LeaseWrite::start_handoff(&lease, &"w2".into()).expect("held, no handoff");
    let during = written(&handoff, &lease);
    assert_eq!((during.counter, during.actual_owner()), (7, Some(&"w1".into())));
    assert_eq!(LeaseWrite::renew(&lease, None).apply(&during), None);
    assert_eq!(written(&LeaseWrite::renew(&during, None), &during).counter, 8);
    assert_eq!(LeaseWrite::start_handoff(&during, &"w3".into()), None);

    let after = written(&LeaseWrite::assign(&during, &"w2".into()), &during);
    assert_eq!(
        (after.owner.as_ref(), after.checkpoint_owner, after.counter),
        (Some(&"w2".into()), None, 8)
    );
}

#[test]
fn taking_counts_a_switch_only_from_another_worker() {
    let lease = held_by("w1", 3);
    assert_eq!(
        written(&LeaseWrite::take(&lease, &"w2".into()), &lease).owner_switches_since_checkpoint,
        1
    );
    assert_eq!(
        written(&LeaseWrite::take(&lease, &"w1".into()), &lease).owner_switches_since_checkpoint,
        0
    );
    let unowned = Lease { owner: None, ..lease };
    let taken = written(&LeaseWrite::take(&unowned, &"w2".into()), &unowned);
    assert_eq!((taken.owner_switches_since_checkpoint, taken.counter), (0, 4));
}

#[test]
fn a_checkpoint_clears_what_was_pending_and_where_reading_began() {
    let lease = Lease {
        owner_switches_since_checkpoint: 2,
        pending_checkpoint: Some(PendingCheckpoint {
            at: at("11"),
            state: Some(vec![1]),
        }),
        opened_at: Some(OpenedAt::Latest(Timestamp::from_millis(5))),
        ..held_by("w1", 3)
    };
    let after = written(&LeaseWrite::checkpoint(&lease, at("11")), &lease);
    let expected = Lease {
        counter: 4,
        checkpoint: at("11"),
        owner_switches_since_checkpoint: 0,
        pending_checkpoint: None,
        opened_at: None,
        ..lease.clone()
    };
    assert_eq!(after, expected);
    assert_eq!(
        LeaseWrite::checkpoint(&lease, at("12")).apply(&after),
        None,
        "fenced by the counter"
    );
}

#[test]
fn release_leaves_the_next_owner_of_a_handoff() {
    let lease = held_by("w1", 3);
    let released = written(&LeaseWrite::release(&lease), &lease);
    assert_eq!((released.owner, released.counter), (None, 4));

    let during = Lease {
        owner: Some("w2".into()),
        checkpoint_owner: Some("w1".into()),
        ..lease
    };
    let released = written(&LeaseWrite::release(&during), &during);
    assert_eq!(
        (released.owner, released.checkpoint_owner),
        (Some("w2".into()), None)
    );
    assert_eq!(
        LeaseWrite::release(&during).apply(&held_by("w3", 9)),
        None,
        "somebody else's by now"
    );
}

#[test]
fn where_reading_began_survives_the_row() {
    let all = [
        OpenedAt::Latest(Timestamp::from_millis(1_700_000_000_123)),
        OpenedAt::Timestamp(Timestamp::from_millis(0)),
        OpenedAt::Sequence(SequenceNumber::parse("4968").expect("digits")),
    ];
    for opened_at in all {
        assert_eq!(OpenedAt::parse(&opened_at.to_string()), Ok(opened_at));
    }
    for bad in [
        "",
        "LATEST",
        "LATEST@",
        "LATEST@-1",
        "AT_SEQUENCE_NUMBER@x",
        "NEWEST@1",
    ] {
        assert_eq!(OpenedAt::parse(bad), Err(bad.to_owned()));
    }
}

#[test]
fn a_lease_expires_for_who_watched_its_counter_stand_still() {
    let failover = Duration::from_secs(10);
    let second = |s| Moment::new(Duration::from_secs(s));
    let mut clock = LeaseClock::default();
    let lease = held_by("w1", 3);
    assert!(!clock.is_expired(second(100), &lease, failover), "never observed");
    clock.observe(second(100), [&lease]);
    clock.observe(second(105), [&lease]);
    assert!(
        !clock.is_expired(second(110), &lease, failover),
        "exactly the failover time is not beyond it"
    );
    assert!(clock.is_expired(second(111), &lease, failover));
    let renewed = Lease { counter: 4, ..lease };
    clock.observe(second(111), [&renewed]);
    assert!(!clock.is_expired(second(120), &renewed, failover));
}
