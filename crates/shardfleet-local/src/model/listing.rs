//! Which shards a listing shows.

use super::shard::ShardMeta;
use super::stream::Stream;
use super::{ApiError, Now};

/// The kind of a shard filter (AWS: `ShardFilter$Type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilterKind {
    AfterShardId,
    AtTrimHorizon,
    FromTrimHorizon,
    AtLatest,
    AtTimestamp,
    FromTimestamp,
}

/// A shard filter whose times are fixed, so that all pages of one listing agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShardFilter {
    /// Shards with a higher number.
    After(String),
    /// Shards that were open at a time: they cover the hash range exactly once.
    OpenAt(u64),
    /// Shards that were open at a time or later.
    OpenSince(u64),
    /// Shards that are open now.
    Open,
}

impl ShardFilter {
    /// Every shard that is still kept.
    pub(crate) const ALL: Self = Self::OpenSince(0);

    /// Fixes a filter as a request gives it.
    pub(crate) fn resolve(
        kind: FilterKind,
        shard_id: Option<&str>,
        timestamp_ms: Option<u64>,
        stream: &Stream,
        now: Now,
    ) -> Result<Self, ApiError> {
        let horizon = stream.horizon_ms(now).max(stream.meta.created_ms);
        let timestamp = || {
            let ms = timestamp_ms.ok_or_else(|| {
                ApiError::invalid(
                    "Timestamp must be provided in ShardFilter of type AT_TIMESTAMP or FROM_TIMESTAMP.",
                )
            })?;
            if ms > now.epoch_ms {
                return Err(ApiError::invalid(format!(
                    "The timestamp in ShardFilter cannot be later than the current time. timestampInMillis: {ms}, \
                     currentTimestampInMillis: {}",
                    now.epoch_ms
                )));
            }
            // What lay before the horizon is gone: the horizon stands for it.
            Ok(ms.max(horizon))
        };
        Ok(match kind {
            FilterKind::AfterShardId => {
                let id = shard_id.ok_or_else(|| {
                    ApiError::invalid("ShardId must be provided in ShardFilter of type AFTER_SHARD_ID.")
                })?;
                Self::After(id.to_owned())
            }
            FilterKind::AtTrimHorizon => Self::OpenAt(horizon),
            FilterKind::FromTrimHorizon => Self::OpenSince(horizon),
            FilterKind::AtLatest => Self::Open,
            FilterKind::AtTimestamp => Self::OpenAt(timestamp()?),
            FilterKind::FromTimestamp => Self::OpenSince(timestamp()?),
        })
    }

    pub(crate) fn shows(&self, shard: &ShardMeta) -> bool {
        match self {
            Self::After(id) => shard.name() > *id,
            Self::OpenAt(ms) => shard.opened_ms <= *ms && shard.closed_ms.is_none_or(|closed| closed > *ms),
            Self::OpenSince(ms) => shard.closed_ms.is_none_or(|closed| closed >= *ms),
            Self::Open => shard.is_open(),
        }
    }

    /// As a list token carries it.
    pub(crate) fn to_text(&self) -> String {
        match self {
            Self::After(id) => format!("after {id}"),
            Self::OpenAt(ms) => format!("at {ms}"),
            Self::OpenSince(ms) => format!("since {ms}"),
            Self::Open => "open ".to_owned(),
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (kind, value) = text.split_once(' ')?;
        match kind {
            "after" => Some(Self::After(value.to_owned())),
            "at" => value.parse().ok().map(Self::OpenAt),
            "since" => value.parse().ok().map(Self::OpenSince),
            "open" => Some(Self::Open),
            _ => None,
        }
    }
}
