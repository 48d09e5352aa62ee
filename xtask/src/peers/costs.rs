//! What each worker asks of DynamoDB, counted at a relay in front of it, ours beside Java's in the same run and with the default timings of both.

use std::collections::BTreeMap;
use std::time::Duration;

use super::lab::{Lab, Programs, Report};
use super::producer::{Pace, Producer};
use super::tap::Calls;
use super::time::{Stopwatch, pause, wait};
use super::worker::{Kind, Plan, Worker, calls_since};

/// How long calls are counted. Java's slowest rhythm is 30 s.
const WINDOW: Duration = Duration::from_secs(60);
/// A Java worker with default timings takes up to 100 s until it reads.
const START: Duration = Duration::from_secs(150);

/// Shards, and so leases, of each pair of workers.
const SIZES: [u32; 2] = [1, 100];

/// Counts.
pub(crate) fn run(programs: &Programs, report: &mut Report) -> Result<(), String> {
    let mut lab = Lab::start(programs, report, 1)?;
    let mut workers = BTreeMap::new();
    for size in SIZES {
        let stream = format!("stream-{size}");
        lab.clients.create_stream(&stream, size)?;
        for kind in [Kind::Java, Kind::Ours] {
            let name = format!("{}-{size}", if kind == Kind::Java { "java" } else { "ours" });
            let more: Vec<String> = match kind {
                // Only the sleep before the start is shortened by this.
                Kind::Java => ["--config", "shardSyncIntervalMillis=1000", "--quiet"]
                    .map(str::to_owned)
                    .to_vec(),
                Kind::Ours => Vec::new(),
            };
            let plan = Plan {
                name: &name,
                kind,
                application: &name,
                stream: &stream,
                more: &more,
            };
            workers.insert((size, kind == Kind::Java), Worker::start(lab.around(), &plan)?);
        }
    }
    report.step(&mut lab, "start", |lab| {
        let watch = Stopwatch::start();
        for (size, is_java) in workers.keys().copied().collect::<Vec<_>>() {
            let application = format!("{}-{size}", if is_java { "java" } else { "ours" });
            let look = || {
                if let Some(worker) = workers.get_mut(&(size, is_java)) {
                    worker.must_run()?;
                }
                let items = lab.clients.items(&application)?;
                let owned = items
                    .iter()
                    .filter(|item| item.get("leaseOwner").is_some())
                    .count();
                Ok((owned >= size as usize).then_some(()))
            };
            wait(&format!("{application} has its leases"), START, look, String::new)?;
        }
        // The Java workers own their leases before they read.
        let look = || {
            let ready = workers
                .iter()
                .all(|((_, is_java), worker)| !is_java || !worker.events("ready").is_empty());
            Ok(ready.then_some(()))
        };
        wait("the Java workers are ready", START, look, String::new)?;
        pause(Duration::from_secs(15));
        Ok(format!("{:.0} s", watch.seconds()))
    });
    for (step, is_loaded) in [("idle", false), ("loaded", true)] {
        let mut counted = BTreeMap::new();
        report.step(&mut lab, step, |lab| {
            let producers: Vec<Producer> = SIZES
                .iter()
                .filter(|_| is_loaded)
                .map(|size| {
                    let pace = Pace {
                        stream: format!("stream-{size}"),
                        parts: *size,
                        every: Duration::from_millis(500),
                        bytes: 200,
                    };
                    Producer::start(&lab.clients, &pace)
                })
                .collect();
            pause(Duration::from_secs(if is_loaded { 5 } else { 0 }));
            let before: BTreeMap<_, Calls> = workers
                .iter()
                .map(|(key, worker)| (*key, worker.calls()))
                .collect();
            let watch = Stopwatch::start();
            pause(WINDOW);
            let hours = watch.seconds() / 3600.0;
            drop(producers);
            for (key, worker) in &mut workers {
                worker.must_run()?;
                let calls = calls_since(&before[key], &worker.calls());
                counted.insert(*key, calls);
            }
            judge(&counted, hours, is_loaded)
        });
    }
    report.step(&mut lab, "java-log", |_| {
        let mut complaints = Vec::new();
        for worker in workers.values().filter(|worker| worker.kind == Kind::Java) {
            let log = worker.log();
            complaints.extend(super::logs::complaints(&log).into_iter().map(str::to_owned));
        }
        match complaints.first() {
            None => Ok(String::new()),
            Some(first) => Err(format!("{} complaints; first: {first}", complaints.len())),
        }
    });
    Ok(())
}

/// Prints what was counted, per hour; ours must stay within what is promised.
fn judge(counted: &BTreeMap<(u32, bool), Calls>, hours: f64, is_loaded: bool) -> Result<String, String> {
    let mut lines = Vec::new();
    let mut faults = Vec::new();
    for size in SIZES {
        let total = |is_java| per_hour(counted[&(size, is_java)].values().sum(), hours);
        let (java, ours) = (total(true), total(false));
        // At one lease the quicker discovery may cost half as much again; with many and under load, renewal and checkpoint are one write.
        let most = match size {
            1 => java * 1.5,
            _ if is_loaded => java / 2.0,
            // Both renew three times within the failover time; what we look more often is little beside that, and where the minute of counting begins and ends is chance.
            _ => java * 1.05,
        };
        lines.push(format!(
            "{size} leases: Java {java:.0}, ours {ours:.0} an hour (Java {}; ours {})",
            words(&counted[&(size, true)], hours),
            words(&counted[&(size, false)], hours)
        ));
        if ours > most {
            faults.push(format!(
                "{size} leases: ours {ours:.0} an hour is more than {most:.0}"
            ));
        }
    }
    let lines = lines.join("; ");
    if faults.is_empty() {
        Ok(lines)
    } else {
        Err(format!("{}; {lines}", faults.join("; ")))
    }
}

fn words(calls: &Calls, hours: f64) -> String {
    let words: Vec<String> = calls
        .iter()
        .map(|(operation, count)| format!("{operation} {:.0}", per_hour(*count, hours)))
        .collect();
    words.join(", ")
}

#[expect(clippy::cast_precision_loss, reason = "counts of a minute are small")]
fn per_hour(count: u64, hours: f64) -> f64 {
    count as f64 / hours
}
