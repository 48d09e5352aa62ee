//! What must hold in every run, whatever happens in it.
//!
//! The checks hear of writes that happened, records that were handed out and settled, plans and requests, and look at all workers once a second. They do not know which faults
//! are planned or planted; of trouble they know what anybody could see: that a request failed or was answered late, and that a process came or went.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use shardfleet_core::assignment::{AssignmentPlan, AssignmentReport, MoveKind};
use shardfleet_core::ids::{LeaseKey, WorkerId};
use shardfleet_core::shard::Shard;

use crate::Peaks;
use crate::exec::{Micros, SECOND};
use crate::log::seconds;
use crate::setup::micros;
use crate::sim::Sim;
use crate::stream::shard_number;

mod books;
mod looks;
mod rows;

use books::ShardBook;

macro_rules! invariants {
    ($($(#[$doc:meta])* $id:ident = $words:literal,)*) => {
        /// What must hold. The ids are those of the design.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Invariant {
            $($(#[$doc])* $id,)*
        }

        impl Invariant {
            /// Every invariant there is.
            pub const ALL: &[Self] = &[$(Self::$id,)*];

            /// Its id in reports.
            pub fn id(self) -> &'static str {
                match self {
                    $(Self::$id => stringify!($id),)*
                }
            }

            /// What it says.
            pub fn statement(self) -> &'static str {
                match self {
                    $(Self::$id => $words,)*
                }
            }
        }
    };
}

invariants! {
    /// The checkpoint of a shard, deleted and created again or not.
    C1 = "a checkpoint never moves back",
    /// Settled by whichever worker.
    C2 = "every record up to a checkpoint was settled",
    /// By worker id.
    C3 = "only the lease's holder, or the checkpoint owner in a handoff, writes its checkpoint",
    /// Each holding for itself: the next holder may begin with records that were handed out before.
    D1 = "records of a shard are handed out in order by each of its holders",
    /// Both parents, if it was merged.
    D2 = "a child's records are handed out after its parents' leases ended",
    /// From the oldest record on.
    D3 = "every record reaches a handler by the end",
    /// Except where its time was up and the lease was forced from its holder.
    D4 = "a shard has one reader at most",
    /// A flush may fail when requests fail.
    D5 = "in fair weather a holder that hands a lease over first checkpoints all that it has settled",
    /// Its counter stood still for the failover time, or a handoff was overdue.
    L1 = "a live worker's lease moves only by handoff",
    /// See the bound's own comment.
    L2 = "a lease that nobody reads is read again within a bound",
    /// While clocks run at the same rate.
    L3 = "no two workers lead for longer than the failover time",
    /// By leases that are not finished.
    S1 = "after a sync the leases cover all hash keys",
    /// Some corrections aside, as the load is never the same.
    A1 = "in quiet weather replanning dies out, and no lease goes back and forth",
    /// In plans at any time, in the table in quiet weather.
    A2 = "no worker has more leases than its limit",
    /// And one page.
    M1 = "no more records and batches of a shard are unsettled than may be",
    /// Requests to the table.
    R1 = "a worker's requests in a second are bounded",
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// When, since the run began.
    pub at: Duration,
    /// What happened, in words.
    pub what: String,
    /// The events that led to it, in words, the newest last.
    pub trace: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            invariant, at, what, ..
        } = self;
        let at = at.as_secs_f64();
        write!(f, "{invariant} ({}) at {at:.3} s: {what}", invariant.statement())
    }
}

/// A violation as it was noted; the run adds the trace.
pub(crate) struct Finding {
    pub(crate) invariant: Invariant,
    pub(crate) at: Micros,
    pub(crate) shard: Option<usize>,
    pub(crate) what: String,
}

/// L2's bound. In fair weather an abandoned lease's counter stands still for the failover time (10 s) from when the others last saw it move, up to one look (2.5 s) after it did; a leader
/// then gives it away at once and its new owner sees that within a look (1.8 s). Where the leader is gone too, a deputy waits for a grace (1.8 s) first, and for
/// another one (1.8 s) where the planned taker does nothing. If no deputy is left either, followers scan every 30 s. A reader that gave a shard up lets it rest until shards are
/// next listed, after 60 s, in its own worker; so does a store that fails, by its back-off (5 s). The longest chain, one worker that rests, is the bound.
pub(crate) const UNREAD_MAX: Micros = 75 * SECOND;

/// A1: how long after the last disturbance balancing may still move leases as it likes. A lease that was handed over stays for five minutes, so a correction of what was
/// moved in the storm may come that late.
const RESTLESS_MAX: Micros = 420 * SECOND;

/// A1: moves after that, for each worker, until the next disturbance. Records arrive by chance, and end at last, so the load itself never rests; a plan that does not die out
/// moves something in each run, that is every minute.
const LATE_MOVES_PER_WORKER: usize = 4;

/// A1: from then on no lease goes back where it came from. Workers that start one after another are given leases that move on to the next one at once, and what a worker measures
/// lags behind by a report (30 s) or two.
const SETTLED_AFTER: Micros = 120 * SECOND;

/// R1's bound for each second: three renewals in 10 s for each lease, retries included, make less than 2 a lease; the rest is for the moment at which all leases of a
/// fleet are taken, created or handed over.
const REQUESTS_BASE: u64 = 100;
const REQUESTS_PER_LEASE: u64 = 4;

/// R1's bound for the writes of one row in a second: a take, a handoff's four writes, each of them made anew some times because the row had changed or the store had failed,
/// with growing waits between.
const ROW_REQUESTS_MAX: u64 = 14;

/// Without trouble for this long, the weather is fair: longer than any request, late writes included, and its retry.
const FAIR_AFTER: Micros = 30 * SECOND;

/// A2 in the table: for how long two that act at once may have given a worker too much between them.
const OVER_LIMIT_MAX: Micros = 90 * SECOND;

/// The checks of a run.
#[derive(Default)]
pub(crate) struct Checks {
    serials: u64,
    books: BTreeMap<usize, ShardBook>,
    last_trouble: Micros,
    last_upset: Micros,
    /// The second at present, and the requests of each process in it.
    second: Micros,
    requests: BTreeMap<usize, u64>,
    row_requests: BTreeMap<(usize, usize), u64>,
    over_limit: BTreeMap<WorkerId, Micros>,
    /// Handoffs planned after the fleet should have come to rest.
    late_moves: usize,
    /// Since when two workers lead.
    two_lead_since: Option<Micros>,
    handed: u64,
    finding: Option<Finding>,
    pub(crate) peaks: Peaks,
}

impl Checks {
    pub(crate) fn has_found(&self) -> bool {
        self.finding.is_some()
    }

    pub(crate) fn take_finding(&mut self) -> Option<Finding> {
        self.finding.take()
    }

    pub(crate) fn handed(&self) -> u64 {
        self.handed
    }

    /// A number for a holding.
    pub(crate) fn next_serial(&mut self) -> u64 {
        self.serials += 1;
        self.serials
    }

    /// The first violation counts; what follows may follow from it.
    fn find(&mut self, invariant: Invariant, at: Micros, shard: Option<usize>, what: String) {
        self.finding.get_or_insert(Finding {
            invariant,
            at,
            shard,
            what,
        });
    }

    /// A request failed, or its answer was late or old.
    pub(crate) fn note_trouble(&mut self, now: Micros) {
        self.last_trouble = now;
        self.last_upset = now;
    }

    /// A process has started.
    pub(crate) fn on_started(&mut self, now: Micros, _process: usize) {
        self.last_upset = now;
    }

    /// The load is gone, or a process is gone or about to go, or goes on after it had stood still.
    pub(crate) fn on_gone(&mut self, now: Micros) {
        self.last_upset = now;
    }

    fn is_fair(&self, now: Micros) -> bool {
        now.saturating_sub(self.last_trouble) >= FAIR_AFTER
    }

    /// Tasks have run `steps` times at this moment.
    pub(crate) fn on_standstill(&mut self, now: Micros, steps: u32) {
        let what = format!("tasks ran {steps} times and no time passed: one of them does not wait");
        self.find(Invariant::R1, now, None, what);
    }

    /// A process sends a request to the table.
    pub(crate) fn on_request(&mut self, now: Micros, process: usize) {
        let second = now / SECOND;
        if self.second != second {
            self.second = second;
            self.requests.clear();
            self.row_requests.clear();
        }
        let count = self.requests.entry(process).or_insert(0);
        *count += 1;
        let count = *count;
        self.peaks.requests = self.peaks.requests.max(count);
        let most = REQUESTS_BASE + REQUESTS_PER_LEASE * self.books.len() as u64;
        if count > most {
            let what =
                format!("process {process} sent {count} requests within a second, at most {most} are good");
            self.find(Invariant::R1, now, None, what);
        }
    }

    /// The request that a process sends next is a write of one lease row.
    pub(crate) fn on_row_request(&mut self, now: Micros, process: usize, key: &LeaseKey) {
        let shard = shard_number(key);
        if self.second != now / SECOND {
            self.second = now / SECOND;
            self.requests.clear();
            self.row_requests.clear();
        }
        let count = self.row_requests.entry((process, shard)).or_insert(0);
        *count += 1;
        let count = *count;
        self.peaks.row_requests = self.peaks.row_requests.max(count);
        if count > ROW_REQUESTS_MAX {
            let what = format!(
                "process {process} sent {count} writes of shard {shard} within a second, at most {ROW_REQUESTS_MAX} are good"
            );
            self.find(Invariant::R1, now, Some(shard), what);
        }
    }

    /// A leader has made a plan.
    pub(crate) fn on_planned(
        &mut self,
        sim: &Sim,
        process: usize,
        plan: &AssignmentPlan,
        report: &AssignmentReport,
    ) {
        let now = sim.now();
        let most = sim.setup.fleet.assignment.max_leases_for_worker;
        for worker in report.workers.iter().filter(|worker| worker.gets > 0) {
            if worker.leases_after > most {
                let what = format!(
                    "process {process} planned {} leases for {}, whose limit is {most}",
                    worker.leases_after, worker.worker_id
                );
                self.find(Invariant::A2, now, None, what);
            }
        }
        let calm = now.saturating_sub(self.last_upset);
        for planned in plan
            .moves
            .iter()
            .filter(|planned| planned.kind == MoveKind::Handoff)
        {
            self.peaks.restless = self.peaks.restless.max(Duration::from_micros(calm));
            let shard = shard_number(&planned.lease_key);
            self.late_moves = if calm > RESTLESS_MAX {
                self.late_moves + 1
            } else {
                0
            };
            let most = report.workers.len() * LATE_MOVES_PER_WORKER;
            self.peaks.late_moves = self.peaks.late_moves.max(self.late_moves);
            if self.late_moves > most {
                let what = format!(
                    "shard {shard} is to be handed to {} by process {process}, {:.0} s after the last disturbance, the {}. move since the fleet should have come to rest",
                    planned.to,
                    seconds(calm),
                    self.late_moves
                );
                self.find(Invariant::A1, now, Some(shard), what);
            }
        }
    }

    /// A worker's part in the election may have changed.
    pub(crate) fn on_election(&mut self, sim: &Sim, _process: usize, is_leader: bool) {
        if is_leader {
            self.check_leaders(sim);
        }
    }

    fn check_leaders(&mut self, sim: &Sim) {
        let processes = sim.processes.borrow();
        let leads = |process: &&std::rc::Rc<crate::worker::Process>| {
            process.is_alive.get() && !process.is_frozen.get() && process.is_leader()
        };
        let leaders: Vec<String> = processes
            .iter()
            .filter(leads)
            .map(|process| process.id.to_string())
            .collect();
        if leaders.len() < 2 {
            self.two_lead_since = None;
            return;
        }
        // One that was silent and wakes up finds out with its next look at the table.
        let since = *self.two_lead_since.get_or_insert(sim.now());
        if sim.now() - since > Self::failover_time(sim) {
            let what = format!(
                "{} lead at the same time, for {:.1} s",
                leaders.join(" and "),
                seconds(sim.now() - since)
            );
            self.find(Invariant::L3, sim.now(), None, what);
        }
    }

    /// A worker has brought the leases in line with a listing of `shards`.
    pub(crate) fn on_synced(&mut self, sim: &Sim, _began: Micros, _shards: &[Shard]) {
        let table = sim.table.borrow();
        let stream = sim.stream.borrow();
        let unfinished: BTreeSet<usize> = table
            .leases()
            .filter(|lease| !lease.is_finished())
            .map(|lease| shard_number(&lease.lease_key))
            .collect();
        // A merged shard has no lease before its last parent has one; whatever descends from a shard that is read is read in its time.
        let mut is_read = vec![false; stream.len()];
        for shard in 0..stream.len() {
            is_read[shard] =
                unfinished.contains(&shard) || stream.parents(shard).iter().any(|parent| is_read[*parent]);
        }
        let ranges = (0..stream.len())
            .filter(|shard| is_read[*shard])
            .map(|shard| stream.range(shard));
        if let Some(hole) = shardfleet_core::hash_range::gaps(ranges).first() {
            let what = format!("nobody will read hash keys {} to {}", hole.start(), hole.end());
            self.find(Invariant::S1, sim.now(), None, what);
        }
    }

    fn book(&mut self, key: &LeaseKey) -> (usize, &mut ShardBook) {
        let shard = shard_number(key);
        (shard, self.books.entry(shard).or_default())
    }

    fn failover_time(sim: &Sim) -> Micros {
        micros(sim.setup.fleet.failover_time)
    }
}
