//! Mounting: `mount(2)` where we may, `fusermount3` where we may not. Either way the result is a descriptor of
//! `/dev/fuse` on which the kernel's requests arrive.
//!
//! What went wrong is said so that a person can act on it. The helper is that of FUSE 3 and no older one.

use std::ffi::{CString, OsStr, OsString};
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::detach::fusermount;
use crate::error::MountError;
use crate::mount_table::{FS_TYPE, escape_option};
use crate::options::MountOptions;

const DEVICE: &str = "/dev/fuse";

/// Mounts at `mountpoint`, which must be resolved and a directory. The kernel's first request waits on the descriptor.
pub(crate) fn attach(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    if rustix::process::geteuid().is_root() {
        match attach_as_root(mountpoint, options) {
            // Root of a container without the capability. The helper may have what we lack.
            Err(MountError::NoPermission { mountpoint, reason }) => {
                attach_as_user(&mountpoint, options).map_err(|_| MountError::NoPermission { mountpoint, reason })
            }
            attached => attached,
        }
    } else {
        attach_as_user(mountpoint, options)
    }
}

fn open_device() -> Result<OwnedFd, Errno> {
    rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

fn attach_as_root(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let no_permission =
        |reason: &str| MountError::NoPermission { mountpoint: mountpoint.to_owned(), reason: reason.to_owned() };
    let device = open_device().map_err(|errno| match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => MountError::NoDevice,
        Errno::PERM | Errno::ACCESS => no_permission("/dev/fuse may not be opened"),
        errno => MountError::Io { action: format!("open {DEVICE}"), error: errno.into() },
    })?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    data.push_str(&format!(",max_read={}", options.max_read_bytes()));
    if options.allow_other {
        data.push_str(",allow_other");
    }
    if let Some(label) = &options.selinux_context {
        data.push_str(&format!(",context=\"{}\"", quotable(label)?));
    }
    let writable = if options.writing.is_some() { MountFlags::empty() } else { MountFlags::RDONLY };
    let flags = writable | MountFlags::NOSUID | MountFlags::NODEV;
    let invalid = |error: std::ffi::NulError| MountError::Io {
        action: format!("mount at {}", mountpoint.display()),
        error: error.into(),
    };
    let data = CString::new(data).map_err(invalid)?;
    match rustix::mount::mount(options.source.as_str(), mountpoint, FS_TYPE, flags, data.as_c_str()) {
        Ok(()) => Ok(device),
        Err(Errno::PERM | Errno::ACCESS) => Err(no_permission("the kernel refused mount(2)")),
        Err(Errno::NODEV) => Err(MountError::NoDevice),
        Err(errno) => Err(MountError::Io { action: format!("mount at {}", mountpoint.display()), error: errno.into() }),
    }
}

/// A label, which stands in quotes: it ends where they do.
fn quotable(label: &str) -> Result<&str, MountError> {
    let is_of_label = |byte: u8| byte.is_ascii_alphanumeric() || b"_:.,-".contains(&byte);
    if !label.is_empty() && label.bytes().all(is_of_label) {
        return Ok(label);
    }
    let error = std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is no SELinux label");
    Err(MountError::Io { action: format!("mount with the context {label:?}"), error })
}

fn attach_as_user(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    if options.selinux_context.is_some() {
        let reason = "only root mounts with an SELinux label (fuse.selinux_context)".to_owned();
        return Err(MountError::NoPermission { mountpoint: mountpoint.to_owned(), reason });
    }
    let (ours, theirs) = UnixStream::pair().map_err(MountError::io("make a socket pair"))?;
    let mut mount_options = OsString::from(if options.writing.is_some() { "rw" } else { "ro" });
    mount_options.push(",nosuid,nodev,default_permissions,subtype=forebay,fsname=");
    mount_options.push(escape_option(&options.source));
    mount_options.push(format!(",max_read={}", options.max_read_bytes()));
    if options.allow_other {
        mount_options.push(OsStr::new(",allow_other"));
    }
    let mut helper = Command::new(fusermount()?)
        .arg("-o")
        .arg(mount_options)
        .arg("--")
        .arg(mountpoint)
        // The helper sends the descriptor over the socket whose number it is told; standard input needs no unsafe code
        // to be inherited.
        .stdin(OwnedFd::from(theirs))
        .env("_FUSE_COMMFD", "0")
        // The message is looked into.
        .env("LC_ALL", "C")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(MountError::io("run fusermount3"))?;
    let mut message = String::new();
    // The helper ends by itself; what it sent waits in the socket.
    if let Some(stderr) = &mut helper.stderr {
        let _ = stderr.read_to_string(&mut message);
    }
    let status = helper.wait().map_err(MountError::io("wait for fusermount3"))?;
    if !status.success() {
        return Err(refusal(mountpoint, message.trim()));
    }
    receive_descriptor(&ours).map_err(MountError::io("receive the descriptor from fusermount3"))
}

fn receive_descriptor(socket: &UnixStream) -> std::io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    // The helper has ended, so this does not wait: there is a message or the end of the stream.
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    descriptors
        .next()
        .and_then(|mut descriptors| descriptors.next())
        .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "it sent none"))
}

/// What the helper's message means. Its wording has been the same since libfuse 3.0.
fn refusal(mountpoint: &Path, message: &str) -> MountError {
    // It says its own path first.
    let reason = message.split_once("fusermount3: ").map_or(message, |(_, reason)| reason).to_owned();
    let mountpoint = mountpoint.to_owned();
    if message.contains("user_allow_other") {
        MountError::AllowOther
    } else if message.contains("device not found") || message.contains("modprobe") {
        MountError::NoDevice
    } else if message.contains("failed to open /dev/fuse") {
        MountError::DeviceForRoot
    } else if ["no write access", "not permitted", "Permission denied"].iter().any(|text| message.contains(text)) {
        MountError::NoPermission { mountpoint, reason }
    } else {
        MountError::Fusermount { mountpoint, message: reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_no_way_to_further_options() {
        assert!(quotable("system_u:object_r:container_file_t:s0:c1,c2").is_ok());
        for wrong in ["", "a\",allow_other,b=\"", "a b", "a\0", "größe"] {
            assert!(quotable(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_helpers_refusals_say_what_to_do() {
        let refusal = |message| refusal(Path::new("/mnt"), message).to_string();
        let allow_other = "fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf";
        assert!(refusal(allow_other).contains("add the line"));
        let device = "/usr/bin/fusermount3: failed to open /dev/fuse: Permission denied";
        assert!(refusal(device).contains("chmod 666"));
        assert!(refusal("fusermount3: user has no write access to mountpoint /mnt").contains("that is yours"));
        assert!(refusal("fusermount3: fuse device not found, try 'modprobe fuse' first").contains("modprobe fuse"));
        assert!(refusal("fusermount3: too many FUSE filesystems mounted").contains("too many"));
    }
}
