//! Scenarios in which Java and our workers share a stream.

use std::time::Duration;

use super::lab::{Lab, Programs, Report};
use super::time::now_ms;

/// How long a fleet may take until every worker has its leases.
const SHARING: Duration = Duration::from_secs(90);
/// How long records flow before shares are judged.
const FLOW: Duration = Duration::from_secs(15);
/// The least part of the records that each process has to deliver, in percent.
const SHARE_MIN: f64 = 10.0;

/// The Java worker by itself.
pub(crate) fn java_alone(programs: &Programs, report: &mut Report) -> Result<(), String> {
    let mut lab = Lab::start(programs, report, 4)?;
    lab.java("java-1", &[])?;
    let is_reading = report.step(&mut lab, "start", |lab| {
        let seconds = lab.warm_up()?;
        Ok(format!(
            "every shard has a checkpoint {seconds:.1} s after the start"
        ))
    });
    if !is_reading {
        return Ok(());
    }
    lab.produce();
    report.step(&mut lab, "read", |lab| {
        lab.flow(Duration::from_secs(5))?;
        Ok(lab.account_once()?.figures())
    });
    report.step(&mut lab, "reshard", reshard);
    report.step(&mut lab, "restart", |lab| {
        let at = lab.stop("java-1")?;
        lab.java("java-2", &[])?;
        lab.until_shared(4, SHARING)?;
        let account = lab.account_once()?;
        Ok(format!("{}; {}", lab.gaps("java-1", at), account.figures()))
    });
    report.step(&mut lab, "log", |lab| lab.java_logs());
    Ok(())
}

/// One Java worker and two of ours; both kinds are killed.
pub(crate) fn fleet(programs: &Programs, report: &mut Report) -> Result<(), String> {
    let mut lab = three(programs, report)?;
    report.step(&mut lab, "share", share);
    report.step(&mut lab, "reshard", reshard);
    for (step, name) in [("java-killed", "java-1"), ("ours-killed", "ours-1")] {
        report.step(&mut lab, step, |lab| {
            let at = lab.kill(name)?;
            lab.until_shared(1, SHARING)?;
            let account = lab.account()?;
            Ok(format!("{}; {}", lab.gaps(name, at), account.figures()))
        });
    }
    report.step(&mut lab, "java-log", |lab| lab.java_logs());
    Ok(())
}

/// Java leads.
pub(crate) fn java_leads(programs: &Programs, report: &mut Report) -> Result<(), String> {
    let mut lab = Lab::start(programs, report, 8)?;
    lab.java("java-1", &[])?;
    lab.warm_up()?;
    lab.produce();
    report.step(&mut lab, "hands-over", |lab| {
        let since = now_ms();
        lab.ours("ours-1", "")?;
        lab.ours("ours-2", "")?;
        lab.until_shared(1, SHARING)?;
        led_by(lab, "java-1")?;
        lab.flow(FLOW)?;
        let account = lab.account_once()?;
        let handoffs = handoffs(lab, since, "java-1", "ours")?;
        let first = lab.first_record("ours-2");
        Ok(format!("{first}; {handoffs}; {}", account.figures()))
    });
    report.step(&mut lab, "leader-killed", |lab| {
        let at = lab.kill("java-1")?;
        lab.until_shared(1, SHARING)?;
        let account = lab.account()?;
        Ok(format!("{}; {}", lab.gaps("java-1", at), account.figures()))
    });
    report.step(&mut lab, "java-log", |lab| lab.java_logs());
    Ok(())
}

/// One of ours leads.
pub(crate) fn ours_lead(programs: &Programs, report: &mut Report) -> Result<(), String> {
    let mut lab = Lab::start(programs, report, 8)?;
    lab.ours("ours-1", "")?;
    lab.warm_up()?;
    lab.produce();
    report.step(&mut lab, "hands-over", |lab| {
        let since = now_ms();
        lab.java("java-1", &[])?;
        lab.until_shared(2, SHARING)?;
        led_by(lab, "ours-1")?;
        lab.flow(FLOW)?;
        let account = lab.account_once()?;
        let handoffs = handoffs(lab, since, "ours-1", "java")?;
        let first = lab.first_record("java-1");
        Ok(format!("{first}; {handoffs}; {}", account.figures()))
    });
    report.step(&mut lab, "takes-back", |lab| {
        let since = now_ms();
        lab.ours("ours-2", "")?;
        lab.until_shared(2, SHARING)?;
        lab.flow(FLOW)?;
        let account = lab.account_once()?;
        let handoffs = handoffs(lab, since, "java-1", "ours")?;
        let first = lab.first_record("ours-2");
        Ok(format!("{first}; {handoffs}; {}", account.figures()))
    });
    report.step(&mut lab, "java-log", |lab| lab.java_logs());
    Ok(())
}

/// Planned stops.
pub(crate) fn planned_stops(programs: &Programs, report: &mut Report) -> Result<(), String> {
    let mut lab = three(programs, report)?;
    // The first one leads, the second does not.
    for (step, name) in [("ours-follower", "ours-2"), ("ours-leader", "ours-1")] {
        report.step(&mut lab, step, |lab| stopped(lab, name));
    }
    report.step(&mut lab, "ours-joins", |lab| {
        lab.ours("ours-3", "")?;
        lab.until_shared(1, SHARING)?;
        let account = lab.account_once()?;
        Ok(format!("{}; {}", lab.first_record("ours-3"), account.figures()))
    });
    report.step(&mut lab, "java", |lab| stopped(lab, "java-1"));
    report.step(&mut lab, "java-log", |lab| lab.java_logs());
    Ok(())
}

/// One of ours, then a Java worker and another of ours, on eight shards, with records flowing.
fn three(programs: &Programs, report: &Report) -> Result<Lab, String> {
    let mut lab = Lab::start(programs, report, 8)?;
    lab.ours("ours-1", "")?;
    lab.warm_up()?;
    lab.produce();
    lab.java("java-1", &[])?;
    lab.ours("ours-2", "")?;
    lab.until_shared(1, SHARING)?;
    Ok(lab)
}

fn share(lab: &mut Lab) -> Result<String, String> {
    lab.until_shared(1, SHARING)?;
    let before = lab.puts()?.len();
    lab.flow(FLOW)?;
    let account = lab.account()?;
    let recent = lab.account_from(before)?;
    for name in lab.living() {
        let share = recent.share(&name);
        if share < SHARE_MIN {
            let figures = recent.figures();
            return Err(format!(
                "{name} delivered {share:.1} % of the records only; {figures}"
            ));
        }
    }
    let counts: Vec<String> = lab
        .table
        .counts()
        .into_iter()
        .map(|(name, count)| format!("{name} has {count} leases"))
        .collect();
    Ok(format!(
        "{}; {}; in all: {}",
        recent.figures(),
        counts.join(", "),
        account.figures()
    ))
}

/// Splits a shard and merges two others while records flow.
fn reshard(lab: &mut Lab) -> Result<String, String> {
    let before = lab.table.rows().len();
    lab.clients.split("orders", "shardId-000000000000")?;
    lab.clients
        .merge("orders", "shardId-000000000002", "shardId-000000000003")?;
    let since = now_ms();
    lab.until("the children have leases and are read", SHARING, |lab| {
        let children: Vec<String> = lab
            .table
            .rows()
            .into_keys()
            .filter(|shard| is_child(shard, before))
            .collect();
        let delivered = lab.delivered();
        let is_read = |shard: &String| delivered.iter().any(|d| d.shard == *shard);
        Ok(children.len() >= 3 && children.iter().all(is_read))
    })?;
    let seconds = now_ms().saturating_sub(since) / 1000;
    lab.flow(Duration::from_secs(3))?;
    let account = lab.account()?;
    Ok(format!(
        "three children read after {seconds} s; {}",
        account.figures()
    ))
}

/// Shards are numbered in the order in which they came.
fn is_child(shard: &str, before: usize) -> bool {
    let number = shard
        .rsplit('-')
        .next()
        .and_then(|digits| digits.parse::<usize>().ok());
    number.is_some_and(|number| number >= before)
}

/// Stops a worker in order; the others must have its shards, and nothing may come twice.
fn stopped(lab: &mut Lab, name: &str) -> Result<String, String> {
    let at = lab.stop(name)?;
    let seconds = now_ms().saturating_sub(at) / 1000;
    lab.until_shared(1, SHARING)?;
    let account = lab.account_once()?;
    Ok(format!(
        "ended after {seconds} s; {}; {}",
        lab.gaps(name, at),
        account.figures()
    ))
}

fn led_by(lab: &Lab, name: &str) -> Result<(), String> {
    match lab.table.leader() {
        Some(leader) if leader == name => Ok(()),
        leader => Err(format!("{name} should lead, not {leader:?}")),
    }
}

/// Leases must have moved from the one to the other, both alive.
fn handoffs(lab: &Lab, since_ms: u64, from: &str, to: &str) -> Result<String, String> {
    let all = lab.table.moves(since_ms);
    let fitting: Vec<_> = all
        .iter()
        .filter(|m| m.from.starts_with(from) && m.to.starts_with(to))
        .collect();
    if fitting.is_empty() {
        return Err(format!(
            "no lease went from {from} to {to}; seen: {all:?}; {}",
            lab.table.describe()
        ));
    }
    let seen = fitting.iter().filter(|m| m.is_handoff_seen).count();
    Ok(format!(
        "{} leases handed from {from} to {to} ({seen} seen under way), {} moves in all",
        fitting.len(),
        all.len()
    ))
}
