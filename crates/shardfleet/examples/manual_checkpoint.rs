//! How do I decide by myself when a checkpoint is made? A record processor that writes its records in groups of three, and checkpoints each
//! group once it is written, as processors of the Java KCL do.
#![allow(clippy::print_stdout, reason = "an example speaks to whoever runs it")]

use std::error::Error;
use std::time::Duration;

use shardfleet::{
    AwsKinesis, AwsSettings, ErrorPolicy, KinesisPosition, KinesisStream, ProcessRecordsInput,
    ProcessorError, RecordProcessor, ShardId, async_trait,
};
use shardfleet_local::{ACCESS_KEY_ID, LocalKinesis, REGION, SECRET_ACCESS_KEY};

struct Groups {
    written: tokio::sync::mpsc::Sender<String>,
    group: Vec<String>,
}

#[async_trait]
impl RecordProcessor for Groups {
    // That a batch was processed settles nothing yet.
    fn settles_on_success(&self) -> bool {
        false
    }

    async fn process_records(&mut self, input: ProcessRecordsInput<'_>) -> Result<(), ProcessorError> {
        for record in input.records {
            let text = String::from_utf8_lossy(&record.data).into_owned();
            self.group.push(text);
            if self.group.len() == 3 {
                let group = std::mem::take(&mut self.group).join(", ");
                let sent = self.written.send(group).await;
                sent.map_err(ProcessorError::from_error)?;
                let made = input.checkpointer.checkpoint_at(&record.position).await;
                made.map_err(ProcessorError::from_error)?;
            }
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
    local.controls().create_stream("orders", 1)?;
    for n in 1..=7 {
        local.controls().put("orders", "customer", format!("order {n}"))?;
    }
    let settings = AwsSettings::builder()
        .endpoint_url(local.endpoint())
        .region(REGION);
    let settings = settings
        .credentials(ACCESS_KEY_ID, SECRET_ACCESS_KEY)
        .load()
        .await;
    let stream = KinesisStream::builder("orders", AwsKinesis::new(&settings)).application("groups");
    let stream = stream.start_at(KinesisPosition::horizon()).build()?;

    let (written, mut groups) = tokio::sync::mpsc::channel(8);
    let factory = move |_: &ShardId| Groups {
        written: written.clone(),
        group: Vec::new(),
    };
    let policy = ErrorPolicy::default();
    let handle = stream
        .process(factory, policy, |error| println!("{error}"))
        .await?;
    for _ in 0..2 {
        println!("a group: {}", groups.recv().await.ok_or("no group")?);
    }
    let report = handle.shutdown(Duration::from_secs(5)).await;
    // The seventh order waits for its group: it lies behind the checkpoint, and comes again.
    println!("checkpoint: {}", report.shards[0].checkpoint);
    Ok(())
}
