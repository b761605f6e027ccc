//! What became of a run that failed, as this program tells errors.

use forebay_benchmark::posix::run::{CacheError, RunError};

use crate::exit::{Exit, Fault};

/// The error as this program tells errors: with its code, and the remedy apart.
pub(super) fn told(error: RunError) -> anyhow::Error {
    let exit = match &error {
        RunError::Interrupted => return error.into(),
        RunError::NoFio => Exit::NotFound,
        RunError::Usage(_) | RunError::Prerequisites(_) | RunError::OtherRun(_) | RunError::NotConfirmed(_) => {
            Exit::Usage
        }
        RunError::InUse(_) => Exit::Busy,
        RunError::TimedOut { .. } | RunError::Stuck { .. } => Exit::Unavailable,
        RunError::Cache(CacheError::Unavailable(_)) => Exit::Unavailable,
        RunError::Cache(CacheError::Unable(_)) => Exit::Usage,
        RunError::Io { error, .. } if error.kind() == std::io::ErrorKind::PermissionDenied => Exit::Denied,
        RunError::Io { error, .. } if error.kind() == std::io::ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::Failed,
    };
    let message = error.to_string();
    let (what, next) = match (&error, message.rsplit_once("; ")) {
        // Each has its own remedy.
        (RunError::Prerequisites(_), _) => (message.as_str(), "mend that, and give the same command again"),
        (_, Some((what, next))) => (what, next),
        (_, None) => (message.as_str(), "run.log among the results has all that was done"),
    };
    Fault::new(exit, what, next).into()
}
