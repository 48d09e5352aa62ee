//! Where records go: into one channel that a subscription drains, or to a record processor of each shard.

use std::sync::Arc;

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
    Subscription(mpsc::Sender<SubscriptionItem>),
    /// To record processors, which are called.
    Processors(ProcessorSetup),
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
