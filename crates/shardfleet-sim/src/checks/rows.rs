//! Checks of single events: what a write did to a lease row, and which records were handed out and settled.

use shardfleet_core::lease::Lease;
use shardfleet_core::sequence::ExtendedSequenceNumber;

use super::{Checks, Invariant, SETTLED_AFTER};
use crate::exec::{Micros, SECOND};
use crate::log::{What, seconds};
use crate::setup::micros;
use crate::sim::Sim;
use crate::stream::{record_number, shard_number};

/// D5: what was settled so shortly before the handoff may have missed the last checkpoint.
const FLUSH_TIME: Micros = 2 * SECOND;

impl Checks {
    /// A lease row was changed by `process`.
    pub(crate) fn on_written(&mut self, sim: &Sim, process: usize, before: &Lease, after: &Lease) {
        let now = sim.now();
        if after.checkpoint != before.checkpoint {
            self.on_checkpoint(sim, process, before, after);
        }
        if after.actual_owner() != before.actual_owner() {
            self.on_moved(sim, process, before, after);
        }
        let (_, book) = self.book(&after.lease_key);
        if after.counter != before.counter {
            book.counter_since = now;
        }
        if after.checkpoint_owner.is_none() {
            book.handoff_since = None;
        } else if after.owner != before.owner || after.checkpoint_owner != before.checkpoint_owner {
            book.handoff_since = Some(now);
        }
    }

    fn on_checkpoint(&mut self, sim: &Sim, process: usize, before: &Lease, after: &Lease) {
        let now = sim.now();
        let shard = shard_number(&after.lease_key);
        let record = record_number(shard, &after.checkpoint);
        sim.log(
            What::Checkpoint,
            Some(process),
            Some(shard),
            record.unwrap_or(u64::MAX),
            0,
        );
        let writer = sim
            .processes
            .borrow()
            .get(process)
            .map(|process| process.id.clone());
        if before.actual_owner() != writer.as_ref() {
            let what = format!(
                "process {process} checkpointed shard {shard}, held by {:?}",
                before.actual_owner().map(ToString::to_string)
            );
            self.find(Invariant::C3, now, Some(shard), what);
        }
        self.check_high(now, shard, &after.checkpoint);
        let has_ended = after.is_finished();
        let count = sim.stream.borrow_mut().record_count(shard, now);
        let is_closed = sim.stream.borrow().is_closed(shard);
        let book = self.books.entry(shard).or_default();
        book.has_ended |= has_ended;
        let settled_to = book.settled_to as u64;
        let needed = if has_ended {
            count
        } else {
            record.map_or(0, |record| record + 1)
        };
        if settled_to < needed || (has_ended && !is_closed) {
            let what = format!(
                "process {process} checkpointed shard {shard} at {}, {needed} records in, but record {settled_to} was not settled",
                after.checkpoint
            );
            self.find(Invariant::C2, now, Some(shard), what);
        }
    }

    fn check_high(&mut self, now: Micros, shard: usize, checkpoint: &ExtendedSequenceNumber) {
        let book = self.books.entry(shard).or_default();
        match &book.highest {
            Some(highest) if checkpoint < highest => {
                let what =
                    format!("the checkpoint of shard {shard} went from {highest} back to {checkpoint}");
                self.find(Invariant::C1, now, Some(shard), what);
            }
            _ => book.highest = Some(checkpoint.clone()),
        }
    }

    /// A lease has another holder, or none, or one again.
    fn on_moved(&mut self, sim: &Sim, process: usize, before: &Lease, after: &Lease) {
        let now = sim.now();
        let writer = sim
            .processes
            .borrow()
            .get(process)
            .map(|process| process.id.clone());
        let failover_time = Self::failover_time(sim);
        let handoff_timeout = micros(sim.setup.fleet.handoff_timeout);
        let minimum_stay = micros(sim.setup.fleet.assignment.minimum_stay);
        let is_fair = self.is_fair(now);
        let is_calm_since = self.last_upset + SETTLED_AFTER;
        let (shard, book) = self.book(&after.lease_key);
        let Some(holder) = before.actual_owner() else {
            return;
        };
        let still = now.saturating_sub(book.counter_since);
        let is_overdue = book
            .handoff_since
            .is_some_and(|since| now.saturating_sub(since) >= handoff_timeout);
        let by_holder = writer.as_ref() == Some(holder);
        if !by_holder && is_overdue {
            book.forced_at = Some(now);
        }
        let found = if !by_holder && still <= failover_time && !is_overdue {
            let what = format!(
                "process {process} moved shard {shard} from {holder} to {:?}, whose last write was {:.3} s ago",
                after.actual_owner().map(ToString::to_string),
                seconds(still)
            );
            Some((Invariant::L1, what))
        } else if by_holder && is_fair && before.checkpoint_owner.is_some() && !after.is_finished() {
            let first_unsaid = record_number(shard, &before.checkpoint).map_or(0, |record| record + 1);
            let forgotten = usize::try_from(first_unsaid)
                .ok()
                .and_then(|first| book.settled.get(first).copied().flatten())
                .filter(|settled| {
                    Some(settled.serial) == book.last_by_serial.last().map(|(serial, _)| *serial)
                })
                .filter(|settled| settled.at + FLUSH_TIME < now);
            forgotten.map(|settled| {
                let what = format!(
                    "process {process} handed shard {shard} over without saying that it had settled record {first_unsaid} {:.3} s before",
                    seconds(now - settled.at)
                );
                (Invariant::D5, what)
            })
        } else {
            None
        };
        // A lease that goes back where it came from, with nothing having happened since.
        book.holders
            .retain(|(_, until)| *until > is_calm_since && now.saturating_sub(*until) < minimum_stay);
        let returned = after
            .actual_owner()
            .filter(|owner| book.holders.iter().any(|(known, _)| known == *owner))
            .map(|owner| format!("shard {shard} went back to {owner} in quiet weather"));
        book.holders.push((holder.clone(), now));
        if let Some((invariant, what)) = found {
            self.find(invariant, now, Some(shard), what);
        }
        if let Some(what) = returned {
            self.find(Invariant::A1, now, Some(shard), what);
        }
    }

    /// A lease row was created.
    pub(crate) fn on_created(&mut self, now: Micros, lease: &Lease) {
        self.last_upset = now;
        let shard = shard_number(&lease.lease_key);
        let book = self.books.entry(shard).or_default();
        book.counter_since = now;
        book.handoff_since = None;
        self.check_high(now, shard, &lease.checkpoint);
    }

    /// A lease row was deleted.
    pub(crate) fn on_deleted(&mut self, now: Micros, row: &Lease) {
        let shard = shard_number(&row.lease_key);
        let book = self.books.entry(shard).or_default();
        book.unread_since = None;
        if !book.has_ended {
            let what = format!("the row of shard {shard} was deleted before the shard was read to its end");
            self.find(Invariant::D3, now, Some(shard), what);
        }
    }

    /// A handler gets a record.
    pub(crate) fn on_handed(&mut self, sim: &Sim, process: usize, shard: usize, serial: u64, record: u64) {
        let now = sim.now();
        self.handed += 1;
        let parents = sim.stream.borrow().parents(shard).to_vec();
        for parent in parents {
            if !self.books.get(&parent).is_some_and(|book| book.has_ended) {
                let what = format!(
                    "process {process} handed out record {record} of shard {shard}, whose parent {parent} has not ended"
                );
                self.find(Invariant::D2, now, Some(shard), what);
            }
        }
        let book = self.books.entry(shard).or_default();
        if record == book.handed_to {
            book.handed_to += 1;
        }
        if let Err(last) = book.hand_out(serial, record) {
            let what =
                format!("process {process} handed out record {record} of shard {shard} after record {last}");
            self.find(Invariant::D1, now, Some(shard), what);
        }
    }

    /// A handler is done with a record.
    pub(crate) fn on_settled(&mut self, now: Micros, shard: usize, serial: u64, record: u64) {
        self.books.entry(shard).or_default().settle(serial, record, now);
    }
}
