//! The two processes of `cargo xtask bench read` beside the server: one fills a stream, one reads it and says what that cost.
//!
//! `read_bench fill ENDPOINT SHARDS RECORDS BYTES` and `read_bench read ENDPOINT RECORDS`

use std::time::Duration;

use futures::StreamExt;
use shardfleet::clock::{Clock, SystemClock};
use shardfleet::kinesis::{KinesisApi, PutOutcome, PutRecord};
use shardfleet::{AwsKinesis, AwsSettings, KinesisPosition, KinesisStream, ReadLimits, StreamName};

type Failure = Box<dyn std::error::Error>;

const STREAM: &str = "bench";

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["fill", endpoint, shards, records, bytes] => {
            fill(endpoint, shards.parse()?, records.parse()?, bytes.parse()?).await
        }
        ["read", endpoint, records] => read(endpoint, records.parse()?).await,
        _ => Err("read_bench fill ENDPOINT SHARDS RECORDS BYTES | read_bench read ENDPOINT RECORDS".into()),
    }
}

async fn kinesis(endpoint: &str) -> AwsKinesis {
    let settings = AwsSettings::builder().endpoint_url(endpoint).region("us-east-1");
    AwsKinesis::new(&settings.credentials("local", "local").load().await)
}

async fn fill(endpoint: &str, shards: u32, records: u64, bytes: usize) -> Result<(), Failure> {
    let kinesis = kinesis(endpoint).await;
    let stream = StreamName::new(STREAM);
    kinesis.create_stream(&stream, shards).await?;
    while kinesis.describe_stream(&stream).await?.status != "ACTIVE" {
        tokio::task::yield_now().await;
    }
    let numbers: Vec<u64> = (0..records).collect();
    // Four calls of 500 at a time keep the server busy.
    let pages = futures::stream::iter(numbers.chunks(500).map(<[u64]>::to_vec)).map(|page| {
        let (kinesis, stream) = (kinesis.clone(), stream.clone());
        async move {
            let record = |n: &u64| PutRecord {
                partition_key: n.to_string(),
                explicit_hash_key: None,
                data: vec![b'x'; bytes].into(),
            };
            let outcomes = kinesis
                .put_records(&stream, &page.iter().map(record).collect::<Vec<_>>())
                .await?;
            match outcomes
                .iter()
                .find(|outcome| matches!(outcome, PutOutcome::Refused { .. }))
            {
                Some(refused) => Err(Failure::from(format!("a record was refused: {refused:?}"))),
                None => Ok(()),
            }
        }
    });
    let mut pages = pages.buffer_unordered(4);
    while let Some(put) = pages.next().await {
        put?;
    }
    Ok(())
}

async fn read(endpoint: &str, records: u64) -> Result<(), Failure> {
    let clock = SystemClock::new();
    let started = clock.now();
    let stream = KinesisStream::builder(STREAM, kinesis(endpoint).await)
        .start_at(KinesisPosition::horizon())
        .read_limits(ReadLimits::UNLIMITED)
        .poll_interval(Duration::from_millis(100))
        .build()?;
    let mut subscription = stream.subscribe().await?;
    let (mut count, mut bytes) = (0_u64, 0_u64);
    let mut first = None;
    while count < records {
        let delivery = subscription.next().await.ok_or("the subscription ended")??;
        first.get_or_insert_with(|| clock.now());
        count += 1;
        bytes += delivery.data.len() as u64;
        delivery.ack();
    }
    let seconds = clock.now().since(started).as_secs_f64();
    let until_first = first.map_or(0.0, |first| first.since(started).as_secs_f64());
    let (peak_kib, cpu_seconds) = (peak_kib()?, cpu_seconds()?);
    subscription.shutdown(Duration::from_secs(5)).await;
    #[expect(clippy::print_stdout, reason = "the benchmark reads this line")]
    {
        println!(
            "{{\"records\":{count},\"bytes\":{bytes},\"seconds\":{seconds:.3},\"first_record_seconds\":{until_first:.3},\
             \"cpu_seconds\":{cpu_seconds:.2},\"peak_kib\":{peak_kib}}}"
        );
    }
    Ok(())
}

/// Peak resident memory of this process.
fn peak_kib() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .ok_or("no VmHWM")?;
    Ok(line.split_whitespace().nth(1).ok_or("no VmHWM")?.parse()?)
}

/// Processor time of this process, user and system.
fn cpu_seconds() -> Result<f64, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name in parentheses may hold spaces; fields are counted from behind it.
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .ok_or("no fields")?
        .split_whitespace()
        .collect();
    let ticks = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
    Ok(ticks / 100.0)
}
