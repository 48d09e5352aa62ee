//! Statuses that overtake each other: whatever happens between, the last word of each key is the newest truth.

use std::time::Duration;

use shardfleet_status::{Outcome, RetrySettings, StatusKey, StatusState, StatusStore};

use crate::failing_log::{FailingLog, Fate, retriable};
use crate::{status, until};

const PATIENCE: Duration = Duration::from_secs(3600);
const KEY: &str = "status-task-orders-0";

fn key() -> StatusKey {
    StatusKey::task("orders", 0)
}

fn state_of(record: &str) -> &str {
    record.split('"').nth(3).expect("a state")
}

fn last_state(log: &FailingLog) -> Option<String> {
    let (_, record) = log.last(KEY)?;
    record.map(|record| state_of(&record).to_owned())
}

/// Connect: the older one is sent again after the newer, and wins.
#[tokio::test(start_paused = true)]
async fn an_old_running_does_not_land_after_a_newer_failed() {
    for written_all_the_same in [false, true] {
        let log = FailingLog::default();
        let tell = log.next_waits();
        let store = log.store(RetrySettings::default());
        store
            .put(&key(), status(StatusState::Running, "w", 1))
            .expect("taken");
        until("it is sent", || log.sends() == 1).await;
        store
            .put(&key(), status(StatusState::Failed, "w", 1))
            .expect("taken");
        tell.send(if written_all_the_same {
            Outcome::Written
        } else {
            retriable()
        })
        .expect("waited for");
        assert_eq!(store.flush(PATIENCE).await, 0);
        assert_eq!(last_state(&log).as_deref(), Some("FAILED"));
        let sent = usize::from(written_all_the_same) + 1;
        assert_eq!((log.records().len(), log.sends()), (sent, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_timed_out_and_landed_all_the_same_is_a_harmless_duplicate() {
    let log = FailingLog::default();
    log.next(Fate::FailsWritten(retriable()));
    let store = log.store(RetrySettings::default());
    store
        .put(&key(), status(StatusState::Running, "w", 1))
        .expect("taken");
    store.flush(PATIENCE).await;
    let records = log.records();
    assert_eq!(records.len(), 2);
    assert_eq!(records[0], records[1]);
    assert_eq!(store.counters().success, 1);
}

/// Connect: what was deleted comes back when an older write is sent again.
#[tokio::test(start_paused = true)]
async fn what_was_deleted_stays_deleted() {
    let log = FailingLog::default();
    log.next(Fate::Fails(retriable()));
    let store = log.store(RetrySettings::default());
    store
        .put(&key(), status(StatusState::Running, "w", 1))
        .expect("taken");
    until("it failed", || !store.late().is_empty() && log.sends() == 1).await;
    store.delete(&key()).expect("taken");
    store.flush(PATIENCE).await;
    assert_eq!(log.records(), [(KEY.to_owned(), None)]);
}

#[tokio::test(start_paused = true)]
async fn an_unassigned_of_an_earlier_life_changes_nothing() {
    let log = FailingLog::default();
    let (old, new) = (
        log.store(RetrySettings::default()),
        log.store(RetrySettings::default()),
    );
    old.put(&key(), status(StatusState::Running, "old", 4))
        .expect("taken");
    old.flush(PATIENCE).await;
    new.put(&key(), status(StatusState::Running, "new", 6))
        .expect("taken");
    until("both know", || {
        let knows =
            |store: &dyn StatusStore| store.view().task("orders", 0).is_some_and(|s| s.generation == 6);
        knows(&old) && knows(&new)
    })
    .await;
    let taken = old
        .put_safe(&key(), status(StatusState::Unassigned, "old", 5))
        .expect("no error");
    assert!(!taken);
    // One that was under way by then lands, and no reader believes it.
    old.put(&key(), status(StatusState::Unassigned, "old", 5))
        .expect("taken");
    old.flush(PATIENCE).await;
    until("it was read", || log.records().len() == 3).await;
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    for store in [&old, &new] {
        let shown = store.view().task("orders", 0).cloned().expect("known");
        assert_eq!(
            (shown.state, shown.worker_id.as_str()),
            (StatusState::Running, "new")
        );
    }
}

/// The old owner's write waits for its retry while the new owner has spoken.
#[tokio::test(start_paused = true)]
async fn of_two_workers_that_write_one_key_the_later_life_has_the_last_word() {
    let log = FailingLog::default();
    let old = log.store(RetrySettings::default());
    log.next(Fate::Fails(retriable()));
    old.put(&key(), status(StatusState::Running, "old", 4))
        .expect("taken");
    until("it failed", || log.sends() == 1).await;
    let new = log.store(RetrySettings::default());
    new.put(&key(), status(StatusState::Running, "new", 6))
        .expect("taken");
    old.flush(PATIENCE).await;
    new.flush(PATIENCE).await;
    assert_eq!(old.counters().superseded, 1);
    let records = log.records();
    assert_eq!(records.len(), 1, "{records:?}");
    assert!(
        records[0]
            .1
            .as_deref()
            .is_some_and(|record| record.contains("\"new\""))
    );
}

/// Connect: another key's generation cancels a retry.
#[tokio::test(start_paused = true)]
async fn another_keys_write_between_a_failure_and_its_retry_changes_nothing() {
    let log = FailingLog::default();
    log.next(Fate::Fails(retriable()));
    let store = log.store(RetrySettings::default());
    store
        .put(&key(), status(StatusState::Running, "w", 5))
        .expect("taken");
    until("it failed", || log.sends() == 1).await;
    let other = StatusKey::task("orders", 1);
    store
        .put(&other, status(StatusState::Running, "w", 6))
        .expect("taken");
    store.flush(PATIENCE).await;
    assert_eq!(last_state(&log).as_deref(), Some("RUNNING"));
    assert_eq!(store.counters().success, 2);
}

/// Many workers, many keys, a log that fails a third of the writes: by seed, and for each the last word is the newest.
#[tokio::test(start_paused = true)]
async fn whatever_fails_the_last_record_of_each_key_is_its_newest_status() {
    for seed in 0..200_u64 {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut chance = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let log = FailingLog::default();
        let unlimited = RetrySettings {
            max_retries: 2_147_483_647,
            ..RetrySettings::default()
        };
        let store = log.store(unlimited);
        let mut newest = std::collections::BTreeMap::new();
        for generation in 0..60_i32 {
            match chance(6) {
                0 => log.next(Fate::Fails(retriable())),
                1 => log.next(Fate::FailsWritten(retriable())),
                2 => log.next(Fate::Written),
                _ => {}
            }
            let key = StatusKey::task("orders", i32::try_from(chance(4)).expect("small"));
            let value = (chance(5) > 0).then(|| {
                let state = StatusState::ALL[usize::try_from(chance(4)).expect("small")];
                status(state, "w", generation)
            });
            let taken = match &value {
                Some(value) => store.put(&key, value.clone()),
                None => store.delete(&key),
            };
            taken.expect("taken");
            newest.insert(key.to_string(), value);
            if chance(3) == 0 {
                let pause = Duration::from_millis(chance(700));
                tokio::time::timeout(pause, std::future::pending::<()>())
                    .await
                    .ok();
            }
        }
        assert_eq!(store.flush(PATIENCE).await, 0, "seed {seed}");
        for (key, value) in newest {
            let expected =
                value.map(|value| String::from_utf8(shardfleet_status::codec::encode(&value)).expect("JSON"));
            assert_eq!(log.last(&key), Some((key, expected)), "seed {seed}");
        }
        let counters = store.counters();
        assert_eq!(
            counters.accepted,
            counters.success + counters.superseded,
            "seed {seed}: {counters:?}"
        );
    }
}
