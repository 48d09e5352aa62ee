use super::*;
use crate::hash_range::HashKeyRange;

fn digits(text: &str) -> SequenceNumber {
    SequenceNumber::parse(text).expect("digits")
}

fn at(secs: u64) -> Moment {
    Moment::new(Duration::from_secs(secs))
}

fn page(records: &[&str], next: Option<&str>) -> PageFacts {
    PageFacts {
        first: records.first().map(|r| digits(r)),
        last: records.last().map(|r| digits(r)),
        bytes: 100,
        next_iterator: next.map(str::to_owned),
        millis_behind_latest: Some(0),
        children: vec![],
    }
}

fn child() -> ChildShard {
    ChildShard {
        shard_id: "shardId-000000000002".into(),
        parent_shard_ids: vec!["shardId-000000000001".into()],
        hash_key_range: HashKeyRange::FULL,
    }
}

fn reading(start: IteratorPosition) -> Reader {
    let mut reader = Reader::new(ReaderPolicy::default(), start);
    reader.on_iterator("it-0".into(), Timestamp::from_millis(60_000));
    reader
}

#[test]
fn every_answers_next_iterator_is_used_and_an_empty_one_waits() {
    let mut reader = reading(IteratorPosition::TrimHorizon);
    assert_eq!(reader.next_action(at(1)), Action::GetRecords("it-0".into()));
    reader.on_page(at(1), page(&["1", "2"], Some("it-1")));
    assert_eq!(reader.next_action(at(2)), Action::GetRecords("it-1".into()));
    reader.on_page(at(2), page(&[], Some("it-2")));
    assert_eq!(reader.next_action(at(2)), Action::WaitUntil(at(3)));
    assert_eq!(reader.next_action(at(3)), Action::GetRecords("it-2".into()));
}

#[test]
fn an_expired_iterator_resumes_after_the_last_record_taken() {
    let mut reader = reading(IteratorPosition::TrimHorizon);
    assert_eq!(
        reader.on_failure(at(1), ReadFailure::IteratorExpired),
        FailureReport::Quiet
    );
    assert_eq!(
        reader.next_action(at(1)),
        Action::GetIterator(IteratorPosition::TrimHorizon)
    );
    reader.on_iterator("it-1".into(), Timestamp::from_millis(0));
    reader.on_page(at(1), page(&["7", "9"], Some("it-2")));
    reader.on_failure(at(2), ReadFailure::IteratorExpired);
    let after = IteratorPosition::AfterSequenceNumber(digits("9"));
    assert_eq!(reader.next_action(at(2)), Action::GetIterator(after));
}

#[test]
fn a_lost_latest_iterator_resumes_from_the_time_it_was_issued() {
    let mut reader = reading(IteratorPosition::Latest);
    reader.on_page(at(1), page(&[], Some("it-1")));
    reader.on_failure(at(400), ReadFailure::IteratorExpired);
    let issued = IteratorPosition::AtTimestamp(Timestamp::from_millis(58_000));
    assert_eq!(reader.next_action(at(400)), Action::GetIterator(issued.clone()));
    reader.on_iterator("it-2".into(), Timestamp::from_millis(999_000));
    reader.on_page(at(401), page(&[], Some("it-3")));
    reader.on_failure(at(800), ReadFailure::IteratorExpired);
    assert_eq!(
        reader.next_action(at(800)),
        Action::GetIterator(issued),
        "and not from a later time"
    );
}

#[test]
fn throttling_keeps_the_iterator_and_is_no_failure() {
    let mut reader = reading(IteratorPosition::TrimHorizon);
    for _ in 0..50 {
        assert_eq!(
            reader.on_failure(at(1), ReadFailure::Throttled),
            FailureReport::Quiet
        );
    }
    assert_eq!(reader.next_action(at(1)), Action::WaitUntil(at(2)));
    assert_eq!(reader.next_action(at(2)), Action::GetRecords("it-0".into()));
}

#[test]
fn ten_failures_go_on_and_the_eleventh_gives_up() {
    let mut reader = reading(IteratorPosition::TrimHorizon);
    for n in 0..10 {
        assert_eq!(
            reader.on_failure(at(n), ReadFailure::Other),
            FailureReport::Report
        );
    }
    assert_eq!(reader.next_action(at(9)), Action::WaitUntil(at(10)));
    assert_eq!(reader.next_action(at(10)), Action::GetRecords("it-0".into()));
    let mut recovered = reader.clone();
    recovered.on_page(at(10), page(&["1"], Some("it-1")));
    assert_eq!(recovered.failures(), 0);
    reader.on_failure(at(10), ReadFailure::Other);
    assert_eq!(reader.next_action(at(99)), Action::GiveUp);
}

#[test]
fn an_end_is_believed_when_children_or_the_ending_number_prove_it() {
    let mut named = reading(IteratorPosition::TrimHorizon);
    named.on_page(
        at(1),
        PageFacts {
            children: vec![child()],
            ..page(&["1"], None)
        },
    );
    assert_eq!(named.next_action(at(1)), Action::End(vec![child()]));

    let mut unproven = reading(IteratorPosition::TrimHorizon);
    unproven.on_page(at(1), page(&["1"], None));
    assert_eq!(unproven.next_action(at(1)), Action::ListShards);
    let mut listed = unproven.clone();
    listed.on_listing(at(1), true, false, vec![child()]);
    assert_eq!(listed.next_action(at(1)), Action::End(vec![child()]));
    let mut closed = unproven.clone();
    closed.on_listing(at(1), true, true, vec![]);
    assert_eq!(closed.next_action(at(1)), Action::End(vec![]));

    assert_eq!(
        unproven.on_listing(at(1), true, false, vec![]),
        (FailureReport::Report, None)
    );
    let after = IteratorPosition::AfterSequenceNumber(digits("1"));
    assert_eq!(
        unproven.next_action(at(2)),
        Action::GetIterator(after),
        "an open shard is read on"
    );
}

#[test]
fn a_checkpoint_that_aged_out_names_the_range() {
    let start = IteratorPosition::AtSequenceNumber(digits("100"));
    let mut reader = reading(start.clone());
    assert_eq!(reader.on_page(at(1), page(&[], Some("it-1"))), None);
    let gap = reader.on_page(at(2), page(&["170", "180"], Some("it-2")));
    assert_eq!(
        gap,
        Some(Gap {
            after: digits("100"),
            before: Some(digits("170"))
        })
    );
    assert_eq!(
        reader.on_page(at(3), page(&["190"], Some("it-3"))),
        None,
        "told once"
    );

    let mut kept = reading(start.clone());
    assert_eq!(kept.on_page(at(1), page(&["100"], Some("it-1"))), None);

    let mut gone = reading(start);
    gone.on_failure(at(1), ReadFailure::NotFound);
    for second in [2, 3] {
        assert_eq!(gone.next_action(at(second)), Action::ListShards);
        assert_eq!(
            gone.on_listing(at(second), false, false, vec![]),
            (FailureReport::Report, None)
        );
    }
    let (_, gap) = gone.on_listing(at(4), false, false, vec![]);
    assert_eq!(
        gap,
        Some(Gap {
            after: digits("100"),
            before: None
        })
    );
}

#[test]
fn a_shard_not_found_that_is_still_listed_open_is_read_on() {
    let mut reader = reading(IteratorPosition::TrimHorizon);
    assert_eq!(
        reader.on_failure(at(1), ReadFailure::NotFound),
        FailureReport::Quiet
    );
    reader.on_listing(at(2), true, false, vec![]);
    assert_eq!(
        reader.next_action(at(3)),
        Action::GetIterator(IteratorPosition::TrimHorizon)
    );
}

#[test]
fn a_seek_starts_over_within_the_same_budget() {
    let mut reader = reading(IteratorPosition::TrimHorizon);
    for _ in 0..5 {
        reader.on_call(at(1));
    }
    reader.seek(IteratorPosition::Latest);
    assert_eq!(
        reader.next_action(at(1)),
        Action::GetIterator(IteratorPosition::Latest)
    );
    reader.on_iterator("it-9".into(), Timestamp::from_millis(0));
    assert_eq!(reader.next_action(at(1)), Action::WaitUntil(at(2)));
}

#[test]
fn what_aged_out_while_nothing_was_read_is_noticed() {
    let day = 86_400;
    let mut paused = reading(IteratorPosition::TrimHorizon);
    paused.on_page(at(1), page(&["7"], Some("it-1")));
    paused.on_failure(at(day), ReadFailure::IteratorExpired);
    let after = IteratorPosition::AfterSequenceNumber(digits("7"));
    assert_eq!(
        paused.next_action(at(day)),
        Action::GetIterator(after),
        "all that came later is younger than a day"
    );

    let mut behind = reading(IteratorPosition::TrimHorizon);
    behind.on_page(
        at(1),
        PageFacts {
            millis_behind_latest: Some(5),
            ..page(&["7"], Some("it-1"))
        },
    );
    behind.on_failure(at(400), ReadFailure::IteratorExpired);
    let on_it = IteratorPosition::AtSequenceNumber(digits("7"));
    assert_eq!(behind.next_action(at(400)), Action::GetIterator(on_it));
    assert_eq!(
        behind.taken(),
        Some(&digits("7")),
        "which comes once more, and is read over"
    );
    behind.on_iterator("it-2".into(), Timestamp::from_millis(0));
    let mut trimmed = behind.clone();
    assert_eq!(behind.on_page(at(401), page(&["7", "8"], Some("it-3"))), None);
    let gap = Some(Gap {
        after: digits("7"),
        before: Some(digits("9")),
    });
    assert_eq!(trimmed.on_page(at(401), page(&["9"], Some("it-3"))), gap);
}

#[test]
fn iterators_that_expire_at_once_are_failures() {
    let mut reader = reading(IteratorPosition::TrimHorizon);
    assert_eq!(
        reader.on_failure(at(1), ReadFailure::IteratorExpired),
        FailureReport::Quiet
    );
    for second in 2..13 {
        reader.on_iterator("it".into(), Timestamp::from_millis(0));
        assert_eq!(
            reader.on_failure(at(second), ReadFailure::IteratorExpired),
            FailureReport::Report
        );
    }
    assert_eq!(reader.next_action(at(99)), Action::GiveUp);
}
