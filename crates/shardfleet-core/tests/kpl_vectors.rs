//! Every vector of `vectors/kpl.json`, which were checked against the Java KCL's own deaggregator: what it delivers, and
//! what the filter by user record delivers instead.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::Value;
use shardfleet_core::hash_range::HashKeyRange;
use shardfleet_core::kpl::{HashRangeFilter, UserRecord, deaggregate, is_aggregated};

const VECTORS: &str = include_str!("vectors/kpl.json");

fn vectors() -> Vec<Value> {
    serde_json::from_str(VECTORS).expect("vectors are JSON")
}

fn decode(value: &Value) -> Bytes {
    Bytes::from(
        STANDARD
            .decode(value.as_str().expect("base64 text"))
            .expect("base64"),
    )
}

fn range(vector: &Value) -> Option<HashKeyRange> {
    let range = vector.get("shard_hash_range")?;
    let text = |field: &str| range[field].as_str().expect("decimal text").to_owned();
    Some(HashKeyRange::parse(&text("start"), &text("end")).expect("range"))
}

fn check(vector: &Value, filter: HashRangeFilter, field: &str, expected: &[Value]) {
    let name = vector["name"].as_str().expect("name");
    let data = decode(&vector["record_base64"]);
    let partition_key = vector["partition_key"].as_str().map(Arc::from);
    let answer = deaggregate(&data, partition_key, range(vector), filter);
    assert_eq!(
        answer.records.len(),
        expected.len(),
        "{name}.{field}: number of user records"
    );
    for (i, (record, expected)) in answer.records.iter().zip(expected).enumerate() {
        let check = |key: &str, got: Value| assert_eq!(got, expected[key], "{name}.{field}[{i}].{key}");
        check("sub_sequence_number", record.sub_sequence_number.into());
        check("partition_key", record.partition_key.as_deref().into());
        check("explicit_hash_key", record.explicit_hash_key.as_deref().into());
        check("aggregated", record.aggregated.into());
        check("data_base64", STANDARD.encode(&record.data).into());
        assert_is_slice(&data, record, name);
        assert_eq!(record.aggregated, is_aggregated(&data), "{name}: is_aggregated");
    }
}

/// No user record's data may be a copy.
fn assert_is_slice(data: &Bytes, record: &UserRecord, name: &str) {
    let outer = data.as_ptr_range();
    let inner = record.data.as_ptr_range();
    let is_slice = record.data.is_empty() || (outer.start <= inner.start && inner.end <= outer.end);
    assert!(is_slice, "{name}: data was copied");
}

#[test]
fn all_vectors_as_the_java_kcl_and_by_user_record() {
    let vectors = vectors();
    assert_eq!(vectors.len(), 46);
    for vector in &vectors {
        let expected = vector["expected"].as_array().expect("expected");
        check(vector, HashRangeFilter::WholeAggregate, "expected", expected);
        let by_record = vector
            .get("per_record_alternative")
            .and_then(Value::as_array)
            .unwrap_or(expected);
        check(
            vector,
            HashRangeFilter::PerRecord,
            "per_record_alternative",
            by_record,
        );
    }
}

#[test]
fn what_was_dropped_and_why_is_reported() {
    let vectors = vectors();
    let answer = |name: &str, filter| {
        let vector = vectors.iter().find(|v| v["name"] == name).expect(name);
        deaggregate(&decode(&vector["record_base64"]), None, range(vector), filter)
    };
    let problem = |name| {
        answer(name, HashRangeFilter::PerRecord)
            .problem
            .expect(name)
            .to_string()
    };
    assert_eq!(
        problem("partition_key_index_out_of_range"),
        "user record 1 of an aggregated record: partition key index 5 lies outside the table of 1 entries; \
         2 user records were not delivered"
    );
    assert!(problem("explicit_hash_key_index_out_of_range").contains("explicit hash key index"));
    assert!(problem("explicit_hash_key_not_numeric").contains("is not a decimal number"));

    let mixed = |filter| answer("range_mixed", filter);
    assert_eq!(mixed(HashRangeFilter::PerRecord).outside_range, 1);
    assert_eq!(mixed(HashRangeFilter::WholeAggregate).outside_range, 3);
    let off = mixed(HashRangeFilter::Off);
    assert_eq!((off.records.len(), off.outside_range), (3, 0));
    // Without a filter nobody needs the hash key, so one that is no number does no harm.
    let off = answer("explicit_hash_key_not_numeric", HashRangeFilter::Off);
    assert!(off.problem.is_none() && !off.records.is_empty());
}
