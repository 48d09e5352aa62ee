use super::*;
use crate::lease::TargetState;
use proptest::prelude::*;

const STEP: u128 = u128::MAX / 10;

fn id(n: u64) -> ShardId {
    ShardId::new(format!("shardId-{n:012}"))
}

fn shard(n: u64, parents: &[u64], slots: (u128, u128), open: bool) -> Shard {
    let end = if slots.1 == 10 {
        u128::MAX
    } else {
        slots.1 * STEP - 1
    };
    let digits = |n: u64| SequenceNumber::parse(&n.to_string()).expect("digits");
    Shard {
        shard_id: id(n),
        parent_shard_id: parents.first().map(|n| id(*n)),
        adjacent_parent_shard_id: parents.get(1).map(|n| id(*n)),
        hash_key_range: HashKeyRange::new(slots.0 * STEP, end).expect("ordered"),
        starting_sequence_number: digits(1000 + n),
        ending_sequence_number: (!open).then(|| digits(2000 + n)),
    }
}

/// The fact sheet's tree: 0,1 → 6; 2,3 → 7; 6,7 → 8 (open); 4 (open); 5 → 9,10 (open).
fn tree() -> Vec<Shard> {
    vec![
        shard(0, &[], (0, 1), false),
        shard(1, &[], (1, 2), false),
        shard(2, &[], (2, 3), false),
        shard(3, &[], (3, 4), false),
        shard(4, &[], (4, 5), true),
        shard(5, &[], (5, 10), false),
        shard(6, &[0, 1], (0, 2), false),
        shard(7, &[2, 3], (2, 4), false),
        shard(8, &[6, 7], (0, 4), true),
        shard(9, &[5], (5, 7), true),
        shard(10, &[5], (7, 10), true),
    ]
}

fn lease(n: u64, checkpoint: &str) -> Lease {
    Lease::new(
        &id(n),
        ExtendedSequenceNumber::parse(checkpoint, 0).expect("checkpoint"),
    )
}

fn planned(shards: &[Shard], leases: &[Lease], initial_position: InitialPosition) -> Vec<(u64, String)> {
    let view = ShardSyncView {
        shards,
        leases,
        initial_position,
        named_shard: None,
        stream_created_at: None,
    };
    let plan = plan(&view).expect("a plan");
    plan.create
        .iter()
        .map(|l| {
            (
                l.lease_key.shard_id().number().expect("number"),
                l.checkpoint.to_string(),
            )
        })
        .collect()
}

fn named(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
    expected
        .iter()
        .map(|(n, checkpoint)| (*n, (*checkpoint).to_owned()))
        .collect()
}

#[test]
fn the_worked_example_for_every_initial_position() {
    let leases = [lease(4, "1100"), lease(5, "1100"), lease(7, "1100")];
    let check = |position, expected| assert_eq!(planned(&tree(), &leases, position), named(expected));
    check(InitialPosition::Latest, &[(6, "LATEST")]);
    check(
        InitialPosition::TrimHorizon,
        &[(0, "TRIM_HORIZON"), (1, "TRIM_HORIZON")],
    );
    check(
        InitialPosition::AtTimestamp,
        &[(0, "AT_TIMESTAMP"), (1, "AT_TIMESTAMP")],
    );
}

#[test]
fn an_empty_table_starts_at_the_initial_position_even_where_the_filter_is_ignored() {
    assert_eq!(
        planned(&tree(), &[], InitialPosition::Latest),
        named(&[(4, "LATEST"), (8, "LATEST"), (9, "LATEST"), (10, "LATEST")])
    );
    let roots: Vec<_> = (0..6).map(|n| (n, "TRIM_HORIZON".to_owned())).collect();
    assert_eq!(planned(&tree(), &[], InitialPosition::TrimHorizon), roots);
    let roots_only: Vec<_> = tree().into_iter().take(6).collect();
    assert_eq!(planned(&roots_only, &[], InitialPosition::TrimHorizon), roots);
}

#[test]
fn a_merged_shard_one_of_whose_parents_aged_out_is_read_from_its_start() {
    let shards = [shard(1, &[], (5, 10), false), shard(2, &[0, 1], (0, 10), true)];
    assert_eq!(
        planned(&shards, &[], InitialPosition::TrimHorizon),
        named(&[(1, "TRIM_HORIZON"), (2, "TRIM_HORIZON")])
    );
}

#[test]
fn a_listing_with_a_hole_is_refused_for_an_empty_table() {
    let shards: Vec<_> = tree()
        .into_iter()
        .filter(|shard| shard.shard_id != id(4))
        .collect();
    let view = ShardSyncView {
        shards: &shards,
        leases: &[],
        initial_position: InitialPosition::Latest,
        named_shard: None,
        stream_created_at: None,
    };
    let gap = HashKeyRange::new(4 * STEP, 5 * STEP - 1).expect("ordered");
    assert_eq!(plan(&view), Err(ShardSyncError::IncompleteListing { gap }));
}

#[test]
fn children_of_an_unfinished_parent_wait_and_of_a_finished_one_do_not() {
    let shards = tree();
    let mut leases: Vec<_> = (0..9).map(|n| lease(n, "SHARD_END")).collect();
    leases[4] = lease(4, "1500");
    leases[8] = lease(8, "1500");
    leases[5] = lease(5, "1500");
    assert_eq!(planned(&shards, &leases, InitialPosition::Latest), named(&[]));
    leases[5] = lease(5, "SHARD_END");
    assert_eq!(
        planned(&shards, &leases, InitialPosition::Latest),
        named(&[(9, "TRIM_HORIZON"), (10, "TRIM_HORIZON")]),
        "a crash at the end of 5 left its children out"
    );
}

#[test]
fn leases_of_an_earlier_stream_of_the_same_name_are_refused() {
    let shards = tree();
    let mut view = ShardSyncView {
        shards: &shards,
        leases: &[lease(4, "999")],
        initial_position: InitialPosition::Latest,
        named_shard: None,
        stream_created_at: Some(Timestamp::from_millis(5_000)),
    };
    let refused = plan(&view)
        .expect_err("its checkpoint lies before the shard's start")
        .to_string();
    assert!(
        refused.contains("shardId-000000000004") && refused.contains("999"),
        "{refused}"
    );

    let noted = Lease {
        stream_created_at: Some(Timestamp::from_millis(3_000)),
        ..lease(4, "LATEST")
    };
    let leases = [noted];
    view.leases = &leases;
    assert!(matches!(plan(&view), Err(ShardSyncError::AnotherStream { .. })));
    let noted = Lease {
        stream_created_at: Some(Timestamp::from_millis(5_400)),
        ..lease(4, "LATEST")
    };
    let leases = [noted];
    view.leases = &leases;
    assert!(plan(&view).is_ok(), "the same second");
}

#[test]
fn children_found_at_a_parents_end_start_at_their_oldest_record() {
    let children = ChildShard::of_parent(&id(5), &tree());
    let leases = child_leases(&children, None, Control::default());
    let found: Vec<_> = leases
        .iter()
        .map(|l| (l.lease_key.as_str(), l.checkpoint.to_string()))
        .collect();
    assert_eq!(
        found,
        [
            ("shardId-000000000009", "TRIM_HORIZON".to_owned()),
            ("shardId-000000000010", "TRIM_HORIZON".to_owned())
        ]
    );
    assert_eq!(leases[0].parent_shard_ids, [id(5)]);
}

#[test]
fn shards_that_come_to_a_paused_application_are_paused_too() {
    let paused = Control {
        target: TargetState::Paused,
        restarts: 2,
    };
    let children = ChildShard::of_parent(&id(5), &tree());
    let leases = child_leases(&children, None, paused);
    let asked: Vec<_> = leases.iter().map(|lease| lease.control().to_string()).collect();
    assert_eq!(asked, ["PAUSED 0", "PAUSED 0"]);

    let shards = tree();
    let known = [Lease {
        control: Some(paused),
        ..Lease::new(&shards[0].shard_id, ExtendedSequenceNumber::TrimHorizon)
    }];
    let view = ShardSyncView {
        shards: &shards,
        leases: &known,
        initial_position: InitialPosition::TrimHorizon,
        named_shard: None,
        stream_created_at: None,
    };
    let created = plan(&view).expect("a plan").create;
    assert!(!created.is_empty());
    assert!(
        created
            .iter()
            .all(|lease| lease.control().to_string() == "PAUSED 0")
    );
}

#[test]
fn a_lease_waits_for_each_of_its_parents() {
    let table = |leases: &[Lease]| {
        leases
            .iter()
            .map(|l| (l.lease_key.clone(), l.clone()))
            .collect::<BTreeMap<_, _>>()
    };
    let child = Lease {
        parent_shard_ids: vec![id(6), id(7)],
        ..lease(8, "TRIM_HORIZON")
    };
    assert_eq!(
        blocking_parent(&child, &table(&[lease(6, "SHARD_END"), lease(7, "1500")])),
        Some(&id(7))
    );
    assert_eq!(blocking_parent(&child, &table(&[lease(6, "SHARD_END")])), None);
}

#[test]
fn ancestors_of_a_merged_shard_that_was_cleaned_up_do_not_come_back() {
    // 0 and 1 were merged into 2, which was split; all three were read to their ends and their rows deleted.
    let shards = [
        shard(0, &[], (0, 5), false),
        shard(1, &[], (5, 10), false),
        shard(2, &[0, 1], (0, 10), false),
        shard(3, &[2], (0, 5), true),
        shard(4, &[2], (5, 10), true),
    ];
    let leases = [lease(3, "1100"), lease(4, "1100")];
    for position in [
        InitialPosition::TrimHorizon,
        InitialPosition::AtTimestamp,
        InitialPosition::Latest,
    ] {
        assert_eq!(planned(&shards, &leases, position), []);
    }
}

#[test]
fn a_listing_from_before_a_shards_end_says_nothing_of_its_children() {
    let open = [shard(1, &[], (0, 10), true)];
    assert_eq!(ChildShard::of_ended(&id(1), &open), None);
    let closed = [shard(1, &[], (0, 10), false)];
    assert_eq!(ChildShard::of_ended(&id(1), &closed), None);
    let known = [shard(1, &[], (0, 10), false), shard(2, &[1], (0, 10), true)];
    let children = ChildShard::of_ended(&id(1), &known).expect("listed after the end");
    assert_eq!(children.len(), 1);
    // Its records are all gone, and it with them.
    assert_eq!(ChildShard::of_ended(&id(0), &known), Some(Vec::new()));
}

#[test]
fn a_listing_that_runs_in_a_circle_ends() {
    let shards = [shard(1, &[2], (0, 5), true), shard(2, &[1], (5, 10), true)];
    planned(&shards, &[lease(9, "LATEST")], InitialPosition::TrimHorizon);
}

proptest! {
    #[test]
    fn input_order_does_not_matter_and_replanning_on_the_outcome_dies_out(
        order in Just(tree()).prop_shuffle(),
        leased in prop::collection::btree_set(0_u64..11, 1..11),
        position in prop::sample::select(vec![InitialPosition::TrimHorizon, InitialPosition::Latest, InitialPosition::AtTimestamp]),
    ) {
        let mut leases: Vec<_> = leased.iter().map(|n| lease(*n, "1900")).collect();
        let first = planned(&tree(), &leases, position);
        prop_assert_eq!(&planned(&order, &leases, position), &first);
        let view = ShardSyncView { shards: &order, leases: &leases, initial_position: position, named_shard: None, stream_created_at: None };
        leases.extend(plan(&view).expect("a plan").create);
        prop_assert_eq!(planned(&order, &leases, position), vec![]);
    }
}

#[test]
fn a_named_shard_is_read_closed_or_not_and_its_descendants_after_it() {
    let shards = tree();
    let named_shard = id(5);
    let view = ShardSyncView {
        shards: &shards,
        leases: &[],
        initial_position: InitialPosition::Latest,
        named_shard: Some(&named_shard),
        stream_created_at: None,
    };
    let plan = plan(&view).expect("a plan");
    let keys: Vec<_> = plan
        .create
        .iter()
        .map(|l| (l.lease_key.shard_id(), l.checkpoint.to_string()))
        .collect();
    let expected = [(4, "LATEST"), (5, "TRIM_HORIZON"), (8, "LATEST")];
    assert_eq!(
        keys,
        expected.map(|(n, checkpoint)| (id(n), checkpoint.to_owned()))
    );
}
