//! Rows of the lease table that others wrote: told in words, left alone, and kept as they are by every write of ours.

use aws_sdk_dynamodb::types::AttributeValue;
use shardfleet::store::{LeaseStore, StoreErrorKind};
use shardfleet_core::ids::{LeaseKey, WorkerId};
use shardfleet_core::leader::{LockCondition, LockRow, LockWrite};
use shardfleet_core::time::Timestamp;
use shardfleet_core::worker_metrics::WorkerMetricStats;

use super::dynamodb::{Fixture, Item, number, text};
use super::new_lease;

fn row(attributes: &[(&str, AttributeValue)]) -> Item {
    let attributes = attributes.iter();
    attributes
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect()
}

#[tokio::test]
async fn rows_that_cannot_be_read_are_told_skipped_and_left() {
    let fixture = Fixture::start().await;
    assert!(fixture.store.create(&new_lease(1)).await.expect("create"));
    let metrics = text("WORKER_METRIC_STATS");
    let strange = [
        row(&[("leaseKey", text("a-lease")), ("checkpoint", text("LATEST"))]),
        row(&[("leaseKey", text("b-kind")), ("entityType", text("BUDGET"))]),
        row(&[("leaseKey", text("c-kind")), ("entityType", number(7))]),
        row(&[
            ("leaseKey", text("d-worker")),
            ("entityType", metrics.clone()),
            ("lut", text("now")),
        ]),
        row(&[
            ("leaseKey", text("e-worker")),
            ("entityType", metrics),
            ("sts", text("much")),
        ]),
        row(&[
            ("leaseKey", text("f-lock")),
            ("entityType", text("LEADER")),
            ("ownerName", number(1)),
        ]),
    ];
    for item in &strange {
        fixture.put(item.clone()).await;
    }
    let scan = fixture.store.scan().await.expect("scan");
    assert_eq!(scan.leases, [new_lease(1)]);
    assert!(scan.workers.is_empty() && scan.leader_lock.is_none(), "{scan:?}");
    let told: Vec<_> = scan
        .unreadable
        .iter()
        .map(|row| format!("{}: {}", row.lease_key, row.reason))
        .collect();
    assert_eq!(
        told,
        [
            "a-lease: leaseCounter is missing; a whole number is expected",
            "b-kind: entityType is the text \"BUDGET\"; a kind of row that this release knows is expected; it is left alone",
            "c-kind: entityType is the number 7; a kind of row that this release knows is expected; it is left alone",
            "d-worker: lut is the text \"now\"; a whole number is expected",
            "e-worker: sts is the text \"much\"; a map of lists of numbers is expected",
            "f-lock: ownerName is the number 1; a text is expected",
        ]
    );
    for item in &strange {
        let AttributeValue::S(key) = &item["leaseKey"] else {
            panic!("a key")
        };
        assert_eq!(fixture.row(key).await, *item);
    }
}

#[tokio::test]
async fn a_worker_named_as_another_row_neither_overwrites_nor_deletes_it() {
    let fixture = Fixture::start().await;
    let lease = new_lease(1);
    assert!(fixture.store.create(&lease).await.expect("create"));
    let worker = WorkerId::new(lease.lease_key.as_str());
    let metrics = WorkerMetricStats::new(worker.clone(), Timestamp::from_millis(1_796_080_234_000));
    let error = fixture
        .store
        .put_worker_metrics(&metrics)
        .await
        .expect_err("a lease");
    assert_eq!(error.kind(), StoreErrorKind::Invalid, "{error}");
    assert!(
        error.has_no_side_effects() && error.to_string().contains("start the worker under another id"),
        "{error}"
    );
    assert!(
        !fixture
            .store
            .delete_worker_metrics(&worker, None)
            .await
            .expect("delete")
    );
    assert_eq!(
        fixture.store.get(&lease.lease_key).await.expect("get"),
        Some(lease)
    );
}

#[tokio::test]
async fn unknown_attributes_of_lock_and_metrics_survive_our_writes() {
    let fixture = Fixture::start().await;
    let mut lock = row(&[
        ("leaseKey", text("Leader")),
        ("entityType", text("LEADER")),
        ("ownerName", text("w1")),
        ("recordVersionNumber", text("one")),
        ("leaseDuration", text("120000")),
        ("attributeOfTheFuture", text("kept")),
    ]);
    fixture.put(lock.clone()).await;
    let found = fixture
        .store
        .read_leader_lock()
        .await
        .expect("read")
        .expect("a lock");
    assert_eq!(found.owner, Some(WorkerId::new("w1")));
    let write = LockWrite::Heartbeat {
        condition: LockCondition::Mine {
            version: "one".to_owned(),
            owner: WorkerId::new("w1"),
        },
        version: "two".to_owned(),
        lease_duration: found.lease_duration,
    };
    assert!(fixture.store.write_leader_lock(&write).await.expect("heartbeat"));
    lock.insert("recordVersionNumber".to_owned(), text("two"));
    assert_eq!(fixture.row("Leader").await, lock);

    fixture
        .put(row(&[
            ("leaseKey", text("w1")),
            ("entityType", text("WORKER_METRIC_STATS")),
            ("properties", AttributeValue::M(row(&[("zone", text("a"))]))),
        ]))
        .await;
    let metrics = WorkerMetricStats::new(WorkerId::new("w1"), Timestamp::from_millis(1_796_080_234_000));
    fixture.store.put_worker_metrics(&metrics).await.expect("put");
    let stored = fixture.row("w1").await;
    assert_eq!(
        stored.get("properties"),
        Some(&AttributeValue::M(row(&[("zone", text("a"))])))
    );
    assert_eq!(stored.get("lut"), Some(&number(1_796_080_234)));
    assert_eq!(fixture.store.get(&LeaseKey::new("w1")).await.expect("get"), None);
}

#[tokio::test]
async fn a_lock_that_cannot_be_read_is_waited_out_as_a_dead_leaders() {
    let fixture = Fixture::start().await;
    fixture
        .put(row(&[
            ("leaseKey", text("Leader")),
            ("entityType", text("LEADER")),
            ("recordVersionNumber", number(5)),
        ]))
        .await;
    let found = fixture
        .store
        .read_leader_lock()
        .await
        .expect("read")
        .expect("a lock");
    let expected = LockRow {
        owner: None,
        version: None,
        lease_duration: std::time::Duration::from_mins(2),
        is_released: false,
    };
    assert_eq!(found, expected);
}
