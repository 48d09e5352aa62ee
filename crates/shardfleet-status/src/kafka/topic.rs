//! The topic: created where it is missing, checked where it is there.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::outcome::is_retriable;
use super::settings::KafkaSettings;
use super::{Trouble, client};

const PATIENCE: Duration = Duration::from_secs(15);

/// Creates the topic if it is missing; one that is there must be compacted and nothing else (Connect: `TopicAdmin#verifyTopicCleanupPolicyOnlyCompact`). Where rights are
/// missing to create or to look, it is taken to be as it should.
pub(super) async fn prepare(settings: &KafkaSettings) -> Result<(), Trouble> {
    let admin = client::admin(settings).map_err(Trouble::Final)?;
    let result = prepare_with(settings, &admin).await;
    client::drop_elsewhere(admin);
    result
}

async fn prepare_with(
    settings: &KafkaSettings,
    admin: &AdminClient<DefaultClientContext>,
) -> Result<(), Trouble> {
    use RDKafkaErrorCode as Code;
    let mut topic = NewTopic::new(
        &settings.topic,
        settings.partitions,
        TopicReplication::Fixed(settings.replication_factor),
    );
    for (name, value) in &settings.topic_settings {
        if name == "cleanup.policy" {
            if value != "compact" {
                tracing::warn!(
                    "status.storage.cleanup.policy is {value:?}, and is passed over: it is always compact"
                );
            }
        } else {
            topic = topic.set(name, value);
        }
    }
    let topic = topic.set("cleanup.policy", "compact");
    let options = AdminOptions::new()
        .request_timeout(Some(PATIENCE))
        .operation_timeout(Some(PATIENCE));
    let created = admin.create_topics([&topic], &options).await;
    let code = match created {
        Err(error) => {
            let unknown = || Trouble::Passing(error.to_string());
            error.rdkafka_error_code().ok_or_else(unknown)?
        }
        Ok(results) => {
            let Some(Err((_, code))) = results.into_iter().next() else {
                tracing::info!(topic = settings.topic, "the status topic was created");
                return Ok(());
            };
            code
        }
    };
    match code {
        Code::TopicAlreadyExists => {}
        Code::UnsupportedVersion
        | Code::UnsupportedFeature
        | Code::ClusterAuthorizationFailed
        | Code::TopicAuthorizationFailed => {
            tracing::debug!("the status topic is taken to exist: creating it was refused with {code}");
        }
        Code::InvalidConfig => {
            let given: Vec<String> = settings
                .topic_settings
                .iter()
                .map(|(name, value)| format!("status.storage.{name}={value}"))
                .collect();
            return Err(Trouble::Final(format!(
                "the broker does not take a setting of it: {}",
                given.join(", ")
            )));
        }
        Code::InvalidReplicationFactor => {
            return Err(Trouble::Passing(format!(
                "status.storage.replication.factor is {}, and there are fewer brokers, or not yet; -1 takes the broker's default",
                settings.replication_factor
            )));
        }
        code if is_retriable(code) || code == Code::AllBrokersDown => {
            return Err(Trouble::Passing(format!(
                "no answer from {}: {code}",
                settings.bootstrap_servers
            )));
        }
        code => return Err(Trouble::Final(format!("it could not be created: {code}"))),
    }
    check(settings, admin, &options).await
}

async fn check(
    settings: &KafkaSettings,
    admin: &AdminClient<DefaultClientContext>,
    options: &AdminOptions,
) -> Result<(), Trouble> {
    let wanted = ResourceSpecifier::Topic(&settings.topic);
    let described = admin.describe_configs([&wanted], options).await;
    let unseen = |why: String| {
        tracing::info!(
            topic = settings.topic,
            "the cleanup policy of the status topic could not be read, and is taken to be compact: {why}"
        );
        Ok(())
    };
    let resource = match described.map(|mut resources| resources.pop()) {
        Ok(Some(Ok(resource))) => resource,
        Ok(Some(Err(code))) if is_retriable(code) => return Err(Trouble::Passing(code.to_string())),
        Ok(Some(Err(code))) => return unseen(code.to_string()),
        Ok(None) => return unseen("there was no answer".to_owned()),
        Err(KafkaError::AdminOp(code)) if is_retriable(code) => {
            return Err(Trouble::Passing(code.to_string()));
        }
        Err(error) => return unseen(error.to_string()),
    };
    let policy = resource
        .get("cleanup.policy")
        .and_then(|entry| entry.value.clone());
    match policy {
        None => unseen("the broker does not tell it".to_owned()),
        Some(policy) if is_compact_only(&policy) => Ok(()),
        Some(policy) => Err(Trouble::Final(format!(
            "its cleanup.policy is {policy:?}, and must be \"compact\", or statuses are deleted after a time. Change it (kafka-configs --alter --topic {} \
             --add-config cleanup.policy=compact) or choose another topic",
            settings.topic
        ))),
    }
}

fn is_compact_only(policy: &str) -> bool {
    let mut parts = policy
        .split(',')
        .map(|part| part.trim().to_ascii_lowercase())
        .filter(|part| !part.is_empty());
    parts.next().as_deref() == Some("compact") && parts.all(|part| part == "compact")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compact_is_the_only_policy() {
        for good in ["compact", " Compact ", "compact,compact"] {
            assert!(is_compact_only(good), "{good}");
        }
        for bad in ["delete", "compact,delete", "", "delete,compact"] {
            assert!(!is_compact_only(bad), "{bad}");
        }
    }
}
