use serde_json::Value;

use super::*;
use crate::store::dynamodb::dynamo_json;

const ITEMS: &str = include_str!("../../../../tests/vectors/kcl-items.json");

fn row(version: &str) -> Item {
    Item::from([(CLIENT_VERSION.to_owned(), text(version))])
}

#[test]
fn the_recorded_states_are_judged() {
    let vectors: Value = serde_json::from_str(ITEMS).expect("JSON");
    let mut judged = Vec::new();
    for entry in vectors["items"].as_array().expect("items") {
        let stage = entry["stage"].as_str().expect("stage");
        if let Some(state) = stage.strip_prefix("Migration3.0 ") {
            let version = state.split(',').next().expect("a version").to_owned();
            judged.push((version, judge(&dynamo_json::item(&entry["item"])).is_ok()));
        }
    }
    judged.sort();
    let expected = [
        (VERSION_3X, true),
        (VERSION_3X, true),
        (VERSION_3X_WITH_ROLLBACK, false),
        (VERSION_UPGRADE, false),
    ];
    assert_eq!(judged, expected.map(|(version, may)| (version.to_owned(), may)));
}

#[test]
fn a_refusal_says_what_to_do() {
    for (version, first) in [
        (
            VERSION_2X,
            "the application was rolled back to KCL 2.x (cv is CLIENT_VERSION_2X)",
        ),
        (
            VERSION_UPGRADE,
            "the upgrade from KCL 2.x is not finished (cv is CLIENT_VERSION_UPGRADE_FROM_2X)",
        ),
        (
            VERSION_INIT,
            "the upgrade from KCL 2.x is not finished (cv is CLIENT_VERSION_INIT)",
        ),
        (
            VERSION_3X_WITH_ROLLBACK,
            "the upgrade from KCL 2.x can still be rolled back (cv is CLIENT_VERSION_3X_WITH_ROLLBACK)",
        ),
    ] {
        let refusal = judge(&row(version)).expect_err(version);
        assert!(refusal.starts_with(first), "{refusal}");
        assert!(refusal.contains("CLIENT_VERSION_CONFIG_3X"), "{refusal}");
    }
    assert_eq!(
        judge(&row("CLIENT_VERSION_4X")),
        Err("cv is the text \"CLIENT_VERSION_4X\"; CLIENT_VERSION_3X is expected; use a release of this library that knows it".to_owned())
    );
    assert!(
        judge(&Item::new())
            .expect_err("no version")
            .starts_with("cv is missing")
    );
    let number = Item::from([(CLIENT_VERSION.to_owned(), number(3))]);
    assert!(
        judge(&number)
            .expect_err("a number")
            .starts_with("cv is the number 3")
    );
}
