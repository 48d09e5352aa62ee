//! Makes the lease table ready: creates it, adds the owner index, waits until both can be used.
//!
//! The table is the Java KCL's own (`KCL: DynamoDBLeaseRefresher#createLeaseTableIfNotExists`,
//! `#createLeaseOwnerToLeaseKeyIndexIfNotExists`), with the index created together with the table, which saves a fleet's first
//! start some minutes; a Java worker then finds it present.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::ProvideErrorMetadata as _;
use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::operation::describe_table::DescribeTableError;
use aws_sdk_dynamodb::operation::update_table::UpdateTableError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, CreateGlobalSecondaryIndexAction, GlobalSecondaryIndex,
    GlobalSecondaryIndexUpdate, IndexStatus, KeySchemaElement, KeyType, Projection, ProjectionType,
    ProvisionedThroughput, ScalarAttributeType, TableDescription, TableStatus,
};

use super::error::store_error;
use super::item::{LEASE_KEY, LEASE_OWNER};
use super::start::Progress;
use crate::store::{StoreError, StoreErrorKind};

mod options;

pub(super) use options::TableOptions;

/// The index from owners to their leases.
pub(super) const OWNER_INDEX: &str = "LeaseOwnerToLeaseKeyIndex";

/// What a look at the table asks for.
#[derive(Debug, PartialEq)]
enum NextStep {
    /// Nothing: table and index can be used.
    Done,
    /// The table is not there.
    CreateTable,
    /// The table is there without the index. Provisioned tables want their own capacity for it.
    AddIndex(Option<ProvisionedThroughput>),
    /// Look again; the text says what is being waited for.
    Wait(String),
    /// It is not a lease table; the text says why.
    Refuse(String),
}

/// Does the first thing that the table lacks.
pub(super) async fn look(
    client: &Client,
    table: &str,
    options: &TableOptions,
) -> Result<Progress, StoreError> {
    let description = describe(client, table).await?;
    match next_step(description.as_ref()) {
        NextStep::Done => {
            if let Some(description) = &description {
                options::complete(client, table, description, options).await?;
            }
            Ok(Progress::Done)
        }
        NextStep::Refuse(reason) => {
            let reason = format!("{reason}; name another lease table, or remove this one");
            Err(StoreError::new(StoreErrorKind::Invalid, doing(table), reason).without_side_effects())
        }
        NextStep::Wait(what) => Ok(Progress::Wait(what)),
        NextStep::CreateTable => Ok(if create_table(client, table, options).await? {
            Progress::Again
        } else {
            Progress::Wait("the table is being created".to_owned())
        }),
        NextStep::AddIndex(throughput) => Ok(if add_index(client, table, throughput).await? {
            Progress::Again
        } else {
            Progress::Wait(format!("index {OWNER_INDEX} is being added"))
        }),
    }
}

pub(super) fn doing(table: &str) -> String {
    format!("preparing DynamoDB table {table}")
}

/// The table, `None` where there is none.
pub(super) async fn describe(client: &Client, table: &str) -> Result<Option<TableDescription>, StoreError> {
    match client.describe_table().table_name(table).send().await {
        Ok(output) => Ok(output.table),
        Err(error)
            if error
                .as_service_error()
                .is_some_and(DescribeTableError::is_resource_not_found_exception) =>
        {
            Ok(None)
        }
        Err(error) => Err(store_error(doing(table), error)),
    }
}

fn next_step(table: Option<&TableDescription>) -> NextStep {
    let Some(table) = table else {
        return NextStep::CreateTable;
    };
    if let Some(reason) = wrong_key(table) {
        return NextStep::Refuse(reason);
    }
    match table.table_status() {
        Some(TableStatus::Active | TableStatus::Updating) | None => {}
        Some(status) => return NextStep::Wait(format!("the table is {status}")),
    }
    let index = table
        .global_secondary_indexes()
        .iter()
        .find(|index| index.index_name() == Some(OWNER_INDEX));
    let Some(index) = index else {
        // An index can be added to an active table only.
        return match table.table_status() {
            Some(TableStatus::Updating) => NextStep::Wait("the table is UPDATING".to_owned()),
            _ => NextStep::AddIndex(index_throughput(table)),
        };
    };
    if key_text(index.key_schema(), table) != format!("{LEASE_OWNER} HASH S, {LEASE_KEY} RANGE S") {
        return NextStep::Refuse(format!(
            "its index {OWNER_INDEX} has the key ({}) instead of ({LEASE_OWNER} HASH S, {LEASE_KEY} RANGE S)",
            key_text(index.key_schema(), table)
        ));
    }
    match index.index_status() {
        Some(IndexStatus::Active) | None => NextStep::Done,
        Some(status) => NextStep::Wait(format!("index {OWNER_INDEX} is {status}")),
    }
}

fn wrong_key(table: &TableDescription) -> Option<String> {
    let key = key_text(table.key_schema(), table);
    (key != format!("{LEASE_KEY} HASH S")).then(|| {
        format!("the table has the key ({key}) instead of ({LEASE_KEY} HASH S), so it is no KCL lease table")
    })
}

/// A key schema with its types, as in `leaseOwner HASH S, leaseKey RANGE S`.
pub(super) fn key_text(schema: &[KeySchemaElement], table: &TableDescription) -> String {
    let type_of = |name: &str| {
        let definition = table
            .attribute_definitions()
            .iter()
            .find(|it| it.attribute_name() == name);
        definition.map_or("?", |definition| definition.attribute_type().as_str())
    };
    let parts = schema.iter().map(|element| {
        format!(
            "{} {} {}",
            element.attribute_name(),
            element.key_type(),
            type_of(element.attribute_name())
        )
    });
    parts.collect::<Vec<_>>().join(", ")
}

fn index_throughput(table: &TableDescription) -> Option<ProvisionedThroughput> {
    let mode = table
        .billing_mode_summary()
        .and_then(|summary| summary.billing_mode());
    let throughput = table.provisioned_throughput()?;
    let (read, write) = (
        throughput.read_capacity_units()?,
        throughput.write_capacity_units()?,
    );
    if mode == Some(&BillingMode::PayPerRequest) || read < 1 || write < 1 {
        return None;
    }
    ProvisionedThroughput::builder()
        .read_capacity_units(read)
        .write_capacity_units(write)
        .build()
        .ok()
}

/// Whether this call created it; if not, another worker was faster.
async fn create_table(client: &Client, table: &str, options: &TableOptions) -> Result<bool, StoreError> {
    let index = GlobalSecondaryIndex::builder()
        .index_name(OWNER_INDEX)
        .set_key_schema(Some(index_key(table)?))
        .projection(keys_only())
        .set_provisioned_throughput(options.throughput(table)?)
        .build()
        .map_err(|error| unbuildable(table, error))?;
    let sent = client
        .create_table()
        .table_name(table)
        .set_attribute_definitions(Some(attributes(table)?))
        .key_schema(key(table, LEASE_KEY, KeyType::Hash)?)
        .billing_mode(options.billing_mode())
        .set_provisioned_throughput(options.throughput(table)?)
        .deletion_protection_enabled(options.deletion_protection)
        .set_tags(options.tags(table)?)
        .global_secondary_indexes(index)
        .send()
        .await;
    match sent {
        Ok(_) => Ok(true),
        Err(error)
            if error
                .as_service_error()
                .is_some_and(CreateTableError::is_resource_in_use_exception) =>
        {
            Ok(false)
        }
        Err(error) => Err(store_error(format!("creating DynamoDB table {table}"), error)),
    }
}

/// Whether this call added it; if not, another worker is at it, or the account makes too many indexes at once.
async fn add_index(
    client: &Client,
    table: &str,
    throughput: Option<ProvisionedThroughput>,
) -> Result<bool, StoreError> {
    let create = CreateGlobalSecondaryIndexAction::builder()
        .index_name(OWNER_INDEX)
        .set_key_schema(Some(index_key(table)?))
        .projection(keys_only())
        .set_provisioned_throughput(throughput)
        .build()
        .map_err(|error| unbuildable(table, error))?;
    let sent = client
        .update_table()
        .table_name(table)
        .set_attribute_definitions(Some(attributes(table)?))
        .global_secondary_index_updates(GlobalSecondaryIndexUpdate::builder().create(create).build())
        .send()
        .await;
    match sent {
        Ok(_) => Ok(true),
        Err(error)
            if error.as_service_error().is_some_and(|error| {
                UpdateTableError::is_resource_in_use_exception(error)
                    || UpdateTableError::is_limit_exceeded_exception(error)
                    // AWS has no error of its own for an index that is there by now.
                    || error.message().is_some_and(|message| message.contains("already exists"))
            }) =>
        {
            Ok(false)
        }
        Err(error) => Err(store_error(
            format!("adding index {OWNER_INDEX} to DynamoDB table {table}"),
            error,
        )),
    }
}

fn attributes(table: &str) -> Result<Vec<AttributeDefinition>, StoreError> {
    let define = |name| {
        AttributeDefinition::builder()
            .attribute_name(name)
            .attribute_type(ScalarAttributeType::S)
            .build()
            .map_err(|error| unbuildable(table, error))
    };
    Ok(vec![define(LEASE_KEY)?, define(LEASE_OWNER)?])
}

fn index_key(table: &str) -> Result<Vec<KeySchemaElement>, StoreError> {
    Ok(vec![
        key(table, LEASE_OWNER, KeyType::Hash)?,
        key(table, LEASE_KEY, KeyType::Range)?,
    ])
}

fn key(table: &str, name: &str, kind: KeyType) -> Result<KeySchemaElement, StoreError> {
    KeySchemaElement::builder()
        .attribute_name(name)
        .key_type(kind)
        .build()
        .map_err(|error| unbuildable(table, error))
}

fn keys_only() -> Projection {
    Projection::builder()
        .projection_type(ProjectionType::KeysOnly)
        .build()
}

fn unbuildable(table: &str, error: aws_sdk_dynamodb::error::BuildError) -> StoreError {
    StoreError::new(StoreErrorKind::Internal, doing(table), "a request lacks a field").with_source(error)
}

#[cfg(test)]
mod tests;
