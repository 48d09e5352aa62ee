//! Leases and small tools that the cases share.

use shardfleet_core::hash_range::HashKeyRange;
use shardfleet_core::ids::{LeaseKey, ShardId, WorkerId};
use shardfleet_core::lease::{Control, Lease, OpenedAt, PendingCheckpoint, TargetState};
use shardfleet_core::sequence::{ExtendedSequenceNumber, SequenceNumber};
use shardfleet_core::time::Timestamp;

use crate::store::{LeaseStore, StoreError};

/// A sequence number as the service makes them: 56 digits, far beyond 128 bits.
pub(crate) const REAL: &str = "49680720141260965517146300220195799793931919996573712386";

pub(crate) fn shard(number: u32) -> ShardId {
    ShardId::from(format!("shardId-{number:012}"))
}

pub(crate) fn key(number: u32) -> LeaseKey {
    LeaseKey::from(&shard(number))
}

pub(crate) fn worker(name: &str) -> WorkerId {
    WorkerId::new(name)
}

pub(crate) fn at(digits: &str, sub: u64) -> ExtendedSequenceNumber {
    ExtendedSequenceNumber::parse(digits, sub).unwrap_or(ExtendedSequenceNumber::Latest)
}

/// A lease as shard sync creates it.
pub(crate) fn new_lease(number: u32) -> Lease {
    Lease::new(key(number), ExtendedSequenceNumber::TrimHorizon)
}

/// A lease in which every field has a value.
pub(crate) fn full_lease(number: u32) -> Lease {
    Lease {
        owner: Some(worker("next")),
        checkpoint_owner: Some(worker("holder")),
        counter: 71,
        owner_switches_since_checkpoint: 3,
        checkpoint: at(REAL, 2),
        pending_checkpoint: Some(PendingCheckpoint {
            at: at(
                "49680720141260965517146300220218769384504598638087897090",
                u64::from(u32::MAX) + 1,
            ),
            state: Some(vec![0, 159, 146, 150, 255]),
        }),
        parent_shard_ids: vec![shard(4), shard(5)],
        child_shard_ids: vec![shard(8), shard(9)],
        hash_key_range: HashKeyRange::new(0, u128::MAX / 3).ok(),
        throughput_kbps: Some(12.019_231),
        opened_at: Some(OpenedAt::Latest(Timestamp::from_millis(1_796_080_231_123))),
        stream_created_at: Some(Timestamp::from_millis(1_796_080_000_000)),
        control: Some(Control {
            target: TargetState::Paused,
            restarts: 3,
        }),
        ..new_lease(number)
    }
}

/// Every form of `opened_at`.
pub(crate) fn openings() -> Vec<OpenedAt> {
    let mut openings = vec![
        OpenedAt::Latest(Timestamp::from_millis(1)),
        OpenedAt::Timestamp(Timestamp::from_millis(2)),
    ];
    openings.extend(SequenceNumber::parse(REAL).ok().map(OpenedAt::Sequence));
    openings
}

/// Compares leases with their sequence numbers to the digit. Parents and children are sets: a store need not keep their order.
pub(crate) fn same(left: &Lease, right: &Lease) -> bool {
    let sorted = |lease: &Lease| {
        let mut lease = lease.clone();
        lease.parent_shard_ids.sort_unstable();
        lease.child_shard_ids.sort_unstable();
        lease
    };
    left.checkpoint.checkpoint_text() == right.checkpoint.checkpoint_text() && sorted(left) == sorted(right)
}

/// The verdict on an equality of leases.
pub(crate) fn must_be_same(rule: &str, got: Option<&Lease>, expected: &Lease) -> Result<(), String> {
    match got {
        Some(got) if same(got, expected) => Ok(()),
        got => Err(format!("{rule}: expected {expected:?}, got {got:?}")),
    }
}

/// Turns a store's error into a broken rule: no case expects one.
pub(crate) fn no_error<T>(doing: &str, result: Result<T, StoreError>) -> Result<T, String> {
    result.map_err(|error| {
        let mut text = format!("{doing} must not fail: {error}");
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        text
    })
}

pub(crate) async fn create(store: &dyn LeaseStore, lease: &Lease) -> Result<(), String> {
    if no_error("create", store.create(lease).await)? {
        return Ok(());
    }
    Err(format!(
        "create must say true for lease {}, which is new",
        lease.lease_key
    ))
}

pub(crate) async fn get(store: &dyn LeaseStore, lease_key: &LeaseKey) -> Result<Option<Lease>, String> {
    no_error("get", store.get(lease_key).await)
}
