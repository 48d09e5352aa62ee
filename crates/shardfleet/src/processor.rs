//! Record processors: code that is called with the records of one shard, in order, the way KCL calls it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use shardfleet_core::ids::ShardId;
use shardfleet_core::lease::{LeaseWrite, PendingCheckpoint};
use shardfleet_core::retry::Backoff;
use shardfleet_core::sequence::ExtendedSequenceNumber;

use crate::dead_letter::DeadLetterQueue;
use crate::engine::progress::ShardProgress;
use crate::engine::{HeldLease, HoldError};
use crate::error::ProcessorError;
use crate::record::Record;
use crate::store::StoreError;

/// What a processor is told before its first records.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InitializationInput {
    /// The shard.
    pub shard_id: ShardId,
    /// Up to where the shard was settled before, or the sentinel it starts from.
    pub checkpoint: ExtendedSequenceNumber,
    /// A checkpoint that was prepared and not made, with the application's bytes.
    pub pending_checkpoint: Option<PendingCheckpoint>,
}

/// A batch of records.
#[derive(Debug)]
#[non_exhaustive]
pub struct ProcessRecordsInput<'a> {
    /// The shard.
    pub shard_id: &'a ShardId,
    /// The records, in order; never empty.
    pub records: &'a [Record],
    /// How far behind the newest record the batch is, in milliseconds.
    pub millis_behind_latest: Option<u64>,
    /// Which attempt at these records this is, from 1.
    pub attempt: u32,
    /// Makes checkpoints. Needed only by processors that do not settle on success.
    pub checkpointer: &'a Checkpointer,
}

/// Processes the records of one shard. Each shard has a processor of its own, whose methods are never called at the same time.
///
/// A processor is initialized once, then called with batches, and in the end told exactly one of [`lease_lost`](Self::lease_lost),
/// [`shard_ended`](Self::shard_ended) and [`shutdown_requested`](Self::shutdown_requested). An error or a panic is retried in order with the same records,
/// and by [`ErrorPolicy`] stops that shard or sets the record aside; it is never skipped.
#[async_trait]
pub trait RecordProcessor: Send {
    /// Whether a batch counts as settled when [`process_records`](Self::process_records) returns `Ok`; the default. A processor that says no makes its
    /// checkpoints by [`Checkpointer`], as KCL's do.
    fn settles_on_success(&self) -> bool {
        true
    }

    /// Called before any records (`KCL: ShardRecordProcessor#initialize`).
    async fn initialize(&mut self, input: InitializationInput) -> Result<(), ProcessorError> {
        let _: InitializationInput = input;
        Ok(())
    }

    /// Called with the next records (`KCL: ShardRecordProcessor#processRecords`).
    async fn process_records(&mut self, input: ProcessRecordsInput<'_>) -> Result<(), ProcessorError>;

    /// Another worker has the shard now; nothing can be checkpointed any more (`KCL: ShardRecordProcessor#leaseLost`).
    async fn lease_lost(&mut self) {}

    /// The closed shard was read to its end and all of it is settled. The end itself is written afterwards, without help
    /// (`KCL: ShardRecordProcessor#shardEnded`).
    async fn shard_ended(&mut self, checkpointer: &Checkpointer) -> Result<(), ProcessorError> {
        let _: &Checkpointer = checkpointer;
        Ok(())
    }

    /// The worker stops, or hands the shard over: the last chance to checkpoint (`KCL: ShardRecordProcessor#shutdownRequested`).
    async fn shutdown_requested(&mut self, checkpointer: &Checkpointer) -> Result<(), ProcessorError> {
        let _: &Checkpointer = checkpointer;
        Ok(())
    }
}

/// Makes a processor for each shard. Any `Fn(&ShardId) -> P` will do.
pub trait RecordProcessorFactory: Send + Sync + 'static {
    /// A new processor.
    fn create(&self, shard_id: &ShardId) -> Box<dyn RecordProcessor>;
}

impl<F, P> RecordProcessorFactory for F
where
    F: Fn(&ShardId) -> P + Send + Sync + 'static,
    P: RecordProcessor + 'static,
{
    fn create(&self, shard_id: &ShardId) -> Box<dyn RecordProcessor> {
        Box::new(self(shard_id))
    }
}

/// What happens when a processor fails.
#[derive(Clone)]
pub struct ErrorPolicy {
    pub(crate) attempts_max: Option<u32>,
    pub(crate) backoff: Backoff,
    pub(crate) dead_letters: Option<Arc<dyn DeadLetterQueue>>,
}

impl std::fmt::Debug for ErrorPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ErrorPolicy")
            .field("attempts_max", &self.attempts_max)
            .field("backoff", &self.backoff)
            .field(
                "dead_letters",
                &self.dead_letters.as_ref().map(|queue| queue.describe()),
            )
            .finish()
    }
}

impl Default for ErrorPolicy {
    /// Ten attempts, 100 ms to 10 s apart, then the shard stops.
    fn default() -> Self {
        Self {
            attempts_max: Some(10),
            backoff: Backoff::new(Duration::from_millis(100), Duration::from_secs(10)),
            dead_letters: None,
        }
    }
}

impl ErrorPolicy {
    /// Stops the shard after so many attempts at the same records, 1 at least. Its lease is kept, and it says why.
    pub fn stop_after(attempts: u32) -> Self {
        Self {
            attempts_max: Some(attempts.max(1)),
            ..Self::default()
        }
    }

    /// Tries for ever.
    pub fn retry_forever() -> Self {
        Self {
            attempts_max: None,
            ..Self::default()
        }
    }

    /// Sets a record aside after so many attempts, and goes on behind it. Where the processor's error does not name the record, the batch is gone through
    /// record by record. If the queue itself fails, the shard stops.
    pub fn dead_letter_after(attempts: u32, queue: impl DeadLetterQueue) -> Self {
        Self {
            attempts_max: Some(attempts.max(1)),
            dead_letters: Some(Arc::new(queue)),
            ..Self::default()
        }
    }

    /// The same policy with other waits between attempts.
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }
}

/// Why a checkpoint was not made.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The lease is another worker's by now.
    #[error("the lease is lost")]
    LeaseLost,
    /// The position lies beyond what was delivered.
    #[error("{at} lies beyond the last delivered record{}", last.as_ref().map(|l| format!(", {l}")).unwrap_or_default())]
    BeyondDelivered {
        /// The position asked for.
        at: ExtendedSequenceNumber,
        /// The last record that was delivered.
        last: Option<ExtendedSequenceNumber>,
    },
    /// The lease store failed; the checkpoint is made with the next renewal unless the worker dies before.
    #[error("the lease store failed")]
    Store(#[source] StoreError),
}

/// Makes checkpoints on one shard.
pub struct Checkpointer {
    pub(crate) progress: Arc<ShardProgress>,
    pub(crate) lease: Arc<HeldLease>,
}

impl std::fmt::Debug for Checkpointer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Checkpointer")
            .field(&self.progress.shard_id())
            .finish()
    }
}

impl Checkpointer {
    /// Everything that was delivered is settled.
    pub async fn checkpoint(&self) -> Result<(), CheckpointError> {
        self.checkpoint_up_to(None).await
    }

    /// Everything up to and including `at` is settled. A position at or before the last checkpoint changes nothing.
    pub async fn checkpoint_at(&self, at: &ExtendedSequenceNumber) -> Result<(), CheckpointError> {
        self.checkpoint_up_to(Some(at)).await
    }

    async fn checkpoint_up_to(&self, at: Option<&ExtendedSequenceNumber>) -> Result<(), CheckpointError> {
        self.confirm(at)?;
        self.lease
            .flush(&self.progress)
            .await
            .map_err(|error| match error {
                HoldError::Lost => CheckpointError::LeaseLost,
                HoldError::Store(error) => CheckpointError::Store(error),
            })
    }

    fn confirm(&self, at: Option<&ExtendedSequenceNumber>) -> Result<(), CheckpointError> {
        let epoch = self.progress.epoch();
        let confirmed = self
            .progress
            .confirm(at)
            .map_err(|last| CheckpointError::BeyondDelivered {
                at: at.cloned().unwrap_or(ExtendedSequenceNumber::Latest),
                last,
            })?;
        if let Some(at) = &confirmed {
            self.progress.settle_through(epoch, at);
        }
        Ok(())
    }

    /// Everything up to and including `at` is settled, and the next renewal writes that down: for progress within a long call, which a crash would otherwise undo.
    /// Costs no request.
    ///
    /// # Errors
    /// [`CheckpointError::BeyondDelivered`].
    pub fn settle_at(&self, at: &ExtendedSequenceNumber) -> Result<(), CheckpointError> {
        self.confirm(Some(at))
    }

    /// The first half of a two-phase checkpoint: `at` and the application's bytes are stored, and given to the next processor of the
    /// shard if this one dies before its [`checkpoint_at`](Self::checkpoint_at) (`KCL: prepareCheckpoint`).
    pub async fn prepare_checkpoint(
        &self,
        at: &ExtendedSequenceNumber,
        state: Option<Vec<u8>>,
    ) -> Result<(), CheckpointError> {
        if let Err(last) = self.progress.check_delivered(at) {
            return Err(CheckpointError::BeyondDelivered { at: at.clone(), last });
        }
        let pending = PendingCheckpoint {
            at: at.clone(),
            state,
        };
        let write = self
            .lease
            .write(|lease| LeaseWrite::prepare_checkpoint(lease, pending.clone()));
        write.await.map_err(|error| match error {
            HoldError::Lost => CheckpointError::LeaseLost,
            HoldError::Store(error) => CheckpointError::Store(error),
        })
    }
}
