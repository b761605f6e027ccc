//! A mountpoint that is to be this process's: its name, its claim, and what a killed process left there.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use forebay_config::{Config, WriteMode};
use forebay_fuse::{is_outside, mount_table};
use tracing::warn;

use crate::error::{Exit, Fault};
use crate::staged;
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

/// That no directory of a process with this configuration lies in the mount that is at `mountpoint` already, which must be resolved. To
/// be asked before it is taken over: nobody need serve it then, and who looks into such a directory waits for that.
///
/// # Errors
/// When one does.
pub(crate) fn is_apart(mountpoint: &Path, config: &Config) -> anyhow::Result<()> {
    if mount_table::listed(mountpoint).is_none() {
        return Ok(());
    }
    let staging = (config.write_mode == WriteMode::Through).then(|| staged::directory(config)).transpose()?;
    let named = [
        ("write.staging_dir", staging.as_deref()),
        ("client.local.dir", config.client_local_dir.as_deref()),
        ("coordinator.state_dir", config.coordinator_state_dir.as_deref()),
        ("security.audit.file", config.security_audit_file.as_deref()),
        ("log.file", config.log_file.as_deref()),
    ];
    let disks = config.worker_disks.iter().map(|disk| ("worker.disks", before_a_pattern(&disk.path)));
    let named = named.into_iter().filter_map(|(key, path)| Some((key, path?.to_owned())));
    for (key, path) in named.chain(disks) {
        is_outside(key, &path, mountpoint)?;
    }
    Ok(())
}

/// As much of a path as is no pattern.
fn before_a_pattern(path: &Path) -> PathBuf {
    let is_plain = |name: &std::path::Component<'_>| !name.as_os_str().to_string_lossy().contains(['*', '?', '[']);
    path.components().take_while(is_plain).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matches_a_pattern_is_not_looked_for() {
        for (path, plain) in [("/mnt/nvme*/forebay", "/mnt"), ("/mnt/nvme0/forebay", "/mnt/nvme0/forebay"), ("a?", "")]
        {
            assert_eq!(before_a_pattern(Path::new(path)), Path::new(plain));
        }
    }
}
