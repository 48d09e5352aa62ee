//! A conditional lease write as DynamoDB expressions.
//!
//! Says exactly what [`LeaseWrite::apply`](shardfleet_core::lease::LeaseWrite::apply) says. Only the attributes that change
//! are named, so whatever else a row holds stays. Every name goes through a placeholder: some are reserved words.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use shardfleet_core::ids::WorkerId;
use shardfleet_core::lease::{Change, CountChange, Expect, Expectation, LeaseChange};

use super::item;

/// The condition, the update and what their placeholders stand for.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Expressions {
    /// `None`: no condition.
    pub(super) condition: Option<String>,
    /// `None`: nothing changes.
    pub(super) update: Option<String>,
    /// `None` rather than empty, which DynamoDB refuses.
    pub(super) names: Option<HashMap<String, String>>,
    /// As `names`.
    pub(super) values: Option<HashMap<String, AttributeValue>>,
}

/// Expressions being written.
#[derive(Default)]
struct Writer {
    conditions: Vec<String>,
    set: Vec<String>,
    add: Vec<String>,
    remove: Vec<String>,
    names: HashMap<String, String>,
    values: HashMap<String, AttributeValue>,
}

/// The expressions of an update.
pub(super) fn of_update(expect: &Expectation, change: &LeaseChange) -> Expressions {
    let mut writer = Writer::default();
    writer.exists(item::LEASE_KEY);
    writer.expect(expect);
    writer.change(change);
    writer.finish()
}

/// The expressions of a deletion. That the row exists is no condition of it.
pub(super) fn of_delete(expect: &Expectation) -> Expressions {
    let mut writer = Writer::default();
    writer.expect(expect);
    writer.finish()
}

/// The condition of a creation.
pub(super) fn of_create() -> Expressions {
    let mut writer = Writer::default();
    writer.is_absent(item::LEASE_KEY);
    writer.finish()
}

/// The key condition of the owner index.
pub(super) fn of_owner(worker: &WorkerId) -> Expressions {
    let mut writer = Writer::default();
    writer.is(item::LEASE_OWNER, item::text(worker.as_str()));
    writer.finish()
}

impl Writer {
    fn expect(&mut self, expect: &Expectation) {
        if let Some(counter) = expect.counter {
            self.is(item::LEASE_COUNTER, item::number(counter));
        }
        for (name, expected) in [
            (item::LEASE_OWNER, &expect.owner),
            (item::CHECKPOINT_OWNER, &expect.checkpoint_owner),
        ] {
            match expected {
                Expect::Any => {}
                Expect::Absent => self.is_absent(name),
                Expect::Is(worker) => self.is(name, item::text(worker.as_str())),
            }
        }
        match &expect.control {
            Expect::Any => {}
            Expect::Absent => self.is_absent(item::CONTROL),
            Expect::Is(control) => self.is(item::CONTROL, item::text(&control.to_string())),
        }
    }

    fn change(&mut self, change: &LeaseChange) {
        self.count(item::LEASE_COUNTER, change.counter);
        self.count(item::OWNER_SWITCHES, change.owner_switches_since_checkpoint);
        self.optional(item::LEASE_OWNER, &change.owner, |worker| {
            item::text(worker.as_str())
        });
        self.optional(item::CHECKPOINT_OWNER, &change.checkpoint_owner, |worker| {
            item::text(worker.as_str())
        });
        self.optional(item::OPENED_AT, &change.opened_at, |opened_at| {
            item::text(&opened_at.to_string())
        });
        if let Some(checkpoint) = &change.checkpoint {
            self.set(item::CHECKPOINT, item::text(checkpoint.checkpoint_text()));
            self.set(
                item::CHECKPOINT_SUB,
                item::number(checkpoint.sub_sequence_number()),
            );
        }
        match &change.pending_checkpoint {
            Change::Keep => {}
            Change::Remove => self.remove_all([item::PENDING, item::PENDING_SUB, item::PENDING_STATE]),
            Change::Set(pending) => {
                self.set(item::PENDING, item::text(pending.at.checkpoint_text()));
                self.set(item::PENDING_SUB, item::number(pending.at.sub_sequence_number()));
                match pending.state.as_deref().filter(|state| !state.is_empty()) {
                    Some(state) => self.set(item::PENDING_STATE, item::blob(state)),
                    None => self.remove_all([item::PENDING_STATE]),
                }
            }
        }
        if let Some(shards) = change.child_shard_ids.as_deref().and_then(item::shard_set) {
            self.set(item::CHILD_SHARDS, shards);
        }
        if let Some(range) = change.hash_key_range {
            self.set(item::STARTING_HASH_KEY, item::text(&range.start().to_string()));
            self.set(item::ENDING_HASH_KEY, item::text(&range.end().to_string()));
        }
        if let Some(throughput) = change.throughput_kbps.and_then(item::throughput) {
            self.set(item::THROUGHPUT, throughput);
        }
        if let Some(at) = change.stream_created_at {
            self.set(item::STREAM_CREATED_AT, item::number(at.millis()));
        }
        if let Some(control) = change.control {
            self.set(item::CONTROL, item::text(&control.to_string()));
        }
    }

    fn count(&mut self, name: &str, change: CountChange) {
        match change {
            CountChange::Keep => {}
            CountChange::Set(value) => self.set(name, item::number(value)),
            CountChange::AddOne => {
                let placeholder = self.name(name);
                let one = self.value("one", item::number(1));
                self.add.push(format!("{placeholder} {one}"));
            }
        }
    }

    fn optional<T>(&mut self, name: &str, change: &Change<T>, value: impl Fn(&T) -> AttributeValue) {
        match change {
            Change::Keep => {}
            Change::Set(new) => self.set(name, value(new)),
            Change::Remove => self.remove_all([name]),
        }
    }

    fn set(&mut self, name: &str, value: AttributeValue) {
        let placeholder = self.name(name);
        let value = self.value(name, value);
        self.set.push(format!("{placeholder} = {value}"));
    }

    fn remove_all<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        for name in names {
            let placeholder = self.name(name);
            self.remove.push(placeholder);
        }
    }

    fn exists(&mut self, name: &str) {
        let placeholder = self.name(name);
        self.conditions.push(format!("attribute_exists({placeholder})"));
    }

    fn is_absent(&mut self, name: &str) {
        let placeholder = self.name(name);
        self.conditions
            .push(format!("attribute_not_exists({placeholder})"));
    }

    fn is(&mut self, name: &str, value: AttributeValue) {
        let placeholder = self.name(name);
        let value = self.value(&format!("expected_{name}"), value);
        self.conditions.push(format!("{placeholder} = {value}"));
    }

    fn name(&mut self, name: &str) -> String {
        let placeholder = format!("#{name}");
        self.names.insert(placeholder.clone(), name.to_owned());
        placeholder
    }

    fn value(&mut self, name: &str, value: AttributeValue) -> String {
        let placeholder = format!(":{name}");
        self.values.insert(placeholder.clone(), value);
        placeholder
    }

    fn finish(self) -> Expressions {
        let clauses = [("SET", self.set), ("ADD", self.add), ("REMOVE", self.remove)];
        let update: Vec<_> = clauses
            .iter()
            .filter(|(_, parts)| !parts.is_empty())
            .map(|(clause, parts)| format!("{clause} {}", parts.join(", ")))
            .collect();
        Expressions {
            condition: (!self.conditions.is_empty()).then(|| self.conditions.join(" AND ")),
            update: (!update.is_empty()).then(|| update.join(" ")),
            names: Some(self.names).filter(|names| !names.is_empty()),
            values: Some(self.values).filter(|values| !values.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests;
