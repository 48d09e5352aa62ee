//! The REST interface of a worker: Kafka Connect's, for one application.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{Response, StatusCode};
use shardfleet::SubscriptionHandle;
use shardfleet::status::StatusStore;
use tokio::net::TcpListener;
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

/// So many requests are answered at the same time; more wait.
const AT_ONCE: usize = 64;

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
    turns: Semaphore,
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
            turns: Semaphore::new(AT_ONCE),
        });
        let router = Router::new().fallback(serve).with_state(Arc::clone(&state));
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                say(&format!("REST has ended: {error}"));
            }
        });
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

async fn serve(State(state): State<Arc<Served>>, request: Request) -> Result<Response<Body>, Infallible> {
    let _turn = state.turns.acquire().await;
    let accept = request
        .headers()
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok());
    let asked = Asked {
        method: request.method().as_str(),
        path: request.uri().path(),
        query: request.uri().query().unwrap_or_default(),
        accept,
    };
    let worker = state.worker.get();
    let sight = worker.map_or_else(
        || Sight::starting(&state.shown),
        |worker| Sight::of(&state.shown, worker),
    );
    let sight = if state.ended.load(Ordering::Relaxed) {
        sight.ended()
    } else {
        sight
    };
    let mut answer = answers::answer(&asked, &sight);
    if let Answer::Do(request, shards, then) = answer {
        answer = match worker {
            Some(worker) => match worker.control(request, shards.as_ref()).await {
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

fn respond(answer: Answer, state: &Served) -> Response<Body> {
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
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Some(kind) = kind {
        response
            .headers_mut()
            .insert(CONTENT_TYPE, axum::http::HeaderValue::from_static(kind));
    }
    response
}
