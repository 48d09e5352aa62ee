//! The embedded Kinesis over real HTTP, as any client sees it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod client;
mod faults;
mod limits;
mod operations;
mod persistence;
mod protocol;
mod subscriptions;
mod upkeep;
mod validation;
