//! Reads the topic: from its start to its end, and then what comes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::metadata::{Metadata, MetadataPartition};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use shardfleet_clock::{Clock, SystemClock, sleep, within};

use super::client::Client;
use super::settings::KafkaSettings;
use super::{Trouble, client};
use crate::logged::StatusReader;

const METADATA_PATIENCE: Duration = Duration::from_secs(10);
const LISTEN: Duration = Duration::from_millis(300);
/// After an error, since a client may tell the same one at once again.
const ERROR_PAUSE: Duration = Duration::from_millis(500);

/// A consumer of all partitions. No group is joined and nothing is committed: the topic is read from its start each time.
pub(super) struct Reading {
    consumer: Option<Arc<StreamConsumer<Client>>>,
    client: Client,
    unread: BTreeSet<i32>,
}

impl Reading {
    /// Waits until a broker has answered.
    pub(super) async fn connect(settings: &KafkaSettings) -> Result<Self, Trouble> {
        let client = Client::default();
        let consumer = client::consumer(settings, client.clone()).map_err(Trouble::Final)?;
        let reading = Self {
            consumer: Some(Arc::new(consumer)),
            client,
            unread: BTreeSet::new(),
        };
        reading.ask(settings, |_, _| Ok(())).await?;
        Ok(reading)
    }

    /// Begins to read every partition at its start.
    pub(super) async fn begin(&mut self, settings: &KafkaSettings) -> Result<(), Trouble> {
        self.unread = self.ask(settings, partitions).await?;
        let mut assignment = TopicPartitionList::new();
        for partition in &self.unread {
            assignment
                .add_partition_offset(&settings.topic, *partition, Offset::Beginning)
                .map_err(|error| Trouble::Final(error.to_string()))?;
        }
        let consumer = self.consumer.iter();
        for consumer in consumer {
            consumer
                .assign(&assignment)
                .map_err(|error| Trouble::Passing(error.to_string()))?;
        }
        Ok(())
    }

    /// Asks for what the brokers know of the topic, on a thread that may wait.
    async fn ask<T: Send + 'static>(
        &self,
        settings: &KafkaSettings,
        read: impl FnOnce(&Metadata, &str) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, Trouble> {
        let Some(consumer) = self.consumer.clone() else {
            return Err(Trouble::Passing("the client is gone".to_owned()));
        };
        let topic = settings.topic.clone();
        let asked = tokio::task::spawn_blocking(move || {
            let metadata = consumer.fetch_metadata(Some(&topic), METADATA_PATIENCE);
            let metadata = metadata.map_err(|error| Trouble::Passing(error.to_string()))?;
            read(&metadata, &topic)
        });
        let answer = asked.await.map_err(|error| Trouble::Passing(error.to_string()))?;
        if answer.is_err() {
            self.listen().await;
        }
        answer.map_err(|trouble| explain(trouble, &self.client))
    }

    /// What a client has to say, such as that a password is wrong, it says to who receives from it.
    async fn listen(&self) {
        if let Some(consumer) = &self.consumer {
            let clock = SystemClock::new();
            let told = async { while consumer.recv().await.is_err() {} };
            within(&clock, LISTEN, told).await;
        }
    }

    /// Reads until the end of each partition was seen once.
    pub(super) async fn read_to_end(&mut self, reader: &StatusReader) -> Result<(), Trouble> {
        let Some(consumer) = &self.consumer else {
            return Ok(());
        };
        while !self.unread.is_empty() {
            match consumer.recv().await {
                Ok(record) => reader.read(record.key(), record.payload()),
                Err(KafkaError::PartitionEOF(partition)) => {
                    self.unread.remove(&partition);
                }
                Err(error) if is_about_groups(&error) => {}
                Err(error) => {
                    let is_denied = matches!(
                        error.rdkafka_error_code(),
                        Some(RDKafkaErrorCode::TopicAuthorizationFailed | RDKafkaErrorCode::Authentication)
                    );
                    let text = format!("it could not be read: {error}");
                    return Err(if is_denied {
                        Trouble::Denied(text)
                    } else {
                        Trouble::Passing(text)
                    });
                }
            }
        }
        Ok(())
    }

    /// Reads what comes until the store is closed.
    pub(super) async fn follow(&self, reader: &StatusReader, clock: &dyn Clock) {
        let Some(consumer) = &self.consumer else {
            return;
        };
        loop {
            let received = tokio::select! {
                biased;
                () = reader.closed() => return,
                received = consumer.recv() => received,
            };
            match received {
                Ok(record) => reader.read(record.key(), record.payload()),
                Err(KafkaError::PartitionEOF(_)) => {}
                Err(error) if is_about_groups(&error) => sleep(clock, ERROR_PAUSE).await,
                Err(error) => {
                    tracing::debug!("reading the status topic goes on after {error}");
                    sleep(clock, ERROR_PAUSE).await;
                }
            }
        }
    }
}

/// The client wants a group to be named and looks for its coordinator, though none is joined: the right to one is not needed.
fn is_about_groups(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(RDKafkaErrorCode::GroupAuthorizationFailed | RDKafkaErrorCode::CoordinatorNotAvailable)
    )
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some(consumer) = self.consumer.take() {
            client::drop_elsewhere(consumer);
        }
    }
}

fn partitions(metadata: &Metadata, topic: &str) -> Result<BTreeSet<i32>, Trouble> {
    let found = metadata.topics().iter().find(|found| found.name() == topic);
    let Some(found) = found else {
        return Err(Trouble::Passing("no broker knows it".to_owned()));
    };
    if let Some(error) = found.error() {
        let code = RDKafkaErrorCode::from(error);
        let denied = code == RDKafkaErrorCode::TopicAuthorizationFailed;
        return Err(if denied {
            Trouble::Denied(format!(
                "{code}: READ and WRITE on it are needed, DESCRIBE_CONFIGS to check it, CREATE to create it"
            ))
        } else {
            Trouble::Passing(code.to_string())
        });
    }
    let partitions: BTreeSet<i32> = found.partitions().iter().map(MetadataPartition::id).collect();
    if partitions.is_empty() {
        return Err(Trouble::Passing("it has no partitions yet".to_owned()));
    }
    Ok(partitions)
}

/// What the client said meanwhile tells more than that nobody answered.
fn explain(trouble: Trouble, client: &Client) -> Trouble {
    match (trouble, client.last_error()) {
        (Trouble::Passing(_), Some((true, reason))) => Trouble::Denied(reason),
        (Trouble::Passing(text), Some((false, reason))) => Trouble::Passing(format!("{text}: {reason}")),
        (other, _) => other,
    }
}
