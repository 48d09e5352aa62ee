//! Records: what was put, what was delivered by whom, and whether the one agrees with the other.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::table::Change;

/// Within so long of a change of readers the old one may still print what it had in hand: the handoff instant.
const INSTANT_MS: u64 = 1_000;
/// A reader that prints later than this after it was replaced has got the lease again.
const RETURN_MS: u64 = 3_000;
/// A worker reads a checkpoint no longer than this before it hands out its first record.
const OPENING_MS: u64 = 5_000;

/// A place in a shard. Sequence numbers have up to 56 digits, so they are kept as text and compared by length first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    digits: usize,
    sequence: String,
    sub: u64,
}

impl Position {
    /// `None` where the text is no number.
    pub(crate) fn new(sequence: &str, sub: u64) -> Option<Self> {
        let is_number = !sequence.is_empty() && sequence.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| Self {
            digits: sequence.len(),
            sequence: sequence.to_owned(),
            sub,
        })
    }

    /// The sequence number.
    pub(crate) fn sequence(&self) -> &str {
        &self.sequence
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tail = self.sequence.len().saturating_sub(9);
        write!(f, "…{}", &self.sequence[tail..])?;
        if self.sub > 0 {
            write!(f, "/{}", self.sub)?;
        }
        Ok(())
    }
}

/// One record as one worker printed it.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    /// Wall time: by the worker's own event where it has one, else when its line came.
    pub(crate) ms: u64,
    /// Which worker.
    pub(crate) worker: String,
    /// Which shard.
    pub(crate) shard: String,
    /// Which record.
    pub(crate) position: Position,
}

/// A record that the harness put.
pub(crate) type Put = (String, Position);

/// What the comparison comes to.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Records put.
    pub(crate) put: usize,
    /// Put and never delivered.
    pub(crate) lost: Vec<Put>,
    /// Deliveries beyond the first of each record.
    pub(crate) repeats: usize,
    /// Of these, the ones at or before the checkpoint where the later reader began.
    pub(crate) unexplained: Vec<String>,
    /// Where a worker went on for too long after another had begun.
    pub(crate) overlaps: Vec<String>,
    /// Where one reader went backwards.
    pub(crate) disorder: Vec<String>,
    /// Records of those put that each worker was the first to deliver.
    pub(crate) first_by: BTreeMap<String, usize>,
}

impl Account {
    /// Compares. `changes` is what the watcher saw of the table.
    #[cfg(test)]
    fn of(puts: &[Put], deliveries: &[Delivery], changes: &[Change]) -> Self {
        Self::with_outages(puts, deliveries, changes, &[])
    }

    /// The same, where the table could not be reached at times, from and until: a reader may have lost its lease then, and begun again at the checkpoint.
    pub(crate) fn with_outages(
        puts: &[Put],
        deliveries: &[Delivery],
        changes: &[Change],
        outages: &[(u64, u64)],
    ) -> Self {
        let mut account = Self {
            put: puts.len(),
            ..Self::default()
        };
        let mut by_shard: BTreeMap<&str, Vec<&Delivery>> = BTreeMap::new();
        for delivery in deliveries {
            by_shard.entry(&delivery.shard).or_default().push(delivery);
        }
        let wanted: BTreeSet<&Put> = puts.iter().collect();
        let mut found: BTreeSet<Put> = BTreeSet::new();
        for (shard, mut events) in by_shard {
            events.sort_by_key(|delivery| delivery.ms);
            account.readers(shard, &events);
            let mut began: BTreeMap<&str, u64> = BTreeMap::new();
            let mut last: Option<&Delivery> = None;
            for event in events {
                let has_lost = |last: &Delivery| {
                    let mut around = outages.iter();
                    around.any(|(from, until)| last.ms < *until && event.ms > *from)
                };
                let is_back = |last: &Delivery| last.position >= event.position;
                if last.is_none_or(|last| last.worker != event.worker || is_back(last) && has_lost(last)) {
                    began.insert(&event.worker, event.ms);
                } else if last.is_some_and(is_back) {
                    let text = format!("{} read {} of {shard} again", event.worker, event.position);
                    account.disorder.push(text);
                }
                last = Some(event);
                let record = (shard.to_owned(), event.position.clone());
                let is_wanted = wanted.contains(&record);
                if !found.insert(record) {
                    account.repeats += 1;
                    let start = began.get(event.worker.as_str()).copied().unwrap_or(event.ms);
                    if !may_repeat(changes, shard, start, &event.position) {
                        let text = format!(
                            "{} of {shard} by {} at {}",
                            event.position, event.worker, event.ms
                        );
                        account.unexplained.push(text);
                    }
                } else if is_wanted {
                    *account.first_by.entry(event.worker.clone()).or_default() += 1;
                }
            }
        }
        account.lost = puts.iter().filter(|put| !found.contains(*put)).cloned().collect();
        account
    }

    /// Looks for a worker that prints a shard's records well after another has begun to.
    fn readers(&mut self, shard: &str, events: &[&Delivery]) {
        for (i, pair) in events.windows(2).enumerate() {
            let [old, new] = pair else { continue };
            if old.worker == new.worker {
                continue;
            }
            let late = events[i + 2..]
                .iter()
                .take_while(|event| event.ms <= new.ms + RETURN_MS)
                .filter(|event| event.worker == old.worker)
                .last();
            if let Some(late) = late.filter(|late| late.ms > new.ms + INSTANT_MS) {
                let text = format!(
                    "{shard}: {} still {} ms after {} began at {}",
                    old.worker,
                    late.ms - new.ms,
                    new.worker,
                    new.ms
                );
                self.overlaps.push(text);
            }
        }
    }

    /// What is wrong, if anything is.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        let mut faults = Vec::new();
        let mut fault = |what: &str, list: &[String]| {
            if !list.is_empty() {
                let some: Vec<&str> = list.iter().take(3).map(String::as_str).collect();
                faults.push(format!("{} {what}: {}", list.len(), some.join("; ")));
            }
        };
        let lost: Vec<String> = self
            .lost
            .iter()
            .map(|(shard, position)| format!("{position} of {shard}"))
            .collect();
        fault("lost", &lost);
        fault("repeated before the checkpoint", &self.unexplained);
        fault("times two readers of a shard", &self.overlaps);
        fault("times out of order", &self.disorder);
        if faults.is_empty() {
            Ok(())
        } else {
            Err(faults.join(", "))
        }
    }

    /// The figures in words.
    pub(crate) fn figures(&self) -> String {
        let shares: Vec<String> = self
            .first_by
            .iter()
            .map(|(worker, count)| {
                format!(
                    "{worker} {:.0} %",
                    percent(*count, self.put.saturating_sub(self.lost.len()))
                )
            })
            .collect();
        format!(
            "put {}, lost {}, repeated {}; {}",
            self.put,
            self.lost.len(),
            self.repeats,
            shares.join(", ")
        )
    }

    /// What part of the records put a worker was the first to deliver, in percent.
    pub(crate) fn share(&self, worker: &str) -> f64 {
        percent(self.first_by.get(worker).copied().unwrap_or(0), self.put)
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a test run are small")]
fn percent(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// Whether a reader that handed out its first record at `start_ms` may have begun before `position`: whether the checkpoint that it found on the
/// row lies before it. When exactly it looked is not known; the earliest checkpoint of that time counts.
fn may_repeat(changes: &[Change], shard: &str, start_ms: u64, position: &Position) -> bool {
    let mut at_start = None;
    for change in changes.iter().filter(|change| change.lease == shard) {
        let checkpoint = change.row.as_ref().and_then(super::table::Row::position);
        if change.ms + OPENING_MS < start_ms || at_start.is_none() {
            at_start = Some(checkpoint);
        }
    }
    // Without a checkpoint on the row everything may come again.
    at_start.flatten().is_none_or(|checkpoint| checkpoint < *position)
}

/// How long each shard that `old` read stood still around `event_ms`: from its last record before to the first by another after.
pub(crate) fn gaps(deliveries: &[Delivery], old: &str, event_ms: u64) -> BTreeMap<String, u64> {
    let changes = changes_of_reader(deliveries, old, event_ms).into_iter();
    changes
        .map(|(shard, last, next)| (shard, next.saturating_sub(last)))
        .collect()
}

/// How long after a time each shard that `old` read was read by another.
pub(crate) fn resumed(deliveries: &[Delivery], old: &str, event_ms: u64) -> BTreeMap<String, u64> {
    let changes = changes_of_reader(deliveries, old, event_ms).into_iter();
    changes
        .map(|(shard, _, next)| (shard, next.saturating_sub(event_ms)))
        .collect()
}

/// The shards that changed from `old` to another reader, with the times of its last and of the other's first record.
fn changes_of_reader(deliveries: &[Delivery], old: &str, event_ms: u64) -> Vec<(String, u64, u64)> {
    let mut last: BTreeMap<&str, &Delivery> = BTreeMap::new();
    let mut changes = Vec::new();
    let mut ordered: Vec<&Delivery> = deliveries.iter().collect();
    ordered.sort_by_key(|delivery| delivery.ms);
    for delivery in ordered {
        let shard = delivery.shard.as_str();
        if delivery.worker == old || delivery.ms < event_ms {
            last.insert(shard, delivery);
        } else if let Some(before) = last.remove(shard).filter(|before| before.worker == old) {
            changes.push((shard.to_owned(), before.ms, delivery.ms));
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::table::Row;

    fn delivery(ms: u64, worker: &str, sequence: &str) -> Delivery {
        Delivery {
            ms,
            worker: worker.to_owned(),
            shard: "s".to_owned(),
            position: Position::new(sequence, 0).expect("digits"),
        }
    }

    fn puts(sequences: &[&str]) -> Vec<Put> {
        let put = |s: &&str| ("s".to_owned(), Position::new(s, 0).expect("digits"));
        sequences.iter().map(put).collect()
    }

    fn checkpoint(ms: u64, sequence: &str) -> Change {
        Change {
            ms,
            lease: "s".to_owned(),
            row: Some(Row {
                owner: None,
                checkpoint_owner: None,
                checkpoint: sequence.to_owned(),
                sub: 0,
            }),
        }
    }

    #[test]
    fn positions_compare_as_numbers() {
        assert!(Position::new("9", 7) < Position::new("10", 0));
        assert!(Position::new("10", 0) < Position::new("10", 1));
        assert_eq!(Position::new("TRIM_HORIZON", 0), None);
    }

    #[test]
    fn what_never_came_is_lost() {
        let account = Account::of(&puts(&["1", "2"]), &[delivery(1, "a", "1")], &[]);
        assert_eq!(account.lost.len(), 1);
        assert!(account.verdict().is_err());
    }

    #[test]
    fn what_comes_again_must_lie_behind_the_checkpoint() {
        let deliveries = [
            delivery(100, "a", "1"),
            delivery(200, "a", "2"),
            delivery(20_000, "b", "2"),
        ];
        let behind = Account::of(&puts(&["1", "2"]), &deliveries, &[checkpoint(150, "1")]);
        assert_eq!(behind.repeats, 1);
        assert_eq!(behind.verdict(), Ok(()));
        let before = Account::of(&puts(&["1", "2"]), &deliveries, &[checkpoint(150, "2")]);
        assert_eq!(before.unexplained.len(), 1);
    }

    #[test]
    fn two_readers_at_once_are_noticed_and_a_handoff_is_none() {
        let two = [
            delivery(1_000, "a", "1"),
            delivery(2_000, "b", "2"),
            delivery(3_500, "a", "3"),
        ];
        assert_eq!(Account::of(&[], &two, &[]).overlaps.len(), 1);
        let handoff = [
            delivery(1_000, "a", "1"),
            delivery(2_000, "b", "2"),
            delivery(2_300, "a", "3"),
        ];
        assert_eq!(Account::of(&[], &handoff, &[]).overlaps.len(), 0);
    }

    #[test]
    fn gaps_are_measured_where_the_reader_changed() {
        let deliveries = [
            delivery(1_000, "a", "1"),
            delivery(1_100, "a", "2"),
            delivery(4_000, "b", "3"),
        ];
        let found = gaps(&deliveries, "a", 1_050);
        assert_eq!(found.get("s"), Some(&2_900));
    }
}
