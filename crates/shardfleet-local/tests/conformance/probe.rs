//! One side of the comparison: makes calls and keeps what came back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use shardfleet_local::{KinesisControls, ServiceLimits};

use crate::client::{Answer, Client, base64};
use crate::normal;

/// Longest time that anything is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// Asks again and again, every 20 ms, until there is an answer.
///
/// # Panics
/// After 20 seconds.
pub(crate) async fn poll<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    let looking = async {
        loop {
            ticks.tick().await;
            if let Some(found) = look().await {
                return found;
            }
        }
    };
    let result = tokio::time::timeout(PATIENCE, looking).await;
    result.unwrap_or_else(|_| panic!("waited {PATIENCE:?} for {what}"))
}

/// Everything that one side answered.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    /// By "case: step".
    pub(crate) steps: BTreeMap<String, Value>,
    /// Operations, with whether they succeeded.
    pub(crate) outcomes: BTreeSet<(String, bool)>,
}

/// Makes the calls of a case of one service.
#[derive(Debug)]
pub(crate) struct Probe {
    pub(crate) client: Client,
    /// Controls, where the service is ours.
    controls: Option<KinesisControls>,
    case: &'static str,
    transcript: Transcript,
}

impl Probe {
    pub(crate) fn new(client: Client, controls: Option<KinesisControls>) -> Self {
        Self {
            client,
            controls,
            case: "",
            transcript: Transcript::default(),
        }
    }

    pub(crate) fn begin(&mut self, case: &'static str) {
        self.case = case;
    }

    pub(crate) fn into_transcript(self) -> Transcript {
        self.transcript
    }

    /// Keeps a value under a step's name.
    pub(crate) fn note(&mut self, step: &str, value: impl Into<Value>) {
        let name = format!("{}: {step}", self.case);
        let before = self.transcript.steps.insert(name, value.into());
        assert!(before.is_none(), "{}: step {step} is named twice", self.case);
    }

    /// Makes a call and keeps its answer under a step's name.
    pub(crate) async fn step(&mut self, step: &str, operation: &str, body: Value) -> Answer {
        let answer = self.call(operation, body).await;
        self.note(step, normal::answer(&answer));
        answer
    }

    /// Makes a call whose answer is not compared.
    pub(crate) async fn call(&mut self, operation: &str, body: Value) -> Answer {
        let answer = self.client.call(operation, &body).await;
        self.count(operation, answer.is_ok());
        answer
    }

    pub(crate) fn count(&mut self, operation: &str, ok: bool) {
        self.transcript.outcomes.insert((operation.to_owned(), ok));
    }

    /// Switches on AWS's rate limits, where the service can.
    pub(crate) fn limit(&self, limits: ServiceLimits) {
        if let Some(controls) = &self.controls {
            controls.set_limits(limits);
        }
    }

    /// Makes a stream, and waits until it is ACTIVE.
    pub(crate) async fn make(&mut self, stream: &str, shards: u32) {
        let body = json!({"StreamName": stream, "ShardCount": shards});
        let answer = self.call("CreateStream", body).await;
        assert!(answer.is_ok(), "CreateStream {stream}: {answer:?}");
        self.settled(stream).await;
    }

    /// Waits until a stream is ACTIVE.
    pub(crate) async fn settled(&mut self, stream: &str) {
        let client = self.client.clone();
        poll("a stream to become ACTIVE", async || {
            let answer = client
                .call("DescribeStreamSummary", &json!({"StreamName": stream}))
                .await;
            (answer.text("/StreamDescriptionSummary/StreamStatus") == "ACTIVE").then_some(())
        })
        .await;
    }

    /// Puts one record; its sequence number.
    pub(crate) async fn put(&mut self, stream: &str, data: &str) -> String {
        let body = json!({"StreamName": stream, "PartitionKey": "key", "ExplicitHashKey": "0", "Data": base64(data)});
        let answer = self.call("PutRecord", body).await;
        assert!(answer.is_ok(), "PutRecord {stream}: {answer:?}");
        answer.text("/SequenceNumber")
    }

    /// An iterator on a shard, by its number; empty where the call fails.
    pub(crate) async fn iterator(&mut self, stream: &str, shard: u32, more: Value) -> String {
        let mut body = json!({"StreamName": stream, "ShardId": shard_id(shard)});
        merge(&mut body, more);
        self.call("GetShardIterator", body).await.text("/ShardIterator")
    }
}

/// The name of a shard.
pub(crate) fn shard_id(number: u32) -> String {
    format!("shardId-{number:012}")
}

/// The ARN of a stream.
pub(crate) fn arn(stream: &str) -> String {
    KinesisControls::stream_arn(stream)
}

/// Adds the fields of `more`.
pub(crate) fn merge(body: &mut Value, more: Value) {
    if let (Value::Object(body), Value::Object(more)) = (body, more) {
        body.extend(more);
    }
}
