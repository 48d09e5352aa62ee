//! The cases, and those of them that are not about conditional writes.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use shardfleet_core::ids::{LeaseKey, WorkerId};
use shardfleet_core::lease::{Expect, Expectation, Lease, LeaseWrite, PendingCheckpoint, WriteOutcome};
use shardfleet_core::sequence::ExtendedSequenceNumber;

use super::samples::{
    REAL, at, create, full_lease, get, key, must_be_same, new_lease, no_error, openings, same, worker,
};
use super::{Case, Verdict, lock, metrics, writes};
use crate::store::LeaseStore;

/// How long a scan or an owner listing may lag behind.
const LAG: Duration = Duration::from_secs(10);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
const MANY: u32 = 120;

macro_rules! cases {
    ($($name:literal => $body:path,)*) => {
        /// Every case, in the order in which they run.
        pub(super) const ALL: &[Case] = &[$(Case { name: $name, body: |store| Box::pin($body(store)) },)*];
    };
}

cases! {
    "prepare can be repeated and keeps everything" => prepare_again,
    "a lease that was never created is not there" => nothing_there,
    "create makes a row once" => create_once,
    "create makes a row once among many that try at the same time" => create_race,
    "every field survives" => every_field,
    "every position survives" => every_position,
    "own attributes survive, in every form" => own_attributes,
    "a scan finds every lease in order" => scan_all,
    "owned_by follows leaseOwner" => owned,
    "delete asks its expectation" => delete,
    "a write of a missing row conflicts" => writes::missing_rows,
    "renew" => writes::renewals,
    "take" => writes::takes,
    "assign" => writes::assignments,
    "start_handoff" => writes::handoffs,
    "release" => writes::releases,
    "checkpoint" => writes::checkpoints,
    "prepare_checkpoint" => writes::pending_checkpoints,
    "reposition" => writes::repositions,
    "record_children and record_hash_key_range" => writes::facts,
    "each expectation by itself" => writes::single_expectations,
    "one writer of many wins" => writes::one_winner,
    "a whole graceful handoff" => writes::whole_handoff,
    "the leader's lock is taken only as it was seen" => lock::takes,
    "the leader's lock is kept only by its holder" => lock::heartbeats,
    "the leader's lock is given up only by its holder" => lock::releases,
    "one worker of many gets the leader's lock" => lock::one_leader,
    "the leader's lock lies beside the leases" => lock::beside_the_leases,
    "every field of worker metrics survives, in order" => metrics::every_field,
    "worker metrics are written whole" => metrics::written_whole,
    "worker metrics are deleted only if unchanged" => metrics::deletions,
    "worker metrics lie beside the leases" => metrics::beside_the_leases,
}

async fn prepare_again(store: Arc<dyn LeaseStore>) -> Verdict {
    create(&*store, &full_lease(1)).await?;
    no_error("a second prepare", store.prepare().await)?;
    must_be_same(
        "prepare keeps the leases",
        get(&*store, &key(1)).await?.as_ref(),
        &full_lease(1),
    )
}

async fn nothing_there(store: Arc<dyn LeaseStore>) -> Verdict {
    if let Some(lease) = get(&*store, &key(1)).await? {
        return Err(format!(
            "get must answer None for a key that was never created, got {lease:?}"
        ));
    }
    let scan = no_error("scan", store.scan().await)?;
    if !scan.leases.is_empty() || !scan.unreadable.is_empty() {
        return Err(format!(
            "a scan of an empty store must find nothing, got {scan:?}"
        ));
    }
    let owned = no_error("owned_by", store.owned_by(&worker("a")).await)?;
    if owned.is_empty() {
        Ok(())
    } else {
        Err(format!("nobody owns anything in an empty store, got {owned:?}"))
    }
}

async fn create_once(store: Arc<dyn LeaseStore>) -> Verdict {
    create(&*store, &new_lease(1)).await?;
    if no_error("create", store.create(&full_lease(1)).await)? {
        return Err("create must say false when a row with the key exists".to_owned());
    }
    let stored = get(&*store, &key(1)).await?;
    must_be_same(
        "a create that came second changes nothing",
        stored.as_ref(),
        &new_lease(1),
    )
}

async fn create_race(store: Arc<dyn LeaseStore>) -> Verdict {
    let contenders = (0..16).map(|number| {
        let store = store.clone();
        let lease = Lease {
            owner: Some(worker(&format!("worker-{number}"))),
            ..new_lease(1)
        };
        tokio::spawn(async move { store.create(&lease).await.map(|created| (created, lease)) })
    });
    let mut winners = Vec::new();
    for outcome in join_all(contenders).await {
        let outcome = outcome.map_err(|error| format!("a concurrent create must not panic: {error}"))?;
        let (created, lease) = no_error("a concurrent create", outcome)?;
        if created {
            winners.push(lease);
        }
    }
    let [winner] = winners.as_slice() else {
        return Err(format!(
            "of 16 creates of one key one must say true, {} did",
            winners.len()
        ));
    };
    must_be_same(
        "the row is the winner's",
        get(&*store, &key(1)).await?.as_ref(),
        winner,
    )
}

async fn every_field(store: Arc<dyn LeaseStore>) -> Verdict {
    let bare = new_lease(1);
    let without_state = Lease {
        pending_checkpoint: Some(PendingCheckpoint {
            at: at(REAL, 0),
            state: None,
        }),
        ..full_lease(3)
    };
    let large = Lease {
        counter: 1 << 62,
        owner_switches_since_checkpoint: 1 << 40,
        ..full_lease(4)
    };
    let other_stream = Lease {
        lease_key: LeaseKey::new("123456789012:orders:1796080689:shardId-000000000000"),
        ..full_lease(5)
    };
    for lease in [bare, full_lease(2), without_state, large, other_stream] {
        create(&*store, &lease).await?;
        let stored = get(&*store, &lease.lease_key).await?;
        must_be_same("get answers what was created", stored.as_ref(), &lease)?;
    }
    Ok(())
}

async fn every_position(store: Arc<dyn LeaseStore>) -> Verdict {
    let longest = "9".repeat(129);
    let positions = [
        ExtendedSequenceNumber::TrimHorizon,
        ExtendedSequenceNumber::Latest,
        ExtendedSequenceNumber::AtTimestamp,
        ExtendedSequenceNumber::ShardEnd,
        at("0", 0),
        at("0012", 3),
        at(REAL, 0),
        at(REAL, (1 << 63) - 1),
        at(&longest, 1),
    ];
    for (number, position) in (0..).zip(positions) {
        let created = Lease {
            checkpoint: position.clone(),
            ..new_lease(number)
        };
        create(&*store, &created).await?;
        let rule = "the checkpoint is stored to the digit, sub-sequence number included";
        must_be_same(rule, get(&*store, &created.lease_key).await?.as_ref(), &created)?;
        let moved = LeaseWrite::reposition(&created, Some(position.clone()), None);
        let after = Lease {
            counter: 1,
            ..created
        };
        match no_error("reposition", store.update(&moved).await)? {
            WriteOutcome::Written(row) => must_be_same(rule, Some(&row), &after)?,
            conflict @ WriteOutcome::Conflict(_) => {
                return Err(format!("{rule}: {position} conflicted, {conflict:?}"));
            }
        }
    }
    Ok(())
}

async fn own_attributes(store: Arc<dyn LeaseStore>) -> Verdict {
    for (number, opening) in (0..).zip(openings()) {
        let lease = Lease {
            opened_at: Some(opening),
            ..new_lease(number)
        };
        create(&*store, &lease).await?;
        must_be_same(
            "opened_at survives",
            get(&*store, &lease.lease_key).await?.as_ref(),
            &lease,
        )?;
        let settled = LeaseWrite::checkpoint(&lease, at(REAL, 0));
        match no_error("checkpoint", store.update(&settled).await)? {
            WriteOutcome::Written(row) if row.opened_at.is_none() => {}
            outcome => return Err(format!("a checkpoint removes opened_at; it answered {outcome:?}")),
        }
    }
    Ok(())
}

async fn scan_all(store: Arc<dyn LeaseStore>) -> Verdict {
    // Not created in order, and without gaps, so that an order of creation or of hashes shows.
    let numbers = (0..MANY).map(|number| (number * 37) % MANY);
    let leases: Vec<_> = numbers
        .map(|number| {
            if number % 3 == 0 {
                full_lease(number)
            } else {
                new_lease(number)
            }
        })
        .collect();
    for lease in &leases {
        create(&*store, lease).await?;
    }
    let mut expected = leases;
    expected.sort_by(|a, b| a.lease_key.cmp(&b.lease_key));
    eventually(|| async {
        let scan = no_error("scan", store.scan().await)?;
        if !scan.unreadable.is_empty() {
            return Err(format!(
                "every row can be read, yet the scan reports {:?}",
                scan.unreadable
            ));
        }
        if scan.leases.len() != expected.len() {
            return Err(format!(
                "a scan must find all {} leases, it found {}",
                expected.len(),
                scan.leases.len()
            ));
        }
        for (found, expected) in scan.leases.iter().zip(&expected) {
            must_be_same(
                "a scan answers the leases in the order of their keys",
                Some(found),
                expected,
            )?;
        }
        Ok(())
    })
    .await
}

async fn owned(store: Arc<dyn LeaseStore>) -> Verdict {
    let (a, b) = (worker("a"), worker("b"));
    let first = Lease {
        owner: Some(a.clone()),
        ..new_lease(1)
    };
    let second = Lease {
        owner: Some(a.clone()),
        ..new_lease(2)
    };
    let third = Lease {
        owner: Some(b.clone()),
        ..new_lease(3)
    };
    for lease in [&third, &second, &first, &new_lease(4)] {
        create(&*store, lease).await?;
    }
    owns(&*store, &a, &[key(1), key(2)]).await?;
    owns(&*store, &b, &[key(3)]).await?;
    owns(&*store, &worker("stranger"), &[]).await?;

    // In a handoff the next worker owns the row already.
    let start = LeaseWrite::start_handoff(&first, &b).ok_or("a held lease can be handed off")?;
    for write in [start, LeaseWrite::release(&second)] {
        if let outcome @ WriteOutcome::Conflict(_) = no_error("update", store.update(&write).await)? {
            return Err(format!("{write:?} must be written, it answered {outcome:?}"));
        }
    }
    owns(&*store, &a, &[]).await?;
    owns(&*store, &b, &[key(1), key(3)]).await?;
    if !no_error("delete", store.delete(&key(3), &Expectation::default()).await)? {
        return Err("delete without expectation must say true".to_owned());
    }
    owns(&*store, &b, &[key(1)]).await
}

async fn owns(store: &dyn LeaseStore, worker: &WorkerId, expected: &[LeaseKey]) -> Verdict {
    eventually(|| async {
        let owned = no_error("owned_by", store.owned_by(worker).await)?;
        if owned == expected {
            return Ok(());
        }
        Err(format!(
            "owned_by({worker}) must answer {expected:?}, in order; it answered {owned:?}"
        ))
    })
    .await
}

async fn delete(store: Arc<dyn LeaseStore>) -> Verdict {
    let lease = Lease {
        owner: Some(worker("a")),
        counter: 5,
        ..new_lease(1)
    };
    create(&*store, &lease).await?;
    let refused = [
        Expectation {
            counter: Some(4),
            ..Expectation::default()
        },
        Expectation {
            owner: Expect::Absent,
            ..Expectation::default()
        },
        Expectation {
            owner: Expect::Is(worker("b")),
            ..Expectation::default()
        },
        Expectation {
            checkpoint_owner: Expect::Is(worker("a")),
            ..Expectation::default()
        },
    ];
    for expect in refused {
        if no_error("delete", store.delete(&key(1), &expect).await)? {
            return Err(format!("delete must say false when {expect:?} does not hold"));
        }
        let stored = get(&*store, &key(1)).await?;
        must_be_same(
            "a delete that was refused changes nothing",
            stored.as_ref(),
            &lease,
        )?;
    }
    let expect = Expectation {
        counter: Some(5),
        owner: Expect::Is(worker("a")),
        checkpoint_owner: Expect::Absent,
        ..Expectation::default()
    };
    // The second time there is nothing left to go.
    for expect in [&expect, &expect, &Expectation::default()] {
        if !no_error("delete", store.delete(&key(1), expect).await)? {
            return Err(format!("delete with {expect:?} must say true: the row is gone"));
        }
        if let Some(left) = get(&*store, &key(1)).await? {
            return Err(format!("a deleted row must be gone, got {left:?}"));
        }
    }
    let again = new_lease(1);
    create(&*store, &again).await?;
    match get(&*store, &key(1)).await? {
        Some(stored) if same(&stored, &again) => Ok(()),
        stored => Err(format!(
            "a key can be used again after its deletion, with nothing left of it; got {stored:?}"
        )),
    }
}

/// Looks until it is right, since scans and indexes may lag; answers what was wrong at last.
pub(super) async fn eventually<Look: Future<Output = Verdict>>(look: impl Fn() -> Look) -> Verdict {
    let mut last = Ok(());
    let looking = async {
        let mut looks = tokio::time::interval(BETWEEN_LOOKS);
        loop {
            looks.tick().await;
            last = look().await;
            if last.is_ok() {
                return;
            }
        }
    };
    // Out of time: what the last look saw is the answer.
    tokio::time::timeout(LAG, looking).await.ok();
    last
}
