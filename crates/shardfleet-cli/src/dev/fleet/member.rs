//! One worker process: started, listened to, killed or stopped.
//!
//! A task attends to each process and is the only one that touches it, so a signal never goes to a process that was reaped before.

use std::path::Path;
use std::process::{ExitStatus, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use shardfleet::{ExtendedSequenceNumber, ShardId, WorkerId};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::usage::Usage;
use crate::dev::accounting::{LogEntry, fingerprint};
use crate::exit::Failure;

/// A record of 1 MiB, each byte of it written as `\u0000`, and what surrounds it.
const LINE_BYTES_MAX: u64 = 8 << 20;

/// How a process is started.
pub(super) struct Start<'a> {
    pub(super) worker_id: WorkerId,
    /// Its config file.
    pub(super) config: &'a Path,
    pub(super) kinesis: &'a str,
    pub(super) dynamodb: &'a str,
    /// Which member it is.
    pub(super) index: usize,
    pub(super) now: u64,
}

/// A worker process as its parent knows it. Times are the machine's, in microseconds.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) worker_id: WorkerId,
    pub(super) pid: u32,
    pub(super) state: State,
    pub(super) started_at: u64,
    /// Whether it joined while records flowed.
    pub(super) has_joined: bool,
    /// Lines it printed.
    pub(super) delivered: u64,
    /// When it printed the first of them.
    pub(super) first_delivery: Option<u64>,
    /// Lines a second, lately.
    pub(super) rate: f64,
    pub(super) usage: Usage,
    /// What it said last, in case it fails.
    pub(super) last_words: Option<String>,
    orders: mpsc::Sender<Order>,
}

/// What a member is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Starting,
    Running,
    /// SIGKILL was sent at this time.
    Killing(u64),
    /// Dead since SIGKILL at this time.
    Killed(u64),
    /// SIGTERM was sent at this time.
    Stopping(u64),
    /// Ended in order after SIGTERM at this time.
    Stopped(u64),
    /// Ended by itself, or not in order.
    Failed,
}

impl State {
    /// Whether the process is there.
    pub(super) fn is_alive(self) -> bool {
        matches!(
            self,
            Self::Starting | Self::Running | Self::Killing(_) | Self::Stopping(_)
        )
    }

    /// A word for it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Killing(_) | Self::Killed(_) => "killed",
            Self::Stopping(_) => "stopping",
            Self::Stopped(_) => "stopped",
            Self::Failed => "failed",
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Order {
    Kill,
    Terminate,
}

/// What comes from a process.
#[derive(Debug)]
pub(super) struct FromMember {
    /// Which one.
    pub(super) index: usize,
    pub(super) event: Event,
}

#[derive(Debug)]
pub(super) enum Event {
    Delivered(Delivered),
    /// A line on standard output that is no record.
    Unreadable,
    /// A line on standard error.
    Said(String),
    /// It is gone, and everything it printed has come.
    Ended(std::io::Result<ExitStatus>),
}

/// A record as a worker printed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Delivered {
    /// By which member.
    pub(super) by: usize,
    /// When, by the machine's clock, in microseconds.
    pub(super) at: u64,
    pub(super) entry: LogEntry,
}

impl Member {
    /// Starts a worker. What comes from it goes to `events`.
    pub(super) fn start(start: Start<'_>, events: mpsc::Sender<FromMember>) -> Result<Self, Failure> {
        let failure = |what: &str, e: &dyn std::fmt::Display| {
            Failure::run(format!("starting {}: {what}: {e}", start.worker_id))
        };
        let program = std::env::current_exe().map_err(|e| failure("the path of this program", &e))?;
        let mut command = Command::new(&program);
        command
            .args(["run", "--fleet-member", "--config"])
            .arg(start.config)
            .env_clear()
            .envs(inherited_environment())
            .env("AWS_ENDPOINT_URL_KINESIS", start.kinesis)
            .env("AWS_ENDPOINT_URL_DYNAMODB", start.dynamodb)
            .env("AWS_REGION", shardfleet_local::REGION)
            .env("AWS_ACCESS_KEY_ID", shardfleet_local::ACCESS_KEY_ID)
            .env("AWS_SECRET_ACCESS_KEY", shardfleet_local::SECRET_ACCESS_KEY)
            // What a user keeps for real accounts must not reach a worker that reads a toy.
            .env("AWS_CONFIG_FILE", "/dev/null")
            .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            // Ctrl-C is for the parent, which ends the others.
            .process_group(0)
            .kill_on_drop(true)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command
            .spawn()
            .map_err(|e| failure(&program.display().to_string(), &e))?;
        let pid = child.id().unwrap_or_default();
        let (orders, orders_from) = mpsc::channel(4);
        tokio::spawn(attend(child, orders_from, start.index, events));
        Ok(Self {
            worker_id: start.worker_id,
            pid,
            state: State::Starting,
            started_at: start.now,
            has_joined: false,
            delivered: 0,
            first_delivery: None,
            rate: 0.0,
            usage: Usage::default(),
            last_words: None,
            orders,
        })
    }

    /// SIGKILL.
    pub(super) fn kill(&mut self, now: u64) {
        self.state = State::Killing(now);
        self.order(Order::Kill);
    }

    /// SIGTERM.
    pub(super) fn terminate(&mut self, now: u64) {
        self.state = State::Stopping(now);
        self.order(Order::Terminate);
    }

    /// A worker that is gone takes no orders any more.
    fn order(&self, order: Order) {
        self.orders.try_send(order).ok();
    }

    /// Notes how the process ended; says so if it should not have.
    pub(super) fn end(&mut self, status: &std::io::Result<ExitStatus>) -> Option<String> {
        self.usage.end();
        self.rate = 0.0;
        self.state = match (self.state, status) {
            (State::Killing(at), _) => State::Killed(at),
            (State::Stopping(at), Ok(status)) if status.success() => State::Stopped(at),
            _ => State::Failed,
        };
        let how = match status {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        (self.state == State::Failed).then(|| {
            let words = self.last_words.as_deref().unwrap_or("it said nothing");
            format!("{} ended by itself ({how}): {words}", self.worker_id)
        })
    }
}

/// Of this process's environment, what concerns how a program runs, and nothing that concerns AWS.
fn inherited_environment() -> impl Iterator<Item = (&'static str, std::ffi::OsString)> {
    let names = [
        "PATH",
        "LD_LIBRARY_PATH",
        "TMPDIR",
        "RUST_BACKTRACE",
        "SHARDFLEET_LOG",
    ];
    names
        .into_iter()
        .filter_map(|name| std::env::var_os(name).map(|value| (name, value)))
}

async fn attend(
    mut child: Child,
    mut orders: mpsc::Receiver<Order>,
    index: usize,
    events: mpsc::Sender<FromMember>,
) {
    // Held to the end: a worker ends when its standard input closes, however this process ends. Waiting for a child would close it.
    let stdin = child.stdin.take();
    let out = child
        .stdout
        .take()
        .map(|out| tokio::spawn(read_records(out, index, events.clone())));
    let err = child
        .stderr
        .take()
        .map(|err| tokio::spawn(read_words(err, index, events.clone())));
    let status = loop {
        tokio::select! {
            biased;
            Some(order) = orders.recv() => match order {
                Order::Kill => drop(child.start_kill()),
                Order::Terminate => terminate(&child),
            },
            status = child.wait() => break status,
        }
    };
    for reader in [out, err].into_iter().flatten() {
        reader.await.ok();
    }
    drop(stdin);
    let event = Event::Ended(status);
    events.send(FromMember { index, event }).await.ok();
}

fn terminate(child: &Child) {
    // There is an id as long as the process was not reaped.
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    if let Some(pid) = id.and_then(rustix::process::Pid::from_raw) {
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).ok();
    }
}

async fn read_records(from: impl AsyncRead + Unpin, index: usize, events: mpsc::Sender<FromMember>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut from)
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)
            .await
        {
            // A line without an end was cut off by a kill: it was not delivered.
            Ok(0) | Err(_) => return,
            Ok(bytes) if !line.ends_with(b"\n") && (bytes as u64) < LINE_BYTES_MAX => return,
            Ok(_) => {}
        }
        let event = record_of(&line, index).map_or(Event::Unreadable, Event::Delivered);
        if events.send(FromMember { index, event }).await.is_err() {
            return;
        }
    }
}

async fn read_words(from: impl AsyncRead + Unpin, index: usize, events: mpsc::Sender<FromMember>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut from).take(1 << 16).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let event = Event::Said(String::from_utf8_lossy(line.trim_ascii_end()).into_owned());
        if events.send(FromMember { index, event }).await.is_err() {
            return;
        }
    }
}

/// What the standard-output handler prints.
#[derive(Deserialize)]
struct Line {
    shard_id: String,
    sequence_number: String,
    sub_sequence_number: u64,
    data: Option<String>,
    data_base64: Option<String>,
    delivered_at_micros: u64,
}

fn record_of(line: &[u8], by: usize) -> Option<Delivered> {
    let line: Line = serde_json::from_slice(line).ok()?;
    let data = match (line.data, line.data_base64) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(text)) => STANDARD.decode(text).ok()?,
        _ => return None,
    };
    let position = ExtendedSequenceNumber::parse(&line.sequence_number, line.sub_sequence_number).ok()?;
    position.sequence_number()?;
    Some(Delivered {
        by,
        at: line.delivered_at_micros,
        entry: LogEntry {
            shard_id: ShardId::new(line.shard_id),
            position,
            fingerprint: fingerprint(&data),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_text_or_base64_and_anything_else_refused() {
        let line = |data: &str| {
            format!(
                "{{\"shard_id\":\"s\",\"sequence_number\":\"49\",\"sub_sequence_number\":0,\"partition_key\":\"k\",{data}\"delivered_at_micros\":7}}\n"
            )
        };
        let text = record_of(line("\"data\":\"hi\",").as_bytes(), 2).expect("text");
        let coded = record_of(line("\"data_base64\":\"aGk=\",").as_bytes(), 2).expect("base64");
        assert_eq!(text, coded);
        assert_eq!(
            (text.by, text.at, text.entry.fingerprint),
            (2, 7, fingerprint(b"hi"))
        );
        for bad in [
            line(""),
            line("\"data_base64\":\"*\","),
            line("\"data\":5,"),
            "{".into(),
        ] {
            assert_eq!(record_of(bad.as_bytes(), 0), None, "{bad}");
        }
        let sentinel = line("\"data\":\"hi\",").replace("\"49\"", "\"SHARD_END\"");
        assert_eq!(record_of(sentinel.as_bytes(), 0), None);
    }
}
