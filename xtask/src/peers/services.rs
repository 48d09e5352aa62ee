//! The embedded Kinesis and DynamoDB in a process of their own, and the calls of them that the harness makes.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::http;
use super::process::Owned;
use super::time::wait;

/// Both services.
pub(crate) struct Services {
    kinesis: String,
    dynamodb: String,
    _process: Owned,
    /// The services end when this is closed, so also when the harness is killed.
    _alive: Option<ChildStdin>,
}

/// What the harness needs to make calls.
#[derive(Clone)]
pub(crate) struct Clients {
    /// `HOST:PORT` of Kinesis.
    pub(crate) kinesis: String,
    /// `HOST:PORT` of DynamoDB.
    pub(crate) dynamodb: String,
}

impl Services {
    /// Starts both on free ports.
    pub(crate) fn start(binary: &Path) -> Result<Self, String> {
        let mut process = Owned::start(
            Command::new(binary)
                .args(["--kinesis-port", "0", "--dynamodb-port", "0", "--until-eof"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped()),
        )?;
        let alive = process.child().stdin.take();
        let stdout = process
            .child()
            .stdout
            .take()
            .ok_or("the services have no output")?;
        let mut lines = BufReader::new(stdout).lines();
        let mut endpoint = || match lines.next() {
            Some(Ok(line)) => Ok(line.trim().trim_start_matches("http://").to_owned()),
            _ => Err("the services did not say where they are".to_owned()),
        };
        Ok(Self {
            kinesis: endpoint()?,
            dynamodb: endpoint()?,
            _process: process,
            _alive: alive,
        })
    }

    /// Where they are.
    pub(crate) fn clients(&self) -> Clients {
        Clients {
            kinesis: self.kinesis.clone(),
            dynamodb: self.dynamodb.clone(),
        }
    }
}

impl Clients {
    /// An operation of Kinesis.
    pub(crate) fn kinesis(&self, operation: &str, input: &Value) -> Result<Value, String> {
        http::aws(&self.kinesis, &format!("Kinesis_20131202.{operation}"), input)
    }

    /// An operation of DynamoDB.
    pub(crate) fn dynamodb(&self, operation: &str, input: &Value) -> Result<Value, String> {
        http::aws(&self.dynamodb, &format!("DynamoDB_20120810.{operation}"), input)
    }

    /// Creates a stream and waits until it can be used.
    pub(crate) fn create_stream(&self, stream: &str, shards: u32) -> Result<(), String> {
        self.kinesis(
            "CreateStream",
            &json!({"StreamName": stream, "ShardCount": shards}),
        )?;
        self.await_active(stream)
    }

    /// Splits a shard in its middle and waits until that is done.
    pub(crate) fn split(&self, stream: &str, shard: &str) -> Result<(), String> {
        let shards = self.kinesis("ListShards", &json!({"StreamName": stream}))?;
        let found = shards["Shards"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|s| s["ShardId"] == shard);
        let bound = |name: &str| {
            let text = found.and_then(|s| s["HashKeyRange"][name].as_str());
            text.and_then(|text| text.parse::<u128>().ok())
                .ok_or_else(|| format!("{shard} has no {name}"))
        };
        let (low, high) = (bound("StartingHashKey")?, bound("EndingHashKey")?);
        let middle = (low + (high - low) / 2).to_string();
        let split = json!({"StreamName": stream, "ShardToSplit": shard, "NewStartingHashKey": middle});
        self.kinesis("SplitShard", &split)?;
        self.await_active(stream)
    }

    /// Merges two shards and waits until that is done.
    pub(crate) fn merge(&self, stream: &str, shard: &str, adjacent: &str) -> Result<(), String> {
        let merge = json!({"StreamName": stream, "ShardToMerge": shard, "AdjacentShardToMerge": adjacent});
        self.kinesis("MergeShards", &merge)?;
        self.await_active(stream)
    }

    fn await_active(&self, stream: &str) -> Result<(), String> {
        let describe = json!({"StreamName": stream});
        let look = || {
            let summary = self.kinesis("DescribeStreamSummary", &describe)?;
            Ok((summary["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE").then_some(()))
        };
        wait("the stream is ACTIVE", Duration::from_secs(20), look, String::new)
    }

    /// Every item of a table as DynamoDB tells it; none where there is no such table yet.
    pub(crate) fn items(&self, table: &str) -> Result<Vec<Value>, String> {
        let scan = json!({"TableName": table, "ConsistentRead": true});
        match self.dynamodb("Scan", &scan) {
            // A megabyte holds more leases than any scenario has.
            Ok(mut page) => match page["Items"].take() {
                Value::Array(items) => Ok(items),
                _ => Ok(Vec::new()),
            },
            Err(error) if error.contains("ResourceNotFoundException") => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}
