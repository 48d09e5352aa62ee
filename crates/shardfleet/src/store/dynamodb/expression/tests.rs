use std::collections::BTreeMap;

use serde_json::Value;
use shardfleet_core::hash_range::HashKeyRange;
use shardfleet_core::ids::{LeaseKey, ShardId};
use shardfleet_core::lease::{Lease, LeaseWrite, PendingCheckpoint};
use shardfleet_core::sequence::ExtendedSequenceNumber;

use super::*;
use crate::store::dynamodb::dynamo_json;

const REQUESTS: &str = include_str!("../../../../tests/vectors/kcl-requests.json");

/// What an update does to one attribute: the KCL's action and the value.
type Updates = BTreeMap<String, (&'static str, Option<AttributeValue>)>;
/// What a condition asks of one attribute: a value, or `None` for its absence.
type Conditions = BTreeMap<String, Option<AttributeValue>>;

/// A recorded update of a lease row.
struct Recorded {
    told: String,
    lease_key: String,
    updates: Updates,
    conditions: Conditions,
}

impl Recorded {
    fn of(request: &Value) -> Option<Self> {
        let body = &request["request"];
        let updates = body.get("AttributeUpdates")?.as_object()?;
        let lease_key = body["Key"]["leaseKey"]["S"].as_str()?.to_owned();
        let action = |update: &Value| match update["Action"].as_str() {
            Some("ADD") => "ADD",
            Some("DELETE") => "DELETE",
            _ => "PUT",
        };
        let updates: Updates = updates
            .iter()
            .map(|(name, it)| {
                (
                    name.clone(),
                    (action(it), it.get("Value").map(dynamo_json::value)),
                )
            })
            .collect();
        // The coordinator's rows are updated in the same table.
        if !updates
            .keys()
            .any(|name| name.starts_with("lease") || name == item::CHILD_SHARDS)
        {
            return None;
        }
        let expected = body["Expected"].as_object()?;
        let conditions = expected
            .iter()
            .filter(|(name, _)| *name != item::LEASE_KEY)
            .map(|(name, it)| (name.clone(), it.get("Value").map(dynamo_json::value)))
            .collect();
        let told = format!("{} {} {body}", request["kcl"], request["scenario"]);
        Some(Self {
            told,
            lease_key,
            updates,
            conditions,
        })
    }

    fn action(&self, name: &str) -> &str {
        self.updates.get(name).map_or("", |(action, _)| action)
    }

    fn put(&self, name: &str) -> Option<String> {
        match &self.updates.get(name)?.1 {
            Some(AttributeValue::S(text) | AttributeValue::N(text)) => Some(text.clone()),
            _ => None,
        }
    }

    fn number(&self, name: &str) -> u64 {
        self.put(name).and_then(|digits| digits.parse().ok()).unwrap_or(0)
    }

    fn expected_worker(&self, name: &str) -> Option<WorkerId> {
        match self.conditions.get(name) {
            Some(Some(AttributeValue::S(worker))) => Some(WorkerId::new(worker)),
            _ => None,
        }
    }

    /// The lease as the Java worker saw it, as far as the request tells.
    fn seen(&self) -> Lease {
        let mut lease = Lease::new(
            LeaseKey::new(&self.lease_key),
            ExtendedSequenceNumber::TrimHorizon,
        );
        if let Some(Some(AttributeValue::N(counter))) = self.conditions.get(item::LEASE_COUNTER) {
            lease.counter = counter.parse().expect("digits");
        }
        lease.owner = self.expected_worker(item::LEASE_OWNER);
        lease.checkpoint_owner = self.expected_worker(item::CHECKPOINT_OWNER);
        let range = self
            .put(item::STARTING_HASH_KEY)
            .zip(self.put(item::ENDING_HASH_KEY));
        lease.hash_key_range = range.map(|(start, end)| HashKeyRange::parse(&start, &end).expect("range"));
        lease
    }

    fn position(&self, name: &str, sub: &str) -> ExtendedSequenceNumber {
        let text = self.put(name).expect("a position");
        ExtendedSequenceNumber::parse(&text, self.number(sub)).expect("a position")
    }

    /// The write that has to have the same effect.
    fn ours(&self) -> LeaseWrite {
        let mut seen = self.seen();
        let next = self.put(item::LEASE_OWNER).map(WorkerId::from);
        if let Some((_, Some(AttributeValue::Ss(children)))) = self.updates.get(item::CHILD_SHARDS) {
            return LeaseWrite::record_children(&seen, children.iter().map(ShardId::new).collect());
        }
        if let Some(next) = next {
            if self.action(item::CHECKPOINT_OWNER) == "PUT" {
                return LeaseWrite::start_handoff(&seen, &next).expect("held");
            }
            if self.action(item::LEASE_COUNTER) == "ADD" {
                return LeaseWrite::assign(&seen, &next);
            }
            let is_switch = self.action(item::OWNER_SWITCHES) == "ADD";
            seen.owner = is_switch.then(|| WorkerId::new("somebody else"));
            return LeaseWrite::take(&seen, &next);
        }
        match self.action(item::PENDING) {
            "PUT" => {
                let state = match self.updates.get(item::PENDING_STATE) {
                    Some((_, Some(AttributeValue::B(state)))) => Some(state.as_ref().to_vec()),
                    _ => None,
                };
                let at = self.position(item::PENDING, item::PENDING_SUB);
                LeaseWrite::prepare_checkpoint(&seen, PendingCheckpoint { at, state })
            }
            "DELETE" => LeaseWrite::checkpoint(&seen, self.position(item::CHECKPOINT, item::CHECKPOINT_SUB)),
            _ => {
                if !self.conditions.contains_key(item::CHECKPOINT_OWNER) {
                    seen.checkpoint_owner = Some(WorkerId::new("the holder"));
                }
                let throughput = self.put(item::THROUGHPUT).and_then(|text| text.parse().ok());
                LeaseWrite::renew(&seen, throughput)
            }
        }
    }
}

/// Takes our expressions apart again.
fn take_apart(write: &LeaseWrite) -> (Updates, Conditions) {
    let expressions = of_update(&write.expect, &write.change);
    let (names, values) = (
        expressions.names.unwrap_or_default(),
        expressions.values.unwrap_or_default(),
    );
    let name = |placeholder: &str| names.get(placeholder).expect("a known name").clone();
    let value = |placeholder: &str| values.get(placeholder).expect("a known value").clone();

    let mut updates = Updates::new();
    let mut clause = "";
    let text = expressions.update.unwrap_or_default().replace(',', "");
    let mut words = text.split(' ').filter(|word| *word != "=").peekable();
    while let Some(word) = words.next() {
        match word {
            "SET" => clause = "PUT",
            "ADD" => clause = "ADD",
            "REMOVE" => clause = "DELETE",
            placeholder => {
                let value = (clause != "DELETE").then(|| value(words.next().expect("a value")));
                assert_eq!(updates.insert(name(placeholder), (clause, value)), None, "{text}");
            }
        }
    }

    let mut conditions = Conditions::new();
    for part in expressions.condition.unwrap_or_default().split(" AND ") {
        if let Some(rest) = part.strip_prefix("attribute_not_exists(") {
            conditions.insert(name(rest.trim_end_matches(')')), None);
        } else if part == "attribute_exists(#leaseKey)" {
            // The row has to exist, which the KCL's conditions imply.
        } else {
            let (left, right) = part.split_once(" = ").expect("an equality");
            conditions.insert(name(left), Some(value(right)));
        }
    }
    (updates, conditions)
}

/// A number written as "2.0E-6" and as "0.000002" is one number.
fn same_value(ours: Option<&AttributeValue>, theirs: Option<&AttributeValue>) -> bool {
    match (ours, theirs) {
        (Some(AttributeValue::N(ours)), Some(AttributeValue::N(theirs))) => {
            ours.parse::<f64>().ok() == theirs.parse::<f64>().ok()
        }
        (Some(AttributeValue::Ss(ours)), Some(AttributeValue::Ss(theirs))) => {
            let sorted = |set: &[String]| {
                let mut set = set.to_vec();
                set.sort_unstable();
                set
            };
            sorted(ours) == sorted(theirs)
        }
        (ours, theirs) => ours == theirs,
    }
}

#[test]
fn every_recorded_update_has_a_write_of_the_same_effect_and_condition() {
    let vectors: Value = serde_json::from_str(REQUESTS).expect("JSON");
    let recorded: Vec<_> = vectors["requests"]
        .as_array()
        .expect("requests")
        .iter()
        .filter_map(Recorded::of)
        .collect();
    assert!(
        recorded.len() >= 20,
        "only {} lease updates found",
        recorded.len()
    );
    for request in recorded {
        let (updates, conditions) = take_apart(&request.ours());
        assert_eq!(conditions, request.conditions, "conditions of {}", request.told);
        for (name, (action, value)) in &updates {
            let Some((their_action, theirs)) = request.updates.get(name) else {
                // Our own attribute, and an owner of whom 2.x knows nothing.
                assert!(
                    *action == "DELETE" && [item::OPENED_AT, item::CHECKPOINT_OWNER].contains(&name.as_str()),
                    "{name} is not part of {}",
                    request.told
                );
                continue;
            };
            assert_eq!(action, their_action, "{name} in {}", request.told);
            assert!(
                same_value(value.as_ref(), theirs.as_ref()),
                "{name} in {}: {value:?}, not {theirs:?}",
                request.told
            );
        }
        // What the KCL writes again without changing it: under this condition nobody else did either.
        let mut unchanged = vec![item::STREAM_NAME, item::SHARD_ID];
        if request.action(item::PENDING) == "PUT" {
            unchanged.extend([item::CHECKPOINT, item::CHECKPOINT_SUB]);
        }
        for name in request.updates.keys() {
            assert!(
                updates.contains_key(name) || unchanged.contains(&name.as_str()),
                "{name} is left out of {}",
                request.told
            );
        }
    }
}

#[test]
fn a_write_that_changes_nothing_has_only_its_condition() {
    let expressions = of_update(&Expectation::default(), &LeaseChange::default());
    assert_eq!(
        expressions.condition.as_deref(),
        Some("attribute_exists(#leaseKey)")
    );
    assert_eq!((expressions.update, expressions.values), (None, None));
    assert_eq!(of_delete(&Expectation::default()), Expressions::default());
}
