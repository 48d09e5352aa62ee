//! Rows that others wrote: the fleet goes on beside what it cannot read, and keeps what it does not know.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

use super::support::{APPLICATION, Fleet};
use crate::support::{shard_name, until};

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

fn number(value: &str) -> AttributeValue {
    AttributeValue::N(value.to_owned())
}

fn client(fleet: &Fleet) -> aws_sdk_dynamodb::Client {
    use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region};
    let credentials = Credentials::new(
        shardfleet_local::ACCESS_KEY_ID,
        shardfleet_local::SECRET_ACCESS_KEY,
        None,
        None,
        "tests",
    );
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(fleet.dynamo_endpoint())
        .region(Region::new(shardfleet_local::REGION))
        .credentials_provider(credentials)
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .build();
    aws_sdk_dynamodb::Client::from_conf(config)
}

async fn put(client: &aws_sdk_dynamodb::Client, item: &[(&str, AttributeValue)]) {
    let item: HashMap<String, AttributeValue> = item
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect();
    let put = client.put_item().table_name(APPLICATION).set_item(Some(item));
    put.send().await.expect("put");
}

async fn get(client: &aws_sdk_dynamodb::Client, key: &str) -> HashMap<String, AttributeValue> {
    let got = client
        .get_item()
        .table_name(APPLICATION)
        .key("leaseKey", text(key))
        .consistent_read(true)
        .send()
        .await
        .expect("get");
    got.item.unwrap_or_else(|| panic!("{key} is gone"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fleet_goes_on_beside_rows_that_it_cannot_read() {
    let fleet = Fleet::over_dynamodb(4).await;
    fleet.produce();
    let first = fleet.start("a").await;
    fleet.until_all_move(4).await;
    let client = client(&fleet);
    let strange: &[&[(&str, AttributeValue)]] = &[
        // A lease that says nothing of itself.
        &[("leaseKey", text("shardId-000000000090"))],
        // One whose counter is no number.
        &[
            ("leaseKey", text("shardId-000000000091")),
            ("leaseCounter", text("many")),
            ("checkpoint", text("TRIM_HORIZON")),
        ],
        // One whose checkpoint is no place.
        &[
            ("leaseKey", text("shardId-000000000092")),
            ("leaseCounter", number("7")),
            ("checkpoint", text("somewhere")),
            ("checkpointSubSequenceNumber", number("0")),
        ],
        // A kind of row that does not exist yet.
        &[
            ("leaseKey", text("Budget1.0")),
            ("entityType", text("BUDGET")),
            ("amount", number("12")),
        ],
        // Rows of the fleet that say nonsense.
        &[
            ("leaseKey", text("worker-of-tomorrow")),
            ("entityType", text("WORKER_METRIC_STATS")),
            ("wid", number("5")),
            ("lut", text("yesterday")),
        ],
    ];
    for item in strange {
        put(&client, item).await;
    }
    let second = fleet.start("b").await;
    until("the second to read", || async {
        !fleet
            .books
            .shards_of("b", shardfleet::core::time::Moment::default())
            .is_empty()
    })
    .await;
    first.kill();
    fleet.until_all_move(4).await;
    fleet.until_led(&[&second]).await;
    fleet.settled().await.complete();
    // They are somebody's, and still there.
    for item in strange {
        let AttributeValue::S(key) = &item[0].1 else {
            panic!("a key")
        };
        let found = get(&client, key).await;
        assert_eq!(found.len(), item.len(), "{found:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_that_nobody_knows_survive_everything() {
    let fleet = Fleet::over_dynamodb(2).await;
    fleet.produce();
    let first = fleet.start("a").await;
    fleet.until_all_move(2).await;
    let client = client(&fleet);
    for shard in 0..2 {
        let update = client
            .update_item()
            .table_name(APPLICATION)
            .key("leaseKey", text(&shard_name(shard)))
            .update_expression("SET futureAttribute = :v, futureSet = :s")
            .expression_attribute_values(":v", text("kept"))
            .expression_attribute_values(":s", AttributeValue::Ss(vec!["x".to_owned(), "y".to_owned()]));
        update.send().await.expect("update");
    }
    // A handoff, a failover, and a stop.
    let second = fleet.start("b").await;
    fleet.until_even(&[&first, &second]).await;
    first.kill();
    fleet.until_all_move(2).await;
    fleet.settled().await.complete();
    assert!(second.stop().await.is_clean());
    for shard in 0..2 {
        let item = get(&client, &shard_name(shard)).await;
        assert_eq!(item.get("futureAttribute"), Some(&text("kept")), "{item:?}");
        assert!(item.contains_key("futureSet"), "{item:?}");
        assert!(!item.contains_key("leaseOwner"), "{item:?}");
    }
}
