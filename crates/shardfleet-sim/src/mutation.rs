//! Bugs planted into the simulated worker, to prove that the checks can fail. The checks know nothing of them.

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Leases are taken whatever their counter is.
    TakeWithoutCounter,
    /// A child is read although its parents have not ended.
    ChildEarly,
    /// A checkpoint says all that was handed out, settled or not.
    CheckpointUnsettled,
    /// A holder goes on for long after its lease has expired.
    HoldAfterExpiry,
    /// A lease is started as soon as its row names this worker, while its holder still hands it over.
    IgnoreCheckpointOwner,
    /// A reader whose iterator expired goes on from the newest record.
    LatestAfterExpiry,
    /// A handoff is completed without the last checkpoint.
    HandOffUnflushed,
    /// A holder's failed write is tried again without a wait.
    NoBackoff,
    /// A leader's lock is good for ever, in its own eyes.
    EternalLeader,
    /// Leases are moved for the slightest difference, however short their stay was.
    Restless,
    /// The reader does not wait for its handler.
    NoRoom,
    /// The limit of leases is not known to one who takes or gives them.
    NoLimit,
    /// The end of a shard is written before its children have leases, which are then forgotten, and shards are never listed again.
    ForgetChildren,
}

impl Mutation {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::TakeWithoutCounter,
        Self::ChildEarly,
        Self::CheckpointUnsettled,
        Self::HoldAfterExpiry,
        Self::IgnoreCheckpointOwner,
        Self::LatestAfterExpiry,
        Self::HandOffUnflushed,
        Self::NoBackoff,
        Self::EternalLeader,
        Self::Restless,
        Self::NoRoom,
        Self::NoLimit,
        Self::ForgetChildren,
    ];
}
