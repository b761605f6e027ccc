//! What the handles of an inode pass through to, and with it how one of them is open ([`crate::mode`]).

use std::sync::Arc;

use forebay_fuse_io::Backing;
use forebay_materialise::LocalFile;

use crate::mode;

/// How a handle on an inode is open.
pub(crate) type How = mode::How<Arc<Pinned>>;

/// What an inode is passed through to: the kernel's backing, and the promise that the file stays. They go in this order.
#[derive(Debug)]
pub(crate) struct Pinned {
    backing: Backing,
    /// `None`: it is a file of the process that served the mount before. The kernel has it, and it cannot be checked any more.
    file: Option<LocalFile>,
    size: u64,
}

impl Pinned {
    /// Of `file`, which the kernel knows as `backing`.
    pub(crate) fn new(backing: Backing, file: LocalFile) -> Self {
        Self { backing, size: file.size(), file: Some(file) }
    }

    /// Of a file of `size` bytes that the process before this one had registered.
    pub(crate) fn inherited(backing: Backing, size: u64) -> Self {
        Self { backing, file: None, size }
    }

    pub(crate) fn backing(&self) -> &Backing {
        &self.backing
    }

    /// Whether one more handle may be passed through to it: no check has found it wrong.
    pub(crate) fn is_right(&self) -> bool {
        self.file.as_ref().is_some_and(LocalFile::is_right)
    }

    /// Whether a check found it wrong. Of a file of the process before nobody knows.
    pub(crate) fn is_wrong(&self) -> bool {
        self.file.as_ref().is_some_and(|file| !file.is_right())
    }

    /// How large the file is.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }
}
