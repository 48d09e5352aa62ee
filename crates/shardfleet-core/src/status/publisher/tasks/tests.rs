use super::*;
use crate::status::StatusValue;
use std::time::Duration;

const NEVER: fn(&StatusKey) -> bool = |_| false;

fn key(task: i32) -> StatusKey {
    StatusKey::task("orders", task)
}

fn publisher(worker: &str) -> TaskPublisher {
    TaskPublisher::new(Speaker::new("orders", worker))
}

fn running(taken_at: u64, counter: u64) -> HeldTask {
    HeldTask {
        state: StatusState::Running,
        trace: None,
        taken_at,
        counter,
    }
}

fn held<const N: usize>(tasks: [(i32, HeldTask); N]) -> BTreeMap<i32, HeldTask> {
    BTreeMap::from(tasks)
}

fn at(seconds: u64) -> Moment {
    Moment::default() + Duration::from_secs(seconds)
}

/// What a store does with writes that succeed.
fn land(view: &mut StatusView, writes: Vec<StatusWrite>) -> Vec<(i32, Option<(StatusState, i32)>)> {
    let mut told = Vec::new();
    for write in writes {
        let StatusKey::Task { task, .. } = write.key else {
            panic!("{:?} is no task's", write.key);
        };
        let work = write.value.as_ref().and_then(StatusValue::work);
        told.push((task, work.map(|status| (status.state, status.generation))));
        let is_refused = write.mode == WriteMode::Safe
            && work.is_some_and(|status| !crate::status::may_write(view.work(&write.key), status));
        if !is_refused {
            view.apply(&write.key, write.value);
        }
    }
    told
}

#[test]
fn a_life_is_told_from_its_beginning_to_its_end() {
    let (mut publisher, mut view) = (publisher("w1"), StatusView::default());
    let writes = publisher.observe(at(0), &held([(3, running(7, 7))]), vec![], &view, NEVER);
    assert_eq!(writes[0].mode, WriteMode::Plain);
    assert_eq!(land(&mut view, writes), [(3, Some((StatusState::Running, 7)))]);
    let status = view.task("orders", 3).expect("a status");
    assert_eq!(status.worker_id, "w1");
    assert!(status.is_ours(), "{status:?}");

    // Nothing new, nothing said.
    let writes = publisher.observe(at(100), &held([(3, running(7, 20))]), vec![], &view, NEVER);
    assert_eq!(writes, []);

    let failed = HeldTask {
        state: StatusState::Failed,
        trace: Some("no disk".to_owned()),
        ..running(7, 21)
    };
    let writes = publisher.observe(at(101), &held([(3, failed)]), vec![], &view, NEVER);
    assert_eq!(writes[0].mode, WriteMode::Safe);
    assert_eq!(land(&mut view, writes), [(3, Some((StatusState::Failed, 7)))]);
    assert_eq!(
        view.task("orders", 3).and_then(|status| status.trace.as_deref()),
        Some("no disk")
    );

    let left = TaskEnd::Left {
        trace: None,
        counter: 22,
    };
    let writes = publisher.observe(at(102), &held([]), vec![(3, left)], &view, NEVER);
    assert_eq!(
        land(&mut view, writes),
        [(3, Some((StatusState::Unassigned, 22)))]
    );
    assert_eq!(publisher.observe(at(200), &held([]), vec![], &view, NEVER), []);
}

#[test]
fn an_end_is_ahead_of_the_life_it_ends_even_where_the_counter_stood_still() {
    let (mut publisher, mut view) = (publisher("w1"), StatusView::default());
    let writes = publisher.observe(at(0), &held([(3, running(7, 7))]), vec![], &view, NEVER);
    land(&mut view, writes);
    // The lease was lost, and its task has not ended yet.
    let writes = publisher.observe(at(1), &held([]), vec![], &view, NEVER);
    assert_eq!(land(&mut view, writes), [(3, Some((StatusState::Unassigned, 8)))]);
    // Of its end nothing is left to tell.
    let left = TaskEnd::Left {
        trace: None,
        counter: 9,
    };
    assert_eq!(
        publisher.observe(at(2), &held([]), vec![(3, left)], &view, NEVER),
        []
    );
}

#[test]
fn who_lost_a_lease_says_nothing_over_who_has_it() {
    let mut view = StatusView::default();
    let (mut one, mut other) = (publisher("w1"), publisher("w2"));
    let writes = one.observe(at(0), &held([(3, running(7, 30))]), vec![], &view, NEVER);
    land(&mut view, writes);
    let writes = other.observe(at(20), &held([(3, running(31, 31))]), vec![], &view, NEVER);
    land(&mut view, writes);
    let writes = one.observe(at(21), &held([]), vec![], &view, NEVER);
    land(&mut view, writes);
    let status = view.task("orders", 3).expect("a status");
    assert_eq!(
        (status.state, status.worker_id.as_str()),
        (StatusState::Running, "w2")
    );
}

#[test]
fn a_finished_shard_is_forgotten_and_a_dead_reader_is_a_failure_even_unheard_of() {
    let (mut publisher, mut view) = (publisher("w1"), StatusView::default());
    let writes = publisher.observe(at(0), &held([(3, running(7, 7))]), vec![], &view, NEVER);
    land(&mut view, writes);
    let ends = vec![
        (3, TaskEnd::Finished),
        (
            4,
            TaskEnd::Failed {
                trace: "it panicked".to_owned(),
                counter: 2,
            },
        ),
        (
            5,
            TaskEnd::Left {
                trace: None,
                counter: 2,
            },
        ),
    ];
    let writes = publisher.observe(at(1), &held([]), ends, &view, NEVER);
    assert_eq!(
        land(&mut view, writes),
        [(3, None), (4, Some((StatusState::Failed, 2)))]
    );
    assert_eq!(view.task("orders", 3), None);
}

#[test]
fn a_shard_that_was_taken_anew_is_in_its_next_life() {
    let (mut publisher, mut view) = (publisher("w1"), StatusView::default());
    let writes = publisher.observe(at(0), &held([(3, running(7, 7))]), vec![], &view, NEVER);
    land(&mut view, writes);
    let left = TaskEnd::Left {
        trace: None,
        counter: 9,
    };
    let writes = publisher.observe(
        at(1),
        &held([(3, running(10, 10))]),
        vec![(3, left)],
        &view,
        NEVER,
    );
    assert_eq!(writes[0].mode, WriteMode::Plain);
    assert_eq!(land(&mut view, writes), [(3, Some((StatusState::Running, 10)))]);
}

#[test]
fn a_table_that_was_made_anew_is_ahead_of_what_the_topic_remembers() {
    let mut view = StatusView::default();
    let old = Speaker::new("orders", "gone").status(StatusState::Running, None, 900);
    view.apply(&key(3), Some(old.into()));
    let mut publisher = publisher("w1");
    let writes = publisher.observe(at(0), &held([(3, running(1, 1))]), vec![], &view, NEVER);
    assert_eq!(land(&mut view, writes), [(3, Some((StatusState::Running, 901)))]);
    // It stays so for this life.
    let failed = HeldTask {
        state: StatusState::Failed,
        ..running(1, 2)
    };
    let writes = publisher.observe(at(1), &held([(3, failed)]), vec![], &view, NEVER);
    assert_eq!(land(&mut view, writes), [(3, Some((StatusState::Failed, 901)))]);
    // And at the end of the range, too, where no generation is higher.
    let old = Speaker::new("orders", "gone").status(StatusState::Running, None, i32::MAX);
    view.apply(&key(3), Some(old.into()));
    let writes = publisher.observe(at(20), &held([(3, running(1, 2))]), vec![], &view, NEVER);
    assert_eq!(
        land(&mut view, writes),
        [(3, Some((StatusState::Running, i32::MAX)))]
    );
}

#[test]
fn what_the_store_lost_is_said_again_and_ever_more_seldom() {
    let (mut publisher, view) = (publisher("w1"), StatusView::default());
    let shards = held([(3, running(7, 7))]);
    let mut said = Vec::new();
    for second in 0..400 {
        // A store that takes everything in and never shows it.
        if !publisher
            .observe(at(second), &shards, vec![], &view, NEVER)
            .is_empty()
        {
            said.push(second);
        }
    }
    assert_eq!(said, [0, 5, 15, 35, 75, 135, 195, 255, 315, 375]);
    // While it is under way nothing is said.
    for second in 400..800 {
        let writes = publisher.observe(at(second), &shards, vec![], &view, |_| true);
        assert_eq!(writes, [], "{second}");
    }
    // News is never held back.
    let failed = held([(
        3,
        HeldTask {
            state: StatusState::Failed,
            ..running(7, 8)
        },
    )]);
    let writes = publisher.observe(at(800), &failed, vec![], &view, |_| true);
    assert_eq!(writes.len(), 1);
}

#[test]
fn a_leader_that_took_us_for_dead_is_contradicted() {
    let (mut publisher, mut view) = (publisher("w1"), StatusView::default());
    let shards = held([(3, running(7, 7))]);
    let writes = publisher.observe(at(0), &shards, vec![], &view, NEVER);
    land(&mut view, writes);
    assert_eq!(publisher.observe(at(5), &shards, vec![], &view, NEVER), []);
    let dead = Speaker::new("orders", "leader").status(StatusState::Unassigned, None, 12);
    view.apply(&key(3), Some(dead.into()));
    let writes = publisher.observe(at(6), &shards, vec![], &view, NEVER);
    assert_eq!(land(&mut view, writes), [(3, Some((StatusState::Running, 13)))]);
    assert_eq!(
        view.task("orders", 3).map(|status| status.state),
        Some(StatusState::Running)
    );
}

#[test]
fn a_task_that_is_stopped_is_none_until_it_runs_again() {
    let (mut publisher, mut view) = (publisher("w1"), StatusView::default());
    let in_state = |state| {
        held([(
            3,
            HeldTask {
                state,
                ..running(7, 8)
            },
        )])
    };
    let writes = publisher.observe(at(0), &in_state(StatusState::Paused), vec![], &view, NEVER);
    assert_eq!(land(&mut view, writes), [(3, Some((StatusState::Paused, 7)))]);
    let writes = publisher.observe(at(1), &in_state(StatusState::Stopped), vec![], &view, NEVER);
    assert_eq!(land(&mut view, writes), [(3, None)]);
    // Nothing is insisted on, and a release is no news either.
    let writes = publisher.observe(at(100), &in_state(StatusState::Stopped), vec![], &view, NEVER);
    assert_eq!(writes, []);
    let writes = publisher.observe(at(101), &in_state(StatusState::Running), vec![], &view, NEVER);
    assert_eq!(land(&mut view, writes), [(3, Some((StatusState::Running, 7)))]);
    let writes = publisher.observe(at(102), &in_state(StatusState::Stopped), vec![], &view, NEVER);
    land(&mut view, writes);
    let left = TaskEnd::Left {
        trace: None,
        counter: 9,
    };
    let writes = publisher.observe(at(103), &held([]), vec![(3, left)], &view, NEVER);
    assert_eq!(writes, []);
}

#[test]
fn a_restart_is_told_although_the_next_life_has_begun() {
    let (mut publisher, mut view) = (publisher("w1"), StatusView::default());
    let failed = HeldTask {
        state: StatusState::Failed,
        trace: Some("no more".to_owned()),
        ..running(7, 8)
    };
    let writes = publisher.observe(at(0), &held([(3, failed)]), vec![], &view, NEVER);
    land(&mut view, writes);
    let restarted = vec![(3, TaskEnd::Restarting)];
    let writes = publisher.observe(at(1), &held([(3, running(7, 9))]), restarted, &view, NEVER);
    let trace = writes[0].value.as_ref().and_then(StatusValue::work);
    assert_eq!(trace.and_then(|status| status.trace.as_deref()), Some("no more"));
    assert_eq!(
        land(&mut view, writes),
        [
            (3, Some((StatusState::Restarting, 7))),
            (3, Some((StatusState::Running, 7)))
        ]
    );
    // Of a task that was not told of there is nothing to tell.
    let restarted = vec![(4, TaskEnd::Restarting)];
    let writes = publisher.observe(at(2), &held([(3, running(7, 9))]), restarted, &view, NEVER);
    assert_eq!(writes, []);
}
