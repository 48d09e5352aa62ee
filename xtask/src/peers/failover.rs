//! How long shards stand still while workers of ours join, stop, die and freeze, with the timings that they have by default.

use std::collections::BTreeMap;
use std::time::Duration;

use super::lab::{Lab, Programs, Report};
use super::records::gaps;
use super::time::{now_ms, pause};
use super::worker::Kind;

/// How long a fleet may take to settle. What it takes is printed.
const PATIENCE: Duration = Duration::from_secs(120);
/// Longer than a lease lives.
const FREEZE: Duration = Duration::from_secs(20);

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

/// Measures.
pub(crate) fn run(programs: &Programs, report: &mut Report, rounds: usize) -> Result<(), String> {
    let mut lab = Lab::start(programs, report, 8)?;
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
            figures.push(format!(
                "{}, the fleet was even after {seconds}",
                lab.first_record(&name)
            ));
        }
        lab.account_once()?;
        Ok(figures.join("; "))
    });
    for (step, leads) in [("stop-follower", false), ("stop-leader", true)] {
        report.step(&mut lab, step, |lab| {
            let name = Bench::victim(lab, leads)?;
            let at = lab.stop(&name)?;
            lab.until_shared(2, PATIENCE)?;
            lab.flow(Duration::from_secs(2))?;
            lab.account_once()?;
            let figures = lab.gaps(&name, at);
            bench.start(lab)?;
            lab.until_shared(2, PATIENCE)?;
            Ok(figures)
        });
    }
    for (step, leads) in [("kill-follower", false), ("kill-leader", true)] {
        report.step(&mut lab, step, |lab| {
            let mut worst = Vec::new();
            for _ in 0..rounds {
                worst.push(killed(lab, &mut bench, leads)?);
            }
            lab.account()?;
            worst.sort_unstable();
            let (median, most) = (worst[worst.len() / 2], worst[worst.len() - 1]);
            Ok(format!(
                "the slowest shard was read again after {} at the median of {rounds}, {} at most (failover time 10 s)",
                ms(median),
                ms(most)
            ))
        });
    }
    report.step(&mut lab, "freeze", |lab| {
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
            "{held} shards of {name} stood still for {} at most; woken, it delivered {late} records that others had by then, and reads again; {}",
            ms(gaps(&lab.delivered(), &name, stopped).into_values().max().unwrap_or(0)),
            account.figures()
        ))
    });
    Ok(())
}

/// Kills a worker, waits until its shards are read, and replaces it; the longest standstill of a shard of its.
fn killed(lab: &mut Lab, bench: &mut Bench, leads: bool) -> Result<u64, String> {
    let name = Bench::victim(lab, leads)?;
    let at = lab.kill(&name)?;
    lab.until_shared(3, PATIENCE)?;
    lab.flow(Duration::from_secs(2))?;
    let worst = gaps(&lab.delivered(), &name, at).into_values().max();
    bench.start(lab)?;
    lab.until_shared(2, PATIENCE)?;
    worst.ok_or_else(|| format!("no shard of {name} changed hands"))
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
