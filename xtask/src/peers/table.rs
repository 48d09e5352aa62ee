//! Watches the lease table as an operator would, by scanning it: who owns what, who leads, and how that came about.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::records::Position;
use super::services::Clients;
use super::time::{now_ms, pause};

/// Between two scans. What comes and goes within it is not seen.
const STEP: Duration = Duration::from_millis(50);
/// A handoff takes no longer than this; the same move after it is another one.
const SAME_MOVE_MS: u64 = 40_000;

/// A lease row at some moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// `leaseOwner`; during a handoff the next owner.
    pub(crate) owner: Option<String>,
    /// `checkpointOwner`: during a handoff the owner until then.
    pub(crate) checkpoint_owner: Option<String>,
    /// `checkpoint` as it is written.
    pub(crate) checkpoint: String,
    /// `checkpointSubSequenceNumber`.
    pub(crate) sub: u64,
}

impl Row {
    fn of(item: &Value) -> Option<(String, Self)> {
        item.get("leaseCounter")?;
        let text = |name: &str| item[name]["S"].as_str().map(str::to_owned);
        let sub = item["checkpointSubSequenceNumber"]["N"].as_str();
        let row = Self {
            owner: text("leaseOwner"),
            checkpoint_owner: text("checkpointOwner"),
            checkpoint: text("checkpoint").unwrap_or_default(),
            sub: sub.and_then(|n| n.parse().ok()).unwrap_or(0),
        };
        Some((text("leaseKey")?, row))
    }

    /// Who reads the shard by the row.
    pub(crate) fn reader(&self) -> Option<&str> {
        self.checkpoint_owner.as_deref().or(self.owner.as_deref())
    }

    /// Where the next owner begins; `None` while the checkpoint is no sequence number.
    pub(crate) fn position(&self) -> Option<Position> {
        Position::new(&self.checkpoint, self.sub)
    }

    /// Whether the shard was read to its end.
    pub(crate) fn is_finished(&self) -> bool {
        self.checkpoint == "SHARD_END"
    }
}

/// A change of a row that a scan found.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// Wall time of the scan.
    pub(crate) ms: u64,
    /// The lease.
    pub(crate) lease: String,
    /// The row since then; `None` where it is gone.
    pub(crate) row: Option<Row>,
}

/// A lease that went from one worker to another without being unowned in between.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    /// Wall time at which it was first seen.
    pub(crate) ms: u64,
    /// The lease.
    pub(crate) lease: String,
    /// Who read it.
    pub(crate) from: String,
    /// Who reads it then.
    pub(crate) to: String,
    /// Whether a scan met the row with both names on it; a quick handoff may lie between two scans.
    pub(crate) is_handoff_seen: bool,
}

#[derive(Default)]
struct Seen {
    items: Vec<Value>,
    rows: BTreeMap<String, Row>,
    changes: Vec<Change>,
    leaders: Vec<(u64, String)>,
    trouble: Option<String>,
}

/// The watcher. It ends when dropped.
pub(crate) struct Table {
    seen: Arc<Mutex<Seen>>,
    is_over: Arc<AtomicBool>,
}

impl Table {
    /// Begins to watch a table, which need not be there yet.
    pub(crate) fn watch(clients: &Clients, table: &str) -> Self {
        let watcher = Self {
            seen: Arc::default(),
            is_over: Arc::default(),
        };
        let (seen, is_over) = (Arc::clone(&watcher.seen), Arc::clone(&watcher.is_over));
        let (clients, table) = (clients.clone(), table.to_owned());
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let items = clients.items(&table);
                let mut seen = lock(&seen);
                match items {
                    Ok(items) => seen.take(items),
                    Err(error) => seen.trouble = Some(error),
                }
                drop(seen);
                pause(STEP);
            }
        });
        watcher
    }

    /// All leases.
    pub(crate) fn rows(&self) -> BTreeMap<String, Row> {
        lock(&self.seen).rows.clone()
    }

    /// Every change so far, oldest first.
    pub(crate) fn changes(&self) -> Vec<Change> {
        lock(&self.seen).changes.clone()
    }

    /// Who holds the leader lock.
    pub(crate) fn leader(&self) -> Option<String> {
        let seen = lock(&self.seen);
        let item = seen.items.iter().find(|item| item["leaseKey"]["S"] == "Leader")?;
        item["ownerName"]["S"].as_str().map(str::to_owned)
    }

    /// How many unfinished leases each worker has by the rows.
    pub(crate) fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for row in lock(&self.seen).rows.values() {
            if let (Some(reader), false) = (row.reader(), row.is_finished()) {
                *counts.entry(reader.to_owned()).or_default() += 1;
            }
        }
        counts
    }

    /// The moves of leases from one living worker to another since then, oldest first.
    pub(crate) fn moves(&self, since_ms: u64) -> Vec<Move> {
        let mut moves: Vec<Move> = Vec::new();
        let mut readers: BTreeMap<&str, &str> = BTreeMap::new();
        let seen = lock(&self.seen);
        for change in &seen.changes {
            let Some(row) = &change.row else { continue };
            let lease = change.lease.as_str();
            if let (Some(from), Some(to)) = (&row.checkpoint_owner, &row.owner) {
                let is_new = moves.iter().all(|m| {
                    m.lease != lease || m.from != *from || m.to != *to || m.ms + SAME_MOVE_MS < change.ms
                });
                if change.ms >= since_ms && is_new {
                    moves.push(Move {
                        ms: change.ms,
                        lease: lease.to_owned(),
                        from: from.clone(),
                        to: to.clone(),
                        is_handoff_seen: true,
                    });
                }
            } else if let (Some(to), Some(from)) = (row.owner.as_deref(), readers.get(lease).copied())
                && to != from
                && change.ms >= since_ms
            {
                let is_known = moves.iter().any(|m| {
                    m.lease == lease && m.from == from && m.to == to && m.ms + SAME_MOVE_MS >= change.ms
                });
                if !is_known {
                    moves.push(Move {
                        ms: change.ms,
                        lease: lease.to_owned(),
                        from: from.to_owned(),
                        to: to.to_owned(),
                        is_handoff_seen: false,
                    });
                }
            }
            match row.reader() {
                Some(reader) => drop(readers.insert(lease, reader)),
                None => drop(readers.remove(lease)),
            }
        }
        moves
    }

    /// The state in one line, for failures.
    pub(crate) fn describe(&self) -> String {
        let seen = lock(&self.seen);
        let mut text = String::from("table:");
        for (lease, row) in &seen.rows {
            let short = lease.trim_start_matches("shardId-").trim_start_matches('0');
            let short = if short.is_empty() { "0" } else { short };
            write!(text, " {short}={}", row.owner.as_deref().unwrap_or("-")).ok();
            if let Some(from) = &row.checkpoint_owner {
                write!(text, "(from {from})").ok();
            }
            if row.is_finished() {
                text += "(end)";
            }
        }
        let leader = seen.items.iter().find(|item| item["leaseKey"]["S"] == "Leader");
        let leader = leader.and_then(|item| item["ownerName"]["S"].as_str());
        write!(text, "; leader {}", leader.unwrap_or("-")).ok();
        if let Some(trouble) = &seen.trouble {
            write!(text, "; last trouble: {trouble}").ok();
        }
        text
    }

    /// Everything seen, for the folder of a run.
    pub(crate) fn history(&self) -> String {
        let seen = lock(&self.seen);
        let mut text = String::new();
        let mut last: BTreeMap<&str, (Option<&str>, Option<&str>)> = BTreeMap::new();
        for change in &seen.changes {
            let owners = change
                .row
                .as_ref()
                .map(|row| (row.owner.as_deref(), row.checkpoint_owner.as_deref()));
            let key = owners.unwrap_or_default();
            if last.insert(&change.lease, key) == Some(key) && owners.is_some() {
                continue;
            }
            writeln!(text, "{} {} {:?}", change.ms, change.lease, change.row).ok();
        }
        for (ms, leader) in &seen.leaders {
            writeln!(text, "{ms} leader {leader}").ok();
        }
        for item in &seen.items {
            writeln!(text, "{item}").ok();
        }
        text
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl Seen {
    fn take(&mut self, items: Vec<Value>) {
        let ms = now_ms();
        let rows: BTreeMap<String, Row> = items.iter().filter_map(Row::of).collect();
        for (lease, row) in &rows {
            if self.rows.get(lease) != Some(row) {
                self.changes.push(Change {
                    ms,
                    lease: lease.clone(),
                    row: Some(row.clone()),
                });
            }
        }
        for lease in self.rows.keys().filter(|lease| !rows.contains_key(*lease)) {
            self.changes.push(Change {
                ms,
                lease: lease.clone(),
                row: None,
            });
        }
        let leader = items.iter().find(|item| item["leaseKey"]["S"] == "Leader");
        let leader = leader
            .and_then(|item| item["ownerName"]["S"].as_str())
            .unwrap_or("-");
        if self.leaders.last().is_none_or(|(_, last)| last != leader) {
            self.leaders.push((ms, leader.to_owned()));
        }
        self.rows = rows;
        self.items = items;
        self.trouble = None;
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
