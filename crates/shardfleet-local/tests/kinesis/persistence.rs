//! A data folder survives a stop, a kill and a torn end.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::json;
use shardfleet_local::{KinesisControls, LocalError, LocalKinesis};

use crate::client::{Client, DEADLINE, base64, pause, payloads, shard};

/// Set for the child process, which serves this folder.
const CHILD_FOLDER: &str = "SHARDFLEET_TEST_CHILD_FOLDER";

async fn start(folder: &Path) -> LocalKinesis {
    LocalKinesis::builder().data_dir(folder).start().await.unwrap()
}

#[tokio::test]
async fn everything_comes_back_after_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(folder.path()).await;
    let controls = service.controls();
    controls.create_stream("s", 2).unwrap();
    controls.create_stream("gone", 1).unwrap();
    controls.put("gone", "k", "x").unwrap();
    let first = controls.put_at("s", "k", 0, "a").unwrap();
    controls.split("s", &shard(0)).unwrap();
    controls.put_at("s", "k", 0, "b").unwrap();
    controls.delete_stream("gone").unwrap();
    let consumer = controls.register_consumer("s", "c").unwrap();
    let client = Client::new(&service.endpoint());
    client
        .ok("AddTagsToStream", json!({"StreamName": "s", "Tags": {"t": "v"}}))
        .await;
    client
        .ok(
            "IncreaseStreamRetentionPeriod",
            json!({"StreamName": "s", "RetentionPeriodHours": 48}),
        )
        .await;
    let before = client.ok("DescribeStream", json!({"StreamName": "s"})).await;
    let iterator = client.iterator("s", &shard(0), "TRIM_HORIZON").await;
    service.stop().await;

    let service = start(folder.path()).await;
    let client = Client::new(&service.endpoint());
    assert_eq!(
        client.ok("DescribeStream", json!({"StreamName": "s"})).await,
        before
    );
    assert_eq!(service.controls().streams(), ["s"]);
    let tags = client.ok("ListTagsForStream", json!({"StreamName": "s"})).await;
    assert_eq!(tags["Tags"], json!([{"Key": "t", "Value": "v"}]));
    let described = client
        .ok("DescribeStreamConsumer", json!({"ConsumerARN": consumer}))
        .await;
    assert_eq!(described["ConsumerDescription"]["ConsumerStatus"], "ACTIVE");
    let page = client.get(&iterator).await;
    assert_eq!(payloads(&page), ["a"]);
    assert_eq!(page["Records"][0]["SequenceNumber"], first.sequence_number);
    assert_eq!(page["ChildShards"].as_array().unwrap().len(), 2);
    let child = client
        .get(&client.iterator("s", &shard(2), "TRIM_HORIZON").await)
        .await;
    assert_eq!(payloads(&child), ["b"]);
    let next = service.controls().put_at("s", "k", 0, "c").unwrap();
    assert!(next.sequence_number.as_str() > child["Records"][0]["SequenceNumber"].as_str().unwrap());
}

#[tokio::test]
async fn a_torn_end_is_cut_off_and_damage_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("kinesis.journal");
    let service = start(folder.path()).await;
    service.controls().create_stream("s", 1).unwrap();
    for i in 0..10 {
        service.controls().put("s", "k", format!("{i}")).unwrap();
    }
    service.stop().await;
    let whole = std::fs::read(&journal).unwrap();
    for tail in [
        &[0, 0, 0, 40, 1, 2][..],
        &[0; 64],
        &[0, 0, 0, 4, 9, 9, 9, 9, 1, 2, 3, 4],
    ] {
        std::fs::OpenOptions::new()
            .append(true)
            .open(&journal)
            .unwrap()
            .write_all(tail)
            .unwrap();
        let service = start(folder.path()).await;
        assert_eq!(service.controls().shards("s").unwrap()[0].records, 10);
        service.stop().await;
        assert_eq!(std::fs::read(&journal).unwrap(), whole);
    }
    std::fs::write(&journal, &whole[..whole.len() - 3]).unwrap();
    let service = start(folder.path()).await;
    assert_eq!(service.controls().shards("s").unwrap()[0].records, 9);
    service.stop().await;
    let mut damaged = whole.clone();
    damaged[30] ^= 1;
    std::fs::write(&journal, &damaged).unwrap();
    let refused = LocalKinesis::builder()
        .data_dir(folder.path())
        .start()
        .await
        .unwrap_err();
    assert!(matches!(refused, LocalError::Damaged { .. }), "{refused}");
    std::fs::write(&journal, "something else entirely").unwrap();
    let refused = LocalKinesis::builder()
        .data_dir(folder.path())
        .start()
        .await
        .unwrap_err();
    assert!(
        matches!(refused, LocalError::Damaged { offset: 0, .. }),
        "{refused}"
    );
}

#[tokio::test]
async fn a_folder_has_one_service_and_a_port_too() {
    let folder = tempfile::tempdir().unwrap();
    let first = start(folder.path()).await;
    let refused = LocalKinesis::builder()
        .data_dir(folder.path())
        .start()
        .await
        .unwrap_err();
    assert!(matches!(refused, LocalError::InUse { .. }), "{refused}");
    let refused = LocalKinesis::builder()
        .port(first.port())
        .start()
        .await
        .unwrap_err();
    assert!(matches!(refused, LocalError::Bind { .. }), "{refused}");
    let port = first.port();
    drop(first);
    let again = LocalKinesis::builder()
        .port(port)
        .data_dir(folder.path())
        .start()
        .await
        .unwrap();
    assert_eq!(again.port(), port);
}

#[tokio::test]
async fn a_journal_that_is_mostly_dead_is_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("kinesis.journal");
    let service = start(folder.path()).await;
    let controls = service.controls();
    controls.create_stream("s", 1).unwrap();
    let last = fill(&controls);
    controls.set_retention("s", 0).unwrap();
    controls.advance(std::time::Duration::from_secs(1));
    controls.create_stream("t", 1).unwrap();
    controls.put("t", "k", "kept").unwrap();
    service.stop().await;
    assert!(std::fs::metadata(&journal).unwrap().len() > 4 << 20);
    for _ in 0..2 {
        let service = start(folder.path()).await;
        assert!(std::fs::metadata(&journal).unwrap().len() < 10_000);
        assert_eq!(service.controls().shards("t").unwrap()[0].records, 1);
        let next = service.controls().put("s", "k", "n").unwrap();
        assert!(
            next.sequence_number > last,
            "numbers go on although every record is gone"
        );
    }
}

fn fill(controls: &KinesisControls) -> String {
    let mut last = String::new();
    for _ in 0..6 {
        last = controls
            .put("s", "k", vec![0; 1_000_000])
            .unwrap()
            .sequence_number;
    }
    last
}

/// Not a test of its own: the process that `a_killed_service_keeps_what_it_acknowledged` kills.
#[tokio::test]
async fn serve_for_the_parent() {
    let Some(folder) = std::env::var_os(CHILD_FOLDER) else {
        return;
    };
    let service = start(folder.as_ref()).await;
    let file = Path::new(&folder).join("endpoint");
    std::fs::write(file.with_extension("new"), service.endpoint()).unwrap();
    std::fs::rename(file.with_extension("new"), file).unwrap();
    // Until killed; the limit is for a parent that died.
    drop(tokio::time::timeout(DEADLINE * 3, std::future::pending::<()>()).await);
}

fn spawn_child(folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["persistence::serve_for_the_parent", "--exact"])
        .env(CHILD_FOLDER, folder)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn a_killed_service_keeps_what_it_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut acknowledged = 0usize;
    for round in 0..3 {
        let mut child = spawn_child(folder.path());
        let endpoint = folder.path().join("endpoint");
        let wait = async {
            loop {
                match std::fs::read_to_string(&endpoint) {
                    Ok(endpoint) => return endpoint,
                    Err(_) => pause().await,
                }
            }
        };
        let client = Client::new(
            &tokio::time::timeout(DEADLINE, wait)
                .await
                .expect("the child did not start"),
        );
        if round == 0 {
            client
                .ok("CreateStream", json!({"StreamName": "s", "ShardCount": 1}))
                .await;
        }
        client.wait_for("s", "ACTIVE").await;
        let page = client
            .get(&client.iterator("s", &shard(0), "TRIM_HORIZON").await)
            .await;
        assert_eq!(payloads(&page).len(), acknowledged, "round {round}");
        for _ in 0..10 {
            let records = vec![json!({"Data": base64("x"), "PartitionKey": "k"}); 100];
            let answer = client
                .ok("PutRecords", json!({"StreamName": "s", "Records": records}))
                .await;
            assert_eq!(answer["FailedRecordCount"], 0);
            acknowledged += 100;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_file(&endpoint).unwrap();
    }
}
