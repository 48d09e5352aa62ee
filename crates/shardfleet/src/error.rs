//! What can go wrong while a stream is read, and what a caller should do about it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use shardfleet_core::ids::{ShardId, StreamName};
use shardfleet_core::sequence::{ExtendedSequenceNumber, SequenceNumber};
use shardfleet_core::watchdog::Standstill;

use crate::kinesis::{KinesisApiError, KinesisApiErrorKind};
use crate::store::{StoreError, StoreErrorKind};

/// What a caller should do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Too many calls; reading goes on by itself.
    Throttled,
    /// Something cannot be reached; reading goes on by itself.
    Unavailable,
    /// Another worker holds the shard now.
    LeaseLost,
    /// The stream or table is not there.
    NotFound,
    /// What was asked makes no sense: change the settings.
    Invalid,
    /// The credentials do not allow it: change them.
    Unauthorized,
    /// Records are gone, or an answer or row cannot be understood.
    Data,
    /// The application's own code failed.
    Handler,
    /// The subscription is closed.
    Closed,
}

/// A failure while reading a stream. Unless [`is_fatal`](Self::is_fatal), reading goes on.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KinesisError {
    /// A read failed. The reader waits and goes on with the same iterator.
    #[error("reading shard {shard_id} of {stream} failed ({attempt} in a row)")]
    Read {
        /// The stream.
        stream: StreamName,
        /// The shard.
        shard_id: ShardId,
        /// How many reads failed since the last that succeeded.
        attempt: u32,
        /// The cause.
        #[source]
        source: KinesisApiError,
    },
    /// A reader stopped after too many failures and gave its lease back. The shard is taken again when shards are next listed, and reading
    /// goes on where it was.
    #[error(
        "the reader of shard {shard_id} of {stream} stopped after {failures} failures in a row, the last of them: {cause}"
    )]
    ReaderStopped {
        /// The stream.
        stream: StreamName,
        /// The shard.
        shard_id: ShardId,
        /// How many failures.
        failures: u32,
        /// The last of them.
        cause: String,
    },
    /// Records that a checkpoint promised are no longer in the stream: they aged out, or the stream's retention is too short. Reading goes on at the
    /// first record that is left.
    #[error("records of shard {shard_id} of {stream} may be lost: {}", lost_range(after, before.as_ref()))]
    DataLoss {
        /// The stream.
        stream: StreamName,
        /// The shard.
        shard_id: ShardId,
        /// The last record known to have been settled, or the one that reading was to start at; it is gone itself.
        after: SequenceNumber,
        /// The first record that is left; `None` when the whole shard is gone.
        before: Option<SequenceNumber>,
    },
    /// A record is an aggregate of the Kinesis Producer Library, and the subscription refuses those. It is not handed to any handler.
    #[error(
        "record {sequence_number} of shard {shard_id} of {stream} is aggregated, which this subscription refuses"
    )]
    AggregatedRecord {
        /// The stream.
        stream: StreamName,
        /// The shard.
        shard_id: ShardId,
        /// The record.
        sequence_number: SequenceNumber,
    },
    /// Part of an aggregated record cannot be read and was not delivered.
    #[error("record {sequence_number} of shard {shard_id} of {stream}: {problem}")]
    DamagedAggregate {
        /// The stream.
        stream: StreamName,
        /// The shard.
        shard_id: ShardId,
        /// The aggregated record.
        sequence_number: SequenceNumber,
        /// Which user record, what is wrong, how many were lost.
        problem: String,
    },
    /// Another worker holds the lease of a shard that was being read here. Acks of its records move nothing any more.
    #[error("the lease of shard {shard_id} of {stream} is lost: {reason}")]
    LeaseLost {
        /// The stream.
        stream: StreamName,
        /// The shard.
        shard_id: ShardId,
        /// How that became known.
        reason: String,
    },
    /// A record was refused for good, so its shard is not read on until the worker is started again. The lease is kept.
    #[error("shard {shard_id} of {stream} stands still at record {at}: {reason}")]
    ShardFailed {
        /// The stream.
        stream: StreamName,
        /// The shard.
        shard_id: ShardId,
        /// The first record that was not settled.
        at: ExtendedSequenceNumber,
        /// The handler's words, with the panic's place where it was one.
        reason: String,
    },
    /// A handler failed and will be called again with the same records.
    #[error("the handler of shard {shard_id} of {stream} failed (attempt {attempt}): {reason}")]
    HandlerFailed {
        /// The stream.
        stream: StreamName,
        /// The shard.
        shard_id: ShardId,
        /// Which attempt this was, from 1.
        attempt: u32,
        /// The handler's words, or a panic's.
        reason: String,
    },
    /// A shard has stood still for longer than `stall_warning_after`. Told once for each reason; nothing is given up.
    #[error("shard {shard_id} of {stream} has stood still for {} s: {reason}", for_time.as_secs())]
    Stalled {
        /// The stream.
        stream: StreamName,
        /// The shard.
        shard_id: ShardId,
        /// Why.
        reason: Standstill,
        /// For how long.
        for_time: Duration,
    },
    /// The stream is not the one that the leases were written for.
    #[error("{stream} is another stream than the one this application has been reading: {reason}")]
    AnotherStream {
        /// The stream.
        stream: StreamName,
        /// Which lease, how that is known, what to do.
        reason: String,
    },
    /// A row of the lease table cannot be read; the fleet goes on without it.
    #[error("lease row {lease_key} cannot be read: {reason}")]
    UnreadableLease {
        /// The row's key.
        lease_key: String,
        /// The attribute, its value, what was expected.
        reason: String,
    },
    /// A call other than a read failed, such as listing the shards.
    #[error(transparent)]
    Kinesis(KinesisApiError),
    /// The lease store failed.
    #[error("the lease store failed")]
    Store(#[source] StoreError),
    /// Settings that make no sense; every problem is named.
    #[error("{0}")]
    Settings(SettingsError),
    /// Opening took longer than allowed.
    #[error("opening {stream} was not done within {seconds} s: {waiting_for}")]
    OpenDeadline {
        /// The stream.
        stream: StreamName,
        /// The limit.
        seconds: u64,
        /// What was still missing, and the last failure.
        waiting_for: String,
    },
    /// The subscription is closed.
    #[error("the subscription is closed")]
    Closed,
}

fn lost_range(after: &SequenceNumber, before: Option<&SequenceNumber>) -> String {
    match before {
        Some(before) => {
            format!("from after {after} to before {before}; raise the stream's retention, or read faster")
        }
        None => format!("everything after {after}; the shard is no longer in the stream"),
    }
}

impl KinesisError {
    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Read { source, .. } | Self::Kinesis(source) => kind_of_call(source.kind),
            Self::ReaderStopped { .. } | Self::OpenDeadline { .. } | Self::Stalled { .. } => {
                ErrorKind::Unavailable
            }
            Self::DataLoss { .. } | Self::AggregatedRecord { .. } | Self::DamagedAggregate { .. } => {
                ErrorKind::Data
            }
            Self::LeaseLost { .. } => ErrorKind::LeaseLost,
            Self::ShardFailed { .. } | Self::HandlerFailed { .. } => ErrorKind::Handler,
            Self::AnotherStream { .. } | Self::Settings(_) => ErrorKind::Invalid,
            Self::UnreadableLease { .. } => ErrorKind::Data,
            Self::Store(error) => match error.kind() {
                StoreErrorKind::Throttled => ErrorKind::Throttled,
                StoreErrorKind::Unavailable => ErrorKind::Unavailable,
                StoreErrorKind::Unauthorized => ErrorKind::Unauthorized,
                StoreErrorKind::NotFound => ErrorKind::NotFound,
                StoreErrorKind::Data => ErrorKind::Data,
                _ => ErrorKind::Invalid,
            },
            Self::Closed => ErrorKind::Closed,
        }
    }

    /// Whether the subscription has ended with this error; every other error is followed by more records.
    pub fn is_fatal(&self) -> bool {
        matches!(
            self,
            Self::AnotherStream { .. } | Self::Settings(_) | Self::OpenDeadline { .. } | Self::Closed
        )
    }

    /// The shard it is about, if it is about one.
    pub fn shard_id(&self) -> Option<&ShardId> {
        match self {
            Self::Read { shard_id, .. }
            | Self::ReaderStopped { shard_id, .. }
            | Self::DataLoss { shard_id, .. }
            | Self::AggregatedRecord { shard_id, .. }
            | Self::DamagedAggregate { shard_id, .. }
            | Self::LeaseLost { shard_id, .. }
            | Self::Stalled { shard_id, .. }
            | Self::ShardFailed { shard_id, .. }
            | Self::HandlerFailed { shard_id, .. } => Some(shard_id),
            _ => None,
        }
    }

    /// The error with everything below it in one line.
    pub fn full_text(&self) -> String {
        crate::aws::chain(self)
    }
}

fn kind_of_call(kind: KinesisApiErrorKind) -> ErrorKind {
    match kind {
        KinesisApiErrorKind::Throttled => ErrorKind::Throttled,
        KinesisApiErrorKind::NotFound => ErrorKind::NotFound,
        KinesisApiErrorKind::Unauthorized => ErrorKind::Unauthorized,
        KinesisApiErrorKind::Invalid | KinesisApiErrorKind::ForeignSequenceNumber => ErrorKind::Invalid,
        KinesisApiErrorKind::Data => ErrorKind::Data,
        _ => ErrorKind::Unavailable,
    }
}

/// Settings that make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SettingsError {
    /// Every problem found, not only the first.
    pub problems: Vec<SettingsProblem>,
}

/// One setting that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsProblem {
    /// The setting.
    pub setting: String,
    /// Its value, what is allowed, what to do.
    pub reason: String,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            write!(f, "{separator}{}: {}", problem.setting, problem.reason)?;
        }
        Ok(())
    }
}

/// Why a handler could not process what it was given.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct ProcessorError {
    pub(crate) reason: String,
    pub(crate) at: Option<ExtendedSequenceNumber>,
    pub(crate) settled_before: Option<ExtendedSequenceNumber>,
    pub(crate) is_about_records: bool,
    pub(crate) is_panic: bool,
    #[source]
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl ProcessorError {
    /// A failure in the handler's own words.
    pub fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            at: None,
            settled_before: None,
            is_about_records: true,
            is_panic: false,
            source: None,
        }
    }

    /// A failure that another error caused.
    pub fn from_error(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self {
            reason: crate::aws::chain(&error),
            at: None,
            settled_before: None,
            is_about_records: true,
            is_panic: false,
            source: Some(Arc::new(error)),
        }
    }

    /// The same failure, which is not about any record: something that the handler needs is missing or closed. It is retried like any other, but no record is ever
    /// set aside for it; in the end the shard stops.
    #[must_use]
    pub fn unrelated_to_records(mut self) -> Self {
        self.is_about_records = false;
        self
    }

    /// The same failure, which may be about any record from this one on: those before it are settled and do not come again.
    #[must_use]
    pub fn settled_before(mut self, position: ExtendedSequenceNumber) -> Self {
        self.settled_before = Some(position);
        self
    }

    /// The same failure, naming the record it is about: everything before that is settled, and the next attempt starts with it.
    #[must_use]
    pub fn at(mut self, position: ExtendedSequenceNumber) -> Self {
        self.at = Some(position);
        self
    }
}
