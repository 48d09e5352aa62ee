//! Automation of the workspace: `cargo xtask --help`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod peers;
mod sim;
mod tidy;

/// Automation of the workspace.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check what no compiler checks: arrows between crates, clocks in the core, file lengths, left-over words.
    Tidy,
    /// Measure.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Run our workers beside other people's.
    #[command(subcommand)]
    Peers(peers::Peers),
    /// Simulate whole fleets in virtual time: faults, invariants, and the seed that replays a violation.
    Sim(sim::Sim),
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Tidy => tidy::run().map(|()| "tidy: nothing found".to_owned()),
        Command::Bench(bench) => bench::run(&bench),
        Command::Peers(peers) => peers::run(&peers),
        Command::Sim(args) => sim::run(&args),
    };
    match result {
        Ok(message) => {
            print(&message);
            ExitCode::SUCCESS
        }
        Err(message) => {
            say(&message);
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::print_stdout, reason = "a command-line tool talks to its user")]
fn print(message: &str) {
    println!("{message}");
}

#[expect(clippy::print_stderr, reason = "a command-line tool talks to its user")]
fn say(message: &str) {
    eprintln!("{message}");
}
