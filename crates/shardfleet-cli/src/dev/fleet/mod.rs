//! `shardfleet dev --workers N`: worker processes that share the shards of a stream, with every record accounted for.
//!
//! This process runs the services, puts the records and listens to what each worker prints. It takes no part in what the workers agree on: it only looks
//! at the lease table, and kills, adds and stops workers as [`script`] says.

use std::sync::Arc;
use std::time::Duration;

use shardfleet::clock::{Clock, SystemClock};
use shardfleet::core::time::{Moment, Timestamp};
use shardfleet::kinesis::PutRecord;
use shardfleet::store::{DynamoDbLeaseStore, LeaseStore};
use shardfleet::{AwsKinesis, StreamName, WorkerId};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::{Services, ensure_stream};
use crate::args::DevArgs;
use crate::exit::Failure;
use crate::stamp;

mod books;
mod chaos;
mod gaps;
mod leases;
mod load;
mod member;
mod screen;
mod script;
mod summary;
mod table;
mod usage;

use books::Books;
use chaos::Chaos;
use leases::LeaseWatch;
use load::{Load, Put};
use member::{Event, FromMember, Member, Start, State};
use screen::Screen;
use summary::FleetSummary;

/// Shorter than a worker's default of 10 s, so that a kill shows its effect soon.
const FAILOVER_TIME: Duration = Duration::from_secs(4);

/// How often the table is looked at and drawn.
const LOOK: Duration = Duration::from_millis(250);

/// Made-up records a second.
const RATE: u64 = 1_000;
/// While things happen to the fleet there is time for fewer.
const CHAOS_RATE: u64 = 600;
/// Over how long a file's records are spread while things happen to the fleet.
const CHAOS_SPREAD: Duration = Duration::from_secs(50);

const OPEN_PATIENCE: Duration = Duration::from_secs(60);
/// After this a made-up load is given up, whatever is missing. Leaves time to stop within two minutes.
const LOAD_PATIENCE: Duration = Duration::from_secs(100);
const STOP_PATIENCE: Duration = Duration::from_secs(12);
/// What comes once too often comes right behind.
const LAST_LOOK: Duration = Duration::from_millis(500);

pub(super) async fn run(
    args: &DevArgs,
    workers: u32,
    services: &Services,
    input: Option<Vec<PutRecord>>,
) -> Result<(), Failure> {
    if input.as_ref().is_some_and(Vec::is_empty) {
        return Err(Failure::usage("--input holds no lines; there is nothing to put"));
    }
    let load = match (input, args.chaos) {
        (Some(records), false) => Load::Lines(records),
        (Some(records), true) => Load::Spread(records, CHAOS_SPREAD),
        (None, false) => Load::Generated(RATE),
        (None, true) => Load::Generated(CHAOS_RATE),
    };
    let mut fleet = Fleet::new(args, services).await?;
    let outcome = tokio::select! {
        biased;
        _ = tokio::signal::ctrl_c() => Err(Failure::run("interrupted; the workers are ended")),
        outcome = fleet.run(workers, load) => outcome,
    };
    fleet.screen.clear();
    let summary = outcome?;
    summary.print(args.json)?;
    if !summary.run.total.is_complete() {
        let failure = "records are lost, out of order or unexplained; see the summary";
        fleet.failures.push(failure.to_owned());
    }
    match fleet.failures.as_slice() {
        [] => Ok(()),
        failures => Err(Failure::run(failures.join("; "))),
    }
}

/// Everything of a run, in one task.
struct Fleet<'a> {
    args: &'a DevArgs,
    services: &'a Services,
    kinesis: Arc<AwsKinesis>,
    store: DynamoDbLeaseStore,
    application: String,
    /// Config files.
    dir: tempfile::TempDir,
    clock: SystemClock,
    /// The machine's time at which it began, and at which the first record was put.
    started: u64,
    flowing_since: Option<u64>,
    /// When workers begin to read.
    start_at: Timestamp,
    members: Vec<Member>,
    events: mpsc::Receiver<FromMember>,
    events_to: mpsc::Sender<FromMember>,
    puts: Option<mpsc::Receiver<Vec<Put>>>,
    producer: Option<JoinHandle<Result<(), Failure>>>,
    is_over: watch::Sender<bool>,
    books: Books,
    leases: LeaseWatch,
    chaos: Option<Chaos>,
    screen: Screen,
    next_look: Moment,
    /// When rates were last taken, and the count of each member then.
    rated: (u64, Vec<u64>),
    /// Workers that ended by themselves, in words.
    failures: Vec<String>,
}

impl<'a> Fleet<'a> {
    async fn new(args: &'a DevArgs, services: &'a Services) -> Result<Self, Failure> {
        let kinesis = AwsKinesis::new(&Services::settings(services.kinesis.endpoint()).await);
        ensure_stream(&kinesis, &args.stream, args.shard_count()).await?;
        let clock = SystemClock::new();
        let start_at = clock.wall();
        // A data folder holds the leases of earlier runs, which are about other records.
        let application = match &args.data_dir {
            None => format!("{}-fleet", args.stream),
            Some(_) => format!("{}-fleet-{}", args.stream, start_at.millis()),
        };
        let dynamodb = Services::settings(services.dynamodb.endpoint()).await;
        let (events_to, events) = mpsc::channel(4096);
        Ok(Self {
            kinesis: Arc::new(kinesis),
            store: DynamoDbLeaseStore::builder(&application, &dynamodb).build(),
            application,
            dir: tempfile::Builder::new().prefix("shardfleet-dev-").tempdir()?,
            started: stamp::micros(),
            flowing_since: None,
            start_at,
            members: Vec::new(),
            events,
            events_to,
            puts: None,
            producer: None,
            is_over: watch::Sender::new(!args.chaos),
            books: Books::default(),
            leases: LeaseWatch::default(),
            chaos: args.chaos.then(Chaos::default),
            screen: Screen::new(args.json),
            next_look: clock.now(),
            rated: (0, Vec::new()),
            failures: Vec::new(),
            clock,
            args,
            services,
        })
    }

    async fn run(&mut self, workers: u32, load: Load) -> Result<FleetSummary, Failure> {
        self.note(&format!(
            "{workers} worker processes, {} shards; failover_time is {} here, 10s by default",
            self.args.shard_count(),
            humantime::format_duration(FAILOVER_TIME)
        ));
        for _ in 0..workers {
            self.start_member()?;
        }
        self.open().await?;
        self.flow(load).await?;
        self.turn_for(LAST_LOOK).await?;
        self.stop().await?;
        let scan = self
            .store
            .scan()
            .await
            .map_err(|e| Failure::run(format!("reading the leases failed: {e}")))?;
        self.leases.observe(&scan.leases);
        Ok(self.summary())
    }

    /// Waits until every worker reads and every lease is held.
    async fn open(&mut self) -> Result<(), Failure> {
        let until = self.clock.now() + OPEN_PATIENCE;
        let shards = self.args.shard_count() as usize;
        loop {
            self.turn().await?;
            if let Some(failure) = self.failures.pop() {
                return Err(Failure::run(failure));
            }
            let are_open = self.members.iter().all(|m| m.state == State::Running);
            let rows = self.leases.rows();
            // A data folder may have brought a stream along that has more shards, or fewer.
            let are_held = !rows.is_empty()
                && rows
                    .values()
                    .all(|seen| seen.is_finished || seen.holder().is_some());
            if are_open && are_held && (rows.len() >= shards || self.args.data_dir.is_some()) {
                return Ok(());
            }
            if self.clock.now() >= until {
                return Err(Failure::run(format!(
                    "the workers did not read every shard within {OPEN_PATIENCE:?}; {} of {shards} leases are there",
                    rows.len()
                )));
            }
        }
    }

    /// Puts the load until it ends and everything has come.
    async fn flow(&mut self, load: Load) -> Result<(), Failure> {
        let is_made_up = load.total().is_none();
        let (puts_to, puts) = mpsc::channel(64);
        let (kinesis, stream) = (Arc::clone(&self.kinesis), StreamName::new(&self.args.stream));
        let is_over = self.is_over.subscribe();
        self.flowing_since = Some(stamp::micros());
        self.puts = Some(puts);
        self.producer = Some(tokio::spawn(load::produce(
            kinesis, stream, load, is_over, puts_to,
        )));
        let since = self.clock.now();
        let mut patience_from = since;
        let mut last_news = None;
        loop {
            self.turn().await?;
            let has_all = self.producer.is_none() && self.books.is_even();
            if has_all {
                if let Some(chaos) = &mut self.chaos {
                    chaos.cut_short();
                }
                return Ok(());
            }
            let now = self.clock.now();
            if last_news != self.books.last_news || self.books.is_even() {
                last_news = self.books.last_news;
                patience_from = now;
            }
            let is_anybody_left = self.members.iter().any(|member| member.state.is_alive());
            // A lone worker that was killed is followed by the one that joins.
            let will_join = self.chaos.as_ref().is_some_and(Chaos::will_add);
            let reason = if !is_anybody_left && !will_join {
                "no worker is left".to_owned()
            } else if now.since(patience_from) > self.args.patience {
                format!("nothing was delivered for {:?}", self.args.patience)
            } else if is_made_up && now.since(since) > LOAD_PATIENCE {
                format!("not everything came within {LOAD_PATIENCE:?}")
            } else {
                continue;
            };
            self.failures.push(format!("gave up: {reason}"));
            if let Some(producer) = self.producer.take() {
                producer.abort();
            }
            return Ok(());
        }
    }

    /// SIGTERM for every worker, and SIGKILL for those that do not end by it.
    async fn stop(&mut self) -> Result<(), Failure> {
        let now = stamp::micros();
        for member in self.members.iter_mut().filter(|member| member.state.is_alive()) {
            member.terminate(now);
        }
        let until = self.clock.now() + STOP_PATIENCE;
        while self.clock.now() < until && self.members.iter().any(|member| member.state.is_alive()) {
            self.turn().await?;
        }
        for member in self.members.iter_mut().filter(|member| member.state.is_alive()) {
            self.failures.push(format!(
                "{} did not end within {STOP_PATIENCE:?} of SIGTERM",
                member.worker_id
            ));
            member.kill(now);
        }
        while self.members.iter().any(|member| member.state.is_alive()) {
            self.turn().await?;
        }
        Ok(())
    }

    async fn turn_for(&mut self, time: Duration) -> Result<(), Failure> {
        let until = self.clock.now() + time;
        while self.clock.now() < until {
            self.turn().await?;
        }
        Ok(())
    }

    /// Waits for the next thing and deals with it: a look at the table, records that were put, or what workers print.
    async fn turn(&mut self) -> Result<(), Failure> {
        let mut batch = Vec::new();
        tokio::select! {
            biased;
            () = self.clock.sleep_until(self.next_look) => {
                self.next_look = self.clock.now() + LOOK;
                self.look().await?;
            }
            puts = next_put(&mut self.puts) => match puts {
                Some(puts) => puts.into_iter().for_each(|put| self.books.put(put)),
                None => self.end_producer().await?,
            },
            _ = self.events.recv_many(&mut batch, 256) => {
                for event in batch {
                    self.on_event(event).await;
                }
            }
        }
        Ok(())
    }

    async fn end_producer(&mut self) -> Result<(), Failure> {
        self.puts = None;
        match self.producer.take() {
            Some(producer) => producer
                .await
                .map_err(|e| Failure::run(format!("the producer panicked: {e}")))?,
            None => Ok(()),
        }
    }

    async fn on_event(&mut self, from: FromMember) {
        let Some(member) = self.members.get_mut(from.index) else {
            return;
        };
        match from.event {
            Event::Delivered(delivered) => {
                member.delivered += 1;
                member.first_delivery.get_or_insert(delivered.at);
                self.books.deliver(delivered);
            }
            Event::Unreadable => self.books.unreadable += 1,
            Event::Said(text) => {
                if member.state == State::Starting && text.starts_with("reading ") {
                    member.state = State::Running;
                }
                let is_routine = ["reading ", "stopping; ", "shardId-"];
                if !is_routine.iter().any(|start| text.starts_with(start)) {
                    let worker_id = member.worker_id.clone();
                    member.last_words = Some(text.clone());
                    self.note(&format!("{worker_id} says: {text}"));
                }
            }
            Event::Ended(status) => {
                let failure = member.end(&status);
                let (worker_id, state) = (member.worker_id.clone(), member.state);
                if let Some(failure) = failure {
                    self.note(&failure);
                    self.failures.push(failure);
                } else if !matches!(state, State::Stopped(_)) || !self.is_stopping() {
                    self.note(&format!("{worker_id} is gone ({})", state.word()));
                }
                if !matches!(state, State::Stopped(_)) {
                    // Dead: what it holds by now, another one has to take over. What it handed over before, it does not hold any more.
                    self.observe().await;
                    self.leases.note_death(&worker_id);
                }
            }
        }
    }

    /// Whether no worker reads any more, nor is about to.
    fn is_stopping(&self) -> bool {
        let is_here = |m: &Member| matches!(m.state, State::Starting | State::Running);
        !self.members.iter().any(is_here)
    }

    async fn look(&mut self) -> Result<(), Failure> {
        self.observe().await;
        self.take_rates();
        self.advance_chaos()?;
        self.show();
        Ok(())
    }

    /// Reads the table. A look that fails is made good by the next one.
    async fn observe(&mut self) {
        let Ok(scan) = self.store.scan().await else { return };
        for change in self.leases.observe(&scan.leases) {
            if !self.screen.has_table() && !self.is_stopping() {
                self.note(&change.words());
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of a few minutes")]
    fn take_rates(&mut self) {
        let now = stamp::micros();
        let (since, counts) = &self.rated;
        let elapsed = now.saturating_sub(*since);
        if elapsed < 1_000_000 {
            return;
        }
        for (i, member) in self.members.iter_mut().enumerate() {
            let before = counts.get(i).copied().unwrap_or_default();
            member.rate = (member.delivered - before) as f64 * 1e6 / elapsed as f64;
            if member.state.is_alive() {
                member.usage.observe(member.pid, now);
            }
        }
        self.rated = (now, self.members.iter().map(|member| member.delivered).collect());
    }

    fn show(&mut self) {
        let now = stamp::micros();
        let alive = self.members.iter().filter(|m| m.state.is_alive()).count();
        let delivered = self.books.delivered_count();
        let title = format!(
            "{alive} workers   put {}   delivered {delivered}   repeated {}   failovers {}   {:.1} s",
            self.books.put_count(),
            self.books.log.len() as u64 - delivered.min(self.books.log.len() as u64),
            self.leases.failovers,
            seconds(self.started, now),
        );
        let view = table::View {
            title,
            members: &self.members,
            leases: &self.leases,
            books: &self.books,
            now,
        };
        self.screen
            .show(|columns, lines| table::table(&view, columns, lines));
    }

    fn note(&mut self, text: &str) {
        let at = seconds(self.started, stamp::micros());
        self.screen.note(&format!("{at:>6.1} s  {text}"));
    }

    /// Starts one more worker.
    fn start_member(&mut self) -> Result<usize, Failure> {
        let index = self.members.len();
        let worker_id = WorkerId::new(format!("worker-{}", index + 1));
        let config = self.dir.path().join(format!("{worker_id}.toml"));
        std::fs::write(&config, self.config_of(&worker_id))
            .map_err(|e| Failure::run(format!("writing {}: {e}", config.display())))?;
        let start = Start {
            worker_id,
            config: &config,
            kinesis: &self.services.kinesis.endpoint(),
            dynamodb: &self.services.dynamodb.endpoint(),
            index,
            now: stamp::micros(),
        };
        let mut member = Member::start(start, self.events_to.clone())?;
        member.has_joined = self.flowing_since.is_some();
        self.note(&format!("{} is started (pid {})", member.worker_id, member.pid));
        self.members.push(member);
        Ok(index)
    }

    fn config_of(&self, worker_id: &WorkerId) -> String {
        // It goes ahead of checkpoints, so a worker that joins later must not say it. To the others nothing has been put when they open.
        let start_at = match self.flowing_since {
            None => format!("start_at = \"{}\"\n", self.start_at.millis()),
            Some(_) => String::new(),
        };
        let status = self
            .args
            .status_kafka
            .as_ref()
            .map_or_else(String::new, |brokers| {
                format!(
                    "[status]\ntype = \"kafka\"\nbootstrap_servers = {brokers:?}\ntopic = {:?}\n\
                 properties = {{ \"status.storage.replication.factor\" = -1 }}\n",
                    self.args.status_topic
                )
            });
        format!(
            "stream = {:?}\napplication = {:?}\nworker_id = {:?}\nshutdown_deadline = \"8s\"\n{start_at}\
             [lease_store]\ntype = \"dynamodb\"\n\
             [leases]\nfailover_time = \"{}\"\nshard_sync_interval = \"2s\"\n\
             [reading]\npoll_interval = \"200ms\"\n\
             [handler]\ntype = \"stdout\"\n{status}",
            self.args.stream,
            self.application,
            worker_id.as_str(),
            humantime::format_duration(FAILOVER_TIME),
        )
    }
}

/// The next records that were put; `None` once the producer has ended. Waits for ever while there is none.
async fn next_put(puts: &mut Option<mpsc::Receiver<Vec<Put>>>) -> Option<Vec<Put>> {
    match puts {
        Some(puts) => puts.recv().await,
        None => std::future::pending().await,
    }
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a few minutes")]
fn seconds(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e6
}
