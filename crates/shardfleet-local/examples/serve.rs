//! The embedded Kinesis as a process of its own, for tests and benchmarks that need one.
//!
//! `cargo run -p shardfleet-local --example serve -- --kinesis-port 4567 [--data-dir DIR] [--limits]`
//!
//! Prints the endpoint on its first line and serves until it is killed.

use std::path::PathBuf;

use shardfleet_local::{KinesisSettings, LocalKinesis, ServiceLimits};

struct Options {
    port: u16,
    data_dir: Option<PathBuf>,
    limits: ServiceLimits,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        port: 0,
        data_dir: None,
        limits: ServiceLimits::off(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .ok_or_else(|| format!("{argument} needs a value"))
        };
        match argument.as_str() {
            "--kinesis-port" => {
                let text = value()?;
                options.port = text
                    .parse()
                    .map_err(|_| format!("--kinesis-port {text}: 0 to 65535 is expected"))?;
            }
            "--data-dir" => options.data_dir = Some(value()?.into()),
            "--limits" => options.limits = ServiceLimits::aws(),
            other => {
                return Err(format!(
                    "{other} is unknown: --kinesis-port, --data-dir and --limits are"
                ));
            }
        }
    }
    Ok(options)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = options()?;
    let settings = KinesisSettings::default().with_limits(options.limits);
    let mut builder = LocalKinesis::builder().port(options.port).settings(settings);
    if let Some(folder) = options.data_dir {
        builder = builder.data_dir(folder);
    }
    let kinesis = builder.start().await?;
    #[expect(
        clippy::print_stdout,
        reason = "whoever started this process reads the endpoint here"
    )]
    {
        println!("{}", kinesis.endpoint());
    }
    std::future::pending::<()>().await;
    Ok(())
}
