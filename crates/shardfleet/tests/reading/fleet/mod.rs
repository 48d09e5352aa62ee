//! Several workers share one stream: each test has a stream that records flow through, and books of who was given what.

mod costs;
mod failing;
mod handoffs;
mod joining;
mod leaving;
mod rows;
mod standstills;
mod store_faults;
mod support;
