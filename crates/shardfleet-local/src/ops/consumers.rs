//! Registered consumers and `SubscribeToShard`.

use super::read::start;
use super::shards::open_token;
use super::{Answer, Input, SubscriptionAnswer};
use crate::model::{Account, ApiError, Consumer, ConsumerRef, ListToken, Now, StreamRef, StreamStatus};
use crate::settings::millis;
use crate::wire::{Value, map};

fn describe_consumer(consumer: &Consumer, stream: &str, with_stream: bool) -> Value<'static> {
    map([
        ("ConsumerName", consumer.name.clone().into()),
        ("ConsumerARN", consumer.arn(stream).into()),
        ("ConsumerStatus", consumer.status.as_str().into()),
        (
            "ConsumerCreationTimestamp",
            Value::Time(consumer.created_secs * 1000),
        ),
        ("StreamARN", with_stream.then(|| Account::arn_of(stream)).into()),
    ])
}

pub(super) fn register(account: &mut Account, mut input: Input<'_>, now: Now) -> Result<Answer, ApiError> {
    let arn = input.required_arn("StreamARN");
    let name = input.required_name("ConsumerName");
    let tags = input.tags("Tags", false);
    input.finish()?;
    let (stream, settings) = account.stream_and_settings(StreamRef::by_arn(arn), now)?;
    stream.require_usable()?;
    let stream_name = stream.meta.name.clone();
    let consumer = stream.register_consumer(name, tags, now, settings)?;
    Ok(Answer::Value(map([(
        "Consumer",
        describe_consumer(consumer, &stream_name, false),
    )])))
}

/// A request's consumer: by its ARN, or by its name and the stream's ARN.
fn read_consumer<'v>(input: &mut Input<'v>) -> Result<(StreamRef<'v>, ConsumerRef<'v>), ApiError> {
    let (stream, name, arn) = (
        input.arn("StreamARN"),
        input.name("ConsumerName"),
        input.arn("ConsumerARN"),
    );
    match (stream, name, arn) {
        (None, None, Some(arn)) => {
            let stream = arn.split_once("/consumer/").map_or(arn, |(stream, _)| stream);
            Ok((StreamRef::by_arn(stream), ConsumerRef::Arn(arn)))
        }
        (Some(stream), Some(name), None) => Ok((StreamRef::by_arn(stream), ConsumerRef::Name(name))),
        _ => Err(ApiError::invalid(
            "Either ConsumerARN, or both StreamARN and ConsumerName must be provided.",
        )),
    }
}

pub(super) fn describe(account: &mut Account, mut input: Input<'_>, now: Now) -> Result<Answer, ApiError> {
    let which = read_consumer(&mut input);
    input.finish()?;
    let (stream, consumer) = which?;
    let stream = account.stream(stream, now)?;
    let name = stream.meta.name.clone();
    let consumer = stream.consumer(consumer)?;
    Ok(Answer::Value(map([(
        "ConsumerDescription",
        describe_consumer(consumer, &name, true),
    )])))
}

pub(super) fn deregister(account: &mut Account, mut input: Input<'_>, now: Now) -> Result<Answer, ApiError> {
    let which = read_consumer(&mut input);
    input.finish()?;
    let (stream, consumer) = which?;
    let (stream, settings) = account.stream_and_settings(stream, now)?;
    stream.deregister_consumer(consumer, now, settings)?;
    Ok(Answer::Empty)
}

pub(super) fn list(account: &mut Account, mut input: Input<'_>, now: Now) -> Result<Answer, ApiError> {
    let arn = input.required_arn("StreamARN");
    let token = input.text("NextToken");
    let limit = input
        .integer("MaxResults", 1, 10_000)
        .map_or(100, |n| usize::try_from(n).unwrap_or(100));
    let created_ms = input.time("StreamCreationTimestamp");
    input.finish()?;
    let which = StreamRef::by_arn(arn);
    let lifetime_ms = millis(account.settings.list_token_lifetime);
    let token = token
        .map(|text| open_token(text, which, now, lifetime_ms))
        .transpose()?;
    let stream = account.stream(which, now)?;
    if matches!(
        stream.meta.status,
        StreamStatus::Creating | StreamStatus::Deleting
    ) {
        stream.require_active()?;
    }
    if created_ms.is_some_and(|ms| ms / 1000 != stream.meta.created_ms / 1000)
        || token
            .as_ref()
            .is_some_and(|t| t.stream_id != stream.meta.id || t.what != "consumers")
    {
        return Err(ApiError::no_stream(&stream.meta.name));
    }
    let after = token.map_or_else(String::new, |t| t.after);
    let mut consumers: Vec<&Consumer> = stream.meta.consumers.iter().filter(|c| c.name > after).collect();
    consumers.sort_by(|a, b| a.name.cmp(&b.name));
    let more = consumers.len() > limit;
    consumers.truncate(limit);
    let next_token = consumers.last().filter(|_| more).map(|last| {
        let token = ListToken {
            issued_ms: now.epoch_ms,
            stream_id: stream.meta.id,
            stream: stream.meta.name.clone(),
            what: "consumers".to_owned(),
            after: last.name.clone(),
        };
        token.encode()
    });
    let consumers: Vec<Value<'static>> = consumers
        .into_iter()
        .map(|c| describe_consumer(c, &stream.meta.name, false))
        .collect();
    Ok(Answer::Value(map([
        ("Consumers", Value::List(consumers)),
        ("NextToken", next_token.into()),
    ])))
}

pub(super) fn subscribe(account: &mut Account, mut input: Input<'_>, now: Now) -> Result<Answer, ApiError> {
    let consumer_arn = input.required_arn("ConsumerARN");
    let shard = input.required_name("ShardId");
    let position = input.nested("StartingPosition", |p| start(p, "Type", "SequenceNumber"));
    if position.is_none() {
        input.required_text("StartingPosition");
    }
    input.finish()?;
    let position = position.ok_or_else(|| ApiError::invalid("StartingPosition must be provided."))?()?;
    let id = account.next_subscription();
    let stream = account.stream_of_consumer(consumer_arn, now)?;
    stream.require_usable()?;
    stream.consumer(ConsumerRef::Arn(consumer_arn))?;
    let (name, stream_id) = (stream.meta.name.clone(), stream.meta.id);
    let shard = stream.shard_to_read(shard)?;
    let (index, shard) = (shard.locate(&position, &name, now)?, shard.meta.number);
    let (stream, settings) = account.stream_and_settings(StreamRef::by_name(&name), now)?;
    stream.subscribe(consumer_arn, shard, id, now, settings)?;
    Ok(Answer::Subscription(Box::new(SubscriptionAnswer {
        id,
        consumer_arn: consumer_arn.to_owned(),
        stream: name,
        stream_id,
        shard,
        index,
    })))
}
