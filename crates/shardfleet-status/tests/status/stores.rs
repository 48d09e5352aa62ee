//! The suite for all stores.

use std::sync::Arc;

use shardfleet_status::{MemoryStatusStore, RetrySettings, StatusStore, conformance};

use crate::failing_log::{FailingLog, Fate, retriable};

#[tokio::test]
async fn the_memory_store_conforms() {
    let verdict =
        conformance::run(async |_| Arc::new(MemoryStatusStore::new()) as Arc<dyn StatusStore>).await;
    assert_eq!(verdict, Ok(()));
}

#[tokio::test]
async fn a_store_over_a_log_conforms() {
    let open =
        async |_| Arc::new(FailingLog::default().store(RetrySettings::default())) as Arc<dyn StatusStore>;
    assert_eq!(conformance::run(open).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_store_over_a_log_whose_writes_fail_at_first_conforms() {
    let open = async |case| {
        let log = FailingLog::default();
        // The count of successes is one of what was put, not of what was sent.
        // Five retries are allowed, and each case must end in a success.
        for _ in 0..2 {
            log.next(Fate::Fails(retriable()));
            log.next(Fate::FailsWritten(retriable()));
        }
        tracing::info!("{case}");
        Arc::new(log.store(RetrySettings::default())) as Arc<dyn StatusStore>
    };
    assert_eq!(conformance::run(open).await, Ok(()));
}
