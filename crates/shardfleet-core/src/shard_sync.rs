//! Which leases a stream's shards still need.
//!
//! A planner: the shards as listed and the leases as scanned go in, the leases to create come out, in an order that is safe
//! to execute and to break off. The rules are the Java KCL's (`KCL: HierarchicalShardSyncer`), with two additions: a service
//! that ignores the shard filter is tolerated, and the children of a finished parent get the leases that a crash at its end
//! left out.

use std::collections::{BTreeMap, BTreeSet};

use crate::hash_range::{self, HashKeyRange};
use crate::ids::{LeaseKey, ShardId};
use crate::lease::{Control, Lease, common_target};
use crate::sequence::{ExtendedSequenceNumber, SequenceNumber};
use crate::shard::{ChildShard, Shard};
use crate::time::Timestamp;

/// From where an application reads the shards it has no checkpoint for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialPosition {
    /// The oldest record each shard still holds.
    TrimHorizon,
    /// After the newest record.
    Latest,
    /// A time that the application is configured with.
    AtTimestamp,
}

impl InitialPosition {
    /// The sentinel that a lease holds for it.
    pub fn sentinel(self) -> ExtendedSequenceNumber {
        match self {
            Self::TrimHorizon => ExtendedSequenceNumber::TrimHorizon,
            Self::Latest => ExtendedSequenceNumber::Latest,
            Self::AtTimestamp => ExtendedSequenceNumber::AtTimestamp,
        }
    }
}

/// Everything the plan depends on.
#[derive(Clone, Debug)]
pub struct ShardSyncView<'a> {
    /// The shards as listed: of an empty table those at the initial position, else all.
    pub shards: &'a [Shard],
    /// Every lease of the table.
    pub leases: &'a [Lease],
    /// Where shards without a lease start.
    pub initial_position: InitialPosition,
    /// A shard that is to be read whether it is open or not, because a user named one of its records.
    pub named_shard: Option<&'a ShardId>,
    /// When the stream was created, which new leases note.
    pub stream_created_at: Option<Timestamp>,
}

/// The leases to create, parents before children.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShardSyncPlan {
    /// Each is to be created unless it exists.
    pub create: Vec<Lease>,
}

/// Why no plan can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardSyncError {
    /// The listing leaves part of the hash key space out, as it can while the stream is being resharded: list again.
    #[error("the listed shards leave hash keys {gap} uncovered; list them again in a moment")]
    IncompleteListing {
        /// The first gap.
        gap: HashKeyRange,
    },
    /// The leases are of another stream that had this name before.
    #[error(
        "lease {lease_key} was written for an earlier stream of this name ({evidence}); delete the lease table, or use another application name, to read the new stream from its start"
    )]
    AnotherStream {
        /// The first lease that cannot be this stream's.
        lease_key: LeaseKey,
        /// How that is known.
        evidence: String,
    },
}

/// Plans which leases to create.
pub fn plan(view: &ShardSyncView<'_>) -> Result<ShardSyncPlan, ShardSyncError> {
    check_same_stream(view)?;
    let mut created = if view.leases.is_empty() {
        plan_empty_table(view)?
    } else {
        plan_existing(view)
    };
    if let Some(named) = view.named_shard {
        create_named(view, named, &mut created);
    }
    // An application that is paused does not begin to read because a shard was found.
    let control = Control {
        target: common_target(view.leases),
        ..Control::default()
    };
    for lease in created.values_mut() {
        lease.stream_created_at = view.stream_created_at;
        lease.control = control.stored();
    }
    Ok(ShardSyncPlan {
        create: in_creation_order(view.shards, created),
    })
}

/// Adds the lease of a shard that a user named. What descends from it is then read from its parents' ends on, and not from elsewhere.
fn create_named(view: &ShardSyncView<'_>, named: &ShardId, created: &mut BTreeMap<ShardId, Lease>) {
    let Some(shard) = view.shards.iter().find(|shard| shard.shard_id == *named) else {
        return;
    };
    if view
        .leases
        .iter()
        .any(|lease| lease.lease_key.as_str() == named.as_str())
    {
        return;
    }
    created
        .entry(named.clone())
        .or_insert_with(|| lease_of(shard, ExtendedSequenceNumber::TrimHorizon));
    let mut family = BTreeSet::from([named.clone()]);
    let mut shards: Vec<&Shard> = view.shards.iter().collect();
    shards.sort_by_key(|shard| (&shard.starting_sequence_number, &shard.shard_id));
    for shard in shards {
        if shard.parents().any(|parent| family.contains(parent)) {
            family.insert(shard.shard_id.clone());
            created.remove(&shard.shard_id);
        }
    }
}

/// Refuses leases that were written for a stream that was deleted and created again under the same name. Their checkpoints mean nothing in
/// the new stream, and reading on from them would silently skip or repeat.
fn check_same_stream(view: &ShardSyncView<'_>) -> Result<(), ShardSyncError> {
    let starts: BTreeMap<&str, &SequenceNumber> = view
        .shards
        .iter()
        .map(|s| (s.shard_id.as_str(), &s.starting_sequence_number))
        .collect();
    for lease in view.leases {
        let refuse = |evidence| {
            Err(ShardSyncError::AnotherStream {
                lease_key: lease.lease_key.clone(),
                evidence,
            })
        };
        if let (Some(noted), Some(actual)) = (lease.stream_created_at, view.stream_created_at) {
            // Services print this time with more or fewer digits depending on the protocol: whole seconds decide.
            if noted.millis() / 1000 != actual.millis() / 1000 {
                return refuse(format!(
                    "that stream was created at {noted}, this one at {actual}"
                ));
            }
        }
        // Sequence numbers grow from one stream to the next of the same name.
        if let (Some(checkpoint), Some(start)) = (
            lease.checkpoint.sequence_number(),
            starts.get(lease.lease_key.as_str()),
        ) && checkpoint < *start
        {
            return refuse(format!(
                "its checkpoint {checkpoint} lies before the shard's first sequence number {start}"
            ));
        }
    }
    Ok(())
}

fn plan_empty_table(view: &ShardSyncView<'_>) -> Result<BTreeMap<ShardId, Lease>, ShardSyncError> {
    let listed: BTreeSet<&ShardId> = view.shards.iter().map(|shard| &shard.shard_id).collect();
    // A service that honours the shard filter lists just these; one that ignores it lists all shards.
    let mut at_position: Vec<&Shard> = match view.initial_position {
        InitialPosition::Latest => view.shards.iter().filter(|shard| shard.is_open()).collect(),
        InitialPosition::TrimHorizon | InitialPosition::AtTimestamp => view
            .shards
            .iter()
            .filter(|shard| !shard.parents().any(|parent| listed.contains(parent)))
            .collect(),
    };
    let gaps = |shards: &[&Shard]| hash_range::gaps(shards.iter().map(|shard| shard.hash_key_range));
    if view.initial_position != InitialPosition::Latest && !gaps(&at_position).is_empty() {
        // Of two shards that were merged one may have aged out: then their child is the oldest that is left of its range. It waits for the other one all the same.
        at_position.extend(view.shards.iter().filter(|shard| {
            let listed_parents = shard.parents().filter(|parent| listed.contains(parent)).count();
            listed_parents > 0 && listed_parents < shard.parents().count()
        }));
    }
    if let Some(gap) = gaps(&at_position).first() {
        return Err(ShardSyncError::IncompleteListing { gap: *gap });
    }
    let sentinel = view.initial_position.sentinel();
    Ok(at_position
        .iter()
        .map(|s| (s.shard_id.clone(), lease_of(s, sentinel.clone())))
        .collect())
}

fn plan_existing(view: &ShardSyncView<'_>) -> BTreeMap<ShardId, Lease> {
    let by_id: BTreeMap<&ShardId, &Shard> =
        view.shards.iter().map(|shard| (&shard.shard_id, shard)).collect();
    let leases: BTreeMap<&str, &Lease> = view
        .leases
        .iter()
        .map(|lease| (lease.lease_key.as_str(), lease))
        .collect();
    let mut lineage = Lineage {
        by_id: &by_id,
        leases: &leases,
        initial_position: view.initial_position,
        descendants: BTreeMap::new(),
        should_create: BTreeSet::new(),
        created: BTreeMap::new(),
    };
    for shard in view.shards {
        if leases.contains_key(shard.shard_id.as_str()) {
            continue;
        }
        // Closed shards are walked over on the way from open ones only. A closed shard that was read to its end and whose row was deleted since must not bring its
        // ancestors back: they would be read once more from their oldest record.
        let is_descendant = shard.is_open() && lineage.visit(&shard.shard_id);
        if lineage.parents_are_finished(shard) {
            let lease = lease_of(shard, ExtendedSequenceNumber::TrimHorizon);
            lineage.created.insert(shard.shard_id.clone(), lease);
        } else if shard.is_open() && !is_descendant {
            let lease = lease_of(shard, view.initial_position.sentinel());
            lineage.created.entry(shard.shard_id.clone()).or_insert(lease);
        }
    }
    lineage.created
}

/// One walk over the ancestors of open shards without a lease; each shard is looked at once.
struct Lineage<'a> {
    by_id: &'a BTreeMap<&'a ShardId, &'a Shard>,
    leases: &'a BTreeMap<&'a str, &'a Lease>,
    initial_position: InitialPosition,
    /// Whether a shard has a lease, or descends from one that has or gets one.
    descendants: BTreeMap<ShardId, bool>,
    /// Shards without a leased ancestor that are to be read if anything descends from them.
    should_create: BTreeSet<ShardId>,
    created: BTreeMap<ShardId, Lease>,
}

impl Lineage<'_> {
    /// Whether `shard_id` is a descendant, visiting its ancestors first. Iterative, since lineages can be thousands of shards long, and
    /// proof against a listing that names a shard as its own ancestor.
    fn visit(&mut self, shard_id: &ShardId) -> bool {
        let mut stack = vec![(shard_id.clone(), false)];
        let mut entered = BTreeSet::new();
        while let Some((id, parents_done)) = stack.pop() {
            if self.descendants.contains_key(&id) {
                continue;
            }
            if self.leases.contains_key(id.as_str()) {
                self.descendants.insert(id, true);
                continue;
            }
            let Some(shard) = self.by_id.get(&id).copied() else {
                self.descendants.insert(id, false);
                continue;
            };
            if parents_done || !entered.insert(id.clone()) {
                self.conclude(shard);
                continue;
            }
            stack.push((id, true));
            // Only ancestors of open shards matter: a closed shard without lease is read only if something descends from it.
            stack.extend(shard.parents().map(|parent| (parent.clone(), false)));
        }
        self.descendants.get(shard_id).copied().unwrap_or(false)
    }

    // KCL: HierarchicalShardSyncer#checkIfDescendantAndAddNewLeasesForAncestors
    fn conclude(&mut self, shard: &Shard) {
        let parents: Vec<&Shard> = shard
            .parents()
            .filter_map(|parent| self.by_id.get(parent).copied())
            .collect();
        let descends_from: BTreeSet<&ShardId> = parents
            .iter()
            .map(|parent| &parent.shard_id)
            .filter(|id| self.descendants.get(*id) == Some(&true) || self.should_create.contains(*id))
            .collect();
        if descends_from.is_empty() {
            if self.initial_position != InitialPosition::Latest {
                self.should_create.insert(shard.shard_id.clone());
            }
            self.descendants.insert(shard.shard_id.clone(), false);
            return;
        }
        for parent in parents {
            let id = &parent.shard_id;
            if self.leases.contains_key(id.as_str()) {
                continue;
            }
            let wanted = self.should_create.contains(id) || !descends_from.contains(id);
            if !wanted && !self.created.contains_key(id) {
                continue;
            }
            let checkpoint =
                if descends_from.contains(id) && self.initial_position != InitialPosition::AtTimestamp {
                    ExtendedSequenceNumber::TrimHorizon
                } else {
                    self.initial_position.sentinel()
                };
            self.created.insert(id.clone(), lease_of(parent, checkpoint));
        }
        self.descendants.insert(shard.shard_id.clone(), true);
    }

    /// Whether the shard follows parents that were all read to their end: then only a crash between the two writes can have
    /// left it without a lease.
    fn parents_are_finished(&self, shard: &Shard) -> bool {
        let mut finished = 0;
        for parent in shard.parents() {
            match self.leases.get(parent.as_str()) {
                Some(lease) if lease.is_finished() => finished += 1,
                Some(_) => return false,
                // A parent without a lease either aged out of the stream or is not read at all.
                None if self.by_id.contains_key(parent) => return false,
                None => {}
            }
        }
        finished > 0
    }
}

fn lease_of(shard: &Shard, checkpoint: ExtendedSequenceNumber) -> Lease {
    Lease {
        parent_shard_ids: shard.parents().cloned().collect(),
        hash_key_range: Some(shard.hash_key_range),
        ..Lease::new(&shard.shard_id, checkpoint)
    }
}

fn in_creation_order(shards: &[Shard], mut created: BTreeMap<ShardId, Lease>) -> Vec<Lease> {
    let mut order: Vec<&Shard> = shards
        .iter()
        .filter(|shard| created.contains_key(&shard.shard_id))
        .collect();
    order.sort_by_key(|shard| (&shard.starting_sequence_number, &shard.shard_id));
    order
        .iter()
        .filter_map(|shard| created.remove(&shard.shard_id))
        .collect()
}

/// The leases of a closed shard's children, to be created before its `SHARD_END` is written. They start at their oldest record always:
/// whatever the application's initial position, it has been reading this line of shards (`KCL: ShutdownTask`). What an operator asked of the parent, `control`, holds
/// for them too.
pub fn child_leases(
    children: &[ChildShard],
    stream_created_at: Option<Timestamp>,
    control: Control,
) -> Vec<Lease> {
    children
        .iter()
        .map(|child| Lease {
            parent_shard_ids: child.parent_shard_ids.clone(),
            hash_key_range: Some(child.hash_key_range),
            stream_created_at,
            control: control.inherited().stored(),
            ..Lease::new(&child.shard_id, ExtendedSequenceNumber::TrimHorizon)
        })
        .collect()
}

/// The first parent that must be read to its end before `lease` may be read (invariant D2). A parent without a lease blocks nothing:
/// it was cleaned up, or is not read (`KCL: BlockOnParentShardTask`).
pub fn blocking_parent<'a>(lease: &'a Lease, leases: &BTreeMap<LeaseKey, Lease>) -> Option<&'a ShardId> {
    lease.parent_shard_ids.iter().find(|parent| {
        leases
            .get(&LeaseKey::from(*parent))
            .is_some_and(|lease| !lease.is_finished())
    })
}

#[cfg(test)]
mod tests;
