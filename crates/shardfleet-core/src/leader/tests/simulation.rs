//! Three workers and one table in virtual time, with slow and lost answers, writes that land late, crashes and frozen processes.

use super::*;
use proptest::prelude::*;

const STEP: u64 = 50;
const TIMEOUT: u64 = 1_000;

/// A generator that a test can replay (`splitmix64`).
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % most.max(1)
    }
}

/// A request under way: when it reaches the table, when its answer arrives, and whether the answer is lost.
struct Request {
    action: LeaderAction,
    lands: u64,
    answers: u64,
    lost: bool,
    result: Option<(Option<LockRow>, LockOutcome)>,
    answered: bool,
}

struct Worker {
    machine: LeaderElection,
    requests: Vec<Request>,
    /// Dead or frozen until then.
    away_until: u64,
}

impl Worker {
    /// Reports the answers that have arrived.
    fn hear(&mut self, now: u64) {
        let Self {
            machine, requests, ..
        } = self;
        for request in requests
            .iter_mut()
            .filter(|request| request.answers <= now && !request.answered)
        {
            request.answered = true;
            match (&request.action, request.result.clone()) {
                (LeaderAction::Read, Some((row, _))) if !request.lost => {
                    machine.on_read(at(now), row);
                }
                (LeaderAction::Read, _) => machine.on_read_failed(at(now)),
                (LeaderAction::Write(_), Some((_, outcome))) if !request.lost => {
                    machine.on_written(at(now), outcome);
                }
                (LeaderAction::Write(_), _) => machine.on_written(at(now), LockOutcome::Unknown),
            }
        }
        requests.retain(|request| request.result.is_none() || !request.answered);
    }
}

struct Course {
    leaders_at_once: usize,
    longest_without: u64,
    crashes: u64,
    lost: u64,
    changes: u64,
}

fn run(seed: u64, steps: u64) -> Course {
    let mut dice = Dice(seed);
    let mut table: Option<LockRow> = None;
    let mut course = Course {
        leaders_at_once: 0,
        longest_without: 0,
        crashes: 0,
        lost: 0,
        changes: 0,
    };
    let mut versions = 0_u64;
    let new_machine = |i: usize| LeaderElection::new(format!("w{i}").into(), policy());
    let mut workers: Vec<Worker> = (0..3)
        .map(|i| Worker {
            machine: new_machine(i),
            requests: Vec::new(),
            away_until: 0,
        })
        .collect();
    let (mut last_leader, mut led_at) = (None, 0);
    for step in 0..steps {
        let now = step * STEP;
        for worker in &mut workers {
            // What is on its way lands, whatever became of its sender.
            for request in worker
                .requests
                .iter_mut()
                .filter(|request| request.lands <= now && request.result.is_none())
            {
                let outcome = match &request.action {
                    LeaderAction::Write(write) if !write.apply(&mut table) => LockOutcome::Conflict,
                    _ => LockOutcome::Written,
                };
                request.result = Some((table.clone(), outcome));
            }
        }
        for (i, worker) in workers.iter_mut().enumerate() {
            if now < worker.away_until {
                continue;
            }
            if dice.below(4_000) == 0 {
                course.crashes += 1;
                worker.away_until = now + 1_000 + dice.below(20_000);
                if dice.below(2) == 0 {
                    // Killed: it starts anew, under the same name. Else it was only frozen.
                    worker.machine = new_machine(i);
                    for request in &mut worker.requests {
                        request.answered = true;
                    }
                }
                continue;
            }
            worker.hear(now);
            if dice.below(2_000) == 0 {
                for _ in 0..3 {
                    worker.machine.on_run(at(now), false);
                }
            }
            versions += 1;
            if let Some(action) = worker.machine.next_action(at(now), &versions.to_string()) {
                let lost = dice.below(20) == 0;
                course.lost += u64::from(lost);
                // A lost one may land long after its sender has given up on it.
                let lands = now + dice.below(if lost { 3_000 } else { 200 });
                let answers = if lost {
                    now + TIMEOUT
                } else {
                    lands + dice.below(200)
                };
                worker.requests.push(Request {
                    action,
                    lands,
                    answers,
                    lost,
                    result: None,
                    answered: false,
                });
            }
        }
        let leaders: Vec<usize> = workers
            .iter()
            .enumerate()
            .filter(|(_, worker)| worker.machine.is_leader(at(now)))
            .map(|(i, _)| i)
            .collect();
        course.leaders_at_once = course.leaders_at_once.max(leaders.len());
        let awake = leaders.iter().find(|leader| workers[**leader].away_until <= now);
        if let Some(leader) = awake {
            led_at = now;
            course.changes += u64::from(last_leader.replace(*leader) != Some(*leader));
        } else if workers.iter().all(|worker| now < worker.away_until) {
            // Nobody is there to lead.
            led_at = now;
        }
        course.longest_without = course.longest_without.max(now - led_at);
    }
    course
}

/// A standby sees the last version within a poll, waits it out, and may need to try again when answers are lost or it rests itself; a worker that is away takes
/// what it has seen with it, and the next one has seen the row for a shorter time.
fn bound() -> u64 {
    let duration = |value: Duration| u64::try_from(value.as_millis()).expect("short");
    let policy = policy();
    2 * (duration(policy.lease_duration) + duration(policy.poll))
        + duration(policy.cool_down)
        + 5 * (TIMEOUT + duration(policy.retry))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn never_two_leaders_at_once_and_never_long_without_one(seed in any::<u64>()) {
        let course = run(seed, 24_000);
        prop_assert!(course.leaders_at_once == 1, "{} leaders at once", course.leaders_at_once);
        prop_assert!(course.longest_without <= bound(), "{} ms without a leader", course.longest_without);
        prop_assert!(course.crashes > 0 && course.lost > 0 && course.changes > 1, "a quiet course proves nothing");
    }
}

#[test]
fn a_crashed_leader_is_replaced_within_its_lease_duration_and_a_poll() {
    let mut table = None;
    let mut first = leading(&mut table, 0);
    let mut second = LeaderElection::new("w2".into(), policy());
    let mut third = LeaderElection::new("w3".into(), policy());
    let mut replaced = None;
    let crash = 30_000;
    for now in (0..60_000).step_by(50) {
        if now < crash {
            act(&mut first, &mut table, now, &format!("a{now}"));
        }
        act(&mut second, &mut table, now, &format!("b{now}"));
        act(&mut third, &mut table, now, &format!("c{now}"));
        if now > crash && replaced.is_none() && (second.is_leader(at(now)) || third.is_leader(at(now))) {
            replaced = Some(now - crash);
        }
    }
    let replaced = replaced.expect("a dead leader is always replaced");
    assert!(replaced <= 12_000 + 1_000 + 100, "{replaced} ms");
}
