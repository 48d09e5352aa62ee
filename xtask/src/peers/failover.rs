//! How long shards stand still while workers of ours join, stop, die and freeze, with the timings that they have by default.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::http::call;
use super::lab::{Lab, Programs, Report};
use super::records::{gaps, resumed};
use super::time::{now_ms, pause};
use super::worker::Kind;

/// How long a fleet may take to settle. What it takes is printed.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longer than a lease lives.
const FREEZE: Duration = Duration::from_secs(20);
/// Moves for the balance are over by then.
const SETTLE: Duration = Duration::from_secs(15);
/// The share of writes that DynamoDB refuses.
const THROTTLED: f64 = 0.3;
const SHARDS: u32 = 8;

/// Three workers, eight shards.
struct Bench {
    started: u32,
}

impl Bench {
    /// Starts another worker with default timings; its name.
    fn start(&mut self, lab: &mut Lab) -> Result<String, String> {
        self.started += 1;
        let name = format!("ours-{}", self.started);
        lab.worker_with(&name, Kind::Ours, &[])?;
        Ok(name)
    }

    /// Waits until one of the living leads; its name.
    fn leader(lab: &mut Lab) -> Result<String, String> {
        lab.until("a living leader", PATIENCE, |lab| {
            Ok(lab
                .table
                .leader()
                .is_some_and(|leader| lab.living().contains(&leader)))
        })?;
        lab.table.leader().ok_or_else(|| "nobody leads".to_owned())
    }

    fn victim(lab: &mut Lab, leads: bool) -> Result<String, String> {
        let leader = Self::leader(lab)?;
        if leads {
            return Ok(leader);
        }
        let others = lab.living();
        let other = others.into_iter().find(|name| *name != leader);
        other.ok_or_else(|| "there is no follower".to_owned())
    }
}

/// What may be asked for by name.
pub(crate) const STEPS: [&str; 7] = [
    "stop-follower",
    "stop-leader",
    "kill-follower",
    "kill-leader",
    "throttled",
    "cut",
    "freeze",
];

/// Measures; all steps where none is named.
pub(crate) fn run(
    programs: &Programs,
    report: &mut Report,
    rounds: usize,
    steps: &[String],
) -> Result<(), String> {
    let is_wanted = |step: &str| steps.is_empty() || steps.iter().any(|wanted| wanted == step);
    let mut lab = Lab::start(programs, report, SHARDS)?;
    let mut bench = Bench { started: 0 };
    bench.start(&mut lab)?;
    lab.warm_up()?;
    lab.produce();
    report.step(&mut lab, "join", |lab| {
        let mut figures = Vec::new();
        for _ in 0..2 {
            let since = now_ms();
            let name = bench.start(lab)?;
            lab.until_shared(2, PATIENCE)?;
            let seconds = ms(now_ms().saturating_sub(since));
            lab.until("the newcomer's first record", PATIENCE, |lab| {
                Ok(lab.has_read(&name))
            })?;
            figures.push(format!(
                "{}, the fleet was even after {seconds}",
                lab.first_record(&name)
            ));
        }
        lab.account_once()?;
        Ok(figures.join("; "))
    });
    let of_kind = |all: [(&'static str, bool); 2]| all.into_iter().filter(|(step, _)| is_wanted(step));
    for (step, leads) in of_kind([("stop-follower", false), ("stop-leader", true)]) {
        report.step(&mut lab, step, |lab| {
            let mut worst = Vec::new();
            for _ in 0..rounds {
                worst.push(gone(lab, &mut bench, Exit::Stopped, leads)?);
            }
            lab.account_once()?;
            Ok(figures(worst))
        });
    }
    for (step, leads) in of_kind([("kill-follower", false), ("kill-leader", true)]) {
        report.step(&mut lab, step, |lab| {
            let mut worst = Vec::new();
            for _ in 0..rounds {
                worst.push(gone(lab, &mut bench, Exit::Killed, leads)?);
            }
            lab.account()?;
            Ok(figures(worst))
        });
    }
    if is_wanted("throttled") {
        report.step(&mut lab, "throttled", throttled);
    }
    if is_wanted("cut") {
        report.step(&mut lab, "cut", cut);
    }
    if is_wanted("freeze") {
        report.step(&mut lab, "freeze", freeze);
    }
    Ok(())
}

fn throttled(lab: &mut Lab) -> Result<String, String> {
    lab.flow(SETTLE)?;
    let (before, repeats) = (lab.table.counts(), lab.account()?.repeats);
    for (seed, operation) in [(1, "UpdateItem"), (2, "PutItem"), (3, "DeleteItem")] {
        let rule = json!({
            "operation": operation,
            "share": THROTTLED,
            "seed": seed,
            "action": {"type": "throttle"},
        });
        control(lab, "POST", "faults", &rule)?;
    }
    lab.flow(Duration::from_secs(60))?;
    let faults = control(lab, "GET", "calls", &json!({}))?["faults"].clone();
    control(lab, "DELETE", "faults", &json!({}))?;
    let account = lab.account()?;
    if account.repeats > repeats {
        return Err(format!(
            "{} records came twice",
            account.repeats.saturating_sub(repeats)
        ));
    }
    if lab.table.counts() != before {
        return Err(format!(
            "leases moved: {before:?} before, {:?} after",
            lab.table.counts()
        ));
    }
    Ok(format!(
        "{faults} writes refused in 60 s; no lease moved, nothing came twice"
    ))
}

fn cut(lab: &mut Lab) -> Result<String, String> {
    let cut = now_ms();
    control(lab, "POST", "cut", &json!({"cut": true}))?;
    pause(Duration::from_secs(15));
    control(lab, "POST", "cut", &json!({"cut": false}))?;
    let back = now_ms();
    lab.note_outage(cut, back);
    lab.until("every shard is read again", PATIENCE, |lab| {
        Ok(first_after(lab, back).len() == SHARDS as usize)
    })?;
    let slowest = first_after(lab, back).into_values().max().unwrap_or(back);
    lab.until_shared(1, PATIENCE)?;
    let account = lab.account()?;
    Ok(format!(
        "DynamoDB was away for 15 s; every shard was read {} after its return; put {}, lost {}",
        ms(slowest - back),
        account.put,
        account.lost.len()
    ))
}

fn freeze(lab: &mut Lab) -> Result<String, String> {
    let name = Bench::victim(lab, false)?;
    let held: usize = lab.table.counts().get(&name).copied().unwrap_or(0);
    lab.worker(&name)?.signal("STOP")?;
    let stopped = now_ms();
    pause(FREEZE);
    lab.worker(&name)?.signal("CONT")?;
    let woken = now_ms();
    lab.until_shared(1, PATIENCE)?;
    let account = lab.account()?;
    let late = stale(lab, &name, stopped, woken);
    Ok(format!(
        "{held} shards of {name} stood still for {} at most; woken, it delivered {late} records that others had by then, and reads again; put {}, lost {}",
        ms(gaps(&lab.delivered(), &name, stopped)
            .into_values()
            .max()
            .unwrap_or(0)),
        account.put,
        account.lost.len()
    ))
}

/// Asks something of the embedded DynamoDB's controls.
fn control(lab: &Lab, method: &str, path: &str, body: &Value) -> Result<Value, String> {
    let path = format!("/_shardfleet/{path}");
    let address = &lab.around().clients.dynamodb;
    let (status, answer) = call(address, method, &path, &[], &body.to_string())?;
    if status != 200 {
        return Err(format!("{method} {path}: {status}: {answer}"));
    }
    serde_json::from_str(&answer).map_err(|e| format!("{method} {path}: {e}: {answer}"))
}

/// When each shard's first record after a time was delivered.
fn first_after(lab: &Lab, since: u64) -> BTreeMap<String, u64> {
    let mut first = BTreeMap::new();
    for delivery in lab.delivered().iter().filter(|delivery| delivery.ms > since) {
        first.entry(delivery.shard.clone()).or_insert(delivery.ms);
    }
    first
}

/// How a worker leaves.
#[derive(Clone, Copy)]
enum Exit {
    /// SIGTERM.
    Stopped,
    /// SIGKILL.
    Killed,
}

/// Ends a worker, waits until its shards are read, and replaces it; the longest standstill of a shard of its.
fn gone(lab: &mut Lab, bench: &mut Bench, exit: Exit, leads: bool) -> Result<u64, String> {
    let name = Bench::victim(lab, leads)?;
    let at = match exit {
        Exit::Stopped => lab.stop(&name)?,
        Exit::Killed => lab.kill(&name)?,
    };
    lab.until_shared(2, PATIENCE)?;
    lab.flow(Duration::from_secs(2))?;
    // A stop is planned, and what counts is how long nothing came; a kill is not, and what counts is the time since then.
    let worst = match exit {
        Exit::Stopped => gaps(&lab.delivered(), &name, at).into_values().max(),
        Exit::Killed => resumed(&lab.delivered(), &name, at).into_values().max(),
    };
    let newcomer = bench.start(lab)?;
    lab.until_shared(2, PATIENCE)?;
    lab.until("the newcomer's first record", PATIENCE, |lab| {
        Ok(lab.has_read(&newcomer))
    })?;
    // Its other shards, too.
    lab.flow(Duration::from_secs(2))?;
    worst.ok_or_else(|| format!("no shard of {name} changed hands"))
}

/// The standstills of all rounds, in words.
fn figures(mut worst: Vec<u64>) -> String {
    worst.sort_unstable();
    let all: Vec<String> = worst.iter().map(|&time| ms(time)).collect();
    format!(
        "the slowest shard was read again after {} at the median of {}, {} at most (failover time 10 s); all: {}",
        ms(worst[worst.len() / 2]),
        worst.len(),
        ms(worst[worst.len() - 1]),
        all.join(", ")
    )
}

/// Records that a worker delivered after it woke, and others before that.
fn stale(lab: &Lab, name: &str, stopped: u64, woken: u64) -> usize {
    let delivered = lab.delivered();
    let by_others: BTreeMap<_, u64> = delivered
        .iter()
        .filter(|d| d.worker != name && d.ms > stopped)
        .map(|d| ((d.shard.clone(), d.position.clone()), d.ms))
        .collect();
    delivered
        .iter()
        .filter(|d| d.worker == name && d.ms > woken)
        .filter(|d| {
            by_others
                .get(&(d.shard.clone(), d.position.clone()))
                .is_some_and(|ms| *ms < d.ms)
        })
        .count()
}

fn ms(ms: u64) -> String {
    format!("{}.{:03} s", ms / 1000, ms % 1000)
}
