//! The directory of a run's processes: mountpoints, logs, and an origin, among the temporary files.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay_benchmark::read::Made;
use forebay_fuse::mount_table;

use crate::exit::{Exit, Fault};

/// What mountpoints are called, with a number behind it.
const MOUNT: &str = "mount";
/// How often a mount is looked at that is about to end.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Makes one, for its user alone: configurations have secrets in them.
///
/// # Errors
/// When it cannot be made.
pub(super) fn make() -> anyhow::Result<Made> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(Made::PREFIX).permissions(std::fs::Permissions::from_mode(0o700));
    let directory = std::path::absolute(builder.tempdir().context("cannot make a directory")?.keep());
    let directory = directory.context("cannot resolve a directory")?;
    let name = directory.file_name().and_then(|name| name.to_str()).context("a directory without a name")?.to_owned();
    Ok(Made { name, temporary: directory.parent().unwrap_or(Path::new("/")).to_owned() })
}

/// The mountpoint with this number.
pub(super) fn mountpoint(directory: &Path, number: u32) -> PathBuf {
    directory.join(format!("{MOUNT}{number}"))
}

/// Removes one. Mounts remove their own mountpoints, and may take this long for it; a dead one is taken away.
///
/// # Errors
/// When what is there is no directory of this user, and when a mount is left: what is removed below a mount is removed
/// at the origin, so everything stays where it is.
pub(super) fn remove(directory: &Path, patience: Duration) -> anyhow::Result<()> {
    let what = || format!("cannot remove {}", directory.display());
    match std::fs::symlink_metadata(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(what),
        Ok(found) if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() => {
            let what = format!("{} is where a run had its processes, and is somebody else's now", directory.display());
            return Err(Fault::new(Exit::Denied, what, "name another directory with `--output`").into());
        }
        Ok(_) => {}
    }
    let deadline = Instant::now() + patience;
    let entries: Vec<_> = std::fs::read_dir(directory).and_then(Iterator::collect).with_context(what)?;
    for entry in entries {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(MOUNT)?.parse::<u32>().ok());
        if number.is_none() {
            continue;
        }
        let path = entry.path();
        loop {
            // A live one is not touched.
            let _ = mount_table::repair(&path);
            match std::fs::remove_dir(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {}
                _ => break,
            }
            if Instant::now() >= deadline {
                let next = format!("forebay umount --lazy {}", path.display());
                let what = format!("a mount is left at {}, and its directory with it", path.display());
                return Err(Fault::new(Exit::Busy, what, next).into());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
    std::fs::remove_dir_all(directory).with_context(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_processes_is_its_users_alone_and_goes_with_all_that_is_in_it() {
        let made = make().unwrap();
        let directory = made.of_processes();
        assert_eq!(std::fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        std::fs::create_dir(mountpoint(&directory, 0)).unwrap();
        std::fs::create_dir_all(directory.join("origin/below")).unwrap();
        std::fs::write(directory.join("mount0.log"), "").unwrap();
        remove(&directory, Duration::ZERO).unwrap();
        assert!(!directory.exists());
        remove(&directory, Duration::ZERO).unwrap();
    }

    #[test]
    fn what_lies_where_a_mount_was_is_not_removed_nor_is_what_a_link_leads_to() {
        let root = tempfile::tempdir().unwrap();
        let (directory, link) = (root.path().join("run"), root.path().join("link"));
        std::fs::create_dir_all(mountpoint(&directory, 3).join("precious")).unwrap();
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        assert!(remove(&link, Duration::ZERO).is_err());
        let error = remove(&directory, Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("mount3"), "{error}");
        assert!(mountpoint(&directory, 3).join("precious").exists());
    }
}
