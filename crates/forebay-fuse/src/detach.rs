//! Unmounting: `umount2(2)` where we may, `fusermount3 -u` where we may not.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::error::MountError;

/// How to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detach {
    /// Only when nothing is open.
    Clean,
    /// Take it from the namespace now; what is open stays so until it is closed.
    Lazy,
    /// As lazily, and whatever waits for an answer gets an error. Root only; as a user it is [`Detach::Lazy`].
    Forced,
}

/// Unmounts `mountpoint`, which must be resolved.
pub(crate) fn detach(mountpoint: &Path, how: Detach) -> Result<(), MountError> {
    let flags = match how {
        Detach::Clean => UnmountFlags::NOFOLLOW,
        Detach::Lazy => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
        Detach::Forced => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH | UnmountFlags::FORCE,
    };
    match rustix::mount::unmount(mountpoint, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => detach_as_user(mountpoint, how),
        Err(Errno::BUSY) => Err(MountError::Busy(mountpoint.to_owned())),
        Err(Errno::INVAL) => Err(MountError::NotMounted(mountpoint.to_owned())),
        Err(error) => Err(MountError::Io { action: format!("unmount {}", mountpoint.display()), error: error.into() }),
    }
}

fn detach_as_user(mountpoint: &Path, how: Detach) -> Result<(), MountError> {
    let flags = if how == Detach::Clean { "-u" } else { "-uz" };
    let output = Command::new(fusermount()?)
        .arg(flags)
        .arg("--")
        .arg(mountpoint)
        .stdin(Stdio::null())
        // The message is looked into.
        .env("LC_ALL", "C")
        .output()
        .map_err(MountError::io("run fusermount3"))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if message.contains("busy") {
        return Err(MountError::Busy(mountpoint.to_owned()));
    }
    Err(MountError::Fusermount { mountpoint: mountpoint.to_owned(), message })
}

/// The setuid helper that lets users mount and unmount: on the `PATH`, or where distributions put it.
pub(crate) fn fusermount() -> Result<PathBuf, MountError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/bin", "/bin", "/usr/sbin", "/sbin"].map(PathBuf::from));
    directories
        .map(|directory| directory.join(OsStr::new("fusermount3")))
        .find(|program| program.is_file())
        .ok_or(MountError::NoFusermount)
}
