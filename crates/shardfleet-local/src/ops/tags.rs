//! Tags of streams and consumers.

use std::collections::BTreeMap;

use super::{Answer, Input};
use crate::model::{Account, ApiError, ConsumerRef, Now, StreamRef};
use crate::wire::{Value, map};

/// AWS: "each resource can have up to 50 tags".
const MAX_TAGS: usize = 50;

/// What tags hang on.
enum Resource<'a> {
    Stream(StreamRef<'a>),
    Consumer(&'a str),
}

impl<'a> Resource<'a> {
    fn of_arn(arn: &'a str) -> Self {
        if arn.contains("/consumer/") {
            Self::Consumer(arn)
        } else {
            Self::Stream(StreamRef::by_arn(arn))
        }
    }

    fn tags<'m>(
        &self,
        account: &'m mut Account,
        now: Now,
    ) -> Result<&'m mut BTreeMap<String, String>, ApiError> {
        match *self {
            Self::Stream(which) => {
                let stream = account.stream(which, now)?;
                stream.dirty = true;
                Ok(&mut stream.meta.tags)
            }
            Self::Consumer(arn) => {
                let stream = account.stream_of_consumer(arn, now)?;
                stream.dirty = true;
                Ok(&mut stream.consumer(ConsumerRef::Arn(arn))?.tags)
            }
        }
    }
}

fn add(
    account: &mut Account,
    to: &Resource<'_>,
    new: BTreeMap<String, String>,
    now: Now,
) -> Result<Answer, ApiError> {
    let tags = to.tags(account, now)?;
    let more = new.keys().filter(|key| !tags.contains_key(*key)).count();
    if tags.len() + more > MAX_TAGS {
        return Err(ApiError::invalid(format!(
            "Failed to add tags: a resource can have {MAX_TAGS} tags; it has {} and {more} would be new.",
            tags.len()
        )));
    }
    tags.extend(new);
    Ok(Answer::Empty)
}

fn remove(account: &mut Account, from: &Resource<'_>, keys: &[&str], now: Now) -> Result<Answer, ApiError> {
    let tags = from.tags(account, now)?;
    for key in keys {
        tags.remove(*key);
    }
    Ok(Answer::Empty)
}

fn list<'t>(tags: impl Iterator<Item = (&'t String, &'t String)>) -> Value<'static> {
    let tags = tags.map(|(key, value)| map([("Key", key.clone().into()), ("Value", value.clone().into())]));
    Value::List(tags.collect())
}

pub(super) fn add_to_stream(
    account: &mut Account,
    mut input: Input<'_>,
    now: Now,
) -> Result<Answer, ApiError> {
    let which = input.stream();
    let tags = input.tags("Tags", true);
    input.finish()?;
    add(account, &Resource::Stream(which), tags, now)
}

pub(super) fn remove_from_stream(
    account: &mut Account,
    mut input: Input<'_>,
    now: Now,
) -> Result<Answer, ApiError> {
    let which = input.stream();
    let keys = input.texts("TagKeys", 50);
    input.finish()?;
    remove(account, &Resource::Stream(which), &keys, now)
}

pub(super) fn list_for_stream(
    account: &mut Account,
    mut input: Input<'_>,
    now: Now,
) -> Result<Answer, ApiError> {
    let which = input.stream();
    let after = input.text("ExclusiveStartTagKey");
    let limit = input
        .integer("Limit", 1, 50)
        .map_or(50, |n| usize::try_from(n).unwrap_or(50));
    input.finish()?;
    let tags = &account.stream(which, now)?.meta.tags;
    let rest = tags
        .iter()
        .filter(|(key, _)| after.is_none_or(|after| key.as_str() > after));
    let more = rest.clone().nth(limit).is_some();
    Ok(Answer::Value(map([
        ("Tags", list(rest.take(limit))),
        ("HasMoreTags", more.into()),
    ])))
}

pub(super) fn tag_resource(
    account: &mut Account,
    mut input: Input<'_>,
    now: Now,
) -> Result<Answer, ApiError> {
    let arn = input.required_arn("ResourceARN");
    let tags = input.tags("Tags", true);
    input.finish()?;
    add(account, &Resource::of_arn(arn), tags, now)
}

pub(super) fn untag_resource(
    account: &mut Account,
    mut input: Input<'_>,
    now: Now,
) -> Result<Answer, ApiError> {
    let arn = input.required_arn("ResourceARN");
    let keys = input.texts("TagKeys", 50);
    input.finish()?;
    remove(account, &Resource::of_arn(arn), &keys, now)
}

pub(super) fn list_for_resource(
    account: &mut Account,
    mut input: Input<'_>,
    now: Now,
) -> Result<Answer, ApiError> {
    let arn = input.required_arn("ResourceARN");
    input.finish()?;
    let tags = Resource::of_arn(arn).tags(account, now)?;
    Ok(Answer::Value(map([("Tags", list(tags.iter()))])))
}
