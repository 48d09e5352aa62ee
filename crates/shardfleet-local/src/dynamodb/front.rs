//! The layer in front: one HTTP server that passes calls on to the database's own, or does to them what a fault rule says.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use axum::routing::any;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;

use super::faults::{DynamoControls, DynamoFault};

/// AWS: a request holds at most 16 MB.
const BODY_BYTES_MAX: usize = 16 << 20;

#[derive(Clone)]
struct Front {
    client: Client<HttpConnector, Full<Bytes>>,
    inner: SocketAddr,
    controls: DynamoControls,
}

/// Serves until its runtime ends.
pub(super) async fn serve(listener: TcpListener, inner: SocketAddr, controls: DynamoControls) {
    let client = Client::builder(TokioExecutor::new()).build(HttpConnector::new());
    let router = Router::new().fallback(any(handle)).with_state(Front {
        client,
        inner,
        controls,
    });
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(error = %error, "the embedded DynamoDB stopped");
    }
}

async fn handle(State(front): State<Front>, request: Request<Body>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = match Limited::new(body, BODY_BYTES_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            return error_answer(
                StatusCode::BAD_REQUEST,
                "SerializationException",
                &error.to_string(),
            );
        }
    };
    let operation = operation(&head.headers).to_owned();
    match front.controls.on_call(&operation, &body) {
        None => front.perform(&operation, head.headers, body).await,
        Some(DynamoFault::Throttle) => error_answer(
            StatusCode::BAD_REQUEST,
            "ProvisionedThroughputExceededException",
            "The level of configured provisioned throughput for the table was exceeded.",
        ),
        Some(DynamoFault::InternalError) => error_answer(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalServerError",
            "a fault that was asked for",
        ),
        Some(DynamoFault::Error(code)) => {
            error_answer(StatusCode::BAD_REQUEST, &code, "a fault that was asked for")
        }
        Some(DynamoFault::Delay(time)) => {
            sleep(time).await;
            front.perform(&operation, head.headers, body).await
        }
        Some(DynamoFault::LoseAnswer) => {
            front.perform(&operation, head.headers, body).await;
            cut()
        }
        Some(DynamoFault::Cut) => cut(),
        Some(DynamoFault::StaleIndex) => front.stale(&operation, head.headers, body).await,
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a delay that was asked for, in real time"
)]
async fn sleep(time: std::time::Duration) {
    tokio::time::sleep(time).await;
}

fn operation(headers: &HeaderMap) -> &str {
    let target = headers
        .get("x-amz-target")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    target.rsplit('.').next().unwrap_or_default()
}

impl Front {
    async fn perform(&self, operation: &str, headers: HeaderMap, body: Bytes) -> Response<Body> {
        if let Some(answer) = backups(operation, &body) {
            return answer;
        }
        match self.forward(headers, body).await {
            Ok((status, headers, body)) => {
                let mut answer = Response::new(Body::from(body));
                *answer.status_mut() = status;
                *answer.headers_mut() = headers;
                answer
            }
            Err(reason) => error_answer(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", &reason),
        }
    }

    async fn forward(
        &self,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<(StatusCode, HeaderMap, Bytes), String> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = axum::http::Method::POST;
        *request.uri_mut() = format!("http://{}/", self.inner)
            .parse()
            .map_err(|e| format!("the inner address: {e}"))?;
        for (name, value) in headers {
            // Everything but what belongs to the connection.
            if let Some(name) =
                name.filter(|name| !matches!(name.as_str(), "host" | "connection" | "content-length"))
            {
                request.headers_mut().insert(name, value);
            }
        }
        let answer = self.client.request(request).await.map_err(|e| e.to_string())?;
        let (mut head, body) = answer.into_parts();
        let body = body.collect().await.map_err(|e| e.to_string())?.to_bytes();
        head.headers.remove("content-length");
        head.headers.remove("transfer-encoding");
        Ok((head.status, head.headers, body))
    }

    /// Answers as at the first time this request was made under the rule.
    async fn stale(&self, operation: &str, headers: HeaderMap, body: Bytes) -> Response<Body> {
        if let Some(answer) = self.controls.stale_answer(&body) {
            return json_answer(StatusCode::OK, answer);
        }
        let request = body.to_vec();
        let answer = self.perform(operation, headers, body).await;
        let (head, body) = answer.into_parts();
        let Ok(body) = body.collect().await.map(http_body_util::Collected::to_bytes) else {
            return cut();
        };
        if head.status == StatusCode::OK {
            self.controls.keep_stale_answer(request, body.to_vec());
        }
        Response::from_parts(head, Body::from(body))
    }
}

/// `AWS: DescribeContinuousBackups` and `AWS: UpdateContinuousBackups`, which the database does not know. Point-in-time recovery is said to be as asked for.
fn backups(operation: &str, body: &[u8]) -> Option<Response<Body>> {
    let request: serde_json::Value = serde_json::from_slice(body).unwrap_or(serde_json::Value::Null);
    let wanted = match operation {
        "DescribeContinuousBackups" => false,
        "UpdateContinuousBackups" => {
            request["PointInTimeRecoverySpecification"]["PointInTimeRecoveryEnabled"]
                .as_bool()
                .unwrap_or(false)
        }
        _ => return None,
    };
    let status = if wanted { "ENABLED" } else { "DISABLED" };
    let answer = serde_json::json!({
        "ContinuousBackupsDescription": {
            "ContinuousBackupsStatus": "ENABLED",
            "PointInTimeRecoveryDescription": { "PointInTimeRecoveryStatus": status },
        }
    });
    Some(json_answer(StatusCode::OK, answer.to_string().into_bytes()))
}

fn json_answer(status: StatusCode, body: Vec<u8>) -> Response<Body> {
    let mut answer = Response::new(Body::from(body));
    *answer.status_mut() = status;
    let json = axum::http::HeaderValue::from_static("application/x-amz-json-1.0");
    answer.headers_mut().insert("content-type", json);
    answer
}

fn error_answer(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    let body = serde_json::json!({
        "__type": format!("com.amazonaws.dynamodb.v20120810#{code}"),
        "message": message,
    });
    json_answer(status, body.to_string().into_bytes())
}

/// An answer whose body breaks off, which ends the connection before the client has anything.
fn cut() -> Response<Body> {
    let broken =
        futures::stream::once(async { Err::<Bytes, _>(std::io::Error::other("cut by a fault rule")) });
    let mut answer = Response::new(Body::from_stream(broken));
    let length = axum::http::HeaderValue::from_static("1");
    answer.headers_mut().insert("content-length", length);
    answer
}
