//! Conditional writes: every kind, on rows that fit its condition and rows that do not.

use std::sync::Arc;

use futures::future::join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use shardfleet_core::hash_range::HashKeyRange;
use shardfleet_core::ids::WorkerId;
use shardfleet_core::lease::{
    Control, ControlRequest, Expect, Expectation, Lease, LeaseChange, LeaseWrite, PendingCheckpoint,
    TargetState, WriteOutcome,
};
use shardfleet_core::sequence::ExtendedSequenceNumber;
use shardfleet_core::time::Timestamp;

use super::Verdict;
use super::samples::{
    REAL, at, create, full_lease, get, key, must_be_same, new_lease, no_error, openings, same, shard, worker,
};
use crate::store::LeaseStore;

const CONTENDERS: usize = 16;
const ROUNDS: usize = 6;
const ROWS_AT_ONCE: usize = 8;

type Make = fn(&Lease) -> Vec<LeaseWrite>;

pub(super) async fn renewals(store: Arc<dyn LeaseStore>) -> Verdict {
    against_all_rows(&*store, "renew", |seen| {
        vec![
            LeaseWrite::renew(seen, None),
            LeaseWrite::renew(seen, Some(0.0)),
            LeaseWrite::renew(seen, Some(10.016_026)),
        ]
    })
    .await
}

pub(super) async fn takes(store: Arc<dyn LeaseStore>) -> Verdict {
    against_all_rows(&*store, "take", |seen| {
        vec![
            LeaseWrite::take(seen, &worker("a")),
            LeaseWrite::take(seen, &worker("c")),
        ]
    })
    .await
}

pub(super) async fn assignments(store: Arc<dyn LeaseStore>) -> Verdict {
    against_all_rows(&*store, "assign", |seen| {
        vec![
            LeaseWrite::assign(seen, &worker("a")),
            LeaseWrite::assign(seen, &worker("c")),
        ]
    })
    .await
}

pub(super) async fn handoffs(store: Arc<dyn LeaseStore>) -> Verdict {
    against_all_rows(&*store, "start_handoff", |seen| {
        LeaseWrite::start_handoff(seen, &worker("c"))
            .into_iter()
            .collect()
    })
    .await
}

pub(super) async fn releases(store: Arc<dyn LeaseStore>) -> Verdict {
    against_all_rows(&*store, "release", |seen| vec![LeaseWrite::release(seen)]).await
}

pub(super) async fn checkpoints(store: Arc<dyn LeaseStore>) -> Verdict {
    against_all_rows(&*store, "checkpoint", |seen| {
        vec![
            LeaseWrite::checkpoint(seen, at(REAL, 7)),
            LeaseWrite::checkpoint(seen, ExtendedSequenceNumber::ShardEnd),
        ]
    })
    .await
}

pub(super) async fn pending_checkpoints(store: Arc<dyn LeaseStore>) -> Verdict {
    against_all_rows(&*store, "prepare_checkpoint", |seen| {
        let pending = |state| PendingCheckpoint {
            at: at(REAL, 1),
            state,
        };
        vec![
            LeaseWrite::prepare_checkpoint(seen, pending(None)),
            LeaseWrite::prepare_checkpoint(seen, pending(Some(vec![0, 255, 10]))),
        ]
    })
    .await
}

pub(super) async fn repositions(store: Arc<dyn LeaseStore>) -> Verdict {
    against_all_rows(&*store, "reposition", |seen| {
        let mut writes = vec![LeaseWrite::reposition(
            seen,
            Some(ExtendedSequenceNumber::AtTimestamp),
            None,
        )];
        writes.extend(
            openings()
                .into_iter()
                .map(|at| LeaseWrite::reposition(seen, None, Some(at))),
        );
        writes
    })
    .await
}

pub(super) async fn facts(store: Arc<dyn LeaseStore>) -> Verdict {
    against_all_rows(
        &*store,
        "record_children, record_hash_key_range, control and with_stream_created_at",
        |seen| {
            let created_at = Some(Timestamp::from_millis(1_796_080_000_001));
            let mut writes = vec![
                LeaseWrite::record_children(seen, vec![shard(20), shard(21)]),
                LeaseWrite::record_children(seen, Vec::new()),
                LeaseWrite::renew(seen, None).with_stream_created_at(created_at),
                LeaseWrite::control(seen, ControlRequest::Target(TargetState::Stopped)),
                LeaseWrite::control(seen, ControlRequest::Target(TargetState::Running)),
                LeaseWrite::control(seen, ControlRequest::Restart),
            ];
            let range = HashKeyRange::new(1, u128::MAX);
            writes.extend(
                range
                    .ok()
                    .map(|range| LeaseWrite::record_hash_key_range(seen, range)),
            );
            writes
        },
    )
    .await
}

/// Writes that no constructor makes: each part of an expectation by itself, and a write that changes nothing.
pub(super) async fn single_expectations(store: Arc<dyn LeaseStore>) -> Verdict {
    against_all_rows(&*store, "a write with a single expectation", |seen| {
        let expectations = [
            Expectation::default(),
            Expectation {
                counter: Some(seen.counter),
                ..Expectation::default()
            },
            Expectation {
                owner: Expect::Absent,
                ..Expectation::default()
            },
            Expectation {
                owner: Expect::Is(worker("a")),
                ..Expectation::default()
            },
            Expectation {
                checkpoint_owner: Expect::Absent,
                ..Expectation::default()
            },
            Expectation {
                checkpoint_owner: Expect::Is(worker("b")),
                ..Expectation::default()
            },
            Expectation {
                control: Expect::Absent,
                ..Expectation::default()
            },
            Expectation {
                control: Expect::Is(Control {
                    target: TargetState::Paused,
                    restarts: 3,
                }),
                ..Expectation::default()
            },
        ];
        let write = |expect| LeaseWrite {
            lease_key: seen.lease_key.clone(),
            expect,
            change: LeaseChange::default(),
        };
        expectations.map(write).into()
    })
    .await
}

/// The rows a writer may find: every mix of owner, checkpoint owner and counter, every other one with all fields filled.
fn rows() -> Vec<Lease> {
    let mut rows = Vec::new();
    let mut number = 0;
    let names = [None, Some("a"), Some("b")];
    for owner in names {
        for checkpoint_owner in names {
            for counter in [0, 5] {
                number += 1;
                let base = if number % 2 == 0 {
                    full_lease(number)
                } else {
                    new_lease(number)
                };
                let (owner, checkpoint_owner) = (owner.map(worker), checkpoint_owner.map(worker));
                rows.push(Lease {
                    owner,
                    checkpoint_owner,
                    counter,
                    ..base
                });
            }
        }
    }
    rows
}

/// What a writer may believe of `row`: views that went stale in one respect, and at last the truth.
fn views(row: &Lease) -> [Lease; 4] {
    let other = |seen: Option<&WorkerId>| match seen {
        None => Some(worker("gone")),
        Some(_) => None,
    };
    [
        Lease {
            counter: row.counter + 1,
            ..row.clone()
        },
        Lease {
            owner: other(row.owner.as_ref()),
            ..row.clone()
        },
        Lease {
            checkpoint_owner: other(row.checkpoint_owner.as_ref()),
            ..row.clone()
        },
        row.clone(),
    ]
}

/// Holds the store against `LeaseWrite::apply` on every row and view.
async fn against_all_rows(store: &dyn LeaseStore, kind: &str, make: Make) -> Verdict {
    let checks = stream::iter(rows()).map(|row| against_row(store, kind, make, row));
    checks.buffer_unordered(ROWS_AT_ONCE).try_collect().await
}

async fn against_row(store: &dyn LeaseStore, kind: &str, make: Make, mut row: Lease) -> Verdict {
    create(store, &row).await?;
    for view in 0..views(&row).len() {
        let mut number = 0;
        // The views are of the row as the writes before left it, so that each is stale in one respect only.
        while let Some(write) = make(&views(&row)[view]).get(number) {
            row = check_write(store, kind, &row, write).await?;
            number += 1;
        }
    }
    Ok(())
}

/// One write; returns the row after it.
async fn check_write(
    store: &dyn LeaseStore,
    kind: &str,
    row: &Lease,
    write: &LeaseWrite,
) -> Result<Lease, String> {
    let outcome = no_error(kind, store.update(write).await)?;
    let told = || format!("{kind}, as {write:?}, on the row {row:?}");
    let after = match (write.apply(row), outcome) {
        (Some(after), WriteOutcome::Written(written)) if same(&after, &written) => after,
        (None, WriteOutcome::Conflict(Some(found))) if same(row, &found) => row.clone(),
        (Some(after), outcome) => {
            return Err(format!(
                "{}: must be written and answer the row {after:?}; it answered {outcome:?}",
                told()
            ));
        }
        (None, outcome) => {
            return Err(format!(
                "{}: must conflict and answer the row as it is; it answered {outcome:?}",
                told()
            ));
        }
    };
    let stored = get(store, &row.lease_key).await?;
    must_be_same(
        &format!("{}: what is stored afterwards", told()),
        stored.as_ref(),
        &after,
    )?;
    Ok(after)
}

/// A write of a row that is not there conflicts and makes none.
pub(super) async fn missing_rows(store: Arc<dyn LeaseStore>) -> Verdict {
    let lease = new_lease(1);
    let writes = [
        LeaseWrite::renew(&lease, None),
        LeaseWrite::assign(&lease, &worker("a")),
        LeaseWrite::record_children(&lease, vec![shard(2)]),
    ];
    for write in writes {
        let outcome = no_error("update of a missing row", store.update(&write).await)?;
        if outcome != WriteOutcome::Conflict(None) {
            return Err(format!(
                "{write:?} on no row must conflict with none; it answered {outcome:?}"
            ));
        }
        if let Some(made) = get(&*store, &key(1)).await? {
            return Err(format!(
                "{write:?} on no row must not create one; it made {made:?}"
            ));
        }
    }
    Ok(())
}

/// Of many writers that saw the same row exactly one wins, and the others are shown the winner's row.
pub(super) async fn one_winner(store: Arc<dyn LeaseStore>) -> Verdict {
    create(&*store, &new_lease(1)).await?;
    for round in 0..ROUNDS {
        let seen = get(&*store, &key(1))
            .await?
            .ok_or("get must find the lease that was created")?;
        let contest = |contender: usize| {
            let (store, seen) = (store.clone(), seen.clone());
            // New names in each round: who owns the lease already could take it from itself without a trace.
            let contender = worker(&format!("worker-{round}-{contender}"));
            // By counter and by owners: both kinds of condition have to hold against each other's writes.
            let write = if round % 2 == 0 {
                LeaseWrite::take(&seen, &contender)
            } else {
                LeaseWrite::assign(&seen, &contender)
            };
            async move { tokio::spawn(async move { store.update(&write).await }).await }
        };
        let mut winners = Vec::new();
        let mut losers = Vec::new();
        for outcome in join_all((0..CONTENDERS).map(contest)).await {
            let outcome = outcome.map_err(|error| format!("a concurrent update must not panic: {error}"))?;
            match no_error("a concurrent update", outcome)? {
                WriteOutcome::Written(row) => winners.push(row),
                WriteOutcome::Conflict(row) => losers.push(row),
            }
        }
        let [winner] = winners.as_slice() else {
            return Err(format!(
                "of {CONTENDERS} writers that saw the same row one must win, {} did (round {round})",
                winners.len()
            ));
        };
        for loser in &losers {
            must_be_same(
                "a loser of a race is shown the winner's row",
                loser.as_ref(),
                winner,
            )?;
        }
        must_be_same(
            "the winner's row is stored",
            get(&*store, &key(1)).await?.as_ref(),
            winner,
        )?;
    }
    Ok(())
}

/// A whole graceful handoff: the old holder renews and checkpoints until it lets go, and nobody else can.
pub(super) async fn whole_handoff(store: Arc<dyn LeaseStore>) -> Verdict {
    let (old, new) = (worker("old"), worker("new"));
    let held = Lease {
        owner: Some(old),
        counter: 7,
        ..new_lease(1)
    };
    create(&*store, &held).await?;
    let start = LeaseWrite::start_handoff(&held, &new).ok_or("a held lease can be handed off")?;
    let row = check_write(&*store, "start_handoff", &held, &start).await?;
    if row.counter != held.counter {
        return Err(
            "start_handoff must leave the counter: the holder's next renewal depends on it".to_owned(),
        );
    }
    // The holder does not know yet; its renewal shows it.
    let row = check_write(
        &*store,
        "a renewal that finds a handoff",
        &row,
        &LeaseWrite::renew(&held, None),
    )
    .await?;
    let row = check_write(
        &*store,
        "a renewal in a handoff",
        &row,
        &LeaseWrite::renew(&row, Some(1.5)),
    )
    .await?;
    let row = check_write(
        &*store,
        "a checkpoint in a handoff",
        &row,
        &LeaseWrite::checkpoint(&row, at(REAL, 0)),
    )
    .await?;
    let stale = LeaseWrite::assign(&held, &worker("third"));
    let row = check_write(&*store, "an assignment that saw no handoff", &row, &stale).await?;
    let row = check_write(
        &*store,
        "completing a handoff",
        &row,
        &LeaseWrite::assign(&row, &new),
    )
    .await?;
    if row.owner != Some(new) || row.checkpoint_owner.is_some() || row.owner_switches_since_checkpoint != 0 {
        return Err(format!(
            "after a handoff the next worker owns the lease alone, without a switch counted; got {row:?}"
        ));
    }
    Ok(())
}
