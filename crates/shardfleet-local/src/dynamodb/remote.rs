//! Control of a running embedded DynamoDB over HTTP, for tests in other processes.
//!
//! | request | body, answer |
//! | --- | --- |
//! | `GET /_shardfleet/health` | `{"status":"ok"}` |
//! | `GET /_shardfleet/calls` | `{"calls":{"UpdateItem":3},"tables":{"UpdateItem":{"leases":3}},"faults":1}` |
//! | `DELETE /_shardfleet/calls` | counts from nought again |
//! | `GET`, `DELETE /_shardfleet/faults` | all rules with ids and hits; takes all back, and ends an outage and a lag |
//! | `POST /_shardfleet/faults` | a [`DynamoFaultRule`] as JSON, such as `{"operation":"UpdateItem","times":2,"action":{"type":"throttle"}}`; answers `{"id":1}` |
//! | `DELETE /_shardfleet/faults/ID` | takes one back |
//! | `GET`, `POST /_shardfleet/cut` | `{"cut":true}`: whether every call is cut |
//! | `GET`, `POST /_shardfleet/lag` | `{"lag":{"millis":500}}`, `{"lag":{"writes":3,"all_reads":true}}` or `{"lag":null}` |
//!
//! A refused request answers 400 with `{"error":"…"}`, an unknown path 404. An outage does not cut these.

use std::collections::BTreeMap;

use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::controls::DynamoControls;
use super::faults::{DynamoFaultId, DynamoFaultRule};
use super::lag::DynamoLag;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Outage {
    cut: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Lag {
    lag: Option<DynamoLag>,
}

/// Answers a control request.
pub(super) fn handle(
    controls: &DynamoControls,
    method: &Method,
    path: &str,
    body: &[u8],
) -> (StatusCode, Value) {
    match route(controls, method, path, body) {
        Ok(Some(value)) => (StatusCode::OK, value),
        Ok(None) => {
            let text = format!("{method} /_shardfleet/{path} is not a control");
            (StatusCode::NOT_FOUND, json!({"error": text}))
        }
        Err(problem) => (StatusCode::BAD_REQUEST, json!({"error": problem})),
    }
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|e| format!("the body does not fit: {e}"))
}

fn route(
    controls: &DynamoControls,
    method: &Method,
    path: &str,
    body: &[u8],
) -> Result<Option<Value>, String> {
    let answer = match (method.as_str(), path) {
        ("GET", "health") => json!({"status": "ok"}),
        ("GET", "calls") => calls(controls),
        ("DELETE", "calls") => {
            controls.reset_calls();
            json!({})
        }
        ("GET", "faults") => {
            let rules = controls.fault_rules().into_iter();
            rules
                .map(|(id, rule, hits)| json!({"id": id, "rule": rule, "hits": hits}))
                .collect()
        }
        ("POST", "faults") => json!({"id": controls.add_fault(parse::<DynamoFaultRule>(body)?)}),
        ("DELETE", "faults") => {
            controls.clear_faults();
            json!({})
        }
        ("POST", "cut") => {
            controls.cut(parse::<Outage>(body)?.cut);
            json!({"cut": controls.is_cut()})
        }
        ("GET", "cut") => json!({"cut": controls.is_cut()}),
        ("POST", "lag") => {
            controls.set_lag(parse::<Lag>(body)?.lag);
            json!({"lag": controls.lag()})
        }
        ("GET", "lag") => json!({"lag": controls.lag()}),
        ("DELETE", path) => match path
            .strip_prefix("faults/")
            .map(serde_json::from_str::<DynamoFaultId>)
        {
            Some(Ok(id)) => {
                controls.remove_fault(id);
                json!({})
            }
            Some(Err(_)) => return Err("the fault's id must be a number".to_owned()),
            None => return Ok(None),
        },
        _ => return Ok(None),
    };
    Ok(Some(answer))
}

fn calls(controls: &DynamoControls) -> Value {
    let mut tables: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for ((operation, table), count) in controls.all_calls_by_table() {
        tables.entry(operation).or_default().insert(table, count);
    }
    json!({"calls": controls.all_calls(), "tables": tables, "faults": controls.faults()})
}
