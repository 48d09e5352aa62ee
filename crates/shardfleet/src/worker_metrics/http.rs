//! One small question over plain HTTP to an agent beside this process.
//!
//! Only loopback and link-local addresses are asked, given as numbers: the container agent and the instance metadata service are nowhere else, so that a
//! mistaken variable cannot make a worker talk to strangers. Redirects are not followed and proxies not used.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::body::Body as _;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::MetricError;
use crate::clock::{Clock, within};

/// Within this a question has to be answered, connecting included.
pub(super) const DEADLINE: Duration = Duration::from_secs(2);
/// A longer answer is refused. The description of a task with ten containers has about 20 KiB.
pub(super) const BYTES_MAX: usize = 1 << 20;

/// An address that may be asked.
#[derive(Clone, Debug)]
pub(super) struct Agent {
    address: SocketAddr,
    authority: String,
    path: String,
}

impl Agent {
    /// An agent from its URI, such as `http://169.254.170.2/v4/0123abcd`.
    pub(super) fn new(uri: &str) -> Result<Self, MetricError> {
        let refuse = |reason: &str| Err(MetricError::new(uri, reason));
        let Ok(parsed) = uri.trim().parse::<Uri>() else {
            return refuse("it is no URI");
        };
        let (Some("http"), Some(authority)) = (parsed.scheme_str(), parsed.authority()) else {
            return refuse("expected http://ADDRESS/PATH");
        };
        if authority.as_str().contains('@') {
            return refuse("an agent is asked without a user name");
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let ip = match host {
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            number => match number.parse() {
                Ok(ip) => ip,
                Err(_) => return refuse("expected the number of a loopback or link-local address"),
            },
        };
        if !is_near(ip) {
            return refuse("only loopback and link-local addresses are asked");
        }
        Ok(Self {
            address: SocketAddr::new(ip, authority.port_u16().unwrap_or(80)),
            authority: authority.to_string(),
            path: parsed.path().trim_end_matches('/').to_owned(),
        })
    }

    /// The URI of what lies at `path` below the agent's own.
    pub(super) fn uri(&self, path: &str) -> String {
        format!("http://{}{}{path}", self.authority, self.path)
    }

    /// GETs what lies at `path` below the agent's own.
    pub(super) async fn get(&self, clock: &dyn Clock, path: &str) -> Result<Bytes, MetricError> {
        self.send(clock, Method::GET, path, None).await
    }

    /// Sends a request without a body, with one more header; the answer's body if its status is 200.
    pub(super) async fn send(
        &self,
        clock: &dyn Clock,
        method: Method,
        path: &str,
        header: Option<(&'static str, &str)>,
    ) -> Result<Bytes, MetricError> {
        let reason = match within(clock, DEADLINE, self.exchange(method, path, header)).await {
            Some(Ok(body)) => return Ok(body),
            Some(Err(reason)) => reason,
            None => format!("no answer within {} s", DEADLINE.as_secs()),
        };
        Err(MetricError::new(self.uri(path), reason))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        header: Option<(&'static str, &str)>,
    ) -> Result<Bytes, String> {
        let target = match format!("{}{path}", self.path) {
            empty if empty.is_empty() => "/".to_owned(),
            target => target,
        };
        let mut request = Request::builder()
            .method(method)
            .uri(target)
            .header(HOST, &self.authority)
            .header(CONNECTION, "close");
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        let request = request
            .body(Empty::<Bytes>::new())
            .map_err(|error| error.to_string())?;
        let stream = TcpStream::connect(self.address)
            .await
            .map_err(|error| format!("connecting failed: {error}"))?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        let answer = async {
            let response = sender
                .send_request(request)
                .await
                .map_err(|error| describe(&error))?;
            let status = response.status();
            if status != StatusCode::OK {
                return Err(format!("the answer is {status}"));
            }
            let too_long = || Err(format!("the answer is longer than {BYTES_MAX} bytes"));
            let body = response.into_body();
            if body.size_hint().lower() > BYTES_MAX as u64 {
                return too_long();
            }
            match Limited::new(body, BYTES_MAX).collect().await {
                Ok(body) => Ok(body.to_bytes()),
                Err(error) if error.is::<LengthLimitError>() => too_long(),
                Err(error) => Err(describe(&*error)),
            }
        };
        // The connection moves only while it is polled. Its end is no news: the answer may still be in its buffer.
        let connection = async {
            connection.await.ok();
            std::future::pending::<std::convert::Infallible>().await
        };
        tokio::select! {
            biased;
            answer = answer => answer,
            never = connection => match never {},
        }
    }
}

/// An error with its causes: hyper's own words leave them out.
fn describe(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<_> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}

fn is_near(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_neighbours_are_asked() {
        for good in [
            "http://169.254.170.2/v4/abc-123",
            "http://127.0.0.1:51678/v4/x/",
            "http://localhost:8080",
            "http://[::1]:80/v4",
            "http://[fe80::1]/v4",
        ] {
            assert!(Agent::new(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "169.254.170.2/v4",
            "https://169.254.170.2/v4",
            "http://example.com/v4",
            "http://10.0.0.1/v4",
            "http://[::ffff:8.8.8.8]/",
            "http://169.254.170.2@8.8.8.8/",
            "http://user@127.0.0.1/",
            "http://0.0.0.0/",
        ] {
            assert!(Agent::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn paths_are_below_the_agents_own() {
        let agent = Agent::new("http://127.0.0.1:51678/v4/abc/").expect("an agent");
        assert_eq!(agent.uri("/task"), "http://127.0.0.1:51678/v4/abc/task");
        assert_eq!(agent.uri(""), "http://127.0.0.1:51678/v4/abc");
    }
}
