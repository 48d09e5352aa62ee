//! Reads that lag behind writes, which the database itself never shows.
//!
//! While a lag is set there is a second database. It begins as a copy, and each write that the first one has performed is
//! performed on it too, later: after a set time, or once so many newer writes are waiting. Reads that may lag are answered by
//! it, so they show the items as they all were at one moment, as a lagging index does. Writes go one after the other
//! meanwhile, so that both databases see one order. Writes that another process makes on the same file are not seen.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use super::call::Call;
use super::inner::Inner;
use super::time;

/// Most writes that can be held back. Beyond it the oldest becomes visible early.
pub const MAX_LAGGING_WRITES: usize = 100_000;

/// How far reads lag behind, and which reads.
///
/// As JSON: `{"millis":500}` or `{"writes":3}`, with `"all_reads":true` for more than indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenLag", into = "WrittenLag")]
pub struct DynamoLag {
    behind: Behind,
    all_reads: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    Time(Duration),
    Writes(usize),
}

impl DynamoLag {
    /// A write becomes visible so long after it was performed.
    pub fn by_time(time: Duration) -> Self {
        Self {
            behind: Behind::Time(time),
            all_reads: false,
        }
    }

    /// The last so many writes are not visible yet, [`MAX_LAGGING_WRITES`] at most.
    pub fn by_writes(writes: usize) -> Self {
        Self {
            behind: Behind::Writes(writes),
            all_reads: false,
        }
    }

    /// No write becomes visible until this lag ends, as far as [`MAX_LAGGING_WRITES`] go.
    pub fn frozen() -> Self {
        Self::by_writes(MAX_LAGGING_WRITES)
    }

    /// Every read that does not ask for `ConsistentRead` lags. Default: only those of an index.
    #[must_use]
    pub fn all_reads(mut self) -> Self {
        self.all_reads = true;
        self
    }

    pub(super) fn is_for_all_reads(self) -> bool {
        self.all_reads
    }
}

/// A lag as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLag {
    #[serde(default)]
    millis: Option<u64>,
    #[serde(default)]
    writes: Option<usize>,
    #[serde(default)]
    all_reads: bool,
}

impl TryFrom<WrittenLag> for DynamoLag {
    type Error = &'static str;

    fn try_from(written: WrittenLag) -> Result<Self, Self::Error> {
        let behind = match (written.millis, written.writes) {
            (Some(millis), None) => Behind::Time(Duration::from_millis(millis)),
            (None, Some(writes)) => Behind::Writes(writes),
            _ => return Err("either millis or writes is expected"),
        };
        Ok(Self {
            behind,
            all_reads: written.all_reads,
        })
    }
}

impl From<DynamoLag> for WrittenLag {
    fn from(lag: DynamoLag) -> Self {
        let (millis, writes) = match lag.behind {
            Behind::Time(time) => (Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)), None),
            Behind::Writes(writes) => (None, Some(writes)),
        };
        Self {
            millis,
            writes,
            all_reads: lag.all_reads,
        }
    }
}

/// The database that lags.
#[derive(Debug)]
pub(super) struct Replica {
    /// Which beginning of a lag it is of.
    pub(super) beginning: u64,
    inner: Inner,
    server: AbortHandle,
    /// Writes that it has not performed yet, oldest first, with when the first database had performed them.
    waiting: VecDeque<(Instant, Call)>,
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Replica {
    /// Copies the database.
    pub(super) async fn begin(database: &dynoxide::Database, beginning: u64) -> Result<Self, String> {
        let original = database.clone();
        let copy = tokio::task::spawn_blocking(move || copy(&original))
            .await
            .map_err(|e| e.to_string())??;
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .map_err(|e| e.to_string())?;
        let address: SocketAddr = listener.local_addr().map_err(|e| e.to_string())?;
        let served = dynoxide::server::serve_with_shutdown(listener, copy, std::future::pending());
        Ok(Self {
            beginning,
            inner: Inner::new(address),
            server: tokio::spawn(served).abort_handle(),
            waiting: VecDeque::new(),
        })
    }

    /// Takes note of a write that the first database has performed.
    pub(super) async fn note_write(&mut self, call: Call) -> Result<(), String> {
        if self.waiting.len() >= MAX_LAGGING_WRITES {
            self.perform_oldest().await?;
        }
        self.waiting.push_back((time::now(), call));
        Ok(())
    }

    /// Performs a change of tables at once, behind all writes.
    pub(super) async fn change_tables(&mut self, call: &Call) -> Result<(), String> {
        while !self.waiting.is_empty() {
            self.perform_oldest().await?;
        }
        self.inner.forward(call).await.map(drop)
    }

    /// Answers a read as of so far back.
    pub(super) async fn read(&mut self, lag: DynamoLag, call: &Call) -> Result<super::inner::Reply, String> {
        let now = time::now();
        while let Some((performed, _)) = self.waiting.front() {
            let is_visible = match lag.behind {
                Behind::Time(time) => now.saturating_duration_since(*performed) >= time,
                Behind::Writes(writes) => self.waiting.len() > writes,
            };
            if !is_visible {
                break;
            }
            self.perform_oldest().await?;
        }
        self.inner.forward(call).await
    }

    async fn perform_oldest(&mut self) -> Result<(), String> {
        let Some((_, call)) = self.waiting.pop_front() else {
            return Ok(());
        };
        let reply = self.inner.forward(&call).await?;
        if reply.status.is_success() {
            return Ok(());
        }
        Err(format!(
            "the lagging copy answered {} to {}",
            reply.status, call.operation
        ))
    }
}

/// A copy in memory.
fn copy(original: &dynoxide::Database) -> Result<dynoxide::Database, String> {
    static COPIES: AtomicU64 = AtomicU64::new(0);
    let number = COPIES.fetch_add(1, Ordering::Relaxed);
    let name = format!("shardfleet-lag-{}-{number}.sqlite", std::process::id());
    let path = std::env::temp_dir().join(name);
    let text = path
        .to_str()
        .ok_or("the folder for temporary files is not UTF-8")?;
    let copied = original
        .vacuum_into(text)
        .and_then(|()| {
            let copy = dynoxide::Database::memory()?;
            copy.restore_from(text)?;
            Ok(copy)
        })
        .map_err(|e| format!("copying the database through {text} failed: {e}"));
    if let Err(error) = std::fs::remove_file(&path) {
        tracing::debug!(%error, path = %path.display(), "a temporary copy was not removed");
    }
    copied
}
