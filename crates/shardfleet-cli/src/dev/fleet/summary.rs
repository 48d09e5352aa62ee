//! What a fleet's run comes to: the account of every record, and what the fleet did meanwhile.

use std::collections::HashMap;
use std::time::Duration;

use serde::Serialize;

use super::gaps::{Gaps, Reader};
use super::leases::LeaseWatch;
use super::member::{Delivered, Member, State};
use super::{FAILOVER_TIME, Fleet, seconds};
use crate::dev::accounting::account;
use crate::dev::{Summary, summary_of};
use crate::exit::Failure;
use crate::output::result_line;

/// As `--json` prints it: the keys of a run with one reader, and these.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FleetSummary {
    #[serde(flatten)]
    pub(super) run: Summary,
    /// Worker processes that took part.
    pub(super) workers: usize,
    /// Leases that another worker took over from a killed one, by the lease rows.
    pub(super) failovers: u64,
    /// Repeated deliveries of what a killed worker had delivered after its last checkpoint.
    pub(super) repeated_after_kill: u64,
    /// The longest silence of a shard that changed hands.
    pub(super) gap_ms_max: Gaps,
    /// From the start of the worker that joined to its first record.
    pub(super) join_to_first_record_ms: Option<u64>,
    /// How long a lease lives without a renewal.
    pub(super) failover_time_ms: u64,
    /// Each worker process, in the order of their starts.
    pub(super) members: Vec<MemberSummary>,
    /// What was planned and did not happen, in words.
    pub(super) left_out: Vec<String>,
}

/// One worker process.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MemberSummary {
    worker_id: String,
    pid: u32,
    /// How it ended: stopped, killed, failed.
    ended: &'static str,
    /// Lines it printed.
    delivered: u64,
}

impl MemberSummary {
    fn of(member: &Member) -> Self {
        Self {
            worker_id: member.worker_id.to_string(),
            pid: member.pid,
            ended: member.state.word(),
            delivered: member.delivered,
        }
    }
}

/// How many repeats a kill explains: an earlier delivery by a worker that was killed before it settled the record. `log` in order of time.
fn repeated_after_kill(log: &[Delivered], members: &[Member], leases: &LeaseWatch) -> u64 {
    let mut readers: HashMap<_, Vec<usize>> = HashMap::with_capacity(log.len());
    let mut explained = 0;
    for delivered in log {
        let entry = &delivered.entry;
        let before = readers.entry((&entry.shard_id, &entry.position)).or_default();
        let is_explained = before.iter().filter_map(|by| members.get(*by)).any(|member| {
            matches!(member.state, State::Killed(_))
                && leases.is_unsettled_of(&member.worker_id, &entry.shard_id, &entry.position)
        });
        explained += u64::from(is_explained);
        before.push(delivered.by);
    }
    explained
}

impl Fleet<'_> {
    /// What the run comes to, now that every worker has ended and the table was looked at since.
    pub(super) fn summary(&mut self) -> FleetSummary {
        self.books.sort_log();
        let log = &self.books.log;
        let entries: Vec<_> = log.iter().map(|delivered| delivered.entry.clone()).collect();
        let mut account = account(&self.books.ledger, &entries, self.leases.checkpoints());
        account.total.unexpected += self.books.unreadable;
        let flowing_since = self.flowing_since.unwrap_or(self.started);
        let last_news = self.books.last_news.unwrap_or(flowing_since);
        let newcomer = self.members.iter().find(|member| member.has_joined);
        let left_out = self.chaos.as_ref().map(|chaos| chaos.left_out().to_vec());
        let readers: Vec<_> = self.members.iter().map(Reader::of).collect();
        FleetSummary {
            run: summary_of(account, seconds(flowing_since, last_news)),
            workers: self.members.len(),
            failovers: self.leases.failovers,
            repeated_after_kill: repeated_after_kill(log, &self.members, &self.leases),
            gap_ms_max: Gaps::of(log, &readers),
            join_to_first_record_ms: newcomer
                .and_then(|member| Some(member.first_delivery?.saturating_sub(member.started_at) / 1000)),
            failover_time_ms: u64::try_from(FAILOVER_TIME.as_millis()).unwrap_or(u64::MAX),
            members: self.members.iter().map(MemberSummary::of).collect(),
            left_out: left_out.unwrap_or_default(),
        }
    }
}

impl FleetSummary {
    /// Prints it.
    pub(super) fn print(&self, as_json: bool) -> Result<(), Failure> {
        if as_json {
            let json = serde_json::to_string(self).map_err(|e| Failure::run(e.to_string()))?;
            result_line(&json)?;
            return Ok(());
        }
        crate::dev::print_summary(&self.run, false)?;
        result_line(&self.text().join("\n"))?;
        Ok(())
    }

    fn text(&self) -> Vec<String> {
        let mut lines = vec![String::new(), format!("{} worker processes", self.workers)];
        for member in &self.members {
            let MemberSummary {
                worker_id,
                pid,
                ended,
                delivered,
            } = member;
            lines.push(format!(
                "  {worker_id:<12}{delivered:>9} records, {ended} (pid {pid})"
            ));
        }
        let failover_time = humantime::format_duration(Duration::from_millis(self.failover_time_ms));
        lines.push(format!(
            "{} leases taken over from a killed worker (failover_time {failover_time}; the default of a worker is 10s)",
            self.failovers
        ));
        if self.run.total.repeated > 0 {
            lines.push(format!(
                "{} of {} repeats are records that a killed worker had delivered after its last checkpoint",
                self.repeated_after_kill, self.run.total.repeated
            ));
        }
        let Gaps {
            kill,
            stop,
            join,
            balance,
        } = self.gap_ms_max;
        for (gap, what) in [
            (kill, "its reader was killed"),
            (stop, "its reader was stopped"),
            (join, "a worker joined"),
            (balance, "it moved between workers that run on"),
        ] {
            lines.extend(gap.map(|gap| format!("{gap} ms: the longest silence of a shard when {what}")));
        }
        let join = self.join_to_first_record_ms;
        lines.extend(
            join.map(|ms| format!("{ms} ms from the start of the worker that joined to its first record")),
        );
        lines.extend(self.left_out.iter().map(|what| format!("left out: {what}")));
        lines
    }
}
