//! Where reading starts and where it ends.

use super::*;

#[test]
fn records_go_by_hash_and_sequence_numbers_rise() {
    let now = at(1_700_000_000_000);
    let mut account = with_stream(2, now);
    let (low, first) = put(&mut account, 0, "a", now);
    let (high, _) = put(&mut account, u128::MAX, "b", now);
    let (_, second) = put(&mut account, 1, "c", now);
    assert_eq!((low, high), (0, 1));
    assert!(first < second);
    let key = Put {
        key: Bytes::from_static(b"a"),
        explicit_hash: None,
        data: Bytes::new(),
    };
    let answers = account.put(StreamRef::by_name("s"), vec![key], now).unwrap();
    assert_eq!(
        answers[0].as_ref().unwrap().0,
        u32::from(hash_of_key(b"a") > u128::MAX / 2)
    );
}

#[test]
fn the_five_positions() {
    let start = 1_700_000_000_000;
    let mut account = with_stream(1, at(start));
    let (_, a) = put(&mut account, 0, "a", at(start + 1));
    put(&mut account, 0, "b", at(start + 2));
    put(&mut account, 0, "c", at(start + 3));
    let now = at(start + 10);
    assert_eq!(
        read_from(&mut account, 0, &Start::TrimHorizon, now),
        ["a", "b", "c"]
    );
    assert_eq!(read_from(&mut account, 0, &Start::Latest, now), [""; 0]);
    assert_eq!(
        read_from(&mut account, 0, &Start::AtSequence(a.clone()), now),
        ["a", "b", "c"]
    );
    assert_eq!(
        read_from(&mut account, 0, &Start::AfterSequence(a), now),
        ["b", "c"]
    );
    assert_eq!(
        read_from(&mut account, 0, &Start::AtTimestamp(start + 2), now),
        ["b", "c"]
    );
    assert_eq!(
        read_from(&mut account, 0, &Start::AtTimestamp(start + 4), now),
        [""; 0]
    );
    let late = iterator(&mut account, 0, &Start::AtTimestamp(start + 11), now).unwrap_err();
    assert_eq!(late.code, "InvalidArgumentException");
    assert!(late.message.contains("timestampInMillis"), "{}", late.message);
}

#[test]
fn after_the_newest_record_comes_the_next_one() {
    let now = at(1_700_000_000_000);
    let mut account = with_stream(1, now);
    let latest = iterator(&mut account, 0, &Start::Latest, now).unwrap();
    let at_time = iterator(&mut account, 0, &Start::AtTimestamp(now.epoch_ms), now).unwrap();
    let (_, a) = put(&mut account, 0, "a", now);
    let after = iterator(&mut account, 0, &Start::AfterSequence(a), now).unwrap();
    put(&mut account, 0, "b", now);
    assert_eq!(read(&mut account, &latest, 10, now).unwrap().0, ["a", "b"]);
    assert_eq!(read(&mut account, &at_time, 10, now).unwrap().0, ["a", "b"]);
    assert_eq!(read(&mut account, &after, 10, now).unwrap().0, ["b"]);
}

#[test]
fn a_sequence_number_of_an_older_incarnation_is_refused() {
    let now = at(1_700_000_000_000);
    let mut account = with_stream(1, now);
    let (_, old) = put(&mut account, 0, "a", now);
    account
        .delete_stream(StreamRef::by_name("s"), false, now)
        .unwrap();
    account
        .create_stream(NewStream::provisioned("s", 1), now)
        .unwrap();
    let (_, new) = put(&mut account, 0, "a", now);
    assert!(old < new, "even in the same second: {old} {new}");
    let refused = iterator(&mut account, 0, &Start::AfterSequence(old), now).unwrap_err();
    assert!(
        refused
            .message
            .ends_with("is invalid because it did not come from this stream."),
        "{}",
        refused.message
    );
    let garbage = iterator(&mut account, 0, &Start::AtSequence("17".into()), now).unwrap_err();
    assert!(garbage.message.ends_with("is invalid."), "{}", garbage.message);
}

#[test]
fn a_sequence_number_of_another_shard_is_refused() {
    let now = at(1_700_000_000_000);
    let mut account = with_stream(2, now);
    let (_, first) = put(&mut account, u128::MAX, "a", now);
    let refused = iterator(&mut account, 0, &Start::AtSequence(first), now).unwrap_err();
    assert!(
        refused.message.contains("It encodes shardId-000000000001"),
        "{}",
        refused.message
    );
}

#[test]
fn the_end_of_a_closed_shard() {
    let now = at(1_700_000_000_000);
    let mut account = with_stream(1, now);
    put(&mut account, 0, "a", now);
    put(&mut account, 0, "b", now);
    let from_start = iterator(&mut account, 0, &Start::TrimHorizon, now).unwrap();
    reshard(&mut account, |s| s.plan_split(&shard_name(0), 1 << 127), now);
    let (first, _, ended, _) = read(&mut account, &from_start, 1, now).unwrap();
    assert_eq!((first, ended), (vec!["a".to_owned()], false));
    let (all, behind, ended, _) = read(&mut account, &from_start, 10, now).unwrap();
    assert_eq!((all.len(), behind, ended), (2, 0, true));
    let end = stream(&mut account, now).shards[&0]
        .meta
        .ending_sequence()
        .unwrap();
    let at_end = iterator(&mut account, 0, &Start::AfterSequence(end), now).unwrap();
    assert!(read(&mut account, &at_end, 10, now).unwrap().2);
    account.settings.shard_end_on_own_page = true;
    let (all, _, ended, next) = read(&mut account, &from_start, 10, now).unwrap();
    assert_eq!((all.len(), ended), (2, false));
    let token = IteratorToken {
        index: next,
        ..IteratorToken::decode(&from_start).unwrap()
    };
    assert!(read(&mut account, &token.encode(), 10, now).unwrap().2);
    let s = stream(&mut account, now);
    let children: Vec<u32> = s.children_of(0).map(|c| c.number).collect();
    assert_eq!(children, [1, 2]);
}
