//! The Kinesis service as pure data: streams, shards, records, lineage and limits.
//!
//! Every call takes the time as an argument and changes nothing but the value it is called on. The model never opens a
//! file or a socket, never reads a clock, and never waits.

mod account;
mod consumer;
mod error;
mod hash;
mod iterator;
mod limits;
mod listing;
mod reshard;
mod sequence;
mod shard;
mod stream;
#[cfg(test)]
mod tests;

pub(crate) use account::{Account, Change, NewStream, StreamRef};
pub(crate) use consumer::{Consumer, ConsumerRef, SubscriptionId, Touch};
pub(crate) use error::ApiError;
pub(crate) use hash::{HashRange, hash_of_key};
pub(crate) use iterator::{IteratorToken, ListToken};
pub use limits::ServiceLimits;
pub(crate) use listing::{FilterKind, ShardFilter};
pub(crate) use reshard::Reshard;
pub(crate) use shard::{Record, Shard, ShardMeta, Start, shard_name};
pub(crate) use stream::{Put, Stream, StreamMode, StreamStatus};

/// What time it is, as the driver sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Now {
    /// The service's clock, milliseconds since 1970. Arrival times, retention, expiry and limits use it; a test may set it.
    pub(crate) epoch_ms: u64,
    /// Milliseconds since the process began, always real. The service's own work (CREATING, UPDATING) uses it, so that
    /// a clock that stands still cannot keep a stream from becoming ACTIVE.
    pub(crate) uptime_ms: u64,
}
