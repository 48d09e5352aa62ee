//! From a page of Kinesis records to the user records that are handed out.

use shardfleet_core::hash_range::HashKeyRange;
use shardfleet_core::ids::ShardId;
use shardfleet_core::kpl;
use shardfleet_core::reader::PageFacts;
use shardfleet_core::sequence::{ExtendedSequenceNumber, SequenceNumber};

use crate::error::KinesisError;
use crate::kinesis::RecordsPage;
use crate::record::Record;
use crate::settings::{Aggregates, Settings};

/// What a page comes to.
pub(crate) struct Unpacked {
    pub(crate) records: Vec<Record>,
    /// What the application is told beside the records.
    pub(crate) errors: Vec<KinesisError>,
    /// What the reader needs to know.
    pub(crate) facts: PageFacts,
    /// Payload bytes of the page.
    pub(crate) bytes: u64,
}

/// How the records of one shard are unpacked.
pub(crate) struct Unpacker<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) shard_id: &'a ShardId,
    pub(crate) hash_key_range: Option<HashKeyRange>,
    /// User records up to this one were settled before.
    pub(crate) settled_through: Option<&'a ExtendedSequenceNumber>,
    /// Kinesis records up to this one were handed out before.
    pub(crate) taken: Option<&'a SequenceNumber>,
}

impl Unpacker<'_> {
    /// Unpacks a page. User records outside the shard's hash key range are those of an aggregate that a producer with an old shard map put here; it
    /// puts them again where they belong.
    pub(crate) fn unpack(&self, page: RecordsPage) -> Unpacked {
        let mut records = Vec::with_capacity(page.records.len());
        let mut errors = Vec::new();
        let mut users = Vec::new();
        let first = page.records.first().map(|r| r.sequence_number.clone());
        let last = page.records.last().map(|r| r.sequence_number.clone());
        let mut bytes = 0;
        for record in page.records {
            bytes += record.data.len() as u64;
            if self.taken.is_some_and(|taken| record.sequence_number <= *taken) {
                continue;
            }
            if self.settings.aggregates == Aggregates::Refuse && kpl::is_aggregated(&record.data) {
                errors.push(KinesisError::AggregatedRecord {
                    stream: self.settings.stream.clone(),
                    shard_id: self.shard_id.clone(),
                    sequence_number: record.sequence_number,
                });
                continue;
            }
            users.clear();
            let (outside, problem) = kpl::deaggregate_into(
                &mut users,
                &record.data,
                record.partition_key,
                self.hash_key_range,
                self.settings.hash_range_filter,
            );
            if outside > 0 {
                tracing::debug!(shard_id = %self.shard_id, sequence_number = %record.sequence_number, outside, "user records outside the shard's hash key range were left out");
            }
            if let Some(problem) = problem {
                errors.push(KinesisError::DamagedAggregate {
                    stream: self.settings.stream.clone(),
                    shard_id: self.shard_id.clone(),
                    sequence_number: record.sequence_number.clone(),
                    problem: problem.to_string(),
                });
            }
            for user in users.drain(..) {
                let position =
                    ExtendedSequenceNumber::At(record.sequence_number.clone(), user.sub_sequence_number);
                if self.settled_through.is_some_and(|through| position <= *through) {
                    continue;
                }
                records.push(Record {
                    shard_id: self.shard_id.clone(),
                    position,
                    partition_key: user.partition_key,
                    explicit_hash_key: user.explicit_hash_key,
                    data: user.data,
                    arrived_at: record.arrived_at,
                    is_aggregated: user.aggregated,
                });
            }
        }
        let facts = PageFacts {
            first,
            last,
            bytes,
            next_iterator: page.next_iterator,
            millis_behind_latest: page.millis_behind_latest,
            children: page.children,
        };
        Unpacked {
            records,
            errors,
            facts,
            bytes,
        }
    }
}
