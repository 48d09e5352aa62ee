//! Where records go that no attempt could process.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::record::Record;

/// A record that was set aside, as it stands in a file of JSON lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The stream it was read from.
    pub stream: String,
    /// The shard it was read from.
    pub shard_id: String,
    /// Its sequence number, or that of the aggregated record around it.
    pub sequence_number: String,
    /// Its place inside an aggregated record; 0 otherwise.
    pub sub_sequence_number: u64,
    /// The key it was put with, if any.
    pub partition_key: Option<String>,
    /// The hash key it was put with inside an aggregated record, if it was.
    #[serde(default)]
    pub explicit_hash_key: Option<String>,
    /// The payload in base64.
    pub data_base64: String,
    /// The last failure.
    pub reason: String,
    /// How many attempts there were.
    pub attempts: u32,
}

impl DeadLetter {
    pub(crate) fn new(stream: &str, record: &Record, reason: &str, attempts: u32) -> Self {
        Self {
            stream: stream.to_owned(),
            shard_id: record.shard_id.to_string(),
            sequence_number: record.position.checkpoint_text().to_owned(),
            sub_sequence_number: record.position.sub_sequence_number(),
            partition_key: record.partition_key.as_deref().map(str::to_owned),
            explicit_hash_key: record.explicit_hash_key.as_deref().map(str::to_owned),
            data_base64: STANDARD.encode(&record.data),
            reason: reason.to_owned(),
            attempts,
        }
    }

    /// The payload.
    ///
    /// # Errors
    /// When the text is no base64.
    pub fn data(&self) -> Result<Vec<u8>, base64::DecodeError> {
        STANDARD.decode(&self.data_base64)
    }
}

/// Keeps records that no attempt could process. A record counts as settled once [`put`](Self::put) returned `Ok`, so it must be durable by then.
#[async_trait]
pub trait DeadLetterQueue: Send + Sync + 'static {
    /// Keeps one record.
    async fn put(&self, letter: DeadLetter) -> io::Result<()>;

    /// What it is, for messages.
    fn describe(&self) -> String;
}

/// A file of JSON lines, one per record, appended to and written through to the disk. `shardfleet redrive` puts its records onto a stream again.
#[derive(Clone, Debug)]
pub struct DeadLetterFile {
    path: PathBuf,
    file: Arc<Mutex<File>>,
}

impl DeadLetterFile {
    /// Opens the file, creating it if there is none.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref().to_owned();
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .read(true)
            .open(&path)?;
        end_last_line(&mut file)?;
        Ok(Self {
            path,
            file: Arc::new(Mutex::new(file)),
        })
    }
}

/// Puts what a crash or a full disk left of a line onto a line of its own, so that it does not spoil the next one.
fn end_last_line(file: &mut File) -> io::Result<()> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(());
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    if last == *b"\n" {
        Ok(())
    } else {
        file.write_all(b"\n")
    }
}

#[async_trait]
impl DeadLetterQueue for DeadLetterFile {
    async fn put(&self, letter: DeadLetter) -> io::Result<()> {
        let mut line = serde_json::to_vec(&letter)?;
        line.push(b'\n');
        let file = Arc::clone(&self.file);
        // The disk may be slow; the other shards' tasks must not wait for it.
        let written = tokio::task::spawn_blocking(move || {
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            end_last_line(&mut file)?;
            file.write_all(&line)?;
            file.sync_data()
        });
        written.await.map_err(io::Error::other)?
    }

    fn describe(&self) -> String {
        format!("file {}", self.path.display())
    }
}
