//! A stream that records flow through, workers that share it, and books of who was given what.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{self, AtomicBool};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardfleet::clock::{Clock, SystemClock};
use shardfleet::core::ids::WorkerId;
use shardfleet::core::lease::Lease;
use shardfleet::core::time::Moment;
use shardfleet::store::{DynamoDbLeaseStore, LeaseStore, MemoryLeaseStore};
use shardfleet::worker_metrics::{WorkerMetricsChoice, WorkerMetricsSettings};
use shardfleet::{
    Checkpointer, ErrorPolicy, FleetSettings, InitializationInput, KinesisError, KinesisPosition,
    KinesisStreamBuilder, ProcessRecordsInput, ProcessorError, RecordProcessor, ShardId, ShutdownReport,
    SubscriptionHandle, async_trait,
};
use shardfleet_local::{DynamoControls, KinesisControls, LocalDynamoDb};
use tokio_util::task::AbortOnDropHandle;

use crate::support::{FAILOVER, Killable, STREAM, World, settings_of, until};

pub(super) const APPLICATION: &str = "reading-tests";

/// One record was given to a worker.
#[derive(Clone, Debug)]
pub(super) struct Delivered {
    pub(super) worker: String,
    pub(super) shard: u64,
    pub(super) number: u64,
    pub(super) at: Moment,
}

/// What was put and what was delivered.
#[derive(Clone)]
pub(super) struct Books {
    clock: Arc<SystemClock>,
    put: Arc<Mutex<BTreeMap<u64, u64>>>,
    delivered: Arc<Mutex<Vec<Delivered>>>,
    /// Each time that a worker began to read a shard, in order.
    starts: Arc<Mutex<Vec<(String, u64)>>>,
    /// Shards whose handlers stand still, by worker.
    stuck: Arc<Mutex<BTreeSet<(String, u64)>>>,
}

/// How the books come out.
#[derive(Debug, Default)]
pub(super) struct Balance {
    pub(super) lost: Vec<String>,
    pub(super) repeated: usize,
    pub(super) out_of_order: Vec<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Books {
    fn new() -> Self {
        Self {
            clock: Arc::new(SystemClock::new()),
            put: Arc::default(),
            delivered: Arc::default(),
            starts: Arc::default(),
            stuck: Arc::default(),
        }
    }

    pub(super) fn now(&self) -> Moment {
        self.clock.now()
    }

    pub(super) fn delivered(&self) -> Vec<Delivered> {
        lock(&self.delivered).clone()
    }

    /// The shards that gave records to this worker since `since`.
    pub(super) fn shards_of(&self, worker: &str, since: Moment) -> BTreeSet<u64> {
        let delivered = lock(&self.delivered);
        let of = delivered.iter().filter(|d| d.worker == worker && d.at >= since);
        of.map(|d| d.shard).collect()
    }

    /// The shards that gave records to anybody since `since`.
    pub(super) fn moving(&self, since: Moment) -> BTreeSet<u64> {
        let delivered = lock(&self.delivered);
        let of = delivered.iter().filter(|d| d.at >= since);
        of.map(|d| d.shard).collect()
    }

    /// Each time that a worker began to read a shard, in order.
    pub(super) fn starts(&self) -> Vec<(String, u64)> {
        lock(&self.starts).clone()
    }

    /// The worker's handler of this shard stops in the middle of its next call, until told otherwise.
    pub(super) fn set_stuck(&self, worker: &str, shard: u64, is_stuck: bool) {
        let key = (worker.to_owned(), shard);
        let mut stuck = lock(&self.stuck);
        if is_stuck {
            stuck.insert(key);
        } else {
            stuck.remove(&key);
        }
    }

    fn is_stuck(&self, worker: &str, shard: u64) -> bool {
        lock(&self.stuck).contains(&(worker.to_owned(), shard))
    }

    fn missing(&self) -> Vec<String> {
        let delivered = lock(&self.delivered);
        let seen: BTreeSet<(u64, u64)> = delivered.iter().map(|d| (d.shard, d.number)).collect();
        let put = lock(&self.put);
        put.iter()
            .flat_map(|(shard, count)| (0..*count).map(move |number| (*shard, number)))
            .filter(|record| !seen.contains(record))
            .map(|(shard, number)| format!("{number} of shard {shard}"))
            .collect()
    }

    /// Compares what was put with what was delivered.
    pub(super) fn balance(&self) -> Balance {
        let mut balance = Balance {
            lost: self.missing(),
            ..Balance::default()
        };
        let mut next: BTreeMap<u64, u64> = BTreeMap::new();
        for d in self.delivered() {
            let next = next.entry(d.shard).or_default();
            match d.number.cmp(next) {
                Ordering::Less => balance.repeated += 1,
                Ordering::Equal => *next += 1,
                Ordering::Greater => {
                    balance.out_of_order.push(format!("{d:?} where {next} was due"));
                    *next = d.number + 1;
                }
            }
        }
        balance
    }

    /// The longest time that each of these shards was silent after `since`, worst first.
    pub(super) fn gaps(&self, shards: &BTreeSet<u64>, since: Moment) -> Vec<Duration> {
        let delivered = self.delivered();
        let mut gaps: Vec<Duration> = shards
            .iter()
            .map(|shard| {
                let times: Vec<Moment> = delivered
                    .iter()
                    .filter(|d| d.shard == *shard)
                    .map(|d| d.at)
                    .collect();
                let pairs = times.windows(2).filter(|pair| pair[1] >= since);
                pairs.map(|pair| pair[1].since(pair[0])).max().unwrap_or_default()
            })
            .collect();
        gaps.sort_unstable_by(|a, b| b.cmp(a));
        gaps
    }
}

struct Keeper {
    worker: String,
    shard: u64,
    books: Books,
}

#[async_trait]
impl RecordProcessor for Keeper {
    async fn initialize(&mut self, _: InitializationInput) -> Result<(), ProcessorError> {
        lock(&self.books.starts).push((self.worker.clone(), self.shard));
        Ok(())
    }

    async fn process_records(&mut self, input: ProcessRecordsInput<'_>) -> Result<(), ProcessorError> {
        for record in input.records {
            let mut ticks = tokio::time::interval(Duration::from_millis(5));
            while self.books.is_stuck(&self.worker, self.shard) {
                ticks.tick().await;
            }
            let text = String::from_utf8_lossy(&record.data).into_owned();
            let (_, number) = text.split_once(':').expect("a shard and a number");
            lock(&self.books.delivered).push(Delivered {
                worker: self.worker.clone(),
                shard: self.shard,
                number: number.parse().expect("a number"),
                at: self.books.now(),
            });
        }
        Ok(())
    }

    async fn shutdown_requested(&mut self, _: &Checkpointer) -> Result<(), ProcessorError> {
        Ok(())
    }
}

/// A worker on a runtime of its own.
pub(super) struct Member {
    pub(super) name: String,
    process: Killable,
    pub(super) handle: SubscriptionHandle,
    pub(super) errors: Arc<Mutex<Vec<KinesisError>>>,
}

impl Member {
    /// Ends it as a crash would.
    pub(super) fn kill(self) {
        self.process.kill();
        drop(self.handle);
    }

    /// Stops it in order.
    pub(super) async fn stop(self) -> ShutdownReport {
        self.handle.shutdown(Duration::from_secs(10)).await
    }

    pub(super) fn is_leader(&self) -> bool {
        self.handle.fleet().is_leader
    }

    pub(super) fn errors(&self) -> Vec<KinesisError> {
        lock(&self.errors).clone()
    }
}

/// A stream, a table, and what is known of both.
pub(super) struct Fleet {
    pub(super) world: World,
    pub(super) books: Books,
    pub(super) settings: FleetSettings,
    pub(super) failover_time: Duration,
    dynamodb: Option<LocalDynamoDb>,
    memory: MemoryLeaseStore,
    producer: Mutex<Option<(Arc<AtomicBool>, AbortOnDropHandle<()>)>>,
}

impl Fleet {
    /// A fleet whose leases are in memory.
    pub(super) async fn over_memory(shards: u32) -> Self {
        // What workers log helps to see why a test failed; RUST_LOG says how much.
        let logs = tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_writer(std::io::stderr);
        logs.try_init().ok();
        let mut settings = FleetSettings::default();
        // Standbys of a dead leader are not to keep a test waiting.
        settings.leader_lease_duration = FAILOVER;
        settings.leader_heartbeat = FAILOVER / 4;
        // All workers of a test are in one process, whose CPU says nothing of any of them.
        settings.worker_metrics = WorkerMetricsSettings::from_source(WorkerMetricsChoice::None);
        Self {
            world: World::new(shards).await,
            books: Books::new(),
            settings,
            failover_time: FAILOVER,
            dynamodb: None,
            memory: MemoryLeaseStore::new(),
            producer: Mutex::default(),
        }
    }

    /// A fleet whose leases are in an embedded DynamoDB.
    pub(super) async fn over_dynamodb(shards: u32) -> Self {
        let dynamodb = LocalDynamoDb::builder().start().await.expect("DynamoDB");
        Self {
            dynamodb: Some(dynamodb),
            ..Self::over_memory(shards).await
        }
    }

    pub(super) fn kinesis(&self) -> &KinesisControls {
        &self.world.controls
    }

    pub(super) fn dynamo(&self) -> DynamoControls {
        self.dynamodb.as_ref().expect("over DynamoDB").controls()
    }

    pub(super) fn dynamo_endpoint(&self) -> String {
        self.dynamodb.as_ref().expect("over DynamoDB").endpoint()
    }

    /// A store of its own for each worker, as in a process of its own.
    pub(super) async fn store(&self) -> Arc<dyn LeaseStore> {
        match &self.dynamodb {
            None => Arc::new(self.memory.clone()),
            Some(dynamodb) => {
                let settings = settings_of(&dynamodb.endpoint()).await;
                Arc::new(DynamoDbLeaseStore::builder(APPLICATION, &settings).build())
            }
        }
    }

    pub(super) async fn builder(&self, name: &str) -> KinesisStreamBuilder {
        let reader = self.world.reader(name).await;
        reader
            .shared_lease_store(self.store().await)
            .initial_position(KinesisPosition::horizon())
            .failover_time(self.failover_time)
            .fleet(self.settings.clone())
    }

    /// Starts a worker.
    pub(super) async fn start(&self, name: &str) -> Member {
        self.start_with(self.builder(name).await, name).await
    }

    pub(super) async fn start_with(&self, builder: KinesisStreamBuilder, name: &str) -> Member {
        let process = Killable::new();
        let errors = Arc::new(Mutex::new(Vec::new()));
        let (books, worker, told) = (self.books.clone(), name.to_owned(), Arc::clone(&errors));
        let handle = process
            .run(async move {
                let factory = move |shard_id: &ShardId| Keeper {
                    worker: worker.clone(),
                    shard: shard_id.number().expect("a number"),
                    books: books.clone(),
                };
                let on_error = move |error: &KinesisError| lock(&told).push(error.clone());
                let stream = builder.build().expect("settings");
                stream.process(factory, ErrorPolicy::default(), on_error).await
            })
            .await
            .unwrap_or_else(|error| panic!("{name} does not start: {}", error.full_text()));
        Member {
            name: name.to_owned(),
            process,
            handle,
            errors,
        }
    }

    /// Puts one record on one open shard. Records are numbered by shard.
    fn put(controls: &KinesisControls, books: &Books, shard: u64, starting_hash_key: u128) {
        let mut put = lock(&books.put);
        let number = put.entry(shard).or_default();
        let text = format!("{shard}:{number}");
        if controls.put_at(STREAM, "key", starting_hash_key, text).is_ok() {
            *number += 1;
        }
    }

    /// Puts a record on each open shard.
    pub(super) fn put_one_on_each(&self) {
        Self::put_round(self.kinesis(), &self.books);
    }

    fn put_round(controls: &KinesisControls, books: &Books) {
        for shard in controls.shards(STREAM).expect("shards") {
            if shard.open {
                let id = ShardId::new(shard.shard_id);
                Self::put(
                    controls,
                    books,
                    id.number().expect("a number"),
                    shard.starting_hash_key,
                );
            }
        }
    }

    /// Puts a record on each open shard every 20 ms until [`settled`](Self::settled).
    pub(super) fn produce(&self) {
        let (controls, books) = (self.kinesis().clone(), self.books.clone());
        let ends = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&ends);
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_millis(20));
            while !asked.load(atomic::Ordering::SeqCst) {
                ticks.tick().await;
                Self::put_round(&controls, &books);
            }
        });
        *lock(&self.producer) = Some((ends, AbortOnDropHandle::new(task)));
    }

    /// Stops producing and waits until everything that was put was delivered; how the books come out.
    pub(super) async fn settled(&self) -> Balance {
        let producer = lock(&self.producer).take();
        if let Some((ends, task)) = producer {
            ends.store(true, atomic::Ordering::SeqCst);
            task.await.expect("the producer");
        }
        until("everything to be delivered", || async {
            self.books.missing().is_empty()
        })
        .await;
        self.books.balance()
    }

    pub(super) async fn leases(&self) -> Vec<Lease> {
        self.store().await.scan().await.expect("a scan").leases
    }

    /// The shards whose leases this worker holds.
    pub(super) async fn shards_held_by(&self, worker: &str) -> BTreeSet<u64> {
        let leases = self.leases().await.into_iter();
        leases
            .filter(|lease| !lease.is_finished())
            .filter(|lease| lease.actual_owner().map(WorkerId::as_str) == Some(worker))
            .filter_map(|lease| lease.lease_key.shard_id().number())
            .collect()
    }

    /// How many unfinished leases each worker holds.
    pub(super) async fn counts(&self) -> BTreeMap<String, usize> {
        counts_of(&self.leases().await)
    }

    /// Waits until each of these workers holds and reads its share of the leases, give or take one, and no handoff is under way.
    pub(super) async fn until_even(&self, members: &[&Member]) {
        until("an even share", || async {
            let leases = self.leases().await;
            if leases.iter().any(|lease| lease.checkpoint_owner.is_some()) {
                return false;
            }
            // A row names its new reader a moment before that one begins.
            let readers: BTreeMap<u64, String> = self
                .books
                .starts()
                .into_iter()
                .map(|(worker, shard)| (shard, worker))
                .collect();
            let is_read = |lease: &Lease| {
                let number = lease.lease_key.shard_id().number();
                let reader = number.and_then(|number| readers.get(&number));
                lease.is_finished()
                    || reader.map(String::as_str) == lease.owner.as_ref().map(WorkerId::as_str)
            };
            if !leases.iter().all(is_read) {
                return false;
            }
            let counts = counts_of(&leases);
            let total: usize = counts.values().sum();
            let open = leases.iter().filter(|lease| !lease.is_finished()).count();
            let share = open / members.len();
            total == open
                && members.iter().all(|member| {
                    let has = counts.get(&member.name).copied().unwrap_or(0);
                    (share..=share + 1).contains(&has)
                })
        })
        .await;
    }

    /// Waits until records of each of these shards came after `since`.
    pub(super) async fn until_moving(&self, shards: &BTreeSet<u64>, since: Moment) {
        until(&format!("records of shards {shards:?}"), || async {
            self.books.moving(since).is_superset(shards)
        })
        .await;
    }

    /// Waits until records of all these shards come.
    pub(super) async fn until_all_move(&self, shards: u64) {
        let since = self.books.now();
        self.until_moving(&(0..shards).collect(), since).await;
    }

    /// Waits until a record of all these shards has come.
    pub(super) async fn until_all_move_since_start(&self, shards: u64) {
        self.until_moving(&(0..shards).collect(), Moment::default()).await;
    }

    /// Waits until one of these workers leads.
    pub(super) async fn until_led(&self, members: &[&Member]) -> usize {
        until("a leader", || async {
            members.iter().filter(|m| m.is_leader()).count() == 1
        })
        .await;
        members.iter().position(|m| m.is_leader()).expect("a leader")
    }
}

fn counts_of(leases: &[Lease]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for lease in leases {
        if let Some(owner) = lease.actual_owner().filter(|_| !lease.is_finished()) {
            *counts.entry(owner.to_string()).or_default() += 1;
        }
    }
    counts
}

impl Balance {
    /// Nothing is missing, and everything came in order; how much came twice.
    pub(super) fn complete(&self) -> usize {
        assert!(
            self.lost.is_empty() && self.out_of_order.is_empty(),
            "lost {:?}, out of order {:?}",
            self.lost,
            self.out_of_order
        );
        self.repeated
    }

    /// Everything came once.
    pub(super) fn assert_exact(&self) {
        assert_eq!(self.complete(), 0, "nothing may come twice");
    }
}
