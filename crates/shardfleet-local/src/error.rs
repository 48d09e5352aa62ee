//! What can go wrong with an embedded service, as opposed to the errors it answers its clients with.

use std::io;
use std::path::PathBuf;

/// An embedded service could not be started, or refused a control call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// The port on 127.0.0.1 is not to be had.
    #[error("cannot listen on 127.0.0.1:{port}; choose another port, or 0 for any free one")]
    Bind {
        /// The port that was asked for.
        port: u16,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The thread or runtime of the service could not be started.
    #[error("cannot start the service's own threads")]
    Runtime {
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A file in the data folder cannot be read or written.
    #[error("cannot use {path} for the service's data: check that the folder can be written and has room", path = path.display())]
    Data {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Another process, or another service in this one, has the data folder open.
    #[error("{path} is in use by another embedded Kinesis: stop that one, or choose another folder", path = path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The journal is damaged in its middle, so what follows the damage cannot be trusted.
    #[error("{path} is damaged at byte {offset}: {problem}; move it away to start with nothing", path = path.display())]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// Where the damage begins.
        offset: u64,
        /// What was found there.
        problem: &'static str,
    },
    /// The service refused what a control call asked for, with the error that a client would have got.
    #[error("{code}: {message}")]
    Refused {
        /// The type of the error, such as `ResourceNotFoundException`.
        code: String,
        /// Its text.
        message: String,
    },
}

impl From<crate::model::ApiError> for LocalError {
    fn from(error: crate::model::ApiError) -> Self {
        Self::Refused {
            code: error.code.into_owned(),
            message: error.message,
        }
    }
}
