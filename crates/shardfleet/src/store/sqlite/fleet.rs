//! The leader's lock and the workers' metrics as rows of the file.

use rusqlite::{OptionalExtension, Transaction, params};
use shardfleet_core::ids::WorkerId;
use shardfleet_core::leader::{LockFields, LockRow, LockWrite};
use shardfleet_core::worker_metrics::WorkerMetricStats;

use super::super::UnreadableRow;

/// A lock whose duration cannot be read lasts as long as the Java KCL's default.
const DEFAULT_LOCK_DURATION: std::time::Duration = std::time::Duration::from_mins(2);

pub(super) fn lock(transaction: &Transaction<'_>) -> rusqlite::Result<Option<LockRow>> {
    let sql = "SELECT owner_name, lease_duration, record_version_number, is_released FROM leader_lock";
    let fields = transaction
        .prepare_cached(sql)?
        .query_row([], |row| {
            Ok(LockFields {
                owner_name: row.get(0)?,
                lease_duration: row.get(1)?,
                record_version_number: row.get(2)?,
                is_released: row.get(3)?,
            })
        })
        .optional()?;
    Ok(fields.map(|fields| LockRow::decode(&fields, DEFAULT_LOCK_DURATION)))
}

/// Executes a conditional write; whether its condition held.
pub(super) fn write_lock(transaction: &Transaction<'_>, write: &LockWrite) -> rusqlite::Result<bool> {
    let mut row = lock(transaction)?;
    if !write.apply(&mut row) {
        return Ok(false);
    }
    transaction.execute("DELETE FROM leader_lock", [])?;
    if let Some(row) = row {
        let fields = row.encode();
        transaction.execute(
            "INSERT INTO leader_lock (owner_name, lease_duration, record_version_number, is_released) \
             VALUES (?1, ?2, ?3, ?4)",
            params![
                fields.owner_name,
                fields.lease_duration,
                fields.record_version_number,
                fields.is_released
            ],
        )?;
    }
    Ok(true)
}

pub(super) fn put_worker(
    transaction: &Transaction<'_>,
    row: &WorkerMetricStats,
) -> Result<usize, rusqlite::Error> {
    let metrics = serde_json::json!({ "averages": row.averages, "operating_range": row.operating_range });
    transaction
        .prepare_cached(
            "INSERT OR REPLACE INTO worker_metric_stats (worker_id, last_update_seconds, metrics, support_code, \
             support_code_updated_seconds) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            row.worker_id.as_str(),
            row.last_update_seconds.map(u64::cast_signed),
            metrics.to_string(),
            row.support_code.map(u64::cast_signed),
            row.support_code_updated_seconds.map(u64::cast_signed),
        ])
}

pub(super) fn delete_worker(
    transaction: &Transaction<'_>,
    worker: &WorkerId,
    last_update_seconds: Option<u64>,
) -> rusqlite::Result<bool> {
    let sql =
        "DELETE FROM worker_metric_stats WHERE worker_id = ?1 AND (?2 IS NULL OR last_update_seconds = ?2)";
    transaction.execute(
        sql,
        params![worker.as_str(), last_update_seconds.map(u64::cast_signed)],
    )?;
    let left: i64 = transaction.query_row(
        "SELECT count(*) FROM worker_metric_stats WHERE worker_id = ?1",
        [worker.as_str()],
        |row| row.get(0),
    )?;
    Ok(left == 0)
}

/// Every worker's row, by id, and those that cannot be read.
pub(super) fn workers(
    transaction: &Transaction<'_>,
) -> rusqlite::Result<(Vec<WorkerMetricStats>, Vec<UnreadableRow>)> {
    let mut statement = transaction.prepare_cached(
        "SELECT worker_id, last_update_seconds, metrics, support_code, support_code_updated_seconds \
         FROM worker_metric_stats ORDER BY worker_id",
    )?;
    let rows = statement.query_map([], |row| {
        let worker_id: String = row.get(0)?;
        let number = |index| {
            row.get::<_, Option<i64>>(index)
                .map(|n| n.map(i64::cast_unsigned))
        };
        let metrics: String = row.get(2)?;
        Ok((worker_id, number(1)?, metrics, number(3)?, number(4)?))
    })?;
    let (mut readable, mut unreadable) = (Vec::new(), Vec::new());
    for row in rows {
        let (worker_id, last_update_seconds, metrics, support_code, support_code_updated_seconds) = row?;
        match serde_json::from_str::<Metrics>(&metrics) {
            Ok(metrics) => readable.push(WorkerMetricStats {
                worker_id: WorkerId::new(worker_id),
                last_update_seconds,
                averages: metrics.averages,
                operating_range: metrics.operating_range,
                support_code,
                support_code_updated_seconds,
            }),
            Err(error) => unreadable.push(UnreadableRow::new(worker_id, format!("metrics: {error}"))),
        }
    }
    Ok((readable, unreadable))
}

#[derive(serde::Deserialize)]
struct Metrics {
    averages: std::collections::BTreeMap<String, Vec<f64>>,
    operating_range: std::collections::BTreeMap<String, Vec<i64>>,
}
