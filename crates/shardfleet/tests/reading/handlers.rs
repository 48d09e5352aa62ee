//! Handlers that fail, for ever or for a while, and handlers that panic or take long.

use std::sync::Arc;
use std::time::Duration;

use shardfleet::dead_letter::{DeadLetter, DeadLetterFile, DeadLetterQueue};
use shardfleet::{
    ErrorPolicy, KinesisError, KinesisPosition, KinesisStreamBuilder, ProcessRecordsInput, ProcessorError,
    RecordProcessor, ShardId, ShardOutcome, ShardStatus, async_trait,
};
use tokio::sync::Semaphore;

use crate::script::{Act, is, process};
use crate::support::{World, numbered, place, shard_id, until};

async fn reader(world: &World) -> KinesisStreamBuilder {
    world.reader("a").await.start_at(KinesisPosition::horizon())
}

fn refuses_bad(record: &shardfleet::Record, _: u32) -> Act {
    if is(record, "bad") { Act::Refuse } else { Act::Take }
}

/// `a0`, `a1`, `bad`, `z0`, `z1` on shard 0, and one record on shard 1.
async fn world_with_a_bad_record() -> (World, shardfleet_local::PutReceipt, shardfleet_local::PutReceipt) {
    let world = World::new(2).await;
    let before = world.put_many(0, "a", 2).pop().expect("two");
    let bad = world.put(0, "bad");
    world.put_many(0, "z", 2);
    world.put(1, "other");
    (world, before, bad)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_fails_for_ever_stops_its_shard_alone() {
    let (world, before, bad) = world_with_a_bad_record().await;
    let (handle, seen) = process(reader(&world).await, ErrorPolicy::stop_after(4), refuses_bad).await;
    until("the shard to fail", || async {
        matches!(
            handle.status().get(&shard_id(0)),
            Some(ShardStatus::Failed { .. })
        )
    })
    .await;
    // Retried in order, and nothing behind it was tried.
    assert_eq!(seen.taken(0), ["a0", "a1"]);
    assert_eq!(seen.count("fail 0 bad"), 4);
    world.until_checkpoint(0, &before.sequence_number).await;
    // The lease is kept, and the other shard goes on.
    let counter = world.lease(0).await.counter;
    world.put(1, "later");
    seen.until_taken(1, 2).await;
    until("renewals", || async {
        world.lease(0).await.counter >= counter + 2
    })
    .await;
    assert!(world.lease(0).await.owner.is_some());
    let errors = seen.errors();
    let failed = |e: &&KinesisError| matches!(e, KinesisError::ShardFailed { .. });
    match errors.iter().find(failed) {
        Some(KinesisError::ShardFailed { at, reason, .. }) => {
            assert_eq!((at, reason.as_str()), (&place(&bad), "no bad here"));
        }
        _ => panic!("{errors:?}"),
    }
    let attempts = errors.iter().filter_map(|e| match e {
        KinesisError::HandlerFailed { attempt, .. } => Some(*attempt),
        _ => None,
    });
    assert_eq!(attempts.collect::<Vec<_>>(), [1, 2, 3, 4]);
    let report = handle.shutdown(Duration::from_secs(5)).await;
    assert!(report.in_time && !report.is_clean(), "{report:?}");
    assert_eq!(report.shards[0].failure.as_deref(), Some("no bad here"));
    assert_eq!(report.shards[0].unsettled, 3);
    assert_eq!(report.shards[0].outcome, ShardOutcome::Released);
    assert_eq!((seen.count("stop 0"), seen.count("lost 0")), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_record_is_set_aside_and_reading_goes_on() {
    let (world, _, bad) = world_with_a_bad_record().await;
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("letters");
    let queue = DeadLetterFile::open(&path).expect("file");
    let policy = ErrorPolicy::dead_letter_after(3, queue);
    let (handle, seen) = process(reader(&world).await, policy, refuses_bad).await;
    seen.until_taken(0, 4).await;
    assert_eq!(seen.taken(0), ["a0", "a1", "z0", "z1"]);
    assert_eq!(seen.count("fail 0 bad"), 3);
    assert!(handle.shutdown(Duration::from_secs(5)).await.is_clean());
    let lines = std::fs::read_to_string(&path).expect("letters");
    let letters: Vec<DeadLetter> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("a letter"))
        .collect();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].data().expect("base64"), b"bad");
    assert_eq!(letters[0].sequence_number, bad.sequence_number);
    assert_eq!(
        (letters[0].reason.as_str(), letters[0].attempts),
        ("no bad here", 3)
    );
    assert_eq!(letters[0].partition_key.as_deref(), Some("key"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_that_names_no_record_sets_aside_only_the_one_that_fails_alone() {
    let (world, _, _) = world_with_a_bad_record().await;
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("letters");
    let queue = DeadLetterFile::open(&path).expect("file");
    let policy = ErrorPolicy::dead_letter_after(2, queue);
    let plan = |record: &shardfleet::Record, _: u32| {
        if is(record, "bad") {
            Act::RefuseAll
        } else {
            Act::Take
        }
    };
    let (handle, seen) = process(reader(&world).await, policy, plan).await;
    until("the last record", || async {
        seen.taken(0).last().is_some_and(|last| last == "z1")
    })
    .await;
    assert!(handle.shutdown(Duration::from_secs(5)).await.is_clean());
    let lines = std::fs::read_to_string(&path).expect("letters");
    assert_eq!(lines.lines().count(), 1, "{lines}");
}

/// A queue on a disk that is full.
struct Full;

#[async_trait]
impl DeadLetterQueue for Full {
    async fn put(&self, _: DeadLetter) -> std::io::Result<()> {
        Err(std::io::Error::other("the disk is full"))
    }

    fn describe(&self) -> String {
        "a full disk".to_owned()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_fails_stops_the_shard() {
    let (world, before, _) = world_with_a_bad_record().await;
    let policy = ErrorPolicy::dead_letter_after(2, Full);
    let (handle, _) = process(reader(&world).await, policy, refuses_bad).await;
    until("the shard to fail", || async {
        match handle.status().get(&shard_id(0)) {
            Some(ShardStatus::Failed { reason }) => {
                reason.contains("no bad here") && reason.contains("a full disk failed: the disk is full")
            }
            _ => false,
        }
    })
    .await;
    world.until_checkpoint(0, &before.sequence_number).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_never_gives_up_does_not() {
    let world = World::new(1).await;
    world.put_many(0, "r", 3);
    let plan = |record: &shardfleet::Record, attempt: u32| {
        if is(record, "r1") && attempt < 40 {
            Act::Refuse
        } else {
            Act::Take
        }
    };
    let (handle, seen) = process(reader(&world).await, ErrorPolicy::retry_forever(), plan).await;
    seen.until_taken(0, 3).await;
    assert_eq!(seen.taken(0), numbered("r", 0..3));
    assert!(seen.count("fail 0 r1") >= 39);
    assert!(handle.shutdown(Duration::from_secs(5)).await.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_is_an_error_of_its_shard_and_is_retried() {
    let world = World::new(2).await;
    world.put_many(0, "r", 3);
    world.put_many(1, "s", 3);
    let plan = |record: &shardfleet::Record, attempt: u32| {
        if is(record, "r0") && attempt < 3 {
            Act::Panic
        } else {
            Act::Take
        }
    };
    let (handle, seen) = process(reader(&world).await, ErrorPolicy::stop_after(5), plan).await;
    seen.until_taken(0, 3).await;
    seen.until_taken(1, 3).await;
    assert_eq!(seen.taken(0), numbered("r", 0..3));
    assert_eq!(seen.taken(1), numbered("s", 0..3));
    let errors = seen.errors();
    assert_eq!(errors.len(), 2, "{errors:?}");
    for error in &errors {
        assert_eq!(error.shard_id(), Some(&shard_id(0)));
        assert!(error.to_string().contains("panicked: on r0"), "{error}");
    }
    assert!(handle.shutdown(Duration::from_secs(5)).await.is_clean());
}

struct Idle;

#[async_trait]
impl RecordProcessor for Idle {
    async fn process_records(&mut self, _: ProcessRecordsInput<'_>) -> Result<(), ProcessorError> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_factory_that_panics_stops_that_shard_alone() {
    let world = World::new(2).await;
    let receipt = world.put(1, "r");
    let stream = reader(&world).await.build().expect("settings");
    let factory = |shard: &ShardId| {
        assert_ne!(*shard, shard_id(0), "no processor for this one");
        Idle
    };
    let handle = stream
        .process(factory, ErrorPolicy::default(), |_| {})
        .await
        .expect("processing");
    until("the shard to fail", || async {
        match handle.status().get(&shard_id(0)) {
            Some(ShardStatus::Failed { reason }) => reason.contains("no processor for this one"),
            _ => false,
        }
    })
    .await;
    world.until_checkpoint(1, &receipt.sequence_number).await;
    assert!(handle.shutdown(Duration::from_secs(5)).await.in_time);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_handler_does_not_cost_the_lease() {
    let world = World::new(1).await;
    world.put_many(0, "r", 2);
    let gate = Arc::new(Semaphore::new(0));
    let plan = {
        let gate = Arc::clone(&gate);
        move |record: &shardfleet::Record, _: u32| {
            if is(record, "r0") {
                Act::WaitFor(Arc::clone(&gate))
            } else {
                Act::Take
            }
        }
    };
    let failover = Duration::from_millis(900);
    let slow = reader(&world).await.failover_time(failover);
    let (handle, seen) = process(slow, ErrorPolicy::default(), plan).await;
    until("the handler to be busy", || async {
        seen.count("wait 0 r0") == 1
    })
    .await;
    let other = world.reader("other").await.failover_time(failover);
    let (other, other_seen) = process(other, ErrorPolicy::default(), |_, _| Act::Take).await;
    // Three renewals are one failover time.
    let counter = world.lease(0).await.counter;
    until("four failover times", || async {
        world.lease(0).await.counter >= counter + 12
    })
    .await;
    assert!(other.status().is_empty());
    gate.close();
    seen.until_taken(0, 2).await;
    assert!(other_seen.events().is_empty());
    assert_eq!(seen.count("lost 0"), 0);
    assert!(handle.shutdown(Duration::from_secs(5)).await.is_clean());
}
