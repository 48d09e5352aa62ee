//! What is compared. Each case has streams of its own; a step's name within its case is what the list of differences uses.

mod consumers;
mod limits;
mod records;
mod requests;
mod reshard;
mod shards;
mod streams;
mod upkeep;

use std::pin::Pin;

use crate::probe::Probe;

/// A case's future.
pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;
/// Starts a case on one side.
pub(crate) type Run = for<'a> fn(&'a mut Probe) -> Running<'a>;

macro_rules! cases {
    ($($module:ident :: $name:ident,)*) => {
        /// All cases, in the order in which they run.
        pub(crate) fn all() -> Vec<(&'static str, Run)> {
            vec![$((stringify!($name), (|probe| Box::pin($module::$name(probe))) as Run),)*]
        }
    };
}

cases! {
    streams::account,
    streams::lifecycle,
    streams::create_refused,
    streams::listing,
    streams::on_demand,
    upkeep::retention,
    upkeep::tags,
    upkeep::monitoring,
    upkeep::encryption,
    upkeep::newer_settings,
    records::put,
    records::put_refused,
    records::large,
    records::get,
    records::iterators,
    records::timestamps,
    records::lag,
    shards::by_arn,
    shards::pages,
    shards::filters,
    reshard::split,
    reshard::merge,
    reshard::scale,
    reshard::end_of_shard,
    consumers::register,
    consumers::subscribe,
    consumers::subscribe_to_the_end,
    limits::reads,
    limits::writes,
    requests::malformed,
    requests::missing_stream,
    requests::missing_fields,
}

/// Every operation of the service.
pub(crate) const OPERATIONS: [&str; 36] = [
    "AddTagsToStream",
    "CreateStream",
    "DecreaseStreamRetentionPeriod",
    "DeleteStream",
    "DeregisterStreamConsumer",
    "DescribeAccountSettings",
    "DescribeLimits",
    "DescribeStream",
    "DescribeStreamConsumer",
    "DescribeStreamSummary",
    "DisableEnhancedMonitoring",
    "EnableEnhancedMonitoring",
    "GetRecords",
    "GetShardIterator",
    "IncreaseStreamRetentionPeriod",
    "ListShards",
    "ListStreamConsumers",
    "ListStreams",
    "ListTagsForResource",
    "ListTagsForStream",
    "MergeShards",
    "PutRecord",
    "PutRecords",
    "RegisterStreamConsumer",
    "RemoveTagsFromStream",
    "SplitShard",
    "StartStreamEncryption",
    "StopStreamEncryption",
    "SubscribeToShard",
    "TagResource",
    "UntagResource",
    "UpdateMaxRecordSize",
    "UpdateShardCount",
    "UpdateStreamMode",
    "UpdateStreamRecordDistributionStrategy",
    "UpdateStreamWarmThroughput",
];
