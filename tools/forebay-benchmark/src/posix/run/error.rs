//! Why a run did not come to its end.

use std::io;
use std::path::{Path, PathBuf};

/// Why. A message tells, after `; `, what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// There is no fio.
    #[error("fio is not installed; install it, as in `apt-get install fio` or `dnf install fio`")]
    NoFio,
    /// What is there cannot be used as it is asked for.
    #[error("{0}")]
    Usage(String),
    /// Prerequisites that are not met, a line each.
    #[error("{}", .0.join("\n"))]
    Prerequisites(Vec<String>),
    /// The user did not agree to what would be written.
    #[error("{0} would be written, and nobody has agreed to that; give --yes, or measure less: --scale 0.1")]
    NotConfirmed(String),
    /// An output directory holds another run.
    #[error("{0}")]
    OtherRun(String),
    /// Another process measures into the same directory.
    #[error("another run writes to {}; give another --output, or wait for its end", .0.display())]
    InUse(PathBuf),
    /// fio failed.
    #[error("{what} failed ({reason}); its output is in {}", .log.display())]
    Fio {
        /// Which run of it.
        what: String,
        /// What it said.
        reason: String,
        /// Where all that it said is.
        log: PathBuf,
    },
    /// There is no room for the data.
    #[error(
        "{what} failed: no space left on device{}; make room where it is written to, or measure less (--size, --file-size, \
         --scale): {} has what fio said", .why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default(), .log.display()
    )]
    NoSpace {
        /// Which run of fio.
        what: String,
        /// What the mount says of it, which knows where it was written to.
        why: Option<String>,
        /// Where all that it said is.
        log: PathBuf,
    },
    /// It did not end in time.
    #[error(
        "{what} did not end within {within:?} and was ended; look whether the file system answers at all: `timeout 10 ls {}`",
        .directory.display()
    )]
    TimedOut {
        /// Which run of it.
        what: String,
        /// How long it was given.
        within: std::time::Duration,
        /// What it read.
        directory: PathBuf,
    },
    /// It cannot even be killed.
    #[error(
        "process {pid} ({what}) does not end: it waits for a file system that does not answer; end that mount's process"
    )]
    Stuck {
        /// Which run of it.
        what: String,
        /// Its number.
        pid: u32,
    },
    /// The cache of a target could not be brought into a state.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A file could not be read or written.
    #[error("cannot {doing} {}: {error}", .path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// It was asked to end.
    #[error("interrupted")]
    Interrupted,
}

impl RunError {
    /// For `map_err`: trying to do something with `path`.
    pub(super) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { doing, path, error }
    }
}

/// Why a cache could not be filled or emptied. A message tells, after `; `, what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// There is no way to.
    #[error("{0}")]
    Unable(String),
    /// The service that does it does not answer.
    #[error("{0}")]
    Unavailable(String),
    /// It was tried.
    #[error("{0}")]
    Failed(String),
    /// It was asked to end.
    #[error("interrupted")]
    Interrupted,
}
