//! What the lease table says from look to look: who reads each shard, how that changed, and which leases were taken over from a dead worker.
//!
//! Everything here follows from rows alone, not from what any worker claims to have done.

use std::collections::{BTreeMap, BTreeSet};

use shardfleet::core::lease::Lease;
use shardfleet::{ExtendedSequenceNumber, ShardId, WorkerId};

/// A lease as it was last seen.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    /// `leaseOwner`: who holds it; during a handoff, who will.
    pub(super) owner: Option<WorkerId>,
    /// `checkpointOwner`: during a handoff, who still reads.
    pub(super) checkpoint_owner: Option<WorkerId>,
    /// Whether the shard was read to its end.
    pub(super) is_finished: bool,
    /// The last worker that read it; stays while nobody does.
    last_holder: Option<WorkerId>,
}

impl Seen {
    /// Who reads at present.
    pub(super) fn holder(&self) -> Option<&WorkerId> {
        self.checkpoint_owner.as_ref().or(self.owner.as_ref())
    }
}

/// A change between two looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A lease is there for the first time, and nobody reads it.
    Created(ShardId),
    /// A worker reads where another one did.
    Moved {
        shard_id: ShardId,
        from: Option<WorkerId>,
        to: WorkerId,
        /// Whether the other one was killed.
        is_failover: bool,
    },
    /// Nobody reads.
    Released { shard_id: ShardId, by: WorkerId },
    /// A handoff has begun.
    HandingOver {
        shard_id: ShardId,
        from: WorkerId,
        to: WorkerId,
    },
    /// The shard was read to its end.
    Finished(ShardId),
}

impl Change {
    /// A line for people.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Created(shard_id) => format!("{shard_id}: lease created"),
            Self::Moved {
                shard_id,
                from,
                to,
                is_failover,
            } => {
                let from = from.as_ref().map_or("nobody", WorkerId::as_str);
                let how = if *is_failover { " (failover)" } else { "" };
                format!("{shard_id}: {from} -> {to}{how}")
            }
            Self::Released { shard_id, by } => format!("{shard_id}: released by {by}"),
            Self::HandingOver { shard_id, from, to } => format!("{shard_id}: {from} hands over to {to}"),
            Self::Finished(shard_id) => format!("{shard_id}: read to its end"),
        }
    }
}

/// The table from look to look.
#[derive(Clone, Debug, Default)]
pub(super) struct LeaseWatch {
    rows: BTreeMap<ShardId, Seen>,
    /// The last checkpoint of each shard, of those too whose rows were cleaned up.
    checkpoints: BTreeMap<ShardId, ExtendedSequenceNumber>,
    /// Workers that were killed, with the checkpoints they left.
    dead: BTreeMap<WorkerId, BTreeMap<ShardId, ExtendedSequenceNumber>>,
    /// Leases that another worker took over from a dead one.
    pub(super) failovers: u64,
}

impl LeaseWatch {
    /// Notes what the table says now; tells what has changed.
    pub(super) fn observe(&mut self, leases: &[Lease]) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut gone: BTreeSet<ShardId> = self.rows.keys().cloned().collect();
        for lease in leases {
            let shard_id = lease.lease_key.shard_id();
            gone.remove(&shard_id);
            self.checkpoints
                .insert(shard_id.clone(), lease.checkpoint.clone());
            let before = self.rows.get(&shard_id);
            let mut now = Seen {
                owner: lease.owner.clone(),
                checkpoint_owner: lease.checkpoint_owner.clone(),
                is_finished: lease.is_finished(),
                last_holder: before.and_then(|seen| seen.last_holder.clone()),
            };
            if before.is_none() && now.holder().is_none() {
                changes.push(Change::Created(shard_id.clone()));
            }
            if let Some(change) = self.move_of(&shard_id, before, &now) {
                self.failovers += u64::from(matches!(
                    change,
                    Change::Moved {
                        is_failover: true,
                        ..
                    }
                ));
                changes.push(change);
            }
            if let (Some(to), Some(from)) = (&now.owner, &now.checkpoint_owner)
                && before.is_none_or(|seen| {
                    seen.checkpoint_owner.as_ref() != Some(from) || seen.owner.as_ref() != Some(to)
                })
            {
                changes.push(Change::HandingOver {
                    shard_id: shard_id.clone(),
                    from: from.clone(),
                    to: to.clone(),
                });
            }
            if now.is_finished && before.is_some_and(|seen| !seen.is_finished) {
                changes.push(Change::Finished(shard_id.clone()));
            }
            if let Some(holder) = now.holder().cloned() {
                now.last_holder = Some(holder);
            }
            self.rows.insert(shard_id, now);
        }
        self.rows.retain(|shard_id, _| !gone.contains(shard_id));
        changes
    }

    fn move_of(&self, shard_id: &ShardId, before: Option<&Seen>, now: &Seen) -> Option<Change> {
        let last = now.last_holder.as_ref();
        match now.holder() {
            Some(to) if last != Some(to) => {
                // A row of a finished shard may change hands, but nobody reads it.
                let is_failover = last.is_some_and(|from| self.dead.contains_key(from)) && !now.is_finished;
                Some(Change::Moved {
                    shard_id: shard_id.clone(),
                    from: last.cloned(),
                    to: to.clone(),
                    is_failover,
                })
            }
            None if !now.is_finished => {
                let by = before.and_then(Seen::holder)?.clone();
                let shard_id = shard_id.clone();
                Some(Change::Released { shard_id, by })
            }
            _ => None,
        }
    }

    /// Worker `worker` is dead, and the table was looked at since: what it holds now, another one has to take over.
    pub(super) fn note_death(&mut self, worker: &WorkerId) {
        self.dead.insert(worker.clone(), self.checkpoints.clone());
    }

    /// How many unfinished leases were last read by `worker`: what it holds, or what nobody took yet.
    pub(super) fn left_by(&self, worker: &WorkerId) -> usize {
        let is_left = |seen: &&Seen| !seen.is_finished && seen.last_holder.as_ref() == Some(worker);
        self.rows.values().filter(is_left).count()
    }

    /// How many unfinished leases `worker` reads.
    pub(super) fn held_by(&self, worker: &WorkerId) -> usize {
        let is_held = |seen: &&Seen| !seen.is_finished && seen.holder() == Some(worker);
        self.rows.values().filter(is_held).count()
    }

    /// Whether a dead worker may have handed out a record at `position` without having settled it.
    pub(super) fn is_unsettled_of(
        &self,
        worker: &WorkerId,
        shard_id: &ShardId,
        position: &ExtendedSequenceNumber,
    ) -> bool {
        let left = self.dead.get(worker);
        left.is_some_and(|left| left.get(shard_id).is_none_or(|through| position > through))
    }

    /// The rows, by shard.
    pub(super) fn rows(&self) -> &BTreeMap<ShardId, Seen> {
        &self.rows
    }

    /// The last checkpoint of each shard.
    pub(super) fn checkpoints(&self) -> &BTreeMap<ShardId, ExtendedSequenceNumber> {
        &self.checkpoints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(shard: &str, owner: Option<&str>) -> Lease {
        let mut lease = Lease::new(&ShardId::new(shard), ExtendedSequenceNumber::TrimHorizon);
        lease.owner = owner.map(WorkerId::new);
        lease
    }

    fn moved(shard: &str, from: Option<&str>, to: &str, is_failover: bool) -> Change {
        Change::Moved {
            shard_id: ShardId::new(shard),
            from: from.map(WorkerId::new),
            to: WorkerId::new(to),
            is_failover,
        }
    }

    #[test]
    fn only_what_is_taken_from_the_dead_is_a_failover() {
        let mut watch = LeaseWatch::default();
        let first = watch.observe(&[lease("a", Some("w1")), lease("b", Some("w2"))]);
        assert!(first.contains(&moved("a", None, "w1", false)), "{first:?}");
        watch.note_death(&WorkerId::new("w1"));
        assert_eq!(watch.left_by(&WorkerId::new("w1")), 1);
        // Its row loses the owner first, and another worker takes it then.
        let released = watch.observe(&[lease("a", None), lease("b", Some("w2"))]);
        assert_eq!(released.len(), 1);
        assert_eq!((watch.failovers, watch.left_by(&WorkerId::new("w1"))), (0, 1));
        let taken = watch.observe(&[lease("a", Some("w2")), lease("b", Some("w3"))]);
        assert_eq!(
            taken,
            [
                moved("a", Some("w1"), "w2", true),
                moved("b", Some("w2"), "w3", false)
            ]
        );
        assert_eq!((watch.failovers, watch.left_by(&WorkerId::new("w1"))), (1, 0));
    }

    #[test]
    fn a_handoff_moves_a_lease_when_the_old_worker_lets_go() {
        let mut watch = LeaseWatch::default();
        watch.observe(&[lease("a", Some("w1"))]);
        let mut handing = lease("a", Some("w2"));
        handing.checkpoint_owner = Some(WorkerId::new("w1"));
        let begun = watch.observe(std::slice::from_ref(&handing));
        let expected = Change::HandingOver {
            shard_id: ShardId::new("a"),
            from: WorkerId::new("w1"),
            to: WorkerId::new("w2"),
        };
        assert_eq!(begun, [expected]);
        assert_eq!(watch.held_by(&WorkerId::new("w1")), 1);
        assert_eq!(watch.observe(&[handing]), [], "told once");
        assert_eq!(
            watch.observe(&[lease("a", Some("w2"))]),
            [moved("a", Some("w1"), "w2", false)]
        );
    }

    #[test]
    fn the_end_of_a_shard_outlives_its_row() {
        let mut watch = LeaseWatch::default();
        watch.observe(&[lease("a", Some("w1"))]);
        let mut finished = lease("a", None);
        finished.checkpoint = ExtendedSequenceNumber::ShardEnd;
        assert_eq!(watch.observe(&[finished]), [Change::Finished(ShardId::new("a"))]);
        watch.observe(&[]);
        assert!(watch.rows().is_empty());
        assert_eq!(
            watch.checkpoints().get(&ShardId::new("a")),
            Some(&ExtendedSequenceNumber::ShardEnd)
        );
    }
}
