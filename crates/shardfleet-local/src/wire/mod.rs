//! The two encodings of the service's protocol, JSON and CBOR, and the framing of its event stream.
//!
//! Requests and small answers go through one [`Value`] tree; pages of records are written straight into one buffer.

mod cbor;
pub(crate) mod eventstream;
mod json;
mod page;
#[cfg(test)]
mod tests;
mod value;

pub(crate) use cbor::millis_of_seconds;
pub(crate) use page::{EventView, PageView, write_event, write_page};
pub(crate) use value::{Value, map};

use crate::model::ApiError;

/// How a body is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Cbor,
}

impl Format {
    /// The encoding that a content type names; JSON where it names none that is known.
    pub(crate) fn of(content_type: &str) -> Self {
        if content_type.to_ascii_lowercase().contains("cbor") {
            Self::Cbor
        } else {
            Self::Json
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/x-amz-json-1.1",
            Self::Cbor => "application/x-amz-cbor-1.1",
        }
    }

    /// Reads a request's body; texts and byte strings borrow from it where they can.
    pub(crate) fn read(self, body: &[u8]) -> Result<Value<'_>, ApiError> {
        if body.is_empty() {
            return Ok(Value::Map(Vec::new()));
        }
        match self {
            Self::Json => json::read(body),
            Self::Cbor => cbor::read(body),
        }
    }

    /// Writes an answer's body.
    pub(crate) fn write(self, value: &Value<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Json => json::write(&mut out, value),
            Self::Cbor => cbor::write(&mut out, value),
        }
        out
    }
}
