//! What an application asks of its lease table beyond being there: recovery, protection, tags and capacity (`KCL: LeaseManagementConfig`).
//!
//! A table is given what it lacks at each start, so a start that was cut short, or a table from before the settings, is completed by the next. Nothing is ever
//! taken away, since another worker's settings may be newer.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{
    BillingMode, PointInTimeRecoverySpecification, PointInTimeRecoveryStatus, ProvisionedThroughput,
    TableDescription, Tag,
};

use super::{doing, unbuildable};
use crate::store::StoreError;
use crate::store::dynamodb::error::store_error;

/// The settings of the table. By default nothing is asked for, and no call is made for it.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct TableOptions {
    pub(in super::super) point_in_time_recovery: bool,
    pub(in super::super) deletion_protection: bool,
    pub(in super::super) tags: BTreeMap<String, String>,
    /// Read and write units of a new table and its index; `None` is on-demand.
    pub(in super::super) capacity: Option<(u32, u32)>,
}

impl TableOptions {
    pub(super) fn billing_mode(&self) -> BillingMode {
        match self.capacity {
            Some(_) => BillingMode::Provisioned,
            None => BillingMode::PayPerRequest,
        }
    }

    pub(super) fn throughput(&self, table: &str) -> Result<Option<ProvisionedThroughput>, StoreError> {
        let Some((read, write)) = self.capacity else {
            return Ok(None);
        };
        ProvisionedThroughput::builder()
            .read_capacity_units(read.into())
            .write_capacity_units(write.into())
            .build()
            .map(Some)
            .map_err(|error| unbuildable(table, error))
    }

    pub(super) fn tags(&self, table: &str) -> Result<Option<Vec<Tag>>, StoreError> {
        let tags: Result<Vec<_>, _> = self
            .tags
            .iter()
            .map(|(key, value)| tag(table, key, value))
            .collect();
        Ok(Some(tags?).filter(|tags| !tags.is_empty()))
    }
}

fn tag(table: &str, key: &str, value: &str) -> Result<Tag, StoreError> {
    let tag = Tag::builder().key(key).value(value).build();
    tag.map_err(|error| unbuildable(table, error))
}

/// Gives an active table what it lacks of the options.
pub(super) async fn complete(
    client: &Client,
    table: &str,
    described: &TableDescription,
    options: &TableOptions,
) -> Result<(), StoreError> {
    if options.deletion_protection && described.deletion_protection_enabled() != Some(true) {
        client
            .update_table()
            .table_name(table)
            .deletion_protection_enabled(true)
            .send()
            .await
            .map_err(|error| store_error(format!("protecting DynamoDB table {table}"), error))?;
    }
    if options.point_in_time_recovery {
        recover(client, table).await?;
    }
    if let Some(arn) = described.table_arn().filter(|_| !options.tags.is_empty()) {
        add_tags(client, table, arn, options).await?;
    }
    Ok(())
}

async fn recover(client: &Client, table: &str) -> Result<(), StoreError> {
    let described = client
        .describe_continuous_backups()
        .table_name(table)
        .send()
        .await
        .map_err(|error| store_error(format!("reading the backups of DynamoDB table {table}"), error))?;
    let status = described
        .continuous_backups_description()
        .and_then(|backups| backups.point_in_time_recovery_description())
        .and_then(|recovery| recovery.point_in_time_recovery_status());
    if status == Some(&PointInTimeRecoveryStatus::Enabled) {
        return Ok(());
    }
    let specification = PointInTimeRecoverySpecification::builder()
        .point_in_time_recovery_enabled(true)
        .build()
        .map_err(|error| unbuildable(table, error))?;
    client
        .update_continuous_backups()
        .table_name(table)
        .point_in_time_recovery_specification(specification)
        .send()
        .await
        .map(drop)
        .map_err(|error| {
            store_error(
                format!("turning on point-in-time recovery of DynamoDB table {table}"),
                error,
            )
        })
}

async fn add_tags(client: &Client, table: &str, arn: &str, options: &TableOptions) -> Result<(), StoreError> {
    let mut missing = options.tags.clone();
    let mut next = None;
    loop {
        let page = client
            .list_tags_of_resource()
            .resource_arn(arn)
            .set_next_token(next)
            .send()
            .await
            .map_err(|error| store_error(doing(table), error))?;
        for tag in page.tags() {
            if missing.get(tag.key()).is_some_and(|value| value == tag.value()) {
                missing.remove(tag.key());
            }
        }
        next = page.next_token;
        if next.is_none() {
            break;
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let tags: Result<Vec<_>, _> = missing
        .iter()
        .map(|(key, value)| tag(table, key, value))
        .collect();
    client
        .tag_resource()
        .resource_arn(arn)
        .set_tags(Some(tags?))
        .send()
        .await
        .map(drop)
        .map_err(|error| store_error(format!("tagging DynamoDB table {table}"), error))
}
