use proptest::prelude::*;

use super::*;
use crate::status::{StatusState, WorkStatus};

const KEYS_MAX: usize = 3;

fn at(ms: u64) -> Moment {
    Moment::new(Duration::from_millis(ms))
}

#[expect(clippy::unnecessary_wraps, reason = "a write is a status or none")]
fn status(state: StatusState, worker: &str, generation: i32) -> Option<StatusValue> {
    Some(StatusValue::Work(WorkStatus {
        state,
        trace: None,
        worker_id: worker.to_owned(),
        generation,
        version: None,
    }))
}

fn running() -> Option<StatusValue> {
    status(StatusState::Running, "w", 1)
}

fn failed() -> Option<StatusValue> {
    status(StatusState::Failed, "w", 1)
}

struct Case {
    outbox: Outbox,
    view: StatusView,
    key: StatusKey,
}

impl Case {
    fn new(max_retries: i64) -> Self {
        let settings = RetrySettings {
            max_retries,
            ..RetrySettings::default()
        };
        Self {
            outbox: Outbox::new(settings, KEYS_MAX),
            view: StatusView::default(),
            key: StatusKey::task("a", 0),
        }
    }

    fn put(&mut self, ms: u64, value: Option<StatusValue>) -> Result<(), PutRefused> {
        let key = self.key.clone();
        self.outbox.put(at(ms), key, value, WriteMode::Plain, &self.view)
    }

    fn take(&mut self, ms: u64) -> Option<Sending> {
        self.outbox.take_due(at(ms), &self.view)
    }

    fn settle(&mut self, ms: u64, sending: &Sending, outcome: Outcome) -> Settled {
        self.outbox
            .settle(at(ms), &sending.key, sending.sequence, outcome, 0.0)
    }

    fn fail(&mut self, ms: u64, sending: &Sending) -> Settled {
        self.settle(ms, sending, Outcome::Retriable("no".to_owned()))
    }

    /// Checks the books.
    fn counters(&self) -> Counters {
        let counters = self.outbox.counters();
        let Counters {
            accepted,
            success,
            failure,
            superseded,
            dropped,
            ..
        } = counters;
        assert_eq!(
            accepted,
            success + failure + superseded + dropped + self.outbox.pending()
        );
        counters
    }
}

#[test]
fn a_status_is_written_once() {
    let mut case = Case::new(5);
    assert_eq!(case.put(0, running()), Ok(()));
    let sending = case.take(0).expect("due");
    assert_eq!((sending.value.clone(), sending.retries), (running(), 0));
    assert_eq!(case.take(0), None);
    assert_eq!(
        case.settle(5, &sending, Outcome::Written),
        Settled::Written { retries: 0 }
    );
    assert_eq!(case.settle(5, &sending, Outcome::Written), Settled::Unknown);
    let counters = case.counters();
    assert_eq!(
        (counters.success, counters.retry, case.outbox.pending()),
        (1, 0, 0)
    );
}

#[test]
fn it_is_sent_once_and_as_often_again_as_the_limit_says() {
    for max_retries in [0, 1, 5] {
        let mut case = Case::new(max_retries);
        case.put(0, running()).expect("taken");
        let mut sends = 0;
        let last = loop {
            let due = case.outbox.next_due().expect("due");
            let ms = u64::try_from(due.since_origin().as_millis()).expect("small");
            let sending = case.take(ms).expect("due");
            sends += 1;
            match case.fail(ms, &sending) {
                Settled::Retrying { .. } => {}
                other => break other,
            }
        };
        let retries = u64::try_from(max_retries).expect("positive");
        assert_eq!((sends, last), (retries + 1, Settled::Failed { retries }));
        let counters = case.counters();
        assert_eq!((counters.failure, counters.retry), (1, retries));
        assert_eq!(case.outbox.next_due(), None);
    }
}

#[test]
fn a_hundred_thousand_failures_do_not_end_retries_without_limit() {
    let mut case = Case::new(2_147_483_647);
    case.put(0, running()).expect("taken");
    let mut ms = 0;
    for retry in 1..=100_000 {
        let sending = case.take(ms).expect("due");
        match case.fail(ms, &sending) {
            Settled::Retrying { retry: counted, at } => {
                assert_eq!(counted, retry);
                ms = u64::try_from(at.since_origin().as_millis()).expect("small") + 1;
            }
            other => panic!("{other:?}"),
        }
    }
    let sending = case.take(ms).expect("due");
    assert_eq!(
        case.settle(ms, &sending, Outcome::Written),
        Settled::Written { retries: 100_000 }
    );
    assert_eq!(case.counters().retry, 100_000);
}

#[test]
fn an_error_that_is_final_is_not_tried_again() {
    let mut case = Case::new(5);
    case.put(0, running()).expect("taken");
    let sending = case.take(0).expect("due");
    let outcome = Outcome::Final("too large".to_owned());
    assert_eq!(case.settle(0, &sending, outcome), Settled::Failed { retries: 0 });
    assert_eq!(case.counters().failure, 1);
    // A later status of the key starts anew.
    case.put(1, failed()).expect("taken");
    assert_eq!(case.take(1).expect("due").retries, 0);
}

#[test]
fn a_newer_status_takes_the_place_of_one_that_waits_for_its_retry() {
    let mut case = Case::new(5);
    case.put(0, running()).expect("taken");
    let first = case.take(0).expect("due");
    case.fail(0, &first);
    let again = case.take(300).expect("due");
    case.fail(300, &again);
    // It would be due at 900. The newer one counts from nought, and does not hurry either.
    case.put(310, failed()).expect("taken");
    assert_eq!(case.take(609), None);
    let newer = case.take(610).expect("due");
    assert_eq!((newer.value.clone(), newer.retries), (failed(), 0));
    case.settle(620, &newer, Outcome::Written);
    assert_eq!(case.take(10_000), None);
    let counters = case.counters();
    assert_eq!((counters.success, counters.superseded, counters.retry), (1, 1, 1));
}

#[test]
fn however_often_it_changes_a_log_in_trouble_is_asked_no_faster() {
    let mut case = Case::new(5);
    let mut sends = 0;
    for ms in 0..10_000 {
        case.put(ms, if ms % 2 == 0 { running() } else { failed() })
            .expect("taken");
        if let Some(sending) = case.take(ms) {
            sends += 1;
            case.fail(ms, &sending);
        }
    }
    assert!((20..=34).contains(&sends), "{sends} in ten seconds");
    case.counters();
}

#[test]
fn a_newer_status_waits_while_an_older_one_is_under_way_and_is_the_last_to_land() {
    for outcome in [
        Outcome::Written,
        Outcome::Retriable("late".to_owned()),
        Outcome::Final("no".to_owned()),
    ] {
        let mut case = Case::new(5);
        case.put(0, running()).expect("taken");
        let older = case.take(0).expect("due");
        case.put(1, failed()).expect("taken");
        case.put(2, None).expect("taken");
        case.put(3, failed()).expect("taken");
        assert_eq!(case.take(9), None, "one at a time");
        case.settle(10, &older, outcome.clone());
        let newer = case.take(400).expect("due");
        assert_eq!(newer.value, failed());
        case.settle(401, &newer, Outcome::Written);
        assert_eq!(case.take(100_000), None, "{outcome:?}");
        assert_eq!(case.outbox.pending(), 0);
        case.counters();
    }
}

#[test]
fn a_tombstone_is_the_newest_status_like_any_other() {
    let mut case = Case::new(5);
    case.put(0, running()).expect("taken");
    let older = case.take(0).expect("due");
    case.put(1, None).expect("taken");
    case.fail(2, &older);
    let tombstone = case.take(400).expect("due");
    assert_eq!(tombstone.value, None);
    case.settle(401, &tombstone, Outcome::Written);
    assert_eq!(case.take(100_000), None);
}

#[test]
fn a_retry_is_dropped_once_another_worker_of_a_later_life_has_spoken() {
    for mode in [WriteMode::Plain, WriteMode::Safe] {
        let mut case = Case::new(5);
        let key = case.key.clone();
        let taken = case.outbox.put(at(0), key.clone(), running(), mode, &case.view);
        assert_eq!(taken, Ok(()));
        let sending = case.take(0).expect("due");
        case.fail(0, &sending);
        case.view.apply(&key, status(StatusState::Running, "other", 2));
        assert_eq!(case.take(100_000), None);
        assert_eq!(case.counters().superseded, 1);
    }
}

#[test]
fn a_safe_write_is_refused_where_another_worker_of_a_later_life_has_spoken() {
    let mut case = Case::new(5);
    let key = case.key.clone();
    case.view.apply(&key, status(StatusState::Running, "other", 5));
    let mut put = |value, mode| case.outbox.put(at(0), key.clone(), value, mode, &case.view);
    let unassigned = |worker, generation| status(StatusState::Unassigned, worker, generation);
    assert_eq!(put(unassigned("w", 4), WriteMode::Safe), Err(PutRefused::Stale));
    assert_eq!(put(unassigned("w", 5), WriteMode::Safe), Ok(()));
    assert_eq!(put(unassigned("other", 4), WriteMode::Safe), Ok(()));
    assert_eq!(put(unassigned("w", 4), WriteMode::Plain), Ok(()));
    assert_eq!(case.counters().refused, 1);
}

#[test]
fn keys_are_bounded_and_each_keeps_its_own_pace() {
    let mut case = Case::new(5);
    for task in 0..3 {
        case.key = StatusKey::task("a", task);
        case.put(0, running()).expect("taken");
    }
    case.key = StatusKey::task("a", 3);
    let full = OutboxFull { keys_max: KEYS_MAX };
    assert_eq!(case.put(0, running()), Err(PutRefused::Full(full)));
    assert_eq!(case.counters().failure, 1);
    let slow = case.take(0).expect("due");
    case.fail(0, &slow);
    // The others do not wait for it.
    assert!(case.take(0).is_some() && case.take(0).is_some() && case.take(0).is_none());
}

#[test]
fn the_end_names_what_was_not_written() {
    let mut case = Case::new(5);
    case.put(0, running()).expect("taken");
    let sending = case.take(0).expect("due");
    case.fail(7, &sending);
    case.key = StatusKey::task("a", 1);
    case.put(10, failed()).expect("taken");
    case.outbox.close();
    assert_eq!(case.put(11, running()), Err(PutRefused::Closed));
    // What is here may still go out.
    let other = case.take(11).expect("due");
    case.settle(12, &other, Outcome::Written);
    let unwritten = case.outbox.abandon();
    assert_eq!(unwritten.len(), 1);
    assert_eq!(unwritten[0].key, StatusKey::task("a", 0));
    assert_eq!(unwritten[0].error.as_deref(), Some("no"));
    assert_eq!(
        (unwritten[0].since, unwritten[0].next_attempt),
        (at(0), Some(at(307)))
    );
    let counters = case.counters();
    assert_eq!((counters.dropped, counters.success), (1, 1));
    assert_eq!(case.outbox.next_due(), None);
}

/// A request that a broker had in its buffers when it stalled is carried out after the newer one that came by another connection.
#[test]
fn an_older_write_that_lands_after_all_is_written_over() {
    let mut case = Case::new(5);
    let key = case.key.clone();
    case.put(0, running()).expect("taken");
    let older = case.take(0).expect("due");
    case.put(1, failed()).expect("taken");
    case.fail(10, &older);
    let newer = case.take(400).expect("due");
    case.settle(401, &newer, Outcome::Written);
    // Read back in this order.
    case.view.apply(&key, failed());
    assert_eq!(case.take(701), None, "all is well so far");
    case.view.apply(&key, running());
    let again = case.take(1_401).expect("it is written once more");
    assert_eq!(again.value, failed());
    case.settle(1_402, &again, Outcome::Written);
    case.view.apply(&key, failed());
    for ms in (1_402..20_000).step_by(100) {
        assert_eq!(case.take(ms), None);
    }
    assert_eq!(case.outbox.next_due(), None, "the looking ends");
    case.counters();
}

#[test]
fn what_another_worker_of_a_later_life_said_since_is_not_written_over() {
    let mut case = Case::new(5);
    let key = case.key.clone();
    case.put(0, running()).expect("taken");
    let first = case.take(0).expect("due");
    case.fail(10, &first);
    let again = case.take(400).expect("due");
    case.settle(401, &again, Outcome::Written);
    case.view.apply(&key, status(StatusState::Running, "other", 2));
    for ms in (402..20_000).step_by(100) {
        assert_eq!(case.take(ms), None);
    }
    // And without a doubt nothing is looked for at all.
    case.key = StatusKey::task("a", 1);
    case.put(20_000, running()).expect("taken");
    let sending = case.take(20_000).expect("due");
    case.settle(20_001, &sending, Outcome::Written);
    assert_eq!(case.outbox.next_due(), None);
}

#[derive(Clone, Debug)]
enum Step {
    Put(i32, u8, bool),
    Take,
    Settle(usize, u8),
    Pass(u64),
    Read(i32, i32),
    Abandon,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4_i32, any::<u8>(), any::<bool>()).prop_map(|(task, what, safe)| Step::Put(task, what, safe)),
        4 => Just(Step::Take),
        4 => (any::<usize>(), 0..3_u8).prop_map(|(which, how)| Step::Settle(which, how)),
        3 => (0..20_000_u64).prop_map(Step::Pass),
        1 => (0..4_i32, 0..4_i32).prop_map(|(task, generation)| Step::Read(task, generation)),
        1 => Just(Step::Abandon),
    ]
}

proptest! {
    /// Whatever happens: the books balance, one write of a key at a time, and a key's writes go out in the order in which its statuses came.
    #[test]
    fn the_newest_wins_and_every_status_ends_in_one_way(steps in prop::collection::vec(step(), 1..200)) {
        let mut case = Case::new(2);
        let mut now = 0;
        let mut under_way: Vec<Sending> = Vec::new();
        let mut last: BTreeMap<StatusKey, u64> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Put(task, what, safe) => {
                    case.key = StatusKey::task("a", task);
                    let value = match what % 3 { 0 => None, 1 => running(), _ => failed() };
                    let mode = if safe { WriteMode::Safe } else { WriteMode::Plain };
                    let key = case.key.clone();
                    let _ignored = case.outbox.put(at(now), key, value, mode, &case.view).is_ok();
                }
                Step::Take => {
                    if let Some(sending) = case.take(now) {
                        prop_assert!(under_way.iter().all(|other| other.key != sending.key));
                        let newest = last.entry(sending.key.clone()).or_default();
                        prop_assert!(sending.sequence >= *newest, "older after newer");
                        *newest = sending.sequence;
                        under_way.push(sending);
                    }
                }
                Step::Settle(which, how) if !under_way.is_empty() => {
                    let sending = under_way.remove(which % under_way.len());
                    let outcome = match how {
                        0 => Outcome::Written,
                        1 => Outcome::Retriable(String::new()),
                        _ => Outcome::Final(String::new()),
                    };
                    case.settle(now, &sending, outcome);
                }
                Step::Settle(..) => {}
                Step::Pass(ms) => now += ms,
                Step::Read(task, generation) => {
                    let key = StatusKey::task("a", task);
                    case.view.apply(&key, status(StatusState::Running, "other", generation));
                }
                Step::Abandon => {
                    case.outbox.abandon();
                    case.outbox.is_closed = false;
                    under_way.clear();
                }
            }
            case.counters();
            prop_assert!(case.outbox.slots.len() <= KEYS_MAX);
        }
    }
}
