//! A running subscription: records as a stream, to be acked in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use futures::Stream;
use shardfleet_core::ids::{ShardId, WorkerId};
use shardfleet_core::lease::ControlRequest;
use shardfleet_core::position::KinesisPosition;
use shardfleet_core::status::StatusView;
use tokio::sync::mpsc;

use crate::engine::{Engine, FleetStatus, ShardBatch, ShardStatus, ShutdownReport, SubscriptionItem};
use crate::error::KinesisError;
use crate::record::{Delivery, DeliveryBatch, Settle};

/// Records of all shards that this worker holds, in order within each shard, each to be settled with [`Delivery::ack`].
///
/// Errors come on the same stream; unless [`KinesisError::is_fatal`], records follow. Dropping the subscription stops reading and releases the leases in the background;
/// [`shutdown`](Self::shutdown) does so in order and says what is left.
pub struct Subscription {
    items: mpsc::Receiver<SubscriptionItem>,
    current: Option<Unread>,
    engine: Engine,
}

/// A page that is being handed over.
struct Unread {
    batch: ShardBatchHead,
    records: std::vec::IntoIter<(crate::record::Record, shardfleet_core::watermark::Ticket)>,
}

/// A page without its records.
struct ShardBatchHead {
    epoch: u64,
    progress: std::sync::Arc<crate::engine::progress::ShardProgress>,
    lease: std::sync::Arc<crate::engine::HeldLease>,
    page: std::sync::Arc<crate::engine::budget::PageGuard>,
    millis_behind_latest: Option<u64>,
}

impl From<ShardBatch> for Unread {
    fn from(batch: ShardBatch) -> Self {
        let ShardBatch {
            records,
            epoch,
            progress,
            lease,
            page,
            millis_behind_latest,
        } = batch;
        Self {
            batch: ShardBatchHead {
                epoch,
                progress,
                lease,
                page,
                millis_behind_latest,
            },
            records: records.into_iter(),
        }
    }
}

impl Unread {
    /// The next record that may still be handed over. None of a lease that is lost, or of before a seek.
    fn next(&mut self) -> Option<Delivery> {
        let head = &self.batch;
        if !head.lease.is_valid() {
            return None;
        }
        let (record, ticket) = self.records.next()?;
        if !head.progress.take(head.epoch) {
            return None;
        }
        let settle = Settle {
            progress: head.progress.clone(),
            ticket,
            _page: head.page.clone(),
        };
        Some(Delivery::new(record, settle))
    }
}

impl Subscription {
    pub(crate) fn new(items: mpsc::Receiver<SubscriptionItem>, engine: Engine) -> Self {
        Self {
            items,
            current: None,
            engine,
        }
    }

    /// A handle to steer the subscription while it is polled elsewhere.
    pub fn handle(&self) -> SubscriptionHandle {
        SubscriptionHandle {
            engine: self.engine.clone(),
        }
    }

    /// Reads on from somewhere else: every shard that is being read, or the one that `position` names. Acks of records from before move nothing any more.
    /// Returns the shards that were repositioned.
    pub async fn seek(&mut self, position: KinesisPosition) -> Result<Vec<ShardId>, KinesisError> {
        self.engine.seek(&position).await
    }

    /// Stops reading, waits until what was handed over is settled, checkpoints, and releases the leases; at the deadline it goes on without
    /// what is missing. Records that were read and not handed over are left for the next reader.
    pub async fn shutdown(mut self, deadline: Duration) -> ShutdownReport {
        self.items.close();
        self.current = None;
        self.engine.shutdown(deadline).await
    }

    fn poll_item(&mut self, task: &mut TaskContext<'_>) -> Poll<Option<Result<Delivery, KinesisError>>> {
        loop {
            if let Some(unread) = &mut self.current {
                if let Some(delivery) = unread.next() {
                    return Poll::Ready(Some(Ok(delivery)));
                }
                self.current = None;
            }
            match ready!(self.items.poll_recv(task)) {
                Some(SubscriptionItem::Batch(batch)) => self.current = Some(batch.into()),
                Some(SubscriptionItem::Error(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // Handles may outlive the subscription; nobody takes its records any more.
        self.engine.stop();
    }
}

impl Stream for Subscription {
    type Item = Result<Delivery, KinesisError>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        self.poll_item(task)
    }
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription")
            .field("stream", &self.engine.settings().stream)
            .finish_non_exhaustive()
    }
}

/// Steers a [`Subscription`] from elsewhere. Cheap to clone.
#[derive(Clone)]
pub struct SubscriptionHandle {
    engine: Engine,
}

impl SubscriptionHandle {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine }
    }

    /// Who this worker is, in the lease table and in statuses.
    pub fn worker_id(&self) -> WorkerId {
        self.engine.settings().worker_id.clone()
    }

    /// After how long without a renewal a lease is another worker's to take.
    pub fn failover_time(&self) -> Duration {
        self.engine.settings().failover_time
    }

    /// As [`Subscription::seek`].
    pub async fn seek(&self, position: KinesisPosition) -> Result<Vec<ShardId>, KinesisError> {
        self.engine.seek(&position).await
    }

    /// As [`Subscription::shutdown`]; the subscription's stream ends.
    pub async fn shutdown(&self, deadline: Duration) -> ShutdownReport {
        self.engine.shutdown(deadline).await
    }

    /// Waits until reading has ended: after a shutdown, or because of an error that is fatal, which was told before.
    pub async fn ended(&self) -> ShutdownReport {
        self.engine.ended().await
    }

    /// Asks something of shards, whichever worker of the fleet reads them: of all that are not read to their end, or of those named. It is kept in the lease rows, so that
    /// it outlives workers, holds for shards that come of these, and is obeyed by each worker within a third of its failover time. Workers of the Java KCL do not know of it.
    /// Returns the shards it was asked of.
    ///
    /// A shard that is paused keeps its handler, which gets no further call; records that a [`Subscription`] holds already are still handed over. One that is stopped ends its
    /// handler. Asking for what is so already changes nothing.
    ///
    /// # Errors
    /// When the lease store fails for longer than the failover time; some shards may have been asked by then.
    pub async fn control(
        &self,
        request: ControlRequest,
        shards: Option<&BTreeSet<ShardId>>,
    ) -> Result<Vec<ShardId>, KinesisError> {
        self.engine.control(request, shards).await
    }

    /// What each shard that is being read is doing, by id.
    pub fn status(&self) -> BTreeMap<ShardId, ShardStatus> {
        self.engine.status()
    }

    /// The fleet as this worker knows it: who leads, who reads what, and why what does not move does not.
    pub fn fleet(&self) -> FleetStatus {
        self.engine.fleet()
    }

    /// What the status store shows: the application as a connector, its shards as tasks. A store in memory knows what this worker says, and a leader's what it has found
    /// out of the others; one on a topic knows what everybody says.
    pub fn statuses(&self) -> Arc<StatusView> {
        self.engine.status_view()
    }

    /// How many bytes of the worker's memory budget are in use.
    pub fn memory_used(&self) -> u64 {
        self.engine.memory_used()
    }
}

impl std::fmt::Debug for SubscriptionHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SubscriptionHandle")
            .field("stream", &self.engine.settings().stream)
            .finish_non_exhaustive()
    }
}

/// As [`Subscription`], in batches of records of one shard.
#[derive(Debug)]
pub struct BatchSubscription {
    subscription: Subscription,
    size: usize,
}

impl BatchSubscription {
    pub(crate) fn new(subscription: Subscription, size: usize) -> Self {
        Self {
            subscription,
            size: size.max(1),
        }
    }

    /// As [`Subscription::handle`].
    pub fn handle(&self) -> SubscriptionHandle {
        self.subscription.handle()
    }

    /// As [`Subscription::shutdown`].
    pub async fn shutdown(self, deadline: Duration) -> ShutdownReport {
        self.subscription.shutdown(deadline).await
    }
}

impl Stream for BatchSubscription {
    type Item = Result<DeliveryBatch, KinesisError>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        let size = self.size;
        let first = match ready!(self.subscription.poll_item(task)) {
            Some(Ok(delivery)) => delivery,
            Some(Err(error)) => return Poll::Ready(Some(Err(error))),
            None => return Poll::Ready(None),
        };
        // What is left of the page the first record came from; the next page makes the next batch.
        let mut deliveries = vec![first];
        let mut millis_behind_latest = None;
        if let Some(unread) = &mut self.subscription.current {
            millis_behind_latest = unread.batch.millis_behind_latest;
            while deliveries.len() < size {
                let Some(delivery) = unread.next() else { break };
                deliveries.push(delivery);
            }
        }
        Poll::Ready(Some(Ok(DeliveryBatch {
            deliveries,
            millis_behind_latest,
        })))
    }
}
