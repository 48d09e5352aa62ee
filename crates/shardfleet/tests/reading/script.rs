//! A record processor that does what a test says, and tells what was done to it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shardfleet::{
    Backoff, Checkpointer, ErrorPolicy, InitializationInput, KinesisError, KinesisStreamBuilder,
    ProcessRecordsInput, ProcessorError, Record, RecordProcessor, ShardId, SubscriptionHandle, async_trait,
};

use crate::support::until;

/// What a processor does with one record.
pub(crate) enum Act {
    Take,
    /// Fails and names the record.
    Refuse,
    /// Fails and names none.
    RefuseAll,
    Panic,
    /// Takes it once this is closed.
    WaitFor(Arc<tokio::sync::Semaphore>),
}

type Plan = dyn Fn(&Record, u32) -> Act + Send + Sync;

/// Everything that was done to the processors of a worker.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    events: Arc<Mutex<Vec<String>>>,
    errors: Arc<Mutex<Vec<KinesisError>>>,
}

impl Seen {
    fn note(&self, event: String) {
        self.events
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(event);
    }

    /// What was done, in order: `init 0`, `take 0 text`, `fail 0 text`, `lost 0`, `ended 0`, `stop 0`, where 0 is the shard.
    pub(crate) fn events(&self) -> Vec<String> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The texts that were taken of a shard, in order.
    pub(crate) fn taken(&self, shard: u64) -> Vec<String> {
        let prefix = format!("take {shard} ");
        let events = self.events();
        let taken = events.iter().filter_map(|event| event.strip_prefix(&prefix));
        taken.map(str::to_owned).collect()
    }

    pub(crate) fn count(&self, event: &str) -> usize {
        self.events().iter().filter(|e| *e == event).count()
    }

    pub(crate) fn errors(&self) -> Vec<KinesisError> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) async fn until_taken(&self, shard: u64, count: usize) {
        until(&format!("{count} records of shard {shard}"), || async {
            self.taken(shard).len() >= count
        })
        .await;
    }
}

struct Scripted {
    shard: u64,
    plan: Arc<Plan>,
    seen: Seen,
}

impl Scripted {
    fn note(&self, what: &str) {
        self.seen.note(format!("{what} {}", self.shard));
    }
}

#[async_trait]
impl RecordProcessor for Scripted {
    async fn initialize(&mut self, _: InitializationInput) -> Result<(), ProcessorError> {
        self.note("init");
        Ok(())
    }

    async fn process_records(&mut self, input: ProcessRecordsInput<'_>) -> Result<(), ProcessorError> {
        for record in input.records {
            let text = String::from_utf8_lossy(&record.data).into_owned();
            let note = |what: &str| self.seen.note(format!("{what} {} {text}", self.shard));
            match (self.plan)(record, input.attempt) {
                Act::Take => {}
                Act::Refuse => {
                    note("fail");
                    let reason = format!("no {text} here");
                    return Err(ProcessorError::new(reason).at(record.position.clone()));
                }
                Act::RefuseAll => {
                    note("fail");
                    return Err(ProcessorError::new("something is wrong"));
                }
                Act::Panic => {
                    note("panic");
                    panic!("on {text}");
                }
                Act::WaitFor(gate) => {
                    note("wait");
                    assert!(gate.acquire().await.is_err(), "closed, never filled");
                }
            }
            note("take");
        }
        Ok(())
    }

    async fn lease_lost(&mut self) {
        self.note("lost");
    }

    async fn shard_ended(&mut self, _: &Checkpointer) -> Result<(), ProcessorError> {
        self.note("ended");
        Ok(())
    }

    async fn shutdown_requested(&mut self, _: &Checkpointer) -> Result<(), ProcessorError> {
        self.note("stop");
        Ok(())
    }
}

/// Runs scripted processors.
pub(crate) async fn process(
    builder: KinesisStreamBuilder,
    policy: ErrorPolicy,
    plan: impl Fn(&Record, u32) -> Act + Send + Sync + 'static,
) -> (SubscriptionHandle, Seen) {
    let seen = Seen::default();
    let plan: Arc<Plan> = Arc::new(plan);
    let factory = {
        let seen = seen.clone();
        move |shard_id: &ShardId| Scripted {
            shard: shard_id.number().expect("a number"),
            plan: Arc::clone(&plan),
            seen: seen.clone(),
        }
    };
    let errors = Arc::clone(&seen.errors);
    let on_error = move |error: &KinesisError| {
        errors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(error.clone());
    };
    let stream = builder.build().expect("settings");
    let handle = stream
        .process(factory, policy.with_backoff(quick_backoff()), on_error)
        .await
        .expect("processing");
    (handle, seen)
}

pub(crate) fn quick_backoff() -> Backoff {
    Backoff::new(Duration::from_millis(2), Duration::from_millis(5))
}

pub(crate) fn is(record: &Record, text: &str) -> bool {
    record.data.as_ref() == text.as_bytes()
}
