//! Statuses as a worker's REST address tells them, or Kafka Connect's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use shardfleet::clock::{Clock, SystemClock, within};

use super::{Application, Task, Work};
use crate::exit::{Failure, chain};

/// No answer is longer.
const ANSWER_MAX: usize = 64 << 20;

#[derive(Deserialize)]
struct Expanded {
    status: Option<Status>,
}

#[derive(Deserialize)]
struct Status {
    connector: RestWork,
    tasks: Vec<RestTask>,
}

#[derive(Deserialize)]
struct RestTask {
    id: i32,
    #[serde(flatten)]
    work: RestWork,
}

#[derive(Deserialize)]
struct RestWork {
    state: String,
    worker_id: String,
    version: Option<String>,
    trace: Option<String>,
}

#[derive(Deserialize)]
struct Topics {
    topics: BTreeSet<String>,
}

impl From<RestWork> for Work {
    fn from(work: RestWork) -> Self {
        Self {
            state: work.state,
            worker_id: work.worker_id,
            generation: None,
            version: work.version,
            trace: work.trace,
        }
    }
}

/// Asks `url` for everything it knows.
pub(super) async fn read(url: &str, timeout: Duration) -> Result<Vec<Application>, Failure> {
    let asked = Asked::new(url)?;
    let clock: Arc<dyn Clock> = SystemClock::shared();
    within(&*clock, timeout, asked.all()).await.unwrap_or_else(|| {
        Err(Failure::run(format!(
            "{url} did not answer within {timeout:?} (--timeout)"
        )))
    })
}

struct Asked {
    base: String,
    client: Client<HttpConnector, Empty<Bytes>>,
}

impl Asked {
    fn new(url: &str) -> Result<Self, Failure> {
        let base = url.trim_end_matches('/');
        let is_plain = base.strip_prefix("http://").is_some_and(|rest| !rest.is_empty());
        if !is_plain || base.parse::<hyper::Uri>().is_err() {
            return Err(Failure::usage(format!(
                "--url is {url:?}; http://HOST:PORT is expected, such as http://127.0.0.1:8083"
            )));
        }
        Ok(Self {
            base: base.to_owned(),
            client: Client::builder(TokioExecutor::new()).build_http(),
        })
    }

    async fn all(&self) -> Result<Vec<Application>, Failure> {
        let expanded: BTreeMap<String, Expanded> = self.get("/connectors?expand=status").await?;
        let mut all = Vec::new();
        for (name, Expanded { status }) in expanded {
            let encoded = utf8_percent_encode(&name, NON_ALPHANUMERIC);
            let topics: BTreeMap<String, Topics> = self.get(&format!("/connectors/{encoded}/topics")).await?;
            let (work, tasks) = status.map_or((None, Vec::new()), |status| {
                (Some(status.connector.into()), status.tasks)
            });
            let task = |task: RestTask| Task {
                id: task.id,
                work: task.work.into(),
            };
            all.push(Application {
                name,
                work,
                streams: topics.into_values().flat_map(|topics| topics.topics).collect(),
                tasks: tasks.into_iter().map(task).collect(),
            });
        }
        Ok(all)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let address = format!("{}{path}", self.base);
        let fail = |why: String| Failure::run(format!("GET {address}: {why}"));
        let uri = address.parse().map_err(|error| fail(format!("{error}")))?;
        let response = self.client.get(uri).await.map_err(|error| fail(chain(&error)))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_MAX);
        let body = body
            .collect()
            .await
            .map_err(|error| fail(error.to_string()))?
            .to_bytes();
        if !status.is_success() {
            let text: String = String::from_utf8_lossy(&body).chars().take(300).collect();
            return Err(fail(format!("{status} {text}")));
        }
        serde_json::from_slice(&body)
            .map_err(|error| fail(format!("no answer as Kafka Connect gives it: {error}")))
    }
}
