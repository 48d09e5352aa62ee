//! The REST interface of workers, and `shardfleet status`, as their users reach them.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use crate::harness::{PATIENCE, Process, World, deadline, now, parse, run};

/// A name, and how a client may write it in a path.
const APPLICATION: &str = "orders.mail-1_x";
const ENCODED: &str = "orders%2Email-1%5Fx";

struct Worker {
    process: Process,
    address: String,
}

impl Worker {
    fn start(world: &World, id: &str) -> Self {
        let text = format!(
            "stream = \"orders\"\napplication = \"{APPLICATION}\"\nworker_id = \"{id}\"\ninitial_position = \"horizon\"\n\
             [lease_store]\ntype = \"sqlite\"\npath = \"leases.sqlite\"\n\
             [leases]\nfailover_time = \"1500ms\"\n\
             [fleet]\nassignment_strategy = \"lease-count-based\"\nvariance_balancing_frequency = 1\nminimum_stay = \"0s\"\n\
             [worker_metrics]\nsource = \"none\"\nreport_interval = \"500ms\"\n\
             [reading]\npoll_interval = \"50ms\"\n\
             [rest]\nlisten = \"127.0.0.1:0\"\n"
        );
        let config = world.write(&format!("{id}.toml"), &text);
        let process = Process::start(world.command().arg("run").arg("--config").arg(config));
        let is_open = process
            .stderr()
            .wait(|lines| lines.iter().any(|line| line.contains("reading orders")));
        let said = process.stderr().all();
        assert!(is_open, "{id}: {said:?}");
        let at = said
            .iter()
            .find_map(|line| line.split_once("REST at http://"))
            .expect("an address");
        let address = at.1.to_owned();
        Self { process, address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        stream
    }

    /// The code and the body of the answer.
    fn ask(&self, method: &str, path: &str) -> (u16, String) {
        let mut stream = self.connect();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
            self.address
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        (code.expect("a code"), body.to_owned())
    }

    fn of_application(&self, method: &str, rest: &str) -> (u16, String) {
        self.ask(method, &format!("/connectors/{ENCODED}{rest}"))
    }

    fn status(&self) -> Value {
        let (code, body) = self.of_application("GET", "/status");
        assert_eq!(code, 200, "{body}");
        parse(&body)
    }

    /// Waits until it shows the application, and so many tasks, in this state.
    fn until(&self, state: &str, tasks: usize) -> Value {
        let until = deadline();
        loop {
            let status = self.status();
            let shown = status["tasks"].as_array().expect("tasks");
            let is_so = |value: &Value| value["state"] == state;
            if is_so(&status["connector"]) && shown.len() == tasks && shown.iter().all(is_so) {
                return status;
            }
            assert!(now() < until, "not {state}: {status}");
            std::thread::yield_now();
        }
    }

    fn printed(&self) -> usize {
        self.process.stdout().all().len()
    }
}

async fn put(world: &World, phase: &str) {
    let records: Vec<_> = (0..100)
        .map(|n| (format!("key-{n}"), format!("{phase}-{n}")))
        .collect();
    world.put("orders", &records).await;
}

fn until_printed(workers: &[&Worker], count: usize) {
    let until = deadline();
    let printed = || workers.iter().map(|worker| worker.printed()).sum::<usize>();
    while printed() < count {
        assert!(now() < until, "{} of {count} records", printed());
        std::thread::yield_now();
    }
    assert_eq!(printed(), count, "nothing comes twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_is_steered_through_any_of_its_workers() {
    let world = World::start().await;
    world
        .kinesis
        .controls()
        .create_stream("orders", 4)
        .expect("a stream");
    let one = Worker::start(&world, "one");
    let other = Worker::start(&world, "other");
    let both = [&one, &other];
    // A client that says half a word holds a connection, and not for ever.
    let mut slow = one.connect();
    slow.write_all(b"GET /connec").expect("sent");
    put(&world, "first").await;
    until_printed(&both, 100);
    for worker in both {
        let status = worker.until("RUNNING", 4);
        assert_eq!(status["name"], APPLICATION);
    }
    // Both read: each says of the other what the lease rows say.
    let until = deadline();
    let readers = |status: &Value| {
        let tasks = status["tasks"].as_array().expect("tasks").clone();
        let mut readers: Vec<String> = tasks.iter().map(|task| task["worker_id"].to_string()).collect();
        readers.sort();
        readers.dedup();
        readers.len()
    };
    while readers(&one.status()) < 2 || readers(&other.status()) < 2 {
        assert!(now() < until, "{} {}", one.status(), other.status());
        std::thread::yield_now();
    }

    assert_eq!(one.of_application("PUT", "/pause"), (202, String::new()));
    for worker in both {
        worker.until("PAUSED", 4);
    }
    put(&world, "second").await;
    assert_eq!(other.of_application("PUT", "/resume"), (202, String::new()));
    until_printed(&both, 200);
    for worker in both {
        worker.until("RUNNING", 4);
    }

    assert_eq!(other.of_application("PUT", "/stop"), (204, String::new()));
    for worker in both {
        worker.until("STOPPED", 0);
    }
    put(&world, "third").await;
    assert_eq!(one.of_application("PUT", "/resume"), (202, String::new()));
    until_printed(&both, 300);

    for worker in both {
        worker.until("RUNNING", 4);
    }
    let (code, body) = one.of_application("POST", "/restart?includeTasks=true");
    assert_eq!(code, 202);
    let states = parse(&body)["tasks"].clone();
    assert!(
        states
            .as_array()
            .expect("tasks")
            .iter()
            .all(|task| task["state"] == "RESTARTING"),
        "{body}"
    );
    put(&world, "fourth").await;
    until_printed(&both, 400);
    one.until("RUNNING", 4);

    assert_eq!(one.ask("GET", "/health").0, 200);
    let (code, metrics) = one.ask("GET", "/metrics");
    assert_eq!(code, 200);
    let counter = "kafka_connect_status_backing_store_metrics_status_update_success_total ";
    assert!(metrics.lines().any(|line| line.starts_with(counter)), "{metrics}");
    assert_eq!(one.ask("GET", "/nowhere").0, 404);

    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).expect("the connection is closed");

    status_command(&world, &one);
    for worker in [one, other] {
        assert_eq!(worker.process.terminate().0, Some(0));
    }
}

/// `shardfleet status` over REST.
fn status_command(world: &World, worker: &Worker) {
    let url = format!("http://{}", worker.address);
    let (code, out, err) = run(world.command().args(["status", "--url", &url, "--json"]));
    assert_eq!(code, Some(0), "{err}");
    let application = &parse(&out)["applications"][0];
    assert_eq!(application["name"], APPLICATION);
    assert_eq!(application["state"], "RUNNING");
    assert_eq!(application["streams"][0], "orders");
    assert_eq!(application["tasks"].as_array().map(Vec::len), Some(4));

    let (code, out, err) = run(world.command().args(["status", "--url", &url, APPLICATION]));
    assert_eq!(code, Some(0), "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("APPLICATION"), "{out}");
    assert!(lines[1].starts_with(APPLICATION), "{out}");
    assert!(lines[2].trim_start().starts_with("task 0"), "{out}");
    assert!(out.contains(&format!("{APPLICATION} reads orders")), "{out}");

    let (code, _, err) = run(world.command().args(["status", "--url", &url, "nobody"]));
    assert_eq!(code, Some(1));
    assert!(err.contains(APPLICATION), "it names those there are: {err}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_cannot_be_used_is_said_before_anything_is_read() {
    let world = World::start().await;
    world
        .kinesis
        .controls()
        .create_stream("orders", 1)
        .expect("a stream");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("an address").to_string();
    for (listen, reason) in [
        (taken.as_str(), "listening on"),
        ("localhost:8083", "is no address and port"),
        ("127.0.0.1", "is no address and port"),
        ("127.0.0.1:70000", "is no address and port"),
    ] {
        let text =
            format!("stream = \"orders\"\n[lease_store]\ntype = \"memory\"\n[rest]\nlisten = \"{listen}\"\n");
        let config = world.write("worker.toml", &text);
        let (code, _, err) = run(world.command().arg("run").arg("--config").arg(config));
        assert_eq!(code, Some(2), "{listen}: {err}");
        assert!(
            err.contains("rest.listen") && err.contains(reason),
            "{listen}: {err}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_of_statuses_that_is_none_is_named() {
    let world = World::start().await;
    let memory = world.write("memory.toml", "stream = \"orders\"\n");
    let memory = memory.to_str().expect("UTF-8");
    // Nobody listens there.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let gone = listener.local_addr().expect("an address").to_string();
    drop(listener);
    let url = format!("http://{gone}");
    for (arguments, expected, words) in [
        (vec![], 2, "--kafka"),
        (vec!["--config", memory], 2, "keep their statuses in memory"),
        (vec!["--config", "nowhere.toml"], 2, "nowhere.toml"),
        (vec!["--url", "ftp://x"], 2, "http://HOST:PORT"),
        (vec!["--url", &url], 1, "onnect"),
        (vec!["--kafka", &gone, "--timeout", "2s"], 1, &gone),
        (vec!["--kafka", &gone, "--url", &url], 2, "cannot be used with"),
    ] {
        let (code, out, err) = run(world.command().arg("status").args(&arguments));
        assert_eq!(code, Some(expected), "{arguments:?}: {out}{err}");
        assert!(err.contains(words), "{arguments:?}: {err}");
    }
}
