//! The bytes of a record's value, exactly as Kafka Connect writes them.
//!
//! Bare JSON without an envelope, members in Connect's order, nulls written out, escapes as Jackson's: control characters as `\u001B`, characters beyond the basic
//! plane as pairs of surrogates. The reader takes what Connect's takes: members may be missing or unknown, the last of two counts, a byte order mark before and
//! anything after the object are passed over.

use std::io;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::ser::{CharEscape, Formatter};
use shardfleet_core::status::{StatusKey, StatusState, StatusValue, TopicStatus, WorkStatus};

/// A trace is cut so that no record has more bytes than this, which leaves room below the 1,048,576 that clients and brokers take by default.
pub const VALUE_BYTES_MAX: usize = 900 * 1024;

const CUT: &str = "\n… cut: the whole trace is too long for a record";

#[derive(Serialize)]
struct WrittenWork<'a> {
    state: &'static str,
    trace: Option<&'a str>,
    worker_id: &'a str,
    generation: i32,
    version: Option<&'a str>,
}

#[derive(Serialize)]
struct WrittenTopic<'a> {
    topic: WrittenTopicInner<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenTopicInner<'a> {
    name: &'a str,
    connector: &'a str,
    task: i32,
    discover_timestamp: i64,
}

/// A status as a record's value. A trace that is too long for a record is cut, and says so at its end.
pub fn encode(value: &StatusValue) -> Vec<u8> {
    match value {
        StatusValue::Topic(status) => to_bytes(&WrittenTopic {
            topic: WrittenTopicInner {
                name: &status.topic,
                connector: &status.connector,
                task: status.task,
                discover_timestamp: status.discovered_ms,
            },
        }),
        StatusValue::Work(status) => {
            let bytes = work_bytes(status, status.trace.as_deref());
            let Some(trace) = status.trace.as_deref().filter(|_| bytes.len() > VALUE_BYTES_MAX) else {
                return bytes;
            };
            // Escapes make bytes of characters; halving finds a cut that fits whatever they are.
            let mut keep = trace.len().min(VALUE_BYTES_MAX);
            loop {
                let cut = format!("{}{CUT}", &trace[..trace.floor_char_boundary(keep)]);
                let bytes = work_bytes(status, Some(&cut));
                if bytes.len() <= VALUE_BYTES_MAX || keep == 0 {
                    return bytes;
                }
                keep /= 2;
            }
        }
    }
}

fn work_bytes(status: &WorkStatus, trace: Option<&str>) -> Vec<u8> {
    to_bytes(&WrittenWork {
        state: status.state.name(),
        trace,
        worker_id: &status.worker_id,
        generation: status.generation,
        version: status.version.as_deref(),
    })
}

fn to_bytes(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Jackson);
    value
        .serialize(&mut serializer)
        .expect("strings and numbers are written to memory");
    bytes
}

/// Escapes as Jackson's generator does.
struct Jackson;

impl Formatter for Jackson {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut units = [0; 2];
        let mut rest = fragment;
        while let Some(at) = rest.find(|c: char| c > '\u{ffff}') {
            writer.write_all(&rest.as_bytes()[..at])?;
            let mut after = rest[at..].chars();
            if let Some(character) = after.next() {
                for unit in character.encode_utf16(&mut units) {
                    write!(writer, "\\u{unit:04X}")?;
                }
            }
            rest = after.as_str();
        }
        writer.write_all(rest.as_bytes())
    }

    fn write_char_escape<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        let text = match escape {
            CharEscape::Quote => "\\\"",
            CharEscape::ReverseSolidus => "\\\\",
            CharEscape::Solidus => "\\/",
            CharEscape::Backspace => "\\b",
            CharEscape::FormFeed => "\\f",
            CharEscape::LineFeed => "\\n",
            CharEscape::CarriageReturn => "\\r",
            CharEscape::Tab => "\\t",
            CharEscape::AsciiControl(byte) => return write!(writer, "\\u{byte:04X}"),
        };
        writer.write_all(text.as_bytes())
    }
}

/// Why a record's value says nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// It is no JSON object.
    #[error("a JSON object is expected: {0}")]
    Json(String),
    /// A member is missing or of the wrong type.
    #[error("{member} is {found}: {wanted} is expected")]
    Member {
        /// Which.
        member: &'static str,
        /// What is there.
        found: String,
        /// What should be.
        wanted: &'static str,
    },
}

/// Reads the value of a record with this key.
pub fn decode(key: &StatusKey, bytes: &[u8]) -> Result<StatusValue, DecodeError> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    // What follows the object is passed over.
    let mut values = serde_json::Deserializer::from_slice(bytes);
    let value = Value::deserialize(&mut values).map_err(|error| DecodeError::Json(error.to_string()))?;
    let Value::Object(members) = &value else {
        return Err(DecodeError::Json(format!("it is {}", kind(Some(&value)))));
    };
    match key {
        StatusKey::Topic { .. } => {
            let topic = match members.get("topic") {
                Some(Value::Object(topic)) => topic,
                other => return Err(misfit("topic", other, "an object")),
            };
            Ok(StatusValue::Topic(TopicStatus {
                topic: required(topic.get("name"), "topic.name")?,
                connector: required(topic.get("connector"), "topic.connector")?,
                task: int(topic.get("task"), "topic.task")?,
                discovered_ms: long(topic.get("discoverTimestamp"), "topic.discoverTimestamp")?,
            }))
        }
        StatusKey::Connector { .. } | StatusKey::Task { .. } => {
            let state = required(members.get("state"), "state")?;
            let state = state.parse::<StatusState>().map_err(|_| DecodeError::Member {
                member: "state",
                found: format!("{state:?}"),
                wanted: "one of Connect's states in upper case",
            })?;
            Ok(StatusValue::Work(WorkStatus {
                state,
                trace: optional(members.get("trace"), "trace")?,
                worker_id: optional(members.get("worker_id"), "worker_id")?.unwrap_or_default(),
                generation: int(members.get("generation"), "generation")?,
                version: optional(members.get("version"), "version")?,
            }))
        }
    }
}

fn optional(value: Option<&Value>, member: &'static str) -> Result<Option<String>, DecodeError> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        other => Err(misfit(member, other, "a text or null")),
    }
}

fn required(value: Option<&Value>, member: &'static str) -> Result<String, DecodeError> {
    match value {
        Some(Value::String(text)) => Ok(text.clone()),
        other => Err(misfit(member, other, "a text")),
    }
}

/// As Java narrows a long: the lower 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "this is what Java does")]
fn int(value: Option<&Value>, member: &'static str) -> Result<i32, DecodeError> {
    long(value, member).map(|number| number as i32)
}

/// As Java narrows a larger integer: the lower 64 bits.
#[expect(clippy::cast_possible_wrap, reason = "this is what Java does")]
fn long(value: Option<&Value>, member: &'static str) -> Result<i64, DecodeError> {
    let number = match value {
        Some(Value::Number(number)) => number.as_i64().or_else(|| number.as_u64().map(|n| n as i64)),
        _ => None,
    };
    number.ok_or_else(|| misfit(member, value, "an integer"))
}

fn misfit(member: &'static str, value: Option<&Value>, wanted: &'static str) -> DecodeError {
    DecodeError::Member {
        member,
        found: kind(value),
        wanted,
    }
}

fn kind(value: Option<&Value>) -> String {
    match value {
        None => "missing".to_owned(),
        Some(Value::Null) => "null".to_owned(),
        Some(Value::Bool(value)) => value.to_string(),
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::String(_)) => "a text".to_owned(),
        Some(Value::Array(_)) => "an array".to_owned(),
        Some(Value::Object(_)) => "an object".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn status(trace: Option<String>) -> WorkStatus {
        WorkStatus {
            state: StatusState::Failed,
            trace,
            worker_id: "w".to_owned(),
            generation: 3,
            version: None,
        }
    }

    #[test]
    fn a_trace_that_is_too_long_is_cut_on_a_character_and_says_so() {
        for character in ["x", "é", "😀", "\u{1b}"] {
            let trace = character.repeat(2_000_000 / character.len());
            let bytes = encode(&StatusValue::Work(status(Some(trace.clone()))));
            assert!(
                bytes.len() <= VALUE_BYTES_MAX && bytes.len() > VALUE_BYTES_MAX / 8,
                "{}",
                bytes.len()
            );
            let read = decode(&StatusKey::connector("a"), &bytes).expect("valid");
            let read = read
                .work()
                .and_then(|status| status.trace.clone())
                .expect("a trace");
            let kept = read.strip_suffix(CUT).expect("it says so");
            assert!(trace.starts_with(kept) && !kept.is_empty());
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let key = StatusKey::task("a", 0);
        for (text, said) in [
            ("[]", "an array"),
            ("{bad", "JSON object"),
            (r#"{"state":"running","generation":1}"#, "state is \"running\""),
            (r#"{"state":"RUNNING"}"#, "generation is missing"),
            (r#"{"state":"RUNNING","generation":1.5}"#, "generation is 1.5"),
            (
                r#"{"state":"RUNNING","generation":1,"trace":{}}"#,
                "trace is an object",
            ),
        ] {
            let error = decode(&key, text.as_bytes()).expect_err(text).to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    proptest! {
        #[test]
        fn every_status_is_read_as_it_was_written(
            trace in prop::option::of(".*"), worker_id in ".*", generation in any::<i32>(), version in prop::option::of(".*"),
            state in prop::sample::select(&StatusState::ALL[..]),
        ) {
            let status = StatusValue::Work(WorkStatus { state, trace, worker_id, generation, version });
            let bytes = encode(&status);
            prop_assert_eq!(decode(&StatusKey::task("a", 0), &bytes).expect("valid"), status);
        }

        #[test]
        fn no_bytes_are_too_odd(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for key in [StatusKey::connector("a"), StatusKey::topic("a", "b")] {
                let _either = decode(&key, &bytes).is_ok();
            }
        }
    }
}
