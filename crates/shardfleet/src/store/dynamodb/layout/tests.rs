use super::*;

fn row(status: &str) -> Item {
    Item::from([(TABLE_MIGRATION_STATUS.to_owned(), text(status))])
}

#[test]
fn only_a_completed_move_leaves_the_older_tables() {
    assert_eq!(is_before_the_move(None), Ok(true));
    assert_eq!(is_before_the_move(Some(&Item::new())), Ok(true));
    for status in STATUSES_BEFORE {
        assert_eq!(is_before_the_move(Some(&row(status))), Ok(true), "{status}");
    }
    assert_eq!(is_before_the_move(Some(&row(STATUS_COMPLETE))), Ok(false));
    // A later release may put the rows elsewhere.
    let unknown = is_before_the_move(Some(&row("TABLE_MIGRATION_STATUS_SHARDED"))).expect_err("unknown");
    assert!(
        unknown.starts_with("tm is the text \"TABLE_MIGRATION_STATUS_SHARDED\""),
        "{unknown}"
    );
}

#[test]
fn the_places_follow_the_layout() {
    let tables = Tables::new(
        "leases".to_owned(),
        "app-CoordinatorState".to_owned(),
        "app-WorkerMetricStats".to_owned(),
    );
    let one = Place {
        table: "leases",
        key: "leaseKey",
    };
    assert_eq!((tables.coordinator_place(), tables.metrics_place()), (one, one));
    tables.set_legacy(true);
    let coordinator = Place {
        table: "app-CoordinatorState",
        key: "key",
    };
    let metrics = Place {
        table: "app-WorkerMetricStats",
        key: "wid",
    };
    assert_eq!(
        (tables.coordinator_place(), tables.metrics_place()),
        (coordinator, metrics)
    );
    assert_eq!(tables.lease_place(), one);
}
