//! Directories of ours that must not lie below the mountpoint: the mount would hide them, and we would wait for ourselves to look into
//! them.
//!
//! The mount may be there already, and served by nobody at this moment: a mount that this process is about to take over. So a path is
//! followed name by name, and nothing is looked at from the mountpoint on.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::error::MountError;
use crate::mount_table::{MAX_LINKS, places_of};

/// That `dir`, which `key` names, does not lie below `mountpoint`, which must be resolved.
///
/// # Errors
/// When it does, by whatever links, and wherever else the same mount is.
pub fn is_outside(key: &str, dir: &Path, mountpoint: &Path) -> Result<(), MountError> {
    if !leads_into(dir, &places_of(mountpoint)) {
        return Ok(());
    }
    let error = io::Error::other(format!("it lies below the mountpoint {}; choose another", mountpoint.display()));
    Err(MountError::Io { action: format!("use {} as {key}", dir.display()), error })
}

/// Whether `path` leads to one of `places`, or below it.
fn leads_into(path: &Path, places: &[PathBuf]) -> bool {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut left: VecDeque<OsString> = names(&whole).collect();
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(name) = left.pop_front() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(name);
        if places.contains(&next) {
            return true;
        }
        // An error: it is no link, or not there, and then what follows is what it is called.
        let Ok(target) = std::fs::read_link(&next) else {
            at = next;
            continue;
        };
        links += 1;
        if links > MAX_LINKS {
            // Nobody gets there.
            return false;
        }
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        for name in names(&target).rev() {
            left.push_front(name);
        }
    }
    false
}

/// The names on a way, with those that lead back.
fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_directory_below_the_mountpoint_is_refused_also_by_another_name() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let mountpoint = root.join("mnt");
        std::fs::create_dir(&mountpoint).unwrap();
        symlink(&mountpoint, root.join("link")).unwrap();
        symlink("link/below", root.join("further")).unwrap();
        symlink("there/../mnt", root.join("back")).unwrap();
        let is_refused = |dir: &str| is_outside("client.local.dir", &root.join(dir), &mountpoint).is_err();
        assert!(is_refused("mnt") && is_refused("mnt/not/there") && is_refused("link/below"));
        assert!(is_refused("further/deep") && is_refused("back") && is_refused("mnt-2/../mnt/a"));
        assert!(!is_refused("mnt-2") && !is_refused("not/there") && !is_refused(""));
    }

    /// A link within the mount would lead out of it again, and only who serves the mount could say so.
    #[test]
    fn nothing_is_looked_at_from_the_mountpoint_on() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("mnt")).unwrap();
        symlink("/", root.join("mnt/out")).unwrap();
        assert!(leads_into(&root.join("mnt/out/tmp"), &[root.join("mnt")]));
        assert!(leads_into(&root.join("mnt"), &[root.join("mnt")]));
    }

    #[test]
    fn links_in_a_circle_lead_nowhere() {
        let root = tempfile::tempdir().unwrap();
        symlink("b", root.path().join("a")).unwrap();
        symlink("a", root.path().join("b")).unwrap();
        assert!(!leads_into(&root.path().join("a/x"), &[PathBuf::from("/nowhere")]));
    }
}
