//! The handle that steers a running database: faults, lag, outages and counters.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::call::Call;
use super::faults::{Decision, DynamoFault, DynamoFaultId, DynamoFaultRule, FaultTable};
use super::lag::DynamoLag;

/// Most pairs of operation and table that are counted apart; calls beyond are counted for their operation only.
const COUNTED_TABLES_MAX: usize = 10_000;

/// Steers a running [`LocalDynamoDb`](super::LocalDynamoDb). Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct DynamoControls {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    rules: FaultTable,
    is_cut: bool,
    lag: Option<DynamoLag>,
    /// Rises whenever a lag begins, so that each begins with what is there by then.
    lags_begun: u64,
    calls: BTreeMap<String, u64>,
    table_calls: BTreeMap<(String, String), u64>,
    faults: u64,
}

impl DynamoControls {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a rule behind those there are.
    pub fn add_fault(&self, rule: DynamoFaultRule) -> DynamoFaultId {
        self.state().rules.add(rule)
    }

    /// Takes a rule back. Unknown ids are ignored.
    pub fn remove_fault(&self, id: DynamoFaultId) {
        self.state().rules.remove(id);
    }

    /// All rules in order, with how often each has acted.
    pub fn fault_rules(&self) -> Vec<(DynamoFaultId, DynamoFaultRule, u64)> {
        self.state().rules.list()
    }

    /// How often a rule has acted; 0 where it is gone.
    pub fn hits(&self, id: DynamoFaultId) -> u64 {
        self.state().rules.hits(id)
    }

    /// Takes back every rule, restores a cut service and ends a lag.
    pub fn clear_faults(&self) {
        let mut state = self.state();
        state.rules.clear();
        state.lag = None;
        state.is_cut = false;
    }

    /// Cuts every connection and performs nothing, until called with `false`. Calls that are under way lose their answers.
    pub fn cut(&self, is_cut: bool) {
        self.state().is_cut = is_cut;
    }

    /// Whether the service is cut.
    pub fn is_cut(&self) -> bool {
        self.state().is_cut
    }

    /// Lets reads lag behind writes from now on; `None`, as at the start, ends it.
    ///
    /// A lag begins with the items that are there now. Another lag in its place goes on from what the first one shows.
    pub fn set_lag(&self, lag: Option<DynamoLag>) {
        let mut state = self.state();
        if state.lag.is_none() && lag.is_some() {
            state.lags_begun += 1;
        }
        state.lag = lag;
    }

    /// The lag in force.
    pub fn lag(&self) -> Option<DynamoLag> {
        self.state().lag
    }

    /// How many calls of `operation` came, those that a fault met included.
    pub fn calls(&self, operation: &str) -> u64 {
        self.state().calls.get(operation).copied().unwrap_or(0)
    }

    /// How many calls of `operation` on `table` came. A call on several tables counts for each.
    pub fn calls_on(&self, operation: &str, table: &str) -> u64 {
        let key = (operation.to_owned(), table.to_owned());
        self.state().table_calls.get(&key).copied().unwrap_or(0)
    }

    /// The calls of every operation.
    pub fn all_calls(&self) -> BTreeMap<String, u64> {
        self.state().calls.clone()
    }

    /// The calls of every operation by table: operation, table, count.
    pub fn all_calls_by_table(&self) -> BTreeMap<(String, String), u64> {
        self.state().table_calls.clone()
    }

    /// How many calls a fault met, a delay and an outage included.
    pub fn faults(&self) -> u64 {
        self.state().faults
    }

    /// Counts from nothing again.
    pub fn reset_calls(&self) {
        let mut state = self.state();
        state.calls.clear();
        state.table_calls.clear();
        state.faults = 0;
    }

    /// Counts a call and says what is to happen to it.
    pub(super) fn on_call(&self, call: &Call) -> Decision {
        let mut state = self.state();
        let known = state.calls.len() < COUNTED_TABLES_MAX || state.calls.contains_key(&call.operation);
        if known {
            *state.calls.entry(call.operation.clone()).or_default() += 1;
        }
        for table in &call.tables {
            let key = (call.operation.clone(), table.clone());
            if state.table_calls.len() < COUNTED_TABLES_MAX || state.table_calls.contains_key(&key) {
                *state.table_calls.entry(key).or_default() += 1;
            }
        }
        let decision = if state.is_cut {
            Decision {
                fault: Some(DynamoFault::Cut),
                ..Decision::default()
            }
        } else {
            state.rules.decide(call)
        };
        state.faults += u64::from(decision.fault.is_some() || !decision.delay.is_zero());
        decision
    }

    /// The lag in force and the number of its beginning.
    pub(super) fn lag_and_beginning(&self) -> Option<(DynamoLag, u64)> {
        let state = self.state();
        state.lag.map(|lag| (lag, state.lags_begun))
    }
}
