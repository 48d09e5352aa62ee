//! `shardfleet redrive`: puts set-aside records onto a stream again.

use std::collections::BTreeMap;
use std::time::Duration;

use shardfleet::clock::{Clock, SystemClock};
use shardfleet::dead_letter::DeadLetter;
use shardfleet::kinesis::{KinesisApi, PutOutcome, PutRecord};
use shardfleet::{AwsKinesis, Backoff, SequenceNumber, ShardId, StreamName};

use crate::args::RedriveArgs;
use crate::exit::Failure;
use crate::output::{result_line, say};

/// `AWS: PutRecords` takes up to 500 records and 10 MiB; half of that leaves room for what surrounds them.
pub(crate) const PUT_RECORDS_MAX: usize = 500;
pub(crate) const PUT_BYTES_MAX: usize = 5 << 20;

const ATTEMPTS_MAX: u32 = 20;

pub(crate) async fn run(args: RedriveArgs) -> Result<(), Failure> {
    let text = std::fs::read(&args.file)
        .map_err(|e| Failure::usage(format!("reading {} failed: {e}", args.file.display())))?;
    let mut by_stream: BTreeMap<String, Vec<PutRecord>> = BTreeMap::new();
    for (i, line) in text
        .split(|byte| *byte == b'\n')
        .enumerate()
        .filter(|(_, line)| !line.trim_ascii().is_empty())
    {
        let at = || format!("{}, line {}", args.file.display(), i + 1);
        let read = serde_json::from_slice::<DeadLetter>(line).map_err(|e| e.to_string());
        let read = read.and_then(|letter| match letter.data() {
            Ok(data) => Ok((letter, data)),
            Err(e) => Err(format!("data_base64: {e}")),
        });
        let (letter, data) = match read {
            Ok(read) => read,
            Err(reason) if args.skip_bad_lines => {
                say(&format!("warning: {} is left out: {reason}", at()));
                continue;
            }
            Err(reason) => {
                return Err(Failure::usage(format!(
                    "{}: {reason}; --skip-bad-lines leaves such lines out",
                    at()
                )));
            }
        };
        let record = PutRecord {
            // A record without a key comes from a stream that places records by itself; any key will do there.
            partition_key: letter
                .partition_key
                .unwrap_or_else(|| letter.sequence_number.clone()),
            explicit_hash_key: letter.explicit_hash_key,
            data: data.into(),
        };
        by_stream
            .entry(args.stream.clone().unwrap_or(letter.stream))
            .or_default()
            .push(record);
    }
    let kinesis = AwsKinesis::new(&crate::aws::settings(&args.aws).await?);
    for (stream, records) in by_stream {
        let count = records.len();
        put_all(&kinesis, &StreamName::new(&stream), &records, |_, _, _| {}).await?;
        result_line(&format!("{count} records put onto {stream}"))?;
    }
    Ok(())
}

/// Puts every record, trying again those that were refused; a call's worth at a time, so that later records wait for refused ones before them.
/// `on_put` is told each record's place in the list and where it went.
pub(crate) async fn put_all(
    kinesis: &dyn KinesisApi,
    stream: &StreamName,
    records: &[PutRecord],
    mut on_put: impl FnMut(usize, ShardId, SequenceNumber),
) -> Result<(), Failure> {
    let mut next = 0;
    while next < records.len() {
        let end = next + page_len(&records[next..]);
        put_page(kinesis, stream, records, (next..end).collect(), &mut on_put).await?;
        next = end;
    }
    Ok(())
}

async fn put_page(
    kinesis: &dyn KinesisApi,
    stream: &StreamName,
    records: &[PutRecord],
    mut left: Vec<usize>,
    on_put: &mut impl FnMut(usize, ShardId, SequenceNumber),
) -> Result<(), Failure> {
    let clock = SystemClock::new();
    let backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    for attempt in 0..ATTEMPTS_MAX {
        let page: Vec<PutRecord> = left.iter().map(|i| records[*i].clone()).collect();
        let reason = match kinesis.put_records(stream, &page).await {
            Ok(outcomes) => {
                let mut refused = Vec::new();
                let mut reason = String::new();
                for (i, outcome) in left.into_iter().zip(outcomes) {
                    match outcome {
                        PutOutcome::Put {
                            shard_id,
                            sequence_number,
                        } => on_put(i, shard_id, sequence_number),
                        PutOutcome::Refused { code, message } => {
                            refused.push(i);
                            reason = format!("{code}: {message}");
                        }
                    }
                }
                left = refused;
                reason
            }
            Err(error) if error.is_retryable() => error.to_string(),
            Err(error) => return Err(Failure::run(error.to_string())),
        };
        if left.is_empty() {
            return Ok(());
        }
        say(&format!(
            "warning: {} records were not taken and are put again ({reason})",
            left.len()
        ));
        clock
            .sleep_until(clock.now() + backoff.delay(attempt, clock.chance()))
            .await;
    }
    Err(Failure::run(format!(
        "{} records were refused {ATTEMPTS_MAX} times in a row",
        left.len()
    )))
}

fn page_len(records: &[PutRecord]) -> usize {
    let mut bytes = 0;
    let within = |record: &&PutRecord| {
        bytes += record.data.len() + record.partition_key.len();
        bytes <= PUT_BYTES_MAX
    };
    records
        .iter()
        .take(PUT_RECORDS_MAX)
        .take_while(within)
        .count()
        .max(1)
}
