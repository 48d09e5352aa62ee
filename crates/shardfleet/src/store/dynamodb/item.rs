//! A lease as a DynamoDB item, in the Java KCL's layout (`KCL: DynamoDBLeaseSerializer`). The only place that knows the
//! names and types of the attributes.
//!
//! Written: integers as plain digits (Java reads them with `Long.parseLong`), empty values not at all (Java refuses them),
//! `entityType` on every row created. Read: leniently where Java writers differ, and what cannot be read is an error that
//! names the attribute, since a guess could move a checkpoint.

use std::collections::HashMap;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use shardfleet_core::hash_range::HashKeyRange;
use shardfleet_core::ids::{LeaseKey, ShardId, WorkerId};
use shardfleet_core::lease::{Control, Lease, OpenedAt, PendingCheckpoint};
use shardfleet_core::sequence::ExtendedSequenceNumber;
use shardfleet_core::time::Timestamp;

pub(super) const LEASE_KEY: &str = "leaseKey";
pub(super) const LEASE_OWNER: &str = "leaseOwner";
pub(super) const LEASE_COUNTER: &str = "leaseCounter";
pub(super) const OWNER_SWITCHES: &str = "ownerSwitchesSinceCheckpoint";
pub(super) const CHECKPOINT: &str = "checkpoint";
pub(super) const CHECKPOINT_SUB: &str = "checkpointSubSequenceNumber";
pub(super) const PENDING: &str = "pendingCheckpoint";
pub(super) const PENDING_SUB: &str = "pendingCheckpointSubSequenceNumber";
pub(super) const PENDING_STATE: &str = "pendingCheckpointState";
// The name is singular though it is a set.
pub(super) const PARENT_SHARDS: &str = "parentShardId";
pub(super) const CHILD_SHARDS: &str = "childShardIds";
pub(super) const STARTING_HASH_KEY: &str = "startingHashKey";
pub(super) const ENDING_HASH_KEY: &str = "endingHashKey";
pub(super) const THROUGHPUT: &str = "throughputKBps";
pub(super) const CHECKPOINT_OWNER: &str = "checkpointOwner";
pub(super) const ENTITY_TYPE: &str = "entityType";
pub(super) const STREAM_NAME: &str = "streamName";
pub(super) const SHARD_ID: &str = "shardId";
pub(super) const OPENED_AT: &str = "shardfleetOpenedAt";
pub(super) const STREAM_CREATED_AT: &str = "shardfleetStreamCreatedAt";
pub(super) const CONTROL: &str = "shardfleetControl";

/// The `entityType` of a lease. Rows without one are leases of KCL releases before 3.5.
pub(super) const ENTITY_LEASE: &str = "LEASE";

const MAX_SHOWN_CHARS: usize = 80;

pub(super) type Item = HashMap<String, AttributeValue>;

/// The item of a new lease.
pub(super) fn to_item(lease: &Lease) -> Item {
    let mut item = Item::new();
    let mut put = |name: &str, value: AttributeValue| item.insert(name.to_owned(), value);
    put(LEASE_KEY, text(lease.lease_key.as_str()));
    put(ENTITY_TYPE, text(ENTITY_LEASE));
    put(LEASE_COUNTER, number(lease.counter));
    put(OWNER_SWITCHES, number(lease.owner_switches_since_checkpoint));
    put(CHECKPOINT, text(lease.checkpoint.checkpoint_text()));
    put(CHECKPOINT_SUB, number(lease.checkpoint.sub_sequence_number()));
    if let Some(pending) = &lease.pending_checkpoint {
        put(PENDING, text(pending.at.checkpoint_text()));
        put(PENDING_SUB, number(pending.at.sub_sequence_number()));
        if let Some(state) = pending.state.as_deref().filter(|state| !state.is_empty()) {
            put(PENDING_STATE, blob(state));
        }
    }
    if let Some(shards) = shard_set(&lease.parent_shard_ids) {
        put(PARENT_SHARDS, shards);
    }
    if let Some(shards) = shard_set(&lease.child_shard_ids) {
        put(CHILD_SHARDS, shards);
    }
    if let Some(range) = lease.hash_key_range {
        put(STARTING_HASH_KEY, text(&range.start().to_string()));
        put(ENDING_HASH_KEY, text(&range.end().to_string()));
    }
    if let Some(throughput) = lease.throughput_kbps.and_then(throughput) {
        put(THROUGHPUT, throughput);
    }
    for (name, worker) in [
        (LEASE_OWNER, &lease.owner),
        (CHECKPOINT_OWNER, &lease.checkpoint_owner),
    ] {
        if let Some(worker) = worker.as_ref().filter(|worker| !worker.as_str().is_empty()) {
            put(name, text(worker.as_str()));
        }
    }
    if let Some((stream, shard)) = stream_and_shard(lease.lease_key.as_str()) {
        put(STREAM_NAME, text(stream));
        put(SHARD_ID, text(shard));
    }
    if let Some(opened_at) = &lease.opened_at {
        put(OPENED_AT, text(&opened_at.to_string()));
    }
    if let Some(at) = lease.stream_created_at {
        put(STREAM_CREATED_AT, number(at.millis()));
    }
    if let Some(control) = lease.control {
        put(CONTROL, text(&control.to_string()));
    }
    item
}

/// The stream identifier and the shard of a key `account:stream:epoch:shard`, as an application that reads several streams
/// has it; its rows carry both apart from the key (`KCL: DynamoDBMultiStreamLeaseSerializer`).
fn stream_and_shard(lease_key: &str) -> Option<(&str, &str)> {
    let (stream, shard) = lease_key.rsplit_once(':')?;
    let is_multi_stream = stream.matches(':').count() == 2 && !shard.is_empty();
    is_multi_stream.then_some((stream, shard))
}

/// Whether a row is a lease, or a lock, metrics or a migration state that lives in the same table.
pub(super) fn is_lease(item: &Item) -> bool {
    match item.get(ENTITY_TYPE) {
        None => true,
        Some(AttributeValue::S(entity)) => entity == ENTITY_LEASE,
        Some(_) => false,
    }
}

/// Reads a lease row.
///
/// # Errors
/// The attribute, its value and what was expected.
pub(super) fn from_item(item: &Item) -> Result<Lease, String> {
    let lease_key = LeaseKey::new(required(item, LEASE_KEY, "a text", text_of(item, LEASE_KEY)?)?);
    let checkpoint = required(item, CHECKPOINT, "a text", text_of(item, CHECKPOINT)?)?;
    let mut lease = Lease::new(
        lease_key,
        position(CHECKPOINT, checkpoint, number_of(item, CHECKPOINT_SUB)?)?,
    );
    lease.counter = required(
        item,
        LEASE_COUNTER,
        "a whole number",
        number_of(item, LEASE_COUNTER)?,
    )?;
    lease.owner_switches_since_checkpoint = number_of(item, OWNER_SWITCHES)?.unwrap_or(0);
    lease.pending_checkpoint = pending_of(item)?;
    lease.parent_shard_ids = shards_of(item, PARENT_SHARDS)?;
    lease.child_shard_ids = shards_of(item, CHILD_SHARDS)?;
    lease.hash_key_range = range_of(item)?;
    lease.throughput_kbps = throughput_of(item)?;
    lease.owner = text_of(item, LEASE_OWNER)?.map(WorkerId::from);
    lease.checkpoint_owner = text_of(item, CHECKPOINT_OWNER)?.map(WorkerId::from);
    lease.opened_at = text_of(item, OPENED_AT)?
        .map(|opened_at| {
            OpenedAt::parse(opened_at).map_err(|got| {
                format!("{OPENED_AT} is {got:?}; LATEST@, AT_TIMESTAMP@ or AT_SEQUENCE_NUMBER@ with a number is expected")
            })
        })
        .transpose()?;
    lease.stream_created_at = number_of(item, STREAM_CREATED_AT)?.map(Timestamp::from_millis);
    lease.control = text_of(item, CONTROL)?
        .map(|control| {
            Control::parse(control).map_err(|got| {
                format!("{CONTROL} is {got:?}; RUNNING, PAUSED or STOPPED, a blank and a number are expected")
            })
        })
        .transpose()?;
    Ok(lease)
}

/// The row's key for messages, whatever it is.
pub(super) fn shown_key(item: &Item, key: &str) -> String {
    match item.get(key) {
        Some(AttributeValue::S(key)) => key.clone(),
        other => shown(other),
    }
}

pub(super) fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

pub(super) fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

pub(super) fn blob(value: &[u8]) -> AttributeValue {
    AttributeValue::B(Blob::new(value))
}

/// A set of shard ids; `None` for an empty one, which DynamoDB refuses.
pub(super) fn shard_set(shards: &[ShardId]) -> Option<AttributeValue> {
    let mut texts: Vec<_> = shards.iter().map(ToString::to_string).collect();
    texts.sort_unstable();
    // DynamoDB refuses a set that names a member twice.
    texts.dedup();
    (!texts.is_empty()).then_some(AttributeValue::Ss(texts))
}

/// A throughput with six decimals, as Java writes it; `None` for what is no throughput.
pub(super) fn throughput(kbps: f64) -> Option<AttributeValue> {
    let rounded = (kbps * 1e6).round() / 1e6;
    // A number outside DynamoDB's range would fail the whole heartbeat.
    (rounded.is_finite() && (0.0..1e30).contains(&rounded)).then(|| AttributeValue::N(rounded.to_string()))
}

pub(super) fn text_of<'a>(item: &'a Item, name: &str) -> Result<Option<&'a str>, String> {
    match item.get(name) {
        None | Some(AttributeValue::Null(_)) => Ok(None),
        // Never written by anybody; an owner that is an empty text would be nobody all the same.
        Some(AttributeValue::S(value)) => Ok(Some(value.as_str()).filter(|value| !value.is_empty())),
        other => Err(unexpected(name, other, "a text")),
    }
}

pub(super) fn number_of(item: &Item, name: &str) -> Result<Option<u64>, String> {
    match item.get(name) {
        None | Some(AttributeValue::Null(_)) => Ok(None),
        Some(AttributeValue::N(digits)) => {
            let refuse = |_| {
                unexpected(
                    name,
                    item.get(name),
                    "a whole number from 0 to 18446744073709551615",
                )
            };
            digits.parse().map(Some).map_err(refuse)
        }
        other => Err(unexpected(name, other, "a whole number")),
    }
}

fn throughput_of(item: &Item) -> Result<Option<f64>, String> {
    match item.get(THROUGHPUT) {
        None | Some(AttributeValue::Null(_)) => Ok(None),
        // Java sends exponents, such as 2.0E-6.
        Some(AttributeValue::N(digits)) => {
            let refuse = |_| unexpected(THROUGHPUT, item.get(THROUGHPUT), "a number");
            digits.parse().map(Some).map_err(refuse)
        }
        other => Err(unexpected(THROUGHPUT, other, "a number")),
    }
}

fn shards_of(item: &Item, name: &str) -> Result<Vec<ShardId>, String> {
    match item.get(name) {
        None | Some(AttributeValue::Null(_)) => Ok(Vec::new()),
        Some(AttributeValue::Ss(shards)) => {
            let mut shards: Vec<_> = shards.iter().map(ShardId::new).collect();
            // A set has no order of its own; a fixed one keeps plans the same from read to read.
            shards.sort_unstable();
            Ok(shards)
        }
        other => Err(unexpected(name, other, "a set of shard ids")),
    }
}

fn range_of(item: &Item) -> Result<Option<HashKeyRange>, String> {
    let (start, end) = (text_of(item, STARTING_HASH_KEY)?, text_of(item, ENDING_HASH_KEY)?);
    let (Some(start), Some(end)) = (start, end) else {
        return Ok(None);
    };
    HashKeyRange::parse(start, end)
        .map(Some)
        .map_err(|error| format!("{STARTING_HASH_KEY} to {ENDING_HASH_KEY} is no range: {error}"))
}

fn pending_of(item: &Item) -> Result<Option<PendingCheckpoint>, String> {
    let Some(pending) = text_of(item, PENDING)? else {
        return Ok(None);
    };
    let at = position(PENDING, pending, number_of(item, PENDING_SUB)?)?;
    let state = match item.get(PENDING_STATE) {
        None | Some(AttributeValue::Null(_)) => None,
        Some(AttributeValue::B(state)) => Some(state.as_ref().to_vec()),
        other => return Err(unexpected(PENDING_STATE, other, "bytes")),
    };
    Ok(Some(PendingCheckpoint { at, state }))
}

fn position(name: &str, checkpoint: &str, sub: Option<u64>) -> Result<ExtendedSequenceNumber, String> {
    ExtendedSequenceNumber::parse(checkpoint, sub.unwrap_or(0))
        .map_err(|error| format!("{name}: {error}, or TRIM_HORIZON, LATEST, AT_TIMESTAMP or SHARD_END"))
}

fn required<T>(item: &Item, name: &str, expected: &str, value: Option<T>) -> Result<T, String> {
    value.ok_or_else(|| unexpected(name, item.get(name), expected))
}

pub(super) fn unexpected(name: &str, value: Option<&AttributeValue>, expected: &str) -> String {
    match value {
        None => format!("{name} is missing; {expected} is expected"),
        value => format!("{name} is {}; {expected} is expected", shown(value)),
    }
}

/// An attribute's value for messages, of bounded length.
fn shown(value: Option<&AttributeValue>) -> String {
    let Some(value) = value else {
        return "nothing".to_owned();
    };
    let whole = match value {
        AttributeValue::S(value) => format!("the text {value:?}"),
        AttributeValue::N(value) => format!("the number {value}"),
        AttributeValue::B(value) => format!("{} bytes", value.as_ref().len()),
        AttributeValue::Bool(value) => format!("the flag {value}"),
        AttributeValue::Ss(values) => format!("a set of {} texts", values.len()),
        AttributeValue::L(values) => format!("a list of {}", values.len()),
        AttributeValue::M(values) => format!("a map of {}", values.len()),
        AttributeValue::Null(_) => "null".to_owned(),
        _ => "of another type".to_owned(),
    };
    if whole.chars().count() <= MAX_SHOWN_CHARS {
        return whole;
    }
    let mut cut: String = whole.chars().take(MAX_SHOWN_CHARS).collect();
    cut.push_str("...");
    cut
}

#[cfg(test)]
mod tests;
