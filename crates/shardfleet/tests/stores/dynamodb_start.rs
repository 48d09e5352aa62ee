//! Starts on DynamoDB that go wrong: a call that fails once, a start that was cut short, several at once, and fleets that are none for this release.

use std::time::Duration;

use aws_sdk_dynamodb::types::BillingMode;
use futures::future::join_all;
use shardfleet::store::{DynamoDbLeaseStore, LeaseStore, StoreErrorKind};
use shardfleet_core::ids::WorkerId;
use shardfleet_local::{DynamoFault, DynamoFaultRule, DynamoFaultTimes};

use super::dynamodb::{Fixture, Item, text};
use super::new_lease;

async fn is_ready(fixture: &Fixture, told: &str) {
    let store = &fixture.store;
    assert!(store.create(&new_lease(1)).await.expect(told), "{told}");
    store.owned_by(&WorkerId::new("w1")).await.expect(told);
    let row = fixture.row("Migration3.0").await;
    assert_eq!(row.get("cv"), Some(&text("CLIENT_VERSION_3X")), "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_call_of_every_kind_fails_once_and_the_start_succeeds() {
    let operations = [
        "DescribeTable",
        "CreateTable",
        "UpdateTable",
        "GetItem",
        "PutItem",
    ];
    let faults = [
        DynamoFault::Throttle,
        DynamoFault::InternalError,
        DynamoFault::error("LimitExceededException"),
        DynamoFault::error("ResourceInUseException"),
        DynamoFault::delay(Duration::from_millis(50)),
        DynamoFault::LoseAnswer,
        DynamoFault::Cut,
    ];
    let starts = operations.into_iter().flat_map(|operation| {
        faults.clone().map(|fault| async move {
            let told = format!("{operation} {fault:?}");
            let fixture = Fixture::unprepared().await;
            // A table without its index, or none at all, so that each operation is needed.
            if operation == "UpdateTable" {
                fixture.create_raw_table("orders-app", "leaseKey").await;
            }
            let rule = DynamoFaultRule::on(operation, fault).once();
            let id = fixture.service.controls().add_fault(rule);
            fixture.store.prepare().await.expect(&told);
            assert_eq!(fixture.service.controls().hits(id), 1, "{told}");
            is_ready(&fixture, &told).await;
        })
    });
    join_all(starts).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_account_is_waited_for_and_a_dead_one_is_told() {
    for code in ["LimitExceededException", "ResourceInUseException"] {
        let fixture = Fixture::unprepared().await;
        let rule = DynamoFaultRule::on("CreateTable", DynamoFault::error(code));
        let id = fixture
            .service
            .controls()
            .add_fault(rule.times(DynamoFaultTimes::Times(3)));
        fixture.store.prepare().await.expect(code);
        assert_eq!(fixture.service.controls().hits(id), 3, "{code}");
        is_ready(&fixture, code).await;
    }
    let fixture = Fixture::unprepared().await;
    fixture.service.controls().cut(true);
    let error = fixture.store.prepare().await.expect_err("nobody answers");
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    let fixture = Fixture::unprepared().await;
    fixture.service.controls().add_fault(DynamoFaultRule::on(
        "CreateTable",
        DynamoFault::error("AccessDeniedException"),
    ));
    let error = fixture.store.prepare().await.expect_err("not allowed");
    assert_eq!(error.kind(), StoreErrorKind::Unauthorized, "{error}");
    assert_eq!(
        fixture.service.controls().calls("CreateTable"),
        1,
        "it is not asked again"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_stores_on_an_empty_account_all_start() {
    for _ in 0..5 {
        let fixture = Fixture::unprepared().await;
        let prepare = |_| {
            let store = DynamoDbLeaseStore::builder_with_sdk_config("orders-app", &fixture.config).build();
            tokio::spawn(async move { store.prepare().await })
        };
        for prepared in join_all((0..4).map(prepare)).await {
            prepared.expect("no panic").expect("prepare");
        }
        is_ready(&fixture, "four at once").await;
        assert_eq!(fixture.tables().await, ["orders-app"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_table_lacks_of_the_options_is_completed_at_the_next_start() {
    let fixture = Fixture::unprepared().await;
    fixture.create_raw_table("orders-app", "leaseKey").await;
    let store = DynamoDbLeaseStore::builder_with_sdk_config("orders-app", &fixture.config)
        .point_in_time_recovery(true)
        .tag("team", "orders")
        .tag("stage", "test")
        .build();
    // The start before ended between the table and the rest; this one ends between one part of the rest and the next.
    for operation in ["UpdateContinuousBackups", "TagResource"] {
        let rule = DynamoFaultRule::on(operation, DynamoFault::error("AccessDeniedException"));
        fixture.service.controls().add_fault(rule.once());
        let error = store.prepare().await.expect_err(operation);
        assert_eq!(error.kind(), StoreErrorKind::Unauthorized, "{error}");
    }
    store.prepare().await.expect("prepare");
    is_ready(&fixture, "completed").await;
    let backups = fixture
        .raw
        .describe_continuous_backups()
        .table_name("orders-app")
        .send()
        .await;
    let backups = backups
        .expect("describe")
        .continuous_backups_description
        .expect("a description");
    let recovery = backups.point_in_time_recovery_description.expect("a description");
    assert_eq!(
        recovery.point_in_time_recovery_status.expect("a status").as_str(),
        "ENABLED"
    );
    let table = fixture
        .raw
        .describe_table()
        .table_name("orders-app")
        .send()
        .await
        .expect("describe");
    let arn = table.table.expect("a table").table_arn.expect("an ARN");
    let tags = fixture
        .raw
        .list_tags_of_resource()
        .resource_arn(arn)
        .send()
        .await
        .expect("tags");
    let mut tags: Vec<_> = tags.tags().iter().map(|tag| (tag.key(), tag.value())).collect();
    tags.sort_unstable();
    assert_eq!(tags, [("stage", "test"), ("team", "orders")]);
    // What is there already is not written again.
    fixture.service.controls().reset_calls();
    store.prepare().await.expect("prepare");
    for operation in [
        "UpdateContinuousBackups",
        "TagResource",
        "UpdateTable",
        "CreateTable",
        "PutItem",
    ] {
        assert_eq!(fixture.service.controls().calls(operation), 0, "{operation}");
    }
}

#[tokio::test]
async fn a_table_is_protected_from_deletion_where_asked_and_never_stripped_of_it() {
    let fixture = Fixture::unprepared().await;
    let store = |table: &str, is_protected: bool| {
        DynamoDbLeaseStore::builder_with_sdk_config(table, &fixture.config)
            .deletion_protection(is_protected)
            .build()
    };
    let is_protected = async |table: &str| {
        let described = fixture.raw.describe_table().table_name(table).send().await;
        let table = described.expect("describe").table.expect("a table");
        table.deletion_protection_enabled().unwrap_or_default()
    };
    store("plain", false).prepare().await.expect("prepare");
    assert!(!is_protected("plain").await);
    // One that is there already gets what it lacks; a start that does not ask for it leaves it.
    for wanted in [true, false] {
        store("plain", wanted).prepare().await.expect("prepare");
        assert!(is_protected("plain").await, "{wanted}");
    }
    store("new", true).prepare().await.expect("prepare");
    assert!(is_protected("new").await);
    let refused = fixture.raw.delete_table().table_name("new").send().await;
    assert!(refused.is_err(), "a protected table was deleted");
}

#[tokio::test]
async fn a_new_table_has_the_capacity_that_was_asked_for() {
    let fixture = Fixture::unprepared().await;
    let store = DynamoDbLeaseStore::builder_with_sdk_config("provisioned", &fixture.config)
        .provisioned_capacity(12, 7)
        .build();
    store.prepare().await.expect("prepare");
    let table = fixture
        .raw
        .describe_table()
        .table_name("provisioned")
        .send()
        .await
        .expect("describe");
    let table = table.table.expect("a table");
    let mode = table
        .billing_mode_summary()
        .and_then(|summary| summary.billing_mode());
    assert!(matches!(mode, None | Some(BillingMode::Provisioned)), "{mode:?}");
    let capacity = table.provisioned_throughput().expect("a throughput");
    assert_eq!(
        (capacity.read_capacity_units(), capacity.write_capacity_units()),
        (Some(12), Some(7))
    );
}

#[tokio::test]
async fn a_fleet_that_is_not_wholly_at_3x_is_refused() {
    for version in [
        "CLIENT_VERSION_2X",
        "CLIENT_VERSION_UPGRADE_FROM_2X",
        "CLIENT_VERSION_3X_WITH_ROLLBACK",
        "CLIENT_VERSION_9X",
    ] {
        let fixture = Fixture::unprepared().await;
        fixture.create_raw_table("orders-app", "leaseKey").await;
        let row: Item = [
            ("leaseKey", "Migration3.0"),
            ("entityType", "CLIENT_VERSION_MIGRATION"),
            ("cv", version),
        ]
        .map(|(name, value)| (name.to_owned(), text(value)))
        .into();
        fixture.put(row.clone()).await;
        let error = fixture.store.prepare().await.expect_err(version);
        assert_eq!(error.kind(), StoreErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(version), "{error}");
        assert_eq!(fixture.row("Migration3.0").await, row, "{version}");
    }
}
