//! A second view of a directory, on a mount that takes no writes.
//!
//! A descriptor from it is for reading, and stays so: to open it again for writing, by `/proc/self/fd` or as the kernel does
//! for a file that it passes through to, fails with `EROFS`, whatever the process is allowed otherwise. The view is attached
//! nowhere, so no path leads to it.
//!
//! Before Linux 6.15 the kernel makes no such view of a directory that is itself attached nowhere, as our tmpfs is.
//! Then the directory is used in place of the view: its descriptors are opened for reading all the same, and no other
//! process is given one.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use rustix::mount::{OpenTreeFlags, open_tree};

/// The view of `directory`, or another descriptor of it where the kernel makes none.
pub(crate) fn readable(directory: &OwnedFd) -> io::Result<OwnedFd> {
    or_itself(directory, read_only(directory))
}

/// The view of `directory` if there is one.
pub(crate) fn or_itself(directory: &OwnedFd, view: io::Result<OwnedFd>) -> io::Result<OwnedFd> {
    view.or_else(|error| {
        tracing::debug!(%error, "materialised files have no view that takes no writes");
        directory.try_clone()
    })
}

/// The view of `directory`. Needs CAP_SYS_ADMIN.
fn read_only(directory: impl AsFd) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let clone = open_tree(directory, c"", flags)?;
    let attributes = libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: the descriptor is open, the path is a string that ends, and the kernel reads as many bytes of `attributes` as
    // there are.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            clone.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if answer == 0 { Ok(clone) } else { Err(io::Error::last_os_error()) }
}
