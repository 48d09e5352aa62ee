//! The config file of `shardfleet run`: read as TOML, checked as a whole, every problem named at once.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use shardfleet::{Aggregates, FleetSettings, HashRangeFilter, ReadLimits, SettingsProblem};
use toml::Table;

use crate::args::{From, parse_position};

mod fleet;
mod kcl;
mod lease_store;
mod rest;
mod section;
mod status;
#[cfg(test)]
mod tests;

pub(crate) use fleet::LeasesConfig;
pub(crate) use lease_store::{DynamoDbConfig, LeaseStoreConfig};
use section::{Findings, Section};
pub(crate) use status::{DEFAULT_TOPIC as DEFAULT_STATUS_TOPIC, StatusConfig};

/// What the file comes to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WorkerConfig {
    pub(crate) stream: String,
    pub(crate) application: String,
    pub(crate) worker_id: Option<String>,
    pub(crate) start_at: Option<From>,
    pub(crate) initial_position: Option<From>,
    pub(crate) open_deadline: Duration,
    pub(crate) shutdown_deadline: Duration,
    pub(crate) aws: AwsConfig,
    pub(crate) lease_store: LeaseStoreConfig,
    pub(crate) leases: LeasesConfig,
    /// What `[fleet]`, `[worker_metrics]` and the rest of `[leases]` say.
    pub(crate) fleet: FleetSettings,
    pub(crate) reading: ReadingConfig,
    pub(crate) handler: HandlerConfig,
    pub(crate) errors: ErrorsConfig,
    pub(crate) status: StatusConfig,
    /// Where the REST interface listens, if there is one.
    pub(crate) rest: Option<SocketAddr>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AwsConfig {
    pub(crate) endpoint_url: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) profile: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReadingConfig {
    pub(crate) batch_size: u32,
    pub(crate) poll_interval: Duration,
    pub(crate) memory_budget: u64,
    pub(crate) unsettled_records_max: u64,
    pub(crate) unsettled_bytes_max: u64,
    pub(crate) aggregated: Aggregates,
    pub(crate) hash_range_filter: HashRangeFilter,
    pub(crate) limits: ReadLimits,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum HandlerConfig {
    Stdout,
    Command { command: Vec<String>, timeout: Duration },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ErrorsConfig {
    /// 0 tries for ever.
    pub(crate) attempts: u32,
    pub(crate) dead_letter_file: Option<PathBuf>,
}

/// A config file that was read, and what is wrong with it. A value that makes no sense is replaced by its default, so that the rest can be
/// checked too.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) config: WorkerConfig,
    /// Every problem: the key, its value, what is allowed, what to do.
    pub(crate) problems: Vec<String>,
}

impl Parsed {
    /// Adds what the library finds wrong between settings. What was said of a key already is not said again.
    pub(crate) fn add(&mut self, found: &[SettingsProblem]) {
        // An application that is not named is the stream's name, of which everything was said then.
        let is_same = self.config.application == self.config.stream;
        for problem in found {
            let key = fleet::key_of(&problem.setting);
            if is_same && key == "application" {
                continue;
            }
            let said = format!("{key}: ");
            if !self.problems.iter().any(|problem| problem.starts_with(&said)) {
                self.problems.push(said + &problem.reason);
            }
        }
    }
}

/// Reads the text of a config file.
///
/// # Errors
/// When it is not TOML: where, and why.
pub(crate) fn parse(text: &str) -> Result<Parsed, String> {
    let table: Table = text
        .parse()
        .map_err(|e: toml::de::Error| e.to_string().trim_end().to_owned())?;
    let mut findings = Findings::default();
    let config = read(table, &mut findings);
    Ok(Parsed {
        config,
        problems: findings.into_problems(),
    })
}

/// The tables of the file.
const TABLES: [&str; 10] = [
    "aws",
    "lease_store",
    "leases",
    "fleet",
    "worker_metrics",
    "reading",
    "handler",
    "errors",
    "status",
    "rest",
];

fn read(table: Table, findings: &mut Findings) -> WorkerConfig {
    let hour = Duration::from_secs(3600);
    let mut root = Section::new("", table, findings);
    root.integer("version", 1, 1, 1);
    let stream = root.required_text("stream");
    let application = root.text("application").unwrap_or_else(|| stream.clone());
    let worker_id = root.text("worker_id");
    let start_at = position(&mut root, "start_at");
    let initial_position = position(&mut root, "initial_position");
    let open_deadline = root.duration(
        "open_deadline",
        Duration::from_secs(60),
        Duration::from_millis(10),
        hour,
    );
    let shutdown_deadline = root.duration("shutdown_deadline", Duration::from_secs(30), Duration::ZERO, hour);
    let tables = TABLES.map(|name| root.table(name));
    root.finish();
    let [
        aws,
        lease_store,
        leases,
        fleet,
        worker_metrics,
        reading,
        handler,
        errors,
        status,
        rest,
    ] = tables;
    let mut settings = FleetSettings::default();
    let aws = aws_config(Section::new("aws", aws, findings));
    let lease_store = lease_store::read(Section::new("lease_store", lease_store, findings), &application);
    let leases = fleet::leases(Section::new("leases", leases, findings), &mut settings);
    fleet::fleet(Section::new("fleet", fleet, findings), &mut settings);
    fleet::worker_metrics(
        Section::new("worker_metrics", worker_metrics, findings),
        &mut settings,
    );
    WorkerConfig {
        aws,
        lease_store,
        leases,
        fleet: settings,
        reading: reading_config(Section::new("reading", reading, findings)),
        handler: handler_config(Section::new("handler", handler, findings)),
        errors: errors_config(Section::new("errors", errors, findings)),
        status: status::read(Section::new("status", status, findings), &application),
        rest: rest::read(Section::new("rest", rest, findings)),
        stream,
        application,
        worker_id,
        start_at,
        initial_position,
        open_deadline,
        shutdown_deadline,
    }
}

fn position(root: &mut Section<'_>, key: &'static str) -> Option<From> {
    let parsed = parse_position(&root.text(key)?);
    parsed.map_err(|reason| root.problem(key, &reason)).ok()
}

fn aws_config(mut section: Section<'_>) -> AwsConfig {
    let config = AwsConfig {
        endpoint_url: section.text("endpoint_url"),
        region: section.text("region"),
        profile: section.text("profile"),
    };
    section.finish();
    config
}

fn reading_config(mut section: Section<'_>) -> ReadingConfig {
    let config = ReadingConfig {
        batch_size: small(section.integer("batch_size", 1000, 1, 10_000)),
        poll_interval: section.duration(
            "poll_interval",
            Duration::from_secs(1),
            Duration::from_millis(1),
            Duration::from_secs(3600),
        ),
        memory_budget: section.bytes("memory_budget", 32 << 20, 1 << 20),
        unsettled_records_max: section.integer("unsettled_records_max", 10_000, 1, 10_000_000),
        unsettled_bytes_max: section.bytes("unsettled_bytes_max", 16 << 20, 1),
        aggregated: section.choice(
            "aggregated",
            &[("unpack", Aggregates::Unpack), ("refuse", Aggregates::Refuse)],
        ),
        hash_range_filter: section.choice(
            "hash_range_filter",
            &[
                ("per-record", HashRangeFilter::PerRecord),
                ("whole-aggregate", HashRangeFilter::WholeAggregate),
                ("off", HashRangeFilter::Off),
            ],
        ),
        limits: limits(&mut section),
    };
    section.finish();
    config
}

fn limits(section: &mut Section<'_>) -> ReadLimits {
    let most = u64::from(u32::MAX);
    let mut limits = ReadLimits::SERVICE;
    for (key, limit) in [
        ("calls_per_second_max", &mut limits.calls_per_second),
        ("bytes_per_second_max", &mut limits.bytes_per_second),
    ] {
        *limit = small(section.integer(key, u64::from(*limit), 0, most));
    }
    limits
}

/// A number that was checked to be small enough.
fn small(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[derive(Clone, Copy)]
enum Kind {
    Stdout,
    Command,
}

fn handler_config(mut section: Section<'_>) -> HandlerConfig {
    let command = section.texts("command");
    let mut kinds = [("stdout", Kind::Stdout), ("command", Kind::Command)];
    if command.is_some() {
        kinds.reverse();
    }
    let kind = section.choice("type", &kinds);
    let timeout = section.duration(
        "timeout",
        Duration::from_secs(60),
        Duration::from_millis(10),
        Duration::from_secs(86_400),
    );
    let config = match (kind, command) {
        (Kind::Command, Some(command)) if !command.is_empty() => HandlerConfig::Command { command, timeout },
        (Kind::Command, _) => {
            section.problem(
                "command",
                "is missing; a program and its arguments are expected, such as [\"python3\", \"handler.py\"]",
            );
            HandlerConfig::Stdout
        }
        (Kind::Stdout, Some(_)) => {
            section.problem(
                "command",
                "makes no sense beside type = \"stdout\"; remove one of the two",
            );
            HandlerConfig::Stdout
        }
        (Kind::Stdout, None) => HandlerConfig::Stdout,
    };
    section.finish();
    config
}

fn errors_config(mut section: Section<'_>) -> ErrorsConfig {
    let sets_aside = section.choice("then", &[("stop", false), ("dead-letter", true)]);
    let file = section.text("dead_letter_file");
    match (sets_aside, &file) {
        (true, None) => {
            section.problem(
                "dead_letter_file",
                "is missing; then = \"dead-letter\" needs a file to write to",
            );
        }
        (false, Some(_)) => {
            section.problem(
                "dead_letter_file",
                "makes no sense without then = \"dead-letter\"; remove it, or set then",
            );
        }
        _ => {}
    }
    let attempts = section.integer("attempts", 10, 0, u64::from(u32::MAX));
    if attempts == 0 && sets_aside {
        section.problem(
            "attempts",
            "is 0, which tries for ever, so that nothing is ever set aside; set 1 or more, or then = \"stop\"",
        );
    }
    section.finish();
    ErrorsConfig {
        attempts: u32::try_from(attempts).unwrap_or(u32::MAX),
        dead_letter_file: file.map(PathBuf::from),
    }
}
