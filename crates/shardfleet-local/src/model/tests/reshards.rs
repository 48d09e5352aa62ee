//! Splits, merges, trimming and listing.

use super::*;

#[test]
fn splits_and_merges_that_cannot_be() {
    let now = at(1_700_000_000_000);
    let mut account = with_stream(3, now);
    let s = stream(&mut account, now);
    let range = s.shards[&0].meta.range;
    for key in [range.start, range.start + 1, range.end, range.end + 5] {
        assert!(s.plan_split(&shard_name(0), key).is_err(), "{key}");
    }
    assert!(s.plan_split(&shard_name(0), range.start + 2).is_ok());
    assert_eq!(
        s.plan_split("shardId-000000000007", 5).unwrap_err().code,
        "ResourceNotFoundException"
    );
    assert_eq!(
        s.plan_merge(&shard_name(0), &shard_name(2)).unwrap_err().code,
        "InvalidArgumentException"
    );
    assert!(s.plan_merge(&shard_name(1), &shard_name(0)).is_ok());
    assert_eq!(s.plan_scale(7).unwrap_err().code, "LimitExceededException");
    assert_eq!(s.plan_scale(1).unwrap_err().code, "LimitExceededException");
    reshard(
        &mut account,
        |s| s.plan_merge(&shard_name(0), &shard_name(1)),
        now,
    );
    let s = stream(&mut account, now);
    let closed = s.plan_split(&shard_name(0), range.middle()).unwrap_err();
    assert!(
        closed.message.contains("already been merged or split"),
        "{}",
        closed.message
    );
    assert_eq!(
        (s.shards[&3].meta.parent, s.shards[&3].meta.adjacent_parent),
        (Some(0), Some(1))
    );
}

#[test]
fn scaling_gives_even_shards_by_splits_and_merges() {
    let now = at(1_700_000_000_000);
    for (from, to) in [
        (1, 2),
        (2, 4),
        (4, 8),
        (4, 2),
        (2, 3),
        (3, 2),
        (5, 7),
        (8, 5),
        (3, 3),
    ] {
        let mut account = with_stream(from, now);
        reshard(&mut account, |s| s.plan_scale(to), now);
        assert_eq!(open_ranges(&mut account, now), even_ranges(to), "{from} to {to}");
        let s = stream(&mut account, now);
        let parentless = s.shards.values().filter(|s| s.meta.parent.is_none()).count();
        assert_eq!(parentless, from as usize, "{from} to {to}");
    }
}

#[test]
fn trimmed_records_vanish_silently_and_closed_shards_after_them() {
    let start = 1_700_000_000_000;
    let mut account = with_stream(1, at(start));
    let (_, old) = put(&mut account, 0, "old", at(start + HOUR_MS));
    put(&mut account, 0, "new", at(start + 20 * HOUR_MS));
    let now = at(start + 26 * HOUR_MS);
    assert_eq!(
        read_from(&mut account, 0, &Start::AtSequence(old.clone()), now),
        ["new"]
    );
    assert_eq!(
        read_from(&mut account, 0, &Start::AfterSequence(old), now),
        ["new"]
    );
    reshard(&mut account, |s| s.plan_split(&shard_name(0), 1 << 127), now);
    assert_eq!(
        stream(&mut account, at(now.epoch_ms + 23 * HOUR_MS)).shards.len(),
        3
    );
    assert_eq!(
        stream(&mut account, at(now.epoch_ms + 25 * HOUR_MS))
            .shards
            .keys()
            .copied()
            .collect::<Vec<_>>(),
        [1, 2]
    );
    let gone = iterator(
        &mut account,
        0,
        &Start::TrimHorizon,
        at(now.epoch_ms + 25 * HOUR_MS),
    )
    .unwrap_err();
    assert_eq!(gone.code, "ResourceNotFoundException");
}

#[test]
fn shard_filters() {
    let start = 1_700_000_000_000;
    let mut account = with_stream(2, at(start));
    reshard(
        &mut account,
        |s| s.plan_split(&shard_name(0), 1 << 126),
        at(start + 1000),
    );
    reshard(
        &mut account,
        |s| s.plan_merge(&shard_name(2), &shard_name(3)),
        at(start + 2000),
    );
    let mut shown = |kind, shard: Option<&str>, ms, now_ms| {
        let now = at(now_ms);
        let s = stream(&mut account, now);
        let filter = ShardFilter::resolve(kind, shard, ms, s, now).unwrap();
        assert_eq!(ShardFilter::parse(&filter.to_text()), Some(filter.clone()));
        s.shards
            .values()
            .filter(|s| filter.shows(&s.meta))
            .map(|s| s.meta.number)
            .collect::<Vec<u32>>()
    };
    let now = start + 3000;
    assert_eq!(
        shown(FilterKind::AfterShardId, Some("shardId-000000000001"), None, now),
        [2, 3, 4]
    );
    assert_eq!(shown(FilterKind::AtTrimHorizon, None, None, now), [0, 1]);
    assert_eq!(
        shown(FilterKind::FromTrimHorizon, None, None, now),
        [0, 1, 2, 3, 4]
    );
    assert_eq!(shown(FilterKind::AtLatest, None, None, now), [1, 4]);
    assert_eq!(
        shown(FilterKind::AtTimestamp, None, Some(start + 1500), now),
        [1, 2, 3]
    );
    assert_eq!(
        shown(FilterKind::FromTimestamp, None, Some(start + 1500), now),
        [1, 2, 3, 4]
    );
    assert_eq!(
        shown(FilterKind::AtTimestamp, None, Some(5), now),
        [0, 1],
        "before the horizon is the horizon"
    );
    // A day and a half second later: the split's parent is gone, its children still there.
    assert_eq!(
        shown(FilterKind::AtTrimHorizon, None, None, start + 24 * HOUR_MS + 1500),
        [1, 2, 3]
    );
    let s = stream(&mut account, at(now));
    let future = ShardFilter::resolve(FilterKind::AtTimestamp, None, Some(now + 1), s, at(now)).unwrap_err();
    assert_eq!(future.code, "InvalidArgumentException");
}
