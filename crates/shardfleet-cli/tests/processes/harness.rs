//! Embedded services, worker processes, and patience with a deadline.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use shardfleet::kinesis::{KinesisApi, PutOutcome, PutRecord};
use shardfleet::{AwsKinesis, AwsSettings, StreamName};
use shardfleet_local::{ACCESS_KEY_ID, LocalDynamoDb, LocalKinesis, REGION, SECRET_ACCESS_KEY};

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Both services, a folder, and a client.
pub(crate) struct World {
    pub(crate) kinesis: LocalKinesis,
    pub(crate) dynamodb: LocalDynamoDb,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) client: AwsKinesis,
    pub(crate) dynamodb_settings: AwsSettings,
}

impl World {
    pub(crate) async fn start() -> Self {
        let kinesis = LocalKinesis::builder().start().await.expect("Kinesis");
        let dynamodb = LocalDynamoDb::builder().start().await.expect("DynamoDB");
        let client = AwsKinesis::new(&settings(&kinesis.endpoint()).await);
        let dynamodb_settings = settings(&dynamodb.endpoint()).await;
        Self {
            kinesis,
            dynamodb,
            dir: tempfile::tempdir().expect("a folder"),
            client,
            dynamodb_settings,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("write a file");
        path
    }

    /// The binary, with the environment that reaches the services.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardfleet"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("AWS_ENDPOINT_URL_KINESIS", self.kinesis.endpoint())
            .env("AWS_ENDPOINT_URL_DYNAMODB", self.dynamodb.endpoint())
            .env("AWS_REGION", REGION)
            .env("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
            .env("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
            .current_dir(self.dir.path());
        command
    }

    /// Puts records with these payloads and keys; each is acknowledged when this returns.
    pub(crate) async fn put(&self, stream: &str, records: &[(String, String)]) {
        let stream = StreamName::new(stream);
        for page in records.chunks(500) {
            let page: Vec<PutRecord> = page
                .iter()
                .map(|(key, data)| PutRecord {
                    partition_key: key.clone(),
                    explicit_hash_key: None,
                    data: data.clone().into(),
                })
                .collect();
            let outcomes = self.client.put_records(&stream, &page).await.expect("PutRecords");
            assert!(
                outcomes
                    .iter()
                    .all(|outcome| matches!(outcome, PutOutcome::Put { .. })),
                "{outcomes:?}"
            );
        }
    }
}

pub(crate) async fn settings(endpoint: &str) -> AwsSettings {
    let builder = AwsSettings::builder().endpoint_url(endpoint).region(REGION);
    builder.credentials(ACCESS_KEY_ID, SECRET_ACCESS_KEY).load().await
}

/// A process whose output is read as it comes. Killed when dropped.
pub(crate) struct Process {
    child: Child,
    stdout: Lines,
    stderr: Lines,
}

/// Lines that another thread adds to.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<(Mutex<Vec<String>>, Condvar)>);

impl Lines {
    fn read(from: impl std::io::Read + Send + 'static) -> Self {
        let lines = Self::default();
        let to = lines.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                to.0.0.lock().expect("lines").push(line);
                to.0.1.notify_all();
            }
        });
        lines
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.0.lock().expect("lines").clone()
    }

    /// Waits until `enough` says so, or the deadline passes; whether it did.
    pub(crate) fn wait(&self, mut enough: impl FnMut(&[String]) -> bool) -> bool {
        let until = deadline();
        let mut lines = self.0.0.lock().expect("lines");
        while !enough(&lines) {
            let left = until.saturating_duration_since(now());
            if left.is_zero() {
                return false;
            }
            lines = self.0.1.wait_timeout(lines, left).expect("lines").0;
        }
        true
    }
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the process starts");
        let stdout = Lines::read(child.stdout.take().expect("stdout"));
        let stderr = Lines::read(child.stderr.take().expect("stderr"));
        Self {
            child,
            stdout,
            stderr,
        }
    }

    pub(crate) fn stdout(&self) -> &Lines {
        &self.stdout
    }

    pub(crate) fn stderr(&self) -> &Lines {
        &self.stderr
    }

    /// SIGKILL, and what it had printed.
    pub(crate) fn kill(mut self) -> Vec<String> {
        self.child.kill().ok();
        self.child.wait().expect("it ends");
        self.settled_stdout()
    }

    /// Stops every thread of the process, and returns once they stand still.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
        let tasks = format!("/proc/{}/task", self.child.id());
        let until = deadline();
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.expect("a thread").path().join("stat"));
            // The state stands behind the name, which is in brackets.
            stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")))
        };
        while !std::fs::read_dir(&tasks).expect("threads").all(is_stopped) {
            assert!(now() < until, "the process does not stop");
            std::thread::yield_now();
        }
    }

    /// Sends a signal, such as `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &pid])
            .status()
            .expect("kill");
        assert!(sent.success());
    }

    /// SIGTERM; its exit code and what it printed.
    pub(crate) fn terminate(mut self) -> (Option<i32>, Vec<String>) {
        self.signal("TERM");
        let until = deadline();
        while self.child.try_wait().expect("wait").is_none() {
            assert!(now() < until, "it did not end; it said {:?}", self.stderr.all());
            std::thread::yield_now();
        }
        let code = self.child.wait().expect("wait").code();
        (code, self.settled_stdout())
    }

    /// The output of a process that has ended, to the last line.
    fn settled_stdout(&self) -> Vec<String> {
        let until = deadline();
        // The reader's handle on the lines goes when it has read to the end.
        while Arc::strong_count(&self.stdout.0) > 1 && now() < until {
            std::thread::yield_now();
        }
        self.stdout.all()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[expect(clippy::disallowed_methods, reason = "tests of processes run in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn deadline() -> Instant {
    now() + PATIENCE
}

/// A record that a worker printed.
pub(crate) fn parse(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{line:?} is no JSON: {e}"))
}

/// Runs a command to its end: exit code, standard output, standard error.
pub(crate) fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.stdin(Stdio::null()).output().expect("the process starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Runs a command to its end, which must come within `limit`: exit code, standard output, standard error.
pub(crate) async fn run_within(command: Command, limit: Duration) -> (Option<i32>, String, String) {
    let mut command = tokio::process::Command::from(command);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(limit, output).await;
    let output = output
        .unwrap_or_else(|_| panic!("it did not end within {limit:?}"))
        .expect("the process starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The repository's root. Asked for when this runs: clones may share a target folder.
pub(crate) fn root() -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this");
    Path::new(&own).join("../..")
}

/// A row of numbers that looks random and is the same for the same seed (`splitmix64`).
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from(z ^ (z >> 31)).unwrap_or(usize::MAX) % limit
    }
}
