//! Pages, expiry and rate limits.

use super::*;

#[test]
fn pages_are_limited_by_count_and_bytes_and_lag_is_true() {
    let start = 1_700_000_000_000;
    let mut account = with_stream(1, at(start));
    for i in 0..10 {
        put(&mut account, 0, &"x".repeat(99), at(start + i));
    }
    let now = at(start + 1000);
    let iterator = iterator(&mut account, 0, &Start::TrimHorizon, now).unwrap();
    let (data, behind, ended, _) = read(&mut account, &iterator, 4, now).unwrap();
    assert_eq!((data.len(), behind, ended), (4, 997, false));
    account.settings.page_bytes = 250;
    assert_eq!(read(&mut account, &iterator, 10, now).unwrap().0.len(), 2);
    account.settings.page_bytes = 1;
    assert_eq!(
        read(&mut account, &iterator, 10, now).unwrap().0.len(),
        1,
        "one record at least"
    );
    account.settings.page_bytes = 10_000;
    assert_eq!(read(&mut account, &iterator, 10, now).unwrap().1, 0);
}

#[test]
fn iterators_expire() {
    let start = 1_700_000_000_000;
    let mut account = with_stream(1, at(start));
    let old = iterator(&mut account, 0, &Start::TrimHorizon, at(start)).unwrap();
    assert!(read(&mut account, &old, 1, at(start + 300_000)).is_ok());
    let expired = read(&mut account, &old, 1, at(start + 300_001)).unwrap_err();
    assert_eq!(expired.code, "ExpiredIteratorException");
    let issued = account.last_issue();
    stream(&mut account, at(start))
        .shards
        .get_mut(&0)
        .unwrap()
        .expired_through = issued;
    assert_eq!(
        read(&mut account, &old, 1, at(start)).unwrap_err().code,
        "ExpiredIteratorException"
    );
    let new = iterator(&mut account, 0, &Start::TrimHorizon, at(start)).unwrap();
    assert!(read(&mut account, &new, 1, at(start)).is_ok());
}

#[test]
fn read_limits() {
    let start = 1_700_000_000_000;
    let mut account = with_stream(1, at(start));
    account.set_limits(ServiceLimits::aws());
    let iterator_text = iterator(&mut account, 0, &Start::TrimHorizon, at(start)).unwrap();
    for _ in 0..5 {
        assert!(read(&mut account, &iterator_text, 1, at(start)).is_ok());
    }
    let refused = read(&mut account, &iterator_text, 1, at(start + 999)).unwrap_err();
    assert_eq!(refused.code, "ProvisionedThroughputExceededException");
    assert!(read(&mut account, &iterator_text, 1, at(start + 1000)).is_ok());
    for _ in 0..4 {
        iterator(&mut account, 0, &Start::Latest, at(start)).unwrap();
    }
    assert!(iterator(&mut account, 0, &Start::Latest, at(start)).is_err());
}

#[test]
fn ten_mebibytes_block_a_shard_for_five_seconds() {
    let start = 1_700_000_000_000;
    let mut account = with_stream(1, at(start));
    for _ in 0..12 {
        put(&mut account, 0, &"x".repeat((1 << 20) - 1), at(start));
    }
    account.set_limits(ServiceLimits::aws());
    let iterator = iterator(&mut account, 0, &Start::TrimHorizon, at(start)).unwrap();
    let (data, _, _, next) = read(&mut account, &iterator, 10_000, at(start)).unwrap();
    assert_eq!(data.len(), 10);
    let token = IteratorToken {
        index: next,
        ..IteratorToken::decode(&iterator).unwrap()
    }
    .encode();
    assert!(read(&mut account, &token, 10_000, at(start + 4999)).is_err());
    assert_eq!(
        read(&mut account, &token, 10_000, at(start + 5000))
            .unwrap()
            .0
            .len(),
        2
    );
    assert!(
        read(&mut account, &token, 10_000, at(start + 5999)).is_err(),
        "2 MiB in the last second"
    );
    assert!(read(&mut account, &token, 10_000, at(start + 6000)).is_ok());
}

#[test]
fn write_limits_fail_records_one_by_one() {
    let start = 1_700_000_000_000;
    let mut account = with_stream(1, at(start));
    account.set_limits(ServiceLimits::aws());
    let puts = |count: usize, size: usize| {
        let data = Bytes::from(vec![0; size]);
        (0..count)
            .map(|_| Put {
                key: Bytes::from_static(b"k"),
                explicit_hash: None,
                data: data.clone(),
            })
            .collect::<Vec<_>>()
    };
    let mut stored = |puts: Vec<Put>, ms| {
        let answers = account.put(StreamRef::by_name("s"), puts, at(ms)).unwrap();
        answers.iter().filter(|a| a.is_ok()).count()
    };
    assert_eq!(stored(puts(500, 10), start), 500);
    assert_eq!(stored(puts(500, 10), start), 500);
    assert_eq!(stored(puts(500, 10), start), 0);
    assert_eq!(stored(puts(500, 10), start + 100), 100);
    assert_eq!(stored(puts(20, (100 << 10) - 1), start + 5000), 10);
}
