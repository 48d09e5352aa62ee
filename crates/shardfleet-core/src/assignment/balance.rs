//! Moves load from workers above the average to workers below it, by utilisation or throughput.
//!
//! A giver is asked for a part of what it has too much, as the largest leases that fit (the fewest moves; the first may take the whole surplus). A move happens only if it makes the pair more
//! even: the receiver must stay below where the giver was, by a minimum gain. The sum of squares of the loads falls with each such move, so plans
//! that are carried out come to an end; and nothing is moved for a gain that noise could undo.

use super::fleet::Fleet;
use super::{BalanceVerdict, HeldBack};

/// Relative slack for sums of rounded numbers.
const SLACK: f64 = 1e-9;

pub(super) fn balance(fleet: &mut Fleet<'_>) -> BalanceVerdict {
    fleet.settle_level();
    let givers = fleet.givers();
    let over: Vec<usize> = givers
        .iter()
        .copied()
        .filter(|worker| fleet.is_over(*worker))
        .collect();
    let any_under = fleet.handoff_receivers().any(|worker| fleet.is_under(worker));
    let movable = fleet.movable_leases();
    let (givers, only_to_idle) = match (over.is_empty(), any_under) {
        (true, false) => return BalanceVerdict::Even,
        // Nobody stands out, but someone is idle: all above the average give to the idle ones, and only to them.
        (true, true) => {
            let above = |worker: &usize| fleet.load(*worker) > fleet.level() * (1.0 + SLACK);
            (givers.into_iter().filter(above).collect(), true)
        }
        (false, _) => (over, false),
    };
    let mut handoffs = 0;
    for giver in givers {
        handoffs += relieve(fleet, giver, &movable[giver], only_to_idle);
    }
    BalanceVerdict::Uneven { handoffs }
}

fn relieve(fleet: &mut Fleet<'_>, giver: usize, leases: &[usize], only_to_idle: bool) -> usize {
    let (load, level) = (fleet.load(giver), fleet.level());
    // A worker above its operating range but not above the average gives nothing: the others have no less to do.
    let surplus = if load > level { (load - level) / load } else { 0.0 };
    let surplus = fleet.worker_weight(giver) * surplus;
    let mut wanted = surplus * fleet.rules.dampening;
    if wanted <= 0.0 {
        return 0;
    }
    let mut given = 0;
    let mut why = HeldBack::LeasesTooLarge;
    for lease in leases.iter().copied() {
        let weight = fleet.weight(lease);
        // One large lease rather than two small ones, if it takes no more than the surplus.
        let first = given == 0 && fleet.rules.overshoot && weight <= surplus * (1.0 + SLACK);
        if weight > wanted * (1.0 + SLACK) && !first {
            continue;
        }
        match find_receiver(fleet, lease, giver, only_to_idle) {
            Ok(to) => {
                fleet.hand_over(lease, giver, to);
                given += 1;
                wanted -= weight;
            }
            Err(held_back) => why = held_back,
        }
    }
    if given == 0 && fleet.rules.overshoot {
        // Nothing that fits can go, or nothing fits: the smallest of the larger ones, then.
        for lease in leases.iter().copied().rev() {
            if fleet.weight(lease) <= wanted * (1.0 + SLACK) {
                continue;
            }
            match find_receiver(fleet, lease, giver, only_to_idle) {
                Ok(to) => {
                    fleet.hand_over(lease, giver, to);
                    given += 1;
                    break;
                }
                Err(held_back) => why = held_back,
            }
            if why == HeldBack::NoGain {
                break;
            }
        }
    }
    if fleet.is_over(giver) {
        fleet.hold_back(giver, why);
    }
    given
}

/// The least loaded worker that may have the lease and is better off with it than the giver is.
fn find_receiver(
    fleet: &Fleet<'_>,
    lease: usize,
    giver: usize,
    only_to_idle: bool,
) -> Result<usize, HeldBack> {
    let added = fleet.added_load(lease, giver);
    let highest = fleet.load(giver) - fleet.rules.minimum_gain * fleet.level();
    let throughput = fleet.throughput(lease);
    for worker in fleet.handoff_receivers() {
        if worker == giver {
            continue;
        }
        if fleet.load(worker) + added > highest {
            // The others are more loaded still.
            return Err(HeldBack::NoGain);
        }
        if only_to_idle && !fleet.is_under(worker) {
            return Err(HeldBack::NoReceiver);
        }
        if fleet.has_room(worker, throughput) && fleet.stays_in_range(worker, added) {
            return Ok(worker);
        }
    }
    Err(HeldBack::NoReceiver)
}
