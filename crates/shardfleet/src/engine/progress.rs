//! What was handed out of one shard and what of it was settled: the meeting point of its reader, its handlers and its lease.

use std::sync::{Mutex, MutexGuard, PoisonError};

use shardfleet_core::ids::ShardId;
use shardfleet_core::sequence::ExtendedSequenceNumber;
use shardfleet_core::time::Moment;
use shardfleet_core::watermark::{Ticket, Watermark};
use tokio::sync::Notify;

/// Progress on one shard. All methods are short and never wait but the ones that say so.
pub(crate) struct ShardProgress {
    shard_id: ShardId,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    watermark: Watermark,
    epoch: u64,
    /// Records that the application holds: handed over and not settled.
    held: u64,
    closed: bool,
    /// The worker stops: what is buffered is left for the next reader.
    stopping: bool,
    /// Whether checkpoints are the processor's to make; then nothing is committable but what it confirmed.
    manual: bool,
    confirmed: Option<ExtendedSequenceNumber>,
    /// The last record that was handed over.
    delivered: Option<ExtendedSequenceNumber>,
    failure: Option<(ExtendedSequenceNumber, String)>,
    /// Bytes that were handed out since the shard was opened.
    handed_out_bytes: u64,
    /// Grows with everything that is handed out or settled.
    moved: u64,
    /// The handler's call in progress.
    busy_since: Option<Moment>,
    trouble: Option<Trouble>,
}

/// A handler that fails and is called again.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    /// Since when.
    pub(crate) since: Moment,
    /// What it said last.
    pub(crate) reason: String,
    /// Whether it panicked, once at least.
    pub(crate) has_panicked: bool,
}

impl State {
    fn may_hand_over(&self, epoch: u64) -> bool {
        self.epoch == epoch && !self.closed && self.failure.is_none()
    }
}

/// How much of a shard may be unsettled before its reader pauses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnsettledBounds {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
}

impl ShardProgress {
    pub(crate) fn new(shard_id: ShardId) -> Self {
        Self {
            shard_id,
            state: Mutex::default(),
            changed: Notify::new(),
        }
    }

    pub(crate) fn shard_id(&self) -> &ShardId {
        &self.shard_id
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is complete before the lock is released, so a panic elsewhere leaves it sound.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The epoch grows with each seek. Records of an earlier one are not handed over any more.
    pub(crate) fn epoch(&self) -> u64 {
        self.state().epoch
    }

    /// Notes records that are about to be buffered; `None` when a seek came in between, and the records are to be dropped.
    pub(crate) fn hand_out(
        &self,
        epoch: u64,
        records: impl Iterator<Item = (ExtendedSequenceNumber, u64)>,
    ) -> Option<Vec<Ticket>> {
        let mut state = self.state();
        if state.epoch != epoch {
            return None;
        }
        let mut tickets = Vec::new();
        for (at, bytes) in records {
            state.handed_out_bytes = state.handed_out_bytes.saturating_add(bytes);
            tickets.push(state.watermark.hand_out(at, bytes));
        }
        state.moved += tickets.len() as u64;
        Some(tickets)
    }

    /// Whether a record of `epoch` may be handed over to the application now, which is noted if so.
    pub(crate) fn take(&self, epoch: u64) -> bool {
        let mut state = self.state();
        let may = state.may_hand_over(epoch) && !state.stopping;
        state.held += u64::from(may);
        may
    }

    /// Whether records of `epoch` up to `last` may be handed to a processor now, which is noted if so; `new` of them for the first time.
    pub(crate) fn deliver(&self, epoch: u64, last: &ExtendedSequenceNumber, new: u64) -> bool {
        let mut state = self.state();
        let may = state.may_hand_over(epoch);
        if may {
            state.held += new;
            state.delivered = Some(last.clone());
        }
        may
    }

    /// Nothing more is handed over; what was can still be settled.
    pub(crate) fn stop_handing_over(&self) {
        self.state().stopping = true;
    }

    pub(crate) fn settle(&self, ticket: Ticket) {
        let mut state = self.state();
        let before = state.watermark.unsettled();
        state.watermark.settle(ticket);
        let settled = before - state.watermark.unsettled();
        state.moved += settled;
        state.held = state.held.saturating_sub(settled);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Settles every record up to `at`, unless a seek came since `epoch`.
    pub(crate) fn settle_through(&self, epoch: u64, at: &ExtendedSequenceNumber) {
        let mut state = self.state();
        if state.epoch != epoch {
            return;
        }
        let before = state.watermark.unsettled();
        state.watermark.settle_through(at);
        let settled = before - state.watermark.unsettled();
        state.moved += settled;
        state.held = state.held.saturating_sub(settled);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Stops the shard at `at`, unless a seek came since `epoch`; the first failure counts.
    pub(crate) fn fail(&self, epoch: u64, at: &ExtendedSequenceNumber, reason: String) {
        let mut state = self.state();
        if state.epoch == epoch {
            state.failure.get_or_insert_with(|| (at.clone(), reason));
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// As [`fail`](Self::fail), for a record that was handed over with this ticket.
    pub(crate) fn fail_at(&self, ticket: Ticket, at: &ExtendedSequenceNumber, reason: String) {
        let epoch = self.epoch();
        if self.state().watermark.is_current(ticket) {
            self.fail(epoch, at, reason);
        }
    }

    pub(crate) fn failure(&self) -> Option<(ExtendedSequenceNumber, String)> {
        self.state().failure.clone()
    }

    /// Nothing of this shard is handed over or settled any more, as after the lease was lost.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.watermark.restart();
        state.held = 0;
        drop(state);
        self.changed.notify_waiters();
    }

    /// Forgets everything handed out so far, for a seek.
    pub(crate) fn restart(&self) {
        let mut state = self.state();
        state.epoch += 1;
        state.held = 0;
        state.confirmed = None;
        state.delivered = None;
        state.watermark.restart();
        drop(state);
        self.changed.notify_waiters();
    }

    /// Up to where a checkpoint may go.
    pub(crate) fn committable(&self) -> Option<ExtendedSequenceNumber> {
        let state = self.state();
        if state.manual {
            state.confirmed.clone()
        } else {
            state.watermark.committable().cloned()
        }
    }

    /// From now on only [`confirm`](Self::confirm) moves what is committable.
    pub(crate) fn checkpoint_manually(&self) {
        self.state().manual = true;
    }

    /// Whether `at` was handed over; if not, the last record that was.
    pub(crate) fn check_delivered(
        &self,
        at: &ExtendedSequenceNumber,
    ) -> Result<(), Option<ExtendedSequenceNumber>> {
        let state = self.state();
        match &state.delivered {
            Some(delivered) if at <= delivered => Ok(()),
            delivered => Err(delivered.clone()),
        }
    }

    /// The processor says that everything up to `at` is settled. `None` confirms all that was handed over. Returns what is
    /// confirmed then, or the last record that was handed over where `at` lies beyond it.
    pub(crate) fn confirm(
        &self,
        at: Option<&ExtendedSequenceNumber>,
    ) -> Result<Option<ExtendedSequenceNumber>, Option<ExtendedSequenceNumber>> {
        let mut state = self.state();
        let Some(at) = at.cloned().or_else(|| state.delivered.clone()) else {
            return Ok(None);
        };
        if state.delivered.as_ref().is_none_or(|delivered| at > *delivered) {
            return Err(state.delivered.clone());
        }
        if state.confirmed.as_ref().is_none_or(|confirmed| at > *confirmed) {
            state.confirmed = Some(at);
        }
        Ok(state.confirmed.clone())
    }

    /// Bytes that were handed out since the shard was opened.
    pub(crate) fn handed_out_bytes(&self) -> u64 {
        self.state().handed_out_bytes
    }

    /// A number that grows with everything that is handed out or settled.
    pub(crate) fn moved(&self) -> u64 {
        self.state().moved
    }

    /// Since when the handler is in its present call.
    pub(crate) fn busy_since(&self) -> Option<Moment> {
        self.state().busy_since
    }

    /// The handler begins or ends a call.
    pub(crate) fn set_busy(&self, since: Option<Moment>) {
        self.state().busy_since = since;
    }

    /// The handler failed and is called again.
    pub(crate) fn note_trouble(&self, now: Moment, reason: &str, is_panic: bool) {
        let mut state = self.state();
        let before = state.trouble.take();
        state.trouble = Some(Trouble {
            since: before.as_ref().map_or(now, |before| before.since),
            reason: reason.to_owned(),
            has_panicked: is_panic || before.is_some_and(|before| before.has_panicked),
        });
    }

    /// The handler did what it was called for, or what it could not do was set aside.
    pub(crate) fn end_trouble(&self) {
        self.state().trouble = None;
    }

    /// The failures of the handler since it last did what it was called for.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        self.state().trouble.clone()
    }

    /// Unsettled records that the application holds.
    pub(crate) fn held(&self) -> u64 {
        self.state().held
    }

    /// The record that holds the checkpoint.
    pub(crate) fn held_by(&self) -> Option<ExtendedSequenceNumber> {
        self.state().watermark.held_by().cloned()
    }

    /// Waits until there is room below `bounds`.
    pub(crate) async fn room(&self, bounds: UnsettledBounds) {
        self.until(|state| {
            state.watermark.tracked() < bounds.records && state.watermark.tracked_bytes() < bounds.bytes
        })
        .await;
    }

    /// Waits until everything that was handed out is settled.
    pub(crate) async fn drained(&self) {
        self.until(|state| state.watermark.unsettled() == 0).await;
    }

    /// Waits until the application holds no unsettled record.
    pub(crate) async fn released(&self) {
        self.until(|state| state.held == 0).await;
    }

    /// Waits until the shard is stopped by a failure: where, and why.
    pub(crate) async fn failed(&self) -> (ExtendedSequenceNumber, String) {
        loop {
            self.until(|state| state.failure.is_some()).await;
            if let Some(failure) = self.failure() {
                return failure;
            }
        }
    }

    async fn until(&self, done: impl Fn(&State) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the look, so that a change in between is not missed.
            changed.as_mut().enable();
            if done(&self.state()) {
                return;
            }
            changed.await;
        }
    }
}
