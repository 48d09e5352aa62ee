//! How long a shard was silent when it changed hands: from the last record that the old reader delivered to the first of the new one.

use std::collections::HashMap;

use serde::Serialize;

use super::member::{Delivered, Member, State};

/// The longest gap of each kind, in milliseconds; `None` where no shard changed hands like that. Silence for want of records counts as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Gaps {
    /// The old reader was killed.
    pub(super) kill: Option<u64>,
    /// The old reader was stopped.
    pub(super) stop: Option<u64>,
    /// The new reader had joined.
    pub(super) join: Option<u64>,
    /// Any other move between workers that both run on.
    pub(super) balance: Option<u64>,
}

/// What matters about a worker here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader {
    state: State,
    has_joined: bool,
}

impl Reader {
    pub(super) fn of(member: &Member) -> Self {
        Self {
            state: member.state,
            has_joined: member.has_joined,
        }
    }
}

impl Gaps {
    /// The gaps of a log in order of time. `readers` are the members that its entries name.
    pub(super) fn of(log: &[Delivered], readers: &[Reader]) -> Self {
        let mut gaps = Self::default();
        let mut last: HashMap<&str, &Delivered> = HashMap::new();
        for delivered in log {
            let before = last.insert(delivered.entry.shard_id.as_str(), delivered);
            let Some(before) = before.filter(|before| before.by != delivered.by) else {
                continue;
            };
            let (Some(from), Some(to)) = (readers.get(before.by), readers.get(delivered.by)) else {
                continue;
            };
            let gap = match from.state {
                State::Killed(at) if delivered.at >= at => &mut gaps.kill,
                State::Stopped(at) | State::Stopping(at) if delivered.at >= at => &mut gaps.stop,
                _ if to.has_joined => &mut gaps.join,
                _ => &mut gaps.balance,
            };
            *gap = (*gap).max(Some((delivered.at - before.at) / 1000));
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dev::accounting::LogEntry;
    use shardfleet::{ExtendedSequenceNumber, ShardId};

    fn delivered(shard: &str, by: usize, at_ms: u64) -> Delivered {
        Delivered {
            by,
            at: at_ms * 1000,
            entry: LogEntry {
                shard_id: ShardId::new(shard),
                position: ExtendedSequenceNumber::TrimHorizon,
                fingerprint: [0; 16],
            },
        }
    }

    #[test]
    fn each_change_of_hands_counts_by_what_caused_it() {
        let reader = |state, has_joined| Reader { state, has_joined };
        let readers = [
            reader(State::Killed(100_000), false),
            reader(State::Stopped(900_000), false),
            reader(State::Running, true),
        ];
        let log = [
            delivered("a", 0, 10),
            delivered("b", 0, 20),
            // Moved before the kill.
            delivered("b", 1, 50),
            delivered("a", 1, 400),
            delivered("c", 1, 450),
            delivered("c", 2, 500),
            delivered("a", 1, 890),
            delivered("a", 2, 1000),
        ];
        let expected = Gaps {
            kill: Some(390),
            stop: Some(110),
            join: Some(50),
            balance: Some(30),
        };
        assert_eq!(Gaps::of(&log, &readers), expected);
        assert_eq!(Gaps::of(&[], &readers), Gaps::default());
    }
}
