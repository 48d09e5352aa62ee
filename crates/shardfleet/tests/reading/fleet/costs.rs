//! What a worker asks of DynamoDB with the timings that it has by default, counted on a clock that runs faster, beside what a Java KCL 3.5.1 worker was counted
//! to ask in the same case.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shardfleet::FleetSettings;
use shardfleet::clock::Clock;

use super::support::Fleet;
use crate::support::{FastClock, until};

/// Requests an hour of a lone worker that holds so many leases, by operation.
async fn per_hour(leases: u32, factor: u32, is_loaded: bool) -> BTreeMap<String, f64> {
    let mut fleet = Fleet::over_dynamodb(leases).await;
    let worker_metrics = fleet.settings.worker_metrics.clone();
    fleet.settings = FleetSettings::default();
    fleet.settings.worker_metrics = worker_metrics;
    fleet.failover_time = Duration::from_secs(10);
    let clock: Arc<dyn Clock> = FastClock::shared(factor);
    let builder = fleet.builder("a").await.clock(Arc::clone(&clock));
    // Polls are not what is counted here.
    let builder = builder.poll_interval(Duration::from_millis(500) * factor.min(4));
    let only = fleet.start_with(builder, "a").await;
    until("all leases to be held", || async {
        fleet.counts().await.values().sum::<usize>() == leases as usize
    })
    .await;
    if is_loaded {
        fleet.produce();
        fleet.until_all_move(u64::from(leases)).await;
    }
    fleet.dynamo().reset_calls();
    let since = clock.now();
    until("a minute", || async {
        clock.now().since(since) >= Duration::from_secs(60)
    })
    .await;
    let counted = fleet.dynamo().all_calls();
    let hours = clock.now().since(since).as_secs_f64() / 3600.0;
    if is_loaded {
        fleet.settled().await.assert_exact();
    }
    drop(only);
    let rate = |count: u64| f64::from(u32::try_from(count).expect("few")) / hours;
    let rates: BTreeMap<String, f64> = counted.into_iter().map(|(name, n)| (name, rate(n))).collect();
    tracing::info!("{leases} leases, loaded {is_loaded}, an hour: {rates:.0?}");
    rates
}

fn total(rates: &BTreeMap<String, f64>) -> f64 {
    rates.values().sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_worker_with_one_lease_asks_at_most_half_as_much_again_as_java() {
    let rates = per_hour(1, 20, false).await;
    // Java: 1,890. The quicker discovery is what the rest is for.
    assert!(total(&rates) <= 1_890.0 * 1.5, "{rates:?}");
    // And it is alive: each lease is renewed well within its ten seconds.
    assert!(rates["UpdateItem"] >= 720.0, "{rates:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_worker_with_twenty_leases_asks_half_as_much_as_java() {
    let rates = per_hour(20, 5, true).await;
    // Java: 70,400. Here a checkpoint is a renewal.
    assert!(total(&rates) <= 70_400.0 / 2.0, "{rates:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_worker_with_a_hundred_leases_asks_no_more_than_java() {
    let rates = per_hour(100, 6, false).await;
    // Java: 1,080 for each lease and 810 besides.
    assert!(total(&rates) <= 1_080.0 * 100.0 + 810.0 * 1.5, "{rates:?}");
    assert!(rates["UpdateItem"] >= 100.0 * 720.0, "{rates:?}");
}
