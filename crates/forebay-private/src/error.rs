//! Why something is not used, in the words of the person who has to act.

use std::io;
use std::path::{Path, PathBuf};

/// A directory or file that is not this user's alone. It was left as it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path} is not this user's alone: {what}; {remedy}")]
pub struct NotOurs {
    /// Which.
    pub path: PathBuf,
    /// What is wrong with it.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
}

impl NotOurs {
    pub(crate) fn new(path: &Path, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { path: path.to_owned(), what: what.into(), remedy: remedy.into() }
    }

    /// It is a directory of `theirs`.
    pub(crate) fn directory_of(path: &Path, theirs: u32) -> Self {
        Self::of_user(path, theirs, "chown -R", "name a new directory below it, or ")
    }

    /// It is a file of `theirs`.
    pub(crate) fn file_of(path: &Path, theirs: u32) -> Self {
        Self::of_user(path, theirs, "chown", "")
    }

    fn of_user(path: &Path, theirs: u32, chown: &str, first: &str) -> Self {
        let (ours, shown) = (our_user(), path.display());
        let what = format!("it belongs to user {theirs}, and this process runs as user {ours}");
        let trusting = format!("give it to user {ours} if you trust what is in it (`{chown} {ours} {shown}`)");
        Self::new(path, what, format!("{first}{trusting}, or run as user {theirs}"))
    }

    pub(crate) fn of_link(path: &Path) -> Self {
        let remedy = format!("give the path that it leads to, which `readlink -f {}` prints", path.display());
        Self::new(path, "it is a symbolic link", remedy)
    }

    /// Its mode cannot be changed.
    pub(crate) fn of_lasting_mode(path: &Path, mode: u32) -> Self {
        let what = format!("its mode is {mode:04o}, and stays so when it is changed");
        Self::new(path, what, "choose a place on a file system that keeps modes")
    }
}

/// Why a directory or a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PrivateError {
    /// Others could read or change it.
    #[error(transparent)]
    NotOurs(#[from] NotOurs),
    /// The kernel refused.
    #[error("cannot {action} {path}: {error}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// The kernel's answer.
        error: io::Error,
    },
}

impl PrivateError {
    pub(crate) fn io(action: &'static str, path: &Path, error: impl Into<io::Error>) -> Self {
        Self::Io { action, path: path.to_owned(), error: error.into() }
    }

    /// Whether there is no such directory or file, or not what it is to be in.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }
}

impl From<PrivateError> for io::Error {
    /// The kernel's answer; what is not ours alone is a permission that is denied.
    fn from(error: PrivateError) -> Self {
        match error {
            PrivateError::Io { error, .. } => error,
            PrivateError::NotOurs(not_ours) => Self::new(io::ErrorKind::PermissionDenied, not_ours),
        }
    }
}

/// The user that we run as.
#[must_use]
pub fn our_user() -> u32 {
    rustix::process::geteuid().as_raw()
}
