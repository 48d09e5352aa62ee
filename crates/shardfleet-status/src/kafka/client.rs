//! Clients of librdkafka, set up as Connect sets its own up.

use std::sync::{Arc, Mutex, PoisonError};

use rdkafka::ClientConfig;
use rdkafka::admin::AdminClient;
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{ConsumerContext, StreamConsumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::FutureProducer;

use super::settings::KafkaSettings;

/// What a client calls back. Its chatter while a broker is away goes to the debug level: what is late and why is said once, by the store.
#[derive(Clone, Default)]
pub(super) struct Client {
    last: Arc<Mutex<Option<Complaint>>>,
}

#[derive(Clone)]
struct Complaint {
    code: Option<RDKafkaErrorCode>,
    reason: String,
}

impl Client {
    /// What went wrong last, and whether it is about who we are.
    pub(super) fn last_error(&self) -> Option<(bool, String)> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let is_denied = matches!(last.code, Some(RDKafkaErrorCode::Authentication));
        Some((is_denied, last.reason))
    }
}

impl ClientContext for Client {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(?level, facility, "librdkafka: {message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!("librdkafka: {error}: {reason}");
        let code = error.rdkafka_error_code();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // What follows a refused password only says that nobody is left.
        let is_echo = matches!(code, Some(RDKafkaErrorCode::AllBrokersDown)) && last.is_some();
        if !is_echo {
            let reason = reason.to_owned();
            *last = Some(Complaint { code, reason });
        }
    }
}

impl ConsumerContext for Client {}

fn common(settings: &KafkaSettings, suffix: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    for (name, value) in [
        ("socket.timeout.ms", "30000"),
        ("reconnect.backoff.max.ms", "1000"),
        ("allow.auto.create.topics", "false"),
    ] {
        config.set(name, value);
    }
    for (name, value) in &settings.client_settings {
        config.set(name, value);
    }
    config.set("bootstrap.servers", &settings.bootstrap_servers);
    config.set("client.id", format!("{}{suffix}", settings.full_client_id()));
    config
}

/// librdkafka refuses settings of a producer on a consumer with a warning only; ours go where they belong.
const PRODUCER_ONLY: [&str; 6] = [
    "delivery.timeout.ms",
    "message.timeout.ms",
    "request.timeout.ms",
    "linger.ms",
    "queue.buffering.max.ms",
    "compression.type",
];

pub(super) fn producer(settings: &KafkaSettings) -> Result<FutureProducer<Client>, String> {
    let mut config = common(settings, "");
    config.remove("allow.auto.create.topics");
    for (name, value) in [
        ("message.timeout.ms", "30000"),
        ("request.timeout.ms", "30000"),
        ("message.max.bytes", "1048576"),
        ("linger.ms", "5"),
    ] {
        if !settings.client_settings.contains_key(name) {
            config.set(name, value);
        }
    }
    if settings.client_settings.contains_key("delivery.timeout.ms") {
        config.remove("message.timeout.ms");
    }
    for (name, value) in [
        ("acks", "all"),
        ("retries", "0"),
        ("enable.idempotence", "false"),
        ("max.in.flight.requests.per.connection", "1"),
        ("partitioner", "murmur2_random"),
    ] {
        config.set(name, value);
    }
    config
        .create_with_context(Client::default())
        .map_err(|error| explain(&error))
}

pub(super) fn consumer(settings: &KafkaSettings, client: Client) -> Result<StreamConsumer<Client>, String> {
    let mut config = common(settings, "");
    for name in PRODUCER_ONLY {
        config.remove(name);
    }
    for (name, value) in [
        // A name is wanted, and no group is joined.
        ("group.id", settings.full_client_id().as_str()),
        ("enable.auto.commit", "false"),
        ("enable.auto.offset.store", "false"),
        ("auto.offset.reset", "earliest"),
        ("isolation.level", "read_uncommitted"),
        ("enable.partition.eof", "true"),
    ] {
        config.set(name, value);
    }
    config
        .create_with_context(client)
        .map_err(|error| explain(&error))
}

pub(super) fn admin(settings: &KafkaSettings) -> Result<AdminClient<DefaultClientContext>, String> {
    let mut config = common(settings, "-admin");
    config.remove("allow.auto.create.topics");
    for name in PRODUCER_ONLY {
        config.remove(name);
    }
    config.create().map_err(|error| explain(&error))
}

/// An error of a client's creation names the setting.
fn explain(error: &KafkaError) -> String {
    match error {
        KafkaError::ClientConfig(_, description, name, value) => {
            format!("the client setting {name} is {value:?}: {description}")
        }
        other => other.to_string(),
    }
}

/// Clients wait for a thread of theirs when they go.
pub(super) fn drop_elsewhere<T: Send + 'static>(client: T) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => {
            runtime.spawn_blocking(move || drop(client));
        }
        Err(_) => drop(client),
    }
}
