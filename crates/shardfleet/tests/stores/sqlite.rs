//! The SQLite file: shared by processes, surviving their death, and refusing what is not its own.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rusqlite::Connection;
use shardfleet::store::{LeaseStore, SqliteLeaseStore, StoreErrorKind, conformance};
use shardfleet_core::ids::ApplicationName;
use shardfleet_core::lease::{
    ControlRequest, CountChange, Expectation, Lease, LeaseChange, LeaseWrite, TargetState, WriteOutcome,
};
use shardfleet_core::sequence::ExtendedSequenceNumber;

use super::new_lease;

/// Tells a child process of these tests which file it works on.
const CHILD_FILE: &str = "SHARDFLEET_TEST_LEASE_FILE";

fn open(path: &Path) -> SqliteLeaseStore {
    SqliteLeaseStore::new(path, &ApplicationName::new("orders")).expect("a thread")
}

async fn refusal(store: &SqliteLeaseStore) -> (StoreErrorKind, String) {
    let error = store.prepare().await.expect_err("must be refused");
    (error.kind(), error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_conforms() {
    let folder = tempfile::tempdir().expect("folder");
    let number = std::sync::atomic::AtomicU32::new(0);
    let make = || async {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Ok(Arc::new(open(&folder.path().join(format!("leases-{number}.sqlite")))) as Arc<dyn LeaseStore>)
    };
    conformance::run(make).await.assert_passed();
}

#[tokio::test]
async fn two_connections_see_each_others_writes_and_a_file_can_be_opened_again() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("leases.sqlite");
    let (one, other) = (open(&path), open(&path));
    // Both at once, on a file that is not there yet.
    let (first, second) = tokio::join!(one.prepare(), other.prepare());
    first.and(second).expect("prepare");
    let lease = Lease {
        owner: Some("w1".into()),
        ..new_lease(1)
    };
    assert!(one.create(&lease).await.expect("create"));
    assert!(!other.create(&lease).await.expect("create"));
    let renew = LeaseWrite::renew(&lease, None);
    assert!(matches!(other.update(&renew).await, Ok(WriteOutcome::Written(_))));
    let lost = one.update(&renew).await.expect("update");
    assert_eq!(
        lost,
        WriteOutcome::Conflict(Some(Lease {
            counter: 1,
            ..lease.clone()
        }))
    );
    drop((one, other));

    let again = open(&path);
    assert_eq!(
        again.get(&lease.lease_key).await.expect("get"),
        Some(Lease { counter: 1, ..lease })
    );
}

/// A fleet that starts on one machine: each worker finds the file absent, half made or made, and none is refused.
#[tokio::test]
async fn a_new_file_may_be_prepared_by_many_at_once() {
    let folder = tempfile::tempdir().expect("folder");
    for round in 0..25 {
        let path = folder.path().join(format!("{round}.sqlite"));
        let stores = [(); 8].map(|()| open(&path));
        let prepared = futures::future::join_all(stores.iter().map(LeaseStore::prepare)).await;
        prepared
            .into_iter()
            .collect::<Result<Vec<()>, _>>()
            .expect("prepare");
    }
}

#[tokio::test]
async fn what_is_not_ours_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().expect("folder");
    let path = |name: &str| folder.path().join(name);

    let (kind, text) = refusal(&open(&path("no/such/folder/leases"))).await;
    assert_eq!(kind, StoreErrorKind::Invalid);
    assert!(
        text.contains("check that its folder exists and is writable"),
        "{text}"
    );

    let (kind, _) = refusal(&open(folder.path())).await;
    assert_eq!(kind, StoreErrorKind::Invalid);

    std::fs::write(
        path("text"),
        "this is certainly not a database, whatever its name is".repeat(40),
    )
    .expect("write");
    let (kind, text) = refusal(&open(&path("text"))).await;
    assert_eq!(kind, StoreErrorKind::Invalid);
    assert!(
        text.contains("this is no lease file; name another path"),
        "{text}"
    );

    let other = Connection::open(path("other")).expect("open");
    other
        .execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY); INSERT INTO orders VALUES (1);")
        .expect("sql");
    let (kind, text) = refusal(&open(&path("other"))).await;
    assert_eq!(kind, StoreErrorKind::Invalid);
    assert!(text.contains("another program's SQLite database"), "{text}");
    let mode: String = other
        .pragma_query_value(None, "journal_mode", |row| row.get(0))
        .expect("mode");
    assert_eq!(mode, "delete", "a refused file is not converted");
}

#[tokio::test]
async fn the_file_belongs_to_one_application_and_to_known_releases() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("leases.sqlite");
    open(&path).prepare().await.expect("prepare");

    let stranger = SqliteLeaseStore::new(&path, &ApplicationName::new("billing")).expect("a thread");
    let (kind, text) = refusal(&stranger).await;
    assert_eq!(kind, StoreErrorKind::Invalid);
    assert!(
        text.contains("belongs to application \"orders\", not to \"billing\""),
        "{text}"
    );

    let raw = Connection::open(&path).expect("open");
    raw.pragma_update(None, "user_version", 4).expect("pragma");
    let (kind, text) = refusal(&open(&path)).await;
    assert_eq!(kind, StoreErrorKind::Invalid);
    assert!(
        text.contains("schema version 4, this release knows versions up to 3"),
        "{text}"
    );
}

#[tokio::test]
async fn rows_that_cannot_be_read_are_reported_beside_the_others() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("leases.sqlite");
    let store = open(&path);
    for number in [1, 2, 3] {
        assert!(store.create(&new_lease(number)).await.expect("create"));
    }
    let raw = Connection::open(&path).expect("open");
    raw.execute(
        "UPDATE lease SET checkpoint = 'yesterday' WHERE lease_key LIKE '%2'",
        [],
    )
    .expect("sql");

    let scan = store.scan().await.expect("scan");
    assert_eq!(scan.leases, [new_lease(1), new_lease(3)]);
    assert_eq!(scan.unreadable.len(), 1);
    assert_eq!(scan.unreadable[0].lease_key, "shardId-000000000002");
    assert!(
        scan.unreadable[0].reason.starts_with("checkpoint: \"yesterday\""),
        "{:?}",
        scan.unreadable
    );
    let error = store.get(&new_lease(2).lease_key).await.expect_err("unreadable");
    assert_eq!(error.kind(), StoreErrorKind::Data);
    assert!(
        store
            .delete(&new_lease(2).lease_key, &Expectation::default())
            .await
            .expect("delete")
    );
}

fn child(test: &str, file: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", test, "--nocapture"])
        .env(CHILD_FILE, file)
        .stdout(Stdio::piped());
    command
}

/// Not a test by itself: checkpoints on and on, telling each one that was answered, until it is killed.
#[tokio::test]
async fn child_that_checkpoints_until_it_is_killed() {
    let Some(file) = std::env::var_os(CHILD_FILE) else {
        return;
    };
    let store = open(Path::new(&file));
    let mut lease = new_lease(1);
    assert!(store.create(&lease).await.expect("create"));
    for number in 1_u64.. {
        let at = ExtendedSequenceNumber::parse(&number.to_string(), 0).expect("digits");
        match store
            .update(&LeaseWrite::checkpoint(&lease, at))
            .await
            .expect("update")
        {
            WriteOutcome::Written(after) => lease = after,
            conflict @ WriteOutcome::Conflict(_) => panic!("{conflict:?}"),
        }
        println!("settled {number}");
    }
}

#[tokio::test]
async fn an_answered_checkpoint_survives_sigkill() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("leases.sqlite");
    let mut process = child("sqlite::child_that_checkpoints_until_it_is_killed", &path)
        .spawn()
        .expect("spawn");
    let mut output = BufReader::new(process.stdout.take().expect("stdout"));
    let mut line = String::new();
    while !line.contains("settled 40") {
        line.clear();
        assert_ne!(
            output.read_line(&mut line).expect("line"),
            0,
            "the child ended by itself"
        );
    }
    // SIGKILL: nothing is flushed or closed.
    process.kill().expect("kill");
    process.wait().expect("wait");
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("rest");
    let mut told = rest
        .lines()
        .filter_map(|line| line.strip_prefix("settled ")?.parse::<u64>().ok());
    let last_told = told.next_back().unwrap_or(40);

    let lease = open(&path)
        .get(&new_lease(1).lease_key)
        .await
        .expect("get")
        .expect("a lease");
    let stored: u64 = lease.checkpoint.checkpoint_text().parse().expect("digits");
    assert!(
        (last_told..=last_told + 1).contains(&stored),
        "told {last_told}, stored {stored}"
    );
    assert_eq!(lease.counter, stored);
}

const CHILD_WRITES: u64 = 50;

/// Not a test by itself: adds to the counter of one lease, in company.
#[tokio::test]
async fn child_that_counts() {
    let Some(file) = std::env::var_os(CHILD_FILE) else {
        return;
    };
    let store = open(Path::new(&file));
    let write = LeaseWrite {
        lease_key: new_lease(1).lease_key,
        expect: Expectation::default(),
        change: LeaseChange {
            counter: CountChange::AddOne,
            ..LeaseChange::default()
        },
    };
    for _ in 0..CHILD_WRITES {
        assert!(matches!(store.update(&write).await, Ok(WriteOutcome::Written(_))));
    }
}

#[tokio::test]
async fn processes_that_share_a_file_lose_no_write() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("leases.sqlite");
    let store = open(&path);
    assert!(store.create(&new_lease(1)).await.expect("create"));
    let children: Vec<_> = (0..3)
        .map(|_| child("sqlite::child_that_counts", &path).spawn().expect("spawn"))
        .collect();
    for process in children {
        let output = process.wait_with_output().expect("wait");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
    }
    let lease = store
        .get(&new_lease(1).lease_key)
        .await
        .expect("get")
        .expect("a lease");
    assert_eq!(lease.counter, 3 * CHILD_WRITES);
}

#[tokio::test]
async fn files_of_earlier_releases_are_brought_up_with_what_they_hold() {
    for version in [1, 2] {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("leases.sqlite");
        let store = open(&path);
        assert!(store.create(&new_lease(1)).await.expect("create"));
        drop(store);
        // What these releases did not have.
        let raw = Connection::open(&path).expect("open");
        raw.execute_batch("ALTER TABLE lease DROP COLUMN control")
            .expect("sql");
        if version == 1 {
            raw.execute_batch("DROP TABLE leader_lock; DROP TABLE worker_metric_stats;")
                .expect("sql");
        }
        raw.pragma_update(None, "user_version", version).expect("pragma");
        drop(raw);

        let store = open(&path);
        let lease = store.get(&new_lease(1).lease_key).await.expect("get");
        assert_eq!(lease, Some(new_lease(1)), "version {version}");
        let pause = ControlRequest::Target(TargetState::Paused);
        let write = LeaseWrite::control(&new_lease(1), pause);
        let outcome = store.update(&write).await.expect("update");
        assert!(matches!(outcome, WriteOutcome::Written(_)), "{outcome:?}");
        assert!(store.scan().await.expect("scan").leader_lock.is_none());
    }
}
