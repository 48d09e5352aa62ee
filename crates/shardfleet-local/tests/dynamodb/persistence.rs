//! What a folder keeps.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use shardfleet_local::{LocalDynamoDb, LocalDynamoDbError};

use crate::client::{Client, renew, start};

/// Where the child process keeps its data; without it the child has nothing to do.
const FOLDER: &str = "SHARDFLEET_TEST_DYNAMODB_FOLDER";
const ENDPOINT: &str = "endpoint of the child: ";

async fn open(folder: &Path) -> LocalDynamoDb {
    let builder = LocalDynamoDb::builder().data_dir(folder);
    builder.start().await.expect("the folder can be used")
}

#[tokio::test]
async fn a_folder_keeps_tables_and_items_over_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path()).await;
    let client = Client::new(&first.endpoint());
    client.create_leases().await;
    client.put("a", "w").await;
    first.stop().await;
    assert!(
        client
            .try_call("ListTables", serde_json::json!({}))
            .await
            .is_none()
    );

    let second = open(folder.path()).await;
    let client = Client::new(&second.endpoint());
    assert_eq!(client.owned_by("w").await, ["a"]);
    client.ok("UpdateItem", renew("a", "v", 0)).await;
    drop(second);
    let third = open(folder.path()).await;
    assert_eq!(Client::new(&third.endpoint()).owned_by("v").await, ["a"]);
}

/// Not a test of its own: the process that the next one kills.
#[tokio::test]
async fn child_process() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let database = open(Path::new(&folder)).await;
    println!("\n{ENDPOINT}{}", database.endpoint());
    std::future::pending::<()>().await;
}

struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        self.0.kill().expect("the child can be killed");
        self.0.wait().expect("the child ends");
    }
}

#[tokio::test]
async fn what_was_answered_survives_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "persistence::child_process", "--nocapture"])
        .env(FOLDER, folder.path())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = KilledOnDrop(child.unwrap());
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let endpoint = lines
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix(ENDPOINT).map(str::to_owned))
        .expect("the child tells its endpoint");
    let client = Client::new(&endpoint);
    client.create_leases().await;
    for number in 0..50 {
        client.put(&format!("lease-{number:02}"), "w").await;
    }
    drop(child);

    let after = open(folder.path()).await;
    let client = Client::new(&after.endpoint());
    let all: Vec<String> = (0..50).map(|number| format!("lease-{number:02}")).collect();
    assert_eq!(client.owned_by("w").await, all);
}

#[tokio::test]
async fn a_lag_works_on_a_folder_too() {
    let folder = tempfile::tempdir().unwrap();
    let database = open(folder.path()).await;
    let client = Client::new(&database.endpoint());
    client.create_leases().await;
    client.put("a", "w").await;
    database
        .controls()
        .set_lag(Some(shardfleet_local::DynamoLag::frozen()));
    client.put("b", "w").await;
    assert_eq!(client.owned_by("w").await, ["a"]);
}

#[tokio::test]
async fn a_taken_port_and_a_file_in_the_way_are_named() {
    let db = start().await;
    let endpoint = db.service.endpoint();
    let port: u16 = endpoint.rsplit(':').next().unwrap().parse().unwrap();
    let error = LocalDynamoDb::builder().port(port).start().await.unwrap_err();
    assert!(matches!(error, LocalDynamoDbError::Listen { port: named, .. } if named == port));
    assert!(error.to_string().contains(&port.to_string()), "{error}");

    let file = tempfile::NamedTempFile::new().unwrap();
    let error = LocalDynamoDb::builder()
        .data_dir(file.path())
        .start()
        .await
        .unwrap_err();
    assert!(matches!(error, LocalDynamoDbError::Open { .. }), "{error}");
}
