use super::*;
use crate::ids::WorkerId;
use crate::sequence::ExtendedSequenceNumber;

struct Fleet {
    leases: BTreeMap<LeaseKey, Lease>,
    view: StatusView,
    own: BTreeSet<i32>,
    expired: bool,
    /// The second of the last look at the table, where it was before now.
    scanned: Option<u64>,
    application: ApplicationState,
}

impl Fleet {
    fn new() -> Self {
        Self {
            leases: BTreeMap::new(),
            view: StatusView::default(),
            own: BTreeSet::new(),
            expired: false,
            scanned: None,
            application: ApplicationState {
                state: StatusState::Running,
                trace: None,
            },
        }
    }

    fn with_lease(mut self, task: i32, owner: Option<&str>, counter: u64) -> Self {
        self.set(task, owner, counter);
        self
    }

    fn set(&mut self, task: i32, owner: Option<&str>, counter: u64) {
        let key = format!("shardId-{task:012}");
        let mut lease = Lease::new(key.as_str(), ExtendedSequenceNumber::TrimHorizon);
        lease.owner = owner.map(WorkerId::new);
        lease.counter = counter;
        self.leases.insert(lease.lease_key.clone(), lease);
    }

    fn finish(&mut self, task: i32) {
        for lease in self.leases.values_mut() {
            if task_number(&lease.lease_key.shard_id()) == Some(task) {
                lease.checkpoint = ExtendedSequenceNumber::ShardEnd;
            }
        }
    }

    fn says(&mut self, task: i32, worker: &str, state: StatusState, generation: i32) {
        let status = Speaker::new("orders", worker).status(state, None, generation);
        self.view
            .apply(&StatusKey::task("orders", task), Some(status.into()));
    }

    /// Lets the leader look; what it writes lands.
    fn look(&mut self, leader: &mut FleetPublisher, second: u64) -> Vec<StatusWrite> {
        let sight = FleetSight {
            now: Moment::default() + Duration::from_secs(second),
            wall: Timestamp::from_millis(1_700_000_000_000),
            application: &self.application,
            stream: "clicks",
            leases: &self.leases,
            scanned: Moment::default() + Duration::from_secs(self.scanned.unwrap_or(second)),
            is_expired: &|_| self.expired,
            own: &self.own,
            view: &self.view,
            is_pending: &|_| false,
        };
        let writes = leader.observe(&sight);
        for write in &writes {
            self.view.apply(&write.key, write.value.clone());
        }
        writes
    }

    fn shown(&self, task: i32) -> Option<(StatusState, &str, i32)> {
        let status = self.view.task("orders", task)?;
        Some((status.state, status.worker_id.as_str(), status.generation))
    }
}

fn leader() -> FleetPublisher {
    FleetPublisher::new(Speaker::new("orders", "lead"))
}

#[test]
fn the_application_and_its_stream_are_said_once() {
    let (mut fleet, mut leader) = (Fleet::new(), leader());
    let writes = fleet.look(&mut leader, 0);
    assert_eq!(writes.len(), 2, "{writes:?}");
    let status = fleet.view.connector("orders").expect("the application");
    assert_eq!((status.state, status.generation), (StatusState::Running, 1));
    let topic = fleet.view.topic("orders", "clicks").expect("the stream");
    assert_eq!(topic.discovered_ms, 1_700_000_000_000);
    for second in 1..100 {
        assert_eq!(fleet.look(&mut leader, second), []);
    }
    // The next leader is a later life.
    let mut next = FleetPublisher::new(Speaker::new("orders", "next"));
    assert_eq!(fleet.look(&mut next, 100).len(), 1);
    let status = fleet.view.connector("orders").expect("the application");
    assert_eq!((status.worker_id.as_str(), status.generation), ("next", 2));
    // Who left has nothing to say any more, and the last one says that nobody runs it.
    assert_eq!(leader.leave(&fleet.view, None), None);
    let write = next.leave(&fleet.view, None).expect("a last word");
    fleet.view.apply(&write.key, write.value);
    let status = fleet.view.connector("orders").expect("the application");
    assert_eq!((status.state, status.generation), (StatusState::Unassigned, 2));
    assert_eq!(next.leave(&fleet.view, None), None);
    let write = next
        .leave(&fleet.view, Some("no rights".to_owned()))
        .expect("a last word");
    let work = write
        .value
        .as_ref()
        .and_then(StatusValue::work)
        .expect("a status");
    assert_eq!(
        (work.state, work.trace.as_deref()),
        (StatusState::Failed, Some("no rights"))
    );
}

#[test]
fn an_application_that_fails_says_why() {
    let (mut fleet, mut leader) = (Fleet::new(), leader());
    fleet.look(&mut leader, 0);
    fleet.application = ApplicationState {
        state: StatusState::Failed,
        trace: Some("another stream".to_owned()),
    };
    fleet.look(&mut leader, 10);
    let status = fleet.view.connector("orders").expect("the application");
    assert_eq!(status.trace.as_deref(), Some("another stream"));
    assert_eq!((status.state, status.generation), (StatusState::Failed, 1));
}

#[test]
fn the_tasks_of_a_dead_worker_are_nobodys_at_once() {
    let (mut fleet, mut leader) = (Fleet::new().with_lease(3, Some("dead"), 40), leader());
    fleet.says(3, "dead", StatusState::Running, 7);
    fleet.look(&mut leader, 0);
    assert_eq!(fleet.shown(3), Some((StatusState::Running, "dead", 7)));
    fleet.expired = true;
    fleet.look(&mut leader, 1);
    assert_eq!(fleet.shown(3), Some((StatusState::Unassigned, "lead", 40)));
    // It comes back, and its lease was never taken: its own word counts again, and stays.
    fleet.expired = false;
    fleet.says(3, "dead", StatusState::Running, 41);
    for second in 2..100 {
        fleet.look(&mut leader, second);
    }
    assert_eq!(fleet.shown(3), Some((StatusState::Running, "dead", 41)));
}

#[test]
fn each_live_shard_has_a_status_whoever_reads_it() {
    let fleet = Fleet::new().with_lease(0, None, 0).with_lease(1, Some("java"), 5);
    let (mut fleet, mut leader) = (fleet.with_lease(2, Some("lead"), 9), leader());
    fleet.own = BTreeSet::from([2]);
    for second in 0..=10 {
        fleet.look(&mut leader, second);
        assert_eq!(fleet.shown(0).is_some(), second >= 2, "{second}");
        assert_eq!(fleet.shown(1).is_some(), second >= 10, "{second}");
    }
    assert_eq!(fleet.shown(0), Some((StatusState::Unassigned, "lead", 0)));
    // A worker that never speaks is spoken for.
    assert_eq!(fleet.shown(1), Some((StatusState::Running, "java", 5)));
    // Of its own shards the worker speaks itself.
    assert_eq!(fleet.shown(2), None);
    fleet.set(1, Some("python"), 9);
    for second in 11..=21 {
        fleet.look(&mut leader, second);
    }
    assert_eq!(fleet.shown(1), Some((StatusState::Running, "python", 9)));
}

#[test]
fn a_table_that_was_not_looked_at_again_proves_nothing() {
    let (mut fleet, mut leader) = (Fleet::new().with_lease(3, Some("w1"), 40), leader());
    fleet.says(3, "w2", StatusState::Running, 41);
    fleet.scanned = Some(0);
    for second in 0..100 {
        fleet.look(&mut leader, second);
    }
    fleet.set(3, Some("w2"), 41);
    fleet.scanned = Some(100);
    fleet.look(&mut leader, 100);
    assert_eq!(fleet.shown(3), Some((StatusState::Running, "w2", 41)));
}

#[test]
fn what_a_worker_of_ours_says_is_left_alone() {
    let (mut fleet, mut leader) = (Fleet::new().with_lease(3, Some("w2"), 40), leader());
    for state in [
        StatusState::Running,
        StatusState::Failed,
        StatusState::Paused,
        StatusState::Restarting,
    ] {
        fleet.says(3, "w2", state, 7);
        for second in 0..100 {
            fleet.look(&mut leader, second);
        }
        assert_eq!(fleet.shown(3), Some((state, "w2", 7)));
    }
}

#[test]
fn statuses_without_a_shard_are_deleted_and_not_too_soon() {
    let (mut fleet, mut leader) = (Fleet::new().with_lease(3, Some("w2"), 40), leader());
    fleet.says(3, "w2", StatusState::Running, 7);
    fleet.says(4, "w2", StatusState::Running, 7);
    fleet.finish(3);
    for second in 0..=30 {
        fleet.look(&mut leader, second);
        assert_eq!(fleet.shown(3).is_none(), second >= 10, "{second}");
        assert_eq!(fleet.shown(4).is_none(), second >= 30, "{second}");
    }
    assert_eq!(fleet.look(&mut leader, 100), []);
}

#[test]
fn task_numbers_end_where_connects_end() {
    let number = |id: &str| task_number(&LeaseKey::from(id).shard_id());
    assert_eq!(number("shardId-000000000012"), Some(12));
    assert_eq!(number("1234:clicks:1700000000:shardId-000000000007"), Some(7));
    assert_eq!(number("shardId-002147483647"), Some(i32::MAX));
    assert_eq!(number("shardId-002147483648"), None);
    assert_eq!(number("shard"), None);
    assert_eq!(number(""), None);
}

#[test]
fn a_shard_that_is_stopped_has_no_status_whoever_left_it() {
    let mut fleet = Fleet::new().with_lease(1, Some("java"), 5);
    fleet.says(1, "java", StatusState::Running, 5);
    for lease in fleet.leases.values_mut() {
        lease.control = Some(crate::lease::Control {
            target: TargetState::Stopped,
            restarts: 0,
        });
    }
    let mut leader = FleetPublisher::new(Speaker::new("orders", "w1"));
    fleet.look(&mut leader, 0);
    assert!(fleet.view.task("orders", 1).is_some(), "its holder speaks first");
    fleet.look(&mut leader, 11);
    assert!(fleet.view.task("orders", 1).is_none());
}

#[test]
fn an_application_that_changes_is_told_of_at_once_each_time() {
    let mut fleet = Fleet::new();
    let mut leader = FleetPublisher::new(Speaker::new("orders", "w1"));
    let states = [StatusState::Running, StatusState::Paused, StatusState::Stopped];
    for (second, state) in states.iter().cycle().take(12).enumerate() {
        fleet.application.state = *state;
        fleet.look(&mut leader, u64::try_from(second).expect("small"));
        let shown = fleet.view.connector("orders").map(|status| status.state);
        assert_eq!(shown, Some(*state), "at {second} s");
    }
}
