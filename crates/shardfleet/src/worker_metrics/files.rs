//! Small files of the kernel, read within bounds and off the runtime's threads.

use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::MetricError;
use crate::clock::{Clock, within};

/// More of a file than this is not looked at. The longest are `/proc/net/dev` and `/proc/stat` of big machines.
const BYTES_MAX: u64 = 256 << 10;
/// Within this a file has to be read. Files of the kernel answer at once, but a container's may come from a file system in user space.
const DEADLINE: Duration = Duration::from_secs(2);

/// The files below a root folder. A reading that hangs costs one thread at most: until it returns, further ones fail at once.
#[derive(Clone)]
pub struct Files {
    root: Arc<Path>,
    clock: Arc<dyn Clock>,
    free: Arc<Semaphore>,
}

impl Files {
    /// The files below `root`, `/` on a real machine.
    pub fn new(root: impl Into<PathBuf>, clock: Arc<dyn Clock>) -> Self {
        Self {
            root: Arc::from(root.into()),
            clock,
            free: Arc::new(Semaphore::new(1)),
        }
    }

    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// The same folder, with a reading under way of its own.
    pub(super) fn another(&self) -> Self {
        Self {
            root: self.root.clone(),
            clock: self.clock.clone(),
            free: Arc::new(Semaphore::new(1)),
        }
    }

    /// What a path is called in errors.
    pub(super) fn name(&self, path: &str) -> String {
        self.root.join(path).display().to_string()
    }

    /// The file's text.
    pub(super) async fn read(&self, path: &str) -> Result<String, MetricError> {
        self.read_if_there(path)
            .await?
            .ok_or_else(|| MetricError::new(self.name(path), "no such file"))
    }

    /// The text of the first of `paths` that exists.
    pub(super) async fn read_first(&self, paths: &[&str]) -> Result<String, MetricError> {
        for path in paths {
            if let Some(text) = self.read_if_there(path).await? {
                return Ok(text);
            }
        }
        let names: Vec<_> = paths.iter().map(|path| self.name(path)).collect();
        Err(MetricError::new(names.join(" or "), "no such file"))
    }

    /// The file's text, or `None` where there is no such file.
    pub(super) async fn read_if_there(&self, path: &str) -> Result<Option<String>, MetricError> {
        let full = self.root.join(path);
        self.run(path, move || match std::fs::File::open(full) {
            Ok(file) => {
                let mut bytes = Vec::new();
                file.take(BYTES_MAX).read_to_end(&mut bytes)?;
                Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        })
        .await
    }

    /// Whether a file or folder is there.
    pub(super) async fn exists(&self, path: &str) -> Result<bool, MetricError> {
        let full = self.root.join(path);
        self.run(path, move || full.try_exists()).await
    }

    async fn run<T: Send + 'static>(
        &self,
        path: &str,
        work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, MetricError> {
        let refuse = |reason: String| Err(MetricError::new(self.name(path), reason));
        let Ok(permit) = self.free.clone().try_acquire_owned() else {
            return refuse("an earlier reading has not returned yet".to_owned());
        };
        let job = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(permit);
            result
        });
        match within(&*self.clock, DEADLINE, job).await {
            Some(Ok(Ok(value))) => Ok(value),
            Some(Ok(Err(error))) => refuse(error.to_string()),
            Some(Err(error)) => refuse(error.to_string()),
            None => refuse(format!("no answer within {} s", DEADLINE.as_secs())),
        }
    }
}
