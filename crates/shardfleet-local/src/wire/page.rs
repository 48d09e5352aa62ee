//! Pages of records, written straight into one buffer.
//!
//! This is the hot path: nothing is allocated for a record and no payload is copied but into the answer.

use std::sync::Arc;

use super::value::Value;
use super::{Format, cbor, json};
use crate::model::Record;

/// A `GetRecords` answer.
#[derive(Debug)]
pub(crate) struct PageView<'a> {
    pub(crate) records: &'a [Arc<Record>],
    pub(crate) encrypted: bool,
    pub(crate) next_iterator: Option<&'a str>,
    pub(crate) millis_behind: u64,
    pub(crate) child_shards: Option<&'a Value<'a>>,
}

/// A `SubscribeToShardEvent`.
#[derive(Debug)]
pub(crate) struct EventView<'a> {
    pub(crate) records: &'a [Arc<Record>],
    pub(crate) encrypted: bool,
    pub(crate) continuation: Option<&'a str>,
    pub(crate) millis_behind: u64,
    pub(crate) child_shards: Option<&'a Value<'a>>,
}

pub(crate) fn write_page(format: Format, page: &PageView<'_>) -> Vec<u8> {
    let tail = Tail {
        position: page.next_iterator.map(|text| ("NextShardIterator", text)),
        millis_behind: page.millis_behind,
        child_shards: page.child_shards,
    };
    write(format, page.records, page.encrypted, &tail)
}

pub(crate) fn write_event(format: Format, event: &EventView<'_>) -> Vec<u8> {
    let tail = Tail {
        position: event
            .continuation
            .map(|text| ("ContinuationSequenceNumber", text)),
        millis_behind: event.millis_behind,
        child_shards: event.child_shards,
    };
    write(format, event.records, event.encrypted, &tail)
}

/// What follows the records.
struct Tail<'a> {
    position: Option<(&'static str, &'a str)>,
    millis_behind: u64,
    child_shards: Option<&'a Value<'a>>,
}

fn write(format: Format, records: &[Arc<Record>], encrypted: bool, tail: &Tail<'_>) -> Vec<u8> {
    // Names, punctuation, sequence number and time come to less than 220 bytes.
    let per_record = |r: &Arc<Record>| 220 + r.key.len() + r.data.len().div_ceil(3) * 4;
    let mut out = Vec::with_capacity(1024 + records.iter().map(per_record).sum::<usize>());
    match format {
        Format::Json => write_json(&mut out, records, encrypted, tail),
        Format::Cbor => write_cbor(&mut out, records, encrypted, tail),
    }
    out
}

fn write_json(out: &mut Vec<u8>, records: &[Arc<Record>], encrypted: bool, tail: &Tail<'_>) {
    out.extend_from_slice(b"{\"Records\":[");
    for (i, record) in records.iter().enumerate() {
        out.extend_from_slice(if i == 0 {
            b"{\"SequenceNumber\":\"" as &[u8]
        } else {
            b",{\"SequenceNumber\":\""
        });
        out.extend_from_slice(&record.sequence);
        out.extend_from_slice(b"\",\"ApproximateArrivalTimestamp\":");
        json::write_time(out, record.arrival_ms);
        out.extend_from_slice(b",\"Data\":");
        json::write_base64(out, &record.data);
        if !record.key.is_empty() {
            out.extend_from_slice(b",\"PartitionKey\":");
            json::write_text(out, &record.key);
        }
        if encrypted {
            out.extend_from_slice(b",\"EncryptionType\":\"KMS\"");
        }
        out.push(b'}');
    }
    out.push(b']');
    if let Some((name, text)) = tail.position {
        out.push(b',');
        json::write_text(out, name.as_bytes());
        out.push(b':');
        json::write_text(out, text.as_bytes());
    }
    out.extend_from_slice(b",\"MillisBehindLatest\":");
    out.extend_from_slice(tail.millis_behind.to_string().as_bytes());
    if let Some(children) = tail.child_shards {
        out.extend_from_slice(b",\"ChildShards\":");
        json::write(out, children);
    }
    out.push(b'}');
}

fn write_cbor(out: &mut Vec<u8>, records: &[Arc<Record>], encrypted: bool, tail: &Tail<'_>) {
    let fields = 2 + u64::from(tail.position.is_some()) + u64::from(tail.child_shards.is_some());
    cbor::write_head(out, 5, fields);
    cbor::write_text(out, b"Records");
    cbor::write_head(out, 4, records.len() as u64);
    for record in records {
        cbor::write_head(
            out,
            5,
            3 + u64::from(!record.key.is_empty()) + u64::from(encrypted),
        );
        cbor::write_text(out, b"SequenceNumber");
        cbor::write_text(out, &record.sequence);
        cbor::write_text(out, b"ApproximateArrivalTimestamp");
        cbor::write_time(out, record.arrival_ms);
        cbor::write_text(out, b"Data");
        cbor::write_bytes(out, &record.data);
        if !record.key.is_empty() {
            cbor::write_text(out, b"PartitionKey");
            cbor::write_text(out, &record.key);
        }
        if encrypted {
            cbor::write_text(out, b"EncryptionType");
            cbor::write_text(out, b"KMS");
        }
    }
    if let Some((name, text)) = tail.position {
        cbor::write_text(out, name.as_bytes());
        cbor::write_text(out, text.as_bytes());
    }
    cbor::write_text(out, b"MillisBehindLatest");
    cbor::write_head(out, 0, tail.millis_behind);
    if let Some(children) = tail.child_shards {
        cbor::write_text(out, b"ChildShards");
        cbor::write(out, children);
    }
}
