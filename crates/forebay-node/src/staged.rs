//! What mounts staged: where that lies, whose it is, and what a mount that has ended left of it.
//!
//! A staging directory may be shared by all mounts of a machine. Each entry names its owner, which is what was mounted and where:
//! so that what was written to one bucket never goes to another that is mounted at the same place later.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use forebay_config::Config;

use crate::state::{self, Role, RunState};

/// Where mounts with these settings stage what is written.
///
/// # Errors
/// When no directory for it can be made.
pub fn directory(config: &Config) -> anyhow::Result<PathBuf> {
    match &config.write_staging_dir {
        Some(directory) => {
            std::path::absolute(directory).with_context(|| format!("cannot resolve {}", directory.display()))
        }
        None => state::staging(),
    }
}

/// How the mount of `source` at `mountpoint` is called as an owner.
pub fn owner(source: &str, mountpoint: &str) -> String {
    format!("{source}{}", place(mountpoint))
}

/// What the names of owners at `mountpoint` end with.
fn place(mountpoint: &str) -> String {
    format!(" at {mountpoint}")
}

/// Whether `owner` was mounted at `mountpoint`.
pub fn was_at(owner: &str, mountpoint: &str) -> bool {
    owner.ends_with(&place(mountpoint))
}

/// Whether what `owner` staged may go where `mount` leads. Workers come and go, and are those of the same mount.
pub fn may_go_through(owner: &str, mount: &RunState) -> bool {
    let is_of_workers = |source: &str| source.starts_with("forebay://");
    owner == self::owner(&mount.source, &mount.mountpoint)
        || (mount.role == Role::Mount && is_of_workers(owner) && was_at(owner, &mount.mountpoint))
}

/// How many files in `directory` are of `owner`. None, where that cannot be seen.
fn left_by(directory: &Path, owner: &str) -> usize {
    let staged = forebay_staging::staged(directory).unwrap_or_default();
    staged.iter().filter(|staged| staged.owner == owner).count()
}

/// What is to be said of the files that the mount of `source` at `mountpoint`, which has ended, could not upload.
pub fn left_behind(directory: Option<&Path>, source: &str, mountpoint: &str) -> Option<String> {
    let what = match left_by(directory?, &owner(source, mountpoint)) {
        0 => return None,
        1 => "1 file".to_owned(),
        count => format!("{count} files"),
    };
    Some(format!("{what} of {mountpoint} could not be uploaded: forebay fs staged ls"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(role: Role, source: &str) -> RunState {
        let state = serde_json::json!({
            "pid": 1, "process_started": 1, "role": role, "mountpoint": "/mnt/a", "source": source, "workers": [],
            "block_size": 1, "log": null, "since": "", "version": "",
        });
        serde_json::from_value(state).unwrap()
    }

    #[test]
    fn what_was_written_to_one_bucket_does_not_go_to_another_at_the_same_place() {
        let staged = owner("s3://a", "/mnt/a");
        assert!(was_at(&staged, "/mnt/a") && !was_at(&staged, "/mnt"));
        assert!(may_go_through(&staged, &mount(Role::Up, "s3://a")));
        assert!(!may_go_through(&staged, &mount(Role::Up, "s3://b")));
        assert!(!may_go_through(&staged, &mount(Role::Mount, "forebay://node1:1")));
    }

    #[test]
    fn workers_of_a_mount_may_be_others_by_now() {
        let staged = owner("forebay://node1:1,node2:1", "/mnt/a");
        assert!(may_go_through(&staged, &mount(Role::Mount, "forebay://node3:1")));
        assert!(!may_go_through(&staged, &mount(Role::Up, "s3://a")));
        assert!(!may_go_through(&owner("forebay://node1:1", "/mnt/b"), &mount(Role::Mount, "forebay://node1:1")));
    }

    #[test]
    fn a_mount_that_left_nothing_is_not_spoken_of() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(left_behind(Some(directory.path()), "s3://a", "/mnt/a"), None);
        assert_eq!(left_behind(Some(&directory.path().join("missing")), "s3://a", "/mnt/a"), None);
        assert_eq!(left_behind(None, "s3://a", "/mnt/a"), None);
    }
}
