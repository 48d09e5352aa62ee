//! One budget of memory for all shards of a worker.
//!
//! Before a page is read, what it may cost is reserved; afterwards the reservation shrinks to what the page holds, and that is given back
//! when the last of its records is dropped. So a hundred shards that all have much to say share what four would use.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The budget counts in units of this many bytes, so that any budget fits the semaphore.
const UNIT: u64 = 1024;

/// While a page is being read its bytes exist as response text, as decoded text and as records.
const READING_FACTOR: u64 = 3;

/// A budget of bytes that all shards share.
#[derive(Clone, Debug)]
pub(crate) struct MemoryBudget {
    units: Arc<Semaphore>,
    capacity: u32,
}

impl MemoryBudget {
    pub(crate) fn new(bytes: u64) -> Self {
        let capacity = u32::try_from(bytes.div_ceil(UNIT))
            .unwrap_or(u32::MAX >> 4)
            .max(1);
        Self {
            units: Arc::new(Semaphore::new(capacity as usize)),
            capacity,
        }
    }

    /// Waits until a page of about `bytes` may be read. Shards are served in the order in which they ask. One that asks for more than half of
    /// everything is given half: one page is always allowed, whatever its size, and never locks the others out for good.
    pub(crate) async fn reserve(&self, bytes: u64) -> PageGuard {
        let wanted = units(bytes.saturating_mul(READING_FACTOR)).min((self.capacity / 2).max(1));
        let permit = Arc::clone(&self.units).acquire_many_owned(wanted).await.ok();
        PageGuard { permit }
    }

    /// How many bytes are spoken for.
    pub(crate) fn used(&self) -> u64 {
        (u64::from(self.capacity) - self.units.available_permits() as u64) * UNIT
    }
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

/// The part of the budget that one page holds; given back on drop.
#[derive(Debug)]
pub(crate) struct PageGuard {
    permit: Option<OwnedSemaphorePermit>,
}

impl PageGuard {
    /// A page that the budget does not count: a small one, so that a shard is never stopped by what others hold.
    pub(crate) fn outside() -> Self {
        Self { permit: None }
    }

    /// The page is read and holds `bytes`: what was reserved beyond that goes back at once. A page that is larger than was expected takes more if there is more; it
    /// cannot be unread.
    pub(crate) fn resize(&mut self, bytes: u64, budget: &MemoryBudget) {
        if let Some(permit) = &mut self.permit {
            let (held, needed) = (permit.num_permits(), units(bytes) as usize);
            drop(permit.split(held.saturating_sub(needed)));
            let missing = u32::try_from(needed.saturating_sub(held)).unwrap_or(u32::MAX);
            if let Ok(more) = Arc::clone(&budget.units).try_acquire_many_owned(missing) {
                permit.merge(more);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_page_gives_back_what_it_does_not_hold_and_the_rest_when_dropped() {
        let budget = MemoryBudget::new(30 * 1024);
        let mut page = budget.reserve(4 * 1024).await;
        assert_eq!(budget.used(), 12 * 1024);
        page.resize(1000, &budget);
        assert_eq!(budget.used(), 1024);
        page.resize(20 * 1024, &budget);
        assert_eq!(budget.used(), 20 * 1024, "a page larger than expected is counted");
        drop(page);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn a_page_larger_than_the_budget_is_allowed_beside_one_other() {
        let budget = MemoryBudget::new(10 * 1024);
        let _huge = budget.reserve(10 << 20).await;
        let _other = budget.reserve(1024).await;
        assert_eq!(budget.used(), 8 * 1024);
    }
}
