//! The commands of the binary `shardfleet`, as a library so that tests can run them in their own process.
//!
//! Only this crate reads files, environment and arguments. It composes the library's parts and decides nothing about leases or records.

pub mod args;
mod aws;
pub mod dev;
mod exit;
mod output;
mod redrive;
mod rest;
mod run;
mod stamp;
mod status;
mod tail;

pub use exit::Failure;

/// Runs the command that `args` names, to its end.
///
/// # Errors
/// What went wrong, with the exit code: 1 for a failed run, 2 for a mistake in arguments or config.
pub async fn run_command(args: args::Args) -> Result<(), Failure> {
    match args.command {
        args::Command::Dev(dev) => dev::run(dev).await,
        args::Command::Tail(tail) => tail::run(tail).await,
        args::Command::Run(run) => run::run(run).await,
        args::Command::Status(status) => status::run(status).await,
        args::Command::Redrive(redrive) => redrive::run(redrive).await,
    }
}
