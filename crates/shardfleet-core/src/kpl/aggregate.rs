//! From user records to Kinesis records: packs as the KPL does, for tools that produce.
//!
//! It does not know the stream's shards. The user records of one aggregate go to one shard, that of the first of them, so
//! the caller packs together only what belongs together; readers drop the rest ([`super::HashRangeFilter`]).

use std::collections::BTreeMap;

use bytes::Bytes;

use super::wire::{self, DIGEST_BYTES, MAGIC, Record};
use crate::hash_range::hash_of_partition_key;

/// How large an aggregate gets unless told otherwise, in bytes (`KPL: AggregationMaxSize`).
pub const DEFAULT_MAX_AGGREGATE_BYTES: usize = 51_200;
/// The largest size that can be asked for, in bytes: data and partition key of one Kinesis record (`AWS: PutRecord`).
pub const MAX_AGGREGATE_BYTES: usize = 1 << 20;
/// The longest partition key that the service takes, in characters (`AWS: PutRecord`).
pub const MAX_PARTITION_KEY_CHARS: usize = 256;

/// Why a user record cannot be packed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AggregateError {
    /// The partition key has a length the service refuses.
    #[error("partition key has {chars} characters; 1 to {MAX_PARTITION_KEY_CHARS} are allowed")]
    PartitionKeyLength {
        /// Its length in characters.
        chars: usize,
    },
    /// The asked size is out of range.
    #[error("the largest size of an aggregate is {bytes} bytes; 1 to {MAX_AGGREGATE_BYTES} are allowed")]
    MaxBytes {
        /// The size asked for, in bytes.
        bytes: usize,
    },
}

/// A Kinesis record ready to be put.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AggregatedRecord {
    /// The record's data.
    pub data: Bytes,
    /// The record's partition key: that of the first user record.
    pub partition_key: String,
    /// The record's explicit hash key. For an aggregate it is the first user record's hash key; a user record that was
    /// alone keeps its own, or none.
    pub explicit_hash_key: Option<u128>,
    /// How many user records it holds.
    pub user_records: usize,
}

/// Packs user records into Kinesis records of a bounded size, in order.
#[derive(Debug)]
pub struct Aggregator {
    max_bytes: usize,
    first: Option<First>,
    user_records: usize,
    partition_key_indexes: BTreeMap<String, u64>,
    explicit_hash_key_indexes: BTreeMap<u128, u64>,
    partition_key_table: Vec<u8>,
    explicit_hash_key_table: Vec<u8>,
    records: Vec<u8>,
}

/// The first user record, kept because alone it is not wrapped and because it names the aggregate.
#[derive(Debug)]
struct First {
    partition_key: String,
    explicit_hash_key: Option<u128>,
    data: Bytes,
}

impl Default for Aggregator {
    fn default() -> Self {
        Self {
            max_bytes: DEFAULT_MAX_AGGREGATE_BYTES,
            first: None,
            user_records: 0,
            partition_key_indexes: BTreeMap::new(),
            explicit_hash_key_indexes: BTreeMap::new(),
            partition_key_table: Vec::new(),
            explicit_hash_key_table: Vec::new(),
            records: Vec::new(),
        }
    }
}

impl Aggregator {
    /// An aggregator whose records have at most `max_bytes` of data and partition key. [`Default`] is
    /// [`DEFAULT_MAX_AGGREGATE_BYTES`].
    ///
    /// # Errors
    /// When `max_bytes` is 0 or above [`MAX_AGGREGATE_BYTES`].
    pub fn with_max_bytes(max_bytes: usize) -> Result<Self, AggregateError> {
        if max_bytes == 0 || max_bytes > MAX_AGGREGATE_BYTES {
            return Err(AggregateError::MaxBytes { bytes: max_bytes });
        }
        Ok(Self {
            max_bytes,
            ..Self::default()
        })
    }

    /// Adds a user record. When it does not fit any more, the record built so far comes back and this one begins the next.
    /// One that alone exceeds the size is accepted; it will be a record of its own, not wrapped.
    ///
    /// # Errors
    /// When the partition key has a length the service refuses. Nothing was added then.
    pub fn add(
        &mut self,
        partition_key: &str,
        explicit_hash_key: Option<u128>,
        data: Bytes,
    ) -> Result<Option<AggregatedRecord>, AggregateError> {
        let chars = partition_key.chars().count();
        if !(1..=MAX_PARTITION_KEY_CHARS).contains(&chars) {
            return Err(AggregateError::PartitionKeyLength { chars });
        }
        let size_with_it = self.size() + self.growth(partition_key, explicit_hash_key, &data);
        let full = if size_with_it > self.max_bytes {
            self.finish()
        } else {
            None
        };
        self.push(partition_key, explicit_hash_key, data);
        Ok(full)
    }

    /// The record built so far; `None` when there is nothing in it. The aggregator is empty afterwards.
    pub fn finish(&mut self) -> Option<AggregatedRecord> {
        let first = self.first.take()?;
        let user_records = std::mem::take(&mut self.user_records);
        let tables = [
            &self.partition_key_table,
            &self.explicit_hash_key_table,
            &self.records,
        ];
        // A user record alone is not wrapped, unless readers would take it for an aggregate itself.
        let record = if user_records == 1 && !first.data.starts_with(&MAGIC) {
            AggregatedRecord {
                data: first.data,
                partition_key: first.partition_key,
                explicit_hash_key: first.explicit_hash_key,
                user_records,
            }
        } else {
            let hash_key = first
                .explicit_hash_key
                .unwrap_or_else(|| hash_of_partition_key(first.partition_key.as_bytes()));
            AggregatedRecord {
                data: Bytes::from(wire::write_envelope(&tables.map(Vec::as_slice))),
                partition_key: first.partition_key,
                explicit_hash_key: Some(hash_key),
                user_records,
            }
        };
        self.partition_key_indexes.clear();
        self.explicit_hash_key_indexes.clear();
        self.partition_key_table.clear();
        self.explicit_hash_key_table.clear();
        self.records.clear();
        Some(record)
    }

    /// Data and partition key of the record built so far, in bytes, as it would be if it were wrapped.
    pub fn size(&self) -> usize {
        let partition_key = self.first.as_ref().map_or(0, |first| first.partition_key.len());
        MAGIC.len()
            + DIGEST_BYTES
            + partition_key
            + self.partition_key_table.len()
            + self.explicit_hash_key_table.len()
            + self.records.len()
    }

    /// How many user records are waiting.
    pub fn user_records(&self) -> usize {
        self.user_records
    }

    fn growth(&self, partition_key: &str, explicit_hash_key: Option<u128>, data: &[u8]) -> usize {
        let known = self.partition_key_indexes.get(partition_key).copied();
        let mut growth = if known.is_some() {
            0
        } else {
            wire::bytes_field_len(partition_key.len())
        };
        let partition_key_index = known.unwrap_or(self.partition_key_indexes.len() as u64);
        let explicit_hash_key_index = explicit_hash_key.map(|key| {
            self.explicit_hash_key_indexes
                .get(&key)
                .copied()
                .unwrap_or_else(|| {
                    growth += wire::bytes_field_len(key.to_string().len());
                    self.explicit_hash_key_indexes.len() as u64
                })
        });
        growth
            + wire::record_field_len(&Record {
                partition_key_index,
                explicit_hash_key_index,
                data,
            })
    }

    fn push(&mut self, partition_key: &str, explicit_hash_key: Option<u128>, data: Bytes) {
        let known = self.partition_key_indexes.get(partition_key).copied();
        let partition_key_index = known.unwrap_or_else(|| {
            let next = self.partition_key_indexes.len() as u64;
            wire::write_partition_key(&mut self.partition_key_table, partition_key.as_bytes());
            self.partition_key_indexes.insert(partition_key.to_owned(), next);
            next
        });
        let explicit_hash_key_index = explicit_hash_key.map(|key| {
            let next = self.explicit_hash_key_indexes.len() as u64;
            *self.explicit_hash_key_indexes.entry(key).or_insert_with(|| {
                let text = key.to_string();
                wire::write_explicit_hash_key(&mut self.explicit_hash_key_table, text.as_bytes());
                next
            })
        });
        let record = Record {
            partition_key_index,
            explicit_hash_key_index,
            data: &data,
        };
        wire::write_record(&mut self.records, &record);
        self.user_records += 1;
        if self.first.is_none() {
            self.first = Some(First {
                partition_key: partition_key.to_owned(),
                explicit_hash_key,
                data,
            });
        }
    }
}
