//! Evens out the number of leases, whatever they carry.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::BalanceVerdict;
use super::fleet::Fleet;

/// Moves one lease at a time from who has most to who has least, while they are two or more apart.
pub(super) fn balance(fleet: &mut Fleet<'_>) -> BalanceVerdict {
    let mut movable = fleet.movable_leases();
    let mut givers: BTreeSet<(usize, Reverse<usize>)> = fleet
        .givers()
        .into_iter()
        .map(|worker| (fleet.lease_count(worker), Reverse(worker)))
        .collect();
    let mut handoffs = 0;
    let mut uneven = false;
    while let Some((most, Reverse(giver))) = givers.pop_last() {
        let Some(least) = fleet.handoff_receivers().next() else {
            break;
        };
        if most < fleet.lease_count(least).saturating_add(2) {
            break;
        }
        uneven = true;
        // A giver without another lease that can go is not asked again.
        let Some(lease) = movable[giver].pop() else {
            continue;
        };
        let receiver = fleet
            .handoff_receivers()
            .take_while(|worker| most >= fleet.lease_count(*worker).saturating_add(2))
            .find(|worker| *worker != giver && fleet.has_room(*worker, fleet.throughput(lease)));
        if let Some(receiver) = receiver {
            let known = givers.remove(&(fleet.lease_count(receiver), Reverse(receiver)));
            fleet.hand_over(lease, giver, receiver);
            handoffs += 1;
            if known {
                givers.insert((fleet.lease_count(receiver), Reverse(receiver)));
            }
        }
        givers.insert((fleet.lease_count(giver), Reverse(giver)));
    }
    if uneven {
        BalanceVerdict::Uneven { handoffs }
    } else {
        BalanceVerdict::Even
    }
}
