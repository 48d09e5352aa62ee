//! The books of a run while it goes on: what was put, what came, and what is still out. The account at the end is
//! [`account`](crate::dev::accounting::account)'s.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use shardfleet::{SequenceNumber, ShardId};

use super::load::Put;
use super::member::Delivered;
use crate::dev::accounting::LedgerEntry;

/// Both books.
#[derive(Debug, Default)]
pub(super) struct Books {
    pub(super) ledger: Vec<LedgerEntry>,
    pub(super) log: Vec<Delivered>,
    /// Lines of workers that were no records.
    pub(super) unreadable: u64,
    shards: BTreeMap<ShardId, ShardBook>,
    /// Records that are put and did not come yet.
    out: u64,
    /// When a record last came for the first time, by the machine's clock.
    pub(super) last_news: Option<u64>,
}

/// One shard of the books.
#[derive(Debug, Default)]
pub(super) struct ShardBook {
    /// Records that have come for the first time.
    pub(super) delivered: u64,
    put: HashSet<SequenceNumber>,
    /// Put and not come yet, each with when it was put.
    out: BTreeMap<SequenceNumber, u64>,
    /// Came before the producer heard that it was put.
    early: BTreeSet<SequenceNumber>,
}

impl ShardBook {
    /// How many records are put and did not come yet.
    pub(super) fn behind(&self) -> usize {
        self.out.len()
    }

    /// When the first of those was put.
    pub(super) fn waiting_since(&self) -> Option<u64> {
        self.out.first_key_value().map(|(_, at)| *at)
    }
}

impl Books {
    pub(super) fn put(&mut self, put: Put) {
        let book = self.shards.entry(put.entry.shard_id.clone()).or_default();
        let number = put.entry.sequence_number.clone();
        if book.put.insert(number.clone()) && !book.early.remove(&number) {
            book.out.insert(number, put.at);
            self.out += 1;
        }
        self.ledger.push(put.entry);
    }

    pub(super) fn deliver(&mut self, delivered: Delivered) {
        if let Some(number) = delivered.entry.position.sequence_number() {
            let book = self.shards.entry(delivered.entry.shard_id.clone()).or_default();
            let was_out = book.out.remove(number).is_some();
            self.out -= u64::from(was_out);
            if was_out || (!book.put.contains(number) && book.early.insert(number.clone())) {
                book.delivered += 1;
                self.last_news = self.last_news.max(Some(delivered.at));
            }
        }
        self.log.push(delivered);
    }

    /// Whether everything that was put has come.
    pub(super) fn is_even(&self) -> bool {
        self.out == 0
    }

    /// How many records were put.
    pub(super) fn put_count(&self) -> u64 {
        self.ledger.len() as u64
    }

    /// How many records came for the first time.
    pub(super) fn delivered_count(&self) -> u64 {
        self.shards.values().map(|book| book.delivered).sum()
    }

    /// A shard of which anything was put or came.
    pub(super) fn shard(&self, shard_id: &ShardId) -> Option<&ShardBook> {
        self.shards.get(shard_id)
    }

    /// The log in the order in which workers printed it, not in which it came through their pipes.
    pub(super) fn sort_log(&mut self) {
        // Stable: lines of one worker stay in their order.
        self.log.sort_by_key(|delivered| delivered.at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dev::accounting::LogEntry;
    use shardfleet::ExtendedSequenceNumber;

    fn put(n: u64, at: u64) -> Put {
        Put {
            at,
            entry: LedgerEntry {
                shard_id: ShardId::new("a"),
                sequence_number: number(n),
                partition_key: "k".into(),
                fingerprint: [0; 16],
            },
        }
    }

    fn number(n: u64) -> SequenceNumber {
        SequenceNumber::parse(&n.to_string()).expect("digits")
    }

    fn delivered(n: u64, at: u64) -> Delivered {
        Delivered {
            by: 0,
            at,
            entry: LogEntry {
                shard_id: ShardId::new("a"),
                position: ExtendedSequenceNumber::At(number(n), 0),
                fingerprint: [0; 16],
            },
        }
    }

    #[test]
    fn the_lag_is_what_was_put_and_did_not_come() {
        let mut books = Books::default();
        books.put(put(1, 10));
        books.put(put(2, 20));
        books.deliver(delivered(1, 30));
        let book = books.shard(&ShardId::new("a")).expect("a shard");
        assert_eq!(
            (book.behind(), book.waiting_since(), book.delivered),
            (1, Some(20), 1)
        );
        assert!(!books.is_even());
        books.deliver(delivered(2, 40));
        books.deliver(delivered(2, 50));
        assert!(books.is_even());
        assert_eq!(
            (
                books.put_count(),
                books.delivered_count(),
                books.log.len(),
                books.last_news
            ),
            (2, 2, 3, Some(40))
        );
    }

    #[test]
    fn a_record_may_come_before_its_acknowledgement() {
        let mut books = Books::default();
        books.deliver(delivered(1, 5));
        books.deliver(delivered(1, 6));
        books.put(put(1, 10));
        assert!(books.is_even());
        assert_eq!(books.delivered_count(), 1);
    }
}
