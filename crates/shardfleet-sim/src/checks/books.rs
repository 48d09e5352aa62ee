//! What the checks remember of one shard.

use shardfleet_core::ids::WorkerId;
use shardfleet_core::sequence::ExtendedSequenceNumber;

use crate::exec::Micros;

/// By which holding a record was settled last, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settled {
    pub(super) serial: u64,
    pub(super) at: Micros,
}

/// One shard and its lease.
#[derive(Debug, Default)]
pub(super) struct ShardBook {
    /// The highest checkpoint that there ever was.
    pub(super) highest: Option<ExtendedSequenceNumber>,
    /// The lease's counter has been what it is since then.
    pub(super) counter_since: Micros,
    /// A handoff has been under way since then.
    pub(super) handoff_since: Option<Micros>,
    /// When the lease was last taken from a holder that did not hand it over in time.
    pub(super) forced_at: Option<Micros>,
    /// Nobody has read it since then, although it could be read.
    pub(super) unread_since: Option<Micros>,
    /// Everything up to its end was settled, and the lease says so.
    pub(super) has_ended: bool,
    /// Records before this one were handed out.
    pub(super) handed_to: u64,
    /// The last record that each holding handed out; the newest holdings only.
    pub(super) last_by_serial: Vec<(u64, u64)>,
    /// Each record that was settled.
    pub(super) settled: Vec<Option<Settled>>,
    /// Records before this one were settled.
    pub(super) settled_to: usize,
    /// Who held the lease, and until when, since the fleet was last disturbed.
    pub(super) holders: Vec<(WorkerId, Micros)>,
}

/// How many holdings of a shard may hand out at the same time, zombies included.
const SERIALS_KEPT: usize = 16;

impl ShardBook {
    /// A holding hands out `record`: whether it is beyond the last one.
    pub(super) fn hand_out(&mut self, serial: u64, record: u64) -> Result<(), u64> {
        let known = self.last_by_serial.iter_mut().find(|(known, _)| *known == serial);
        match known {
            Some((_, last)) if record <= *last => Err(*last),
            Some((_, last)) => {
                *last = record;
                Ok(())
            }
            None => {
                if self.last_by_serial.len() == SERIALS_KEPT {
                    self.last_by_serial.remove(0);
                }
                self.last_by_serial.push((serial, record));
                Ok(())
            }
        }
    }

    pub(super) fn settle(&mut self, serial: u64, record: u64, at: Micros) {
        let Ok(record) = usize::try_from(record) else {
            return;
        };
        if self.settled.len() <= record {
            self.settled.resize(record + 1, None);
        }
        self.settled[record] = Some(Settled { serial, at });
        while self.settled.get(self.settled_to).is_some_and(Option::is_some) {
            self.settled_to += 1;
        }
    }
}
