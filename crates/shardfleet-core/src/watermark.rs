//! Up to where everything is settled.
//!
//! Records are handed out in order and settled in any order. The watermark is the last record before the first unsettled
//! one: a checkpoint may say so much and no more (invariants C1 and C2).

use std::collections::VecDeque;

use crate::sequence::ExtendedSequenceNumber;

/// Names one record that was handed out. Tickets from before a [`Watermark::restart`] settle nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    epoch: u64,
    index: u64,
}

#[derive(Clone, Debug)]
struct Slot {
    at: ExtendedSequenceNumber,
    bytes: u64,
    settled: bool,
}

/// Tracks what was handed out of one shard and what of it was settled.
#[derive(Clone, Debug, Default)]
pub struct Watermark {
    epoch: u64,
    first_index: u64,
    slots: VecDeque<Slot>,
    unsettled: u64,
    bytes: u64,
    committable: Option<ExtendedSequenceNumber>,
}

impl Watermark {
    /// Nothing handed out yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes that the record at `at`, of `bytes` bytes, is handed out. Records must come in rising order.
    ///
    /// # Panics
    /// In debug builds, when `at` is not above the record before it (invariant D1).
    pub fn hand_out(&mut self, at: ExtendedSequenceNumber, bytes: u64) -> Ticket {
        debug_assert!(
            self.slots.back().is_none_or(|last| last.at < at),
            "D1: {at} after a later record"
        );
        let index = self.first_index + self.slots.len() as u64;
        self.slots.push_back(Slot {
            at,
            bytes,
            settled: false,
        });
        self.unsettled += 1;
        self.bytes += bytes;
        Ticket {
            epoch: self.epoch,
            index,
        }
    }

    /// Settles one record. Settling it again, or with a ticket from before a restart, changes nothing. Returns whether
    /// [`committable`](Self::committable) moved.
    pub fn settle(&mut self, ticket: Ticket) -> bool {
        if ticket.epoch != self.epoch || ticket.index < self.first_index {
            return false;
        }
        let offset = usize::try_from(ticket.index - self.first_index).unwrap_or(usize::MAX);
        match self.slots.get_mut(offset) {
            Some(slot) if !slot.settled => slot.settled = true,
            _ => return false,
        }
        self.unsettled -= 1;
        self.advance()
    }

    /// Whether the ticket was given out since the last restart.
    pub fn is_current(&self, ticket: Ticket) -> bool {
        ticket.epoch == self.epoch
    }

    /// Settles every record up to and including `at`.
    pub fn settle_through(&mut self, at: &ExtendedSequenceNumber) -> bool {
        for slot in self.slots.iter_mut().take_while(|slot| slot.at <= *at) {
            if !slot.settled {
                slot.settled = true;
                self.unsettled -= 1;
            }
        }
        self.advance()
    }

    fn advance(&mut self) -> bool {
        let mut moved = false;
        while self.slots.front().is_some_and(|slot| slot.settled) {
            if let Some(slot) = self.slots.pop_front() {
                self.first_index += 1;
                self.bytes -= slot.bytes;
                self.committable = Some(slot.at);
                moved = true;
            }
        }
        moved
    }

    /// The last record of which, and of all before it, everything is settled; `None` before the first.
    pub fn committable(&self) -> Option<&ExtendedSequenceNumber> {
        self.committable.as_ref()
    }

    /// How many records were handed out and not settled.
    pub fn unsettled(&self) -> u64 {
        self.unsettled
    }

    /// How many records are kept track of: the unsettled ones and those settled behind one of them.
    pub fn tracked(&self) -> u64 {
        self.slots.len() as u64
    }

    /// The bytes of the tracked records.
    pub fn tracked_bytes(&self) -> u64 {
        self.bytes
    }

    /// The first unsettled record: the one that holds the watermark.
    pub fn held_by(&self) -> Option<&ExtendedSequenceNumber> {
        self.slots.front().map(|slot| &slot.at)
    }

    /// Forgets everything, as after a seek: tickets from before are worth nothing from now on.
    pub fn restart(&mut self) {
        *self = Self {
            epoch: self.epoch + 1,
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::SequenceNumber;
    use proptest::prelude::*;

    fn at(n: u64) -> ExtendedSequenceNumber {
        ExtendedSequenceNumber::At(SequenceNumber::parse(&n.to_string()).expect("digits"), 0)
    }

    #[test]
    fn one_held_record_holds_the_watermark() {
        let mut watermark = Watermark::new();
        let tickets: Vec<_> = (1..=100).map(|n| watermark.hand_out(at(n), 10)).collect();
        for (i, ticket) in tickets.iter().enumerate() {
            if i != 2 {
                watermark.settle(*ticket);
            }
        }
        assert_eq!(watermark.committable(), Some(&at(2)));
        assert_eq!((watermark.unsettled(), watermark.tracked()), (1, 98));
        assert_eq!(watermark.held_by(), Some(&at(3)));
        assert!(watermark.settle(tickets[2]));
        assert_eq!(watermark.committable(), Some(&at(100)));
        assert_eq!((watermark.tracked(), watermark.tracked_bytes()), (0, 0));
    }

    #[test]
    fn tickets_from_before_a_seek_move_nothing() {
        let mut watermark = Watermark::new();
        let old = watermark.hand_out(at(500), 1);
        watermark.restart();
        let new = watermark.hand_out(at(1), 1);
        assert!(!watermark.settle(old));
        assert_eq!(watermark.committable(), None);
        assert!(watermark.settle(new));
        assert!(!watermark.settle(new), "settling twice is settling once");
        assert_eq!(watermark.committable(), Some(&at(1)));
    }

    proptest! {
        #[test]
        fn never_passes_an_unsettled_record_and_never_goes_back(order in Just((0..40_usize).collect::<Vec<_>>()).prop_shuffle(), many in 0..40_usize) {
            let mut watermark = Watermark::new();
            let tickets: Vec<_> = (0..40).map(|n| watermark.hand_out(at(n), 1)).collect();
            let mut settled = [false; 40];
            let mut last = None;
            for i in order.into_iter().take(many) {
                watermark.settle(tickets[i]);
                settled[i] = true;
                let expected = settled.iter().take_while(|s| **s).count() as u64;
                let expected = expected.checked_sub(1).map(at);
                prop_assert_eq!(watermark.committable(), expected.as_ref());
                prop_assert!(watermark.committable() >= last.as_ref());
                last = watermark.committable().cloned();
            }
            prop_assert_eq!(watermark.unsettled(), settled.iter().filter(|s| !**s).count() as u64);
        }
    }
}
