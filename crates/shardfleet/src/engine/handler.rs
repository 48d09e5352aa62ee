//! Runs the record processor of one shard: one call at a time, failures retried in order, panics caught.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use shardfleet_core::lease::Lease;
use shardfleet_core::sequence::ExtendedSequenceNumber;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::progress::ShardProgress;
use super::sink::PROCESSOR_CHANNEL_PAGES;
use super::{Context, HeldLease, ShardBatch, Sink};
use crate::dead_letter::DeadLetter;
use crate::error::{KinesisError, ProcessorError};
use crate::processor::{
    Checkpointer, ErrorPolicy, InitializationInput, ProcessRecordsInput, RecordProcessor,
};
use crate::record::Record;

/// What the reader sends to the handler.
pub(crate) enum HandlerInput {
    Batch(ShardBatch),
    /// The shard was read to its end; answered once the processor has taken note.
    Ended(oneshot::Sender<()>),
}

/// A running handler.
pub(crate) struct HandlerHandle {
    inputs: mpsc::Sender<HandlerInput>,
    stop: CancellationToken,
    task: JoinHandle<()>,
    /// Answered once the processor has taken note of the shard's end.
    ending: Option<oneshot::Receiver<()>>,
    has_ended: bool,
}

impl HandlerHandle {
    /// Starts the processor of a shard whose lease was just taken.
    pub(crate) fn start(
        context: Arc<Context>,
        row: &Lease,
        lease: Arc<HeldLease>,
        progress: Arc<ShardProgress>,
    ) -> Self {
        let (inputs, receiver) = mpsc::channel(PROCESSOR_CHANNEL_PAGES);
        let stop = CancellationToken::new();
        let initialization = InitializationInput {
            shard_id: row.lease_key.shard_id(),
            checkpoint: row.checkpoint.clone(),
            pending_checkpoint: row.pending_checkpoint.clone(),
        };
        let checkpointer = Checkpointer {
            progress: Arc::clone(&progress),
            lease: Arc::clone(&lease),
        };
        let handler = Handler {
            context,
            lease,
            progress,
            checkpointer,
            stop: stop.clone(),
        };
        let task = tokio::spawn(handler.run_caught(initialization, receiver));
        Self {
            inputs,
            stop,
            task,
            ending: None,
            has_ended: false,
        }
    }

    pub(crate) async fn send(&self, input: HandlerInput) {
        // A handler that is gone has failed the shard, which stops its reader.
        drop(self.inputs.send(input).await);
    }

    /// Tells the processor once that the shard has ended and waits until it has taken note, which it never has if it fails for good. May be dropped
    /// and called again.
    pub(crate) async fn end(&mut self) {
        if self.ending.is_none() {
            let (done, answer) = oneshot::channel();
            self.send(HandlerInput::Ended(done)).await;
            self.ending = Some(answer);
        }
        if let Some(answer) = self.ending.as_mut().filter(|_| !self.has_ended) {
            if answer.await.is_err() {
                std::future::pending::<()>().await;
            }
            self.has_ended = true;
        }
    }

    /// Whether the processor has taken note that the shard has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether the processor was told that the shard has ended: then it takes no records any more.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Lets the call in progress finish, then tells the processor why it is the last; after `patience`, or what is left of a stop's time, the call is broken
    /// off. May be dropped and called again.
    pub(crate) async fn stop(&mut self, context: &Context, patience: Duration) {
        self.stop.cancel();
        let patience = if context.stop.is_cancelled() {
            context.stop_deadline().since(context.clock.now())
        } else {
            patience
        };
        if crate::clock::within(&*context.clock, patience, &mut self.task)
            .await
            .is_none()
        {
            self.task.abort();
        }
    }
}

struct Handler {
    context: Arc<Context>,
    lease: Arc<HeldLease>,
    progress: Arc<ShardProgress>,
    checkpointer: Checkpointer,
    stop: CancellationToken,
}

/// How far a failing batch came.
enum Outcome {
    Done,
    /// The shard is not ours any more, or stops: whatever was not settled comes again elsewhere.
    Dropped,
    Failed,
}

impl Handler {
    /// Runs the processor. Whatever of the application's own code panics, it stops this shard and says so; nothing else.
    async fn run_caught(self, initialization: InitializationInput, inputs: mpsc::Receiver<HandlerInput>) {
        let (progress, at) = (Arc::clone(&self.progress), initialization.checkpoint.clone());
        let ran = AssertUnwindSafe(self.run(initialization, inputs))
            .catch_unwind()
            .await;
        if let Err(panic) = ran {
            let at = progress.held_by().unwrap_or(at);
            progress.fail(progress.epoch(), &at, panic_text(&*panic));
        }
    }

    async fn run(self, initialization: InitializationInput, mut inputs: mpsc::Receiver<HandlerInput>) {
        let Sink::Processors(setup) = &self.context.sink else {
            return;
        };
        let policy = setup.policy.clone();
        let made = std::panic::catch_unwind(AssertUnwindSafe(|| {
            setup.factory.create(&initialization.shard_id)
        }));
        let mut processor = match made {
            Ok(processor) => processor,
            Err(panic) => {
                let at = initialization.checkpoint.clone();
                self.progress
                    .fail(self.progress.epoch(), &at, panic_text(&*panic));
                return;
            }
        };
        if !processor.settles_on_success() {
            self.progress.checkpoint_manually();
        }
        if !self.initialize(&mut *processor, &initialization, &policy).await {
            return;
        }
        loop {
            tokio::select! {
                biased;
                () = self.lease.lost() => break,
                () = self.stop.cancelled() => break,
                input = self.next(&mut inputs) => match input {
                    Some(HandlerInput::Batch(batch)) => match self.process(&mut *processor, batch, &policy).await {
                        Outcome::Done | Outcome::Dropped => {}
                        // The shard stands still; its processor is told when that ends.
                        Outcome::Failed => {
                            tokio::select! {
                                () = self.lease.lost() => {}
                                () = self.stop.cancelled() => {}
                            }
                            break;
                        }
                    },
                    Some(HandlerInput::Ended(done)) => {
                        if self.end(&mut *processor, &policy).await {
                            // The reader is gone if the lease was lost meanwhile.
                            done.send(()).ok();
                        }
                        return;
                    }
                    None => return,
                },
            }
        }
        self.say_goodbye(&mut *processor).await;
    }

    /// The next input, once the shard is not paused.
    async fn next(&self, inputs: &mut mpsc::Receiver<HandlerInput>) -> Option<HandlerInput> {
        self.lease.not_paused().await;
        inputs.recv().await
    }

    async fn initialize(
        &self,
        processor: &mut dyn RecordProcessor,
        input: &InitializationInput,
        policy: &ErrorPolicy,
    ) -> bool {
        let mut attempt = 1;
        loop {
            let Err(error) = caught(processor.initialize(input.clone())).await else {
                self.progress.end_trouble();
                return true;
            };
            if !self.may_retry(attempt, &error, policy).await {
                self.give_up(self.progress.epoch(), &input.checkpoint, &error);
                return false;
            }
            attempt += 1;
        }
    }

    async fn end(&self, processor: &mut dyn RecordProcessor, policy: &ErrorPolicy) -> bool {
        let mut attempt = 1;
        loop {
            let Err(error) = caught(processor.shard_ended(&self.checkpointer)).await else {
                return true;
            };
            if !self.may_retry(attempt, &error, policy).await {
                self.give_up(self.progress.epoch(), &ExtendedSequenceNumber::ShardEnd, &error);
                return false;
            }
            attempt += 1;
        }
    }

    /// Reports a failure and waits for the next attempt; whether there is one.
    async fn may_retry(&self, attempt: u32, error: &ProcessorError, policy: &ErrorPolicy) -> bool {
        let stream = self.context.settings.stream.clone();
        let (shard_id, reason) = (self.progress.shard_id().clone(), error.reason.clone());
        let now = self.context.clock.now();
        self.progress.note_trouble(now, &reason, error.is_panic);
        self.context
            .report(KinesisError::HandlerFailed {
                stream,
                shard_id,
                attempt,
                reason,
            })
            .await;
        if policy.attempts_max.is_some_and(|max| attempt >= max) {
            return false;
        }
        let wait = policy.backoff.delay(attempt - 1, self.context.clock.chance());
        tokio::select! {
            biased;
            () = self.stop.cancelled() => false,
            () = self.lease.lost() => false,
            () = crate::clock::sleep(&*self.context.clock, wait) => true,
        }
    }

    /// Stops the shard, unless it stops anyway.
    fn give_up(&self, epoch: u64, at: &ExtendedSequenceNumber, error: &ProcessorError) {
        if !self.stop.is_cancelled() && !self.lease.is_lost() {
            self.progress.fail(epoch, at, error.reason.clone());
        }
    }

    async fn process(
        &self,
        processor: &mut dyn RecordProcessor,
        batch: ShardBatch,
        policy: &ErrorPolicy,
    ) -> Outcome {
        let records: Vec<Record> = batch.records.into_iter().map(|(record, _)| record).collect();
        let mut rest = &records[..];
        let mut attempt = 1;
        let mut one_by_one = false;
        let mut new = records.len() as u64;
        while let Some(first) = rest.first() {
            let call = if one_by_one { &rest[..1] } else { rest };
            let last = &call.last().unwrap_or(first).position;
            // Of a batch that was begun when the shard was paused, the rest waits.
            tokio::select! {
                biased;
                () = self.stop.cancelled() => {}
                () = self.lease.lost() => {}
                () = self.lease.not_paused() => {}
            }
            // Of a handler that is stopped, the call in progress is the last one.
            let may_go_on = !self.stop.is_cancelled() && self.lease.is_valid();
            if !may_go_on || !self.progress.deliver(batch.epoch, last, new) {
                return Outcome::Dropped;
            }
            new = 0;
            let input = ProcessRecordsInput {
                shard_id: self.progress.shard_id(),
                records: call,
                millis_behind_latest: batch.millis_behind_latest,
                attempt,
                checkpointer: &self.checkpointer,
            };
            self.progress.set_busy(Some(self.context.clock.now()));
            let processed = caught(processor.process_records(input)).await;
            self.progress.set_busy(None);
            match processed {
                Ok(()) => {
                    self.settle(call, batch.epoch);
                    rest = &rest[call.len()..];
                    attempt = 1;
                }
                Err(error) => {
                    // What lies before the record that an error names is settled, which is progress.
                    let before =
                        |at: &ExtendedSequenceNumber| call.iter().take_while(|r| r.position < *at).count();
                    let index =
                        |at: Option<&ExtendedSequenceNumber>| at.map(before).filter(|i| *i < call.len());
                    let named = index(error.at.as_ref());
                    let done = named
                        .or_else(|| index(error.settled_before.as_ref()))
                        .unwrap_or(0);
                    if done > 0 {
                        self.settle(&call[..done], batch.epoch);
                        rest = &rest[done..];
                        attempt = 1;
                    }
                    let left = call.len() - done;
                    if self.may_retry(attempt, &error, policy).await {
                        attempt += 1;
                        continue;
                    }
                    if self.stop.is_cancelled() || self.lease.is_lost() {
                        return Outcome::Dropped;
                    }
                    // Which record it is must be known before one is set aside.
                    if policy.dead_letters.is_some() && error.is_about_records && named.is_none() && left > 1
                    {
                        one_by_one = true;
                    } else if self
                        .give_up_on(batch.epoch, &rest[0], &error, attempt, policy)
                        .await
                    {
                        self.settle(&rest[..1], batch.epoch);
                        rest = &rest[1..];
                    } else {
                        return Outcome::Failed;
                    }
                    attempt = 1;
                }
            }
        }
        Outcome::Done
    }

    fn settle(&self, records: &[Record], epoch: u64) {
        if let Some(last) = records.last() {
            self.progress.settle_through(epoch, &last.position);
            self.progress.end_trouble();
        }
    }

    /// Sets a record aside, or stops the shard where there is no place for that; whether reading may go on behind it.
    async fn give_up_on(
        &self,
        epoch: u64,
        record: &Record,
        error: &ProcessorError,
        attempts: u32,
        policy: &ErrorPolicy,
    ) -> bool {
        let Some(queue) = policy.dead_letters.as_ref().filter(|_| error.is_about_records) else {
            self.give_up(epoch, &record.position, error);
            return false;
        };
        let letter = DeadLetter::new(
            self.context.settings.stream.as_str(),
            record,
            &error.reason,
            attempts,
        );
        match queue.put(letter).await {
            Ok(()) => {
                tracing::warn!(shard_id = %record.shard_id, sequence_number = %record.position, queue = %queue.describe(), "a record was set aside");
                true
            }
            Err(io) => {
                let reason = format!(
                    "{}; setting it aside in {} failed: {io}",
                    error.reason,
                    queue.describe()
                );
                self.progress.fail(epoch, &record.position, reason);
                false
            }
        }
    }

    async fn say_goodbye(&self, processor: &mut dyn RecordProcessor) {
        let said = if self.lease.is_valid() {
            caught(processor.shutdown_requested(&self.checkpointer)).await
        } else {
            let lost = async {
                processor.lease_lost().await;
                Ok(())
            };
            caught(lost).await
        };
        if let Err(error) = said {
            tracing::warn!(shard_id = %self.progress.shard_id(), error = %error, "the processor failed while it was stopped");
        }
    }
}

/// A panic is an error like any other, of this shard alone.
async fn caught(call: impl Future<Output = Result<(), ProcessorError>>) -> Result<(), ProcessorError> {
    match AssertUnwindSafe(call).catch_unwind().await {
        Ok(result) => result,
        Err(panic) => {
            let mut error = ProcessorError::new(panic_text(&*panic));
            error.is_panic = true;
            Err(error)
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the handler panicked: {}", text.unwrap_or("no message"))
}
