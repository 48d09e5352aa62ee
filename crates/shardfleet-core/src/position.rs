//! Where reading starts: what a user asks for, what a lease remembers, and the iterator that comes of both.

use std::time::Duration;

use crate::ids::ShardId;
use crate::lease::{Lease, OpenedAt};
use crate::sequence::{ExtendedSequenceNumber, SequenceNumber};
use crate::time::Timestamp;

/// A place to start reading from, as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KinesisPosition {
    /// The oldest record that each shard still holds.
    Horizon,
    /// After the newest record of each shard.
    Latest,
    /// The first record that arrived at or after a time, by the service's arrival timestamp.
    Timestamp(Timestamp),
    /// One record of one shard; that record is read too. Other shards are not concerned.
    Sequence(ShardId, SequenceNumber),
}

impl KinesisPosition {
    /// The oldest record that each shard still holds (`TRIM_HORIZON`).
    pub fn horizon() -> Self {
        Self::Horizon
    }

    /// After the newest record of each shard (`LATEST`).
    pub fn latest() -> Self {
        Self::Latest
    }

    /// The first record that arrived at or after `epoch_millis` (`AT_TIMESTAMP`). A time in the future is refused by the service.
    pub fn timestamp(epoch_millis: u64) -> Self {
        Self::Timestamp(Timestamp::from_millis(epoch_millis))
    }

    /// The record of `shard` with this sequence number (`AT_SEQUENCE_NUMBER`).
    pub fn sequence(shard: impl Into<ShardId>, sequence_number: SequenceNumber) -> Self {
        Self::Sequence(shard.into(), sequence_number)
    }

    /// Whether the position says anything about `shard`.
    pub fn concerns(&self, shard: &ShardId) -> bool {
        match self {
            Self::Sequence(named, _) => named == shard,
            _ => true,
        }
    }

    /// The sentinel that the lease of a shard gets when nothing was checkpointed on it.
    pub fn sentinel(&self) -> ExtendedSequenceNumber {
        match self {
            Self::Horizon => ExtendedSequenceNumber::TrimHorizon,
            Self::Latest | Self::Sequence(..) => ExtendedSequenceNumber::Latest,
            Self::Timestamp(_) => ExtendedSequenceNumber::AtTimestamp,
        }
    }

    /// The time, where the position is one.
    pub fn as_timestamp(&self) -> Option<Timestamp> {
        match self {
            Self::Timestamp(at) => Some(*at),
            _ => None,
        }
    }
}

/// What an iterator is asked for (`AWS: GetShardIterator`, the five types).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IteratorPosition {
    /// `TRIM_HORIZON`
    TrimHorizon,
    /// `LATEST`
    Latest,
    /// `AT_TIMESTAMP`
    AtTimestamp(Timestamp),
    /// `AT_SEQUENCE_NUMBER`
    AtSequenceNumber(SequenceNumber),
    /// `AFTER_SEQUENCE_NUMBER`
    AfterSequenceNumber(SequenceNumber),
}

/// How a reader opens one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardStart {
    /// The first iterator.
    pub iterator: IteratorPosition,
    /// User records up to this one were settled before: they are read over, not delivered.
    pub settled_through: Option<ExtendedSequenceNumber>,
    /// What the lease must remember before the reader may be said to be reading.
    pub remember: Remember,
}

/// What opening a shard changes on its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remember {
    /// Nothing: the lease says all there is to know.
    Nothing,
    /// A LATEST start: the time at which the iterator was asked for.
    LatestOpenedNow,
    /// A position that a user named replaces the checkpoint, backwards too.
    Position {
        /// The checkpoint that readers of the Java KCL go by, where one can say it.
        checkpoint: Option<ExtendedSequenceNumber>,
        /// The same for our own readers, exactly.
        opened_at: Option<OpenedAt>,
        /// As [`Remember::LatestOpenedNow`].
        latest_now: bool,
    },
}

/// How far before its remembered time a LATEST start resumes, so that a clock that runs ahead of the service's loses nothing.
pub const LATEST_MARGIN: Duration = Duration::from_secs(2);

impl ShardStart {
    /// How to open the shard of `lease` from what the lease remembers. `configured` is the time that the application starts
    /// from, for leases that say `AT_TIMESTAMP` and no more, as the Java KCL writes them; without it such a shard opens at its
    /// oldest record, which skips nothing.
    ///
    /// A stored checkpoint opens at its own record and reads over what was settled of it (`KCL: IteratorBuilder`): that is the
    /// only way to go on inside an aggregated record, and it shows whether the record still exists.
    pub fn resume(lease: &Lease, configured: Option<Timestamp>) -> Self {
        // Where reading began counts only as long as nothing was checkpointed since, be it by a Java worker, which leaves the attribute on the row.
        let opened_at = lease.opened_at.as_ref().filter(|_| lease.checkpoint.is_start());
        let (iterator, settled_through) = match (&lease.checkpoint, opened_at) {
            (_, Some(OpenedAt::Latest(at))) => (
                IteratorPosition::AtTimestamp(at.saturating_sub(LATEST_MARGIN)),
                None,
            ),
            (_, Some(OpenedAt::Timestamp(at))) => (IteratorPosition::AtTimestamp(*at), None),
            (_, Some(OpenedAt::Sequence(at))) => (IteratorPosition::AtSequenceNumber(at.clone()), None),
            (at @ ExtendedSequenceNumber::At(sequence_number, _), None) => (
                IteratorPosition::AtSequenceNumber(sequence_number.clone()),
                Some(at.clone()),
            ),
            (ExtendedSequenceNumber::AtTimestamp, None) => (
                configured.map_or(IteratorPosition::TrimHorizon, IteratorPosition::AtTimestamp),
                None,
            ),
            (ExtendedSequenceNumber::Latest | ExtendedSequenceNumber::ShardEnd, None) => {
                (IteratorPosition::Latest, None)
            }
            (ExtendedSequenceNumber::TrimHorizon, None) => (IteratorPosition::TrimHorizon, None),
        };
        let remember = match iterator {
            IteratorPosition::Latest => Remember::LatestOpenedNow,
            _ => Remember::Nothing,
        };
        Self {
            iterator,
            settled_through,
            remember,
        }
    }

    /// The same start, for a worker that has been open since `opened_at`. Where it would open at LATEST, whoever created the lease died before it was open; what
    /// was put since this worker opened is promised.
    #[must_use]
    pub fn not_after(self, opened_at: Timestamp) -> Self {
        if self.iterator != IteratorPosition::Latest {
            return self;
        }
        let at = opened_at.saturating_sub(LATEST_MARGIN);
        Self {
            iterator: IteratorPosition::AtTimestamp(at),
            settled_through: None,
            remember: Remember::Position {
                checkpoint: None,
                opened_at: Some(OpenedAt::Timestamp(at)),
                latest_now: false,
            },
        }
    }

    /// How to open a shard at a position that a user named, ahead of its checkpoint.
    pub fn at(position: &KinesisPosition) -> Self {
        let (iterator, checkpoint, opened_at) = match position {
            KinesisPosition::Horizon => (IteratorPosition::TrimHorizon, Some(position.sentinel()), None),
            KinesisPosition::Latest => (IteratorPosition::Latest, Some(position.sentinel()), None),
            KinesisPosition::Timestamp(at) => (
                IteratorPosition::AtTimestamp(*at),
                Some(position.sentinel()),
                Some(OpenedAt::Timestamp(*at)),
            ),
            // No checkpoint can say "this record is next". A reader of the Java KCL then starts too early, which skips nothing.
            KinesisPosition::Sequence(_, at) => (
                IteratorPosition::AtSequenceNumber(at.clone()),
                Some(ExtendedSequenceNumber::TrimHorizon),
                Some(OpenedAt::Sequence(at.clone())),
            ),
        };
        let latest_now = iterator == IteratorPosition::Latest;
        Self {
            iterator,
            settled_through: None,
            remember: Remember::Position {
                checkpoint,
                opened_at,
                latest_now,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(checkpoint: &str, sub: u64, opened_at: Option<OpenedAt>) -> Lease {
        let checkpoint = ExtendedSequenceNumber::parse(checkpoint, sub).expect("checkpoint");
        Lease {
            opened_at,
            ..Lease::new("shardId-000000000000", checkpoint)
        }
    }

    fn digits(text: &str) -> SequenceNumber {
        SequenceNumber::parse(text).expect("digits")
    }

    #[test]
    fn a_checkpoint_opens_at_its_record_and_reads_over_what_was_settled() {
        let start = ShardStart::resume(&lease("100", 2, None), None);
        assert_eq!(start.iterator, IteratorPosition::AtSequenceNumber(digits("100")));
        assert_eq!(
            start.settled_through,
            Some(ExtendedSequenceNumber::At(digits("100"), 2))
        );
        assert_eq!(start.remember, Remember::Nothing);
    }

    #[test]
    fn a_latest_start_is_remembered_and_resumed_from_its_time() {
        let first = ShardStart::resume(&lease("LATEST", 0, None), None);
        assert_eq!(
            (first.iterator, first.remember),
            (IteratorPosition::Latest, Remember::LatestOpenedNow)
        );
        let opened_at = Some(OpenedAt::Latest(Timestamp::from_millis(10_000)));
        let again = ShardStart::resume(&lease("LATEST", 0, opened_at), None);
        assert_eq!(
            again.iterator,
            IteratorPosition::AtTimestamp(Timestamp::from_millis(8_000))
        );
        assert_eq!(again.remember, Remember::Nothing);
    }

    #[test]
    fn a_latest_start_taken_over_begins_no_later_than_its_new_worker() {
        let start =
            ShardStart::resume(&lease("LATEST", 0, None), None).not_after(Timestamp::from_millis(9_000));
        let at = Timestamp::from_millis(7_000);
        assert_eq!(start.iterator, IteratorPosition::AtTimestamp(at));
        assert!(
            matches!(start.remember, Remember::Position { opened_at: Some(OpenedAt::Timestamp(t)), .. } if t == at)
        );
        let horizon = ShardStart::resume(&lease("TRIM_HORIZON", 0, None), None);
        assert_eq!(horizon.clone().not_after(at), horizon);
    }

    #[test]
    fn at_timestamp_without_a_time_skips_nothing() {
        let configured = Timestamp::from_millis(77);
        let start = ShardStart::resume(&lease("AT_TIMESTAMP", 0, None), Some(configured));
        assert_eq!(start.iterator, IteratorPosition::AtTimestamp(configured));
        let start = ShardStart::resume(&lease("AT_TIMESTAMP", 0, None), None);
        assert_eq!(start.iterator, IteratorPosition::TrimHorizon);
    }

    #[test]
    fn a_named_position_goes_ahead_of_a_checkpoint_and_survives_a_crash() {
        let at = digits("50");
        let start = ShardStart::at(&KinesisPosition::sequence("shardId-000000000000", at.clone()));
        assert_eq!(start.iterator, IteratorPosition::AtSequenceNumber(at.clone()));
        let opened_at = Some(OpenedAt::Sequence(at.clone()));
        let resumed = ShardStart::resume(&lease("TRIM_HORIZON", 0, opened_at.clone()), None);
        assert_eq!(resumed.iterator, IteratorPosition::AtSequenceNumber(at));
        assert_eq!(resumed.settled_through, None);
        let checkpointed_since = ShardStart::resume(&lease("100", 0, opened_at), None);
        assert_eq!(
            checkpointed_since.iterator,
            IteratorPosition::AtSequenceNumber(digits("100"))
        );
    }
}
