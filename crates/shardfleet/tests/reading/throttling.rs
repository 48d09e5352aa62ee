//! Reads that are throttled, and reads that are paced so that they never are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use shardfleet::core::position::IteratorPosition;
use shardfleet::core::shard::Shard;
use shardfleet::kinesis::{
    KinesisApi, KinesisApiError, KinesisApiErrorKind, PutOutcome, PutRecord, RecordsPage, ShardFilter,
    StreamSummary,
};
use shardfleet::{AwsKinesis, KinesisPosition, KinesisStream, ReadLimits, ShardId, StreamName};
use shardfleet_local::{FaultAction, FaultRule, ServiceLimits};

use crate::support::{STREAM, World, acked, numbered, open, quick};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_throttled_read_is_not_an_error() {
    let world = World::new(1).await;
    world.put_many(0, "r", 3);
    let fault = world
        .controls
        .add_fault(FaultRule::new("GetRecords", FaultAction::throttled()).times(15));
    let mut subscription = world.at_horizon("a").await;
    assert_eq!(acked(&mut subscription, 3).await, numbered("r", 0..3));
    assert_eq!(world.controls.fault_hits(fault), 15);
    assert_eq!(world.controls.calls("GetShardIterator"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_keep_the_services_limits_are_never_throttled() {
    let world = World::new(1).await;
    world.controls.set_limits(ServiceLimits::aws());
    let throttled = Arc::new(AtomicU64::new(0));
    let api = Watched {
        inner: world.api().await,
        throttled: Arc::clone(&throttled),
    };
    let builder = quick(KinesisStream::builder(STREAM, api))
        .start_at(KinesisPosition::horizon())
        .poll_interval(Duration::from_millis(1))
        .batch_size(10)
        .read_limits(ReadLimits::SERVICE);
    // Much that is small, which takes many calls, and then much that is large.
    world.put_many(0, "r", 160);
    for _ in 0..4 {
        let large = vec![b'x'; 900_000];
        world.controls.put(STREAM, "key", large).expect("put");
    }
    let mut subscription = open(builder).await;
    assert_eq!(acked(&mut subscription, 160).await, numbered("r", 0..160));
    assert_eq!(acked(&mut subscription, 4).await.len(), 4);
    world.until_read(6).await;
    assert_eq!(throttled.load(Ordering::Relaxed), 0);
}

/// Counts throttled answers.
struct Watched {
    inner: AwsKinesis,
    throttled: Arc<AtomicU64>,
}

#[async_trait]
impl KinesisApi for Watched {
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
        let answer = self.inner.get_records(stream, iterator, limit).await;
        if let Err(error) = &answer
            && error.kind == KinesisApiErrorKind::Throttled
        {
            self.throttled.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }

    async fn put_records(
        &self,
        stream: &StreamName,
        records: &[PutRecord],
    ) -> Result<Vec<PutOutcome>, KinesisApiError> {
        self.inner.put_records(stream, records).await
    }
}
