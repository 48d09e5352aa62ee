//! The data folder: an append-only journal of what changed.
//!
//! ```text
//! kinesis.lock      held while a service has the folder open
//! kinesis.journal   magic (8 bytes), then frames: u32 length | u32 CRC32 of the body | body
//! body              'S' stream snapshot as JSON | 'D' stream id | 'R' records
//! ```
//!
//! Every change is written before it is answered, in one `write`, without fsync: it survives the process's death, and a
//! power cut may cost the newest part. A torn frame at the end is cut off at the next start; damage before it is refused.
//! When more than half of the journal is dead, the next start writes it anew beside the old one and renames it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{Buf, Bytes};

use crate::error::LocalError;
use crate::model::{Account, Change, Now, Shard};

const MAGIC: &[u8; 8] = b"sfkin\x00\x01\n";
/// Longest frame: far above the largest put, far below what a garbled length may claim.
const MAX_FRAME: u32 = 256 * 1024 * 1024;
/// A journal smaller than this is never written anew.
const COMPACT_FROM: u64 = 4 * 1024 * 1024;

/// An open journal.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    buffer: Vec<u8>,
    /// Set once a write failed: the file's end is unknown, so nothing may follow it.
    broken: bool,
    /// Keeps the folder locked.
    _lock: File,
}

/// How often a locked folder is tried, [`LOCK_PAUSE`] apart.
const LOCK_TRIES: u32 = 40;

/// See [`LOCK_TRIES`].
const LOCK_PAUSE: Duration = Duration::from_millis(25);

/// Locks the file; `false` when another service keeps it locked. A process that is being started holds a copy of every open file of its parent for a
/// moment, locks included, so one refusal proves nothing.
#[expect(
    clippy::disallowed_methods,
    reason = "runs on the service's own thread before it serves"
)]
fn lock_patiently(lock: &File) -> std::io::Result<bool> {
    for _ in 0..LOCK_TRIES {
        match lock.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(source)) => return Err(source),
        }
    }
    Ok(false)
}

impl Journal {
    /// Opens a folder, making it if need be, and replays what it holds into `account`.
    pub(crate) fn open(folder: &Path, account: &mut Account, now: Now) -> Result<Self, LocalError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| LocalError::Data { path, source }
        };
        std::fs::create_dir_all(folder).map_err(failed(folder))?;
        let lock_path = folder.join("kinesis.lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path);
        let lock = lock.map_err(failed(&lock_path))?;
        match lock_patiently(&lock) {
            Ok(true) => {}
            Ok(false) => {
                return Err(LocalError::InUse {
                    path: folder.to_owned(),
                });
            }
            Err(source) => {
                return Err(LocalError::Data {
                    path: lock_path,
                    source,
                });
            }
        }
        let path = folder.join("kinesis.journal");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path);
        let mut file = file.map_err(failed(&path))?;
        let length = replay(&mut file, &path, account)?;
        account.finish_restore();
        account.settle(now);
        let live: u64 = account
            .streams()
            .flat_map(|s| s.shards.values())
            .flat_map(Shard::records)
            .map(|r| r.size() as u64)
            .sum();
        if length > COMPACT_FROM && live < length / 2 {
            file = rewrite(folder, &path, account).map_err(failed(&path))?;
        }
        file.seek(SeekFrom::End(0)).map_err(failed(&path))?;
        let mut journal = Self {
            file,
            buffer: Vec::new(),
            broken: false,
            _lock: lock,
        };
        journal.append(&account.take_changes()).map_err(failed(&path))?;
        Ok(journal)
    }

    /// Keeps changes, all in one write.
    pub(crate) fn append(&mut self, changes: &[Change]) -> io::Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        if self.broken {
            return Err(io::Error::other(
                "an earlier write failed; start the service again",
            ));
        }
        self.buffer.clear();
        for change in changes {
            write_frame(&mut self.buffer, change)?;
        }
        let written = self.file.write_all(&self.buffer);
        self.broken = written.is_err();
        // One huge put must not keep its size of memory for ever.
        if self.buffer.capacity() > 4 * 1024 * 1024 {
            self.buffer = Vec::new();
        }
        written
    }
}

fn write_frame(out: &mut Vec<u8>, change: &Change) -> io::Result<()> {
    let start = out.len();
    out.extend_from_slice(&[0; 8]);
    match change {
        Change::Deleted { stream_id } => {
            out.push(b'D');
            out.extend_from_slice(&stream_id.to_be_bytes());
        }
        Change::Stream(snapshot) => {
            out.push(b'S');
            serde_json::to_writer(&mut *out, snapshot)?;
        }
        Change::Records { stream_id, records } => {
            out.push(b'R');
            out.extend_from_slice(&stream_id.to_be_bytes());
            for (shard, record) in records {
                out.extend_from_slice(&shard.to_be_bytes());
                out.extend_from_slice(&record.index.to_be_bytes());
                out.extend_from_slice(&record.arrival_ms.to_be_bytes());
                for part in [&record.key, &record.data] {
                    let length = u32::try_from(part.len()).map_err(io::Error::other)?;
                    out.extend_from_slice(&length.to_be_bytes());
                }
                out.extend_from_slice(&record.key);
                out.extend_from_slice(&record.data);
            }
        }
    }
    let length = u32::try_from(out.len() - start - 8).map_err(io::Error::other)?;
    let sum = crc32fast::hash(&out[start + 8..]);
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    out[start + 4..start + 8].copy_from_slice(&sum.to_be_bytes());
    Ok(())
}

/// Replays the file and cuts off a torn end. Returns the length of what is sound.
fn replay(file: &mut File, path: &Path, account: &mut Account) -> Result<u64, LocalError> {
    let failed = |source| LocalError::Data {
        path: path.to_owned(),
        source,
    };
    let damaged = |offset, problem| LocalError::Damaged {
        path: path.to_owned(),
        offset,
        problem,
    };
    let size = file.metadata().map_err(failed)?.len();
    let mut reader = BufReader::with_capacity(1 << 20, &mut *file);
    let mut sound = 0;
    if size >= MAGIC.len() as u64 {
        let mut magic = [0; 8];
        reader.read_exact(&mut magic).map_err(failed)?;
        if magic != *MAGIC {
            return Err(damaged(
                0,
                "this is no journal of an embedded Kinesis, or one of another version",
            ));
        }
        sound = MAGIC.len() as u64;
        while size - sound >= 8 {
            let mut head = [0; 8];
            reader.read_exact(&mut head).map_err(failed)?;
            let [a, b, c, d, sum @ ..] = head;
            let length = u32::from_be_bytes([a, b, c, d]);
            let end = sound + 8 + u64::from(length);
            // A length that was never written, or whose body was not: the end is torn.
            if length == 0 || end > size {
                break;
            }
            if length > MAX_FRAME {
                return Err(damaged(sound, "a frame claims an impossible length"));
            }
            let mut body = vec![0; length as usize];
            reader.read_exact(&mut body).map_err(failed)?;
            if crc32fast::hash(&body).to_be_bytes() != sum {
                if end == size {
                    break;
                }
                return Err(damaged(sound, "a frame's checksum is wrong"));
            }
            restore(Bytes::from(body), account)
                .ok_or_else(|| damaged(sound, "a frame cannot be understood"))?;
            sound = end;
        }
    }
    drop(reader);
    if sound < size {
        tracing::warn!(path = %path.display(), from = sound, bytes = size - sound, "cut a torn end off the journal");
        file.set_len(sound).map_err(failed)?;
    }
    if sound == 0 {
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        file.write_all(MAGIC).map_err(failed)?;
    }
    Ok(sound)
}

fn restore(mut body: Bytes, account: &mut Account) -> Option<()> {
    match body.try_get_u8().ok()? {
        b'S' => account.restore_stream(serde_json::from_slice(&body).ok()?),
        b'D' => account.restore_deletion(body.try_get_u64().ok()?),
        b'R' => {
            let stream_id = body.try_get_u64().ok()?;
            while body.has_remaining() {
                let shard = body.try_get_u32().ok()?;
                let index = body.try_get_u64().ok()?;
                let arrival_ms = body.try_get_u64().ok()?;
                let key_length = body.try_get_u32().ok()? as usize;
                let data_length = body.try_get_u32().ok()? as usize;
                if body.remaining() < key_length.checked_add(data_length)? {
                    return None;
                }
                let key = body.split_to(key_length);
                std::str::from_utf8(&key).ok()?;
                let data = body.split_to(data_length);
                account.restore_record(stream_id, shard, index, arrival_ms, key, data);
            }
        }
        _ => return None,
    }
    Some(())
}

/// Writes what is alive to a new file and puts it in the old one's place.
fn rewrite(folder: &Path, path: &Path, account: &Account) -> io::Result<File> {
    let new_path: PathBuf = folder.join("kinesis.journal.new");
    let new = OpenOptions::new()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(&new_path)?;
    let mut writer = BufWriter::with_capacity(1 << 20, new);
    writer.write_all(MAGIC)?;
    let mut frame = Vec::new();
    for change in account.everything() {
        frame.clear();
        write_frame(&mut frame, &change)?;
        writer.write_all(&frame)?;
    }
    let new = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
    // The old journal may only go once the new one is really there.
    new.sync_all()?;
    std::fs::rename(&new_path, path)?;
    Ok(new)
}
