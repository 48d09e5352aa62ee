//! Takes part in the election of the leader, beside everything else.

use std::time::Duration;

use shardfleet_core::leader::{LeaderAction, LockOutcome};

use super::Process;
use crate::log::What;
use crate::sync::{First, first};

/// Runs until the lock was given up after a stop.
pub(super) async fn run(process: &Process) {
    let mut known = None;
    loop {
        let now = process.now();
        if process.election.borrow().is_stopped() {
            return;
        }
        let version = process.sim.draw(|chance| format!("{:016x}", chance.next()));
        let action = process.election.borrow_mut().next_action(now, &version);
        let Some(action) = action else {
            let deadline = process.election.borrow().next_deadline();
            let due = deadline.unwrap_or(now + Duration::from_secs(1));
            match first(process.election_poke.taken(), process.sleep_until(due)).await {
                First::Left(()) | First::Right(()) => continue,
            }
        };
        carry_out(process, action).await;
        let is_leader = process.is_leader();
        process
            .sim
            .checks
            .borrow_mut()
            .on_election(&process.sim, process.number, is_leader);
        let leader = (process.leader(), is_leader);
        if known.as_ref() != Some(&leader) {
            if is_leader {
                process.sim.log(What::Leads, Some(process.number), None, 0, 0);
            }
            known = Some(leader);
            process.leader_changed.give();
        }
    }
}

async fn carry_out(process: &Process, action: LeaderAction) {
    // No request may keep the election from its next heartbeat.
    let limit = process.sim.setup.leader.heartbeat / 2;
    match action {
        LeaderAction::Read => {
            let read = process.store.read_lock(limit).await;
            let now = process.now();
            let mut election = process.election.borrow_mut();
            match read {
                Ok(row) => election.on_read(now, row),
                Err(_) => election.on_read_failed(now),
            }
        }
        LeaderAction::Write(write) => {
            let outcome = match process.store.write_lock(write, limit).await {
                Ok(true) => LockOutcome::Written,
                Ok(false) => LockOutcome::Conflict,
                Err(_) => LockOutcome::Unknown,
            };
            process.election.borrow_mut().on_written(process.now(), outcome);
        }
    }
}
