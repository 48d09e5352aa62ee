//! The file itself: opening, its schema and whose it is, transactions, and what SQLite's errors mean.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};
use shardfleet_core::ids::ApplicationName;

use crate::store::{StoreError, StoreErrorKind};

/// Marks the file as ours in SQLite's header: "sflt".
const APPLICATION_ID: i32 = 0x7366_6C74;
const SCHEMA_VERSION: i32 = 3;
/// How long to wait for another process's transaction. They take milliseconds, so this means a stopped process or a dead disk.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
const OPEN_ATTEMPTS: u32 = 50;
const BETWEEN_OPEN_ATTEMPTS: Duration = Duration::from_millis(50);

const SCHEMA: &str = "
CREATE TABLE fleet (
    application_name TEXT NOT NULL
) STRICT;
CREATE TABLE lease (
    lease_key TEXT NOT NULL PRIMARY KEY,
    owner TEXT,
    counter INTEGER NOT NULL,
    owner_switches_since_checkpoint INTEGER NOT NULL,
    checkpoint TEXT NOT NULL,
    checkpoint_sub_sequence_number INTEGER NOT NULL,
    pending_checkpoint TEXT,
    pending_checkpoint_sub_sequence_number INTEGER,
    pending_checkpoint_state BLOB,
    parent_shard_ids TEXT NOT NULL,
    child_shard_ids TEXT NOT NULL,
    starting_hash_key TEXT,
    ending_hash_key TEXT,
    throughput_kbps REAL,
    checkpoint_owner TEXT,
    opened_at TEXT,
    stream_created_at INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX lease_owner ON lease (owner, lease_key);
";

/// What version 2 adds, to a new file and to one of version 1.
const FLEET_SCHEMA: &str = "
CREATE TABLE leader_lock (
    owner_name TEXT,
    lease_duration TEXT,
    record_version_number TEXT,
    is_released TEXT
) STRICT;
CREATE TABLE worker_metric_stats (
    worker_id TEXT NOT NULL PRIMARY KEY,
    last_update_seconds INTEGER,
    metrics TEXT NOT NULL,
    support_code INTEGER,
    support_code_updated_seconds INTEGER
) STRICT, WITHOUT ROWID;
";

/// What version 3 adds.
const CONTROL_SCHEMA: &str = "ALTER TABLE lease ADD COLUMN control TEXT;";

/// The file as its thread knows it: opened when it is first needed, and again after an attempt that failed.
pub(super) struct LeaseFile {
    path: Arc<Path>,
    application_name: ApplicationName,
    connection: Option<Connection>,
}

impl LeaseFile {
    pub(super) fn new(path: Arc<Path>, application_name: ApplicationName) -> Self {
        Self {
            path,
            application_name,
            connection: None,
        }
    }

    /// Runs `job` in a transaction; commits if it succeeds, else rolls back.
    pub(super) fn transaction<T>(
        &mut self,
        doing: &str,
        behavior: TransactionBehavior,
        job: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(open(doing, &self.path, &self.application_name)?),
        };
        let transaction = connection
            .transaction_with_behavior(behavior)
            .map_err(|error| failed(doing)(error).without_side_effects())?;
        let result = job(&transaction).map_err(StoreError::without_side_effects)?;
        transaction.commit().map_err(failed(doing))?;
        Ok(result)
    }
}

/// Says what an SQLite error means for the caller.
pub(super) fn failed(doing: &str) -> impl Fn(rusqlite::Error) -> StoreError {
    move |error| {
        let (kind, reason) = match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                let waited = BUSY_TIMEOUT.as_secs();
                (
                    StoreErrorKind::Unavailable,
                    format!("another process held the file for more than {waited} s"),
                )
            }
            Some(ErrorCode::CannotOpen) => (
                StoreErrorKind::Invalid,
                "the file cannot be opened; check that its folder exists and is writable".to_owned(),
            ),
            Some(
                ErrorCode::ReadOnly
                | ErrorCode::PermissionDenied
                | ErrorCode::AuthorizationForStatementDenied,
            ) => (
                StoreErrorKind::Invalid,
                "the file or its folder is not writable; check who owns them".to_owned(),
            ),
            Some(ErrorCode::DiskFull) => (StoreErrorKind::Unavailable, "the disk is full".to_owned()),
            Some(ErrorCode::NotADatabase) => (
                StoreErrorKind::Invalid,
                "this is no lease file; name another path".to_owned(),
            ),
            Some(ErrorCode::DatabaseCorrupt) => (
                StoreErrorKind::Data,
                "the file is damaged; restore it from a copy or remove it".to_owned(),
            ),
            Some(ErrorCode::SystemIoFailure | ErrorCode::OutOfMemory) => (
                StoreErrorKind::Unavailable,
                "reading or writing the file failed".to_owned(),
            ),
            _ => (StoreErrorKind::Internal, "SQLite refused".to_owned()),
        };
        StoreError::new(kind, doing, reason).with_source(error)
    }
}

fn open(doing: &str, path: &Path, application_name: &ApplicationName) -> Result<Connection, StoreError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags).map_err(failed(doing))?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(failed(doing))?;
    // Looked at before anything is written: a file that is not ours must stay as it is.
    check_header(doing, &mut connection)?;
    use_write_ahead_log(doing, &connection)?;
    // In this mode a commit is on disk when it is answered; a checkpoint that is lost would be read again.
    connection
        .pragma_update(None, "synchronous", "FULL")
        .map_err(failed(doing))?;
    initialize(doing, &mut connection, application_name)?;
    check_application(doing, &connection, application_name)?;
    Ok(connection)
}

/// Two connections that turn a new file to this mode at once may be told "busy" without SQLite's own waiting.
fn use_write_ahead_log(doing: &str, connection: &Connection) -> Result<(), StoreError> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match connection.pragma_update(None, "journal_mode", "WAL") {
            Ok(()) => return Ok(()),
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && attempt < OPEN_ATTEMPTS =>
            {
                std::thread::park_timeout(BETWEEN_OPEN_ATTEMPTS);
            }
            Err(error) => return Err(failed(doing)(error)),
        }
    }
}

fn header(doing: &str, connection: &Connection) -> Result<(i32, i32), StoreError> {
    let read = |name| {
        connection
            .pragma_query_value(None, name, |row| row.get(0))
            .map_err(failed(doing))
    };
    Ok((read("application_id")?, read("user_version")?))
}

fn check_header(doing: &str, connection: &mut Connection) -> Result<(), StoreError> {
    let refuse = |reason| Err(StoreError::new(StoreErrorKind::Invalid, doing, reason).without_side_effects());
    // One transaction: between two of them another worker may write the schema, and the file would look like
    // one that has tables but not our mark.
    let connection = connection.transaction().map_err(failed(doing))?;
    let (application_id, version) = header(doing, &connection)?;
    if application_id == APPLICATION_ID {
        if version > SCHEMA_VERSION {
            return refuse(format!(
                "the file has schema version {version}, this release knows versions up to {SCHEMA_VERSION}; \
                 use a newer release"
            ));
        }
        return Ok(());
    }
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(failed(doing))?;
    if application_id != 0 || version != 0 || tables != 0 {
        return refuse("the file is another program's SQLite database; name another path".to_owned());
    }
    Ok(())
}

/// Writes the schema into a new file, or what an older one lacks. Whoever comes second finds it done.
fn initialize(
    doing: &str,
    connection: &mut Connection,
    application_name: &ApplicationName,
) -> Result<(), StoreError> {
    let (_, version) = header(doing, connection)?;
    if version == SCHEMA_VERSION {
        return Ok(());
    }
    let write = |connection: &mut Connection| {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let version: i32 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if version == 0 {
            transaction.execute_batch(SCHEMA)?;
            transaction.execute("INSERT INTO fleet VALUES (?1)", [application_name.as_str()])?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        }
        if version < 2 {
            transaction.execute_batch(FLEET_SCHEMA)?;
        }
        if version < SCHEMA_VERSION {
            transaction.execute_batch(CONTROL_SCHEMA)?;
            transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        }
        transaction.commit()
    };
    write(connection).map_err(failed(doing))
}

fn check_application(
    doing: &str,
    connection: &Connection,
    application_name: &ApplicationName,
) -> Result<(), StoreError> {
    let stored: String = connection
        .query_row("SELECT application_name FROM fleet", [], |row| row.get(0))
        .map_err(failed(doing))?;
    if stored == application_name.as_str() {
        return Ok(());
    }
    let reason = format!(
        "the file belongs to application {stored:?}, not to {:?}; name another path, or that application",
        application_name.as_str()
    );
    Err(StoreError::new(StoreErrorKind::Invalid, doing, reason).without_side_effects())
}
