//! Says in the status store what this worker's shards do, and, where this worker leads, what becomes of the others.
//!
//! What is to be said the core decides, from how things are; here they are looked at a few times a second, and at once when a shard begins or ends. The store takes
//! everything without holding anybody up, and reading never waits for it.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use shardfleet_core::ids::LeaseKey;
use shardfleet_core::lease::common_target;
use shardfleet_core::status::publisher::{
    ApplicationState, FleetPublisher, FleetSight, HeldTask, Speaker, StatusWrite, TaskEnd, TaskPublisher,
    task_number,
};
use shardfleet_core::status::{StatusKey, StatusState};
use shardfleet_core::time::Moment;
use shardfleet_status::StatusStore;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{Context, ShardEntry, ShardOutcome, ShardReport, ShardStatus};
use crate::clock::within;

/// How often shards are looked at.
const LOOK: Duration = Duration::from_millis(200);
/// How often the leader looks at the statuses of the fleet.
const FLEET_LOOK: Duration = Duration::from_secs(1);
/// How long a handler may fail before its shard counts as failed, while it is called again and again.
const FAILS_FOR: Duration = Duration::from_secs(5);
/// How long the last statuses of a worker that ends may take, in what is left of the stop's time.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Where statuses go, and what has to be told of next.
pub(crate) struct Publishing {
    store: Arc<dyn StatusStore>,
    news: Notify,
    ends: Mutex<Vec<(i32, TaskEnd)>>,
    failure: Mutex<Option<String>>,
    end: CancellationToken,
}

impl Publishing {
    pub(crate) fn new(store: Arc<dyn StatusStore>) -> Self {
        Self {
            store,
            news: Notify::new(),
            ends: Mutex::default(),
            failure: Mutex::default(),
            end: CancellationToken::new(),
        }
    }

    pub(crate) fn store(&self) -> &dyn StatusStore {
        &*self.store
    }

    /// Something has begun or ended.
    pub(super) fn nudge(&self) {
        self.news.notify_one();
    }

    /// Why the whole worker has to end.
    pub(super) fn fail(&self, reason: String) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(reason);
    }

    fn ends(&self) -> std::sync::MutexGuard<'_, Vec<(i32, TaskEnd)>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Context {
    /// A shard's task has ended: it is put away and told of.
    pub(super) fn note_end(&self, key: &LeaseKey, report: Option<&ShardReport>) {
        let Some(entry) = self.shards().remove(key) else {
            return;
        };
        if let Some(task) = task_number(&key.shard_id()) {
            self.publishing.ends().push((task, end_of(&entry, report)));
            self.publishing.nudge();
        }
    }

    /// A shard begins anew in this worker's hands.
    pub(super) fn note_restart(&self, key: &LeaseKey) {
        if let Some(task) = task_number(&key.shard_id()) {
            self.publishing.ends().push((task, TaskEnd::Restarting));
            self.publishing.nudge();
        }
    }

    /// Lets the publisher say its last words. How many of them the store has not written.
    pub(super) async fn end_publishing(&self, publisher: AbortOnDropHandle<u64>, deadline: Moment) -> u64 {
        self.publishing.end.cancel();
        let patience = deadline.since(self.clock.now()).min(LAST_WORDS);
        // The publisher knows this limit; it is to end a little before it is stopped.
        let ended = within(&*self.clock, patience + LOOK, publisher).await;
        match ended {
            Some(Ok(unwritten)) => unwritten,
            _ => u64::try_from(self.publishing.store.late().len()).unwrap_or(u64::MAX),
        }
    }
}

fn end_of(entry: &ShardEntry, report: Option<&ShardReport>) -> TaskEnd {
    let counter = entry.lease.counter();
    let left = |trace| TaskEnd::Left { trace, counter };
    match report {
        None if entry.lease.is_valid() => TaskEnd::Failed {
            trace: "the task of the shard panicked; this is a bug of shardfleet, and the log says more. Another takes over when its lease has run out"
                .to_owned(),
            counter,
        },
        None => left(None),
        Some(report) => match &report.outcome {
            ShardOutcome::Ended => TaskEnd::Finished,
            ShardOutcome::ReaderStopped => left(Some(
                "the reader stopped after too many failures; the log says which".to_owned(),
            )),
            ShardOutcome::AnotherStream => left(Some("the stream is another one".to_owned())),
            ShardOutcome::Released
            | ShardOutcome::NotReleased
            | ShardOutcome::HandedOver { .. }
            | ShardOutcome::LeaseLost => left(None),
        },
    }
}

/// A handler that fails now and then is called again, which is nobody's business; one that panics, or gets nowhere, has failed until it succeeds.
fn held_task(entry: &ShardEntry, now: Moment) -> HeldTask {
    let (mut asked, mut given_up) = (StatusState::Running, None);
    match entry.status() {
        ShardStatus::Failed { reason } => given_up = Some(reason),
        ShardStatus::Paused => asked = StatusState::Paused,
        ShardStatus::Stopped => asked = StatusState::Stopped,
        ShardStatus::Restarting => asked = StatusState::Restarting,
        _ => {}
    }
    let trouble = || {
        let trouble = entry.progress.trouble()?;
        // A handler that is paused cannot try again.
        let is_paused = asked == StatusState::Paused;
        let lasts = !is_paused && now.since(trouble.since) >= FAILS_FOR;
        let is_failed = trouble.has_panicked || lasts;
        is_failed.then_some(trouble.reason)
    };
    let trace = given_up.or_else(trouble);
    HeldTask {
        state: trace.as_ref().map_or(asked, |_| StatusState::Failed),
        trace,
        taken_at: entry.taken_at,
        counter: entry.lease.counter(),
    }
}

/// Publishes until the worker has ended, and then the last words. How many statuses were left in the store.
pub(super) async fn run(context: &Context) -> u64 {
    let publishing = &context.publishing;
    let mut publisher = Publisher::new(context);
    loop {
        publisher.look();
        tokio::select! {
            biased;
            () = publishing.end.cancelled() => break,
            () = publishing.news.notified() => {}
            () = crate::clock::sleep(&*context.clock, LOOK) => {}
        }
    }
    publisher.leave();
    let left = context.stop_deadline().since(context.clock.now()).min(LAST_WORDS);
    publishing.store.flush(left).await
}

struct Publisher<'a> {
    context: &'a Context,
    speaker: Speaker,
    tasks: TaskPublisher,
    /// While this worker leads.
    fleet: Option<FleetPublisher>,
    next_fleet_look: Moment,
}

impl<'a> Publisher<'a> {
    fn new(context: &'a Context) -> Self {
        let settings = &context.settings;
        let speaker = Speaker::new(settings.application.as_str(), settings.worker_id.as_str());
        Self {
            context,
            tasks: TaskPublisher::new(speaker.clone()),
            fleet: None,
            next_fleet_look: Moment::default(),
            speaker,
        }
    }

    fn look(&mut self) {
        let now = self.context.clock.now();
        let ends = std::mem::take(&mut *self.context.publishing.ends());
        // After the ends: what was taken anew since then is in the map, and counts.
        let (held, own) = self.held(now);
        let store = &self.context.publishing.store;
        let late = Late::new(&**store);
        let view = store.view();
        let writes = self.tasks.observe(now, &held, ends, &view, |key| late.has(key));
        self.write(writes);
        if self.context.leadership.is_leader(now) {
            if now >= self.next_fleet_look {
                self.next_fleet_look = now + FLEET_LOOK;
                self.look_at_fleet(now, &own, &late);
            }
        } else if !self.context.departing.is_cancelled() {
            // Who leaves gives up the lead first, and has a last word as the leader.
            self.fleet = None;
        }
    }

    /// The shards with valid leases, and the numbers of all that this worker has not put away.
    fn held(&self, now: Moment) -> (BTreeMap<i32, HeldTask>, BTreeSet<i32>) {
        let shards = self.context.shards();
        let numbered = shards
            .iter()
            .filter_map(|(key, entry)| Some((task_number(&key.shard_id())?, entry)));
        let (mut held, mut own) = (BTreeMap::new(), BTreeSet::new());
        for (task, entry) in numbered {
            own.insert(task);
            if entry.lease.is_valid() {
                held.insert(task, held_task(entry, now));
            }
        }
        (held, own)
    }

    fn look_at_fleet(&mut self, now: Moment, own: &BTreeSet<i32>, late: &Late<'_>) {
        let context = self.context;
        let fleet = self
            .fleet
            .get_or_insert_with(|| FleetPublisher::new(self.speaker.clone()));
        let view = context.publishing.store.view();
        let writes = context.fleet.with_leases(|board| {
            let application = ApplicationState {
                state: common_target(board.leases.values()).into(),
                trace: None,
            };
            fleet.observe(&FleetSight {
                now,
                wall: context.clock.wall(),
                application: &application,
                stream: context.settings.stream.as_str(),
                leases: board.leases,
                scanned: board.scanned,
                is_expired: &|lease| board.clock.is_expired(now, lease, context.settings.failover_time),
                own,
                view: &view,
                is_pending: &|key| late.has(key),
            })
        });
        self.write(writes.unwrap_or_default());
    }

    /// Everything that ended since the last look, and the application if this worker led.
    fn leave(&mut self) {
        self.look_once_more();
        let failure = self.context.publishing.take_failure();
        if let Some(fleet) = &self.fleet {
            let view = self.context.publishing.store.view();
            let write = fleet.leave(&view, failure);
            self.write(write);
        }
    }

    fn look_once_more(&mut self) {
        let now = self.context.clock.now();
        let ends = std::mem::take(&mut *self.context.publishing.ends());
        let view = self.context.publishing.store.view();
        let writes = self.tasks.observe(now, &BTreeMap::new(), ends, &view, |_| false);
        self.write(writes);
    }

    fn write(&self, writes: impl IntoIterator<Item = StatusWrite>) {
        for StatusWrite { key, value, mode } in writes {
            match self.context.publishing.store.write(&key, value, mode) {
                Ok(true) => {}
                Ok(false) => tracing::debug!(%key, "a later life of the work has spoken"),
                // What is not written is said again later.
                Err(error) => tracing::warn!(%key, error = %error, "a status was not taken"),
            }
        }
    }
}

/// What the store has not written yet, looked up once and only if it is asked for.
struct Late<'a> {
    store: &'a dyn StatusStore,
    keys: OnceCell<BTreeSet<StatusKey>>,
}

impl<'a> Late<'a> {
    fn new(store: &'a dyn StatusStore) -> Self {
        Self {
            store,
            keys: OnceCell::new(),
        }
    }

    fn has(&self, key: &StatusKey) -> bool {
        let look = || self.store.late().into_iter().map(|late| late.key).collect();
        self.keys.get_or_init(look).contains(key)
    }
}
