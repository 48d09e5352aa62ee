//! Topics that are not as they should be, rights, and a live Connect cluster.

use serde_json::json;
use shardfleet_status::{KafkaSettings, StatusKey, StatusState, StatusStore};

use crate::peer::Connect;
use crate::reading::states_in_log;
use crate::{Lab, Verdict, ensure, flushed, open, put, status};

async fn refusal(settings: KafkaSettings) -> Result<String, String> {
    match open(settings).await {
        Ok(_) => Err("it was opened".to_owned()),
        Err(why) => Ok(why),
    }
}

async fn refused(settings: KafkaSettings, said: &[&str]) -> Result<(), String> {
    let why = refusal(settings).await?;
    ensure(said.iter().all(|words| why.contains(words)), || {
        format!("{said:?} is missing in: {why}")
    })
}

/// The topic is created as it should be, and one that is not is refused. Stock Connect takes retry properties for settings of the topic and does not start.
pub(crate) async fn topic_policy(lab: &Lab) -> Verdict {
    let properties = format!(
        "bootstrap.servers={}\nstatus.storage.topic=made\nstatus.storage.replication.factor=-1\nstatus.storage.segment.ms=1000\n\
         status.storage.cleanup.policy=delete\nstatus.storage.retry.max.retries=7\n",
        lab.broker.bootstrap
    );
    let settings = KafkaSettings::from_properties(&properties).map_err(|error| error.to_string())?;
    ensure(settings.retry.max_retries == 7, || format!("{settings:?}"))?;
    open(settings).await?;
    let described = lab.broker.judge(&["topic", "describe"], "made", &[], "")?;
    ensure(
        described.contains("compact") && described.contains("1000"),
        || described.clone(),
    )?;
    for (topic, policy) in [("deleted", "delete"), ("both", "compact,delete")] {
        let policy_setting = format!("cleanup.policy={policy}");
        lab.broker
            .judge(&["topic", "create"], topic, &["--config", &policy_setting], "")?;
        refused(
            lab.settings(topic),
            &["cleanup.policy is", policy, "kafka-configs"],
        )
        .await?;
    }
    let mut unknown = lab.settings("unknown");
    unknown
        .topic_settings
        .insert("no.such.setting".into(), "1".into());
    refused(unknown, &["status.storage.no.such.setting=1"]).await?;
    let mut replicas = lab.settings("replicas");
    replicas.replication_factor = 3;
    replicas.start_deadline = std::time::Duration::from_secs(3);
    refused(replicas, &["status.storage.replication.factor is 3", "-1"]).await?;
    Ok("created compacted with segment.ms of its own; delete, compact,delete, an unknown setting and too many replicas are refused in words".to_owned())
}

fn alice(lab: &Lab, password: &str) -> Result<KafkaSettings, String> {
    let mut settings = lab.settings("st");
    settings.bootstrap_servers = lab.broker.listener("sasl")?;
    for (name, value) in [
        ("security.protocol", "SASL_PLAINTEXT"),
        ("sasl.mechanism", "PLAIN"),
        ("sasl.username", "alice"),
        ("sasl.password", password),
    ] {
        settings.client_settings.insert(name.to_owned(), value.to_owned());
    }
    Ok(settings)
}

pub(crate) async fn rights(lab: &Lab) -> Verdict {
    refused(alice(lab, "wrong")?, &["Authentication"]).await?;
    lab.broker.create("st", &["--partitions", "2"])?;
    refused(alice(lab, "alice-secret")?, &["READ and WRITE"]).await?;
    let grant = |operation: &str| {
        let arguments = ["--user", "alice", "--operation", operation];
        lab.broker
            .judge(&["acl", "grant"], "st", &arguments, "")
            .map(|_| ())
    };
    grant("read")?;
    let store = open(alice(lab, "alice-secret")?).await?;
    put(
        &store,
        &StatusKey::task("orders", 0),
        status(StatusState::Running, "w", 1),
    )?;
    flushed(&store).await?;
    let counters = store.counters();
    ensure(counters.failure == 1 && counters.retry == 0, || {
        format!("{counters:?}")
    })?;
    grant("write")?;
    let store = open(alice(lab, "alice-secret")?).await?;
    put(
        &store,
        &StatusKey::task("orders", 0),
        status(StatusState::Running, "w", 1),
    )?;
    flushed(&store).await?;
    ensure(store.counters().success == 1, || {
        format!("{:?}", store.counters())
    })?;
    Ok("a wrong password and missing rights are named at the start; without WRITE a status fails at once, with it it is written".to_owned())
}

pub(crate) async fn tls(lab: &Lab) -> Verdict {
    let mut settings = lab.settings("st");
    settings.bootstrap_servers = lab.broker.listener("tls")?;
    for (name, value) in [
        ("security.protocol", "SSL".to_owned()),
        ("ssl.ca.location", lab.broker.file("tls/ca.pem")),
    ] {
        settings.client_settings.insert(name.to_owned(), value);
    }
    let store = open(settings).await?;
    put(
        &store,
        &StatusKey::task("orders", 0),
        status(StatusState::Running, "w", 1),
    )?;
    flushed(&store).await?;
    let states = states_in_log(lab, "st", "status-task-orders-0")?;
    ensure(states == ["RUNNING"], || format!("{states:?}"))?;
    Ok("written through TLS".to_owned())
}

/// A live Connect cluster's own topic is refused.
pub(crate) async fn live_connect(lab: &Lab) -> Verdict {
    let connect = Connect::start(&lab.folder.join("connect"), &lab.broker.bootstrap)?;
    // The worker is there; a status of its kind stands for a connector's.
    let running = json!({"op": "put", "kind": "connector", "name": "theirs", "state": "RUNNING", "worker_id": "127.0.0.1:8083", "generation": 1});
    lab.broker
        .judge(&["write"], "connect-cluster-status", &[], &format!("{running}\n"))?;
    let settings = lab.settings("connect-cluster-status");
    refused(settings.clone(), &["status-connector-theirs", "topic"]).await?;
    let shared = KafkaSettings {
        is_shared: true,
        ..settings
    };
    let store = open(shared).await?;
    ensure(store.view().connector("theirs").is_some(), || {
        format!("{:?}", store.view())
    })?;
    drop(connect);
    Ok("refused by the name of what is there; read where it was to be shared".to_owned())
}
