//! Programs of others beside ours on the same services: `cargo xtask peers kcl` runs the Java KCL's workers and ours in one fleet, `cargo xtask peers kafka` our status
//! store against a real broker and Kafka Connect's own classes.
//!
//! Everything runs on 127.0.0.1, in processes that end with this one. Figures are printed; what must hold is judged by the records
//! that every process printed, by the lease table as it was seen from outside, and by the Java workers' logs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Subcommand;
use serde_json::Value;

use crate::tidy::root as workspace;

mod costs;
mod failover;
mod fleets;
mod http;
mod lab;
mod logs;
mod process;
mod producer;
mod records;
mod rows;
mod services;
mod table;
mod tap;
mod time;
mod worker;

use lab::{Programs, Report};

/// Which programs to run beside ours.
#[derive(Subcommand)]
pub(crate) enum Peers {
    /// The Java KCL 3.5.1 (needs a JDK 11 or later and Maven). Exits with 1 if a scenario failed.
    Kcl {
        /// Only these scenarios; may be given several times. Default: all.
        #[arg(long, value_name = "NAME")]
        scenario: Vec<String>,
        /// Print the scenarios' names and what they do.
        #[arg(long)]
        list: bool,
        /// Keep logs, events and tables of scenarios that passed, too; those of failed ones are always kept.
        #[arg(long)]
        keep: bool,
        /// This binary of ours, such as a release build, instead of one that is built now.
        #[arg(long, value_name = "FILE")]
        worker: Option<PathBuf>,
    },
    /// A real Kafka broker, Kafka Connect's own status store and a Connect worker (needs a JDK 17 or later and Maven). Exits with 1 if a scenario failed.
    Kafka {
        /// Only these scenarios; may be given several times. Default: all.
        #[arg(long, value_name = "NAME")]
        scenario: Vec<String>,
    },
}

/// A scenario: its name, what it does, and how.
pub(crate) struct Scenario {
    name: &'static str,
    about: &'static str,
    run: fn(&Programs, &mut Report) -> Result<(), String>,
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "java-alone",
        about: "the Java worker by itself on the embedded services: it starts, reads, follows a reshard, goes on after a restart",
        run: fleets::java_alone,
    },
    Scenario {
        name: "rows",
        about: "checkpoints within an aggregate, written by the one and read by the other",
        run: rows::run,
    },
    Scenario {
        name: "fleet",
        about: "a Java worker and two of ours share eight shards; then the Java worker is killed, and later one of ours",
        run: fleets::fleet,
    },
    Scenario {
        name: "java-leads",
        about: "Java leads and hands leases to ours gracefully; then the leader is killed",
        run: fleets::java_leads,
    },
    Scenario {
        name: "ours-lead",
        about: "ours leads, hands leases to Java gracefully and takes them back from it",
        run: fleets::ours_lead,
    },
    Scenario {
        name: "planned-stops",
        about: "planned stops of ours while Java lives, and of Java while ours live",
        run: fleets::planned_stops,
    },
    Scenario {
        name: "costs",
        about: "counts the requests to DynamoDB of each worker with 1 and with 100 leases, idle and under load",
        run: costs::run,
    },
];

/// Runs what is asked for; the last line of the result says how many passed.
pub(crate) fn run(peers: &Peers) -> Result<String, String> {
    let (scenario, list, keep, worker) = match peers {
        Peers::Kcl {
            scenario,
            list,
            keep,
            worker,
        } => (scenario, list, keep, worker),
        Peers::Kafka { scenario } => return kafka(scenario),
    };
    if *list {
        let lines: Vec<String> = SCENARIOS
            .iter()
            .map(|s| format!("{:<14} {}", s.name, s.about))
            .collect();
        return Ok(lines.join("\n"));
    }
    if let Some(unknown) = scenario
        .iter()
        .find(|name| SCENARIOS.iter().all(|s| s.name != name.as_str()))
    {
        let names: Vec<&str> = SCENARIOS.iter().map(|s| s.name).collect();
        return Err(format!(
            "there is no scenario {unknown}; there are {}",
            names.join(", ")
        ));
    }
    let programs = Programs {
        java: build_java()?,
        ..build_ours(worker.as_deref())?
    };
    let mut report = Report::new(*keep);
    for wanted in SCENARIOS {
        if scenario.is_empty() || scenario.iter().any(|name| name == wanted.name) {
            report.scenario(wanted.name, &programs, wanted.run);
        }
    }
    report.finish()
}

/// The scenarios are a program of the status store's crate, whose lines go straight to the terminal.
fn kafka(scenarios: &[String]) -> Result<String, String> {
    require(&[("java", "a JDK 17 or later"), ("mvn", "Maven")])?;
    let built = Command::new(workspace()?.join("peers/kafka/build.sh"))
        .stdout(Stdio::null())
        .status()
        .map_err(|e| format!("peers/kafka/build.sh: {e}"))?;
    if !built.success() {
        return Err("peers/kafka/build.sh failed; its message is above".to_owned());
    }
    let worker = build_ours(None)?.ours;
    let ran = Command::new(env!("CARGO"))
        .current_dir(workspace()?)
        .env("SHARDFLEET_BIN", worker)
        .args([
            "run",
            "--quiet",
            "--package",
            "shardfleet-status",
            "--example",
            "kafka_peers",
            "--",
        ])
        .args(scenarios)
        .status()
        .map_err(|e| format!("cargo run: {e}"))?;
    if ran.success() {
        Ok(String::new())
    } else {
        Err("some scenarios failed; their lines are above".to_owned())
    }
}

/// Measures how long shards of a fleet of ours stand still; no Java is needed.
pub(crate) fn bench_fleet(
    rounds: usize,
    steps: &[String],
    keep: bool,
    worker: Option<&Path>,
) -> Result<String, String> {
    if let Some(unknown) = steps
        .iter()
        .find(|step| !failover::STEPS.contains(&step.as_str()))
    {
        return Err(format!(
            "there is no step {unknown}; there are {}",
            failover::STEPS.join(", ")
        ));
    }
    let programs = build_ours(worker)?;
    let mut report = Report::new(keep);
    report.scenario("fleet", &programs, |programs, report| {
        failover::run(programs, report, rounds.max(1), steps)
    });
    report.finish()
}

/// Fails where a program is missing, and says what to install.
fn require(programs: &[(&str, &str)]) -> Result<(), String> {
    for (program, hint) in programs {
        let found = Command::new(program)
            .arg("-version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if found.is_err() {
            return Err(format!(
                "{program} is missing: install {hint} (Debian: apt-get install default-jdk-headless maven)"
            ));
        }
    }
    Ok(())
}

/// Builds the Java worker, once for all scenarios; the program that starts one.
fn build_java() -> Result<PathBuf, String> {
    let folder = workspace()?.join("peers/kcl");
    require(&[("java", "a JDK 11 or later"), ("mvn", "Maven")])?;
    let built = Command::new(folder.join("build.sh"))
        .stdout(Stdio::null())
        .status()
        .map_err(|e| format!("peers/kcl/build.sh: {e}"))?;
    if !built.success() {
        return Err("peers/kcl/build.sh failed; its message is above".to_owned());
    }
    Ok(folder.join("worker.sh"))
}

/// Builds the services, and our binary where none is given.
fn build_ours(worker: Option<&Path>) -> Result<Programs, String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(workspace()?)
        .args(["build", "--message-format=json"])
        .args(["--package", "shardfleet-local", "--example", "serve"]);
    if worker.is_none() {
        cargo.args(["--package", "shardfleet-cli", "--bin", "shardfleet"]);
    }
    let output = cargo
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cargo build: {e}"))?;
    if !output.status.success() {
        return Err("building the worker failed; cargo's message is above".to_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let built: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let binary = |name: &str| {
        built
            .iter()
            .filter(|message| message["target"]["name"] == name)
            .find_map(|message| message["executable"].as_str().map(PathBuf::from))
            .ok_or_else(|| format!("cargo did not say where {name} is"))
    };
    Ok(Programs {
        ours: worker.map_or_else(|| binary("shardfleet"), |path| Ok(path.to_owned()))?,
        serve: binary("serve")?,
        java: PathBuf::new(),
    })
}
