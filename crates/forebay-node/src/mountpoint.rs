//! A mountpoint that is to be this process's: its name, its claim, and what a killed process left there.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use forebay_fuse::mount_table;
use tracing::warn;

use crate::error::{Exit, Fault};
use crate::state::Claim;

/// The mountpoint as the kernel names it, also when a dead mount is there.
///
/// # Errors
/// When it does not exist.
pub fn resolve(mountpoint: &Path) -> anyhow::Result<PathBuf> {
    // A look at a mount that nobody serves just now would wait.
    if let Some(listed) = mount_table::listed(mountpoint) {
        return Ok(listed);
    }
    let absolute =
        std::path::absolute(mountpoint).with_context(|| format!("cannot resolve {}", mountpoint.display()))?;
    match (absolute.canonicalize(), absolute.parent(), absolute.file_name()) {
        (Ok(path), _, _) => Ok(path),
        (Err(error), _, _) if error.kind() == std::io::ErrorKind::NotFound => {
            let what = format!("mountpoint {} does not exist", mountpoint.display());
            Err(Fault::new(Exit::NotFound, what, format!("create it with `mkdir -p {}`", mountpoint.display())).into())
        }
        // A dead mount cannot be looked at, but the directory that it is in can.
        (Err(error), Some(parent), Some(name))
            if matches!(error.kind(), std::io::ErrorKind::NotConnected | std::io::ErrorKind::ConnectionAborted) =>
        {
            let parent = parent.canonicalize().with_context(|| format!("cannot resolve {}", parent.display()))?;
            Ok(parent.join(name))
        }
        (Err(error), _, _) => Err(error).with_context(|| format!("cannot resolve {}", mountpoint.display())),
    }
}

/// A mountpoint that is this process's to mount on.
pub(crate) struct Place {
    mountpoint: PathBuf,
    pub(crate) claim: Claim,
    /// What was found and put right on the way.
    pub(crate) notes: Vec<String>,
}

impl Place {
    /// Claims `mountpoint`, and takes away what a killed process left there.
    ///
    /// # Errors
    /// When it does not exist, or another process serves it.
    pub(crate) fn take(mountpoint: &Path) -> anyhow::Result<Self> {
        let mountpoint = resolve(mountpoint)?;
        let claim = Claim::take(&mountpoint)?;
        let mut notes = Vec::new();
        let was = |claim: &Claim| match &claim.left_behind {
            Some(left) => format!("process {}, which was killed", left.pid),
            None => "a process that was killed".to_owned(),
        };
        if mount_table::repair(&mountpoint)? {
            notes.push(format!("repaired {}: took away the dead mount of {}", mountpoint.display(), was(&claim)));
        } else if claim.left_behind.is_some() {
            notes.push(format!("cleaned up after {} and had served {}", was(&claim), mountpoint.display()));
        }
        for note in &notes {
            warn!("{note}");
        }
        Ok(Self { mountpoint, claim, notes })
    }

    /// Claims `mountpoint`, which is resolved, after the process that served it before has let go of it. The mount stays, and may not
    /// be looked at: nobody need serve it yet.
    ///
    /// # Errors
    /// When another process has claimed it meanwhile.
    pub(crate) fn inherit(mountpoint: PathBuf) -> anyhow::Result<Self> {
        Self::taken_over(mountpoint, "from the process that served it")
    }

    /// The same after that process has ended, and the mount was kept.
    ///
    /// # Errors
    /// When another process has claimed it meanwhile.
    pub(crate) fn recover(mountpoint: PathBuf) -> anyhow::Result<Self> {
        Self::taken_over(mountpoint, "after the process that served it had ended")
    }

    fn taken_over(mountpoint: PathBuf, how: &str) -> anyhow::Result<Self> {
        let claim = Claim::take(&mountpoint)?;
        let notes = vec![format!("took over {} {how}", mountpoint.display())];
        Ok(Self { mountpoint, claim, notes })
    }

    /// Where it is.
    pub(crate) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }
}
