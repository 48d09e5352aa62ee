//! kinesis-local as a process of its own.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::TRANSITION;
use crate::client::Client;
use crate::probe::poll;

pub(crate) fn repository() -> PathBuf {
    // Asked for when this runs: clones may share a target folder.
    let own = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this");
    Path::new(&own).join("../..")
}

fn is_set(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|v| !v.is_empty() && v != "0" && v != "false")
}

/// Where kinesis-local is. `None` where it is absent and may be.
///
/// # Panics
/// Where it is absent and must not be.
pub(crate) fn find() -> Option<PathBuf> {
    let output = Command::new("bash")
        .arg(repository().join("scripts/peers.sh"))
        .args(["path", "kinesis-local"])
        .output();
    let problem = match output {
        Ok(output) if output.status.success() => {
            return Some(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("bash cannot be run: {error}"),
    };
    let advice = "install it with: scripts/peers.sh install (needs node and npm)";
    assert!(
        is_set("SHARDFLEET_WITHOUT_PEERS") && !is_set("CI"),
        "\n*** kinesis-local is needed for this test: {problem}\n*** {advice}\n*** Without it, outside CI, \
         SHARDFLEET_WITHOUT_PEERS=1 leaves this test out.\n"
    );
    #[expect(clippy::print_stderr, reason = "whoever leaves a test out is told, loudly")]
    {
        eprintln!(
            "*** NOT TESTED: the comparison with kinesis-local was left out (SHARDFLEET_WITHOUT_PEERS): {problem}\n*** {advice}"
        );
    }
    None
}

/// A running kinesis-local; it ends with this value, and with this process.
#[derive(Debug)]
pub(crate) struct Peer {
    process: Child,
    log: tempfile::NamedTempFile,
    port: u16,
}

impl Peer {
    /// Starts it and waits until it answers.
    pub(crate) async fn start(main_js: &Path) -> Self {
        let folder = main_js.parent().expect("a file is in a folder");
        let (port, tls_port) = free_ports();
        // A file, not a pipe: where nobody reads its warnings, calls that warn never answer.
        let log = tempfile::NamedTempFile::new().expect("a temporary file");
        let time = format!("{}ms", TRANSITION.as_millis());
        let mut command = Command::new("node");
        command
            .arg("-r")
            .arg(repository().join("peers/loopback.js"))
            .arg(main_js)
            .current_dir(folder)
            .env("KINESIS_MOCK_PLAIN_PORT", port.to_string())
            .env("KINESIS_MOCK_TLS_PORT", tls_port.to_string())
            .env("KINESIS_MOCK_CERT_PATH", folder.join("server.json"))
            .env("PEER_ENDS_WITH_STDIN", "1")
            .env("AWS_ACCOUNT_ID", shardfleet_local::ACCOUNT_ID)
            .env("AWS_REGION", shardfleet_local::REGION)
            .env("LOG_LEVEL", "WARN")
            .env("SHARD_LIMIT", "500")
            .env_remove("SHOULD_PERSIST_DATA")
            .env_remove("INITIALIZE_STREAMS");
        for what in [
            "CREATE_STREAM",
            "DELETE_STREAM",
            "DEREGISTER_STREAM_CONSUMER",
            "MERGE_SHARDS",
            "REGISTER_STREAM_CONSUMER",
            "SPLIT_SHARD",
            "START_STREAM_ENCRYPTION",
            "STOP_STREAM_ENCRYPTION",
            "UPDATE_SHARD_COUNT",
            "UPDATE_STREAM_MODE",
        ] {
            command.env(format!("{what}_DURATION"), &time);
        }
        let process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log.reopen().expect("the log can be opened"))
            .spawn()
            .unwrap_or_else(|e| {
                panic!("node cannot be run: {e}; scripts/peers.sh install says how to get it")
            });
        let mut peer = Self { process, log, port };
        let client = Client::new(port);
        poll("kinesis-local to answer", async || {
            peer.require_alive();
            let list = client.raw("Kinesis_20131202.ListStreams", json!({}).to_string().into_bytes());
            list.await.is_ok_and(|a| a.is_ok()).then_some(())
        })
        .await;
        peer
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    fn require_alive(&mut self) {
        if let Ok(Some(status)) = self.process.try_wait() {
            let text = std::fs::read_to_string(self.log.path()).unwrap_or_default();
            panic!("kinesis-local ended with {status}: {text}");
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Two ports that were free a moment ago.
fn free_ports() -> (u16, u16) {
    let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let (a, b) = (listen(), listen());
    let port = |l: &TcpListener| l.local_addr().expect("it listens").port();
    (port(&a), port(&b))
}
