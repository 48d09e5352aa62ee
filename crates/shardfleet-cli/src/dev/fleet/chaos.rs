//! Does to the fleet what the [`script`](super::script) says.

use super::Fleet;
use super::member::State;
use super::script::{Act, Script, Standing};
use crate::exit::Failure;
use crate::stamp;
use shardfleet::ShardId;

/// The script, and whom it hit.
#[derive(Debug, Default)]
pub(super) struct Chaos {
    script: Script,
    killed: Option<usize>,
    added: Option<usize>,
    stopped: Option<usize>,
    /// The halves of the shard that was split.
    children: Vec<ShardId>,
}

impl Chaos {
    /// What did not happen, in words.
    pub(super) fn left_out(&self) -> &[String] {
        &self.script.left_out
    }

    /// Whether a worker is yet to be added.
    pub(super) fn will_add(&self) -> bool {
        self.added.is_none() && !self.script.is_done()
    }

    /// The load has ended.
    pub(super) fn cut_short(&mut self) {
        self.script.cut_short();
    }
}

impl Fleet<'_> {
    /// Looks how things stand, and does what the script says next.
    pub(super) fn advance_chaos(&mut self) -> Result<(), Failure> {
        let Some(since) = self.flowing_since else {
            return Ok(());
        };
        let standing = self.standing(stamp::micros().saturating_sub(since) / 1000);
        match self.chaos.as_mut().and_then(|chaos| chaos.script.next(&standing)) {
            None => Ok(()),
            Some(act) => self.act(act),
        }
    }

    fn standing(&self, elapsed: u64) -> Standing {
        let Some(chaos) = &self.chaos else {
            return Standing::default();
        };
        // What a worker leaves behind is only known once it is dead, or gone.
        let left_by = |index: Option<usize>| {
            let member = self.members.get(index?)?;
            (!member.state.is_alive()).then(|| self.leases.left_by(&member.worker_id))
        };
        let running = |m: &&super::Member| m.state == State::Running;
        let delivers = |shard_id: &ShardId| self.books.shard(shard_id).is_some_and(|book| book.delivered > 0);
        Standing {
            elapsed,
            running: self.members.iter().filter(running).count(),
            delivered: self.books.delivered_count(),
            is_shared: self
                .members
                .iter()
                .filter(running)
                .all(|member| self.leases.held_by(&member.worker_id) > 0),
            left_by_killed: left_by(chaos.killed),
            newcomer_delivers: chaos
                .added
                .and_then(|index| self.members.get(index))
                .is_some_and(|member| member.first_delivery.is_some()),
            children_deliver: !chaos.children.is_empty() && chaos.children.iter().all(delivers),
            left_by_stopped: left_by(chaos.stopped),
        }
    }

    fn act(&mut self, act: Act) -> Result<(), Failure> {
        let now = stamp::micros();
        match act {
            Act::Kill => {
                let Some(index) = self.busiest(|_| true) else {
                    return Ok(());
                };
                self.members[index].kill(now);
                let (worker_id, pid) = (self.members[index].worker_id.clone(), self.members[index].pid);
                let held = self.leases.held_by(&worker_id);
                self.note(&format!(
                    "SIGKILL to {worker_id} (pid {pid}), which holds {held} leases"
                ));
                self.with_chaos(|chaos| chaos.killed = Some(index));
            }
            Act::Add => {
                let index = self.start_member()?;
                self.with_chaos(|chaos| chaos.added = Some(index));
            }
            Act::Split => {
                let children = self.split();
                self.with_chaos(|chaos| match children {
                    Ok(children) => chaos.children = children,
                    Err(reason) => chaos
                        .script
                        .left_out
                        .push(format!("no shard was split: {reason}")),
                });
            }
            Act::Stop => {
                let Some(index) = self.busiest(|member| !member.has_joined) else {
                    return Ok(());
                };
                self.members[index].terminate(now);
                let (worker_id, pid) = (self.members[index].worker_id.clone(), self.members[index].pid);
                let held = self.leases.held_by(&worker_id);
                self.note(&format!(
                    "SIGTERM to {worker_id} (pid {pid}), which holds {held} leases"
                ));
                self.with_chaos(|chaos| chaos.stopped = Some(index));
            }
            Act::Finish => {
                self.is_over.send_replace(true);
            }
        }
        Ok(())
    }

    fn with_chaos(&mut self, change: impl FnOnce(&mut Chaos)) {
        if let Some(chaos) = &mut self.chaos {
            change(chaos);
        }
    }

    /// The running worker with the most leases; the first of several.
    fn busiest(&self, may: impl Fn(&super::Member) -> bool) -> Option<usize> {
        let running = self.members.iter().enumerate();
        running
            .filter(|(_, member)| member.state == State::Running && may(member))
            .max_by_key(|(index, member)| (self.leases.held_by(&member.worker_id), usize::MAX - index))
            .map(|(index, _)| index)
    }

    /// Splits the first open shard.
    fn split(&mut self) -> Result<Vec<ShardId>, String> {
        let controls = self.services.kinesis.controls();
        let stream = &self.args.stream;
        let shards = controls.shards(stream).map_err(|e| e.to_string())?;
        let open = shards.iter().find(|shard| shard.open);
        let shard_id = &open.ok_or("none is open")?.shard_id;
        let (low, high) = controls.split(stream, shard_id).map_err(|e| e.to_string())?;
        self.note(&format!("{shard_id} is split into {low} and {high}"));
        Ok(vec![ShardId::new(low), ShardId::new(high)])
    }
}
