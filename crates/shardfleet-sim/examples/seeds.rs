//! Simulates the fleets of many seeds and says what was found: `cargo xtask sim` builds and runs it.
//!
//! Arguments: `--seeds N` (default 20), `--seed S` the first of them (default 1), `--mutation NAME` to plant a bug, `--json`, `--trace` to show the events before a
//! violation. Exit code 1 if an invariant was violated, or a kind of fault never happened; 2 for arguments that are none.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shardfleet_sim::{FaultKind, Mutation, Options, Peaks, Report, run};

struct Args {
    first: u64,
    count: u64,
    mutation: Option<Mutation>,
    json: bool,
    trace: bool,
}

impl Args {
    fn parse(mut given: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut args = Self {
            first: 1,
            count: 20,
            mutation: None,
            json: false,
            trace: false,
        };
        while let Some(name) = given.next() {
            let mut value = || given.next().ok_or_else(|| format!("{name} needs a value"));
            let number = |text: String| {
                let parsed = text.parse::<u64>();
                parsed.map_err(|_| format!("{text:?} is not a number from 0 to {}", u64::MAX))
            };
            match name.as_str() {
                "--seeds" => args.count = number(value()?)?,
                "--seed" => args.first = number(value()?)?,
                "--mutation" => args.mutation = Some(mutation(&value()?)?),
                "--json" => args.json = true,
                "--trace" => args.trace = true,
                _ => return Err(format!("there is no argument {name}")),
            }
        }
        if args.count == 0 {
            return Err("--seeds must be 1 or more: no run proves nothing".to_owned());
        }
        Ok(args)
    }
}

fn mutation(name: &str) -> Result<Mutation, String> {
    let found = Mutation::ALL
        .iter()
        .find(|mutation| format!("{mutation:?}") == name);
    found
        .copied()
        .ok_or_else(|| format!("{name:?} is none of the mutations {:?}", Mutation::ALL))
}

/// All runs together.
#[derive(Default)]
struct Totals {
    done: u64,
    simulated: Duration,
    processes: usize,
    records: u64,
    events: u64,
    faults: BTreeMap<FaultKind, u64>,
    peaks: Peaks,
    failed: Vec<Report>,
}

impl Totals {
    fn add(&mut self, report: Report) {
        self.done += 1;
        self.simulated += report.simulated;
        self.processes += report.processes;
        self.records += report.records;
        self.events += report.events;
        for (kind, count) in &report.faults {
            *self.faults.entry(*kind).or_insert(0) += count;
        }
        let peaks = &report.peaks;
        self.peaks.unread = self.peaks.unread.max(peaks.unread);
        self.peaks.unsettled = self.peaks.unsettled.max(peaks.unsettled);
        self.peaks.requests = self.peaks.requests.max(peaks.requests);
        self.peaks.row_requests = self.peaks.row_requests.max(peaks.row_requests);
        self.peaks.late_moves = self.peaks.late_moves.max(peaks.late_moves);
        self.peaks.restless = self.peaks.restless.max(peaks.restless);
        if !report.is_clean() {
            self.failed.push(report);
        }
    }
}

fn replay(args: &Args, seed: u64) -> String {
    let mutation = args
        .mutation
        .map_or(String::new(), |mutation| format!(" --mutation {mutation:?}"));
    format!("cargo xtask sim --seeds 1 --seed {seed}{mutation} --trace")
}

fn what_failed(report: &Report) -> String {
    match (&report.violation, report.missing_fault) {
        (Some(violation), _) => violation.to_string(),
        (None, Some(kind)) => format!("{kind} never happened, so the run proves less than it should"),
        (None, None) => "nothing".to_owned(),
    }
}

fn in_words(args: &Args, totals: &Totals) -> String {
    let hours = totals.simulated.as_secs_f64() / 3600.0;
    let last = args.first.saturating_add(args.count - 1);
    let mut lines = vec![format!(
        "seeds {} to {last}: {hours:.1} fleet-hours, {} processes, {} records handed out, {} events",
        args.first, totals.processes, totals.records, totals.events
    )];
    let peaks = &totals.peaks;
    lines.push(format!(
        "closest to the bounds: unread {:.1} s, unsettled {}, requests a second {} ({} of one row), moved after {:.0} s of calm, late moves {}\nfaults:",
        peaks.unread.as_secs_f64(),
        peaks.unsettled,
        peaks.requests,
        peaks.row_requests,
        peaks.restless.as_secs_f64(),
        peaks.late_moves
    ));
    for kind in FaultKind::ALL {
        let count = totals.faults.get(kind).copied().unwrap_or(0);
        lines.push(format!("  {kind:<18} {count:>10}"));
    }
    lines.push(format!("failed: {}", totals.failed.len()));
    for report in &totals.failed {
        lines.push(format!("  seed {}: {}", report.seed, what_failed(report)));
    }
    if let Some(first) = totals.failed.first() {
        if let (true, Some(violation)) = (args.trace, &first.violation) {
            lines.push(format!("before it:\n  {}", violation.trace.join("\n  ")));
        }
        lines.push(format!("replay: {}", replay(args, first.seed)));
    }
    lines.join("\n") + "\n"
}

fn in_json(args: &Args, totals: &Totals) -> String {
    let faults: BTreeMap<&str, u64> = FaultKind::ALL
        .iter()
        .map(|kind| (kind.name(), totals.faults.get(kind).copied().unwrap_or(0)))
        .collect();
    let failed: Vec<_> = totals
        .failed
        .iter()
        .map(|report| {
            serde_json::json!({
                "seed": report.seed,
                "invariant": report.violation.as_ref().map(|violation| violation.invariant.id()),
                "at_seconds": report.violation.as_ref().map(|violation| violation.at.as_secs_f64()),
                "missing_fault": report.missing_fault.map(FaultKind::name),
                "what": what_failed(report),
                "trace": report.violation.as_ref().filter(|_| args.trace).map(|violation| &violation.trace),
                "replay": replay(args, report.seed),
            })
        })
        .collect();
    let peaks = &totals.peaks;
    let summary = serde_json::json!({
        "first_seed": args.first,
        "seeds": totals.done,
        "fleet_hours": totals.simulated.as_secs_f64() / 3600.0,
        "processes": totals.processes,
        "records": totals.records,
        "events": totals.events,
        "peaks": {
            "unread_seconds": peaks.unread.as_secs_f64(),
            "unsettled": peaks.unsettled,
            "requests_per_second": peaks.requests,
            "row_requests_per_second": peaks.row_requests,
            "late_moves": peaks.late_moves,
            "moved_after_calm_seconds": peaks.restless.as_secs_f64(),
        },
        "faults": faults,
        "failed": failed,
    });
    format!("{summary:#}\n")
}

fn simulate(args: &Args) -> Totals {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicU64::new(0);
    let totals = Mutex::new(Totals::default());
    let options = Options {
        mutation: args.mutation,
        ..Options::default()
    };
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= args.count {
                return;
            }
            let report = run(args.first.wrapping_add(number), options);
            let mut totals = totals.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if !report.is_clean() {
                say(&format!("seed {}: {}", report.seed, what_failed(&report)));
            }
            totals.add(report);
            let step = (args.count / 20).max(1);
            if totals.done.is_multiple_of(step) || totals.done == args.count {
                say(&format!(
                    "{} of {} seeds, {} failed",
                    totals.done,
                    args.count,
                    totals.failed.len()
                ));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let mut totals = totals
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    totals.failed.sort_by_key(|report| report.seed);
    totals
}

fn main() -> ExitCode {
    let args = match Args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(message) => {
            say(&message);
            return ExitCode::from(2);
        }
    };
    let totals = simulate(&args);
    print(&if args.json {
        in_json(&args, &totals)
    } else {
        in_words(&args, &totals)
    });
    ExitCode::from(u8::from(!totals.failed.is_empty()))
}

#[expect(clippy::print_stdout, reason = "a command-line tool talks to its user")]
fn print(message: &str) {
    print!("{message}");
}

#[expect(clippy::print_stderr, reason = "progress is not part of the answer")]
fn say(message: &str) {
    eprintln!("{message}");
}
