//! A Connect worker's properties file.

use std::collections::BTreeMap;

use java_properties::PropertiesIter;

use super::settings::{KafkaSettings, KafkaSettingsError, unknown_retry};

const STORAGE: &str = "status.storage.";
const RETRY: &str = "retry.";

/// Client settings that Java's clients and librdkafka call alike.
const SAME: [&str; 12] = [
    "security.protocol",
    "sasl.mechanism",
    "sasl.kerberos.service.name",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "delivery.timeout.ms",
    "request.timeout.ms",
    "reconnect.backoff.ms",
    "reconnect.backoff.max.ms",
    "retry.backoff.ms",
    "client.dns.lookup",
    "linger.ms",
];

impl KafkaSettings {
    /// Reads the settings of a status store from a Java properties file, such as a distributed Connect worker's. What else the file says is passed over: converters,
    /// other topics, plug-ins. All problems come in one error.
    pub fn from_properties(text: &str) -> Result<Self, KafkaSettingsError> {
        Self::from_map(Self::read_properties(text)?)
    }

    /// The names and values of a Java properties file.
    ///
    /// # Errors
    /// When it is malformed: the line, and why.
    pub fn read_properties(text: &str) -> Result<BTreeMap<String, String>, KafkaSettingsError> {
        let mut all = BTreeMap::new();
        PropertiesIter::new(text.as_bytes())
            .read_into(|name, value| {
                all.insert(name, value);
            })
            .map_err(|error| KafkaSettingsError {
                problems: vec![format!("line {}: {error}", error.line_number().unwrap_or(0))],
            })?;
        Ok(all)
    }

    /// The same from names and values, such as those of a file and what goes ahead of it.
    pub fn from_map(properties: BTreeMap<String, String>) -> Result<Self, KafkaSettingsError> {
        let mut reader = Reader {
            all: properties,
            problems: Vec::new(),
        };
        let settings = reader.settings();
        reader.problems.extend(settings.problems());
        if reader.problems.is_empty() {
            Ok(settings)
        } else {
            Err(KafkaSettingsError {
                problems: reader.problems,
            })
        }
    }
}

struct Reader {
    all: BTreeMap<String, String>,
    problems: Vec<String>,
}

impl Reader {
    fn settings(&mut self) -> KafkaSettings {
        let bootstrap_servers = self.all.remove("bootstrap.servers").unwrap_or_default();
        let topic = self.all.remove("status.storage.topic").unwrap_or_default();
        let mut settings = KafkaSettings::new(bootstrap_servers, topic.trim());
        settings.group_id = self.all.remove("group.id").unwrap_or_default();
        settings.client_id = self.all.remove("client.id").unwrap_or_default();
        let retry = &mut settings.retry;
        self.number(
            "status.storage.partitions",
            "an integer",
            &mut settings.partitions,
        );
        self.number(
            "status.storage.replication.factor",
            "an integer",
            &mut settings.replication_factor,
        );
        self.number(
            "status.storage.retry.max.retries",
            "an integer",
            &mut retry.max_retries,
        );
        self.number(
            "status.storage.retry.initial.backoff.ms",
            "an integer",
            &mut retry.initial_backoff_ms,
        );
        self.number(
            "status.storage.retry.max.backoff.ms",
            "an integer",
            &mut retry.max_backoff_ms,
        );
        self.number(
            "status.storage.retry.backoff.multiplier",
            "a number",
            &mut retry.backoff_multiplier,
        );
        self.number(
            "status.storage.retry.jitter.factor",
            "a number",
            &mut retry.jitter_factor,
        );
        let storage: Vec<String> = self
            .all
            .keys()
            .filter_map(|name| name.strip_prefix(STORAGE))
            .map(str::to_owned)
            .collect();
        for name in storage {
            let value = self.all.remove(&format!("{STORAGE}{name}")).unwrap_or_default();
            match name.strip_prefix(RETRY) {
                // A topic setting of this name would make the broker refuse the topic.
                Some(retry) => self.problems.push(unknown_retry(retry)),
                None => {
                    settings.topic_settings.insert(name, value);
                }
            }
        }
        self.client(&mut settings.client_settings);
        settings
    }

    fn number<T: std::str::FromStr>(&mut self, name: &str, wanted: &str, into: &mut T) {
        if let Some(text) = self.all.remove(name) {
            match text.trim().parse() {
                Ok(number) => *into = number,
                Err(_) => self
                    .problems
                    .push(format!("{name} is {text:?}: {wanted} is expected")),
            }
        }
    }

    /// What the clients of Java and librdkafka call alike, and what can be said in the other's words.
    fn client(&mut self, client: &mut BTreeMap<String, String>) {
        for name in SAME {
            if let Some(value) = self.all.remove(name) {
                client.insert(name.to_owned(), value);
            }
        }
        if client
            .get("ssl.endpoint.identification.algorithm")
            .is_some_and(String::is_empty)
        {
            client.insert(
                "ssl.endpoint.identification.algorithm".to_owned(),
                "none".to_owned(),
            );
        }
        if let Some(jaas) = self.all.remove("sasl.jaas.config") {
            match (jaas_option(&jaas, "username"), jaas_option(&jaas, "password")) {
                (Some(username), Some(password)) => {
                    client.insert("sasl.username".to_owned(), username);
                    client.insert("sasl.password".to_owned(), password);
                }
                _ => self.problems.push(
                    "sasl.jaas.config names no username=\"…\" and password=\"…\": the plain and SCRAM login modules are understood".to_owned(),
                ),
            }
        }
        for (store, location) in [
            ("ssl.truststore", "ssl.ca.location"),
            ("ssl.keystore", "ssl.keystore.location"),
        ] {
            let kind = self
                .all
                .remove(&format!("{store}.type"))
                .unwrap_or_else(|| "JKS".to_owned());
            let Some(path) = self.all.remove(&format!("{store}.location")) else {
                continue;
            };
            match (store, kind.as_str()) {
                ("ssl.truststore", "PEM") | ("ssl.keystore", "PKCS12") => {
                    client.insert(location.to_owned(), path);
                }
                ("ssl.keystore", "PEM") => {
                    client.insert("ssl.certificate.location".to_owned(), path.clone());
                    client.insert("ssl.key.location".to_owned(), path);
                }
                _ => self.problems.push(format!(
                    "{store}.type is {kind}: PEM is expected{}; keytool and openssl convert it",
                    if store == "ssl.keystore" { " or PKCS12" } else { "" }
                )),
            }
        }
        if let Some(password) = self.all.remove("ssl.keystore.password") {
            client.insert("ssl.keystore.password".to_owned(), password);
        }
    }
}

/// An option of a login module: `username="alice"`.
fn jaas_option(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("{name}="))?;
    let quote = rest.chars().next()?;
    let rest = rest.strip_prefix(['"', '\''])?;
    rest.split_once(quote).map(|(value, _)| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connect_workers_file_is_understood() {
        let settings = KafkaSettings::from_properties(
            r#"
# a worker
bootstrap.servers=kafka-1:9092,kafka-2:9092
group.id = connect-cluster
key.converter=org.apache.kafka.connect.json.JsonConverter
status.storage.topic: connect-status
status.storage.replication.factor=-1
status.storage.segment.ms=1000
status.storage.retry.max.retries=10
status.storage.retry.max.backoff.ms=30000
status.storage.retry.jitter.factor=0.5
security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" \
  password="alice-secret";
ssl.truststore.type=PEM
ssl.truststore.location=/etc/ca.pem
"#,
        )
        .expect("valid");
        assert_eq!(settings.bootstrap_servers, "kafka-1:9092,kafka-2:9092");
        assert_eq!(settings.topic, "connect-status");
        assert_eq!((settings.partitions, settings.replication_factor), (5, -1));
        assert_eq!(
            (settings.retry.max_retries, settings.retry.max_backoff_ms),
            (10, 30_000)
        );
        assert_eq!(settings.retry.initial_backoff_ms, 300);
        // None of the retry properties is a topic setting.
        assert_eq!(
            settings.topic_settings.into_iter().collect::<Vec<_>>(),
            [("segment.ms".to_owned(), "1000".to_owned())]
        );
        let client: Vec<(&str, &str)> = settings
            .client_settings
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(
            client,
            [
                ("sasl.mechanism", "PLAIN"),
                ("sasl.password", "alice-secret"),
                ("sasl.username", "alice"),
                ("security.protocol", "SASL_SSL"),
                ("ssl.ca.location", "/etc/ca.pem"),
            ]
        );
    }

    #[test]
    fn every_problem_of_a_file_comes_at_once() {
        let error = KafkaSettings::from_properties(
            "bootstrap.servers=a:1\nstatus.storage.topic=t\nstatus.storage.partitions=many\nstatus.storage.retry.max.retries=1.5\n\
             status.storage.retry.initial.backoff.ms=20000\nstatus.storage.retry.backoff.multiplier=0.5\nstatus.storage.retry.limit=3\n\
             ssl.truststore.location=/a.jks\n",
        )
        .expect_err("invalid");
        for said in [
            "status.storage.partitions is \"many\": an integer is expected",
            "status.storage.retry.max.retries is \"1.5\"",
            "status.storage.retry.limit is unknown",
            "ssl.truststore.type is JKS: PEM is expected",
            "initial.backoff.ms is 20000: at most status.storage.retry.max.backoff.ms is expected, which is 10000",
            "backoff.multiplier is 0.5",
        ] {
            assert!(
                error.problems.iter().any(|problem| problem.contains(said)),
                "{said}: {error}"
            );
        }
        assert_eq!(error.problems.len(), 6, "{error}");
        let error = KafkaSettings::from_properties("a=\\u12").expect_err("no such escape");
        assert!(error.problems[0].contains("line 1"), "{error}");
    }
}
