//! Calls over plain HTTP: unsigned in all but form, JSON, one connection each.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// Longest time that one call may take. The peer never answers some calls, and each of those costs this time.
const CALL_TIME: Duration = Duration::from_secs(6);

/// Bytes as they travel in JSON.
pub(crate) fn base64(bytes: impl AsRef<[u8]>) -> String {
    STANDARD.encode(bytes)
}

#[derive(Clone, Debug)]
pub(crate) struct Client {
    http: HttpClient<HttpConnector, Full<Bytes>>,
    port: u16,
}

/// What a call came back with.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// 0 where there was no answer in [`CALL_TIME`].
    pub(crate) status: u16,
    /// The body; null where it was empty or not JSON.
    pub(crate) body: Value,
}

impl Answer {
    fn none() -> Self {
        Self {
            status: 0,
            body: Value::Null,
        }
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.status == 200
    }

    /// A field of the body as text; empty where it is absent.
    pub(crate) fn text(&self, pointer: &str) -> String {
        let value = self.body.pointer(pointer).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    }

    /// A list of the body; empty where it is absent.
    pub(crate) fn list(&self, pointer: &str) -> Vec<Value> {
        let value = self.body.pointer(pointer).and_then(Value::as_array);
        value.cloned().unwrap_or_default()
    }
}

impl Client {
    pub(crate) fn new(port: u16) -> Self {
        // No connection is used twice: the peer closes idle ones when it likes, and a call must not meet that.
        let http = HttpClient::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .build_http();
        Self { http, port }
    }

    /// `None` where there is no answer in time.
    async fn send(&self, target: &str, body: Vec<u8>) -> Result<Option<Response<Incoming>>, String> {
        let request = Request::post(format!("http://127.0.0.1:{}/", self.port))
            .header("content-type", "application/x-amz-json-1.1")
            .header("x-amz-target", target)
            .header("x-amz-date", "20260101T000000Z")
            .header(
                "authorization",
                "AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/kinesis/aws4_request, \
                 SignedHeaders=host;x-amz-date, Signature=0000000000000000000000000000000000000000000000000000000000000000",
            )
            .body(Full::new(Bytes::from(body)))
            .expect("a valid request");
        match tokio::time::timeout(CALL_TIME, self.http.request(request)).await {
            Ok(result) => result.map(Some).map_err(|e| format!("{target}: {e}")),
            Err(_) => Ok(None),
        }
    }

    /// Any call, with any body.
    pub(crate) async fn raw(&self, target: &str, body: Vec<u8>) -> Result<Answer, String> {
        let Some(response) = self.send(target, body).await? else {
            return Ok(Answer::none());
        };
        let status = response.status().as_u16();
        let body = match tokio::time::timeout(CALL_TIME, response.into_body().collect()).await {
            Ok(body) => body.map_err(|e| format!("{target}: {e}"))?.to_bytes(),
            Err(_) => return Err(format!("{target}: the answer did not end in {CALL_TIME:?}")),
        };
        let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        Ok(Answer { status, body })
    }

    /// An operation with its fields.
    pub(crate) async fn call(&self, operation: &str, body: &Value) -> Answer {
        let target = format!("Kinesis_20131202.{operation}");
        let result = self.raw(&target, body.to_string().into_bytes()).await;
        result.unwrap_or_else(|e| panic!("port {}: {e}", self.port))
    }

    /// `SubscribeToShard`: an open event stream, or the answer that refuses it.
    pub(crate) async fn subscribe(&self, body: &Value) -> Result<EventStream, Answer> {
        let target = "Kinesis_20131202.SubscribeToShard";
        let result = self.send(target, body.to_string().into_bytes()).await;
        let Some(response) = result.unwrap_or_else(|e| panic!("port {}: {e}", self.port)) else {
            return Err(Answer::none());
        };
        let status = response.status().as_u16();
        if status == 200 {
            return Ok(EventStream {
                body: response.into_body(),
                buffer: BytesMut::new(),
            });
        }
        let body = response
            .into_body()
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes);
        let body = body.ok().and_then(|b| serde_json::from_slice(&b).ok());
        Err(Answer {
            status,
            body: body.unwrap_or(Value::Null),
        })
    }
}

/// A subscription's frames as they come.
#[derive(Debug)]
pub(crate) struct EventStream {
    body: Incoming,
    buffer: BytesMut,
}

/// One frame: its event or exception type, and its payload.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) kind: String,
    pub(crate) payload: Value,
}

/// What waiting for a frame came to.
#[derive(Debug)]
pub(crate) enum Next {
    Event(Event),
    Ended,
    Silence,
}

impl EventStream {
    /// The next frame, the end, or nothing in `patience`.
    pub(crate) async fn next(&mut self, patience: Duration) -> Next {
        loop {
            if let Some(event) = self.take_frame() {
                return Next::Event(event);
            }
            match tokio::time::timeout(patience, self.body.frame()).await {
                Err(_) => return Next::Silence,
                Ok(None | Some(Err(_))) => return Next::Ended,
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }

    fn take_frame(&mut self) -> Option<Event> {
        let total = u32::from_be_bytes(self.buffer.get(..4)?.try_into().ok()?) as usize;
        if self.buffer.len() < total {
            return None;
        }
        let mut frame = self.buffer.split_to(total).freeze();
        assert!(total >= 16, "a frame of {total} bytes");
        frame.advance(4);
        let head_length = frame.get_u32() as usize;
        frame.advance(4);
        let mut head = frame.split_to(head_length);
        let payload = frame.slice(..frame.len() - 4);
        let mut kind = String::new();
        while head.has_remaining() {
            let name_length = usize::from(head.get_u8());
            let name = head.split_to(name_length);
            assert_eq!(head.get_u8(), 7, "the value of a header is text");
            let value_length = usize::from(head.get_u16());
            let value = head.split_to(value_length);
            if name == ":event-type" || name == ":exception-type" {
                kind = String::from_utf8_lossy(&value).into_owned();
            }
        }
        Some(Event {
            kind,
            payload: serde_json::from_slice(&payload).unwrap_or(Value::Null),
        })
    }
}
