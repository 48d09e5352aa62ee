//! `GetShardIterator` and `GetRecords`.

use std::sync::Arc;

use super::{Answer, Input};
use crate::model::{Account, ApiError, IteratorToken, Now, Record, Start, Stream, shard_name};
use crate::wire::{Value, map};

/// The answer of `GetRecords`, before it is written.
#[derive(Debug)]
pub(crate) struct PageAnswer {
    pub(crate) records: Vec<Arc<Record>>,
    pub(crate) encrypted: bool,
    pub(crate) next_iterator: Option<String>,
    pub(crate) millis_behind: u64,
    pub(crate) child_shards: Option<Value<'static>>,
    /// An iterator at the place this page was read from, and how far behind that is: what a fault rule that hides the
    /// records answers instead.
    pub(crate) same_place: (String, u64),
}

const TYPES: [&str; 5] = [
    "AT_SEQUENCE_NUMBER",
    "AFTER_SEQUENCE_NUMBER",
    "TRIM_HORIZON",
    "LATEST",
    "AT_TIMESTAMP",
];

/// Reads a starting position: the type's field and those that belong to it.
pub(super) fn start(
    input: &mut Input<'_>,
    type_field: &str,
    sequence_field: &str,
) -> impl FnOnce() -> Result<Start, ApiError> + use<> {
    let kind = input.required_choice(type_field, &TYPES);
    let sequence = input.sequence_number(sequence_field).map(str::to_owned);
    let timestamp = input.time("Timestamp");
    let sequence_field = sequence_field.to_owned();
    move || {
        let given = |value: Option<String>| {
            value.ok_or_else(|| {
                ApiError::invalid(format!(
                    "Must either specify {sequence_field} or choose another iterator type than {}.",
                    TYPES[kind]
                ))
            })
        };
        match kind {
            0 => given(sequence).map(Start::AtSequence),
            1 => given(sequence).map(Start::AfterSequence),
            2 => Ok(Start::TrimHorizon),
            3 => Ok(Start::Latest),
            _ => timestamp.map(Start::AtTimestamp).ok_or_else(|| {
                ApiError::invalid(
                    "Must specify timestampInMillis parameter for iterator of type AT_TIMESTAMP.",
                )
            }),
        }
    }
}

pub(super) fn get_shard_iterator(
    account: &mut Account,
    mut input: Input<'_>,
    now: Now,
) -> Result<Answer, ApiError> {
    let which = input.stream();
    let shard = input.required_name("ShardId");
    let start = start(&mut input, "ShardIteratorType", "StartingSequenceNumber");
    input.finish()?;
    let start = start()?;
    let iterator = account.shard_iterator(which, shard, &start, now)?;
    Ok(Answer::Value(map([("ShardIterator", iterator.into())])))
}

pub(super) fn get_records(account: &mut Account, mut input: Input<'_>, now: Now) -> Result<Answer, ApiError> {
    let text = input.required_text("ShardIterator");
    if text.len() > 512 {
        input.refuse(text, "ShardIterator", "have length less than or equal to 512");
    } else if text.is_empty() && input.has("ShardIterator") {
        input.refuse(text, "ShardIterator", "have length greater than or equal to 1");
    }
    let limit = input.integer("Limit", 1, 10_000).unwrap_or(10_000);
    let arn = input.arn("StreamARN");
    input.finish()?;
    let token = IteratorToken::decode(text).ok_or_else(|| ApiError::invalid("Invalid ShardIterator."))?;
    if arn.is_some_and(|arn| arn != Account::arn_of(&token.stream)) {
        return Err(ApiError::invalid(
            "Invalid ShardIterator: it belongs to another stream than StreamARN names.",
        ));
    }
    let (page, stream) = account.read(&token, usize::try_from(limit).unwrap_or(10_000), now)?;
    let encrypted = stream.meta.kms_key.is_some();
    let child_shards = page.ended.then(|| children(stream, token.shard));
    let first_behind = stream
        .shards
        .get(&token.shard)
        .map_or(0, |s| s.millis_behind(token.index, now));
    let again = IteratorToken {
        issued_ms: now.epoch_ms,
        ..token
    };
    let next = IteratorToken {
        index: page.next,
        ..again.clone()
    };
    let next_iterator = (!page.ended).then(|| account.issue(next));
    let same_place = (account.issue(again), first_behind);
    Ok(Answer::Page(Box::new(PageAnswer {
        records: page.records,
        encrypted,
        next_iterator,
        millis_behind: page.millis_behind,
        child_shards,
        same_place,
    })))
}

/// The children of a closed shard, as its end is answered with.
pub(crate) fn children(stream: &Stream, shard: u32) -> Value<'static> {
    let children = stream.children_of(shard).map(|child| {
        let parents: Vec<String> = child
            .parent
            .into_iter()
            .chain(child.adjacent_parent)
            .map(shard_name)
            .collect();
        map([
            ("ShardId", child.name().into()),
            ("ParentShards", parents.into()),
            ("HashKeyRange", super::shards::hash_key_range(child.range)),
        ])
    });
    Value::List(children.collect())
}
