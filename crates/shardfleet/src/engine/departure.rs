//! A worker that stops hands its leases to its peers, so that they read on at once.
//!
//! It takes itself out of the fleet first, so that nothing more is given to it. Then it asks itself for a graceful handoff of each lease, as a leader would, and
//! record processors go on for as long as a peer takes to notice; so the gap between the last record here and the first one there is that of
//! one read of the row. What follows is an ordinary stop, by which each handoff is completed.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use shardfleet_core::fleet::FleetSnapshot;
use shardfleet_core::lease::LeaseWrite;
use shardfleet_core::time::Moment;

use super::coordinator::Coordinator;
use super::{HeldLease, Sink};
use crate::clock::within;

/// How many rows are written at the same time.
const AT_ONCE: usize = 16;

impl Coordinator {
    /// Announces to whom the leases go. Takes a quarter of the time that there is at most, and no more than peers need to notice.
    pub(super) async fn depart(&mut self, deadline: Moment) {
        let context = Arc::clone(&self.context);
        let left = deadline.since(context.clock.now());
        let budget = (left / 4).min(context.settings.failover_time / 3);
        let announced = within(&*context.clock, budget, self.announce()).await;
        if announced.unwrap_or(0) == 0 || !matches!(context.sink, Sink::Processors(_)) {
            // Nobody takes the records of a subscription any more.
            return;
        }
        let notice = context.settings.fleet.pace(context.settings.failover_time);
        let lame = (notice.discovery + notice.pending).min(left / 4);
        self.wait_for_tasks(lame).await;
    }

    /// Waits for `time`, or until nothing is read any more.
    async fn wait_for_tasks(&mut self, time: Duration) {
        let context = Arc::clone(&self.context);
        let until = context.clock.now() + time;
        while !context.shards().values().all(|entry| entry.lease.is_lost()) {
            tokio::select! {
                biased;
                () = context.clock.sleep_until(until) => return,
                () = crate::clock::sleep(&*context.clock, Duration::from_millis(20)) => {}
            }
        }
    }

    /// How many leases have a next owner now.
    async fn announce(&mut self) -> usize {
        let context = Arc::clone(&self.context);
        let me = &context.settings.worker_id;
        if let Err(error) = context.store.delete_worker_metrics(me, None).await {
            tracing::warn!(error = %error, "taking this worker out of the fleet failed; its metrics run out by themselves");
        }
        if context.shards().is_empty() {
            return 0;
        }
        let scan = match context.store.scan().await {
            Ok(scan) => scan,
            Err(error) => {
                tracing::warn!(error = %error, "the peers are unknown; leases are released to nobody in particular");
                return 0;
            }
        };
        let leases = scan.leases.into_iter();
        let snapshot = FleetSnapshot {
            leases: leases.map(|lease| (lease.lease_key.clone(), lease)).collect(),
            workers: scan.workers,
            leader_lock: scan.leader_lock,
        };
        let (now, wall) = (context.clock.now(), context.clock.wall());
        self.watch.observe(now, wall, &snapshot);
        let departures = self.watch.plan_departure(now, wall, &snapshot);
        let writes = departures.into_iter().filter_map(|departure| {
            let lease: Arc<HeldLease> = Arc::clone(&context.shards().get(&departure.lease_key)?.lease);
            Some(async move {
                let handed = lease
                    .write(|row| {
                        LeaseWrite::start_handoff(row, &departure.to)
                            .unwrap_or_else(|| LeaseWrite::renew(row, None))
                    })
                    .await;
                tracing::info!(lease_key = %departure.lease_key, to = %departure.to, announced = handed.is_ok(), "handing a lease over");
                usize::from(handed.is_ok())
            })
        });
        let writes: Vec<_> = writes.collect();
        let announced: Vec<usize> = futures::stream::iter(writes)
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        announced.into_iter().sum()
    }
}
