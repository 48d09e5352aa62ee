//! Simulates fleets, seed by seed: builds the simulation with optimisations and runs it.

use std::process::Command;

use clap::Args;

/// Which seeds, and how the outcome is told.
#[derive(Args)]
pub(crate) struct Sim {
    /// How many seeds; each is 26 virtual minutes of one fleet.
    #[arg(long, default_value_t = 20)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Plant this bug, to see that it is found.
    #[arg(long)]
    mutation: Option<String>,
    /// Print the outcome as JSON.
    #[arg(long)]
    json: bool,
    /// Show the events before the first violation.
    #[arg(long)]
    trace: bool,
}

/// Runs the simulation, which prints its progress and its outcome itself.
pub(crate) fn run(sim: &Sim) -> Result<String, String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--release", "--package", "shardfleet-sim"]);
    cargo.args(["--example", "seeds", "--"]);
    cargo.args(["--seeds", &sim.seeds.to_string(), "--seed", &sim.seed.to_string()]);
    if let Some(mutation) = &sim.mutation {
        cargo.args(["--mutation", mutation]);
    }
    cargo.args(sim.json.then_some("--json"));
    cargo.args(sim.trace.then_some("--trace"));
    let status = cargo
        .status()
        .map_err(|e| format!("cargo cannot be started: {e}"))?;
    if status.success() {
        Ok(String::new())
    } else {
        Err("sim: failed; see above for what and how to replay it".to_owned())
    }
}
