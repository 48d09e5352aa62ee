//! A worker's start: table and index, which tables are in use, and whether the fleet is one for this release.
//!
//! Level-triggered: each look begins from nothing, does the first thing that is missing, and looks again. So whatever a look, another worker or a crash left half
//! done is completed by the next, and a call that failed once is made again.

use std::time::Duration;

use super::{DynamoDbLeaseStore, table};
use crate::store::{LeaseStore as _, StoreError, StoreErrorKind};

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How many looks in a row may find nobody at home. The caller has its own patience, and a wrong endpoint should be told soon.
const FAILED_LOOKS_MAX: u32 = 5;

/// What a look came to.
#[derive(Debug, PartialEq)]
pub(super) enum Progress {
    /// Nothing is missing.
    Done,
    /// Something was done; look again at once.
    Again,
    /// Look again after a while; the text says what is being waited for.
    Wait(String),
}

/// Creates what is missing and waits, at most for the store's deadline.
pub(super) async fn prepare(store: &DynamoDbLeaseStore) -> Result<(), StoreError> {
    let deadline = store.prepare_deadline;
    let mut last_seen = "nothing is known about it".to_owned();
    match tokio::time::timeout(deadline, until_done(store, &mut last_seen)).await {
        Ok(result) => result,
        Err(_) => Err(StoreError::new(
            StoreErrorKind::Unavailable,
            table::doing(&store.tables.leases),
            format!("not ready after {} s: {last_seen}", deadline.as_secs()),
        )),
    }
}

async fn until_done(store: &DynamoDbLeaseStore, last_seen: &mut String) -> Result<(), StoreError> {
    let mut looks = tokio::time::interval(POLL_INTERVAL);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut failed = 0;
    loop {
        looks.tick().await;
        match look(store).await {
            Ok(Progress::Done) => return Ok(()),
            Ok(Progress::Again) => {
                failed = 0;
                // A quick service is ready at once; no need to sit out the interval for it.
                looks.reset_immediately();
            }
            Ok(Progress::Wait(what)) => {
                failed = 0;
                *last_seen = what;
            }
            Err(error) => {
                // Throttled is also an account that makes too many tables or indexes at once, which can take minutes.
                match error.kind() {
                    StoreErrorKind::Throttled => {}
                    StoreErrorKind::Unavailable | StoreErrorKind::NotFound if failed < FAILED_LOOKS_MAX => {
                        failed += 1;
                    }
                    _ => return Err(error),
                }
                tracing::warn!(%error, "{} is not ready yet", store.describe());
                *last_seen = error.to_string();
            }
        }
    }
}

async fn look(store: &DynamoDbLeaseStore) -> Result<Progress, StoreError> {
    let progress = table::look(&store.reads, &store.tables.leases, &store.table_options).await?;
    if progress != Progress::Done {
        return Ok(progress);
    }
    let progress = store.find_layout().await?;
    if progress != Progress::Done {
        return Ok(progress);
    }
    store.check_client_version().await
}
