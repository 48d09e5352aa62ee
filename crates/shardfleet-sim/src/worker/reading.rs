//! The task that reads one shard, and the handler that takes its records.

use std::rc::Rc;
use std::time::Duration;

use shardfleet_core::ids::WorkerId;
use shardfleet_core::lease::Lease;
use shardfleet_core::position::{IteratorPosition, ShardStart};
use shardfleet_core::reader::{Action, PageFacts, ReadFailure, Reader};
use shardfleet_core::sequence::ExtendedSequenceNumber;

use super::held::{Batch, Held};
use super::{Outcome, Process};
use crate::exec::{MILLI, SECOND, sleep_until};
use crate::faults::FaultKind;
use crate::log::What;
use crate::mutation::Mutation;
use crate::store::StoreFailure;
use crate::stream::{record_number, sequence_number};
use crate::sync::{First, first};

/// Batches that may wait for the handler.
const QUEUE_MAX: usize = 2;

/// Why reading broke off.
enum Break {
    Ended,
    GaveUp,
    Lost,
}

/// Starts the tasks of a lease that was just taken.
pub(super) fn start(process: &Rc<Process>, held: &Rc<Held>) {
    let (worker, lease) = (Rc::clone(process), Rc::clone(held));
    process.spawn(async move { lease.keep(&worker).await });
    let (worker, lease) = (Rc::clone(process), Rc::clone(held));
    process.spawn(async move { handle(&worker, &lease).await });
    let (worker, lease) = (Rc::clone(process), Rc::clone(held));
    process.spawn(async move {
        let outcome = Box::pin(run(&worker, &lease)).await;
        lease.is_stopping.set(true);
        lease.changes.tell();
        if outcome != Outcome::Lost {
            lease.lost.set();
        }
        worker.ends.borrow_mut().push_back((lease.key.clone(), outcome));
        worker.has_ends.give();
    });
}

async fn run(process: &Rc<Process>, held: &Rc<Held>) -> Outcome {
    let mut reading = Reading::new(process, held);
    let outside = first(
        held.lost.raised(),
        first(process.stop.raised(), held.handoff_wanted()),
    );
    match first(outside, Box::pin(reading.read())).await {
        First::Left(First::Left(())) | First::Right(Break::Lost) => Outcome::Lost,
        First::Left(First::Right(First::Left(()))) => held.stop(process).await,
        First::Left(First::Right(First::Right(to))) => hand_over(process, held, to).await,
        First::Right(Break::Ended) => Outcome::Ended,
        First::Right(Break::GaveUp) => match held.stop(process).await {
            Outcome::Lost => Outcome::Lost,
            _ => Outcome::ReaderStopped,
        },
    }
}

async fn hand_over(process: &Rc<Process>, held: &Rc<Held>, _to: WorkerId) -> Outcome {
    match first(process.stop.raised(), held.hand_over(process)).await {
        // Whatever stops the worker meanwhile gives the lease to its next owner as well.
        First::Left(()) => held.stop(process).await,
        First::Right(outcome) => outcome,
    }
}

struct Reading<'a> {
    process: &'a Rc<Process>,
    held: &'a Rc<Held>,
    reader: Reader,
    settled_through: Option<ExtendedSequenceNumber>,
}

impl<'a> Reading<'a> {
    fn new(process: &'a Rc<Process>, held: &'a Rc<Held>) -> Self {
        let row: Lease = held.row();
        let start = ShardStart::resume(&row, None);
        Self {
            reader: Reader::new(process.sim.setup.reader, start.iterator),
            settled_through: start.settled_through,
            process,
            held,
        }
    }

    async fn read(&mut self) -> Break {
        loop {
            let broke = match self.reader.next_action(self.process.now()) {
                Action::WaitUntil(moment) => {
                    self.process.sleep_until(moment).await;
                    Ok(())
                }
                Action::GetIterator(position) => {
                    self.get_iterator(&position).await;
                    Ok(())
                }
                Action::GetRecords(iterator) => self.get_records(&iterator).await,
                Action::ListShards => {
                    self.confirm_end().await;
                    Ok(())
                }
                Action::End(children) => match self.held.end(self.process, children).await {
                    Ok(()) => Err(Break::Ended),
                    Err(_) => Err(Break::Lost),
                },
                Action::GiveUp => Err(Break::GaveUp),
            };
            if let Err(broke) = broke {
                return broke;
            }
        }
    }

    /// Waits for an answer of the stream; the fault that struck, if any did.
    async fn ask(&self) -> Option<ReadFailure> {
        let sim = &self.process.sim;
        let kinds = [
            (FaultKind::ReadThrottled, ReadFailure::Throttled),
            (FaultKind::ReadFailed, ReadFailure::Other),
            (FaultKind::IteratorExpired, ReadFailure::IteratorExpired),
        ];
        let struck = kinds
            .iter()
            .find(|(kind, _)| sim.strikes(*kind, self.process.slot));
        let takes = sim.draw(|chance| chance.between(5 * MILLI, 40 * MILLI));
        sleep_until(&sim.executor, sim.now() + takes).await;
        let (kind, failure) = struck?;
        sim.fault(*kind, Some(self.process.number));
        sim.checks.borrow_mut().note_trouble(sim.now());
        sim.log(
            What::ReadFailure,
            Some(self.process.number),
            Some(self.held.shard),
            0,
            0,
        );
        Some(*failure)
    }

    async fn get_iterator(&mut self, position: &IteratorPosition) {
        let asked_at = self.process.wall();
        match self.ask().await {
            None | Some(ReadFailure::IteratorExpired) => {
                let sim = &self.process.sim;
                let iterator = sim
                    .stream
                    .borrow_mut()
                    .iterator(self.held.shard, position, sim.now());
                self.reader.on_iterator(iterator, asked_at);
            }
            Some(failure) => {
                self.reader.on_failure(self.process.now(), failure);
            }
        }
    }

    async fn get_records(&mut self, iterator: &str) -> Result<(), Break> {
        if !self.process.has(Mutation::NoRoom) {
            self.wait_for_room().await;
        }
        if !self.held.is_valid(self.process) {
            return Err(Break::Lost);
        }
        self.reader.on_call(self.process.now());
        if let Some(failure) = self.ask().await {
            self.reader.on_failure(self.process.now(), failure);
            if failure == ReadFailure::IteratorExpired && self.process.has(Mutation::LatestAfterExpiry) {
                self.reader.seek(IteratorPosition::Latest);
            }
            return Ok(());
        }
        let sim = Rc::clone(&self.process.sim);
        let knows_children = !sim.strikes(FaultKind::StaleListing, self.process.slot);
        let page = sim
            .stream
            .borrow_mut()
            .read(iterator, sim.setup.batch, sim.now(), knows_children);
        let Some(page) = page else {
            self.reader
                .on_failure(self.process.now(), ReadFailure::IteratorExpired);
            return Ok(());
        };
        let (number, shard, count) = (self.process.number, self.held.shard, page.bytes.len() as u64);
        sim.log(What::Page, Some(number), Some(shard), page.first, count);
        self.reader.on_page(
            self.process.now(),
            PageFacts {
                first: (count > 0).then(|| sequence_number(shard, page.first)),
                last: (count > 0).then(|| sequence_number(shard, page.first + count - 1)),
                bytes: page.bytes.iter().map(|bytes| u64::from(*bytes)).sum(),
                next_iterator: page.next_iterator,
                millis_behind_latest: Some(page.millis_behind_latest),
                children: page.children,
            },
        );
        self.hand_out(page.first, &page.bytes);
        Ok(())
    }

    /// Puts what was read into the handler's queue, but for what a checkpoint says was settled.
    fn hand_out(&self, first: u64, bytes: &[u32]) {
        let held = self.held;
        let settled = self
            .settled_through
            .as_ref()
            .and_then(|at| record_number(held.shard, at));
        let mut records = Vec::new();
        for (number, bytes) in (first..).zip(bytes) {
            // An iterator that was placed on the last record taken gives it once more.
            let is_taken = held.last_handed_out.get().is_some_and(|last| number <= last);
            if is_taken || settled.is_some_and(|settled| number <= settled) {
                continue;
            }
            held.last_handed_out.set(Some(number));
            let bytes = u64::from(*bytes);
            held.bytes.set(held.bytes.get() + bytes);
            self.process.bytes.set(self.process.bytes.get() + bytes);
            let at = ExtendedSequenceNumber::At(sequence_number(held.shard, number), 0);
            records.push((number, held.watermark.borrow_mut().hand_out(at, bytes)));
        }
        if !records.is_empty() {
            held.queue.borrow_mut().push_back(Batch { records });
            held.changes.tell();
        }
    }

    async fn wait_for_room(&self) {
        let most = self.process.sim.setup.unsettled_max;
        let held = self.held;
        held.changes
            .until(|| {
                let has_room = held.watermark.borrow().unsettled() < most;
                (has_room && held.queue.borrow().len() < QUEUE_MAX).then_some(())
            })
            .await;
    }

    async fn confirm_end(&mut self) {
        let (held, now) = (self.held, self.process.now());
        match self.process.list_shards().await {
            Ok(shards) => {
                let own = shards.iter().find(|shard| shard.shard_id == held.key.shard_id());
                let children = shardfleet_core::shard::ChildShard::of_parent(&held.key.shard_id(), &shards);
                let is_closed = own.is_some_and(|shard| !shard.is_open());
                self.reader.on_listing(now, own.is_some(), is_closed, children);
            }
            Err(StoreFailure { .. }) => {
                self.reader.on_failure(now, ReadFailure::Other);
            }
        }
    }
}

/// Runs the handler of one shard: a batch at a time, records settled in any order.
async fn handle(process: &Rc<Process>, held: &Rc<Held>) {
    loop {
        let batch = held
            .changes
            .until(|| {
                if held.is_stopping.get() {
                    return Some(None);
                }
                held.queue.borrow_mut().pop_front().map(Some)
            })
            .await;
        let Some(batch) = batch else { return };
        if !held.is_valid(process) {
            return;
        }
        held.is_handler_busy.set(true);
        held.changes.tell();
        work_on(process, held, batch).await;
        held.is_handler_busy.set(false);
        held.changes.tell();
    }
}

async fn work_on(process: &Rc<Process>, held: &Rc<Held>, batch: Batch) {
    let sim = &process.sim;
    let (first, count) = match batch.records.first() {
        Some((first, _)) => (*first, batch.records.len() as u64),
        None => return,
    };
    sim.log(What::Handed, Some(process.number), Some(held.shard), first, count);
    for (record, _) in &batch.records {
        sim.checks
            .borrow_mut()
            .on_handed(sim, process.number, held.shard, held.serial, *record);
    }
    let is_slow = sim.strikes(FaultKind::SlowHandler, process.slot);
    let mut records = batch.records;
    let takes = sim.draw(|chance| {
        chance.shuffle(&mut records);
        if is_slow {
            chance.between(35 * SECOND, 70 * SECOND)
        } else if chance.happens(20) {
            chance.between(SECOND, 4 * SECOND)
        } else {
            chance.between(MILLI, 200 * MILLI)
        }
    });
    if is_slow {
        sim.fault(FaultKind::SlowHandler, Some(process.number));
    }
    // Half of them, in any order, then the others.
    let rest = records.split_off(records.len() / 2);
    for part in [records, rest] {
        if part.is_empty() {
            continue;
        }
        sleep_until(&sim.executor, sim.now() + takes / 2).await;
        for (record, ticket) in part {
            sim.log(What::Settled, Some(process.number), Some(held.shard), record, 0);
            sim.checks
                .borrow_mut()
                .on_settled(sim.now(), held.shard, held.serial, record);
            held.watermark.borrow_mut().settle(ticket);
        }
        held.changes.tell();
    }
}

impl Held {
    /// Waits until the handler has nothing more to do, for `patience` at most.
    pub(super) async fn drained(&self, process: &Process, patience: Option<Duration>) {
        let drained = self.changes.until(|| {
            let is_idle = !self.is_handler_busy.get();
            let has_nothing = self.is_stopping.get() || self.queue.borrow().is_empty();
            (is_idle && has_nothing).then_some(())
        });
        match patience {
            Some(patience) => {
                process.within(patience, drained).await;
            }
            None => drained.await,
        }
    }
}
