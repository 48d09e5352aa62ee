//! The command line.

#![expect(clippy::doc_markdown, reason = "clap prints these comments as they are")]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use shardfleet::{KinesisPosition, SequenceNumber};

/// Reads Amazon Kinesis Data Streams with a fleet of workers.
#[derive(Debug, Parser)]
#[command(name = "shardfleet", version, propagate_version = true, max_term_width = 100)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Log more: -v what happens, -vv every detail. SHARDFLEET_LOG takes a filter such as `shardfleet=debug` instead.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// How log lines on standard error look.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// A command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run Kinesis and DynamoDB in this process, and optionally put records through a stream, to one reader or to a fleet of worker processes, and
    /// account for every one of them.
    #[command(after_help = DEV_HELP)]
    Dev(DevArgs),
    /// Print the records of a stream.
    #[command(after_help = TAIL_HELP)]
    Tail(TailArgs),
    /// Read a stream with a handler, as a config file says.
    #[command(after_help = RUN_HELP)]
    Run(RunArgs),
    /// Print what applications and their shards do, who runs them, and why what failed did.
    #[command(after_help = STATUS_HELP)]
    Status(StatusArgs),
    /// Put the records of a dead-letter file onto a stream again.
    #[command(after_help = REDRIVE_HELP)]
    Redrive(RedriveArgs),
}

const DEV_HELP: &str = "\
Examples:
  shardfleet dev
      starts both services and says how any AWS SDK or CLI reaches them; Ctrl-C ends it
  shardfleet dev --input data/airports.jsonl --key-field state --shards 4
      puts each line as a record, reads them back, and accounts for every one of them
  seq 1 1000 | shardfleet dev --input - --json
      the same from standard input, with a summary as JSON
  shardfleet dev --workers 3
      three worker processes share the shards of a generated load; a table shows who reads what, how far behind, with how much CPU
  shardfleet dev --workers 3 --chaos
      about a minute of records, in which one worker is killed, one is added, a shard is split and a worker is stopped
  shardfleet dev --workers 3 --chaos --status-kafka localhost:9092
      the same, published on a topic as it happens; `shardfleet status --kafka localhost:9092` shows it
  shardfleet dev --workers 3 --chaos --json | jq '{put, lost, failovers, gap_ms_max}'

The summary: `put` records were acknowledged to the producer, `delivered` lines came out of workers, `settled` records lie within checkpoints,
`lost` never came, `repeated` came again, `out_of_order` came after a later one of their shard or partition key. With --workers also: `workers`
processes in all, `failovers` leases that another worker took over from a killed one, and `gap_ms_max`, the longest silence of a shard that
changed hands because its reader was killed or stopped, or because one joined. A killed worker's records since its last checkpoint come again:
that is at-least-once delivery, and `repeated_after_kill` counts them.

Exit code: 0 when every record was delivered in order, 1 when one was lost or out of order, or a worker failed by itself.";

const TAIL_HELP: &str = "\
Examples:
  shardfleet tail orders                          what arrives from now on
  shardfleet tail orders --from horizon --json    everything the stream still holds, as JSON lines
  shardfleet tail orders --from 15m               the last quarter of an hour
  shardfleet tail orders --from 2026-11-30T08:00:00Z --max 100
  shardfleet tail orders --from shardId-000000000003:4965...   one shard, from one record on

Nothing is written anywhere: no checkpoints, no leases.";

const RUN_HELP: &str = "\
Example:
  shardfleet run --config worker.toml

A minimal worker.toml:
  stream = \"orders\"
  application = \"order-mailer\"

  [handler]
  command = [\"python3\", \"handler.py\"]    # or: type = \"stdout\"

The command is started once for each shard. It gets JSON lines on standard input and answers on standard output which records
it settled; docs/handlers.md describes both. SIGTERM and Ctrl-C stop in order: records in hand are finished, checkpoints are
written, leases are released. `shardfleet run --config worker.toml --check` only checks the file.";

const STATUS_HELP: &str = "\
Examples:
  shardfleet status --kafka localhost:9092
      everything on the topic shardfleet-status
  shardfleet status --config worker.toml order-mailer
      one application, from the topic that a worker's [status] names
  shardfleet status --url http://127.0.0.1:8083 --json
      from a worker that runs with [rest], or from Kafka Connect itself

Each shard is a task of its application: task 12 is shardId-000000000012. Nothing is written. Exit code: 0 also where tasks have failed;
1 where the topic or the address does not answer, or nothing is known of the application.";

const REDRIVE_HELP: &str = "\
Example:
  shardfleet redrive dead-letters.jsonl
      puts each record onto the stream it came from, with its own partition key
  shardfleet redrive dead-letters.jsonl --stream orders-again";

/// How AWS is reached. What is not said is taken from the environment and the AWS config files.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "AWS")]
pub struct AwsArgs {
    /// Talk to this address instead of AWS, such as http://127.0.0.1:4567. AWS_ENDPOINT_URL works too.
    #[arg(long, value_name = "URL")]
    pub endpoint_url: Option<String>,
    /// The region. Default: AWS_REGION, then the profile.
    #[arg(long)]
    pub region: Option<String>,
    /// The profile of the AWS config files. Default: AWS_PROFILE.
    #[arg(long)]
    pub profile: Option<String>,
}

/// `shardfleet dev`
#[derive(Clone, Debug, clap::Args)]
pub struct DevArgs {
    /// Put each line of this file as a record and read them back; `-` is standard input.
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Let so many worker processes share the shards. Without --input they read a generated load.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub workers: Option<u32>,
    /// While records flow, kill a worker (SIGKILL), add one, split a shard, and stop a worker (SIGTERM). Ends by itself. Default: of 3 workers.
    #[arg(long)]
    pub chaos: bool,
    /// How many shards the stream has. Default: 4, or with --workers two for each and two more.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub shards: Option<u32>,
    /// Take the partition key from this field of each line, which must be a JSON object. Default: the line's number.
    #[arg(long, value_name = "NAME")]
    pub key_field: Option<String>,
    /// The stream's name.
    #[arg(long, default_value = "dev")]
    pub stream: String,
    /// Print the summary as one JSON object on standard output.
    #[arg(long)]
    pub json: bool,
    /// Keep streams and tables in this folder, so that they are there next time. Default: in memory.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// The port of Kinesis on 127.0.0.1. Default: 4567, or with --input or --workers any free one.
    #[arg(long, value_name = "PORT")]
    pub kinesis_port: Option<u16>,
    /// The port of DynamoDB on 127.0.0.1. Default: 8000, or with --input or --workers any free one.
    #[arg(long, value_name = "PORT")]
    pub dynamodb_port: Option<u16>,
    /// Publish what the workers do on a Kafka topic, as Kafka Connect does, through this broker; several with commas. Needs --input, --workers or --chaos.
    #[arg(long, value_name = "HOST:PORT")]
    pub status_kafka: Option<String>,
    /// The topic of --status-kafka. It is created with the broker's own default replication where it is missing.
    #[arg(long, value_name = "TOPIC", default_value = crate::run::DEFAULT_STATUS_TOPIC)]
    pub status_topic: String,
    /// Give up when nothing has been delivered for so long.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    pub patience: Duration,
}

/// How many workers `--chaos` brings along.
const CHAOS_WORKERS: u32 = 3;

impl DevArgs {
    /// How many worker processes are to share the shards; `None` without a fleet.
    pub fn fleet(&self) -> Option<u32> {
        self.workers.or(self.chaos.then_some(CHAOS_WORKERS))
    }

    /// How many shards the stream is to have.
    pub fn shard_count(&self) -> u32 {
        let default = self.fleet().map_or(4, |workers| 2 * workers + 2);
        self.shards.unwrap_or(default)
    }
}

/// `shardfleet tail`
#[derive(Clone, Debug, clap::Args)]
pub struct TailArgs {
    /// The stream.
    pub stream: String,
    /// Where to start: `horizon`, `latest`, a time (`2026-11-30T08:00:00Z`, milliseconds since 1970, or `15m` ago), or SHARD:SEQ.
    #[arg(long, value_name = "POSITION", default_value = "latest", value_parser = parse_position)]
    pub from: From,
    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
    /// Stop after so many records.
    #[arg(long, value_name = "N")]
    pub max: Option<u64>,
    /// Stop after so long without a record.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub idle: Option<Duration>,
    /// AWS
    #[command(flatten)]
    pub aws: AwsArgs,
}

/// `shardfleet run`
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// The config file.
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// Check the file and say what it comes to, without connecting to anything.
    #[arg(long)]
    pub check: bool,
    /// For `shardfleet dev`, whose workers run with it: end at once when standard input closes, and print when each record was delivered.
    #[arg(long, hide = true)]
    pub fleet_member: bool,
    /// AWS; ahead of what the file says.
    #[command(flatten)]
    pub aws: AwsArgs,
}

/// `shardfleet status`
#[derive(Clone, Debug, clap::Args)]
pub struct StatusArgs {
    /// Only this application.
    pub application: Option<String>,
    /// Read a status topic through this broker; several with commas.
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["config", "url"])]
    pub kafka: Option<String>,
    /// The topic of --kafka.
    #[arg(long, value_name = "TOPIC", default_value = crate::run::DEFAULT_STATUS_TOPIC)]
    pub topic: String,
    /// Read the status topic that this worker's config file names.
    #[arg(long, short, value_name = "FILE", conflicts_with = "url")]
    pub config: Option<PathBuf>,
    /// Ask a worker at this address.
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
    /// Give up after so long.
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
}

/// `shardfleet redrive`
#[derive(Clone, Debug, clap::Args)]
pub struct RedriveArgs {
    /// The file of JSON lines that a worker wrote.
    pub file: PathBuf,
    /// Put the records onto this stream. Default: the one each came from.
    #[arg(long)]
    pub stream: Option<String>,
    /// Leave out lines that are no records, such as one that a crash cut off, and name them.
    #[arg(long)]
    pub skip_bad_lines: bool,
    /// AWS
    #[command(flatten)]
    pub aws: AwsArgs,
}

/// A position as written on the command line or in a config file: a time ago needs the clock to become a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// A position.
    Position(KinesisPosition),
    /// So long before now.
    Ago(Duration),
}

impl From {
    /// The position, at `now`.
    pub fn at(&self, now: shardfleet::Timestamp) -> KinesisPosition {
        match self {
            Self::Position(position) => position.clone(),
            Self::Ago(ago) => KinesisPosition::Timestamp(now.saturating_sub(*ago)),
        }
    }
}

/// Reads a position.
///
/// # Errors
/// When the text is none of the forms.
pub fn parse_position(text: &str) -> Result<From, String> {
    let position = match text {
        "horizon" | "TRIM_HORIZON" => KinesisPosition::horizon(),
        "latest" | "LATEST" => KinesisPosition::latest(),
        _ => {
            if let Ok(time) = humantime::parse_rfc3339_weak(text) {
                let since = time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
                KinesisPosition::timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
            } else if let Some((shard, number)) = text.split_once(':') {
                let number = SequenceNumber::parse(number).map_err(|e| e.to_string())?;
                KinesisPosition::sequence(shard, number)
            } else if text.len() >= 12 && text.bytes().all(|b| b.is_ascii_digit()) {
                let millis = text
                    .parse()
                    .map_err(|_| format!("{text} milliseconds are beyond any time"))?;
                KinesisPosition::timestamp(millis)
            } else if let Ok(ago) = humantime::parse_duration(text) {
                return Ok(From::Ago(ago));
            } else {
                return Err(format!(
                    "{text:?} is no position; `horizon`, `latest`, a time such as 2026-11-30T08:00:00Z, milliseconds since 1970, a time ago such as `15m`, or SHARD:SEQUENCE_NUMBER is expected"
                ));
            }
        }
    };
    Ok(From::Position(position))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_in_every_form() {
        let position =
            |text| parse_position(text).map(|from| from.at(shardfleet::Timestamp::from_millis(1_000_000)));
        assert_eq!(position("horizon"), Ok(KinesisPosition::horizon()));
        assert_eq!(
            position("2026-11-30T08:00:00Z"),
            Ok(KinesisPosition::timestamp(1_796_025_600_000))
        );
        assert_eq!(
            position("1796025600000"),
            Ok(KinesisPosition::timestamp(1_796_025_600_000))
        );
        assert_eq!(position("15m"), Ok(KinesisPosition::timestamp(100_000)));
        let number = SequenceNumber::parse("4965").expect("digits");
        assert_eq!(
            position("shardId-000000000003:4965"),
            Ok(KinesisPosition::sequence("shardId-000000000003", number))
        );
        for bad in ["", "newest", "12", "shardId-0:x"] {
            assert!(parse_position(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }
}
