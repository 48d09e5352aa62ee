//! DynamoDB JSON, as the vectors hold it, to and from the SDK's values.

use std::collections::HashMap;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// An item.
pub(crate) fn item(json: &Value) -> HashMap<String, AttributeValue> {
    let fields = json.as_object().expect("an item is an object");
    fields
        .iter()
        .map(|(name, json)| (name.clone(), value(json)))
        .collect()
}

/// One attribute's value.
pub(crate) fn value(json: &Value) -> AttributeValue {
    let (kind, json) = json
        .as_object()
        .and_then(|it| it.iter().next())
        .expect("a typed value");
    let text = || json.as_str().expect("a text").to_owned();
    let list = || json.as_array().expect("a list").iter();
    match kind.as_str() {
        "S" => AttributeValue::S(text()),
        "N" => AttributeValue::N(text()),
        "B" => AttributeValue::B(Blob::new(STANDARD.decode(text()).expect("base64"))),
        "SS" => AttributeValue::Ss(list().map(|it| it.as_str().expect("a text").to_owned()).collect()),
        "L" => AttributeValue::L(list().map(value).collect()),
        "M" => AttributeValue::M(item(json)),
        other => panic!("type {other} is not in the vectors"),
    }
}
