//! What is put while a fleet reads: the lines of a file, or records made up for it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use shardfleet::clock::{Clock, SystemClock};
use shardfleet::kinesis::{KinesisApi, PutRecord};
use shardfleet::{SequenceNumber, ShardId, StreamName};
use tokio::sync::{mpsc, watch};

use crate::dev::accounting::{LedgerEntry, fingerprint};
use crate::exit::Failure;
use crate::redrive::{PUT_RECORDS_MAX, put_all};
use crate::stamp;

/// How many records are made up at least.
pub(super) const GENERATED_MIN: u64 = 20_000;

/// How often records are put.
const BEAT: Duration = Duration::from_millis(100);

/// A prime, so that keys fall on shards in no pattern of the rate's.
const KEYS: u64 = 211;

/// What is put.
#[derive(Debug)]
pub(super) enum Load {
    /// These, as fast as they are taken.
    Lines(Vec<PutRecord>),
    /// These, spread over the time given.
    Spread(Vec<PutRecord>, Duration),
    /// So many made-up ones a second: at least [`GENERATED_MIN`], and on until the end is announced.
    Generated(u64),
}

/// A record that the service has acknowledged.
#[derive(Clone, Debug)]
pub(super) struct Put {
    pub(super) entry: LedgerEntry,
    /// When, by the machine's clock, in microseconds.
    pub(super) at: u64,
}

impl Load {
    /// How many records there will be, if that is known.
    pub(super) fn total(&self) -> Option<u64> {
        match self {
            Self::Lines(records) | Self::Spread(records, _) => Some(records.len() as u64),
            Self::Generated(_) => None,
        }
    }

    /// The records from the `sent`th on that are due, a call's worth at most.
    fn due(&self, sent: u64, elapsed: Duration) -> Vec<PutRecord> {
        let page = PUT_RECORDS_MAX as u64;
        let until = match self {
            Self::Lines(records) => records.len() as u64,
            Self::Spread(records, over) => {
                let all = records.len() as u128;
                let due = all * elapsed.as_millis() / over.as_millis().max(1);
                // One at once, however few there are.
                u64::try_from(due.min(all).max(1)).unwrap_or(u64::MAX)
            }
            Self::Generated(rate) => {
                let due = u128::from(*rate) * elapsed.as_millis() / 1000;
                u64::try_from(due).unwrap_or(u64::MAX)
            }
        };
        let until = until.min(sent + page);
        match self {
            Self::Lines(records) | Self::Spread(records, _) => {
                let place = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).min(records.len());
                records[place(sent)..place(until.max(sent))].to_vec()
            }
            Self::Generated(_) => (sent..until).map(generated).collect(),
        }
    }
}

/// A record like none before it.
fn generated(n: u64) -> PutRecord {
    let key = format!("customer-{}", n % KEYS);
    let data = json!({ "order": n, "customer": key, "cents": n * 7919 % 100_000 }).to_string();
    PutRecord {
        partition_key: key,
        explicit_hash_key: None,
        data: data.into(),
    }
}

/// Puts the load, telling `puts` of each call's records in their order. `is_over` announces the end of a load that has none of its own.
pub(super) async fn produce(
    kinesis: Arc<dyn KinesisApi>,
    stream: StreamName,
    load: Load,
    is_over: watch::Receiver<bool>,
    puts: mpsc::Sender<Vec<Put>>,
) -> Result<(), Failure> {
    let clock = SystemClock::new();
    let started = clock.now();
    let mut sent = 0_u64;
    loop {
        let has_ended = match load.total() {
            Some(total) => sent >= total,
            None => sent >= GENERATED_MIN && *is_over.borrow(),
        };
        if has_ended {
            return Ok(());
        }
        let records = load.due(sent, clock.now().since(started));
        if records.is_empty() {
            clock.sleep_until(clock.now() + BEAT).await;
            continue;
        }
        let entries = put(&*kinesis, &stream, &records).await?;
        sent += records.len() as u64;
        // Nobody listens once the run has been given up.
        if puts.send(entries).await.is_err() {
            return Ok(());
        }
    }
}

async fn put(
    kinesis: &dyn KinesisApi,
    stream: &StreamName,
    records: &[PutRecord],
) -> Result<Vec<Put>, Failure> {
    let mut places: Vec<Option<(ShardId, SequenceNumber)>> = vec![None; records.len()];
    put_all(kinesis, stream, records, |i, shard_id, number| {
        places[i] = Some((shard_id, number));
    })
    .await?;
    let at = stamp::micros();
    let entry = |(record, place): (&PutRecord, Option<(ShardId, SequenceNumber)>)| {
        let (shard_id, sequence_number) = place?;
        Some(Put {
            at,
            entry: LedgerEntry {
                shard_id,
                sequence_number,
                partition_key: record.partition_key.clone(),
                fingerprint: fingerprint(&record.data),
            },
        })
    };
    Ok(records.iter().zip(places).filter_map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_load_is_due_bit_by_bit_and_never_twice() {
        let records: Vec<_> = (0..1000).map(generated).collect();
        let load = Load::Spread(records, Duration::from_secs(10));
        let due = |sent, millis| load.due(sent, Duration::from_millis(millis)).len();
        assert_eq!(
            (due(0, 0), due(1, 0), due(1, 1_000), due(100, 1_000)),
            (1, 0, 99, 0)
        );
        assert_eq!(
            (due(0, 60_000), due(500, 60_000), due(1000, 60_000)),
            (500, 500, 0)
        );
    }

    #[test]
    fn made_up_records_go_on_at_their_rate() {
        let load = Load::Generated(600);
        let due = |sent, millis| load.due(sent, Duration::from_millis(millis)).len();
        assert_eq!((due(0, 100), due(60, 100), due(60, 200)), (60, 0, 60));
        assert_eq!(due(0, 60_000), 500, "a call's worth");
        assert_eq!(generated(KEYS).partition_key, generated(0).partition_key);
        assert_ne!(generated(KEYS).data, generated(0).data);
    }
}
