//! HTTP: connections, requests, and what fault rules do to them.
//!
//! HTTP/1.1 and HTTP/2 (without TLS, by prior knowledge) share the port. Only loopback is ever listened on.

use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::sync::watch;

use crate::faults::FaultAction;
use crate::model::ApiError;
use crate::ops::{Answer, Operation, PageAnswer, Subject};
use crate::service::Service;
use crate::wire::{Format, PageView, Value, map, write_page};
use crate::{http_controls, subscribe};

/// Longest request body: 10 MiB of payload as base64 with room for keys and names.
const MAX_BODY: usize = 32 * 1024 * 1024;
/// Longest delay that a fault rule can ask for.
const MAX_DELAY: Duration = Duration::from_mins(10);
const TARGET_PREFIX: &str = "Kinesis_20131202.";

/// The connection is cut: on purpose, by a fault rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection was cut by a fault rule")]
pub(crate) struct Cut;

pub(crate) type Body = UnsyncBoxBody<Bytes, Cut>;

/// Serves until `stop` says so. Open connections end with the runtime.
pub(crate) async fn serve(listener: StdListener, service: Arc<Service>, mut stop: watch::Receiver<bool>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the listener cannot be used");
            return;
        }
    };
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, _)) => {
                // Answers are written whole; waiting to fill packets would only add latency.
                if let Err(error) = socket.set_nodelay(true) {
                    tracing::debug!(%error, "no TCP_NODELAY");
                }
                tokio::spawn(connection(socket, Arc::clone(&service)));
            }
            Err(error) => {
                // Out of file descriptors, most likely: it passes, and trying at once would only spin.
                tracing::warn!(%error, "a connection could not be accepted");
                drop(tokio::time::timeout(Duration::from_millis(50), stop.wait_for(|stop| *stop)).await);
            }
        }
    }
}

async fn connection(socket: tokio::net::TcpStream, service: Arc<Service>) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .initial_stream_window_size(8 * 1024 * 1024)
        .initial_connection_window_size(32 * 1024 * 1024)
        .max_concurrent_streams(10_000);
    let handler = service_fn(move |request| handle(Arc::clone(&service), request));
    if let Err(error) = builder.serve_connection(TokioIo::new(socket), handler).await {
        tracing::debug!(error = %error, "a connection ended");
    }
}

async fn handle(service: Arc<Service>, request: Request<Incoming>) -> Result<Response<Body>, Cut> {
    let (head, body) = request.into_parts();
    let content_type = head
        .headers
        .get(CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .unwrap_or("");
    let format = Format::of(content_type);
    let body = match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            let error = ApiError {
                status: 413,
                ..ApiError::serialization(format!("The body is longer than {MAX_BODY} bytes."))
            };
            let mut response = error_response(format, &error);
            if head.version < Version::HTTP_2 {
                // The rest of the body is not read, so the connection is good for nothing more; the client has to know.
                response
                    .headers_mut()
                    .insert(CONNECTION, HeaderValue::from_static("close"));
            }
            return Ok(response);
        }
        Err(_) => return Err(Cut),
    };
    if let Some(path) = head.uri.path().strip_prefix("/_shardfleet/") {
        let (status, value) = http_controls::handle(&service, &head.method, path, &body);
        return Ok(respond(status, "application/json", value));
    }
    let target = head
        .headers
        .get("x-amz-target")
        .and_then(|v| v.to_str().ok())
        .unwrap_or("");
    let name = target.strip_prefix(TARGET_PREFIX);
    let Some(operation) = name.and_then(Operation::named) else {
        let error = match name {
            Some(name) => ApiError::new(
                "UnknownOperationException",
                format!("{name} is not an operation of this service."),
            ),
            // AWS looks for whom to ask about permission first, and finds nobody.
            None => ApiError {
                status: 403,
                ..ApiError::new(
                    "AccessDeniedException",
                    "Unable to determine the operation: the header X-Amz-Target must be Kinesis_20131202.<operation>.",
                )
            },
        };
        return Ok(error_response(format, &error));
    };
    execute(service, operation, format, &body).await
}

async fn execute(
    service: Arc<Service>,
    operation: Operation,
    format: Format,
    body: &[u8],
) -> Result<Response<Body>, Cut> {
    let input = match format.read(body) {
        Ok(input) => input,
        Err(error) => return Ok(error_response(format, &error)),
    };
    let subject = Subject::of(&input);
    service.count(operation, &subject);
    let decision = service.faults().decide(operation.name(), &subject);
    if !decision.delay.is_zero() {
        let delay = decision.delay.min(MAX_DELAY);
        drop(tokio::time::timeout(delay, std::future::pending::<()>()).await);
    }
    match &decision.action {
        Some(FaultAction::Error {
            code,
            message,
            status,
        }) => {
            let error = ApiError {
                code: code.clone().into(),
                message: message.clone(),
                status: *status,
            };
            return Ok(error_response(format, &error));
        }
        Some(FaultAction::ServerError) => return Ok(respond(500, format.content_type(), Vec::new())),
        Some(FaultAction::CutBefore) => return Err(Cut),
        Some(FaultAction::ExpireIterator) => expire(&service, &subject),
        _ => {}
    }
    let result = service.transact(|account, now| operation.run(account, &input, now));
    after(&service, operation);
    if decision.action == Some(FaultAction::AnswerLost) {
        return Err(Cut);
    }
    let answer = match result {
        Ok(answer) => answer,
        Err(error) => return Ok(error_response(format, &error)),
    };
    Ok(match answer {
        Answer::Empty => respond(200, format.content_type(), Vec::new()),
        Answer::Value(value) => respond(200, format.content_type(), format.write(&value)),
        Answer::Page(page) => respond(
            200,
            format.content_type(),
            page_body(format, *page, decision.action.as_ref()),
        ),
        Answer::Subscription(at) => {
            let stream = subscribe::event_stream(service, *at, format, decision.action);
            let mut response = Response::new(stream.boxed_unsync());
            let content_type = HeaderValue::from_static("application/vnd.amazon.eventstream");
            response.headers_mut().insert(CONTENT_TYPE, content_type);
            add_request_id(&mut response);
            response
        }
    })
}

/// What a call sets off besides its answer: waiting subscriptions are told, and what becomes due later is seen to.
fn after(service: &Arc<Service>, operation: Operation) {
    match operation {
        Operation::GetRecords | Operation::GetShardIterator | Operation::ListShards => return,
        Operation::PutRecord | Operation::PutRecords => {
            service.changed.notify_waiters();
            return;
        }
        _ => service.changed.notify_waiters(),
    }
    if let Some(due) = service.due_in_ms() {
        let service = Arc::clone(service);
        tokio::spawn(async move {
            let until = Duration::from_millis(due.saturating_add(1));
            drop(tokio::time::timeout(until, std::future::pending::<()>()).await);
            service.tick();
        });
    }
}

fn expire(service: &Service, subject: &Subject) {
    let (Some(stream), Some(shard)) = (&subject.stream, &subject.shard) else {
        return;
    };
    service.with_account(|account, now| {
        let issued = account.last_issue();
        if let Ok(stream) = account.stream(crate::model::StreamRef::by_name(stream), now)
            && let Ok(shard) = stream.shard_to_read(shard)
        {
            shard.expired_through = issued;
        }
    });
}

fn page_body(format: Format, page: PageAnswer, fault: Option<&FaultAction>) -> Vec<u8> {
    let PageAnswer {
        mut records,
        encrypted,
        mut next_iterator,
        mut millis_behind,
        mut child_shards,
        same_place,
    } = page;
    match fault {
        Some(FaultAction::NoNextIterator) => {
            next_iterator = None;
            child_shards = None;
        }
        Some(FaultAction::EmptyPage) => {
            records.clear();
            child_shards = None;
            let (iterator, behind) = same_place;
            next_iterator = Some(iterator);
            millis_behind = behind;
        }
        _ => {}
    }
    let view = PageView {
        records: &records,
        encrypted,
        next_iterator: next_iterator.as_deref(),
        millis_behind,
        child_shards: child_shards.as_ref(),
    };
    write_page(format, &view)
}

fn error_response(format: Format, error: &ApiError) -> Response<Body> {
    let body: Value<'_> = map([
        ("__type", (&*error.code).into()),
        ("message", error.message.as_str().into()),
    ]);
    let mut response = respond(error.status, format.content_type(), format.write(&body));
    if let Ok(code) = HeaderValue::from_str(&error.code) {
        response.headers_mut().insert("x-amzn-errortype", code);
    }
    response
}

fn respond(status: u16, content_type: &'static str, body: Vec<u8>) -> Response<Body> {
    let body = Full::new(Bytes::from(body)).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    add_request_id(&mut response);
    response
}

fn add_request_id(response: &mut Response<Body>) {
    use std::sync::atomic::{AtomicU64, Ordering};
    static REQUESTS: AtomicU64 = AtomicU64::new(0);
    let number = REQUESTS.fetch_add(1, Ordering::Relaxed);
    // The form of a UUID, since clients print it; a running number, since it is only ever compared.
    let text = format!("00000000-0000-4000-8000-{:012x}", number & 0xFFFF_FFFF_FFFF);
    if let Ok(value) = HeaderValue::from_str(&text) {
        response.headers_mut().insert("x-amzn-requestid", value);
    }
}
