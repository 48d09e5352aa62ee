//! Brokers that go away, stall, or have no replicas: what stock Connect gets wrong there comes out right, in every round.

use std::time::Duration;

use shardfleet_status::{KafkaStatusStore, RetrySettings, StatusKey, StatusState, StatusStore};

use crate::peer::{Broker, Watch};
use crate::reading::states_in_log;
use crate::{Lab, PATIENCE, Verdict, ensure, flushed, impatient, open, pause, put, status, until};

const KEY: &str = "status-task-orders-0";

fn key() -> StatusKey {
    StatusKey::task("orders", 0)
}

/// Puts a status four times a second for each of eight keys, so long; the longest that a put took.
async fn chatter(store: &KafkaStatusStore, time: Duration) -> Result<(Duration, i32), String> {
    let (watch, mut longest, mut generation) = (Watch::start(), Duration::ZERO, 0);
    while watch.time() < time {
        generation += 1;
        for task in 0..8 {
            let call = Watch::start();
            put(
                store,
                &StatusKey::task("orders", task),
                status(StatusState::Running, "w", generation),
            )?;
            longest = longest.max(call.time());
        }
        pause(Duration::from_millis(250)).await;
    }
    Ok((longest, generation))
}

/// The broker is away for less than the retries last: the newest status of each key arrives.
pub(crate) async fn within_window(lab: &Lab) -> Verdict {
    let store = open(impatient(lab.settings("st"))).await?;
    chatter(&store, Duration::from_secs(1)).await?;
    flushed(&store).await?;
    lab.broker.tell("kill")?;
    let (longest, generation) = chatter(&store, Duration::from_secs(8)).await?;
    let late = store.late().len();
    ensure(late == 8, || format!("{late} keys are late: {:?}", store.late()))?;
    lab.broker.tell("start")?;
    let watch = Watch::start();
    flushed(&store).await?;
    let caught_up = watch.time();
    until("the newest of each", || {
        store
            .view()
            .tasks_of("orders")
            .filter(|(_, s)| s.generation == generation)
            .count()
            == 8
    })
    .await?;
    let counters = store.counters();
    ensure(
        counters.failure == 0 && counters.success + counters.superseded == counters.accepted,
        || format!("{counters:?}"),
    )?;
    let states = states_in_log(lab, "st", KEY)?;
    Ok(format!(
        "{} statuses while the broker was away for 8 s: the longest put took {longest:.1?}, {} keys were late, all written {caught_up:.1?} after its return ({} retries, {} superseded, {} records of the first key)",
        counters.accepted,
        late,
        counters.retry,
        counters.superseded,
        states.len()
    ))
}

/// KIP-1278's failure criterion: beyond the window failures are logged and counted, and nothing hangs.
pub(crate) async fn beyond_window(lab: &Lab) -> Verdict {
    let mut settings = impatient(lab.settings("st"));
    settings.retry = RetrySettings {
        max_retries: 2,
        initial_backoff_ms: 100,
        ..RetrySettings::default()
    };
    let store = open(settings).await?;
    put(&store, &key(), status(StatusState::Running, "w", 1))?;
    flushed(&store).await?;
    lab.broker.tell("stop")?;
    let (longest, _) = chatter(&store, Duration::from_secs(1)).await?;
    let watch = Watch::start();
    flushed(&store).await?;
    let given_up = watch.time();
    let counters = store.counters();
    ensure(counters.failure == 8, || format!("{counters:?}"))?;
    lab.broker.tell("start")?;
    put(&store, &key(), status(StatusState::Failed, "w", 99))?;
    flushed(&store).await?;
    let counters = store.counters();
    ensure(
        counters.success + counters.failure + counters.superseded == counters.accepted,
        || format!("{counters:?}"),
    )?;
    Ok(format!(
        "8 failures after {given_up:.1?} and {} retries; the longest put took {longest:.1?}; the next status was written after the return",
        counters.retry
    ))
}

/// An older status, then a newer one, around a failure: the newer has the last word in every round.
async fn rounds(
    lab: &Lab,
    count: i32,
    fail: impl AsyncFn(bool) -> Result<(), String>,
) -> Result<Vec<usize>, String> {
    let store = open(impatient(lab.settings("st"))).await?;
    let mut lengths = Vec::new();
    for round in 0..count {
        let key = StatusKey::task("orders", round);
        put(&store, &key, status(StatusState::Unassigned, "w", 1))?;
        flushed(&store).await?;
        fail(true).await?;
        put(&store, &key, status(StatusState::Running, "w", 2))?;
        pause(Duration::from_millis(500)).await;
        put(&store, &key, status(StatusState::Failed, "w", 2))?;
        pause(Duration::from_secs(6)).await;
        fail(false).await?;
        flushed(&store).await?;
        // A request in the broker's buffers may land after all, and is written over then.
        pause(Duration::from_secs(2)).await;
        let states = states_in_log(lab, "st", &key.to_string())?;
        ensure(states.last().is_some_and(|state| state == "FAILED"), || {
            format!("round {round}: {states:?}")
        })?;
        lengths.push(states.len());
    }
    Ok(lengths)
}

/// The broker stalls with its connections open. Stock Connect leaves the old status for good in 2 of 10 rounds.
pub(crate) async fn stall(lab: &Lab) -> Verdict {
    let lengths = rounds(lab, 5, async |is_failing| {
        lab.broker
            .tell(if is_failing { "pause" } else { "resume" })
            .map(|_| ())
    })
    .await?;
    Ok(format!(
        "FAILED is the last of the records in 5 of 5 rounds, of {lengths:?} records each"
    ))
}

/// The second replica is away, and every write is refused at once. Stock Connect asks 130 times a second and leaves the old status in 3 of 5 rounds.
pub(crate) async fn no_replicas(lab: &Lab) -> Verdict {
    let first = lab.folder.join("broker").display().to_string();
    let second = Broker::start(&lab.folder.join("second"), &["--join", &first])?;
    let replicas = [
        "--partitions",
        "1",
        "--replication",
        "2",
        "--config",
        "min.insync.replicas=2",
    ];
    lab.broker.create("st", &replicas)?;
    let lengths = rounds(lab, 3, async |is_failing| {
        second.tell(if is_failing { "stop" } else { "start" }).map(|_| ())
    })
    .await?;
    // How often a broker that refuses is asked.
    let mut settings = lab.settings("st");
    settings.retry.max_retries = 2_147_483_647;
    let store = open(settings).await?;
    second.tell("stop")?;
    let watch = Watch::start();
    for task in 0..8 {
        put(
            &store,
            &StatusKey::task("orders", 100 + task),
            status(StatusState::Running, "w", 1),
        )?;
    }
    pause(Duration::from_secs(10)).await;
    let (time, asked) = (watch.time(), store.counters().retry);
    // 300, 600, 1200, 2400 and 4800 ms after each other, at most.
    ensure((8..=8 * 6).contains(&asked), || {
        format!("asked again {asked} times in {time:?}")
    })?;
    second.tell("start")?;
    flushed(&store).await?;
    ensure(store.counters().failure == 0, || {
        format!("{:?}", store.counters())
    })?;
    Ok(format!(
        "FAILED is the last of the records in 3 of 3 rounds, of {lengths:?} records each; a broker that refuses 8 keys for {time:.0?} was asked again {asked} times"
    ))
}

/// A stop while the broker is away names what it could not write. Stock Connect says nothing.
pub(crate) async fn stop_in_outage(lab: &Lab) -> Verdict {
    let store = open(impatient(lab.settings("st"))).await?;
    put(&store, &key(), status(StatusState::Running, "w", 1))?;
    flushed(&store).await?;
    lab.broker.tell("kill")?;
    put(&store, &key(), status(StatusState::Unassigned, "w", 2))?;
    let watch = Watch::start();
    let report = store.close(Duration::from_secs(3)).await;
    let time = watch.time();
    ensure(
        report.unwritten.len() == 1 && report.unwritten[0].key == key(),
        || format!("{report:?}"),
    )?;
    ensure(time < Duration::from_secs(4), || format!("{time:?}"))?;
    Ok(format!(
        "the stop took {time:.1?} of 3 s and named {}",
        report.unwritten[0].key
    ))
}

/// Statuses wait for a broker that is not there when the worker starts.
pub(crate) async fn start_without_broker(lab: &Lab) -> Verdict {
    lab.broker.tell("stop")?;
    let store = KafkaStatusStore::start(lab.settings("st")).map_err(|error| error.to_string())?;
    let (longest, generation) = chatter(&store, Duration::from_secs(3)).await?;
    lab.broker.tell("start")?;
    let watch = Watch::start();
    flushed(&store).await?;
    let time = watch.time();
    until("the newest of each", || {
        store
            .view()
            .tasks_of("orders")
            .filter(|(_, s)| s.generation == generation)
            .count()
            == 8
    })
    .await?;
    ensure(time < PATIENCE, || format!("{time:?}"))?;
    Ok(format!(
        "the longest put took {longest:.1?}; all written {time:.1?} after the broker came"
    ))
}
