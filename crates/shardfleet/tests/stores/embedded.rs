//! A DynamoDB of another make in this process, on a port of its own. It knows nothing of leases.

use std::net::TcpListener;

use tokio::sync::oneshot;

/// Runs on a thread and a runtime of its own, so that its disk work does not stall the test; ends when dropped.
pub(crate) struct EmbeddedDynamoDb {
    endpoint: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl EmbeddedDynamoDb {
    /// An empty one, in memory.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("address"));
        listener.set_nonblocking(true).expect("nonblocking");
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("listener");
                let database = dynoxide::Database::memory().expect("database");
                // Connections that clients keep open must not hold up the end.
                tokio::select! {
                    served = dynoxide::server::serve_with_shutdown(listener, database, std::future::pending()) => {
                        served.expect("serve");
                    }
                    _ = stopped => {}
                }
            });
        });
        Self {
            endpoint,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Where it listens.
    pub(crate) fn endpoint(&self) -> String {
        self.endpoint.clone()
    }
}

impl Drop for EmbeddedDynamoDb {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
