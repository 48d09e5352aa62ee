//! The task that reads one shard: it carries out what the core's [`Reader`] decides, hands records out, and brings the shard to its end.

use std::sync::Arc;
use std::time::Duration;

use shardfleet_core::ids::ShardId;
use shardfleet_core::lease::{Control, Lease, TargetState};
use shardfleet_core::position::ShardStart;
use shardfleet_core::reader::{Action, FailureReport, Gap, ReadFailure, Reader};
use shardfleet_core::shard::ChildShard;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::task::AbortOnDropHandle;

use super::budget::PageGuard;
use super::handler::{HandlerHandle, HandlerInput};
use super::pages::Unpacker;
use super::progress::{ShardProgress, UnsettledBounds};
use super::shard_end;
use super::shard_start::{parents_to_wait_for, start_of};
use super::{
    Context, HeldLease, Seek, ShardBatch, ShardOutcome, ShardReport, ShardStatus, Sink, SubscriptionItem,
};
use crate::error::KinesisError;
use crate::kinesis::{KinesisApiError, KinesisApiErrorKind, RecordsPage, ShardFilter};

/// What a page is expected to hold before any was read.
const FIRST_PAGE_BYTES: u64 = 1 << 20;

/// What a page holds that is read although the memory budget is used up.
const SMALL_PAGE_BYTES: u64 = 64 << 10;

/// How long a shard waits for memory before it reads a small page without.
const MEMORY_PATIENCE: Duration = Duration::from_secs(1);

/// One shard being read.
pub(crate) struct ShardTask {
    pub(super) context: Arc<Context>,
    pub(super) shard_id: ShardId,
    pub(super) lease: Arc<HeldLease>,
    pub(super) progress: Arc<ShardProgress>,
    pub(super) reader: Reader,
    pub(super) start: ShardStart,
    /// The row must remember the start before the shard counts as open.
    pub(super) remembered: bool,
    pub(super) opened: Option<oneshot::Sender<Result<(), KinesisError>>>,
    /// Parents that must be read to their end first.
    pub(super) parents: Vec<ShardId>,
    pub(super) handler: Option<HandlerHandle>,
    pub(super) hash_key_range: Option<shardfleet_core::hash_range::HashKeyRange>,
    pub(super) page_bytes: u64,
    pub(super) record_bytes: u64,
    pub(super) status: watch::Sender<ShardStatus>,
    /// Whether the lease says all that was settled here.
    pub(super) checkpoint_is_current: bool,
    /// The last failed read, in words.
    pub(super) last_failure: Option<String>,
    /// What was asked of the shard when this life began.
    pub(super) began_as: Control,
    /// What made the reader look whether the shard has ended.
    pub(super) unconfirmed: Option<KinesisApiError>,
}

/// How one life of a shard's task came out.
pub(crate) enum LifeEnd {
    /// The lease is not this worker's any more.
    Over(ShardReport),
    /// An operator wants another life, which is to start here.
    Restarts(ShardStart),
}

/// Why reading broke off before the end of the shard.
pub(super) enum Break {
    Ended,
    GaveUp,
    AnotherStream(String),
    Lost,
}

impl ShardTask {
    /// A task for a lease that is held. `opened` is told once the first iterator is there.
    pub(crate) fn new(
        context: Arc<Context>,
        (lease, row): (Arc<HeldLease>, &Lease),
        progress: Arc<ShardProgress>,
        start: ShardStart,
        opened: Option<oneshot::Sender<Result<(), KinesisError>>>,
        status: watch::Sender<ShardStatus>,
    ) -> Self {
        let shard_id = row.lease_key.shard_id();
        let reader = Reader::new(context.settings.reader_policy(), start.iterator.clone());
        let handler = match &context.sink {
            Sink::Processors(_) if row.control().target != TargetState::Stopped => {
                Some(HandlerHandle::start(
                    Arc::clone(&context),
                    row,
                    Arc::clone(&lease),
                    Arc::clone(&progress),
                ))
            }
            Sink::Processors(_) | Sink::Subscription(_) => None,
        };
        Self {
            reader,
            start,
            remembered: false,
            opened,
            began_as: row.control(),
            parents: parents_to_wait_for(row),
            handler,
            hash_key_range: row.hash_key_range,
            page_bytes: FIRST_PAGE_BYTES,
            record_bytes: FIRST_PAGE_BYTES / 1000,
            status,
            checkpoint_is_current: true,
            unconfirmed: None,
            last_failure: None,
            context,
            shard_id,
            lease,
            progress,
        }
    }

    /// Reads until the shard ends, the lease is lost, the reader gives up, the worker stops, or an operator wants a new beginning.
    pub(crate) async fn run(mut self, seeks: &mut mpsc::Receiver<Seek>) -> LifeEnd {
        let keeper = {
            let (lease, progress) = (Arc::clone(&self.lease), Arc::clone(&self.progress));
            // A task that ends in whatever way must not leave its lease renewed for ever.
            AbortOnDropHandle::new(tokio::spawn(async move { lease.keep(&progress).await }))
        };
        let outcome = self.run_until_over(seeks).await;
        let unsettled = self.progress.held();
        let Some(outcome) = outcome else {
            self.progress.close();
            // What this life did not get to note on the row the next has to know.
            let start = if self.remembered {
                start_of(&self.lease.lease().await, &self.context.settings, false)
            } else {
                self.start
            };
            return LifeEnd::Restarts(start);
        };
        if outcome == ShardOutcome::LeaseLost {
            self.progress.close();
            self.tell_lease_lost().await;
        }
        self.progress.close();
        drop(keeper);
        LifeEnd::Over(ShardReport {
            shard_id: self.shard_id.clone(),
            outcome,
            checkpoint: self.lease.lease().await.checkpoint,
            unsettled,
            checkpoint_is_current: self.checkpoint_is_current,
            failure: self.progress.failure().map(|(_, reason)| reason),
        })
    }

    /// How the shard's task ended; `None` for one that an operator wants anew.
    async fn run_until_over(&mut self, seeks: &mut mpsc::Receiver<Seek>) -> Option<ShardOutcome> {
        let context = Arc::clone(&self.context);
        let (lease, progress) = (Arc::clone(&self.lease), Arc::clone(&self.progress));
        let began_as = self.began_as;
        loop {
            // Nothing is left to do anew of a shard whose handler has said goodbye to it.
            let may_restart = !self.handler.as_ref().is_some_and(HandlerHandle::has_ended);
            let outcome = tokio::select! {
                biased;
                () = lease.lost() => ShardOutcome::LeaseLost,
                () = context.stop.cancelled() => self.stop().await,
                to = context.handoff_of(&lease) => self.hand_over(to).await,
                (at, reason) = progress.failed() => return self.stand_still(seeks, at, reason).await,
                target = lease.new_life_wanted(began_as), if may_restart => {
                    // It may have said so since this wait began.
                    if self.handler.as_ref().is_some_and(HandlerHandle::has_ended) {
                        continue;
                    }
                    return self.restart(target).await;
                }
                Some(seek) = seeks.recv() => {
                    self.seek(seek).await;
                    continue;
                }
                broke = self.read() => match broke {
                    Break::Ended => ShardOutcome::Ended,
                    Break::Lost => ShardOutcome::LeaseLost,
                    Break::GaveUp => self.give_up().await,
                    Break::AnotherStream(reason) => {
                        let stream = self.context.settings.stream.clone();
                        let error = KinesisError::AnotherStream { stream, reason };
                        self.answer_opener(Err(error.clone()));
                        self.context.report(error).await;
                        self.lease.release(self.patience()).await;
                        ShardOutcome::AnotherStream
                    }
                },
            };
            return Some(outcome);
        }
    }

    /// Reads to the end of the shard. It is dropped only where this life of the shard ends, or a seek discards what was read: a page that is on its way to the handler
    /// would be missing else. A pause therefore comes about in here, between two calls.
    async fn read(&mut self) -> Break {
        let clock = Arc::clone(&self.context.clock);
        if let Err(broke) = self.stand_by().await {
            return broke;
        }
        self.wait_for_parents().await;
        loop {
            if let Err(broke) = self.stand_by().await {
                return broke;
            }
            let broke = match self.reader.next_action(clock.now()) {
                Action::WaitUntil(moment) => {
                    clock.sleep_until(moment).await;
                    Ok(())
                }
                Action::GetIterator(_) => self.get_iterator().await,
                Action::GetRecords(iterator) => self.get_records(&iterator).await,
                Action::ListShards => self.confirm_end().await,
                Action::End(children) => self.finish(children).await.and(Err(Break::Ended)),
                Action::GiveUp => Err(Break::GaveUp),
            };
            if let Err(broke) = broke {
                return broke;
            }
        }
    }

    async fn get_iterator(&mut self) -> Result<(), Break> {
        let position = self.reader.resume_position().clone();
        let asked_at = self.context.clock.wall();
        let stream = &self.context.settings.stream;
        match self
            .context
            .kinesis
            .get_shard_iterator(stream, &self.shard_id, &position)
            .await
        {
            Ok(iterator) => {
                self.remember_start(asked_at).await?;
                self.reader.on_iterator(iterator, asked_at);
                self.status.send_replace(ShardStatus::Reading {
                    millis_behind_latest: None,
                });
                self.answer_opener(Ok(()));
                Ok(())
            }
            Err(error) => self.on_failure(error).await,
        }
    }

    async fn get_records(&mut self, iterator: &str) -> Result<(), Break> {
        let (page_guard, limit) = self.wait_for_room().await;
        if !self.lease.is_valid() {
            return Err(Break::Lost);
        }
        let clock = Arc::clone(&self.context.clock);
        let settings = &self.context.settings;
        self.reader.on_call(clock.now());
        match self
            .context
            .kinesis
            .get_records(&settings.stream, iterator, limit)
            .await
        {
            Ok(page) => self.on_page(page, page_guard).await,
            Err(error) => {
                drop(page_guard);
                self.on_failure(error).await
            }
        }
    }

    /// Waits until another page may be read, and says how many records it may hold.
    async fn wait_for_room(&mut self) -> (PageGuard, u32) {
        let context = Arc::clone(&self.context);
        let settings = &context.settings;
        let bounds = UnsettledBounds {
            records: settings.unsettled_records_max,
            bytes: settings.unsettled_bytes_max,
        };
        let reading = self.status.borrow().clone();
        tokio::select! {
            biased;
            () = self.progress.room(bounds) => {}
            () = std::future::ready(()) => {
                let held_by = self.progress.held_by();
                self.status.send_replace(ShardStatus::WaitingForAcks { held_by });
                self.progress.room(bounds).await;
            }
        }
        let page = tokio::select! {
            biased;
            page = context.budget.reserve(self.page_bytes) => (page, settings.batch_size),
            () = crate::clock::sleep(&*context.clock, MEMORY_PATIENCE) => {
                self.status.send_replace(ShardStatus::WaitingForMemory);
                tokio::select! {
                    biased;
                    page = context.budget.reserve(self.page_bytes) => (page, settings.batch_size),
                    // Shards whose handlers hang may hold all the memory there is, and must not stop the others: a shard that holds nothing reads on in small pages.
                    () = self.progress.drained() => (PageGuard::outside(), self.small_page()),
                }
            }
        };
        self.status.send_replace(reading);
        page
    }

    /// How many records a page of a few kilobytes holds.
    fn small_page(&self) -> u32 {
        let records = SMALL_PAGE_BYTES / self.record_bytes.max(1);
        u32::try_from(records)
            .unwrap_or(u32::MAX)
            .clamp(1, self.context.settings.batch_size)
    }

    async fn on_page(&mut self, page: RecordsPage, mut page_guard: PageGuard) -> Result<(), Break> {
        let millis_behind_latest = page.millis_behind_latest;
        let epoch = self.progress.epoch();
        let unpacked = Unpacker {
            settings: &self.context.settings,
            shard_id: &self.shard_id,
            hash_key_range: self.hash_key_range,
            settled_through: self.start.settled_through.as_ref(),
            taken: self.reader.taken(),
        }
        .unpack(page);
        page_guard.resize(unpacked.bytes, &self.context.budget);
        if unpacked.bytes > 0 {
            // The largest page lately, forgetting slowly.
            self.page_bytes = unpacked.bytes.max(self.page_bytes / 8 * 7);
            self.record_bytes = unpacked.bytes / (unpacked.records.len() as u64).max(1);
        }
        self.status
            .send_replace(ShardStatus::Reading { millis_behind_latest });
        let gap = self.reader.on_page(self.context.clock.now(), unpacked.facts);
        self.report_gap(gap).await;
        for error in unpacked.errors {
            self.context.report(error).await;
        }
        if unpacked.records.is_empty() {
            return Ok(());
        }
        let places = unpacked
            .records
            .iter()
            .map(|r| (r.position.clone(), r.data.len() as u64));
        let Some(tickets) = self.progress.hand_out(epoch, places) else {
            return Ok(());
        };
        let batch = ShardBatch {
            records: unpacked.records.into_iter().zip(tickets).collect(),
            epoch,
            progress: Arc::clone(&self.progress),
            lease: Arc::clone(&self.lease),
            page: Arc::new(page_guard),
            millis_behind_latest,
        };
        match (&self.context.sink, &self.handler) {
            (Sink::Subscription(items), _) => {
                // A closed channel means that the subscription was dropped, which stops this task as well.
                items.send(SubscriptionItem::Batch(batch)).await;
            }
            (Sink::Processors(_), Some(handler)) => handler.send(HandlerInput::Batch(batch)).await,
            (Sink::Processors(_), None) => {}
        }
        Ok(())
    }

    async fn report_gap(&self, gap: Option<Gap>) {
        if let Some(Gap { after, before }) = gap {
            let (stream, shard_id) = (self.context.settings.stream.clone(), self.shard_id.clone());
            self.context
                .report(KinesisError::DataLoss {
                    stream,
                    shard_id,
                    after,
                    before,
                })
                .await;
        }
    }

    async fn on_failure(&mut self, error: KinesisApiError) -> Result<(), Break> {
        use KinesisApiErrorKind as Kind;
        let failure = match error.kind {
            Kind::IteratorExpired => ReadFailure::IteratorExpired,
            Kind::Throttled => ReadFailure::Throttled,
            Kind::NotFound => ReadFailure::NotFound,
            Kind::ForeignSequenceNumber => return Err(Break::AnotherStream(foreign(&self.shard_id, &error))),
            _ => ReadFailure::Other,
        };
        let report = self.reader.on_failure(self.context.clock.now(), failure);
        let is_open = self.opened.is_none();
        match (failure, self.reader.failures()) {
            (ReadFailure::Throttled, _) if is_open => drop(self.status.send_replace(ShardStatus::Throttled)),
            (_, failures @ 1..) => drop(self.status.send_replace(ShardStatus::ReadsFail { failures })),
            _ => {}
        }
        if report == FailureReport::Report {
            self.report_read(error).await;
        } else {
            tracing::debug!(shard_id = %self.shard_id, error = %error, "reading goes on");
            self.unconfirmed = (failure == ReadFailure::NotFound).then_some(error);
        }
        Ok(())
    }

    async fn report_read(&mut self, source: KinesisApiError) {
        self.last_failure = Some(source.to_string());
        let stream = self.context.settings.stream.clone();
        let (shard_id, attempt) = (self.shard_id.clone(), self.reader.failures());
        self.context
            .report(KinesisError::Read {
                stream,
                shard_id,
                attempt,
                source,
            })
            .await;
    }

    async fn confirm_end(&mut self) -> Result<(), Break> {
        let stream = self.context.settings.stream.clone();
        match self.context.kinesis.list_shards(&stream, ShardFilter::All).await {
            Ok(shards) => {
                let listed = shards.iter().find(|shard| shard.shard_id == self.shard_id);
                let closed = listed.is_some_and(|shard| !shard.is_open());
                let children = ChildShard::of_parent(&self.shard_id, &shards);
                let now = self.context.clock.now();
                let (report, gap) = self.reader.on_listing(now, listed.is_some(), closed, children);
                self.report_gap(gap).await;
                if report == FailureReport::Report {
                    let error = self.unconfirmed.take().unwrap_or_else(|| {
                        let reason = "the answer had no next iterator, but nothing shows that the shard has ended; reading goes on";
                        let subject = format!("{stream}/{}", self.shard_id);
                        KinesisApiError::new(KinesisApiErrorKind::Data, "GetRecords", subject, reason)
                    });
                    self.report_read(error).await;
                }
                Ok(())
            }
            // The stream itself may be gone: that counts as a failure, and the reader gives up in the end.
            Err(error) => {
                let failure = match error.kind {
                    KinesisApiErrorKind::Throttled => ReadFailure::Throttled,
                    _ => ReadFailure::Other,
                };
                if self.reader.on_failure(self.context.clock.now(), failure) == FailureReport::Report {
                    self.report_read(error).await;
                }
                Ok(())
            }
        }
    }

    /// Brings a closed shard to its end, once everything of it is settled: children get their leases first, then the end is written, so that a
    /// crash in between leaves something to go on from (`KCL: ShutdownTask`).
    async fn finish(&mut self, children: Vec<ChildShard>) -> Result<(), Break> {
        self.status.send_replace(ShardStatus::Draining);
        match &mut self.handler {
            Some(handler) => handler.end().await,
            None => self.progress.drained().await,
        }
        match shard_end::write(&self.context, &self.lease, &self.shard_id, children).await {
            Ok(()) => Ok(()),
            Err(_) => Err(Break::Lost),
        }
    }

    async fn seek(&mut self, seek: Seek) {
        if self.handler.as_ref().is_some_and(HandlerHandle::is_ending) {
            // Its processor has said goodbye: the shard is as good as ended, and has nothing to reposition.
            return;
        }
        let start = ShardStart::at(&seek.position);
        let asked_at = self.context.clock.wall();
        // Asked for before anything is given up: a position that the service does not accept changes nothing.
        let context = Arc::clone(&self.context);
        let stream = &context.settings.stream;
        let iterator = tokio::select! {
            biased;
            () = context.stop.cancelled() => return,
            () = self.lease.lost() => return,
            iterator = context.kinesis.get_shard_iterator(stream, &self.shard_id, &start.iterator) => iterator,
        };
        let iterator = match iterator {
            Ok(iterator) => iterator,
            Err(error) => return drop(seek.done.send(Err(KinesisError::Kinesis(error)))),
        };
        self.progress.restart();
        self.reader.seek(start.iterator.clone());
        self.start = start;
        self.remembered = false;
        // The row is repositioned before the caller is told, so that a crash right after goes on from the new place.
        match self.remember_start(asked_at).await {
            Ok(()) => {
                self.reader.on_iterator(iterator, asked_at);
                drop(seek.done.send(Ok(())));
            }
            Err(_) => drop(seek.done.send(Err(self.lease_lost_error()))),
        }
    }
}

fn foreign(shard_id: &ShardId, error: &KinesisApiError) -> String {
    format!(
        "the checkpoint of {shard_id} is of an earlier stream of this name ({}); use another application name, or delete the lease table, to read the new stream from its start",
        error.reason
    )
}
