//! A file system at work, ours or another's: where it is, what it costs, and its end.

use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_testkit::MountProcess;

use super::foreign::Foreign;
use crate::process::cpu_seconds_of;

/// A file system that is mounted; it ends when this is dropped.
pub(crate) struct Mounted {
    path: PathBuf,
    pids: Vec<u32>,
    daemon: Daemon,
}

enum Daemon {
    Ours(MountProcess),
    Foreign(Foreign),
}

impl Mounted {
    pub(super) fn ours(mount: MountProcess) -> Self {
        Self { path: mount.path().to_owned(), pids: vec![mount.pid()], daemon: Daemon::Ours(mount) }
    }

    /// Mounts by a program of others: see [`Foreign::start`].
    ///
    /// # Errors
    /// When it does not mount.
    pub(super) fn foreign(command: Command, mountpoint: &Path, log: &Path) -> anyhow::Result<Self> {
        let (foreign, pids) = Foreign::start(command, mountpoint, log)?;
        Ok(Self { path: mountpoint.to_owned(), pids, daemon: Daemon::Foreign(foreign) })
    }

    /// Where the bucket is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The processes that serve it.
    pub(crate) fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// What they have used so far, in seconds of processor time.
    ///
    /// # Errors
    /// When one of them has ended.
    pub(crate) fn cpu(&self) -> anyhow::Result<f64> {
        cpu_seconds_of(&self.pids)
    }

    /// Ends it, and says so where it cannot.
    ///
    /// # Errors
    /// When it is in use.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        match self.daemon {
            Daemon::Ours(mount) => mount.unmount(),
            Daemon::Foreign(foreign) => foreign.unmount(),
        }
    }
}
