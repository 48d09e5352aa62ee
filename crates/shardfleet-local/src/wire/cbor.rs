//! `application/x-amz-cbor-1.1`, which the Java SDK speaks.
//!
//! Reads definite and indefinite lengths; writes definite ones. A time is tag 1 with whole milliseconds, as that SDK has it.

use std::borrow::Cow;

use super::value::Value;
use crate::model::ApiError;

/// Deepest nesting that is read; the deepest request of the service has three levels.
const MAX_DEPTH: usize = 32;

pub(super) fn read(body: &[u8]) -> Result<Value<'_>, ApiError> {
    let mut reader = Reader { rest: body };
    let value = reader.value(0);
    value.ok_or_else(|| {
        let at = body.len() - reader.rest.len();
        ApiError::serialization(format!(
            "The body is no valid CBOR, at byte {at} of {}",
            body.len()
        ))
    })
}

struct Reader<'a> {
    rest: &'a [u8],
}

/// What the length part of a head says.
#[derive(Clone, Copy)]
enum Argument {
    Number(u64),
    Indefinite,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn head(&mut self) -> Option<(u8, u8, Argument)> {
        let first = *self.take(1)?.first()?;
        let (major, minor) = (first >> 5, first & 31);
        let argument = match minor {
            0..=23 => Argument::Number(u64::from(minor)),
            24..=27 => {
                let bytes = self.take(1 << (minor - 24))?;
                Argument::Number(bytes.iter().fold(0, |n, b| (n << 8) | u64::from(*b)))
            }
            31 => Argument::Indefinite,
            _ => return None,
        };
        Some((major, minor, argument))
    }

    /// Eats the break that ends an indefinite item, if it is next.
    fn at_break(&mut self) -> bool {
        if self.rest.first() == Some(&0xFF) {
            self.rest = &self.rest[1..];
            return true;
        }
        false
    }

    fn value(&mut self, depth: usize) -> Option<Value<'a>> {
        if depth > MAX_DEPTH {
            return None;
        }
        let (major, minor, argument) = self.head()?;
        match (major, argument) {
            (0, Argument::Number(n)) => i64::try_from(n).ok().map(Value::Int),
            (1, Argument::Number(n)) => i64::try_from(n).ok().map(|n| Value::Int(-1 - n)),
            (2, argument) => Some(Value::Bytes(self.string(2, argument)?)),
            (3, argument) => match self.string(3, argument)? {
                Cow::Borrowed(bytes) => std::str::from_utf8(bytes)
                    .ok()
                    .map(|t| Value::Text(Cow::Borrowed(t))),
                Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(|t| Value::Text(Cow::Owned(t))),
            },
            (4, argument) => self.list(argument, depth),
            (5, argument) => self.map(argument, depth),
            (6, Argument::Number(tag)) => {
                let value = self.value(depth + 1)?;
                if tag == 1 { time(&value) } else { Some(value) }
            }
            (7, Argument::Number(bits)) => simple(minor, bits),
            _ => None,
        }
    }

    fn string(&mut self, major: u8, argument: Argument) -> Option<Cow<'a, [u8]>> {
        match argument {
            Argument::Number(length) => self.take(usize::try_from(length).ok()?).map(Cow::Borrowed),
            Argument::Indefinite => {
                let mut whole = Vec::new();
                while !self.at_break() {
                    let (part_major, _, Argument::Number(length)) = self.head()? else {
                        return None;
                    };
                    if part_major != major {
                        return None;
                    }
                    whole.extend_from_slice(self.take(usize::try_from(length).ok()?)?);
                }
                Some(Cow::Owned(whole))
            }
        }
    }

    fn list(&mut self, argument: Argument, depth: usize) -> Option<Value<'a>> {
        let mut items = Vec::new();
        match argument {
            // A length is a claim: nothing is set aside for items that may never come.
            Argument::Number(count) => {
                for _ in 0..count {
                    items.push(self.value(depth + 1)?);
                }
            }
            Argument::Indefinite => {
                while !self.at_break() {
                    items.push(self.value(depth + 1)?);
                }
            }
        }
        Some(Value::List(items))
    }

    fn map(&mut self, argument: Argument, depth: usize) -> Option<Value<'a>> {
        let mut fields = Vec::with_capacity(4);
        let mut left = match argument {
            Argument::Number(count) => Some(count),
            Argument::Indefinite => None,
        };
        loop {
            match &mut left {
                Some(0) => break,
                Some(count) => *count -= 1,
                None if self.at_break() => break,
                None => {}
            }
            let Value::Text(key) = self.value(depth + 1)? else {
                return None;
            };
            fields.push((key, self.value(depth + 1)?));
        }
        Some(Value::Map(fields))
    }
}

/// Tag 1: an integer is milliseconds, as the Java SDK sends it; a fraction is seconds, as the tag's own rule has it.
fn time(value: &Value<'_>) -> Option<Value<'static>> {
    match value {
        Value::Int(ms) => u64::try_from(*ms).ok().map(Value::Time),
        Value::Float(seconds) => millis_of_seconds(*seconds).map(Value::Time),
        _ => None,
    }
}

/// Whole milliseconds of a time in seconds; `None` before 1970 or beyond what a `u64` of milliseconds can say exactly.
pub(crate) fn millis_of_seconds(seconds: f64) -> Option<u64> {
    let ms = (seconds * 1000.0).round();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range was checked"
    )]
    (0.0..=9.0e15).contains(&ms).then_some(ms as u64)
}

fn simple(minor: u8, bits: u64) -> Option<Value<'static>> {
    match minor {
        20 => Some(Value::Bool(false)),
        21 => Some(Value::Bool(true)),
        22 | 23 => Some(Value::Null),
        25 => Some(Value::Float(half(u16::try_from(bits).ok()?))),
        26 => Some(Value::Float(f64::from(f32::from_bits(u32::try_from(bits).ok()?)))),
        27 => Some(Value::Float(f64::from_bits(bits))),
        _ => None,
    }
}

fn half(bits: u16) -> f64 {
    let exponent = i32::from((bits >> 10) & 31);
    let fraction = f64::from(bits & 0x3FF);
    let value = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits & 0x8000 == 0 { value } else { -value }
}

pub(super) fn write(out: &mut Vec<u8>, value: &Value<'_>) {
    match value {
        Value::Null => out.push(0xF6),
        Value::Bool(false) => out.push(0xF4),
        Value::Bool(true) => out.push(0xF5),
        Value::Int(number) => match u64::try_from(*number) {
            Ok(number) => write_head(out, 0, number),
            Err(_) => write_head(out, 1, number.unsigned_abs() - 1),
        },
        Value::Float(number) => {
            out.push(0xFB);
            out.extend_from_slice(&number.to_bits().to_be_bytes());
        }
        Value::Text(text) => write_text(out, text.as_bytes()),
        Value::Bytes(bytes) => write_bytes(out, bytes),
        Value::Time(ms) => write_time(out, *ms),
        Value::List(items) => {
            write_head(out, 4, items.len() as u64);
            for item in items {
                write(out, item);
            }
        }
        Value::Map(fields) => {
            write_head(out, 5, fields.len() as u64);
            for (key, value) in fields {
                write_text(out, key.as_bytes());
                write(out, value);
            }
        }
    }
}

pub(super) fn write_head(out: &mut Vec<u8>, major: u8, number: u64) {
    let major = major << 5;
    let bytes = number.to_be_bytes();
    match number {
        0..=23 => out.push(major | bytes[7]),
        24..=0xFF => out.extend_from_slice(&[major | 0x18, bytes[7]]),
        0x100..=0xFFFF => {
            out.push(major | 0x19);
            out.extend_from_slice(&bytes[6..]);
        }
        0x1_0000..=0xFFFF_FFFF => {
            out.push(major | 0x1A);
            out.extend_from_slice(&bytes[4..]);
        }
        _ => {
            out.push(major | 0x1B);
            out.extend_from_slice(&bytes);
        }
    }
}

pub(super) fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    write_head(out, 3, text.len() as u64);
    out.extend_from_slice(text);
}

pub(super) fn write_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    write_head(out, 2, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(super) fn write_time(out: &mut Vec<u8>, ms: u64) {
    out.push(0xC1);
    write_head(out, 0, ms);
}
