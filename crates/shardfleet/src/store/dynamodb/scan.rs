//! Reads over many rows: the scan of everything, and the keys of one owner.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::types::AttributeValue;
use shardfleet_core::ids::{LeaseKey, WorkerId};
use shardfleet_core::leader::LOCK_ENTITY_TYPE;
use shardfleet_core::worker_metrics::WorkerMetricStats;

use super::error::store_error;
use super::item::{self, ENTITY_TYPE, Item, LEASE_KEY};
use super::layout::Place;
use super::{DynamoDbLeaseStore, expression, lock, metrics, migration, table};
use crate::store::{LeaseScan, LeaseStore as _, StoreError, UnreadableRow};

/// Kinds of rows that are somebody's and say nothing about leases: the state of the move to one table, and streams that Java workers track.
const PASSED_OVER: [&str; 3] = [migration::ENTITY_MIGRATION, "TABLE_MIGRATION", "STREAM"];

/// Puts a row of the lease table where it belongs.
///
/// # Errors
/// What cannot be read of the row.
fn sort_in(item: &Item, found: &mut LeaseScan) -> Result<(), String> {
    if item::is_lease(item) {
        found.leases.push(item::from_item(item)?);
        return Ok(());
    }
    match item.get(ENTITY_TYPE) {
        Some(AttributeValue::S(kind)) if kind == metrics::ENTITY_METRICS => {
            found.workers.push(metrics::metrics_of(item, LEASE_KEY)?);
        }
        Some(AttributeValue::S(kind)) if kind == LOCK_ENTITY_TYPE => {
            found.leader_lock = Some(lock::lock_of(item)?);
        }
        Some(AttributeValue::S(kind)) if PASSED_OVER.contains(&kind.as_str()) => {}
        other => {
            let known = "a kind of row that this release knows";
            return Err(format!(
                "{}; it is left alone",
                item::unexpected(ENTITY_TYPE, other, known)
            ));
        }
    }
    Ok(())
}

/// One row for each worker: the one written last, where a fleet that moves to one table has two.
fn newest_of_each(rows: Vec<WorkerMetricStats>) -> Vec<WorkerMetricStats> {
    let mut newest: BTreeMap<WorkerId, WorkerMetricStats> = BTreeMap::new();
    for row in rows {
        let known = newest.get(&row.worker_id);
        if known.is_none_or(|known| known.last_update_seconds <= row.last_update_seconds) {
            newest.insert(row.worker_id.clone(), row);
        }
    }
    newest.into_values().collect()
}

impl DynamoDbLeaseStore {
    pub(super) async fn scan_all(&self) -> Result<LeaseScan, StoreError> {
        let mut found = LeaseScan::default();
        self.scan_table(self.tables.lease_place(), &mut found, sort_in)
            .await?;
        if self.tables.is_legacy() {
            let place = self.tables.legacy_metrics();
            self.scan_table(place, &mut found, |item, found| {
                found.workers.push(metrics::metrics_of(item, place.key)?);
                Ok(())
            })
            .await?;
            found.leader_lock = self.read_lock().await?;
        }
        found.workers = newest_of_each(found.workers);
        found
            .leases
            .sort_unstable_by(|a, b| a.lease_key.cmp(&b.lease_key));
        found
            .unreadable
            .sort_unstable_by(|a, b| a.lease_key.cmp(&b.lease_key));
        Ok(found)
    }

    async fn scan_table(
        &self,
        place: Place<'_>,
        found: &mut LeaseScan,
        sort_in: impl Fn(&Item, &mut LeaseScan) -> Result<(), String>,
    ) -> Result<(), StoreError> {
        let mut start = None;
        loop {
            let page = self
                .reads
                .scan()
                .table_name(place.table)
                .set_exclusive_start_key(start)
                .send()
                .await
                .map_err(|error| store_error(format!("scanning DynamoDB table {}", place.table), error))?;
            for item in page.items.unwrap_or_default() {
                if let Err(reason) = sort_in(&item, found) {
                    let key = item::shown_key(&item, place.key);
                    found.unreadable.push(UnreadableRow::new(key, reason));
                }
            }
            start = page.last_evaluated_key.filter(|key| !key.is_empty());
            if start.is_none() {
                return Ok(());
            }
        }
    }

    pub(super) async fn owned_pages(&self, worker: &WorkerId) -> Result<Vec<LeaseKey>, StoreError> {
        let owner = expression::of_owner(worker);
        let mut keys = Vec::new();
        let mut start = None;
        loop {
            let page = self
                .reads
                .query()
                .table_name(&self.tables.leases)
                .index_name(table::OWNER_INDEX)
                .set_key_condition_expression(owner.condition.clone())
                .set_expression_attribute_names(owner.names.clone())
                .set_expression_attribute_values(owner.values.clone())
                .set_exclusive_start_key(start)
                .send()
                .await
                .map_err(|error| store_error(self.listing(worker), error))?;
            for item in page.items.unwrap_or_default() {
                if let Some(Ok(key)) = item.get(LEASE_KEY).map(|key| key.as_s()) {
                    keys.push(LeaseKey::new(key));
                }
            }
            start = page.last_evaluated_key.filter(|key| !key.is_empty());
            if start.is_none() {
                break;
            }
        }
        keys.sort_unstable();
        Ok(keys)
    }

    pub(super) fn listing(&self, worker: &WorkerId) -> String {
        format!("listing the leases of worker {worker} in {}", self.describe())
    }
}

#[cfg(test)]
mod tests;
