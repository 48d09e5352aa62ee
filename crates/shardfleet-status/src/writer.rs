//! Acts for the outbox: one task that hands writes to the log when they are due and takes in how they came out.

use std::sync::Arc;

use futures::stream::{FuturesUnordered, StreamExt};
use shardfleet_core::status::{Outcome, Sending, Settled, StatusKey, StatusValue};

use crate::codec;
use crate::logged::Shared;

/// A write that is under way.
struct Attempt {
    key: StatusKey,
    sequence: u64,
    state: &'static str,
    outcome: Outcome,
}

/// Runs until the store is closed.
pub(crate) async fn run(shared: Arc<Shared>) {
    tokio::select! {
        biased;
        () = shared.stop.cancelled() => return,
        () = shared.log.ready() => {}
    }
    let mut under_way = FuturesUnordered::new();
    loop {
        let now = shared.clock.now();
        let due = {
            let mut state = shared.state();
            let view = Arc::clone(&state.view);
            state.outbox.take_due(now, &view)
        };
        if let Some(sending) = due {
            under_way.push(send(&shared, sending));
            continue;
        }
        // What was dropped as stale may have been the last.
        shared.settled.notify_waiters();
        let next = shared.state().outbox.next_due();
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            Some(attempt) = under_way.next(), if !under_way.is_empty() => {
                take_in(&shared, attempt);
                // Settings may allow retries without a wait.
                tokio::task::consume_budget().await;
            }
            () = shared.wake.notified() => {}
            () = until(&shared, next) => {}
        }
    }
}

async fn until(shared: &Shared, due: Option<shardfleet_core::time::Moment>) {
    match due {
        Some(at) => shared.clock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn send(shared: &Arc<Shared>, sending: Sending) -> impl Future<Output = Attempt> + Send + use<> {
    let state = sending.value.as_ref().map_or("deleted", state_of);
    let value = sending.value.as_ref().map(codec::encode);
    let outcome = shared.log.send(sending.key.to_string(), value);
    async move {
        Attempt {
            key: sending.key,
            sequence: sending.sequence,
            state,
            outcome: outcome.await,
        }
    }
}

fn take_in(shared: &Shared, attempt: Attempt) {
    let (now, chance) = (shared.clock.now(), shared.clock.chance());
    let Attempt {
        key,
        sequence,
        state,
        outcome,
    } = attempt;
    let error = match &outcome {
        Outcome::Written => String::new(),
        Outcome::Retriable(error) | Outcome::Final(error) => error.clone(),
    };
    let settled = shared.state().outbox.settle(now, &key, sequence, outcome, chance);
    match settled {
        Settled::Written { retries: 0 } => {}
        Settled::Written { retries } => {
            tracing::info!(%key, state, retries, "a late status is written");
        }
        Settled::Retrying { retry: 1, at } => {
            let wait = at.since(now);
            tracing::warn!(%key, state, error, "a status could not be written and is tried again in {wait:?}");
        }
        Settled::Retrying { retry, at } => {
            let wait = at.since(now);
            tracing::debug!(%key, state, retry, error, "a status is tried again in {wait:?}");
        }
        Settled::Failed { retries } => {
            tracing::error!(%key, state, retries, error, "a status is given up");
        }
        Settled::Superseded => tracing::debug!(%key, state, error, "a newer status takes its place"),
        Settled::Unknown => {}
    }
}

pub(crate) fn state_of(value: &StatusValue) -> &'static str {
    value.work().map_or("in use", |status| status.state.name())
}
