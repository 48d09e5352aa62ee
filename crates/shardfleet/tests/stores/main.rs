//! The lease stores: one conformance suite over all of them, and what each has of its own.

mod broken;
mod dynamodb;
mod dynamodb_faults;
mod dynamodb_start;
mod legacy_tables;
mod rows;
mod sqlite;

#[path = "../support/dynamo_json.rs"]
mod dynamo_json;

use std::sync::Arc;

use shardfleet::store::{LeaseStore, MemoryLeaseStore, conformance};
use shardfleet_core::ids::LeaseKey;
use shardfleet_core::lease::Lease;
use shardfleet_core::sequence::ExtendedSequenceNumber;

/// A lease as shard sync creates it.
fn new_lease(number: u32) -> Lease {
    Lease::new(
        LeaseKey::from(format!("shardId-{number:012}")),
        ExtendedSequenceNumber::TrimHorizon,
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_conforms() {
    let make = || async { Ok(Arc::new(MemoryLeaseStore::new()) as Arc<dyn LeaseStore>) };
    conformance::run(make).await.assert_passed();
}
