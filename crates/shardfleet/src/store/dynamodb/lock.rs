//! The leader's lock, as the DynamoDB lock client keeps it (`KCL: LeaderLock`, `AmazonDynamoDBLockClient`).

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::operation::delete_item::builders::DeleteItemFluentBuilder;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::put_item::builders::PutItemFluentBuilder;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::AttributeValue;
use shardfleet_core::leader::{LOCK_ENTITY_TYPE, LOCK_KEY, LockCondition, LockFields, LockRow, LockWrite};

use super::DynamoDbLeaseStore;
use super::error::store_error;
use super::item::{ENTITY_TYPE, Item, text, text_of};
use super::layout::Place;
use crate::store::{LeaseStore as _, StoreError};

const OWNER_NAME: &str = "ownerName";
const LEASE_DURATION: &str = "leaseDuration";
const RECORD_VERSION: &str = "recordVersionNumber";
const IS_RELEASED: &str = "isReleased";

/// A lock whose duration cannot be read lasts as long as the Java KCL's default.
const DEFAULT_LOCK_DURATION: Duration = Duration::from_mins(2);

/// Reads the row.
///
/// # Errors
/// The attribute that is no text.
pub(super) fn lock_of(item: &Item) -> Result<LockRow, String> {
    let field = |name| Ok::<_, String>(text_of(item, name)?.map(str::to_owned));
    let fields = LockFields {
        owner_name: field(OWNER_NAME)?,
        lease_duration: field(LEASE_DURATION)?,
        record_version_number: field(RECORD_VERSION)?,
        is_released: field(IS_RELEASED)?,
    };
    Ok(LockRow::decode(&fields, DEFAULT_LOCK_DURATION))
}

/// The row of a lock that is taken.
fn new_row(place: Place<'_>, row: &LockRow) -> Item {
    let fields = row.encode();
    let mut item = Item::from([
        (place.key.to_owned(), text(LOCK_KEY)),
        (ENTITY_TYPE.to_owned(), text(LOCK_ENTITY_TYPE)),
    ]);
    for (name, value) in [
        (OWNER_NAME, fields.owner_name),
        (LEASE_DURATION, fields.lease_duration),
        (RECORD_VERSION, fields.record_version_number),
        (IS_RELEASED, fields.is_released),
    ] {
        if let Some(value) = value {
            item.insert(name.to_owned(), text(&value));
        }
    }
    item
}

/// A condition with its names and values.
#[derive(Default)]
pub(super) struct Condition {
    text: String,
    names: HashMap<String, String>,
    values: HashMap<String, AttributeValue>,
}

impl Condition {
    pub(super) fn of(place: Place<'_>, condition: &LockCondition) -> Self {
        let mut made = Self::default();
        made.names.insert("#key".to_owned(), place.key.to_owned());
        match condition {
            LockCondition::Absent => "attribute_not_exists(#key)".clone_into(&mut made.text),
            LockCondition::Released => made.exists_and("released", IS_RELEASED, "1"),
            LockCondition::VersionIs(Some(version)) => made.exists_and("seen", RECORD_VERSION, version),
            LockCondition::VersionIs(None) => {
                made.names.insert("#seen".to_owned(), RECORD_VERSION.to_owned());
                "attribute_exists(#key) AND attribute_not_exists(#seen)".clone_into(&mut made.text);
            }
            LockCondition::Mine { version, owner } => {
                made.exists_and("seen", RECORD_VERSION, version);
                made.text.push_str(" AND #owner = :owner");
                made.names.insert("#owner".to_owned(), OWNER_NAME.to_owned());
                made.values.insert(":owner".to_owned(), text(owner.as_str()));
            }
        }
        made
    }

    fn exists_and(&mut self, alias: &str, name: &str, value: &str) {
        self.text = format!("attribute_exists(#key) AND #{alias} = :{alias}");
        self.names.insert(format!("#{alias}"), name.to_owned());
        self.values.insert(format!(":{alias}"), text(value));
    }

    fn values(&self) -> Option<HashMap<String, AttributeValue>> {
        // DynamoDB refuses an empty map.
        (!self.values.is_empty()).then(|| self.values.clone())
    }
}

impl DynamoDbLeaseStore {
    fn doing_lock(&self, what: &str) -> String {
        format!("{what} the leader's lock in {}", self.describe())
    }

    pub(super) async fn read_lock(&self) -> Result<Option<LockRow>, StoreError> {
        let was_legacy = self.tables.is_legacy();
        let mut item = self.read_lock_row().await?;
        // After the row: a lock that is gone because the fleet has moved to one table must not be taken to be free.
        self.follow_the_move().await?;
        if was_legacy && !self.tables.is_legacy() {
            item = self.read_lock_row().await?;
        }
        // A row that cannot be read is one that nobody keeps: it is waited out and then taken like a dead leader's.
        Ok(item.map(|item| {
            lock_of(&item).unwrap_or_else(|reason| {
                tracing::warn!(reason, "the leader's lock cannot be read");
                LockRow::decode(&LockFields::default(), DEFAULT_LOCK_DURATION)
            })
        }))
    }

    async fn read_lock_row(&self) -> Result<Option<Item>, StoreError> {
        let read = self
            .get_row(self.tables.coordinator_place(), LOCK_KEY)
            .send()
            .await;
        read.map(|output| output.item)
            .map_err(|error| store_error(self.doing_lock("reading"), error))
    }

    pub(super) async fn write_lock(&self, write: &LockWrite) -> Result<bool, StoreError> {
        // A lock in a table that the fleet has left would make a second leader.
        self.follow_the_move()
            .await
            .map_err(StoreError::without_side_effects)?;
        let place = self.tables.coordinator_place();
        let condition = Condition::of(place, write.condition());
        match write {
            LockWrite::Acquire { row, .. } => {
                let sent = self.acquire(place, condition, row).send().await;
                let is_conflict = PutItemError::is_conditional_check_failed_exception;
                match sent {
                    Ok(_) => Ok(true),
                    Err(error) if error.as_service_error().is_some_and(is_conflict) => Ok(false),
                    Err(error) => Err(store_error(self.doing_lock("taking"), error)),
                }
            }
            LockWrite::Heartbeat {
                version,
                lease_duration,
                ..
            } => {
                let sent = self
                    .heartbeat(place, condition, version, *lease_duration)
                    .send()
                    .await;
                let is_conflict = UpdateItemError::is_conditional_check_failed_exception;
                match sent {
                    Ok(_) => Ok(true),
                    Err(error) if error.as_service_error().is_some_and(is_conflict) => Ok(false),
                    Err(error) => Err(store_error(self.doing_lock("keeping"), error)),
                }
            }
            LockWrite::Release { .. } => {
                let sent = self.release(place, condition).send().await;
                let is_conflict = DeleteItemError::is_conditional_check_failed_exception;
                match sent {
                    Ok(_) => Ok(true),
                    Err(error) if error.as_service_error().is_some_and(is_conflict) => Ok(false),
                    Err(error) => Err(store_error(self.doing_lock("releasing"), error)),
                }
            }
        }
    }

    pub(super) fn acquire(
        &self,
        place: Place<'_>,
        condition: Condition,
        row: &LockRow,
    ) -> PutItemFluentBuilder {
        self.writes
            .put_item()
            .table_name(place.table)
            .set_item(Some(new_row(place, row)))
            .condition_expression(&condition.text)
            .set_expression_attribute_values(condition.values())
            .set_expression_attribute_names(Some(condition.names))
    }

    pub(super) fn heartbeat(
        &self,
        place: Place<'_>,
        mut condition: Condition,
        version: &str,
        lease_duration: Duration,
    ) -> UpdateItemFluentBuilder {
        for (alias, name, value) in [
            ("version", RECORD_VERSION, version.to_owned()),
            ("duration", LEASE_DURATION, lease_duration.as_millis().to_string()),
        ] {
            condition.names.insert(format!("#{alias}"), name.to_owned());
            condition.values.insert(format!(":{alias}"), text(&value));
        }
        self.writes
            .update_item()
            .table_name(place.table)
            .key(place.key, text(LOCK_KEY))
            .condition_expression(&condition.text)
            .update_expression("SET #duration = :duration, #version = :version")
            .set_expression_attribute_values(condition.values())
            .set_expression_attribute_names(Some(condition.names))
    }

    pub(super) fn release(&self, place: Place<'_>, condition: Condition) -> DeleteItemFluentBuilder {
        self.writes
            .delete_item()
            .table_name(place.table)
            .key(place.key, text(LOCK_KEY))
            .condition_expression(&condition.text)
            .set_expression_attribute_values(condition.values())
            .set_expression_attribute_names(Some(condition.names))
    }
}
