//! Reading through the public face, over HTTP, against an embedded Kinesis that can be made to fail.

mod acks;
mod another_stream;
mod batches;

mod controls;
mod data_loss;
mod failover;
mod failures;
mod fleet;
mod handlers;
mod iterators;
mod many;
mod positions;
mod processors;
mod resharding;
mod script;
mod settings;
mod statuses;
mod stopping;
mod support;
mod throttling;
