//! Faults on demand, and counters.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What happens to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DynamoFault {
    /// It is not performed and answers `ProvisionedThroughputExceededException`.
    Throttle,
    /// It is not performed and answers HTTP 500 `InternalServerError`.
    InternalError,
    /// It is not performed and answers this error type with HTTP 400.
    Error(String),
    /// It is performed after so long.
    Delay(Duration),
    /// It is performed, and the connection is cut instead of an answer.
    LoseAnswer,
    /// It is not performed, and the connection is cut.
    Cut,
    /// A Query of an index is answered as it would have been when this rule was first met, as an index that lags does. Other calls are performed as usual.
    StaleIndex,
}

/// How often a rule acts.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum DynamoFaultTimes {
    /// Until it is removed.
    Always,
    /// So many times.
    Times(u64),
    /// On this share of the matching calls, 0 to 1, by chance from a seed.
    Share {
        /// The share.
        share: f64,
        /// Where chance starts; the same seed makes the same choices.
        seed: u64,
    },
}

/// A rule. The first that matches a call and has not run out acts.
#[derive(Clone, Debug, PartialEq)]
pub struct DynamoFaultRule {
    operation: Option<String>,
    table: Option<String>,
    body_contains: Option<String>,
    skip: u64,
    times: DynamoFaultTimes,
    fault: DynamoFault,
}

impl DynamoFaultRule {
    /// A rule for every call of `operation`, such as `UpdateItem`; `*` is every operation.
    pub fn on(operation: impl Into<String>, fault: DynamoFault) -> Self {
        let operation = operation.into();
        Self {
            operation: (operation != "*").then_some(operation),
            table: None,
            body_contains: None,
            skip: 0,
            times: DynamoFaultTimes::Always,
            fault,
        }
    }

    /// Only calls on this table.
    #[must_use]
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.table = Some(table.into());
        self
    }

    /// Only calls whose body holds this text, such as a lease key.
    #[must_use]
    pub fn containing(mut self, text: impl Into<String>) -> Self {
        self.body_contains = Some(text.into());
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

    fn matches(&self, operation: &str, body: &serde_json::Value, text: &[u8]) -> bool {
        self.operation.as_deref().is_none_or(|wanted| wanted == operation)
            && self
                .table
                .as_deref()
                .is_none_or(|wanted| body["TableName"].as_str() == Some(wanted))
            && self
                .body_contains
                .as_deref()
                .is_none_or(|wanted| contains(text, wanted.as_bytes()))
            && (self.fault != DynamoFault::StaleIndex || body["IndexName"].is_string())
    }

    /// Whether it acts on this matching call.
    fn acts(&mut self) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        match &mut self.times {
            DynamoFaultTimes::Always => true,
            DynamoFaultTimes::Times(left) => {
                let acts = *left > 0;
                *left = left.saturating_sub(1);
                acts
            }
            DynamoFaultTimes::Share { share, seed } => chance(seed) < *share,
        }
    }
}

fn contains(text: &[u8], wanted: &[u8]) -> bool {
    wanted.is_empty() || text.windows(wanted.len()).any(|window| window == wanted)
}

/// The next of a row of numbers from 0 to 1 (`splitmix64`).
fn chance(seed: &mut u64) -> f64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double exactly")]
    let unit = (z >> 11) as f64 / (1_u64 << 53) as f64;
    unit
}

/// Steers a running [`LocalDynamoDb`](super::LocalDynamoDb). Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct DynamoControls {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<DynamoFaultRule>,
    is_cut: bool,
    calls: BTreeMap<String, u64>,
    faults: u64,
    /// Answers of index queries as they were when a stale-index rule was first met, by request.
    stale_answers: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl DynamoControls {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a rule behind those there are.
    pub fn add_fault(&self, rule: DynamoFaultRule) {
        self.state().rules.push(rule);
    }

    /// Removes every rule and restores a cut service.
    pub fn clear_faults(&self) {
        let mut state = self.state();
        state.rules.clear();
        state.stale_answers.clear();
        state.is_cut = false;
    }

    /// Cuts every connection and performs nothing, until called with `false`.
    pub fn cut(&self, is_cut: bool) {
        self.state().is_cut = is_cut;
    }

    /// How many calls of `operation` came, those that a fault met included.
    pub fn calls(&self, operation: &str) -> u64 {
        self.state().calls.get(operation).copied().unwrap_or(0)
    }

    /// The calls of every operation.
    pub fn all_calls(&self) -> BTreeMap<String, u64> {
        self.state().calls.clone()
    }

    /// How many calls a fault met.
    pub fn faults(&self) -> u64 {
        self.state().faults
    }

    /// Counts from nothing again.
    pub fn reset_calls(&self) {
        let mut state = self.state();
        state.calls.clear();
        state.faults = 0;
    }

    /// Counts a call and says what is to happen to it.
    pub(super) fn on_call(&self, operation: &str, body: &[u8]) -> Option<DynamoFault> {
        let mut state = self.state();
        *state.calls.entry(operation.to_owned()).or_default() += 1;
        if state.is_cut {
            state.faults += 1;
            return Some(DynamoFault::Cut);
        }
        if state.rules.is_empty() {
            return None;
        }
        let json = serde_json::from_slice(body).unwrap_or(serde_json::Value::Null);
        let rules = state.rules.iter_mut();
        let fault = rules
            .filter(|rule| rule.matches(operation, &json, body))
            .find_map(|rule| rule.acts().then(|| rule.fault.clone()));
        state.faults += u64::from(fault.is_some());
        fault
    }

    /// The answer that a stale index gives to this request, once there is one.
    pub(super) fn stale_answer(&self, request: &[u8]) -> Option<Vec<u8>> {
        self.state().stale_answers.get(request).cloned()
    }

    pub(super) fn keep_stale_answer(&self, request: Vec<u8>, answer: Vec<u8>) {
        self.state().stale_answers.entry(request).or_insert(answer);
    }
}
