//! The error that an operation answers with.

use std::borrow::Cow;

use crate::ACCOUNT_ID;

/// An error of the service: its type as clients know it, its text, and the HTTP status it travels with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) code: Cow<'static, str>,
    pub(crate) message: String,
    pub(crate) status: u16,
}

impl ApiError {
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code: Cow::Borrowed(code),
            message: message.into(),
            status: 400,
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new("InvalidArgumentException", message)
    }

    pub(crate) fn validation(message: impl Into<String>) -> Self {
        Self::new("ValidationException", message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new("ResourceNotFoundException", message)
    }

    pub(crate) fn in_use(message: impl Into<String>) -> Self {
        Self::new("ResourceInUseException", message)
    }

    pub(crate) fn limit(message: impl Into<String>) -> Self {
        Self::new("LimitExceededException", message)
    }

    pub(crate) fn serialization(message: impl Into<String>) -> Self {
        Self::new("SerializationException", message)
    }

    pub(crate) fn no_stream(name: &str) -> Self {
        Self::not_found(format!("Stream {name} under account {ACCOUNT_ID} not found."))
    }

    pub(crate) fn throughput(shard: &str, stream: &str) -> Self {
        Self::new(
            "ProvisionedThroughputExceededException",
            format!("Rate exceeded for shard {shard} in stream {stream} under account {ACCOUNT_ID}."),
        )
    }
}
