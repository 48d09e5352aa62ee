//! How a command ends when it does not end well.

use std::process::ExitCode;

/// A command that failed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// 1: the run failed, or records are missing. 2: a mistake in the arguments or the config file.
    pub code: u8,
    /// What went wrong and what to do; empty when it was said already.
    pub message: String,
}

impl Failure {
    /// The run failed.
    pub fn run(message: impl Into<String>) -> Self {
        Self {
            code: 1,
            message: message.into(),
        }
    }

    /// The user asked for something that makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self {
            code: 2,
            message: message.into(),
        }
    }

    /// Prints the message and turns into the exit code.
    pub fn exit(self) -> ExitCode {
        if !self.message.is_empty() {
            crate::output::say(&format!("error: {}", self.message));
        }
        ExitCode::from(self.code)
    }
}

impl From<shardfleet::KinesisError> for Failure {
    fn from(error: shardfleet::KinesisError) -> Self {
        let code = match error.kind() {
            shardfleet::ErrorKind::Invalid => 2,
            _ => 1,
        };
        Self {
            code,
            message: error.full_text(),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::run(error.to_string())
    }
}

/// An error with everything below it.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let below = std::iter::successors(error.source(), |cause| cause.source());
    below.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
