//! How the reading of a shard begins: once it is to be read, its parents have ended, and its row says where it starts.

use std::sync::Arc;

use shardfleet_core::ids::{LeaseKey, ShardId};
use shardfleet_core::lease::{Lease, LeaseWrite, OpenedAt, TargetState};
use shardfleet_core::position::{KinesisPosition, Remember, ShardStart};
use shardfleet_core::sequence::ExtendedSequenceNumber;
use shardfleet_core::time::Timestamp;

use super::ShardStatus;
use super::shard_task::{Break, ShardTask};
use crate::error::KinesisError;
use crate::settings::Settings;

impl ShardTask {
    /// Waits while the shard is paused, and for good while it is stopped: a resume of that is a new life.
    pub(super) async fn stand_by(&mut self) -> Result<(), Break> {
        let is_stopped = self.began_as.target == TargetState::Stopped;
        if is_stopped {
            self.status.send_replace(ShardStatus::Stopped);
            self.context.publishing.nudge();
        }
        if !is_stopped && self.lease.control().target != TargetState::Paused {
            return Ok(());
        }
        self.hold_start().await?;
        // The worker is open without this shard, which begins when it is resumed.
        self.answer_opener(Ok(()));
        if is_stopped {
            std::future::pending::<()>().await;
        }
        self.lease.not_paused().await;
        Ok(())
    }

    /// Notes where a shard is to start that does not start yet: LATEST means now, and not the time of its resume.
    pub(super) async fn hold_start(&mut self) -> Result<(), Break> {
        if self.remembered {
            return Ok(());
        }
        self.remember_start(self.context.clock.wall()).await?;
        if self.start.remember != Remember::Nothing {
            self.start = start_of(&self.lease.lease().await, &self.context.settings, false);
            self.reader.seek(self.start.iterator.clone());
        }
        Ok(())
    }

    /// A child is not read before its parents' end, whoever gave out its lease (`KCL: BlockOnParentShardTask`).
    pub(super) async fn wait_for_parents(&mut self) {
        let context = Arc::clone(&self.context);
        let pace = context.settings.fleet.pace(context.settings.failover_time);
        while let Some(parent) = self.parents.last().cloned() {
            match context.store.get(&LeaseKey::from(&parent)).await {
                Ok(lease) if lease.as_ref().is_none_or(Lease::is_finished) => {
                    self.parents.pop();
                    continue;
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(shard_id = %self.shard_id, %parent, error = %error, "looking up a parent failed");
                }
            }
            self.status.send_replace(ShardStatus::WaitingForParent { parent });
            // The worker is open without this shard, which begins when its turn comes.
            self.answer_opener(Ok(()));
            crate::clock::sleep(&*context.clock, pace.discovery).await;
        }
    }

    /// Tells whoever opened the shard how that came out. They may have given up waiting.
    pub(super) fn answer_opener(&mut self, outcome: Result<(), KinesisError>) {
        if let Some(opened) = self.opened.take() {
            opened.send(outcome).ok();
        }
    }

    /// Puts onto the lease row what a crash before the first checkpoint would otherwise lose.
    pub(super) async fn remember_start(&mut self, asked_at: Timestamp) -> Result<(), Break> {
        if self.remembered {
            return Ok(());
        }
        let (checkpoint, opened_at) = match &self.start.remember {
            Remember::Nothing => {
                self.remembered = true;
                return Ok(());
            }
            Remember::LatestOpenedNow => (None, Some(OpenedAt::Latest(asked_at))),
            Remember::Position {
                checkpoint,
                opened_at,
                latest_now,
            } => {
                let latest = latest_now.then_some(OpenedAt::Latest(asked_at));
                (checkpoint.clone(), latest.or_else(|| opened_at.clone()))
            }
        };
        let write = |lease: &_| LeaseWrite::reposition(lease, checkpoint.clone(), opened_at.clone());
        match self.lease.persist(write).await {
            Ok(()) => {
                self.remembered = true;
                Ok(())
            }
            Err(_) => Err(Break::Lost),
        }
    }
}

/// The parents of a shard that was not begun yet.
pub(super) fn parents_to_wait_for(lease: &Lease) -> Vec<ShardId> {
    if matches!(lease.checkpoint, ExtendedSequenceNumber::At(..)) {
        return Vec::new();
    }
    lease.parent_shard_ids.clone()
}

/// The start of a shard: from its lease, or from where the subscription was told to start.
pub(crate) fn start_of(lease: &Lease, settings: &Settings, is_first_pass: bool) -> ShardStart {
    match &settings.start_at {
        Some(position) if is_first_pass && position.concerns(&lease.lease_key.shard_id()) => {
            ShardStart::at(position)
        }
        _ => ShardStart::resume(lease, settings.start().and_then(KinesisPosition::as_timestamp)),
    }
}
