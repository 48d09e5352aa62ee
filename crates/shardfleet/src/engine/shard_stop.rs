//! How the reading of a shard ends before the shard does: the worker stops, the reader gives up, a handler fails for good, or the lease is lost.

use std::sync::Arc;
use std::time::Duration;

use shardfleet_core::ids::WorkerId;
use shardfleet_core::lease::TargetState;
use shardfleet_core::sequence::ExtendedSequenceNumber;
use tokio::sync::mpsc;

use super::shard_task::ShardTask;
use super::{Seek, ShardOutcome, ShardStatus};
use crate::error::KinesisError;

impl ShardTask {
    pub(super) async fn give_up(&mut self) -> ShardOutcome {
        let (stream, shard_id) = (self.context.settings.stream.clone(), self.shard_id.clone());
        let failures = self.reader.failures();
        let error = KinesisError::ReaderStopped {
            stream,
            shard_id,
            failures,
            cause: self.last_failure.take().unwrap_or_default(),
        };
        self.answer_opener(Err(error.clone()));
        self.context.report(error).await;
        // What the application holds is worth waiting for a little: what is settled now does not come again.
        let context = Arc::clone(&self.context);
        tokio::select! {
            biased;
            () = self.progress.drained() => {}
            () = context.stop.cancelled() => return self.stop().await,
            () = crate::clock::sleep(&*context.clock, context.settings.failover_time) => {}
        }
        self.stop_handler().await;
        match self.flush_and_release().await {
            ShardOutcome::LeaseLost => ShardOutcome::LeaseLost,
            _ => ShardOutcome::ReaderStopped,
        }
    }

    /// Brings this life of the shard to its end, with the lease in hand: nothing more is read, what the application holds may still be settled, and is checkpointed.
    /// What is not settled within the handoff timeout comes again. `None` once all is ready for the next life.
    pub(super) async fn restart(&mut self, target: TargetState) -> Option<ShardOutcome> {
        let context = Arc::clone(&self.context);
        tracing::info!(shard_id = %self.shard_id, target = target.name(), "the shard begins anew, as an operator asked");
        if target != TargetState::Stopped && self.began_as.target != TargetState::Stopped {
            self.status.send_replace(ShardStatus::Restarting);
        }
        self.answer_opener(Ok(()));
        self.progress.stop_handing_over();
        let timeout = context.settings.fleet.handoff_timeout;
        if !self.drain(timeout).await {
            return Some(self.stop().await);
        }
        let patience = self.patience();
        // One that had not begun begins where it would have, and not at a later LATEST.
        let held = crate::clock::within(&*context.clock, patience, self.hold_start()).await;
        if !matches!(held, Some(Ok(()))) {
            return Some(self.flush_and_release().await);
        }
        let flush = self.lease.flush_persistently(&self.progress);
        let flushed = crate::clock::within(&*context.clock, patience, flush).await;
        self.checkpoint_is_current = matches!(flushed, Some(Ok(())));
        self.lease.is_lost().then_some(ShardOutcome::LeaseLost)
    }

    /// Lets what was handed out be settled, and ends the handler; whether no stop of the worker came in between.
    async fn drain(&mut self, timeout: Duration) -> bool {
        let context = Arc::clone(&self.context);
        let drained = async {
            if self.handler.is_some() {
                self.stop_handler_within(timeout).await;
            } else {
                crate::clock::within(&*context.clock, timeout, self.progress.released()).await;
            }
        };
        tokio::select! {
            biased;
            () = context.stop.cancelled() => false,
            () = drained => true,
        }
    }

    /// A handler failed for good: the shard keeps its lease and says why, until the worker's end, or until an operator restarts it.
    pub(super) async fn stand_still(
        &mut self,
        seeks: &mut mpsc::Receiver<Seek>,
        at: ExtendedSequenceNumber,
        reason: String,
    ) -> Option<ShardOutcome> {
        self.status.send_replace(ShardStatus::Failed {
            reason: reason.clone(),
        });
        let (stream, shard_id) = (self.context.settings.stream.clone(), self.shard_id.clone());
        let failed = KinesisError::ShardFailed {
            stream,
            shard_id,
            at,
            reason,
        };
        // The worker opens without this shard, which says by itself what is wrong with it.
        self.answer_opener(Ok(()));
        self.context.report(failed.clone()).await;
        loop {
            tokio::select! {
                biased;
                () = self.lease.lost() => return Some(ShardOutcome::LeaseLost),
                () = self.context.stop.cancelled() => {
                    self.stop_handler().await;
                    return Some(self.flush_and_release().await);
                }
                // Another worker may have more luck with the record.
                to = self.context.handoff_of(&self.lease) => return Some(self.hand_over(to).await),
                target = self.lease.new_life_wanted(self.began_as) => return self.restart(target).await,
                Some(seek) = seeks.recv() => drop(seek.done.send(Err(failed.clone()))),
            }
        }
    }

    /// Stops in order: nothing more is read, what the application holds may still be settled, then the lease is released.
    pub(super) async fn stop(&mut self) -> ShardOutcome {
        self.progress.stop_handing_over();
        if self.handler.is_some() {
            // What a processor did not settle by now it never will.
            self.stop_handler().await;
            return self.flush_and_release().await;
        }
        let clock = Arc::clone(&self.context.clock);
        let patience = self.context.stop_deadline().since(clock.now());
        crate::clock::within(&*clock, patience, self.progress.released()).await;
        self.flush_and_release().await
    }

    async fn stop_handler(&mut self) {
        self.stop_handler_within(self.context.settings.failover_time)
            .await;
    }

    async fn stop_handler_within(&mut self, patience: Duration) {
        // It stays in its place until it has ended: whoever drops this stops it again.
        if let Some(handler) = &mut self.handler {
            handler.stop(&self.context, patience).await;
        }
        self.handler = None;
    }

    /// Another worker is to read on: nothing more is read, what the application holds may still be settled, then the lease is handed over (`KCL:
    /// LeaseGracefulShutdownHandler`). What is not settled within the handoff timeout comes again there.
    pub(super) async fn hand_over(&mut self, to: WorkerId) -> ShardOutcome {
        let context = Arc::clone(&self.context);
        tracing::info!(shard_id = %self.shard_id, %to, "handing the shard over");
        self.status
            .send_replace(ShardStatus::HandingOver { to: to.clone() });
        // Nothing keeps its opener waiting: the shard is another worker's to open.
        self.answer_opener(Ok(()));
        self.progress.stop_handing_over();
        let timeout = context.settings.fleet.handoff_timeout;
        if !self.drain(timeout).await {
            // Whatever stops the worker meanwhile gives the lease to its next owner as well.
            return self.stop().await;
        }
        let outcome = self.flush_and_release().await;
        let unsettled = self.progress.held();
        if outcome != ShardOutcome::LeaseLost && unsettled > 0 {
            let reason = format!(
                "the shard goes to {to}, and {unsettled} of its records were not settled within {} s (handoff_timeout); they come again there",
                timeout.as_secs_f64()
            );
            context
                .report(KinesisError::LeaseLost {
                    stream: context.settings.stream.clone(),
                    shard_id: self.shard_id.clone(),
                    reason,
                })
                .await;
        }
        outcome
    }

    /// The last checkpoint, then the release, each tried as long as there is time.
    async fn flush_and_release(&mut self) -> ShardOutcome {
        let clock = Arc::clone(&self.context.clock);
        let flush = self.lease.flush_persistently(&self.progress);
        let flushed = crate::clock::within(&*clock, self.patience(), flush).await;
        self.checkpoint_is_current = matches!(flushed, Some(Ok(())));
        if self.lease.is_lost() {
            return ShardOutcome::LeaseLost;
        }
        let next_owner = self.lease.next_owner();
        if self.lease.release(self.patience()).await {
            match next_owner {
                Some(to) => ShardOutcome::HandedOver { to },
                None => ShardOutcome::Released,
            }
        } else {
            ShardOutcome::NotReleased
        }
    }

    /// How long the last writes may take: what is left of a stop's time, and in any case long enough for one.
    pub(super) fn patience(&self) -> Duration {
        let one_write = self.context.settings.failover_time / 3;
        if !self.context.stop.is_cancelled() {
            return self.context.settings.failover_time;
        }
        self.context
            .stop_deadline()
            .since(self.context.clock.now())
            .max(one_write)
    }

    pub(super) async fn tell_lease_lost(&mut self) {
        self.stop_handler().await;
        if !self.context.stop.is_cancelled() {
            self.context.report(self.lease_lost_error()).await;
        }
    }

    pub(super) fn lease_lost_error(&self) -> KinesisError {
        KinesisError::LeaseLost {
            stream: self.context.settings.stream.clone(),
            shard_id: self.shard_id.clone(),
            reason: self.lease.lost_reason(),
        }
    }
}
