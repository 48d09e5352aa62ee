//! The leader's lock: every kind of write, on rows that fit its condition and rows that do not.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use shardfleet_core::leader::{LockCondition, LockRow, LockWrite};

use super::Verdict;
use super::cases::eventually;
use super::samples::{create, full_lease, get, key, must_be_same, no_error, worker};
use crate::store::LeaseStore;

const CONTENDERS: usize = 16;
const ROUNDS: usize = 4;

/// Only who finds no row, or a free one, or still the one that it saw, takes the lock.
pub(super) async fn takes(store: Arc<dyn LeaseStore>) -> Verdict {
    against_all_rows(&*store, |condition| LockWrite::Acquire {
        condition,
        row: row(Some("taker"), Some("taken"), 90_000),
    })
    .await
}

/// A heartbeat sets the version and the duration, and leaves the owner.
pub(super) async fn heartbeats(store: Arc<dyn LeaseStore>) -> Verdict {
    against_all_rows(&*store, |condition| LockWrite::Heartbeat {
        condition,
        version: "next".to_owned(),
        lease_duration: Duration::from_millis(45_001),
    })
    .await
}

/// Who gives the lock up deletes it, if it is still its own.
pub(super) async fn releases(store: Arc<dyn LeaseStore>) -> Verdict {
    against_all_rows(&*store, |condition| LockWrite::Release { condition }).await
}

/// Of many that saw the same lock exactly one gets it, and the row is the winner's.
pub(super) async fn one_leader(store: Arc<dyn LeaseStore>) -> Verdict {
    let mut seen = row(Some("dead"), Some("last"), 1);
    set(&*store, Some(&seen)).await?;
    for round in 0..ROUNDS {
        let contest = |contender: usize| {
            let (store, seen) = (store.clone(), seen.version.clone());
            let name = format!("worker-{round}-{contender}");
            let mine = row(
                Some(&name),
                Some(&format!("version-{round}-{contender}")),
                120_000,
            );
            tokio::spawn(async move {
                let write = LockWrite::Acquire {
                    condition: LockCondition::VersionIs(seen),
                    row: mine.clone(),
                };
                store.write_leader_lock(&write).await.map(|taken| (taken, mine))
            })
        };
        let mut leaders = Vec::new();
        for outcome in join_all((0..CONTENDERS).map(contest)).await {
            let outcome = outcome.map_err(|error| format!("taking the lock must not panic: {error}"))?;
            let (taken, mine) = no_error("taking the lock", outcome)?;
            if taken {
                leaders.push(mine);
            }
        }
        let [leader] = leaders.as_slice() else {
            return Err(format!(
                "of {CONTENDERS} workers that saw the same lock one must get it, {} did (round {round})",
                leaders.len()
            ));
        };
        must_be("the lock is the winner's", &*store, Some(leader)).await?;
        seen = leader.clone();
    }
    Ok(())
}

/// The lock has one key for all workers, beside the leases, and a scan shows it.
pub(super) async fn beside_the_leases(store: Arc<dyn LeaseStore>) -> Verdict {
    must_be("a fresh store has no lock", &*store, None).await?;
    create(&*store, &full_lease(1)).await?;
    let held = row(
        Some("leader"),
        Some("0b547710-3377-4aaa-9741-946a4172246a"),
        120_000,
    );
    set(&*store, Some(&held)).await?;
    no_error("a second prepare", store.prepare().await)?;
    must_be("prepare keeps the lock", &*store, Some(&held)).await?;
    must_be_same(
        "the lock leaves leases alone",
        get(&*store, &key(1)).await?.as_ref(),
        &full_lease(1),
    )?;
    eventually(|| async {
        let scan = no_error("scan", store.scan().await)?;
        if scan.leader_lock.as_ref() != Some(&held) {
            return Err(format!(
                "a scan must show the lock {held:?}, it showed {:?}",
                scan.leader_lock
            ));
        }
        if scan.leases.len() != 1 || !scan.unreadable.is_empty() {
            return Err(format!(
                "the lock is no lease and can be read, yet a scan found {scan:?}"
            ));
        }
        Ok(())
    })
    .await
}

fn row(owner: Option<&str>, version: Option<&str>, millis: u64) -> LockRow {
    LockRow {
        owner: owner.map(worker),
        version: version.map(str::to_owned),
        lease_duration: Duration::from_millis(millis),
        is_released: false,
    }
}

/// What a writer may find.
fn rows() -> Vec<Option<LockRow>> {
    let released = LockRow {
        is_released: true,
        ..row(Some("a"), Some("one"), 120_000)
    };
    vec![
        None,
        Some(row(Some("a"), Some("one"), 120_000)),
        Some(row(Some("b"), Some("one"), 6_000)),
        Some(row(Some("a"), Some("two"), 120_000)),
        Some(row(None, None, 0)),
        Some(released),
    ]
}

fn conditions() -> Vec<LockCondition> {
    let mine = |version: &str, owner| LockCondition::Mine {
        version: version.to_owned(),
        owner: worker(owner),
    };
    vec![
        LockCondition::Absent,
        LockCondition::Released,
        LockCondition::VersionIs(Some("one".to_owned())),
        LockCondition::VersionIs(None),
        mine("one", "a"),
        mine("two", "a"),
        mine("one", "b"),
    ]
}

/// Holds the store against `LockWrite::apply` on every row and condition.
async fn against_all_rows(store: &dyn LeaseStore, make: impl Fn(LockCondition) -> LockWrite) -> Verdict {
    for found in rows() {
        for condition in conditions() {
            // A heartbeat of a lock that must not be there: no election asks for it.
            if matches!(
                make(condition.clone()),
                LockWrite::Heartbeat {
                    condition: LockCondition::Absent,
                    ..
                }
            ) {
                continue;
            }
            set(store, found.as_ref()).await?;
            let write = make(condition);
            let mut after = found.clone();
            let expected = write.apply(&mut after);
            let told = format!("{write:?} on the row {found:?}");
            if no_error(&told, store.write_leader_lock(&write).await)? != expected {
                return Err(format!("{told} must say {expected}"));
            }
            must_be(&told, store, after.as_ref()).await?;
        }
    }
    Ok(())
}

/// Brings the lock into a state, whatever it was before.
async fn set(store: &dyn LeaseStore, wanted: Option<&LockRow>) -> Verdict {
    let now = no_error("reading the lock", store.read_leader_lock().await)?;
    if now.as_ref() == wanted {
        return Ok(());
    }
    let condition = now.map_or(LockCondition::Absent, |now| LockCondition::VersionIs(now.version));
    let write = match wanted {
        Some(row) => LockWrite::Acquire {
            condition,
            row: row.clone(),
        },
        None => LockWrite::Release { condition },
    };
    if no_error("writing the lock", store.write_leader_lock(&write).await)? {
        return Ok(());
    }
    Err(format!(
        "{write:?} must say true: nothing was written since the row was read"
    ))
}

async fn must_be(rule: &str, store: &dyn LeaseStore, expected: Option<&LockRow>) -> Verdict {
    let stored = no_error("reading the lock", store.read_leader_lock().await)?;
    if stored.as_ref() == expected {
        return Ok(());
    }
    Err(format!(
        "{rule}: afterwards the lock must be {expected:?}, it is {stored:?}"
    ))
}
