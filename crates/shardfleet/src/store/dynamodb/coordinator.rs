//! The rows of the lease table that are no leases: the leader's lock, as the DynamoDB lock client keeps it, and the workers' metrics (`KCL: LeaderLock`,
//! `WorkerMetricStatsDAO`). Every one of them says by its `entityType` what it is, and none of them has an owner, so that the index of owners holds leases only.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::AttributeValue;
use shardfleet_core::ids::WorkerId;
use shardfleet_core::leader::{LOCK_ENTITY_TYPE, LOCK_KEY, LockCondition, LockFields, LockRow, LockWrite};
use shardfleet_core::worker_metrics::WorkerMetricStats;

use super::DynamoDbLeaseStore;
use super::error::store_error;
use super::item::{self, ENTITY_TYPE, Item, LEASE_KEY, number_of, text, text_of, unexpected};
use crate::store::{LeaseScan, LeaseStore as _, StoreError};

const OWNER_NAME: &str = "ownerName";
const LEASE_DURATION: &str = "leaseDuration";
const RECORD_VERSION: &str = "recordVersionNumber";
const IS_RELEASED: &str = "isReleased";

const ENTITY_METRICS: &str = "WORKER_METRIC_STATS";
const LAST_UPDATE: &str = "lut";
const AVERAGES: &str = "sts";
const OPERATING_RANGE: &str = "opr";
const SUPPORT_CODE: &str = "sup";
const SUPPORT_UPDATED: &str = "slu";

/// A lock whose duration cannot be read lasts as long as the Java KCL's default.
const DEFAULT_LOCK_DURATION: Duration = Duration::from_mins(2);

/// Puts a row of the table where it belongs; rows of other kinds, such as migration states, are passed over.
///
/// # Errors
/// What cannot be read of a row that should be one of ours.
pub(super) fn sort_in(item: &Item, found: &mut LeaseScan) -> Result<(), String> {
    if item::is_lease(item) {
        found.leases.push(item::from_item(item)?);
        return Ok(());
    }
    match item.get(ENTITY_TYPE) {
        Some(AttributeValue::S(kind)) if kind == ENTITY_METRICS => found.workers.push(metrics_of(item)?),
        Some(AttributeValue::S(kind)) if kind == LOCK_ENTITY_TYPE => {
            found.leader_lock = Some(lock_of(item)?);
        }
        _ => {}
    }
    Ok(())
}

fn lock_of(item: &Item) -> Result<LockRow, String> {
    let field = |name| Ok::<_, String>(text_of(item, name)?.map(str::to_owned));
    let fields = LockFields {
        owner_name: field(OWNER_NAME)?,
        lease_duration: field(LEASE_DURATION)?,
        record_version_number: field(RECORD_VERSION)?,
        is_released: field(IS_RELEASED)?,
    };
    Ok(LockRow::decode(&fields, DEFAULT_LOCK_DURATION))
}

fn metrics_of(item: &Item) -> Result<WorkerMetricStats, String> {
    let worker_id = text_of(item, LEASE_KEY)?.ok_or_else(|| unexpected(LEASE_KEY, None, "a text"))?;
    Ok(WorkerMetricStats {
        worker_id: WorkerId::new(worker_id),
        last_update_seconds: number_of(item, LAST_UPDATE)?,
        averages: lists_of(item, AVERAGES)?,
        operating_range: lists_of::<i64>(item, OPERATING_RANGE)?,
        support_code: number_of(item, SUPPORT_CODE)?,
        support_code_updated_seconds: number_of(item, SUPPORT_UPDATED)?,
    })
}

/// A map of lists of numbers.
fn lists_of<T: std::str::FromStr>(item: &Item, name: &str) -> Result<BTreeMap<String, Vec<T>>, String> {
    let refuse = || unexpected(name, item.get(name), "a map of lists of numbers");
    let map = match item.get(name) {
        None | Some(AttributeValue::Null(_)) => return Ok(BTreeMap::new()),
        Some(AttributeValue::M(map)) => map,
        Some(_) => return Err(refuse()),
    };
    let mut lists = BTreeMap::new();
    for (metric, list) in map {
        let AttributeValue::L(list) = list else {
            return Err(refuse());
        };
        let numbers: Option<Vec<T>> = list
            .iter()
            .map(|number| number.as_n().ok()?.parse().ok())
            .collect();
        lists.insert(metric.clone(), numbers.ok_or_else(refuse)?);
    }
    Ok(lists)
}

fn lists<T: ToString>(map: &BTreeMap<String, Vec<T>>) -> AttributeValue {
    let list = |values: &Vec<T>| {
        AttributeValue::L(
            values
                .iter()
                .map(|value| AttributeValue::N(value.to_string()))
                .collect(),
        )
    };
    AttributeValue::M(
        map.iter()
            .map(|(metric, values)| (metric.clone(), list(values)))
            .collect(),
    )
}

/// A condition with its names and values.
#[derive(Default)]
struct Condition {
    text: String,
    names: HashMap<String, String>,
    values: HashMap<String, AttributeValue>,
}

impl Condition {
    fn of(condition: &LockCondition) -> Self {
        let mut made = Self::default();
        made.names.insert("#key".to_owned(), LEASE_KEY.to_owned());
        match condition {
            LockCondition::Absent => "attribute_not_exists(#key)".clone_into(&mut made.text),
            LockCondition::Released => {
                made.exists_and("released", IS_RELEASED, "1");
            }
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
        let output = self
            .reads
            .get_item()
            .table_name(&self.table)
            .key(LEASE_KEY, text(LOCK_KEY))
            .consistent_read(true)
            .send()
            .await
            .map_err(|error| store_error(self.doing_lock("reading"), error))?;
        // A row that cannot be read is one that nobody keeps: it is waited out and then taken like a dead leader's.
        Ok(output.item.map(|item| {
            lock_of(&item).unwrap_or_else(|reason| {
                tracing::warn!(reason, "the leader's lock cannot be read");
                LockRow::decode(&LockFields::default(), DEFAULT_LOCK_DURATION)
            })
        }))
    }

    pub(super) async fn write_lock(&self, write: &LockWrite) -> Result<bool, StoreError> {
        let condition = Condition::of(write.condition());
        match write {
            LockWrite::Acquire { row, .. } => self.acquire_lock(condition, row).await,
            LockWrite::Heartbeat {
                version,
                lease_duration,
                ..
            } => self.heartbeat(condition, version, *lease_duration).await,
            LockWrite::Release { .. } => self.release_lock(condition).await,
        }
    }

    async fn acquire_lock(&self, condition: Condition, row: &LockRow) -> Result<bool, StoreError> {
        let fields = row.encode();
        let mut item = Item::from([
            (LEASE_KEY.to_owned(), text(LOCK_KEY)),
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
        let sent = self
            .writes
            .put_item()
            .table_name(&self.table)
            .set_item(Some(item))
            .condition_expression(&condition.text)
            .set_expression_attribute_values(condition.values())
            .set_expression_attribute_names(Some(condition.names))
            .send()
            .await;
        match sent {
            Ok(_) => Ok(true),
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(PutItemError::is_conditional_check_failed_exception) =>
            {
                Ok(false)
            }
            Err(error) => Err(store_error(self.doing_lock("taking"), error)),
        }
    }

    async fn heartbeat(
        &self,
        mut condition: Condition,
        version: &str,
        lease_duration: Duration,
    ) -> Result<bool, StoreError> {
        for (alias, name, value) in [
            ("version", RECORD_VERSION, version.to_owned()),
            ("duration", LEASE_DURATION, lease_duration.as_millis().to_string()),
        ] {
            condition.names.insert(format!("#{alias}"), name.to_owned());
            condition.values.insert(format!(":{alias}"), text(&value));
        }
        let sent = self
            .writes
            .update_item()
            .table_name(&self.table)
            .key(LEASE_KEY, text(LOCK_KEY))
            .condition_expression(&condition.text)
            .update_expression("SET #duration = :duration, #version = :version")
            .set_expression_attribute_values(condition.values())
            .set_expression_attribute_names(Some(condition.names))
            .send()
            .await;
        match sent {
            Ok(_) => Ok(true),
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(UpdateItemError::is_conditional_check_failed_exception) =>
            {
                Ok(false)
            }
            Err(error) => Err(store_error(self.doing_lock("keeping"), error)),
        }
    }

    async fn release_lock(&self, condition: Condition) -> Result<bool, StoreError> {
        let sent = self
            .writes
            .delete_item()
            .table_name(&self.table)
            .key(LEASE_KEY, text(LOCK_KEY))
            .condition_expression(&condition.text)
            .set_expression_attribute_values(condition.values())
            .set_expression_attribute_names(Some(condition.names))
            .send()
            .await;
        match sent {
            Ok(_) => Ok(true),
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(DeleteItemError::is_conditional_check_failed_exception) =>
            {
                Ok(false)
            }
            Err(error) => Err(store_error(self.doing_lock("releasing"), error)),
        }
    }

    fn doing_metrics(&self, what: &str, worker: &WorkerId) -> String {
        format!("{what} the metrics of worker {worker} in {}", self.describe())
    }

    pub(super) async fn put_metrics(&self, row: &WorkerMetricStats) -> Result<(), StoreError> {
        let number = |value: Option<u64>| value.map(item::number);
        let attributes = [
            (ENTITY_TYPE, Some(text(ENTITY_METRICS))),
            (LAST_UPDATE, number(row.last_update_seconds)),
            (AVERAGES, Some(lists(&row.averages))),
            (OPERATING_RANGE, Some(lists(&row.operating_range))),
            (SUPPORT_CODE, number(row.support_code)),
            (SUPPORT_UPDATED, number(row.support_code_updated_seconds)),
        ];
        let (mut sets, mut names, mut values) = (Vec::new(), HashMap::new(), HashMap::new());
        for (name, value) in attributes {
            if let Some(value) = value {
                sets.push(format!("#{name} = :{name}"));
                names.insert(format!("#{name}"), name.to_owned());
                values.insert(format!(":{name}"), value);
            }
        }
        self.writes
            .update_item()
            .table_name(&self.table)
            .key(LEASE_KEY, text(row.worker_id.as_str()))
            .update_expression(format!("SET {}", sets.join(", ")))
            .set_expression_attribute_names(Some(names))
            .set_expression_attribute_values(Some(values))
            .send()
            .await
            .map(drop)
            .map_err(|error| store_error(self.doing_metrics("writing", &row.worker_id), error))
    }

    pub(super) async fn delete_metrics(
        &self,
        worker: &WorkerId,
        last_update_seconds: Option<u64>,
    ) -> Result<bool, StoreError> {
        let request = self
            .writes
            .delete_item()
            .table_name(&self.table)
            .key(LEASE_KEY, text(worker.as_str()));
        let request = match last_update_seconds {
            Some(seconds) => request
                .condition_expression("attribute_not_exists(#key) OR #lut = :lut")
                .expression_attribute_names("#key", LEASE_KEY)
                .expression_attribute_names("#lut", LAST_UPDATE)
                .expression_attribute_values(":lut", item::number(seconds)),
            None => request,
        };
        match request.send().await {
            Ok(_) => Ok(true),
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(DeleteItemError::is_conditional_check_failed_exception) =>
            {
                Ok(false)
            }
            Err(error) => Err(store_error(self.doing_metrics("deleting", worker), error)),
        }
    }
}
