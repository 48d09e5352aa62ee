//! A worker that stops hands its leases to its peers, so that they read on at once.

use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use shardfleet_core::lease::LeaseWrite;

use super::coordinator::Coordinator;
use crate::exec::{Micros, SECOND};
use crate::setup::micros;
use crate::sync::{Flag, all};

/// How long a stop may take.
const STOP_TIME: Micros = 30 * SECOND;

impl Coordinator {
    /// Hands leases over to peers that are there, waits for every shard's task, and gives up the leadership.
    pub(super) async fn stop(&mut self) {
        let process = Rc::clone(&self.process);
        let deadline = process.sim.now() + STOP_TIME;
        process.stop_deadline.set(deadline);
        process.election.borrow_mut().stop(process.now());
        process.election_poke.give();
        self.depart().await;
        process.stop.set();
        let left = |at: Micros| Duration::from_micros(at.saturating_sub(process.sim.now()));
        let patience = left(deadline) + process.failover_time();
        let all_ended = async {
            loop {
                if !process.ends.borrow().is_empty() {
                    let ended = process.ends.take();
                    let mut shards = process.shards.borrow_mut();
                    for (key, _) in ended {
                        shards.remove(&key);
                    }
                }
                if process.shards.borrow().is_empty() {
                    return;
                }
                process.has_ends.taken().await;
            }
        };
        process.within(patience, all_ended).await;
        let patience = left(deadline).max(process.failover_time() / 3);
        process
            .within(
                patience,
                self.election_end.as_deref().map_or_else(
                    || Box::pin(std::future::ready(())) as Pin<Box<dyn Future<Output = ()>>>,
                    |end: &Flag| Box::pin(end.raised()),
                ),
            )
            .await;
    }

    async fn depart(&mut self) {
        let process = Rc::clone(&self.process);
        let budget = Duration::from_micros(STOP_TIME / 4).min(process.failover_time() / 3);
        let announced = process.within(budget, self.announce()).await;
        if announced.unwrap_or(0) == 0 {
            return;
        }
        let pace = process.sim.setup.pace;
        let until = process.sim.now() + micros(pace.discovery + pace.pending).min(STOP_TIME / 4);
        loop {
            let is_over = process.shards.borrow().values().all(|held| held.lost.is_set());
            if is_over || process.sim.now() >= until {
                return;
            }
            process.sleep(Duration::from_millis(100)).await;
        }
    }

    /// How many leases have a next owner now.
    async fn announce(&mut self) -> usize {
        let process = Rc::clone(&self.process);
        process.store.delete_metrics(process.id.clone(), None).await.ok();
        if process.shards.borrow().is_empty() {
            return 0;
        }
        let Ok(snapshot) = process.store.scan().await else {
            return 0;
        };
        let (now, wall) = (process.now(), process.wall());
        self.watch.observe(now, wall, &snapshot);
        let departures = self.watch.plan_departure(now, wall, &snapshot);
        let mut announced = 0;
        for departures in departures.chunks(16) {
            let worker = &process;
            let writes = departures
                .iter()
                .filter_map(|departure| {
                    let held = worker.shards.borrow().get(&departure.lease_key).cloned()?;
                    let write = async move {
                        let handed = held.write(worker, |row| {
                            LeaseWrite::start_handoff(row, &departure.to)
                                .unwrap_or_else(|| LeaseWrite::renew(row, None))
                        });
                        usize::from(handed.await.is_ok())
                    };
                    Some(Box::pin(write) as Pin<Box<dyn Future<Output = usize>>>)
                })
                .collect();
            announced += all(writes).await.into_iter().sum::<usize>();
        }
        announced
    }
}
