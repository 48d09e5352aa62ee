//! The embedded DynamoDB over HTTP: it is a database, and it fails on demand.

mod client;
mod controls;
mod faults;
mod lag;
mod persistence;
mod tables;
