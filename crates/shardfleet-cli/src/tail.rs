//! `shardfleet tail`: prints records, writes nothing.

use std::io;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use serde_json::json;
use shardfleet::clock::{Clock, SystemClock};
use shardfleet::{AwsKinesis, KinesisStream, Record};

use crate::args::TailArgs;
use crate::exit::Failure;
use crate::output::{result_line, say};

pub(crate) async fn run(args: TailArgs) -> Result<(), Failure> {
    let settings = crate::aws::settings(&args.aws).await?;
    let clock = SystemClock::new();
    let from = args.from.at(clock.wall());
    let mut subscription = KinesisStream::builder(args.stream.as_str(), AwsKinesis::new(&settings))
        .application(format!("{}-tail", args.stream))
        .start_at(from.clone())
        .build()?
        .subscribe()
        .await?;
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(interrupt);
    let mut left = args.max.unwrap_or(u64::MAX);
    let idle = args.idle.unwrap_or(Duration::MAX / 4);
    let mut result = Ok(());
    while left > 0 {
        let quiet_until = clock.now() + idle;
        let item = tokio::select! {
            biased;
            _ = &mut interrupt => break,
            item = subscription.next() => item,
            () = clock.sleep_until(quiet_until) => break,
        };
        match item {
            // A position in one shard is about that shard alone.
            Some(Ok(delivery)) if !from.concerns(&delivery.shard_id) => delivery.ack(),
            Some(Ok(delivery)) => {
                match print(&delivery, args.json) {
                    Ok(()) => {}
                    // Whoever read the records has enough of them.
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => break,
                    Err(error) => return Err(error.into()),
                }
                delivery.ack();
                left -= 1;
            }
            Some(Err(error)) if error.is_fatal() => {
                result = Err(error.into());
                break;
            }
            Some(Err(error)) => say(&format!("warning: {}", error.full_text())),
            None => break,
        }
    }
    subscription.shutdown(Duration::from_secs(2)).await;
    result
}

fn print(record: &Record, as_json: bool) -> io::Result<()> {
    if as_json {
        return result_line(&record_json(record).to_string());
    }
    let key = record.partition_key.as_deref().unwrap_or("-");
    let data = String::from_utf8_lossy(&record.data);
    result_line(&format!("{} {} {key} {data}", record.shard_id, record.position))
}

/// A record as JSON: its data as text where it is UTF-8, else in base64.
pub(crate) fn record_json(record: &Record) -> serde_json::Value {
    let mut value = json!({
        "shard_id": record.shard_id.as_str(),
        "sequence_number": record.position.checkpoint_text(),
        "sub_sequence_number": record.position.sub_sequence_number(),
        "partition_key": record.partition_key.as_deref(),
        "arrived_at_millis": record.arrived_at.map(shardfleet::Timestamp::millis),
    });
    match std::str::from_utf8(&record.data) {
        Ok(text) => value["data"] = text.into(),
        Err(_) => value["data_base64"] = STANDARD.encode(&record.data).into(),
    }
    value
}
