//! What materialised files would lie on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::root::Root;

/// How long the directory's file system may take to answer.
const WITHIN: Duration = Duration::from_secs(5);

/// What materialised files would lie on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Local {
    /// What the kernel says of huge pages in shared memory: `deny` takes them from every tmpfs, `force` gives them to each.
    pub shared_huge_pages: Option<String>,
    /// The directory that the configuration names.
    pub directory: Option<LocalDirectory>,
}

/// The directory for materialised files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalDirectory {
    /// As the configuration has it.
    pub path: PathBuf,
    /// Its file system's type; of the folder above where it is not there yet.
    pub file_system: Option<String>,
    /// Of a tmpfs, the pages that it was mounted with: `always`, `within_size`, `advise`.
    pub huge: Option<String>,
    /// What is free there, in bytes.
    pub free_bytes: Option<u64>,
    /// Its permissions, where it is there.
    pub mode: Option<u32>,
    /// Its file system does not answer: then nothing else is known of it.
    #[serde(default)]
    pub is_silent: bool,
}

impl Local {
    pub(crate) fn read(root: &Root, directory: Option<&Path>) -> Self {
        let choices = root.text("sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
        let chosen = choices.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        Self {
            shared_huge_pages: chosen.map(|(chosen, _)| chosen.to_owned()),
            directory: directory.map(|path| LocalDirectory::read(root, path)),
        }
    }
}

impl LocalDirectory {
    fn read(root: &Root, path: &Path) -> Self {
        let table = root.text("proc/self/mountinfo").unwrap_or_default();
        let mount = mount_of(&table, path);
        let looked_at = path.to_owned();
        let found = root.in_time(path, WITHIN, move |root| {
            let there = looked_at.ancestors().find(|path| root.is_folder(path));
            (there.and_then(|path| root.free_bytes(path)), root.ownership(&looked_at).map(|folder| folder.mode))
        });
        let is_silent = found.is_none();
        let (free_bytes, mode) = found.unwrap_or_default();
        Self {
            path: path.to_owned(),
            huge: mount
                .and_then(|(_, options)| options.split(',').find_map(|option| option.strip_prefix("huge=")))
                .map(str::to_owned),
            file_system: mount.map(|(file_system, _)| file_system.to_owned()),
            free_bytes,
            mode,
            is_silent,
        }
    }
}

/// The type and the options of the file system that `path` is on, by a table such as
/// `63 28 0:45 / /mnt/data ro,nosuid shared:1 - tmpfs tmpfs rw,huge=always`. The last of those mounted on one folder counts.
fn mount_of<'a>(table: &'a str, path: &Path) -> Option<(&'a str, &'a str)> {
    let mounts = table.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        // The kernel writes a space as `\040`. A user with one in this path is told nothing wrong, only less.
        let on = Path::new(before.split(' ').nth(4)?);
        let mut after = after.split(' ');
        path.starts_with(on).then_some((on.components().count(), (after.next()?, after.nth(1).unwrap_or(""))))
    });
    mounts.max_by_key(|(depth, _)| *depth).map(|(_, mount)| mount)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_on_the_file_system_that_is_mounted_nearest() {
        let table = "1 0 0:1 / / rw - overlay overlay rw,lowerdir=x\n\
                     2 1 8:1 / /mnt rw shared:1 - xfs /dev/sda1 rw\n\
                     3 2 0:9 / /mnt/fast rw - tmpfs tmpfs rw,size=1g,huge=always\nnonsense\n - x";
        let of = |path: &str| mount_of(table, Path::new(path));
        assert_eq!(of("/mnt/fast/a/b"), Some(("tmpfs", "rw,size=1g,huge=always")));
        assert_eq!(of("/mnt/faster"), Some(("xfs", "rw")));
        assert_eq!(of("/var").map(|mount| mount.0), Some("overlay"));
        assert_eq!(mount_of("", Path::new("/")), None);
    }
}
