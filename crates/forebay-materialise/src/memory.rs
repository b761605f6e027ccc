//! Memory that no other process sees: a tmpfs in huge pages that is attached nowhere.
//!
//! The kernel keeps it within its size, and ends it with its last descriptor and mapping; so nothing is left of it whatever
//! happens to this process. Its pages count as memory of this process's group.
//!
//! `huge=within_size` and a length that is set before the first byte: the whole of a file lies in huge pages but its end, which
//! takes no more than it needs. With `huge=always` the end takes a huge page of its own, and so does each small file.

use std::io;
use std::os::fd::OwnedFd;

use forebay_types::ByteSize;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};

use crate::backend::BackendKind;
use crate::clone::readable;
use crate::tree::{Tree, TreeOptions};

/// Makes the backend in memory. Needs CAP_SYS_ADMIN.
pub(crate) fn open(size: ByteSize) -> io::Result<Tree> {
    let root = tmpfs(size, "within_size")?;
    let readable = readable(&root)?;
    on(root, readable)
}

/// The backend on a tmpfs: `root` to write, `readable` to read.
pub(crate) fn on(root: OwnedFd, readable: OwnedFd) -> io::Result<Tree> {
    let options = TreeOptions { kind: BackendKind::Memory, lasting: false, sets_aside: false };
    Tree::new(root, readable, options)
}

pub(crate) fn tmpfs(size: ByteSize, huge: &str) -> io::Result<OwnedFd> {
    let context = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, c"size", size.as_u64().to_string())?;
    // A kernel without huge pages does not know it.
    if let Err(error) = fsconfig_set_string(&context, c"huge", huge) {
        tracing::debug!(%error, "materialised files lie in small pages");
    }
    fsconfig_set_string(&context, c"mode", c"0700")?;
    // Since Linux 6.4. Swapped out, a file would be slower than its worker.
    if let Err(error) = fsconfig_set_flag(&context, c"noswap") {
        tracing::debug!(%error, "materialised files may be swapped out");
    }
    fsconfig_create(&context)?;
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOATIME;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Memory of the whole machine that is in huge pages of shared memory.
pub(crate) fn huge_pages() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("ShmemHugePages:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
