//! The database's own server, as the layer in front calls it.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderName, TRANSFER_ENCODING};
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use super::call::Call;

/// Headers that belong to a connection rather than to a call.
const OF_CONNECTION: [HeaderName; 4] = [CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING];

/// A server of a database, over loopback.
#[derive(Clone, Debug)]
pub(super) struct Inner {
    http: Client<HttpConnector, Full<Bytes>>,
    address: SocketAddr,
}

/// What it answered.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Inner {
    pub(super) fn new(address: SocketAddr) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self {
            http: Client::builder(TokioExecutor::new()).build(connector),
            address,
        }
    }

    /// Passes a call on.
    pub(super) async fn forward(&self, call: &Call) -> Result<Reply, String> {
        let mut request = Request::post(format!("http://{}/", self.address))
            .body(Full::new(call.body.clone()))
            .map_err(|e| e.to_string())?;
        copy_headers(&call.headers, request.headers_mut());
        let answer = self.http.request(request).await.map_err(|e| e.to_string())?;
        let (head, body) = answer.into_parts();
        let mut headers = HeaderMap::new();
        copy_headers(&head.headers, &mut headers);
        let body = body.collect().await.map_err(|e| e.to_string())?.to_bytes();
        Ok(Reply {
            status: head.status,
            headers,
            body,
        })
    }
}

fn copy_headers(from: &HeaderMap, to: &mut HeaderMap) {
    for (name, value) in from {
        if !OF_CONNECTION.contains(name) {
            to.append(name.clone(), value.clone());
        }
    }
}
