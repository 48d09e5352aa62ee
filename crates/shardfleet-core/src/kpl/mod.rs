//! Aggregated records of the Kinesis Producer Library (KPL): many user records packed into one Kinesis record.
//!
//! [`deaggregate`] unpacks, [`Aggregator`] packs; both are bytes in, values out. Data that only looks like an aggregate
//! (wrong digest, broken message) is a plain record and passes through untouched. Nothing here panics on any input, and
//! nothing copies the user's data when reading: user records are slices of the Kinesis record.
//!
//! Layout: the four magic bytes, a protobuf message, the MD5 of the message.

mod aggregate;
mod deaggregate;
mod wire;

pub use aggregate::{
    AggregateError, AggregatedRecord, Aggregator, DEFAULT_MAX_AGGREGATE_BYTES, MAX_AGGREGATE_BYTES,
    MAX_PARTITION_KEY_CHARS,
};
pub use deaggregate::{
    Deaggregated, HashRangeFilter, KplProblem, KplProblemReason, UserRecord, deaggregate, deaggregate_into,
    is_aggregated,
};
