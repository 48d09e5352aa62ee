//! The service's rate limits, off unless switched on.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::Now;

/// Rate limits that the service enforces. `None` switches one off. All times are the service clock's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ServiceLimits {
    /// `GetRecords` calls a second on one shard (AWS: 5).
    pub get_records_per_second: Option<u32>,
    /// Bytes a second that polling readers may take from one shard (AWS: 2 MiB). An answer larger than this blocks the
    /// shard for as many seconds as it took bytes for: 10 MiB block five seconds.
    pub read_bytes_per_second: Option<u64>,
    /// Bytes a second that one shard accepts (AWS: 1 MiB).
    pub write_bytes_per_second: Option<u64>,
    /// Records a second that one shard accepts (AWS: 1,000).
    pub write_records_per_second: Option<u32>,
    /// `GetShardIterator` calls a second on one shard (AWS: 5).
    pub get_shard_iterator_per_second: Option<u32>,
    /// `ListShards` calls a second on one stream (AWS: 1,000).
    pub list_shards_per_second: Option<u32>,
    /// Bytes a second of one subscription (AWS: 2 MiB). Subscriptions are slowed, not refused.
    pub subscription_bytes_per_second: Option<u64>,
    /// `UpdateShardCount` calls in 24 hours on one stream (AWS: 10).
    pub update_shard_count_per_day: Option<u32>,
    /// Consumers of one stream that may be CREATING at once (AWS: 5).
    pub consumers_creating: Option<u32>,
}

impl ServiceLimits {
    /// No limits: the default.
    pub const fn off() -> Self {
        Self {
            get_records_per_second: None,
            read_bytes_per_second: None,
            write_bytes_per_second: None,
            write_records_per_second: None,
            get_shard_iterator_per_second: None,
            list_shards_per_second: None,
            subscription_bytes_per_second: None,
            update_shard_count_per_day: None,
            consumers_creating: None,
        }
    }

    /// The limits that AWS documents.
    pub const fn aws() -> Self {
        Self {
            get_records_per_second: Some(5),
            read_bytes_per_second: Some(2 * 1024 * 1024),
            write_bytes_per_second: Some(1024 * 1024),
            write_records_per_second: Some(1000),
            get_shard_iterator_per_second: Some(5),
            list_shards_per_second: Some(1000),
            subscription_bytes_per_second: Some(2 * 1024 * 1024),
            update_shard_count_per_day: Some(10),
            consumers_creating: Some(5),
        }
    }
}

/// Calls in a sliding window. Refused calls are not counted.
#[derive(Debug, Default)]
pub(crate) struct CallWindow {
    times: VecDeque<u64>,
}

impl CallWindow {
    /// Counts one call; false where the window already holds `limit`.
    pub(crate) fn admit(&mut self, now: Now, window_ms: u64, limit: Option<u32>) -> bool {
        let Some(limit) = limit else { return true };
        // A clock that was set back leaves times in the future; they would never leave the window.
        self.times
            .retain(|t| *t <= now.epoch_ms && now.epoch_ms - t < window_ms);
        if self.times.len() >= limit as usize {
            return false;
        }
        self.times.push_back(now.epoch_ms);
        true
    }
}

/// What one shard has lately been asked for.
#[derive(Debug, Default)]
pub(crate) struct ShardGate {
    reads: CallWindow,
    iterators: CallWindow,
    read_bytes: VecDeque<(u64, u64)>,
    read_blocked_until_ms: u64,
    bytes: Bucket,
    records: Bucket,
}

impl ShardGate {
    /// May `GetRecords` be answered now?
    pub(crate) fn admit_read(&mut self, now: Now, limits: &ServiceLimits) -> bool {
        if let Some(budget) = limits.read_bytes_per_second {
            if now.epoch_ms < self.read_blocked_until_ms {
                return false;
            }
            self.read_bytes
                .retain(|(t, _)| *t <= now.epoch_ms && now.epoch_ms - t < 1000);
            if self.read_bytes.iter().map(|(_, bytes)| bytes).sum::<u64>() >= budget {
                return false;
            }
        }
        self.reads.admit(now, 1000, limits.get_records_per_second)
    }

    /// Notes what a read took (AWS: `GetRecords`, "subsequent calls made within the next five seconds throw" after 10 MiB).
    pub(crate) fn note_read(&mut self, now: Now, bytes: u64, limits: &ServiceLimits) {
        let Some(budget) = limits.read_bytes_per_second else {
            return;
        };
        if bytes == 0 {
            return;
        }
        self.read_bytes.push_back((now.epoch_ms, bytes));
        if bytes > budget {
            self.read_blocked_until_ms = now.epoch_ms + bytes.saturating_mul(1000) / budget.max(1);
        }
    }

    /// May `GetShardIterator` be answered now?
    pub(crate) fn admit_iterator(&mut self, now: Now, limits: &ServiceLimits) -> bool {
        self.iterators
            .admit(now, 1000, limits.get_shard_iterator_per_second)
    }

    /// May one record of `bytes` be written now?
    pub(crate) fn admit_write(&mut self, now: Now, bytes: u64, limits: &ServiceLimits) -> bool {
        let record_limit = limits.write_records_per_second.map(u64::from);
        if !self.bytes.holds(now, bytes, limits.write_bytes_per_second)
            || !self.records.holds(now, 1, record_limit)
        {
            return false;
        }
        self.bytes.take(bytes);
        self.records.take(1);
        true
    }

    /// Forgets everything: called when the limits change.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}

/// A budget of one second's worth that refills steadily. In thousandths of a unit, since a millisecond refills those.
#[derive(Debug, Default)]
struct Bucket {
    milli_units_used: u64,
    at_ms: u64,
}

impl Bucket {
    /// Is there room for `amount`? A full budget admits any amount: large records may burst (AWS: large records).
    fn holds(&mut self, now: Now, amount: u64, per_second: Option<u64>) -> bool {
        let Some(rate) = per_second else { return true };
        let elapsed = now.epoch_ms.saturating_sub(self.at_ms);
        self.at_ms = now.epoch_ms;
        self.milli_units_used = self.milli_units_used.saturating_sub(elapsed.saturating_mul(rate));
        let after = self.milli_units_used.saturating_add(amount.saturating_mul(1000));
        self.milli_units_used == 0 || after <= rate.saturating_mul(1000)
    }

    fn take(&mut self, amount: u64) {
        self.milli_units_used = self.milli_units_used.saturating_add(amount.saturating_mul(1000));
    }
}
