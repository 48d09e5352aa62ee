//! Deterministic simulation of whole fleets, each decided by a seed.
//!
//! The planners and machines of `shardfleet-core` are driven as the real engine drives them (`worker`), by many workers at once, over a simulated table and stream, in virtual
//! time on one thread. A script of joins, stops, crashes, freezes, reshards and failing requests (`runner`, [`FaultKind`]) befalls them, and invariants are checked throughout
//! (`checks`, [`Invariant`]), by what workers, table and stream did and nothing else. The same seed is the same run, byte for byte. Bugs can be planted
//! ([`Mutation`]) to prove that the invariants find them.

use std::collections::BTreeMap;
use std::time::Duration;

mod chance;
mod checks;
mod exec;
mod faults;
mod log;
mod mutation;
mod runner;
mod setup;
mod sim;
mod store;
mod stream;
mod sync;
mod table;
mod worker;

pub use checks::{Invariant, Violation};
pub use faults::FaultKind;
pub use mutation::Mutation;
pub use runner::run;

/// What a run is to be, besides its seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// A bug planted into every worker. Default none.
    pub mutation: Option<Mutation>,
    /// Whether the log of the run is kept, to be compared byte for byte: 32 bytes an event, some megabytes a run. Default false.
    pub keep_log: bool,
}

/// How a run came out.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed that decided everything.
    pub seed: u64,
    /// Stands for the whole log: two runs with the same digest were the same.
    pub digest: u64,
    /// Events in the log.
    pub events: u64,
    /// The log, if it was to be kept.
    pub log: Option<Vec<u8>>,
    /// Virtual time that passed: 26 minutes, less if an invariant was violated.
    pub simulated: Duration,
    /// Processes that were started.
    pub processes: usize,
    /// Shards of the stream at the end, closed ones included.
    pub shards: usize,
    /// Records that were handed to handlers, each time counted.
    pub records: u64,
    /// How often each kind of fault happened.
    pub faults: BTreeMap<FaultKind, u64>,
    /// A kind of fault that never happened although the run came to its end: it proves less than it should, and has failed.
    pub missing_fault: Option<FaultKind>,
    /// The first invariant that was violated, at which the run ended.
    pub violation: Option<Violation>,
    /// How close the run came to the bounds of the invariants.
    pub peaks: Peaks,
}

impl Report {
    /// Whether nothing was violated and every kind of fault happened.
    pub fn is_clean(&self) -> bool {
        self.violation.is_none() && self.missing_fault.is_none()
    }
}

/// The highest values of what the invariants bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// L2: the longest time for which a lease that could be read was read by nobody, counted from the last trouble.
    pub unread: Duration,
    /// M1: the most records of one shard that were handed out and not settled.
    pub unsettled: u64,
    /// R1: the most requests of one worker in a second.
    pub requests: u64,
    /// R1: the most writes of one row by one worker in a second.
    pub row_requests: u64,
    /// A1: the longest time since the last disturbance after which a live lease was still moved.
    pub restless: Duration,
    /// A1: the most moves after the fleet should have come to rest.
    pub late_moves: usize,
}
