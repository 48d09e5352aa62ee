//! What a handler gets: user records, in order, each with its place.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use shardfleet_core::ids::ShardId;
use shardfleet_core::sequence::ExtendedSequenceNumber;
use shardfleet_core::time::Timestamp;
use shardfleet_core::watermark::Ticket;

use crate::engine::budget::PageGuard;
use crate::engine::progress::ShardProgress;

/// A user record: one that was put by itself, or one of those inside an aggregated record.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The shard it was read from.
    pub shard_id: ShardId,
    /// Its place: sequence number, and within an aggregated record the sub-sequence number.
    pub position: ExtendedSequenceNumber,
    /// The key it was put with. Absent on streams that distribute records by themselves.
    pub partition_key: Option<Arc<str>>,
    /// The hash key it was put with inside an aggregated record, if it was.
    pub explicit_hash_key: Option<Arc<str>>,
    /// The payload.
    pub data: Bytes,
    /// When the service took it, or the aggregated record around it.
    pub arrived_at: Option<Timestamp>,
    /// Whether it came inside an aggregated record.
    pub is_aggregated: bool,
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("shard_id", &self.shard_id)
            .field("position", &format_args!("{}", self.position))
            .field("partition_key", &self.partition_key)
            .field("bytes", &self.data.len())
            .finish_non_exhaustive()
    }
}

/// A record handed to the application, to be settled with [`ack`](Self::ack).
///
/// Deliveries may be acked in any order, from any task. A delivery that is dropped without an ack stays unsettled: the checkpoint
/// never passes it, reading pauses once too much has piled up behind it, and the record comes again after a restart.
#[must_use = "a delivery that is not acked holds the checkpoint of its shard"]
pub struct Delivery {
    record: Record,
    settle: Settle,
}

/// What settles one record. It keeps the record's bytes accounted for in the worker's memory budget.
pub(crate) struct Settle {
    pub(crate) progress: Arc<ShardProgress>,
    pub(crate) ticket: Ticket,
    pub(crate) _page: Arc<PageGuard>,
}

impl Delivery {
    pub(crate) fn new(record: Record, settle: Settle) -> Self {
        Self { record, settle }
    }

    /// The record.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The record is dealt with. Its shard's checkpoint passes it once every earlier record is settled too. After a seek or when the lease was
    /// lost, an ack changes nothing.
    pub fn ack(self) {
        self.settle.progress.settle(self.settle.ticket);
    }

    /// The record cannot be dealt with: its shard stops, keeps its lease, and says why; nothing behind the record is settled.
    /// To go on instead, keep the record elsewhere and ack it.
    pub fn fail(self, reason: impl Into<String>) {
        let Settle { progress, ticket, .. } = &self.settle;
        progress.fail_at(*ticket, &self.record.position, reason.into());
    }

    /// The record apart from what settles it, for a handler that settles later.
    pub fn into_parts(self) -> (Record, Ack) {
        (self.record, Ack(self.settle))
    }
}

impl Deref for Delivery {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.record
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Delivery").field(&self.record).finish()
    }
}

/// What settles one record, apart from the record.
#[must_use = "a delivery that is not acked holds the checkpoint of its shard"]
pub struct Ack(Settle);

impl Ack {
    /// As [`Delivery::ack`].
    pub fn ack(self) {
        self.0.progress.settle(self.0.ticket);
    }
}

impl fmt::Debug for Ack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ack").field(&self.0.progress.shard_id()).finish()
    }
}

/// Records of one shard, in order, to be settled one by one or together.
#[derive(Debug)]
pub struct DeliveryBatch {
    pub(crate) deliveries: Vec<Delivery>,
    pub(crate) millis_behind_latest: Option<u64>,
}

impl DeliveryBatch {
    /// The records; never empty.
    pub fn deliveries(&self) -> &[Delivery] {
        &self.deliveries
    }

    /// How far behind the newest record of the shard the batch is, in milliseconds.
    pub fn millis_behind_latest(&self) -> Option<u64> {
        self.millis_behind_latest
    }

    /// Settles all of them.
    pub fn ack(self) {
        for delivery in self.deliveries {
            delivery.ack();
        }
    }
}

impl IntoIterator for DeliveryBatch {
    type Item = Delivery;
    type IntoIter = std::vec::IntoIter<Delivery>;

    fn into_iter(self) -> Self::IntoIter {
        self.deliveries.into_iter()
    }
}
