//! The embedded Kinesis as a process of its own, for tests and benchmarks that need one; with `--dynamodb-port` DynamoDB too.
//!
//! `cargo run -p shardfleet-local --example serve -- --kinesis-port 4567 [--dynamodb-port 8000] [--data-dir DIR] [--limits] [--until-eof]`
//!
//! Prints the endpoint of Kinesis on its first line, that of DynamoDB, where asked for, on its second, and serves until it is
//! killed; with `--until-eof` also no longer than its standard input is open, so that it never outlives whoever started it.

use std::io::Read;
use std::path::PathBuf;

use shardfleet_local::{KinesisSettings, LocalDynamoDb, LocalKinesis, ServiceLimits};

struct Options {
    port: u16,
    dynamodb_port: Option<u16>,
    data_dir: Option<PathBuf>,
    limits: ServiceLimits,
    until_eof: bool,
}

fn options() -> Result<Options, String> {
    let mut options = Options {
        port: 0,
        dynamodb_port: None,
        data_dir: None,
        limits: ServiceLimits::off(),
        until_eof: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .ok_or_else(|| format!("{argument} needs a value"))
        };
        match argument.as_str() {
            "--kinesis-port" => options.port = port(&argument, &value()?)?,
            "--dynamodb-port" => options.dynamodb_port = Some(port(&argument, &value()?)?),
            "--data-dir" => options.data_dir = Some(value()?.into()),
            "--limits" => options.limits = ServiceLimits::aws(),
            "--until-eof" => options.until_eof = true,
            other => {
                return Err(format!(
                    "{other} is unknown: --kinesis-port, --dynamodb-port, --data-dir, --limits and --until-eof are known"
                ));
            }
        }
    }
    Ok(options)
}

fn port(name: &str, text: &str) -> Result<u16, String> {
    text.parse()
        .map_err(|_| format!("{name} {text}: 0 to 65535 is expected"))
}

#[expect(
    clippy::print_stdout,
    reason = "whoever started this process reads the endpoints here"
)]
fn tell(endpoint: &str) {
    println!("{endpoint}");
}

/// Returns once standard input has ended.
fn read_to_end() {
    let mut bytes = [0; 256];
    let mut input = std::io::stdin().lock();
    while input.read(&mut bytes).is_ok_and(|read| read > 0) {}
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = options()?;
    let settings = KinesisSettings::default().with_limits(options.limits);
    let mut builder = LocalKinesis::builder().port(options.port).settings(settings);
    let mut tables = LocalDynamoDb::builder().port(options.dynamodb_port.unwrap_or(0));
    if let Some(folder) = options.data_dir {
        builder = builder.data_dir(&folder);
        tables = tables.data_dir(folder);
    }
    let kinesis = builder.start().await?;
    tell(&kinesis.endpoint());
    let _dynamodb = if options.dynamodb_port.is_some() {
        let dynamodb = tables.start().await?;
        tell(&dynamodb.endpoint());
        Some(dynamodb)
    } else {
        None
    };
    if options.until_eof {
        tokio::task::spawn_blocking(read_to_end).await?;
    } else {
        std::future::pending::<()>().await;
    }
    Ok(())
}
