//! `AWS: DescribeContinuousBackups` and `AWS: UpdateContinuousBackups`, which the database does not know.
//!
//! Nothing is backed up: whether a table has point-in-time recovery is remembered, as long as the process lives, and told.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use hyper::header::HeaderValue;
use serde_json::{Value, json};

use super::call::Call;

/// AWS: recovery reaches back so many days where nothing else is asked for.
const RECOVERY_DAYS: u64 = 35;

/// Tables with point-in-time recovery.
#[derive(Debug, Default)]
pub(super) struct Backups {
    enabled: Mutex<BTreeSet<String>>,
}

/// An error of the service: type and text.
pub(super) type Refusal = (&'static str, String);

impl Backups {
    pub(super) fn knows(call: &Call) -> bool {
        matches!(
            call.operation.as_str(),
            "DescribeContinuousBackups" | "UpdateContinuousBackups"
        )
    }

    /// The call that tells whether the table is there.
    pub(super) fn look_up(call: &Call) -> Call {
        let mut look_up = call.clone();
        let target = HeaderValue::from_static("DynamoDB_20120810.DescribeTable");
        look_up.headers.insert("x-amz-target", target);
        look_up.body = Bytes::from(json!({"TableName": call.input["TableName"]}).to_string());
        look_up
    }

    /// Answers a call on a table that is there.
    pub(super) fn answer(&self, call: &Call) -> Result<Value, Refusal> {
        let mut enabled = self.enabled();
        let table = call.tables.first().cloned().unwrap_or_default();
        if call.operation == "UpdateContinuousBackups" {
            let wanted = &call.input["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"];
            match wanted.as_bool() {
                Some(true) => drop(enabled.insert(table.clone())),
                Some(false) => drop(enabled.remove(&table)),
                None => {
                    let text =
                        "PointInTimeRecoverySpecification.PointInTimeRecoveryEnabled must be true or false";
                    return Err(("ValidationException", text.to_owned()));
                }
            }
        }
        let recovery = if enabled.contains(&table) {
            json!({"PointInTimeRecoveryStatus": "ENABLED", "RecoveryPeriodInDays": RECOVERY_DAYS})
        } else {
            json!({"PointInTimeRecoveryStatus": "DISABLED"})
        };
        Ok(json!({
            "ContinuousBackupsDescription": {
                "ContinuousBackupsStatus": "ENABLED",
                "PointInTimeRecoveryDescription": recovery,
            }
        }))
    }

    /// A later table of the same name begins without.
    pub(super) fn forget(&self, call: &Call) {
        let mut enabled = self.enabled();
        for table in &call.tables {
            enabled.remove(table);
        }
    }

    fn enabled(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.enabled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
