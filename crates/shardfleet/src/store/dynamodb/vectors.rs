//! The recorded requests of the Java KCL against ours, all of them: each one is compared here, compared elsewhere, or left out for a reason that is written down.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::Value;
use shardfleet_core::ids::WorkerId;
use shardfleet_core::leader::{LOCK_KEY, LockCondition};
use shardfleet_core::lease::Expectation;
use shardfleet_core::time::Timestamp;

use super::item::{self, ENTITY_TYPE, Item, LEASE_KEY};
use super::layout::{Place, TABLE_MIGRATION, Tables};
use super::lock::{Condition, lock_of};
use super::metrics::{self, metrics_of};
use super::{DynamoDbLeaseStore, dynamo_json, expression, migration};

const REQUESTS: &str = include_str!("../../../tests/vectors/kcl-requests.json");
const ITEMS: &str = include_str!("../../../tests/vectors/kcl-items.json");

/// How a recorded request is dealt with.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Dealt {
    Compared,
    Elsewhere(&'static str),
    LeftOut(&'static str),
}

use Dealt::{Compared, Elsewhere, LeftOut};

/// What a request asks for, without its spelling.
#[derive(Debug, Default, PartialEq)]
struct Asked {
    table: String,
    key: BTreeMap<String, String>,
    item: BTreeMap<String, String>,
    conditions: BTreeSet<String>,
    updates: BTreeSet<String>,
}

/// A value in one spelling: `90.0` and `90` are one number, and sets and maps have an order.
fn plain(value: &AttributeValue) -> String {
    match value {
        AttributeValue::N(digits) => match digits.parse::<f64>() {
            Ok(number) if digits.contains(['.', 'e', 'E']) => format!("N {number}"),
            _ => format!("N {digits}"),
        },
        AttributeValue::Ss(texts) => format!("SS {:?}", texts.iter().collect::<BTreeSet<_>>()),
        AttributeValue::M(map) => format!("M {:?}", plain_item(map)),
        AttributeValue::L(list) => format!("L {:?}", list.iter().map(plain).collect::<Vec<_>>()),
        other => format!("{other:?}"),
    }
}

fn plain_item(item: &HashMap<String, AttributeValue>) -> BTreeMap<String, String> {
    item.iter()
        .map(|(name, value)| (name.clone(), plain(value)))
        .collect()
}

/// An expression with its placeholders filled in, cut at `separator`.
fn parts(
    expression: Option<&str>,
    separator: &str,
    names: Option<&HashMap<String, String>>,
    values: Option<&HashMap<String, AttributeValue>>,
) -> BTreeSet<String> {
    let fill = |word: &str| {
        let bare = word.trim_matches(['(', ')']);
        let inner = bare.rsplit('(').next().expect("a word");
        let filled = match inner.chars().next() {
            Some('#') => names.expect("names")[inner].clone(),
            Some(':') => plain(&values.expect("values")[inner]),
            _ => inner.to_owned(),
        };
        word.replace(inner, &filled)
    };
    let expression = expression.unwrap_or_default().trim_start_matches("SET ");
    let parts = expression.split(separator).filter(|part| !part.is_empty());
    parts
        .map(|part| part.split(' ').map(fill).collect::<Vec<_>>().join(" "))
        .collect()
}

fn recorded(body: &Value) -> Asked {
    let item = |name: &str| body.get(name).map_or_else(HashMap::new, dynamo_json::item);
    let names: HashMap<_, _> = body["ExpressionAttributeNames"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(placeholder, name)| (placeholder.clone(), name.as_str().expect("a name").to_owned()))
        .collect();
    let values = item("ExpressionAttributeValues");
    let cut = |field: &str, separator| {
        let expression = body.get(field).and_then(Value::as_str);
        parts(expression, separator, Some(&names), Some(&values))
    };
    let mut conditions = cut("ConditionExpression", " AND ");
    for (name, expected) in body["Expected"].as_object().into_iter().flatten() {
        conditions.insert(match expected.get("Value") {
            Some(value) => format!("{name} = {}", plain(&dynamo_json::value(value))),
            None => format!("attribute_not_exists({name})"),
        });
    }
    Asked {
        table: body["TableName"].as_str().expect("a table").to_owned(),
        key: plain_item(&item("Key")),
        item: plain_item(&item("Item")),
        conditions,
        updates: cut("UpdateExpression", ", "),
    }
}

/// Takes one of our requests apart in the same way. A macro, since the SDK's builders share no trait.
macro_rules! ours {
    ($request:expr $(, $field:ident: $value:expr)*) => {{
        let request = $request;
        let input = request.as_input();
        let (names, values) = (
            input.get_expression_attribute_names().as_ref(),
            input.get_expression_attribute_values().as_ref(),
        );
        let _ = (&names, &values);
        Asked {
            table: input.get_table_name().clone().expect("a table"),
            conditions: parts(input.get_condition_expression().as_deref(), " AND ", names, values),
            $($field: $value(input, names, values),)*
            ..Asked::default()
        }
    }};
}

type Names<'a> = Option<&'a HashMap<String, String>>;
type Values<'a> = Option<&'a HashMap<String, AttributeValue>>;

fn store(table: &str) -> DynamoDbLeaseStore {
    let config = SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .build();
    DynamoDbLeaseStore::builder_with_sdk_config(table, &config).build()
}

/// The store that belongs to the table of a request, in the layout of that table.
fn store_of(table: &str) -> DynamoDbLeaseStore {
    let legacy = ["-CoordinatorState", "-WorkerMetricStats"];
    let application = legacy.iter().find_map(|suffix| table.strip_suffix(suffix));
    let store = store(application.unwrap_or(table));
    store.tables.set_legacy(application.is_some());
    store
}

fn coordinator_of(store: &DynamoDbLeaseStore) -> Place<'_> {
    Tables::coordinator_place(&store.tables)
}

fn put_item(
    input: &aws_sdk_dynamodb::operation::put_item::builders::PutItemInputBuilder,
    _: Names<'_>,
    _: Values<'_>,
) -> BTreeMap<String, String> {
    plain_item(input.get_item().as_ref().expect("an item"))
}

fn update_key(
    input: &aws_sdk_dynamodb::operation::update_item::builders::UpdateItemInputBuilder,
    _: Names<'_>,
    _: Values<'_>,
) -> BTreeMap<String, String> {
    plain_item(input.get_key().as_ref().expect("a key"))
}

fn updates(
    input: &aws_sdk_dynamodb::operation::update_item::builders::UpdateItemInputBuilder,
    names: Names<'_>,
    values: Values<'_>,
) -> BTreeSet<String> {
    parts(input.get_update_expression().as_deref(), ", ", names, values)
}

fn delete_key(
    input: &aws_sdk_dynamodb::operation::delete_item::builders::DeleteItemInputBuilder,
    _: Names<'_>,
    _: Values<'_>,
) -> BTreeMap<String, String> {
    plain_item(input.get_key().as_ref().expect("a key"))
}

fn value_of(body: &Value, name: &str) -> String {
    body["ExpressionAttributeValues"][name]["S"]
        .as_str()
        .expect("a text")
        .to_owned()
}

/// The lock as its holder asks for it to be as it wrote it.
fn mine(body: &Value) -> LockCondition {
    LockCondition::Mine {
        version: value_of(body, ":rvn"),
        owner: WorkerId::new(value_of(body, ":on")),
    }
}

fn put(told: &str, body: &Value) -> Dealt {
    let table = body["TableName"].as_str().expect("a table");
    let store = store_of(table);
    let place = coordinator_of(&store);
    let item = dynamo_json::item(&body["Item"]);
    let mut asked = recorded(body);
    let of_35 = || plain(&item::text("LEADER"));
    match item
        .get(place.key)
        .and_then(|key| key.as_s().ok())
        .map(String::as_str)
    {
        Some(LOCK_KEY) => {
            // KCL 3.4 writes no kind on the rows of its own table; 3.5 does, and so do we.
            asked.item.entry(ENTITY_TYPE.to_owned()).or_insert_with(of_35);
            let condition = match body["ExpressionAttributeValues"].get(":rvn") {
                Some(_) => LockCondition::VersionIs(Some(value_of(body, ":rvn"))),
                None => LockCondition::Absent,
            };
            let row = lock_of(&item).expect("a lock");
            let request = store.acquire(place, Condition::of(place, &condition), &row);
            assert_eq!(ours!(request, item: put_item), asked, "{told}");
            Compared
        }
        Some(migration::MIGRATION) => {
            let kind = plain(&item::text(migration::ENTITY_MIGRATION));
            asked.item.entry(ENTITY_TYPE.to_owned()).or_insert(kind);
            let request = store.new_migration(Timestamp::from_millis(1));
            let mut made = request.as_input().get_item().clone().expect("an item");
            // Who wrote it, and when.
            for name in ["mb", "mts"] {
                made.insert(name.to_owned(), item[name].clone());
            }
            let AttributeValue::L(history) = &item["h"] else {
                panic!("{told}: no history")
            };
            let Some(AttributeValue::L(ours)) = made.get_mut("h") else {
                panic!("{told}: no history of ours")
            };
            assert_eq!(ours.len(), history.len(), "{told}");
            for (ours, theirs) in ours.iter_mut().zip(history) {
                let (AttributeValue::M(ours), AttributeValue::M(theirs)) = (ours, theirs) else {
                    panic!("{told}: a history of something else")
                };
                for name in ["mb", "mts"] {
                    ours.insert(name.to_owned(), theirs[name].clone());
                }
            }
            let request = request.set_item(Some(made));
            assert_eq!(ours!(request, item: put_item), asked, "{told}");
            Compared
        }
        Some(TABLE_MIGRATION) => LeftOut("a Rust leader does not move the rows to one table"),
        _ => {
            let kind = plain(&item::text(item::ENTITY_LEASE));
            asked.item.entry(ENTITY_TYPE.to_owned()).or_insert(kind);
            let lease = item::from_item(&item).expect("a lease");
            let create = expression::of_create();
            assert_eq!(plain_item(&item::to_item(&lease)), asked.item, "{told}");
            let conditions = parts(create.condition.as_deref(), " AND ", create.names.as_ref(), None);
            assert_eq!(conditions, asked.conditions, "{told}");
            Compared
        }
    }
}

fn update(told: &str, body: &Value) -> Dealt {
    if body.get("UpdateExpression").is_none() {
        let key = &body["Key"][LEASE_KEY]["S"];
        return if key == migration::MIGRATION {
            LeftOut("a Rust leader does not finish upgrades from KCL 2.x")
        } else {
            Elsewhere("expression::tests::every_recorded_update_has_a_write_of_the_same_effect_and_condition")
        };
    }
    let store = store_of(body["TableName"].as_str().expect("a table"));
    let asked = recorded(body);
    if body["ExpressionAttributeValues"].get(":newRvn").is_some() {
        let place = coordinator_of(&store);
        let millis = value_of(body, ":ld").parse().expect("digits");
        let (condition, version) = (Condition::of(place, &mine(body)), value_of(body, ":newRvn"));
        let request = store.heartbeat(place, condition, &version, Duration::from_millis(millis));
        assert_eq!(ours!(request, key: update_key, updates: updates), asked, "{told}");
        return Compared;
    }
    let place = store.tables.metrics_place();
    let mut row: Item = dynamo_json::item(&body["Key"]);
    for (placeholder, name) in body["ExpressionAttributeNames"].as_object().expect("names") {
        let value = placeholder.replace('#', ":");
        let value = dynamo_json::value(&body["ExpressionAttributeValues"][&value]);
        row.insert(name.as_str().expect("a name").to_owned(), value);
    }
    let metrics = metrics_of(&row, place.key).expect("metrics");
    let mut made = ours!(store.put_metrics_request(place, &metrics), key: update_key, updates: updates);
    if metrics.support_code.is_none() {
        // KCL 3.4 knows neither kinds of rows nor support codes.
        let kind = format!("{ENTITY_TYPE} = {}", plain(&item::text(metrics::ENTITY_METRICS)));
        let ours = made.updates.iter().flat_map(|part| part.split(" REMOVE "));
        let mut rest: BTreeSet<String> = ours.map(str::to_owned).collect();
        for part in &asked.updates {
            assert!(rest.remove(part), "{told}: {part} is not in {rest:?}");
        }
        assert_eq!(rest, [kind, "sup".to_owned(), "slu".to_owned()].into(), "{told}");
        assert_eq!(made.key, asked.key, "{told}");
        return Compared;
    }
    // Ours alone: a worker whose id is a lease's key must not overwrite the lease.
    let guards = made.conditions.len();
    assert_eq!(guards, usize::from(place == store.tables.lease_place()), "{told}");
    made.conditions.clear();
    assert_eq!(made, asked, "{told}");
    Compared
}

fn delete(told: &str, body: &Value) -> Dealt {
    let store = store_of(body["TableName"].as_str().expect("a table"));
    let place = coordinator_of(&store);
    if body["Key"][place.key]["S"] == LOCK_KEY {
        let request = store.release(place, Condition::of(place, &mine(body)));
        assert_eq!(ours!(request, key: delete_key), recorded(body), "{told}");
    } else {
        assert_eq!(
            expression::of_delete(&Expectation::default()).condition,
            None,
            "{told}"
        );
        assert!(recorded(body).conditions.is_empty(), "{told}");
    }
    Compared
}

fn get(told: &str, body: &Value) -> Dealt {
    let store = store_of(body["TableName"].as_str().expect("a table"));
    let place = coordinator_of(&store);
    let Some(key) = body["Key"][place.key]["S"].as_str() else {
        panic!("{told}: another key than {}", place.key)
    };
    if ![LOCK_KEY, migration::MIGRATION, TABLE_MIGRATION].contains(&key) {
        return LeftOut(
            "we read leases consistently, since a start from a stale checkpoint reads records twice",
        );
    }
    let request = store.get_row(place, key);
    let input = request.as_input();
    assert_eq!(
        plain_item(input.get_key().as_ref().expect("a key")),
        recorded(body).key,
        "{told}"
    );
    assert_eq!(
        input.get_table_name().as_deref(),
        body["TableName"].as_str(),
        "{told}"
    );
    assert_eq!(
        *input.get_consistent_read(),
        body["ConsistentRead"].as_bool(),
        "{told}"
    );
    Compared
}

fn query(told: &str, body: &Value) -> Dealt {
    let asked = dynamo_json::item(&body["ExpressionAttributeValues"]);
    let worker = asked[":leaseOwner"].as_s().expect("a text");
    let owner = expression::of_owner(&WorkerId::new(worker));
    let condition = parts(
        owner.condition.as_deref(),
        " AND ",
        owner.names.as_ref(),
        owner.values.as_ref(),
    );
    let theirs = parts(
        body["KeyConditionExpression"].as_str(),
        " AND ",
        None,
        Some(&asked),
    );
    assert_eq!(condition, theirs, "{told}");
    assert_eq!(body["IndexName"], super::table::OWNER_INDEX, "{told}");
    Compared
}

fn scan(body: &Value) -> Dealt {
    if body.get("FilterExpression").is_some() {
        LeftOut("one scan answers leases, metrics and lock together")
    } else if body.get("Limit").is_some() {
        LeftOut("whether the table is empty is seen in the scan of everything")
    } else if body.get("TotalSegments") == Some(&Value::from(1)) {
        LeftOut("a scan of one segment is a scan of everything")
    } else {
        assert_eq!(body.as_object().map(serde_json::Map::len), Some(1), "{body}");
        Compared
    }
}

#[test]
fn every_recorded_request_is_compared_or_left_out_for_a_reason() {
    let vectors: Value = serde_json::from_str(REQUESTS).expect("JSON");
    let mut dealt: BTreeMap<Dealt, usize> = BTreeMap::new();
    for request in vectors["requests"].as_array().expect("requests") {
        let body = &request["request"];
        let told = format!("{} {} {}", request["kcl"], request["scenario"], body);
        let how = match request["operation"].as_str().expect("an operation") {
            "PutItem" => put(&told, body),
            "UpdateItem" => update(&told, body),
            "DeleteItem" => delete(&told, body),
            "GetItem" => get(&told, body),
            "Query" => query(&told, body),
            "Scan" => scan(body),
            "CreateTable" => {
                let key = &body["KeySchema"][0]["AttributeName"];
                match key.as_str() {
                    Some("key" | "wid") => LeftOut("the tables of KCL 3.0 to 3.4 are never created"),
                    _ => Elsewhere(
                        "tests/stores: the table and its options; ours has the index from the beginning",
                    ),
                }
            }
            "DescribeTable" | "UpdateTable" | "UpdateContinuousBackups" => {
                Elsewhere("tests/stores: the table and its options")
            }
            other => panic!("{other} is not known here"),
        };
        *dealt.entry(how).or_default() += 1;
    }
    let compared = dealt[&Compared];
    let left_out: usize = dealt
        .iter()
        .filter(|(how, _)| matches!(how, LeftOut(_)))
        .map(|(_, count)| count)
        .sum();
    assert_eq!(
        (dealt.values().sum::<usize>(), compared, left_out),
        (91, 30, 14),
        "{dealt:#?}"
    );
}

#[test]
fn every_recorded_row_that_is_no_lease_is_read() {
    let vectors: Value = serde_json::from_str(ITEMS).expect("JSON");
    let (mut locks, mut workers) = (0, 0);
    for entry in vectors["items"].as_array().expect("items") {
        let (stage, table) = (
            entry["stage"].as_str().expect("stage"),
            entry["table"].as_str().expect("table"),
        );
        let row = dynamo_json::item(&entry["item"]);
        let store = store_of(table);
        if stage == "leader lock" {
            let lock = lock_of(&row).expect(stage);
            assert_eq!(lock.owner, Some(WorkerId::new("worker-1")), "{stage}");
            assert_eq!(lock.lease_duration, Duration::from_mins(2), "{stage}");
            assert!(lock.version.is_some() && !lock.is_released, "{stage}");
            locks += 1;
        } else if let Some(source) = stage.strip_prefix("worker metrics, ") {
            let metrics = metrics_of(&row, store.tables.metrics_place().key).expect(stage);
            let averages = metrics.averages.get("C").map_or(0, Vec::len);
            let expected = match source {
                "no source" => 0,
                "C, first average" => 1,
                "C, some averages" => 2,
                "C, ten averages" => 10,
                other => panic!("{other} is not known here"),
            };
            assert_eq!(averages, expected, "{stage}");
            assert!(
                metrics.is_valid() && metrics.last_update_seconds > Some(1_796_080_000),
                "{stage}"
            );
            assert_eq!(
                metrics.support_code,
                (entry["kcl"] != "3.4.2").then_some(1),
                "{stage}"
            );
            workers += 1;
        }
    }
    assert_eq!((locks, workers), (2, 6));
}

#[test]
fn the_deletion_of_metrics_asks_for_the_row_that_was_seen() {
    let store = store("golden");
    let conditions = |place, seconds| {
        let request = store.delete_metrics_request(place, &WorkerId::new("w"), seconds);
        ours!(request, key: delete_key).conditions
    };
    let is_metrics = "(attribute_not_exists(leaseKey) OR entityType = S(\"WORKER_METRIC_STATS\"))";
    let is_seen = "(attribute_not_exists(leaseKey) OR lut = N 7)";
    assert_eq!(
        conditions(store.tables.lease_place(), None),
        [is_metrics.to_owned()].into()
    );
    assert_eq!(
        conditions(store.tables.lease_place(), Some(7)),
        [is_metrics.to_owned(), is_seen.to_owned()].into()
    );
    assert_eq!(
        conditions(store.tables.legacy_metrics(), Some(7)),
        ["(attribute_not_exists(wid) OR lut = N 7)".to_owned()].into()
    );
    assert!(conditions(store.tables.legacy_metrics(), None).is_empty());
}
