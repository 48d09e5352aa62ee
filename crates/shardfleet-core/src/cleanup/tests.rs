use super::*;
use crate::hash_range::HashKeyRange;
use crate::sequence::SequenceNumber;
use proptest::prelude::*;

fn lease(key: &str, checkpoint: &str, parents: &[&str], children: &[&str]) -> Lease {
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).into()).collect();
    Lease {
        parent_shard_ids: ids(parents),
        child_shard_ids: ids(children),
        ..Lease::new(key, ExtendedSequenceNumber::parse(checkpoint, 0).expect("valid"))
    }
}

fn shard(id: &str, parents: &[&str]) -> Shard {
    Shard {
        shard_id: id.into(),
        parent_shard_id: parents.first().map(|id| (*id).into()),
        adjacent_parent_shard_id: parents.get(1).map(|id| (*id).into()),
        hash_key_range: HashKeyRange::FULL,
        starting_sequence_number: SequenceNumber::parse("1").expect("valid"),
        ending_sequence_number: None,
    }
}

fn view<'a>(leases: &'a [Lease], listing: Option<ShardListing<'a>>) -> CleanupView<'a> {
    CleanupView {
        leases,
        listing,
        since_finished_check: None,
        since_garbage_check: None,
    }
}

fn deleted(view: &CleanupView<'_>) -> Vec<(String, DeleteReason)> {
    let (plan, _) = plan(view, &CleanupPolicy::default());
    plan.delete
        .into_iter()
        .map(|deletion| (deletion.lease_key.to_string(), deletion.reason))
        .collect()
}

fn kept(view: &CleanupView<'_>, key: &str) -> Option<KeepReason> {
    let (_, report) = plan(view, &CleanupPolicy::default());
    report
        .kept
        .into_iter()
        .find(|(kept, _)| kept.as_str() == key)
        .map(|(_, reason)| reason)
}

#[test]
fn a_finished_lease_goes_once_all_children_are_past_their_start() {
    let with_child = |checkpoint| {
        [
            lease("p", "SHARD_END", &[], &["a", "b"]),
            lease("a", "7", &["p"], &[]),
            lease("b", checkpoint, &["p"], &[]),
        ]
    };
    for started in ["8", "SHARD_END"] {
        assert_eq!(
            deleted(&view(&with_child(started), None))[0],
            ("p".to_owned(), DeleteReason::Finished)
        );
    }
    for waiting in ["TRIM_HORIZON", "AT_TIMESTAMP", "LATEST"] {
        let leases = with_child(waiting);
        assert_eq!(deleted(&view(&leases, None)), []);
        assert_eq!(
            kept(&view(&leases, None), "p"),
            Some(KeepReason::ChildNotStarted("b".into()))
        );
    }
    let leases = &with_child("8")[..2];
    assert_eq!(
        kept(&view(leases, None), "p"),
        Some(KeepReason::ChildMissing("b".into()))
    );
}

#[test]
fn a_lease_stays_while_a_lease_of_its_parent_exists() {
    let leases = [
        lease("g", "SHARD_END", &[], &["p"]),
        lease("p", "SHARD_END", &["g"], &["c"]),
        lease("c", "7", &["p"], &[]),
    ];
    assert_eq!(
        deleted(&view(&leases, None)),
        [("g".to_owned(), DeleteReason::Finished)],
        "one generation"
    );
    assert_eq!(
        kept(&view(&leases, None), "p"),
        Some(KeepReason::ParentExists("g".into()))
    );
    assert_eq!(
        deleted(&view(&leases[1..], None)),
        [("p".to_owned(), DeleteReason::Finished)]
    );
}

#[test]
fn children_that_the_row_does_not_name_come_from_the_listing() {
    let leases = [lease("p", "SHARD_END", &[], &[]), lease("c", "7", &["p"], &[])];
    assert_eq!(kept(&view(&leases, None), "p"), Some(KeepReason::ChildrenUnknown));
    let shards = [shard("p", &[]), shard("c", &["p"])];
    let listing = ShardListing {
        shards: &shards,
        complete: false,
        stream_created_at: None,
    };
    assert_eq!(
        deleted(&view(&leases, Some(listing))),
        [("p".to_owned(), DeleteReason::Finished)]
    );
}

#[test]
fn a_shard_that_is_gone_takes_its_lease_along_only_if_everything_is_certain() {
    let created = Timestamp::from_millis(5_000);
    let mut leases = [
        lease("gone", "7", &[], &[]),
        lease("end", "SHARD_END", &[], &[]),
        lease("here", "7", &[], &[]),
    ];
    let shards = [shard("here", &[])];
    let listing = ShardListing {
        shards: &shards,
        complete: true,
        stream_created_at: Some(created),
    };
    assert_eq!(
        kept(&view(&leases, Some(listing)), "gone"),
        Some(KeepReason::StreamUncertain),
        "no lease notes its stream"
    );
    leases[2].stream_created_at = Some(Timestamp::from_millis(5_999));
    let expected = [
        ("end".to_owned(), DeleteReason::ShardGone),
        ("gone".to_owned(), DeleteReason::ShardGoneUnread),
    ];
    assert_eq!(deleted(&view(&leases, Some(listing))), expected);
    let part = ShardListing {
        complete: false,
        ..listing
    };
    assert_eq!(
        kept(&view(&leases, Some(part)), "gone"),
        Some(KeepReason::ListingIncomplete)
    );
    let unnamed = ShardListing {
        stream_created_at: None,
        ..listing
    };
    assert_eq!(
        kept(&view(&leases, Some(unnamed)), "gone"),
        Some(KeepReason::StreamUncertain)
    );
    leases[0].stream_created_at = Some(Timestamp::from_millis(9_000));
    assert_eq!(
        deleted(&view(&leases, Some(listing))),
        [],
        "one lease is of another stream"
    );
}

#[test]
fn garbage_goes_parents_first_and_waits_for_children_that_are_still_there() {
    let created = Some(Timestamp::from_millis(5_000));
    let mut leases = [
        lease("p", "SHARD_END", &[], &["c"]),
        lease("c", "TRIM_HORIZON", &["p"], &[]),
        lease("x", "7", &[], &[]),
    ];
    leases[2].stream_created_at = created;
    let both_gone = [shard("x", &[])];
    let listing = ShardListing {
        shards: &both_gone,
        complete: true,
        stream_created_at: created,
    };
    assert_eq!(
        deleted(&view(&leases, Some(listing))),
        [("p".to_owned(), DeleteReason::ShardGone)]
    );
    assert_eq!(
        kept(&view(&leases, Some(listing)), "c"),
        Some(KeepReason::ParentExists("p".into()))
    );
    let child_there = [shard("x", &[]), shard("c", &["p"])];
    let listing = ShardListing {
        shards: &child_there,
        ..listing
    };
    assert_eq!(
        kept(&view(&leases, Some(listing)), "p"),
        Some(KeepReason::ChildNotStarted("c".into()))
    );
}

#[test]
fn nothing_is_looked_at_before_its_interval_has_passed() {
    let leases = [lease("p", "SHARD_END", &[], &["c"]), lease("c", "7", &["p"], &[])];
    let shards = [shard("c", &["p"])];
    let listing = ShardListing {
        shards: &shards,
        complete: true,
        stream_created_at: None,
    };
    let due = |finished, garbage| {
        let view = CleanupView {
            leases: &leases,
            listing: Some(listing),
            since_finished_check: Some(Duration::from_secs(finished)),
            since_garbage_check: Some(Duration::from_secs(garbage)),
        };
        let (plan, _) = plan(&view, &CleanupPolicy::default());
        (plan.checked_finished, plan.checked_garbage, plan.delete.len())
    };
    assert_eq!(due(299, 1_799), (false, false, 0));
    assert_eq!(due(300, 1_799), (true, false, 1));
    assert_eq!(due(0, 1_800), (false, true, 0), "p is gone, but of which stream?");
    let disabled = CleanupPolicy {
        cleanup_finished: false,
        ..CleanupPolicy::default()
    };
    assert_eq!(
        plan(&view(&leases, None), &disabled).1.kept,
        [("p".into(), KeepReason::Disabled)]
    );
}

#[test]
fn metrics_go_after_a_day_by_what_was_seen() {
    let row =
        |id: &str, seconds: u64| WorkerMetricStats::new(id.into(), Timestamp::from_millis(seconds * 1000));
    let without_time = WorkerMetricStats {
        last_update_seconds: None,
        ..row("c", 0)
    };
    let now = Timestamp::from_millis(100_000_000);
    let stale = stale_metrics(
        &[row("b", 13_599), row("a", 13_600), without_time],
        now,
        &CleanupPolicy::default(),
    );
    assert_eq!(
        stale,
        [StaleMetrics {
            worker_id: "b".into(),
            last_update_seconds: 13_599
        }]
    );
}

proptest! {
    #[test]
    fn no_lease_goes_while_a_child_waits_or_a_parent_exists(
        rows in prop::collection::vec((0..3_usize, prop::collection::vec(0..12_usize, 0..3), prop::collection::vec(0..12_usize, 0..3)), 0..12),
        listed in prop::option::of(prop::collection::btree_set(0..12_usize, 0..12)),
        complete in any::<bool>(),
    ) {
        let name = |i: &usize| format!("s{i:02}");
        let leases: Vec<Lease> = rows
            .iter()
            .enumerate()
            .map(|(i, (checkpoint, parents, children))| Lease {
                parent_shard_ids: parents.iter().map(|i| name(i).into()).collect(),
                child_shard_ids: children.iter().map(|i| name(i).into()).collect(),
                stream_created_at: Some(Timestamp::default()),
                ..lease(&name(&i), ["TRIM_HORIZON", "7", "SHARD_END"][*checkpoint], &[], &[])
            })
            .collect();
        let shards: Vec<Shard> = listed.iter().flatten().map(|i| shard(&name(i), &[])).collect();
        let listing = listed.is_some().then_some(ShardListing { shards: &shards, complete, stream_created_at: Some(Timestamp::default()) });
        let (here, report) = plan(&view(&leases, listing), &CleanupPolicy::default());
        for deletion in &here.delete {
            let lease = leases.iter().find(|lease| lease.lease_key == deletion.lease_key).expect("exists");
            let is_listed = |id: &str| shards.iter().any(|shard| shard.shard_id.as_str() == id);
            prop_assert_eq!(deletion.reason == DeleteReason::Finished, lease.is_finished() && (listing.is_none() || is_listed(lease.lease_key.as_str())));
            for parent in &lease.parent_shard_ids {
                prop_assert!(parent.as_str() == lease.lease_key.as_str() || !leases.iter().any(|other| other.lease_key.as_str() == parent.as_str()));
            }
            for child in &lease.child_shard_ids {
                let started = leases.iter().any(|other| other.lease_key.as_str() == child.as_str() && is_past_start(other));
                prop_assert!(started || (deletion.reason != DeleteReason::Finished && !is_listed(child.as_str())));
            }
        }
        let mut reversed = leases.clone();
        reversed.reverse();
        prop_assert_eq!((here, report), plan(&view(&reversed, listing), &CleanupPolicy::default()));
    }
}
