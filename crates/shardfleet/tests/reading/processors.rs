//! The calls that a record processor gets, and the checkpoints that it makes by itself.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shardfleet::{
    CheckpointError, ErrorPolicy, ExtendedSequenceNumber, InitializationInput, KinesisPosition,
    ProcessRecordsInput, ProcessorError, RecordProcessor, ShardId, ShardOutcome, async_trait,
};

use crate::script::{Act, process};
use crate::support::{World, place, shard_id, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_processor_is_initialized_first_and_told_goodbye_once() {
    let world = World::new(2).await;
    world.put(0, "r0");
    world.put(1, "s0");
    world.split(0);
    let reader = world.reader("a").await.start_at(KinesisPosition::horizon());
    let (handle, seen) = process(reader, ErrorPolicy::default(), |_, _| Act::Take).await;
    until("the children", || async {
        seen.count("ended 0") == 1 && handle.status().len() == 3
    })
    .await;
    world.put(2, "t0");
    seen.until_taken(2, 1).await;
    let report = handle.shutdown(Duration::from_secs(5)).await;
    assert!(report.is_clean(), "{report:?}");
    let of = |shard: &str| -> Vec<String> {
        let events = seen.events().into_iter();
        events
            .filter(|event| event.split(' ').nth(1) == Some(shard))
            .collect()
    };
    assert_eq!(of("0"), ["init 0", "take 0 r0", "ended 0"]);
    assert_eq!(of("1"), ["init 1", "take 1 s0", "stop 1"]);
    assert_eq!(of("2"), ["init 2", "take 2 t0", "stop 2"]);
    assert_eq!(of("3"), ["init 3", "stop 3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_processor_whose_lease_is_taken_is_told_so() {
    let world = World::new(1).await;
    world.put(0, "r0");
    let reader = world.reader("a").await.start_at(KinesisPosition::horizon());
    let (handle, seen) = process(reader, ErrorPolicy::default(), |_, _| Act::Take).await;
    seen.until_taken(0, 1).await;
    // A worker under the same id takes the lease at once.
    let thief = world.resumed("a").await;
    until("the goodbye", || async { seen.count("lost 0") == 1 }).await;
    assert_eq!(seen.count("stop 0"), 0);
    handle.shutdown(Duration::from_secs(5)).await;
    assert_eq!((seen.count("lost 0"), seen.count("ended 0")), (1, 0));
    drop(thief);
}

/// What a processor that makes its own checkpoints found.
#[derive(Default)]
struct Found {
    initialized: Vec<InitializationInput>,
    positions: Vec<ExtendedSequenceNumber>,
    beyond: Option<ExtendedSequenceNumber>,
}

/// Prepares a checkpoint at its third record, checkpoints its second, and tries to go beyond what it got.
struct Manual {
    found: Arc<Mutex<Found>>,
    checkpoints: bool,
}

impl Manual {
    fn found(&self) -> std::sync::MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl RecordProcessor for Manual {
    fn settles_on_success(&self) -> bool {
        false
    }

    async fn initialize(&mut self, input: InitializationInput) -> Result<(), ProcessorError> {
        self.found().initialized.push(input);
        Ok(())
    }

    async fn process_records(&mut self, input: ProcessRecordsInput<'_>) -> Result<(), ProcessorError> {
        for record in input.records {
            let count = {
                let mut found = self.found();
                found.positions.push(record.position.clone());
                found.positions.len()
            };
            if !self.checkpoints {
                continue;
            }
            let failed = |error: CheckpointError| ProcessorError::from_error(error);
            match count {
                2 => {
                    input
                        .checkpointer
                        .checkpoint_at(&record.position)
                        .await
                        .map_err(failed)?;
                }
                3 => {
                    let state = Some(b"state".to_vec());
                    input
                        .checkpointer
                        .prepare_checkpoint(&record.position, state)
                        .await
                        .map_err(failed)?;
                    let beyond = "99999999999999999999999999999999999999999999999999999999";
                    let beyond =
                        ExtendedSequenceNumber::parse(beyond, 0).map_err(ProcessorError::from_error)?;
                    let prepared = input.checkpointer.prepare_checkpoint(&beyond, None).await;
                    if let Err(CheckpointError::BeyondDelivered { last, .. }) =
                        input.checkpointer.checkpoint_at(&beyond).await
                        && matches!(prepared, Err(CheckpointError::BeyondDelivered { .. }))
                    {
                        self.found().beyond = last;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

async fn manual(
    world: &World,
    worker: &str,
    checkpoints: bool,
) -> (shardfleet::SubscriptionHandle, Arc<Mutex<Found>>) {
    let found = Arc::new(Mutex::new(Found::default()));
    let factory = {
        let found = Arc::clone(&found);
        move |_: &ShardId| Manual {
            found: Arc::clone(&found),
            checkpoints,
        }
    };
    let reader = world.reader(worker).await.batch_size(1);
    let reader = if checkpoints {
        reader.start_at(KinesisPosition::horizon())
    } else {
        reader
    };
    let stream = reader.build().expect("settings");
    let handle = stream
        .process(factory, ErrorPolicy::default(), |error| panic!("{error:?}"))
        .await;
    (handle.expect("processing"), found)
}

async fn until_got(found: &Mutex<Found>, count: usize) {
    until("the records", || async {
        found
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .positions
            .len()
            >= count
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_processor_makes_its_own_checkpoints() {
    let world = World::new(1).await;
    let receipts = world.put_many(0, "r", 5);
    let (handle, found) = manual(&world, "a", true).await;
    until_got(&found, 5).await;
    let report = handle.shutdown(Duration::from_secs(5)).await;
    assert_eq!(report.shards[0].outcome, ShardOutcome::Released);
    let lease = world.lease(0).await;
    assert_eq!(lease.checkpoint, place(&receipts[1]));
    {
        let found = found.lock().unwrap_or_else(PoisonError::into_inner);
        // No further than what was delivered by then.
        assert_eq!(found.beyond, Some(place(&receipts[2])));
    }
    // The next processor of the shard sees what was prepared, and the records behind the checkpoint.
    let (handle, found) = manual(&world, "b", false).await;
    until_got(&found, 3).await;
    {
        let found = found.lock().unwrap_or_else(PoisonError::into_inner);
        let input = &found.initialized[0];
        assert_eq!(input.shard_id, shard_id(0));
        assert_eq!(input.checkpoint, place(&receipts[1]));
        let pending = input.pending_checkpoint.as_ref().expect("prepared");
        assert_eq!(pending.at, place(&receipts[2]));
        assert_eq!(pending.state.as_deref(), Some(&b"state"[..]));
        let rest: Vec<_> = receipts[2..].iter().map(place).collect();
        assert_eq!(found.positions, rest);
    }
    handle.shutdown(Duration::from_secs(5)).await;
}

/// Settles two records of its call and does not come back from it.
struct Slow;

#[async_trait]
impl RecordProcessor for Slow {
    async fn process_records(&mut self, input: ProcessRecordsInput<'_>) -> Result<(), ProcessorError> {
        if let [_, second, ..] = input.records {
            input
                .checkpointer
                .settle_at(&second.position)
                .map_err(ProcessorError::from_error)?;
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_settled_within_a_call_is_checkpointed_while_it_lasts() {
    let world = World::new(1).await;
    let receipts = world.put_many(0, "r", 5);
    let reader = world.reader("a").await.start_at(KinesisPosition::horizon());
    let stream = reader.build().expect("settings");
    let handle = stream
        .process(|_: &ShardId| Slow, ErrorPolicy::default(), |_| {})
        .await
        .expect("processing");
    until("the checkpoint", || async {
        world.lease(0).await.checkpoint == place(&receipts[1])
    })
    .await;
    drop(handle);
}
