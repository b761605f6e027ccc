//! Where staged files may lie, and which there are.
//!
//! A mountpoint stands for what was written below it, whether its mount is alive, dead or gone: the directory is that of the
//! configuration, and those that the run states of mounts name. A user also knows of the mounts of root, and what those staged may
//! be unreadable: it is passed over, unless it is asked for.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_config::{Loaded, Origin};
use forebay_fuse::mount_table::{self, MountState};
use forebay_staging::{Staged, StagingError};
use tracing::debug;

use forebay_node::{mountpoint, staged, state};

/// A staged file, and the directory that it is in.
pub(super) struct Entry {
    pub(super) directory: PathBuf,
    pub(super) staged: Staged,
}

/// Where to look.
pub(super) struct Places {
    /// Those that are asked for.
    directories: Vec<PathBuf>,
    /// Those of other mounts, which may be other users'.
    others: Vec<PathBuf>,
    /// Only what was written below this mountpoint.
    mountpoint: Option<String>,
}

impl Places {
    /// All that are known; with a `place`, only that: a staging directory, or a mountpoint.
    ///
    /// # Errors
    /// When there is no such place.
    pub(super) fn known(loaded: &Loaded, place: Option<&Path>) -> anyhow::Result<Self> {
        let mut directories = vec![staged::directory(&loaded.config)?];
        // A `write.staging_dir` on the command line is the only place to look in.
        let mut known = match loaded.origin("write.staging_dir") {
            Origin::Flag { .. } => Vec::new(),
            _ => state::known(),
        };
        let mut mountpoint = None;
        if let Some(place) = place {
            let place = mountpoint::resolve(place)?;
            // A dead mount cannot be read, and a live one need not be.
            let is_mount =
                matches!(mount_table::inspect(&place)?, MountState::Forebay { .. } | MountState::Dead { .. });
            if !is_mount && holds_staged_files(&place) {
                (directories, known) = (vec![place], Vec::new());
            } else {
                let at = place.display().to_string();
                directories
                    .extend(known.iter().filter(|mount| mount.mountpoint == at).filter_map(|it| it.staging.clone()));
                mountpoint = Some(at);
            }
        }
        directories.sort();
        directories.dedup();
        let mut others: Vec<_> = known.into_iter().filter_map(|mount| mount.staging).collect();
        others.sort();
        others.dedup();
        others.retain(|directory| !directories.contains(directory));
        Ok(Self { directories, others, mountpoint })
    }

    /// What is there, the oldest first.
    ///
    /// # Errors
    /// When a directory cannot be read, but one of another user's mount.
    pub(super) fn entries(self) -> anyhow::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let mut add = |directory: &PathBuf, found: Vec<Staged>| {
            entries.extend(found.into_iter().map(|staged| Entry { directory: directory.clone(), staged }));
        };
        for directory in &self.directories {
            add(directory, forebay_staging::staged(directory)?);
        }
        for directory in &self.others {
            match forebay_staging::staged(directory) {
                Err(error) if is_denied(&error) => debug!(directory = %directory.display(), %error, "passed over"),
                found => add(directory, found?),
            }
        }
        if let Some(mountpoint) = &self.mountpoint {
            entries.retain(|entry| staged::was_at(&entry.staged.owner, mountpoint));
        }
        entries.sort_by(|a, b| (a.staged.since, &a.staged.id).cmp(&(b.staged.since, &b.staged.id)));
        Ok(entries)
    }
}

fn is_denied(error: &StagingError) -> bool {
    match error {
        StagingError::NotOurs(_) => true,
        StagingError::Io { cause, .. } => cause.kind() == ErrorKind::PermissionDenied,
        _ => false,
    }
}

/// Whether `directory` is one that drafts are kept in. An empty one may as well be a mountpoint whose mount is gone.
fn holds_staged_files(directory: &Path) -> bool {
    forebay_staging::staged(directory).is_ok_and(|staged| !staged.is_empty())
}

/// Since 1970.
pub(super) fn nanos(time: SystemTime) -> i64 {
    // A clock before 1970 is one that was never set.
    time.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}
