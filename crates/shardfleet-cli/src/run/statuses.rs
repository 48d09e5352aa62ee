//! The status store of a worker: in memory, or a topic.

use std::sync::Arc;
use std::time::Duration;

use shardfleet::clock::{Clock, SystemClock, within};
use shardfleet::status::kafka::KafkaOpenError;
use shardfleet::status::{KafkaSettings, KafkaStatusStore, MemoryStatusStore, StatusStore};

use crate::exit::Failure;
use crate::output::say;

/// How long a worker waits for its topic before it begins to read. A topic that may not be used is found out by then, if a broker answers; if none does, statuses wait,
/// and records do not.
const START_PATIENCE: Duration = Duration::from_secs(5);
/// What the last statuses get beyond the time that the stop gave them.
const GRACE: Duration = Duration::from_secs(1);
/// So many statuses that were not written are named.
const NAMED_MAX: usize = 20;

/// Starts the store that the config asks for.
///
/// # Errors
/// When the topic cannot be used.
pub(crate) async fn start(topic: Option<KafkaSettings>) -> Result<Arc<dyn StatusStore>, Failure> {
    let Some(settings) = topic else {
        return Ok(Arc::new(MemoryStatusStore::new()));
    };
    let name = settings.topic.clone();
    let usage = |error: KafkaOpenError| Failure::usage(format!("status: {error}"));
    let store = KafkaStatusStore::start(settings).map_err(usage)?;
    let clock: Arc<dyn Clock> = SystemClock::shared();
    match within(&*clock, START_PATIENCE, store.ready()).await {
        Some(Err(error @ KafkaOpenError::Refused { .. })) => return Err(usage(error)),
        Some(Ok(())) => {}
        Some(Err(_)) | None => say(&format!(
            "the status topic {name:?} does not answer yet; reading begins all the same, and statuses are written once it does"
        )),
    }
    Ok(Arc::new(store))
}

/// Ends the store and names what it could not write.
pub(crate) async fn close(store: &dyn StatusStore) {
    let report = store.close(GRACE).await;
    for unwritten in report.unwritten.iter().take(NAMED_MAX) {
        let why = unwritten.error.as_deref().unwrap_or("no attempt has ended");
        say(&format!("{} was not written: {why}", unwritten.key));
    }
    let more = report.unwritten.len().saturating_sub(NAMED_MAX);
    if more > 0 {
        say(&format!("{more} more statuses were not written"));
    }
}
