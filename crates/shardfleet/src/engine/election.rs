//! Takes part in the election of the leader: carries out what the core's [`LeaderElection`] asks for.
//!
//! It runs beside everything else, so that neither a slow scan nor a handler can cost the leadership; and it ends by giving the lock up.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shardfleet_core::ids::WorkerId;
use shardfleet_core::leader::{LeaderAction, LeaderElection, LeaderPolicy, LockOutcome};
use shardfleet_core::time::Moment;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Context;
use crate::clock::{fresh_uuid, within};

/// What is known of the leadership, shared between the election and the leader's work.
pub(crate) struct Leadership {
    election: Mutex<LeaderElection>,
    /// The election is to look at itself at once.
    poke: Notify,
    /// Who leads has changed.
    pub(super) changed: Notify,
}

impl Leadership {
    pub(crate) fn new(me: WorkerId, policy: LeaderPolicy) -> Self {
        Self {
            election: Mutex::new(LeaderElection::new(me, policy)),
            poke: Notify::new(),
            changed: Notify::new(),
        }
    }

    fn election(&self) -> MutexGuard<'_, LeaderElection> {
        self.election.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this worker leads.
    pub(crate) fn is_leader(&self, now: Moment) -> bool {
        self.election().is_leader(now)
    }

    /// Who leads, as far as this worker knows; a dead leader does until its lock has run out.
    pub(crate) fn leader(&self) -> Option<WorkerId> {
        self.election().known_leader().cloned()
    }

    /// A run of the leader's work has ended.
    pub(crate) fn on_run(&self, now: Moment, succeeded: bool) {
        self.election().on_run(now, succeeded);
        if !succeeded {
            self.poke.notify_one();
        }
    }

    /// A scan shows no lock: the row is read again soon.
    pub(crate) fn look_now(&self, now: Moment) {
        if self.election().look_now(now) {
            self.poke.notify_one();
        }
    }

    /// The holder of the lock has let all its leases expire.
    pub(crate) fn on_silent(&self, now: Moment, holder: &WorkerId) {
        if self.election().on_silent(now, holder) {
            tracing::info!(%holder, "the leader is silent; its lock is being taken");
            self.poke.notify_one();
        }
    }

    /// A scan shows the lock in another worker's name.
    pub(crate) fn doubt(&self, now: Moment) {
        if self.election().doubt(now) {
            self.poke.notify_one();
        }
    }

    /// Gives the lock up, if this worker holds it, and takes it no more.
    pub(crate) fn stop(&self, now: Moment) {
        self.election().stop(now);
        self.poke.notify_one();
    }
}

/// Runs until the lock was given up after [`Leadership::stop`], or `end` says that there is no more time.
pub(crate) async fn run(context: &Context, end: &CancellationToken) {
    let leadership = &context.leadership;
    let mut known = None;
    loop {
        let (now, deadline, is_stopped) = {
            let election = leadership.election();
            let now = context.clock.now();
            (now, election.next_deadline(), election.is_stopped())
        };
        if is_stopped {
            return;
        }
        let action = leadership
            .election()
            .next_action(now, &fresh_uuid(&*context.clock));
        let Some(action) = action else {
            let due = deadline.unwrap_or(now + Duration::from_secs(1));
            tokio::select! {
                biased;
                () = end.cancelled() => return,
                () = leadership.poke.notified() => {}
                () = context.clock.sleep_until(due) => {}
            }
            continue;
        };
        tokio::select! {
            biased;
            () = end.cancelled() => return,
            () = carry_out(context, action) => {}
        }
        let leader = (leadership.leader(), leadership.is_leader(context.clock.now()));
        if known.as_ref() != Some(&leader) {
            tracing::info!(
                leader = leader.0.as_ref().map(tracing::field::display),
                "the leader of the fleet"
            );
            known = Some(leader);
            leadership.changed.notify_one();
        }
    }
}

async fn carry_out(context: &Context, action: LeaderAction) {
    // No request may keep the election from its next heartbeat.
    let limit = (context.settings.fleet.leader_heartbeat / 2).max(Duration::from_millis(50));
    match action {
        LeaderAction::Read => {
            let read = within(&*context.clock, limit, context.store.read_leader_lock()).await;
            let now = context.clock.now();
            let mut election = context.leadership.election();
            match read {
                Some(Ok(row)) => election.on_read(now, row),
                Some(Err(error)) => {
                    tracing::warn!(error = %error, "reading the leader's lock failed");
                    election.on_read_failed(now);
                }
                None => election.on_read_failed(now),
            }
        }
        LeaderAction::Write(write) => {
            let written = within(&*context.clock, limit, context.store.write_leader_lock(&write)).await;
            let outcome = match written {
                Some(Ok(true)) => LockOutcome::Written,
                Some(Ok(false)) => LockOutcome::Conflict,
                Some(Err(error)) => {
                    tracing::warn!(error = %error, "writing the leader's lock failed");
                    LockOutcome::Unknown
                }
                None => LockOutcome::Unknown,
            };
            let now = context.clock.now();
            context.leadership.election().on_written(now, outcome);
        }
    }
}
