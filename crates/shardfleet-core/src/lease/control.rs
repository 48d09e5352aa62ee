//! What an operator asks of a shard, as its lease row keeps it: whoever holds the lease obeys, whatever worker was asked.

use std::fmt;

use super::Lease;
use crate::status::StatusState;

/// What is to become of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TargetState {
    /// It is read.
    #[default]
    Running,
    /// Its lease and its handler stay, and nothing is read or handed out (Kafka Connect: PAUSED).
    Paused,
    /// Its lease stays, its handler ends, and nothing is read (Kafka Connect: STOPPED).
    Stopped,
}

impl From<TargetState> for StatusState {
    fn from(target: TargetState) -> Self {
        match target {
            TargetState::Running => Self::Running,
            TargetState::Paused => Self::Paused,
            TargetState::Stopped => Self::Stopped,
        }
    }
}

impl TargetState {
    const ALL: [Self; 3] = [Self::Running, Self::Paused, Self::Stopped];

    /// Kafka Connect's word for it.
    pub fn name(self) -> &'static str {
        StatusState::from(self).name()
    }
}

/// What was asked of a shard so far: the attribute `shardfleetControl`, in the form `PAUSED 3`. Where it is missing, nothing was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Control {
    /// What is to become of it.
    pub target: TargetState,
    /// How often a restart was asked for. Whoever reads the shard begins anew when this changes.
    pub restarts: u64,
}

/// Something that an operator asks of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlRequest {
    /// It is to be so from now on.
    Target(TargetState),
    /// Its handler is to end, and another is to go on from the checkpoint. Where the shard is paused or stopped it stays so.
    Restart,
}

impl Control {
    /// Reads the attribute's text.
    ///
    /// # Errors
    /// The text itself when it is no state and number.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refuse = || text.to_owned();
        let (state, restarts) = text.split_once(' ').ok_or_else(refuse)?;
        let known = TargetState::ALL.into_iter();
        Ok(Self {
            target: known
                .into_iter()
                .find(|target| target.name() == state)
                .ok_or_else(refuse)?,
            restarts: restarts.parse().map_err(|_| refuse())?,
        })
    }

    /// What is asked once `request` is added.
    #[must_use]
    pub fn with(self, request: ControlRequest) -> Self {
        match request {
            ControlRequest::Target(target) => Self { target, ..self },
            ControlRequest::Restart => Self {
                restarts: self.restarts.saturating_add(1),
                ..self
            },
        }
    }

    /// Whether whoever reads the shard since `began_as` was asked has to begin anew.
    pub fn needs_new_life(self, began_as: Self) -> bool {
        let is_stopped = |control: Self| control.target == TargetState::Stopped;
        self.restarts != began_as.restarts || is_stopped(self) != is_stopped(began_as)
    }

    /// What a shard begins with that follows a shard of which this was asked.
    #[must_use]
    pub fn inherited(self) -> Self {
        Self { restarts: 0, ..self }
    }

    /// The attribute, which is left out where nothing was ever asked.
    pub fn stored(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }
}

impl fmt::Display for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.target.name(), self.restarts)
    }
}

/// What all shards that are not read to their end are to do, where that is one thing; else they are taken to run. So an application is paused when each of its shards is.
pub fn common_target<'a>(leases: impl IntoIterator<Item = &'a Lease>) -> TargetState {
    let live = leases.into_iter().filter(|lease| !lease.is_finished());
    common_of(live.map(|lease| lease.control().target))
}

/// What all of these are, or else running.
pub fn common_of(targets: impl IntoIterator<Item = TargetState>) -> TargetState {
    let mut targets = targets.into_iter();
    let first = targets.next().unwrap_or_default();
    if targets.all(|target| target == first) {
        first
    } else {
        TargetState::Running
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{ControlRequest, LeaseWrite};
    use crate::sequence::ExtendedSequenceNumber;

    fn lease(key: &str, target: TargetState) -> Lease {
        Lease {
            control: Control { target, restarts: 0 }.stored(),
            ..Lease::new(key, ExtendedSequenceNumber::TrimHorizon)
        }
    }

    #[test]
    fn the_text_comes_back() {
        for target in TargetState::ALL {
            for restarts in [0, 3, u64::MAX] {
                let control = Control { target, restarts };
                assert_eq!(Control::parse(&control.to_string()), Ok(control));
            }
        }
        for text in [
            "",
            "PAUSED",
            "PAUSED x",
            "paused 1",
            "PAUSED -1",
            "PAUSED  1",
            "GONE 1",
        ] {
            assert_eq!(Control::parse(text), Err(text.to_owned()));
        }
    }

    #[test]
    fn a_restart_leaves_the_target_and_a_target_leaves_the_restarts() {
        let asked = Control::default()
            .with(ControlRequest::Restart)
            .with(ControlRequest::Target(TargetState::Paused))
            .with(ControlRequest::Restart);
        assert_eq!(asked.to_string(), "PAUSED 2");
        assert_eq!(asked.inherited().to_string(), "PAUSED 0");
    }

    /// Whoever asks is not the holder: the heartbeat goes on as if nothing had happened.
    #[test]
    fn asking_moves_no_counter() {
        let held = Lease {
            counter: 7,
            ..lease("shardId-0", TargetState::Running)
        };
        let asked = LeaseWrite::control(&held, ControlRequest::Target(TargetState::Stopped))
            .apply(&held)
            .expect("written");
        assert_eq!((asked.counter, asked.control().target), (7, TargetState::Stopped));
        let renewed = LeaseWrite::renew(&held, None).apply(&asked).expect("written");
        assert_eq!(renewed.control().target, TargetState::Stopped);
    }

    #[test]
    fn what_was_asked_meanwhile_is_not_undone() {
        let seen = lease("shardId-0", TargetState::Running);
        let ask = |seen: &Lease, request| LeaseWrite::control(seen, request);
        let pause = ControlRequest::Target(TargetState::Paused);
        let paused = ask(&seen, pause).apply(&seen).expect("written");
        assert_eq!(ask(&seen, ControlRequest::Restart).apply(&paused), None);
        let both = ask(&paused, ControlRequest::Restart).apply(&paused);
        assert_eq!(both.expect("written").control().to_string(), "PAUSED 1");
    }

    #[test]
    fn an_application_is_paused_when_each_of_its_shards_is() {
        use TargetState::{Paused, Running, Stopped};
        let of = |targets: &[TargetState]| {
            let leases: Vec<Lease> = targets
                .iter()
                .enumerate()
                .map(|(index, target)| lease(&format!("shardId-{index}"), *target))
                .collect();
            common_target(&leases)
        };
        assert_eq!(of(&[]), Running);
        assert_eq!(of(&[Paused, Paused]), Paused);
        assert_eq!(of(&[Stopped]), Stopped);
        assert_eq!(of(&[Paused, Stopped]), Running);
        assert_eq!(of(&[Paused, Running]), Running);
        let finished = Lease {
            checkpoint: ExtendedSequenceNumber::ShardEnd,
            ..lease("shardId-9", Running)
        };
        assert_eq!(common_target(&[finished, lease("shardId-1", Paused)]), Paused);
    }
}
