//! `shardfleet run`: a worker with a handler, from a config file.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use shardfleet::clock::{Clock, SystemClock};
use shardfleet::dead_letter::DeadLetterFile;
use shardfleet::status::{KafkaSettings, StatusStore};
use shardfleet::store::{
    DynamoDbLeaseStore, DynamoDbLeaseStoreBuilder, LeaseStore, MemoryLeaseStore, SqliteLeaseStore,
};
use shardfleet::{
    ApplicationName, AwsKinesis, AwsSettings, ErrorPolicy, KinesisError, KinesisStream, KinesisStreamBuilder,
    ProcessRecordsInput, ProcessorError, RecordProcessor, ShardId, ShutdownReport, SubscriptionHandle,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use crate::args::{AwsArgs, RunArgs};
use crate::exit::Failure;
use crate::output::{result_line, say};
use crate::rest::{Rest, Shown};

mod child;
mod config;
mod parent;
pub(crate) mod statuses;

use child::ChildProcessor;
pub(crate) use config::DEFAULT_STATUS_TOPIC;
use config::{DynamoDbConfig, HandlerConfig, LeaseStoreConfig, WorkerConfig};

pub(crate) async fn run(args: RunArgs) -> Result<(), Failure> {
    let path = args.config.display();
    let text = std::fs::read_to_string(&args.config)
        .map_err(|e| Failure::usage(format!("reading --config {path} failed: {e}")))?;
    let invalid =
        |problems: &[String]| Failure::usage(format!("{path} is not valid:\n  {}", problems.join("\n  ")));
    let mut parsed = config::parse(&text).map_err(|problem| invalid(&[problem]))?;
    let settings = match crate::aws::settings(&aws_args(args.aws, &parsed.config)).await {
        Ok(settings) => settings,
        Err(failure) if parsed.problems.is_empty() => return Err(failure),
        Err(failure) => {
            parsed.problems.push(failure.message);
            return Err(invalid(&parsed.problems));
        }
    };
    let described = described(&parsed.config, &settings);
    if let Err(KinesisError::Settings(error)) = described.clone().build() {
        parsed.add(&error.problems);
    }
    let topic = parsed.config.status.kafka().unwrap_or_else(|problems| {
        parsed.problems.extend(problems);
        None
    });
    if !parsed.problems.is_empty() {
        return Err(invalid(&parsed.problems));
    }
    let config = parsed.config;
    let stream = described.shared_lease_store(lease_store(&config, &settings)?);
    if args.check {
        result_line(&format!("{path} is valid\n{config:#?}"))?;
        return Ok(());
    }
    if args.fleet_member {
        parent::end_with_standard_input();
    }
    let shares_statuses = topic.is_some();
    // Listened for from the start, so that a stop while the worker opens releases its leases too.
    let mut signals = Signals::listen()?;
    let statuses = tokio::select! {
        biased;
        () = signals.next() => return Err(Failure::run("stopped before it was open")),
        statuses = statuses::start(topic) => statuses?,
    };
    let stream = stream.status_store(Arc::clone(&statuses)).build()?;
    let rest = match config.rest {
        Some(listen) => Some(Rest::start(listen, shown(&config, &statuses, shares_statuses)).await?),
        None => None,
    };
    let result = work(&config, &stream, &mut signals, args.fleet_member, rest.as_ref()).await;
    statuses::close(&*statuses).await;
    result
}

fn shown(config: &WorkerConfig, statuses: &Arc<dyn StatusStore>, shares_statuses: bool) -> Shown {
    Shown {
        application: config.application.clone(),
        stream: config.stream.clone(),
        statuses: Arc::clone(statuses),
        shares_statuses,
    }
}

/// Opens the stream, reads until something ends it, and stops in order.
async fn work(
    config: &WorkerConfig,
    stream: &KinesisStream,
    signals: &mut Signals,
    is_fleet_member: bool,
    rest: Option<&Rest>,
) -> Result<(), Failure> {
    let output_closed = Arc::new(Notify::new());
    let worker = {
        let stop = stream.stop_handle();
        let opening = start(config, stream, &output_closed, is_fleet_member);
        tokio::pin!(opening);
        tokio::select! {
            biased;
            worker = &mut opening => worker?,
            () = signals.next() => {
                say("stopping; it was not open yet");
                stop.stop();
                drop(opening.await);
                return Err(Failure::run("stopped before it was open"));
            }
        }
    };
    if let Some(rest) = rest {
        rest.opened(worker.clone());
    }
    say(&format!(
        "reading {} as {}; SIGTERM or Ctrl-C stops in order",
        config.stream, config.application
    ));
    tokio::select! {
        biased;
        () = signals.next() => say("stopping; another signal ends it at once"),
        () = output_closed.notified() => say("standard output is closed; stopping"),
        report = worker.ended() => {
            if let Some(rest) = rest {
                rest.ended();
            }
            print_report(&report);
            return Err(Failure::run("reading has ended; the last error above says why"));
        }
    }
    let report = tokio::select! {
        biased;
        report = worker.shutdown(config.shutdown_deadline) => report,
        () = signals.next_after_a_second() => return Err(Failure::run("ended at once; the leases have to expire")),
    };
    print_report(&report);
    if !report.in_time {
        return Err(Failure::run("not everything was done before shutdown_deadline"));
    }
    match report
        .shards
        .iter()
        .filter(|shard| shard.failure.is_some())
        .count()
    {
        0 => Ok(()),
        failed => Err(Failure::run(format!(
            "{failed} shards stood still because their handler failed; see above"
        ))),
    }
}

/// A worker's config file, for commands that look at its services.
pub(crate) struct WorkerConfigFile;

impl WorkerConfigFile {
    /// The settings of the status topic that the file names. Only what concerns it has to be valid.
    ///
    /// # Errors
    /// When the file cannot be read, or names no valid topic.
    pub(crate) fn status_topic(path: &std::path::Path) -> Result<KafkaSettings, Failure> {
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|e| Failure::usage(format!("reading --config {shown} failed: {e}")))?;
        let invalid = |problems: Vec<String>| {
            Failure::usage(format!("{shown} is not valid:\n  {}", problems.join("\n  ")))
        };
        let parsed = config::parse(&text).map_err(|problem| invalid(vec![problem]))?;
        let of_status = |problem: &String| problem.starts_with("status.");
        let problems: Vec<String> = parsed.problems.into_iter().filter(of_status).collect();
        if !problems.is_empty() {
            return Err(invalid(problems));
        }
        let topic = parsed.config.status.kafka().map_err(invalid)?;
        topic.ok_or_else(|| {
            Failure::usage(format!(
                "{shown} has no status topic: its workers keep their statuses in memory. Set type = \"kafka\" in [status], or ask a worker with --url"
            ))
        })
    }
}

fn print_report(report: &ShutdownReport) {
    for shard in &report.shards {
        let failure = shard
            .failure
            .as_ref()
            .map(|reason| format!("; it stood still: {reason}"))
            .unwrap_or_default();
        say(&format!(
            "{}: {:?} at {}{failure}",
            shard.shard_id, shard.outcome, shard.checkpoint
        ));
    }
}

/// SIGTERM and Ctrl-C.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// The next one after a second: some programs pass a signal on to a process that has got it already.
    async fn next_after_a_second(&mut self) {
        let clock = SystemClock::new();
        let quiet_until = clock.now() + Duration::from_secs(1);
        loop {
            self.next().await;
            if clock.now() >= quiet_until {
                return;
            }
        }
    }
}

/// The arguments, and what the file says where they say nothing.
fn aws_args(args: AwsArgs, config: &WorkerConfig) -> AwsArgs {
    AwsArgs {
        endpoint_url: args.endpoint_url.or_else(|| config.aws.endpoint_url.clone()),
        region: args.region.or_else(|| config.aws.region.clone()),
        profile: args.profile.or_else(|| config.aws.profile.clone()),
    }
}

/// The stream as the config describes it, but for the lease store. Connects to nothing.
fn described(config: &WorkerConfig, settings: &AwsSettings) -> KinesisStreamBuilder {
    let reading = &config.reading;
    let mut stream = KinesisStream::builder(config.stream.as_str(), AwsKinesis::new(settings))
        .application(config.application.as_str())
        .open_deadline(config.open_deadline)
        .failover_time(config.leases.failover_time)
        .shard_sync_interval(config.leases.shard_sync_interval)
        .fleet(config.fleet.clone())
        .batch_size(reading.batch_size)
        .poll_interval(reading.poll_interval)
        .memory_budget(reading.memory_budget)
        .unsettled_records_max(reading.unsettled_records_max)
        .unsettled_bytes_max(reading.unsettled_bytes_max)
        .aggregated(reading.aggregated)
        .hash_range_filter(reading.hash_range_filter)
        .read_limits(reading.limits);
    if let Some(worker_id) = &config.worker_id {
        stream = stream.worker_id(worker_id.as_str());
    }
    let now = SystemClock::new().wall();
    if let Some(start_at) = &config.start_at {
        stream = stream.start_at(start_at.at(now));
    }
    if let Some(position) = &config.initial_position {
        stream = stream.initial_position(position.at(now));
    }
    stream
}

async fn start(
    config: &WorkerConfig,
    stream: &KinesisStream,
    output_closed: &Arc<Notify>,
    is_fleet_member: bool,
) -> Result<SubscriptionHandle, Failure> {
    let policy = error_policy(config)?;
    let on_error = |error: &shardfleet::KinesisError| {
        if error.is_fatal() || matches!(error, shardfleet::KinesisError::ShardFailed { .. }) {
            say(&format!("error: {}", error.full_text()));
        }
    };
    let handle = match config.handler.clone() {
        HandlerConfig::Stdout => {
            let closed = Arc::clone(output_closed);
            let factory = move |_: &ShardId| StdoutProcessor {
                closed: Arc::clone(&closed),
                is_stamped: is_fleet_member,
            };
            stream.process(factory, policy, on_error).await?
        }
        HandlerConfig::Command { command, timeout } => {
            let command = Arc::new(command);
            let factory = move |shard_id: &ShardId| {
                ChildProcessor::new(shard_id.clone(), Arc::clone(&command), timeout)
            };
            stream.process(factory, policy, on_error).await?
        }
    };
    Ok(handle)
}

fn lease_store(config: &WorkerConfig, settings: &AwsSettings) -> Result<Arc<dyn LeaseStore>, Failure> {
    Ok(match &config.lease_store {
        LeaseStoreConfig::DynamoDb(dynamodb) => Arc::new(dynamodb_store(dynamodb, settings).build()),
        LeaseStoreConfig::Sqlite { path } => {
            let application = ApplicationName::new(&config.application);
            Arc::new(SqliteLeaseStore::new(path, &application).map_err(|e| Failure::usage(e.to_string()))?)
        }
        LeaseStoreConfig::Memory => Arc::new(MemoryLeaseStore::new()),
    })
}

fn dynamodb_store(config: &DynamoDbConfig, settings: &AwsSettings) -> DynamoDbLeaseStoreBuilder {
    let mut store = DynamoDbLeaseStore::builder(&config.table, settings)
        .application_name(&config.application)
        .point_in_time_recovery(config.point_in_time_recovery)
        .deletion_protection(config.deletion_protection);
    if let Some(timeout) = config.attempt_timeout {
        store = store.attempt_timeout(timeout);
    }
    if let Some(deadline) = config.prepare_deadline {
        store = store.prepare_deadline(deadline);
    }
    if let Some(deadline) = config.scan_deadline {
        store = store.scan_deadline(deadline);
    }
    if let Some(table) = &config.coordinator_state_table {
        store = store.coordinator_state_table(table);
    }
    if let Some(table) = &config.worker_metrics_table {
        store = store.worker_metrics_table(table);
    }
    if let Some((read, write)) = config.capacity {
        store = store.provisioned_capacity(read, write);
    }
    for (key, value) in &config.tags {
        store = store.tag(key, value);
    }
    store
}

fn error_policy(config: &WorkerConfig) -> Result<ErrorPolicy, Failure> {
    let errors = &config.errors;
    Ok(match &errors.dead_letter_file {
        Some(path) => {
            let file = DeadLetterFile::open(path).map_err(|e| {
                Failure::usage(format!(
                    "errors.dead_letter_file: opening {} failed: {e}",
                    path.display()
                ))
            })?;
            ErrorPolicy::dead_letter_after(errors.attempts, file)
        }
        None if errors.attempts == 0 => ErrorPolicy::retry_forever(),
        None => ErrorPolicy::stop_after(errors.attempts),
    })
}

/// Prints each record as a JSON line.
struct StdoutProcessor {
    /// Told when nobody reads the lines any more.
    closed: Arc<Notify>,
    /// Whether each line says when it was printed.
    is_stamped: bool,
}

#[async_trait]
impl RecordProcessor for StdoutProcessor {
    async fn process_records(&mut self, input: ProcessRecordsInput<'_>) -> Result<(), ProcessorError> {
        for record in input.records {
            let mut line = crate::tail::record_json(record);
            if self.is_stamped {
                line["delivered_at_micros"] = crate::stamp::micros().into();
            }
            // A record counts as settled once it is printed, so a closed output must fail.
            if let Err(error) = result_line(&line.to_string()) {
                if error.kind() == std::io::ErrorKind::BrokenPipe {
                    self.closed.notify_one();
                }
                let failure = ProcessorError::new(format!("standard output: {error}")).unrelated_to_records();
                return Err(failure.settled_before(record.position.clone()));
            }
        }
        Ok(())
    }
}

/// How long a child may take to start, and to end once it was told to.
const CHILD_PATIENCE: Duration = Duration::from_secs(10);
