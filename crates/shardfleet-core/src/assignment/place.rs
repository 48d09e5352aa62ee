//! Gives out what nobody holds: the heaviest lease first, each to the least loaded worker with room.

use super::fleet::Fleet;

pub(super) fn give_out(fleet: &mut Fleet<'_>) {
    let mut free = fleet.free_leases();
    // Heaviest first leaves the small ones to even things out. Leases are sorted by key, and the sort is stable.
    free.sort_by(|a, b| fleet.weight(*b).total_cmp(&fleet.weight(*a)));
    for lease in free {
        let throughput = fleet.throughput(lease);
        // Whoever let a lease expire may be dead though its metrics are fresh: such workers come last in the order.
        let receiver = fleet
            .receivers()
            .find(|worker| fleet.has_room(*worker, throughput));
        match receiver {
            Some(worker) => fleet.give(lease, worker),
            None => fleet.refuse(lease),
        }
    }
}
