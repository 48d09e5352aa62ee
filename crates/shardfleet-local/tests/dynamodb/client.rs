//! A plain HTTP client of the service, and what the tests share.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use shardfleet_local::{DynamoControls, LocalDynamoDb};

/// The longest that anything in these tests may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub(crate) struct Client {
    http: HttpClient<HttpConnector, Full<Bytes>>,
    endpoint: String,
}

/// The answer to a call.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Reply {
    /// The error's type without its namespace; empty for a success.
    pub(crate) fn code(&self) -> &str {
        let kind = self.body["__type"].as_str().unwrap_or_default();
        kind.rsplit('#').next().unwrap_or_default()
    }
}

impl Client {
    pub(crate) fn new(endpoint: &str) -> Self {
        Self::with(HttpClient::builder(TokioExecutor::new()).build_http(), endpoint)
    }

    pub(crate) fn http2(endpoint: &str) -> Self {
        let mut builder = HttpClient::builder(TokioExecutor::new());
        Self::with(builder.http2_only(true).build_http(), endpoint)
    }

    fn with(http: HttpClient<HttpConnector, Full<Bytes>>, endpoint: &str) -> Self {
        Self {
            http,
            endpoint: endpoint.to_owned(),
        }
    }

    async fn request(&self, request: Request<Full<Bytes>>) -> Option<Reply> {
        let exchange = async {
            let response = self.http.request(request).await.ok()?;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.ok()?.to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            Some(Reply { status, body })
        };
        tokio::time::timeout(DEADLINE, exchange).await.expect("no answer")
    }

    /// Makes a call; `None` is a connection that was cut.
    pub(crate) async fn try_call(&self, operation: &str, body: Value) -> Option<Reply> {
        let request = Request::post(&self.endpoint)
            .header("X-Amz-Target", format!("DynamoDB_20120810.{operation}"))
            .header("Content-Type", "application/x-amz-json-1.0")
            .header("X-Amz-Date", "20260101T000000Z")
            .header(
                "Authorization",
                "AWS4-HMAC-SHA256 Credential=local/20260101/us-east-1/dynamodb/aws4_request, \
                 SignedHeaders=host;x-amz-date, Signature=00",
            )
            .body(Full::new(body.to_string().into()))
            .expect("a request");
        self.request(request).await
    }

    pub(crate) async fn call(&self, operation: &str, body: Value) -> Reply {
        let reply = self.try_call(operation, body).await;
        reply.unwrap_or_else(|| panic!("{operation}: the connection was cut"))
    }

    /// A call that has to succeed.
    pub(crate) async fn ok(&self, operation: &str, body: Value) -> Value {
        let reply = self.call(operation, body).await;
        assert_eq!(reply.status, 200, "{operation}: {}", reply.body);
        reply.body
    }

    /// A call that has to fail with this status and type.
    pub(crate) async fn err(&self, operation: &str, body: Value, status: u16, code: &str) {
        let reply = self.call(operation, body).await;
        assert_eq!(
            (reply.status, reply.code()),
            (status, code),
            "{operation}: {}",
            reply.body
        );
    }

    /// A control request.
    pub(crate) async fn control(&self, method: &str, path: &str, body: &Value) -> Reply {
        let text = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let request = Request::builder()
            .method(method)
            .uri(format!("{}/_shardfleet/{path}", self.endpoint))
            .body(Full::new(text.into()))
            .expect("a request");
        self.request(request).await.expect("a control is never cut")
    }

    /// A table of leases with an index by owner.
    pub(crate) async fn create_leases(&self) {
        let key = |name: &str| json!([{"AttributeName": name, "KeyType": "HASH"}]);
        let body = json!({
            "TableName": "leases",
            "AttributeDefinitions": [
                {"AttributeName": "leaseKey", "AttributeType": "S"},
                {"AttributeName": "leaseOwner", "AttributeType": "S"},
            ],
            "KeySchema": key("leaseKey"),
            "BillingMode": "PAY_PER_REQUEST",
            "GlobalSecondaryIndexes": [{
                "IndexName": "byOwner", "KeySchema": key("leaseOwner"), "Projection": {"ProjectionType": "ALL"},
            }],
        });
        self.ok("CreateTable", body).await;
    }

    pub(crate) async fn put(&self, lease: &str, owner: &str) {
        self.ok("PutItem", put(lease, owner)).await;
    }

    /// The lease keys that the index shows for an owner, in order.
    pub(crate) async fn owned_by(&self, owner: &str) -> Vec<String> {
        let body = json!({
            "TableName": "leases", "IndexName": "byOwner", "KeyConditionExpression": "leaseOwner = :o",
            "ExpressionAttributeValues": {":o": {"S": owner}},
        });
        keys(&self.ok("Query", body).await)
    }

    /// The owner of a lease, read with strong consistency or not; empty where there is no such lease.
    pub(crate) async fn owner_of(&self, lease: &str, consistent: bool) -> String {
        let body = json!({
            "TableName": "leases", "Key": {"leaseKey": {"S": lease}}, "ConsistentRead": consistent,
        });
        let answer = self.ok("GetItem", body).await;
        answer["Item"]["leaseOwner"]["S"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

pub(crate) fn put(lease: &str, owner: &str) -> Value {
    json!({"TableName": "leases", "Item": {"leaseKey": {"S": lease}, "leaseOwner": {"S": owner}, "leaseCounter": {"N": "0"}}})
}

/// Renews a lease if its counter is still the same.
pub(crate) fn renew(lease: &str, owner: &str, counter: u64) -> Value {
    json!({
        "TableName": "leases",
        "Key": {"leaseKey": {"S": lease}},
        "UpdateExpression": "SET leaseCounter = :next, leaseOwner = :owner",
        "ConditionExpression": "leaseCounter = :now",
        "ExpressionAttributeValues": {
            ":now": {"N": counter.to_string()}, ":next": {"N": (counter + 1).to_string()}, ":owner": {"S": owner},
        },
    })
}

/// The lease keys of an answer, in order.
pub(crate) fn keys(answer: &Value) -> Vec<String> {
    let items = answer["Items"].as_array().expect("items");
    let mut keys: Vec<String> = items
        .iter()
        .map(|item| item["leaseKey"]["S"].as_str().expect("a lease key").to_owned())
        .collect();
    keys.sort_unstable();
    keys
}

/// A running service with the table `leases`.
pub(crate) struct Started {
    pub(crate) client: Client,
    pub(crate) controls: DynamoControls,
    pub(crate) service: LocalDynamoDb,
}

pub(crate) async fn start() -> Started {
    let service = LocalDynamoDb::builder().start().await.expect("a free port");
    let client = Client::new(&service.endpoint());
    client.create_leases().await;
    Started {
        client,
        controls: service.controls(),
        service,
    }
}

/// Asks every 5 ms until the answer is the wanted one.
pub(crate) async fn poll(what: &str, mut is_there: impl AsyncFnMut() -> bool) {
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    let looking = async {
        while !is_there().await {
            ticks.tick().await;
        }
    };
    tokio::time::timeout(DEADLINE, looking)
        .await
        .unwrap_or_else(|_| panic!("waited {DEADLINE:?} for {what}"));
}
