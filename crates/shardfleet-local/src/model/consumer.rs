//! Registered consumers and their subscriptions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::shard::shard_name;
use super::stream::{Stream, stream_arn};
use super::{ApiError, Now};
use crate::ACCOUNT_ID;
use crate::settings::{KinesisSettings, millis};

/// The state of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum ConsumerStatus {
    Creating,
    Active,
    Deleting,
}

impl ConsumerStatus {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "CREATING",
            Self::Active => "ACTIVE",
            Self::Deleting => "DELETING",
        }
    }
}

/// A registered consumer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Consumer {
    pub(crate) name: String,
    /// The second of its registration; part of its ARN.
    pub(crate) created_secs: u64,
    pub(crate) status: ConsumerStatus,
    pub(crate) tags: BTreeMap<String, String>,
    /// Process time at which CREATING or DELETING ends; not kept over a restart.
    #[serde(skip)]
    due_uptime_ms: u64,
    #[serde(skip)]
    subscriptions: BTreeMap<u32, Subscription>,
}

#[derive(Clone, Debug)]
struct Subscription {
    id: SubscriptionId,
    opened_ms: u64,
    slow_until_ms: u64,
}

/// Tells subscriptions of one consumer and shard apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SubscriptionId(pub(crate) u64);

/// How a request names a consumer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ConsumerRef<'a> {
    Arn(&'a str),
    Name(&'a str),
}

/// What a live subscription finds when it looks at its consumer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    Live,
    /// Its bandwidth is used up until this time of the service's clock.
    SlowUntil(u64),
    /// Its time is over.
    Ended,
    /// Another subscription took its place.
    TakenOver,
    /// The consumer was deregistered.
    Gone,
}

impl Consumer {
    pub(crate) fn arn(&self, stream: &str) -> String {
        format!(
            "{}/consumer/{}:{}",
            stream_arn(stream),
            self.name,
            self.created_secs
        )
    }

    pub(crate) fn due_uptime_ms(&self) -> Option<u64> {
        (self.status != ConsumerStatus::Active).then_some(self.due_uptime_ms)
    }
}

/// Carries out what is due. True where anything changed.
pub(crate) fn settle(consumers: &mut Vec<Consumer>, now: Now) -> bool {
    let mut changed = false;
    consumers.retain_mut(|consumer| {
        if consumer.due_uptime_ms().is_none_or(|due| due > now.uptime_ms) {
            return true;
        }
        changed = true;
        let keep = consumer.status == ConsumerStatus::Creating;
        consumer.status = ConsumerStatus::Active;
        keep
    });
    changed
}

impl Stream {
    /// The consumer, or `ResourceNotFoundException`.
    pub(crate) fn consumer(&mut self, which: ConsumerRef<'_>) -> Result<&mut Consumer, ApiError> {
        let stream = self.meta.name.clone();
        let found = self.meta.consumers.iter_mut().find(|c| match which {
            ConsumerRef::Arn(arn) => c.arn(&stream) == arn,
            ConsumerRef::Name(name) => c.name == name,
        });
        found.ok_or_else(|| {
            let what = match which {
                ConsumerRef::Arn(arn) => arn.to_owned(),
                ConsumerRef::Name(name) => name.to_owned(),
            };
            ApiError::not_found(format!(
                "Consumer {what}, in stream {stream} under account {ACCOUNT_ID} not found."
            ))
        })
    }

    /// Registers a consumer (AWS: `RegisterStreamConsumer`).
    pub(crate) fn register_consumer(
        &mut self,
        name: &str,
        tags: BTreeMap<String, String>,
        now: Now,
        settings: &KinesisSettings,
    ) -> Result<&Consumer, ApiError> {
        let stream = &self.meta.name;
        if self.meta.consumers.iter().any(|c| c.name == name) {
            return Err(ApiError::in_use(format!(
                "Consumer {name} under stream {stream} already exists for account {ACCOUNT_ID}."
            )));
        }
        if self.meta.consumers.len() >= settings.consumer_limit {
            return Err(ApiError::limit(format!(
                "Stream {stream} under account {ACCOUNT_ID} already has {} registered consumers, the most it can have.",
                settings.consumer_limit
            )));
        }
        let creating = self
            .meta
            .consumers
            .iter()
            .filter(|c| c.status == ConsumerStatus::Creating)
            .count();
        if settings
            .limits
            .consumers_creating
            .is_some_and(|limit| creating >= limit as usize)
        {
            return Err(ApiError::limit(format!(
                "Stream {stream} under account {ACCOUNT_ID} already has {creating} consumers in state CREATING."
            )));
        }
        // A consumer that is made again within a second still needs an ARN of its own.
        self.meta.last_consumer_secs = (self.meta.last_consumer_secs + 1).max(now.epoch_ms / 1000);
        self.meta.consumers.push(Consumer {
            name: name.to_owned(),
            created_secs: self.meta.last_consumer_secs,
            status: ConsumerStatus::Creating,
            tags,
            due_uptime_ms: now.uptime_ms.saturating_add(millis(settings.consumer_time)),
            subscriptions: BTreeMap::new(),
        });
        self.dirty = true;
        self.meta
            .consumers
            .last()
            .ok_or_else(|| ApiError::invalid("no consumer was registered"))
    }

    /// Begins to deregister a consumer (AWS: `DeregisterStreamConsumer`).
    pub(crate) fn deregister_consumer(
        &mut self,
        which: ConsumerRef<'_>,
        now: Now,
        settings: &KinesisSettings,
    ) -> Result<(), ApiError> {
        let consumer = self.consumer(which)?;
        if consumer.status != ConsumerStatus::Deleting {
            consumer.status = ConsumerStatus::Deleting;
            consumer.due_uptime_ms = now.uptime_ms.saturating_add(millis(settings.consumer_time));
            consumer.subscriptions.clear();
        }
        self.dirty = true;
        Ok(())
    }

    /// Opens a subscription (AWS: `SubscribeToShard`): refused for five seconds after the last one, taking over after that.
    pub(crate) fn subscribe(
        &mut self,
        consumer_arn: &str,
        shard: u32,
        id: SubscriptionId,
        now: Now,
        settings: &KinesisSettings,
    ) -> Result<(), ApiError> {
        let stream = self.meta.name.clone();
        let consumer = self.consumer(ConsumerRef::Arn(consumer_arn))?;
        if consumer.status != ConsumerStatus::Active {
            return Err(ApiError::in_use(format!(
                "Consumer {} in stream {stream} under account {ACCOUNT_ID} not ACTIVE, instead in state {}",
                consumer.name,
                consumer.status.as_str()
            )));
        }
        let hold_ms = millis(settings.subscription_takeover_time);
        if let Some(held) = consumer.subscriptions.get(&shard)
            && now.epoch_ms >= held.opened_ms
            && now.epoch_ms - held.opened_ms < hold_ms
        {
            return Err(ApiError::in_use(format!(
                "Another active subscription exists for this consumer: {ACCOUNT_ID}:{stream}:{}:{}",
                shard_name(shard),
                consumer.name
            )));
        }
        consumer.subscriptions.insert(
            shard,
            Subscription {
                id,
                opened_ms: now.epoch_ms,
                slow_until_ms: 0,
            },
        );
        Ok(())
    }

    /// Looks at a live subscription.
    pub(crate) fn touch_subscription(
        &mut self,
        consumer_arn: &str,
        shard: u32,
        id: SubscriptionId,
        now: Now,
        settings: &KinesisSettings,
    ) -> Touch {
        let Ok(consumer) = self.consumer(ConsumerRef::Arn(consumer_arn)) else {
            return Touch::Gone;
        };
        if consumer.status == ConsumerStatus::Deleting {
            return Touch::Gone;
        }
        match consumer.subscriptions.get(&shard) {
            Some(held) if held.id == id => {
                if now.epoch_ms >= held.opened_ms.saturating_add(millis(settings.subscription_time)) {
                    return Touch::Ended;
                }
                let slow = settings.limits.subscription_bytes_per_second.is_some()
                    && now.epoch_ms < held.slow_until_ms;
                if slow {
                    Touch::SlowUntil(held.slow_until_ms)
                } else {
                    Touch::Live
                }
            }
            _ => Touch::TakenOver,
        }
    }

    /// Notes what a subscription sent.
    pub(crate) fn note_subscription_bytes(
        &mut self,
        consumer_arn: &str,
        shard: u32,
        bytes: u64,
        now: Now,
        settings: &KinesisSettings,
    ) {
        let Some(rate) = settings.limits.subscription_bytes_per_second else {
            return;
        };
        if let Ok(consumer) = self.consumer(ConsumerRef::Arn(consumer_arn))
            && let Some(held) = consumer.subscriptions.get_mut(&shard)
        {
            held.slow_until_ms = now.epoch_ms + bytes.saturating_mul(1000) / rate.max(1);
        }
    }
}
