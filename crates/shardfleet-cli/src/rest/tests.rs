use std::collections::BTreeMap;

use serde_json::{Value, json};
use shardfleet::{ControlRequest, ShardId, TargetState};

use super::answers::{Answer, Asked, answer};
use super::sight::{Health, Sight, TaskSight, Work};

fn work(state: &str) -> Work {
    Work {
        state: state.parse().expect("a state of Connect's"),
        worker_id: "HOST:PORT".to_owned(),
        version: Some("4.3.1".to_owned()),
        trace: None,
    }
}

fn task(id: i32, work: Work) -> TaskSight {
    TaskSight {
        id,
        shard_id: Some(format!("shardId-{id:012}")),
        checkpoint: Some("TRIM_HORIZON".to_owned()),
        work,
    }
}

fn sight(name: &str) -> Sight {
    Sight {
        name: name.to_owned(),
        stream: "foo".to_owned(),
        version: "4.3.1".to_owned(),
        connector: work("RUNNING"),
        tasks: vec![task(0, work("RUNNING")), task(1, work("FAILED"))],
        streams: vec!["foo".to_owned()],
        health: Health::Healthy,
        health_message: "Worker has completed startup and is ready to handle requests.".to_owned(),
    }
}

fn ask(method: &str, path: &str, accept: Option<&str>, sight: &Sight) -> Answer {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let asked = Asked {
        method,
        path,
        query,
        accept,
    };
    answer(&asked, sight)
}

/// What the client sees once what was to be done is done.
fn seen(answer: Answer) -> (u16, Option<&'static str>, Value) {
    match answer {
        Answer::Json(code, body) => (code, Some("application/json"), body),
        Answer::Odd(code, message) => (code, None, super::error_body(code, &message)),
        Answer::Empty(code) => (code, None, Value::Null),
        Answer::Metrics => panic!("Connect has none"),
        Answer::Do(_, _, then) => seen(*then),
    }
}

/// A state as it was before a restart was asked for.
fn before(value: &Value, is_failed: bool) -> Work {
    let text = |name: &str| value[name].as_str().map(str::to_owned);
    let state = match value["state"].as_str().expect("a state") {
        "RESTARTING" if is_failed => "FAILED",
        "RESTARTING" => "RUNNING",
        state => state,
    };
    Work {
        worker_id: text("worker_id").expect("a worker"),
        version: text("version"),
        trace: text("trace"),
        ..work(state)
    }
}

/// What a worker knew that gave this status.
fn known_from(status: &Value, only_failed: bool) -> Sight {
    let tasks = status["tasks"].as_array().expect("tasks");
    let number = |task: &Value| i32::try_from(task["id"].as_i64().expect("a number")).expect("small");
    Sight {
        connector: before(&status["connector"], only_failed),
        tasks: tasks
            .iter()
            .map(|value| task(number(value), before(value, only_failed)))
            .collect(),
        ..sight(status["name"].as_str().expect("a name"))
    }
}

/// Recorded answers that ours are not held to, by what their note begins with, and why.
const LEFT_OUT: [(&str, &str); 21] = [
    ("no connectors yet", "a worker has one application, always"),
    ("plugins", "there are no connector classes to choose from"),
    ("create", "an application is made by its workers"),
    ("config", "it is kept in the workers' files"),
    ("offsets", "checkpoints are not set over REST"),
    ("resume after stop", "the same request as resume"),
    ("topics reset", "what an application reads does not change"),
    ("topics after reset", "the same"),
    ("loggers", "there are none"),
    ("unknown logger", "there are none"),
    ("delete", "an application ends with its lease table"),
    ("deleted", "the same"),
    ("during another change", "nothing is reconfigured here"),
    (
        "name with a slash",
        "Connect cannot be asked for such a name; ours can",
    ),
    ("odd name in a path", "compared by its own test"),
    ("read src", "compared below, but for configuration and offsets"),
    ("read sink", "the same"),
    ("read broken", "the same"),
    ("read still", "the same"),
    ("stopped", "compared below, but for configuration and offsets"),
    ("list", "compared below, connector by connector"),
];

fn recorded() -> Vec<Value> {
    let text = include_str!("../../tests/vectors/connect-rest.json");
    let recorded: Value = serde_json::from_str(text).expect("JSON");
    recorded["answers"].as_array().expect("answers").clone()
}

fn left_out(answer: &Value) -> bool {
    let note = answer["note"].as_str().expect("a note");
    LEFT_OUT.iter().any(|(begins, _)| note.starts_with(begins))
}

/// A body without what is Connect's own: configuration, kinds of connectors, versions of the product.
fn comparable(mut body: Value) -> Value {
    if let Some(object) = body.as_object_mut() {
        for own in ["config", "type", "commit", "kafka_cluster_id"] {
            object.remove(own);
        }
        for value in object.values_mut() {
            *value = comparable(value.take());
        }
    } else if let Some(array) = body.as_array_mut() {
        for value in array {
            *value = comparable(value.take());
        }
    }
    body
}

fn compare(recorded: &Value, sight: &Sight) {
    let text = |name: &str| recorded[name].as_str();
    let (method, path) = (text("method").expect("a method"), text("path").expect("a path"));
    let accept = recorded["request_headers"]["Accept"].as_str();
    let (code, kind, body) = seen(ask(method, path, accept, sight));
    let expected: Value = match text("body") {
        Some(body) if !body.is_empty() => serde_json::from_str(body).expect("JSON"),
        _ => Value::Null,
    };
    let got = (u64::from(code), kind);
    let wanted = (recorded["status"].as_u64().expect("a code"), text("content-type"));
    assert_eq!(got, wanted, "{method} {path}");
    if method != "HEAD" {
        assert_eq!(comparable(body), comparable(expected), "{method} {path}");
    }
}

#[test]
fn what_connect_answered_ours_answers() {
    let mut compared = 0;
    for recorded in recorded().iter().filter(|answer| !left_out(answer)) {
        let body = recorded["body"].as_str().unwrap_or_default();
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        let only_failed = recorded["path"]
            .as_str()
            .is_some_and(|path| path.contains("onlyFailed=true"));
        let path = recorded["path"].as_str().expect("a path");
        let named = path.split(['/', '?']).nth(2).filter(|name| *name != "none");
        let known = if body["connector"].is_object() {
            known_from(&body, only_failed)
        } else {
            sight(named.unwrap_or("src"))
        };
        compare(recorded, &known);
        compared += 1;
    }
    assert!(compared > 45, "{compared}");
    // Nothing is on the list for nothing.
    for (begins, why) in LEFT_OUT {
        let is_there = recorded().iter().any(|answer| {
            answer["note"]
                .as_str()
                .is_some_and(|note| note.starts_with(begins))
        });
        assert!(is_there, "{begins}: {why}");
    }
}

#[test]
fn lists_and_single_connectors_are_connects_but_for_configuration() {
    let mut compared = 0;
    for mut answer in recorded() {
        let note = answer["note"].as_str().expect("a note").to_owned();
        let path = answer["path"].as_str().expect("a path").to_owned();
        let is_read = ["read ", "stopped", "list", "odd name in a path"]
            .iter()
            .any(|begins| note.starts_with(begins));
        if !is_read || path.ends_with("/offsets") || path.ends_with("/config") {
            continue;
        }
        let body: Value = serde_json::from_str(answer["body"].as_str().expect("a body")).expect("JSON");
        if note != "list" {
            compare(&answer, &known_of(&path, &body));
            compared += 1;
            continue;
        }
        let names: Vec<String> = match &body {
            Value::Array(names) => names
                .iter()
                .map(|name| name.as_str().expect("a name").to_owned())
                .collect(),
            Value::Object(entries) => entries.keys().cloned().collect(),
            other => panic!("{other}"),
        };
        for name in names {
            let entry = &body[&name];
            let only = if body.is_array() {
                json!([name])
            } else {
                json!({ name.as_str(): entry })
            };
            let mut known = if entry["status"].is_object() {
                known_from(&entry["status"], false)
            } else {
                sight(&name)
            };
            if let Some(tasks) = entry["info"]["tasks"].as_array() {
                known.tasks.truncate(tasks.len());
            }
            answer["body"] = json!(only.to_string());
            compare(&answer, &known);
            compared += 1;
        }
    }
    assert!(compared > 40, "{compared}");
}

/// What a worker knew that gave this answer about one connector.
fn known_of(path: &str, body: &Value) -> Sight {
    let name = path.split('/').nth(2).expect("a name");
    let mut known = sight(name);
    let with_tasks = |count: usize| (0..count).filter_map(|id| i32::try_from(id).ok());
    if body["connector"].is_object() {
        known = known_from(body, false);
    } else if body["state"].is_string() {
        known.tasks = vec![task(0, before(body, false))];
    } else if let Some(topics) = body[name]["topics"].as_array() {
        known.streams = topics
            .iter()
            .filter_map(|topic| Some(topic.as_str()?.to_owned()))
            .collect();
    } else if let Some(tasks) = body.as_array().or_else(|| body["tasks"].as_array()) {
        known.tasks = with_tasks(tasks.len())
            .map(|id| task(id, work("RUNNING")))
            .collect();
    } else if body["error_code"].is_number() {
        // Of something that is not there: a connector, or its tasks.
        known = sight("src");
        known.tasks.clear();
    }
    known
}

#[test]
fn what_is_asked_of_shards_is_asked() {
    let sight = sight("orders");
    let target = |target| Some((ControlRequest::Target(target), None));
    let restart = |shards: &[&str]| {
        let shards = shards.iter().map(|shard| ShardId::from(*shard)).collect();
        Some((ControlRequest::Restart, Some(shards)))
    };
    let (first, second) = ("shardId-000000000000", "shardId-000000000001");
    for (method, path, expected) in [
        ("PUT", "/connectors/orders/pause", target(TargetState::Paused)),
        ("PUT", "/connectors/orders/resume", target(TargetState::Running)),
        ("PUT", "/connectors/orders/stop", target(TargetState::Stopped)),
        ("POST", "/connectors/orders/restart", None),
        (
            "POST",
            "/connectors/orders/restart?includeTasks=true",
            restart(&[first, second]),
        ),
        (
            "POST",
            "/connectors/orders/restart?includeTasks=TRUE&onlyFailed=true",
            restart(&[second]),
        ),
        ("POST", "/connectors/orders/restart?onlyFailed=true", None),
        ("POST", "/connectors/orders/tasks/0/restart", restart(&[first])),
        ("PUT", "/connectors/others/pause", None),
        ("GET", "/connectors/orders/pause", None),
        ("POST", "/connectors/orders/tasks/7/restart", None),
    ] {
        let done = match ask(method, path, None, &sight) {
            Answer::Do(request, shards, _) => Some((request, shards)),
            _ => None,
        };
        assert_eq!(done, expected, "{method} {path}");
    }
}

#[test]
fn any_name_can_be_asked_for() {
    let long = "n".repeat(1000);
    for (name, in_path) in [
        ("a/b", "a%2Fb"),
        ("..", ".."),
        ("..", "%2E%2E"),
        (" ", "%20"),
        ("ü-0", "%C3%BC-0"),
        ("a+b", "a+b"),
        ("a%b", "a%25b"),
        (long.as_str(), long.as_str()),
    ] {
        let (code, _, body) = seen(ask(
            "GET",
            &format!("/connectors/{in_path}/status"),
            None,
            &sight(name),
        ));
        assert_eq!((code, &body["name"]), (200, &json!(name)), "{in_path}");
    }
    for odd in ["%FF", "a/b", "", "/"] {
        let (code, _, body) = seen(ask(
            "GET",
            &format!("/connectors/{odd}/status"),
            None,
            &sight("orders"),
        ));
        assert_eq!((code, &body["error_code"]), (404, &json!(404)), "{odd}");
    }
}

#[test]
fn a_worker_says_whether_it_is_well() {
    let health = |health| {
        let sight = Sight {
            health,
            ..sight("orders")
        };
        let (code, _, body) = seen(ask("GET", "/health", None, &sight));
        (code, body["status"].as_str().map(str::to_owned))
    };
    let says = |code, text: &str| (code, Some(text.to_owned()));
    assert_eq!(health(Health::Starting), says(503, "starting"));
    assert_eq!(health(Health::Healthy), says(200, "healthy"));
    assert_eq!(health(Health::Unhealthy), says(500, "unhealthy"));
}

#[test]
fn what_is_not_kept_here_is_refused_with_the_reason() {
    let sight = sight("orders");
    for (method, path) in [
        ("POST", "/connectors"),
        ("PUT", "/connectors/orders/config"),
        ("PATCH", "/connectors/orders/config"),
        ("DELETE", "/connectors/orders"),
        ("PATCH", "/connectors/orders/offsets"),
        ("DELETE", "/connectors/orders/offsets"),
    ] {
        let (code, _, body) = seen(ask(method, path, None, &sight));
        assert_eq!(code, 501, "{method} {path}");
        let message = body["message"].as_str().expect("a message");
        assert!(message.contains("no configuration over REST; "), "{message}");
    }
    let codes: BTreeMap<&str, u16> = ["/connectors/others/config", "/connectors/others"]
        .into_iter()
        .map(|path| (path, seen(ask("GET", path, None, &sight)).0))
        .collect();
    assert!(codes.values().all(|code| *code == 404), "{codes:?}");
}

#[test]
fn a_page_of_another_address_may_only_look() {
    use hyper::Method;
    let is_foreign = |method, origin| super::is_foreign(&method, origin, Some("127.0.0.1:8083"));
    assert!(is_foreign(Method::POST, Some("http://evil.example")));
    assert!(is_foreign(Method::PUT, Some("null")));
    assert!(!is_foreign(Method::GET, Some("http://evil.example")));
    assert!(!is_foreign(Method::POST, Some("http://127.0.0.1:8083")));
    assert!(!is_foreign(Method::POST, None));
}

#[test]
fn what_is_encoded_in_a_query_counts_and_kinds_have_no_case() {
    let sight = sight("orders");
    let path = "/connectors/orders/restart?includeTasks=%74rue";
    assert!(matches!(ask("POST", path, None, &sight), Answer::Do(..)));
    let (_, _, body) = seen(ask("GET", "/connectors?expand=%73tatus", None, &sight));
    assert!(body["orders"]["status"].is_object(), "{body}");
    assert_eq!(
        seen(ask("GET", "/connectors", Some("APPLICATION/JSON"), &sight)).0,
        200
    );
}
