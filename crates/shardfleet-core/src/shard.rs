//! A shard as the service lists it.

use crate::hash_range::HashKeyRange;
use crate::ids::ShardId;
use crate::sequence::SequenceNumber;

/// A shard of a stream (`AWS: ListShards`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its id.
    pub shard_id: ShardId,
    /// The shard it was split from, or the first of the two it was merged from. May no longer be listed itself.
    pub parent_shard_id: Option<ShardId>,
    /// The second of the two shards it was merged from.
    pub adjacent_parent_shard_id: Option<ShardId>,
    /// Which hash keys belong to it.
    pub hash_key_range: HashKeyRange,
    /// No record of the shard has a lower sequence number.
    pub starting_sequence_number: SequenceNumber,
    /// Present exactly when the shard is closed: no record has a higher one.
    pub ending_sequence_number: Option<SequenceNumber>,
}

impl Shard {
    /// Whether records can still be put onto it.
    pub fn is_open(&self) -> bool {
        self.ending_sequence_number.is_none()
    }

    /// Its parents: none, one (split) or two (merge).
    pub fn parents(&self) -> impl Iterator<Item = &ShardId> {
        self.parent_shard_id.iter().chain(&self.adjacent_parent_shard_id)
    }
}

/// A child as the answer at the end of a closed shard names it (`AWS: GetRecords`, `ChildShards`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildShard {
    /// Its id.
    pub shard_id: ShardId,
    /// All of its parents, the closed shard among them.
    pub parent_shard_ids: Vec<ShardId>,
    /// Which hash keys belong to it.
    pub hash_key_range: HashKeyRange,
}

impl ChildShard {
    /// The children of `parent` among listed shards, for an end that named none.
    pub fn of_parent(parent: &ShardId, shards: &[Shard]) -> Vec<Self> {
        shards
            .iter()
            .filter(|shard| shard.parents().any(|id| id == parent))
            .map(|shard| Self {
                shard_id: shard.shard_id.clone(),
                parent_shard_ids: shard.parents().cloned().collect(),
                hash_key_range: shard.hash_key_range,
            })
            .collect()
    }

    /// The children of a shard that has ended, as a listing shows them. `None` if the listing is older than the end: it still shows the shard as open, or closed and
    /// without children, which every closed shard has. It is to be made again, since an end without children leaves their hash keys to nobody. A
    /// shard that is listed no more may have none.
    pub fn of_ended(parent: &ShardId, shards: &[Shard]) -> Option<Vec<Self>> {
        let children = Self::of_parent(parent, shards);
        let is_listed = shards.iter().any(|shard| shard.shard_id == *parent);
        (!children.is_empty() || !is_listed).then_some(children)
    }
}
