//! What every status store must do: one suite for all of them, for users' own stores too.
//!
//! Each case gets a store that is open and knows nothing. [`run`] runs all of them.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use shardfleet_clock::{Clock, SystemClock, sleep, within};
use shardfleet_core::status::{
    Counters, StatusKey, StatusState, StatusValue, StatusView, TopicStatus, VERSION_PREFIX, WorkStatus,
};

use crate::store::{StatusError, StatusStore};

const PATIENCE: Duration = Duration::from_secs(30);

type Store = Arc<dyn StatusStore>;
type Verdict = Result<(), String>;

/// A case: its name, and what runs it on a fresh store.
pub struct Case {
    /// What must hold.
    pub name: &'static str,
    /// Runs it.
    pub run: fn(Store) -> BoxFuture<'static, Verdict>,
}

/// All cases.
pub const CASES: [Case; 8] = [
    Case {
        name: "what is put is read back",
        run: |store| Box::pin(read_back(store)),
    },
    Case {
        name: "the last status of each key wins",
        run: |store| Box::pin(last_wins(store)),
    },
    Case {
        name: "tombstones delete, a connector's its tasks too",
        run: |store| Box::pin(tombstones(store)),
    },
    Case {
        name: "safe writes give way to another worker of a later life",
        run: |store| Box::pin(safe_writes(store)),
    },
    Case {
        name: "odd names are names",
        run: |store| Box::pin(odd_names(store)),
    },
    Case {
        name: "what no record can say is refused",
        run: |store| Box::pin(std::future::ready(refusals(&*store))),
    },
    Case {
        name: "changes are told",
        run: |store| Box::pin(changes(store)),
    },
    Case {
        name: "a closed store takes nothing in",
        run: |store| Box::pin(closed(store)),
    },
];

/// Runs all cases, each on a store from `open`; the error names the case.
pub async fn run(open: impl AsyncFn(&'static str) -> Store) -> Verdict {
    for case in CASES {
        let store = open(case.name).await;
        let verdict = (case.run)(Arc::clone(&store)).await;
        store.flush(PATIENCE).await;
        let balance = balances(&*store);
        let report = store.close(PATIENCE).await;
        verdict.map_err(|why| format!("{}: {why}", case.name))?;
        balance.map_err(|why| format!("{}: {why}", case.name))?;
        ensure(report.unwritten.is_empty(), || {
            format!("{}: left behind: {:?}", case.name, report.unwritten)
        })?;
    }
    Ok(())
}

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(why()) }
}

fn balances(store: &dyn StatusStore) -> Verdict {
    let Counters {
        accepted,
        success,
        failure,
        superseded,
        dropped,
        ..
    } = store.counters();
    ensure(accepted == success + failure + superseded + dropped, || {
        format!("the books do not balance: {:?}", store.counters())
    })
}

/// Waits until the view shows something.
async fn until(store: &dyn StatusStore, what: &str, holds: impl Fn(&StatusView) -> bool) -> Verdict {
    let clock = SystemClock::new();
    let shown = async {
        while !holds(&store.view()) {
            sleep(&clock as &dyn Clock, Duration::from_millis(2)).await;
        }
    };
    let in_time = within(&clock, PATIENCE, shown).await;
    ensure(in_time.is_some(), || {
        format!("not seen in time: {what}; {:?}", store.view())
    })
}

fn status(state: StatusState, worker: &str, generation: i32) -> WorkStatus {
    WorkStatus {
        state,
        trace: (state == StatusState::Failed).then(|| "out of paper\n\tat the printer".to_owned()),
        worker_id: worker.to_owned(),
        generation,
        version: Some(format!("{VERSION_PREFIX}test")),
    }
}

fn topic(connector: &str, name: &str) -> (StatusKey, StatusValue) {
    let status = TopicStatus {
        topic: name.to_owned(),
        connector: connector.to_owned(),
        task: 2,
        discovered_ms: 1_700_000_000_123,
    };
    (StatusKey::topic(connector, name), status.into())
}

fn put(store: &dyn StatusStore, key: &StatusKey, status: WorkStatus) -> Verdict {
    store.put(key, status.into()).map_err(|error| error.to_string())
}

async fn read_back(store: Store) -> Verdict {
    for (task, state) in (0..).zip(StatusState::ALL) {
        if state != StatusState::Destroyed {
            put(&*store, &StatusKey::task("a", task), status(state, "w", task))?;
        }
    }
    put(
        &*store,
        &StatusKey::connector("a"),
        status(StatusState::Failed, "w", -1),
    )?;
    let (key, value) = topic("a", "orders");
    store
        .put(&key, value.clone())
        .map_err(|error| error.to_string())?;
    let left = store.flush(PATIENCE).await;
    ensure(left == 0, || format!("{left} are not written"))?;
    until(&*store, "all of it", |view| {
        view.tasks_of("a").count() == 6 && view.connector("a").is_some() && view.topics_of("a").count() == 1
    })
    .await?;
    let view = store.view();
    for (task, read) in view.tasks_of("a") {
        let put = status(read.state, "w", task);
        ensure(*read == put, || format!("{put:?} came back as {read:?}"))?;
    }
    ensure(view.get(&key) == Some(value), || format!("{:?}", view.get(&key)))?;
    let counters = store.counters();
    ensure(counters.success == 8 && counters.failure == 0, || {
        format!("{counters:?}")
    })
}

async fn last_wins(store: Store) -> Verdict {
    for generation in 0..200 {
        for task in 0..4 {
            let state = StatusState::ALL[usize::try_from(generation % 3).unwrap_or(0)];
            put(
                &*store,
                &StatusKey::task("a", task),
                status(state, "w", generation),
            )?;
        }
    }
    put(
        &*store,
        &StatusKey::task("a", 3),
        status(StatusState::Failed, "w", 1),
    )?;
    store.flush(PATIENCE).await;
    until(&*store, "the newest of each", |view| {
        let newest = |task, generation| view.task("a", task).is_some_and(|s| s.generation == generation);
        newest(0, 199) && newest(1, 199) && newest(2, 199) && newest(3, 1)
    })
    .await
}

async fn tombstones(store: Store) -> Verdict {
    for connector in ["a", "a-b"] {
        put(
            &*store,
            &StatusKey::connector(connector),
            status(StatusState::Running, "w", 1),
        )?;
        for task in 0..3 {
            put(
                &*store,
                &StatusKey::task(connector, task),
                status(StatusState::Running, "w", 1),
            )?;
        }
        let (key, value) = topic(connector, "orders");
        store.put(&key, value).map_err(|error| error.to_string())?;
    }
    until(&*store, "all of it", |view| {
        view.tasks().count() == 6 && view.topics().count() == 2
    })
    .await?;
    let delete = |key: &StatusKey| store.delete(key).map_err(|error| error.to_string());
    delete(&StatusKey::task("a", 0))?;
    delete(&StatusKey::topic("a", "orders"))?;
    delete(&StatusKey::connector("a-b"))?;
    delete(&StatusKey::task("unknown", 5))?;
    until(&*store, "what is left", |view| {
        let tasks: Vec<_> = view
            .tasks()
            .map(|(connector, task, _)| (connector, task))
            .collect();
        let topics: Vec<_> = view
            .topics()
            .map(|(connector, topic, _)| (connector, topic))
            .collect();
        tasks == [("a", 1), ("a", 2)]
            && topics == [("a-b", "orders")]
            && view.connectors().map(|(name, _)| name).eq(["a"])
    })
    .await?;
    // What was deleted may come back.
    put(
        &*store,
        &StatusKey::task("a", 0),
        status(StatusState::Paused, "w", 2),
    )?;
    until(&*store, "the task again", |view| view.task("a", 0).is_some()).await
}

async fn safe_writes(store: Store) -> Verdict {
    for key in [StatusKey::task("a", 0), StatusKey::connector("a")] {
        for (worker, generation, is_taken) in [
            ("w1", 4, true),
            ("w1", 6, true),
            ("w2", 4, false),
            ("w2", 5, true),
            ("w2", 6, true),
        ] {
            put(&*store, &key, status(StatusState::Running, "w1", 5))?;
            until(&*store, "what is held", |view| {
                view.work(&key)
                    .is_some_and(|s| s.worker_id == "w1" && s.generation == 5)
            })
            .await?;
            let given = status(StatusState::Paused, worker, generation);
            let taken = store
                .put_safe(&key, given.into())
                .map_err(|error| error.to_string())?;
            ensure(taken == is_taken, || {
                format!("{key}: {worker} {generation}: taken {taken}")
            })?;
            store.flush(PATIENCE).await;
            if is_taken {
                until(&*store, "the safe write", |view| {
                    view.work(&key).is_some_and(|s| s.state == StatusState::Paused)
                })
                .await?;
            }
        }
    }
    ensure(store.counters().refused == 2, || {
        format!("{:?}", store.counters())
    })
}

async fn odd_names(store: Store) -> Verdict {
    let long = "n".repeat(1000);
    let names = [
        "a-b--c-",
        "a:b",
        "a/b",
        "..",
        " a b ",
        "é😀",
        "%2F",
        "a\tb",
        "a:connector-b",
        "-0",
        &long,
    ];
    for name in names {
        put(
            &*store,
            &StatusKey::connector(name),
            status(StatusState::Running, "w", 1),
        )?;
        put(
            &*store,
            &StatusKey::task(name, 7),
            status(StatusState::Paused, "w", 1),
        )?;
        let (key, value) = topic(name, "orders");
        store.put(&key, value).map_err(|error| error.to_string())?;
    }
    until(&*store, "all names", |view| {
        names.iter().all(|name| {
            view.connector(name).is_some()
                && view.task(name, 7).is_some()
                && view.topic(name, "orders").is_some()
        })
    })
    .await?;
    ensure(store.view().connectors().count() == names.len(), || {
        format!("{:?}", store.view())
    })
}

fn refusals(store: &dyn StatusStore) -> Verdict {
    let running = || StatusValue::Work(status(StatusState::Running, "w", 1));
    let (topic_key, topic_value) = topic("a", "orders");
    for (key, value) in [
        (StatusKey::connector(""), running()),
        (StatusKey::task("a", -1), running()),
        (StatusKey::topic("a", "x:y"), topic_value.clone()),
        (StatusKey::topic("a", ""), topic_value.clone()),
        (StatusKey::topic("", "orders"), topic_value.clone()),
        (topic_key, running()),
        (StatusKey::task("a", 1), topic_value),
        (
            StatusKey::task("a", 1),
            status(StatusState::Destroyed, "w", 1).into(),
        ),
    ] {
        let refused = store.put(&key, value.clone());
        ensure(refused.is_err(), || format!("{key} took {value:?}"))?;
    }
    ensure(store.counters() == Counters::default(), || {
        format!("{:?}", store.counters())
    })?;
    ensure(*store.view() == StatusView::default(), || {
        format!("{:?}", store.view())
    })
}

async fn changes(store: Store) -> Verdict {
    let mut changes = store.watch();
    let key = StatusKey::task("a", 0);
    put(&*store, &key, status(StatusState::Running, "w", 1))?;
    until(&*store, "the task", |view| view.task("a", 0).is_some()).await?;
    store.delete(&key).map_err(|error| error.to_string())?;
    let clock = SystemClock::new();
    for expected in [Some(status(StatusState::Running, "w", 1).into()), None] {
        let change = within(&clock, PATIENCE, changes.recv()).await;
        let change = change
            .ok_or("no change was told")?
            .map_err(|error| error.to_string())?;
        ensure(change.key == key && change.value == expected, || {
            format!("{change:?}")
        })?;
    }
    Ok(())
}

async fn closed(store: Store) -> Verdict {
    put(
        &*store,
        &StatusKey::task("a", 0),
        status(StatusState::Running, "w", 1),
    )?;
    let report = store.close(PATIENCE).await;
    ensure(report.unwritten.is_empty(), || format!("{report:?}"))?;
    ensure(store.counters().success == 1, || {
        format!("{:?}", store.counters())
    })?;
    let late = store.put(
        &StatusKey::task("a", 0),
        status(StatusState::Failed, "w", 1).into(),
    );
    ensure(matches!(late, Err(StatusError::Closed { .. })), || {
        format!("{late:?}")
    })
}
