//! What the tests share: an embedded Kinesis, readers that are quick, and waits that have a deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use futures::future::BoxFuture;
use shardfleet::clock::{Clock, SystemClock};
use shardfleet::core::leader::{LockRow, LockWrite};
use shardfleet::core::lease::{Expectation, Lease, LeaseWrite, WriteOutcome};
use shardfleet::core::time::Moment;
use shardfleet::core::worker_metrics::WorkerMetricStats;
use shardfleet::status::{MemoryStatusStore, StatusStore};
use shardfleet::store::{LeaseScan, LeaseStore, MemoryLeaseStore, StoreError, StoreErrorKind};
use shardfleet::{
    AwsKinesis, AwsSettings, Delivery, ExtendedSequenceNumber, KinesisError, KinesisStream,
    KinesisStreamBuilder, LeaseKey, ReadLimits, SequenceNumber, ShardId, Subscription, Timestamp, WorkerId,
};
use shardfleet_local::{ACCESS_KEY_ID, KinesisControls, LocalKinesis, PutReceipt, REGION, SECRET_ACCESS_KEY};

/// The stream that every test reads.
pub(crate) const STREAM: &str = "orders";
/// The application that reads it.
pub(crate) const APPLICATION: &str = "reading-tests";

/// A status store that ends with the test.
pub(crate) fn memory() -> Arc<dyn StatusStore> {
    Arc::new(MemoryStatusStore::new())
}

/// No wait of a test is longer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// What a lease may go without renewal. Long enough for a machine that does other things as well.
pub(crate) const FAILOVER: Duration = Duration::from_secs(3);

/// An embedded Kinesis with one stream, and a lease store.
pub(crate) struct World {
    pub(crate) controls: KinesisControls,
    pub(crate) store: MemoryLeaseStore,
    pub(crate) kinesis: LocalKinesis,
}

impl World {
    pub(crate) async fn new(shards: u32) -> Self {
        let kinesis = LocalKinesis::builder().start().await.expect("embedded Kinesis");
        let controls = kinesis.controls();
        controls.create_stream(STREAM, shards).expect("stream");
        Self {
            controls,
            store: MemoryLeaseStore::new(),
            kinesis,
        }
    }

    pub(crate) async fn api(&self) -> AwsKinesis {
        AwsKinesis::new(&settings_of(&self.kinesis.endpoint()).await)
    }

    /// A reader of the stream, quick in everything.
    pub(crate) async fn reader(&self, worker: &str) -> KinesisStreamBuilder {
        quick(KinesisStream::builder(STREAM, self.api().await))
            .worker_id(worker)
            .lease_store(self.store.clone())
    }

    /// As [`reader`](Self::reader), from the oldest record on, saying in this store what it does.
    pub(crate) async fn publishing(
        &self,
        worker: &str,
        statuses: &Arc<dyn StatusStore>,
    ) -> KinesisStreamBuilder {
        let builder = self.reader(worker).await.status_store(Arc::clone(statuses));
        builder.initial_position(shardfleet::KinesisPosition::horizon())
    }

    /// A subscription that starts at the oldest record.
    pub(crate) async fn at_horizon(&self, worker: &str) -> Subscription {
        let builder = self
            .reader(worker)
            .await
            .start_at(shardfleet::KinesisPosition::horizon());
        open(builder).await
    }

    /// A subscription that goes on from its checkpoints.
    pub(crate) async fn resumed(&self, worker: &str) -> Subscription {
        open(self.reader(worker).await).await
    }

    /// Puts a record on the shard with this number, which must be open.
    pub(crate) fn put(&self, shard: usize, text: &str) -> PutReceipt {
        let shards = self.controls.shards(STREAM).expect("shards");
        self.controls
            .put_at(STREAM, "key", shards[shard].starting_hash_key, text.to_owned())
            .expect("put")
    }

    /// Puts `prefix0` and so on.
    pub(crate) fn put_many(&self, shard: usize, prefix: &str, count: usize) -> Vec<PutReceipt> {
        (0..count)
            .map(|i| self.put(shard, &format!("{prefix}{i}")))
            .collect()
    }

    /// Splits a shard in the middle. Two children follow it.
    pub(crate) fn split(&self, shard: usize) {
        // A shard that was closed in the millisecond it was opened in was open at no time.
        self.controls.advance(Duration::from_secs(1));
        self.controls.split(STREAM, &shard_name(shard)).expect("split");
    }

    /// Merges two adjacent shards.
    pub(crate) fn merge(&self, shard: usize, adjacent: usize) {
        self.controls.advance(Duration::from_secs(1));
        self.controls
            .merge(STREAM, &shard_name(shard), &shard_name(adjacent))
            .expect("merged");
    }

    pub(crate) async fn lease(&self, shard: usize) -> Lease {
        lease_of(&self.store, shard).await.expect("a lease")
    }

    /// Waits until the stored checkpoint of a shard is exactly this record.
    pub(crate) async fn until_checkpoint(&self, shard: usize, at: &str) {
        until(&format!("the checkpoint {at}"), || async {
            self.lease(shard).await.checkpoint.checkpoint_text() == at
        })
        .await;
    }

    /// Waits until the stream was read so many times more.
    pub(crate) async fn until_read(&self, times: u64) {
        let before = self.controls.calls("GetRecords");
        until("more reads", || async {
            self.controls.calls("GetRecords") >= before + times
        })
        .await;
    }

    /// Nothing is delivered while the stream is read a few times more.
    pub(crate) async fn assert_quiet(&self, subscription: &mut Subscription) {
        Self::assert_nothing_until(self.until_read(5), subscription).await;
    }

    /// Nothing is delivered while the shards are listed twice more.
    pub(crate) async fn assert_quiet_for_listings(&self, subscription: &mut Subscription) {
        let before = self.controls.calls("ListShards");
        let listed = until("more listings", || async {
            self.controls.calls("ListShards") >= before + 2
        });
        Self::assert_nothing_until(listed, subscription).await;
    }

    async fn assert_nothing_until(done: impl Future<Output = ()>, subscription: &mut Subscription) {
        tokio::select! {
            () = done => {}
            item = subscription.next() => panic!("nothing was to come, but {item:?} did"),
        }
    }
}

pub(crate) async fn settings_of(endpoint: &str) -> AwsSettings {
    AwsSettings::builder()
        .endpoint_url(endpoint)
        .region(REGION)
        .credentials(ACCESS_KEY_ID, SECRET_ACCESS_KEY)
        .load()
        .await
}

pub(crate) fn quick(builder: KinesisStreamBuilder) -> KinesisStreamBuilder {
    builder
        .application(APPLICATION)
        .poll_interval(Duration::from_millis(20))
        .read_limits(ReadLimits::UNLIMITED)
        .failover_time(FAILOVER)
        .shard_sync_interval(Duration::from_millis(200))
        .open_deadline(DEADLINE)
}

pub(crate) async fn open(builder: KinesisStreamBuilder) -> Subscription {
    let stream = builder.build().expect("settings");
    stream.subscribe().await.expect("subscribed")
}

pub(crate) async fn lease_of(store: &dyn LeaseStore, shard: usize) -> Option<Lease> {
    store.get(&LeaseKey::new(shard_name(shard))).await.expect("lease")
}

pub(crate) fn shard_name(number: usize) -> String {
    format!("shardId-{number:012}")
}

pub(crate) fn shard_id(number: usize) -> ShardId {
    ShardId::new(shard_name(number))
}

pub(crate) fn sequence(receipt: &PutReceipt) -> SequenceNumber {
    SequenceNumber::parse(&receipt.sequence_number).expect("digits")
}

pub(crate) fn place(receipt: &PutReceipt) -> ExtendedSequenceNumber {
    ExtendedSequenceNumber::At(sequence(receipt), 0)
}

pub(crate) fn text(delivery: &Delivery) -> String {
    String::from_utf8_lossy(&delivery.data).into_owned()
}

/// `prefix0` and so on.
pub(crate) fn numbered(prefix: &str, numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|i| format!("{prefix}{i}")).collect()
}

/// Polls until `done`, and fails at the deadline.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, done: impl Fn() -> F) {
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    let polled = async {
        while !done().await {
            ticks.tick().await;
        }
    };
    assert!(
        tokio::time::timeout(DEADLINE, polled).await.is_ok(),
        "{what} did not come about"
    );
}

/// The next item.
pub(crate) async fn item(subscription: &mut Subscription) -> Option<Result<Delivery, KinesisError>> {
    tokio::time::timeout(DEADLINE, subscription.next())
        .await
        .expect("an item")
}

/// The next record.
pub(crate) async fn delivery(subscription: &mut Subscription) -> Delivery {
    match item(subscription).await {
        Some(Ok(delivery)) => delivery,
        other => panic!("a record was to come, but {other:?} did"),
    }
}

/// The next error.
pub(crate) async fn error(subscription: &mut Subscription) -> KinesisError {
    match item(subscription).await {
        Some(Err(error)) => error,
        other => panic!("an error was to come, but {other:?} did"),
    }
}

/// The next `count` records, not acked.
pub(crate) async fn deliveries(subscription: &mut Subscription, count: usize) -> Vec<Delivery> {
    let mut all = Vec::new();
    while all.len() < count {
        all.push(delivery(subscription).await);
    }
    all
}

/// The texts of the next `count` records, acked.
pub(crate) async fn acked(subscription: &mut Subscription, count: usize) -> Vec<String> {
    let all = deliveries(subscription, count).await;
    all.into_iter()
        .map(|delivery| {
            let text = text(&delivery);
            delivery.ack();
            text
        })
        .collect()
}

/// The texts of the next `count` records, acked, and the errors among them.
pub(crate) async fn acked_with_errors(
    subscription: &mut Subscription,
    count: usize,
) -> (Vec<String>, Vec<KinesisError>) {
    let (mut texts, mut errors) = (Vec::new(), Vec::new());
    while texts.len() < count {
        match item(subscription).await {
            Some(Ok(delivery)) => {
                texts.push(text(&delivery));
                delivery.ack();
            }
            Some(Err(error)) => errors.push(error),
            None => panic!("the subscription ended after {texts:?} and {errors:?}"),
        }
    }
    (texts, errors)
}

/// Runs a worker on a runtime of its own, which `kill` ends as a crash would: nothing is released, nothing is said.
pub(crate) struct Killable {
    runtime: Option<tokio::runtime::Runtime>,
}

impl Killable {
    pub(crate) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("runtime");
        Self {
            runtime: Some(runtime),
        }
    }

    pub(crate) async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let runtime = self.runtime.as_ref().expect("alive");
        runtime.spawn(work).await.expect("no panic")
    }

    pub(crate) fn kill(mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A clock whose waits are over so many times as fast.
pub(crate) struct FastClock {
    inner: SystemClock,
    factor: u32,
}

impl FastClock {
    pub(crate) fn shared(factor: u32) -> Arc<dyn Clock> {
        Arc::new(Self {
            inner: SystemClock::new(),
            factor,
        })
    }
}

impl Clock for FastClock {
    fn now(&self) -> Moment {
        Moment::new(self.inner.now().since(Moment::default()) * self.factor)
    }

    fn wall(&self) -> Timestamp {
        self.inner.wall()
    }

    fn sleep_until(&self, moment: Moment) -> BoxFuture<'static, ()> {
        let real = moment.since(Moment::default()) / self.factor;
        // Rounded up, so that the moment has come when the wait is over.
        self.inner
            .sleep_until(Moment::new(real + Duration::from_micros(1)))
    }

    fn chance(&self) -> f64 {
        self.inner.chance()
    }
}

/// A lease store that can be cut off.
#[derive(Clone, Default)]
pub(crate) struct CutStore {
    inner: MemoryLeaseStore,
    cut: Arc<AtomicBool>,
    scans: Arc<AtomicU64>,
}

impl CutStore {
    pub(crate) fn set_cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }

    /// The rows, whether it is cut off or not.
    pub(crate) fn inner(&self) -> &MemoryLeaseStore {
        &self.inner
    }

    /// How often it was scanned.
    pub(crate) fn scans(&self) -> u64 {
        self.scans.load(Ordering::Relaxed)
    }

    fn reach(&self) -> Result<(), StoreError> {
        if self.cut.load(Ordering::SeqCst) {
            let kind = StoreErrorKind::Unavailable;
            Err(StoreError::new(kind, "reaching the store", "the line is cut"))
        } else {
            Ok(())
        }
    }
}

#[async_trait]
impl LeaseStore for CutStore {
    async fn prepare(&self) -> Result<(), StoreError> {
        self.reach()
    }

    async fn get(&self, lease_key: &LeaseKey) -> Result<Option<Lease>, StoreError> {
        self.reach()?;
        self.inner.get(lease_key).await
    }

    async fn scan(&self) -> Result<LeaseScan, StoreError> {
        self.reach()?;
        self.scans.fetch_add(1, Ordering::Relaxed);
        self.inner.scan().await
    }

    async fn owned_by(&self, worker: &WorkerId) -> Result<Vec<LeaseKey>, StoreError> {
        self.reach()?;
        self.inner.owned_by(worker).await
    }

    async fn create(&self, lease: &Lease) -> Result<bool, StoreError> {
        self.reach()?;
        self.inner.create(lease).await
    }

    async fn update(&self, write: &LeaseWrite) -> Result<WriteOutcome, StoreError> {
        self.reach()?;
        self.inner.update(write).await
    }

    async fn delete(&self, lease_key: &LeaseKey, expect: &Expectation) -> Result<bool, StoreError> {
        self.reach()?;
        self.inner.delete(lease_key, expect).await
    }

    async fn read_leader_lock(&self) -> Result<Option<LockRow>, StoreError> {
        self.reach()?;
        self.inner.read_leader_lock().await
    }

    async fn write_leader_lock(&self, write: &LockWrite) -> Result<bool, StoreError> {
        self.reach()?;
        self.inner.write_leader_lock(write).await
    }

    async fn put_worker_metrics(&self, row: &WorkerMetricStats) -> Result<(), StoreError> {
        self.reach()?;
        self.inner.put_worker_metrics(row).await
    }

    async fn delete_worker_metrics(
        &self,
        worker: &WorkerId,
        last_update_seconds: Option<u64>,
    ) -> Result<bool, StoreError> {
        self.reach()?;
        self.inner
            .delete_worker_metrics(worker, last_update_seconds)
            .await
    }

    fn describe(&self) -> String {
        "a store that can be cut off".to_owned()
    }
}
