//! Finds out what kind of place this process runs in.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use shardfleet_core::worker_metrics::Platform;

use super::http::Agent;
use super::{Files, MetricError};
use crate::clock::{Clock, sleep};

const TOKEN: &str = "var/run/secrets/kubernetes.io/serviceaccount/token";
pub(super) const CGROUP_V2: &str = "sys/fs/cgroup/cgroup.controllers";
const CGROUP_V1: [&str; 2] = ["sys/fs/cgroup/memory", "sys/fs/cgroup/cpu"];
const PROC_STAT: &str = "proc/stat";

/// What firmware says about its maker: Nitro instances by name, the older Xen ones by the version of their BIOS.
const DMI: [&str; 5] = [
    "sys/class/dmi/id/sys_vendor",
    "sys/class/dmi/id/board_vendor",
    "sys/class/dmi/id/bios_vendor",
    "sys/class/dmi/id/chassis_vendor",
    "sys/class/dmi/id/bios_version",
];

/// The instance metadata service starts with the machine, and a worker may too.
const ATTEMPTS: u32 = 3;

/// The surroundings of a worker, as they can be replaced in tests.
#[derive(Clone, Debug)]
pub struct MetricsEnvironment {
    /// Below this the files of the kernel are looked for: `/`.
    pub root: PathBuf,
    /// The operating system is Linux.
    pub is_linux: bool,
    /// The value of `ECS_CONTAINER_METADATA_URI`.
    pub ecs_metadata_uri: Option<String>,
    /// The value of `ECS_CONTAINER_METADATA_URI_V4`.
    pub ecs_metadata_uri_v4: Option<String>,
    /// Where EC2 answers: `http://169.254.169.254`. Only loopback and link-local addresses are ever asked.
    pub instance_metadata_uri: String,
}

impl MetricsEnvironment {
    /// The environment of this process.
    pub fn from_process() -> Self {
        let variable = |name| std::env::var(name).ok();
        Self {
            root: PathBuf::from("/"),
            is_linux: cfg!(target_os = "linux"),
            ecs_metadata_uri: variable("ECS_CONTAINER_METADATA_URI"),
            ecs_metadata_uri_v4: variable("ECS_CONTAINER_METADATA_URI_V4"),
            instance_metadata_uri: "http://169.254.169.254".to_owned(),
        }
    }

    pub(super) fn files(&self, clock: &Arc<dyn Clock>) -> Files {
        Files::new(&self.root, clock.clone())
    }

    pub(super) fn ecs_v4_uri(&self) -> Option<&str> {
        not_empty(self.ecs_metadata_uri_v4.as_ref())
    }

    /// Looks around. Takes up to half a minute on an EC2 instance whose metadata service does not answer.
    pub(super) async fn platform(&self, clock: &Arc<dyn Clock>) -> Platform {
        let files = self.files(clock);
        let is_there = async |path| files.exists(path).await.unwrap_or(false);
        let mut platform = Platform {
            is_linux: self.is_linux,
            ecs_v3_uri: not_empty(self.ecs_metadata_uri.as_ref()).is_some(),
            ecs_v4_uri: self.ecs_v4_uri().is_some(),
            kubernetes_token: is_there(TOKEN).await,
            cgroup_v2: is_there(CGROUP_V2).await,
            cgroup_v1: is_there(CGROUP_V1[0]).await || is_there(CGROUP_V1[1]).await,
            ec2: false,
            proc_stat: is_there(PROC_STAT).await,
        };
        let elsewhere = platform.ecs_v3_uri || platform.ecs_v4_uri || platform.kubernetes_token;
        if !elsewhere && self.is_linux && firmware_is_amazons(&files).await {
            platform.ec2 = self.instance_answers(&**clock).await;
        }
        platform
    }

    /// Whether the instance metadata service, version 2, describes the instance (`KCL: Ec2Resource`, which tries once, for up to twenty seconds).
    async fn instance_answers(&self, clock: &dyn Clock) -> bool {
        for attempt in 1..=ATTEMPTS {
            match self.ask_instance(clock).await {
                Ok(()) => return true,
                Err(error) => {
                    tracing::debug!(%error, attempt, "the instance metadata service did not answer");
                }
            }
            if attempt < ATTEMPTS {
                sleep(clock, Duration::from_secs(u64::from(attempt) * 4)).await;
            }
        }
        false
    }

    async fn ask_instance(&self, clock: &dyn Clock) -> Result<(), MetricError> {
        let service = Agent::new(&self.instance_metadata_uri)?;
        let seconds = Some(("x-aws-ec2-metadata-token-ttl-seconds", "600"));
        let token = service
            .send(clock, Method::PUT, "/latest/api/token", seconds)
            .await?;
        let path = "/latest/dynamic/instance-identity/document";
        let token = String::from_utf8_lossy(&token);
        let header = Some(("x-aws-ec2-metadata-token", token.trim()));
        service.send(clock, Method::GET, path, header).await.map(drop)
    }
}

async fn firmware_is_amazons(files: &Files) -> bool {
    for path in DMI {
        if let Ok(Some(text)) = files.read_if_there(path).await
            && text.to_ascii_lowercase().contains("amazon")
        {
            return true;
        }
    }
    false
}

fn not_empty(text: Option<&String>) -> Option<&str> {
    text.map(|text| text.trim()).filter(|text| !text.is_empty())
}
