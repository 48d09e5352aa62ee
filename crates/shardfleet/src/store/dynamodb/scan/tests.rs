use super::*;
use shardfleet_core::time::Timestamp;

fn of(kind: AttributeValue) -> Item {
    Item::from([
        (LEASE_KEY.to_owned(), item::text("Budget1.0")),
        (ENTITY_TYPE.to_owned(), kind),
    ])
}

#[test]
fn kinds_of_rows_that_nobody_knows_are_told_and_others_passed_over() {
    for kind in PASSED_OVER {
        let mut found = LeaseScan::default();
        assert_eq!(sort_in(&of(item::text(kind)), &mut found), Ok(()), "{kind}");
        assert!(found.leases.is_empty() && found.workers.is_empty() && found.leader_lock.is_none());
    }
    let refusal = |kind| sort_in(&of(kind), &mut LeaseScan::default()).expect_err("unknown");
    assert_eq!(
        refusal(item::text("BUDGET")),
        "entityType is the text \"BUDGET\"; a kind of row that this release knows is expected; it is left alone"
    );
    assert!(refusal(item::number(4)).starts_with("entityType is the number 4"));
}

#[test]
fn of_two_rows_of_a_worker_the_newer_one_counts() {
    let row = |name: &str, seconds: u64| {
        WorkerMetricStats::new(WorkerId::new(name), Timestamp::from_millis(seconds * 1000))
    };
    let rows = vec![row("b", 7), row("a", 5), row("b", 6), row("a", 8)];
    assert_eq!(newest_of_each(rows), [row("a", 8), row("b", 7)]);
}
