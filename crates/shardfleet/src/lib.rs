//! Reads Amazon Kinesis Data Streams with a fleet of workers and no JVM.
//!
//! A [`KinesisStream`] says which stream is read on behalf of which application. [`KinesisStream::subscribe`] gives a [`Subscription`]: a stream of
//! records, in order within each shard, to be acked in any order. [`KinesisStream::process`] calls a [`RecordProcessor`] of yours for each shard instead.
//! Checkpoints and leases are kept in a [`store::LeaseStore`]: in memory, in a SQLite file, or in the DynamoDB table of the Java KCL 3.x.
//!
//! ```no_run
//! use futures::StreamExt;
//! use shardfleet::{AwsKinesis, KinesisStream};
//!
//! # async fn example() -> Result<(), shardfleet::KinesisError> {
//! let stream = KinesisStream::builder("orders", AwsKinesis::from_env().await)
//!     .application("order-mailer")
//!     .build()?;
//! let mut subscription = stream.subscribe().await?;
//! while let Some(item) = subscription.next().await {
//!     match item {
//!         Ok(delivery) => {
//!             println!("{} {}", delivery.position, String::from_utf8_lossy(&delivery.data));
//!             delivery.ack();
//!         }
//!         Err(error) if error.is_fatal() => return Err(error),
//!         Err(error) => eprintln!("{error}; reading goes on"),
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod aws;
pub mod dead_letter;
mod engine;
mod error;
mod fleet_settings;
pub mod kinesis;
mod processor;
mod record;
mod settings;
pub mod store;
mod stream;
mod subscription;
pub mod worker_metrics;

pub use aws::{AwsSettings, AwsSettingsBuilder};
pub use engine::{
    FleetShard, FleetStatus, ShardOutcome, ShardReport, ShardStatus, ShutdownReport, WorkerStatus,
};
pub use error::{ErrorKind, KinesisError, ProcessorError, SettingsError, SettingsProblem};
pub use fleet_settings::FleetSettings;
pub use kinesis::AwsKinesis;
pub use processor::{
    CheckpointError, Checkpointer, ErrorPolicy, InitializationInput, ProcessRecordsInput, RecordProcessor,
    RecordProcessorFactory,
};
pub use record::{Ack, Delivery, DeliveryBatch, Record};
pub use settings::Aggregates;
pub use shardfleet_clock as clock;
pub use stream::{KinesisStream, KinesisStreamBuilder, StopHandle};
pub use subscription::{BatchSubscription, Subscription, SubscriptionHandle};

pub use async_trait::async_trait;
pub use bytes::Bytes;
pub use shardfleet_core as core;
pub use shardfleet_core::ids::{ApplicationName, LeaseKey, ShardId, StreamName, WorkerId};
pub use shardfleet_core::kpl::HashRangeFilter;
pub use shardfleet_core::lease::{Control, ControlRequest, TargetState};
pub use shardfleet_core::position::KinesisPosition;
pub use shardfleet_core::read_budget::ReadLimits;
pub use shardfleet_core::retry::Backoff;
pub use shardfleet_core::sequence::{ExtendedSequenceNumber, SequenceNumber};
pub use shardfleet_core::time::Timestamp;
pub use shardfleet_status as status;
