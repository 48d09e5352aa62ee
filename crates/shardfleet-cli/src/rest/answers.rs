//! Which answer a request gets: Kafka Connect's paths, bodies and errors, of one connector, which is the application.

use std::collections::BTreeSet;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};
use shardfleet::core::status::StatusState;
use shardfleet::{ControlRequest, ShardId, TargetState};

use super::sight::{Sight, TaskSight, Work};

/// What a client asks for.
pub(super) struct Asked<'a> {
    pub(super) method: &'a str,
    /// As it came, percent signs and all.
    pub(super) path: &'a str,
    pub(super) query: &'a str,
    /// What kinds of answers it takes; nothing is everything.
    pub(super) accept: Option<&'a str>,
}

/// An answer, or what has to be done first.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    Json(u16, Value),
    /// An error of the address itself, which Connect sends without a content type.
    Odd(u16, String),
    Empty(u16),
    /// The counters, as Prometheus reads them.
    Metrics,
    /// Shards are to be asked something: all of them, or these. The answer is for when that is done.
    Do(ControlRequest, Option<BTreeSet<ShardId>>, Box<Self>),
}

impl Answer {
    fn error(code: u16, message: impl Into<String>) -> Self {
        Self::Json(code, error_body(code, &message.into()))
    }

    fn no_path() -> Self {
        Self::Odd(404, "HTTP 404 Not Found".to_owned())
    }
}

pub(super) fn error_body(code: u16, message: &str) -> Value {
    json!({"error_code": code, "message": message})
}

/// Answers of paths that exist, by method.
struct Methods<'a> {
    method: &'a str,
    answer: Option<Answer>,
}

impl<'a> Methods<'a> {
    fn of(method: &'a str) -> Self {
        Self { method, answer: None }
    }

    fn on(mut self, method: &str, answer: impl FnOnce() -> Answer) -> Self {
        if self.method == method {
            self.answer = Some(answer());
        }
        self
    }

    fn end(self) -> Answer {
        self.answer
            .unwrap_or_else(|| Answer::Odd(405, "HTTP 405 Method Not Allowed".to_owned()))
    }
}

/// Answers a request.
pub(super) fn answer(asked: &Asked<'_>, sight: &Sight) -> Answer {
    let Some(path) = segments(asked.path) else {
        return Answer::no_path();
    };
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    // As everywhere in HTTP, a HEAD is a GET whose body stays away.
    let method = if asked.method == "HEAD" {
        "GET"
    } else {
        asked.method
    };
    if path != ["metrics"] && !takes_json(asked.accept) {
        return Answer::Odd(406, "HTTP 406 Not Acceptable".to_owned());
    }
    let on = Methods::of(method);
    match path[..] {
        [] => on
            .on("GET", || {
                let version = &sight.version;
                Answer::Json(
                    200,
                    json!({"version": version, "commit": "unknown", "kafka_cluster_id": ""}),
                )
            })
            .end(),
        ["health"] => on.on("GET", || health(sight)).end(),
        ["metrics"] => on.on("GET", || Answer::Metrics).end(),
        ["connector-plugins"] => on
            .on("GET", || {
                let plugin = json!({"class": CLASS, "type": TYPE, "version": sight.version});
                Answer::Json(200, json!([plugin]))
            })
            .end(),
        ["connectors"] => on
            .on("GET", || list(asked.query, sight))
            .on("POST", || {
                not_here("a connector is an application: start a worker of it")
            })
            .end(),
        ["connectors", name, ref rest @ ..] => connector(method, name, rest, asked.query, sight),
        _ => Answer::no_path(),
    }
}

const CLASS: &str = "shardfleet";
/// Kafka UIs know two kinds of connectors; one that reads a stream is nearer to this one.
const TYPE: &str = "source";

fn not_here(why: &str) -> Answer {
    Answer::error(501, format!("shardfleet keeps no configuration over REST; {why}"))
}

fn connector(method: &str, name: &str, rest: &[&str], query: &str, sight: &Sight) -> Answer {
    let on = Methods::of(method);
    let is_known = name == sight.name;
    let known = |answer: &dyn Fn() -> Answer, otherwise: String| {
        if is_known {
            answer()
        } else {
            Answer::error(404, otherwise)
        }
    };
    let not_found = || format!("Connector {name} not found");
    let change = |target: TargetState, code: u16| {
        known(
            &|| {
                Answer::Do(
                    ControlRequest::Target(target),
                    None,
                    Box::new(Answer::Empty(code)),
                )
            },
            format!("Unknown connector {name}"),
        )
    };
    match rest {
        [] => on
            .on("GET", || known(&|| Answer::Json(200, info(sight)), not_found()))
            .on("DELETE", || {
                known(
                    &|| not_here("an application ends when its workers do, and its lease table is deleted"),
                    not_found(),
                )
            })
            .end(),
        ["config"] => {
            let refuse = || {
                known(
                    &|| not_here("change the config file of its workers and start them anew"),
                    not_found(),
                )
            };
            on.on("GET", || known(&|| Answer::Json(200, config(sight)), not_found()))
                .on("PUT", refuse)
                .on("PATCH", refuse)
                .end()
        }
        ["status"] => on
            .on("GET", || {
                let unknown = format!("No status found for connector {name}");
                known(&|| Answer::Json(200, status(sight, |_| false, false)), unknown)
            })
            .end(),
        ["tasks"] => on
            .on("GET", || known(&|| Answer::Json(200, tasks(sight)), not_found()))
            .end(),
        ["tasks", task, what @ ("status" | "restart")] => match task.parse::<i32>() {
            // JAX-RS finds no number, and so no path.
            Err(_) => Answer::error(404, "HTTP 404 Not Found"),
            Ok(task) if *what == "status" => on.on("GET", || task_status(name, task, sight)).end(),
            Ok(task) => on.on("POST", || restart_task(name, task, sight)).end(),
        },
        ["topics"] => on
            .on("GET", || {
                let topics: &[String] = if is_known { &sight.streams } else { &[] };
                Answer::Json(200, json!({ name: { "topics": topics } }))
            })
            .end(),
        ["topics", "reset"] => on
            .on("PUT", || Answer::error(403, "Topic tracking reset is disabled."))
            .end(),
        ["offsets"] => {
            let refuse = || {
                known(
                    &|| {
                        not_here(
                            "to read from elsewhere, start with start_at, or use another application name",
                        )
                    },
                    not_found(),
                )
            };
            on.on("GET", || {
                known(&|| Answer::Json(200, offsets(sight)), not_found())
            })
            .on("PATCH", refuse)
            .on("DELETE", refuse)
            .end()
        }
        ["pause"] => on.on("PUT", || change(TargetState::Paused, 202)).end(),
        ["resume"] => on.on("PUT", || change(TargetState::Running, 202)).end(),
        ["stop"] => on.on("PUT", || change(TargetState::Stopped, 204)).end(),
        ["restart"] => on
            .on("POST", || {
                known(&|| restart(query, sight), format!("Unknown connector: {name}"))
            })
            .end(),
        _ => Answer::no_path(),
    }
}

/// The parts of a path, decoded one by one, so that a name may hold a slash; `None` where they are no text.
fn segments(path: &str) -> Option<Vec<String>> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() {
        return Some(Vec::new());
    }
    let decode = |part| Some(percent_decode_str(part).decode_utf8().ok()?.into_owned());
    path.split('/').map(decode).collect()
}

fn takes_json(accept: Option<&str>) -> bool {
    let Some(accept) = accept else { return true };
    let kinds = accept
        .split(',')
        .map(|kind| kind.split(';').next().unwrap_or_default().trim());
    accept.trim().is_empty()
        || kinds.into_iter().any(|kind| {
            ["*/*", "application/*", "application/json"]
                .iter()
                .any(|known| known.eq_ignore_ascii_case(kind))
        })
}

/// The values of a query's parameter.
fn values(query: &str, name: &str) -> Vec<String> {
    let decode = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
    let pairs = query
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs
        .filter(|(key, _)| decode(key) == name)
        .map(|(_, value)| decode(value))
        .collect()
}

fn is_set(query: &str, name: &str) -> bool {
    let first = values(query, name).into_iter().next();
    first.is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

fn health(sight: &Sight) -> Answer {
    let (code, status) = match sight.health {
        super::sight::Health::Starting => (503, "starting"),
        super::sight::Health::Healthy => (200, "healthy"),
        super::sight::Health::Unhealthy => (500, "unhealthy"),
    };
    Answer::Json(code, json!({"status": status, "message": sight.health_message}))
}

fn list(query: &str, sight: &Sight) -> Answer {
    let expansions = values(query, "expand");
    let expands = |to: &str| expansions.iter().any(|expansion| expansion == to);
    if expansions.is_empty() {
        return Answer::Json(200, json!([sight.name]));
    }
    let mut entry = Map::new();
    if expands("status") {
        entry.insert("status".to_owned(), status(sight, |_| false, false));
    }
    if expands("info") {
        entry.insert("info".to_owned(), info(sight));
    }
    Answer::Json(200, json!({ sight.name.as_str(): entry }))
}

fn info(sight: &Sight) -> Value {
    let tasks: Vec<Value> = sight.tasks.iter().map(|task| id(sight, task)).collect();
    json!({"name": sight.name, "config": config(sight), "tasks": tasks, "type": TYPE})
}

fn id(sight: &Sight, task: &TaskSight) -> Value {
    json!({"connector": sight.name, "task": task.id})
}

fn config(sight: &Sight) -> Value {
    json!({
        "connector.class": CLASS,
        "name": sight.name,
        "kinesis.stream": sight.stream,
        "tasks.max": sight.tasks.len().to_string(),
    })
}

fn tasks(sight: &Sight) -> Value {
    let task = |task: &TaskSight| {
        let config = json!({"kinesis.stream": sight.stream, "kinesis.shard": task.shard_id});
        json!({"id": id(sight, task), "config": config})
    };
    sight.tasks.iter().map(task).collect()
}

/// The whole status. Of what is about to restart, that is said instead of its state.
fn status(sight: &Sight, restarts: impl Fn(&TaskSight) -> bool, restarts_connector: bool) -> Value {
    let tasks: Vec<Value> = sight
        .tasks
        .iter()
        .map(|task| task_value(task, restarts(task)))
        .collect();
    json!({
        "name": sight.name,
        "connector": work(&sight.connector, restarts_connector),
        "tasks": tasks,
        "type": TYPE,
    })
}

fn work(work: &Work, restarts: bool) -> Value {
    let state = if restarts {
        StatusState::Restarting
    } else {
        work.state
    };
    let mut value = json!({"state": state.name(), "worker_id": work.worker_id, "version": work.version});
    if let Some(trace) = work.trace.as_ref().filter(|trace| !trace.is_empty()) {
        value["trace"] = json!(trace);
    }
    value
}

fn task_value(task: &TaskSight, restarts: bool) -> Value {
    let mut value = work(&task.work, restarts);
    value["id"] = json!(task.id);
    value
}

fn task_status(name: &str, task: i32, sight: &Sight) -> Answer {
    let found = sight.tasks.iter().find(|found| found.id == task);
    match found.filter(|_| name == sight.name) {
        Some(found) => Answer::Json(200, task_value(found, false)),
        None => Answer::error(404, format!("No status found for task {name}-{task}")),
    }
}

fn restart_task(name: &str, task: i32, sight: &Sight) -> Answer {
    if name != sight.name {
        return Answer::error(404, format!("Unknown connector: {name}"));
    }
    let shard = sight.tasks.iter().find(|found| found.id == task);
    match shard.and_then(|found| found.shard_id.as_deref()) {
        Some(shard) => Answer::Do(
            ControlRequest::Restart,
            Some(BTreeSet::from([ShardId::from(shard)])),
            Box::new(Answer::Empty(204)),
        ),
        None => Answer::error(404, format!("Unknown task: {name}-{task}")),
    }
}

/// A connector of ours is nothing but its tasks: without them there is nothing to restart (Connect: `RestartRequest`).
fn restart(query: &str, sight: &Sight) -> Answer {
    let (tasks, only_failed) = (is_set(query, "includeTasks"), is_set(query, "onlyFailed"));
    if !tasks && !only_failed {
        return Answer::Empty(204);
    }
    let is_failed = |work: &Work| work.state == StatusState::Failed;
    let restarts = |task: &TaskSight| tasks && (!only_failed || is_failed(&task.work));
    let told = status(sight, restarts, !only_failed || is_failed(&sight.connector));
    let told = Answer::Json(202, told);
    let chosen = sight.tasks.iter().filter(|task| restarts(task));
    let shards: BTreeSet<ShardId> = chosen
        .filter_map(|task| task.shard_id.as_deref().map(ShardId::from))
        .collect();
    if shards.is_empty() {
        return told;
    }
    Answer::Do(ControlRequest::Restart, Some(shards), Box::new(told))
}

fn offsets(sight: &Sight) -> Value {
    let of_task = |task: &TaskSight| {
        let partition = json!({"kinesis.stream": sight.stream, "kinesis.shard": task.shard_id});
        let offset = json!({"checkpoint": task.checkpoint.as_ref()?});
        Some(json!({"partition": partition, "offset": offset}))
    };
    let all: Vec<Value> = sight.tasks.iter().filter_map(of_task).collect();
    json!({ "offsets": all })
}
