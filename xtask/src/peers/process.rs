//! Processes that never outlive the harness, and signals.

use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use super::time::wait;

/// A process that is killed when its owner is done with it.
pub(crate) struct Owned(Child);

impl Owned {
    /// Starts it.
    pub(crate) fn start(command: &mut Command) -> Result<Self, String> {
        command
            .spawn()
            .map(Self)
            .map_err(|e| format!("starting {}: {e}", Path::new(command.get_program()).display()))
    }

    /// The process itself.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// SIGKILL, if it still runs.
    pub(crate) fn kill(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }

    /// How it ended; `None` while it runs.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>, String> {
        self.0
            .try_wait()
            .map_err(|e| format!("asking for a process: {e}"))
    }

    /// Sends a signal, such as `TERM`, if it still runs.
    pub(crate) fn signal(&mut self, name: &str) -> Result<(), String> {
        if self.ended()?.is_some() {
            return Ok(());
        }
        let pid = self.0.id().to_string();
        // The shell has `kill` built in, so that no further package is needed.
        let status = Command::new("sh")
            .args(["-c", "kill -s \"$0\" \"$1\"", name, &pid])
            .status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("kill -s {name} {pid}: {status}")),
            Err(e) => Err(format!("kill -s {name} {pid}: {e}")),
        }
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self, what: &str, limit: Duration) -> Result<ExitStatus, String> {
        wait(what, limit, || self.ended(), || "it still runs".to_owned())
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.kill();
    }
}
