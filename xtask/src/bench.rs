//! Benchmarks: client and server as separate processes, optimised, figures from the operating system's own counters.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use clap::Subcommand;

/// What can be measured.
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Read records of 1 kB from the embedded server: peak memory, processor time per million records, records a second.
    Read {
        /// How many records.
        #[arg(long, default_value_t = 1_000_000)]
        records: u64,
        /// Over how many shards, one run each.
        #[arg(long, value_delimiter = ',', default_values_t = [4_u32, 100])]
        shards: Vec<u32>,
        /// Bytes of payload of each record.
        #[arg(long, default_value_t = 1000)]
        bytes: u64,
    },
    /// Plan who reads what among 100,000 leases and 1,000 workers.
    Plan,
    /// How long shards stand still when workers join, stop, die and freeze: processes of ours with their default timings, on embedded services.
    Fleet {
        /// How many times a worker, and how many times a leader, is killed. Each round takes about half a minute.
        #[arg(long, default_value_t = 10)]
        rounds: usize,
        /// Only these steps after the join: stop-follower, stop-leader, kill-follower, kill-leader, throttled, cut, freeze.
        #[arg(long, value_name = "STEP")]
        step: Vec<String>,
        /// Keep logs, events and the table's history.
        #[arg(long)]
        keep: bool,
        /// This binary of ours, such as a release build, instead of one that is built now.
        #[arg(long, value_name = "FILE")]
        worker: Option<PathBuf>,
    },
}

/// A process that is killed when its owner is done with it.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Runs a benchmark and returns what to print.
pub(crate) fn run(bench: &Bench) -> Result<String, String> {
    let (records, shards, bytes) = match bench {
        Bench::Read {
            records,
            shards,
            bytes,
        } => (records, shards, bytes),
        Bench::Plan => return plan(),
        Bench::Fleet {
            rounds,
            step,
            keep,
            worker,
        } => return crate::peers::bench_fleet(*rounds, step, *keep, worker.as_deref()),
    };
    let client = build("shardfleet", "read_bench")?;
    let server = build("shardfleet-local", "serve")?;
    let mut table = String::from(
        "shards   records    payload MB   records/s   CPU s per million   server CPU s per million   peak MB   first record s\n",
    );
    for count in shards {
        table += &read(&client, &server, *count, *records, *bytes)?;
    }
    table += "records of one run each, client and server on the same machine; CPU and memory as the operating system counts them";
    Ok(table)
}

fn plan() -> Result<String, String> {
    let output = Command::new(build("shardfleet", "plan_bench")?)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("starting plan_bench: {e}"))?;
    if !output.status.success() {
        return Err(format!("plan_bench ended with {}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Builds an example with optimisations; the path of its binary.
fn build(package: &str, example: &str) -> Result<PathBuf, String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "build",
        "--release",
        "--package",
        package,
        "--example",
        example,
        "--message-format=json",
    ]);
    let output = cargo
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cargo build: {e}"))?;
    if !output.status.success() {
        return Err(format!("building {example} failed"));
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    let built = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let binary = built
        .filter(|message| message["target"]["name"] == example)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from));
    binary.ok_or_else(|| format!("cargo did not say where {example} is"))
}

fn read(client: &PathBuf, server: &PathBuf, shards: u32, records: u64, bytes: u64) -> Result<String, String> {
    let mut server = Command::new(server)
        .args(["--kinesis-port", "0"])
        .stdout(Stdio::piped())
        .spawn()
        .map(Server)
        .map_err(|e| format!("starting the server: {e}"))?;
    let stdout = server.0.stdout.take().ok_or("the server has no output")?;
    let mut endpoint = String::new();
    BufReader::new(stdout)
        .read_line(&mut endpoint)
        .map_err(|e| format!("reading the endpoint: {e}"))?;
    let endpoint = endpoint.trim();
    let numbers = [shards.to_string(), records.to_string(), bytes.to_string()];
    let filled = Command::new(client)
        .args(["fill", endpoint])
        .args(&numbers)
        .status();
    if !filled.is_ok_and(|status| status.success()) {
        return Err("filling the stream failed".to_owned());
    }
    let before = cpu_seconds(server.0.id())?;
    let output = Command::new(client)
        .args(["read", endpoint, &numbers[1]])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("starting the client: {e}"))?;
    let server_cpu = cpu_seconds(server.0.id())? - before;
    let line = String::from_utf8_lossy(&output.stdout);
    let result: serde_json::Value =
        serde_json::from_str(line.trim()).map_err(|e| format!("the client said {line:?}: {e}"))?;
    let figure = |name: &str| {
        result[name]
            .as_f64()
            .ok_or_else(|| format!("no {name} in {line}"))
    };
    let (count, seconds) = (figure("records")?, figure("seconds")?);
    let millions = count / 1e6;
    Ok(format!(
        "{shards:>6}{count:>10}{:>14.0}{:>12.0}{:>20.2}{:>27.2}{:>10.0}{:>17.2}\n",
        figure("bytes")? / 1e6,
        count / seconds,
        figure("cpu_seconds")? / millions,
        server_cpu / millions,
        figure("peak_kib")? / 1024.0,
        figure("first_record_seconds")?,
    ))
}

fn cpu_seconds(pid: u32) -> Result<f64, String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .map_err(|e| format!("the server's times: {e}"))?;
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let ticks = |i: usize| {
        fields
            .get(i)
            .and_then(|text| text.parse::<f64>().ok())
            .ok_or("the server's times")
    };
    Ok((ticks(11)? + ticks(12)?) / 100.0)
}
