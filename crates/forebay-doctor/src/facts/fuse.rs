//! What a mount needs.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::facts::system::program;
use crate::root::{Access, Root};

/// What a mount needs, and what makes it faster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fuse {
    /// `/dev/fuse`.
    pub device: Access,
    /// Whether the kernel has the file system now.
    pub is_in_kernel: bool,
    /// The program by which users other than root mount.
    pub fusermount: Option<Fusermount>,
    /// Whether users may let others see their mounts (`/etc/fuse.conf`).
    pub user_allow_other: bool,
    /// Whether FUSE over io_uring is on; `None` where the kernel has none.
    pub io_uring: Option<bool>,
    /// The most pages of one request; `None` where the kernel has no such setting, and 256 is the most.
    pub max_pages: Option<u64>,
    /// Where file systems of Forebay are mounted.
    pub mounts: Vec<String>,
}

/// The program by which users other than root mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fusermount {
    /// Where it is.
    pub path: PathBuf,
    /// Whether it runs as root for every user that starts it, as it must.
    pub is_setuid_root: bool,
}

impl Fuse {
    pub(crate) fn read(root: &Root, search_path: &[PathBuf]) -> Self {
        const SETUID: u32 = 0o4000;
        let file_systems = root.text("proc/filesystems").unwrap_or_default();
        let fusermount = program(root, search_path, "fusermount3").map(|path| {
            let is_setuid_root = root.ownership(&path).is_some_and(|file| file.user == 0 && file.mode & SETUID != 0);
            Fusermount { path, is_setuid_root }
        });
        let settings = root.text("etc/fuse.conf").unwrap_or_default();
        let enabled = root.word("sys/module/fuse/parameters/enable_uring");
        Self {
            device: root.access("dev/fuse"),
            is_in_kernel: file_systems.lines().any(|line| line.split_whitespace().last() == Some("fuse")),
            fusermount,
            user_allow_other: settings.lines().any(|line| line.trim() == "user_allow_other"),
            io_uring: enabled.map(|enabled| matches!(enabled.as_str(), "Y" | "1")),
            max_pages: root.number("proc/sys/fs/fuse/max_pages_limit"),
            mounts: Self::mounts(root),
        }
    }

    /// Where file systems of Forebay are mounted. They are not touched: one that hangs would hold a process that looks at it.
    #[must_use]
    pub fn mounts(root: &Root) -> Vec<String> {
        mounts(&root.text("proc/self/mountinfo").unwrap_or_default())
    }
}

/// The mount points of type `fuse.forebay` in a table such as
/// `63 28 0:45 / /mnt/data ro,nosuid - fuse.forebay s3://bucket ro`.
fn mounts(table: &str) -> Vec<String> {
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        (after.split(' ').next() == Some("fuse.forebay")).then_some(())?;
        before.split(' ').nth(4).map(str::to_owned)
    };
    table.lines().filter_map(mount).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_forebay_are_told_from_others() {
        let table = "63 28 0:45 / /mnt/data ro,nosuid shared:1 - fuse.forebay s3://b/p ro\n\
                     64 28 0:46 / /mnt/other rw - fuse.sshfs host: rw\nnonsense\n - fuse.forebay x";
        assert_eq!(mounts(table), ["/mnt/data"]);
    }
}
