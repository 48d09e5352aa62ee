//! Checks of the whole fleet as it is: once a second, and at the end.

use std::collections::BTreeMap;
use std::time::Duration;

use shardfleet_core::ids::WorkerId;
use shardfleet_core::lease::Lease;

use super::{Checks, FAIR_AFTER, Invariant, OVER_LIMIT_MAX, UNREAD_MAX};
use crate::exec::Micros;
use crate::log::seconds;
use crate::sim::Sim;
use crate::stream::shard_number;

/// M1: batches that may wait for a handler.
const BATCHES_MAX: usize = 2;

/// Which processes believe that they hold a shard's lease.
#[derive(Default)]
struct Readers {
    believing: Vec<usize>,
    /// One of them is not standing still.
    is_read: bool,
}

impl Checks {
    /// Looks at everything; called once a second.
    pub(crate) fn look(&mut self, sim: &Sim) {
        self.check_leaders(sim);
        let readers = self.look_at_workers(sim);
        self.check_readers(sim, &readers);
        self.check_unread(sim, &readers);
        self.check_limits(sim);
    }

    fn look_at_workers(&mut self, sim: &Sim) -> BTreeMap<usize, Readers> {
        let now = sim.now();
        let most = sim.setup.unsettled_max + sim.setup.batch as u64;
        let mut readers: BTreeMap<usize, Readers> = BTreeMap::new();
        for process in sim
            .processes
            .borrow()
            .iter()
            .filter(|process| process.is_alive.get())
        {
            for held in process.shards.borrow().values() {
                if held.reads(process) {
                    let readers = readers.entry(held.shard).or_default();
                    readers.believing.push(process.number);
                    readers.is_read |= !process.is_frozen.get();
                }
                let queued = held.queued();
                if queued > BATCHES_MAX {
                    let what = format!(
                        "process {} has {queued} batches of shard {} waiting, at most {BATCHES_MAX} are good",
                        process.number, held.shard
                    );
                    self.find(Invariant::M1, now, Some(held.shard), what);
                }
                let unsettled = held.unsettled();
                self.peaks.unsettled = self.peaks.unsettled.max(unsettled);
                if unsettled > most {
                    let what = format!(
                        "process {} has {unsettled} unsettled records of shard {}, at most {most} are good",
                        process.number, held.shard
                    );
                    self.find(Invariant::M1, now, Some(held.shard), what);
                }
            }
        }
        readers
    }

    fn check_readers(&mut self, sim: &Sim, readers: &BTreeMap<usize, Readers>) {
        let now = sim.now();
        // The holder from whom a lease was forced learns of it by its next write, or goes by its own clock.
        let grace = Self::failover_time(sim);
        for (shard, readers) in readers.iter().filter(|(_, readers)| readers.believing.len() > 1) {
            let forced_at = self.books.get(shard).and_then(|book| book.forced_at);
            if forced_at.is_none_or(|at| now.saturating_sub(at) > grace) {
                let what = format!("shard {shard} is held by processes {:?}", readers.believing);
                self.find(Invariant::D4, now, Some(*shard), what);
            }
        }
    }

    fn check_unread(&mut self, sim: &Sim, readers: &BTreeMap<usize, Readers>) {
        let now = sim.now();
        let table = sim.table.borrow();
        for lease in table.leases() {
            let shard = shard_number(&lease.lease_key);
            let is_read = readers.get(&shard).is_some_and(|readers| readers.is_read);
            let waits = lease.is_finished() || !self.may_start(sim, lease);
            let last_trouble = self.last_trouble;
            let book = self.books.entry(shard).or_default();
            if is_read || waits {
                book.unread_since = None;
                continue;
            }
            let since = *book.unread_since.get_or_insert(now);
            let unread = now.saturating_sub(since.max(last_trouble));
            self.peaks.unread = self.peaks.unread.max(Duration::from_micros(unread));
            if unread > UNREAD_MAX {
                let what = format!(
                    "nobody has read shard {shard} for {:.0} s, and there was no trouble for {:.0} s",
                    seconds(now - since),
                    seconds(now.saturating_sub(last_trouble))
                );
                self.find(Invariant::L2, now, Some(shard), what);
            }
        }
    }

    fn may_start(&self, sim: &Sim, lease: &Lease) -> bool {
        let stream = sim.stream.borrow();
        let parents = stream.parents(shard_number(&lease.lease_key));
        parents
            .iter()
            .all(|parent| self.books.get(parent).is_some_and(|book| book.has_ended))
    }

    fn check_limits(&mut self, sim: &Sim) {
        let now = sim.now();
        let most = sim.setup.fleet.assignment.max_leases_for_worker;
        let mut counts: BTreeMap<WorkerId, usize> = BTreeMap::new();
        for lease in sim.table.borrow().leases().filter(|lease| !lease.is_finished()) {
            if let Some(owner) = &lease.owner {
                *counts.entry(owner.clone()).or_insert(0) += 1;
            }
        }
        counts.retain(|_, count| *count > most);
        let is_calm = now.saturating_sub(self.last_upset) > FAIR_AFTER;
        self.over_limit
            .retain(|worker, _| is_calm && counts.contains_key(worker));
        if !is_calm {
            return;
        }
        for (worker, count) in counts {
            let since = *self.over_limit.entry(worker.clone()).or_insert(now);
            if now - since > OVER_LIMIT_MAX {
                let what = format!("{worker} has {count} leases, its limit is {most}");
                self.find(Invariant::A2, now, None, what);
            }
        }
    }

    /// Everything that arrived until `until` must have reached a handler.
    pub(crate) fn look_at_the_end(&mut self, sim: &Sim, until: Micros) {
        let now = sim.now();
        let shards = sim.stream.borrow().len();
        for shard in 0..shards {
            let count = sim.stream.borrow_mut().record_count(shard, until);
            let handed = self.books.get(&shard).map_or(0, |book| book.handed_to);
            if handed < count {
                let what = format!(
                    "record {handed} of shard {shard} never reached a handler; the shard has {count}"
                );
                self.find(Invariant::D3, now, Some(shard), what);
            }
        }
    }
}
