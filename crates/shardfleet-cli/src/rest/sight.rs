//! What the REST interface shows: the statuses, and where the store does not know of a shard, the lease rows.

use std::collections::{BTreeMap, BTreeSet};

use shardfleet::core::lease::common_of;
use shardfleet::core::status::publisher::task_number;
use shardfleet::core::status::{StatusState, WorkStatus};
use shardfleet::core::watchdog::Standstill;
use shardfleet::{
    ExtendedSequenceNumber, FleetShard, FleetStatus, SubscriptionHandle, TargetState, WorkerId,
};

use super::Shown;

/// Everything that an answer may tell.
#[derive(Clone, Debug)]
pub(super) struct Sight {
    pub(super) name: String,
    pub(super) stream: String,
    pub(super) version: String,
    pub(super) connector: Work,
    /// By number.
    pub(super) tasks: Vec<TaskSight>,
    pub(super) streams: Vec<String>,
    pub(super) health: Health,
    pub(super) health_message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Starting,
    Healthy,
    Unhealthy,
}

#[derive(Clone, Debug)]
pub(super) struct TaskSight {
    pub(super) id: i32,
    /// Not known of a task whose lease this worker has not seen yet.
    pub(super) shard_id: Option<String>,
    pub(super) checkpoint: Option<String>,
    pub(super) work: Work,
}

#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) state: StatusState,
    pub(super) worker_id: String,
    pub(super) version: Option<String>,
    pub(super) trace: Option<String>,
}

impl From<&WorkStatus> for Work {
    fn from(status: &WorkStatus) -> Self {
        Self {
            state: status.state,
            worker_id: status.worker_id.clone(),
            version: status.version.clone(),
            trace: status.trace.clone(),
        }
    }
}

impl Sight {
    /// Of a worker that is not open yet.
    pub(super) fn starting(shown: &Shown) -> Self {
        Self {
            name: shown.application.clone(),
            stream: shown.stream.clone(),
            version: version(),
            connector: Work {
                state: StatusState::Unassigned,
                worker_id: String::new(),
                version: None,
                trace: None,
            },
            tasks: Vec::new(),
            streams: Vec::new(),
            health: Health::Starting,
            health_message: "The worker is looking at its lease store and its stream, and reads soon."
                .to_owned(),
        }
    }

    /// Of a worker that reads.
    pub(super) fn of(shown: &Shown, handle: &SubscriptionHandle) -> Self {
        let (view, fleet) = (handle.statuses(), handle.fleet());
        let me = handle.worker_id();
        // A store in memory knows what this worker does; of the others the lease rows know more.
        let held: BTreeSet<i32> = handle.status().keys().filter_map(task_number).collect();
        let is_believed = |id: i32| shown.shares_statuses || held.contains(&id);
        let is_blind = fleet
            .store_unreachable_for
            .is_some_and(|time| time > handle.failover_time());
        let name = shown.application.as_str();
        let mut tasks: BTreeMap<i32, TaskSight> = BTreeMap::new();
        for shard in &fleet.shards {
            let Some(id) = task_number(&shard.shard_id) else {
                continue;
            };
            if shard.checkpoint == ExtendedSequenceNumber::ShardEnd {
                continue;
            }
            let said = view.task(name, id).filter(|_| is_believed(id));
            // One that was stopped is a task until it has ended.
            if let Some(work) = said.map(Work::from).or_else(|| derived(shard, &me, is_blind)) {
                let task = TaskSight {
                    id,
                    shard_id: Some(shard.shard_id.to_string()),
                    checkpoint: Some(shard.checkpoint.to_string()),
                    work,
                };
                tasks.insert(id, task);
            }
        }
        for (id, status) in view.tasks_of(name) {
            if is_believed(id) && !is_over(&fleet, id) {
                tasks.entry(id).or_insert_with(|| TaskSight {
                    id,
                    shard_id: None,
                    checkpoint: None,
                    work: Work::from(status),
                });
            }
        }
        let said = view
            .connector(name)
            .filter(|_| shown.shares_statuses || fleet.is_leader);
        let leader = fleet.leader.as_ref().unwrap_or(&me).to_string();
        let health_message = health_message(&fleet);
        Self {
            name: name.to_owned(),
            stream: shown.stream.clone(),
            version: version(),
            connector: said.map_or_else(
                || Work {
                    state: common_state(&fleet),
                    worker_id: leader,
                    version: None,
                    trace: None,
                },
                Work::from,
            ),
            tasks: tasks.into_values().collect(),
            streams: vec![shown.stream.clone()],
            health: Health::Healthy,
            health_message,
        }
    }

    /// Of a worker that has ended, and is about to say so to whoever started it.
    pub(super) fn ended(mut self) -> Self {
        self.health = Health::Unhealthy;
        "The worker reads no more.".clone_into(&mut self.health_message);
        self
    }
}

fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// Whether a shard with this number was read to its end.
fn is_over(fleet: &FleetStatus, id: i32) -> bool {
    let is_it = |shard: &&FleetShard| task_number(&shard.shard_id) == Some(id);
    let shard = fleet.shards.iter().find(is_it);
    shard.is_some_and(|shard| shard.checkpoint == ExtendedSequenceNumber::ShardEnd)
}

/// What a lease row tells of a shard of which nobody spoke.
fn derived(shard: &FleetShard, me: &WorkerId, is_blind: bool) -> Option<Work> {
    let state = match (&shard.owner, shard.target) {
        (_, TargetState::Stopped) => return None,
        (None, _) => StatusState::Unassigned,
        _ if matches!(shard.standstill, Some((Standstill::OwnerSilent(_), _))) => StatusState::Unassigned,
        // This worker does not hold it, whatever its row said at the last look; and of the others nothing is known without a look.
        (Some(owner), _) if owner == me || is_blind => StatusState::Unassigned,
        (Some(_), target) => target.into(),
    };
    Some(Work {
        state,
        worker_id: shard.owner.as_ref().map(ToString::to_string).unwrap_or_default(),
        version: None,
        trace: None,
    })
}

fn common_state(fleet: &FleetStatus) -> StatusState {
    let live = fleet
        .shards
        .iter()
        .filter(|shard| shard.checkpoint != ExtendedSequenceNumber::ShardEnd);
    common_of(live.map(|shard| shard.target)).into()
}

/// So many shards that stand still are named.
const NAMED_MAX: usize = 10;

/// A worker that waits for its store or a shard is not made better by a restart: it stays healthy, and says what is the matter.
fn health_message(fleet: &FleetStatus) -> String {
    let mut matters = Vec::new();
    if let Some(since) = fleet.store_unreachable_for {
        matters.push(format!(
            "the lease store has not been reached for {} s",
            since.as_secs()
        ));
    }
    let stalls = fleet.shards.iter().filter_map(|shard| {
        let (reason, since) = shard.standstill.as_ref()?;
        let lasts = !reason.is_healthy() && since.as_secs() >= 1;
        lasts.then(|| format!("{}: {reason}, for {} s", shard.shard_id, since.as_secs()))
    });
    let stalls: Vec<String> = stalls.collect();
    let more = stalls.len().saturating_sub(NAMED_MAX);
    matters.extend(stalls.into_iter().take(NAMED_MAX));
    if more > 0 {
        matters.push(format!("{more} more shards stand still"));
    }
    if matters.is_empty() {
        "Worker has completed startup and is ready to handle requests.".to_owned()
    } else {
        matters.join("; ")
    }
}
