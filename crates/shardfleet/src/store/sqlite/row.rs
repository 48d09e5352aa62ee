//! A lease as a row of the file.
//!
//! SQLite's integers are signed; ours are stored bit by bit, so that numbers from 2^63 on look negative in a shell.

use rusqlite::{Row, Transaction, params};
use shardfleet_core::hash_range::HashKeyRange;
use shardfleet_core::ids::{ShardId, WorkerId};
use shardfleet_core::lease::{Control, Lease, OpenedAt, PendingCheckpoint};
use shardfleet_core::sequence::ExtendedSequenceNumber;
use shardfleet_core::time::Timestamp;

/// Every column, in the order that reading and writing use.
pub(super) const COLUMNS: &str = "lease_key, owner, counter, owner_switches_since_checkpoint, checkpoint, \
     checkpoint_sub_sequence_number, pending_checkpoint, pending_checkpoint_sub_sequence_number, \
     pending_checkpoint_state, parent_shard_ids, child_shard_ids, starting_hash_key, ending_hash_key, \
     throughput_kbps, checkpoint_owner, opened_at, stream_created_at, control";

// The service allows letters, digits, `_`, `.` and `-` in a shard id.
const BETWEEN_SHARDS: &str = ",";

/// A row that is no lease.
#[derive(Debug)]
pub(super) struct Unreadable {
    pub(super) lease_key: String,
    pub(super) reason: String,
}

/// Adds a lease unless its key is there; how many rows that made.
pub(super) fn insert(transaction: &Transaction<'_>, lease: &Lease) -> rusqlite::Result<usize> {
    write(transaction, "INSERT OR IGNORE", lease)
}

/// Replaces a lease that is there.
pub(super) fn update(transaction: &Transaction<'_>, lease: &Lease) -> rusqlite::Result<usize> {
    write(transaction, "INSERT OR REPLACE", lease)
}

fn write(transaction: &Transaction<'_>, verb: &str, lease: &Lease) -> rusqlite::Result<usize> {
    let sql = format!(
        "{verb} INTO lease ({COLUMNS}) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)"
    );
    let pending = lease.pending_checkpoint.as_ref();
    transaction.prepare_cached(&sql)?.execute(params![
        lease.lease_key.as_str(),
        lease.owner.as_ref().map(WorkerId::as_str),
        lease.counter.cast_signed(),
        lease.owner_switches_since_checkpoint.cast_signed(),
        lease.checkpoint.checkpoint_text(),
        lease.checkpoint.sub_sequence_number().cast_signed(),
        pending.map(|pending| pending.at.checkpoint_text()),
        pending.map(|pending| pending.at.sub_sequence_number().cast_signed()),
        pending.and_then(|pending| pending.state.as_deref()),
        join(&lease.parent_shard_ids),
        join(&lease.child_shard_ids),
        lease.hash_key_range.map(|range| range.start().to_string()),
        lease.hash_key_range.map(|range| range.end().to_string()),
        lease.throughput_kbps,
        lease.checkpoint_owner.as_ref().map(WorkerId::as_str),
        lease.opened_at.as_ref().map(ToString::to_string),
        lease.stream_created_at.map(|at| at.millis().cast_signed()),
        lease.control.map(|control| control.to_string()),
    ])
}

/// Reads a row of [`COLUMNS`].
pub(super) fn read(row: &Row<'_>) -> Result<Lease, Unreadable> {
    let lease_key: String = row.get(0).unwrap_or_default();
    try_read(row, &lease_key).map_err(|reason| Unreadable { lease_key, reason })
}

fn try_read(row: &Row<'_>, lease_key: &str) -> Result<Lease, String> {
    let text = |index| {
        row.get::<_, Option<String>>(index)
            .map_err(|error| error.to_string())
    };
    let number = |index| {
        let number = row
            .get::<_, Option<i64>>(index)
            .map_err(|error| error.to_string())?;
        Ok::<_, String>(number.map(i64::cast_unsigned))
    };
    let position = |name: &str, index, sub: Option<u64>| match text(index)? {
        None => Ok(None),
        Some(checkpoint) => ExtendedSequenceNumber::parse(&checkpoint, sub.unwrap_or(0))
            .map(Some)
            .map_err(|error| format!("{name}: {error}, or TRIM_HORIZON, LATEST, AT_TIMESTAMP or SHARD_END")),
    };
    let checkpoint = position("checkpoint", 4, number(5)?)?.ok_or("checkpoint is missing")?;
    let mut lease = Lease::new(lease_key, checkpoint);
    lease.owner = text(1)?.map(WorkerId::from);
    lease.counter = number(2)?.ok_or("counter is missing")?;
    lease.owner_switches_since_checkpoint = number(3)?.unwrap_or(0);
    if let Some(at) = position("pending_checkpoint", 6, number(7)?)? {
        let state = row.get(8).map_err(|error| error.to_string())?;
        lease.pending_checkpoint = Some(PendingCheckpoint { at, state });
    }
    lease.parent_shard_ids = split(text(9)?);
    lease.child_shard_ids = split(text(10)?);
    if let (Some(start), Some(end)) = (text(11)?, text(12)?) {
        let range = HashKeyRange::parse(&start, &end);
        lease.hash_key_range =
            Some(range.map_err(|error| format!("starting_hash_key to ending_hash_key: {error}"))?);
    }
    lease.throughput_kbps = row.get(13).map_err(|error| error.to_string())?;
    lease.checkpoint_owner = text(14)?.map(WorkerId::from);
    if let Some(opened_at) = text(15)? {
        let opened_at = OpenedAt::parse(&opened_at).map_err(|got| format!("opened_at is {got:?}"))?;
        lease.opened_at = Some(opened_at);
    }
    lease.stream_created_at = number(16)?.map(Timestamp::from_millis);
    if let Some(control) = text(17)? {
        let control = Control::parse(&control).map_err(|got| format!("control is {got:?}"))?;
        lease.control = Some(control);
    }
    Ok(lease)
}

fn join(shards: &[ShardId]) -> String {
    let texts: Vec<_> = shards.iter().map(ShardId::as_str).collect();
    texts.join(BETWEEN_SHARDS)
}

fn split(text: Option<String>) -> Vec<ShardId> {
    let text = text.unwrap_or_default();
    text.split(BETWEEN_SHARDS)
        .filter(|shard| !shard.is_empty())
        .map(ShardId::from)
        .collect()
}
