//! What can go wrong with materialised files, in the words of the person who has to act.

use std::io;
use std::path::{Path, PathBuf};

/// Why there can be no materialised files here, though they were asked for.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// Another mount fills this directory.
    #[error("{0} is in use by another mount: give each its own client.local.dir, or end the other one")]
    InUse(PathBuf),
    /// Others could change what is read from it.
    #[error(
        "{path} must belong to the user that mounts and to nobody else: {why}; chown and chmod 0700 it, or choose another client.local.dir"
    )]
    NotOurs {
        /// The directory.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Not a single block fits.
    #[error("client.local.size is 0")]
    NoSize,
    /// The file system refused.
    #[error("cannot {action} {path}: {cause}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why it failed.
        cause: io::Error,
    },
}

/// Makes a [`LocalError::Io`] of the file system's answer.
pub(crate) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LocalError {
    let path = path.to_owned();
    move |cause| LocalError::Io { action, path, cause }
}

/// Whether an error says that the process or the kernel lacks descriptors or memory for a moment, and nothing of the file.
pub(crate) fn is_lack(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EINTR))
}

/// Says that there are none, and why: loudly where somebody asked for them.
pub(crate) fn say_off(is_automatic: bool, why: &str) {
    match is_automatic {
        true => tracing::info!("materialised files are off: {why}"),
        false => tracing::warn!("materialised files are off: {why}"),
    }
}
