use serde_json::Value;

use super::*;
use crate::store::conformance::samples::{full_lease, new_lease, same};
use crate::store::dynamodb::dynamo_json;

const ITEMS: &str = include_str!("../../../../tests/vectors/kcl-items.json");

/// Every recorded item, with the stage it is an example of.
fn recorded() -> Vec<(String, Item)> {
    let vectors: Value = serde_json::from_str(ITEMS).expect("JSON");
    let items = vectors["items"].as_array().expect("items");
    let with_stage = |it: &Value| {
        (
            it["stage"].as_str().expect("stage").to_owned(),
            dynamo_json::item(&it["item"]),
        )
    };
    items.iter().map(with_stage).collect()
}

#[test]
fn every_recorded_lease_reads_and_writes_back_the_same() {
    let items = recorded();
    assert_eq!(items.len(), 61);
    let mut leases = 0;
    for (stage, item) in items.iter().filter(|(stage, _)| stage.starts_with("lease")) {
        assert!(is_lease(item), "{stage}");
        let lease = from_item(item).unwrap_or_else(|reason| panic!("{stage}: {reason}"));
        let mut expected = item.clone();
        expected
            .entry(ENTITY_TYPE.to_owned())
            .or_insert_with(|| text(ENTITY_LEASE));
        assert_eq!(to_item(&lease), expected, "{stage}");
        assert_eq!(lease.is_finished(), stage.contains("SHARD_END"), "{stage}");
        assert_eq!(
            lease.checkpoint_owner.is_some(),
            stage.contains("in handoff"),
            "{stage}"
        );
        assert_eq!(lease.owner.is_none(), stage.contains("unowned"), "{stage}");
        leases += 1;
    }
    assert_eq!(leases, 48);
}

#[test]
fn rows_that_are_no_leases_are_told_apart() {
    for (stage, item) in recorded() {
        // Rows of the legacy tables carry no entityType; they never share a table with leases.
        if !stage.starts_with("lease") && item.contains_key(ENTITY_TYPE) {
            assert!(!is_lease(&item), "{stage}");
        }
    }
}

#[test]
fn a_lease_survives_its_item() {
    for lease in [new_lease(1), full_lease(2)] {
        let read = from_item(&to_item(&lease)).expect("what we write we read");
        assert!(same(&read, &lease), "{read:?} against {lease:?}");
    }
}

#[test]
fn throughput_as_java_writes_it_is_read() {
    for (text, expected) in [("2.0E-6", 0.000_002), ("0.0", 0.0), ("90", 90.0)] {
        let mut item = to_item(&new_lease(1));
        item.insert(THROUGHPUT.to_owned(), AttributeValue::N(text.to_owned()));
        assert_eq!(
            from_item(&item).map(|lease| lease.throughput_kbps),
            Ok(Some(expected)),
            "{text}"
        );
    }
    let written = |kbps| throughput(kbps).map(|value| value.as_n().expect("a number").clone());
    assert_eq!(written(0.123_456_789).as_deref(), Some("0.123457"));
    assert_eq!(written(0.000_002).as_deref(), Some("0.000002"));
    for bad in [f64::NAN, f64::INFINITY, -1.0, 1e200] {
        assert_eq!(written(bad), None, "{bad}");
    }
}

#[test]
fn what_cannot_be_read_is_named() {
    let broken = |name: &str, value: Option<AttributeValue>| {
        let mut item = to_item(&full_lease(1));
        match value {
            Some(value) => item.insert(name.to_owned(), value),
            None => item.remove(name),
        };
        from_item(&item).expect_err(name)
    };
    let number = |text: &str| Some(AttributeValue::N(text.to_owned()));
    for (got, expected) in [
        (
            broken(LEASE_COUNTER, None),
            "leaseCounter is missing; a whole number is expected",
        ),
        (
            broken(LEASE_COUNTER, number("-1")),
            "leaseCounter is the number -1; a whole number from 0 to 18446744073709551615 is expected",
        ),
        (
            broken(LEASE_COUNTER, Some(text("7"))),
            "leaseCounter is the text \"7\"; a whole number is expected",
        ),
        (
            broken(CHECKPOINT, None),
            "checkpoint is missing; a text is expected",
        ),
        (
            broken(CHECKPOINT, Some(text("yesterday"))),
            "checkpoint: \"yesterday\" is not a sequence number: 1 to 129 decimal digits are expected, \
             or TRIM_HORIZON, LATEST, AT_TIMESTAMP or SHARD_END",
        ),
        (
            broken(CHILD_SHARDS, Some(text("shard"))),
            "childShardIds is the text \"shard\"; a set of shard ids is expected",
        ),
        (
            broken(LEASE_OWNER, number("1")),
            "leaseOwner is the number 1; a text is expected",
        ),
    ] {
        assert_eq!(got, expected);
    }
    assert!(broken(ENDING_HASH_KEY, Some(text("x"))).contains("endingHashKey"));
    assert!(broken(OPENED_AT, Some(text("x"))).contains("shardfleetOpenedAt"));
    assert!(broken(PENDING_STATE, Some(text("x"))).contains("pendingCheckpointState"));
    // A hostile value does not grow the message.
    assert!(broken(LEASE_COUNTER, Some(text(&"x".repeat(100_000)))).len() < 300);
}

#[test]
fn keys_of_several_streams_carry_their_parts() {
    assert_eq!(
        stream_and_shard("1234:orders:99:shardId-1"),
        Some(("1234:orders:99", "shardId-1"))
    );
    for single in ["shardId-1", "a:b", "1:2:3:", "1:2:3:4:5"] {
        assert_eq!(stream_and_shard(single), None, "{single}");
    }
}
