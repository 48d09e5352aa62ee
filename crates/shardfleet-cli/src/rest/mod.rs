//! The REST interface of a worker: Kafka Connect's, for one application.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderName, HeaderValue, ORIGIN};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use shardfleet::SubscriptionHandle;
use shardfleet::clock::{Clock, SystemClock, sleep};
use shardfleet::status::StatusStore;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::exit::Failure;
use crate::output::say;

mod answers;
mod sight;
#[cfg(test)]
mod tests;

use answers::{Answer, Asked, error_body};
use sight::Sight;

/// So many connections are open at the same time; more wait. A worker needs its file descriptors for reading.
const CONNECTIONS: usize = 256;
/// So many requests change something at the same time; more wait, and those that only look do not wait for them.
const CHANGES: usize = 16;
/// How long a client may take to send the head of its next request.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// The pause after a connection could not be accepted, for want of file descriptors most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What is shown, and of what.
pub(crate) struct Shown {
    pub(crate) application: String,
    pub(crate) stream: String,
    pub(crate) statuses: Arc<dyn StatusStore>,
    /// Whether the store knows what other workers say.
    pub(crate) shares_statuses: bool,
}

/// The interface while it is served. Dropping it ends it.
pub(crate) struct Rest {
    state: Arc<Served>,
    server: JoinHandle<()>,
}

struct Served {
    shown: Shown,
    worker: OnceLock<SubscriptionHandle>,
    ended: AtomicBool,
    changes: Semaphore,
}

impl Rest {
    /// Listens at once, so that an address that is taken is found out before reading begins.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub(crate) async fn start(listen: SocketAddr, shown: Shown) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::usage(format!(
                "rest.listen: listening on {listen} failed: {error}; name another address, or port 0 for any that is free"
            ))
        };
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        say(&format!("REST at http://{address}"));
        if !address.ip().is_loopback() {
            say(
                "REST is open to other machines: whoever reaches the address may pause, stop and restart this application",
            );
        }
        let state = Arc::new(Served {
            shown,
            worker: OnceLock::new(),
            ended: AtomicBool::new(false),
            changes: Semaphore::new(CHANGES),
        });
        let server = tokio::spawn(accept(listener, Arc::clone(&state)));
        Ok(Self { state, server })
    }

    /// The worker is open.
    pub(crate) fn opened(&self, worker: SubscriptionHandle) {
        drop(self.state.worker.set(worker));
    }

    /// The worker reads no more.
    pub(crate) fn ended(&self) {
        self.state.ended.store(true, Ordering::Relaxed);
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn accept(listener: TcpListener, state: Arc<Served>) {
    let (room, clock) = (Arc::new(Semaphore::new(CONNECTIONS)), SystemClock::new());
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((socket, _)) => {
                let state = Arc::clone(&state);
                tokio::spawn(async move {
                    connection(socket, state).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(&clock as &dyn Clock, ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(socket: TcpStream, state: Arc<Served>) {
    let service = service_fn(move |request| serve(Arc::clone(&state), request));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .serve_connection(TokioIo::new(socket), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended");
    }
}

async fn serve(state: Arc<Served>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let header = |name: HeaderName| request.headers().get(name).and_then(|value| value.to_str().ok());
    if is_foreign(request.method(), header(ORIGIN), header(HOST)) {
        let why = "the request comes from a page of another address, which may only look";
        return Ok(respond(Answer::Json(403, error_body(403, why)), &state));
    }
    let asked = Asked {
        method: request.method().as_str(),
        path: request.uri().path(),
        query: request.uri().query().unwrap_or_default(),
        accept: header(ACCEPT),
    };
    let worker = state.worker.get();
    let sight = worker.map_or_else(
        || Sight::starting(&state.shown),
        |worker| Sight::of(&state.shown, worker),
    );
    let has_ended = state.ended.load(Ordering::Relaxed);
    let sight = if has_ended { sight.ended() } else { sight };
    let mut answer = answers::answer(&asked, &sight);
    if let Answer::Do(request, shards, then) = answer {
        let _turn = state.changes.acquire().await;
        answer = match worker {
            Some(worker) => match worker.control(request, shards.as_ref()).await {
                Ok(asked) if asked.is_empty() && shards.is_some() => {
                    Answer::Json(404, error_body(404, "the shard has ended, or its lease is gone"))
                }
                Ok(_) => *then,
                Err(error) => Answer::Json(500, error_body(500, &error.full_text())),
            },
            // Connect's answer where a worker cannot say yet (409), which its clients try again.
            None => Answer::Json(
                409,
                error_body(409, "the worker is starting; try again in a moment"),
            ),
        };
    }
    Ok(respond(answer, &state))
}

/// Browsers let any page send a simple request anywhere; they say from where.
fn is_foreign(method: &Method, origin: Option<&str>, host: Option<&str>) -> bool {
    let only_looks = matches!(*method, Method::GET | Method::HEAD);
    let Some(origin) = origin.filter(|_| !only_looks) else {
        return false;
    };
    let from = origin.split_once("://").map(|(_, from)| from);
    from.is_none() || from != host
}

fn respond(answer: Answer, state: &Served) -> Response<Full<Bytes>> {
    let json = "application/json";
    let (code, kind, body) = match answer {
        Answer::Json(code, value) => (code, Some(json), value.to_string()),
        Answer::Odd(code, message) => (code, None, error_body(code, &message).to_string()),
        Answer::Empty(code) => (code, None, String::new()),
        Answer::Metrics => {
            let text = shardfleet::status::metrics::prometheus(&*state.shown.statuses);
            (200, Some("text/plain; version=0.0.4"), text)
        }
        Answer::Do(..) => (500, Some(json), error_body(500, "not done").to_string()),
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Some(kind) = kind {
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    response
}
