//! KIP-1278's retries over a log that fails on demand. Time stands still but for what is waited for.

use std::sync::Arc;
use std::time::Duration;

use shardfleet_status::{Outcome, RetrySettings, StatusKey, StatusState, StatusStore};
use tokio::time::Instant;

use crate::failing_log::{FailingLog, Fate, retriable};
use crate::{status, until};

const PATIENCE: Duration = Duration::from_secs(3600);

fn key() -> StatusKey {
    StatusKey::task("orders", 0)
}

fn with_retries(max_retries: i64) -> RetrySettings {
    RetrySettings {
        max_retries,
        jitter_factor: 0.0,
        ..RetrySettings::default()
    }
}

async fn fail_so_often(
    failures: usize,
    retry: RetrySettings,
) -> (FailingLog, shardfleet_status::Counters, Duration) {
    let log = FailingLog::default();
    for _ in 0..failures {
        log.next(Fate::Fails(retriable()));
    }
    let store = log.store(retry);
    #[expect(clippy::disallowed_methods, reason = "the test's own watch over paused time")]
    let began = Instant::now();
    store
        .put(&key(), status(StatusState::Running, "w", 1))
        .expect("taken");
    assert_eq!(store.flush(PATIENCE).await, 0);
    (log, store.counters(), began.elapsed())
}

#[tokio::test(start_paused = true)]
async fn as_many_failures_as_retries_end_in_success_and_one_more_in_failure() {
    for limit in [0_u64, 1, 5] {
        let max_retries = i64::try_from(limit).expect("small");
        let failures = usize::try_from(limit).expect("small");
        let (log, counters, waited) = fail_so_often(failures, with_retries(max_retries)).await;
        assert_eq!(
            (counters.success, counters.failure, counters.retry),
            (1, 0, limit)
        );
        assert_eq!(log.sends(), failures + 1);
        let expected: u64 = (0..limit)
            .map(|n| 300 * 2_u64.pow(u32::try_from(n).expect("small")))
            .sum();
        let expected = Duration::from_millis(expected);
        assert!(
            waited >= expected && waited < expected + Duration::from_millis(50),
            "{waited:?}"
        );

        let (log, counters, _) = fail_so_often(failures + 1, with_retries(max_retries)).await;
        assert_eq!(
            (counters.success, counters.failure, counters.retry),
            (0, 1, limit)
        );
        assert_eq!((log.sends(), log.records().len()), (failures + 1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn the_greatest_limit_is_none() {
    let quick = RetrySettings {
        max_backoff_ms: 1_000,
        ..with_retries(2_147_483_647)
    };
    let (log, counters, _) = fail_so_often(1000, quick).await;
    assert_eq!((counters.success, counters.retry), (1, 1000));
    assert_eq!(log.sends(), 1001);
}

#[tokio::test]
async fn a_hundred_thousand_failures_without_a_pause_leave_memory_flat_and_the_runtime_free() {
    let without_pause = RetrySettings {
        initial_backoff_ms: 0,
        max_backoff_ms: 0,
        ..with_retries(2_147_483_647)
    };
    let log = FailingLog::default();
    log.set_down(true);
    let store = log.store(without_pause);
    store
        .put(&key(), status(StatusState::Running, "w", 1))
        .expect("taken");
    until("the first thousand", || store.counters().retry > 1_000).await;
    let before = resident_bytes();
    until("a hundred thousand", || store.counters().retry > 101_000).await;
    let grown = resident_bytes().saturating_sub(before);
    // The log of the test itself keeps every send, some 200 bytes each.
    assert!(grown < 64 * 1024 * 1024, "{grown} bytes more");
    assert_eq!(store.late().len(), 1);
    log.set_down(false);
    assert_eq!(store.flush(PATIENCE).await, 0);
    assert_eq!(store.counters().success, 1);
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

/// Nothing that a caller does waits: while the log is away no time passes for it.
#[tokio::test(start_paused = true)]
async fn a_caller_is_never_held() {
    let log = FailingLog::default();
    log.set_down(true);
    let store = log.store(RetrySettings::default());
    #[expect(clippy::disallowed_methods, reason = "the test's own watch over paused time")]
    let began = Instant::now();
    for generation in 0..10_000 {
        let key = StatusKey::task("orders", generation % 100);
        store
            .put(&key, status(StatusState::Running, "w", generation))
            .expect("taken");
        tokio::task::yield_now().await;
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(store.late().len(), 100);
    let late = &store.late()[0];
    assert_eq!(late.error.as_deref().unwrap_or("no replicas"), "no replicas");
    log.set_down(false);
    assert_eq!(store.flush(PATIENCE).await, 0);
    until("the newest of each", || {
        let view = store.view();
        view.tasks_of("orders")
            .all(|(task, status)| status.generation == 9_900 + task)
    })
    .await;
    let counters = store.counters();
    assert_eq!(counters.accepted, 10_000);
    assert_eq!(counters.success + counters.superseded, 10_000);
}

#[tokio::test(start_paused = true)]
async fn when_the_window_is_over_failures_are_counted_and_nothing_hangs() {
    let log = FailingLog::default();
    log.set_down(true);
    let store = log.store(RetrySettings::default());
    for task in 0..20 {
        store
            .put(
                &StatusKey::task("orders", task),
                status(StatusState::Running, "w", 1),
            )
            .expect("taken");
    }
    assert_eq!(store.flush(PATIENCE).await, 0);
    let counters = store.counters();
    assert_eq!((counters.failure, counters.success, counters.retry), (20, 0, 100));
    // The next status of a key starts anew.
    log.set_down(false);
    store
        .put(&key(), status(StatusState::Failed, "w", 1))
        .expect("taken");
    store.flush(PATIENCE).await;
    assert_eq!(store.counters().success, 1);
}

#[tokio::test(start_paused = true)]
async fn a_final_error_is_not_retried() {
    let log = FailingLog::default();
    log.next(Fate::Fails(Outcome::Final("too large".to_owned())));
    let store = log.store(RetrySettings::default());
    store
        .put(&key(), status(StatusState::Running, "w", 1))
        .expect("taken");
    store.flush(PATIENCE).await;
    let counters = store.counters();
    assert_eq!((counters.failure, counters.retry, log.sends()), (1, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_stop_within_an_outage_names_what_it_could_not_write_in_time() {
    let log = FailingLog::default();
    log.set_down(true);
    let store = Arc::new(log.store(with_retries(2_147_483_647)));
    store
        .put(&key(), status(StatusState::Unassigned, "w", 2))
        .expect("taken");
    store.delete(&StatusKey::task("orders", 1)).expect("taken");
    #[expect(clippy::disallowed_methods, reason = "the test's own watch over paused time")]
    let began = Instant::now();
    let report = store.close(Duration::from_secs(10)).await;
    assert!(began.elapsed() < Duration::from_secs(11), "{:?}", began.elapsed());
    let keys: Vec<String> = report.unwritten.iter().map(|late| late.key.to_string()).collect();
    assert_eq!(keys, ["status-task-orders-0", "status-task-orders-1"]);
    assert_eq!(report.unwritten[0].error.as_deref(), Some("no replicas"));
    assert_eq!(store.counters().dropped, 2);
    // A second time there is nothing to do.
    assert!(store.close(PATIENCE).await.unwritten.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stop_within_a_short_outage_loses_nothing() {
    let log = FailingLog::default();
    log.set_down(true);
    let store = log.store(RetrySettings::default());
    store
        .put(&key(), status(StatusState::Unassigned, "w", 2))
        .expect("taken");
    let back = async {
        tokio::time::timeout(Duration::from_secs(2), std::future::pending::<()>())
            .await
            .ok();
        log.set_down(false);
    };
    let (report, ()) = tokio::join!(store.close(Duration::from_secs(10)), back);
    assert!(report.unwritten.is_empty(), "{report:?}");
    assert_eq!(log.records().len(), 1);
}
