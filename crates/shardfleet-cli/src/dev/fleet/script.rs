//! What happens to the fleet, and when: a machine that is told how things stand and says what to do next.

/// Times in milliseconds.
const WARM_UP: u64 = 8_000;
/// Beyond this nothing more is begun, so that the whole ends within two minutes.
const BUDGET: u64 = 75_000;

/// How things stand.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Standing {
    /// Since the first record was put, in milliseconds.
    pub(super) elapsed: u64,
    /// Workers that run.
    pub(super) running: usize,
    /// Records that have come.
    pub(super) delivered: u64,
    /// Whether every worker that runs holds a lease.
    pub(super) is_shared: bool,
    /// Leases that nobody took over yet from the worker that was killed; `None` while it is not dead.
    pub(super) left_by_killed: Option<usize>,
    /// Whether the worker that was added has delivered a record.
    pub(super) newcomer_delivers: bool,
    /// Whether both halves of the shard that was split have delivered a record.
    pub(super) children_deliver: bool,
    /// Leases that nobody took over yet from the worker that was stopped; `None` while it has not ended.
    pub(super) left_by_stopped: Option<usize>,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// SIGKILL to the worker with the most leases.
    Kill,
    /// One more worker.
    Add,
    /// Split a shard.
    Split,
    /// SIGTERM to the worker with the most leases, but not to the one that was added.
    Stop,
    /// Nothing more: the load may end.
    Finish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    /// Until the fleet is warm.
    Warm,
    /// After an act, for its effect.
    After(Act),
    Done,
}

/// The acts in their order: kill, add, split, stop, finish. Each waits for the effect of the one before, but not for ever.
#[derive(Clone, Debug)]
pub(super) struct Script {
    waiting: Waiting,
    since: u64,
    /// When the effect showed.
    effect_at: Option<u64>,
    /// What did not happen, in words.
    pub(super) left_out: Vec<String>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            waiting: Waiting::Warm,
            since: 0,
            effect_at: None,
            left_out: Vec::new(),
        }
    }
}

impl Script {
    /// Whether everything was done.
    pub(super) fn is_done(&self) -> bool {
        self.waiting == Waiting::Done
    }

    /// The load has ended: nothing more makes sense.
    pub(super) fn cut_short(&mut self) {
        if !self.is_done() {
            let why = "not everything was done to the fleet: the records were used up before".to_owned();
            self.left_out.push(why);
            self.waiting = Waiting::Done;
        }
    }

    /// What to do now, if anything.
    pub(super) fn next(&mut self, standing: &Standing) -> Option<Act> {
        let now = standing.elapsed;
        let (effect, rest, limit) = match self.waiting {
            Waiting::Done => return None,
            Waiting::Warm => {
                let is_warm = now >= WARM_UP && standing.delivered > 0;
                (is_warm && standing.is_shared, 0, 16_000)
            }
            Waiting::After(Act::Kill) => {
                // A lone worker has nobody to take over from it; the next one will.
                let has_heirs = standing.running > 0;
                (!has_heirs || standing.left_by_killed == Some(0), 2_000, 15_000)
            }
            Waiting::After(Act::Add) => {
                let took_over = standing.left_by_killed == Some(0);
                (took_over && standing.newcomer_delivers, 4_000, 15_000)
            }
            Waiting::After(Act::Split) => (standing.children_deliver, 1_000, 10_000),
            Waiting::After(Act::Stop | Act::Finish) => (standing.left_by_stopped == Some(0), 2_000, 12_000),
        };
        if effect && self.effect_at.is_none() {
            self.effect_at = Some(now);
        }
        let rested = self.effect_at.is_some_and(|at| now >= at + rest);
        if !rested && now < self.since + limit {
            return None;
        }
        Some(self.step(standing))
    }

    fn step(&mut self, standing: &Standing) -> Act {
        let mut act = match self.waiting {
            Waiting::Warm => Act::Kill,
            Waiting::After(Act::Kill) => Act::Add,
            Waiting::After(Act::Add) => Act::Split,
            Waiting::After(Act::Split) => Act::Stop,
            Waiting::After(Act::Stop | Act::Finish) | Waiting::Done => Act::Finish,
        };
        if act == Act::Stop && standing.running < 2 {
            self.left_out
                .push("no worker was stopped: only one was left".to_owned());
            act = Act::Finish;
        }
        if act != Act::Finish && standing.elapsed >= BUDGET {
            self.left_out.push(format!("time ran out before {}", act.words()));
            act = Act::Finish;
        }
        self.waiting = match act {
            Act::Finish => Waiting::Done,
            act => Waiting::After(act),
        };
        self.since = standing.elapsed;
        self.effect_at = None;
        act
    }
}

impl Act {
    fn words(self) -> &'static str {
        match self {
            Self::Kill => "a worker was killed",
            Self::Add => "a worker was added",
            Self::Split => "a shard was split",
            Self::Stop => "a worker was stopped",
            Self::Finish => "the end",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps through time in quarters of a second; the acts and when they came.
    fn play(mut standing_at: impl FnMut(u64, &[(u64, Act)]) -> Standing) -> (Vec<(u64, Act)>, Script) {
        let mut script = Script::default();
        let mut acts = Vec::new();
        for elapsed in (0..200_000).step_by(250) {
            let standing = Standing {
                elapsed,
                ..standing_at(elapsed, &acts)
            };
            acts.extend(script.next(&standing).map(|act| (elapsed, act)));
        }
        assert!(script.is_done());
        (acts, script)
    }

    fn names(acts: &[(u64, Act)]) -> Vec<Act> {
        acts.iter().map(|(_, act)| *act).collect()
    }

    const ALL: [Act; 5] = [Act::Kill, Act::Add, Act::Split, Act::Stop, Act::Finish];

    #[test]
    fn each_act_waits_for_the_effect_of_the_one_before() {
        let (acts, script) = play(|now, acts| {
            let since = |act| acts.iter().find(|(_, a)| *a == act).map(|(at, _)| now - at);
            Standing {
                running: 3,
                delivered: 1,
                is_shared: true,
                left_by_killed: since(Act::Kill).map(|since| usize::from(since < 5_000)),
                newcomer_delivers: since(Act::Add).is_some_and(|since| since > 3_000),
                children_deliver: since(Act::Split).is_some(),
                left_by_stopped: since(Act::Stop).map(|_| 0),
                ..Standing::default()
            }
        });
        assert_eq!(names(&acts), ALL);
        assert_eq!(acts[0].0, WARM_UP);
        assert_eq!(acts[1].0, WARM_UP + 5_000 + 2_000);
        assert!(script.left_out.is_empty());
    }

    #[test]
    fn effects_that_never_show_are_not_waited_for_forever() {
        let (acts, script) = play(|_, _| Standing {
            running: 3,
            ..Standing::default()
        });
        assert_eq!(names(&acts), ALL);
        assert!(acts.last().is_some_and(|(at, _)| *at <= BUDGET), "{acts:?}");
        assert!(script.left_out.is_empty());
    }

    #[test]
    fn the_last_worker_is_not_stopped() {
        let (acts, script) = play(|_, acts| Standing {
            running: acts.len().saturating_sub(1).min(1),
            delivered: 1,
            is_shared: true,
            left_by_killed: Some(0),
            newcomer_delivers: true,
            children_deliver: true,
            ..Standing::default()
        });
        assert_eq!(names(&acts), [Act::Kill, Act::Add, Act::Split, Act::Finish]);
        assert_eq!(script.left_out.len(), 1);
    }
}
