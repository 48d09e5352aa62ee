//! `shardfleet status`: what applications and their shards do, from a status topic or a worker's REST address.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use shardfleet::status::kafka::KafkaOpenError;
use shardfleet::status::{KafkaSettings, KafkaStatusStore, StatusState, StatusStore, StatusView, WorkStatus};

use crate::args::StatusArgs;
use crate::exit::Failure;
use crate::output::{result_line, say};
use crate::run::WorkerConfigFile;

mod remote;

/// An application, as `--json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Application {
    name: String,
    /// `None` where tasks are known of an application that is not.
    #[serde(flatten)]
    work: Option<Work>,
    streams: BTreeSet<String>,
    tasks: Vec<Task>,
}

/// One shard of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Task {
    id: i32,
    #[serde(flatten)]
    work: Work,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Work {
    state: String,
    worker_id: String,
    /// Which life of the work this is about; a worker's REST address does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<i32>,
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
}

impl From<&WorkStatus> for Work {
    fn from(status: &WorkStatus) -> Self {
        Self {
            state: status.state.name().to_owned(),
            worker_id: status.worker_id.clone(),
            generation: Some(status.generation),
            version: status.version.clone(),
            trace: status.trace.clone(),
        }
    }
}

pub(crate) async fn run(args: StatusArgs) -> Result<(), Failure> {
    let mut applications = match &args.url {
        Some(url) => remote::read(url, args.timeout).await?,
        None => from_topic(&args).await?,
    };
    if let Some(wanted) = &args.application {
        let known: Vec<String> = applications
            .iter()
            .map(|application| application.name.clone())
            .collect();
        applications.retain(|application| application.name == *wanted);
        if applications.is_empty() {
            let known = if known.is_empty() {
                "there is none of any".to_owned()
            } else {
                format!("there is of {}", known.join(", "))
            };
            return Err(Failure::run(format!(
                "there is no status of application {wanted:?}; {known}"
            )));
        }
    }
    if args.json {
        let json = serde_json::json!({ "applications": applications });
        result_line(&json.to_string())?;
    } else if applications.is_empty() {
        say("no statuses yet");
    } else {
        result_line(&table(&applications))?;
    }
    Ok(())
}

/// Reads the topic to its end, and writes nothing.
async fn from_topic(args: &StatusArgs) -> Result<Vec<Application>, Failure> {
    let mut settings = match (&args.kafka, &args.config) {
        (Some(brokers), _) => KafkaSettings::new(brokers, &args.topic),
        (None, Some(path)) => WorkerConfigFile::status_topic(path)?,
        (None, None) => {
            return Err(Failure::usage(
                "where are the statuses? Add --kafka HOST:PORT, --config FILE of a worker, or --url of one that runs",
            ));
        }
    };
    settings.is_shared = true;
    settings.manage_topic = false;
    settings.start_deadline = args.timeout;
    let open_failed = |error: KafkaOpenError| match error {
        KafkaOpenError::Settings(_) => Failure::usage(error.to_string()),
        _ => Failure::run(error.to_string()),
    };
    let store = KafkaStatusStore::start(settings).map_err(open_failed)?;
    let opened = store.ready().await;
    let view = store.view();
    drop(store.close(std::time::Duration::ZERO).await);
    opened.map_err(open_failed)?;
    Ok(applications_of(&view))
}

fn applications_of(view: &StatusView) -> Vec<Application> {
    let mut all: BTreeMap<String, Application> = BTreeMap::new();
    for (name, status) in view.connectors() {
        application(&mut all, name).work = Some(Work::from(status));
    }
    for (name, id, status) in view.tasks() {
        let work = Work::from(status);
        application(&mut all, name).tasks.push(Task { id, work });
    }
    for (name, stream, _) in view.topics() {
        application(&mut all, name).streams.insert(stream.to_owned());
    }
    all.into_values().collect()
}

fn application<'a>(all: &'a mut BTreeMap<String, Application>, name: &str) -> &'a mut Application {
    all.entry(name.to_owned()).or_insert_with(|| Application {
        name: name.to_owned(),
        work: None,
        streams: BTreeSet::new(),
        tasks: Vec::new(),
    })
}

/// The first line of a trace, cut to what a table bears.
fn brief(trace: &str) -> String {
    const MOST: usize = 120;
    let line = trace.lines().next().unwrap_or_default();
    let cut: String = line.chars().take(MOST).collect();
    let is_whole = line.chars().count() <= MOST && trace.lines().count() <= 1;
    cut + if is_whole { "" } else { " …" }
}

fn table(applications: &[Application]) -> String {
    let rows = |application: &Application| -> Vec<[String; 5]> {
        let row = |what: String, work: &Work| {
            let generation = work.generation.map(|generation| generation.to_string());
            let why = work.trace.as_deref().map(brief).unwrap_or_default();
            [
                what,
                work.state.clone(),
                work.worker_id.clone(),
                generation.unwrap_or_default(),
                why,
            ]
        };
        let tasks = application
            .tasks
            .iter()
            .map(|task| row(format!("  task {}", task.id), &task.work));
        let first = application.work.as_ref().map_or_else(
            || {
                [
                    application.name.clone(),
                    "?".to_owned(),
                    String::new(),
                    String::new(),
                    String::new(),
                ]
            },
            |work| row(application.name.clone(), work),
        );
        std::iter::once(first).chain(tasks).collect()
    };
    let mut all = vec![["APPLICATION", "STATE", "WORKER", "GENERATION", "WHY"].map(str::to_owned)];
    all.extend(applications.iter().flat_map(rows));
    let mut widths = [0; 5];
    for row in &all {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let lines = all.iter().map(|row| {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    let streams = applications
        .iter()
        .filter(|application| !application.streams.is_empty())
        .map(|application| {
            let streams: Vec<&str> = application.streams.iter().map(String::as_str).collect();
            format!("{} reads {}", application.name, streams.join(", "))
        });
    let tasks = applications.iter().flat_map(|application| &application.tasks);
    let failed = tasks
        .filter(|task| task.work.state == StatusState::Failed.name())
        .count();
    let summary =
        (failed > 0).then(|| format!("{failed} tasks have failed; --json shows their whole traces"));
    lines.chain(streams).chain(summary).collect::<Vec<_>>().join("\n")
}
