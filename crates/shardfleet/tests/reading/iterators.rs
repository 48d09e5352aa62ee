//! Iterators that expire, and answers that come without one.

use std::time::Duration;

use shardfleet::{ErrorKind, KinesisError, KinesisPosition};
use shardfleet_local::{FaultAction, FaultRule};

use crate::support::{FastClock, World, acked, acked_with_errors, numbered, open, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn iterators_that_expire_skip_nothing_and_repeat_nothing() {
    let world = World::new(1).await;
    world.controls.set_iterator_lifetime(Duration::from_millis(15));
    let builder = world.reader("a").await.start_at(KinesisPosition::horizon());
    let mut subscription = open(builder.batch_size(7).poll_interval(Duration::from_millis(40))).await;
    for burst in 0..4 {
        world.put_many(0, &format!("{burst}-"), 20);
        let texts = acked(&mut subscription, 20).await;
        assert_eq!(texts, numbered(&format!("{burst}-"), 0..20));
        world.until_read(3).await;
    }
    assert!(world.controls.calls("GetShardIterator") > 4);
    world.assert_quiet(&mut subscription).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latest_iterator_that_expires_before_anything_was_read_skips_nothing() {
    let world = World::new(1).await;
    let delay = FaultRule::new("GetRecords", FaultAction::delay(Duration::from_millis(300)));
    let expire = FaultRule::new("GetRecords", FaultAction::ExpireIterator);
    world.controls.add_fault(delay.once());
    world.controls.add_fault(expire.once());
    let mut subscription = world.resumed("a").await;
    // The first read is under way, and will find that its iterator has expired.
    world.put_many(0, "r", 3);
    assert_eq!(acked(&mut subscription, 3).await, numbered("r", 0..3));
    assert_eq!(world.controls.calls("GetShardIterator"), 2);
    world.assert_quiet(&mut subscription).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_shard_without_a_next_iterator_is_read_on() {
    let world = World::new(1).await;
    world.put_many(0, "r", 30);
    let fault = FaultRule::new("GetRecords", FaultAction::NoNextIterator);
    let fault = world.controls.add_fault(fault.skip(1).times(3));
    let builder = world.reader("a").await.start_at(KinesisPosition::horizon());
    let builder = builder.failover_time(Duration::from_secs(60));
    let mut subscription = open(builder.batch_size(5).clock(FastClock::shared(20))).await;
    let (texts, errors) = acked_with_errors(&mut subscription, 30).await;
    assert_eq!(texts, numbered("r", 0..30));
    assert_eq!(world.controls.fault_hits(fault), 3);
    assert_eq!(errors.len(), 3, "{errors:?}");
    for error in errors {
        assert!(
            matches!(error, KinesisError::Read { attempt: 1, .. }),
            "{error:?}"
        );
        assert_eq!(error.kind(), ErrorKind::Data);
    }
    world.assert_quiet(&mut subscription).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latest_without_a_next_iterator_skips_nothing() {
    let world = World::new(1).await;
    let fault = FaultRule::new("GetRecords", FaultAction::NoNextIterator);
    let fault = world.controls.add_fault(fault.once());
    let mut subscription = world.resumed("a").await;
    until("the answer without an iterator", || async {
        world.controls.fault_hits(fault) == 1
    })
    .await;
    // The reader waits a second before it asks for another iterator.
    world.put_many(0, "r", 3);
    let (texts, _) = acked_with_errors(&mut subscription, 3).await;
    assert_eq!(texts, numbered("r", 0..3));
}
