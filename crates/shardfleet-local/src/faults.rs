//! Faults on order: rules that make chosen calls go wrong.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ops::Subject;
use crate::settings::millis;

/// Most rules that can be in force at once.
pub const MAX_FAULT_RULES: usize = 1000;

/// Names a rule that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FaultId(u64);

/// Which calls go wrong, and how.
///
/// Rules are asked in the order in which they were added. Delays of all matching rules add up; of the other actions the
/// first matching one counts, and rules behind it are not used up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct FaultRule {
    /// The operation's name, such as `GetRecords`, or `*` for every one.
    pub operation: String,
    /// Only calls that name this stream (by name, ARN, iterator or consumer).
    #[serde(default)]
    pub stream: Option<String>,
    /// Only calls that name this shard, or read it by an iterator.
    #[serde(default)]
    pub shard: Option<String>,
    /// So many matching calls go well first.
    #[serde(default)]
    pub skip: u32,
    /// So many matching calls go wrong after those; `None` for ever.
    #[serde(default)]
    pub times: Option<u32>,
    /// What happens.
    pub action: FaultAction,
}

impl FaultRule {
    /// Every call of the operation goes wrong (`*`: of every operation), for ever.
    pub fn new(operation: impl Into<String>, action: FaultAction) -> Self {
        Self {
            operation: operation.into(),
            stream: None,
            shard: None,
            skip: 0,
            times: None,
            action,
        }
    }

    /// Only calls on this stream.
    #[must_use]
    pub fn on_stream(mut self, stream: impl Into<String>) -> Self {
        self.stream = Some(stream.into());
        self
    }

    /// Only calls on this shard.
    #[must_use]
    pub fn on_shard(mut self, shard: impl Into<String>) -> Self {
        self.shard = Some(shard.into());
        self
    }

    /// So many matching calls go well first.
    #[must_use]
    pub fn skip(mut self, calls: u32) -> Self {
        self.skip = calls;
        self
    }

    /// So many matching calls go wrong, then the rule is spent.
    #[must_use]
    pub fn times(mut self, calls: u32) -> Self {
        self.times = Some(calls);
        self
    }

    /// One matching call goes wrong.
    #[must_use]
    pub fn once(self) -> Self {
        self.times(1)
    }

    fn matches(&self, operation: &str, subject: &Subject) -> bool {
        let fits = |wanted: &Option<String>, given: &Option<String>| wanted.is_none() || wanted == given;
        (self.operation == "*" || self.operation == operation)
            && fits(&self.stream, &subject.stream)
            && fits(&self.shard, &subject.shard)
    }
}

/// What a fault does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum FaultAction {
    /// Answers with an error; the call is not carried out.
    Error {
        /// The error's type, such as `ProvisionedThroughputExceededException`.
        code: String,
        /// Its text.
        #[serde(default)]
        message: String,
        /// The HTTP status, 400 for most errors of the service.
        #[serde(default = "default_status")]
        status: u16,
    },
    /// Waits before anything else is done.
    Delay {
        /// So many milliseconds of real time.
        millis: u64,
    },
    /// Carries the call out, then cuts the connection instead of answering.
    AnswerLost,
    /// Cuts the connection; the call is not carried out.
    CutBefore,
    /// HTTP 500 without a body; the call is not carried out.
    ServerError,
    /// `GetRecords`: the answer has its records but no next iterator and no child shards, whether or not the shard is open.
    NoNextIterator,
    /// `GetRecords`: the answer has no records, and an iterator at the same place.
    EmptyPage,
    /// `GetRecords`: every iterator given out so far for this shard expires, this one included.
    ExpireIterator,
    /// `SubscribeToShard`: an error inside the stream, which ends it.
    StreamException {
        /// After so many events.
        after_events: u32,
        /// The error's type, such as `InternalFailureException`.
        code: String,
        /// Its text.
        #[serde(default)]
        message: String,
    },
    /// `SubscribeToShard`: the connection is cut.
    StreamCut {
        /// After so many events.
        after_events: u32,
    },
    /// `SubscribeToShard`: nothing more is sent, idle events included, while the connection stays open.
    StreamStall {
        /// After so many events.
        after_events: u32,
    },
    /// `SubscribeToShard`: headers are sent, and nothing else: not even the first frame.
    StreamSilent,
    /// `SubscribeToShard`: the stream ends normally, as if its time were over.
    StreamEnd {
        /// After so many events.
        after_events: u32,
    },
}

const fn default_status() -> u16 {
    400
}

impl FaultAction {
    /// An error of the service with HTTP status 400.
    pub fn error(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Error {
            code: code.into(),
            message: message.into(),
            status: 400,
        }
    }

    /// `ProvisionedThroughputExceededException`.
    pub fn throttled() -> Self {
        Self::error(
            "ProvisionedThroughputExceededException",
            "Rate exceeded for shard.",
        )
    }

    /// Waits before the call is carried out.
    pub fn delay(time: Duration) -> Self {
        Self::Delay { millis: millis(time) }
    }
}

/// What the rules say about one call.
#[derive(Debug, Default)]
pub(crate) struct Decision {
    pub(crate) delay: Duration,
    pub(crate) action: Option<FaultAction>,
}

/// The rules in force.
#[derive(Debug, Default)]
pub(crate) struct FaultTable {
    rules: Vec<Armed>,
    last_id: u64,
}

#[derive(Debug)]
struct Armed {
    id: FaultId,
    rule: FaultRule,
    seen: u32,
    hits: u64,
}

impl FaultTable {
    /// Adds a rule. At the limit, the oldest spent rule makes room, and without one the oldest rule.
    pub(crate) fn add(&mut self, rule: FaultRule) -> FaultId {
        if self.rules.len() >= MAX_FAULT_RULES {
            let spent = |a: &Armed| a.rule.times.is_some_and(|times| a.hits >= u64::from(times));
            let victim = self.rules.iter().position(spent).unwrap_or(0);
            self.rules.remove(victim);
        }
        self.last_id += 1;
        let id = FaultId(self.last_id);
        self.rules.push(Armed {
            id,
            rule,
            seen: 0,
            hits: 0,
        });
        id
    }

    pub(crate) fn remove(&mut self, id: FaultId) {
        self.rules.retain(|a| a.id != id);
    }

    pub(crate) fn clear(&mut self) {
        self.rules.clear();
    }

    /// How often a rule has struck.
    pub(crate) fn hits(&self, id: FaultId) -> u64 {
        self.rules.iter().find(|a| a.id == id).map_or(0, |a| a.hits)
    }

    /// All rules with their hits.
    pub(crate) fn list(&self) -> Vec<(FaultId, FaultRule, u64)> {
        self.rules
            .iter()
            .map(|a| (a.id, a.rule.clone(), a.hits))
            .collect()
    }

    /// Asks the rules about a call, and counts it against those that match.
    pub(crate) fn decide(&mut self, operation: &str, subject: &Subject) -> Decision {
        let mut decision = Decision::default();
        for armed in &mut self.rules {
            if !armed.rule.matches(operation, subject) {
                continue;
            }
            if armed
                .rule
                .times
                .is_some_and(|times| armed.hits >= u64::from(times))
            {
                continue;
            }
            let is_delay = matches!(armed.rule.action, FaultAction::Delay { .. });
            if !is_delay && decision.action.is_some() {
                continue;
            }
            armed.seen = armed.seen.saturating_add(1);
            if armed.seen <= armed.rule.skip {
                continue;
            }
            armed.hits += 1;
            match &armed.rule.action {
                FaultAction::Delay { millis } => decision.delay += Duration::from_millis(*millis),
                other => decision.action = Some(other.clone()),
            }
        }
        decision
    }
}
