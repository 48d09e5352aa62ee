//! One stream, one application, any number of workers, and the report of what became of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::logs;
use super::producer::{Pace, Producer, put_round};
use super::records::{Account, Delivery, Put, gaps};
use super::services::{Clients, Services};
use super::table::Table;
use super::time::{Stopwatch, now_ms, pause, wait};
use super::worker::{Deliveries, Kind, Plan, QUICK_JAVA, QUICK_OURS, Surroundings, Worker, java_settings};

/// How long anything may take before a scenario gives up on it.
const PATIENCE: Duration = Duration::from_secs(90);

/// The programs that scenarios start.
pub(crate) struct Programs {
    /// `peers/kcl/worker.sh`.
    pub(crate) java: PathBuf,
    /// Our binary.
    pub(crate) ours: PathBuf,
    /// The embedded services.
    pub(crate) serve: PathBuf,
}

/// Counts and prints results.
pub(crate) struct Report {
    scenario: &'static str,
    passed: u32,
    failed: u32,
    failed_here: u32,
    keep: bool,
    folder: PathBuf,
}

impl Report {
    pub(crate) fn new(keep: bool) -> Self {
        Self {
            scenario: "",
            passed: 0,
            failed: 0,
            failed_here: 0,
            keep,
            folder: std::env::temp_dir().join(format!("shardfleet-peers-{}", std::process::id())),
        }
    }

    /// Runs a scenario. Its own error is one failure more: it could not be carried through.
    pub(crate) fn scenario(
        &mut self,
        name: &'static str,
        programs: &Programs,
        run: impl FnOnce(&Programs, &mut Self) -> Result<(), String>,
    ) {
        self.scenario = name;
        self.failed_here = 0;
        let watch = Stopwatch::start();
        if let Err(why) = run(programs, self) {
            self.line("start", &watch, &Err(why));
        }
        let folder = self.folder();
        if self.failed_here == 0 && !self.keep {
            fs::remove_dir_all(&folder).ok();
        } else {
            crate::print(&format!("   logs, events and table: {}", folder.display()));
        }
    }

    /// Runs a step of the current scenario and prints its line. Whether it passed.
    pub(crate) fn step(
        &mut self,
        lab: &mut Lab,
        name: &str,
        run: impl FnOnce(&mut Lab) -> Result<String, String>,
    ) -> bool {
        let watch = Stopwatch::start();
        let result = run(lab);
        lab.write_history();
        self.line(name, &watch, &result);
        result.is_ok()
    }

    fn line(&mut self, step: &str, watch: &Stopwatch, result: &Result<String, String>) {
        let name = format!("{}/{step}", self.scenario);
        match result {
            Ok(figures) => {
                self.passed += 1;
                crate::print(&format!("ok {name} ({:.1} s) {figures}", watch.seconds()));
            }
            Err(why) => {
                self.failed += 1;
                self.failed_here += 1;
                crate::print(&format!("FAILED {name}: {why}"));
            }
        }
    }

    /// Where a scenario's files go.
    pub(crate) fn folder(&self) -> PathBuf {
        self.folder.join(self.scenario)
    }

    /// The last line.
    pub(crate) fn finish(self) -> Result<String, String> {
        // Goes only where nothing is left in it.
        fs::remove_dir(&self.folder).ok();
        let line = format!("{} passed, {} failed", self.passed, self.failed);
        if self.failed == 0 { Ok(line) } else { Err(line) }
    }
}

/// One stream with its application. Everything ends when it is dropped.
pub(crate) struct Lab {
    pub(crate) table: Table,
    pub(crate) clients: Clients,
    around: Surroundings,
    workers: BTreeMap<String, Worker>,
    /// Workers that were told to end.
    gone: BTreeSet<String>,
    deliveries: Deliveries,
    pace: Pace,
    producer: Option<Producer>,
    /// When the table could not be reached, from and until.
    outages: Vec<(u64, u64)>,
    _services: Services,
}

impl Lab {
    /// Starts services and creates the stream.
    pub(crate) fn start(programs: &Programs, report: &Report, shards: u32) -> Result<Self, String> {
        let folder = report.folder();
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let services = Services::start(&programs.serve)?;
        let clients = services.clients();
        clients.create_stream("orders", shards)?;
        let deliveries = Deliveries::default();
        Ok(Self {
            table: Table::watch(&clients, "app"),
            around: Surroundings {
                clients: clients.clone(),
                folder,
                java: programs.java.clone(),
                ours: programs.ours.clone(),
                deliveries: Arc::clone(&deliveries),
            },
            clients,
            workers: BTreeMap::new(),
            gone: BTreeSet::new(),
            deliveries,
            pace: Pace {
                stream: "orders".to_owned(),
                parts: shards,
                every: Duration::from_millis(100),
                bytes: 500,
            },
            producer: None,
            outages: Vec::new(),
            _services: services,
        })
    }

    /// Starts a Java worker with quick timings and `more` arguments.
    pub(crate) fn java(&mut self, name: &str, more: &[&str]) -> Result<(), String> {
        let mut arguments = java_settings(QUICK_JAVA);
        arguments.extend(["--position".to_owned(), "LATEST".to_owned()]);
        arguments.extend(more.iter().map(|&text| text.to_owned()));
        self.worker_with(name, Kind::Java, &arguments)
    }

    /// Starts one of our workers with quick timings and `more` lines of its config file.
    pub(crate) fn ours(&mut self, name: &str, more: &str) -> Result<(), String> {
        self.worker_with(name, Kind::Ours, &[QUICK_OURS.to_owned(), more.to_owned()])
    }

    /// Starts a worker with exactly these settings.
    pub(crate) fn worker_with(&mut self, name: &str, kind: Kind, more: &[String]) -> Result<(), String> {
        let plan = Plan {
            name,
            kind,
            application: "app",
            stream: "orders",
            more,
        };
        self.workers
            .insert(name.to_owned(), Worker::start(&self.around, &plan)?);
        Ok(())
    }

    /// What workers of other applications on the same services need.
    pub(crate) fn around(&self) -> &Surroundings {
        &self.around
    }

    /// Where files of the scenario go.
    pub(crate) fn folder(&self) -> &Path {
        &self.around.folder
    }

    /// A worker by name.
    pub(crate) fn worker(&mut self, name: &str) -> Result<&mut Worker, String> {
        self.workers
            .get_mut(name)
            .ok_or_else(|| format!("there is no worker {name}"))
    }

    /// The workers that were not told to end.
    pub(crate) fn living(&self) -> BTreeSet<String> {
        let all = self.workers.keys().filter(|name| !self.gone.contains(*name));
        all.cloned().collect()
    }

    /// Kills a worker. Returns the time.
    pub(crate) fn kill(&mut self, name: &str) -> Result<u64, String> {
        self.gone.insert(name.to_owned());
        Ok(self.worker(name)?.kill())
    }

    /// Stops a worker in order and waits for its end; an exit code other than 0 is an error. Returns when it was told.
    pub(crate) fn stop(&mut self, name: &str) -> Result<u64, String> {
        self.gone.insert(name.to_owned());
        let worker = self.worker(name)?;
        let at = worker.term()?;
        let status = worker.wait(PATIENCE)?;
        if status.success() {
            Ok(at)
        } else {
            Err(format!("{name} ended with {status}: {}", worker.tail()))
        }
    }

    /// Everything delivered so far.
    pub(crate) fn delivered(&self) -> Vec<Delivery> {
        self.deliveries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Waits for something, and for no worker to end by itself meanwhile.
    pub(crate) fn until(
        &mut self,
        what: &str,
        limit: Duration,
        mut look: impl FnMut(&Self) -> Result<bool, String>,
    ) -> Result<(), String> {
        let result = wait(
            what,
            limit,
            || {
                for name in self.living() {
                    self.worker(&name)?.must_run()?;
                }
                Ok(look(self)?.then_some(()))
            },
            String::new,
        );
        result.map_err(|why| format!("{why}{}", self.table.describe()))
    }

    /// Waits until every unfinished lease belongs to one of the living workers, each of whom has at least `each`, and no handoff is under way.
    pub(crate) fn until_shared(&mut self, each: usize, limit: Duration) -> Result<(), String> {
        let what = format!("each worker has {each} leases or more");
        self.until(&what, limit, |lab| {
            let living = lab.living();
            let counts = lab.table.counts();
            let rows = lab.table.rows();
            let is_owned = |row: &super::table::Row| {
                row.is_finished()
                    || row.checkpoint_owner.is_none()
                        && row.owner.as_ref().is_some_and(|owner| living.contains(owner))
            };
            Ok(!rows.is_empty()
                && rows.values().all(is_owned)
                && living
                    .iter()
                    .all(|name| counts.get(name).is_some_and(|count| *count >= each)))
        })
    }

    /// Puts records until every shard has a checkpoint, so that what comes from then on is read by whoever reads on.
    /// Needed since applications start at LATEST. Returns how long it took.
    pub(crate) fn warm_up(&mut self) -> Result<f64, String> {
        let watch = Stopwatch::start();
        let shards = self.pace.parts as usize;
        let mut round = 0;
        let mut last = 0;
        self.until("every shard has a checkpoint", PATIENCE, |lab| {
            let rows = lab.table.rows();
            let have = rows.values().filter(|row| row.position().is_some()).count();
            if have >= shards {
                return Ok(true);
            }
            if now_ms() >= last + 500 {
                last = now_ms();
                put_round(&lab.clients, &lab.pace, round)?;
                round += 1;
            }
            Ok(false)
        })?;
        Ok(watch.seconds())
    }

    /// Starts the producer whose records are accounted for.
    pub(crate) fn produce(&mut self) {
        self.producer = Some(Producer::start(&self.clients, &self.pace));
    }

    /// What was put so far.
    pub(crate) fn puts(&self) -> Result<Vec<Put>, String> {
        self.producer.as_ref().map_or(Ok(Vec::new()), Producer::puts)
    }

    /// Lets records flow for a while.
    pub(crate) fn flow(&mut self, time: Duration) -> Result<(), String> {
        pause(time);
        for name in self.living() {
            self.worker(&name)?.must_run()?;
        }
        Ok(())
    }

    /// Waits until everything put so far is delivered, and judges all of it: nothing lost, nothing repeated but what lies
    /// behind a checkpoint, one reader at a time, in order.
    pub(crate) fn account(&mut self) -> Result<Account, String> {
        let puts = self.puts()?;
        let mut account = self.account_of(&puts);
        // An error is what is lost; the verdict below names it.
        self.until("everything put is delivered", PATIENCE, |lab| {
            account = lab.account_of(&puts);
            if !account.lost.is_empty() {
                pause(Duration::from_millis(500));
            }
            Ok(account.lost.is_empty())
        })
        .or_else(|why| {
            account.verdict().map_err(|faults| format!("{faults}; {why}"))?;
            Err(why)
        })?;
        account.verdict()?;
        Ok(account)
    }

    /// The same, and nothing may be repeated at all.
    pub(crate) fn account_once(&mut self) -> Result<Account, String> {
        let account = self.account()?;
        if account.repeats > 0 {
            return Err(format!(
                "{} records came twice; {}",
                account.repeats,
                account.figures()
            ));
        }
        Ok(account)
    }

    /// The comparison for what was put since the first `before` records.
    pub(crate) fn account_from(&self, before: usize) -> Result<Account, String> {
        let puts = self.puts()?;
        let later = &puts[before.min(puts.len())..];
        Ok(self.account_of(later))
    }

    fn account_of(&self, puts: &[Put]) -> Account {
        Account::with_outages(puts, &self.delivered(), &self.table.changes(), &self.outages)
    }

    /// Notes that the table could not be reached.
    pub(crate) fn note_outage(&mut self, from: u64, until: u64) {
        self.outages.push((from, until));
    }

    /// Whether a worker delivered anything.
    pub(crate) fn has_read(&self, name: &str) -> bool {
        let deliveries = self.deliveries.lock().unwrap_or_else(PoisonError::into_inner);
        deliveries.iter().any(|delivery| delivery.worker == name)
    }

    /// How long a worker took from its start to its first record, in words.
    pub(crate) fn first_record(&self, name: &str) -> String {
        let started = self.workers.get(name).map(|worker| worker.started_ms);
        let delivered = self.delivered();
        let first = delivered.iter().find(|delivery| delivery.worker == name);
        match (started, first) {
            (Some(started), Some(first)) => {
                format!(
                    "{name} read {} ms after its start",
                    first.ms.saturating_sub(started)
                )
            }
            _ => format!("{name} read nothing"),
        }
    }

    /// The standstill of the shards that `old` read, around a time, in words.
    pub(crate) fn gaps(&self, old: &str, event_ms: u64) -> String {
        let gaps = gaps(&self.delivered(), old, event_ms);
        let mut values: Vec<u64> = gaps.into_values().collect();
        values.sort_unstable();
        match (values.get(values.len() / 2), values.last()) {
            (Some(median), Some(most)) => format!(
                "{} shards of {old} stood still for {median} ms at the median, {most} ms at most",
                values.len()
            ),
            _ => format!("no shard of {old}'s changed hands"),
        }
    }

    /// Fails where a Java worker complained of anything that nothing explains.
    pub(crate) fn java_logs(&self) -> Result<String, String> {
        let mut found = Vec::new();
        let mut lines = 0;
        for worker in self.workers.values().filter(|w| w.kind == Kind::Java) {
            let log = worker.log();
            lines += log.lines().count();
            found.extend(logs::complaints(&log).into_iter().map(str::to_owned));
        }
        match found.first() {
            None => Ok(format!(
                "{lines} lines of WARN and above, all of which are explained"
            )),
            Some(first) => {
                let last = found.last().filter(|last| *last != first);
                let last = last.map(|last| format!("; last: {last}")).unwrap_or_default();
                Err(format!("{} complaints; first: {first}{last}", found.len()))
            }
        }
    }

    /// Keeps what the watcher saw beside the logs.
    pub(crate) fn write_history(&self) {
        fs::write(self.around.folder.join("table.txt"), self.table.history()).ok();
    }
}
