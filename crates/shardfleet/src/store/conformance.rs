//! What a [`LeaseStore`] promises, as a suite that runs on any implementation, yours included.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use std::sync::Arc;
//! use shardfleet::store::{LeaseStore, MemoryLeaseStore, StoreError, conformance};
//!
//! let report = conformance::run(|| async {
//!     Ok::<_, StoreError>(Arc::new(MemoryLeaseStore::new()) as Arc<dyn LeaseStore>)
//! })
//! .await;
//! report.assert_passed();
//! # }
//! ```
//!
//! Every case gets a fresh, empty store from the function, prepares it, and fails with the rule that was broken. What a write
//! must do is not written down a second time: it is [`LeaseWrite::apply`](shardfleet_core::lease::LeaseWrite::apply), and the
//! cases hold the store against it over many rows.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::{LeaseStore, StoreError};

mod cases;
mod lock;
mod metrics;
pub(crate) mod samples;
mod writes;

/// A broken rule: what was done, what was expected, what came.
type Verdict = Result<(), String>;
type CaseBody = fn(Arc<dyn LeaseStore>) -> BoxFuture<'static, Verdict>;

/// One case of the suite.
struct Case {
    name: &'static str,
    body: CaseBody,
}

/// How the suite came out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConformanceReport {
    /// The names of the cases that passed.
    pub passed: Vec<&'static str>,
    /// The cases that did not.
    pub failed: Vec<ConformanceFailure>,
}

/// A case that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConformanceFailure {
    /// The case's name.
    pub case: &'static str,
    /// Which rule was broken, and how.
    pub rule: String,
}

impl ConformanceReport {
    /// For tests.
    ///
    /// # Panics
    /// When a case failed, with the whole report.
    pub fn assert_passed(&self) {
        assert!(self.failed.is_empty(), "{self}");
    }
}

impl fmt::Display for ConformanceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} cases passed",
            self.passed.len(),
            self.passed.len() + self.failed.len()
        )?;
        for ConformanceFailure { case, rule } in &self.failed {
            write!(f, "\n{case}: {rule}")?;
        }
        Ok(())
    }
}

/// Runs every case, each on a store that `make` makes for it: empty and not shared with anything else. Needs a Tokio runtime
/// with time enabled.
pub async fn run<F, Made>(make: F) -> ConformanceReport
where
    F: Fn() -> Made,
    Made: Future<Output = Result<Arc<dyn LeaseStore>, StoreError>>,
{
    let mut report = ConformanceReport::default();
    for case in cases::ALL {
        let verdict = match make().await {
            Ok(store) => run_case(case, store).await,
            Err(error) => Err(format!("no store was made: {error}")),
        };
        match verdict {
            Ok(()) => report.passed.push(case.name),
            Err(rule) => report.failed.push(ConformanceFailure {
                case: case.name,
                rule,
            }),
        }
    }
    report
}

async fn run_case(case: &Case, store: Arc<dyn LeaseStore>) -> Verdict {
    store
        .prepare()
        .await
        .map_err(|error| format!("prepare must succeed on a fresh store: {error}"))?;
    (case.body)(store).await
}
