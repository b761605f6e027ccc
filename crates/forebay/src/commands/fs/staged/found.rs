//! Where staged files may lie, and which there are.
//!
//! A mountpoint stands for what was written below it, whether its mount is alive, dead or gone: the directory is that of the
//! configuration, and those that the run states of mounts name.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_config::{Loaded, Origin};
use forebay_fuse::mount_table::{self, MountState};
use forebay_staging::Staged;

use crate::{mounted, staged, state};

/// A staged file, and the directory that it is in.
pub(super) struct Entry {
    pub(super) directory: PathBuf,
    pub(super) staged: Staged,
}

/// Where to look.
pub(super) struct Places {
    directories: Vec<PathBuf>,
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
        // Who says on the command line where to look means that alone.
        if !matches!(loaded.origin("write.staging_dir"), Origin::Flag { .. }) {
            directories.extend(state::known().into_iter().filter_map(|mount| mount.staging));
        }
        let mut mountpoint = None;
        if let Some(place) = place {
            let place = mounted::resolve(place)?;
            // A dead mount cannot be read, and a live one need not be.
            let is_mount =
                matches!(mount_table::inspect(&place)?, MountState::Forebay { .. } | MountState::Dead { .. });
            if !is_mount && holds_staged_files(&place) {
                directories = vec![place];
            } else {
                mountpoint = Some(place.display().to_string());
            }
        }
        directories.sort();
        directories.dedup();
        Ok(Self { directories, mountpoint })
    }

    /// What is there, the oldest first.
    ///
    /// # Errors
    /// When a directory cannot be read.
    pub(super) fn entries(self) -> anyhow::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for directory in &self.directories {
            let found = forebay_staging::staged(directory)?.into_iter();
            entries.extend(found.map(|staged| Entry { directory: directory.clone(), staged }));
        }
        if let Some(mountpoint) = &self.mountpoint {
            entries.retain(|entry| staged::was_at(&entry.staged.owner, mountpoint));
        }
        entries.sort_by(|a, b| (a.staged.since, &a.staged.id).cmp(&(b.staged.since, &b.staged.id)));
        Ok(entries)
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
