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

    /// Leaves an error that finds no room to the log.
    pub(crate) fn offer_error(&self, error: KinesisError) {
        if let Some(items) = self.items() {
            drop(items.try_send(SubscriptionItem::Error(error)));
        }
    }

    /// As [`send`](Self::send), but while the subscription is being opened an error that finds no room is left to the log: nobody polls yet, and
    /// opening must not wait for that.
    pub(crate) async fn send_error(&self, error: KinesisError) {
        if self.is_open.load(Ordering::Relaxed) {
            self.send(SubscriptionItem::Error(error)).await;
        } else {
            self.offer_error(error);
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

impl ProcessorSetup {
    /// Tells the listener for errors. One that panics must not take a shard, or the worker, with it.
    pub(crate) fn tell(&self, error: &KinesisError) {
        if let Some(listener) = &self.on_error {
            let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| listener(error)));
            if told.is_err() {
                tracing::error!("the listener for errors panicked");
            }
        }
    }
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
