//! The operations: reading a request, asking the model, making the answer.
//!
//! Nothing here waits, and nothing here knows HTTP.

mod consumers;
mod input;
mod put;
mod read;
mod shards;
mod streams;
mod tags;

pub(crate) use read::{PageAnswer, children};

use crate::model::{Account, ApiError, IteratorToken, Now, SubscriptionId};
use crate::wire::Value;
use input::Input;

/// What an operation answers.
#[derive(Debug)]
pub(crate) enum Answer {
    /// No body.
    Empty,
    Value(Value<'static>),
    Page(Box<PageAnswer>),
    Subscription(Box<SubscriptionAnswer>),
}

/// A subscription that was opened.
#[derive(Debug)]
pub(crate) struct SubscriptionAnswer {
    pub(crate) id: SubscriptionId,
    pub(crate) consumer_arn: String,
    pub(crate) stream: String,
    pub(crate) stream_id: u64,
    pub(crate) shard: u32,
    /// Index of the next record to send.
    pub(crate) index: u64,
}

macro_rules! operations {
    ($($name:ident => $run:path,)*) => {
        /// An operation of the service.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Operation {
            $(
                #[doc = concat!("AWS: ", stringify!($name))]
                $name,
            )*
        }

        impl Operation {
            /// The operation of that name.
            pub(crate) fn named(name: &str) -> Option<Self> {
                match name {
                    $(stringify!($name) => Some(Self::$name),)*
                    _ => None,
                }
            }

            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// Carries the operation out.
            pub(crate) fn run(self, account: &mut Account, body: &Value<'_>, now: Now) -> Result<Answer, ApiError> {
                let input = Input::new(body);
                match self {
                    $(Self::$name => $run(account, input, now),)*
                }
            }
        }
    };
}

operations! {
    AddTagsToStream => tags::add_to_stream,
    CreateStream => streams::create,
    DecreaseStreamRetentionPeriod => streams::decrease_retention,
    DeleteStream => streams::delete,
    DeregisterStreamConsumer => consumers::deregister,
    DescribeAccountSettings => streams::describe_account_settings,
    DescribeLimits => streams::describe_limits,
    DescribeStream => streams::describe,
    DescribeStreamConsumer => consumers::describe,
    DescribeStreamSummary => streams::describe_summary,
    DisableEnhancedMonitoring => streams::disable_monitoring,
    EnableEnhancedMonitoring => streams::enable_monitoring,
    GetRecords => read::get_records,
    GetShardIterator => read::get_shard_iterator,
    IncreaseStreamRetentionPeriod => streams::increase_retention,
    ListShards => shards::list,
    ListStreamConsumers => consumers::list,
    ListStreams => streams::list,
    ListTagsForResource => tags::list_for_resource,
    ListTagsForStream => tags::list_for_stream,
    MergeShards => shards::merge,
    PutRecord => put::put_record,
    PutRecords => put::put_records,
    RegisterStreamConsumer => consumers::register,
    RemoveTagsFromStream => tags::remove_from_stream,
    SplitShard => shards::split,
    StartStreamEncryption => streams::start_encryption,
    StopStreamEncryption => streams::stop_encryption,
    SubscribeToShard => consumers::subscribe,
    TagResource => tags::tag_resource,
    UntagResource => tags::untag_resource,
    UpdateMaxRecordSize => streams::update_max_record_size,
    UpdateShardCount => shards::update_count,
    UpdateStreamMode => streams::update_mode,
    UpdateStreamRecordDistributionStrategy => streams::update_distribution,
    UpdateStreamWarmThroughput => streams::update_warm_throughput,
}

/// The stream and shard that a request is about, as far as it names them: for fault rules and counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) stream: Option<String>,
    pub(crate) shard: Option<String>,
}

impl Subject {
    pub(crate) fn of(body: &Value<'_>) -> Self {
        let text = |name: &str| body.get(name).and_then(Value::as_text);
        if let Some(token) = text("ShardIterator").and_then(IteratorToken::decode) {
            return Self {
                stream: Some(token.stream),
                shard: Some(crate::model::shard_name(token.shard)),
            };
        }
        let arn = text("StreamARN")
            .or_else(|| text("ConsumerARN"))
            .or_else(|| text("ResourceARN"));
        let in_arn = || arn?.split_once(":stream/")?.1.split('/').next();
        let stream = text("StreamName").or_else(in_arn).map(str::to_owned);
        let shard = text("ShardId")
            .or_else(|| text("ShardToSplit"))
            .or_else(|| text("ShardToMerge"));
        Self {
            stream,
            shard: shard.map(str::to_owned),
        }
    }
}
