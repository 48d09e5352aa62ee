//! Since when leases stand still.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Lease;
use crate::ids::LeaseKey;
use crate::time::Moment;

/// What this worker observed of the leases' counters. Expiry is judged by it alone: a lease is expired for whoever has
/// watched its counter stand still for longer than the failover time (`KCL: Lease#isExpired`; no wall clock is compared).
#[derive(Clone, Debug, Default)]
pub struct LeaseClock {
    seen: BTreeMap<LeaseKey, (u64, Moment)>,
}

impl LeaseClock {
    /// Notes a scan, or a part of one, made at `now`.
    pub fn observe<'a>(&mut self, now: Moment, leases: impl IntoIterator<Item = &'a Lease>) {
        for lease in leases {
            match self.seen.get_mut(&lease.lease_key) {
                Some((counter, _)) if *counter == lease.counter => {}
                Some(entry) => *entry = (lease.counter, now),
                None => {
                    self.seen.insert(lease.lease_key.clone(), (lease.counter, now));
                }
            }
        }
    }

    /// Forgets the leases for which `keep` says no, such as rows that were deleted.
    pub fn retain(&mut self, mut keep: impl FnMut(&LeaseKey) -> bool) {
        self.seen.retain(|key, _| keep(key));
    }

    /// Whether the lease's counter has stood still for longer than `failover_time`. A lease that was never observed is not
    /// expired: nothing is known about it yet.
    pub fn is_expired(&self, now: Moment, lease: &Lease, failover_time: Duration) -> bool {
        self.expires_at(lease, failover_time).is_some_and(|at| now > at)
    }

    /// Since when the counter of a lease has stood still, as of the last look.
    pub fn still_since(&self, key: &LeaseKey) -> Option<Moment> {
        self.seen.get(key).map(|(_, at)| *at)
    }

    /// The moment after which the lease is expired unless its counter moves; `None` for one that was never observed.
    pub fn expires_at(&self, lease: &Lease, failover_time: Duration) -> Option<Moment> {
        let (counter, at) = self.seen.get(&lease.lease_key)?;
        (*counter == lease.counter).then_some(*at + failover_time)
    }
}
