//! Why a shard does not move: each reason as its worker says it, and a warning when it lasts.

use std::time::Duration;

use shardfleet::core::watchdog::Standstill;
use shardfleet::{
    ErrorPolicy, FleetStatus, KinesisError, KinesisPosition, KinesisStreamBuilder, Subscription,
};
use shardfleet_local::{FaultAction, FaultRule};

use super::support::{Fleet, Member};
use crate::script::{Act, process};
use crate::support::{World, delivery, open, shard_id, until};

/// What lasts longer is a warning in these tests.
const LIMIT: Duration = Duration::from_millis(300);

fn reason(status: &FleetStatus, shard: usize) -> Option<Standstill> {
    let shards = status.shards.iter();
    let mut found = shards.filter(|shown| shown.shard_id == shard_id(shard));
    found.next()?.standstill.clone().map(|(reason, _)| reason)
}

async fn fleet(shards: u32) -> Fleet {
    let mut fleet = Fleet::over_memory(shards).await;
    fleet.settings.stall_warning_after = LIMIT;
    fleet
}

/// Waits until a member says this of a shard.
async fn until_said(member: &Member, shard: usize, is_it: impl Fn(&Standstill) -> bool) {
    until("the reason", || async {
        reason(&member.handle.fleet(), shard).is_some_and(|reason| is_it(&reason))
    })
    .await;
}

/// Waits until a member warned of this.
async fn until_warned(member: &Member, is_it: impl Fn(&Standstill) -> bool) {
    until("the warning", || async {
        let errors = member.errors();
        errors.iter().any(|error| match error {
            KinesisError::Stalled { reason, for_time, .. } => is_it(reason) && *for_time >= LIMIT,
            _ => false,
        })
    })
    .await;
}

/// A reader of one shard, with warnings as quick as above.
async fn builder(world: &World) -> KinesisStreamBuilder {
    let mut settings = Fleet::over_memory(1).await.settings;
    settings.stall_warning_after = LIMIT;
    let reader = world.reader("a").await;
    reader.start_at(KinesisPosition::horizon()).fleet(settings)
}

async fn until_told(subscription: &Subscription, shard: usize, is_it: impl Fn(&Standstill) -> bool) {
    until("the reason", || async {
        reason(&subscription.handle().fleet(), shard).is_some_and(|reason| is_it(&reason))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_at_its_tip_is_no_warning() {
    let fleet = fleet(2).await;
    let only = fleet.start("a").await;
    fleet.put_one_on_each();
    until_said(&only, 1, |reason| *reason == Standstill::AtTheTip).await;
    let since = fleet.books.now();
    until("many limits", || async {
        fleet.books.now().since(since) > LIMIT * 5
    })
    .await;
    assert!(only.errors().is_empty(), "{:?}", only.errors());
    // It moves again, and stands still again.
    fleet.put_one_on_each();
    fleet.settled().await.assert_exact();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_is_busy() {
    let fleet = fleet(2).await;
    let only = fleet.start("a").await;
    fleet.books.set_stuck("a", 1, true);
    fleet.put_one_on_each();
    until_said(&only, 1, |reason| *reason == Standstill::HandlerBusy).await;
    until_warned(&only, |reason| *reason == Standstill::HandlerBusy).await;
    assert_ne!(reason(&only.handle.fleet(), 0), Some(Standstill::HandlerBusy));
    fleet.books.set_stuck("a", 1, false);
    fleet.settled().await.assert_exact();
    until_said(&only, 1, |reason| *reason == Standstill::AtTheTip).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_that_are_throttled_or_fail_or_bring_nothing() {
    let fleet = fleet(1).await;
    let only = fleet.start("a").await;
    fleet.put_one_on_each();
    until_said(&only, 0, |reason| *reason == Standstill::AtTheTip).await;
    let reads = |action| FaultRule::new("GetRecords", action);
    let fault = fleet.kinesis().add_fault(reads(FaultAction::throttled()));
    fleet.put_one_on_each();
    until_warned(&only, |reason| *reason == Standstill::Throttled).await;
    fleet.kinesis().remove_fault(fault);
    fleet.settled().await.assert_exact();

    let failing = FaultAction::error("InternalFailure", "a fault");
    // Fewer than make the reader stop.
    fleet.kinesis().add_fault(reads(failing).times(8));
    fleet.put_one_on_each();
    until_said(&only, 0, |reason| matches!(reason, Standstill::ReadsFail(1..))).await;
    fleet.settled().await.assert_exact();

    let fault = fleet.kinesis().add_fault(reads(FaultAction::EmptyPage));
    fleet.put_one_on_each();
    until_warned(&only, |reason| *reason == Standstill::NoProgress).await;
    fleet.kinesis().remove_fault(fault);
    fleet.settled().await.assert_exact();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_iterator_that_does_not_come() {
    let fleet = fleet(2).await;
    let only = fleet.start("a").await;
    let rule = FaultRule::new("GetShardIterator", FaultAction::delay(Duration::from_secs(2)));
    let fault = fleet.kinesis().add_fault(rule);
    fleet.world.split(0);
    fleet.put_one_on_each();
    until_said(&only, 2, |reason| *reason == Standstill::Opening).await;
    fleet.kinesis().remove_fault(fault);
    fleet.settled().await.assert_exact();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_whose_other_parent_is_not_finished() {
    let fleet = fleet(2).await;
    let only = fleet.start("a").await;
    fleet.put_one_on_each();
    fleet.settled().await.assert_exact();
    fleet.books.set_stuck("a", 1, true);
    fleet.put_one_on_each();
    fleet.world.merge(0, 1);
    fleet.put_one_on_each();
    let waits = |reason: &Standstill| *reason == Standstill::WaitingForParent(shard_id(1));
    until_said(&only, 2, waits).await;
    // The parent is warned of; its child waits for a good reason.
    until_warned(&only, |reason| *reason == Standstill::HandlerBusy).await;
    fleet.books.set_stuck("a", 1, false);
    fleet.settled().await.assert_exact();
    let warned_of_child = only.errors().iter().any(|error| match error {
        KinesisError::Stalled { reason, .. } => waits(reason),
        _ => false,
    });
    assert!(!warned_of_child, "{:?}", only.errors());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handoff_that_waits_for_a_handler() {
    let fleet = fleet(2).await;
    let first = fleet.start("a").await;
    fleet.produce();
    fleet.until_all_move(2).await;
    for shard in [0, 1] {
        fleet.books.set_stuck("a", shard, true);
    }
    let second = fleet.start("b").await;
    let to_b = |reason: &Standstill| *reason == Standstill::HandoffUnderWay("b".into());
    until("both to say that it is handed over", || async {
        let says = |member: &Member, shard| {
            reason(&member.handle.fleet(), shard).is_some_and(|reason| to_b(&reason))
        };
        (0..2).any(|shard| says(&first, shard) && says(&second, shard))
    })
    .await;
    for shard in [0, 1] {
        fleet.books.set_stuck("a", shard, false);
    }
    fleet.until_even(&[&first, &second]).await;
    fleet.settled().await.assert_exact();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_is_silent_and_whom_nobody_has_room_to_replace() {
    let mut fleet = fleet(4).await;
    fleet.settings.assignment.max_leases_for_worker = 2;
    fleet.produce();
    let first = fleet.start("a").await;
    let second = fleet.start("b").await;
    fleet.until_even(&[&first, &second]).await;
    let of_b = fleet.shards_held_by("b").await;
    let shard = usize::try_from(*of_b.first().expect("two")).expect("small");
    second.kill();
    until_warned(&first, |reason| *reason == Standstill::OwnerSilent("b".into())).await;
    until_said(&first, shard, |reason| {
        *reason == Standstill::OwnerSilent("b".into())
    })
    .await;
    let third = fleet.start("c").await;
    fleet.until_even(&[&first, &third]).await;
    fleet.settled().await.complete();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_cannot_be_reached() {
    let mut fleet = Fleet::over_dynamodb(2).await;
    fleet.settings.stall_warning_after = LIMIT;
    let only = fleet.start("a").await;
    fleet.produce();
    fleet.until_all_move(2).await;
    fleet.dynamo().cut(true);
    let unreachable = |reason: &Standstill| *reason == Standstill::StoreUnreachable;
    until_said(&only, 0, unreachable).await;
    until_warned(&only, unreachable).await;
    fleet.dynamo().cut(false);
    fleet.settled().await.complete();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_failed_for_good() {
    let world = World::new(1).await;
    world.put(0, "bad");
    let policy = ErrorPolicy::stop_after(2);
    let (handle, seen) = process(builder(&world).await, policy, |_, _| Act::Refuse).await;
    let failed = |reason: &Standstill| matches!(reason, Standstill::Failed(_));
    until("the reason", || async {
        reason(&handle.fleet(), 0).is_some_and(|reason| failed(&reason))
    })
    .await;
    until("the warning", || async {
        let errors = seen.errors();
        errors.iter().any(|error| match error {
            KinesisError::Stalled { reason, .. } => failed(reason),
            _ => false,
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_are_not_settled() {
    let world = World::new(2).await;
    world.put_many(0, "a", 3);
    let mut subscription = open(builder(&world).await.unsettled_records_max(1)).await;
    let held = delivery(&mut subscription).await;
    until_told(&subscription, 0, |reason| {
        *reason == Standstill::BufferFull(Some(held.position.clone()))
    })
    .await;
    // A closed shard that was read to its end waits for what was handed out.
    drop(subscription);
    let world = World::new(1).await;
    world.put(0, "last");
    world.split(0);
    let mut subscription = open(builder(&world).await).await;
    let held = delivery(&mut subscription).await;
    until_told(&subscription, 0, |reason| *reason == Standstill::Draining).await;
    held.ack();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_that_another_shard_uses_up() {
    let world = World::new(2).await;
    let text = "x".repeat(900_000);
    for _ in 0..12 {
        world.put(0, &text);
        world.put(1, &text);
    }
    let reader = builder(&world).await.memory_budget(12_000_000);
    let subscription = open(reader).await;
    until("a shard that waits for memory", || async {
        let status = subscription.handle().fleet();
        (0..2).any(|shard| reason(&status, shard) == Some(Standstill::MemoryFull))
    })
    .await;
}
