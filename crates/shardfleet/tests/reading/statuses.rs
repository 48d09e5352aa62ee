//! What workers say of their shards in a status store, from the first lease to the last.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use shardfleet::ErrorPolicy;
use shardfleet::clock::SystemClock;
use shardfleet::core::status::Outcome;
use shardfleet::status::{
    LoggedStatusStore, RetrySettings, StatusKey, StatusLog, StatusReader, StatusState, StatusStore,
    WorkStatus,
};

use crate::script::{Act, is, process};
use crate::support::{APPLICATION, FastClock, Killable, STREAM, World, acked, memory, numbered, open, until};

fn task(statuses: &dyn StatusStore, number: i32) -> Option<WorkStatus> {
    statuses.view().task(APPLICATION, number).cloned()
}

fn says(statuses: &dyn StatusStore, number: i32, state: StatusState, worker: &str) -> bool {
    task(statuses, number).is_some_and(|status| status.state == state && status.worker_id == worker)
}

async fn until_says(statuses: &dyn StatusStore, number: i32, state: StatusState, worker: &str) -> WorkStatus {
    until(&format!("task {number} {state} by {worker}"), || async {
        says(statuses, number, state, worker)
    })
    .await;
    task(statuses, number).expect("a status")
}

async fn until_application(statuses: &dyn StatusStore, state: StatusState, worker: &str) {
    until(&format!("the application {state} by {worker}"), || async {
        let view = statuses.view();
        let status = view.connector(APPLICATION);
        status.is_some_and(|status| status.state == state && status.worker_id == worker)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_tells_its_shards_from_the_first_lease_to_the_last() {
    let (world, statuses) = (World::new(2).await, memory());
    let mut changes = statuses.watch();
    let subscription = open(world.publishing("a", &statuses).await).await;
    let mut began = Vec::new();
    for number in [0, 1] {
        let status = until_says(&*statuses, number, StatusState::Running, "a").await;
        let counter = world.lease(usize::try_from(number).expect("small")).await.counter;
        let generation = u64::try_from(status.generation).expect("a counter");
        assert!((1..=counter).contains(&generation), "{status:?} at {counter}");
        assert!(status.is_ours() && status.trace.is_none(), "{status:?}");
        began.push(status.generation);
    }
    until_application(&*statuses, StatusState::Running, "a").await;
    until("the stream", || async {
        statuses.view().topic(APPLICATION, STREAM).is_some()
    })
    .await;
    let report = subscription.shutdown(Duration::from_secs(5)).await;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.unwritten_statuses, 0);
    // Nothing waits for this: the last words are said when the report is there.
    for (number, began) in [0, 1].into_iter().zip(began) {
        let status = task(&*statuses, number).expect("a status");
        assert_eq!(
            (status.state, status.worker_id.as_str()),
            (StatusState::Unassigned, "a")
        );
        assert!(status.generation > began, "{status:?} after {began}");
    }
    let view = statuses.view();
    let status = view.connector(APPLICATION).expect("the application");
    assert_eq!(status.state, StatusState::Unassigned);
    assert_eq!(view.tasks_of(APPLICATION).count(), 2);
    // Each thing was said once.
    let mut said = 0;
    while changes.try_recv().is_ok() {
        said += 1;
    }
    assert_eq!(
        said, 7,
        "two shards and the application begin and end, and a stream"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_worker_is_a_later_life() {
    let (world, statuses) = (World::new(1).await, memory());
    let mut last = 0;
    for worker in ["a", "b", "a"] {
        let subscription = open(world.publishing(worker, &statuses).await).await;
        let status = until_says(&*statuses, 0, StatusState::Running, worker).await;
        assert!(status.generation > last, "{status:?} after {last}");
        until_application(&*statuses, StatusState::Running, worker).await;
        assert!(subscription.shutdown(Duration::from_secs(5)).await.is_clean());
        let status = task(&*statuses, 0).expect("a status");
        assert_eq!(status.state, StatusState::Unassigned);
        last = status.generation;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_failed_says_why() {
    let (world, statuses) = (World::new(2).await, memory());
    world.put(0, "bad");
    let plan = |record: &shardfleet::Record, _: u32| {
        if is(record, "bad") { Act::Refuse } else { Act::Take }
    };
    let builder = world.publishing("a", &statuses).await;
    let (handle, _) = process(builder, ErrorPolicy::stop_after(2), plan).await;
    let status = until_says(&*statuses, 0, StatusState::Failed, "a").await;
    assert_eq!(status.trace.as_deref(), Some("no bad here"));
    until_says(&*statuses, 1, StatusState::Running, "a").await;
    assert_eq!(handle.statuses().task(APPLICATION, 0), Some(&status));
    handle.shutdown(Duration::from_secs(5)).await;
    assert!(says(&*statuses, 0, StatusState::Unassigned, "a"));
}

/// A handler that does the same each time, until it may succeed.
async fn fails_until_it_succeeds(act: fn() -> Act, trace: &str) {
    let (world, statuses) = (World::new(1).await, memory());
    world.put(0, "r");
    let may_pass = Arc::new(AtomicBool::new(false));
    let plan = {
        let may_pass = Arc::clone(&may_pass);
        move |_: &shardfleet::Record, _: u32| {
            if may_pass.load(Ordering::Relaxed) {
                Act::Take
            } else {
                act()
            }
        }
    };
    let builder = world.publishing("a", &statuses).await;
    let (handle, seen) = process(builder, ErrorPolicy::retry_forever(), plan).await;
    let status = until_says(&*statuses, 0, StatusState::Failed, "a").await;
    assert_eq!(status.trace.as_deref(), Some(trace));
    may_pass.store(true, Ordering::Relaxed);
    seen.until_taken(0, 1).await;
    let status = until_says(&*statuses, 0, StatusState::Running, "a").await;
    assert_eq!(status.trace, None);
    assert!(handle.shutdown(Duration::from_secs(5)).await.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_panics_has_failed_until_it_succeeds() {
    fails_until_it_succeeds(|| Act::Panic, "the handler panicked: on r").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_gets_nowhere_has_failed_until_it_succeeds() {
    fails_until_it_succeeds(|| Act::RefuseAll, "something is wrong").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_was_read_to_its_end_is_forgotten_and_its_children_are_told_of() {
    let (world, statuses) = (World::new(1).await, memory());
    world.put_many(0, "r", 3);
    let mut subscription = open(world.publishing("a", &statuses).await).await;
    assert_eq!(acked(&mut subscription, 3).await, numbered("r", 0..3));
    until_says(&*statuses, 0, StatusState::Running, "a").await;
    world.split(0);
    for child in [1, 2] {
        until_says(&*statuses, child, StatusState::Running, "a").await;
    }
    until("the parent to be forgotten", || async {
        task(&*statuses, 0).is_none()
    })
    .await;
    assert!(subscription.shutdown(Duration::from_secs(5)).await.is_clean());
    let view = statuses.view();
    let tasks: Vec<i32> = view.tasks_of(APPLICATION).map(|(task, _)| task).collect();
    assert_eq!(tasks, [1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shards_of_a_dead_worker_are_told_by_its_heir() {
    let (world, statuses) = (World::new(2).await, memory());
    let victim = Killable::new();
    let builder = world.publishing("victim", &statuses).await;
    let first = victim.run(async move { open(builder).await }).await;
    let mut began = 0;
    for number in [0, 1] {
        began = until_says(&*statuses, number, StatusState::Running, "victim")
            .await
            .generation
            .max(began);
    }
    victim.kill();
    let second = open(world.publishing("heir", &statuses).await).await;
    for number in [0, 1] {
        let status = until_says(&*statuses, number, StatusState::Running, "heir").await;
        assert!(status.generation > began, "{status:?} after {began}");
    }
    until_application(&*statuses, StatusState::Running, "heir").await;
    drop(first);
    assert!(second.shutdown(Duration::from_secs(5)).await.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_tells_of_workers_that_do_not_speak() {
    let world = World::new(2).await;
    // Two stores that know nothing of each other: to each worker the other is mute.
    let stores = [memory(), memory()];
    let clock = FastClock::shared(10);
    let start = async |worker: &str, statuses: &Arc<dyn StatusStore>| {
        let builder = world.publishing(worker, statuses).await.clock(Arc::clone(&clock));
        open(builder.failover_time(Duration::from_secs(60))).await
    };
    let (one, other) = (start("a", &stores[0]).await, start("b", &stores[1]).await);
    let complete = |statuses: &Arc<dyn StatusStore>| {
        let view = statuses.view();
        let mut readers: Vec<String> = view
            .tasks_of(APPLICATION)
            .filter(|(_, status)| status.state == StatusState::Running)
            .map(|(_, status)| status.worker_id.clone())
            .collect();
        readers.sort();
        readers == ["a", "b"]
    };
    until("the leader to tell of both", || async {
        stores.iter().any(complete)
    })
    .await;
    drop((one, other));
}

/// A log that is reached or not.
#[derive(Default)]
struct SwitchedLog {
    is_up: AtomicBool,
    reader: OnceLock<StatusReader>,
}

impl StatusLog for SwitchedLog {
    fn send(&self, key: String, value: Option<Vec<u8>>) -> BoxFuture<'static, Outcome> {
        let outcome = if self.is_up.load(Ordering::Relaxed) {
            if let Some(reader) = self.reader.get() {
                reader.read(Some(key.as_bytes()), value.as_deref());
            }
            Outcome::Written
        } else {
            Outcome::Retriable("no broker".to_owned())
        };
        Box::pin(std::future::ready(outcome))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_goes_on_while_statuses_cannot_be_written_and_they_catch_up() {
    let world = World::new(1).await;
    let log = Arc::new(SwitchedLog::default());
    // Nothing is retried: what fails is given up, and said again.
    let retry = RetrySettings {
        max_retries: 0,
        initial_backoff_ms: 10,
        ..RetrySettings::default()
    };
    let store = LoggedStatusStore::start(
        Arc::clone(&log) as Arc<dyn StatusLog>,
        retry,
        SystemClock::shared(),
    );
    assert!(log.reader.set(store.reader()).is_ok());
    let statuses: Arc<dyn StatusStore> = Arc::new(store);
    world.put_many(0, "r", 5);
    let mut subscription = open(world.publishing("a", &statuses).await).await;
    assert_eq!(acked(&mut subscription, 5).await, numbered("r", 0..5));
    until("a failure", || async { statuses.counters().failure > 0 }).await;
    let last = world.put(0, "last");
    assert_eq!(acked(&mut subscription, 1).await, ["last"]);
    world.until_checkpoint(0, &last.sequence_number).await;
    assert_eq!(task(&*statuses, 0), None);
    log.is_up.store(true, Ordering::Relaxed);
    until_says(&*statuses, 0, StatusState::Running, "a").await;
    until_application(&*statuses, StatusState::Running, "a").await;
    // An end that cannot be told is counted, and holds nobody up.
    log.is_up.store(false, Ordering::Relaxed);
    let report = subscription.shutdown(Duration::from_secs(5)).await;
    assert!(report.is_clean(), "{report:?}");
    assert!(says(&*statuses, 0, StatusState::Running, "a"));
    let closed = statuses.close(Duration::ZERO).await;
    let failures = statuses.counters().failure;
    assert!(failures > 0, "{closed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_stays_away_is_waited_for_no_longer_than_the_stop_allows() {
    let world = World::new(1).await;
    let retry = RetrySettings {
        max_retries: i64::from(i32::MAX),
        ..RetrySettings::default()
    };
    let log: Arc<dyn StatusLog> = Arc::new(SwitchedLog::default());
    let store = LoggedStatusStore::start(log, retry, SystemClock::shared());
    let statuses: Arc<dyn StatusStore> = Arc::new(store);
    let subscription = open(world.publishing("a", &statuses).await).await;
    until("a status that waits", || async { !statuses.late().is_empty() }).await;
    let report = subscription.shutdown(Duration::from_secs(1)).await;
    assert!(report.is_clean(), "{report:?}");
    let late: Vec<StatusKey> = statuses.late().into_iter().map(|late| late.key).collect();
    assert!(late.contains(&StatusKey::task(APPLICATION, 0)), "{late:?}");
    assert_eq!(report.unwritten_statuses, late.len() as u64);
    let closed = statuses.close(Duration::ZERO).await;
    assert_eq!(closed.unwritten.len(), late.len());
}
