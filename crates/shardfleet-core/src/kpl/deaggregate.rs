//! From a Kinesis record to its user records.
//!
//! Follows `KCL: AggregatorUtil#deaggregate`, with two differences. The hash range filter drops only the user records
//! that belong to another shard, not their neighbours ([`HashRangeFilter`]). And a user record that cannot be resolved is
//! reported ([`KplProblem`]) instead of ending the worker.

use std::sync::Arc;

use bytes::Bytes;

use super::wire::{self, Message};
use crate::hash_range::{HashKeyRange, hash_of_partition_key};

// A hostile explicit hash key must not grow the report without bound; a legal one has at most 39 digits.
const MAX_REPORTED_CHARS: usize = 64;

/// What to do with user records that, by their hash key, belong to another shard. They appear when the producer's view of
/// the shards was stale after a split or merge. Plain records are never filtered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HashRangeFilter {
    /// Drop the user records outside and keep the rest. A KPL of 2024 or later sends only those again; an older one
    /// sends the whole aggregate again, so that the kept ones come twice. Nothing is lost with either.
    #[default]
    PerRecord,
    /// Drop the whole aggregate as soon as one user record lies outside, as the Java KCL does. With a KPL of 2024 or
    /// later that loses the user records inside.
    WholeAggregate,
    /// Keep everything and do not look at hash keys. For streams whose record distribution strategy is `AUTO`, where
    /// the service ignores hash keys.
    Off,
}

/// One record as the producer wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UserRecord {
    /// Its number in the aggregate, from 0, also counting the ones that were dropped; 0 for a plain record.
    pub sub_sequence_number: u64,
    /// Its partition key. Absent only for a plain record of a stream whose record distribution strategy is `AUTO`.
    pub partition_key: Option<Arc<str>>,
    /// Its explicit hash key as the producer wrote it; known for aggregated ones only.
    pub explicit_hash_key: Option<Arc<str>>,
    /// The data: a slice of the Kinesis record's, not a copy.
    pub data: Bytes,
    /// Whether it came out of an aggregate.
    pub aggregated: bool,
}

/// What [`deaggregate`] made of a Kinesis record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deaggregated {
    /// The user records, by rising sub-sequence number. Empty for an aggregate that holds none, or only foreign ones.
    pub records: Vec<UserRecord>,
    /// How many user records the hash range filter dropped.
    pub outside_range: usize,
    /// The user record at which the reading stopped, if one could not be resolved.
    pub problem: Option<KplProblem>,
}

/// A user record of a valid aggregate that could not be resolved. The ones before it were delivered; it and all after it
/// were not, as in the Java KCL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "user record {sub_sequence_number} of an aggregated record: {reason}; {lost} user records were not delivered"
)]
#[non_exhaustive]
pub struct KplProblem {
    /// Its number in the aggregate, from 0.
    pub sub_sequence_number: u64,
    /// What is wrong with it.
    pub reason: KplProblemReason,
    /// How many user records were not delivered: this one and all after it.
    pub lost: usize,
}

/// Why a user record could not be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KplProblemReason {
    /// The partition key index points past the table.
    #[error("partition key index {index} lies outside the table of {table_len} entries")]
    PartitionKeyIndex {
        /// The index as written.
        index: u64,
        /// How many entries the table has.
        table_len: usize,
    },
    /// The explicit hash key index points past the table.
    #[error("explicit hash key index {index} lies outside the table of {table_len} entries")]
    ExplicitHashKeyIndex {
        /// The index as written.
        index: u64,
        /// How many entries the table has.
        table_len: usize,
    },
    /// The explicit hash key is no decimal number.
    #[error(
        "explicit hash key {0:?} is not a decimal number from 0 to 340282366920938463463374607431768211455"
    )]
    ExplicitHashKeyNotANumber(String),
}

/// Whether a Kinesis record's data is a valid aggregate.
pub fn is_aggregated(data: &[u8]) -> bool {
    wire::read(data).is_some()
}

/// Unpacks a Kinesis record. A plain record comes back as the only user record, with the given partition key.
///
/// `range` is the hash key range of the shard the record was read from; `None` when it is not known, which then counts as
/// the full range (`KCL: ProcessTask`).
pub fn deaggregate(
    data: &Bytes,
    partition_key: Option<Arc<str>>,
    range: Option<HashKeyRange>,
    filter: HashRangeFilter,
) -> Deaggregated {
    let mut records = Vec::new();
    let (outside_range, problem) = deaggregate_into(&mut records, data, partition_key, range, filter);
    Deaggregated {
        records,
        outside_range,
        problem,
    }
}

/// As [`deaggregate`], appending to `records`, so that a batch of plain records needs one list and not one each. Returns how
/// many user records the filter dropped, and the problem.
pub fn deaggregate_into(
    records: &mut Vec<UserRecord>,
    data: &Bytes,
    partition_key: Option<Arc<str>>,
    range: Option<HashKeyRange>,
    filter: HashRangeFilter,
) -> (usize, Option<KplProblem>) {
    let Some(message) = wire::read(data) else {
        records.push(UserRecord {
            sub_sequence_number: 0,
            partition_key,
            explicit_hash_key: None,
            data: data.clone(),
            aggregated: false,
        });
        return (0, None);
    };
    Unpacking::new(data, &message, range.unwrap_or(HashKeyRange::FULL), filter).run(&message, records)
}

/// One aggregate being unpacked.
struct Unpacking<'a> {
    data: &'a Bytes,
    partition_keys: Vec<Entry<'a>>,
    explicit_hash_keys: Vec<Entry<'a>>,
    range: HashKeyRange,
    filter: HashRangeFilter,
}

/// A table entry. Any number of user records may refer to it, so it is decoded and judged once.
struct Entry<'a> {
    raw: &'a [u8],
    text: Option<Arc<str>>,
    is_inside: Option<bool>,
}

impl<'a> Entry<'a> {
    fn table(raw: &[&'a [u8]]) -> Vec<Self> {
        raw.iter()
            .map(|raw| Self {
                raw,
                text: None,
                is_inside: None,
            })
            .collect()
    }

    /// Java reads bytes that are not UTF-8 as U+FFFD, and hashes the text so read.
    fn text(&mut self) -> Arc<str> {
        self.text
            .get_or_insert_with(|| Arc::from(String::from_utf8_lossy(self.raw)))
            .clone()
    }
}

impl<'a> Unpacking<'a> {
    fn new(data: &'a Bytes, message: &Message<'a>, range: HashKeyRange, filter: HashRangeFilter) -> Self {
        Self {
            data,
            partition_keys: Entry::table(&message.partition_keys),
            explicit_hash_keys: Entry::table(&message.explicit_hash_keys),
            range,
            filter,
        }
    }

    fn run(mut self, message: &Message<'_>, records: &mut Vec<UserRecord>) -> (usize, Option<KplProblem>) {
        let first = records.len();
        let mut outside_range = 0;
        for (number, record) in message.records.iter().enumerate() {
            match self.resolve(number as u64, record) {
                Ok(Some(user_record)) => records.push(user_record),
                Ok(None) if self.filter == HashRangeFilter::WholeAggregate => {
                    records.truncate(first);
                    return (message.records.len(), None);
                }
                Ok(None) => outside_range += 1,
                Err(reason) => {
                    let lost = message.records.len() - number;
                    let problem = KplProblem {
                        sub_sequence_number: number as u64,
                        reason,
                        lost,
                    };
                    return (outside_range, Some(problem));
                }
            }
        }
        (outside_range, None)
    }

    /// `None` for a user record of another shard.
    fn resolve(
        &mut self,
        sub_sequence_number: u64,
        record: &wire::Record<'_>,
    ) -> Result<Option<UserRecord>, KplProblemReason> {
        let (range, filter) = (self.range, self.filter);
        let index = record.partition_key_index;
        let table_len = self.partition_keys.len();
        let partition_key = entry(&mut self.partition_keys, index)
            .ok_or(KplProblemReason::PartitionKeyIndex { index, table_len })?;
        let explicit_hash_key = match record.explicit_hash_key_index {
            None => None,
            Some(index) => {
                let table_len = self.explicit_hash_keys.len();
                let entry = entry(&mut self.explicit_hash_keys, index)
                    .ok_or(KplProblemReason::ExplicitHashKeyIndex { index, table_len })?;
                Some(entry)
            }
        };
        let (explicit_hash_key, is_inside) = match explicit_hash_key {
            Some(entry) => (Some(entry.text()), explicit_is_inside(entry, range, filter)?),
            None => (None, implicit_is_inside(partition_key, range, filter)),
        };
        Ok(is_inside.then(|| UserRecord {
            sub_sequence_number,
            partition_key: Some(partition_key.text()),
            explicit_hash_key,
            data: self.data.slice_ref(record.data),
            aggregated: true,
        }))
    }
}

/// KCL narrows the index to 32 bits, so that 2^32 is entry 0; a producer that relied on it must not lose data here.
fn entry<'t, 'a>(table: &'t mut [Entry<'a>], index: u64) -> Option<&'t mut Entry<'a>> {
    table.get_mut(usize::try_from(index & u64::from(u32::MAX)).ok()?)
}

fn implicit_is_inside(entry: &mut Entry<'_>, range: HashKeyRange, filter: HashRangeFilter) -> bool {
    if filter == HashRangeFilter::Off || range == HashKeyRange::FULL {
        return true;
    }
    if let Some(is_inside) = entry.is_inside {
        return is_inside;
    }
    let is_inside = range.contains(hash_of_partition_key(entry.text().as_bytes()));
    entry.is_inside = Some(is_inside);
    is_inside
}

fn explicit_is_inside(
    entry: &mut Entry<'_>,
    range: HashKeyRange,
    filter: HashRangeFilter,
) -> Result<bool, KplProblemReason> {
    if filter == HashRangeFilter::Off {
        return Ok(true);
    }
    if let Some(is_inside) = entry.is_inside {
        return Ok(is_inside);
    }
    let text = entry.text();
    let Some(hash_key) = read_hash_key(&text) else {
        let shown = text.chars().take(MAX_REPORTED_CHARS).collect();
        return Err(KplProblemReason::ExplicitHashKeyNotANumber(shown));
    };
    let is_inside = hash_key.is_some_and(|key| range.contains(key));
    entry.is_inside = Some(is_inside);
    Ok(is_inside)
}

/// Reads a hash key as `java.math.BigInteger` does: digits after at most one sign. `None` when that is no number,
/// `Some(None)` when it lies below 0 or above 2^128 − 1 and so outside of every shard.
#[expect(
    clippy::option_option,
    reason = "no number, and a number outside of u128, are different answers"
)]
fn read_hash_key(text: &str) -> Option<Option<u128>> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    // All digits, so the only failure left is a number that is too big.
    let value: Option<u128> = digits.parse().ok();
    Some(value.filter(|&value| !is_negative || value == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_keys_read_as_big_integer_does() {
        let max = u128::MAX.to_string();
        for (text, expected) in [
            ("0", Some(Some(0))),
            ("+5", Some(Some(5))),
            ("-0", Some(Some(0))),
            ("-1", Some(None)),
            ("0005", Some(Some(5))),
            (max.as_str(), Some(Some(u128::MAX))),
            ("340282366920938463463374607431768211456", Some(None)),
            ("", None),
            ("+", None),
            ("+-5", None),
            (" 5", None),
            ("5x", None),
        ] {
            assert_eq!(read_hash_key(text), expected, "{text:?}");
        }
        assert_eq!(read_hash_key(&"9".repeat(100_000)), Some(None));
    }
}
