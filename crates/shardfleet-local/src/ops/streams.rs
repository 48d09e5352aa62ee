//! Operations on whole streams and on the account.

use std::collections::BTreeSet;

use super::shards::describe_shard;
use super::{Answer, Input};
use crate::ACCOUNT_ID;
use crate::model::{
    Account, ApiError, ListToken, NewStream, Now, ShardMeta, Stream, StreamMode, StreamStatus,
};
use crate::settings::millis;
use crate::wire::{Value, map};

const MODES: [&str; 2] = ["PROVISIONED", "ON_DEMAND"];
const STRATEGIES: [&str; 2] = ["USER_PARTITION_KEY", "AUTO"];
const METRICS: [&str; 8] = [
    "IncomingBytes",
    "IncomingRecords",
    "OutgoingBytes",
    "OutgoingRecords",
    "WriteProvisionedThroughputExceeded",
    "ReadProvisionedThroughputExceeded",
    "IteratorAgeMilliseconds",
    "ALL",
];
/// AWS: `CreateStream`, "on-demand streams start with four shards' worth of capacity".
const ON_DEMAND_SHARDS: u64 = 4;

pub(super) fn create(account: &mut Account, mut input: Input<'_>, now: Now) -> Result<Answer, ApiError> {
    let name = input.required_name("StreamName");
    let shards = input.integer("ShardCount", 1, 1_000_000);
    let mode = input
        .nested("StreamModeDetails", |m| m.required_choice("StreamMode", &MODES))
        .unwrap_or(0);
    let tags = input.tags("Tags", false);
    let max_record_kib = input.integer("MaxRecordSizeInKiB", 1024, 10_240).unwrap_or(1024);
    let strategy = input
        .choice("RecordDistributionStrategy", &STRATEGIES)
        .unwrap_or(0);
    let warm_throughput = input.integer("WarmThroughputMiBps", 0, i64::from(u32::MAX));
    if mode == 0 && shards.is_none() && !input.has("ShardCount") {
        input.required_integer("ShardCount", 1, 1_000_000);
    }
    input.finish()?;
    let mode = if mode == 0 {
        StreamMode::Provisioned
    } else {
        StreamMode::OnDemand
    };
    if mode == StreamMode::Provisioned && strategy == 1 {
        return Err(ApiError::validation(
            "The AUTO record distribution strategy needs the ON_DEMAND capacity mode.",
        ));
    }
    let shards = match mode {
        StreamMode::Provisioned => shards.unwrap_or(1),
        StreamMode::OnDemand => ON_DEMAND_SHARDS,
    };
    let new = NewStream {
        name: name.to_owned(),
        shards: u32::try_from(shards).unwrap_or(u32::MAX),
        mode,
        max_record_kib,
        tags,
        auto_distribution: strategy == 1,
        warm_throughput,
    };
    account.create_stream(new, now)?;
    Ok(Answer::Empty)
}

pub(super) fn delete(account: &mut Account, mut input: Input<'_>, now: Now) -> Result<Answer, ApiError> {
    let which = input.stream();
    let with_consumers = input.boolean("EnforceConsumerDeletion");
    input.finish()?;
    account.delete_stream(which, with_consumers, now)?;
    Ok(Answer::Empty)
}

fn mode_details(stream: &Stream) -> Value<'static> {
    map([("StreamMode", stream.meta.mode.as_str().into())])
}

fn monitoring(stream: &Stream) -> Value<'static> {
    Value::List(vec![map([(
        "ShardLevelMetrics",
        metric_list(&stream.meta.metrics),
    )])])
}

fn metric_list(metrics: &BTreeSet<String>) -> Value<'static> {
    metrics.iter().cloned().collect::<Vec<_>>().into()
}

fn encryption_type(stream: &Stream) -> &'static str {
    if stream.meta.kms_key.is_some() {
        "KMS"
    } else {
        "NONE"
    }
}

pub(super) fn describe(account: &mut Account, mut input: Input<'_>, now: Now) -> Result<Answer, ApiError> {
    let which = input.stream();
    let limit = input
        .integer("Limit", 1, 10_000)
        .map_or(100, |n| usize::try_from(n).unwrap_or(100));
    let after = input.name("ExclusiveStartShardId").unwrap_or("");
    input.finish()?;
    let stream = account.stream(which, now)?;
    // AWS: DescribeStream lists no shards of a stream that is still being made.
    let visible = stream.meta.status != StreamStatus::Creating;
    let mut shards = stream
        .shards
        .values()
        .map(|s| &s.meta)
        .filter(|s| visible && &*s.name() > after);
    let page: Vec<&ShardMeta> = shards.by_ref().take(limit).collect();
    let more = shards.next().is_some();
    let shards: Vec<Value<'static>> = page.into_iter().map(describe_shard).collect();
    let description = map([
        ("StreamName", stream.meta.name.clone().into()),
        ("StreamARN", stream.arn().into()),
        ("StreamStatus", stream.meta.status.as_str().into()),
        ("StreamModeDetails", mode_details(stream)),
        ("Shards", Value::List(shards)),
        ("HasMoreShards", more.into()),
        ("RetentionPeriodHours", stream.meta.retention_hours.into()),
        ("StreamCreationTimestamp", Value::Time(stream.meta.created_ms)),
        ("EnhancedMonitoring", monitoring(stream)),
        ("EncryptionType", encryption_type(stream).into()),
        ("KeyId", stream.meta.kms_key.clone().into()),
    ]);
    Ok(Answer::Value(map([("StreamDescription", description)])))
}

pub(super) fn describe_summary(
    account: &mut Account,
    mut input: Input<'_>,
    now: Now,
) -> Result<Answer, ApiError> {
    let which = input.stream();
    input.finish()?;
    let stream = account.stream(which, now)?;
    let open = if stream.meta.status == StreamStatus::Creating {
        0
    } else {
        stream.open_shards().count()
    };
    let warm = stream.meta.warm_throughput.map(warm_throughput);
    let description = map([
        ("StreamName", stream.meta.name.clone().into()),
        ("StreamARN", stream.arn().into()),
        ("StreamStatus", stream.meta.status.as_str().into()),
        ("StreamModeDetails", mode_details(stream)),
        ("RetentionPeriodHours", stream.meta.retention_hours.into()),
        ("StreamCreationTimestamp", Value::Time(stream.meta.created_ms)),
        ("EnhancedMonitoring", monitoring(stream)),
        ("EncryptionType", encryption_type(stream).into()),
        ("KeyId", stream.meta.kms_key.clone().into()),
        ("OpenShardCount", open.into()),
        ("ConsumerCount", stream.meta.consumers.len().into()),
        ("WarmThroughput", warm.into()),
        ("MaxRecordSizeInKiB", stream.meta.max_record_kib.into()),
        (
            "RecordDistributionStrategy",
            STRATEGIES[usize::from(stream.meta.auto_distribution)].into(),
        ),
    ]);
    Ok(Answer::Value(map([("StreamDescriptionSummary", description)])))
}

fn warm_throughput(mibps: u64) -> Value<'static> {
    map([("TargetMiBps", mibps.into()), ("CurrentMiBps", mibps.into())])
}

pub(super) fn list(account: &mut Account, mut input: Input<'_>, now: Now) -> Result<Answer, ApiError> {
    let limit = input
        .integer("Limit", 1, 10_000)
        .map_or(100, |n| usize::try_from(n).unwrap_or(100));
    let after = input.name("ExclusiveStartStreamName");
    let token = input.text("NextToken");
    input.finish()?;
    account.settle(now);
    let after = match token {
        Some(text) => ListToken::decode(text)
            .filter(|t| t.what == "streams")
            .ok_or_else(|| ApiError::invalid("NextToken is invalid."))
            .and_then(|t| {
                let age_ms = now.epoch_ms.saturating_sub(t.issued_ms);
                if age_ms > millis(account.settings.list_token_lifetime) {
                    return Err(ApiError::new(
                        "ExpiredNextTokenException",
                        "The NextToken has expired.",
                    ));
                }
                Ok(t.after)
            })?,
        None => after.unwrap_or("").to_owned(),
    };
    let mut rest = account.streams().filter(|s| s.meta.name > after);
    let page: Vec<&Stream> = rest.by_ref().take(limit).collect();
    let more = rest.next().is_some();
    let next_token = page.last().filter(|_| more).map(|last| {
        let token = ListToken {
            issued_ms: now.epoch_ms,
            stream_id: 0,
            stream: String::new(),
            what: "streams".to_owned(),
            after: last.meta.name.clone(),
        };
        token.encode()
    });
    let names: Vec<String> = page.iter().map(|s| s.meta.name.clone()).collect();
    let summaries: Vec<Value<'static>> = page
        .into_iter()
        .map(|s| {
            map([
                ("StreamName", s.meta.name.clone().into()),
                ("StreamARN", s.arn().into()),
                ("StreamStatus", s.meta.status.as_str().into()),
                ("StreamModeDetails", mode_details(s)),
                ("StreamCreationTimestamp", Value::Time(s.meta.created_ms)),
            ])
        })
        .collect();
    Ok(Answer::Value(map([
        ("StreamNames", names.into()),
        ("HasMoreStreams", more.into()),
        ("NextToken", next_token.into()),
        ("StreamSummaries", Value::List(summaries)),
    ])))
}

pub(super) fn increase_retention(
    account: &mut Account,
    input: Input<'_>,
    now: Now,
) -> Result<Answer, ApiError> {
    set_retention(account, input, now, true)
}

pub(super) fn decrease_retention(
    account: &mut Account,
    input: Input<'_>,
    now: Now,
) -> Result<Answer, ApiError> {
    set_retention(account, input, now, false)
}

fn set_retention(
    account: &mut Account,
    mut input: Input<'_>,
    now: Now,
    longer: bool,
) -> Result<Answer, ApiError> {
    let which = input.stream();
    let hours = input.required_integer("RetentionPeriodHours", i64::from(i32::MIN), i64::from(i32::MAX));
    input.finish()?;
    let stream = account.stream(which, now)?;
    stream.require_active()?;
    let (name, current) = (&stream.meta.name, stream.meta.retention_hours);
    if hours < 24 {
        return Err(ApiError::invalid(format!(
            "Minimum allowed retention period is 24 hours. Requested retention period ({hours} hours) is too short."
        )));
    }
    if hours > 8760 {
        return Err(ApiError::invalid(format!(
            "Maximum allowed retention period is 8760 hours. Requested retention period ({hours} hours) is too long."
        )));
    }
    if longer && hours < current {
        return Err(ApiError::invalid(format!(
            "Requested retention period ({hours} hours) for stream {name} can not be shorter than existing retention period ({current} hours). Use DecreaseRetentionPeriod API."
        )));
    }
    if !longer && hours > current {
        return Err(ApiError::invalid(format!(
            "Requested retention period ({hours} hours) for stream {name} can not be longer than existing retention period ({current} hours). Use IncreaseRetentionPeriod API."
        )));
    }
    stream.meta.retention_hours = hours;
    stream.dirty = true;
    stream.trim(now);
    Ok(Answer::Empty)
}

pub(super) fn enable_monitoring(
    account: &mut Account,
    input: Input<'_>,
    now: Now,
) -> Result<Answer, ApiError> {
    set_monitoring(account, input, now, true)
}

pub(super) fn disable_monitoring(
    account: &mut Account,
    input: Input<'_>,
    now: Now,
) -> Result<Answer, ApiError> {
    set_monitoring(account, input, now, false)
}

fn set_monitoring(
    account: &mut Account,
    mut input: Input<'_>,
    now: Now,
    on: bool,
) -> Result<Answer, ApiError> {
    let which = input.stream();
    let named = input.texts("ShardLevelMetrics", 7);
    if let Some(unknown) = named.iter().find(|m| !METRICS.contains(m)) {
        input.refuse(
            unknown,
            "ShardLevelMetrics",
            &format!("satisfy enum value set: [{}]", METRICS.join(", ")),
        );
    }
    input.finish()?;
    let all = METRICS.split_last().map_or(&[] as &[&str], |(_, rest)| rest);
    let wanted: &[&str] = if named.contains(&"ALL") { all } else { &named };
    let stream = account.stream(which, now)?;
    stream.require_active()?;
    let before = metric_list(&stream.meta.metrics);
    for metric in wanted {
        if on {
            stream.meta.metrics.insert((*metric).to_owned());
        } else {
            stream.meta.metrics.remove(*metric);
        }
    }
    stream.dirty = true;
    Ok(Answer::Value(map([
        ("StreamName", stream.meta.name.clone().into()),
        ("CurrentShardLevelMetrics", before),
        ("DesiredShardLevelMetrics", metric_list(&stream.meta.metrics)),
        ("StreamARN", stream.arn().into()),
    ])))
}

pub(super) fn start_encryption(
    account: &mut Account,
    input: Input<'_>,
    now: Now,
) -> Result<Answer, ApiError> {
    set_encryption(account, input, now, true)
}

pub(super) fn stop_encryption(account: &mut Account, input: Input<'_>, now: Now) -> Result<Answer, ApiError> {
    set_encryption(account, input, now, false)
}

/// The key is noted and reported; nothing is encrypted.
fn set_encryption(
    account: &mut Account,
    mut input: Input<'_>,
    now: Now,
    on: bool,
) -> Result<Answer, ApiError> {
    let which = input.stream();
    let kind = input.required_choice("EncryptionType", &["KMS", "NONE"]);
    let key = input.required_text("KeyId");
    input.finish()?;
    if kind != 0 {
        return Err(ApiError::invalid("EncryptionType must be KMS."));
    }
    let (stream, settings) = account.stream_and_settings(which, now)?;
    stream.require_active()?;
    stream.meta.kms_key = on.then(|| key.to_owned());
    stream.begin_update(
        now.uptime_ms.saturating_add(millis(settings.update_stream_time)),
        None,
    );
    Ok(Answer::Empty)
}

pub(super) fn update_mode(account: &mut Account, mut input: Input<'_>, now: Now) -> Result<Answer, ApiError> {
    let arn = input.required_arn("StreamARN");
    let mode = input.nested("StreamModeDetails", |m| m.required_choice("StreamMode", &MODES));
    if mode.is_none() {
        input.required_text("StreamModeDetails");
    }
    let warm = input.integer("WarmThroughputMiBps", 0, i64::from(u32::MAX));
    input.finish()?;
    let (stream, settings) = account.stream_and_settings(crate::model::StreamRef::by_arn(arn), now)?;
    stream.require_active()?;
    let mode = if mode == Some(1) {
        StreamMode::OnDemand
    } else {
        StreamMode::Provisioned
    };
    if mode == StreamMode::Provisioned && stream.meta.auto_distribution {
        return Err(ApiError::validation(format!(
            "Stream {} under account {ACCOUNT_ID} has the AUTO record distribution strategy, which needs the ON_DEMAND mode.",
            stream.meta.name
        )));
    }
    stream.meta.mode = mode;
    stream.meta.warm_throughput = warm.or(stream.meta.warm_throughput);
    stream.begin_update(
        now.uptime_ms.saturating_add(millis(settings.update_stream_time)),
        None,
    );
    Ok(Answer::Empty)
}

pub(super) fn update_max_record_size(
    account: &mut Account,
    mut input: Input<'_>,
    now: Now,
) -> Result<Answer, ApiError> {
    let arn = input.required_arn("StreamARN");
    let kib = input.required_integer("MaxRecordSizeInKiB", 1024, 10_240);
    input.finish()?;
    let (stream, settings) = account.stream_and_settings(crate::model::StreamRef::by_arn(arn), now)?;
    stream.require_active()?;
    stream.meta.max_record_kib = kib;
    stream.begin_update(
        now.uptime_ms.saturating_add(millis(settings.update_stream_time)),
        None,
    );
    Ok(Answer::Empty)
}

pub(super) fn update_distribution(
    account: &mut Account,
    mut input: Input<'_>,
    now: Now,
) -> Result<Answer, ApiError> {
    let arn = input.required_arn("StreamARN");
    let strategy = input.required_choice("RecordDistributionStrategy", &STRATEGIES);
    input.finish()?;
    let (stream, settings) = account.stream_and_settings(crate::model::StreamRef::by_arn(arn), now)?;
    stream.require_active()?;
    if strategy == 1 && stream.meta.mode != StreamMode::OnDemand {
        return Err(ApiError::validation(
            "The AUTO record distribution strategy needs the ON_DEMAND capacity mode.",
        ));
    }
    stream.meta.auto_distribution = strategy == 1;
    stream.begin_update(
        now.uptime_ms.saturating_add(millis(settings.update_stream_time)),
        None,
    );
    Ok(Answer::Empty)
}

pub(super) fn update_warm_throughput(
    account: &mut Account,
    mut input: Input<'_>,
    now: Now,
) -> Result<Answer, ApiError> {
    let which = input.stream();
    let mibps = input.required_integer("WarmThroughputMiBps", 0, i64::from(u32::MAX));
    input.finish()?;
    let stream = account.stream(which, now)?;
    stream.require_active()?;
    if stream.meta.mode != StreamMode::OnDemand {
        return Err(ApiError::validation(format!(
            "Stream {} under account {ACCOUNT_ID} must be in ON_DEMAND capacity mode to have a warm throughput.",
            stream.meta.name
        )));
    }
    stream.meta.warm_throughput = Some(mibps);
    stream.dirty = true;
    Ok(Answer::Value(map([
        ("StreamARN", stream.arn().into()),
        ("StreamName", stream.meta.name.clone().into()),
        ("WarmThroughput", warm_throughput(mibps)),
    ])))
}

pub(super) fn describe_limits(account: &mut Account, input: Input<'_>, now: Now) -> Result<Answer, ApiError> {
    input.finish()?;
    account.settle(now);
    let open: usize = account.streams().map(|s| s.open_shards().count()).sum();
    let on_demand = account
        .streams()
        .filter(|s| s.meta.mode == StreamMode::OnDemand)
        .count();
    Ok(Answer::Value(map([
        ("ShardLimit", account.settings.shard_limit.into()),
        ("OpenShardCount", open.into()),
        ("OnDemandStreamCount", on_demand.into()),
        ("OnDemandStreamCountLimit", 50u32.into()),
    ])))
}

pub(super) fn describe_account_settings(
    _: &mut Account,
    input: Input<'_>,
    _: Now,
) -> Result<Answer, ApiError> {
    input.finish()?;
    let commitment = map([("Status", "DISABLED".into())]);
    Ok(Answer::Value(map([(
        "MinimumThroughputBillingCommitment",
        commitment,
    )])))
}
