//! Both encodings, against themselves and against an independent CBOR crate.

use std::borrow::Cow;

use proptest::prelude::*;

use super::*;

fn values() -> impl Strategy<Value = Value<'static>> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        "\\PC{0,20}".prop_map(|t| Value::Text(Cow::Owned(t))),
        "[\\x00-\\x7f]{0,8}".prop_map(|t| Value::Text(Cow::Owned(t))),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::List),
            prop::collection::vec(("[a-zA-Z\"\\\\]{0,30}", inner), 0..6)
                .prop_map(|f| Value::Map(f.into_iter().map(|(k, v)| (Cow::Owned(k), v)).collect())),
        ]
    })
}

proptest! {
    #[test]
    fn both_encodings_give_back_what_they_were_given(value in values()) {
        for format in [Format::Json, Format::Cbor] {
            let bytes = format.write(&value);
            prop_assert_eq!(format.read(&bytes).unwrap(), value.clone());
        }
    }

    #[test]
    fn cbor_blobs_and_times_survive(blob in prop::collection::vec(any::<u8>(), 0..300), ms in 0u64..1 << 53) {
        let value = map([("b", Value::Bytes(Cow::Owned(blob))), ("t", Value::Time(ms))]);
        let bytes = Format::Cbor.write(&value);
        prop_assert_eq!(Format::Cbor.read(&bytes).unwrap(), value);
    }

    #[test]
    fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        for format in [Format::Json, Format::Cbor] {
            drop(format.read(&bytes));
        }
    }

    #[test]
    fn an_independent_crate_reads_our_cbor(value in values()) {
        let bytes = Format::Cbor.write(&value);
        let theirs: ciborium::Value = ciborium::from_reader(bytes.as_slice()).unwrap();
        let mut again = Vec::new();
        ciborium::into_writer(&theirs, &mut again).unwrap();
        prop_assert_eq!(Format::Cbor.read(&again).unwrap(), value);
    }
}

#[test]
fn json_times_are_seconds_and_blobs_base64() {
    let value = map([
        ("t", Value::Time(1_733_011_200_007)),
        ("b", Value::Bytes(Cow::Borrowed(b"hello"))),
    ]);
    assert_eq!(
        Format::Json.write(&value),
        br#"{"t":1733011200.007,"b":"aGVsbG8="}"#
    );
}

#[test]
fn cbor_times_are_tagged_milliseconds_and_fractions_are_seconds() {
    let java = [
        0xA1, 0x61, b't', 0xC1, 0x1B, 0, 0, 1, 0x93, 0x7F, 0x0A, 0xD0, 0x07,
    ];
    let parsed = Format::Cbor.read(&java).unwrap();
    assert_eq!(parsed.get("t"), Some(&Value::Time(0x193_7F0A_D007)));
    let mut seconds = vec![0xC1, 0xFB];
    seconds.extend_from_slice(&1_733_011_200.5f64.to_be_bytes());
    assert_eq!(
        Format::Cbor.read(&seconds).unwrap(),
        Value::Time(1_733_011_200_500)
    );
}

#[test]
fn indefinite_lengths_are_read() {
    // {_ "a": [_ 1, 2], "b": (_ h'01', h'0203')}, as streaming writers send it.
    let bytes = [
        0xBF, 0x61, b'a', 0x9F, 1, 2, 0xFF, 0x61, b'b', 0x5F, 0x41, 1, 0x42, 2, 3, 0xFF, 0xFF,
    ];
    let parsed = Format::Cbor.read(&bytes).unwrap();
    assert_eq!(
        parsed.get("a"),
        Some(&Value::List(vec![Value::Int(1), Value::Int(2)]))
    );
    assert_eq!(parsed.get("b"), Some(&Value::Bytes(Cow::Borrowed(&[1, 2, 3]))));
}

#[test]
fn half_floats_are_read() {
    for (bits, value) in [
        ([0x3C, 0x00], 1.0),
        ([0xC0, 0x00], -2.0),
        ([0x7B, 0xFF], 65504.0),
        ([0x00, 0x01], 2f64.powi(-24)),
    ] {
        assert_eq!(
            Format::Cbor.read(&[0xF9, bits[0], bits[1]]).unwrap(),
            Value::Float(value)
        );
    }
}

#[test]
fn deep_nesting_is_refused() {
    assert!(Format::Cbor.read(&[0x81; 10_000]).is_err());
    assert!(Format::Json.read("[".repeat(10_000).as_bytes()).is_err());
}

#[test]
fn a_frame_is_laid_out_as_documented() {
    let frame = eventstream::event("e", "c", b"payload");
    let number = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    assert_eq!(number(0) as usize, frame.len());
    assert_eq!(number(8), crc32fast::hash(&frame[..8]));
    assert_eq!(
        number(frame.len() - 4),
        crc32fast::hash(&frame[..frame.len() - 4])
    );
    let headers = number(4) as usize;
    assert_eq!(&frame[12 + headers..frame.len() - 4], b"payload");
    assert_eq!(&frame[12..12 + 14], b"\x0d:message-type");
    assert_eq!(&frame[26..26 + 8], b"\x07\x00\x05event");
}
