//! `ListShards`, `SplitShard`, `MergeShards` and `UpdateShardCount`.

use super::{Answer, Input};
use crate::model::{
    Account, ApiError, FilterKind, HashRange, ListToken, Now, ShardFilter, ShardMeta, StreamRef,
};
use crate::model::{StreamMode, StreamStatus};
use crate::settings::millis;
use crate::wire::{Value, map};
use crate::{ACCOUNT_ID, model::Stream};

/// The service never lists more shards than this on one page, whatever is asked for.
const PAGE_SHARDS: usize = 1000;

pub(super) fn hash_key_range(range: HashRange) -> Value<'static> {
    map([
        ("StartingHashKey", range.start.to_string().into()),
        ("EndingHashKey", range.end.to_string().into()),
    ])
}

pub(super) fn describe_shard(shard: &ShardMeta) -> Value<'static> {
    map([
        ("ShardId", shard.name().into()),
        ("ParentShardId", shard.parent.map(crate::model::shard_name).into()),
        (
            "AdjacentParentShardId",
            shard.adjacent_parent.map(crate::model::shard_name).into(),
        ),
        ("HashKeyRange", hash_key_range(shard.range)),
        (
            "SequenceNumberRange",
            map([
                ("StartingSequenceNumber", shard.starting_sequence().into()),
                ("EndingSequenceNumber", shard.ending_sequence().into()),
            ]),
        ),
    ])
}

const FILTERS: [(&str, FilterKind); 6] = [
    ("AFTER_SHARD_ID", FilterKind::AfterShardId),
    ("AT_TRIM_HORIZON", FilterKind::AtTrimHorizon),
    ("FROM_TRIM_HORIZON", FilterKind::FromTrimHorizon),
    ("AT_LATEST", FilterKind::AtLatest),
    ("AT_TIMESTAMP", FilterKind::AtTimestamp),
    ("FROM_TIMESTAMP", FilterKind::FromTimestamp),
];

struct FilterRequest<'v> {
    kind: FilterKind,
    shard_id: Option<&'v str>,
    timestamp_ms: Option<u64>,
}

fn read_filter<'v>(input: &mut Input<'v>) -> FilterRequest<'v> {
    let kind = input.required_choice("Type", &FILTERS.map(|(name, _)| name));
    FilterRequest {
        kind: FILTERS[kind].1,
        shard_id: input.name("ShardId"),
        timestamp_ms: input.time("Timestamp"),
    }
}

pub(super) fn list(account: &mut Account, mut input: Input<'_>, now: Now) -> Result<Answer, ApiError> {
    let which = input.stream();
    let token = input.text("NextToken");
    let after = input.name("ExclusiveStartShardId");
    let wanted = input
        .integer("MaxResults", 1, 10_000)
        .map_or(PAGE_SHARDS, |n| usize::try_from(n).unwrap_or(PAGE_SHARDS));
    let created_ms = input.time("StreamCreationTimestamp");
    let filter = input.nested("ShardFilter", read_filter);
    input.finish()?;

    let limits = account.settings.limits;
    let token = token
        .map(|text| open_token(text, which, now, millis(account.settings.list_token_lifetime)))
        .transpose()?;
    if token.is_some() && (after.is_some() || filter.is_some() || created_ms.is_some()) {
        return Err(ApiError::invalid(
            "NextToken cannot be provided together with ExclusiveStartShardId, StreamCreationTimestamp or ShardFilter.",
        ));
    }
    let named = token.as_ref().map_or(which, |t| StreamRef::by_name(&t.stream));
    let stream = account.stream(named, now)?;
    if !matches!(stream.meta.status, StreamStatus::Active | StreamStatus::Updating) {
        return Err(not_listable(stream));
    }
    if !stream.list_calls.admit(now, 1000, limits.list_shards_per_second) {
        return Err(ApiError::limit(format!(
            "Rate exceeded for stream {} under account {ACCOUNT_ID}.",
            stream.meta.name
        )));
    }
    // AWS: ListShards, "if the stream was deleted and made again, this tells which one is meant".
    let other_incarnation = token.as_ref().is_some_and(|t| t.stream_id != stream.meta.id)
        || created_ms.is_some_and(|ms| ms / 1000 != stream.meta.created_ms / 1000);
    if other_incarnation {
        return Err(ApiError::no_stream(&stream.meta.name));
    }
    let filter = match (&token, filter) {
        (Some(token), _) => ShardFilter::parse(&token.what).ok_or_else(bad_token)?,
        (None, None) => ShardFilter::ALL,
        (None, Some(f)) => ShardFilter::resolve(f.kind, f.shard_id, f.timestamp_ms, stream, now)?,
    };
    let after = token
        .as_ref()
        .map(|t| &*t.after)
        .or(after)
        .unwrap_or("")
        .to_owned();
    let mut shown = stream
        .shards
        .values()
        .map(|s| &s.meta)
        .filter(|s| s.name() > after && filter.shows(s));
    let page: Vec<&ShardMeta> = shown.by_ref().take(wanted.min(PAGE_SHARDS)).collect();
    let more = shown.next().is_some();
    let next_token = page.last().filter(|_| more).map(|last| {
        let token = ListToken {
            issued_ms: now.epoch_ms,
            stream_id: stream.meta.id,
            stream: stream.meta.name.clone(),
            what: filter.to_text(),
            after: last.name(),
        };
        token.encode()
    });
    let shards: Vec<Value<'static>> = page.into_iter().map(describe_shard).collect();
    Ok(Answer::Value(map([
        ("Shards", Value::List(shards)),
        ("NextToken", next_token.into()),
    ])))
}

fn bad_token() -> ApiError {
    ApiError::invalid("NextToken is invalid.")
}

/// Checks a list token: whole, for this stream, and not too old.
pub(super) fn open_token(
    text: &str,
    which: StreamRef<'_>,
    now: Now,
    lifetime_ms: u64,
) -> Result<ListToken, ApiError> {
    if which.name.is_some() {
        return Err(ApiError::invalid(
            "NextToken and StreamName cannot be provided together.",
        ));
    }
    let token = ListToken::decode(text).ok_or_else(bad_token)?;
    if which.arn.is_some_and(|arn| arn != Account::arn_of(&token.stream)) {
        return Err(bad_token());
    }
    if now.epoch_ms.saturating_sub(token.issued_ms) > lifetime_ms {
        return Err(ApiError::new(
            "ExpiredNextTokenException",
            format!(
                "The NextToken has expired: it is good for {} seconds.",
                lifetime_ms / 1000
            ),
        ));
    }
    Ok(token)
}

fn not_listable(stream: &Stream) -> ApiError {
    ApiError::in_use(format!(
        "Stream {} under account {ACCOUNT_ID} not ACTIVE, UPDATING or CREATED, instead in state {}",
        stream.meta.name,
        stream.meta.status.as_str()
    ))
}

fn require_provisioned(stream: &Stream, operation: &str) -> Result<(), ApiError> {
    if stream.meta.mode == StreamMode::Provisioned {
        return Ok(());
    }
    Err(ApiError::validation(format!(
        "Request is invalid: {operation} is not supported on stream {} in ON_DEMAND capacity mode.",
        stream.meta.name
    )))
}

pub(super) fn split(account: &mut Account, mut input: Input<'_>, now: Now) -> Result<Answer, ApiError> {
    let which = input.stream();
    let shard = input.required_name("ShardToSplit");
    let given = input.has("NewStartingHashKey");
    let at = input.hash_key("NewStartingHashKey");
    if !given {
        input.required_text("NewStartingHashKey");
    }
    input.finish()?;
    let (stream, settings) = account.stream_and_settings(which, now)?;
    stream.require_active()?;
    require_provisioned(stream, "SplitShard")?;
    // A key beyond the last one lies in no shard: the check of the range refuses it.
    let at = at.and_then(Result::ok).unwrap_or(u128::MAX);
    let reshard = stream.plan_split(shard, at)?;
    let due = now.uptime_ms.saturating_add(millis(settings.update_stream_time));
    account.require_room_for(1)?;
    account.stream(which, now)?.begin_update(due, Some(reshard));
    Ok(Answer::Empty)
}

pub(super) fn merge(account: &mut Account, mut input: Input<'_>, now: Now) -> Result<Answer, ApiError> {
    let which = input.stream();
    let shard = input.required_name("ShardToMerge");
    let adjacent = input.required_name("AdjacentShardToMerge");
    input.finish()?;
    let (stream, settings) = account.stream_and_settings(which, now)?;
    stream.require_active()?;
    require_provisioned(stream, "MergeShards")?;
    let reshard = stream.plan_merge(shard, adjacent)?;
    let due = now.uptime_ms.saturating_add(millis(settings.update_stream_time));
    stream.begin_update(due, Some(reshard));
    Ok(Answer::Empty)
}

pub(super) fn update_count(
    account: &mut Account,
    mut input: Input<'_>,
    now: Now,
) -> Result<Answer, ApiError> {
    let which = input.stream();
    let target = input.required_integer("TargetShardCount", 1, 1_000_000);
    input.required_choice("ScalingType", &["UNIFORM_SCALING"]);
    input.finish()?;
    let target = u32::try_from(target).unwrap_or(u32::MAX);
    let limits = account.settings.limits;
    let (stream, settings) = account.stream_and_settings(which, now)?;
    stream.require_active()?;
    require_provisioned(stream, "UpdateShardCount")?;
    let reshard = stream.plan_scale(target)?;
    if !stream
        .scale_calls
        .admit(now, 86_400_000, limits.update_shard_count_per_day)
    {
        return Err(ApiError::limit(format!(
            "UpdateShardCount was called too often in 24 hours on stream {} under account {ACCOUNT_ID}.",
            stream.meta.name
        )));
    }
    let open = stream.open_shards().count();
    let answer = map([
        ("StreamName", stream.meta.name.clone().into()),
        ("CurrentShardCount", open.into()),
        ("TargetShardCount", target.into()),
        ("StreamARN", stream.arn().into()),
    ]);
    let due = now.uptime_ms.saturating_add(millis(settings.update_stream_time));
    account.require_room_for(target.saturating_sub(u32::try_from(open).unwrap_or(u32::MAX)))?;
    account.stream(which, now)?.begin_update(due, Some(reshard));
    Ok(Answer::Value(answer))
}
