//! The bytes of an aggregated record: envelope and protobuf message, read and written.
//!
//! The message is read by hand, not by generated code, for three reasons. Generated readers do not enforce proto2's
//! `required`; they refuse text that is not UTF-8, which the Java KCL accepts; and they build a tree of every nested
//! message first, so that a record of a few megabytes of tiny fields would need hundreds of megabytes of memory. Here
//! everything is a slice of the input and what is invalid is refused while it is read.

use md5::{Digest, Md5};

/// The first bytes of an aggregated record.
pub(super) const MAGIC: [u8; 4] = [0xF3, 0x89, 0x9A, 0xC2];
/// How many bytes of MD5 end it.
pub(super) const DIGEST_BYTES: usize = 16;

const TABLE_PARTITION_KEY: u32 = 1;
const TABLE_EXPLICIT_HASH_KEY: u32 = 2;
const RECORDS: u32 = 3;
const RECORD_PARTITION_KEY_INDEX: u32 = 1;
const RECORD_EXPLICIT_HASH_KEY_INDEX: u32 = 2;
const RECORD_DATA: u32 = 3;
const RECORD_TAGS: u32 = 4;
const TAG_KEY: u32 = 1;

// protobuf-java's own limit for nested groups.
const MAX_GROUP_DEPTH: usize = 100;

/// A parsed message; every slice points into the Kinesis record.
#[derive(Debug, Default)]
pub(super) struct Message<'a> {
    pub(super) partition_keys: Vec<&'a [u8]>,
    pub(super) explicit_hash_keys: Vec<&'a [u8]>,
    pub(super) records: Vec<Record<'a>>,
}

/// One user record as the message holds it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub(super) partition_key_index: u64,
    /// Absent and 0 differ: absent means no explicit hash key.
    pub(super) explicit_hash_key_index: Option<u64>,
    pub(super) data: &'a [u8],
}

/// Reads a Kinesis record's data as an aggregate; `None` when it is a plain record.
pub(super) fn read(data: &[u8]) -> Option<Message<'_>> {
    let after_magic = data.strip_prefix(&MAGIC)?;
    // At least one byte of message has to precede the digest (`KCL: AggregatorUtil#deaggregate`).
    if after_magic.len() <= DIGEST_BYTES {
        return None;
    }
    let (message, digest) = after_magic.split_at_checked(after_magic.len() - DIGEST_BYTES)?;
    if Md5::digest(message).as_slice() != digest {
        return None;
    }
    read_message(message)
}

/// Puts the envelope around a message.
pub(super) fn write_envelope(parts: &[&[u8]]) -> Vec<u8> {
    let message_len: usize = parts.iter().map(|part| part.len()).sum();
    let mut data = Vec::with_capacity(MAGIC.len() + message_len + DIGEST_BYTES);
    data.extend_from_slice(&MAGIC);
    for part in parts {
        data.extend_from_slice(part);
    }
    let digest = Md5::digest(&data[MAGIC.len()..]);
    data.extend_from_slice(&digest);
    data
}

/// Appends an entry of the partition key table.
pub(super) fn write_partition_key(out: &mut Vec<u8>, text: &[u8]) {
    write_bytes(out, TABLE_PARTITION_KEY, text);
}

/// Appends an entry of the explicit hash key table.
pub(super) fn write_explicit_hash_key(out: &mut Vec<u8>, text: &[u8]) {
    write_bytes(out, TABLE_EXPLICIT_HASH_KEY, text);
}

/// Appends a user record.
pub(super) fn write_record(out: &mut Vec<u8>, record: &Record<'_>) {
    write_varint(out, tag(RECORDS, 2));
    write_varint(out, record_len(record) as u64);
    write_varint(out, tag(RECORD_PARTITION_KEY_INDEX, 0));
    write_varint(out, record.partition_key_index);
    if let Some(index) = record.explicit_hash_key_index {
        write_varint(out, tag(RECORD_EXPLICIT_HASH_KEY_INDEX, 0));
        write_varint(out, index);
    }
    write_bytes(out, RECORD_DATA, record.data);
}

/// How many bytes [`write_record`] appends.
pub(super) fn record_field_len(record: &Record<'_>) -> usize {
    bytes_field_len(record_len(record))
}

/// How many bytes a table entry of `len` bytes takes.
pub(super) fn bytes_field_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

fn record_len(record: &Record<'_>) -> usize {
    let explicit = record
        .explicit_hash_key_index
        .map_or(0, |index| 1 + varint_len(index));
    1 + varint_len(record.partition_key_index) + explicit + bytes_field_len(record.data.len())
}

fn tag(field: u32, wire_type: u32) -> u64 {
    u64::from(field << 3 | wire_type)
}

fn write_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    write_varint(out, tag(field, 2));
    write_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low_bits, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            out.push(low_bits & 0x7F);
            return;
        }
        out.push(low_bits | 0x80);
    }
}

fn varint_len(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// `None` for anything that protobuf-java refuses.
fn read_message(bytes: &[u8]) -> Option<Message<'_>> {
    let mut message = Message::default();
    let mut fields = Fields { rest: bytes };
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (TABLE_PARTITION_KEY, Value::Bytes(text)) => message.partition_keys.push(text),
            (TABLE_EXPLICIT_HASH_KEY, Value::Bytes(text)) => message.explicit_hash_keys.push(text),
            (RECORDS, Value::Bytes(record)) => message.records.push(read_record(record)?),
            // A known field of another wire type is an unknown field.
            _ => {}
        }
    }
    Some(message)
}

fn read_record(bytes: &[u8]) -> Option<Record<'_>> {
    let (mut partition_key_index, mut explicit_hash_key_index, mut data) = (None, None, None);
    let mut fields = Fields { rest: bytes };
    // Of a field that is repeated though it should not be, the last one counts.
    while let Some((number, value)) = fields.next()? {
        match (number, value) {
            (RECORD_PARTITION_KEY_INDEX, Value::Varint(index)) => partition_key_index = Some(index),
            (RECORD_EXPLICIT_HASH_KEY_INDEX, Value::Varint(index)) => explicit_hash_key_index = Some(index),
            (RECORD_DATA, Value::Bytes(bytes)) => data = Some(bytes),
            (RECORD_TAGS, Value::Bytes(tag)) => check_tag(tag)?,
            _ => {}
        }
    }
    Some(Record {
        partition_key_index: partition_key_index?,
        explicit_hash_key_index,
        data: data?,
    })
}

/// Nobody reads tags, yet one without its required key makes the message invalid.
fn check_tag(bytes: &[u8]) -> Option<()> {
    let mut has_key = false;
    let mut fields = Fields { rest: bytes };
    while let Some((number, value)) = fields.next()? {
        has_key |= number == TAG_KEY && matches!(value, Value::Bytes(_));
    }
    has_key.then_some(())
}

/// The value of a field: the two wire types the format uses, and the rest, which is skipped.
enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Other,
}

/// Walks the fields of one message.
struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// The next field; `Some(None)` at the end, `None` when the bytes are no message.
    #[expect(
        clippy::option_option,
        reason = "`?` on the outer one reads as `refuse`, the inner one ends the walk"
    )]
    fn next(&mut self) -> Option<Option<(u32, Value<'a>)>> {
        if self.rest.is_empty() {
            return Some(None);
        }
        let (number, wire_type) = self.tag()?;
        let value = match wire_type {
            0 => Value::Varint(self.varint()?),
            2 => Value::Bytes(self.bytes()?),
            3 => {
                self.skip_group(number)?;
                Value::Other
            }
            other => {
                self.skip_fixed(other)?;
                Value::Other
            }
        };
        Some(Some((number, value)))
    }

    fn tag(&mut self) -> Option<(u32, u32)> {
        let tag = u32::try_from(self.varint()?).ok()?;
        let number = tag >> 3;
        (number != 0).then_some((number, tag & 7))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        // A varint has at most ten bytes; what exceeds 64 bits in the tenth is dropped, as protobuf does.
        for shift in (0..70).step_by(7) {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.varint()?).ok()?;
        let (bytes, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(bytes)
    }

    fn skip_fixed(&mut self, wire_type: u32) -> Option<()> {
        let len = match wire_type {
            1 => 8,
            5 => 4,
            // The end of a group that never began, or a wire type that does not exist.
            _ => return None,
        };
        self.rest = self.rest.get(len..)?;
        Some(())
    }

    /// Skips what follows the start of group `number` up to its end. Without recursion: the depth is the input's choice.
    fn skip_group(&mut self, number: u32) -> Option<()> {
        let mut open = vec![number];
        while let Some(&innermost) = open.last() {
            let (number, wire_type) = self.tag()?;
            match wire_type {
                0 => drop(self.varint()?),
                2 => drop(self.bytes()?),
                3 if open.len() < MAX_GROUP_DEPTH => open.push(number),
                4 if number == innermost => drop(open.pop()),
                other => self.skip_fixed(other)?,
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn unknown_fields_and_groups_are_skipped_and_broken_ones_refused() {
        let accepted: [&[u8]; 5] = [
            b"",
            b"\x20\x05",                 // unknown varint
            b"\x21\0\0\0\0\0\0\0\0",     // unknown 64-bit
            b"\x25\0\0\0\0",             // unknown 32-bit
            b"\x23\x08\x01\x2B\x2C\x24", // group 4 holding a varint and an empty group 5
        ];
        for bytes in accepted {
            assert!(
                read_message(bytes).is_some_and(|m| m.records.is_empty()),
                "{bytes:?}"
            );
        }
        let refused: [&[u8]; 9] = [
            b"\x80",                                             // varint cut short
            b"\x20\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", // varint of eleven bytes
            b"\x00\x00",                                         // field number 0
            b"\x0A\x05ab",                                       // length beyond the end
            b"\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01",     // length of 2^64 - 1
            b"\x24",                                             // end of a group that never began
            b"\x23\x2C",                                         // another group's end
            b"\x23",                                             // group without end
            b"\x26",                                             // wire type 6
        ];
        for bytes in refused {
            assert!(read_message(bytes).is_none(), "{bytes:?}");
        }
        assert!(
            read_message(&vec![0x23; 5_000_000]).is_none(),
            "deep groups end the reading, not the stack"
        );
    }

    #[test]
    fn varint_length_is_that_of_what_is_written() {
        for shift in 0..64 {
            for value in [1_u64 << shift, (1_u64 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                write_varint(&mut out, value);
                assert_eq!(out.len(), varint_len(value), "{value}");
                assert_eq!(Fields { rest: &out }.varint(), Some(value));
            }
        }
    }

    proptest! {
        #[test]
        fn a_written_record_reads_back(
            partition_key_index: u64,
            explicit_hash_key_index: Option<u64>,
            data: Vec<u8>,
        ) {
            let record = Record { partition_key_index, explicit_hash_key_index, data: &data };
            let mut out = Vec::new();
            write_record(&mut out, &record);
            prop_assert_eq!(out.len(), record_field_len(&record));
            let message = read_message(&out).expect("what we write is valid");
            prop_assert_eq!(message.records, vec![record]);
        }
    }
}
