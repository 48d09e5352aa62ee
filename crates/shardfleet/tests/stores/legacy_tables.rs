//! The two tables of KCL 3.0 to 3.4: used where they are found, left when the fleet has moved, and never made.

use std::time::Duration;

use shardfleet::store::{DynamoDbLeaseStore, LeaseStore, StoreErrorKind};
use shardfleet_core::ids::WorkerId;
use shardfleet_core::leader::{LockCondition, LockRow, LockWrite};
use shardfleet_core::time::Timestamp;
use shardfleet_core::worker_metrics::WorkerMetricStats;

use super::dynamodb::{Fixture, Item, text};
use super::new_lease;

const COORDINATOR: &str = "orders-app-CoordinatorState";
const METRICS: &str = "orders-app-WorkerMetricStats";

async fn legacy() -> Fixture {
    let fixture = Fixture::unprepared().await;
    fixture.create_raw_table(COORDINATOR, "key").await;
    fixture.create_raw_table(METRICS, "wid").await;
    fixture
}

fn row(attributes: &[(&str, &str)]) -> Item {
    let attributes = attributes.iter();
    attributes
        .map(|(name, value)| ((*name).to_owned(), text(value)))
        .collect()
}

fn status(status: &str) -> Item {
    row(&[
        ("key", "TableMigration3.5"),
        ("entityType", "TABLE_MIGRATION"),
        ("tm", status),
    ])
}

fn lock(owner: &str, version: &str) -> LockRow {
    LockRow {
        owner: Some(WorkerId::new(owner)),
        version: Some(version.to_owned()),
        lease_duration: Duration::from_mins(2),
        is_released: false,
    }
}

fn acquire(owner: &str, version: &str) -> LockWrite {
    LockWrite::Acquire {
        condition: LockCondition::Absent,
        row: lock(owner, version),
    }
}

fn metrics(worker: &str, seconds: u64) -> WorkerMetricStats {
    WorkerMetricStats::new(WorkerId::new(worker), Timestamp::from_millis(seconds * 1000))
}

#[tokio::test]
async fn lock_metrics_and_state_go_where_the_java_workers_have_them() {
    for state in [
        None,
        Some("TABLE_MIGRATION_STATUS_INIT"),
        Some("TABLE_MIGRATION_STATUS_DEPLOYED"),
        Some("TABLE_MIGRATION_STATUS_PENDING"),
    ] {
        let fixture = legacy().await;
        if let Some(state) = state {
            fixture.put_into(COORDINATOR, status(state)).await;
        }
        let store = &fixture.store;
        store.prepare().await.expect("prepare");
        let written = fixture
            .row_of(COORDINATOR, "key", "Migration3.0")
            .await
            .expect("a row");
        assert_eq!(written.get("cv"), Some(&text("CLIENT_VERSION_3X")), "{state:?}");
        assert!(store.create(&new_lease(1)).await.expect("create"));
        assert!(
            store
                .write_leader_lock(&acquire("w1", "one"))
                .await
                .expect("lock")
        );
        store
            .put_worker_metrics(&metrics("w1", 100))
            .await
            .expect("metrics");
        assert!(
            fixture.row_of(COORDINATOR, "key", "Leader").await.is_some(),
            "{state:?}"
        );
        assert!(fixture.row_of(METRICS, "wid", "w1").await.is_some(), "{state:?}");
        for key in ["Leader", "w1", "Migration3.0"] {
            assert_eq!(
                fixture.row_of("orders-app", "leaseKey", key).await,
                None,
                "{state:?}"
            );
        }
        let scan = store.scan().await.expect("scan");
        assert_eq!(scan.leases, [new_lease(1)]);
        assert_eq!(scan.workers, [metrics("w1", 100)]);
        assert_eq!(scan.leader_lock, Some(lock("w1", "one")));
        assert!(scan.unreadable.is_empty(), "{scan:?}");
        // A deletion asks both tables.
        assert!(
            !store
                .delete_worker_metrics(&WorkerId::new("w1"), Some(99))
                .await
                .expect("delete")
        );
        assert!(
            store
                .delete_worker_metrics(&WorkerId::new("w1"), Some(100))
                .await
                .expect("delete")
        );
        assert_eq!(fixture.row_of(METRICS, "wid", "w1").await, None);
    }
}

#[tokio::test]
async fn a_completed_move_is_noticed_at_start_and_while_running() {
    let fixture = legacy().await;
    let store = &fixture.store;
    store.prepare().await.expect("prepare");
    assert!(
        store
            .write_leader_lock(&acquire("w1", "one"))
            .await
            .expect("lock")
    );
    // A worker on one table already, and an older row of the same worker.
    let moved = row(&[("leaseKey", "w2"), ("entityType", "WORKER_METRIC_STATS")]);
    fixture.put_into("orders-app", moved).await;
    store
        .put_worker_metrics(&metrics("w2", 7))
        .await
        .expect("metrics");
    assert_eq!(store.scan().await.expect("scan").workers, [metrics("w2", 7)]);

    fixture
        .put_into(COORDINATOR, status("TABLE_MIGRATION_STATUS_COMPLETE"))
        .await;
    assert_eq!(
        store.read_leader_lock().await.expect("read"),
        None,
        "the lock of the old table counts no longer"
    );
    assert!(
        store
            .write_leader_lock(&acquire("w3", "two"))
            .await
            .expect("lock")
    );
    assert!(fixture.row_of("orders-app", "leaseKey", "Leader").await.is_some());
    store
        .put_worker_metrics(&metrics("w3", 9))
        .await
        .expect("metrics");
    assert!(fixture.row_of("orders-app", "leaseKey", "w3").await.is_some());

    let again = DynamoDbLeaseStore::builder_with_sdk_config("orders-app", &fixture.config).build();
    again.prepare().await.expect("prepare");
    assert_eq!(
        again.read_leader_lock().await.expect("read"),
        Some(lock("w3", "two"))
    );
}

#[tokio::test]
async fn a_lock_is_not_taken_in_a_table_that_the_fleet_has_left() {
    let fixture = legacy().await;
    fixture.store.prepare().await.expect("prepare");
    fixture
        .put_into(COORDINATOR, status("TABLE_MIGRATION_STATUS_COMPLETE"))
        .await;
    assert!(
        fixture
            .store
            .write_leader_lock(&acquire("w1", "one"))
            .await
            .expect("lock")
    );
    assert_eq!(fixture.row_of(COORDINATOR, "key", "Leader").await, None);
}

#[tokio::test]
async fn the_state_of_the_older_table_is_judged_too() {
    let fixture = legacy().await;
    fixture
        .put_into(
            COORDINATOR,
            row(&[("key", "Migration3.0"), ("cv", "CLIENT_VERSION_2X")]),
        )
        .await;
    let error = fixture.store.prepare().await.expect_err("rolled back");
    assert_eq!(error.kind(), StoreErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("rolled back to KCL 2.x"), "{error}");
}

#[tokio::test]
async fn the_older_tables_are_not_made_and_wrong_ones_refused() {
    let fixture = Fixture::unprepared().await;
    fixture.create_raw_table(METRICS, "wid").await;
    fixture
        .store
        .prepare()
        .await
        .expect("one table: the other alone says nothing");
    assert_eq!(fixture.tables().await, ["orders-app", METRICS]);
    assert!(
        fixture
            .row_of("orders-app", "leaseKey", "Migration3.0")
            .await
            .is_some()
    );

    let fixture = Fixture::unprepared().await;
    fixture.create_raw_table(COORDINATOR, "key").await;
    let error = fixture.store.prepare().await.expect_err("half of them");
    assert_eq!(error.kind(), StoreErrorKind::NotFound, "{error}");
    assert!(
        error
            .to_string()
            .contains("orders-app-WorkerMetricStats is missing"),
        "{error}"
    );
    assert_eq!(fixture.tables().await, ["orders-app", COORDINATOR]);

    let fixture = Fixture::unprepared().await;
    fixture.create_raw_table(COORDINATOR, "id").await;
    let error = fixture.store.prepare().await.expect_err("another table");
    assert_eq!(error.kind(), StoreErrorKind::Invalid, "{error}");
    assert!(
        error.to_string().contains("(id HASH S) instead of (key HASH S)"),
        "{error}"
    );
}

#[tokio::test]
async fn the_names_come_from_the_application_or_are_given() {
    let fixture = legacy().await;
    let of = |table: &str| DynamoDbLeaseStore::builder_with_sdk_config(table, &fixture.config);
    let named = of("leases").application_name("orders-app").build();
    named.prepare().await.expect("prepare");
    assert!(
        named
            .write_leader_lock(&acquire("w1", "one"))
            .await
            .expect("lock")
    );
    let given = of("more-leases")
        .coordinator_state_table(COORDINATOR)
        .worker_metrics_table(METRICS)
        .build();
    given.prepare().await.expect("prepare");
    assert_eq!(
        given.read_leader_lock().await.expect("read"),
        Some(lock("w1", "one"))
    );
}
