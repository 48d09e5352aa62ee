//! [`KinesisStream`]: which stream is read, on behalf of which application, and how.

use std::sync::Arc;
use std::time::Duration;

use shardfleet_core::ids::{ApplicationName, StreamName, WorkerId};
use shardfleet_core::kpl::HashRangeFilter;
use shardfleet_core::position::KinesisPosition;
use shardfleet_core::read_budget::ReadLimits;
use shardfleet_status::{MemoryStatusStore, StatusStore};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, SystemClock};
use crate::engine::sink::SUBSCRIPTION_CHANNEL_PAGES;
use crate::engine::{
    Context, Engine, FleetBoard, Leadership, LeaseTerms, ProcessorSetup, Publishing, Sink, SubscriptionSink,
};
use crate::error::KinesisError;
use crate::fleet_settings::FleetSettings;
use crate::kinesis::KinesisApi;
use crate::processor::{ErrorPolicy, RecordProcessorFactory};
use crate::settings::{Aggregates, Settings};
use crate::store::{LeaseStore, MemoryLeaseStore};
use crate::subscription::{BatchSubscription, Subscription, SubscriptionHandle};
use crate::worker_metrics::WorkerMetricsSampler;

/// A stream as one application reads it. Cheap to clone; each [`subscribe`](Self::subscribe) is a worker of its own, so give each its own worker id.
#[derive(Clone)]
pub struct KinesisStream {
    settings: Settings,
    kinesis: Arc<dyn KinesisApi>,
    store: Arc<dyn LeaseStore>,
    statuses: Arc<dyn StatusStore>,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
}

/// Stops everything that was opened from a [`KinesisStream`] and its clones, while it opens too. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StopHandle {
    stop: CancellationToken,
}

impl StopHandle {
    /// Stops in order, as dropping the subscription does. What is being opened ends with [`KinesisError::Closed`] once its leases are released.
    pub fn stop(&self) {
        self.stop.cancel();
    }
}

/// Builds a [`KinesisStream`].
#[derive(Clone)]
#[must_use]
pub struct KinesisStreamBuilder {
    settings: Settings,
    kinesis: Arc<dyn KinesisApi>,
    store: Option<Arc<dyn LeaseStore>>,
    statuses: Option<Arc<dyn StatusStore>>,
    clock: Option<Arc<dyn Clock>>,
}

impl KinesisStream {
    /// Starts to describe how `stream` is read through `kinesis`.
    pub fn builder(stream: impl Into<StreamName>, kinesis: impl KinesisApi) -> KinesisStreamBuilder {
        KinesisStreamBuilder {
            settings: Settings::new(stream.into()),
            kinesis: Arc::new(kinesis),
            store: None,
            statuses: None,
            clock: None,
        }
    }

    /// A handle that stops what is opened from here, even before it is open.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle {
            stop: self.stop.clone(),
        }
    }

    /// Opens the stream and returns once every shard that this worker can read has its iterator: a record put after that is delivered.
    pub async fn subscribe(&self) -> Result<Subscription, KinesisError> {
        let (sender, items) = mpsc::channel(SUBSCRIPTION_CHANNEL_PAGES);
        let engine = self
            .open(Sink::Subscription(SubscriptionSink::new(sender)))
            .await?;
        Ok(Subscription::new(items, engine))
    }

    /// As [`subscribe`](Self::subscribe), in batches of up to `size` records (1 to 10,000), which is also how many are asked for in a call.
    pub async fn subscribe_batches(&self, size: u32) -> Result<BatchSubscription, KinesisError> {
        let mut stream = self.clone();
        stream.settings.batch_size = size;
        stream.settings.check().map_err(KinesisError::Settings)?;
        let subscription = stream.subscribe().await?;
        Ok(BatchSubscription::new(subscription, size as usize))
    }

    /// Runs a record processor for each shard that this worker holds, and returns once all of the first are open. What goes wrong is told to
    /// `on_error` and to the log.
    pub async fn process(
        &self,
        factory: impl RecordProcessorFactory,
        policy: ErrorPolicy,
        on_error: impl Fn(&KinesisError) + Send + Sync + 'static,
    ) -> Result<SubscriptionHandle, KinesisError> {
        let setup = ProcessorSetup {
            factory: Arc::new(factory),
            policy,
            on_error: Some(Arc::new(on_error)),
        };
        Ok(SubscriptionHandle::new(self.open(Sink::Processors(setup)).await?))
    }

    async fn open(&self, sink: Sink) -> Result<Engine, KinesisError> {
        let settings = &self.settings;
        let terms = LeaseTerms {
            store: Arc::clone(&self.store),
            clock: Arc::clone(&self.clock),
            worker_id: settings.worker_id.clone(),
            failover_time: settings.failover_time,
            writes: Arc::new(Semaphore::new(settings.fleet.lease_writes_max)),
        };
        let departing = self.stop.child_token();
        let context = Context {
            leadership: Leadership::new(
                settings.worker_id.clone(),
                settings.fleet.leader_policy(settings.failover_time),
            ),
            metrics: WorkerMetricsSampler::start(
                &settings.fleet.worker_metrics,
                Arc::clone(&self.clock),
                departing.clone(),
            )
            .map_err(KinesisError::Settings)?,
            terms,
            fleet: FleetBoard::new(),
            publishing: Publishing::new(Arc::clone(&self.statuses)),
            budget: crate::engine::budget::MemoryBudget::new(self.settings.memory_budget),
            settings: self.settings.clone(),
            kinesis: Arc::clone(&self.kinesis),
            store: Arc::clone(&self.store),
            clock: Arc::clone(&self.clock),
            sink,
            departing,
            stop: CancellationToken::new(),
            stop_deadline: std::sync::OnceLock::new(),
            ended_children: std::sync::Mutex::default(),
            shards: std::sync::Mutex::default(),
            stream_created_at: std::sync::Mutex::default(),
        };
        Engine::open(context).await
    }
}

impl std::fmt::Debug for KinesisStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KinesisStream")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for KinesisStreamBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KinesisStreamBuilder")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl KinesisStreamBuilder {
    /// The application that reads (`KCL: applicationName`): workers of one application share the shards. Default: the stream's name.
    pub fn application(mut self, name: impl Into<ApplicationName>) -> Self {
        self.settings.application = name.into();
        self
    }

    /// This worker's id within the application (`KCL: workerIdentifier`). A worker that is started again under its old id takes its leases back
    /// at once; two that run under one id take them from each other. Default: an id that no other process has.
    pub fn worker_id(mut self, id: impl Into<WorkerId>) -> Self {
        self.settings.worker_id = id.into();
        self
    }

    /// Where leases and checkpoints are kept. Default: in memory, which forgets everything with the process.
    pub fn lease_store(mut self, store: impl LeaseStore) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// As [`lease_store`](Self::lease_store), for a store that is shared with others.
    pub fn shared_lease_store(mut self, store: Arc<dyn LeaseStore>) -> Self {
        self.store = Some(store);
        self
    }

    /// Where the worker says what the application and each of its shards does, as a connector and its tasks in Kafka Connect's words. The store stays the caller's,
    /// who closes it after the last worker has ended; several may share it. Reading never waits for it. Default: in memory.
    pub fn status_store(mut self, store: Arc<dyn StatusStore>) -> Self {
        self.statuses = Some(store);
        self
    }

    /// Where the shards that are opened at startup start, **ahead of their checkpoints**; also where shards without a checkpoint start. A worker that keeps it
    /// reads from there again at each of its starts. Default: checkpoints, then [`initial_position`](Self::initial_position).
    pub fn start_at(mut self, position: KinesisPosition) -> Self {
        self.settings.start_at = Some(position);
        self
    }

    /// Where shards start that have no checkpoint; one that has goes on from it, so this may stay in the configuration of a fleet for ever. A time or an end of
    /// the stream, not a sequence number. Default LATEST (`KCL: initialPositionInStreamExtended`).
    pub fn initial_position(mut self, position: KinesisPosition) -> Self {
        self.settings.initial_position = Some(position);
        self
    }

    /// How many records a call asks for, 1 to 10,000. Default 1,000 (`KCL: maxRecords`).
    pub fn batch_size(mut self, records: u32) -> Self {
        self.settings.batch_size = records;
        self
    }

    /// The wait after an answer without records, and after a throttled read, 1 ms to 1 h. Default 1 s (`KCL: idleTimeBetweenReadsInMillis`).
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.settings.poll_interval = interval;
        self
    }

    /// How much may be read from a shard. Default: what the service allows.
    pub fn read_limits(mut self, limits: ReadLimits) -> Self {
        self.settings.read_limits = limits;
        self
    }

    /// How long a lease may go without renewal before others take it, 0.3 s to 1 h; the same for all workers of the application. Leases are renewed and checkpoints written three
    /// times within it. Default 10 s (`KCL: failoverTimeMillis`).
    pub fn failover_time(mut self, time: Duration) -> Self {
        self.settings.failover_time = time;
        self
    }

    /// How the workers of the application share its shards: leader, balance, handoffs, limits. Default: [`FleetSettings::default`].
    pub fn fleet(mut self, fleet: FleetSettings) -> Self {
        self.settings.fleet = fleet;
        self
    }

    /// How often shards are listed, 50 ms to 24 h. Default 60 s (`KCL: shardSyncIntervalMillis`).
    pub fn shard_sync_interval(mut self, interval: Duration) -> Self {
        self.settings.shard_sync_interval = interval;
        self
    }

    /// How long opening may take, 10 ms to 1 h. Default 60 s.
    pub fn open_deadline(mut self, deadline: Duration) -> Self {
        self.settings.open_deadline = deadline;
        self
    }

    /// How many records of a shard may be handed out and not settled, or settled behind one that is not, before reading pauses. Default 10,000.
    /// One page may come on top.
    pub fn unsettled_records_max(mut self, records: u64) -> Self {
        self.settings.unsettled_records_max = records;
        self
    }

    /// The same in bytes. Default 16 MiB.
    pub fn unsettled_bytes_max(mut self, bytes: u64) -> Self {
        self.settings.unsettled_bytes_max = bytes;
        self
    }

    /// How many bytes of records all shards of this worker together may hold, being read, buffered and in the application's hands. At least 1 MiB; default 32 MiB.
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.settings.memory_budget = bytes;
        self
    }

    /// What happens to records that the Kinesis Producer Library aggregated. Default: unpacked.
    pub fn aggregated(mut self, aggregates: Aggregates) -> Self {
        self.settings.aggregates = aggregates;
        self
    }

    /// What happens to user records inside an aggregate whose hash key lies outside the shard. Default: each is left out by itself.
    pub fn hash_range_filter(mut self, filter: HashRangeFilter) -> Self {
        self.settings.hash_range_filter = filter;
        self
    }

    /// The most leases that this worker holds (`KCL: maxLeasesForWorker`). A shorthand for the same setting in [`fleet`](Self::fleet).
    pub fn max_leases_for_worker(mut self, leases: usize) -> Self {
        self.settings.fleet.assignment.max_leases_for_worker = leases;
        self
    }

    /// The clock. Default: the machine's.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`KinesisError::Settings`] with every setting that makes no sense.
    pub fn build(mut self) -> Result<KinesisStream, KinesisError> {
        let clock = self.clock.unwrap_or_else(SystemClock::shared);
        if self.settings.worker_id.as_str().is_empty() {
            self.settings.worker_id = fresh_worker_id(&*clock);
        }
        self.settings.check().map_err(KinesisError::Settings)?;
        let store = self.store.unwrap_or_else(|| Arc::new(MemoryLeaseStore::new()));
        let statuses = self
            .statuses
            .unwrap_or_else(|| Arc::new(MemoryStatusStore::new()));
        Ok(KinesisStream {
            settings: self.settings,
            kinesis: self.kinesis,
            store,
            statuses,
            clock,
            stop: CancellationToken::new(),
        })
    }
}

/// An id that no other process has: the process id, the time, and chance.
fn fresh_worker_id(clock: &dyn Clock) -> WorkerId {
    let millis = clock.wall().millis();
    // Two draws mixed make two workers of one machine and millisecond differ.
    let chance = clock.chance().to_bits() ^ clock.chance().to_bits().rotate_left(17);
    WorkerId::new(format!("worker-{}-{millis:x}-{chance:016x}", std::process::id()))
}
