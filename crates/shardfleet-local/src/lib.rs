//! Embedded Kinesis and DynamoDB in this process, over loopback HTTP.
//!
//! Both speak the services' own protocols, so any AWS SDK or CLI can use them with [`REGION`], the dummy credentials
//! [`ACCESS_KEY_ID`] and [`SECRET_ACCESS_KEY`], and the endpoint that they report. They are meant for a first run without an
//! AWS account, for our tests, and for the tests of users: clocks can be set, limits switched on, and calls made to fail.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use shardfleet_local::{FaultAction, FaultRule, LocalKinesis};
//!
//! let kinesis = LocalKinesis::builder().start().await?;
//! let controls = kinesis.controls();
//! controls.create_stream("orders", 2)?;
//! controls.put("orders", "customer-7", "an order")?;
//! controls.add_fault(FaultRule::new("GetRecords", FaultAction::throttled()).times(3));
//! println!("point your client at {}", kinesis.endpoint());
//! kinesis.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! Never for production: nothing is replicated, nothing is authenticated, everything is held in memory.

mod clock;
mod controls;
pub mod dynamodb;
mod error;
mod faults;
mod http_controls;
mod journal;
mod kinesis;
mod model;
mod ops;
mod server;
mod service;
mod settings;
mod subscribe;
mod wire;

pub use controls::{KinesisControls, PutReceipt, ShardView};
pub use dynamodb::{
    DynamoControls, DynamoFault, DynamoFaultId, DynamoFaultRule, DynamoFaultTimes, DynamoLag, LocalDynamoDb,
    LocalDynamoDbBuilder, LocalDynamoDbError, MAX_DYNAMO_FAULT_RULES, MAX_LAGGING_WRITES,
};
pub use error::LocalError;
pub use faults::{FaultAction, FaultId, FaultRule, MAX_FAULT_RULES};
pub use kinesis::{LocalKinesis, LocalKinesisBuilder};
pub use model::ServiceLimits;
pub use settings::KinesisSettings;

/// The region that the embedded services are in.
pub const REGION: &str = "us-east-1";
/// The account that everything belongs to.
pub const ACCOUNT_ID: &str = "000000000000";
/// An access key for clients that insist on one; nobody checks it.
pub const ACCESS_KEY_ID: &str = "local";
/// A secret key for clients that insist on one; nobody checks it.
pub const SECRET_ACCESS_KEY: &str = "local";
