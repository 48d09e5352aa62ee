//! The status store against a real Kafka broker and Kafka Connect's own classes: `cargo xtask peers kafka` runs this.
//!
//! Each scenario prints one line with what it measured; the last line says how many passed. Arguments are names of scenarios; without any, all run.

#![expect(clippy::print_stdout, reason = "this program's output is its report")]

mod faults;
mod peer;
mod reading;
mod rights;
mod workers;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use shardfleet_clock::{SystemClock, sleep, within};
use shardfleet_status::{
    KafkaSettings, KafkaStatusStore, RetrySettings, StatusKey, StatusState, StatusStore, StatusValue,
    WorkStatus,
};

use peer::{Broker, Watch};

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(90);

type Verdict = Result<String, String>;

/// What a scenario gets.
pub(crate) struct Lab {
    broker: Broker,
    folder: PathBuf,
}

impl Lab {
    /// Settings for a topic of one broker, with short waits.
    fn settings(&self, topic: &str) -> KafkaSettings {
        KafkaSettings {
            replication_factor: 1,
            start_deadline: Duration::from_secs(30),
            ..KafkaSettings::new(&self.broker.bootstrap, topic)
        }
    }

    async fn open(&self, topic: &str) -> Result<KafkaStatusStore, String> {
        open(self.settings(topic)).await
    }
}

async fn open(settings: KafkaSettings) -> Result<KafkaStatusStore, String> {
    KafkaStatusStore::open(settings)
        .await
        .map_err(|error| error.to_string())
}

/// Retries without end and quick, with short time-outs of the client.
fn impatient(settings: KafkaSettings) -> KafkaSettings {
    let mut settings = KafkaSettings {
        retry: RetrySettings {
            max_retries: 2_147_483_647,
            initial_backoff_ms: 100,
            max_backoff_ms: 1_000,
            ..RetrySettings::default()
        },
        ..settings
    };
    for (name, value) in [
        ("message.timeout.ms", "4000"),
        ("request.timeout.ms", "3000"),
        ("socket.timeout.ms", "3000"),
    ] {
        settings.client_settings.insert(name.to_owned(), value.to_owned());
    }
    settings
}

fn status(state: StatusState, worker: &str, generation: i32) -> StatusValue {
    StatusValue::Work(WorkStatus {
        state,
        trace: (state == StatusState::Failed).then(|| "out of paper\n\tat the printer 😀".to_owned()),
        worker_id: worker.to_owned(),
        generation,
        version: Some("shardfleet-peers".to_owned()),
    })
}

fn put(store: &KafkaStatusStore, key: &StatusKey, value: StatusValue) -> Result<(), String> {
    store.put(key, value).map_err(|error| error.to_string())
}

async fn flushed(store: &KafkaStatusStore) -> Result<(), String> {
    match store.flush(PATIENCE).await {
        0 => Ok(()),
        left => Err(format!(
            "{left} statuses are not written after {PATIENCE:?}: {:?}",
            store.late()
        )),
    }
}

async fn pause(time: Duration) {
    sleep(&SystemClock::new(), time).await;
}

async fn until(what: &str, holds: impl Fn() -> bool) -> Result<(), String> {
    let clock = SystemClock::new();
    let shown = async {
        while !holds() {
            sleep(&clock, Duration::from_millis(20)).await;
        }
    };
    let in_time = within(&clock, PATIENCE, shown).await;
    in_time.ok_or_else(|| format!("not within {PATIENCE:?}: {what}"))
}

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

type Scenario = (&'static str, for<'a> fn(&'a Lab) -> LocalBoxFuture<'a, Verdict>);

const SCENARIOS: [Scenario; 17] = [
    ("healthy", |lab| Box::pin(reading::healthy(lab))),
    ("judge-reads-ours", |lab| Box::pin(reading::judge_reads_ours(lab))),
    ("ours-reads-judges", |lab| {
        Box::pin(reading::ours_reads_judges(lab))
    }),
    ("restart", |lab| Box::pin(reading::restart(lab))),
    ("compaction", |lab| Box::pin(reading::compaction(lab))),
    ("outage-within-window", |lab| Box::pin(faults::within_window(lab))),
    ("outage-beyond-window", |lab| Box::pin(faults::beyond_window(lab))),
    ("stall", |lab| Box::pin(faults::stall(lab))),
    ("no-replicas", |lab| Box::pin(faults::no_replicas(lab))),
    ("stop-in-outage", |lab| Box::pin(faults::stop_in_outage(lab))),
    ("start-without-broker", |lab| {
        Box::pin(faults::start_without_broker(lab))
    }),
    ("topic-policy", |lab| Box::pin(rights::topic_policy(lab))),
    ("rights", |lab| Box::pin(rights::rights(lab))),
    ("tls", |lab| Box::pin(rights::tls(lab))),
    ("live-connect", |lab| Box::pin(rights::live_connect(lab))),
    ("fleet", |lab| Box::pin(workers::fleet(lab))),
    ("fleet-without-broker", |lab| {
        Box::pin(workers::fleet_without_broker(lab))
    }),
];

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("SHARDFLEET_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("off"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if let Some(unknown) = wanted
        .iter()
        .find(|name| SCENARIOS.iter().all(|(known, _)| known != name))
    {
        let names: Vec<&str> = SCENARIOS.iter().map(|(name, _)| *name).collect();
        println!("there is no scenario {unknown}; there are {}", names.join(", "));
        return ExitCode::from(2);
    }
    let (mut passed, mut failed) = (0, 0);
    for (name, run) in SCENARIOS {
        if !wanted.is_empty() && !wanted.iter().any(|one| one == name) {
            continue;
        }
        let watch = Watch::start();
        let verdict = scenario(name, run).await;
        let seconds = watch.time().as_secs_f64();
        match verdict {
            Ok(figures) => {
                passed += 1;
                println!("ok {name} ({seconds:.1} s) {figures}");
            }
            Err(why) => {
                failed += 1;
                println!("FAILED {name} ({seconds:.1} s): {why}");
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs a scenario on a broker of its own.
async fn scenario(name: &str, run: for<'a> fn(&'a Lab) -> LocalBoxFuture<'a, Verdict>) -> Verdict {
    let folder = std::env::temp_dir().join(format!("shardfleet-kafka-{}-{name}", std::process::id()));
    let more: &[&str] = match name {
        "rights" => &["--acl", "--sasl-port", "0"],
        "tls" => &["--tls-port", "0"],
        _ => &[],
    };
    let broker = Broker::start(&folder.join("broker"), more)?;
    let version = std::env::var("KAFKA_VERSION").unwrap_or_else(|_| "4.3.1".to_owned());
    let said = format!("[Kafka {version}, {}]", broker.pid());
    let lab = Lab { broker, folder };
    let verdict = run(&lab).await;
    let folder = lab.folder.clone();
    drop(lab);
    match verdict {
        Ok(figures) => {
            std::fs::remove_dir_all(folder).ok();
            Ok(format!("{said} {figures}"))
        }
        Err(why) => Err(format!("{said} {why}; logs: {}", folder.display())),
    }
}
