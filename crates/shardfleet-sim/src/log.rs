//! What happened in a run, in order: a digest of everything, and the last events in words.
//!
//! Each event has a fixed form of 32 bytes. Two runs are the same if their logs are, byte for byte; the digest stands for the bytes where they are not kept.

use std::collections::VecDeque;
use std::fmt::Write as _;

use crate::exec::Micros;

/// How many events are kept to be shown with a violation.
const KEPT: usize = 4000;

/// No process, or no shard, is concerned.
pub(crate) const NONE: u32 = u32::MAX;

/// What an event is about; what its two numbers mean depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum What {
    Started,
    Crashed,
    Stopping,
    Stopped,
    Frozen,
    Thawed,
    /// A lease row was written: its counter; its owner and checkpoint owner.
    Written,
    /// The condition of a write did not hold: the row's counter.
    Conflict,
    Created,
    Deleted,
    /// The checkpoint moved: the record.
    Checkpoint,
    ShardEnd,
    LockWritten,
    LockConflict,
    Leads,
    /// Records were handed to a handler: the first, and how many.
    Handed,
    /// A record was settled.
    Settled,
    /// A worker holds the lease.
    Held,
    /// A worker's holding ended.
    Lost,
    Page,
    ReadFailure,
    Scanned,
    Looked,
    StoreFailure,
    Split,
    Merged,
    Planned,
    Fault,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) at: Micros,
    pub(crate) what: What,
    pub(crate) process: u32,
    pub(crate) shard: u32,
    pub(crate) a: u64,
    pub(crate) b: u64,
}

/// The log of a run.
pub(crate) struct Log {
    digest: u64,
    count: u64,
    last: VecDeque<Event>,
    bytes: Option<Vec<u8>>,
}

impl Log {
    /// `keep` is whether all bytes are kept.
    pub(crate) fn new(keep: bool) -> Self {
        Self {
            digest: 0xCBF2_9CE4_8422_2325,
            count: 0,
            last: VecDeque::with_capacity(KEPT),
            bytes: keep.then(Vec::new),
        }
    }

    pub(crate) fn add(&mut self, event: Event) {
        let places = u64::from(event.process) << 32 | u64::from(event.shard);
        let head = event.at << 8 | event.what as u64;
        for word in [head, places, event.a, event.b] {
            self.digest = (self.digest ^ word)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(23);
        }
        self.count += 1;
        if let Some(bytes) = &mut self.bytes {
            for word in [head, places, event.a, event.b] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(event);
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn into_bytes(self) -> Option<Vec<u8>> {
        self.bytes
    }

    /// The last `most` events that concern `shard`, or are not about a shard, in words; `name` names processes.
    pub(crate) fn tail(&self, shard: Option<u32>, most: usize, name: impl Fn(u32) -> String) -> Vec<String> {
        let mut of_records = 0;
        let mut concerns = |event: &&Event| {
            let is_of_records = matches!(event.what, What::Page | What::Settled | What::Handed);
            let is_look = matches!(
                event.what,
                What::Scanned | What::Looked | What::LockConflict | What::Fault | What::StoreFailure
            );
            match shard {
                Some(shard) if event.shard == shard && is_of_records => {
                    of_records += 1;
                    of_records <= most / 4
                }
                Some(shard) => event.shard == shard || (event.shard == NONE && !is_look),
                None => !is_of_records,
            }
        };
        let mut lines: Vec<String> = self
            .last
            .iter()
            .rev()
            .filter(|event| concerns(event))
            .take(most)
            .map(|event| in_words(event, &name))
            .collect();
        lines.reverse();
        lines
    }
}

fn in_words(event: &Event, name: &impl Fn(u32) -> String) -> String {
    let mut line = format!("{:>12.6} s", seconds(event.at));
    if event.process != NONE {
        write_to(&mut line, format_args!(" {}", name(event.process)));
    }
    write_to(&mut line, format_args!(" {:?}", event.what));
    if event.shard != NONE {
        write_to(&mut line, format_args!(" shard {}", event.shard));
    }
    match event.what {
        What::Written => {
            let worker = |number: u64| match u32::try_from(number) {
                Ok(number) if number != NONE => name(number),
                _ => "nobody".to_owned(),
            };
            write_to(
                &mut line,
                format_args!(
                    ": counter {}, owner {}, checkpoint owner {}",
                    event.a,
                    worker(event.b >> 32),
                    worker(event.b & 0xFFFF_FFFF)
                ),
            );
        }
        What::Handed => write_to(
            &mut line,
            format_args!(": record {} and {} in all", event.a, event.b),
        ),
        What::Checkpoint | What::Settled => write_to(&mut line, format_args!(": record {}", event.a)),
        _ if event.a != 0 || event.b != 0 => write_to(&mut line, format_args!(" ({}, {})", event.a, event.b)),
        _ => {}
    }
    line
}

fn write_to(line: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a text cannot fail.
    line.write_fmt(arguments).ok();
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a run lasts far less than 2^52 microseconds"
)]
pub(crate) fn seconds(at: Micros) -> f64 {
    at as f64 / 1e6
}
