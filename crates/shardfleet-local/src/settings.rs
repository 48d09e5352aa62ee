//! How the embedded Kinesis behaves: times, quotas and limits.

use std::time::Duration;

use crate::model::ServiceLimits;

/// Settings of the embedded Kinesis. The defaults are the service's own values, except that streams change state in
/// 20 ms and rate limits are off.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KinesisSettings {
    /// How long a new stream stays CREATING. Real time, 20 ms by default.
    pub create_stream_time: Duration,
    /// How long a stream stays UPDATING after a split, a merge or another change. Real time, 20 ms by default.
    pub update_stream_time: Duration,
    /// How long a stream stays DELETING. Real time, 20 ms by default.
    pub delete_stream_time: Duration,
    /// How long a consumer stays CREATING or DELETING. Real time, 20 ms by default.
    pub consumer_time: Duration,
    /// How long a shard iterator is good for, by the service's clock. 300 s by default.
    pub iterator_lifetime: Duration,
    /// How long a list token is good for, by the service's clock. 300 s by default.
    pub list_token_lifetime: Duration,
    /// How long a subscription lasts, by the service's clock. 300 s by default.
    pub subscription_time: Duration,
    /// How long after a successful `SubscribeToShard` another one on the same consumer and shard is refused, by the
    /// service's clock. 5 s by default.
    pub subscription_takeover_time: Duration,
    /// How often an idle subscription sends an empty event. Real time, 5 s by default.
    pub subscription_idle_time: Duration,
    /// Most bytes of payload and partition keys in one `GetRecords` answer. 10 MiB by default.
    pub page_bytes: usize,
    /// True: a closed shard's last records come with a next iterator, and the end is an empty page of its own. False, the
    /// default: the page that reaches the end of a closed shard is the last one. The service does both.
    pub shard_end_on_own_page: bool,
    /// Most open shards of the account. 20,000 by default.
    pub shard_limit: u32,
    /// Most consumers of one stream. 20 by default.
    pub consumer_limit: usize,
    /// Rate limits, off by default.
    pub limits: ServiceLimits,
}

impl Default for KinesisSettings {
    fn default() -> Self {
        let transition = Duration::from_millis(20);
        Self {
            create_stream_time: transition,
            update_stream_time: transition,
            delete_stream_time: transition,
            consumer_time: transition,
            iterator_lifetime: Duration::from_mins(5),
            list_token_lifetime: Duration::from_mins(5),
            subscription_time: Duration::from_mins(5),
            subscription_takeover_time: Duration::from_secs(5),
            subscription_idle_time: Duration::from_secs(5),
            page_bytes: 10 * 1024 * 1024,
            shard_end_on_own_page: false,
            shard_limit: 20_000,
            consumer_limit: 20,
            limits: ServiceLimits::off(),
        }
    }
}

impl KinesisSettings {
    /// Sets the time that streams and consumers stay CREATING, UPDATING and DELETING. Zero makes every change immediate.
    #[must_use]
    pub fn with_transition_time(mut self, time: Duration) -> Self {
        self.create_stream_time = time;
        self.update_stream_time = time;
        self.delete_stream_time = time;
        self.consumer_time = time;
        self
    }

    /// Sets the rate limits.
    #[must_use]
    pub fn with_limits(mut self, limits: ServiceLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets how long a shard iterator is good for.
    #[must_use]
    pub fn with_iterator_lifetime(mut self, lifetime: Duration) -> Self {
        self.iterator_lifetime = lifetime;
        self
    }
}

/// Whole milliseconds of a duration, the longest ones cut to what fits.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
