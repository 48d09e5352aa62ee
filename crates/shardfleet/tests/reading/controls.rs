//! What an operator asks of shards: pause, resume, stop, restart, of any worker and for the whole fleet.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shardfleet::core::watchdog::Standstill;
use shardfleet::status::{StatusState, StatusStore};
use shardfleet::store::LeaseStore;
use shardfleet::{ControlRequest, ErrorPolicy, Record, ShardStatus, SubscriptionHandle, TargetState};

use crate::script::{Act, Seen, is, process};
use crate::support::{
    APPLICATION, FastClock, Killable, World, acked, memory, numbered, open, shard_id, until,
};

const PAUSE: ControlRequest = ControlRequest::Target(TargetState::Paused);
const STOP: ControlRequest = ControlRequest::Target(TargetState::Stopped);
const RESUME: ControlRequest = ControlRequest::Target(TargetState::Running);
const RESTART: ControlRequest = ControlRequest::Restart;

fn takes_all(_: &Record, _: u32) -> Act {
    Act::Take
}

fn state(statuses: &dyn StatusStore, task: i32) -> Option<StatusState> {
    statuses.view().task(APPLICATION, task).map(|status| status.state)
}

async fn until_state(statuses: &dyn StatusStore, task: i32, wanted: Option<StatusState>) {
    until(&format!("task {task} to be {wanted:?}"), || async {
        state(statuses, task) == wanted
    })
    .await;
}

async fn until_application(statuses: &dyn StatusStore, wanted: StatusState) {
    until(&format!("the application to be {wanted}"), || async {
        statuses
            .view()
            .connector(APPLICATION)
            .is_some_and(|status| status.state == wanted)
    })
    .await;
}

async fn ask(handle: &SubscriptionHandle, request: ControlRequest) {
    let asked = handle.control(request, None).await.expect("asked");
    assert!(!asked.is_empty());
}

async fn ends_clean(handle: &SubscriptionHandle) {
    let report = handle.shutdown(Duration::from_secs(5)).await;
    assert!(report.is_clean(), "{report:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_shard_reads_on_where_it_was_and_nothing_comes_twice() {
    let (world, statuses) = (World::new(2).await, memory());
    let (handle, seen) = process(
        world.publishing("a", &statuses).await,
        ErrorPolicy::retry_forever(),
        takes_all,
    )
    .await;
    world.put_many(0, "before", 3);
    seen.until_taken(0, 3).await;
    let one = BTreeSet::from([shard_id(0)]);
    let asked = handle.control(PAUSE, Some(&one)).await.expect("asked");
    assert_eq!(asked, [shard_id(0)]);
    until_state(&*statuses, 0, Some(StatusState::Paused)).await;
    assert_eq!(handle.status()[&shard_id(0)], ShardStatus::Paused);
    world.put_many(0, "while", 3);
    // The other shard is read on, and is the clock here.
    world.put_many(1, "other", 3);
    seen.until_taken(1, 3).await;
    world.until_read(10).await;
    assert_eq!(seen.taken(0).len(), 3, "{:?}", seen.events());
    until("the reason", || async {
        let shards = handle.fleet().shards;
        shards.iter().any(|shard| {
            let reason = shard.standstill.as_ref().map(|(reason, _)| reason);
            shard.shard_id == shard_id(0) && reason == Some(&Standstill::Paused)
        })
    })
    .await;
    // One of two is paused: the application runs.
    until_application(&*statuses, StatusState::Running).await;
    ask(&handle, PAUSE).await;
    until_application(&*statuses, StatusState::Paused).await;
    ask(&handle, RESUME).await;
    seen.until_taken(0, 6).await;
    let expected: Vec<String> = numbered("before", 0..3)
        .into_iter()
        .chain(numbered("while", 0..3))
        .collect();
    assert_eq!(seen.taken(0), expected);
    until_state(&*statuses, 0, Some(StatusState::Running)).await;
    until_application(&*statuses, StatusState::Running).await;
    assert_eq!(seen.count("init 0"), 1, "its handler stayed");
    ends_clean(&handle).await;
}

/// A handler that is in the middle of a batch gets no further call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_fails_is_not_called_again_while_its_shard_is_paused() {
    let (world, statuses) = (World::new(1).await, memory());
    let may_pass = Arc::new(AtomicBool::new(false));
    let plan = {
        let may_pass = Arc::clone(&may_pass);
        move |_: &Record, _: u32| {
            if may_pass.load(Ordering::Relaxed) {
                Act::Take
            } else {
                Act::RefuseAll
            }
        }
    };
    let builder = world.publishing("a", &statuses).await;
    let (handle, seen) = process(builder, ErrorPolicy::retry_forever(), plan).await;
    world.put(0, "r");
    until("a failure", || async { seen.count("fail 0 r") > 0 }).await;
    ask(&handle, PAUSE).await;
    until("the pause", || async {
        handle.status()[&shard_id(0)] == ShardStatus::Paused
    })
    .await;
    // The call that was under way may still fail.
    let failed = seen.count("fail 0 r");
    may_pass.store(true, Ordering::Relaxed);
    ask(&handle, RESUME).await;
    seen.until_taken(0, 1).await;
    assert!(seen.count("fail 0 r") <= failed + 1, "{:?}", seen.events());
    ends_clean(&handle).await;
}

/// A page that waits for room before the handler when the pause comes is not forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_while_the_handler_is_busy_and_pages_wait_loses_none() {
    let (world, statuses) = (World::new(1).await, memory());
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let plan = {
        let gate = Arc::clone(&gate);
        move |_: &Record, _: u32| Act::WaitFor(Arc::clone(&gate))
    };
    let builder = world.publishing("a", &statuses).await.batch_size(1);
    world.put_many(0, "r", 20);
    let (handle, seen) = process(builder, ErrorPolicy::retry_forever(), plan).await;
    until("the first record", || async { seen.count("wait 0 r0") == 1 }).await;
    // One is in the handler's hands, two wait in its channel, and one before it.
    until("a full channel", || async {
        world.controls.calls("GetRecords") >= 4
    })
    .await;
    for _ in 0..5 {
        ask(&handle, PAUSE).await;
        until_state(&*statuses, 0, Some(StatusState::Paused)).await;
        ask(&handle, RESUME).await;
        until_state(&*statuses, 0, Some(StatusState::Running)).await;
    }
    gate.close();
    seen.until_taken(0, 20).await;
    assert_eq!(seen.taken(0), numbered("r", 0..20));
    ends_clean(&handle).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_shard_keeps_its_lease_without_a_handler_and_begins_anew_when_it_is_resumed() {
    let (world, statuses) = (World::new(1).await, memory());
    let builder = world.publishing("a", &statuses).await;
    let (handle, seen) = process(builder, ErrorPolicy::retry_forever(), takes_all).await;
    let last = world.put_many(0, "r", 3).pop().expect("three");
    seen.until_taken(0, 3).await;
    ask(&handle, STOP).await;
    until_state(&*statuses, 0, None).await;
    until_application(&*statuses, StatusState::Stopped).await;
    until("the handler's end", || async { seen.count("stop 0") == 1 }).await;
    world.until_checkpoint(0, &last.sequence_number).await;
    assert!(world.lease(0).await.owner.is_some(), "the lease is kept");
    world.put_many(0, "s", 2);
    let counter = world.lease(0).await.counter;
    until("renewals", || async {
        world.lease(0).await.counter > counter + 2
    })
    .await;
    assert_eq!(seen.taken(0).len(), 3);
    ask(&handle, RESUME).await;
    seen.until_taken(0, 5).await;
    assert_eq!(seen.taken(0)[3..], numbered("s", 0..2));
    assert_eq!(seen.count("init 0"), 2);
    until_state(&*statuses, 0, Some(StatusState::Running)).await;
    until_application(&*statuses, StatusState::Running).await;
    ends_clean(&handle).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_gives_a_failed_shard_another_handler_at_its_checkpoint() {
    let (world, statuses) = (World::new(1).await, memory());
    let mut changes = statuses.watch();
    let is_mended = Arc::new(AtomicBool::new(false));
    let plan = {
        let is_mended = Arc::clone(&is_mended);
        move |record: &Record, _: u32| {
            if is(record, "r1") && !is_mended.load(Ordering::Relaxed) {
                Act::Refuse
            } else {
                Act::Take
            }
        }
    };
    let builder = world.publishing("a", &statuses).await;
    let (handle, seen) = process(builder, ErrorPolicy::stop_after(1), plan).await;
    world.put_many(0, "r", 3);
    until_state(&*statuses, 0, Some(StatusState::Failed)).await;
    // A pause mends nothing.
    ask(&handle, PAUSE).await;
    ask(&handle, RESUME).await;
    assert_eq!(state(&*statuses, 0), Some(StatusState::Failed));
    is_mended.store(true, Ordering::Relaxed);
    ask(&handle, RESTART).await;
    until("all records", || async { seen.count("take 0 r2") == 1 }).await;
    until_state(&*statuses, 0, Some(StatusState::Running)).await;
    assert_eq!(seen.count("init 0"), 2);
    // `r0` was settled before the failure; it comes again only if its call failed with it.
    assert_eq!(seen.count("take 0 r1"), 1);
    let mut told = Vec::new();
    while let Ok(change) = changes.try_recv() {
        let is_task = change.key == shardfleet::status::StatusKey::task(APPLICATION, 0);
        if let Some(status) = change
            .value
            .as_ref()
            .and_then(|value| value.work())
            .filter(|_| is_task)
        {
            told.push(status.state);
        }
    }
    assert!(told.contains(&StatusState::Restarting), "{told:?}");
    ends_clean(&handle).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_a_shard_that_runs_repeats_and_loses_nothing() {
    let (world, statuses) = (World::new(1).await, memory());
    let builder = world.publishing("a", &statuses).await;
    let (handle, seen) = process(builder, ErrorPolicy::retry_forever(), takes_all).await;
    let mut expected = Vec::new();
    for round in 0..5 {
        let prefix = format!("round{round}-");
        world.put_many(0, &prefix, 4);
        expected.extend(numbered(&prefix, 0..4));
        ask(&handle, RESTART).await;
        until("another handler", || async { seen.count("init 0") == round + 2 }).await;
    }
    seen.until_taken(0, expected.len()).await;
    assert_eq!(seen.taken(0), expected);
    ends_clean(&handle).await;
}

/// Whoever is asked, all obey; and what was asked outlives the worker that held the lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_whole_fleet_obeys_and_an_heir_too() {
    let (world, statuses) = (World::new(2).await, memory());
    let victim = Killable::new();
    let (builder, policy) = (
        world.publishing("victim", &statuses).await,
        ErrorPolicy::retry_forever(),
    );
    let (first, seen) = victim
        .run(async move { process(builder, policy, takes_all).await })
        .await;
    world.put_many(0, "r", 3);
    seen.until_taken(0, 3).await;
    let builder = world.publishing("heir", &statuses).await;
    let (heir, of_heir) = process(builder, ErrorPolicy::retry_forever(), takes_all).await;
    until("a share for each", || async {
        !first.status().is_empty() && !heir.status().is_empty()
    })
    .await;
    ask(&heir, PAUSE).await;
    for task in [0, 1] {
        until_state(&*statuses, task, Some(StatusState::Paused)).await;
    }
    victim.kill();
    until("the heir to hold both", || async { heir.status().len() == 2 }).await;
    until_state(&*statuses, 0, Some(StatusState::Paused)).await;
    world.put_many(0, "s", 3);
    world.put_many(1, "t", 3);
    let counter = world.lease(0).await.counter;
    until("renewals", || async {
        world.lease(0).await.counter > counter + 2
    })
    .await;
    assert_eq!(of_heir.taken(0).len() + of_heir.taken(1).len(), 0);
    ask(&heir, RESUME).await;
    until("what came meanwhile", || async {
        of_heir.taken(0).ends_with(&numbered("s", 0..3)) && of_heir.taken(1).ends_with(&numbered("t", 0..3))
    })
    .await;
    drop(first);
    ends_clean(&heir).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_children_of_a_paused_shard_are_paused() {
    let (world, statuses) = (World::new(1).await, memory());
    let (handle, seen): (SubscriptionHandle, Seen) = process(
        world.publishing("a", &statuses).await,
        ErrorPolicy::retry_forever(),
        takes_all,
    )
    .await;
    world.put_many(0, "r", 2);
    seen.until_taken(0, 2).await;
    ask(&handle, PAUSE).await;
    until_state(&*statuses, 0, Some(StatusState::Paused)).await;
    world.split(0);
    world.put(1, "child");
    ask(&handle, RESUME).await;
    seen.until_taken(1, 1).await;
    // The parent of the second generation ends while the application is to stop: its children never begin.
    ask(&handle, PAUSE).await;
    until_application(&*statuses, StatusState::Paused).await;
    world.split(1);
    world.put(3, "grandchild");
    let one = BTreeSet::from([shard_id(1)]);
    handle.control(RESUME, Some(&one)).await.expect("asked");
    until("the end of the parent", || async { seen.count("ended 1") == 1 }).await;
    // It was running when it ended, and so do its children.
    seen.until_taken(3, 1).await;
    assert_eq!(state(&*statuses, 2), Some(StatusState::Paused));
    ends_clean(&handle).await;
}

/// A subscription has no handler to stop: its shards are read no more, and read on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_pauses_stops_and_goes_on() {
    let (world, statuses) = (World::new(1).await, memory());
    let mut subscription = open(world.publishing("a", &statuses).await).await;
    let handle = subscription.handle();
    for request in [PAUSE, STOP] {
        world.put_many(0, "r", 3);
        assert_eq!(acked(&mut subscription, 3).await, numbered("r", 0..3));
        ask(&handle, request).await;
        until("obedience", || async {
            matches!(
                handle.status()[&shard_id(0)],
                ShardStatus::Paused | ShardStatus::Stopped
            )
        })
        .await;
        world.put_many(0, "s", 2);
        let reads = world.controls.calls("GetRecords");
        let counter = world.lease(0).await.counter;
        until("renewals", || async {
            world.lease(0).await.counter > counter + 2
        })
        .await;
        assert!(world.controls.calls("GetRecords") <= reads + 1);
        ask(&handle, RESUME).await;
        assert_eq!(acked(&mut subscription, 2).await, numbered("s", 0..2));
    }
    let report = subscription.shutdown(Duration::from_secs(5)).await;
    assert!(report.is_clean(), "{report:?}");
}

/// A worker that starts while its application is stopped is open, and waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_opens_although_its_application_is_stopped() {
    let (world, statuses) = (World::new(1).await, memory());
    for request in [PAUSE, STOP] {
        let builder = world.publishing("a", &statuses).await;
        let (handle, _) = process(builder, ErrorPolicy::retry_forever(), takes_all).await;
        ask(&handle, request).await;
        ends_clean(&handle).await;
        let builder = world.publishing("b", &statuses).await;
        let (handle, seen) = process(builder, ErrorPolicy::retry_forever(), takes_all).await;
        world.put(0, "r");
        assert!(matches!(
            handle.status()[&shard_id(0)],
            ShardStatus::Paused | ShardStatus::Stopped
        ));
        ask(&handle, RESUME).await;
        until("the record", || async { seen.taken(0) == ["r"] }).await;
        ends_clean(&handle).await;
    }
}

/// LATEST is when the shard was opened, though it was not to be read then: what comes before the resume is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_while_a_shard_waits_for_its_first_read_is_not_skipped() {
    for request in [PAUSE, STOP] {
        let (world, statuses) = (World::new(1).await, memory());
        let latest = async |worker: &str| world.reader(worker).await.status_store(Arc::clone(&statuses));
        // The lease is there, and nothing of the shard was ever read.
        let builder = latest("a").await;
        let first = open(builder).await;
        let handle = first.handle();
        ask(&handle, request).await;
        drop(first.shutdown(Duration::from_secs(5)).await);
        let mut lease = world.lease(0).await;
        lease.opened_at = None;
        assert!(
            world
                .store
                .delete(&lease.lease_key, &shardfleet::core::lease::Expectation::default())
                .await
                .expect("deleted")
        );
        assert!(world.store.create(&lease).await.expect("created"));

        let (second, _) = process(latest("b").await, ErrorPolicy::retry_forever(), takes_all).await;
        world.put_many(0, "r", 3);
        world.controls.advance(Duration::from_secs(60));
        // A worker that dies meanwhile does not take the place with it.
        ends_clean(&second).await;
        let (third, seen) = process(latest("c").await, ErrorPolicy::retry_forever(), takes_all).await;
        world.put(0, "last");
        ask(&third, RESUME).await;
        seen.until_taken(0, 4).await;
        assert_eq!(seen.taken(0), ["r0", "r1", "r2", "last"]);
        ends_clean(&third).await;
    }
}

/// Neither undoes the other: the shards are paused, and each restart counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_at_the_same_time_all_count() {
    const ROUNDS: u64 = 40;
    let (world, statuses) = (World::new(4).await, memory());
    let (handle, _) = process(
        world.publishing("a", &statuses).await,
        ErrorPolicy::retry_forever(),
        takes_all,
    )
    .await;
    for round in 1..=ROUNDS {
        ask(&handle, RESUME).await;
        let at_once = [PAUSE, RESTART].map(|request| {
            let handle = handle.clone();
            tokio::spawn(async move { handle.control(request, None).await.map(|asked| asked.len()) })
        });
        for asked in at_once {
            assert_eq!(asked.await.expect("it ends").expect("asked"), 4);
        }
        for shard in 0..4 {
            let control = world.lease(shard).await.control();
            let expected = (TargetState::Paused, round);
            assert_eq!((control.target, control.restarts), expected, "shard {shard}");
        }
    }
    ends_clean(&handle).await;
}

/// While it is paused a handler cannot try again, so the time does not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_failed_once_before_a_pause_has_not_failed() {
    let (world, statuses) = (World::new(1).await, memory());
    let clock = FastClock::shared(10);
    let builder = world.publishing("a", &statuses).await.clock(Arc::clone(&clock));
    let builder = builder.failover_time(Duration::from_secs(20));
    let (handle, seen) = process(builder, ErrorPolicy::retry_forever(), |_, _| Act::RefuseAll).await;
    world.put(0, "r");
    until("a failure", || async { seen.count("fail 0 r") > 0 }).await;
    ask(&handle, PAUSE).await;
    until_state(&*statuses, 0, Some(StatusState::Paused)).await;
    let paused_at = clock.now();
    until("a long pause", || async {
        let shown = state(&*statuses, 0);
        assert_eq!(shown, Some(StatusState::Paused));
        clock.now().since(paused_at) > Duration::from_secs(15)
    })
    .await;
    ask(&handle, RESUME).await;
    until_state(&*statuses, 0, Some(StatusState::Failed)).await;
    drop(handle.shutdown(Duration::from_secs(5)).await);
}
