//! Which mount a directory is on.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// A mount, as `/proc/self/mountinfo` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// Where it is.
    pub at: PathBuf,
    /// `fuse.forebay`, `tmpfs`.
    pub kind: String,
    /// What is mounted.
    pub source: String,
}

impl MountPoint {
    /// The mount that `path`, which is absolute and without links, is on.
    #[must_use]
    pub fn around(path: &Path) -> Option<Self> {
        of_table(&std::fs::read("/proc/self/mountinfo").ok()?, path)
    }

    /// Whether it is memory.
    #[must_use]
    pub fn is_memory(&self) -> bool {
        matches!(self.kind.as_str(), "tmpfs" | "ramfs")
    }

    /// Whether its only cache on this machine is the page cache: a disk's or the memory's.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(
            self.kind.as_str(),
            "ext2" | "ext3" | "ext4" | "xfs" | "btrfs" | "f2fs" | "tmpfs" | "ramfs" | "overlay" | "vfat"
        )
    }
}

/// The last line whose mountpoint is the longest one above `path`: of several mounts on one place, the last is on top.
fn of_table(table: &[u8], path: &Path) -> Option<MountPoint> {
    let mounts = table.split(|byte| *byte == b'\n').filter_map(of_line);
    mounts.filter(|mount| path.starts_with(&mount.at)).max_by_key(|mount| mount.at.as_os_str().len())
}

/// `36 35 98:0 /root /mnt options master:1 - ext3 /dev/root rw`: the optional fields end with the dash.
fn of_line(line: &[u8]) -> Option<MountPoint> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let text = |field: &[u8]| String::from_utf8_lossy(&unescaped(field)).into_owned();
    let at = PathBuf::from(std::ffi::OsStr::from_bytes(&unescaped(fields.get(4)?)));
    Some(MountPoint { at, kind: text(fields.get(dash + 1)?), source: text(fields.get(dash + 2)?) })
}

/// Spaces and such are written as `\040`.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| after.get(..3)).flatten();
        let octal = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
        30 22 0:40 / /mnt/a\\040b rw shared:2 master:3 - fuse.juicefs JuiceFS:x rw\n\
        31 22 0:41 / /mnt/data rw - ext4 /dev/sdb rw\n\
        32 31 0:42 / /mnt/data rw - fuse.forebay s3://b rw\n\
        garbage\n";

    #[test]
    fn a_directory_is_on_the_longest_mount_above_it_and_there_on_the_last() {
        let around = |path: &str| of_table(TABLE, Path::new(path)).unwrap();
        assert_eq!(around("/home/x").at, Path::new("/"));
        assert_eq!(around("/mnt/database").kind, "ext4");
        assert_eq!(around("/mnt/data/x").kind, "fuse.forebay");
        assert_eq!(around("/mnt/data/x").source, "s3://b");
        assert_eq!(around("/mnt/a b").kind, "fuse.juicefs");
        assert!(around("/home").is_local() && !around("/mnt/data").is_local());
        assert!(MountPoint::around(Path::new("/proc")).is_some_and(|mount| mount.kind == "proc"));
    }
}
