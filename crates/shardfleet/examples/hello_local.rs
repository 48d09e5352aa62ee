//! How do I read a stream? A first run without an AWS account: the stream and its service live in this process.
//!
//! `cargo run --example hello_local`
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
    // Against AWS none of this is needed: `AwsKinesis::from_env()` is the client.
    let local = LocalKinesis::builder().start().await?;
    local.controls().create_stream("orders", 2)?;
    let settings = AwsSettings::builder()
        .endpoint_url(local.endpoint())
        .region(REGION)
        .credentials(ACCESS_KEY_ID, SECRET_ACCESS_KEY)
        .load()
        .await;
    for n in 1..=5 {
        let customer = format!("customer-{n}");
        local.controls().put("orders", &customer, format!("order {n}"))?;
    }

    let stream = KinesisStream::builder("orders", AwsKinesis::new(&settings))
        .application("hello")
        .start_at(KinesisPosition::horizon())
        .build()?;
    let mut subscription = stream.subscribe().await?;
    for _ in 0..5 {
        let Some(delivery) = subscription.next().await else {
            return Err("the subscription ended early".into());
        };
        let delivery = delivery?;
        let text = String::from_utf8_lossy(&delivery.data);
        println!("{} {text}", delivery.shard_id);
        // From here on the record counts as dealt with, and a restart goes on behind it.
        delivery.ack();
    }
    let report = subscription.shutdown(Duration::from_secs(5)).await;
    println!("everything settled: {}", report.is_clean());
    local.stop().await;
    Ok(())
}
