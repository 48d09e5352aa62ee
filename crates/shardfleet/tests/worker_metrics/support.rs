//! A folder that stands for a machine, a clock that stands still, and an agent that answers as it is told.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use shardfleet::Timestamp;
use shardfleet::clock::{Clock, SystemClock};
use shardfleet::core::time::Moment;
use shardfleet::worker_metrics::{EcsEndpoint, Files, MetricsEnvironment};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// A clock that moves only when it is told to. Its waits never end.
#[derive(Default)]
pub(crate) struct StillClock(Mutex<Duration>);

impl StillClock {
    pub(crate) fn pass(&self, time: Duration) {
        *self.0.lock().expect("no panic") += time;
    }
}

impl Clock for StillClock {
    fn now(&self) -> Moment {
        Moment::new(*self.0.lock().expect("no panic"))
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(1_764_550_000_000)
    }

    fn sleep_until(&self, _: Moment) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    fn chance(&self) -> f64 {
        0.5
    }
}

/// A machine's files, and a clock that stands still.
pub(crate) struct Machine {
    folder: tempfile::TempDir,
    pub(crate) clock: Arc<StillClock>,
}

impl Machine {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("a folder"),
            clock: Arc::default(),
        }
    }

    pub(crate) fn write(&self, path: &str, text: &str) -> &Self {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        std::fs::write(path, text).expect("a file");
        self
    }

    pub(crate) fn remove(&self, path: &str) {
        std::fs::remove_file(self.folder.path().join(path)).expect("a file");
    }

    pub(crate) fn root(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn files(&self) -> Files {
        Files::new(self.root(), self.clock.clone())
    }

    /// These files, nothing else, and an instance metadata service that nobody listens at.
    pub(crate) fn environment(&self) -> MetricsEnvironment {
        MetricsEnvironment {
            root: self.root().to_owned(),
            is_linux: true,
            ecs_metadata_uri: None,
            ecs_metadata_uri_v4: None,
            instance_metadata_uri: "http://127.0.0.1:1".to_owned(),
        }
    }
}

/// How a path is answered.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Json(String),
    Status(u16),
    /// These bytes, then the end of the connection.
    Raw(Vec<u8>),
    /// These bytes, and the connection stays open.
    Stall(Vec<u8>),
    /// A header, then a body without end, as fast as it is taken.
    Endless,
    /// A header, then a byte of the body every tenth of a second.
    Drip,
}

/// A container agent, or an instance metadata service. Ends when dropped.
pub(crate) struct FakeAgent {
    pub(crate) uri: String,
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    answers: BTreeMap<String, Answer>,
    asked: Vec<String>,
}

impl FakeAgent {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        let task = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let state = shared.clone();
                open.spawn(async move { drop(serve(stream, state).await) });
            }
        });
        Self {
            uri: format!("http://{address}/v4/8d0f6a1c"),
            state,
            task,
        }
    }

    /// With the three documents of a container.
    pub(crate) async fn of(name: &str) -> Self {
        let agent = Self::start().await;
        agent
            .tell("", Answer::Json(document(&format!("{name}-container"))))
            .tell("/task", Answer::Json(document(&format!("{name}-task"))))
            .tell("/stats", Answer::Json(document(&format!("{name}-stats"))));
        agent
    }

    /// What lies at `path` below the container's address.
    pub(crate) fn tell(&self, path: &str, answer: Answer) -> &Self {
        self.tell_absolute(&format!("/v4/8d0f6a1c{path}"), answer)
    }

    pub(crate) fn tell_absolute(&self, path: &str, answer: Answer) -> &Self {
        let mut state = self.state.lock().expect("no panic");
        state.answers.insert(path.to_owned(), answer);
        drop(state);
        self
    }

    /// The address without a path.
    pub(crate) fn origin(&self) -> String {
        self.uri.trim_end_matches("/v4/8d0f6a1c").to_owned()
    }

    /// How often `path` was asked for.
    pub(crate) fn asked(&self, path: &str) -> usize {
        let path = format!("/v4/8d0f6a1c{path}");
        let state = self.state.lock().expect("no panic");
        state
            .asked
            .iter()
            .filter(|line| line.split(' ').nth(1) == Some(&path))
            .count()
    }

    /// Every request so far: its first line and headers.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.state.lock().expect("no panic").asked.clone()
    }

    /// The endpoint, each answer used once.
    pub(crate) fn endpoint(&self) -> Arc<EcsEndpoint> {
        EcsEndpoint::new(&self.uri, Duration::ZERO, SystemClock::shared()).expect("a neighbour")
    }
}

impl Drop for FakeAgent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < 8192 {
        let byte = stream.read_u8().await?;
        head.push(byte);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let answer = {
        let mut state = state.lock().expect("no panic");
        state.asked.push(head);
        state.answers.get(&path).cloned()
    };
    let ok = |length: usize, body: &str| {
        format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
    };
    match answer.unwrap_or(Answer::Status(404)) {
        Answer::Json(body) => stream.write_all(ok(body.len(), &body).as_bytes()).await,
        Answer::Status(status) => {
            let text = format!("HTTP/1.1 {status} Because\r\nContent-Length: 2\r\n\r\n{{}}");
            stream.write_all(text.as_bytes()).await
        }
        Answer::Raw(bytes) => stream.write_all(&bytes).await,
        Answer::Stall(bytes) => {
            stream.write_all(&bytes).await?;
            // Until the asker gives up.
            stream.read_u8().await.map(drop)
        }
        Answer::Endless => {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
                .await?;
            loop {
                stream.write_all(&[b' '; 8192]).await?;
            }
        }
        Answer::Drip => {
            stream.write_all(ok(100_000, "").as_bytes()).await?;
            let clock = SystemClock::new();
            loop {
                stream.write_all(b" ").await?;
                clock.sleep_until(clock.now() + Duration::from_millis(100)).await;
            }
        }
    }
}

/// A document of the container agent.
pub(crate) fn document(name: &str) -> String {
    // Asked for when this runs: clones may share a target folder.
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo runs this");
    let path = format!("{folder}/tests/worker_metrics/data/ecs/{name}.json");
    std::fs::read_to_string(path).expect("a document")
}

/// Asks until the answer is yes, for at most 20 seconds.
pub(crate) async fn until(what: &str, mut ask: impl FnMut() -> bool) {
    let clock = SystemClock::new();
    let limit = clock.now() + Duration::from_secs(20);
    while !ask() {
        assert!(clock.now() < limit, "{what}: not within 20 s");
        clock.sleep_until(clock.now() + Duration::from_millis(10)).await;
    }
}

/// Runs to its end, within 20 seconds.
pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(Duration::from_secs(20), work).await;
    done.unwrap_or_else(|_| panic!("{what}: not within 20 s"))
}

#[track_caller]
pub(crate) fn assert_near(found: Option<f64>, expected: f64) {
    let found = found.expect("a figure");
    assert!((found - expected).abs() < 1e-6, "{found} instead of {expected}");
}
