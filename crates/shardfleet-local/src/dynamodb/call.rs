//! What the layer in front knows about a call: its operation, its tables, and whether it writes.

use std::collections::BTreeSet;

use bytes::Bytes;
use hyper::HeaderMap;
use serde_json::Value;

/// Operations that change items.
const ITEM_WRITES: [&str; 8] = [
    "BatchExecuteStatement",
    "BatchWriteItem",
    "DeleteItem",
    "ExecuteStatement",
    "ExecuteTransaction",
    "PutItem",
    "TransactWriteItems",
    "UpdateItem",
];
/// Operations that change tables.
const TABLE_WRITES: [&str; 4] = ["CreateTable", "DeleteTable", "UpdateTable", "UpdateTimeToLive"];
/// Operations that read items and can say `ConsistentRead`.
const READS: [&str; 4] = ["BatchGetItem", "GetItem", "Query", "Scan"];

/// What a call does to items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    WritesItems,
    WritesTables,
    ReadsIndex,
    ReadsEventually,
    /// Anything else, strongly consistent reads included.
    Other,
}

/// A call of the service.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) operation: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) input: Value,
    pub(super) tables: BTreeSet<String>,
}

impl Call {
    /// Never fails: a body that is not JSON names no tables, and the database answers it.
    pub(super) fn new(headers: HeaderMap, body: Bytes) -> Self {
        let target = headers.get("x-amz-target").and_then(|value| value.to_str().ok());
        let operation = target
            .and_then(|t| t.rsplit('.').next())
            .unwrap_or_default()
            .to_owned();
        let input = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let tables = tables(&input);
        Self {
            operation,
            headers,
            body,
            input,
            tables,
        }
    }

    pub(super) fn is_on(&self, table: &str) -> bool {
        self.tables.contains(table)
    }

    /// Whether a text is in the body: as it was sent, or in a value that had characters escaped.
    pub(super) fn contains(&self, text: &str) -> bool {
        let wanted = text.as_bytes();
        wanted.is_empty()
            || self.body.windows(wanted.len()).any(|window| window == wanted)
            || any_text(&self.input, &|value| value.contains(text))
    }

    pub(super) fn effect(&self) -> Effect {
        let operation = self.operation.as_str();
        if ITEM_WRITES.contains(&operation) {
            Effect::WritesItems
        } else if TABLE_WRITES.contains(&operation) {
            Effect::WritesTables
        } else if !READS.contains(&operation) {
            Effect::Other
        } else if self.input["IndexName"].is_string() {
            Effect::ReadsIndex
        } else if self.is_consistent() {
            Effect::Other
        } else {
            Effect::ReadsEventually
        }
    }

    fn is_consistent(&self) -> bool {
        let of_table = self.input["RequestItems"].as_object();
        self.input["ConsistentRead"] == true
            || of_table.is_some_and(|tables| tables.values().any(|keys| keys["ConsistentRead"] == true))
    }
}

fn any_text(value: &Value, test: &dyn Fn(&str) -> bool) -> bool {
    match value {
        Value::String(text) => test(text),
        Value::Array(values) => values.iter().any(|value| any_text(value, test)),
        Value::Object(fields) => fields
            .iter()
            .any(|(name, value)| test(name) || any_text(value, test)),
        _ => false,
    }
}

/// Names of all tables that a request names. Those inside a statement's text are not looked for.
fn tables(input: &Value) -> BTreeSet<String> {
    let mut tables = BTreeSet::new();
    tables.extend(input["TableName"].as_str().map(table_name));
    if let Some(requests) = input["RequestItems"].as_object() {
        tables.extend(requests.keys().map(|name| table_name(name)));
    }
    for item in input["TransactItems"].as_array().into_iter().flatten() {
        let parts = item.as_object().into_iter().flat_map(|parts| parts.values());
        tables.extend(
            parts
                .filter_map(|part| part["TableName"].as_str())
                .map(table_name),
        );
    }
    tables
}

/// A table may be named by its ARN.
fn table_name(given: &str) -> String {
    match given.split_once(":table/") {
        Some((_, name)) => name.split('/').next().unwrap_or_default().to_owned(),
        None => given.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(operation: &str, body: &str) -> Call {
        let mut headers = HeaderMap::new();
        let target = format!("DynamoDB_20120810.{operation}");
        headers.insert("x-amz-target", target.parse().unwrap());
        Call::new(headers, Bytes::copy_from_slice(body.as_bytes()))
    }

    #[test]
    fn tables_are_found_wherever_they_are_named() {
        let arn = call(
            "GetItem",
            r#"{"TableName":"arn:aws:dynamodb:us-east-1:0:table/one/index/i"}"#,
        );
        assert!(arn.is_on("one"));
        let batch = call("BatchWriteItem", r#"{"RequestItems":{"one":[],"two":[]}}"#);
        assert!(batch.is_on("one") && batch.is_on("two") && !batch.is_on("three"));
        let transaction = call(
            "TransactWriteItems",
            r#"{"TransactItems":[{"Put":{"TableName":"three"}}]}"#,
        );
        assert!(transaction.is_on("three"));
        assert!(call("PutItem", "not JSON").tables.is_empty());
    }

    #[test]
    fn effects_follow_operation_and_consistency() {
        assert_eq!(call("PutItem", "{}").effect(), Effect::WritesItems);
        assert_eq!(call("DeleteTable", "{}").effect(), Effect::WritesTables);
        assert_eq!(call("Query", r#"{"IndexName":"i"}"#).effect(), Effect::ReadsIndex);
        assert_eq!(call("Scan", "{}").effect(), Effect::ReadsEventually);
        assert_eq!(call("Scan", r#"{"ConsistentRead":true}"#).effect(), Effect::Other);
        let batch = call(
            "BatchGetItem",
            r#"{"RequestItems":{"t":{"ConsistentRead":true}}}"#,
        );
        assert_eq!(batch.effect(), Effect::Other);
        assert_eq!(call("ListTables", "{}").effect(), Effect::Other);
    }

    #[test]
    fn a_text_is_found_through_escapes() {
        let call = call("PutItem", r#"{"Item":{"k":{"S":"a\"b\u00e9"}}}"#);
        assert!(call.contains("a\"b") && call.contains("é") && !call.contains("ab"));
    }
}
