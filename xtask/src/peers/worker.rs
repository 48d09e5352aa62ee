//! Workers: the Java KCL's and our own, as processes whose lines are read as they come.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::process::Owned;
use super::records::{Delivery, Position};
use super::services::Clients;
use super::tap::{Calls, Tap};
use super::time::now_ms;

/// All deliveries of a lab, in the order in which their lines came.
pub(crate) type Deliveries = Arc<Mutex<Vec<Delivery>>>;

/// Whose program a worker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The Java KCL.
    Java,
    /// `shardfleet run`.
    Ours,
}

/// How to start a worker.
pub(crate) struct Plan<'a> {
    /// The worker's id.
    pub(crate) name: &'a str,
    /// Whose program.
    pub(crate) kind: Kind,
    /// The application, and so the lease table.
    pub(crate) application: &'a str,
    /// The stream.
    pub(crate) stream: &'a str,
    /// Java: more arguments. Ours: more lines for the config file.
    pub(crate) more: &'a [String],
}

/// What all workers of a lab share.
pub(crate) struct Surroundings {
    /// The services.
    pub(crate) clients: Clients,
    /// Where logs and config files go.
    pub(crate) folder: PathBuf,
    /// `peers/kcl/worker.sh`.
    pub(crate) java: PathBuf,
    /// Our binary.
    pub(crate) ours: PathBuf,
    /// Where records go.
    pub(crate) deliveries: Deliveries,
}

/// A worker. It is killed when dropped.
pub(crate) struct Worker {
    /// Its id.
    pub(crate) name: String,
    /// Whose program it runs.
    pub(crate) kind: Kind,
    /// When it was started.
    pub(crate) started_ms: u64,
    process: Owned,
    _stdin: Option<ChildStdin>,
    events: Arc<Mutex<Vec<Value>>>,
    tap: Tap,
    log: PathBuf,
}

impl Worker {
    /// Starts one.
    pub(crate) fn start(around: &Surroundings, plan: &Plan<'_>) -> Result<Self, String> {
        let tap = Tap::open(&around.clients.dynamodb)?;
        let kinesis = format!("http://{}", around.clients.kinesis);
        let log = around.folder.join(format!("{}.log", plan.name));
        let mut command = match plan.kind {
            Kind::Java => java(around, plan, &kinesis, &tap.url(), &log),
            Kind::Ours => ours(around, plan, &kinesis, &tap.url(), &log)?,
        };
        let started_ms = now_ms();
        let mut process = Owned::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let stdin = process.child().stdin.take();
        let stdout = process.child().stdout.take().ok_or("a worker has no output")?;
        let events: Arc<Mutex<Vec<Value>>> = Arc::default();
        let sink = Lines {
            worker: plan.name.to_owned(),
            kind: plan.kind,
            deliveries: Arc::clone(&around.deliveries),
            events: Arc::clone(&events),
        };
        let copy = around.folder.join(format!("{}.jsonl", plan.name));
        let copy = File::create(&copy).map_err(|e| format!("{}: {e}", copy.display()))?;
        std::thread::spawn(move || sink.read(BufReader::new(stdout), copy));
        Ok(Self {
            name: plan.name.to_owned(),
            kind: plan.kind,
            started_ms,
            process,
            _stdin: stdin,
            events,
            tap,
            log,
        })
    }

    /// SIGKILL. Returns the time.
    pub(crate) fn kill(&mut self) -> u64 {
        let at = now_ms();
        self.process.kill();
        at
    }

    /// SIGTERM. Returns the time.
    pub(crate) fn term(&mut self) -> Result<u64, String> {
        let at = now_ms();
        self.process.signal("TERM")?;
        Ok(at)
    }

    /// Sends a signal, such as `STOP`.
    pub(crate) fn signal(&mut self, name: &str) -> Result<(), String> {
        self.process.signal(name)
    }

    /// Waits until it has ended.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        let what = format!("{} ends", self.name);
        self.process.wait(&what, limit)
    }

    /// An error where it has ended by itself.
    pub(crate) fn must_run(&mut self) -> Result<(), String> {
        match self.process.ended()? {
            None => Ok(()),
            Some(status) => Err(format!(
                "{} ended by itself: {status}; {}",
                self.name,
                self.tail()
            )),
        }
    }

    /// Java's events of one kind, records left out.
    pub(crate) fn events(&self, name: &str) -> Vec<Value> {
        let events = lock(&self.events);
        events.iter().filter(|e| e["ev"] == name).cloned().collect()
    }

    /// What it asked of DynamoDB so far.
    pub(crate) fn calls(&self) -> Calls {
        self.tap.calls()
    }

    /// Where its log is.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of its log.
    pub(crate) fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(3)..].join(" | ")
    }
}

/// Timings under which a Java worker starts in seconds.
pub(crate) const QUICK_JAVA: &[(&str, &str)] = &[
    ("failoverTimeMillis", "3000"),
    ("leaseAssignmentIntervalMillis", "2000"),
    // The first shard sync sleeps so long before the worker starts.
    ("shardSyncIntervalMillis", "1000"),
    ("parentShardPollIntervalMillis", "1000"),
    ("idleTimeBetweenReadsInMillis", "250"),
    ("varianceBalancingFrequency", "1"),
    ("workerMetricsReporterFreqInMillis", "5000"),
    ("dynamoDbLockBasedLeaderLeaseDurationInMillis", "6000"),
    ("dynamoDbLockBasedLeaderHeartbeatPeriodInMillis", "2000"),
];

/// The same for ours.
pub(crate) const QUICK_OURS: &str = "\
[leases]
failover_time = \"3s\"
shard_sync_interval = \"5s\"
[reading]
poll_interval = \"250ms\"
";

fn java(around: &Surroundings, plan: &Plan<'_>, kinesis: &str, dynamodb: &str, log: &Path) -> Command {
    let mut command = Command::new(&around.java);
    command
        .args(["--kinesis", kinesis, "--dynamodb", dynamodb])
        .args(["--app", plan.application, "--stream", plan.stream])
        .args(["--worker", plan.name, "--until-eof"])
        // Should nothing else end it.
        .args(["--max-run-ms", "1800000"])
        .args(plan.more)
        .env("LOG_FILE", log)
        .env(
            "LOG_LEVEL",
            std::env::var("LOG_LEVEL").unwrap_or_else(|_| "warn".to_owned()),
        )
        .env("JAVA_OPTS", "-Xmx256m -XX:TieredStopAtLevel=1");
    if let Ok(errors) = File::create(log.with_extension("err")) {
        command.stderr(errors);
    }
    command
}

fn ours(
    around: &Surroundings,
    plan: &Plan<'_>,
    kinesis: &str,
    dynamodb: &str,
    log: &Path,
) -> Result<Command, String> {
    let config = around.folder.join(format!("{}.toml", plan.name));
    let text = format!(
        "version = 1\nstream = \"{}\"\napplication = \"{}\"\nworker_id = \"{}\"\nshutdown_deadline = \"20s\"\n{}\n",
        plan.stream,
        plan.application,
        plan.name,
        plan.more.join("\n")
    );
    fs::write(&config, text).map_err(|e| format!("{}: {e}", config.display()))?;
    let errors = File::create(log).map_err(|e| format!("{}: {e}", log.display()))?;
    let mut command = Command::new(&around.ours);
    command
        .arg("run")
        .arg("--config")
        .arg(config)
        .stderr(errors)
        .env("AWS_ENDPOINT_URL_KINESIS", kinesis)
        .env("AWS_ENDPOINT_URL_DYNAMODB", dynamodb)
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "local")
        .env("AWS_SECRET_ACCESS_KEY", "local")
        .env("AWS_EC2_METADATA_DISABLED", "true");
    Ok(command)
}

/// Reads the lines of one worker.
struct Lines {
    worker: String,
    kind: Kind,
    deliveries: Deliveries,
    events: Arc<Mutex<Vec<Value>>>,
}

impl Lines {
    fn read(&self, lines: impl BufRead, mut copy: File) {
        use std::io::Write;
        for line in lines.lines() {
            // A worker that is killed may leave half a line.
            let Ok(line) = line else { return };
            writeln!(copy, "{line}").ok();
            let Ok(value) = serde_json::from_str::<Value>(&line) else {
                continue;
            };
            match self.delivery(&value) {
                Some(delivery) => lock(&self.deliveries).push(delivery),
                None => lock(&self.events).push(value),
            }
        }
    }

    fn delivery(&self, value: &Value) -> Option<Delivery> {
        let (ms, shard, sequence, sub) = match self.kind {
            Kind::Java if value["ev"] == "record" => (
                value["ms"].as_u64()?,
                &value["shard"],
                &value["seq"],
                &value["sub"],
            ),
            Kind::Java => return None,
            Kind::Ours => (
                now_ms(),
                &value["shard_id"],
                &value["sequence_number"],
                &value["sub_sequence_number"],
            ),
        };
        Some(Delivery {
            ms,
            worker: self.worker.clone(),
            shard: shard.as_str()?.to_owned(),
            position: Position::new(sequence.as_str()?, sub.as_u64().unwrap_or(0))?,
        })
    }
}

/// The quick timings as arguments.
pub(crate) fn java_settings(settings: &[(&str, &str)]) -> Vec<String> {
    let mut arguments = Vec::new();
    for (name, value) in settings {
        arguments.push("--config".to_owned());
        arguments.push(format!("{name}={value}"));
    }
    arguments
}

/// Calls made since `before`.
pub(crate) fn calls_since(before: &Calls, now: &Calls) -> Calls {
    let mut since = BTreeMap::new();
    for (operation, count) in now {
        let more = count - before.get(operation).copied().unwrap_or(0);
        if more > 0 {
            since.insert(operation.clone(), more);
        }
    }
    since
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
