//! Which tables the rows that are no leases are kept in (`KCL: TableMigrationStateMachineImpl`, `CoordinatorStateDAO`).
//!
//! An application that began on KCL 3.5 or on this library has one table for everything. One that began on KCL 3.0 to 3.4 keeps its lock and migration states in
//! `<application>-CoordinatorState` and its metrics in `<application>-WorkerMetricStats`, until a Java leader has moved them. That the first of these exists is
//! all that tells Java workers so; therefore it is never created here.

use std::sync::atomic::{AtomicBool, Ordering};

use aws_sdk_dynamodb::operation::get_item::builders::GetItemFluentBuilder;
use aws_sdk_dynamodb::types::{TableDescription, TableStatus};

use super::DynamoDbLeaseStore;
use super::error::store_error;
use super::item::{self, Item, LEASE_KEY, text};
use super::start::Progress;
use super::table;
use crate::store::{StoreError, StoreErrorKind};

/// The key of the row that says how far the move to one table is.
pub(super) const TABLE_MIGRATION: &str = "TableMigration3.5";
const TABLE_MIGRATION_STATUS: &str = "tm";
const STATUS_COMPLETE: &str = "TABLE_MIGRATION_STATUS_COMPLETE";
/// What else the status may be: the rows are in the two older tables.
const STATUSES_BEFORE: [&str; 4] = [
    "TABLE_MIGRATION_STATUS_UNKNOWN",
    "TABLE_MIGRATION_STATUS_INIT",
    "TABLE_MIGRATION_STATUS_DEPLOYED",
    "TABLE_MIGRATION_STATUS_PENDING",
];

const COORDINATOR_KEY: &str = "key";
const METRICS_KEY: &str = "wid";

/// A table and the name of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place<'a> {
    pub(super) table: &'a str,
    pub(super) key: &'static str,
}

/// The tables of an application.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) leases: String,
    pub(super) coordinator: String,
    pub(super) metrics: String,
    /// Whether the two older tables are the ones in use. Found out by `prepare`; goes back to false when the move to one table is complete, and stays so.
    is_legacy: AtomicBool,
}

impl Tables {
    pub(super) fn new(leases: String, coordinator: String, metrics: String) -> Self {
        Self {
            leases,
            coordinator,
            metrics,
            is_legacy: AtomicBool::new(false),
        }
    }

    pub(super) fn is_legacy(&self) -> bool {
        self.is_legacy.load(Ordering::Acquire)
    }

    pub(super) fn set_legacy(&self, is_legacy: bool) {
        self.is_legacy.store(is_legacy, Ordering::Release);
    }

    pub(super) fn lease_place(&self) -> Place<'_> {
        Place {
            table: &self.leases,
            key: LEASE_KEY,
        }
    }

    pub(super) fn legacy_coordinator(&self) -> Place<'_> {
        Place {
            table: &self.coordinator,
            key: COORDINATOR_KEY,
        }
    }

    pub(super) fn legacy_metrics(&self) -> Place<'_> {
        Place {
            table: &self.metrics,
            key: METRICS_KEY,
        }
    }

    /// Where the lock is, and where migration states are written.
    pub(super) fn coordinator_place(&self) -> Place<'_> {
        if self.is_legacy() {
            self.legacy_coordinator()
        } else {
            self.lease_place()
        }
    }

    /// Where metrics are written.
    pub(super) fn metrics_place(&self) -> Place<'_> {
        if self.is_legacy() {
            self.legacy_metrics()
        } else {
            self.lease_place()
        }
    }
}

/// Whether the older tables are in use while the row of the move to one table is this.
///
/// # Errors
/// A status that no known release writes.
fn is_before_the_move(row: Option<&Item>) -> Result<bool, String> {
    let Some(row) = row else { return Ok(true) };
    match item::text_of(row, TABLE_MIGRATION_STATUS)? {
        Some(STATUS_COMPLETE) => Ok(false),
        None => Ok(true),
        Some(status) if STATUSES_BEFORE.contains(&status) => Ok(true),
        Some(_) => Err(item::unexpected(
            TABLE_MIGRATION_STATUS,
            row.get(TABLE_MIGRATION_STATUS),
            "TABLE_MIGRATION_STATUS_INIT, _DEPLOYED, _PENDING or _COMPLETE",
        )),
    }
}

impl DynamoDbLeaseStore {
    /// A consistent read of a row that is no lease.
    pub(super) fn get_row(&self, place: Place<'_>, key: &str) -> GetItemFluentBuilder {
        self.reads
            .get_item()
            .table_name(place.table)
            .key(place.key, text(key))
            .consistent_read(true)
    }

    /// Finds out which tables are in use.
    pub(super) async fn find_layout(&self) -> Result<Progress, StoreError> {
        let coordinator = &self.tables.coordinator;
        let described = table::describe(&self.reads, coordinator).await?;
        let Some(described) = described.filter(|it| it.table_status() != Some(&TableStatus::Deleting)) else {
            self.tables.set_legacy(false);
            return Ok(Progress::Done);
        };
        if let Some(waiting) = usable(&described, self.tables.legacy_coordinator())? {
            return Ok(waiting);
        }
        if !self.is_still_legacy().await? {
            self.tables.set_legacy(false);
            return Ok(Progress::Done);
        }
        let metrics = &self.tables.metrics;
        let Some(described) = table::describe(&self.reads, metrics).await? else {
            let reason = format!(
                "table {coordinator} is there, so the fleet uses the tables of KCL 3.0 to 3.4, but {metrics} is missing, and only \
                 Java workers create it; start a Java worker of KCL 3.4 first, or name the right tables, or delete {coordinator} \
                 if no Java worker uses it any more"
            );
            return Err(
                StoreError::new(StoreErrorKind::NotFound, table::doing(metrics), reason)
                    .without_side_effects(),
            );
        };
        if let Some(waiting) = usable(&described, self.tables.legacy_metrics())? {
            return Ok(waiting);
        }
        tracing::info!(
            coordinator,
            metrics,
            "the fleet uses the tables of KCL 3.0 to 3.4"
        );
        self.tables.set_legacy(true);
        Ok(Progress::Done)
    }

    /// Whether the older tables are in use, by the row that says so.
    async fn is_still_legacy(&self) -> Result<bool, StoreError> {
        let place = self.tables.legacy_coordinator();
        let doing = || format!("reading {TABLE_MIGRATION} in DynamoDB table {}", place.table);
        let output = self
            .get_row(place, TABLE_MIGRATION)
            .send()
            .await
            .map_err(|error| store_error(doing(), error))?;
        is_before_the_move(output.item.as_ref()).map_err(|reason| {
            let reason = format!("{reason}; use a release of this library that knows it");
            StoreError::new(StoreErrorKind::Invalid, doing(), reason).without_side_effects()
        })
    }

    /// Notices when a Java leader has completed the move to one table.
    pub(super) async fn follow_the_move(&self) -> Result<(), StoreError> {
        if self.tables.is_legacy() && !self.is_still_legacy().await? {
            tracing::info!(table = self.tables.leases, "the fleet has moved to one table");
            self.tables.set_legacy(false);
        }
        Ok(())
    }
}

/// What has to be waited for before an older table can be used.
fn usable(described: &TableDescription, place: Place<'_>) -> Result<Option<Progress>, StoreError> {
    let key = table::key_text(described.key_schema(), described);
    if key != format!("{} HASH S", place.key) {
        let reason = format!(
            "the table has the key ({key}) instead of ({} HASH S), so it is not the one that KCL 3.0 to 3.4 keeps under this name; name \
             the application's own table, or another application",
            place.key
        );
        return Err(
            StoreError::new(StoreErrorKind::Invalid, table::doing(place.table), reason)
                .without_side_effects(),
        );
    }
    Ok(match described.table_status() {
        Some(TableStatus::Active | TableStatus::Updating) | None => None,
        Some(status) => Some(Progress::Wait(format!("table {} is {status}", place.table))),
    })
}

#[cfg(test)]
mod tests;
