//! The loop that finds and takes leases: it lists shards, creates the leases they lack, takes those that are free, and starts a task for each.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use shardfleet_core::ids::LeaseKey;
use shardfleet_core::lease::{Lease, LeaseClock, LeaseWrite};
use shardfleet_core::position::KinesisPosition;
use shardfleet_core::retry::Backoff;
use shardfleet_core::shard::Shard;
use shardfleet_core::shard_sync::{self, InitialPosition, ShardSyncError, ShardSyncView};
use shardfleet_core::time::{Moment, Timestamp};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::shard_task::{ShardTask, start_of};
use super::{Context, HeldLease, ShardEntry, ShardOutcome, ShardReport, ShardStatus, ShutdownReport, Sink};
use crate::error::{ErrorKind, KinesisError};
use crate::kinesis::{KinesisApiError, KinesisApiErrorKind, ShardFilter};
use crate::store::StoreError;

const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// How many leases are taken at the same time.
const TAKES_AT_ONCE: usize = 16;

type ShardEnd = (LeaseKey, Option<ShardReport>);

/// Runs the loop until the worker stops.
pub(crate) async fn run(
    context: Arc<Context>,
    opened_to: oneshot::Sender<Result<(), KinesisError>>,
    report_to: watch::Sender<Option<ShutdownReport>>,
) {
    let mut sync = SyncLoop::new(Arc::clone(&context));
    let result = tokio::select! {
        biased;
        () = context.stop.cancelled() => Err(KinesisError::Closed),
        result = sync.open() => result,
    };
    let is_open = result.is_ok();
    if is_open {
        if let Sink::Subscription(items) = &context.sink {
            items.open();
        }
        drop(opened_to.send(Ok(())));
        sync.serve().await;
    } else {
        context.stop.cancel();
        let report = sync.stop().await;
        drop(opened_to.send(result));
        report_to.send_replace(Some(report));
        return;
    }
    let report = sync.stop().await;
    report_to.send_replace(Some(report));
    if let Sink::Subscription(items) = &context.sink {
        items.close();
    }
}

struct SyncLoop {
    context: Arc<Context>,
    clock: LeaseClock,
    tasks: JoinSet<ShardEnd>,
    /// Leases whose readers gave up: they are taken again when shards are next listed.
    resting: BTreeSet<LeaseKey>,
    unreadable: BTreeSet<String>,
    next_listing: Moment,
    next_tick: Moment,
    failures: u32,
    is_first_pass: bool,
    /// The wall-clock time at which this worker began to open.
    opened_at: Timestamp,
    opening: Vec<(LeaseKey, oneshot::Receiver<Result<(), KinesisError>>)>,
}

impl SyncLoop {
    fn new(context: Arc<Context>) -> Self {
        Self {
            clock: LeaseClock::default(),
            tasks: JoinSet::new(),
            resting: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            next_listing: Moment::default(),
            next_tick: Moment::default(),
            failures: 0,
            is_first_pass: true,
            opened_at: context.clock.wall(),
            opening: Vec::new(),
            context,
        }
    }

    /// Opens everything that can be opened now. Failures that may pass are retried until the deadline.
    async fn open(&mut self) -> Result<(), KinesisError> {
        let context = Arc::clone(&self.context);
        let deadline = context.clock.now() + context.settings.open_deadline;
        let mut attempt = 0;
        loop {
            let left = deadline.since(context.clock.now());
            let late = |waiting_for| KinesisError::OpenDeadline {
                stream: context.settings.stream.clone(),
                seconds: context.settings.open_deadline.as_secs(),
                waiting_for,
            };
            let error = match crate::clock::within(&*context.clock, left, self.try_open()).await {
                Some(Ok(())) => break,
                Some(Err(error)) => error,
                None => return Err(late("an answer of Kinesis or the lease store".to_owned())),
            };
            if !may_pass(&error, attempt) {
                return Err(error);
            }
            tracing::warn!(stream = %context.settings.stream, error = %error.full_text(), attempt, "opening failed and is tried again");
            let wait = RETRY.delay(attempt, context.clock.chance());
            if context.clock.now() + wait >= deadline {
                return Err(late(error.full_text()));
            }
            crate::clock::sleep(&*context.clock, wait).await;
            attempt += 1;
        }
        self.is_first_pass = false;
        for (lease_key, opened) in std::mem::take(&mut self.opening) {
            let left = deadline.since(context.clock.now());
            match crate::clock::within(&*context.clock, left, opened).await {
                // A reader that ended without a word lost its lease: the shard is another worker's to open.
                Some(Ok(Ok(())) | Err(_)) => {}
                Some(Ok(Err(error))) => return Err(error),
                None => {
                    return Err(KinesisError::OpenDeadline {
                        stream: context.settings.stream.clone(),
                        seconds: context.settings.open_deadline.as_secs(),
                        waiting_for: format!("an iterator of shard {lease_key}"),
                    });
                }
            }
        }
        Ok(())
    }

    async fn try_open(&mut self) -> Result<(), KinesisError> {
        self.context.store.prepare().await.map_err(KinesisError::Store)?;
        self.tick().await
    }

    async fn serve(&mut self) {
        let context = Arc::clone(&self.context);
        loop {
            let due = self.next_tick.min(self.next_listing);
            tokio::select! {
                biased;
                () = context.stop.cancelled() => return,
                Some(end) = self.tasks.join_next() => if self.on_shard_end(end.ok()).await { return },
                () = context.wake.notified() => self.tick_and_report().await,
                () = context.clock.sleep_until(due) => self.tick_and_report().await,
            }
        }
    }

    async fn tick_and_report(&mut self) {
        let stop = self.context.stop.clone();
        let outcome = tokio::select! {
            biased;
            // A store that hangs must not hold up a stop. A lease that was being taken then has to expire.
            () = stop.cancelled() => return,
            outcome = self.tick() => outcome,
        };
        match outcome {
            Ok(()) => self.failures = 0,
            Err(error) => {
                let wait = RETRY.delay(self.failures, self.context.clock.chance());
                self.failures = self.failures.saturating_add(1);
                let again = self.context.clock.now() + wait;
                self.next_tick = again;
                self.next_listing = self.next_listing.max(again);
                let is_fatal = error.is_fatal();
                self.context.report(error).await;
                if is_fatal {
                    self.context.stop.cancel();
                }
            }
        }
    }

    /// One look at shards and leases, always from scratch: whatever was missed before is made good by the next one.
    async fn tick(&mut self) -> Result<(), KinesisError> {
        let context = Arc::clone(&self.context);
        let mut leases = self.scan().await?;
        let mut listed = Ok(());
        if context.clock.now() >= self.next_listing {
            match self.sync_shards(&leases).await {
                Ok(has_created) => {
                    if has_created {
                        leases = self.scan().await?;
                    }
                    self.resting.clear();
                    self.next_listing = context.clock.now() + context.settings.shard_sync_interval;
                }
                Err(error) if error.is_fatal() => return Err(error),
                // Leases that others lost or released can be read on all the same.
                Err(error) => listed = Err(error),
            }
        }
        let now = context.clock.now();
        self.clock.observe(now, leases.values());
        self.clock.retain(|key| leases.contains_key(key));
        self.take_free(&leases).await?;
        self.next_tick = self.next_look(&leases);
        listed
    }

    async fn scan(&mut self) -> Result<BTreeMap<LeaseKey, Lease>, KinesisError> {
        let scan = self.context.store.scan().await.map_err(KinesisError::Store)?;
        for row in scan.unreadable {
            // Told once: the row stays, and so does the fleet.
            if self.unreadable.insert(row.lease_key.clone()) {
                let error = KinesisError::UnreadableLease {
                    lease_key: row.lease_key,
                    reason: row.reason,
                };
                self.context.report(error).await;
            }
        }
        Ok(scan
            .leases
            .into_iter()
            .map(|lease| (lease.lease_key.clone(), lease))
            .collect())
    }

    /// Creates the leases that the shards lack; whether it created any.
    async fn sync_shards(&mut self, leases: &BTreeMap<LeaseKey, Lease>) -> Result<bool, KinesisError> {
        let context = &self.context;
        let stream = &context.settings.stream;
        let summary = context
            .kinesis
            .describe_stream(stream)
            .await
            .map_err(KinesisError::Kinesis)?;
        if summary.status == "CREATING" {
            let reason = "the stream is being created; it can be read once it is ACTIVE";
            let kind = KinesisApiErrorKind::NotReady;
            let error = KinesisApiError::new(kind, "DescribeStreamSummary", stream.as_str(), reason);
            return Err(KinesisError::Kinesis(error));
        }
        *context
            .stream_created_at
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = summary.created_at;
        let start = context.settings.start_at.as_ref();
        let filter = if leases.is_empty() {
            filter_of(start)
        } else {
            ShardFilter::All
        };
        let shards = context
            .kinesis
            .list_shards(stream, filter)
            .await
            .map_err(KinesisError::Kinesis)?;
        if let Some(KinesisPosition::Sequence(named, _)) = start
            && self.is_first_pass
            && !shards.iter().any(|shard| shard.shard_id == *named)
        {
            let reason = "start_at names this shard, and the stream has none of this id (any more)";
            let subject = format!("{stream}/{named}");
            let error = KinesisApiError::new(KinesisApiErrorKind::NotFound, "ListShards", subject, reason);
            return Err(KinesisError::Kinesis(error));
        }
        let leases: Vec<Lease> = leases.values().cloned().collect();
        let view = ShardSyncView {
            shards: &shards,
            leases: &leases,
            initial_position: initial_position(start),
            named_shard: match start {
                Some(KinesisPosition::Sequence(shard_id, _)) => Some(shard_id),
                _ => None,
            },
            stream_created_at: summary.created_at,
        };
        let plan = shard_sync::plan(&view).map_err(|error| match error {
            ShardSyncError::AnotherStream { .. } => KinesisError::AnotherStream {
                stream: stream.clone(),
                reason: error.to_string(),
            },
            error => {
                let kind = KinesisApiErrorKind::NotReady;
                KinesisError::Kinesis(KinesisApiError::new(
                    kind,
                    "ListShards",
                    stream.as_str(),
                    error.to_string(),
                ))
            }
        })?;
        let filled_in = self.fill_in_hash_key_ranges(&leases, &shards).await?;
        for lease in &plan.create {
            let is_new = context.store.create(lease).await.map_err(KinesisError::Store)?;
            tracing::info!(lease_key = %lease.lease_key, checkpoint = %lease.checkpoint, is_new, "lease created");
        }
        Ok(filled_in || !plan.create.is_empty())
    }

    /// Completes rows that old releases wrote without a range, by which user records of stale aggregates are told. Whether there were any.
    async fn fill_in_hash_key_ranges(
        &self,
        leases: &[Lease],
        shards: &[Shard],
    ) -> Result<bool, KinesisError> {
        let mut any = false;
        for lease in leases.iter().filter(|lease| lease.hash_key_range.is_none()) {
            let Some(shard) = shards
                .iter()
                .find(|shard| shard.shard_id.as_str() == lease.lease_key.as_str())
            else {
                continue;
            };
            let write = LeaseWrite::record_hash_key_range(lease, shard.hash_key_range);
            self.context
                .store
                .update(&write)
                .await
                .map_err(KinesisError::Store)?;
            any = true;
        }
        Ok(any)
    }

    async fn take_free(&mut self, leases: &BTreeMap<LeaseKey, Lease>) -> Result<(), KinesisError> {
        let context = Arc::clone(&self.context);
        let now = context.clock.now();
        let free: Vec<&Lease> = leases
            .values()
            .filter(|lease| self.is_free(now, lease, leases))
            .collect();
        let worker_id = &context.settings.worker_id;
        let mut takes = Vec::with_capacity(free.len());
        for lease in free {
            let write =
                LeaseWrite::take(lease, worker_id).with_stream_created_at(context.stream_created_at());
            takes.push(take(Arc::clone(&context), write).boxed());
        }
        // Each is started as it comes: a lease counts from when it was taken, and many may take long.
        let mut taken = futures::stream::iter(takes).buffer_unordered(TAKES_AT_ONCE);
        let mut failed = None;
        while let Some(outcome) = taken.next().await {
            match outcome {
                Ok(Some(lease)) => self.start(lease).await,
                // Another worker was faster.
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), |error| Err(KinesisError::Store(error)))
    }

    fn is_free(&self, now: Moment, lease: &Lease, leases: &BTreeMap<LeaseKey, Lease>) -> bool {
        let key = &lease.lease_key;
        if lease.is_finished() || self.resting.contains(key) || self.context.shards().contains_key(key) {
            return false;
        }
        if shard_sync::blocking_parent(lease, leases).is_some() {
            return false;
        }
        let is_mine = lease.owner.as_ref() == Some(&self.context.settings.worker_id);
        let in_handoff = lease.checkpoint_owner.is_some();
        let is_unheld = lease.actual_owner().is_none() || (is_mine && !in_handoff);
        // A lease under this worker's own id is one that it held before it was started again (`KCL: DynamoDBLeaseRenewer#initialize`).
        is_unheld
            || self
                .clock
                .is_expired(now, lease, self.context.settings.failover_time)
    }

    async fn start(&mut self, lease: HeldLease) {
        let context = Arc::clone(&self.context);
        let key = lease.lease_key().clone();
        let row = lease.lease().await;
        let mut start = start_of(&row, context.settings.start_at.as_ref(), self.is_first_pass);
        if !self.is_first_pass {
            start = start.not_after(self.opened_at);
        }
        let (seek, seeks) = mpsc::channel(1);
        let (status_to, status) = watch::channel(ShardStatus::Opening);
        let (opened_to, opened) = oneshot::channel();
        if self.is_first_pass {
            self.opening.push((key.clone(), opened));
        }
        tracing::info!(lease_key = %key, checkpoint = %row.checkpoint, counter = row.counter, "lease taken");
        context.shards().insert(key.clone(), ShardEntry { seek, status });
        let task = ShardTask::new(context, lease, start, Some(opened_to), status_to).await;
        self.tasks.spawn(async move {
            let report = AssertUnwindSafe(task.run(seeks)).catch_unwind().await;
            if report.is_err() {
                tracing::error!(lease_key = %key, "the task of a shard panicked; this is a bug of shardfleet");
            }
            (key, report.ok())
        });
    }

    /// Puts away a shard whose task ended; whether the whole worker has to end with it.
    async fn on_shard_end(&mut self, end: Option<ShardEnd>) -> bool {
        let Some((key, report)) = end else { return false };
        self.context.shards().remove(&key);
        let now = self.context.clock.now();
        match report.as_ref().map(|report| &report.outcome) {
            Some(ShardOutcome::AnotherStream) => {
                self.context.stop.cancel();
                return true;
            }
            Some(ShardOutcome::ReaderStopped) => {
                self.resting.insert(key);
            }
            Some(ShardOutcome::Ended) => self.tick_and_report().await,
            // Somebody else's now, or released: look again soon, but not at once, so that two workers never spin.
            _ => self.next_tick = self.next_tick.min(now + Duration::from_secs(1)),
        }
        false
    }

    /// When to look at the leases again: at the next listing, unless others hold some of them.
    fn next_look(&self, leases: &BTreeMap<LeaseKey, Lease>) -> Moment {
        let context = &self.context;
        let now = context.clock.now();
        let held = context.shards();
        let failover_time = context.settings.failover_time;
        // The end of a parent wakes this loop if it is read here, and is watched for by the parent's own lease if not; readers that gave up rest until
        // the next listing.
        let others: Vec<&Lease> = leases
            .values()
            .filter(|l| !l.is_finished() && !held.contains_key(&l.lease_key))
            .filter(|l| !self.resting.contains(&l.lease_key))
            .filter(|l| shard_sync::blocking_parent(l, leases).is_none())
            .collect();
        if others.is_empty() {
            return self.next_listing;
        }
        let expiry = others
            .iter()
            .filter_map(|lease| self.clock.expires_at(lease, failover_time))
            .min();
        // A lease may also be released at any time, which only a look can tell.
        let look = now + (failover_time / 10).clamp(Duration::from_millis(100), Duration::from_secs(2));
        expiry
            .map_or(look, |at| (at + Duration::from_millis(1)).min(look))
            .max(now + Duration::from_millis(20))
    }

    /// Waits for every shard's task, each of which knows the deadline.
    async fn stop(&mut self) -> ShutdownReport {
        let context = Arc::clone(&self.context);
        context.stop.cancel();
        let deadline = context.stop_deadline();
        // The last writes of the tasks may go on a little beyond it.
        let patience = deadline.since(context.clock.now()) + context.settings.failover_time;
        let mut shards = Vec::new();
        let all = async {
            while let Some(end) = self.tasks.join_next().await {
                shards.extend(end.ok().and_then(|(_, report)| report));
            }
        };
        let in_time = crate::clock::within(&*context.clock, patience, all)
            .await
            .is_some();
        self.tasks.abort_all();
        context.shards().clear();
        shards.sort_by(|a, b| a.shard_id.cmp(&b.shard_id));
        ShutdownReport { shards, in_time }
    }
}

async fn take(context: Arc<Context>, write: LeaseWrite) -> Result<Option<HeldLease>, StoreError> {
    let settings = &context.settings;
    HeldLease::take(
        &context.store,
        &context.clock,
        &write,
        &settings.worker_id,
        settings.failover_time,
    )
    .await
}

fn initial_position(start_at: Option<&KinesisPosition>) -> InitialPosition {
    match start_at {
        Some(KinesisPosition::Horizon) => InitialPosition::TrimHorizon,
        Some(KinesisPosition::Timestamp(_)) => InitialPosition::AtTimestamp,
        _ => InitialPosition::Latest,
    }
}

/// Which shards an empty table is filled from. From the horizon all are listed, and those without a listed parent are read first: what "open at the trim
/// horizon" means for shards of a moment's life is the service's secret, and a record must not depend on it.
fn filter_of(start_at: Option<&KinesisPosition>) -> ShardFilter {
    match start_at {
        Some(KinesisPosition::Horizon | KinesisPosition::Sequence(..)) => ShardFilter::All,
        Some(KinesisPosition::Timestamp(at)) => ShardFilter::AtTimestamp(*at),
        _ => ShardFilter::AtLatest,
    }
}

/// Whether opening can succeed later without anybody changing anything. Credentials get a second and a third chance, since where they come from may be
/// throttled when a whole fleet starts.
fn may_pass(error: &KinesisError, attempt: u32) -> bool {
    let is_transient = match error {
        KinesisError::Kinesis(error) => error.is_retryable(),
        KinesisError::Store(error) => error.is_retryable(),
        _ => false,
    };
    is_transient || (error.kind() == ErrorKind::Unauthorized && attempt < 2)
}
