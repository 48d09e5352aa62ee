//! Control of a running embedded Kinesis over HTTP, for tests in other processes.
//!
//! | request | body, answer |
//! | --- | --- |
//! | `GET /_shardfleet/health` | `{"status":"ok","streams":N}` |
//! | `GET /_shardfleet/calls` | `{"calls":{"GetRecords":3},"shards":{"GetRecords":{"shardId-…":3}},"streams":{…}}` |
//! | `DELETE /_shardfleet/calls` | counts from nought again |
//! | `GET`, `DELETE /_shardfleet/faults` | all rules with ids and hits; takes all back |
//! | `POST /_shardfleet/faults` | a [`FaultRule`] as JSON, such as `{"operation":"GetRecords","times":2,"action":{"type":"server_error"}}`; answers `{"id":1}` |
//! | `DELETE /_shardfleet/faults/ID` | takes one back |
//! | `GET`, `POST /_shardfleet/clock` | `{"epoch_ms":N}` stops the clock there, `{"advance_ms":N}` moves it on, `{"real":true}` lets it run; answers `{"epoch_ms":N}` |
//! | `GET`, `POST /_shardfleet/limits` | `{"preset":"aws"}`, `{"preset":"off"}`, or the fields of [`ServiceLimits`] |
//! | `POST /_shardfleet/settings` | any of `iterator_lifetime_ms`, `subscription_ms`, `subscription_idle_ms`, `subscription_takeover_ms`, `list_token_lifetime_ms`, `transition_ms`, `page_bytes`, `shard_end_on_own_page` |
//! | `POST /_shardfleet/expire-iterators` | `{"stream":"…","shard":"shardId-…"}` |
//! | `POST /_shardfleet/retention` | `{"stream":"…","hours":N}`, any number of hours |
//!
//! A refused request answers 400 with `{"error":"…"}`, an unknown path 404.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::controls::KinesisControls;
use crate::faults::{FaultId, FaultRule};
use crate::model::ServiceLimits;
use crate::service::Service;

/// Answers a control request: status and JSON body.
pub(crate) fn handle(service: &Arc<Service>, method: &Method, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let controls = KinesisControls::new(Arc::clone(service));
    let (status, value) = match route(&controls, service, method, path, body) {
        Ok(Some(value)) => (200, value),
        Ok(None) => (
            404,
            json!({"error": format!("{method} /_shardfleet/{path} is not a control")}),
        ),
        Err(problem) => (400, json!({"error": problem})),
    };
    (status, value.to_string().into_bytes())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Clock {
    epoch_ms: Option<u64>,
    advance_ms: Option<u64>,
    #[serde(default)]
    real: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    iterator_lifetime_ms: Option<u64>,
    subscription_ms: Option<u64>,
    subscription_idle_ms: Option<u64>,
    subscription_takeover_ms: Option<u64>,
    list_token_lifetime_ms: Option<u64>,
    transition_ms: Option<u64>,
    page_bytes: Option<usize>,
    shard_end_on_own_page: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfShard {
    stream: String,
    shard: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Retention {
    stream: String,
    hours: u64,
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|e| format!("the body does not fit: {e}"))
}

fn route(
    controls: &KinesisControls,
    service: &Service,
    method: &Method,
    path: &str,
    body: &[u8],
) -> Result<Option<Value>, String> {
    let answer = match (method.as_str(), path) {
        ("GET", "health") => json!({"status": "ok", "streams": controls.streams().len()}),
        ("GET", "calls") => calls(service),
        ("DELETE", "calls") => {
            controls.reset_calls();
            json!({})
        }
        ("GET", "faults") => {
            let rules = controls.faults();
            rules
                .into_iter()
                .map(|(id, rule, hits)| json!({"id": id, "rule": rule, "hits": hits}))
                .collect()
        }
        ("POST", "faults") => json!({"id": controls.add_fault(parse::<FaultRule>(body)?)}),
        ("DELETE", "faults") => {
            controls.clear_faults();
            json!({})
        }
        ("GET", "clock") => json!({"epoch_ms": controls.now_ms()}),
        ("POST", "clock") => {
            set_clock(controls, &parse(body)?);
            json!({"epoch_ms": controls.now_ms()})
        }
        ("GET", "limits") => json!(controls.settings().limits),
        ("POST", "limits") => {
            controls.set_limits(parse_limits(body)?);
            json!(controls.settings().limits)
        }
        ("POST", "settings") => {
            apply_settings(controls, &parse(body)?);
            json!({})
        }
        ("POST", "expire-iterators") => {
            let of: OfShard = parse(body)?;
            controls
                .expire_iterators(&of.stream, &of.shard)
                .map_err(|e| e.to_string())?;
            json!({})
        }
        ("POST", "retention") => {
            let retention: Retention = parse(body)?;
            controls
                .set_retention(&retention.stream, retention.hours)
                .map_err(|e| e.to_string())?;
            json!({})
        }
        ("DELETE", path) => match path.strip_prefix("faults/").map(serde_json::from_str::<FaultId>) {
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

fn calls(service: &Service) -> Value {
    let calls = service.calls();
    let grouped = |table: &BTreeMap<(&'static str, String), u64>| {
        let mut groups: BTreeMap<&str, BTreeMap<String, u64>> = BTreeMap::new();
        for ((operation, name), count) in table {
            groups.entry(operation).or_default().insert(name.clone(), *count);
        }
        groups
    };
    json!({
        "calls": calls.operations,
        "shards": grouped(&calls.shards),
        "streams": grouped(&calls.streams),
    })
}

fn set_clock(controls: &KinesisControls, clock: &Clock) {
    if clock.real {
        controls.use_real_clock();
    }
    if let Some(epoch_ms) = clock.epoch_ms {
        controls.use_manual_clock(epoch_ms);
    }
    if let Some(advance_ms) = clock.advance_ms {
        controls.advance(Duration::from_millis(advance_ms));
    }
}

fn parse_limits(body: &[u8]) -> Result<ServiceLimits, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Preset {
        preset: String,
    }
    match parse::<Preset>(body) {
        Ok(preset) if preset.preset == "aws" => Ok(ServiceLimits::aws()),
        Ok(preset) if preset.preset == "off" => Ok(ServiceLimits::off()),
        Ok(preset) => Err(format!(
            "preset {:?} is not known: aws or off is expected",
            preset.preset
        )),
        Err(_) => parse(body),
    }
}

fn apply_settings(controls: &KinesisControls, new: &Settings) {
    controls.update_settings(|settings| {
        let set = |to: &mut Duration, ms: Option<u64>| {
            if let Some(ms) = ms {
                *to = Duration::from_millis(ms);
            }
        };
        set(&mut settings.iterator_lifetime, new.iterator_lifetime_ms);
        set(&mut settings.subscription_time, new.subscription_ms);
        set(&mut settings.subscription_idle_time, new.subscription_idle_ms);
        set(
            &mut settings.subscription_takeover_time,
            new.subscription_takeover_ms,
        );
        set(&mut settings.list_token_lifetime, new.list_token_lifetime_ms);
        if let Some(ms) = new.transition_ms {
            *settings = settings.clone().with_transition_time(Duration::from_millis(ms));
        }
        settings.page_bytes = new.page_bytes.unwrap_or(settings.page_bytes);
        settings.shard_end_on_own_page = new
            .shard_end_on_own_page
            .unwrap_or(settings.shard_end_on_own_page);
    });
}
