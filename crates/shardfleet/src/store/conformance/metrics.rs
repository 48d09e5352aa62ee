//! The workers' metrics: one row each, written whole, deleted only if it is as it was seen.

use std::sync::Arc;

use shardfleet_core::ids::LeaseKey;
use shardfleet_core::time::Timestamp;
use shardfleet_core::worker_metrics::{CAPTURE_FAILED, CPU, MEMORY, NETWORK_IN, WorkerMetricStats};

use super::Verdict;
use super::cases::eventually;
use super::samples::{create, get, key, new_lease, no_error, worker};
use crate::store::LeaseStore;

const NOW_SECONDS: u64 = 1_796_080_234;

/// Every field survives, and a scan answers the rows in the order of the workers' ids.
pub(super) async fn every_field(store: Arc<dyn LeaseStore>) -> Verdict {
    let without_times = WorkerMetricStats {
        last_update_seconds: None,
        support_code: None,
        support_code_updated_seconds: None,
        ..bare("d")
    };
    let rows = [bare("c"), full("a"), without_times, full("b")];
    for row in &rows {
        put(&*store, row).await?;
    }
    let mut expected = rows.to_vec();
    expected.sort_by(|a, b| a.worker_id.cmp(&b.worker_id));
    must_be("what was written", &*store, &expected).await
}

/// A row says what the last write said, and nothing of the writes before.
pub(super) async fn written_whole(store: Arc<dyn LeaseStore>) -> Verdict {
    let mut memory_only = bare("a");
    memory_only.append(MEMORY, 12.5, 90);
    let without_support = WorkerMetricStats {
        support_code: None,
        support_code_updated_seconds: None,
        ..bare("a")
    };
    for row in [full("a"), memory_only, full("a"), bare("a"), without_support] {
        put(&*store, &row).await?;
        must_be("the last write alone", &*store, &[row]).await?;
    }
    Ok(())
}

/// Rows that were written again since they were seen stay; without an expectation a row goes in any case.
pub(super) async fn deletions(store: Arc<dyn LeaseStore>) -> Verdict {
    let (kept, gone) = (bare("kept"), bare("gone"));
    let no_time = WorkerMetricStats {
        last_update_seconds: None,
        ..bare("no-time")
    };
    for row in [&kept, &gone, &no_time] {
        put(&*store, row).await?;
    }
    let all = [gone.clone(), kept.clone(), no_time.clone()];
    for (row, seconds) in [
        (&gone, NOW_SECONDS - 1),
        (&gone, NOW_SECONDS + 1),
        (&no_time, NOW_SECONDS),
    ] {
        let deleted = store.delete_worker_metrics(&row.worker_id, Some(seconds)).await;
        if no_error("delete_worker_metrics", deleted)? {
            return Err(format!(
                "deleting the metrics of {} as of {seconds} must say false, they are of {:?}",
                row.worker_id, row.last_update_seconds
            ));
        }
        must_be("a refused deletion changes nothing", &*store, &all).await?;
    }
    // The second time there is nothing left to go, which is as well.
    for (row, seconds) in [
        (&gone, Some(NOW_SECONDS)),
        (&gone, Some(NOW_SECONDS)),
        (&gone, None),
        (&no_time, None),
    ] {
        let deleted = store.delete_worker_metrics(&row.worker_id, seconds).await;
        if !no_error("delete_worker_metrics", deleted)? {
            return Err(format!(
                "deleting the metrics of {} as of {seconds:?} must say true: they are gone",
                row.worker_id
            ));
        }
    }
    must_be("only what was to go has gone", &*store, &[kept]).await
}

/// The rows are no leases: no owner's, and not found under a lease's key.
pub(super) async fn beside_the_leases(store: Arc<dyn LeaseStore>) -> Verdict {
    let mut lease = new_lease(1);
    lease.owner = Some(worker("a"));
    create(&*store, &lease).await?;
    put(&*store, &full("a")).await?;
    no_error("a second prepare", store.prepare().await)?;
    must_be("prepare keeps the metrics", &*store, &[full("a")]).await?;
    if let Some(found) = get(&*store, &LeaseKey::new("a")).await? {
        return Err(format!(
            "the metrics of a worker are no lease, yet get answers {found:?}"
        ));
    }
    eventually(|| async {
        let owned = no_error("owned_by", store.owned_by(&worker("a")).await)?;
        let leases = no_error("scan", store.scan().await)?.leases;
        if owned == [key(1)] && leases == [lease.clone()] {
            return Ok(());
        }
        Err(format!(
            "metrics are no lease, yet owned_by answers {owned:?} and a scan {leases:?}"
        ))
    })
    .await
}

/// As a worker that measures nothing writes it.
fn bare(name: &str) -> WorkerMetricStats {
    WorkerMetricStats::new(worker(name), Timestamp::from_millis(NOW_SECONDS * 1000))
}

fn full(name: &str) -> WorkerMetricStats {
    let mut row = bare(name);
    for average in [90.0, CAPTURE_FAILED, 0.0, 12.019_231, 0.000_001, 100.0] {
        row.append(CPU, average, 100);
    }
    row.append(NETWORK_IN, 33.333_333, 80);
    row.support_code = Some(7);
    row.support_code_updated_seconds = Some(NOW_SECONDS - 60);
    row
}

async fn put(store: &dyn LeaseStore, row: &WorkerMetricStats) -> Verdict {
    no_error("put_worker_metrics", store.put_worker_metrics(row).await)
}

async fn must_be(rule: &str, store: &dyn LeaseStore, expected: &[WorkerMetricStats]) -> Verdict {
    eventually(|| async {
        let scan = no_error("scan", store.scan().await)?;
        if !scan.unreadable.is_empty() {
            return Err(format!(
                "every row can be read, yet the scan reports {:?}",
                scan.unreadable
            ));
        }
        if scan.workers == expected {
            return Ok(());
        }
        Err(format!(
            "{rule}: a scan must answer the metrics {expected:?}, it answered {:?}",
            scan.workers
        ))
    })
    .await
}
