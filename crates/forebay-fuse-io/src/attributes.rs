//! What answers are made of: attributes, how a file is opened, what `df` shows.

use std::ops::{BitOr, BitOrAssign};
use std::time::SystemTime;

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    RegularFile,
}

impl Kind {
    /// The bits of `st_mode` that say it.
    #[must_use]
    pub const fn mode(self) -> u32 {
        match self {
            Self::Directory => libc::S_IFDIR,
            Self::RegularFile => libc::S_IFREG,
        }
    }

    /// The `d_type` of a directory's entry: the same bits, moved down.
    pub(crate) const fn entry_type(self) -> u32 {
        self.mode() >> 12
    }
}

/// The attributes of an inode, as `stat(2)` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub ino: u64,
    /// In bytes.
    pub size: u64,
    /// In blocks of 512 bytes, whatever `blksize` is.
    pub blocks: u64,
    /// When it was read last.
    pub atime: SystemTime,
    /// When its bytes were changed last.
    pub mtime: SystemTime,
    /// When anything of it was changed last.
    pub ctime: SystemTime,
    /// What it is.
    pub kind: Kind,
    /// Permissions: the lower twelve bits of `st_mode`.
    pub perm: u16,
    /// Names it has.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The device that a device file stands for.
    pub rdev: u32,
    /// The read size that suits it, in bytes.
    pub blksize: u32,
}

/// What `statfs(2)` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statfs {
    /// All blocks, of `fragment_size` bytes.
    pub blocks: u64,
    /// Free ones.
    pub free_blocks: u64,
    /// Free ones for others than root.
    pub available_blocks: u64,
    /// All inodes.
    pub files: u64,
    /// Free ones.
    pub free_files: u64,
    /// The read size that suits it, in bytes.
    pub block_size: u32,
    /// The longest name, in bytes.
    pub name_length: u32,
    /// What blocks are counted in, in bytes.
    pub fragment_size: u32,
}

/// How the kernel shall treat what was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpenedFlags(u32);

impl OpenedFlags {
    /// Reads and writes go past the page cache.
    pub const DIRECT_IO: Self = Self(1 << 0);
    /// The pages in the cache are still right.
    pub const KEEP_CACHE: Self = Self(1 << 1);
    /// There are no positions in it.
    pub const NONSEEKABLE: Self = Self(1 << 2);
    /// The names of the directory may be cached.
    pub const CACHE_DIR: Self = Self(1 << 3);
    /// It has no position at all.
    pub const STREAM: Self = Self(1 << 4);
    /// `close(2)` need not be told.
    pub const NOFLUSH: Self = Self(1 << 5);
    /// Several direct writes of one inode may be under way at a time.
    pub const PARALLEL_DIRECT_WRITES: Self = Self(1 << 6);
    /// The kernel reads and writes another file in its place. Set by the answer that names that file.
    pub const PASSTHROUGH: Self = Self(1 << 7);

    /// None of them.
    #[must_use]
    pub const fn empty() -> Self {
        Self(0)
    }

    /// As the kernel takes them.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `other` are among them.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These without `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for OpenedFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for OpenedFlags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_what_readdir_and_stat_call_it() {
        assert_eq!(Kind::Directory.entry_type(), u32::from(libc::DT_DIR));
        assert_eq!(Kind::RegularFile.entry_type(), u32::from(libc::DT_REG));
        assert_eq!(Kind::Directory.mode(), libc::S_IFDIR);
    }

    #[test]
    fn flags_are_put_together_and_taken_apart() {
        let mut flags = OpenedFlags::KEEP_CACHE | OpenedFlags::NOFLUSH;
        assert_eq!(flags.bits(), 0b10_0010);
        assert!(flags.contains(OpenedFlags::NOFLUSH) && !flags.contains(OpenedFlags::PASSTHROUGH));
        flags |= OpenedFlags::PASSTHROUGH;
        assert_eq!(flags.without(OpenedFlags::KEEP_CACHE), OpenedFlags::PASSTHROUGH | OpenedFlags::NOFLUSH);
        assert_eq!(OpenedFlags::default(), OpenedFlags::empty());
    }
}
