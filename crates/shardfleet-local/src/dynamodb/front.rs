//! The layer in front: one HTTP server that passes calls on to the database's own, or does to them what was asked for.
//!
//! HTTP/1.1 and HTTP/2 (without TLS, by prior knowledge) share the port.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::RwLock;

use super::backups::Backups;
use super::call::{Call, Effect};
use super::controls::DynamoControls;
use super::faults::DynamoFault;
use super::inner::{Inner, Reply};
use super::lag::{DynamoLag, Replica};
use super::{remote, time};

/// AWS: a request holds at most 16 MB.
const BODY_BYTES_MAX: usize = 16 << 20;
/// How long to wait before accepting again after the system refused.
const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);
const JSON: HeaderValue = HeaderValue::from_static("application/x-amz-json-1.0");

/// The connection is cut instead of an answer.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the connection was cut by a fault rule")]
struct Cut;

type Answer = Result<Response<Full<Bytes>>, Cut>;

/// What calls need.
pub(super) struct Front {
    database: dynoxide::Database,
    inner: Inner,
    controls: DynamoControls,
    backups: Backups,
    /// The lagging copy. Without a lag calls share the lock; with one, each that writes or may lag has it alone.
    replica: RwLock<Option<Replica>>,
}

impl Front {
    pub(super) fn new(database: dynoxide::Database, inner: Inner, controls: DynamoControls) -> Arc<Self> {
        Arc::new(Self {
            database,
            inner,
            controls,
            backups: Backups::default(),
            replica: RwLock::new(None),
        })
    }

    /// Serves until its runtime ends.
    pub(super) async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((socket, _)) => {
                    // Answers are written whole; waiting to fill packets would only add latency.
                    if let Err(error) = socket.set_nodelay(true) {
                        tracing::debug!(%error, "no TCP_NODELAY");
                    }
                    tokio::spawn(connection(Arc::clone(&self), socket));
                }
                Err(error) => {
                    // Out of file descriptors, most likely: it passes, and trying at once would only spin.
                    tracing::warn!(%error, "a connection could not be accepted");
                    time::delay(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Answer {
        let (head, body) = request.into_parts();
        let body = match Limited::new(body, BODY_BYTES_MAX).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => {
                return Ok(error_answer(
                    StatusCode::BAD_REQUEST,
                    "SerializationException",
                    &error.to_string(),
                ));
            }
        };
        if let Some(path) = head.uri.path().strip_prefix("/_shardfleet/") {
            let (status, value) = remote::handle(&self.controls, &head.method, path, &body);
            let mut answer = json_answer(status, &value);
            let plain_json = HeaderValue::from_static("application/json");
            answer.headers_mut().insert(CONTENT_TYPE, plain_json);
            return Ok(answer);
        }
        if head.method != Method::POST || head.uri.path() != "/" {
            return Ok(error_answer(
                StatusCode::NOT_FOUND,
                "UnknownOperationException",
                "calls are POST / with the header X-Amz-Target",
            ));
        }
        // In a task, so that a client that goes away does not stop a call halfway: as with the service, it may be performed.
        let call = Call::new(head.headers, body);
        tokio::spawn(self.answer(call)).await.unwrap_or(Err(Cut))
    }

    /// Answers a call, or does to it what a rule says.
    async fn answer(self: Arc<Self>, call: Call) -> Answer {
        let decision = self.controls.on_call(&call);
        time::delay(decision.delay).await;
        match decision.fault {
            Some(DynamoFault::Throttle) => Ok(error_answer(
                StatusCode::BAD_REQUEST,
                "ProvisionedThroughputExceededException",
                "The level of configured provisioned throughput for the table was exceeded. \
                 Consider increasing your provisioning level with the UpdateTable API.",
            )),
            Some(DynamoFault::InternalError) => Ok(error_answer(
                StatusCode::INTERNAL_SERVER_ERROR,
                "InternalServerError",
                "a fault that was asked for",
            )),
            Some(DynamoFault::Error {
                code,
                message,
                status,
            }) => {
                let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                Ok(error_answer(status, &code, &message))
            }
            Some(DynamoFault::Cut) => Err(Cut),
            Some(DynamoFault::LoseAnswer) => {
                drop(self.perform(call).await);
                Err(Cut)
            }
            Some(DynamoFault::Delay { .. }) | None => {
                let answer = self.perform(call).await;
                if self.controls.is_cut() {
                    Err(Cut)
                } else {
                    Ok(answer)
                }
            }
        }
    }

    async fn perform(&self, call: Call) -> Response<Full<Bytes>> {
        let result = if Backups::knows(&call) {
            return self.answer_backups(&call).await;
        } else if let Some((lag, beginning)) = self.controls.lag_and_beginning() {
            self.perform_lagging(call, lag, beginning).await
        } else {
            self.perform_plainly(&call).await
        };
        match result {
            Ok(reply) => {
                let mut answer = Response::new(Full::new(reply.body));
                *answer.status_mut() = reply.status;
                *answer.headers_mut() = reply.headers;
                answer
            }
            Err(reason) => error_answer(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", &reason),
        }
    }

    async fn perform_plainly(&self, call: &Call) -> Result<Reply, String> {
        let mut shared = self.replica.read().await;
        if shared.is_some() {
            drop(shared);
            *self.replica.write().await = None;
            shared = self.replica.read().await;
        }
        let reply = self.inner.forward(call).await?;
        drop(shared);
        self.after(call, &reply);
        Ok(reply)
    }

    async fn perform_lagging(&self, call: Call, lag: DynamoLag, beginning: u64) -> Result<Reply, String> {
        let mut alone = self.replica.write().await;
        if alone
            .as_ref()
            .is_none_or(|replica| replica.beginning != beginning)
        {
            *alone = None;
            *alone = Some(Replica::begin(&self.database, beginning).await?);
        }
        let Some(replica) = alone.as_mut() else {
            return self.inner.forward(&call).await;
        };
        match call.effect() {
            Effect::ReadsIndex => replica.read(lag, &call).await,
            Effect::ReadsEventually if lag.is_for_all_reads() => replica.read(lag, &call).await,
            Effect::ReadsEventually | Effect::Other => {
                drop(alone);
                self.inner.forward(&call).await
            }
            effect @ (Effect::WritesItems | Effect::WritesTables) => {
                let reply = self.inner.forward(&call).await?;
                self.after(&call, &reply);
                if reply.status.is_success() && effect == Effect::WritesTables {
                    replica.change_tables(&call).await?;
                } else if reply.status.is_success() {
                    replica.note_write(call).await?;
                }
                Ok(reply)
            }
        }
    }

    fn after(&self, call: &Call, reply: &Reply) {
        if call.operation == "DeleteTable" && reply.status.is_success() {
            self.backups.forget(call);
        }
    }

    async fn answer_backups(&self, call: &Call) -> Response<Full<Bytes>> {
        let (code, text) = match self.inner.forward(&Backups::look_up(call)).await {
            Ok(reply) if reply.status.is_success() => match self.backups.answer(call) {
                Ok(value) => return json_answer(StatusCode::OK, &value),
                Err(refusal) => refusal,
            },
            Ok(_) => {
                let table = call.tables.first().map_or("", String::as_str);
                ("TableNotFoundException", format!("Table not found: {table}"))
            }
            Err(reason) => {
                return error_answer(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", &reason);
            }
        };
        error_answer(StatusCode::BAD_REQUEST, code, &text)
    }
}

async fn connection(front: Arc<Front>, socket: TcpStream) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder.http2().timer(TokioTimer::new());
    let handler = service_fn(move |request| Arc::clone(&front).handle(request));
    if let Err(error) = builder.serve_connection(TokioIo::new(socket), handler).await {
        tracing::debug!(error = %error, "a connection ended");
    }
}

fn json_answer(status: StatusCode, body: &serde_json::Value) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from(body.to_string())));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, JSON);
    answer
}

fn error_answer(status: StatusCode, code: &str, message: &str) -> Response<Full<Bytes>> {
    let kind = format!("com.amazonaws.dynamodb.v20120810#{code}");
    json_answer(status, &serde_json::json!({"__type": kind, "message": message}))
}
