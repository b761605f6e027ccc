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
    file: LocalFile,
}

impl Pinned {
    /// Of `file`, which the kernel knows as `backing`.
    pub(crate) fn new(backing: Backing, file: LocalFile) -> Self {
        Self { backing, file }
    }

    pub(crate) fn backing(&self) -> &Backing {
        &self.backing
    }

    /// Whether one more handle may be passed through to it: no check has found it wrong.
    pub(crate) fn is_right(&self) -> bool {
        self.file.is_right()
    }

    /// How large the file is.
    pub(crate) fn size(&self) -> u64 {
        self.file.size()
    }
}
