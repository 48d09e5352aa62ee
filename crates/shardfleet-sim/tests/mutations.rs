//! The invariants find every planted bug, within a few seeds each.

use shardfleet_sim::{Invariant, Mutation, Options, run};

/// Which invariant is expected to find a bug.
fn finder(mutation: Mutation) -> Invariant {
    match mutation {
        Mutation::TakeWithoutCounter | Mutation::IgnoreCheckpointOwner => Invariant::L1,
        Mutation::ChildEarly => Invariant::D2,
        Mutation::CheckpointUnsettled | Mutation::LatestAfterExpiry => Invariant::C2,
        Mutation::HoldAfterExpiry => Invariant::D4,
        Mutation::HandOffUnflushed => Invariant::D5,
        Mutation::NoBackoff => Invariant::R1,
        Mutation::EternalLeader => Invariant::L3,
        Mutation::Restless => Invariant::A1,
        Mutation::NoRoom => Invariant::M1,
        Mutation::NoLimit => Invariant::A2,
        Mutation::ForgetChildren => Invariant::D3,
    }
}

/// Within so many seeds each bug is found.
const SEEDS: u64 = 10;

#[test]
fn every_planted_bug_is_found_by_its_invariant() {
    for mutation in Mutation::ALL {
        let options = Options {
            mutation: Some(*mutation),
            ..Options::default()
        };
        let found = (1..=SEEDS).find_map(|seed| run(seed, options).violation);
        let found = found.map(|violation| violation.invariant);
        assert_eq!(found, Some(finder(*mutation)), "{mutation:?}");
    }
}
