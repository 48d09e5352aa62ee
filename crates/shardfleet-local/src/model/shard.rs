//! One shard: its place in the lineage and its log of records.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::hash::HashRange;
use super::limits::ShardGate;
use super::sequence::{DIGITS, END_INDEX, Sequence};
use super::{ApiError, Now};
use crate::ACCOUNT_ID;

/// The name of shard number `number`.
pub(crate) fn shard_name(number: u32) -> String {
    format!("shardId-{number:012}")
}

/// The number in a shard's name, where the name is exactly what [`shard_name`] makes.
pub(crate) fn shard_number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("shardId-")?;
    if digits.len() != 12 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// A record as it is stored: never changed, shared by reference.
#[derive(Debug)]
pub(crate) struct Record {
    /// The sequence number's decimal text.
    pub(crate) sequence: [u8; DIGITS],
    /// Its number in the shard, rising.
    pub(crate) index: u64,
    /// When it arrived, by the service's clock.
    pub(crate) arrival_ms: u64,
    /// The partition key: UTF-8, kept as bytes so that it can share the request's buffer.
    pub(crate) key: Bytes,
    /// The payload.
    pub(crate) data: Bytes,
}

impl Record {
    /// What the record counts for in size limits.
    pub(crate) fn size(&self) -> usize {
        self.data.len() + self.key.len()
    }
}

/// What a shard is, apart from its records.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ShardMeta {
    pub(crate) number: u32,
    pub(crate) range: HashRange,
    pub(crate) parent: Option<u32>,
    pub(crate) adjacent_parent: Option<u32>,
    /// See [`Sequence::made_secs`].
    pub(crate) made_secs: u64,
    pub(crate) opened_ms: u64,
    pub(crate) closed_ms: Option<u64>,
}

impl ShardMeta {
    pub(crate) fn is_open(&self) -> bool {
        self.closed_ms.is_none()
    }

    pub(crate) fn name(&self) -> String {
        shard_name(self.number)
    }

    fn sequence(&self, index: u64, ms: u64) -> Sequence {
        Sequence {
            made_secs: self.made_secs,
            index,
            time_secs: ms / 1000,
            shard: self.number,
        }
    }

    /// The sequence number below every record of the shard.
    pub(crate) fn starting_sequence(&self) -> String {
        self.sequence(0, self.opened_ms).to_text()
    }

    /// The sequence number above every record of a closed shard.
    pub(crate) fn ending_sequence(&self) -> Option<String> {
        self.closed_ms.map(|ms| self.sequence(END_INDEX, ms).to_text())
    }

    /// A sequence number right before record `next`, whether or not a record ever had it.
    pub(crate) fn sequence_before(&self, next: u64, now: Now) -> String {
        self.sequence(next.saturating_sub(1), now.epoch_ms).to_text()
    }
}

/// Where reading starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    TrimHorizon,
    Latest,
    AtTimestamp(u64),
    AtSequence(String),
    AfterSequence(String),
}

/// One answer's worth of records.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) records: Vec<Arc<Record>>,
    /// The index to go on from.
    pub(crate) next: u64,
    /// True where nothing can ever follow: the shard is closed and this page reaches its end.
    pub(crate) ended: bool,
    pub(crate) millis_behind: u64,
    /// Payloads and keys of the page.
    pub(crate) bytes: u64,
}

/// A shard with its records.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) meta: ShardMeta,
    log: VecDeque<Arc<Record>>,
    next_index: u64,
    last_arrival_ms: u64,
    /// Iterators with an issue number up to this are expired, whatever their age.
    pub(crate) expired_through: u64,
    pub(crate) gate: ShardGate,
}

impl Shard {
    pub(crate) fn new(meta: ShardMeta) -> Self {
        Self {
            last_arrival_ms: meta.opened_ms,
            meta,
            log: VecDeque::new(),
            next_index: 1,
            expired_through: 0,
            gate: ShardGate::default(),
        }
    }

    /// The index that the next record gets, and that LATEST stands for.
    pub(crate) fn next_index(&self) -> u64 {
        self.next_index
    }

    /// The records that are kept, oldest first.
    pub(crate) fn records(&self) -> impl Iterator<Item = &Arc<Record>> {
        self.log.iter()
    }

    /// Appends a record. Arrival times never go back within a shard, whatever the clock does, so that a search by time works.
    pub(crate) fn append(&mut self, now: Now, key: Bytes, data: Bytes) -> Arc<Record> {
        let arrival_ms = self.last_arrival_ms.max(now.epoch_ms);
        self.restore(self.next_index, arrival_ms, key, data)
    }

    /// Puts back a record with the index and arrival time that it had.
    pub(crate) fn restore(&mut self, index: u64, arrival_ms: u64, key: Bytes, data: Bytes) -> Arc<Record> {
        let sequence = self.meta.sequence(index, arrival_ms).to_digits();
        let record = Arc::new(Record {
            sequence,
            index,
            arrival_ms,
            key,
            data,
        });
        self.last_arrival_ms = arrival_ms;
        self.next_index = self.next_index.max(index + 1);
        self.log.push_back(Arc::clone(&record));
        record
    }

    /// The index of the newest record that is kept.
    pub(crate) fn newest_index(&self) -> Option<u64> {
        self.log.back().map(|r| r.index)
    }

    /// Leaves a gap before the next record's index, so that a number given out for a record that was lost is not given out again.
    pub(crate) fn skip_indexes(&mut self, count: u64) {
        self.next_index = self.next_index.saturating_add(count);
    }

    /// Drops records that arrived before `horizon_ms`. True where any was.
    pub(crate) fn trim(&mut self, horizon_ms: u64) -> bool {
        let keep_from = self.log.partition_point(|r| r.arrival_ms < horizon_ms);
        self.log.drain(..keep_from);
        keep_from > 0
    }

    /// The index at which a reader starts.
    ///
    /// A position whose records were trimmed stands for the oldest kept record, without an error (AWS: `GetShardIterator`).
    pub(crate) fn locate(&self, start: &Start, stream: &str, now: Now) -> Result<u64, ApiError> {
        match start {
            Start::TrimHorizon => Ok(0),
            Start::Latest => Ok(self.next_index),
            Start::AtTimestamp(ms) => {
                if *ms > now.epoch_ms {
                    return Err(ApiError::invalid(format!(
                        "The timestampInMillis parameter cannot be greater than the currentTimestampInMillis. \
                         timestampInMillis: {ms}, currentTimestampInMillis: {}",
                        now.epoch_ms
                    )));
                }
                let at = self.log.partition_point(|r| r.arrival_ms < *ms);
                Ok(self.log.get(at).map_or(self.next_index, |r| r.index))
            }
            Start::AtSequence(text) => self.index_of(text, stream),
            Start::AfterSequence(text) => Ok(self.index_of(text, stream)?.saturating_add(1)),
        }
        // Beyond the newest record a position means the next one to come; otherwise a record could be stepped over.
        .map(|index| index.min(self.next_index))
    }

    fn index_of(&self, text: &str, stream: &str) -> Result<u64, ApiError> {
        let name = self.meta.name();
        let used = format!(
            "StartingSequenceNumber {text} used in GetShardIterator on shard {name} in stream {stream} under account {ACCOUNT_ID}"
        );
        let Some(sequence) = Sequence::parse(text) else {
            return Err(ApiError::invalid(format!("{used} is invalid.")));
        };
        if sequence.made_secs == self.meta.made_secs && sequence.shard == self.meta.number {
            return Ok(sequence.index);
        }
        if sequence.shard != self.meta.number && sequence.made_secs >= self.meta.made_secs {
            return Err(ApiError::invalid(format!(
                "Invalid StartingSequenceNumber. It encodes {}, while it was used in a call to a shard with {name}",
                shard_name(sequence.shard)
            )));
        }
        Err(ApiError::invalid(format!(
            "{used} is invalid because it did not come from this stream."
        )))
    }

    /// Reads from `index` on: at most `limit` records and `max_bytes`, but at least one record where there is one.
    pub(crate) fn read(&self, index: u64, limit: usize, max_bytes: usize, now: Now) -> Page {
        let first = self.log.partition_point(|r| r.index < index);
        let mut bytes = 0usize;
        let mut records = Vec::with_capacity(limit.min(self.log.len() - first));
        for record in self.log.range(first..).take(limit) {
            let with = bytes + record.size();
            if with > max_bytes && !records.is_empty() {
                break;
            }
            bytes = with;
            records.push(Arc::clone(record));
        }
        let unread = self.log.get(first + records.len());
        let next = match (records.last(), unread) {
            (_, None) => self.next_index.max(index),
            (Some(last), Some(_)) => last.index + 1,
            (None, Some(unread)) => unread.index,
        };
        let millis_behind = unread.map_or(0, |unread| {
            let at = records.last().map_or(unread.arrival_ms, |last| last.arrival_ms);
            now.epoch_ms.saturating_sub(at)
        });
        let ended = unread.is_none() && !self.meta.is_open();
        Page {
            records,
            next,
            ended,
            millis_behind,
            bytes: bytes as u64,
        }
    }

    /// How far the oldest unread record from `index` on lies behind `now`.
    pub(crate) fn millis_behind(&self, index: u64, now: Now) -> u64 {
        let first = self.log.partition_point(|r| r.index < index);
        self.log
            .get(first)
            .map_or(0, |r| now.epoch_ms.saturating_sub(r.arrival_ms))
    }
}
