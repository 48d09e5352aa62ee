//! `shardfleet dev`: a run is accounted for, and the books notice what goes wrong between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use shardfleet::core::position::IteratorPosition;
use shardfleet::core::shard::Shard;
use shardfleet::kinesis::{
    KinesisApi, KinesisApiError, PutOutcome, PutRecord, RecordsPage, ShardFilter, StreamSummary,
};
use shardfleet::status::MemoryStatusStore;
use shardfleet::store::MemoryLeaseStore;
use shardfleet::{AwsKinesis, ShardId, StreamName};
use shardfleet_cli::dev::{AccountedRun, Summary};

use crate::harness::{World, parse, root, run};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_goes_through_and_every_line_is_accounted_for() {
    let world = World::start().await;
    let file = root().join("data/airports.jsonl");
    let mut command = world.command();
    command
        .args([
            "dev",
            "--json",
            "--key-field",
            "state",
            "--shards",
            "3",
            "--input",
        ])
        .arg(file);
    let (code, out, err) = run(&mut command);
    assert_eq!(code, Some(0), "{err}");
    let summary = parse(&out);
    for key in ["put", "delivered", "settled"] {
        assert_eq!(summary[key], 3376, "{key} of {summary}");
    }
    for key in ["lost", "repeated", "out_of_order"] {
        assert_eq!(summary[key], 0, "{key} of {summary}");
    }
    assert!(summary["seconds"].as_f64().is_some_and(|s| s > 0.0));
    let shards = summary["shards"].as_array().expect("a list");
    assert_eq!(shards.len(), 3);
    assert_eq!(
        shards
            .iter()
            .filter_map(|shard| shard["put"].as_u64())
            .sum::<u64>(),
        3376
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_is_refused_before_anything_starts() {
    let world = World::start().await;
    let no_field = world.write("lines.jsonl", "{\"a\":1}\n");
    let mut command = world.command();
    command
        .args(["dev", "--key-field", "b", "--input"])
        .arg(&no_field);
    let (code, _, err) = run(&mut command);
    assert_eq!(code, Some(2));
    assert!(err.contains("line 1") && err.contains("\"b\""), "{err}");
    let (code, _, err) = run(world.command().args(["dev", "--input", "nowhere"]));
    assert_eq!(code, Some(2));
    assert!(err.contains("nowhere"), "{err}");
    let empty = world.write("empty", "");
    let (code, _, err) = run(world.command().args(["dev", "--input"]).arg(empty));
    assert_eq!(code, Some(2));
    assert!(err.contains("no lines"), "{err}");
}

/// What goes wrong between the producer's book and the handler's.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tamper {
    Nothing,
    Drop,
    Repeat,
    Swap,
}

/// A Kinesis that tampers with the first page that holds two records.
struct Tampering {
    inner: AwsKinesis,
    tamper: Tamper,
    done: AtomicBool,
}

#[async_trait]
impl KinesisApi for Tampering {
    async fn describe_stream(&self, stream: &StreamName) -> Result<StreamSummary, KinesisApiError> {
        self.inner.describe_stream(stream).await
    }

    async fn list_shards(
        &self,
        stream: &StreamName,
        filter: ShardFilter,
    ) -> Result<Vec<Shard>, KinesisApiError> {
        self.inner.list_shards(stream, filter).await
    }

    async fn get_shard_iterator(
        &self,
        stream: &StreamName,
        shard_id: &ShardId,
        position: &IteratorPosition,
    ) -> Result<String, KinesisApiError> {
        self.inner.get_shard_iterator(stream, shard_id, position).await
    }

    async fn get_records(
        &self,
        stream: &StreamName,
        iterator: &str,
        limit: u32,
    ) -> Result<RecordsPage, KinesisApiError> {
        let mut page = self.inner.get_records(stream, iterator, limit).await?;
        if page.records.len() >= 2 && !self.done.swap(true, Ordering::SeqCst) {
            match self.tamper {
                Tamper::Nothing => {}
                Tamper::Drop => drop(page.records.remove(1)),
                // A service that repeats gives the record a place of its own or the same; the same is what the books can name.
                Tamper::Repeat => page.records[1].data = page.records[0].data.clone(),
                Tamper::Swap => {
                    let first = page.records[0].data.clone();
                    page.records[0].data = std::mem::replace(&mut page.records[1].data, first);
                }
            }
        }
        Ok(page)
    }

    async fn put_records(
        &self,
        stream: &StreamName,
        records: &[PutRecord],
    ) -> Result<Vec<PutOutcome>, KinesisApiError> {
        self.inner.put_records(stream, records).await
    }
}

async fn accounted(tamper: Tamper) -> Summary {
    let world = World::start().await;
    world
        .kinesis
        .controls()
        .create_stream("dev", 1)
        .expect("a stream");
    let kinesis = Tampering {
        inner: world.client.clone(),
        tamper,
        done: AtomicBool::new(false),
    };
    let run = AccountedRun {
        kinesis: Arc::new(kinesis),
        store: Arc::new(MemoryLeaseStore::new()),
        statuses: Arc::new(MemoryStatusStore::new()),
        stream: StreamName::new("dev"),
        patience: Duration::from_secs(1),
        progress: false,
    };
    let records = (0..300_u32)
        .map(|n| PutRecord {
            partition_key: "one".into(),
            explicit_hash_key: None,
            data: n.to_be_bytes().to_vec().into(),
        })
        .collect();
    run.run(records).await.expect("a summary")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drop_a_repeat_and_a_swap_between_the_books_each_show() {
    let good = accounted(Tamper::Nothing).await.total;
    assert_eq!(
        (good.put, good.delivered, good.settled, good.lost),
        (300, 300, 300, 0)
    );
    assert!(good.is_complete());

    let dropped = accounted(Tamper::Drop).await.total;
    assert_eq!((dropped.delivered, dropped.lost), (299, 1));
    assert!(!dropped.is_complete());

    // The same payload twice: one record came again in place of another, which is lost.
    let repeated = accounted(Tamper::Repeat).await.total;
    assert_eq!(
        (repeated.delivered, repeated.repeated, repeated.lost),
        (300, 1, 1)
    );

    let swapped = accounted(Tamper::Swap).await.total;
    assert_eq!(
        (swapped.delivered, swapped.lost, swapped.out_of_order),
        (300, 0, 1)
    );
    assert!(!swapped.is_complete());
}
