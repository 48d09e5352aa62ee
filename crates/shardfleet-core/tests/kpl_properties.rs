//! Properties of KPL records: what is packed unpacks to the same, and no bytes whatever make the reader panic.

use std::sync::Arc;

use bytes::Bytes;
use md5::{Digest, Md5};
use proptest::prelude::*;
use prost::Message as _;
use shardfleet_core::hash_range::{HashKeyRange, hash_of_partition_key};
use shardfleet_core::kpl::{
    AggregateError, AggregatedRecord, Aggregator, HashRangeFilter, MAX_AGGREGATE_BYTES, deaggregate,
    is_aggregated,
};

type Input = (String, Option<u128>, Vec<u8>);

/// The format as generated code would declare it: a second reader to compare with. `required` is not enforced by prost, so
/// those fields are optional here and their presence is tested.
#[derive(Clone, PartialEq, prost::Message)]
struct ProtoMessage {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    partition_key_table: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "2")]
    explicit_hash_key_table: Vec<Bytes>,
    #[prost(message, repeated, tag = "3")]
    records: Vec<ProtoRecord>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ProtoRecord {
    #[prost(uint64, optional, tag = "1")]
    partition_key_index: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    explicit_hash_key_index: Option<u64>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    data: Option<Bytes>,
    #[prost(message, repeated, tag = "4")]
    tags: Vec<ProtoTag>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ProtoTag {
    #[prost(bytes = "bytes", optional, tag = "1")]
    key: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    value: Option<Bytes>,
}

/// What the second reader accepts is read here too, to the same data.
fn compare_with_prost(message: &[u8]) {
    let Ok(proto) = ProtoMessage::decode(message) else {
        return;
    };
    let is_complete = proto.records.iter().all(|record| {
        record.partition_key_index.is_some()
            && record.data.is_some()
            && record.tags.iter().all(|tag| tag.key.is_some())
    });
    let data = with_digest(message);
    assert_eq!(
        is_aggregated(&data),
        is_complete && !message.is_empty(),
        "{message:?}"
    );
    if is_aggregated(&data) {
        let answer = deaggregate(&data, None, None, HashRangeFilter::Off);
        let delivered = answer.records.len();
        assert_eq!(
            delivered + answer.problem.map_or(0, |problem| problem.lost),
            proto.records.len()
        );
        for (record, proto) in answer.records.iter().zip(&proto.records) {
            assert_eq!(Some(&record.data), proto.data.as_ref());
            assert_eq!(
                record.explicit_hash_key.is_some(),
                proto.explicit_hash_key_index.is_some()
            );
        }
    }
}

const FILTERS: [HashRangeFilter; 3] = [
    HashRangeFilter::PerRecord,
    HashRangeFilter::WholeAggregate,
    HashRangeFilter::Off,
];

fn user_records() -> impl Strategy<Value = Vec<Input>> {
    let key = prop_oneof!["[ab]", "\\PC{1,20}"];
    let data = prop::collection::vec(any::<u8>(), 0..60);
    prop::collection::vec((key, any::<Option<u128>>(), data), 1..40)
}

fn pack(max_bytes: usize, inputs: &[Input]) -> Vec<AggregatedRecord> {
    let mut aggregator = Aggregator::with_max_bytes(max_bytes).expect("size");
    let mut packed = Vec::new();
    for (key, explicit, data) in inputs {
        packed.extend(
            aggregator
                .add(key, *explicit, Bytes::from(data.clone()))
                .expect("key"),
        );
    }
    packed.extend(aggregator.finish());
    assert_eq!((aggregator.user_records(), aggregator.finish()), (0, None));
    packed
}

fn with_digest(message: &[u8]) -> Bytes {
    let mut data = vec![0xF3, 0x89, 0x9A, 0xC2];
    data.extend_from_slice(message);
    data.extend_from_slice(&Md5::digest(message));
    Bytes::from(data)
}

fn message_of(record: &AggregatedRecord) -> Option<Vec<u8>> {
    is_aggregated(&record.data).then(|| record.data[4..record.data.len() - 16].to_vec())
}

/// Reads under every filter and a few ranges; whatever comes out keeps the rules.
fn read_all_ways(data: &Bytes) {
    let narrow = HashKeyRange::new(5, u128::MAX / 3).expect("range");
    for filter in FILTERS {
        for range in [None, Some(HashKeyRange::FULL), Some(narrow)] {
            let answer = deaggregate(data, Some(Arc::from("outer")), range, filter);
            assert!(
                answer
                    .records
                    .is_sorted_by_key(|record| record.sub_sequence_number)
            );
            if !is_aggregated(data) {
                assert_eq!(answer.records.len(), 1);
                assert_eq!(answer.records[0].data, data);
                assert_eq!(answer.records[0].partition_key.as_deref(), Some("outer"));
            }
        }
    }
}

proptest! {
    #[test]
    fn what_is_packed_unpacks_to_the_same(inputs in user_records(), max_bytes in 1_usize..2_000) {
        let mut unpacked = Vec::new();
        for record in pack(max_bytes, &inputs) {
            if record.user_records > 1 {
                prop_assert!(record.data.len() + record.partition_key.len() <= max_bytes);
            }
            let answer = deaggregate(&record.data, Some(Arc::from(record.partition_key)), None, HashRangeFilter::Off);
            prop_assert_eq!(&answer.problem, &None);
            prop_assert_eq!(answer.records.len(), record.user_records);
            for user_record in answer.records {
                // The service keeps a plain record's explicit hash key to itself.
                let explicit = user_record.explicit_hash_key.map(|text| text.parse().expect("number"));
                let explicit = if user_record.aggregated { explicit } else { record.explicit_hash_key };
                let key = user_record.partition_key.expect("key").to_string();
                unpacked.push((key, explicit, user_record.data.to_vec()));
            }
        }
        prop_assert_eq!(unpacked, inputs);
    }

    #[test]
    fn the_filter_keeps_exactly_the_user_records_inside(inputs in user_records(), a: u128, b: u128) {
        let range = HashKeyRange::new(a.min(b), a.max(b)).expect("range");
        for record in pack(MAX_AGGREGATE_BYTES, &inputs).iter().filter(|record| is_aggregated(&record.data)) {
            let answer = deaggregate(&record.data, None, Some(range), HashRangeFilter::PerRecord);
            let kept: Vec<_> = answer.records.iter().map(|record| record.sub_sequence_number).collect();
            let inside = inputs.iter().enumerate().filter(|(_, (key, explicit, _))| {
                range.contains(explicit.unwrap_or_else(|| hash_of_partition_key(key.as_bytes())))
            });
            let inside: Vec<_> = inside.map(|(i, _)| i as u64).collect();
            prop_assert_eq!(answer.outside_range, inputs.len() - inside.len());
            let whole = deaggregate(&record.data, None, Some(range), HashRangeFilter::WholeAggregate);
            prop_assert_eq!(whole.records.len(), if inside.len() == inputs.len() { inputs.len() } else { 0 });
            prop_assert_eq!(kept, inside);
        }
    }

    #[test]
    fn any_bytes_read_without_panic(bytes: Vec<u8>) {
        compare_with_prost(&bytes);
        read_all_ways(&with_digest(&bytes));
        read_all_ways(&Bytes::from(bytes));
    }

    #[test]
    fn damaged_aggregates_read_without_panic(
        inputs in user_records(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut: prop::sample::Index,
    ) {
        for record in pack(MAX_AGGREGATE_BYTES, &inputs) {
            let Some(mut message) = message_of(&record) else { continue };
            for (at, byte) in &flips {
                let at = at.index(message.len());
                message[at] = *byte;
            }
            compare_with_prost(&message);
            compare_with_prost(&message[..cut.index(message.len())]);
            read_all_ways(&with_digest(&message));
            read_all_ways(&with_digest(&message[..cut.index(message.len())]));
            read_all_ways(&record.data.slice(..cut.index(record.data.len())));
        }
    }
}

#[test]
fn one_user_record_alone_is_not_wrapped_unless_it_looks_like_an_aggregate() {
    let alone = pack(1_000, &[("k".to_owned(), None, b"data".to_vec())]);
    assert_eq!(alone.len(), 1);
    assert_eq!(
        (&alone[0].data[..], alone[0].explicit_hash_key),
        (&b"data"[..], None)
    );

    let inner = pack(
        1_000,
        &[("a".to_owned(), None, vec![1]), ("b".to_owned(), None, vec![2])],
    )
    .remove(0)
    .data;
    let outer = pack(1_000, &[("k".to_owned(), None, inner.to_vec())]).remove(0);
    let answer = deaggregate(&outer.data, None, None, HashRangeFilter::PerRecord);
    assert_eq!(answer.records.len(), 1);
    assert_eq!(answer.records[0].data, inner);
}

#[test]
fn limits_are_named() {
    let error = Aggregator::with_max_bytes(0).expect_err("0");
    assert_eq!(error, AggregateError::MaxBytes { bytes: 0 });
    assert!(Aggregator::with_max_bytes(MAX_AGGREGATE_BYTES + 1).is_err());
    let error = Aggregator::default()
        .add("", None, Bytes::new())
        .expect_err("empty key");
    assert_eq!(
        error.to_string(),
        "partition key has 0 characters; 1 to 256 are allowed"
    );
    assert!(
        Aggregator::default()
            .add(&"ü".repeat(256), None, Bytes::new())
            .is_ok()
    );
    assert!(
        Aggregator::default()
            .add(&"ü".repeat(257), None, Bytes::new())
            .is_err()
    );
}
