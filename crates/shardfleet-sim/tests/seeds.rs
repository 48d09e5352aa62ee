//! Fleets without planted bugs keep every invariant, and a seed is the same run each time.

use shardfleet_sim::{FaultKind, Options, run};

#[test]
fn the_first_seeds_are_clean_and_every_fault_happens_in_each() {
    for seed in 1..=6 {
        let report = run(seed, Options::default());
        assert!(report.violation.is_none(), "seed {seed}: {:#?}", report.violation);
        for kind in FaultKind::ALL {
            assert!(
                report.faults.contains_key(kind),
                "seed {seed}: {kind} never happened"
            );
        }
        assert!(report.simulated.as_secs() >= 20 * 60, "{:?}", report.simulated);
    }
}

#[test]
fn a_seed_repeats_byte_for_byte_and_its_neighbour_differs() {
    let options = Options {
        keep_log: true,
        ..Options::default()
    };
    let (first, again, other) = (run(7, options), run(7, options), run(8, options));
    assert_eq!(first.digest, again.digest);
    assert!(first.log.is_some() && first.log == again.log, "the logs differ");
    assert_ne!(first.digest, other.digest);
}
