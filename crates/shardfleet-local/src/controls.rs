//! Control of a running embedded Kinesis from the process it runs in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::error::LocalError;
use crate::faults::{FaultId, FaultRule};
use crate::model::{
    Account, ApiError, HashRange, NewStream, Now, Put, Reshard, ServiceLimits, Shard, Stream, StreamRef,
    hash_of_key, shard_name,
};
use crate::service::Service;
use crate::settings::KinesisSettings;

/// Controls of an embedded Kinesis: clock, limits, faults, counters, and short ways to set up what a test needs.
///
/// A cheap clone; it stays valid after the service has stopped, without effect on anybody. Calls made here are not
/// counted, not limited and hit by no fault, and state changes are done when they return.
#[derive(Clone, Debug)]
pub struct KinesisControls {
    service: Arc<Service>,
}

/// Where a record went.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutReceipt {
    /// The shard's name.
    pub shard_id: String,
    /// The record's sequence number.
    pub sequence_number: String,
}

/// A shard as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardView {
    /// The shard's name.
    pub shard_id: String,
    /// True while it takes records.
    pub open: bool,
    /// Names of its parents: none, one (split) or two (merge).
    pub parents: Vec<String>,
    /// First hash key of its range.
    pub starting_hash_key: u128,
    /// Last hash key of its range, included.
    pub ending_hash_key: u128,
    /// Records that are kept.
    pub records: usize,
}

impl ShardView {
    fn of(shard: &Shard) -> Self {
        let HashRange { start, end } = shard.meta.range;
        Self {
            shard_id: shard.meta.name(),
            open: shard.meta.is_open(),
            parents: shard
                .meta
                .parent
                .into_iter()
                .chain(shard.meta.adjacent_parent)
                .map(shard_name)
                .collect(),
            starting_hash_key: start,
            ending_hash_key: end,
            records: shard.records().count(),
        }
    }
}

impl KinesisControls {
    pub(crate) fn new(service: Arc<Service>) -> Self {
        Self { service }
    }

    // ---- time

    /// Stops the service's clock at a time (milliseconds since 1970). Arrival times, retention, expiry, limits and
    /// subscriptions follow it; CREATING and UPDATING take real time all the same.
    pub fn use_manual_clock(&self, epoch_ms: u64) {
        self.service.clock.set(epoch_ms);
        self.service.tick();
    }

    /// Follows the machine's clock again.
    pub fn use_real_clock(&self) {
        self.service.clock.follow();
        self.service.tick();
    }

    /// Moves the service's clock on, whether it stands or runs.
    pub fn advance(&self, by: Duration) {
        self.service.clock.advance(by);
        self.service.tick();
    }

    /// The service's time, milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        self.service.clock.now().epoch_ms
    }

    // ---- settings

    /// The settings in force.
    pub fn settings(&self) -> KinesisSettings {
        self.service.with_account(|account, _| account.settings.clone())
    }

    /// Changes settings; they act on the next call.
    pub fn update_settings(&self, change: impl FnOnce(&mut KinesisSettings)) {
        self.service.with_account(|account, _| {
            let limits = account.settings.limits;
            change(&mut account.settings);
            if account.settings.limits != limits {
                account.set_limits(account.settings.limits);
            }
        });
        self.service.changed.notify_waiters();
    }

    /// Sets how long shard iterators are good for, those given out already included.
    pub fn set_iterator_lifetime(&self, lifetime: Duration) {
        self.update_settings(|s| s.iterator_lifetime = lifetime);
    }

    /// Sets how long a subscription lasts, those under way included.
    pub fn set_subscription_time(&self, time: Duration) {
        self.update_settings(|s| s.subscription_time = time);
    }

    /// Sets how long streams and consumers stay CREATING, UPDATING and DELETING, from the next change on.
    pub fn set_transition_time(&self, time: Duration) {
        self.update_settings(|s| *s = s.clone().with_transition_time(time));
    }

    /// Sets the rate limits and forgets what was used up under the old ones.
    pub fn set_limits(&self, limits: ServiceLimits) {
        self.service.with_account(|account, _| account.set_limits(limits));
    }

    // ---- faults and counters

    /// Adds a fault rule.
    pub fn add_fault(&self, rule: FaultRule) -> FaultId {
        self.service.faults().add(rule)
    }

    /// Takes a fault rule back.
    pub fn remove_fault(&self, id: FaultId) {
        self.service.faults().remove(id);
    }

    /// Takes all fault rules back.
    pub fn clear_faults(&self) {
        self.service.faults().clear();
    }

    /// How often a rule has struck; 0 for one that is gone.
    pub fn fault_hits(&self, id: FaultId) -> u64 {
        self.service.faults().hits(id)
    }

    /// All rules, each with how often it has struck.
    pub fn faults(&self) -> Vec<(FaultId, FaultRule, u64)> {
        self.service.faults().list()
    }

    /// How often clients have called an operation, failed calls included.
    pub fn calls(&self, operation: &str) -> u64 {
        self.service
            .calls()
            .operations
            .get(operation)
            .copied()
            .unwrap_or(0)
    }

    /// How often clients have called an operation on a shard, of whatever stream.
    pub fn calls_for(&self, operation: &str, shard_id: &str) -> u64 {
        let calls = self.service.calls();
        let of = |((name, shard), count): (&(&'static str, String), &u64)| {
            (*name == operation && shard == shard_id).then_some(*count)
        };
        calls.shards.iter().filter_map(of).sum()
    }

    /// How often clients have called an operation on a stream.
    pub fn calls_for_stream(&self, operation: &str, stream: &str) -> u64 {
        let calls = self.service.calls();
        let of = |((name, on), count): (&(&'static str, String), &u64)| {
            (*name == operation && on == stream).then_some(*count)
        };
        calls.streams.iter().filter_map(of).sum()
    }

    /// All operations that clients have called, with how often.
    pub fn all_calls(&self) -> BTreeMap<String, u64> {
        self.service
            .calls()
            .operations
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect()
    }

    /// Counts from nought again.
    pub fn reset_calls(&self) {
        *self.service.calls() = crate::service::Calls::default();
    }

    // ---- data

    fn change<T>(
        &self,
        action: impl FnOnce(&mut Account, Now) -> Result<T, ApiError>,
    ) -> Result<T, LocalError> {
        let result = self.service.transact(action);
        self.service.changed.notify_waiters();
        Ok(result?)
    }

    /// Makes a provisioned stream, ACTIVE at once.
    ///
    /// # Errors
    /// As `CreateStream`.
    pub fn create_stream(&self, name: &str, shards: u32) -> Result<(), LocalError> {
        self.change(|account, now| {
            account.create_stream(NewStream::provisioned(name, shards), now)?;
            finish(account, name, now)
        })
    }

    /// Deletes a stream with its consumers, at once.
    ///
    /// # Errors
    /// As `DeleteStream`.
    pub fn delete_stream(&self, name: &str) -> Result<(), LocalError> {
        self.change(|account, now| {
            account.delete_stream(StreamRef::by_name(name), true, now)?;
            account.settle(later(now));
            Ok(())
        })
    }

    /// Puts a record.
    ///
    /// # Errors
    /// As `PutRecord`, when the stream is not there.
    pub fn put(
        &self,
        stream: &str,
        partition_key: &str,
        data: impl Into<Bytes>,
    ) -> Result<PutReceipt, LocalError> {
        self.put_record(stream, partition_key, None, data.into())
    }

    /// Puts a record on the shard that holds a hash key.
    ///
    /// # Errors
    /// As `PutRecord`, when the stream is not there.
    pub fn put_at(
        &self,
        stream: &str,
        partition_key: &str,
        explicit_hash_key: u128,
        data: impl Into<Bytes>,
    ) -> Result<PutReceipt, LocalError> {
        self.put_record(stream, partition_key, Some(explicit_hash_key), data.into())
    }

    fn put_record(
        &self,
        stream: &str,
        key: &str,
        explicit_hash: Option<u128>,
        data: Bytes,
    ) -> Result<PutReceipt, LocalError> {
        self.change(|account, now| {
            let key = Bytes::copy_from_slice(key.as_bytes());
            // Set up by hand: no write limit stands in the way.
            let limits = std::mem::replace(&mut account.settings.limits, ServiceLimits::off());
            let answers = account.put(
                StreamRef::by_name(stream),
                vec![Put {
                    key,
                    explicit_hash,
                    data,
                }],
                now,
            );
            account.settings.limits = limits;
            let answer = answers?.pop().unwrap_or_else(|| Err(ApiError::no_stream(stream)));
            let (shard, record) = answer?;
            let sequence_number = String::from_utf8_lossy(&record.sequence).into_owned();
            Ok(PutReceipt {
                shard_id: shard_name(shard),
                sequence_number,
            })
        })
    }

    /// Splits a shard in the middle, at once. Returns the names of the two children, lower range first.
    ///
    /// # Errors
    /// As `SplitShard`.
    pub fn split(&self, stream: &str, shard_id: &str) -> Result<(String, String), LocalError> {
        let children = self.reshard(stream, |s| {
            let middle = s.shard_to_change(shard_id)?.meta.range.middle();
            s.plan_split(shard_id, middle)
        })?;
        let mut names = children.into_iter();
        names
            .next()
            .zip(names.next())
            .ok_or_else(|| nothing_done("SplitShard", shard_id))
    }

    /// Merges two adjacent shards, at once. Returns the name of the child.
    ///
    /// # Errors
    /// As `MergeShards`.
    pub fn merge(&self, stream: &str, shard_id: &str, adjacent: &str) -> Result<String, LocalError> {
        let children = self.reshard(stream, |s| s.plan_merge(shard_id, adjacent))?;
        children
            .into_iter()
            .next()
            .ok_or_else(|| nothing_done("MergeShards", shard_id))
    }

    /// Changes the number of open shards to `target` shards of equal size, at once. Returns the names of the new shards.
    ///
    /// # Errors
    /// As `UpdateShardCount`.
    pub fn scale(&self, stream: &str, target: u32) -> Result<Vec<String>, LocalError> {
        self.reshard(stream, |s| s.plan_scale(target))
    }

    fn reshard(
        &self,
        stream: &str,
        plan: impl FnOnce(&Stream) -> Result<Reshard, ApiError>,
    ) -> Result<Vec<String>, LocalError> {
        self.change(|account, now| {
            let s = account.stream(StreamRef::by_name(stream), now)?;
            s.require_active()?;
            let reshard = plan(s)?;
            let first = s.meta.next_shard;
            s.begin_update(now.uptime_ms, Some(reshard));
            let s = account.stream(StreamRef::by_name(stream), now)?;
            Ok(Stream::names_of(&(first..s.meta.next_shard).collect::<Vec<_>>()))
        })
    }

    /// Registers a consumer, ACTIVE at once. Returns its ARN.
    ///
    /// # Errors
    /// As `RegisterStreamConsumer`.
    pub fn register_consumer(&self, stream: &str, consumer: &str) -> Result<String, LocalError> {
        self.change(|account, now| {
            let (s, settings) = account.stream_and_settings(StreamRef::by_name(stream), now)?;
            let arn = s
                .register_consumer(consumer, BTreeMap::new(), now, settings)?
                .arn(stream);
            finish(account, stream, now)?;
            Ok(arn)
        })
    }

    /// Sets a stream's retention to any number of hours, and trims at once what is older.
    ///
    /// # Errors
    /// When the stream is not there.
    pub fn set_retention(&self, stream: &str, hours: u64) -> Result<(), LocalError> {
        self.change(|account, now| {
            let s = account.stream(StreamRef::by_name(stream), now)?;
            s.meta.retention_hours = hours;
            s.dirty = true;
            s.trim(now);
            Ok(())
        })
    }

    /// Expires every iterator that was given out for a shard so far.
    ///
    /// # Errors
    /// When the stream or shard is not there.
    pub fn expire_iterators(&self, stream: &str, shard_id: &str) -> Result<(), LocalError> {
        self.change(|account, now| {
            let issued = account.last_issue();
            let s = account.stream(StreamRef::by_name(stream), now)?;
            s.shard_to_read(shard_id)?.expired_through = issued;
            Ok(())
        })
    }

    /// Names of all streams, in order.
    pub fn streams(&self) -> Vec<String> {
        self.service
            .with_account(|account, _| account.names().cloned().collect())
    }

    /// All shards of a stream that are kept, oldest first.
    ///
    /// # Errors
    /// When the stream is not there.
    pub fn shards(&self, stream: &str) -> Result<Vec<ShardView>, LocalError> {
        self.change(|account, now| {
            let s = account.stream(StreamRef::by_name(stream), now)?;
            Ok(s.shards.values().map(ShardView::of).collect())
        })
    }

    /// The hash key of a partition key, to tell which shard it belongs to.
    pub fn hash_key(partition_key: &str) -> u128 {
        hash_of_key(partition_key.as_bytes())
    }

    /// The ARN that a stream of this name has.
    pub fn stream_arn(name: &str) -> String {
        Account::arn_of(name)
    }
}

/// A time at which everything pending is due.
fn later(now: Now) -> Now {
    Now {
        uptime_ms: u64::MAX,
        ..now
    }
}

fn finish(account: &mut Account, stream: &str, now: Now) -> Result<(), ApiError> {
    account.stream(StreamRef::by_name(stream), later(now)).map(|_| ())
}

fn nothing_done(operation: &str, shard_id: &str) -> LocalError {
    ApiError::invalid(format!("{operation} of {shard_id} made no shard")).into()
}
