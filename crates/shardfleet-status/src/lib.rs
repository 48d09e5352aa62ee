//! Statuses of connectors and their tasks, kept as Kafka Connect keeps them.
//!
//! A [`StatusStore`] takes statuses in without ever holding its caller, writes them in order of their keys, tries again as KIP-1278 says, and shows what all
//! writers have written. [`MemoryStatusStore`] keeps them in this process; [`KafkaStatusStore`] on a compacted topic that Connect and its tools can read.
//!
//! ```
//! use shardfleet_status::{MemoryStatusStore, StatusKey, StatusState, StatusStore, WorkStatus};
//!
//! let store = MemoryStatusStore::new();
//! let status = WorkStatus {
//!     state: StatusState::Running,
//!     trace: None,
//!     worker_id: "worker-1".to_owned(),
//!     generation: 7,
//!     version: Some("shardfleet-0.1.0".to_owned()),
//! };
//! store.put(&StatusKey::task("orders", 0), status.clone().into()).expect("taken");
//! assert_eq!(store.view().task("orders", 0), Some(&status));
//! ```

pub mod codec;
pub mod conformance;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod log;
mod logged;
mod memory;
pub mod metrics;
mod store;
mod writer;

pub use shardfleet_core::status::{
    Counters, LateStatus, Outcome, RetrySettings, StatusKey, StatusState, StatusValue, StatusView,
    TopicStatus, WorkStatus,
};

#[cfg(feature = "kafka")]
pub use kafka::{KafkaSettings, KafkaStatusStore};
pub use log::StatusLog;
pub use logged::{LoggedStatusStore, StatusReader};
pub use memory::MemoryStatusStore;
pub use store::{CloseReport, StatusChange, StatusError, StatusStore};
