//! The workers' metrics (`KCL: WorkerMetricStats`, `WorkerMetricStatsDAO`).

use std::collections::{BTreeMap, HashMap};

use aws_sdk_dynamodb::operation::delete_item::DeleteItemError;
use aws_sdk_dynamodb::operation::delete_item::builders::DeleteItemFluentBuilder;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::operation::update_item::builders::UpdateItemFluentBuilder;
use aws_sdk_dynamodb::types::AttributeValue;
use shardfleet_core::ids::WorkerId;
use shardfleet_core::worker_metrics::WorkerMetricStats;

use super::DynamoDbLeaseStore;
use super::error::store_error;
use super::item::{self, ENTITY_TYPE, Item, number_of, text, text_of, unexpected};
use super::layout::Place;
use crate::store::{LeaseStore as _, StoreError, StoreErrorKind};

pub(super) const ENTITY_METRICS: &str = "WORKER_METRIC_STATS";
const LAST_UPDATE: &str = "lut";
const AVERAGES: &str = "sts";
const OPERATING_RANGE: &str = "opr";
const SUPPORT_CODE: &str = "sup";
const SUPPORT_UPDATED: &str = "slu";

/// Reads a worker's row in a table whose key is `key`.
///
/// # Errors
/// The attribute, its value and what was expected.
pub(super) fn metrics_of(item: &Item, key: &str) -> Result<WorkerMetricStats, String> {
    let worker_id = text_of(item, key)?.ok_or_else(|| unexpected(key, None, "a text"))?;
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

/// What the row may hold for a write of metrics to be one of metrics: nothing, or metrics. Rows of the older table carry no kind.
const IS_METRICS: &str = "(attribute_not_exists(#key) OR #entityType = :entityType)";

impl DynamoDbLeaseStore {
    fn doing_metrics(&self, what: &str, worker: &WorkerId) -> String {
        format!("{what} the metrics of worker {worker} in {}", self.describe())
    }

    pub(super) async fn put_metrics(&self, row: &WorkerMetricStats) -> Result<(), StoreError> {
        let place = self.tables.metrics_place();
        let Err(error) = self.put_metrics_request(place, row).send().await else {
            return Ok(());
        };
        let is_conflict = UpdateItemError::is_conditional_check_failed_exception;
        let doing = self.doing_metrics("writing", &row.worker_id);
        if error.as_service_error().is_some_and(is_conflict) {
            let reason = "the worker id is the key of a row that is none of metrics, such as a lease; start the worker under another id";
            return Err(StoreError::new(StoreErrorKind::Invalid, doing, reason).without_side_effects());
        }
        Err(store_error(doing, error))
    }

    pub(super) fn put_metrics_request(
        &self,
        place: Place<'_>,
        row: &WorkerMetricStats,
    ) -> UpdateItemFluentBuilder {
        let number = |value: Option<u64>| value.map(item::number);
        let attributes = [
            (ENTITY_TYPE, Some(text(ENTITY_METRICS))),
            (LAST_UPDATE, number(row.last_update_seconds)),
            (AVERAGES, Some(lists(&row.averages))),
            (OPERATING_RANGE, Some(lists(&row.operating_range))),
            (SUPPORT_CODE, number(row.support_code)),
            (SUPPORT_UPDATED, number(row.support_code_updated_seconds)),
        ];
        let (mut sets, mut removes) = (Vec::new(), Vec::new());
        let (mut names, mut values) = (HashMap::new(), HashMap::new());
        for (name, value) in attributes {
            names.insert(format!("#{name}"), name.to_owned());
            match value {
                Some(value) => {
                    sets.push(format!("#{name} = :{name}"));
                    values.insert(format!(":{name}"), value);
                }
                // What a write before said of it is no longer true.
                None => removes.push(format!("#{name}")),
            }
        }
        let mut update = format!("SET {}", sets.join(", "));
        if !removes.is_empty() {
            update = format!("{update} REMOVE {}", removes.join(", "));
        }
        let mut condition = None;
        if place == self.tables.lease_place() {
            names.insert("#key".to_owned(), place.key.to_owned());
            condition = Some(IS_METRICS.to_owned());
        }
        self.writes
            .update_item()
            .table_name(place.table)
            .key(place.key, text(row.worker_id.as_str()))
            .set_condition_expression(condition)
            .update_expression(update)
            .set_expression_attribute_names(Some(names))
            .set_expression_attribute_values(Some(values))
    }

    pub(super) async fn delete_metrics(
        &self,
        worker: &WorkerId,
        last_update_seconds: Option<u64>,
    ) -> Result<bool, StoreError> {
        let mut is_gone = true;
        // While a fleet moves to one table a worker may have written to either.
        let places = [self.tables.metrics_place(), self.tables.lease_place()];
        let places = if places[0] == places[1] {
            &places[..1]
        } else {
            &places[..]
        };
        for place in places {
            let sent = self
                .delete_metrics_request(*place, worker, last_update_seconds)
                .send()
                .await;
            let is_conflict = DeleteItemError::is_conditional_check_failed_exception;
            match sent {
                Ok(_) => {}
                Err(error) if error.as_service_error().is_some_and(is_conflict) => is_gone = false,
                Err(error) => return Err(store_error(self.doing_metrics("deleting", worker), error)),
            }
        }
        Ok(is_gone)
    }

    pub(super) fn delete_metrics_request(
        &self,
        place: Place<'_>,
        worker: &WorkerId,
        last_update_seconds: Option<u64>,
    ) -> DeleteItemFluentBuilder {
        let mut request = self
            .writes
            .delete_item()
            .table_name(place.table)
            .key(place.key, text(worker.as_str()));
        let mut conditions = Vec::new();
        if place == self.tables.lease_place() {
            conditions.push(IS_METRICS);
            request = request
                .expression_attribute_names("#entityType", ENTITY_TYPE)
                .expression_attribute_values(":entityType", text(ENTITY_METRICS));
        }
        if let Some(seconds) = last_update_seconds {
            conditions.push("(attribute_not_exists(#key) OR #lut = :lut)");
            request = request
                .expression_attribute_names("#lut", LAST_UPDATE)
                .expression_attribute_values(":lut", item::number(seconds));
        }
        if conditions.is_empty() {
            return request;
        }
        request
            .condition_expression(conditions.join(" AND "))
            .expression_attribute_names("#key", place.key)
    }
}
