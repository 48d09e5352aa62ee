use super::*;
use crate::sequence::{ExtendedSequenceNumber, SequenceNumber};
use proptest::prelude::*;

const HALF: u128 = 1 << 127;

fn range(start: u128, end: u128) -> HashKeyRange {
    HashKeyRange::new(start, end).expect("in order")
}

fn lease(key: &str, range: Option<HashKeyRange>) -> Lease {
    Lease {
        hash_key_range: range,
        ..Lease::new(key, ExtendedSequenceNumber::TrimHorizon)
    }
}

fn shard(id: &str, range: HashKeyRange) -> Shard {
    Shard {
        shard_id: id.into(),
        parent_shard_id: None,
        adjacent_parent_shard_id: None,
        hash_key_range: range,
        starting_sequence_number: SequenceNumber::parse("1").expect("valid"),
        ending_sequence_number: None,
    }
}

#[test]
fn an_empty_table_calls_for_a_sync_at_once() {
    let audit = HoleAudit::default().audit(&[], &[]);
    assert_eq!(audit.verdict, AuditVerdict::Empty);
    assert!(audit.verdict.calls_for_sync());
}

#[test]
fn the_same_hole_three_times_in_a_row_calls_for_a_sync() {
    let low = [lease("a", Some(range(0, HALF - 1)))];
    let both = [low[0].clone(), lease("b", Some(range(HALF, u128::MAX)))];
    let mut audits = HoleAudit::default();
    let mut seen = |leases: &[Lease]| match audits.audit(leases, &[]).verdict {
        AuditVerdict::Hole { hole, seen, sync } => Some((hole.start(), seen, sync)),
        _ => None,
    };
    assert_eq!(seen(&low), Some((HALF, 1, false)));
    assert_eq!(seen(&low), Some((HALF, 2, false)));
    assert_eq!(seen(&both[1..]), Some((0, 1, false)), "another hole");
    assert_eq!(seen(&low), Some((HALF, 1, false)));
    assert_eq!(seen(&both), None);
    for (count, sync) in [(1, false), (2, false), (3, true), (1, false)] {
        assert_eq!(seen(&low), Some((HALF, count, sync)));
    }
}

#[test]
fn finished_leases_cover_nothing() {
    let mut end = lease("a", Some(HashKeyRange::FULL));
    end.checkpoint = ExtendedSequenceNumber::ShardEnd;
    let verdict = HoleAudit::new(0).audit(&[end], &[]).verdict;
    assert_eq!(
        verdict,
        AuditVerdict::Hole {
            hole: HashKeyRange::FULL,
            seen: 1,
            sync: true
        }
    );
}

#[test]
fn missing_ranges_come_from_the_listing_and_are_stored() {
    let leases = [lease("b", None), lease("a", Some(range(0, 9))), lease("z", None)];
    assert!(HoleAudit::needs_listing(&leases) && !HoleAudit::needs_listing(&leases[1..2]));
    let shards = [shard("b", range(10, u128::MAX))];
    let audit = HoleAudit::default().audit(&leases, &shards);
    assert_eq!(audit.verdict, AuditVerdict::Covered);
    assert_eq!(
        audit.fill_in,
        [LeaseWrite::record_hash_key_range(
            &leases[0],
            range(10, u128::MAX)
        )]
    );
    assert_eq!(audit.unknown, ["z".into()]);
}

proptest! {
    #[test]
    fn a_hole_is_found_exactly_if_some_hash_key_is_left_out(
        cuts in prop::collection::btree_set(1..u128::MAX, 0..8),
        missing in prop::option::of(0..9_usize),
        reverse in any::<bool>(),
    ) {
        let starts: Vec<u128> = std::iter::once(0).chain(cuts).collect();
        let ends = starts.iter().skip(1).map(|start| start - 1).chain([u128::MAX]);
        let mut leases: Vec<Lease> = starts
            .iter()
            .zip(ends)
            .enumerate()
            .filter(|(i, _)| Some(*i) != missing)
            .map(|(i, (start, end))| lease(&format!("s{i}"), Some(range(*start, end))))
            .collect();
        if reverse {
            leases.reverse();
        }
        let verdict = HoleAudit::default().audit(&leases, &[]).verdict;
        match missing.and_then(|missing| starts.get(missing)) {
            _ if leases.is_empty() => prop_assert_eq!(verdict, AuditVerdict::Empty),
            Some(start) => {
                let found = matches!(verdict, AuditVerdict::Hole { hole, seen: 1, sync: false } if hole.start() == *start);
                prop_assert!(found, "{:?}", verdict);
            }
            None => prop_assert_eq!(verdict, AuditVerdict::Covered),
        }
    }
}
