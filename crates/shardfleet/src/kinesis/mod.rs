//! What shardfleet asks of Kinesis, in its own types: the [`KinesisApi`] trait and its implementation over the AWS SDK.
//!
//! The trait names no SDK type, so that a leaner client, a fake or a fault layer can stand in.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use shardfleet_core::ids::{ShardId, StreamName};
use shardfleet_core::position::IteratorPosition;
use shardfleet_core::sequence::SequenceNumber;
use shardfleet_core::shard::{ChildShard, Shard};
use shardfleet_core::time::Timestamp;

mod aws;

pub use aws::AwsKinesis;

/// A record as the service stores it; it may be an aggregate of user records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KinesisRecord {
    /// Its place on the shard.
    pub sequence_number: SequenceNumber,
    /// The key it was put with. Absent on streams that distribute records by themselves.
    pub partition_key: Option<Arc<str>>,
    /// The payload.
    pub data: Bytes,
    /// When the service took it.
    pub arrived_at: Option<Timestamp>,
}

/// An answer of `AWS: GetRecords`.
#[derive(Clone, Debug, Default)]
pub struct RecordsPage {
    /// The records, in order.
    pub records: Vec<KinesisRecord>,
    /// The iterator of the next read; none at the end of a closed shard.
    pub next_iterator: Option<String>,
    /// How far behind the newest record the answer's end is, in milliseconds.
    pub millis_behind_latest: Option<u64>,
    /// Who follows a closed shard, in its last answer.
    pub children: Vec<ChildShard>,
}

/// What is known of a stream (`AWS: DescribeStreamSummary`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSummary {
    /// Its name.
    pub name: StreamName,
    /// Its ARN.
    pub arn: String,
    /// `CREATING`, `ACTIVE`, `UPDATING` or `DELETING`.
    pub status: String,
    /// When it was created: tells a stream from a later one of the same name.
    pub created_at: Option<Timestamp>,
}

/// Which shards to list (`AWS: ListShards`, the shard filter).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardFilter {
    /// Every shard that is still retained.
    All,
    /// Open shards.
    AtLatest,
    /// The shards that were open at the trim horizon.
    AtTrimHorizon,
    /// The shards that were open at this time.
    AtTimestamp(Timestamp),
}

/// A record to put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutRecord {
    /// 1 to 256 characters.
    pub partition_key: String,
    /// Overrides the hash of the partition key: a decimal number from 0 to 2^128 − 1.
    pub explicit_hash_key: Option<String>,
    /// The payload, 1 MiB at most with the partition key unless the stream allows more.
    pub data: Bytes,
}

/// What became of one record of a `put_records` call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// It is stored.
    Put {
        /// On this shard.
        shard_id: ShardId,
        /// At this place.
        sequence_number: SequenceNumber,
    },
    /// It is not: put it again.
    Refused {
        /// The service's error type.
        code: String,
        /// The service's words.
        message: String,
    },
}

/// The calls of Kinesis that a worker makes.
///
/// Every call ends within a bound of the implementation's own. Implementations retry little or not at all: the callers pace and retry.
#[async_trait]
pub trait KinesisApi: Send + Sync + 'static {
    /// What the stream is.
    async fn describe_stream(&self, stream: &StreamName) -> Result<StreamSummary, KinesisApiError>;

    /// The shards, all pages of them.
    async fn list_shards(
        &self,
        stream: &StreamName,
        filter: ShardFilter,
    ) -> Result<Vec<Shard>, KinesisApiError>;

    /// An iterator at a position of a shard.
    async fn get_shard_iterator(
        &self,
        stream: &StreamName,
        shard_id: &ShardId,
        position: &IteratorPosition,
    ) -> Result<String, KinesisApiError>;

    /// Up to `limit` records (1 to 10,000) from where `iterator` is.
    async fn get_records(
        &self,
        stream: &StreamName,
        iterator: &str,
        limit: u32,
    ) -> Result<RecordsPage, KinesisApiError>;

    /// Puts up to 500 records; the outcomes are in the order of the records.
    async fn put_records(
        &self,
        stream: &StreamName,
        records: &[PutRecord],
    ) -> Result<Vec<PutOutcome>, KinesisApiError>;
}

#[async_trait]
impl<K: KinesisApi + ?Sized> KinesisApi for Arc<K> {
    async fn describe_stream(&self, stream: &StreamName) -> Result<StreamSummary, KinesisApiError> {
        (**self).describe_stream(stream).await
    }

    async fn list_shards(
        &self,
        stream: &StreamName,
        filter: ShardFilter,
    ) -> Result<Vec<Shard>, KinesisApiError> {
        (**self).list_shards(stream, filter).await
    }

    async fn get_shard_iterator(
        &self,
        stream: &StreamName,
        shard_id: &ShardId,
        position: &IteratorPosition,
    ) -> Result<String, KinesisApiError> {
        (**self).get_shard_iterator(stream, shard_id, position).await
    }

    async fn get_records(
        &self,
        stream: &StreamName,
        iterator: &str,
        limit: u32,
    ) -> Result<RecordsPage, KinesisApiError> {
        (**self).get_records(stream, iterator, limit).await
    }

    async fn put_records(
        &self,
        stream: &StreamName,
        records: &[PutRecord],
    ) -> Result<Vec<PutOutcome>, KinesisApiError> {
        (**self).put_records(stream, records).await
    }
}

/// What a caller should do about a [`KinesisApiError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KinesisApiErrorKind {
    /// Too much was asked for: wait, then go on.
    Throttled,
    /// The iterator expired or is not known: get another.
    IteratorExpired,
    /// A sequence number is not of this stream: it was deleted and created again.
    ForeignSequenceNumber,
    /// The stream or shard is not there.
    NotFound,
    /// The stream is not ready for this: try again in a moment.
    NotReady,
    /// The credentials are missing, wrong, or not allowed to do this.
    Unauthorized,
    /// The service does not accept what was asked.
    Invalid,
    /// The service cannot be reached, took too long, or failed.
    Unavailable,
    /// The answer makes no sense.
    Data,
}

/// A failed call: which, of what, and why.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{operation} of {subject} failed: {reason}")]
#[non_exhaustive]
pub struct KinesisApiError {
    /// What to do about it.
    pub kind: KinesisApiErrorKind,
    /// The operation, as AWS names it.
    pub operation: &'static str,
    /// The stream, or the shard of a stream.
    pub subject: String,
    /// What came back, and where something can be done about it, what.
    pub reason: String,
    /// The cause below.
    #[source]
    pub source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl KinesisApiError {
    /// An error without a cause below it.
    pub fn new(
        kind: KinesisApiErrorKind,
        operation: &'static str,
        subject: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            operation,
            subject: subject.into(),
            reason: reason.into(),
            source: None,
        }
    }

    /// Whether the same call can succeed later without anybody changing anything.
    pub fn is_retryable(&self) -> bool {
        use KinesisApiErrorKind as Kind;
        matches!(
            self.kind,
            Kind::Throttled | Kind::NotReady | Kind::Unavailable | Kind::IteratorExpired
        )
    }
}
