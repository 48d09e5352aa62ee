//! The Kafka store against librdkafka's own broker in this process, which fails on demand. What it cannot do, create topics and compact them, is for the real broker.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::Message;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use serde_json::Value;
use shardfleet_status::kafka::{KafkaOpenError, KafkaState};
use shardfleet_status::{
    KafkaSettings, KafkaStatusStore, RetrySettings, StatusKey, StatusState, StatusStore, conformance,
};

use crate::{DEADLINE, status, until};

const TOPIC: &str = "statuses";
type Cluster = MockCluster<'static, DefaultProducerContext>;

fn cluster(partitions: i32) -> Cluster {
    let cluster = MockCluster::new(1).expect("a cluster");
    cluster.create_topic(TOPIC, partitions, 1).expect("a topic");
    cluster
}

fn settings(cluster: &Cluster) -> KafkaSettings {
    KafkaSettings {
        manage_topic: false,
        retry: RetrySettings {
            initial_backoff_ms: 20,
            max_backoff_ms: 200,
            ..RetrySettings::default()
        },
        ..KafkaSettings::new(cluster.bootstrap_servers(), TOPIC)
    }
}

async fn open(cluster: &Cluster) -> KafkaStatusStore {
    KafkaStatusStore::open(settings(cluster)).await.expect("open")
}

/// The next produce requests end so.
fn fail(cluster: &Cluster, errors: &[RDKafkaRespErr]) {
    cluster.request_errors(RDKafkaApiKey::Produce, errors);
}

fn key() -> StatusKey {
    StatusKey::task("orders", 0)
}

/// All records by key, with their partitions and values, as another client reads them to the end. A write whose answer was lost stands there twice.
fn records(cluster: &Cluster, partitions: i32) -> Vec<(String, i32, Option<Vec<u8>>)> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .set("group.id", "witness")
        .set("enable.partition.eof", "true")
        .create()
        .expect("a consumer");
    let mut all = TopicPartitionList::new();
    for partition in 0..partitions {
        all.add_partition_offset(TOPIC, partition, Offset::Beginning)
            .expect("a partition");
    }
    consumer.assign(&all).expect("assigned");
    let mut found = Vec::new();
    let mut ended = BTreeSet::new();
    while ended.len() < usize::try_from(partitions).expect("small") {
        match consumer.poll(DEADLINE).expect("in time") {
            Ok(record) => {
                let key = String::from_utf8(record.key().expect("a key").to_vec()).expect("UTF-8");
                found.push((key, record.partition(), record.payload().map(<[u8]>::to_vec)));
            }
            Err(KafkaError::PartitionEOF(partition)) => {
                ended.insert(partition);
            }
            Err(error) => panic!("{error}"),
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kafka_store_conforms() {
    // A topic of its own for each case; the clusters live as long as the suite.
    let clusters = std::sync::Mutex::new(Vec::new());
    let verdict = conformance::run(async |_| {
        let cluster = cluster(5);
        let store = open(&cluster).await;
        clusters.lock().expect("unpoisoned").push(cluster);
        Arc::new(store) as Arc<dyn StatusStore>
    })
    .await;
    assert_eq!(verdict, Ok(()));
}

/// Every key of the recorded writes goes where Java's partitioner puts it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_go_to_the_partitions_that_java_takes() {
    let recorded: Value = serde_json::from_str(include_str!("vectors/connect-status.json")).expect("JSON");
    for partitions in [1, 3, 5, 50] {
        let cluster = cluster(partitions);
        let store = open(&cluster).await;
        let mut expected = BTreeMap::new();
        for write in recorded["writes"].as_array().expect("writes") {
            let Some(text) = write["key_utf8"].as_str() else {
                continue;
            };
            // But for the names that no store takes.
            let is_taken = StatusKey::parse(text).is_ok_and(|key| store.delete(&key).is_ok());
            if is_taken {
                let partition = write["partition"][partitions.to_string()]
                    .as_i64()
                    .expect("recorded");
                expected.insert(text.to_owned(), i32::try_from(partition).expect("small"));
            }
        }
        assert!(expected.len() > 90, "{}", expected.len());
        assert_eq!(store.flush(DEADLINE).await, 0);
        let found: BTreeMap<String, i32> = records(&cluster, partitions)
            .into_iter()
            .map(|(key, partition, _)| (key, partition))
            .collect();
        assert_eq!(found, expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_errors_are_retried_as_often_as_the_limit_says() {
    let not_enough = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS;
    for (failures, success, failure, retries) in [(0, 1, 0, 0), (1, 1, 0, 1), (5, 1, 0, 5), (6, 0, 1, 5)] {
        let cluster = cluster(1);
        let store = open(&cluster).await;
        fail(&cluster, &vec![not_enough; failures]);
        store
            .put(&key(), status(StatusState::Running, "w", 1))
            .expect("taken");
        assert_eq!(store.flush(DEADLINE).await, 0);
        let counters = store.counters();
        assert_eq!(
            (counters.success, counters.failure, counters.retry),
            (success, failure, retries)
        );
        cluster.clear_request_errors(RDKafkaApiKey::Produce);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_final_broker_error_is_a_failure_at_once() {
    let cluster = cluster(1);
    let store = open(&cluster).await;
    fail(&cluster, &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_RECORD]);
    store
        .put(&key(), status(StatusState::Running, "w", 1))
        .expect("taken");
    store.flush(DEADLINE).await;
    let counters = store.counters();
    assert_eq!((counters.failure, counters.retry), (1, 0));
}

/// Stock Connect leaves the old one for good in three of five such spells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_status_survives_a_spell_of_errors_in_every_round() {
    for round in 0..20 {
        let cluster = cluster(1);
        let store = open(&cluster).await;
        fail(
            &cluster,
            &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS; 3],
        );
        store
            .put(&key(), status(StatusState::Running, "w", round))
            .expect("taken");
        until("the first failure", || {
            store.late().iter().any(|late| late.error.is_some()) || store.counters().retry > 0
        })
        .await;
        store
            .put(&key(), status(StatusState::Failed, "w", round))
            .expect("taken");
        assert_eq!(store.flush(DEADLINE).await, 0);
        until("what was read back", || {
            store
                .view()
                .task("orders", 0)
                .is_some_and(|shown| shown.state == StatusState::Failed)
        })
        .await;
        let all = records(&cluster, 1);
        let last = all
            .last()
            .and_then(|(_, _, value)| value.clone())
            .expect("a record");
        assert!(String::from_utf8_lossy(&last).contains("FAILED"), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_away_holds_no_caller_and_loses_nothing_within_the_window() {
    let cluster = cluster(2);
    let store = open(&cluster).await;
    cluster.broker_down(1).expect("down");
    for generation in 0..50 {
        for task in 0..4 {
            let key = StatusKey::task("orders", task);
            store
                .put(&key, status(StatusState::Running, "w", generation))
                .expect("taken");
        }
    }
    assert!(store.late().len() == 4, "{:?}", store.late());
    cluster.broker_up(1).expect("up");
    assert_eq!(store.flush(DEADLINE).await, 0);
    until("the newest of each", || {
        let view = store.view();
        view.tasks_of("orders")
            .filter(|(_, shown)| shown.generation == 49)
            .count()
            == 4
    })
    .await;
    let counters = store.counters();
    assert_eq!(counters.failure, 0, "{counters:?}");
    assert_eq!(counters.success + counters.superseded, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_while_the_broker_is_away_ends_in_time_and_names_what_is_left() {
    let cluster = cluster(1);
    let store = open(&cluster).await;
    cluster.broker_down(-1).expect("down");
    store
        .put(&key(), status(StatusState::Unassigned, "w", 2))
        .expect("taken");
    let report = store.close(Duration::from_millis(300)).await;
    assert_eq!(report.unwritten.len(), 1);
    assert_eq!(report.unwritten[0].key, key());
    assert_eq!(store.counters().dropped, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_starts_again_knows_everything() {
    let cluster = cluster(3);
    let store = open(&cluster).await;
    for task in 0..10 {
        store
            .put(
                &StatusKey::task("orders", task),
                status(StatusState::Running, "w", task),
            )
            .expect("taken");
    }
    store.delete(&StatusKey::task("orders", 3)).expect("taken");
    let report = store.close(DEADLINE).await;
    assert!(report.unwritten.is_empty());
    let again = open(&cluster).await;
    let tasks: Vec<i32> = again.view().tasks_of("orders").map(|(task, _)| task).collect();
    assert_eq!(tasks, [0, 1, 2, 4, 5, 6, 7, 8, 9]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_with_statuses_of_others_is_refused_unless_it_is_to_be_shared() {
    let cluster = cluster(1);
    let theirs = KafkaStatusStore::open(settings(&cluster)).await.expect("open");
    let foreign = shardfleet_status::WorkStatus {
        state: StatusState::Running,
        trace: None,
        worker_id: "10.0.0.1:8083".to_owned(),
        generation: 7,
        version: Some("4.3.1".to_owned()),
    };
    theirs
        .put(&StatusKey::connector("their-connector"), foreign.into())
        .expect("taken");
    assert_eq!(theirs.flush(DEADLINE).await, 0);
    let refused = KafkaStatusStore::open(settings(&cluster)).await;
    match refused.map(|_| ()) {
        Err(KafkaOpenError::Refused { why, .. }) => {
            assert!(
                why.contains("status-connector-their-connector by \"10.0.0.1:8083\""),
                "{why}"
            );
        }
        other => panic!("{other:?}"),
    }
    let shared = KafkaSettings {
        is_shared: true,
        ..settings(&cluster)
    };
    let shared = KafkaStatusStore::open(shared).await.expect("asked for");
    assert!(shared.view().connector("their-connector").is_some());
    // Once it is gone there is nothing to refuse.
    theirs
        .delete(&StatusKey::connector("their-connector"))
        .expect("taken");
    assert_eq!(theirs.flush(DEADLINE).await, 0);
    open(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statuses_wait_for_a_broker_that_is_not_there_yet() {
    let cluster = cluster(1);
    cluster.broker_down(-1).expect("down");
    let store = KafkaStatusStore::start(settings(&cluster)).expect("settings");
    for generation in 0..5 {
        store
            .put(&key(), status(StatusState::Running, "w", generation))
            .expect("taken");
    }
    assert!(matches!(store.state(), KafkaState::Opening { .. }));
    assert_eq!(store.late().len(), 1);
    cluster.broker_up(-1).expect("up");
    store.ready().await.expect("open");
    assert_eq!(store.flush(DEADLINE).await, 0);
    let counters = store.counters();
    assert_eq!(
        (counters.success, counters.superseded, counters.failure),
        (1, 4, 0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nobody_answers_the_error_says_where() {
    let mut settings = KafkaSettings::new("127.0.0.1:1", TOPIC);
    settings.start_deadline = Duration::from_millis(500);
    let error = KafkaStatusStore::open(settings)
        .await
        .map(|_| ())
        .expect_err("nobody is there");
    let text = error.to_string();
    assert!(text.contains("127.0.0.1:1") && text.contains("500ms"), "{text}");
}

#[tokio::test]
async fn settings_that_no_client_takes_are_named() {
    for (name, value, said) in [
        ("security.protocol", "TLS9", "security.protocol"),
        ("no.such.setting", "1", "no.such.setting"),
    ] {
        let mut settings = KafkaSettings::new("127.0.0.1:1", TOPIC);
        settings.client_settings.insert(name.to_owned(), value.to_owned());
        let error = KafkaStatusStore::start(settings)
            .map(|_| ())
            .expect_err("refused");
        assert!(error.to_string().contains(said), "{error}");
    }
}

/// The codes that the store is promised to retry are what the tests above inject.
#[test]
fn codes_are_those_of_the_protocol() {
    assert_eq!(Code::NotEnoughReplicas as i32, 19);
    assert_eq!(Code::InvalidRecord as i32, 87);
}
