//! `shardfleet run`: a worker with a handler, from a config file.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use shardfleet::clock::{Clock, SystemClock};
use shardfleet::dead_letter::DeadLetterFile;
use shardfleet::store::{DynamoDbLeaseStore, LeaseStore, MemoryLeaseStore, SqliteLeaseStore};
use shardfleet::{
    ApplicationName, AwsKinesis, AwsSettings, ErrorPolicy, KinesisStream, ProcessRecordsInput,
    ProcessorError, RecordProcessor, ShardId, ShutdownReport, SubscriptionHandle,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::args::{AwsArgs, RunArgs};
use crate::exit::Failure;
use crate::output::{result_line, say};

mod child;
mod config;

use child::ChildProcessor;
use config::{HandlerConfig, LeaseStoreConfig, WorkerConfig};

pub(crate) async fn run(args: RunArgs) -> Result<(), Failure> {
    let path = args.config.display();
    let text = std::fs::read_to_string(&args.config)
        .map_err(|e| Failure::usage(format!("reading --config {path} failed: {e}")))?;
    let config = config::parse(&text)
        .map_err(|problems| Failure::usage(format!("{path} is not valid:\n  {}", problems.join("\n  "))))?;
    if args.check {
        result_line(&format!("{path} is valid\n{config:#?}"))?;
        return Ok(());
    }
    let aws_args = AwsArgs {
        endpoint_url: args.aws.endpoint_url.or_else(|| config.aws.endpoint_url.clone()),
        region: args.aws.region.or_else(|| config.aws.region.clone()),
        profile: args.aws.profile.or_else(|| config.aws.profile.clone()),
    };
    let settings = crate::aws::settings(&aws_args).await?;
    // Listened for from the start, so that a stop while the worker opens releases its leases too.
    let mut signals = Signals::listen()?;
    let worker = tokio::select! {
        biased;
        () = signals.next() => return Err(Failure::run("stopped before it was open")),
        worker = start(&config, &settings) => worker?,
    };
    say(&format!(
        "reading {} as {}; SIGTERM or Ctrl-C stops in order",
        config.stream, config.application
    ));
    tokio::select! {
        biased;
        () = signals.next() => {}
        report = worker.ended() => {
            print_report(&report);
            return Err(Failure::run("reading has ended; the last error above says why"));
        }
    }
    say("stopping; another signal ends it at once");
    let report = tokio::select! {
        biased;
        report = worker.shutdown(config.shutdown_deadline) => report,
        () = signals.next() => return Err(Failure::run("ended at once; the leases have to expire")),
    };
    print_report(&report);
    if report.in_time {
        Ok(())
    } else {
        Err(Failure::run("not everything was done before shutdown_deadline"))
    }
}

fn print_report(report: &ShutdownReport) {
    for shard in &report.shards {
        say(&format!(
            "{}: {:?} at {}",
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
}

async fn start(config: &WorkerConfig, settings: &AwsSettings) -> Result<SubscriptionHandle, Failure> {
    let store = lease_store(config, settings)?;
    let reading = &config.reading;
    let mut stream = KinesisStream::builder(config.stream.as_str(), AwsKinesis::new(settings))
        .application(config.application.as_str())
        .shared_lease_store(store)
        .failover_time(config.leases.failover_time)
        .shard_sync_interval(config.leases.shard_sync_interval)
        .batch_size(reading.batch_size)
        .poll_interval(reading.poll_interval)
        .memory_budget(reading.memory_budget)
        .unsettled_records_max(reading.unsettled_records_max)
        .unsettled_bytes_max(reading.unsettled_bytes_max)
        .aggregated(reading.aggregated);
    if let Some(worker_id) = &config.worker_id {
        stream = stream.worker_id(worker_id.as_str());
    }
    if let Some(start_at) = &config.start_at {
        stream = stream.start_at(start_at.at(SystemClock::new().wall()));
    }
    let stream = stream.build()?;
    let policy = error_policy(config)?;
    let on_error = |error: &shardfleet::KinesisError| {
        if error.is_fatal() || matches!(error, shardfleet::KinesisError::ShardFailed { .. }) {
            say(&format!("error: {}", error.full_text()));
        }
    };
    let handle = match config.handler.clone() {
        HandlerConfig::Stdout => {
            stream
                .process(|_: &ShardId| StdoutProcessor, policy, on_error)
                .await?
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
        LeaseStoreConfig::DynamoDb { table } => {
            Arc::new(DynamoDbLeaseStore::builder(table, settings).build())
        }
        LeaseStoreConfig::Sqlite { path } => {
            let application = ApplicationName::new(&config.application);
            Arc::new(SqliteLeaseStore::new(path, &application).map_err(|e| Failure::usage(e.to_string()))?)
        }
        LeaseStoreConfig::Memory => Arc::new(MemoryLeaseStore::new()),
    })
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
struct StdoutProcessor;

#[async_trait]
impl RecordProcessor for StdoutProcessor {
    async fn process_records(&mut self, input: ProcessRecordsInput<'_>) -> Result<(), ProcessorError> {
        for record in input.records {
            // A record counts as settled once it is printed, so a closed output must fail.
            result_line(&crate::tail::record_json(record).to_string()).map_err(|e| {
                ProcessorError::new(format!("standard output: {e}")).at(record.position.clone())
            })?;
        }
        Ok(())
    }
}

/// How long a child may take to start, and to end once it was told to.
const CHILD_PATIENCE: Duration = Duration::from_secs(10);
