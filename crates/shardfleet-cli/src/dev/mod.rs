//! `shardfleet dev`: the services in this process, and a file through a stream with every record accounted for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use shardfleet::clock::{Clock, SystemClock};
use shardfleet::kinesis::{KinesisApi, PutRecord};
use shardfleet::status::{KafkaSettings, StatusStore};
use shardfleet::store::{DynamoDbLeaseStore, LeaseStore};
use shardfleet::{AwsKinesis, AwsSettings, KinesisPosition, KinesisStream, ReadLimits, ShardId, StreamName};
use shardfleet_local::{LocalDynamoDb, LocalKinesis};

use crate::args::DevArgs;
use crate::exit::{Failure, chain};
use crate::output::{result_line, say};

pub mod accounting;
mod fleet;
mod input;

use accounting::{Account, Counts, LedgerEntry, LogEntry, fingerprint};

/// What a run comes to, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// All shards together.
    #[serde(flatten)]
    pub total: Counts,
    /// From the first put to the last ack.
    pub seconds: f64,
    /// Each shard.
    pub shards: Vec<ShardSummary>,
}

/// One shard of a [`Summary`].
#[derive(Clone, Debug, Serialize)]
pub struct ShardSummary {
    /// Its id.
    pub shard_id: String,
    /// Its counts.
    #[serde(flatten)]
    pub counts: Counts,
}

/// The services and how to reach them.
struct Services {
    kinesis: LocalKinesis,
    dynamodb: LocalDynamoDb,
}

pub(crate) async fn run(args: DevArgs) -> Result<(), Failure> {
    // Read before anything is started, so that a mistake costs nothing.
    let records = args
        .input
        .as_deref()
        .map(|path| input::read(path, args.key_field.as_deref()))
        .transpose()?;
    let topic = status_topic(&args)?;
    let services = Services::start(&args).await?;
    let result = match (args.fleet(), records) {
        (Some(workers), records) => fleet::run(&args, workers, &services, records).await,
        (None, None) => serve(&args, &services).await,
        (None, Some(records)) => {
            let statuses = crate::run::statuses::start(topic).await?;
            let result = put_and_read(&args, &services, records, &statuses).await;
            crate::run::statuses::close(&*statuses).await;
            result
        }
    };
    services.stop().await;
    result
}

/// The topic that `--status-kafka` names. A fleet's workers get it in their config files, and it is checked here before any of them starts.
fn status_topic(args: &DevArgs) -> Result<Option<KafkaSettings>, Failure> {
    let Some(brokers) = &args.status_kafka else {
        return Ok(None);
    };
    if args.input.is_none() && args.fleet().is_none() {
        return Err(Failure::usage(
            "--status-kafka needs something to tell of: add --input FILE, --workers N or --chaos",
        ));
    }
    let mut settings = KafkaSettings::new(brokers, &args.status_topic);
    // One broker is the rule on one machine.
    settings.replication_factor = -1;
    settings
        .check()
        .map_err(|error| Failure::usage(error.to_string()))?;
    Ok(Some(settings))
}

impl Services {
    async fn start(args: &DevArgs) -> Result<Self, Failure> {
        // Fixed ports are for those who connect from elsewhere; a run of its own must not collide with them.
        let is_run = args.input.is_some() || args.fleet().is_some();
        let port = |given: Option<u16>, usual| given.unwrap_or(if is_run { 0 } else { usual });
        let mut kinesis = LocalKinesis::builder().port(port(args.kinesis_port, 4567));
        let mut dynamodb = LocalDynamoDb::builder().port(port(args.dynamodb_port, 8000));
        if let Some(dir) = &args.data_dir {
            kinesis = kinesis.data_dir(dir.join("kinesis"));
            dynamodb = dynamodb.data_dir(dir.join("dynamodb"));
        }
        let kinesis = kinesis
            .start()
            .await
            .map_err(|e| Failure::run(format!("starting Kinesis failed: {}", chain(&e))))?;
        let dynamodb = dynamodb
            .start()
            .await
            .map_err(|e| Failure::run(format!("starting DynamoDB failed: {}", chain(&e))))?;
        Ok(Self { kinesis, dynamodb })
    }

    async fn settings(endpoint: String) -> AwsSettings {
        let builder = AwsSettings::builder()
            .endpoint_url(endpoint)
            .region(shardfleet_local::REGION);
        builder
            .credentials(
                shardfleet_local::ACCESS_KEY_ID,
                shardfleet_local::SECRET_ACCESS_KEY,
            )
            .load()
            .await
    }

    async fn stop(self) {
        self.kinesis.stop().await;
        self.dynamodb.stop().await;
    }
}

async fn serve(args: &DevArgs, services: &Services) -> Result<(), Failure> {
    let kinesis = services.kinesis.endpoint();
    let dynamodb = services.dynamodb.endpoint();
    let client = AwsKinesis::new(&Services::settings(kinesis.clone()).await);
    ensure_stream(&client, &args.stream, args.shard_count()).await?;
    let (region, id, secret) = (
        shardfleet_local::REGION,
        shardfleet_local::ACCESS_KEY_ID,
        shardfleet_local::SECRET_ACCESS_KEY,
    );
    let stream = &args.stream;
    say(&format!(
        "Kinesis   {kinesis}   with stream {stream:?}\n\
         DynamoDB  {dynamodb}\n\n\
         Any AWS SDK or CLI reaches both with\n\n\
         export AWS_ENDPOINT_URL_KINESIS={kinesis}\n\
         export AWS_ENDPOINT_URL_DYNAMODB={dynamodb}\n\
         export AWS_REGION={region} AWS_DEFAULT_REGION={region}\n\
         export AWS_ACCESS_KEY_ID={id} AWS_SECRET_ACCESS_KEY={secret}\n\n\
         for example\n\n\
         aws kinesis put-record --stream-name {stream} --partition-key k --cli-binary-format raw-in-base64-out --data hello\n\
         shardfleet tail {stream} --from horizon\n\n\
         Ctrl-C ends both."
    ));
    tokio::signal::ctrl_c().await?;
    Ok(())
}

async fn ensure_stream(client: &AwsKinesis, stream: &str, shards: u32) -> Result<(), Failure> {
    let name = StreamName::new(stream);
    match client.create_stream(&name, shards).await {
        Ok(()) => Ok(()),
        // A data folder brought it along, with as many shards as it has.
        Err(error) if error.kind == shardfleet::kinesis::KinesisApiErrorKind::NotReady => Ok(()),
        Err(error) => Err(Failure::usage(error.to_string())),
    }
}

async fn put_and_read(
    args: &DevArgs,
    services: &Services,
    records: Vec<PutRecord>,
    statuses: &Arc<dyn StatusStore>,
) -> Result<(), Failure> {
    if records.is_empty() {
        return Err(Failure::usage("--input holds no lines; there is nothing to put"));
    }
    let kinesis = AwsKinesis::new(&Services::settings(services.kinesis.endpoint()).await);
    ensure_stream(&kinesis, &args.stream, args.shard_count()).await?;
    let dynamodb = Services::settings(services.dynamodb.endpoint()).await;
    let store = DynamoDbLeaseStore::builder(format!("{}-accounted", args.stream), &dynamodb).build();
    let run = AccountedRun {
        kinesis: Arc::new(kinesis),
        store: Arc::new(store),
        stream: StreamName::new(&args.stream),
        statuses: Arc::clone(statuses),
        patience: args.patience,
        progress: !args.json,
    };
    let summary = run.run(records).await?;
    print_summary(&summary, args.json)?;
    if summary.total.is_complete() {
        Ok(())
    } else {
        Err(Failure::run(
            "records are lost, out of order or unexplained; see the summary",
        ))
    }
}

/// Puts records and reads them back with a worker, each side keeping its own books.
pub struct AccountedRun {
    /// Both sides use it.
    pub kinesis: Arc<dyn KinesisApi>,
    /// The worker's leases.
    pub store: Arc<dyn LeaseStore>,
    /// Where the worker says what it does.
    pub statuses: Arc<dyn StatusStore>,
    /// The stream; it exists.
    pub stream: StreamName,
    /// Gives up when nothing was delivered for so long.
    pub patience: Duration,
    /// Whether progress is shown on standard error.
    pub progress: bool,
}

impl AccountedRun {
    /// Runs to the end and compares the books.
    ///
    /// # Errors
    /// When the stream cannot be opened, or a record cannot be put. Missing records are no error but part of the summary.
    pub async fn run(&self, records: Vec<PutRecord>) -> Result<Summary, Failure> {
        let clock = SystemClock::new();
        let total = records.len() as u64;
        let bar = self.bar(total);
        // Opened before the first put and at LATEST: open means reading, so nothing put from here on may be missed.
        let subscription = KinesisStream::builder(self.stream.clone(), Arc::clone(&self.kinesis))
            .application(format!("{}-accounted", self.stream))
            .start_at(KinesisPosition::latest())
            .shared_lease_store(Arc::clone(&self.store))
            .status_store(Arc::clone(&self.statuses))
            .read_limits(ReadLimits::UNLIMITED)
            .poll_interval(Duration::from_millis(50))
            .build()?
            .subscribe()
            .await?;
        let started = clock.now();
        let producer = {
            let (kinesis, stream) = (Arc::clone(&self.kinesis), self.stream.clone());
            tokio::spawn(async move { produce(&*kinesis, &stream, &records).await })
        };
        let consumed = self.consume(subscription, total, &bar, &clock).await?;
        let seconds = consumed.last_ack.since(started).as_secs_f64();
        bar.finish_and_clear();
        let ledger = producer
            .await
            .map_err(|e| Failure::run(format!("the producer panicked: {e}")))??;
        Ok(summary_of(
            accounting::account(&ledger, &consumed.log, &consumed.checkpoints),
            seconds,
        ))
    }

    async fn consume(
        &self,
        mut subscription: shardfleet::Subscription,
        total: u64,
        bar: &ProgressBar,
        clock: &SystemClock,
    ) -> Result<Consumed, Failure> {
        let mut last_ack = clock.now();
        let mut log: Vec<LogEntry> = Vec::new();
        while (log.len() as u64) < total {
            let until = clock.now() + self.patience;
            let item = tokio::select! {
                biased;
                item = subscription.next() => item,
                () = clock.sleep_until(until) => {
                    say(&format!("nothing was delivered for {:?}; giving up", self.patience));
                    break;
                }
            };
            match item {
                Some(Ok(delivery)) => {
                    log.push(LogEntry {
                        shard_id: delivery.shard_id.clone(),
                        position: delivery.position.clone(),
                        fingerprint: fingerprint(&delivery.data),
                    });
                    delivery.ack();
                    last_ack = clock.now();
                    bar.inc(1);
                }
                Some(Err(error)) if error.is_fatal() => return Err(error.into()),
                Some(Err(error)) => say(&format!("warning: {}", error.full_text())),
                None => break,
            }
        }
        // A record that comes once too often comes right behind; a moment's look finds it.
        let look_until = clock.now() + Duration::from_millis(200);
        while let Some(Some(Ok(delivery))) = next_until(&mut subscription, clock, look_until).await {
            let (shard_id, position) = (delivery.shard_id.clone(), delivery.position.clone());
            log.push(LogEntry {
                shard_id,
                position,
                fingerprint: fingerprint(&delivery.data),
            });
            delivery.ack();
        }
        subscription.shutdown(Duration::from_secs(10)).await;
        // What is settled is what the lease table says, not what the worker believes.
        let scan = self
            .store
            .scan()
            .await
            .map_err(|e| Failure::run(format!("reading the leases failed: {e}")))?;
        let checkpoints = scan
            .leases
            .into_iter()
            .map(|lease| (lease.lease_key.shard_id(), lease.checkpoint));
        Ok(Consumed {
            log,
            checkpoints: checkpoints.collect(),
            last_ack,
        })
    }

    fn bar(&self, total: u64) -> ProgressBar {
        if !self.progress {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new(total);
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} records delivered, {per_sec}") {
            bar.set_style(style);
        }
        bar
    }
}

/// What the reading side put down.
struct Consumed {
    log: Vec<LogEntry>,
    checkpoints: BTreeMap<ShardId, shardfleet::ExtendedSequenceNumber>,
    last_ack: shardfleet::core::time::Moment,
}

async fn next_until(
    subscription: &mut shardfleet::Subscription,
    clock: &SystemClock,
    until: shardfleet::core::time::Moment,
) -> Option<Option<Result<shardfleet::Delivery, shardfleet::KinesisError>>> {
    tokio::select! {
        biased;
        item = subscription.next() => Some(item),
        () = clock.sleep_until(until) => None,
    }
}

async fn produce(
    kinesis: &dyn KinesisApi,
    stream: &StreamName,
    records: &[PutRecord],
) -> Result<Vec<LedgerEntry>, Failure> {
    let mut ledger: Vec<Option<LedgerEntry>> = vec![None; records.len()];
    crate::redrive::put_all(kinesis, stream, records, |i, shard_id, sequence_number| {
        let record = &records[i];
        let (partition_key, fingerprint) = (record.partition_key.clone(), fingerprint(&record.data));
        ledger[i] = Some(LedgerEntry {
            shard_id,
            sequence_number,
            partition_key,
            fingerprint,
        });
    })
    .await?;
    Ok(ledger.into_iter().flatten().collect())
}

fn summary_of(account: Account, seconds: f64) -> Summary {
    let shard = |(shard_id, counts): (ShardId, Counts)| ShardSummary {
        shard_id: shard_id.to_string(),
        counts,
    };
    let seconds = (seconds * 1000.0).round() / 1000.0;
    Summary {
        total: account.total,
        seconds,
        shards: account.shards.into_iter().map(shard).collect(),
    }
}

fn print_summary(summary: &Summary, as_json: bool) -> Result<(), Failure> {
    if as_json {
        let json = serde_json::to_string(summary).map_err(|e| Failure::run(e.to_string()))?;
        result_line(&json)?;
        return Ok(());
    }
    let row = |name: &str, c: &Counts| {
        format!(
            "{name:<22}{:>9}{:>11}{:>9}{:>6}{:>10}{:>14}",
            c.put, c.delivered, c.settled, c.lost, c.repeated, c.out_of_order
        )
    };
    let head = ["put", "delivered", "settled", "lost", "repeated", "out of order"];
    let [put, delivered, settled, lost, repeated, out_of_order] = head;
    let mut lines = vec![format!(
        "{:<22}{put:>9}{delivered:>11}{settled:>9}{lost:>6}{repeated:>10}{out_of_order:>14}",
        "shard"
    )];
    lines.extend(
        summary
            .shards
            .iter()
            .map(|shard| row(&shard.shard_id, &shard.counts)),
    );
    lines.push(row("total", &summary.total));
    lines.push(format!("{:.1} s", summary.seconds));
    if summary.total.unexpected > 0 {
        lines.push(format!(
            "{} deliveries that no put explains",
            summary.total.unexpected
        ));
    }
    result_line(&lines.join("\n"))?;
    Ok(())
}
