//! All streams, and the changes of them that a journal keeps.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::iterator::IteratorToken;
use super::shard::{Page, Record, Shard, Start};
use super::stream::{MadeClock, Pending, Put, Stream, StreamMeta, StreamMode, StreamSnapshot, StreamStatus};
use super::stream::{name_in_arn, stream_arn};
use super::{ApiError, Now, SubscriptionId};
use crate::ACCOUNT_ID;
use crate::settings::{KinesisSettings, millis};

/// How a request names a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamRef<'a> {
    pub(crate) name: Option<&'a str>,
    pub(crate) arn: Option<&'a str>,
}

impl<'a> StreamRef<'a> {
    pub(crate) fn by_name(name: &'a str) -> Self {
        Self {
            name: Some(name),
            arn: None,
        }
    }

    pub(crate) fn by_arn(arn: &'a str) -> Self {
        Self {
            name: None,
            arn: Some(arn),
        }
    }

    /// The stream's name. Name and ARN may both be given, but have to agree.
    pub(crate) fn resolve(self) -> Result<&'a str, ApiError> {
        match (self.name, self.arn) {
            (None, None) => Err(ApiError::invalid(
                "Either StreamName or StreamARN must be provided.",
            )),
            (Some(name), None) => Ok(name),
            (name, Some(arn)) => {
                let in_arn = name_in_arn(arn).ok_or_else(|| {
                    ApiError::not_found(format!("Stream {arn} under account {ACCOUNT_ID} not found."))
                })?;
                if name.is_some_and(|name| name != in_arn) {
                    return Err(ApiError::invalid(
                        "StreamARN and StreamName name different streams.",
                    ));
                }
                Ok(in_arn)
            }
        }
    }
}

/// A stream to make.
#[derive(Debug)]
pub(crate) struct NewStream {
    pub(crate) name: String,
    pub(crate) shards: u32,
    pub(crate) mode: StreamMode,
    pub(crate) max_record_kib: u64,
    pub(crate) tags: BTreeMap<String, String>,
    pub(crate) auto_distribution: bool,
    pub(crate) warm_throughput: Option<u64>,
}

impl NewStream {
    pub(crate) fn provisioned(name: &str, shards: u32) -> Self {
        Self {
            name: name.to_owned(),
            shards,
            mode: StreamMode::Provisioned,
            max_record_kib: 1024,
            tags: BTreeMap::new(),
            auto_distribution: false,
            warm_throughput: None,
        }
    }
}

/// Something that a journal has to keep.
#[derive(Debug)]
pub(crate) enum Change {
    Deleted {
        stream_id: u64,
    },
    Stream(Box<StreamSnapshot>),
    Records {
        stream_id: u64,
        records: Vec<(u32, Arc<Record>)>,
    },
}

/// The account: every stream there is.
#[derive(Debug)]
pub(crate) struct Account {
    streams: BTreeMap<String, Stream>,
    pub(crate) settings: KinesisSettings,
    made: MadeClock,
    last_id: u64,
    issues: u64,
    /// `None` where nobody keeps changes.
    changes: Option<Vec<Change>>,
}

impl Account {
    pub(crate) fn new(settings: KinesisSettings, keep_changes: bool) -> Self {
        Self {
            streams: BTreeMap::new(),
            settings,
            made: MadeClock::default(),
            last_id: 0,
            issues: 0,
            changes: keep_changes.then(Vec::new),
        }
    }

    /// Names of all streams, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.streams.keys()
    }

    pub(crate) fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.streams.values()
    }

    /// Carries out everything that is due on every stream.
    pub(crate) fn settle(&mut self, now: Now) {
        let names: Vec<String> = self.streams.keys().cloned().collect();
        for name in names {
            self.settle_one(&name, now);
        }
    }

    /// The nearest process time at which something is due.
    pub(crate) fn next_due_uptime_ms(&self) -> Option<u64> {
        self.streams.values().filter_map(Stream::next_due_uptime_ms).min()
    }

    fn settle_one(&mut self, name: &str, now: Now) {
        if let Some(stream) = self.streams.get_mut(name)
            && stream.settle(now, &mut self.made)
        {
            let stream_id = stream.meta.id;
            self.streams.remove(name);
            if let Some(changes) = &mut self.changes {
                changes.push(Change::Deleted { stream_id });
            }
        }
    }

    /// The stream that a request names, with everything due carried out.
    pub(crate) fn stream(&mut self, which: StreamRef<'_>, now: Now) -> Result<&mut Stream, ApiError> {
        let name = which.resolve()?;
        self.settle_one(name, now);
        self.streams
            .get_mut(name)
            .ok_or_else(|| ApiError::no_stream(name))
    }

    /// The stream that a consumer's ARN belongs to.
    pub(crate) fn stream_of_consumer(&mut self, arn: &str, now: Now) -> Result<&mut Stream, ApiError> {
        let stream = arn.split_once("/consumer/").map_or(arn, |(stream, _)| stream);
        self.stream(StreamRef::by_arn(stream), now)
            .map_err(|_| ApiError::not_found(format!("Consumer {arn} under account {ACCOUNT_ID} not found.")))
    }

    /// The settings along with the stream, where both are needed.
    pub(crate) fn stream_and_settings(
        &mut self,
        which: StreamRef<'_>,
        now: Now,
    ) -> Result<(&mut Stream, &KinesisSettings), ApiError> {
        let name = which.resolve()?;
        self.settle_one(name, now);
        let stream = self
            .streams
            .get_mut(name)
            .ok_or_else(|| ApiError::no_stream(name))?;
        Ok((stream, &self.settings))
    }

    /// Begins to make a stream (AWS: `CreateStream`).
    pub(crate) fn create_stream(&mut self, new: NewStream, now: Now) -> Result<(), ApiError> {
        self.settle_one(&new.name, now);
        if self.streams.contains_key(&new.name) {
            return Err(ApiError::in_use(format!(
                "Stream {} under account {ACCOUNT_ID} already exists.",
                new.name
            )));
        }
        self.require_room_for(new.shards)?;
        self.last_id += 1;
        let made_secs = self.made.next(now);
        let meta = StreamMeta {
            id: self.last_id,
            created_ms: now.epoch_ms,
            status: StreamStatus::Creating,
            mode: new.mode,
            retention_hours: 24,
            max_record_kib: new.max_record_kib,
            kms_key: None,
            metrics: std::collections::BTreeSet::new(),
            tags: new.tags,
            next_shard: new.shards,
            consumers: Vec::new(),
            last_consumer_secs: 0,
            pending: Some(Pending {
                due_uptime_ms: now
                    .uptime_ms
                    .saturating_add(millis(self.settings.create_stream_time)),
                reshard: None,
            }),
            auto_distribution: new.auto_distribution,
            warm_throughput: new.warm_throughput,
            name: new.name,
        };
        let stream = Stream::create(meta, new.shards, made_secs);
        self.streams.insert(stream.meta.name.clone(), stream);
        Ok(())
    }

    /// Refuses more shards than the account may have.
    pub(crate) fn require_room_for(&self, more: u32) -> Result<(), ApiError> {
        let open: usize = self.streams.values().map(|s| s.open_shards().count()).sum();
        let limit = self.settings.shard_limit;
        if open + more as usize <= limit as usize {
            return Ok(());
        }
        Err(ApiError::limit(format!(
            "This request would exceed the shard limit for the account {ACCOUNT_ID} in {}. Current shard count for the account: \
             {open}. Limit: {limit}. Number of additional shards that would have resulted from this request: {more}.",
            crate::REGION
        )))
    }

    /// Begins to delete a stream (AWS: `DeleteStream`).
    pub(crate) fn delete_stream(
        &mut self,
        which: StreamRef<'_>,
        with_consumers: bool,
        now: Now,
    ) -> Result<(), ApiError> {
        let (stream, settings) = self.stream_and_settings(which, now)?;
        if !with_consumers && !stream.meta.consumers.is_empty() {
            return Err(ApiError::in_use(format!(
                "Stream {} under account {ACCOUNT_ID} has registered consumers: deregister them, or set EnforceConsumerDeletion.",
                stream.meta.name
            )));
        }
        if stream.meta.status != StreamStatus::Deleting {
            stream.meta.status = StreamStatus::Deleting;
            let due_uptime_ms = now.uptime_ms.saturating_add(millis(settings.delete_stream_time));
            stream.meta.pending = Some(Pending {
                due_uptime_ms,
                reshard: None,
            });
            stream.dirty = true;
        }
        Ok(())
    }

    /// Stores records and answers for each of them (AWS: `PutRecords`).
    #[expect(clippy::type_complexity, reason = "one answer for each record, in order")]
    pub(crate) fn put(
        &mut self,
        which: StreamRef<'_>,
        puts: Vec<Put>,
        now: Now,
    ) -> Result<Vec<Result<(u32, Arc<Record>), ApiError>>, ApiError> {
        let limits = self.settings.limits;
        let stream = self.stream(which, now)?;
        stream.require_usable()?;
        let stream_id = stream.meta.id;
        let answers: Vec<_> = puts
            .into_iter()
            .map(|put| stream.put(now, put, &limits))
            .collect();
        if let Some(changes) = &mut self.changes {
            let records = answers
                .iter()
                .flatten()
                .map(|(shard, record)| (*shard, Arc::clone(record)))
                .collect();
            changes.push(Change::Records { stream_id, records });
        }
        Ok(answers)
    }

    /// Gives out an iterator (AWS: `GetShardIterator`).
    pub(crate) fn shard_iterator(
        &mut self,
        which: StreamRef<'_>,
        shard: &str,
        start: &Start,
        now: Now,
    ) -> Result<String, ApiError> {
        let limits = self.settings.limits;
        let stream = self.stream(which, now)?;
        stream.require_usable()?;
        let (stream_id, name) = (stream.meta.id, stream.meta.name.clone());
        let shard = stream.shard_to_read(shard)?;
        if !shard.gate.admit_iterator(now, &limits) {
            return Err(ApiError::throughput(&shard.meta.name(), &name));
        }
        let (index, shard) = (shard.locate(start, &name, now)?, shard.meta.number);
        Ok(self.issue(IteratorToken {
            stream_id,
            stream: name,
            shard,
            index,
            issued_ms: now.epoch_ms,
            issue: 0,
        }))
    }

    /// Makes an iterator's text, with an issue number of its own.
    pub(crate) fn issue(&mut self, mut token: IteratorToken) -> String {
        self.issues += 1;
        token.issue = self.issues;
        token.encode()
    }

    /// The number of the iterator given out last.
    pub(crate) fn last_issue(&self) -> u64 {
        self.issues
    }

    /// A number that no other subscription of this process has.
    pub(crate) fn next_subscription(&mut self) -> SubscriptionId {
        self.issues += 1;
        SubscriptionId(self.issues)
    }

    /// Reads a page (AWS: `GetRecords`). Returns the stream for what else the answer needs of it.
    pub(crate) fn read(
        &mut self,
        token: &IteratorToken,
        limit: usize,
        now: Now,
    ) -> Result<(Page, &Stream), ApiError> {
        let limits = self.settings.limits;
        let lifetime_ms = millis(self.settings.iterator_lifetime);
        let page_bytes = self.settings.page_bytes;
        let own_end_page = self.settings.shard_end_on_own_page;
        let stream = self.stream(StreamRef::by_name(&token.stream), now)?;
        if stream.meta.id != token.stream_id || stream.require_usable().is_err() {
            return Err(ApiError::no_stream(&token.stream));
        }
        let shard_id = super::shard_name(token.shard);
        let expired_through = stream.shards.get(&token.shard).map_or(0, |s| s.expired_through);
        let age_ms = now.epoch_ms.saturating_sub(token.issued_ms);
        if age_ms > lifetime_ms || token.issue <= expired_through {
            return Err(ApiError::new(
                "ExpiredIteratorException",
                format!(
                    "Iterator expired. The iterator was created at time {} while right now it is {} which is further in the future \
                     than the tolerated delay of {lifetime_ms} milliseconds.",
                    token.issued_ms, now.epoch_ms
                ),
            ));
        }
        let shard = stream.shard_to_read(&shard_id)?;
        if !shard.gate.admit_read(now, &limits) {
            return Err(ApiError::throughput(&shard_id, &token.stream));
        }
        let mut page = shard.read(token.index, limit, page_bytes, now);
        shard.gate.note_read(now, page.bytes, &limits);
        page.ended &= !own_end_page || page.records.is_empty();
        Ok((page, stream))
    }

    /// Sets the limits and forgets what was counted under the old ones.
    pub(crate) fn set_limits(&mut self, limits: super::ServiceLimits) {
        self.settings.limits = limits;
        for shard in self.streams.values_mut().flat_map(|s| s.shards.values_mut()) {
            shard.gate.reset();
        }
    }

    /// Stops keeping changes.
    pub(crate) fn keep_no_changes(&mut self) {
        self.changes = None;
    }

    /// What changed since the last call, in an order that can be replayed.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        let Some(changes) = &mut self.changes else {
            return Vec::new();
        };
        let mut records = Vec::new();
        let mut out = Vec::new();
        for change in changes.drain(..) {
            match change {
                Change::Records { .. } => records.push(change),
                other => out.push(other),
            }
        }
        for stream in self.streams.values_mut().filter(|s| s.dirty) {
            stream.dirty = false;
            out.push(Change::Stream(Box::new(stream.snapshot())));
        }
        // Records last: the shard they are in may be new in a snapshot above.
        out.append(&mut records);
        out
    }

    /// Everything there is, as changes that make it again.
    pub(crate) fn everything(&self) -> impl Iterator<Item = Change> {
        self.streams.values().flat_map(|stream| {
            let stream_id = stream.meta.id;
            let batches = stream.shards.iter().flat_map(move |(number, shard)| {
                let records: Vec<_> = shard.records().map(|r| (*number, Arc::clone(r))).collect();
                let batches: Vec<Change> = records
                    .chunks(500)
                    .map(|c| Change::Records {
                        stream_id,
                        records: c.to_vec(),
                    })
                    .collect();
                batches
            });
            std::iter::once(Change::Stream(Box::new(stream.snapshot()))).chain(batches)
        })
    }

    /// Replays a deletion.
    pub(crate) fn restore_deletion(&mut self, stream_id: u64) {
        self.streams.retain(|_, s| s.meta.id != stream_id);
    }

    /// Replays a stream's snapshot.
    pub(crate) fn restore_stream(&mut self, snapshot: StreamSnapshot) {
        let StreamSnapshot { meta, shards } = snapshot;
        self.last_id = self.last_id.max(meta.id);
        let mut old = self
            .streams
            .remove(&meta.name)
            .filter(|s| s.meta.id == meta.id)
            .map(|s| s.shards);
        let mut restored = BTreeMap::new();
        for (shard_meta, next_index) in shards {
            self.made.0 = self.made.0.max(shard_meta.made_secs);
            let number = shard_meta.number;
            let mut shard = match old.as_mut().and_then(|old| old.remove(&number)) {
                Some(mut shard) => {
                    shard.meta = shard_meta;
                    shard
                }
                None => Shard::new(shard_meta),
            };
            shard.skip_indexes(next_index.saturating_sub(shard.next_index()));
            restored.insert(number, shard);
        }
        self.streams
            .insert(meta.name.clone(), Stream::with_shards(meta, restored));
    }

    /// Replays one record. False where its stream or shard is gone.
    pub(crate) fn restore_record(
        &mut self,
        stream_id: u64,
        shard: u32,
        index: u64,
        arrival_ms: u64,
        key: Bytes,
        data: Bytes,
    ) -> bool {
        let stream = self.streams.values_mut().find(|s| s.meta.id == stream_id);
        let Some(shard) = stream.and_then(|s| s.shards.get_mut(&shard)) else {
            return false;
        };
        if shard.newest_index().is_none_or(|newest| newest < index) {
            shard.restore(index, arrival_ms, key, data);
            return true;
        }
        false
    }

    /// Ends a replay: from here on changes are kept, and numbers given out for lost records are not given out again.
    pub(crate) fn finish_restore(&mut self) {
        for stream in self.streams.values_mut() {
            stream.dirty = false;
            for shard in stream.shards.values_mut().filter(|s| s.meta.is_open()) {
                shard.skip_indexes(1 << 16);
            }
        }
        if let Some(changes) = &mut self.changes {
            changes.clear();
        }
    }

    /// The ARN of a stream that exists or not.
    pub(crate) fn arn_of(name: &str) -> String {
        stream_arn(name)
    }
}
