//! How fast the embedded Kinesis hands out records: a plain HTTP client reads whole streams of 1 kB records.
//!
//! `cargo run --release -p shardfleet-local --example throughput`
//!
//! Payload bytes are counted, not the longer base64 text on the wire. Client and server share the machine.

use std::error::Error;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use shardfleet_local::LocalKinesis;

const SHARDS: u32 = 4;
const RECORDS: usize = 200_000;
const RECORD_BYTES: usize = 1000;
const JSON: &str = "application/x-amz-json-1.1";
const CBOR: &str = "application/x-amz-cbor-1.1";

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Clone)]
struct Caller {
    http: Client<HttpConnector, Full<Bytes>>,
    endpoint: String,
}

impl Caller {
    async fn call(&self, operation: &str, content_type: &str, body: Vec<u8>) -> Result<Bytes> {
        let request = Request::post(&self.endpoint)
            .header("X-Amz-Target", format!("Kinesis_20131202.{operation}"))
            .header("Content-Type", content_type)
            .body(Full::new(Bytes::from(body)))?;
        let response = self.http.request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        if status.is_success() {
            Ok(body)
        } else {
            Err(format!("{operation}: {status}").into())
        }
    }

    async fn json(&self, operation: &str, body: &Value) -> Result<Value> {
        let answer = self.call(operation, JSON, body.to_string().into_bytes()).await?;
        Ok(serde_json::from_slice(&answer)?)
    }

    async fn write(&self, thread: usize, calls: usize) -> Result<()> {
        let data = STANDARD.encode(vec![b'x'; RECORD_BYTES]);
        for call in 0..calls {
            let records: Vec<Value> = (0..500)
                .map(|i| json!({"Data": data, "PartitionKey": format!("{thread}-{call}-{i}")}))
                .collect();
            self.json("PutRecords", &json!({"StreamName": "s", "Records": records}))
                .await?;
        }
        Ok(())
    }

    /// Reads a shard to its tip and returns the bytes that came over the wire. Answers are not decoded beyond the next iterator:
    /// the server is what is measured.
    async fn read(&self, shard: u32, content_type: &str) -> Result<usize> {
        let at = json!({
            "StreamName": "s", "ShardId": format!("shardId-{shard:012}"), "ShardIteratorType": "TRIM_HORIZON",
        });
        let answer = self.json("GetShardIterator", &at).await?;
        let mut iterator = answer["ShardIterator"].as_str().unwrap_or_default().to_owned();
        let mut bytes = 0;
        loop {
            let body = request_body(&iterator, content_type);
            let page = self.call("GetRecords", content_type, body).await?;
            bytes += page.len();
            if page.len() < 1000 {
                return Ok(bytes);
            }
            iterator = next_iterator(&page, iterator.len()).ok_or("no next iterator")?;
        }
    }
}

/// The next iterator of a page, found without decoding the page: a text as long as the one before, behind its name and whatever the
/// encoding puts between (`":"`, or a text's length).
fn next_iterator(page: &[u8], length: usize) -> Option<String> {
    let name = b"NextShardIterator";
    let tail = &page[page.len().saturating_sub(400)..];
    let after = tail.windows(name.len()).rposition(|w| w == name)? + name.len();
    let between = if tail.get(after) == Some(&b'"') { 3 } else { 2 };
    let text = tail.get(after + between..after + between + length)?;
    String::from_utf8(text.to_vec()).ok()
}

fn request_body(iterator: &str, content_type: &str) -> Vec<u8> {
    if content_type == JSON {
        return json!({"ShardIterator": iterator, "Limit": 10_000})
            .to_string()
            .into_bytes();
    }
    // A map of one text to one text of 24 to 255 bytes.
    let mut body = vec![0xA1, 0x6D];
    body.extend_from_slice(b"ShardIterator");
    body.extend_from_slice(&[0x78, u8::try_from(iterator.len()).unwrap_or(u8::MAX)]);
    body.extend_from_slice(iterator.as_bytes());
    body
}

#[expect(clippy::print_stdout, reason = "the figures are what this is run for")]
fn report(what: &str, seconds: f64, wire_bytes: usize) {
    #[expect(clippy::cast_precision_loss, reason = "a figure of three digits is read")]
    let (payload, wire, records) = ((RECORDS * RECORD_BYTES) as f64, wire_bytes as f64, RECORDS as f64);
    println!(
        "{what:<14} {:6.0} MB/s payload  {:6.0} MB/s wire  {:8.0} records/s",
        payload / seconds / 1e6,
        wire / seconds / 1e6,
        records / seconds
    );
}

#[expect(clippy::disallowed_methods, reason = "a stopwatch")]
fn stopwatch() -> Instant {
    Instant::now()
}

#[tokio::main]
async fn main() -> Result<()> {
    let kinesis = LocalKinesis::builder().start().await?;
    kinesis.controls().create_stream("s", SHARDS)?;
    let http = Client::builder(TokioExecutor::new()).build_http();
    let caller = Caller {
        http,
        endpoint: kinesis.endpoint(),
    };

    let start = stopwatch();
    let writers: Vec<_> = (0..4)
        .map(|thread| {
            let caller = caller.clone();
            tokio::spawn(async move { caller.write(thread, RECORDS / 500 / 4).await })
        })
        .collect();
    for writer in writers {
        writer.await??;
    }
    report(
        "PutRecords",
        start.elapsed().as_secs_f64(),
        RECORDS * (RECORD_BYTES * 4 / 3),
    );

    for (name, content_type) in [("GetRecords JSON", JSON), ("GetRecords CBOR", CBOR)] {
        for round in 0..2 {
            let start = stopwatch();
            let readers: Vec<_> = (0..SHARDS)
                .map(|shard| {
                    let caller = caller.clone();
                    tokio::spawn(async move { caller.read(shard, content_type).await })
                })
                .collect();
            let mut bytes = 0;
            for reader in readers {
                bytes += reader.await??;
            }
            report(&format!("{name} {round}"), start.elapsed().as_secs_f64(), bytes);
        }
    }
    kinesis.stop().await;
    Ok(())
}
