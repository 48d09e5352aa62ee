//! Faults on order: rules that make chosen calls go wrong.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::call::Call;

/// Most rules that can be in force at once. One more takes the place of the oldest.
pub const MAX_DYNAMO_FAULT_RULES: usize = 1000;

/// What happens to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum DynamoFault {
    /// It is not performed and answers `ProvisionedThroughputExceededException`.
    Throttle,
    /// It is not performed and answers HTTP 500 `InternalServerError`.
    InternalError,
    /// It is not performed and answers this error.
    Error {
        /// The error's type, such as `ThrottlingException`.
        code: String,
        /// Its text.
        #[serde(default = "default_message")]
        message: String,
        /// The HTTP status, 400 for most errors of the service.
        #[serde(default = "default_status")]
        status: u16,
    },
    /// It is performed after so long.
    Delay {
        /// So many milliseconds of real time, 600,000 at most.
        millis: u64,
    },
    /// It is performed, and the connection is cut instead of an answer.
    LoseAnswer,
    /// It is not performed, and the connection is cut.
    Cut,
}

fn default_message() -> String {
    "a fault that was asked for".to_owned()
}

const fn default_status() -> u16 {
    400
}

impl DynamoFault {
    /// An error of the service with HTTP status 400, such as `ThrottlingException`.
    pub fn error(code: impl Into<String>) -> Self {
        Self::Error {
            code: code.into(),
            message: default_message(),
            status: default_status(),
        }
    }

    /// Waits before the call is performed.
    pub fn delay(time: Duration) -> Self {
        Self::Delay {
            millis: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// How often a rule acts on the calls that it matches.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum DynamoFaultTimes {
    /// Until it is removed.
    Always,
    /// So many times.
    Times(u64),
    /// On this share of them, by chance from a seed.
    Share {
        /// 0 for never to 1 for always.
        share: f64,
        /// Where chance starts; the same seed makes the same choices.
        seed: u64,
    },
}

/// Which calls go wrong, and how.
///
/// Rules are asked in the order in which they were added. Delays of all that act add up; of the other faults the first one
/// counts, and rules behind it are not used up.
///
/// As JSON: `{"operation":"UpdateItem","table":"leases","containing":"shardId-000000000001","skip":1,"times":2,"action":{"type":"lose_answer"}}`;
/// all but `operation` and `action` can be left out, and `"share":0.1,"seed":7` can stand in the place of `times`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "WrittenRule", into = "WrittenRule")]
pub struct DynamoFaultRule {
    operation: String,
    table: Option<String>,
    containing: Option<String>,
    skip: u64,
    times: DynamoFaultTimes,
    fault: DynamoFault,
}

impl DynamoFaultRule {
    /// A rule for every call of `operation`, such as `UpdateItem`; `*` is every operation.
    pub fn on(operation: impl Into<String>, fault: DynamoFault) -> Self {
        Self {
            operation: operation.into(),
            table: None,
            containing: None,
            skip: 0,
            times: DynamoFaultTimes::Always,
            fault,
        }
    }

    /// Only calls on this table, in batches and transactions too.
    #[must_use]
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.table = Some(table.into());
        self
    }

    /// Only calls with this text somewhere in their body, such as a lease key or a part of one.
    #[must_use]
    pub fn containing(mut self, text: impl Into<String>) -> Self {
        self.containing = Some(text.into());
        self
    }

    /// Lets the first so many matching calls through.
    #[must_use]
    pub fn skip(mut self, calls: u64) -> Self {
        self.skip = calls;
        self
    }

    /// How often it acts. Default: always.
    #[must_use]
    pub fn times(mut self, times: DynamoFaultTimes) -> Self {
        self.times = times;
        self
    }

    /// It acts once.
    #[must_use]
    pub fn once(self) -> Self {
        self.times(DynamoFaultTimes::Times(1))
    }

    fn matches(&self, call: &Call) -> bool {
        (self.operation == "*" || self.operation == call.operation)
            && self.table.as_deref().is_none_or(|table| call.is_on(table))
            && self.containing.as_deref().is_none_or(|text| call.contains(text))
    }
}

/// A rule as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    operation: String,
    #[serde(default)]
    table: Option<String>,
    #[serde(default)]
    containing: Option<String>,
    #[serde(default)]
    skip: u64,
    #[serde(default)]
    times: Option<u64>,
    #[serde(default)]
    share: Option<f64>,
    #[serde(default)]
    seed: Option<u64>,
    action: DynamoFault,
}

impl TryFrom<WrittenRule> for DynamoFaultRule {
    type Error = String;

    fn try_from(written: WrittenRule) -> Result<Self, String> {
        let times = match (written.times, written.share) {
            (None, None) => DynamoFaultTimes::Always,
            (Some(times), None) => DynamoFaultTimes::Times(times),
            (None, Some(share)) if (0.0..=1.0).contains(&share) => DynamoFaultTimes::Share {
                share,
                seed: written.seed.unwrap_or(0),
            },
            (None, Some(share)) => return Err(format!("share is {share}: 0 to 1 is expected")),
            (Some(_), Some(_)) => return Err("times and share are both given: leave one out".to_owned()),
        };
        Ok(Self {
            operation: written.operation,
            table: written.table,
            containing: written.containing,
            skip: written.skip,
            times,
            fault: written.action,
        })
    }
}

impl From<DynamoFaultRule> for WrittenRule {
    fn from(rule: DynamoFaultRule) -> Self {
        let (times, share, seed) = match rule.times {
            DynamoFaultTimes::Always => (None, None, None),
            DynamoFaultTimes::Times(times) => (Some(times), None, None),
            DynamoFaultTimes::Share { share, seed } => (None, Some(share), Some(seed)),
        };
        Self {
            operation: rule.operation,
            table: rule.table,
            containing: rule.containing,
            skip: rule.skip,
            times,
            share,
            seed,
            action: rule.fault,
        }
    }
}

/// Names a rule that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DynamoFaultId(u64);

/// What the rules say about one call.
#[derive(Debug, Default)]
pub(super) struct Decision {
    pub(super) delay: Duration,
    pub(super) fault: Option<DynamoFault>,
}

/// The rules in force.
#[derive(Debug, Default)]
pub(super) struct FaultTable {
    rules: Vec<Armed>,
    last_id: u64,
}

#[derive(Debug)]
struct Armed {
    id: DynamoFaultId,
    rule: DynamoFaultRule,
    skipped: u64,
    hits: u64,
    /// Where chance is.
    chance: u64,
}

impl FaultTable {
    pub(super) fn add(&mut self, rule: DynamoFaultRule) -> DynamoFaultId {
        if self.rules.len() >= MAX_DYNAMO_FAULT_RULES {
            self.rules.remove(0);
        }
        self.last_id += 1;
        let id = DynamoFaultId(self.last_id);
        let chance = match rule.times {
            DynamoFaultTimes::Share { seed, .. } => seed,
            _ => 0,
        };
        self.rules.push(Armed {
            id,
            rule,
            skipped: 0,
            hits: 0,
            chance,
        });
        id
    }

    pub(super) fn remove(&mut self, id: DynamoFaultId) {
        self.rules.retain(|armed| armed.id != id);
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }

    pub(super) fn list(&self) -> Vec<(DynamoFaultId, DynamoFaultRule, u64)> {
        let rules = self.rules.iter();
        rules
            .map(|armed| (armed.id, armed.rule.clone(), armed.hits))
            .collect()
    }

    /// How often a rule has acted.
    pub(super) fn hits(&self, id: DynamoFaultId) -> u64 {
        self.rules
            .iter()
            .find(|armed| armed.id == id)
            .map_or(0, |armed| armed.hits)
    }

    /// Asks the rules about a call, and counts it against those that match.
    pub(super) fn decide(&mut self, call: &Call) -> Decision {
        let mut decision = Decision::default();
        for armed in &mut self.rules {
            let is_delay = matches!(armed.rule.fault, DynamoFault::Delay { .. });
            if (!is_delay && decision.fault.is_some()) || !armed.rule.matches(call) || !armed.acts() {
                continue;
            }
            armed.hits += 1;
            match &armed.rule.fault {
                DynamoFault::Delay { millis } => decision.delay += Duration::from_millis(*millis),
                other => decision.fault = Some(other.clone()),
            }
        }
        decision
    }
}

impl Armed {
    /// Whether it acts on this matching call.
    fn acts(&mut self) -> bool {
        if self.skipped < self.rule.skip {
            self.skipped += 1;
            return false;
        }
        match self.rule.times {
            DynamoFaultTimes::Always => true,
            DynamoFaultTimes::Times(times) => self.hits < times,
            DynamoFaultTimes::Share { share, .. } => next_chance(&mut self.chance) < share,
        }
    }
}

/// The next of a row of numbers from 0 up to 1 (`splitmix64`).
fn next_chance(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
    let unit = (z >> 11) as f64 / (1_u64 << 53) as f64;
    unit
}
