//! The loop that every worker runs: it looks at the table, finds out what is this worker's to read, and does the leader's work where this worker leads.
//!
//! Each look starts from scratch: whatever was missed before is made good by the next one. How it looks depends on its duty: the leader
//! reads the whole table each time; its deputies read the whole table and the index of their own leases by turns, so that a dead
//! leader's leases are noticed too; everybody else reads the index, and the table now and then.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use shardfleet_core::fleet::{Duty, FleetSnapshot, FleetWatch, TakeReason, TakeoverQuestion};
use shardfleet_core::fleet_audit::HoleAudit;
use shardfleet_core::ids::LeaseKey;
use shardfleet_core::lease::Lease;
use shardfleet_core::retry::Backoff;
use shardfleet_core::time::{Moment, Timestamp};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::leading::Duties;
use super::{
    Context, ShardOutcome, ShardReport, ShutdownReport, Sink, election, publishing, reporting, watchdog,
};
use crate::error::{ErrorKind, KinesisError};
use crate::fleet_settings::Pace;

const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// A table of so few leases is read whole at each look of a deputy; of a larger one every other look asks the index for its own leases only.
const SMALL_TABLE: usize = 200;
/// The shortest time between two looks that were called for by a clock.
const SHORTEST_LOOK: Duration = Duration::from_millis(20);

pub(super) type ShardEnd = (LeaseKey, Option<ShardReport>);

/// Runs the loop until the worker stops.
pub(crate) async fn run(
    context: Arc<Context>,
    opened_to: oneshot::Sender<Result<(), KinesisError>>,
    report_to: watch::Sender<Option<ShutdownReport>>,
) {
    let mut coordinator = Coordinator::new(Arc::clone(&context));
    let result = tokio::select! {
        biased;
        () = context.departing.cancelled() => Err(KinesisError::Closed),
        result = coordinator.open() => result,
    };
    let is_open = result.is_ok();
    let mut result = Some(result);
    if is_open {
        if let Sink::Subscription(items) = &context.sink {
            items.open();
        }
        if let Some(result) = result.take() {
            drop(opened_to.send(result));
        }
        coordinator.serve().await;
        let report = coordinator.stop().await;
        report_to.send_replace(Some(report));
        if let Sink::Subscription(items) = &context.sink {
            items.close();
        }
    } else {
        let report = coordinator.stop().await;
        if let Some(result) = result.take() {
            drop(opened_to.send(result));
        }
        report_to.send_replace(Some(report));
    }
}

pub(super) struct Coordinator {
    pub(super) context: Arc<Context>,
    pub(super) watch: FleetWatch,
    pub(super) audit: HoleAudit,
    pub(super) duties: Duties,
    /// Leases in the last scan.
    rows: usize,
    pub(super) tasks: JoinSet<ShardEnd>,
    /// Leases whose readers gave up: they are left alone until shards are next listed.
    pub(super) resting: BTreeSet<LeaseKey>,
    /// Leases that are being handed to this worker.
    pub(super) pending: BTreeSet<LeaseKey>,
    /// Finished leases under this worker's name, which a Java leader gives out like others; nothing is left to read of them.
    pub(super) finished: BTreeSet<LeaseKey>,
    unreadable: BTreeSet<String>,
    pace: Pace,
    pub(super) next_listing: Moment,
    /// When the last scan began.
    pub(super) scan_began: Moment,
    next_look: Moment,
    next_pending: Moment,
    /// When something runs out that only a look at the whole table tells about.
    next_alarm: Option<Moment>,
    last_scan: Moment,
    /// A deputy's last look was at the whole table.
    has_just_scanned: bool,
    failures: u32,
    pub(super) is_first_pass: bool,
    /// The wall-clock time at which this worker began to open.
    pub(super) opened_at: Timestamp,
    pub(super) opening: Vec<(LeaseKey, oneshot::Receiver<Result<(), KinesisError>>)>,
    /// What runs beside the loop, once the table is ready.
    services: Option<Services>,
}

/// What runs beside the loop. Dropping it ends it.
struct Services {
    election: AbortOnDropHandle<()>,
    election_end: CancellationToken,
    _reporter: AbortOnDropHandle<()>,
    _watchdog: AbortOnDropHandle<()>,
    publisher: AbortOnDropHandle<u64>,
}

impl Services {
    fn start(context: &Arc<Context>) -> Self {
        let election_end = CancellationToken::new();
        let spawn = |context: &Arc<Context>| Arc::clone(context);
        let (for_election, end) = (spawn(context), election_end.clone());
        let (for_reporter, for_watchdog, for_publisher) = (spawn(context), spawn(context), spawn(context));
        Self {
            election: AbortOnDropHandle::new(tokio::spawn(async move {
                election::run(&for_election, &end).await;
            })),
            election_end,
            _reporter: AbortOnDropHandle::new(tokio::spawn(async move {
                reporting::run(&for_reporter).await;
            })),
            _watchdog: AbortOnDropHandle::new(tokio::spawn(async move {
                watchdog::run(&for_watchdog).await;
            })),
            publisher: AbortOnDropHandle::new(tokio::spawn(
                async move { publishing::run(&for_publisher).await },
            )),
        }
    }
}

impl Coordinator {
    fn new(context: Arc<Context>) -> Self {
        let settings = &context.settings;
        let failover_time = settings.failover_time;
        Self {
            rows: 0,
            watch: FleetWatch::new(settings.worker_id.clone(), settings.fleet.policy(failover_time)),
            audit: HoleAudit::new(settings.fleet.hole_confidence_threshold),
            duties: Duties::default(),
            tasks: JoinSet::new(),
            resting: BTreeSet::new(),
            pending: BTreeSet::new(),
            finished: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            pace: settings.fleet.pace(failover_time),
            next_listing: Moment::default(),
            scan_began: Moment::default(),
            next_look: Moment::default(),
            next_pending: Moment::default(),
            next_alarm: None,
            last_scan: Moment::default(),
            has_just_scanned: false,
            failures: 0,
            is_first_pass: true,
            opened_at: context.clock.wall(),
            opening: Vec::new(),
            services: None,
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
        let context = Arc::clone(&self.context);
        context.store.prepare().await.map_err(KinesisError::Store)?;
        // The others are to know of this worker before leases are shared out.
        reporting::report(&context).await.map_err(KinesisError::Store)?;
        self.services.get_or_insert_with(|| Services::start(&context));
        self.look().await
    }

    async fn serve(&mut self) {
        let context = Arc::clone(&self.context);
        loop {
            let due = self.next_due();
            tokio::select! {
                biased;
                () = context.departing.cancelled() => return,
                Some(end) = self.tasks.join_next() => if self.on_shard_end(end.ok()).await { return },
                () = context.leadership.changed.notified() => self.look_and_report().await,
                () = context.clock.sleep_until(due) => self.look_and_report().await,
            }
        }
    }

    fn next_due(&self) -> Moment {
        let mut due = self.next_look;
        if !self.pending.is_empty() {
            due = due.min(self.next_pending);
        }
        self.next_alarm.map_or(due, |alarm| due.min(alarm))
    }

    async fn look_and_report(&mut self) {
        let departing = self.context.departing.clone();
        let outcome = tokio::select! {
            biased;
            // A store that hangs must not hold up a stop. A lease that was being taken then has to expire.
            () = departing.cancelled() => return,
            outcome = self.look() => outcome,
        };
        let is_leading = self.context.leadership.is_leader(self.context.clock.now());
        if is_leading {
            let now = self.context.clock.now();
            self.context.leadership.on_run(now, outcome.is_ok());
        }
        let is_store_failing = matches!(&outcome, Err(KinesisError::Store(error)) if error.is_retryable());
        let now = self.context.clock.now();
        self.context.fleet.note_store(now, !is_store_failing);
        match outcome {
            Ok(()) => self.failures = 0,
            Err(error) => {
                let wait = RETRY.delay(self.failures, self.context.clock.chance());
                self.failures = self.failures.saturating_add(1);
                let again = self.context.clock.now() + wait;
                self.next_look = again;
                self.next_pending = again;
                self.next_alarm = self.next_alarm.map(|alarm| alarm.max(again));
                self.next_listing = self.next_listing.max(again);
                let is_fatal = error.is_fatal();
                if is_fatal {
                    self.context.publishing.fail(error.full_text());
                }
                self.context.report(error).await;
                if is_fatal {
                    self.context.departing.cancel();
                }
            }
        }
    }

    /// One look at what is due.
    async fn look(&mut self) -> Result<(), KinesisError> {
        let now = self.context.clock.now();
        let is_alarm = self.next_alarm.is_some_and(|alarm| now >= alarm);
        let is_due = self.is_first_pass || is_alarm || now >= self.next_look;
        if is_due || self.context.leadership.is_leader(now) != self.duties.is_leading() {
            self.next_alarm = None;
            let duty = self.duty(now);
            let scans = match duty {
                Duty::Leader => true,
                Duty::Deputy => !self.has_just_scanned || self.rows <= SMALL_TABLE,
                Duty::Follower => now.since(self.last_scan) >= self.pace.follower_scan,
            };
            let interval = if duty == Duty::Leader {
                self.pace.assignment
            } else {
                self.pace.discovery
            };
            self.next_look = now + interval;
            if scans || is_alarm || self.is_first_pass || self.lists_alone(now) {
                self.look_at_all(duty).await?;
            } else {
                self.has_just_scanned = false;
                self.look_at_own().await?;
            }
        }
        if !self.pending.is_empty() && now >= self.next_pending {
            self.look_at_pending().await?;
            self.next_pending = self.context.clock.now() + self.pace.pending;
        }
        Ok(())
    }

    fn duty(&self, now: Moment) -> Duty {
        if self.context.leadership.is_leader(now) {
            return Duty::Leader;
        }
        match self.watch.duty(self.context.leadership.leader().as_ref()) {
            // Its lock has run out, or is being given up.
            Duty::Leader => Duty::Deputy,
            duty => duty,
        }
    }

    /// Listing the shards is the leader's work, and everybody's while nobody leads.
    fn lists_alone(&self, now: Moment) -> bool {
        now >= self.next_listing && self.context.leadership.leader().is_none()
    }

    async fn look_at_all(&mut self, duty: Duty) -> Result<(), KinesisError> {
        let context = Arc::clone(&self.context);
        let mut snapshot = self.scan().await?;
        let now = context.clock.now();
        let mut listed = Ok(None);
        let lists = duty == Duty::Leader || self.is_first_pass || self.lists_alone(now);
        if lists && (now >= self.next_listing || snapshot.leases.is_empty()) {
            match self.sync_shards(&snapshot.leases).await {
                Ok(listing) => {
                    if listing.has_changed {
                        snapshot = self.scan().await?;
                    }
                    self.next_listing = context.clock.now() + context.settings.shard_sync_interval;
                    self.resting.clear();
                    listed = Ok(Some(listing));
                }
                Err(error) if error.is_fatal() => return Err(error),
                // Leases that others lost or released can be read on all the same.
                Err(error) => listed = Err(error),
            }
        } else if now >= self.next_listing {
            self.resting.clear();
            self.next_listing = now + context.settings.shard_sync_interval;
        }
        self.note_own_rows(&snapshot);
        self.finished.clear();
        self.take_over(duty, &snapshot).await?;
        let holder = snapshot.leader_lock.as_ref().and_then(|row| row.owner.as_ref());
        let is_anothers = holder.is_some_and(|holder| *holder != context.settings.worker_id);
        if duty == Duty::Leader && is_anothers {
            // Another worker may have taken the lock while this one stood still.
            context.leadership.doubt(context.clock.now());
        } else if duty == Duty::Leader {
            let listing = listed.as_ref().ok().and_then(Option::as_ref);
            self.lead(&snapshot, listing).await?;
        } else {
            self.duties.stop_leading();
            match holder {
                // It was given up, or nobody has taken it yet.
                None => context.leadership.look_now(context.clock.now()),
                Some(holder) if self.watch.is_silent(holder) => {
                    context.leadership.on_silent(context.clock.now(), holder);
                }
                Some(_) => {}
            }
        }
        self.set_alarm(duty, &snapshot);
        context.fleet.note_scan(context.clock.now(), snapshot);
        listed.map(drop)
    }

    async fn scan(&mut self) -> Result<FleetSnapshot, KinesisError> {
        let context = Arc::clone(&self.context);
        let began = context.clock.now();
        let scan = context.store.scan().await.map_err(KinesisError::Store)?;
        self.scan_began = began;
        for row in scan.unreadable {
            // Told once: the row stays, and so does the fleet.
            if self.unreadable.len() < 10_000 && self.unreadable.insert(row.lease_key.clone()) {
                let error = KinesisError::UnreadableLease {
                    lease_key: row.lease_key,
                    reason: row.reason,
                };
                context.report(error).await;
            }
        }
        let leases = scan.leases.into_iter();
        let snapshot = FleetSnapshot {
            leases: leases.map(|lease| (lease.lease_key.clone(), lease)).collect(),
            workers: scan.workers,
            leader_lock: scan.leader_lock,
        };
        let now = context.clock.now();
        self.watch.observe(now, context.clock.wall(), &snapshot);
        self.rows = snapshot.leases.len();
        self.last_scan = now;
        self.has_just_scanned = true;
        Ok(snapshot)
    }

    /// Finds what the table says of this worker's leases that their tasks do not know yet.
    fn note_own_rows(&mut self, snapshot: &FleetSnapshot) {
        let me = &self.context.settings.worker_id;
        let shards = self.context.shards();
        self.pending.retain(|key| snapshot.leases.contains_key(key));
        for (key, lease) in &snapshot.leases {
            let is_coming = lease.owner.as_ref() == Some(me)
                && lease.checkpoint_owner.as_ref().is_some_and(|holder| holder != me);
            match shards.get(key) {
                Some(entry) => {
                    let is_asked = entry.lease.control() != lease.control();
                    if is_asked || lease.actual_owner() != Some(me) || lease.checkpoint_owner.is_some() {
                        entry.lease.look_now();
                    }
                }
                None if is_coming && !lease.is_finished() => {
                    self.pending.insert(key.clone());
                }
                None => {
                    self.pending.remove(key);
                }
            }
        }
    }

    /// Takes what this worker may take without being told to.
    async fn take_over(&mut self, duty: Duty, snapshot: &FleetSnapshot) -> Result<(), KinesisError> {
        let context = Arc::clone(&self.context);
        let leader = context.leadership.leader();
        let takes = {
            let shards = context.shards();
            let excluded = |key: &LeaseKey| shards.contains_key(key) || self.resting.contains(key);
            let question = TakeoverQuestion {
                excluded: &excluded,
                leader: leader.as_ref(),
                at_start: self.is_first_pass,
            };
            let (now, wall) = (context.clock.now(), context.clock.wall());
            self.watch.plan_takeover(now, wall, snapshot, &question)
        };
        // What the leader may take it gives to itself, with all others in view.
        let writes = takes
            .into_iter()
            .filter(|take| duty != Duty::Leader || take.reason == TakeReason::OwnName)
            .map(|take| take.write)
            .collect();
        self.take_all(writes).await
    }

    fn set_alarm(&mut self, duty: Duty, snapshot: &FleetSnapshot) {
        self.next_alarm = if duty == Duty::Follower {
            None
        } else {
            let soonest = self.context.clock.now() + SHORTEST_LOOK;
            let expiry = self.watch.next_expiry(snapshot);
            let free = self.watch.next_free().filter(|_| duty == Duty::Deputy);
            let alarm = [expiry, free].into_iter().flatten().min();
            // What has run out already and could not be taken is looked at again in the ordinary pace.
            alarm
                .filter(|at| *at > self.context.clock.now())
                .map(|at| at.max(soonest))
        };
    }

    /// Puts away a shard whose task ended; whether the whole worker has to end with it.
    async fn on_shard_end(&mut self, end: Option<ShardEnd>) -> bool {
        let Some((key, report)) = end else { return false };
        self.context.note_end(&key, report.as_ref());
        let now = self.context.clock.now();
        match report.as_ref().map(|report| &report.outcome) {
            Some(ShardOutcome::AnotherStream) => {
                self.context
                    .publishing
                    .fail("the stream is another one than the leases are about".to_owned());
                self.context.departing.cancel();
                return true;
            }
            Some(ShardOutcome::ReaderStopped) => {
                self.resting.insert(key);
            }
            Some(ShardOutcome::Ended) => self.take_children().await,
            Some(ShardOutcome::HandedOver { .. }) => {}
            // Somebody else's now, or released: look again soon, but not at once, so that two workers never spin.
            _ => self.next_look = self.next_look.min(now + Duration::from_secs(1)),
        }
        false
    }

    /// Hands leases over to peers that are there, then waits for every shard's task, each of which knows the deadline, and gives up the leadership.
    async fn stop(&mut self) -> ShutdownReport {
        let context = Arc::clone(&self.context);
        context.departing.cancel();
        let deadline = context.stop_deadline();
        context.leadership.stop(context.clock.now());
        if self.services.is_some() {
            self.depart(deadline).await;
        }
        context.stop.cancel();
        // The last writes of the tasks may go on a little beyond it.
        let patience = deadline.since(context.clock.now()) + context.settings.failover_time;
        let mut shards = Vec::new();
        let services = self.services.take();
        let all = async {
            while let Some(end) = self.tasks.join_next().await {
                if let Ok((key, report)) = end {
                    context.note_end(&key, report.as_ref());
                    shards.extend(report);
                }
            }
        };
        let in_time = crate::clock::within(&*context.clock, patience, all)
            .await
            .is_some();
        self.tasks.abort_all();
        let mut unwritten_statuses = 0;
        if let Some(mut services) = services {
            unwritten_statuses = context.end_publishing(services.publisher, deadline).await;
            let patience = deadline
                .since(context.clock.now())
                .max(context.settings.failover_time / 3);
            crate::clock::within(&*context.clock, patience, &mut services.election).await;
            services.election_end.cancel();
        }
        context.shards().clear();
        shards.sort_by(|a, b| a.shard_id.cmp(&b.shard_id));
        ShutdownReport {
            shards,
            in_time,
            unwritten_statuses,
        }
    }

    /// Whether a lease is this worker's to start.
    pub(super) fn is_given_to_me(&self, lease: &Lease) -> bool {
        lease.owner.as_ref() == Some(&self.context.settings.worker_id) && lease.checkpoint_owner.is_none()
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
