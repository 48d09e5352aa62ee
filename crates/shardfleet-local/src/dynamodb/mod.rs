//! Embedded DynamoDB: the server of `dynoxide-rs` with a layer in front that counts calls, makes faults on demand, and answers what that
//! server does not.
//!
//! It runs on a thread and a runtime of its own, so that disk work of the database never stalls the tasks of whoever uses it. The front listens on
//! 127.0.0.1 only. What the database itself cannot show is made here: throttling, errors, lost answers and outages by
//! [`DynamoFaultRule`]s, and an index that lags by a [`DynamoLag`]. Tests in other processes ask for the same over HTTP, below
//! `/_shardfleet/` of the endpoint (`remote.rs` in this folder lists the requests).
//!
//! Never here: other regions' behaviour, capacity accounting, authentication. ARNs name the region `dynoxide`.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::oneshot;

mod backups;
mod call;
mod controls;
mod faults;
mod front;
mod inner;
mod lag;
mod remote;
mod time;

pub use controls::DynamoControls;
pub use faults::{DynamoFault, DynamoFaultId, DynamoFaultRule, DynamoFaultTimes, MAX_DYNAMO_FAULT_RULES};
pub use lag::{DynamoLag, MAX_LAGGING_WRITES};

use front::Front;
use inner::Inner;

/// How long the end waits for work on the database that is under way.
const STOP_TIME: Duration = Duration::from_secs(5);

/// A running DynamoDB. Dropping it stops it; [`stop`](Self::stop) waits until it has ended.
#[derive(Debug)]
pub struct LocalDynamoDb {
    endpoint: String,
    controls: DynamoControls,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Builds a [`LocalDynamoDb`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct LocalDynamoDbBuilder {
    port: u16,
    data_dir: Option<PathBuf>,
}

/// Why the embedded DynamoDB could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalDynamoDbError {
    /// The port cannot be listened on.
    #[error(
        "listening on 127.0.0.1:{port} failed; another program may use the port, and port 0 takes any free one"
    )]
    Listen {
        /// The port asked for.
        port: u16,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The data folder cannot be used.
    #[error("opening the database in {} failed: {reason}", path.display())]
    Open {
        /// The database file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// No thread or runtime could be started.
    #[error("starting the server's thread failed")]
    Start(#[source] std::io::Error),
}

impl LocalDynamoDb {
    /// Starts to describe one.
    pub fn builder() -> LocalDynamoDbBuilder {
        LocalDynamoDbBuilder::default()
    }

    /// Where it is reached: `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    /// Faults and counters.
    pub fn controls(&self) -> DynamoControls {
        self.controls.clone()
    }

    /// Stops it and waits until it has ended.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread may be writing to a disk, which must not hold up the caller's runtime.
            tokio::task::spawn_blocking(move || thread.join().ok()).await.ok();
        }
    }
}

impl Drop for LocalDynamoDb {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

impl LocalDynamoDbBuilder {
    /// The port on 127.0.0.1. Default 0: any free one.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Keeps the tables in this folder, which is created if need be. What was answered survives a kill. Default: in memory.
    pub fn data_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(dir.into());
        self
    }

    /// Starts it. It can be used once this returns.
    pub async fn start(self) -> Result<LocalDynamoDb, LocalDynamoDbError> {
        let listen_failed = |source| LocalDynamoDbError::Listen {
            port: self.port,
            source,
        };
        let front = std::net::TcpListener::bind(("127.0.0.1", self.port)).map_err(listen_failed)?;
        let inner = std::net::TcpListener::bind(("127.0.0.1", 0)).map_err(listen_failed)?;
        let endpoint = format!("http://{}", front.local_addr().map_err(listen_failed)?);
        let inner_address = inner.local_addr().map_err(listen_failed)?;
        for listener in [&front, &inner] {
            listener.set_nonblocking(true).map_err(listen_failed)?;
        }
        let controls = DynamoControls::default();
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready_to, ready) = oneshot::channel();
        let served_controls = controls.clone();
        let thread = std::thread::Builder::new()
            .name("local-dynamodb".into())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build();
                let runtime = match runtime {
                    Ok(runtime) => runtime,
                    Err(error) => {
                        ready_to.send(Err(LocalDynamoDbError::Start(error))).ok();
                        return;
                    }
                };
                let opened = runtime.block_on(async {
                    let database = open(self.data_dir)?;
                    let inner = TcpListener::from_std(inner).map_err(LocalDynamoDbError::Start)?;
                    let front = TcpListener::from_std(front).map_err(LocalDynamoDbError::Start)?;
                    let front_of = Front::new(database.clone(), Inner::new(inner_address), served_controls);
                    tokio::spawn(dynoxide::server::serve_with_shutdown(
                        inner,
                        database,
                        std::future::pending(),
                    ));
                    tokio::spawn(front_of.serve(front));
                    Ok(())
                });
                let is_open = opened.is_ok();
                ready_to.send(opened).ok();
                if is_open {
                    // Ends when the handle is dropped or stopped.
                    runtime.block_on(stopped).ok();
                }
                // Connections that clients keep open do not hold up the end; a write that is being made does.
                runtime.shutdown_timeout(STOP_TIME);
            });
        let thread = thread.map_err(LocalDynamoDbError::Start)?;
        ready.await.unwrap_or_else(|_| {
            Err(LocalDynamoDbError::Start(std::io::Error::other(
                "its thread ended",
            )))
        })?;
        Ok(LocalDynamoDb {
            endpoint,
            controls,
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

fn open(data_dir: Option<PathBuf>) -> Result<dynoxide::Database, LocalDynamoDbError> {
    let Some(dir) = data_dir else {
        return dynoxide::Database::memory().map_err(|e| LocalDynamoDbError::Open {
            path: "memory".into(),
            reason: e.to_string(),
        });
    };
    let path = dir.join("dynamodb.sqlite");
    let fail = |reason: String| LocalDynamoDbError::Open {
        path: path.clone(),
        reason,
    };
    std::fs::create_dir_all(&dir).map_err(|e| fail(e.to_string()))?;
    let text = path
        .to_str()
        .ok_or_else(|| fail("the path is not UTF-8".to_owned()))?;
    dynoxide::Database::new(text).map_err(|e| fail(e.to_string()))
}
