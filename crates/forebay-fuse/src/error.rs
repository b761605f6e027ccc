//! Why something could not be mounted or unmounted.

use std::io;
use std::path::{Path, PathBuf};

use forebay_fuse_io::SessionError;
use forebay_handover::NotTaken;
use forebay_materialise::LocalError;
use forebay_staging::StagingError;
use forebay_types::Failure;

/// Why something could not be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mountpoint does not exist.
    #[error("mountpoint {} does not exist: create it with `mkdir -p {}`", .0.display(), .0.display())]
    NoMountpoint(PathBuf),
    /// The mountpoint is a file.
    #[error("mountpoint {} is not a directory: choose a directory", .0.display())]
    NotADirectory(PathBuf),
    /// A mount of ours is there and alive.
    #[error(
        "{source_name} is already mounted at {}: unmount it first with `forebay umount {}`",
        mountpoint.display(), mountpoint.display()
    )]
    AlreadyMounted {
        /// Where.
        mountpoint: PathBuf,
        /// What it shows.
        source_name: String,
    },
    /// There is no `/dev/fuse`.
    #[error(
        "/dev/fuse is missing: load the kernel module with `modprobe fuse`, or give the container the device with \
         `--device /dev/fuse`"
    )]
    NoDevice,
    /// `/dev/fuse` or `mount(2)` is not for us.
    #[error(
        "no permission to mount at {}: {reason}; mount as root (in a container: `--cap-add SYS_ADMIN --device \
         /dev/fuse`), or as a user on a directory that is yours with fuse3 installed",
        mountpoint.display()
    )]
    NoPermission {
        /// Where.
        mountpoint: PathBuf,
        /// What refused it, and why.
        reason: String,
    },
    /// `/dev/fuse` is closed to users, which udev's rules open on most systems.
    #[error("only root may open /dev/fuse here: mount as root, or let users with `chmod 666 /dev/fuse`")]
    DeviceForRoot,
    /// A user needs the setuid helper of the fuse3 package.
    #[error("fusermount3 is not installed, and only root can mount without it: `apt-get install fuse3`")]
    NoFusermount,
    /// A user may not let others in.
    #[error(
        "/etc/fuse.conf does not let users mount with `allow_other`: add the line `user_allow_other` to it, or mount \
         without `allow_other`"
    )]
    AllowOther,
    /// The helper refused for another reason.
    #[error("fusermount3 failed at {}: {message}", mountpoint.display())]
    Fusermount {
        /// Where.
        mountpoint: PathBuf,
        /// What it said.
        message: String,
    },
    /// The directory for what is written cannot be used.
    #[error(transparent)]
    Staging(#[from] StagingError),
    /// What another process had open for writing cannot go on here.
    #[error(transparent)]
    Written(Failure),
    /// The place for materialised files cannot be used.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// io_uring was demanded, and there is none.
    #[error("fuse.io is uring, but {0}; with fuse.io = \"auto\" the mount does without")]
    NoUring(String),
    /// It was to outlive a crash, and cannot.
    #[error("the mount cannot outlive a crash of its process: {0}; with fuse.survive_crash = false it does without")]
    NotKept(#[source] io::Error),
    /// Another process serves the mount, and goes on to.
    #[error("not taken over: {}; {}", .0, .0.remedy())]
    NotTaken(#[from] NotTaken),
    /// The kernel and we do not come to terms.
    #[error("cannot serve the mount at {}: {error}", mountpoint.display())]
    Session {
        /// Where.
        mountpoint: PathBuf,
        /// Why not.
        #[source]
        error: SessionError,
    },
    /// Mounted, but no request is answered.
    #[error("the mount at {} does not answer", .0.display())]
    NoAnswer(PathBuf),
    /// Nothing is mounted there.
    #[error("nothing is mounted at {}: `findmnt -t fuse.forebay` lists what is", .0.display())]
    NotMounted(PathBuf),
    /// Something else is mounted there.
    #[error("{} is a mount of {fs_type} ({source_name}), not of forebay: unmount it with `umount`", mountpoint.display())]
    NotForebay {
        /// Where.
        mountpoint: PathBuf,
        /// The file system's type.
        fs_type: String,
        /// What it shows.
        source_name: String,
    },
    /// Files are open below it.
    #[error(
        "{} is in use: `fuser -vm {}` lists by whom; end them, or unmount lazily",
        .0.display(), .0.display()
    )]
    Busy(PathBuf),
    /// A system call failed.
    #[error("cannot {action}: {error}")]
    Io {
        /// What was being done.
        action: String,
        /// Why not.
        #[source]
        error: io::Error,
    },
}

impl MountError {
    pub(crate) fn of_session(mountpoint: &Path, error: SessionError) -> Self {
        match error {
            SessionError::NoUring(reason) => Self::NoUring(reason.to_string()),
            error => Self::Session { mountpoint: mountpoint.to_owned(), error },
        }
    }

    pub(crate) fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |error| Self::Io { action, error }
    }
}
