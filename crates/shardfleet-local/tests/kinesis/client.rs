//! A plain HTTP client of the service, and what the tests share.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use shardfleet_local::{KinesisControls, KinesisSettings, LocalKinesis};

/// The longest that anything in these tests may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) const JSON: &str = "application/x-amz-json-1.1";
pub(crate) const CBOR: &str = "application/x-amz-cbor-1.1";

#[derive(Clone)]
pub(crate) struct Client {
    http: HttpClient<HttpConnector, Full<Bytes>>,
    endpoint: String,
}

/// The answer to a call: HTTP status and body.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
}

impl Client {
    pub(crate) fn new(endpoint: &str) -> Self {
        Self {
            http: HttpClient::builder(TokioExecutor::new()).build_http(),
            endpoint: endpoint.to_owned(),
        }
    }

    pub(crate) fn http2(endpoint: &str) -> Self {
        let http = HttpClient::builder(TokioExecutor::new())
            .http2_only(true)
            .build_http();
        Self {
            http,
            endpoint: endpoint.to_owned(),
        }
    }

    pub(crate) fn http(&self) -> &HttpClient<HttpConnector, Full<Bytes>> {
        &self.http
    }

    /// Sends a call; an error is a connection that was cut.
    pub(crate) async fn send(
        &self,
        operation: &str,
        content_type: &str,
        body: impl Into<Bytes>,
    ) -> Result<Response<Incoming>, hyper_util::client::legacy::Error> {
        let request = Request::post(&self.endpoint)
            .header("X-Amz-Target", format!("Kinesis_20131202.{operation}"))
            .header("Content-Type", content_type)
            .body(Full::new(body.into()))
            .unwrap();
        tokio::time::timeout(DEADLINE, self.http.request(request))
            .await
            .expect("no answer")
    }

    pub(crate) async fn call(&self, operation: &str, body: Value) -> Reply {
        let response = self.send(operation, JSON, body.to_string()).await.unwrap();
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let body = if bytes.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&bytes).unwrap()
        };
        Reply { status, body }
    }

    /// A call that has to succeed.
    pub(crate) async fn ok(&self, operation: &str, body: Value) -> Value {
        let reply = self.call(operation, body).await;
        assert_eq!(reply.status, 200, "{operation}: {}", reply.body);
        reply.body
    }

    /// A call that has to fail with HTTP 400 and this type. Returns its message.
    pub(crate) async fn err(&self, operation: &str, body: Value, code: &str) -> String {
        let reply = self.call(operation, body).await;
        assert_eq!(reply.status, 400, "{operation}: {}", reply.body);
        assert_eq!(reply.body["__type"], code, "{operation}: {}", reply.body);
        reply.body["message"].as_str().unwrap().to_owned()
    }

    /// A control request.
    pub(crate) async fn control(&self, method: &str, path: &str, body: Value) -> Reply {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}/_shardfleet/{path}", self.endpoint))
            .body(Full::new(Bytes::from(if body.is_null() {
                String::new()
            } else {
                body.to_string()
            })))
            .unwrap();
        let response = self.http.request(request).await.unwrap();
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        Reply {
            status,
            body: serde_json::from_slice(&bytes).unwrap(),
        }
    }

    pub(crate) async fn iterator(&self, stream: &str, shard: &str, kind: &str) -> String {
        let body = json!({"StreamName": stream, "ShardId": shard, "ShardIteratorType": kind});
        text(&self.ok("GetShardIterator", body).await["ShardIterator"])
    }

    pub(crate) async fn iterator_at(&self, stream: &str, shard: &str, kind: &str, sequence: &str) -> String {
        let body = json!({
            "StreamName": stream, "ShardId": shard, "ShardIteratorType": kind, "StartingSequenceNumber": sequence,
        });
        text(&self.ok("GetShardIterator", body).await["ShardIterator"])
    }

    pub(crate) async fn get(&self, iterator: &str) -> Value {
        self.ok("GetRecords", json!({"ShardIterator": iterator})).await
    }

    /// Waits until a stream has a status.
    pub(crate) async fn wait_for(&self, stream: &str, status: &str) {
        let poll = async {
            loop {
                let summary = self
                    .ok("DescribeStreamSummary", json!({"StreamName": stream}))
                    .await;
                if summary["StreamDescriptionSummary"]["StreamStatus"] == status {
                    return;
                }
                pause().await;
            }
        };
        tokio::time::timeout(DEADLINE, poll).await.expect(status);
    }

    /// Names of the shards that a listing shows.
    pub(crate) async fn shard_ids(&self, body: Value) -> Vec<String> {
        let listed = self.ok("ListShards", body).await;
        listed["Shards"]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| text(&s["ShardId"]))
            .collect()
    }
}

pub(crate) fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("no text: {value}"))
        .to_owned()
}

/// Payloads of a page's records, as texts.
pub(crate) fn payloads(page: &Value) -> Vec<String> {
    let records = page["Records"].as_array().unwrap();
    records
        .iter()
        .map(|r| String::from_utf8(STANDARD.decode(r["Data"].as_str().unwrap()).unwrap()).unwrap())
        .collect()
}

pub(crate) fn base64(data: impl AsRef<[u8]>) -> String {
    STANDARD.encode(data)
}

/// Lets a little time pass between two looks.
pub(crate) async fn pause() {
    drop(tokio::time::timeout(Duration::from_millis(5), std::future::pending::<()>()).await);
}

pub(crate) fn shard(number: u32) -> String {
    format!("shardId-{number:012}")
}

pub(crate) struct Kinesis {
    pub(crate) client: Client,
    pub(crate) controls: KinesisControls,
    pub(crate) service: LocalKinesis,
}

/// A service with a stream `s`.
pub(crate) async fn with_stream(shards: u32) -> Kinesis {
    let kinesis = start(KinesisSettings::default()).await;
    kinesis.controls.create_stream("s", shards).unwrap();
    kinesis
}

pub(crate) async fn start(settings: KinesisSettings) -> Kinesis {
    let service = LocalKinesis::builder().settings(settings).start().await.unwrap();
    Kinesis {
        client: Client::new(&service.endpoint()),
        controls: service.controls(),
        service,
    }
}
