//! The drivers below a subscription or a worker: one loop that finds and takes leases and leads the fleet where it is to, and for each lease held one task
//! that keeps it and one that reads. Decisions are the core's; here is where they are carried out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use shardfleet_core::ids::{LeaseKey, ShardId, WorkerId};
use shardfleet_core::lease::{ControlRequest, TargetState};
use shardfleet_core::position::KinesisPosition;
use shardfleet_core::sequence::ExtendedSequenceNumber;
use shardfleet_core::time::{Moment, Timestamp};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::error::KinesisError;
use crate::kinesis::KinesisApi;
use crate::settings::Settings;
use crate::store::LeaseStore;
use crate::worker_metrics::WorkerMetricsHandle;
pub(crate) use watchdog::FleetBoard;
pub use watchdog::{FleetShard, FleetStatus, WorkerStatus};

pub(crate) mod budget;
mod control;
mod coordinator;
mod departure;
mod election;
mod handler;
mod held_lease;
mod intake;
mod leading;
mod listing;
mod pages;
pub(crate) mod progress;
mod publishing;
mod reporting;
mod shard_end;
mod shard_start;
mod shard_stop;
mod shard_task;
pub(crate) mod sink;
mod watchdog;

pub(crate) use election::Leadership;
pub(crate) use held_lease::{HeldLease, HoldError, LeaseTerms};
pub(crate) use publishing::Publishing;
pub(crate) use sink::{ProcessorSetup, ShardBatch, Sink, SubscriptionItem, SubscriptionSink};

/// How long a subscription that was dropped without a shutdown takes to release its leases.
const DROPPED_DEADLINE: Duration = Duration::from_secs(5);

/// What all tasks of one subscription or worker share.
pub(crate) struct Context {
    pub(crate) settings: Settings,
    pub(crate) kinesis: Arc<dyn KinesisApi>,
    pub(crate) store: Arc<dyn LeaseStore>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) budget: budget::MemoryBudget,
    pub(crate) sink: Sink,
    /// Somebody asked for a stop: the worker leaves its fleet, and then stops reading.
    pub(crate) departing: CancellationToken,
    /// Reading is to stop; leases are released once what was handed out is settled, or at the deadline.
    pub(crate) stop: CancellationToken,
    pub(crate) stop_deadline: OnceLock<Moment>,
    pub(crate) terms: LeaseTerms,
    pub(crate) leadership: Leadership,
    pub(crate) metrics: WorkerMetricsHandle,
    pub(crate) fleet: FleetBoard,
    pub(crate) publishing: Publishing,
    /// Children of shards that ended here and whose leases were just created.
    pub(crate) ended_children: Mutex<Vec<ShardId>>,
    pub(crate) shards: Mutex<BTreeMap<LeaseKey, ShardEntry>>,
    pub(crate) stream_created_at: Mutex<Option<Timestamp>>,
}

/// What others may ask of a shard that is being read.
pub(crate) struct ShardEntry {
    pub(crate) seek: mpsc::Sender<Seek>,
    pub(crate) status: watch::Receiver<ShardStatus>,
    pub(crate) lease: Arc<HeldLease>,
    /// The lease's counter when this worker took it.
    pub(crate) taken_at: u64,
    pub(crate) progress: Arc<progress::ShardProgress>,
}

impl ShardEntry {
    /// What the shard does. One that is paused may be anywhere between two pages; where it has failed or goes away, that is what counts.
    pub(crate) fn status(&self) -> ShardStatus {
        let status = self.status.borrow().clone();
        let counts = matches!(
            status,
            ShardStatus::Failed { .. }
                | ShardStatus::HandingOver { .. }
                | ShardStatus::Restarting
                | ShardStatus::Stopped
        );
        if self.lease.control().target == TargetState::Paused && !counts {
            ShardStatus::Paused
        } else {
            status
        }
    }
}

/// A request to read on from somewhere else.
pub(crate) struct Seek {
    pub(crate) position: KinesisPosition,
    pub(crate) done: oneshot::Sender<Result<(), KinesisError>>,
}

/// What a shard's reader is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShardStatus {
    /// A parent of it is not read to its end.
    WaitingForParent {
        /// Which.
        parent: ShardId,
    },
    /// It asks for its first iterator.
    Opening,
    /// It reads; so far behind the newest record, in milliseconds.
    Reading {
        /// As the service says, once it said so.
        millis_behind_latest: Option<u64>,
    },
    /// The service answers that too much is read of it.
    Throttled,
    /// Reads fail.
    ReadsFail {
        /// How often in a row.
        failures: u32,
    },
    /// Another worker is to read on; what was handed out may still be settled.
    HandingOver {
        /// Who.
        to: WorkerId,
    },
    /// Too much is unsettled; this record was handed out first.
    WaitingForAcks {
        /// The record that holds the checkpoint.
        held_by: Option<ExtendedSequenceNumber>,
    },
    /// The memory budget of the worker is used up by other shards.
    WaitingForMemory,
    /// Everything was read and some of it is not settled yet.
    Draining,
    /// An operator has paused it: nothing is read or handed out, and what was handed out may be settled.
    Paused,
    /// An operator has stopped it: it has no handler, and keeps its lease.
    Stopped,
    /// Its handler ends, and another will go on from the checkpoint.
    Restarting,
    /// A handler failed for good.
    Failed {
        /// Its words.
        reason: String,
    },
}

/// How a shard's task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShardOutcome {
    /// The shard is closed and everything of it was settled.
    Ended,
    /// The worker was stopped; the lease is free for others at once.
    Released,
    /// The worker was stopped; the lease could not be released and has to expire.
    NotReleased,
    /// Another worker reads on: it was asked for by the leader, or the worker was stopped.
    HandedOver {
        /// Who.
        to: WorkerId,
    },
    /// Another worker has the lease.
    LeaseLost,
    /// The reader stopped after too many failures.
    ReaderStopped,
    /// The stream is another one.
    AnotherStream,
}

/// What is known of a shard whose task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardReport {
    /// The shard.
    pub shard_id: ShardId,
    /// How it ended.
    pub outcome: ShardOutcome,
    /// The checkpoint as last written by this worker.
    pub checkpoint: ExtendedSequenceNumber,
    /// Records that were handed to the application and not settled; they come again.
    pub unsettled: u64,
    /// Whether the lease says all that was settled; if not, some of it comes again.
    pub checkpoint_is_current: bool,
    /// Why a handler stopped the shard, if one did.
    pub failure: Option<String>,
}

/// What a shutdown left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// The shards that were being read, by id.
    pub shards: Vec<ShardReport>,
    /// Whether everything was done before the deadline.
    pub in_time: bool,
    /// Statuses that the status store had not written when the worker ended, of this worker and of others that share the store; it goes on trying while it is open.
    pub unwritten_statuses: u64,
}

impl ShutdownReport {
    /// Whether every record that was handed out was settled and every lease was released.
    pub fn is_clean(&self) -> bool {
        self.in_time
            && self.shards.iter().all(|shard| {
                shard.unsettled == 0
                    && shard.checkpoint_is_current
                    && matches!(
                        shard.outcome,
                        ShardOutcome::Released | ShardOutcome::Ended | ShardOutcome::HandedOver { .. }
                    )
            })
    }
}

impl Context {
    pub(crate) fn shards(&self) -> std::sync::MutexGuard<'_, BTreeMap<LeaseKey, ShardEntry>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stream_created_at(&self) -> Option<Timestamp> {
        *self
            .stream_created_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Until when a stop may take. To be asked for once the stop has begun: one that nobody set a deadline for, because the
    /// subscription was dropped, gets a short one.
    pub(crate) fn stop_deadline(&self) -> Moment {
        *self
            .stop_deadline
            .get_or_init(|| self.clock.now() + DROPPED_DEADLINE)
    }

    /// Waits until a leader, or a departing peer, asks for a handoff of a lease that is held here; to whom. Of a worker that leaves the fleet its own stop hands over.
    pub(crate) async fn handoff_of(&self, lease: &HeldLease) -> WorkerId {
        let next = lease.handoff_wanted().await;
        if self.departing.is_cancelled() {
            std::future::pending::<()>().await;
        }
        next
    }

    fn log(&self, error: &KinesisError) {
        tracing::warn!(
            stream = %self.settings.stream,
            shard_id = error.shard_id().map(tracing::field::display),
            error = %error.full_text(),
            "shardfleet"
        );
    }

    /// As [`report`](Self::report), waiting for nobody.
    pub(crate) fn report_now(&self, error: KinesisError) {
        self.log(&error);
        match &self.sink {
            Sink::Subscription(items) => items.offer_error(error),
            Sink::Processors(setup) => setup.tell(&error),
        }
    }

    /// Tells the application of a failure, and the log.
    pub(crate) async fn report(&self, error: KinesisError) {
        self.log(&error);
        match &self.sink {
            Sink::Subscription(items) => {
                // A subscription that nobody polls keeps its errors in its bounded channel; the shard waits like for records.
                tokio::select! {
                    biased;
                    () = items.send_error(error) => {}
                    () = self.departing.cancelled() => {}
                }
            }
            Sink::Processors(setup) => setup.tell(&error),
        }
    }
}

/// A running engine: what a subscription and a worker hold on to. Dropping the last handle stops it.
#[derive(Clone)]
pub(crate) struct Engine {
    context: Arc<Context>,
    running: Arc<Running>,
}

struct Running {
    departing: CancellationToken,
    report: watch::Receiver<Option<ShutdownReport>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.departing.cancel();
    }
}

impl Engine {
    /// Opens: makes the store ready, syncs the shards, takes what leases can be taken, and returns once each of their readers has its iterator.
    pub(crate) async fn open(context: Context) -> Result<Self, KinesisError> {
        let context = Arc::new(context);
        let (report_to, report) = watch::channel(None);
        let (opened_to, opened) = oneshot::channel();
        tokio::spawn(coordinator::run(Arc::clone(&context), opened_to, report_to));
        let running = Arc::new(Running {
            departing: context.departing.clone(),
            report,
        });
        let engine = Self { context, running };
        match opened.await {
            Ok(Ok(())) => Ok(engine),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(KinesisError::Closed),
        }
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.context.settings
    }

    /// What each shard that is being read is doing.
    pub(crate) fn status(&self) -> BTreeMap<ShardId, ShardStatus> {
        self.context
            .shards()
            .iter()
            .map(|(key, entry)| (key.shard_id(), entry.status()))
            .collect()
    }

    /// What this worker knows of its fleet.
    pub(crate) fn fleet(&self) -> FleetStatus {
        self.context.fleet_status()
    }

    /// Asks something of shards that are not finished, whoever reads them: of all, or of those named. Which there were.
    pub(crate) async fn control(
        &self,
        request: ControlRequest,
        shards: Option<&BTreeSet<ShardId>>,
    ) -> Result<Vec<ShardId>, KinesisError> {
        control::request(&self.context, request, shards).await
    }

    /// What the status store shows.
    pub(crate) fn status_view(&self) -> Arc<shardfleet_core::status::StatusView> {
        self.context.publishing.store().view()
    }

    /// Bytes of the memory budget that are in use.
    pub(crate) fn memory_used(&self) -> u64 {
        self.context.budget.used()
    }

    /// Repositions the shards that are being read and that `position` concerns.
    pub(crate) async fn seek(&self, position: &KinesisPosition) -> Result<Vec<ShardId>, KinesisError> {
        let targets: Vec<_> = {
            let shards = self.context.shards();
            let concerned = shards
                .iter()
                .filter(|(key, _)| position.concerns(&key.shard_id()));
            concerned
                .map(|(key, entry)| (key.shard_id(), entry.seek.clone()))
                .collect()
        };
        let mut waiting = Vec::new();
        for (shard_id, sender) in targets {
            let (done, answer) = oneshot::channel();
            if sender
                .send(Seek {
                    position: position.clone(),
                    done,
                })
                .await
                .is_ok()
            {
                waiting.push((shard_id, answer));
            }
        }
        let mut moved = Vec::new();
        for (shard_id, answer) in waiting {
            // A shard that ended meanwhile answers nothing and has nothing to reposition.
            if let Ok(result) = answer.await {
                result?;
                moved.push(shard_id);
            }
        }
        Ok(moved)
    }

    /// Stops in the background.
    pub(crate) fn stop(&self) {
        self.context.departing.cancel();
    }

    /// Waits until the engine has ended, whatever ended it.
    pub(crate) async fn ended(&self) -> ShutdownReport {
        let mut report = self.running.report.clone();
        match report.wait_for(Option::is_some).await {
            Ok(report) => report.clone().unwrap_or_default(),
            Err(_) => ShutdownReport::default(),
        }
    }

    /// Stops within `deadline`. Calling it again waits for the first call's end.
    pub(crate) async fn shutdown(&self, deadline: Duration) -> ShutdownReport {
        let until = self.context.clock.now() + deadline;
        self.context.stop_deadline.get_or_init(|| until);
        self.context.departing.cancel();
        let mut report = self.running.report.clone();
        // The engine's own deadlines end it; the margin is for its last writes.
        let grace = deadline
            .saturating_add(self.context.settings.failover_time)
            .saturating_add(Duration::from_secs(5));
        let ended = crate::clock::within(&*self.context.clock, grace, report.wait_for(Option::is_some)).await;
        match ended {
            Some(Ok(report)) => report.clone().unwrap_or_default(),
            _ => ShutdownReport::default(),
        }
    }
}
