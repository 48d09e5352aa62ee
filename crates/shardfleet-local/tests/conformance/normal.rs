//! Making answers comparable, and showing where they differ.

use serde_json::{Map, Value};

use crate::client::Answer;

/// Lists whose order means nothing.
const UNORDERED: [&str; 5] = [
    "ShardLevelMetrics",
    "CurrentShardLevelMetrics",
    "DesiredShardLevelMetrics",
    "Tags",
    "Consumers",
];
/// Longest value that is shown whole.
const SHOWN: usize = 120;

/// An answer with everything replaced that two services cannot have in common. An error is its status and type, as text.
pub(crate) fn answer(answer: &Answer) -> Value {
    if answer.status == 0 {
        return "no answer".into();
    }
    if !answer.is_ok() {
        let kind = answer.body.get("__type").and_then(Value::as_str);
        // Some services put a namespace before the type, and clients drop it.
        let kind = kind.map_or("without a type", |k| k.rsplit('#').next().unwrap_or(k));
        return Value::String(format!("{} {kind}", answer.status));
    }
    match value("", &answer.body) {
        Value::Null => Value::Object(Map::new()),
        other => other,
    }
}

/// A value of the field `name`, made comparable.
fn value(name: &str, from: &Value) -> Value {
    match from {
        Value::Object(fields) => {
            // An absent field and a null mean the same to every client, and so does NONE as a kind of encryption.
            let present = fields
                .iter()
                .filter(|(k, v)| !(v.is_null() || *k == "EncryptionType" && *v == "NONE"));
            Value::Object(present.map(|(k, v)| (k.clone(), value(k, v))).collect())
        }
        Value::Array(items) => {
            let mut items: Vec<Value> = items.iter().map(|v| value(name, v)).collect();
            if UNORDERED.contains(&name) {
                items.sort_by_key(Value::to_string);
            }
            Value::Array(items)
        }
        Value::Number(number) if name.ends_with("Timestamp") => {
            let plausible = number.as_f64().is_some_and(|n| (1e9..1e11).contains(&n));
            if plausible { "<time>".into() } else { from.clone() }
        }
        Value::Number(number) if name == "MillisBehindLatest" => {
            let behind = number.as_u64().is_some_and(|n| n > 0);
            if behind { "<behind>".into() } else { from.clone() }
        }
        Value::String(text) => Value::String(match name {
            "ShardIterator" | "NextShardIterator" => "<iterator>".to_owned(),
            "NextToken" => "<token>".to_owned(),
            _ if name.ends_with("SequenceNumber") && text.len() >= 50 && is_number(text) => {
                "<sequence number>".to_owned()
            }
            // The number behind a consumer's name is the second of its registration.
            "ConsumerARN" => match text.rsplit_once(':') {
                Some((arn, second)) if is_number(second) => format!("{arn}:<second>"),
                _ => text.clone(),
            },
            _ => text.clone(),
        }),
        other => other.clone(),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// How either side shows a difference: whole where one is an error or a plain value, else field by field.
pub(crate) fn show_difference(ours: &Value, theirs: &Value) -> (String, String) {
    if !(ours.is_object() && theirs.is_object()) {
        return (whole(ours), whole(theirs));
    }
    let mut fields = Vec::new();
    collect("", Some(ours), Some(theirs), &mut fields);
    let side = |pick: fn(&(String, String, String)) -> (&str, &str)| {
        let shown = fields.iter().map(|f| {
            let (place, text) = pick(f);
            format!("{place}: {text}")
        });
        shown.collect::<Vec<_>>().join("; ")
    };
    (side(|(place, a, _)| (place, a)), side(|(place, _, b)| (place, b)))
}

fn whole(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(_) => "200".to_owned(),
        other => short(other),
    }
}

fn short(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if text.chars().count() <= SHOWN {
        return text;
    }
    text.chars().take(SHOWN).chain(['…']).collect()
}

fn collect(
    place: &str,
    ours: Option<&Value>,
    theirs: Option<&Value>,
    into: &mut Vec<(String, String, String)>,
) {
    if ours == theirs {
        return;
    }
    match (ours, theirs) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let mut names: Vec<&String> = a.keys().chain(b.keys()).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                let inner = if place.is_empty() {
                    name.clone()
                } else {
                    format!("{place}.{name}")
                };
                collect(&inner, a.get(name), b.get(name), into);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                collect(&format!("{place}[{index}]"), Some(a), Some(b), into);
            }
        }
        _ => {
            let show = |v: Option<&Value>| v.map_or_else(|| "absent".to_owned(), short);
            into.push((place.to_owned(), show(ours), show(theirs)));
        }
    }
}
