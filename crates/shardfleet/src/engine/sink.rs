//! Where records go: into one channel that a subscription drains, or to a record processor of each shard.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use shardfleet_core::watermark::Ticket;
use tokio::sync::mpsc;

use super::HeldLease;
use super::budget::PageGuard;
use super::progress::ShardProgress;
use crate::error::KinesisError;
use crate::processor::{ErrorPolicy, RecordProcessorFactory};
use crate::record::Record;

/// How many pages of all shards together wait for a subscription to take them.
pub(crate) const SUBSCRIPTION_CHANNEL_PAGES: usize = 16;

/// How many pages of one shard wait for its record processor.
pub(crate) const PROCESSOR_CHANNEL_PAGES: usize = 2;

/// Where records go.
pub(crate) enum Sink {
    /// To the application, which polls.
    Subscription(SubscriptionSink),
    /// To record processors, which are called.
    Processors(ProcessorSetup),
}

/// The way into a subscription's channel.
pub(crate) struct SubscriptionSink {
    items: Mutex<Option<mpsc::Sender<SubscriptionItem>>>,
    is_open: AtomicBool,
}

impl SubscriptionSink {
    pub(crate) fn new(items: mpsc::Sender<SubscriptionItem>) -> Self {
        Self {
            items: Mutex::new(Some(items)),
            is_open: AtomicBool::new(false),
        }
    }

    /// From now on somebody polls.
    pub(crate) fn open(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }

    /// Nothing comes any more: the subscription ends after what is buffered.
    pub(crate) fn close(&self) {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn items(&self) -> Option<mpsc::Sender<SubscriptionItem>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for room. A closed channel means that the subscription was dropped, which stops everything that sends as well.
    pub(crate) async fn send(&self, item: SubscriptionItem) {
        if let Some(items) = self.items() {
            drop(items.send(item).await);
        }
    }

    /// As [`send`](Self::send), but while the subscription is being opened an error that finds no room is left to the log: nobody polls yet, and
    /// opening must not wait for that.
    pub(crate) async fn send_error(&self, error: KinesisError) {
        let item = SubscriptionItem::Error(error);
        if self.is_open.load(Ordering::Relaxed) {
            self.send(item).await;
        } else if let Some(items) = self.items() {
            drop(items.try_send(item));
        }
    }
}

/// Is told what goes wrong.
pub(crate) type ErrorListener = Arc<dyn Fn(&KinesisError) + Send + Sync>;

/// What is needed to run record processors.
pub(crate) struct ProcessorSetup {
    pub(crate) factory: Arc<dyn RecordProcessorFactory>,
    pub(crate) policy: ErrorPolicy,
    pub(crate) on_error: Option<ErrorListener>,
}

/// What a subscription's channel carries.
pub(crate) enum SubscriptionItem {
    Batch(ShardBatch),
    Error(KinesisError),
}

/// The user records of one page.
pub(crate) struct ShardBatch {
    pub(crate) records: Vec<(Record, Ticket)>,
    pub(crate) epoch: u64,
    pub(crate) progress: Arc<ShardProgress>,
    pub(crate) lease: Arc<HeldLease>,
    pub(crate) page: Arc<PageGuard>,
    pub(crate) millis_behind_latest: Option<u64>,
}
