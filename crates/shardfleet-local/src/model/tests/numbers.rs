//! Hash ranges, sequence numbers and the properties of any history of reshards.

use super::*;

#[test]
fn four_shards_are_cut_where_the_service_cuts_them() {
    let starts: Vec<String> = even_ranges(4).iter().map(|r| r.start.to_string()).collect();
    assert_eq!(starts[1], "85070591730234615865843651857942052864");
    assert_eq!(starts[2], "170141183460469231731687303715884105728");
    assert_eq!(
        even_ranges(4)[0].end.to_string(),
        "85070591730234615865843651857942052863"
    );
    assert_eq!(
        even_ranges(3)[1].start.to_string(),
        "113427455640312821154458202477256070485"
    );
}

#[test]
fn a_partition_key_hashes_to_its_md5() {
    assert_eq!(
        hash_of_key(b"a").to_string(),
        "16955237001963240173058271559858726497"
    );
}

#[test]
fn sequence_numbers_have_56_digits_and_the_documented_bits() {
    let sequence = Sequence {
        made_secs: 1_733_000_000,
        index: 7,
        time_secs: 1_733_000_100,
        shard: 3,
    };
    let text = sequence.to_text();
    assert_eq!(text.len(), 56);
    assert!(text.starts_with("49"), "{text}");
    assert_eq!(Sequence::parse(&text), Some(sequence));
}

#[test]
fn garbage_is_no_sequence_number() {
    for text in [
        "",
        "0",
        "1",
        &"9".repeat(56),
        &"9".repeat(129),
        "49x",
        &"4".repeat(55),
    ] {
        assert_eq!(Sequence::parse(text), None, "{text}");
    }
}

proptest! {
    #[test]
    fn even_ranges_cover_everything_once(count in 1u32..3000) {
        let ranges = even_ranges(count);
        prop_assert_eq!(ranges.len(), count as usize);
        assert_covered(&ranges);
    }

    #[test]
    fn sequence_numbers_survive_the_text(made in 0u64..1 << 36, index in any::<u64>(), time in 0u64..1 << 36, shard in any::<u32>()) {
        let sequence = Sequence { made_secs: made, index, time_secs: time, shard };
        prop_assert_eq!(Sequence::parse(&sequence.to_text()), Some(sequence));
    }

    #[test]
    fn sequence_numbers_order_as_texts(a in (1u64 << 30..1 << 32, 0u64..END_INDEX), b in (1u64 << 30..1 << 32, 0u64..END_INDEX)) {
        let text = |(made_secs, index)| Sequence { made_secs, index, time_secs: 5, shard: 1 }.to_text();
        prop_assert_eq!(a.cmp(&b), text(a).cmp(&text(b)));
    }

    #[test]
    fn any_text_is_a_token_or_not_without_a_panic(text in "\\PC{0,80}") {
        prop_assert_eq!(IteratorToken::decode(&text), None);
        prop_assert_eq!(ListToken::decode(&text), None);
        prop_assert_eq!(Sequence::parse(&text), None);
    }

    /// Any history of splits, merges and scalings keeps the open shards covering the key space once, closed parents below
    /// their children, and lets a reader that follows the lineage see every record once.
    #[test]
    fn resharding_keeps_the_key_space_whole(steps in prop::collection::vec((0u8..3, any::<u16>()), 1..25)) {
        let mut now = at(1_700_000_000_000);
        let mut account = with_stream(2, now);
        let mut written = 0usize;
        for (kind, choice) in steps {
            now.epoch_ms += 10;
            for i in 0..3u128 {
                put(&mut account, (u128::MAX / 3) * i, "x", now);
                written += 1;
            }
            let s = stream(&mut account, now);
            let open = s.open_by_range();
            let pick = usize::from(choice) % open.len();
            let plan = match kind {
                0 => s.plan_split(&shard_name(open[pick].0), open[pick].1.middle()),
                1 if pick + 1 < open.len() => s.plan_merge(&shard_name(open[pick].0), &shard_name(open[pick + 1].0)),
                _ => s.plan_scale(u32::try_from(1 + usize::from(choice) % 8).unwrap()),
            };
            if let Ok(plan) = plan {
                s.begin_update(now.uptime_ms, Some(plan));
            }
            assert_covered(&open_ranges(&mut account, now));
        }
        let s = stream(&mut account, now);
        let read: usize = s.shards.values().map(|shard| shard.records().count()).sum();
        prop_assert_eq!(read, written);
        for shard in s.shards.values() {
            for parent in shard.meta.parent.into_iter().chain(shard.meta.adjacent_parent) {
                let parent = &s.shards[&parent].meta;
                prop_assert!(parent.ending_sequence().unwrap() < shard.meta.starting_sequence());
                prop_assert_eq!(parent.closed_ms.unwrap() <= shard.meta.opened_ms, true);
            }
            if let Some(end) = shard.meta.ending_sequence() {
                prop_assert!(shard.records().all(|r| r.sequence.as_slice() < end.as_bytes()));
                prop_assert!(s.children_of(shard.meta.number).count() >= 1);
            }
            let texts: Vec<_> = shard.records().map(|r| r.sequence).collect();
            prop_assert!(texts.is_sorted_by(|a, b| a < b));
        }
    }

    /// At every moment of a stream's life, the shards that were open then cover the key space once.
    #[test]
    fn shards_open_at_a_time_cover_the_key_space(splits in 1usize..12, probe in 0u64..200) {
        let start = 1_700_000_000_000;
        let mut account = with_stream(1, at(start));
        for i in 0..splits {
            let now = at(start + 10 * i as u64);
            let s = stream(&mut account, now);
            let (number, range) = s.open_by_range()[i / 2];
            let plan = s.plan_split(&shard_name(number), range.middle()).unwrap();
            s.begin_update(now.uptime_ms, Some(plan));
        }
        let now = at(start + 300);
        let s = stream(&mut account, now);
        let filter = ShardFilter::resolve(FilterKind::AtTimestamp, None, Some(start + probe), s, now).unwrap();
        let shown: Vec<HashRange> = s.shards.values().map(|s| &s.meta).filter(|m| filter.shows(m)).map(|m| m.range).collect();
        assert_covered(&shown);
    }
}
