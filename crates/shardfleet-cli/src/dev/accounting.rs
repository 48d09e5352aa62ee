//! Holds what was put against what was delivered.
//!
//! The two sides are written down by different hands: the ledger by the producer as the service acknowledged each record, the log by the handler as each
//! record reached it. Neither counts by itself; only this comparison does.

use std::collections::{BTreeMap, HashMap, VecDeque};

use md5::{Digest, Md5};
use serde::Serialize;
use shardfleet::{ExtendedSequenceNumber, SequenceNumber, ShardId};

/// A fingerprint of a payload.
pub type Fingerprint = [u8; 16];

/// The fingerprint of a payload.
pub fn fingerprint(data: &[u8]) -> Fingerprint {
    Md5::digest(data).into()
}

/// A record as the producer put it down when it was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// The shard that the service named.
    pub shard_id: ShardId,
    /// The sequence number that the service gave.
    pub sequence_number: SequenceNumber,
    /// The partition key it was put with.
    pub partition_key: String,
    /// What was in it.
    pub fingerprint: Fingerprint,
}

/// A record as the handler wrote it down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The shard it came from.
    pub shard_id: ShardId,
    /// Its place.
    pub position: ExtendedSequenceNumber,
    /// What was in it.
    pub fingerprint: Fingerprint,
}

/// Counts of one shard, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Records in the producer's ledger.
    pub put: u64,
    /// Entries in the handler's log.
    pub delivered: u64,
    /// Records of the ledger that lie within the shard's last checkpoint.
    pub settled: u64,
    /// Records of the ledger that are not in the log.
    pub lost: u64,
    /// Log entries of records that were in it already.
    pub repeated: u64,
    /// First deliveries that came after one of a later record of the same shard or partition key.
    pub out_of_order: u64,
    /// Log entries that no record of the ledger explains: another payload, or another shard.
    pub unexpected: u64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.put += other.put;
        self.delivered += other.delivered;
        self.settled += other.settled;
        self.lost += other.lost;
        self.repeated += other.repeated;
        self.out_of_order += other.out_of_order;
        self.unexpected += other.unexpected;
    }

    /// Whether nothing is lost, out of order or unexplained. Repeats are allowed.
    pub fn is_complete(&self) -> bool {
        self.lost == 0 && self.out_of_order == 0 && self.unexpected == 0
    }
}

/// The comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// All shards together.
    pub total: Counts,
    /// Each shard.
    pub shards: BTreeMap<ShardId, Counts>,
}

/// The ledger's records, found by what a log entry says.
struct Records<'a> {
    ledger: &'a [LedgerEntry],
    is_delivered: Vec<bool>,
    by_place: HashMap<(&'a ShardId, &'a SequenceNumber), usize>,
    /// In the order in which they were put.
    by_content: HashMap<(&'a ShardId, &'a Fingerprint), VecDeque<usize>>,
}

/// What a log entry is about.
enum Found {
    /// The first delivery of the record with this index.
    First(usize),
    /// A record that was delivered before.
    Again,
    /// Nothing that was put.
    Stranger,
}

impl<'a> Records<'a> {
    fn new(ledger: &'a [LedgerEntry]) -> Self {
        let mut by_place = HashMap::with_capacity(ledger.len());
        let mut by_content: HashMap<_, VecDeque<usize>> = HashMap::with_capacity(ledger.len());
        for (i, entry) in ledger.iter().enumerate() {
            by_place.insert((&entry.shard_id, &entry.sequence_number), i);
            by_content
                .entry((&entry.shard_id, &entry.fingerprint))
                .or_default()
                .push_back(i);
        }
        Self {
            ledger,
            is_delivered: vec![false; ledger.len()],
            by_place,
            by_content,
        }
    }

    /// A record is known by what is in it, whatever place a delivery claims for it. Of records that hold the same, it is the one at that place; failing
    /// that, the first one put is the first one delivered.
    fn deliver(&mut self, entry: &'a LogEntry) -> Found {
        let Some(same) = self.by_content.get_mut(&(&entry.shard_id, &entry.fingerprint)) else {
            return Found::Stranger;
        };
        let at_place = entry
            .position
            .sequence_number()
            .and_then(|number| self.by_place.get(&(&entry.shard_id, number)))
            .filter(|i| self.ledger[**i].fingerprint == entry.fingerprint);
        let index = match at_place {
            Some(i) if self.is_delivered[*i] => return Found::Again,
            Some(i) => *i,
            None => loop {
                match same.pop_front() {
                    Some(i) if self.is_delivered[i] => {}
                    Some(i) => break i,
                    None => return Found::Again,
                }
            },
        };
        self.is_delivered[index] = true;
        Found::First(index)
    }
}

/// Compares. `ledger` is in the order in which the producer put the records, `log` in the order of delivery, `checkpoints` are the last of each shard.
pub fn account(
    ledger: &[LedgerEntry],
    log: &[LogEntry],
    checkpoints: &BTreeMap<ShardId, ExtendedSequenceNumber>,
) -> Account {
    let mut shards: BTreeMap<ShardId, Counts> = BTreeMap::new();
    for entry in ledger {
        let counts = shards.entry(entry.shard_id.clone()).or_default();
        counts.put += 1;
        let place = ExtendedSequenceNumber::At(entry.sequence_number.clone(), 0);
        counts.settled += u64::from(
            checkpoints
                .get(&entry.shard_id)
                .is_some_and(|through| place <= *through),
        );
    }
    let mut records = Records::new(ledger);
    let mut last_of_shard: HashMap<&ShardId, &SequenceNumber> = HashMap::new();
    let mut last_of_key: HashMap<&str, usize> = HashMap::new();
    for entry in log {
        let counts = shards.entry(entry.shard_id.clone()).or_default();
        counts.delivered += 1;
        let index = match records.deliver(entry) {
            Found::First(index) => index,
            Found::Again => {
                counts.repeated += 1;
                continue;
            }
            Found::Stranger => {
                counts.unexpected += 1;
                continue;
            }
        };
        let record = &ledger[index];
        let shard_is_behind = last_of_shard
            .get(&record.shard_id)
            .is_some_and(|last| record.sequence_number < **last);
        let key_is_behind = last_of_key
            .get(record.partition_key.as_str())
            .is_some_and(|last| index < *last);
        if shard_is_behind || key_is_behind {
            counts.out_of_order += 1;
            continue;
        }
        last_of_shard.insert(&record.shard_id, &record.sequence_number);
        last_of_key.insert(&record.partition_key, index);
    }
    for (entry, is_delivered) in ledger.iter().zip(&records.is_delivered) {
        if let Some(counts) = shards.get_mut(&entry.shard_id) {
            counts.lost += u64::from(!is_delivered);
        }
    }
    let mut total = Counts::default();
    for counts in shards.values() {
        total.add(counts);
    }
    Account { total, shards }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Vec<LedgerEntry> {
        (0..100_u64)
            .map(|n| LedgerEntry {
                shard_id: ShardId::new(format!("shardId-{:012}", n % 2)),
                sequence_number: SequenceNumber::parse(&(1000 + n).to_string()).expect("digits"),
                partition_key: format!("key-{}", n % 6),
                fingerprint: fingerprint(&n.to_be_bytes()),
            })
            .collect()
    }

    fn log() -> Vec<LogEntry> {
        let entry = |e: LedgerEntry| LogEntry {
            shard_id: e.shard_id,
            position: ExtendedSequenceNumber::At(e.sequence_number, 0),
            fingerprint: e.fingerprint,
        };
        ledger().into_iter().map(entry).collect()
    }

    fn total(log: &[LogEntry]) -> Counts {
        account(&ledger(), log, &BTreeMap::new()).total
    }

    const GOOD: Counts = Counts {
        put: 100,
        delivered: 100,
        settled: 0,
        lost: 0,
        repeated: 0,
        out_of_order: 0,
        unexpected: 0,
    };

    #[test]
    fn a_drop_a_repeat_a_swap_and_a_stranger_each_change_their_figure() {
        assert_eq!(total(&log()), GOOD);

        let mut dropped = log();
        dropped.remove(42);
        assert_eq!(
            total(&dropped),
            Counts {
                delivered: 99,
                lost: 1,
                ..GOOD
            }
        );

        let mut repeated = log();
        repeated.insert(60, repeated[10].clone());
        assert_eq!(
            total(&repeated),
            Counts {
                delivered: 101,
                repeated: 1,
                ..GOOD
            }
        );

        let mut swapped = log();
        swapped.swap(20, 22);
        assert_eq!(
            total(&swapped),
            Counts {
                out_of_order: 1,
                ..GOOD
            }
        );

        let mut changed = log();
        changed[7].fingerprint = fingerprint(b"something else");
        assert_eq!(
            total(&changed),
            Counts {
                lost: 1,
                unexpected: 1,
                ..GOOD
            }
        );
    }

    #[test]
    fn a_repeat_of_a_record_is_not_taken_for_another_one_that_holds_the_same() {
        let mut ledger = ledger();
        for entry in &mut ledger {
            entry.fingerprint = fingerprint(b"the same");
        }
        let entry = |e: &LedgerEntry| LogEntry {
            shard_id: e.shard_id.clone(),
            position: ExtendedSequenceNumber::At(e.sequence_number.clone(), 0),
            fingerprint: e.fingerprint,
        };
        let mut log: Vec<_> = ledger.iter().map(entry).collect();
        log.insert(20, log[10].clone());
        log.truncate(100);
        let total = account(&ledger, &log, &BTreeMap::new()).total;
        let expected = Counts {
            lost: 1,
            repeated: 1,
            ..GOOD
        };
        assert_eq!(total, expected);
    }

    #[test]
    fn settled_is_what_lies_within_the_checkpoints() {
        let through = ExtendedSequenceNumber::At(SequenceNumber::parse("1010").expect("digits"), 0);
        let checkpoints = BTreeMap::from([(ShardId::new("shardId-000000000000"), through)]);
        assert_eq!(account(&ledger(), &log(), &checkpoints).total.settled, 6);
    }

    #[test]
    fn order_holds_per_key_across_shards_too() {
        let mut ledger = ledger();
        for (i, entry) in ledger.iter_mut().enumerate() {
            entry.partition_key = "one".into();
            entry.shard_id = ShardId::new(format!("shardId-{:012}", i / 50));
        }
        let entry = |e: &LedgerEntry| LogEntry {
            shard_id: e.shard_id.clone(),
            position: ExtendedSequenceNumber::At(e.sequence_number.clone(), 0),
            fingerprint: e.fingerprint,
        };
        let children_first: Vec<_> = ledger[50..].iter().chain(&ledger[..50]).map(entry).collect();
        assert_eq!(
            account(&ledger, &children_first, &BTreeMap::new())
                .total
                .out_of_order,
            50
        );
    }
}
