//! The binary `shardfleet`.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use shardfleet_cli::args::{Args, LogFormat};
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    start_logging(&args);
    match shardfleet_cli::run_command(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.exit(),
    }
}

fn start_logging(args: &Args) {
    let default = match args.verbose {
        0 => "shardfleet=warn",
        1 => "shardfleet=info",
        _ => "shardfleet=debug",
    };
    let filter = EnvFilter::try_from_env("SHARDFLEET_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match args.log_format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}
