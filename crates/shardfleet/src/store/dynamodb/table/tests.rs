use super::*;
use aws_sdk_dynamodb::types::{
    BillingModeSummary, GlobalSecondaryIndexDescription, ProvisionedThroughputDescription,
    builders::TableDescriptionBuilder,
};

fn attribute(name: &str, kind: ScalarAttributeType) -> AttributeDefinition {
    AttributeDefinition::builder()
        .attribute_name(name)
        .attribute_type(kind)
        .build()
        .expect("attribute")
}

fn element(name: &str, kind: KeyType) -> KeySchemaElement {
    KeySchemaElement::builder()
        .attribute_name(name)
        .key_type(kind)
        .build()
        .expect("key")
}

fn lease_table(status: TableStatus) -> TableDescriptionBuilder {
    TableDescription::builder()
        .table_status(status)
        .key_schema(element(LEASE_KEY, KeyType::Hash))
        .attribute_definitions(attribute(LEASE_KEY, ScalarAttributeType::S))
        .attribute_definitions(attribute(LEASE_OWNER, ScalarAttributeType::S))
}

fn index(status: IndexStatus, hash: &str) -> GlobalSecondaryIndexDescription {
    GlobalSecondaryIndexDescription::builder()
        .index_name(OWNER_INDEX)
        .index_status(status)
        .key_schema(element(hash, KeyType::Hash))
        .key_schema(element(LEASE_KEY, KeyType::Range))
        .build()
}

#[test]
fn goes_from_nothing_to_an_active_index() {
    assert_eq!(next_step(None), NextStep::CreateTable);
    for status in [TableStatus::Creating, TableStatus::Deleting] {
        let table = lease_table(status.clone()).build();
        assert_eq!(
            next_step(Some(&table)),
            NextStep::Wait(format!("the table is {status}"))
        );
    }
    let bare = lease_table(TableStatus::Active).build();
    assert_eq!(next_step(Some(&bare)), NextStep::AddIndex(None));
    let busy = lease_table(TableStatus::Updating).build();
    assert!(matches!(next_step(Some(&busy)), NextStep::Wait(_)));
    let creating = lease_table(TableStatus::Updating)
        .global_secondary_indexes(index(IndexStatus::Creating, LEASE_OWNER));
    let expected = NextStep::Wait("index LeaseOwnerToLeaseKeyIndex is CREATING".to_owned());
    assert_eq!(next_step(Some(&creating.build())), expected);
    let ready =
        lease_table(TableStatus::Active).global_secondary_indexes(index(IndexStatus::Active, LEASE_OWNER));
    assert_eq!(next_step(Some(&ready.build())), NextStep::Done);
}

#[test]
fn an_index_on_a_provisioned_table_gets_the_tables_capacity() {
    let capacity = |mode: BillingMode, units: i64| {
        let throughput = ProvisionedThroughputDescription::builder()
            .read_capacity_units(units)
            .write_capacity_units(units);
        let table = lease_table(TableStatus::Active)
            .billing_mode_summary(BillingModeSummary::builder().billing_mode(mode).build())
            .provisioned_throughput(throughput.build());
        next_step(Some(&table.build()))
    };
    let ten = ProvisionedThroughput::builder()
        .read_capacity_units(10)
        .write_capacity_units(10)
        .build();
    assert_eq!(
        capacity(BillingMode::Provisioned, 10),
        NextStep::AddIndex(ten.ok())
    );
    assert_eq!(capacity(BillingMode::PayPerRequest, 0), NextStep::AddIndex(None));
}

#[test]
fn another_key_is_refused_in_words() {
    let orders = TableDescription::builder()
        .table_status(TableStatus::Active)
        .key_schema(element("id", KeyType::Hash))
        .key_schema(element("at", KeyType::Range))
        .attribute_definitions(attribute("id", ScalarAttributeType::N))
        .attribute_definitions(attribute("at", ScalarAttributeType::S))
        .build();
    let NextStep::Refuse(reason) = next_step(Some(&orders)) else {
        panic!("must refuse")
    };
    assert_eq!(
        reason,
        "the table has the key (id HASH N, at RANGE S) instead of (leaseKey HASH S), so it is no KCL lease table"
    );
    let other_index = lease_table(TableStatus::Active)
        .global_secondary_indexes(index(IndexStatus::Active, "checkpointOwner"));
    assert!(matches!(
        next_step(Some(&other_index.build())),
        NextStep::Refuse(_)
    ));
}
