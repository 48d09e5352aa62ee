//! Starting and stopping the embedded Kinesis.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use crate::clock::ServiceClock;
use crate::controls::KinesisControls;
use crate::error::LocalError;
use crate::journal::Journal;
use crate::model::Account;
use crate::server;
use crate::service::Service;
use crate::settings::KinesisSettings;

/// How long open connections get to end once the service stops.
const STOP_TIME: Duration = Duration::from_secs(1);

/// A running embedded Kinesis.
///
/// It runs on threads of its own, so that a busy or paused runtime of the caller's does not hold it up. Dropping it stops it,
/// and waits until its port and data folder are free again.
#[derive(Debug)]
pub struct LocalKinesis {
    address: SocketAddr,
    controls: KinesisControls,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    /// Resolves when the thread is about to end.
    ended: Option<oneshot::Receiver<()>>,
}

/// Settings of a service to start: see [`LocalKinesis::builder`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct LocalKinesisBuilder {
    port: u16,
    data_dir: Option<PathBuf>,
    settings: KinesisSettings,
}

impl LocalKinesis {
    /// A service on any free port, in memory, with default settings.
    pub fn builder() -> LocalKinesisBuilder {
        LocalKinesisBuilder::default()
    }

    /// The endpoint for a client: `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The port that is listened on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Clock, limits, faults, counters and data.
    pub fn controls(&self) -> KinesisControls {
        self.controls.clone()
    }

    /// Stops the service. Connections are cut, subscriptions included.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        if let Some(ended) = self.ended.take() {
            // An error means that the thread is gone already.
            drop(tokio::time::timeout(STOP_TIME * 2, ended).await);
        }
    }
}

impl Drop for LocalKinesis {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the embedded Kinesis panicked");
        }
    }
}

impl LocalKinesisBuilder {
    /// The port on 127.0.0.1; 0, the default, takes any free one.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Keeps the data in a folder, which is made if need be. Without one they are in memory only.
    ///
    /// With or without a folder all records that are within retention are held in memory, without a limit: this is a service
    /// for tests and small data.
    pub fn data_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.data_dir = Some(path.into());
        self
    }

    /// Times, quotas and limits.
    pub fn settings(mut self, settings: KinesisSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Starts the service; it answers when this returns.
    ///
    /// # Errors
    /// When the port is taken, or the data folder cannot be used.
    pub async fn start(self) -> Result<LocalKinesis, LocalError> {
        let Self {
            port,
            data_dir,
            settings,
        } = self;
        let bind = |source| LocalError::Bind { port, source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(bind)?;
        listener.set_nonblocking(true).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let (stop, stopped) = watch::channel(false);
        let (ready_sender, ready) = oneshot::channel();
        let (ended_sender, ended) = oneshot::channel();
        let run = move || {
            // Opening a large folder takes a while, so it is done here rather than on the caller's runtime.
            let started = open(settings, data_dir).and_then(|service| Ok((service, runtime()?)));
            match started {
                Ok((service, runtime)) => {
                    // The receiver is gone if nobody waits for the start any more; then this ends with the builder's future.
                    if ready_sender
                        .send(Ok(KinesisControls::new(Arc::clone(&service))))
                        .is_ok()
                    {
                        runtime.block_on(server::serve(listener, Arc::clone(&service), stopped));
                    }
                    runtime.shutdown_timeout(STOP_TIME);
                    service.close();
                }
                Err(error) => drop(ready_sender.send(Err(error))),
            }
            // The receiver is gone where the service was dropped rather than stopped: nobody waits.
            ended_sender.send(()).unwrap_or_default();
        };
        let thread = std::thread::Builder::new()
            .name("local-kinesis".to_owned())
            .spawn(run);
        let thread = thread.map_err(|source| LocalError::Runtime { source })?;
        let controls = ready.await.unwrap_or_else(|_| {
            Err(LocalError::Runtime {
                source: std::io::Error::other("the service's thread ended at once"),
            })
        })?;
        Ok(LocalKinesis {
            address,
            controls,
            stop,
            thread: Some(thread),
            ended: Some(ended),
        })
    }
}

fn open(settings: KinesisSettings, data_dir: Option<PathBuf>) -> Result<Arc<Service>, LocalError> {
    let clock = ServiceClock::new();
    let mut account = Account::new(settings, data_dir.is_some());
    let journal = data_dir
        .map(|folder| Journal::open(&folder, &mut account, clock.now()))
        .transpose()?;
    Ok(Arc::new(Service::new(account, journal, clock)))
}

fn runtime() -> Result<tokio::runtime::Runtime, LocalError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("local-kinesis")
        .enable_all()
        .build()
        .map_err(|source| LocalError::Runtime { source })
}
