//! The examples run by themselves and succeed.
#![allow(dead_code, reason = "each example has a main of its own")]

#[path = "../examples/custom_store.rs"]
mod custom_store;
#[path = "../examples/dead_letter.rs"]
mod dead_letter;
#[path = "../examples/hello_local.rs"]
mod hello_local;
#[path = "../examples/manual_checkpoint.rs"]
mod manual_checkpoint;
#[path = "../examples/reshard.rs"]
mod reshard;

use std::error::Error;
use std::time::Duration;

async fn succeeds(example: impl Future<Output = Result<(), Box<dyn Error>>>) {
    let ended = tokio::time::timeout(Duration::from_secs(30), example).await;
    ended.expect("in time").expect("success");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hello_local() {
    succeeds(hello_local::run()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manual_checkpoint() {
    succeeds(manual_checkpoint::run()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reshard() {
    succeeds(reshard::run()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letter() {
    succeeds(dead_letter::run()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_store() {
    succeeds(custom_store::run()).await;
}
