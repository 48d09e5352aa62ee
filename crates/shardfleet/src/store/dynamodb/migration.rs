//! Which generation of workers the application is at: the row `Migration3.0`, which Java workers write when they upgrade from KCL 2.x
//! (`KCL: MigrationClientVersionStateInitializer`, `MigrationState`).
//!
//! This release works as KCL 3.x does, with a leader that assigns leases. A fleet of which a part may still take leases from each other as 2.x does is no place
//! for it, so it refuses to start there.

use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::put_item::builders::PutItemFluentBuilder;
use aws_sdk_dynamodb::types::AttributeValue;
use shardfleet_core::time::Timestamp;

use super::DynamoDbLeaseStore;
use super::error::store_error;
use super::item::{ENTITY_TYPE, Item, number, text, text_of, unexpected};
use super::layout::Place;
use super::start::Progress;
use crate::clock::{Clock as _, SystemClock};
use crate::store::{LeaseStore as _, StoreError, StoreErrorKind};

pub(super) const MIGRATION: &str = "Migration3.0";
pub(super) const ENTITY_MIGRATION: &str = "CLIENT_VERSION_MIGRATION";
const CLIENT_VERSION: &str = "cv";
const MODIFIED_BY: &str = "mb";
const MODIFIED_AT: &str = "mts";
const HISTORY: &str = "h";

const VERSION_INIT: &str = "CLIENT_VERSION_INIT";
const VERSION_3X: &str = "CLIENT_VERSION_3X";
const VERSION_3X_WITH_ROLLBACK: &str = "CLIENT_VERSION_3X_WITH_ROLLBACK";
const VERSION_UPGRADE: &str = "CLIENT_VERSION_UPGRADE_FROM_2X";
const VERSION_2X: &str = "CLIENT_VERSION_2X";

/// Under this name the row is written; what a Java worker notes there is its worker id, for people to read.
const AUTHOR: &str = "shardfleet";

/// What the row says to a worker of this release.
///
/// # Errors
/// Why it must not start, and what to do.
fn judge(row: &Item) -> Result<(), String> {
    let version = text_of(row, CLIENT_VERSION)?;
    let finish = "finish the upgrade (deploy every Java worker with clientVersionConfig CLIENT_VERSION_CONFIG_3X, and wait until the row says \
                  CLIENT_VERSION_3X), then start this worker again";
    match version {
        Some(VERSION_3X) => Ok(()),
        Some(VERSION_2X) => Err(format!(
            "the application was rolled back to KCL 2.x ({CLIENT_VERSION} is {VERSION_2X}), and 2.x workers know no leader and no handoff; roll it forward with \
             KclMigrationTool, {finish}"
        )),
        Some(version @ (VERSION_UPGRADE | VERSION_INIT)) => Err(format!(
            "the upgrade from KCL 2.x is not finished ({CLIENT_VERSION} is {version}), so workers still take leases from each other; {finish}"
        )),
        Some(VERSION_3X_WITH_ROLLBACK) => Err(format!(
            "the upgrade from KCL 2.x can still be rolled back ({CLIENT_VERSION} is {VERSION_3X_WITH_ROLLBACK}), after which this worker could not go on; {finish}"
        )),
        _ => Err(format!(
            "{}; use a release of this library that knows it",
            unexpected(CLIENT_VERSION, row.get(CLIENT_VERSION), VERSION_3X)
        )),
    }
}

/// The row of an application without a past, as a Java worker writes it: from the initial state straight to 3.x.
fn new_row(place: Place<'_>, now: Timestamp) -> Item {
    let state = |version: &str| {
        Item::from([
            (CLIENT_VERSION.to_owned(), text(version)),
            (MODIFIED_BY.to_owned(), text(AUTHOR)),
            (MODIFIED_AT.to_owned(), number(now.millis())),
        ])
    };
    let mut row = state(VERSION_3X);
    let before = AttributeValue::M(state(VERSION_INIT));
    row.insert(HISTORY.to_owned(), AttributeValue::L(vec![before]));
    row.insert(ENTITY_TYPE.to_owned(), text(ENTITY_MIGRATION));
    row.insert(place.key.to_owned(), text(MIGRATION));
    row
}

impl DynamoDbLeaseStore {
    fn doing_migration(&self, what: &str) -> String {
        format!("{what} the state {MIGRATION} of {}", self.describe())
    }

    /// Lets a worker start in a fleet of KCL 3.x only, and notes in a new one that it is one.
    pub(super) async fn check_client_version(&self) -> Result<Progress, StoreError> {
        if let Some(row) = self.read_migration().await? {
            return judge(&row).map(|()| Progress::Done).map_err(|reason| {
                StoreError::new(StoreErrorKind::Invalid, self.doing_migration("checking"), reason)
                    .without_side_effects()
            });
        }
        let sent = self.new_migration(SystemClock::new().wall()).send().await;
        match sent {
            Ok(_) => Ok(Progress::Done),
            // Another worker was faster; what it wrote is looked at.
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(PutItemError::is_conditional_check_failed_exception) =>
            {
                Ok(Progress::Again)
            }
            Err(error) => Err(store_error(self.doing_migration("creating"), error)),
        }
    }

    async fn read_migration(&self) -> Result<Option<Item>, StoreError> {
        // On the way to one table the row may have been moved already.
        let places = [self.tables.coordinator_place(), self.tables.lease_place()];
        let places = if places[0] == places[1] {
            &places[..1]
        } else {
            &places[..]
        };
        for place in places {
            let output = self
                .get_row(*place, MIGRATION)
                .send()
                .await
                .map_err(|error| store_error(self.doing_migration("reading"), error))?;
            if output.item.is_some() {
                return Ok(output.item);
            }
        }
        Ok(None)
    }

    pub(super) fn new_migration(&self, now: Timestamp) -> PutItemFluentBuilder {
        let place = self.tables.coordinator_place();
        self.writes
            .put_item()
            .table_name(place.table)
            .set_item(Some(new_row(place, now)))
            .condition_expression("attribute_not_exists(#key)")
            .expression_attribute_names("#key", place.key)
    }
}

#[cfg(test)]
mod tests;
