//! Every decision that shardfleet makes, as pure code.
//!
//! The crate holds values (ids, sequence numbers, leases), accumulators (watermark, read budget), machines (the
//! reader of a shard) and planners (shard sync). It never reads a clock, never draws a random number, never waits and
//! never talks to a service: time, chance and new ids are arguments. So everything here can be tested in microseconds
//! and replayed from a seed.

pub mod assignment;
pub mod cleanup;
pub mod fleet;
pub mod fleet_audit;
pub mod hash_range;
pub mod holding;
pub mod ids;
pub mod kpl;
pub mod leader;
pub mod lease;
pub mod position;
pub mod read_budget;
pub mod reader;
pub mod retry;
pub mod sequence;
pub mod shard;
pub mod shard_sync;
pub mod status;
pub mod time;
pub mod watchdog;
pub mod watermark;
pub mod worker_metrics;
