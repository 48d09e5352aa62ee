//! Reading through the public face, over HTTP, against an embedded Kinesis that can be made to fail.

mod another_stream;
mod data_loss;
mod failures;
mod iterators;
mod support;
mod throttling;
