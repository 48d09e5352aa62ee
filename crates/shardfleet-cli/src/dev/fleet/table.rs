//! The live table: workers, and the leases they share. Text in lines that fit a terminal; drawing is [`screen`](super::screen)'s.

use std::collections::BTreeMap;

use shardfleet::ShardId;

use super::books::Books;
use super::leases::{LeaseWatch, Seen};
use super::member::Member;

/// What the table shows.
#[derive(Debug)]
pub(super) struct View<'a> {
    pub(super) title: String,
    pub(super) members: &'a [Member],
    pub(super) leases: &'a LeaseWatch,
    pub(super) books: &'a Books,
    /// The machine's time in microseconds.
    pub(super) now: u64,
}

/// The table in at most `lines` lines of at most `columns` characters. What does not fit is left out with a word about it: ended workers and finished
/// shards first.
pub(super) fn table(view: &View<'_>, columns: usize, lines: usize) -> Vec<String> {
    let mut out = vec![view.title.clone(), String::new(), worker_head()];
    let alive = view.members.iter().filter(|member| member.state.is_alive());
    let gone = view.members.iter().filter(|member| !member.state.is_alive());
    let workers: Vec<String> = alive.chain(gone).map(|member| worker_row(view, member)).collect();
    let shards = shard_rows(view.leases.rows(), |shard_id, seen| {
        shard_row(view, shard_id, seen)
    });
    // Title, two empty lines, two heads.
    let room = lines.saturating_sub(5);
    let for_workers = workers.len().min(room / 2).max(room.saturating_sub(shards.len()));
    push_fitting(&mut out, workers, for_workers);
    let left = lines.saturating_sub(out.len() + 2);
    out.push(String::new());
    out.push(shard_head());
    push_fitting(&mut out, shards, left);
    out.truncate(lines);
    for line in &mut out {
        if let Some((end, _)) = line.char_indices().nth(columns) {
            line.truncate(end);
        }
    }
    out
}

/// Adds `rows`, or as many as fit beside a word about the others.
fn push_fitting(out: &mut Vec<String>, mut rows: Vec<String>, room: usize) {
    if rows.len() > room {
        let shown = room.saturating_sub(1);
        let left_out = rows.len() - shown;
        rows.truncate(shown);
        rows.push(format!("... and {left_out} more"));
    }
    out.extend(rows);
}

fn worker_head() -> String {
    format!(
        "{:<12}{:>9}  {:<9}{:>7}{:>12}{:>11}{:>8}",
        "worker", "pid", "state", "leases", "delivered", "records/s", "CPU"
    )
}

fn worker_row(view: &View<'_>, member: &Member) -> String {
    let cpu = member
        .usage
        .percent
        .map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1} %"));
    let leases = if member.state.is_alive() {
        view.leases.held_by(&member.worker_id)
    } else {
        0
    };
    format!(
        "{:<12}{:>9}  {:<9}{leases:>7}{:>12}{:>11.0}{cpu:>8}",
        member.worker_id.as_str(),
        member.pid,
        member.state.word(),
        member.delivered,
        member.rate,
    )
}

/// Open shards first, in their order, then finished ones.
fn shard_rows(rows: &BTreeMap<ShardId, Seen>, mut row: impl FnMut(&ShardId, &Seen) -> String) -> Vec<String> {
    let (finished, open): (Vec<_>, Vec<_>) = rows.iter().partition(|(_, seen)| seen.is_finished);
    let all = open.into_iter().chain(finished);
    all.map(|(shard_id, seen)| row(shard_id, seen)).collect()
}

fn shard_head() -> String {
    format!(
        "{:<22}{:<26}{:>10}{:>9}{:>12}",
        "shard", "reader", "delivered", "behind", "behind for"
    )
}

fn shard_row(view: &View<'_>, shard_id: &ShardId, seen: &Seen) -> String {
    let reader = match (&seen.owner, &seen.checkpoint_owner) {
        _ if seen.is_finished => "read to its end".to_owned(),
        (Some(to), Some(from)) => format!("{from} => {to}"),
        _ => match seen.holder() {
            None => "nobody".to_owned(),
            Some(holder) => {
                // The row names a dead worker until another one takes over.
                let gone = view
                    .members
                    .iter()
                    .find(|m| m.worker_id == *holder && !m.state.is_alive());
                gone.map_or_else(
                    || holder.to_string(),
                    |member| format!("{holder} ({})", member.state.word()),
                )
            }
        },
    };
    let book = view.books.shard(shard_id);
    let (delivered, behind) = book.map_or((0, 0), |book| (book.delivered, book.behind()));
    let since = book.and_then(super::books::ShardBook::waiting_since);
    let lag = since.map_or_else(
        || "-".to_owned(),
        |at| format!("{} ms", view.now.saturating_sub(at) / 1000),
    );
    format!(
        "{:<22}{reader:<26}{delivered:>10}{behind:>9}{lag:>12}",
        shard_id.as_str()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardfleet::core::lease::Lease;
    use shardfleet::{ExtendedSequenceNumber, WorkerId};

    fn leases(count: u32) -> LeaseWatch {
        let lease = |n: u32| {
            let mut lease = Lease::new(
                &ShardId::new(format!("shardId-{n:012}")),
                ExtendedSequenceNumber::TrimHorizon,
            );
            lease.owner = Some(WorkerId::new("worker-1"));
            match n {
                0 => lease.checkpoint = ExtendedSequenceNumber::ShardEnd,
                1 => lease.checkpoint_owner = Some(WorkerId::new("worker-2")),
                _ => {}
            }
            lease
        };
        let mut watch = LeaseWatch::default();
        watch.observe(&(0..count).map(lease).collect::<Vec<_>>());
        watch
    }

    fn drawn(shards: u32, columns: usize, lines: usize) -> Vec<String> {
        let view = View {
            title: "title".into(),
            members: &[],
            leases: &leases(shards),
            books: &Books::default(),
            now: 0,
        };
        table(&view, columns, lines)
    }

    #[test]
    fn it_fits_whatever_terminal_there_is() {
        for lines in 0..40 {
            for columns in [0, 1, 10, 80, 200] {
                let table = drawn(30, columns, lines);
                assert!(table.len() <= lines, "{lines}: {table:#?}");
                assert!(table.iter().all(|line| line.chars().count() <= columns));
            }
        }
        let small = drawn(30, 80, 12);
        assert!(
            small.last().is_some_and(|line| line.starts_with("... and ")),
            "{small:#?}"
        );
    }

    #[test]
    fn a_handoff_shows_both_workers_and_finished_shards_come_last() {
        let table = drawn(3, 100, 24);
        let row = |shard: &str| table.iter().position(|line| line.contains(shard)).expect("a row");
        assert!(
            table[row("000000000001")].contains("worker-2 => worker-1"),
            "{table:#?}"
        );
        assert!(row("000000000000") > row("000000000002"), "{table:#?}");
        assert!(table[row("000000000000")].contains("read to its end"));
    }
}
