//! Real Kafka parts, run by the scripts of `peers/kafka`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn script(name: &str) -> PathBuf {
    // Asked for when this runs: clones may share a target folder. Where cargo does not run this, it is run at the repository's root.
    let own = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| "crates/shardfleet-status".into());
    Path::new(&own).join("../../peers/kafka").join(name)
}

/// Runs a script with something on its standard input; what it printed.
pub(crate) fn run(name: &str, arguments: &[&str], input: &str) -> Result<String, String> {
    let said = || format!("{name} {}", arguments.join(" "));
    let mut child = Command::new(script(name))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{}: {error}", said()))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).ok();
    }
    let output = child
        .wait_with_output()
        .map_err(|error| format!("{}: {error}", said()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(format!(
            "{}: {}",
            said(),
            String::from_utf8_lossy(&output.stderr).trim()
        ))
    }
}

/// A broker. It ends when dropped; its data goes with the folder.
pub(crate) struct Broker {
    folder: String,
    /// `HOST:PORT` of its plain listener.
    pub(crate) bootstrap: String,
}

impl Broker {
    pub(crate) fn start(folder: &Path, more: &[&str]) -> Result<Self, String> {
        let folder = folder.display().to_string();
        let mut arguments = vec!["start", "--port", "0", "--dir", &folder];
        arguments.extend(more);
        let bootstrap = run("broker.sh", &arguments, "")?;
        Ok(Self { folder, bootstrap })
    }

    /// `stop`, `kill`, `pause`, `resume`, or `start` again.
    pub(crate) fn tell(&self, what: &str) -> Result<String, String> {
        run("broker.sh", &[what, "--dir", &self.folder], "")
    }

    /// Another listener's address: `sasl` or `tls`.
    pub(crate) fn listener(&self, name: &str) -> Result<String, String> {
        let status = self.tell("status")?;
        let of_name = status
            .split(' ')
            .find_map(|part| part.strip_prefix(&format!("{name}=")));
        of_name.map(str::to_owned).ok_or(status)
    }

    pub(crate) fn pid(&self) -> String {
        let status = self.tell("status").unwrap_or_default();
        status
            .split(' ')
            .find(|part| part.starts_with("pid="))
            .unwrap_or("pid=?")
            .to_owned()
    }

    pub(crate) fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    /// Connect's own store and the stock clients.
    pub(crate) fn judge(
        &self,
        command: &[&str],
        topic: &str,
        more: &[&str],
        input: &str,
    ) -> Result<String, String> {
        let mut arguments = command.to_vec();
        arguments.extend(["--bootstrap", &self.bootstrap, "--topic", topic]);
        arguments.extend(more);
        run("judge.sh", &arguments, input)
    }

    /// What Connect's own store holds after reading the topic.
    pub(crate) fn judged(&self, topic: &str) -> Result<Value, String> {
        parse(&self.judge(&["read"], topic, &[], "")?)
    }

    pub(crate) fn create(&self, topic: &str, more: &[&str]) -> Result<(), String> {
        let policy = ["--config", "cleanup.policy=compact"];
        let mut arguments = policy.to_vec();
        arguments.extend(more);
        self.judge(&["topic", "create"], topic, &arguments, "")
            .map(|_| ())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.tell("kill").ok();
    }
}

/// A Connect worker. It ends when dropped.
pub(crate) struct Connect {
    folder: String,
}

impl Connect {
    pub(crate) fn start(folder: &Path, bootstrap: &str) -> Result<Self, String> {
        let folder = folder.display().to_string();
        let arguments = ["start", "--port", "0", "--dir", &folder, "--bootstrap", bootstrap];
        run("connect.sh", &arguments, "")?;
        Ok(Self { folder })
    }
}

impl Drop for Connect {
    fn drop(&mut self) {
        run("connect.sh", &["kill", "--dir", &self.folder], "").ok();
    }
}

pub(crate) fn parse(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("{error}: {text}"))
}

/// How long something took.
pub(crate) struct Watch(Instant);

#[expect(clippy::disallowed_methods, reason = "a watch for figures that are printed")]
impl Watch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }
}

impl Watch {
    pub(crate) fn time(&self) -> Duration {
        self.0.elapsed()
    }
}
