//! One stream: its shards, its state, and what may be done to it when.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::consumer::Consumer;
use super::hash::{HashRange, even_ranges, hash_of_key};
use super::limits::CallWindow;
use super::reshard::Reshard;
use super::shard::{Record, Shard, ShardMeta, shard_name, shard_number};
use super::{ApiError, Now, ServiceLimits};
use crate::{ACCOUNT_ID, REGION};

/// The state of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum StreamStatus {
    Creating,
    Active,
    Updating,
    Deleting,
}

impl StreamStatus {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "CREATING",
            Self::Active => "ACTIVE",
            Self::Updating => "UPDATING",
            Self::Deleting => "DELETING",
        }
    }
}

/// How a stream's capacity is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum StreamMode {
    Provisioned,
    OnDemand,
}

impl StreamMode {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Provisioned => "PROVISIONED",
            Self::OnDemand => "ON_DEMAND",
        }
    }
}

/// What a stream in a passing state becomes, and when.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Pending {
    /// Process time; not kept over a restart, when everything pending is due at once.
    #[serde(skip)]
    pub(crate) due_uptime_ms: u64,
    pub(crate) reshard: Option<Reshard>,
}

/// A stream, apart from its shards.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StreamMeta {
    /// Tells incarnations of one name apart.
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) created_ms: u64,
    pub(crate) status: StreamStatus,
    pub(crate) mode: StreamMode,
    pub(crate) retention_hours: u64,
    pub(crate) max_record_kib: u64,
    pub(crate) kms_key: Option<String>,
    pub(crate) metrics: BTreeSet<String>,
    pub(crate) tags: BTreeMap<String, String>,
    pub(crate) next_shard: u32,
    pub(crate) consumers: Vec<Consumer>,
    /// The second in the newest consumer's ARN; no two share one.
    pub(crate) last_consumer_secs: u64,
    pub(crate) pending: Option<Pending>,
    /// True under the AUTO record distribution strategy: the service places records, keys do not.
    pub(crate) auto_distribution: bool,
    pub(crate) warm_throughput: Option<u64>,
}

/// What is kept of a stream besides its records.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StreamSnapshot {
    pub(crate) meta: StreamMeta,
    pub(crate) shards: Vec<(ShardMeta, u64)>,
}

/// A record to put.
#[derive(Debug)]
pub(crate) struct Put {
    /// Empty where none was given, which only the AUTO distribution strategy allows.
    pub(crate) key: Bytes,
    pub(crate) explicit_hash: Option<u128>,
    pub(crate) data: Bytes,
}

/// Gives each making of shards a second of its own, so that sequence numbers of different makings never mix.
#[derive(Debug, Default)]
pub(crate) struct MadeClock(pub(crate) u64);

impl MadeClock {
    pub(crate) fn next(&mut self, now: Now) -> u64 {
        self.0 = (self.0 + 1).max(now.epoch_ms / 1000);
        self.0
    }
}

/// A stream with its shards and records.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) meta: StreamMeta,
    pub(crate) shards: BTreeMap<u32, Shard>,
    /// Open shards by the first hash key of their range.
    routes: Vec<(u128, u32)>,
    placed: u64,
    pub(crate) list_calls: CallWindow,
    pub(crate) scale_calls: CallWindow,
    /// True where something besides records changed since the last snapshot.
    pub(crate) dirty: bool,
}

impl Stream {
    pub(crate) fn create(mut meta: StreamMeta, shard_count: u32, made_secs: u64) -> Self {
        meta.next_shard = shard_count;
        let opened_ms = meta.created_ms;
        let shards = (0u32..).zip(even_ranges(shard_count)).map(|(number, range)| {
            let meta = ShardMeta {
                number,
                range,
                parent: None,
                adjacent_parent: None,
                made_secs,
                opened_ms,
                closed_ms: None,
            };
            (number, Shard::new(meta))
        });
        let shards = shards.collect();
        Self::with_shards(meta, shards)
    }

    pub(crate) fn with_shards(meta: StreamMeta, shards: BTreeMap<u32, Shard>) -> Self {
        let mut stream = Self {
            meta,
            shards,
            routes: Vec::new(),
            placed: 0,
            list_calls: CallWindow::default(),
            scale_calls: CallWindow::default(),
            dirty: true,
        };
        stream.rebuild_routes();
        stream
    }

    pub(crate) fn snapshot(&self) -> StreamSnapshot {
        let shards = self
            .shards
            .values()
            .map(|s| (s.meta.clone(), s.next_index()))
            .collect();
        StreamSnapshot {
            meta: self.meta.clone(),
            shards,
        }
    }

    pub(crate) fn rebuild_routes(&mut self) {
        self.routes = self.open_shards().map(|s| (s.range.start, s.number)).collect();
        self.routes.sort_unstable();
    }

    pub(crate) fn open_shards(&self) -> impl Iterator<Item = &ShardMeta> {
        self.shards.values().map(|s| &s.meta).filter(|s| s.is_open())
    }

    /// Open shards in the order of their ranges.
    pub(crate) fn open_by_range(&self) -> Vec<(u32, HashRange)> {
        let ranges = self
            .routes
            .iter()
            .filter_map(|(_, n)| self.shards.get(n).map(|s| (*n, s.meta.range)));
        ranges.collect()
    }

    pub(crate) fn arn(&self) -> String {
        stream_arn(&self.meta.name)
    }

    /// Records that arrived before this are gone.
    pub(crate) fn horizon_ms(&self, now: Now) -> u64 {
        now.epoch_ms
            .saturating_sub(self.meta.retention_hours.saturating_mul(3_600_000))
    }

    /// Drops what is past retention: records, and closed shards once nothing of them can be left.
    pub(crate) fn trim(&mut self, now: Now) {
        let horizon = self.horizon_ms(now);
        let before = self.shards.len();
        self.shards.retain(|_, shard| {
            shard.trim(horizon);
            shard.meta.closed_ms.is_none_or(|closed| closed >= horizon)
        });
        self.dirty |= self.shards.len() != before;
    }

    /// The shard of that name, or the error of an operation that names a shard to change.
    pub(crate) fn shard_to_change(&self, name: &str) -> Result<&Shard, ApiError> {
        shard_number(name)
            .and_then(|n| self.shards.get(&n))
            .ok_or_else(|| {
                ApiError::not_found(format!(
                    "Could not find shard {name} in stream {} under account {ACCOUNT_ID}.",
                    self.meta.name
                ))
            })
    }

    /// The shard of that name, or the error of an operation that reads.
    pub(crate) fn shard_to_read(&mut self, name: &str) -> Result<&mut Shard, ApiError> {
        let missing = ApiError::not_found(format!(
            "Shard {name} in stream {} under account {ACCOUNT_ID} does not exist",
            self.meta.name
        ));
        shard_number(name)
            .and_then(|n| self.shards.get_mut(&n))
            .ok_or(missing)
    }

    /// Refuses what is only allowed on an ACTIVE stream.
    pub(crate) fn require_active(&self) -> Result<(), ApiError> {
        if self.meta.status == StreamStatus::Active {
            return Ok(());
        }
        Err(ApiError::in_use(format!(
            "Stream {} under account {ACCOUNT_ID} not ACTIVE, instead in state {}",
            self.meta.name,
            self.meta.status.as_str()
        )))
    }

    /// Refuses reads and writes on a stream that is not there yet, or no longer.
    pub(crate) fn require_usable(&self) -> Result<(), ApiError> {
        match self.meta.status {
            StreamStatus::Active | StreamStatus::Updating => Ok(()),
            StreamStatus::Creating | StreamStatus::Deleting => Err(ApiError::no_stream(&self.meta.name)),
        }
    }

    /// Enters UPDATING until `due_uptime_ms`, when the reshard, if any, is carried out.
    pub(crate) fn begin_update(&mut self, due_uptime_ms: u64, reshard: Option<Reshard>) {
        self.meta.status = StreamStatus::Updating;
        self.meta.pending = Some(Pending {
            due_uptime_ms,
            reshard,
        });
        self.dirty = true;
    }

    /// Carries out what is due. True where the stream is to be removed.
    pub(crate) fn settle(&mut self, now: Now, made: &mut MadeClock) -> bool {
        if self
            .meta
            .pending
            .as_ref()
            .is_some_and(|p| p.due_uptime_ms <= now.uptime_ms)
            && let Some(pending) = self.meta.pending.take()
        {
            self.dirty = true;
            if self.meta.status == StreamStatus::Deleting {
                return true;
            }
            if let Some(reshard) = pending.reshard {
                self.carry_out(&reshard, now, made);
            }
            self.meta.status = StreamStatus::Active;
        }
        if super::consumer::settle(&mut self.meta.consumers, now) {
            self.dirty = true;
        }
        self.trim(now);
        false
    }

    /// When something pending is due, if anything is.
    pub(crate) fn next_due_uptime_ms(&self) -> Option<u64> {
        let consumers = self.meta.consumers.iter().filter_map(Consumer::due_uptime_ms);
        consumers
            .chain(self.meta.pending.as_ref().map(|p| p.due_uptime_ms))
            .min()
    }

    /// The open shard that a record goes to.
    pub(crate) fn route(&self, hash: u128) -> Option<u32> {
        let after = self.routes.partition_point(|(start, _)| *start <= hash);
        self.routes.get(after.checked_sub(1)?).map(|(_, number)| *number)
    }

    /// Stores a record. An error is this record's alone; other records of the same call may succeed.
    pub(crate) fn put(
        &mut self,
        now: Now,
        put: Put,
        limits: &ServiceLimits,
    ) -> Result<(u32, Arc<Record>), ApiError> {
        let hash = if self.meta.auto_distribution {
            // Any even spread will do; consecutive records go to different shards.
            self.placed = self.placed.wrapping_add(1);
            hash_of_key(&self.placed.to_be_bytes())
        } else {
            put.explicit_hash.unwrap_or_else(|| hash_of_key(&put.key))
        };
        let name = &self.meta.name;
        let number = self.route(hash);
        let shard = number
            .and_then(|n| self.shards.get_mut(&n))
            .ok_or_else(|| ApiError::no_stream(name))?;
        let size = (put.data.len() + put.key.len()) as u64;
        if !shard.gate.admit_write(now, size, limits) {
            return Err(ApiError::throughput(&shard.meta.name(), name));
        }
        let number = shard.meta.number;
        Ok((number, shard.append(now, put.key, put.data)))
    }

    /// A shard's children: those that name it as a parent.
    pub(crate) fn children_of(&self, number: u32) -> impl Iterator<Item = &ShardMeta> {
        let children = self.shards.range(number..).map(|(_, s)| &s.meta);
        children.filter(move |s| s.parent == Some(number) || s.adjacent_parent == Some(number))
    }

    /// What a closed shard that was asked to be resharded answers.
    pub(crate) fn already_resharded(&self, number: u32) -> ApiError {
        ApiError::invalid(format!(
            "Shard {} in stream {} under account {ACCOUNT_ID} has already been merged or split, and thus is not eligible for \
             merging or splitting.",
            shard_name(number),
            self.meta.name
        ))
    }
}

/// The ARN of a stream.
pub(crate) fn stream_arn(name: &str) -> String {
    format!("arn:aws:kinesis:{REGION}:{ACCOUNT_ID}:stream/{name}")
}

/// The stream's name in an ARN of a stream in this account.
pub(crate) fn name_in_arn(arn: &str) -> Option<&str> {
    let resource = arn
        .strip_prefix("arn:aws:kinesis:")?
        .strip_prefix(REGION)?
        .strip_prefix(':')?;
    let name = resource.strip_prefix(ACCOUNT_ID)?.strip_prefix(":stream/")?;
    (!name.is_empty() && !name.contains('/')).then_some(name)
}
