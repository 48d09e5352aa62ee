//! The lease as the table stores it, and the conditional writes that change it.
//!
//! A [`Lease`] is what a row says, nothing that a worker observed about it (that is [`LeaseClock`]'s). A [`LeaseWrite`] is a
//! key, what the row must look like for the write to happen, and what changes. The constructors of [`LeaseWrite`] are the
//! only place that knows which condition the Java KCL puts on which operation; a store executes a write without choosing
//! anything, and [`LeaseWrite::apply`] says in pure code what executing means.

use std::fmt;

use crate::hash_range::HashKeyRange;
use crate::ids::{LeaseKey, ShardId, WorkerId};
use crate::sequence::{ExtendedSequenceNumber, SequenceNumber};
use crate::time::Timestamp;

mod clock;
mod control;

pub use clock::LeaseClock;
pub use control::{Control, ControlRequest, TargetState, common_of, common_target};

/// A lease row. Attribute names in the docs are the Java KCL's (`KCL: DynamoDBLeaseSerializer`).
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    /// `leaseKey`: the shard id, or `account:stream:epoch:shard` in an application that reads several streams.
    pub lease_key: LeaseKey,
    /// `leaseOwner`: who holds the lease; during a handoff, who will.
    pub owner: Option<WorkerId>,
    /// `leaseCounter`: rises with every write that matters to ownership; both heartbeat and optimistic lock.
    pub counter: u64,
    /// `ownerSwitchesSinceCheckpoint`: how often the owner changed since anything was checkpointed.
    pub owner_switches_since_checkpoint: u64,
    /// `checkpoint` and `checkpointSubSequenceNumber`.
    pub checkpoint: ExtendedSequenceNumber,
    /// `pendingCheckpoint`, `pendingCheckpointSubSequenceNumber`, `pendingCheckpointState`.
    pub pending_checkpoint: Option<PendingCheckpoint>,
    /// `parentShardId`: empty, one (split) or two (merge) shards; written once, at creation.
    pub parent_shard_ids: Vec<ShardId>,
    /// `childShardIds`: known once the end of the shard was read.
    pub child_shard_ids: Vec<ShardId>,
    /// `startingHashKey` and `endingHashKey`; absent on rows of old KCL releases.
    pub hash_key_range: Option<HashKeyRange>,
    /// `throughputKBps`: moving average of what was delivered, in KiB a second.
    pub throughput_kbps: Option<f64>,
    /// `checkpointOwner`: during a handoff, the worker that still reads and checkpoints.
    pub checkpoint_owner: Option<WorkerId>,
    /// `shardfleetOpenedAt`, our own: where reading began, as long as nothing was checkpointed since. The Java KCL keeps
    /// attributes that it does not know.
    pub opened_at: Option<OpenedAt>,
    /// `shardfleetStreamCreatedAt`, our own: when the stream was created, so that a stream that was deleted and created
    /// again under the same name is noticed.
    pub stream_created_at: Option<Timestamp>,
    /// `shardfleetControl`, our own: what an operator asks of the shard.
    pub control: Option<Control>,
}

/// The first half of a two-phase checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingCheckpoint {
    /// Up to where the application intends to checkpoint.
    pub at: ExtendedSequenceNumber,
    /// Opaque bytes of the application's.
    pub state: Option<Vec<u8>>,
}

/// Where a reader opened a shard on which nothing was checkpointed. Without it, a worker that dies before its first
/// checkpoint of a LATEST start would lose what arrived in between, since LATEST is then a later place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenedAt {
    /// Opened after the newest record, at this time.
    Latest(Timestamp),
    /// Opened at the first record that arrived at or after this time.
    Timestamp(Timestamp),
    /// Opened at this record (that record is read too).
    Sequence(SequenceNumber),
}

impl OpenedAt {
    /// Reads the attribute's text.
    ///
    /// # Errors
    /// The text itself when it is none of the three forms.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refuse = || text.to_owned();
        let (kind, value) = text.split_once('@').ok_or_else(refuse)?;
        let millis = || value.parse().map(Timestamp::from_millis).map_err(|_| refuse());
        match kind {
            "LATEST" => millis().map(Self::Latest),
            "AT_TIMESTAMP" => millis().map(Self::Timestamp),
            "AT_SEQUENCE_NUMBER" => SequenceNumber::parse(value)
                .map(Self::Sequence)
                .map_err(|_| refuse()),
            _ => Err(refuse()),
        }
    }
}

impl fmt::Display for OpenedAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest(at) => write!(f, "LATEST@{}", at.millis()),
            Self::Timestamp(at) => write!(f, "AT_TIMESTAMP@{}", at.millis()),
            Self::Sequence(at) => write!(f, "AT_SEQUENCE_NUMBER@{at}"),
        }
    }
}

impl Lease {
    /// A new, unowned lease as shard sync and the end of a parent create it (counter 0).
    pub fn new(lease_key: impl Into<LeaseKey>, checkpoint: ExtendedSequenceNumber) -> Self {
        Self {
            lease_key: lease_key.into(),
            owner: None,
            counter: 0,
            owner_switches_since_checkpoint: 0,
            checkpoint,
            pending_checkpoint: None,
            parent_shard_ids: Vec::new(),
            child_shard_ids: Vec::new(),
            hash_key_range: None,
            throughput_kbps: None,
            checkpoint_owner: None,
            opened_at: None,
            stream_created_at: None,
            control: None,
        }
    }

    /// Who reads and renews at present: `checkpointOwner` during a handoff, else `leaseOwner`.
    pub fn actual_owner(&self) -> Option<&WorkerId> {
        self.checkpoint_owner.as_ref().or(self.owner.as_ref())
    }

    /// What an operator asks of the shard.
    pub fn control(&self) -> Control {
        self.control.unwrap_or_default()
    }

    /// Whether every record of the shard was settled.
    pub fn is_finished(&self) -> bool {
        self.checkpoint == ExtendedSequenceNumber::ShardEnd
    }
}

/// What one attribute must look like for a write to happen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Expect<T> {
    /// Anything, absent included.
    #[default]
    Any,
    /// Not there.
    Absent,
    /// Exactly this.
    Is(T),
}

impl<T: Clone + PartialEq> Expect<T> {
    /// What was seen: absent, or the value.
    pub fn seen(value: Option<&T>) -> Self {
        value.map_or(Self::Absent, |value| Self::Is(value.clone()))
    }

    fn holds(&self, value: Option<&T>) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => value.is_none(),
            Self::Is(expected) => value == Some(expected),
        }
    }
}

/// What a row must look like for a write to happen. The row must exist in any case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expectation {
    /// The counter as the writer last saw it.
    pub counter: Option<u64>,
    /// The owner.
    pub owner: Expect<WorkerId>,
    /// The checkpoint owner.
    pub checkpoint_owner: Expect<WorkerId>,
    /// What was asked of the shard.
    pub control: Expect<Control>,
}

impl Expectation {
    /// Whether `lease` is as expected.
    pub fn holds(&self, lease: &Lease) -> bool {
        self.counter.is_none_or(|counter| counter == lease.counter)
            && self.owner.holds(lease.owner.as_ref())
            && self.checkpoint_owner.holds(lease.checkpoint_owner.as_ref())
            && self.control.holds(lease.control.as_ref())
    }
}

/// What happens to one optional attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Change<T> {
    /// It stays.
    #[default]
    Keep,
    /// It becomes this.
    Set(T),
    /// It goes.
    Remove,
}

impl<T: Clone> Change<T> {
    fn apply(&self, value: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Set(new) => *value = Some(new.clone()),
            Self::Remove => *value = None,
        }
    }
}

/// What happens to a number that always exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CountChange {
    /// It stays.
    #[default]
    Keep,
    /// It becomes this.
    Set(u64),
    /// It grows by one, whatever it is (a DynamoDB `ADD`).
    AddOne,
}

impl CountChange {
    fn apply(self, value: &mut u64) {
        match self {
            Self::Keep => {}
            Self::Set(new) => *value = new,
            Self::AddOne => *value = value.saturating_add(1),
        }
    }
}

/// The attributes that a write changes; all others stay, those this project does not know included.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseChange {
    /// `leaseCounter`
    pub counter: CountChange,
    /// `ownerSwitchesSinceCheckpoint`
    pub owner_switches_since_checkpoint: CountChange,
    /// `leaseOwner`
    pub owner: Change<WorkerId>,
    /// `checkpointOwner`
    pub checkpoint_owner: Change<WorkerId>,
    /// `checkpoint` and its sub-sequence number
    pub checkpoint: Option<ExtendedSequenceNumber>,
    /// the three `pendingCheckpoint` attributes, together
    pub pending_checkpoint: Change<PendingCheckpoint>,
    /// `childShardIds`; an empty list is never written
    pub child_shard_ids: Option<Vec<ShardId>>,
    /// `startingHashKey` and `endingHashKey`
    pub hash_key_range: Option<HashKeyRange>,
    /// `throughputKBps`
    pub throughput_kbps: Option<f64>,
    /// `shardfleetOpenedAt`
    pub opened_at: Change<OpenedAt>,
    /// `shardfleetStreamCreatedAt`
    pub stream_created_at: Option<Timestamp>,
    /// `shardfleetControl`
    pub control: Option<Control>,
}

/// A conditional write of one lease row.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseWrite {
    /// Which row.
    pub lease_key: LeaseKey,
    /// Under which condition.
    pub expect: Expectation,
    /// What changes.
    pub change: LeaseChange,
}

/// How a conditional write came out. Losing is an outcome, not an error.
#[derive(Clone, Debug, PartialEq)]
pub enum WriteOutcome {
    /// It happened; this is the row after it.
    Written(Lease),
    /// The condition did not hold; this is the row as it is, or `None` when there is none.
    Conflict(Option<Lease>),
}

impl LeaseWrite {
    fn new(lease: &Lease, expect: Expectation, change: LeaseChange) -> Self {
        Self {
            lease_key: lease.lease_key.clone(),
            expect,
            change,
        }
    }

    /// A heartbeat. `lease` is the row as its holder knows it; where that shows no handoff, a handoff that began since makes
    /// the write conflict and shows itself in the returned row (`KCL: DynamoDBLeaseRefresher#renewLease`).
    pub fn renew(lease: &Lease, throughput_kbps: Option<f64>) -> Self {
        let checkpoint_owner = if lease.checkpoint_owner.is_none() {
            Expect::Absent
        } else {
            Expect::Any
        };
        Self::new(
            lease,
            Expectation {
                counter: Some(lease.counter),
                checkpoint_owner,
                ..Expectation::default()
            },
            LeaseChange {
                counter: CountChange::Set(lease.counter.saturating_add(1)),
                throughput_kbps,
                ..LeaseChange::default()
            },
        )
    }

    /// `worker` takes an unowned or expired lease; whoever wrote the row since it was seen wins
    /// (`KCL: DynamoDBLeaseRefresher#takeLease`).
    pub fn take(lease: &Lease, worker: &WorkerId) -> Self {
        Self::new(
            lease,
            Expectation {
                counter: Some(lease.counter),
                ..Expectation::default()
            },
            LeaseChange {
                counter: CountChange::Set(lease.counter.saturating_add(1)),
                owner_switches_since_checkpoint: switches_when_owned_by(lease, worker),
                owner: Change::Set(worker.clone()),
                checkpoint_owner: Change::Remove,
                ..LeaseChange::default()
            },
        )
    }

    /// The leader gives a lease to `worker`, or the old holder completes a handoff to it. The owners decide, not the
    /// counter, since the holder is renewing all the time (`KCL: DynamoDBLeaseRefresher#assignLease`).
    pub fn assign(lease: &Lease, worker: &WorkerId) -> Self {
        Self::new(
            lease,
            Self::owners_as_seen(lease),
            LeaseChange {
                counter: CountChange::AddOne,
                owner_switches_since_checkpoint: switches_when_owned_by(lease, worker),
                owner: Change::Set(worker.clone()),
                checkpoint_owner: Change::Remove,
                ..LeaseChange::default()
            },
        )
    }

    /// The leader asks the holder to hand the lease over to `next`; the counter stays
    /// (`KCL: DynamoDBLeaseRefresher#initiateGracefulLeaseHandoff`). `None` when nobody holds the lease or a handoff is under way.
    pub fn start_handoff(lease: &Lease, next: &WorkerId) -> Option<Self> {
        let holder = lease.owner.as_ref()?;
        if lease.checkpoint_owner.is_some() {
            return None;
        }
        Some(Self::new(
            lease,
            Self::owners_as_seen(lease),
            LeaseChange {
                owner: Change::Set(next.clone()),
                checkpoint_owner: Change::Set(holder.clone()),
                ..LeaseChange::default()
            },
        ))
    }

    /// The holder gives the lease up, so that others need not wait for it to expire (`KCL: DynamoDBLeaseRefresher#evictLease`).
    /// During a handoff the next owner stays.
    pub fn release(lease: &Lease) -> Self {
        let owner = if lease.checkpoint_owner.is_none() {
            Change::Remove
        } else {
            Change::Keep
        };
        Self::new(
            lease,
            Self::owners_as_seen(lease),
            LeaseChange {
                counter: CountChange::AddOne,
                owner,
                checkpoint_owner: Change::Remove,
                ..LeaseChange::default()
            },
        )
    }

    /// Everything up to `at` is settled. Counts as a heartbeat (`KCL: DynamoDBLeaseRefresher#updateLease`; owners are not part of
    /// the condition, so it works during a handoff).
    pub fn checkpoint(lease: &Lease, at: ExtendedSequenceNumber) -> Self {
        let change = LeaseChange {
            checkpoint: Some(at),
            pending_checkpoint: Change::Remove,
            opened_at: Change::Remove,
            ..Self::checkpoint_base(lease)
        };
        Self::new(
            lease,
            Expectation {
                counter: Some(lease.counter),
                ..Expectation::default()
            },
            change,
        )
    }

    /// The first half of a two-phase checkpoint.
    pub fn prepare_checkpoint(lease: &Lease, pending: PendingCheckpoint) -> Self {
        let change = LeaseChange {
            pending_checkpoint: Change::Set(pending),
            ..Self::checkpoint_base(lease)
        };
        Self::new(
            lease,
            Expectation {
                counter: Some(lease.counter),
                ..Expectation::default()
            },
            change,
        )
    }

    /// The holder opens the shard somewhere else than its checkpoint says, or for the first time: `opened_at` is remembered
    /// until something is checkpointed, and `checkpoint`, where given, replaces the stored one, backwards too. Counts as a
    /// heartbeat.
    pub fn reposition(
        lease: &Lease,
        checkpoint: Option<ExtendedSequenceNumber>,
        opened_at: Option<OpenedAt>,
    ) -> Self {
        Self::new(
            lease,
            Expectation {
                counter: Some(lease.counter),
                ..Expectation::default()
            },
            LeaseChange {
                counter: CountChange::Set(lease.counter.saturating_add(1)),
                checkpoint,
                opened_at: opened_at.map_or(Change::Remove, Change::Set),
                ..LeaseChange::default()
            },
        )
    }

    /// Notes the children of a closed shard on its row; the end itself is a checkpoint that follows
    /// (`KCL: DynamoDBLeaseRefresher#updateLeaseWithMetaInfo`).
    pub fn record_children(lease: &Lease, children: Vec<ShardId>) -> Self {
        let child_shard_ids = (!children.is_empty()).then_some(children);
        Self::new(
            lease,
            Expectation::default(),
            LeaseChange {
                child_shard_ids,
                ..LeaseChange::default()
            },
        )
    }

    /// Fills in the hash key range of a row that an old release wrote without one.
    pub fn record_hash_key_range(lease: &Lease, range: HashKeyRange) -> Self {
        Self::new(
            lease,
            Expectation::default(),
            LeaseChange {
                hash_key_range: Some(range),
                ..LeaseChange::default()
            },
        )
    }

    /// Asks something of a shard, whoever holds it, in addition to what was asked of it when it was seen. No part of ownership, so the counter stays.
    pub fn control(lease: &Lease, request: ControlRequest) -> Self {
        let change = LeaseChange {
            control: Some(lease.control().with(request)),
            ..LeaseChange::default()
        };
        let expect = Expectation {
            control: Expect::seen(lease.control.as_ref()),
            ..Expectation::default()
        };
        Self::new(lease, expect, change)
    }

    /// The same write, which also notes when the stream was created.
    #[must_use]
    pub fn with_stream_created_at(mut self, at: Option<Timestamp>) -> Self {
        self.change.stream_created_at = at;
        self
    }

    fn owners_as_seen(lease: &Lease) -> Expectation {
        Expectation {
            counter: None,
            owner: Expect::seen(lease.owner.as_ref()),
            checkpoint_owner: Expect::seen(lease.checkpoint_owner.as_ref()),
            control: Expect::Any,
        }
    }

    fn checkpoint_base(lease: &Lease) -> LeaseChange {
        LeaseChange {
            counter: CountChange::Set(lease.counter.saturating_add(1)),
            owner_switches_since_checkpoint: CountChange::Set(0),
            child_shard_ids: (!lease.child_shard_ids.is_empty()).then(|| lease.child_shard_ids.clone()),
            hash_key_range: lease.hash_key_range,
            ..LeaseChange::default()
        }
    }

    /// The row after this write, or `None` when the condition does not hold. This is what every store must do.
    pub fn apply(&self, lease: &Lease) -> Option<Lease> {
        if lease.lease_key != self.lease_key || !self.expect.holds(lease) {
            return None;
        }
        let change = &self.change;
        let mut after = lease.clone();
        change.counter.apply(&mut after.counter);
        change
            .owner_switches_since_checkpoint
            .apply(&mut after.owner_switches_since_checkpoint);
        change.owner.apply(&mut after.owner);
        change.checkpoint_owner.apply(&mut after.checkpoint_owner);
        change.pending_checkpoint.apply(&mut after.pending_checkpoint);
        change.opened_at.apply(&mut after.opened_at);
        if let Some(checkpoint) = &change.checkpoint {
            after.checkpoint = checkpoint.clone();
        }
        if let Some(children) = change
            .child_shard_ids
            .as_ref()
            .filter(|children| !children.is_empty())
        {
            after.child_shard_ids.clone_from(children);
        }
        after.hash_key_range = change.hash_key_range.or(after.hash_key_range);
        after.throughput_kbps = change.throughput_kbps.or(after.throughput_kbps);
        after.stream_created_at = change.stream_created_at.or(after.stream_created_at);
        after.control = change.control.or(after.control);
        Some(after)
    }
}

// KCL: DynamoDBLeaseSerializer#getDynamoTakeLeaseUpdate. A graceful handoff therefore does not count as a switch.
fn switches_when_owned_by(lease: &Lease, worker: &WorkerId) -> CountChange {
    let from_another = lease.owner.as_ref().is_some_and(|owner| owner != worker);
    if from_another || lease.checkpoint_owner.as_ref() == Some(worker) {
        CountChange::AddOne
    } else {
        CountChange::Keep
    }
}

#[cfg(test)]
mod tests;
