//! What about a record that no attempt can process? It is set aside in a file, and its shard goes on. Later `shardfleet redrive` puts it back.
//!
//! `cargo run --example dead_letter`
#![allow(clippy::print_stdout, reason = "an example speaks to whoever runs it")]

use std::error::Error;
use std::time::Duration;

use shardfleet::dead_letter::{DeadLetter, DeadLetterFile};
use shardfleet::{
    AwsKinesis, AwsSettings, Backoff, ErrorPolicy, KinesisPosition, KinesisStream, ProcessRecordsInput,
    ProcessorError, RecordProcessor, ShardId, async_trait,
};
use shardfleet_local::{ACCESS_KEY_ID, LocalKinesis, REGION, SECRET_ACCESS_KEY};
use tokio::sync::mpsc;

/// Adds up numbers, and cannot do anything with what is none.
struct Sum(mpsc::Sender<i64>);

#[async_trait]
impl RecordProcessor for Sum {
    async fn process_records(&mut self, input: ProcessRecordsInput<'_>) -> Result<(), ProcessorError> {
        for record in input.records {
            let text = String::from_utf8_lossy(&record.data);
            // The error names its record, so that what lies before is not processed again.
            let number = text.parse().map_err(|error| {
                ProcessorError::new(format!("{text}: {error}")).at(record.position.clone())
            })?;
            self.0.send(number).await.map_err(ProcessorError::from_error)?;
        }
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    run().await
}

pub(crate) async fn run() -> Result<(), Box<dyn Error>> {
    let local = LocalKinesis::builder().start().await?;
    local.controls().create_stream("numbers", 1)?;
    for text in ["1", "2", "three", "4"] {
        local.controls().put("numbers", "key", text)?;
    }
    let settings = AwsSettings::builder()
        .endpoint_url(local.endpoint())
        .region(REGION);
    let settings = settings
        .credentials(ACCESS_KEY_ID, SECRET_ACCESS_KEY)
        .load()
        .await;
    let stream = KinesisStream::builder("numbers", AwsKinesis::new(&settings)).application("sum");
    let stream = stream.start_at(KinesisPosition::horizon()).build()?;

    let folder = tempfile::tempdir()?;
    let path = folder.path().join("dead-letters.jsonl");
    let backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(100));
    let policy = ErrorPolicy::dead_letter_after(3, DeadLetterFile::open(&path)?).with_backoff(backoff);
    let (numbers, mut received) = mpsc::channel(8);
    let factory = move |_: &ShardId| Sum(numbers.clone());
    let on_error = |error: &shardfleet::KinesisError| println!("{error}");
    let handle = stream.process(factory, policy, on_error).await?;
    let mut sum = 0;
    for _ in 0..3 {
        sum += received.recv().await.ok_or("no number")?;
    }
    handle.shutdown(Duration::from_secs(5)).await;
    println!("the sum of the others is {sum}");
    for line in std::fs::read_to_string(&path)?.lines() {
        let letter: DeadLetter = serde_json::from_str(line)?;
        println!("set aside after {} attempts: {}", letter.attempts, letter.reason);
    }
    Ok(())
}
