//! Statuses on a compacted Kafka topic, record for record as Kafka Connect keeps them.
//!
//! [`KafkaStatusStore::start`] returns at once and works whether or not a broker can be reached: statuses wait, the newest of each key, until one can. [`KafkaStatusStore::open`]
//! waits until everything was read.

mod client;
mod outcome;
mod properties;
mod reading;
mod settings;
mod topic;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer, PurgeConfig};
use shardfleet_clock::{Clock, SystemClock, sleep, within};
use shardfleet_core::retry::Backoff;
use shardfleet_core::status::{Counters, LateStatus, Outcome, StatusKey, StatusValue, StatusView, WriteMode};
use tokio::sync::{broadcast, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::log::StatusLog;
use crate::logged::{LoggedStatusStore, StatusReader};
use crate::store::{CloseReport, StatusChange, StatusError, StatusStore};
use client::Client;
use reading::Reading;

pub use settings::{KafkaSettings, KafkaSettingsError, is_secret};

/// Between two attempts to start.
const START_BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));

/// Where a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KafkaState {
    /// The topic is created, checked and read to its end. Statuses wait.
    Opening {
        /// What stands in the way, as of the last attempt.
        trouble: Option<Trouble>,
    },
    /// Everything was read, and statuses are written.
    Ready,
    /// The topic cannot be used, for this reason. Statuses fail.
    Refused(String),
}

/// What stands in the way of a start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// It may be over soon.
    #[error("{0}")]
    Passing(String),
    /// It is over once somebody grants a right or corrects a password.
    #[error("{0}")]
    Denied(String),
    /// It stays until the topic or a setting is changed.
    #[error("{0}")]
    Final(String),
}

/// Why a store did not open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KafkaOpenError {
    /// Settings are invalid.
    #[error(transparent)]
    Settings(#[from] KafkaSettingsError),
    /// The topic cannot be used.
    #[error("the status topic {topic:?} cannot be used: {why}")]
    Refused {
        /// Its name.
        topic: String,
        /// Why.
        why: String,
    },
    /// It took too long.
    #[error("the status topic {topic:?} on {bootstrap_servers} was not read within {limit:?}: {why}")]
    Deadline {
        /// Its name.
        topic: String,
        /// Where it was looked for.
        bootstrap_servers: String,
        /// The limit.
        limit: Duration,
        /// The last trouble.
        why: String,
    },
}

/// A status store on a Kafka topic (Connect: `KafkaStatusBackingStore`).
pub struct KafkaStatusStore {
    settings: KafkaSettings,
    clock: Arc<dyn Clock>,
    store: LoggedStatusStore,
    log: Arc<KafkaLog>,
    state: watch::Receiver<KafkaState>,
    _opening: AbortOnDropHandle<()>,
}

impl KafkaStatusStore {
    /// Starts a store on the machine's clock. It must be called within a Tokio runtime. Brokers are looked for in the background, for ever.
    pub fn start(settings: KafkaSettings) -> Result<Self, KafkaOpenError> {
        Self::start_with(settings, SystemClock::shared())
    }

    /// The same with a clock.
    pub fn start_with(settings: KafkaSettings, clock: Arc<dyn Clock>) -> Result<Self, KafkaOpenError> {
        settings.check()?;
        let refused = |why| KafkaOpenError::Refused {
            topic: settings.topic.clone(),
            why,
        };
        let producer = client::producer(&settings).map_err(refused)?;
        let (told, state) = watch::channel(KafkaState::Opening { trouble: None });
        let log = Arc::new(KafkaLog {
            topic: settings.topic.clone(),
            producer: Mutex::new(Some(producer)),
            state: state.clone(),
        });
        let store = LoggedStatusStore::start(
            Arc::clone(&log) as Arc<dyn StatusLog>,
            settings.retry,
            Arc::clone(&clock),
        );
        let opening = Opening {
            settings: settings.clone(),
            clock: Arc::clone(&clock),
            reader: store.reader(),
            told,
        };
        let task = tokio::spawn(opening.run());
        Ok(Self {
            settings,
            clock,
            store,
            log,
            state,
            _opening: AbortOnDropHandle::new(task),
        })
    }

    /// Starts a store and waits until everything on the topic was read, at most for [`KafkaSettings::start_deadline`].
    pub async fn open(settings: KafkaSettings) -> Result<Self, KafkaOpenError> {
        let store = Self::start(settings)?;
        store.ready().await?;
        Ok(store)
    }

    /// Waits until everything on the topic was read, at most for [`KafkaSettings::start_deadline`].
    pub async fn ready(&self) -> Result<(), KafkaOpenError> {
        let topic = self.settings.topic.clone();
        let mut state = self.state.clone();
        let decided = |state: &KafkaState| match state {
            KafkaState::Opening { trouble } => matches!(trouble, Some(Trouble::Denied(_))),
            KafkaState::Ready | KafkaState::Refused(_) => true,
        };
        let limit = self.settings.start_deadline;
        within(&*self.clock, limit, state.wait_for(decided)).await;
        let state = self.state();
        match state {
            KafkaState::Ready => Ok(()),
            KafkaState::Refused(why)
            | KafkaState::Opening {
                trouble: Some(Trouble::Denied(why)),
            } => Err(KafkaOpenError::Refused { topic, why }),
            KafkaState::Opening { trouble } => Err(KafkaOpenError::Deadline {
                topic,
                bootstrap_servers: self.settings.bootstrap_servers.clone(),
                limit,
                why: trouble.map_or_else(
                    || "no broker has answered".to_owned(),
                    |trouble| trouble.to_string(),
                ),
            }),
        }
    }

    /// Where it is.
    pub fn state(&self) -> KafkaState {
        self.state.borrow().clone()
    }
}

/// Brings a store from its start to where it reads what others write.
struct Opening {
    settings: KafkaSettings,
    clock: Arc<dyn Clock>,
    reader: StatusReader,
    told: watch::Sender<KafkaState>,
}

impl Opening {
    async fn run(self) {
        let mut attempt = 0;
        let began = self.clock.now();
        let mut is_told = false;
        loop {
            let trouble = match self.try_once().await {
                Ok(reading) => {
                    self.told.send_replace(KafkaState::Ready);
                    if attempt > 0 {
                        tracing::info!(topic = self.settings.topic, "the status topic is open");
                    }
                    return reading.follow(&self.reader, &*self.clock).await;
                }
                Err(trouble) => trouble,
            };
            if let Trouble::Final(why) = &trouble {
                tracing::error!(
                    topic = self.settings.topic,
                    "the status topic cannot be used: {why}"
                );
                self.told.send_replace(KafkaState::Refused(why.clone()));
                return;
            }
            let is_due = self.clock.now().since(began) >= self.settings.start_deadline;
            if attempt == 0 || is_due && !is_told {
                is_told |= is_due;
                tracing::warn!(
                    topic = self.settings.topic,
                    "the status topic is not open yet, and statuses wait: {trouble}"
                );
            } else {
                tracing::debug!(topic = self.settings.topic, "not open yet: {trouble}");
            }
            let trouble = Some(trouble);
            self.told.send_replace(KafkaState::Opening { trouble });
            let wait = START_BACKOFF.delay(attempt, self.clock.chance());
            attempt += 1;
            tokio::select! {
                biased;
                () = self.reader.closed() => return,
                () = sleep(&*self.clock, wait) => {}
            }
        }
    }

    async fn try_once(&self) -> Result<Reading, Trouble> {
        let mut reading = Reading::connect(&self.settings).await?;
        if self.settings.manage_topic {
            topic::prepare(&self.settings).await?;
        }
        reading.begin(&self.settings).await?;
        let limit = self.settings.start_deadline;
        let read = reading.read_to_end(&self.reader);
        within(&*self.clock, limit, read).await.ok_or_else(|| {
            Trouble::Passing(format!("the topic was not read to its end within {limit:?}"))
        })??;
        self.check_foreign()?;
        Ok(reading)
    }

    /// A topic that somebody else keeps statuses in is not written to unless that was asked for.
    fn check_foreign(&self) -> Result<(), Trouble> {
        if self.settings.is_shared {
            return Ok(());
        }
        let view = self.reader.view();
        let connectors = view
            .connectors()
            .map(|(name, status)| (StatusKey::connector(name), status));
        let tasks = view
            .tasks()
            .map(|(name, task, status)| (StatusKey::task(name, task), status));
        let mut foreign = connectors.chain(tasks).filter(|(_, status)| !status.is_ours());
        let Some((key, status)) = foreign.next() else {
            return Ok(());
        };
        let more = foreign.count();
        let others = if more == 0 {
            String::new()
        } else {
            format!(" and {more} more")
        };
        Err(Trouble::Final(format!(
            "it holds statuses that are not shardfleet's: {key} by {:?}{others}. A Connect cluster deletes foreign statuses from its topic, so choose a topic \
             of your own, or allow to share this one",
            status.worker_id
        )))
    }
}

/// The topic as a log.
struct KafkaLog {
    topic: String,
    /// Gone once the store is closed.
    producer: Mutex<Option<FutureProducer<Client>>>,
    state: watch::Receiver<KafkaState>,
}

impl KafkaLog {
    fn producer(&self) -> Option<FutureProducer<Client>> {
        self.producer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl StatusLog for KafkaLog {
    fn ready(&self) -> BoxFuture<'static, ()> {
        let mut state = self.state.clone();
        async move {
            let decided = |state: &KafkaState| !matches!(state, KafkaState::Opening { .. });
            // An error means that the opening task is gone, and so the store.
            if state.wait_for(decided).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
        .boxed()
    }

    fn send(&self, key: String, value: Option<Vec<u8>>) -> BoxFuture<'static, Outcome> {
        if let KafkaState::Refused(why) = &*self.state.borrow() {
            return std::future::ready(Outcome::Final(why.clone())).boxed();
        }
        let Some(producer) = self.producer() else {
            return std::future::ready(Outcome::Final("the store is closed".to_owned())).boxed();
        };
        let record = FutureRecord {
            payload: value.as_ref(),
            key: Some(&key),
            ..FutureRecord::to(&self.topic)
        };
        match producer.send_result(record) {
            Ok(delivery) => async move {
                match delivery.await {
                    Ok(Ok(_)) => Outcome::Written,
                    Ok(Err((error, _))) => outcome::of(&error),
                    Err(_) => Outcome::Retriable("the client was dropped".to_owned()),
                }
            }
            .boxed(),
            Err((error, _)) => std::future::ready(outcome::of(&error)).boxed(),
        }
    }

    fn purge(&self) {
        let producer = self
            .producer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(producer) = producer {
            producer.purge(PurgeConfig::default().queue().inflight());
            client::drop_elsewhere(producer);
        }
    }
}

impl Drop for KafkaLog {
    fn drop(&mut self) {
        self.purge();
    }
}

#[async_trait]
impl StatusStore for KafkaStatusStore {
    fn write(
        &self,
        key: &StatusKey,
        value: Option<StatusValue>,
        mode: WriteMode,
    ) -> Result<bool, StatusError> {
        self.store.write(key, value, mode)
    }

    fn view(&self) -> Arc<StatusView> {
        self.store.view()
    }

    fn watch(&self) -> broadcast::Receiver<StatusChange> {
        self.store.watch()
    }

    fn counters(&self) -> Counters {
        self.store.counters()
    }

    fn late(&self) -> Vec<LateStatus> {
        self.store.late()
    }

    fn skipped(&self) -> u64 {
        self.store.skipped()
    }

    async fn flush(&self, patience: Duration) -> u64 {
        self.store.flush(patience).await
    }

    async fn close(&self, grace: Duration) -> CloseReport {
        let report = self.store.close(grace).await;
        self.log.purge();
        report
    }
}
