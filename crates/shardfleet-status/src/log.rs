//! Where a store's records go: an append-only log of keyed records, in order by key.

use futures::future::BoxFuture;
use shardfleet_core::status::Outcome;

/// A log that statuses are written to. What is read back goes to [`LoggedStatusStore::read`](crate::LoggedStatusStore::read).
pub trait StatusLog: Send + Sync + 'static {
    /// Hands a record over; `None` is a tombstone. It returns at once, and the answer comes when the record's fate is known, which takes no longer than the log's
    /// own limit.
    fn send(&self, key: String, value: Option<Vec<u8>>) -> BoxFuture<'static, Outcome>;

    /// Comes once records may be handed over; until then statuses wait, the newest of each key.
    fn ready(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Drops what was handed over and is not sent yet, since nobody waits for it any more.
    fn purge(&self) {}
}
