//! What happens when a shard is split? Nothing that a reader has to do: its children are read once it was read to its end, so that the records
//! of each key stay in order.
//!
//! `cargo run --example reshard`
#![allow(clippy::print_stdout, reason = "an example speaks to whoever runs it")]

use std::error::Error;
use std::time::Duration;

use futures::StreamExt;
use shardfleet::{AwsKinesis, AwsSettings, KinesisPosition, KinesisStream};
use shardfleet_local::{ACCESS_KEY_ID, LocalKinesis, REGION, SECRET_ACCESS_KEY};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    run().await
}

pub(crate) async fn run() -> Result<(), Box<dyn Error>> {
    let local = LocalKinesis::builder().start().await?;
    let controls = local.controls();
    controls.create_stream("orders", 1)?;
    let settings = AwsSettings::builder()
        .endpoint_url(local.endpoint())
        .region(REGION);
    let settings = settings
        .credentials(ACCESS_KEY_ID, SECRET_ACCESS_KEY)
        .load()
        .await;
    let stream = KinesisStream::builder("orders", AwsKinesis::new(&settings))
        .application("reshard")
        .poll_interval(Duration::from_millis(50))
        .start_at(KinesisPosition::horizon())
        .build()?;
    let mut subscription = stream.subscribe().await?;

    for n in 0..12 {
        let key = format!("customer-{}", n % 3);
        controls.put("orders", &key, format!("{key}: order {}", n / 3))?;
        if n == 5 {
            let (low, high) = controls.split("orders", "shardId-000000000000")?;
            println!("split into {low} and {high}");
        }
    }
    let mut last = std::collections::BTreeMap::new();
    for _ in 0..12 {
        let delivery = subscription.next().await.ok_or("ended early")??;
        let text = String::from_utf8_lossy(&delivery.data).into_owned();
        println!("{} {text}", delivery.shard_id);
        // Per key, in the order in which they were put.
        let key = delivery.partition_key.clone();
        let before = last.insert(key, text.clone());
        assert!(before.is_none_or(|before| before < text));
        delivery.ack();
    }
    println!("{:#?}", subscription.shutdown(Duration::from_secs(5)).await);
    Ok(())
}
