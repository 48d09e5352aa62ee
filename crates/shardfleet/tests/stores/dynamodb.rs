//! DynamoDB: the table, the Java KCL's own rows, and what else lives in the table.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{Credentials, SharedCredentialsProvider};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use serde_json::Value;
use shardfleet::store::{DynamoDbLeaseStore, LeaseStore, StoreErrorKind, conformance};
use shardfleet_core::ids::{LeaseKey, WorkerId};
use shardfleet_core::lease::{Lease, LeaseWrite, PendingCheckpoint, WriteOutcome};
use shardfleet_core::sequence::ExtendedSequenceNumber;
use shardfleet_local::LocalDynamoDb;

use super::{dynamo_json, new_lease};

const ITEMS: &str = include_str!("../vectors/kcl-items.json");

pub(crate) type Item = HashMap<String, AttributeValue>;

pub(crate) fn sdk_config(endpoint: &str) -> SdkConfig {
    let credentials = Credentials::new("AKIDLOCAL", "secret", None, None, "tests");
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(SharedCredentialsProvider::new(credentials))
        .endpoint_url(endpoint)
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .build()
}

/// An embedded DynamoDB, a client that reads and writes rows as they are, and a store on a prepared table.
pub(crate) struct Fixture {
    pub(crate) service: LocalDynamoDb,
    pub(crate) config: SdkConfig,
    pub(crate) raw: Client,
    pub(crate) store: DynamoDbLeaseStore,
}

impl Fixture {
    pub(crate) async fn start() -> Self {
        let fixture = Self::unprepared().await;
        fixture.store.prepare().await.expect("prepare");
        fixture
    }

    /// An account without tables.
    pub(crate) async fn unprepared() -> Self {
        let service = LocalDynamoDb::builder().start().await.expect("DynamoDB");
        let config = sdk_config(&service.endpoint());
        let store = DynamoDbLeaseStore::builder_with_sdk_config("orders-app", &config).build();
        Self {
            service,
            raw: Client::new(&config),
            config,
            store,
        }
    }

    pub(crate) async fn put(&self, item: Item) {
        self.put_into("orders-app", item).await;
    }

    pub(crate) async fn put_into(&self, table: &str, item: Item) {
        self.raw
            .put_item()
            .table_name(table)
            .set_item(Some(item))
            .send()
            .await
            .expect("put");
    }

    pub(crate) async fn row(&self, lease_key: &str) -> Item {
        let row = self.row_of("orders-app", "leaseKey", lease_key).await;
        row.expect("a row")
    }

    pub(crate) async fn row_of(&self, table: &str, key_name: &str, key: &str) -> Option<Item> {
        let got = self
            .raw
            .get_item()
            .table_name(table)
            .key(key_name, AttributeValue::S(key.to_owned()))
            .consistent_read(true)
            .send()
            .await;
        got.expect("get").item
    }

    pub(crate) async fn tables(&self) -> Vec<String> {
        let listed = self.raw.list_tables().send().await.expect("list");
        listed.table_names.unwrap_or_default()
    }

    pub(crate) async fn create_raw_table(&self, table: &str, hash_key: &str) {
        let key = KeySchemaElement::builder()
            .attribute_name(hash_key)
            .key_type(KeyType::Hash)
            .build();
        let attribute = AttributeDefinition::builder()
            .attribute_name(hash_key)
            .attribute_type(ScalarAttributeType::S)
            .build();
        self.raw
            .create_table()
            .table_name(table)
            .key_schema(key.expect("key"))
            .attribute_definitions(attribute.expect("attribute"))
            .billing_mode(BillingMode::PayPerRequest)
            .send()
            .await
            .expect("create table");
    }
}

pub(crate) fn recorded() -> Vec<(String, Item)> {
    let vectors: Value = serde_json::from_str(ITEMS).expect("JSON");
    let items = vectors["items"].as_array().expect("items");
    // The legacy tables of 3.4 have other keys and are not ours to read.
    let in_lease_table = items.iter().filter(|it| it["item"].get("leaseKey").is_some());
    in_lease_table
        .map(|it| {
            (
                it["stage"].as_str().expect("stage").to_owned(),
                dynamo_json::item(&it["item"]),
            )
        })
        .collect()
}

pub(crate) fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

pub(crate) fn number(value: u64) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dynamodb_conforms() {
    let service = LocalDynamoDb::builder().start().await.expect("DynamoDB");
    let config = sdk_config(&service.endpoint());
    let tables = AtomicU32::new(0);
    let make = || async {
        let table = format!("leases-{}", tables.fetch_add(1, Ordering::Relaxed));
        Ok(
            Arc::new(DynamoDbLeaseStore::builder_with_sdk_config(table, &config).build())
                as Arc<dyn LeaseStore>,
        )
    };
    conformance::run(make).await.assert_passed();
}

#[tokio::test]
async fn the_table_is_the_java_kcls_with_its_index() {
    let fixture = Fixture::start().await;
    let described = fixture
        .raw
        .describe_table()
        .table_name("orders-app")
        .send()
        .await
        .expect("describe");
    let table = described.table.expect("table");
    assert_eq!(table.key_schema().len(), 1);
    assert_eq!(table.key_schema()[0].attribute_name(), "leaseKey");
    let indexes = table.global_secondary_indexes();
    assert_eq!(indexes.len(), 1);
    assert_eq!(indexes[0].index_name(), Some("LeaseOwnerToLeaseKeyIndex"));
    let names: Vec<_> = indexes[0]
        .key_schema()
        .iter()
        .map(KeySchemaElement::attribute_name)
        .collect();
    assert_eq!(names, ["leaseOwner", "leaseKey"]);
    let tables = fixture
        .raw
        .list_tables()
        .send()
        .await
        .expect("list")
        .table_names
        .unwrap_or_default();
    assert_eq!(tables, ["orders-app"], "the legacy tables must never be made");
}

#[tokio::test]
async fn a_table_without_the_index_gets_it_also_when_several_workers_start() {
    let fixture = Fixture::start().await;
    fixture.create_raw_table("old-app", "leaseKey").await;
    let store = DynamoDbLeaseStore::builder_with_sdk_config("old-app", &fixture.config).build();
    let lease = Lease {
        owner: Some(WorkerId::new("w1")),
        ..new_lease(1)
    };
    assert!(store.create(&lease).await.expect("create"));
    let error = store
        .owned_by(&WorkerId::new("w1"))
        .await
        .expect_err("no index yet");
    assert!(
        matches!(error.kind(), StoreErrorKind::Invalid | StoreErrorKind::NotFound),
        "{error}"
    );

    let (a, b, c) = tokio::join!(store.prepare(), store.prepare(), store.prepare());
    a.and(b).and(c).expect("prepare");
    assert_eq!(
        store.owned_by(&WorkerId::new("w1")).await.expect("owned_by"),
        [lease.lease_key]
    );

    let new = DynamoDbLeaseStore::builder_with_sdk_config("new-app", &fixture.config).build();
    let (a, b, c) = tokio::join!(new.prepare(), new.prepare(), new.prepare());
    a.and(b).and(c).expect("prepare");
}

#[tokio::test]
async fn a_table_with_another_key_is_refused() {
    let fixture = Fixture::start().await;
    fixture.create_raw_table("customers", "customerId").await;
    let store = DynamoDbLeaseStore::builder_with_sdk_config("customers", &fixture.config).build();
    let error = store.prepare().await.expect_err("not a lease table");
    assert_eq!(error.kind(), StoreErrorKind::Invalid);
    assert_eq!(
        error.to_string(),
        "preparing DynamoDB table customers failed: the table has the key (customerId HASH S) instead of \
         (leaseKey HASH S), so it is no KCL lease table; name another lease table, or remove this one"
    );
}

#[tokio::test]
async fn rows_of_the_java_kcl_are_read_and_only_the_attributes_meant_change() {
    let fixture = Fixture::start().await;
    let mut leases = 0;
    for (stage, mut item) in recorded() {
        let AttributeValue::S(key) = item["leaseKey"].clone() else {
            panic!("{stage}: key")
        };
        item.insert("attributeOfTheFuture".to_owned(), text("kept"));
        fixture.put(item).await;
        let before = fixture.row(&key).await;
        let lease = fixture.store.get(&LeaseKey::new(&key)).await.expect("get");
        if !stage.starts_with("lease") {
            assert_eq!(lease, None, "{stage}");
            continue;
        }
        leases += 1;
        let lease = lease.expect("a lease");

        // A heartbeat touches the counter alone.
        let written = fixture
            .store
            .update(&LeaseWrite::renew(&lease, None))
            .await
            .expect("update");
        let WriteOutcome::Written(lease) = written else {
            panic!("{stage}: {written:?}")
        };
        let mut expected = before.clone();
        expected.insert("leaseCounter".to_owned(), number(lease.counter));
        assert_eq!(fixture.row(&key).await, expected, "{stage}");

        // A checkpoint: position, counter, owner switches; the pending one goes.
        let at = ExtendedSequenceNumber::parse("49680720141260965517146300220199426571390764021536784386", 3);
        let checkpoint = LeaseWrite::checkpoint(&lease, at.expect("digits"));
        let written = fixture.store.update(&checkpoint).await.expect("update");
        assert!(
            matches!(written, WriteOutcome::Written(_)),
            "{stage}: {written:?}"
        );
        expected.insert("leaseCounter".to_owned(), number(lease.counter + 1));
        expected.insert("ownerSwitchesSinceCheckpoint".to_owned(), number(0));
        expected.insert(
            "checkpoint".to_owned(),
            text("49680720141260965517146300220199426571390764021536784386"),
        );
        expected.insert("checkpointSubSequenceNumber".to_owned(), number(3));
        for gone in [
            "pendingCheckpoint",
            "pendingCheckpointSubSequenceNumber",
            "pendingCheckpointState",
        ] {
            expected.remove(gone);
        }
        assert_eq!(fixture.row(&key).await, expected, "{stage}");
    }
    assert_eq!(leases, 48);
}

#[tokio::test]
async fn a_scan_passes_over_other_rows_and_reports_unreadable_ones() {
    let fixture = Fixture::start().await;
    for (stage, item) in recorded() {
        if !stage.starts_with("lease") {
            fixture.put(item).await;
        }
    }
    assert!(fixture.store.create(&new_lease(1)).await.expect("create"));
    let broken = [
        ("leaseKey", text("shardId-broken")),
        ("checkpoint", text("LATEST")),
        ("leaseOwner", text("w1")),
    ];
    fixture
        .put(broken.map(|(name, value)| (name.to_owned(), value)).into())
        .await;

    let scan = fixture.store.scan().await.expect("scan");
    assert_eq!(scan.leases, [new_lease(1)]);
    assert_eq!(scan.unreadable.len(), 1, "{:?}", scan.unreadable);
    assert_eq!(scan.unreadable[0].lease_key, "shardId-broken");
    assert_eq!(
        scan.unreadable[0].reason,
        "leaseCounter is missing; a whole number is expected"
    );
    let error = fixture
        .store
        .get(&LeaseKey::new("shardId-broken"))
        .await
        .expect_err("unreadable");
    assert_eq!(error.kind(), StoreErrorKind::Data);
    // The owner index does not need to read the row.
    let owned = fixture
        .store
        .owned_by(&WorkerId::new("w1"))
        .await
        .expect("owned_by");
    assert_eq!(owned, [LeaseKey::new("shardId-broken")]);
}

#[tokio::test]
async fn a_scan_goes_over_all_pages() {
    let fixture = Fixture::start().await;
    // Eight rows of 300 KB are three pages of 1 MB.
    let mut expected = Vec::new();
    for row in 0..8 {
        let state = Some(vec![7; 300_000]);
        let at = ExtendedSequenceNumber::Latest;
        let lease = Lease {
            pending_checkpoint: Some(PendingCheckpoint { at, state }),
            ..new_lease(row)
        };
        assert!(fixture.store.create(&lease).await.expect("create"));
        expected.push(lease);
    }
    assert_eq!(fixture.store.scan().await.expect("scan").leases, expected);
}

#[tokio::test]
async fn a_missing_table_says_so() {
    let fixture = Fixture::start().await;
    let store = DynamoDbLeaseStore::builder_with_sdk_config("nowhere", &fixture.config).build();
    let error = store.get(&new_lease(1).lease_key).await.expect_err("no table");
    assert_eq!(error.kind(), StoreErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("DynamoDB table nowhere"), "{error}");
}
