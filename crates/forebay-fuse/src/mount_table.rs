//! What is mounted where, and putting it right.
//!
//! A server that was killed leaves its mountpoint behind: every access fails with `ENOTCONN` until it is unmounted.
//! [`inspect`] tells such a dead mount of ours from a live one and from other file systems, by the kernel's table and one
//! `statfs`; [`repair`] takes the dead one away, so that the place can be mounted on again.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use tracing::info;

use crate::detach::{Detach, detach};
use crate::error::MountError;

/// The file system type of our mounts.
pub const FS_TYPE: &str = "fuse.forebay";
/// The kernel's table. The thread's own: it may be in another mount namespace than the process's first thread.
const TABLE: &str = "/proc/thread-self/mountinfo";
/// Symbolic links that are followed on the way to a mountpoint: as many as the kernel follows.
pub(crate) const MAX_LINKS: usize = 40;
/// A server that takes longer for a `statfs` is there, but in no state to be talked to.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What is at a mountpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountState {
    /// A plain directory.
    NotMounted,
    /// A mount of ours that answers, or at least has a server.
    Forebay {
        /// What it shows.
        source: String,
    },
    /// A mount of ours whose server is gone.
    Dead {
        /// What it showed.
        source: String,
    },
    /// Another file system.
    Other {
        /// Its type.
        fs_type: String,
        /// What it shows.
        source: String,
    },
}

/// A line of the kernel's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// `MAJOR:MINOR`.
    pub(crate) device: String,
    pub(crate) mountpoint: PathBuf,
    pub(crate) fs_type: String,
    pub(crate) source: String,
    /// The user and group who mounted a FUSE file system.
    owner: Option<(u32, u32)>,
}

/// What is mounted at `mountpoint`.
///
/// # Errors
/// [`MountError::Io`] when the kernel's table cannot be read, or the path's parent does not exist.
pub fn inspect(mountpoint: &Path) -> Result<MountState, MountError> {
    let mountpoint = resolve(mountpoint)?;
    let Some(entry) = entry_at(&mountpoint)? else { return Ok(MountState::NotMounted) };
    if entry.fs_type != FS_TYPE {
        return Ok(MountState::Other { fs_type: entry.fs_type, source: entry.source });
    }
    let answered = answer(&mountpoint, ANSWER_WITHIN, asker(&entry));
    let source = entry.source;
    let dead = answered.is_some_and(|answered| answered.is_err_and(is_of_the_dead));
    Ok(if dead { MountState::Dead { source } } else { MountState::Forebay { source } })
}

/// Unmounts what a killed server left at `mountpoint`. Returns whether there was something.
///
/// # Errors
/// [`MountError::AlreadyMounted`] when a live mount of ours is there: it is not touched.
pub fn repair(mountpoint: &Path) -> Result<bool, MountError> {
    let mut repaired = false;
    // Mounting on a dead mount is refused by the kernel, but whatever lies below ours may be a dead one again.
    loop {
        match inspect(mountpoint)? {
            MountState::Dead { source } => {
                let mountpoint = resolve(mountpoint)?;
                info!(mountpoint = %mountpoint.display(), source, "taking away the mount that a killed server left");
                detach(&mountpoint, Detach::Lazy)?;
                repaired = true;
            }
            MountState::Forebay { source } => {
                return Err(MountError::AlreadyMounted { mountpoint: mountpoint.to_owned(), source_name: source });
            }
            MountState::NotMounted | MountState::Other { .. } => return Ok(repaired),
        }
    }
}

/// Unmounts what killed servers left below `directory`. How many mounts of ours are there still.
///
/// # Errors
/// When the kernel's table cannot be read, or one cannot be unmounted.
pub fn repair_below(directory: &Path) -> Result<usize, MountError> {
    // As the kernel names it.
    let directory = directory.canonicalize();
    let directory = &directory.map_err(MountError::io("resolve the directory of the mounts".to_owned()))?;
    for mountpoint in ours_below(directory)? {
        match repair(&mountpoint) {
            // Somebody else may have unmounted it meanwhile.
            Ok(_) | Err(MountError::AlreadyMounted { .. } | MountError::NotMounted(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ours_below(directory)?.len())
}

/// Where mounts of ours are below `directory`.
fn ours_below(directory: &Path) -> Result<Vec<PathBuf>, MountError> {
    let table = std::fs::read(TABLE).map_err(MountError::io(format!("read {TABLE}")))?;
    let ours = parse(&table).filter(|entry| entry.fs_type == FS_TYPE && entry.mountpoint.starts_with(directory));
    Ok(ours.map(|entry| entry.mountpoint).collect())
}

/// Unmounts our mount at `mountpoint`, dead or alive. `lazy`: also while files are open; they stay readable for as
/// long as the server runs.
///
/// # Errors
/// [`MountError::NotMounted`], [`MountError::NotForebay`], [`MountError::Busy`].
pub fn unmount(mountpoint: &Path, lazy: bool) -> Result<(), MountError> {
    let how = match inspect(mountpoint)? {
        MountState::NotMounted => return Err(MountError::NotMounted(mountpoint.to_owned())),
        MountState::Other { fs_type, source } => {
            return Err(MountError::NotForebay { mountpoint: mountpoint.to_owned(), fs_type, source_name: source });
        }
        MountState::Dead { .. } => Detach::Lazy,
        MountState::Forebay { .. } if lazy => Detach::Lazy,
        MountState::Forebay { .. } => Detach::Clean,
    };
    detach(&resolve(mountpoint)?, how)
}

/// Takes away our mount at `mountpoint`, which nobody serves and nobody will: what waits for an answer gets an error. Does not look into
/// it: somebody may have its connection still.
///
/// # Errors
/// [`MountError::NotMounted`], and whatever else keeps it from being unmounted.
pub fn take_away(mountpoint: &Path) -> Result<(), MountError> {
    let listed = listed(mountpoint).ok_or_else(|| MountError::NotMounted(mountpoint.to_owned()))?;
    detach(&listed, Detach::Forced)
}

/// Whether a process serves our mount at `mountpoint`, which is as [`listed`] has it, so that it answers. Waits for that, for some
/// seconds: nobody need serve it.
#[must_use]
pub fn is_answered(mountpoint: &Path) -> bool {
    let entry = entry_at(mountpoint).ok().flatten().filter(|entry| entry.fs_type == FS_TYPE);
    entry.is_some_and(|entry| matches!(answer(mountpoint, ANSWER_WITHIN, asker(&entry)), Some(Ok(()))))
}

/// As whom to ask the server of a mount. Without `allow_other`, the kernel asks that of a user's mount only for that user. It answers
/// all others, root included, with success, even where the mount is dead. So root asks as that user.
fn asker(entry: &MountEntry) -> Option<(u32, u32)> {
    entry.owner.filter(|(user, _)| *user != 0 && rustix::process::geteuid().is_root())
}

/// Whether this answer means that the mount has no server. A request that was under way while its server died is
/// aborted; later ones find no connection.
fn is_of_the_dead(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED)
}

/// The mount of ours that `path` leads to, as the kernel's table names it; `None` if there is none. Looks at nothing in it: a mount
/// that is kept has no server for a moment, and would have us wait.
#[must_use]
pub fn listed(path: &Path) -> Option<PathBuf> {
    let mut path = std::path::absolute(path).ok()?;
    for _ in 0..MAX_LINKS {
        let named = path.parent()?.canonicalize().ok()?.join(path.file_name()?);
        if entry_at(&named).ok()?.is_some_and(|entry| entry.fs_type == FS_TYPE) {
            return Some(named);
        }
        let target = std::fs::read_link(&named).ok()?;
        path = named.parent()?.join(target);
    }
    None
}

/// Where the mount at `mountpoint`, which must be resolved, is as well, as by a bind mount; and `mountpoint` itself, also if nothing is
/// mounted there yet.
pub(crate) fn places_of(mountpoint: &Path) -> Vec<PathBuf> {
    // Without a table there is only what is asked for.
    let table = std::fs::read(TABLE).unwrap_or_default();
    let device = parse(&table).rfind(|entry| entry.mountpoint == mountpoint && entry.fs_type == FS_TYPE);
    let device = device.map(|entry| entry.device);
    let also = parse(&table).filter(|entry| device.as_ref() == Some(&entry.device)).map(|entry| entry.mountpoint);
    also.chain([mountpoint.to_owned()]).collect()
}

/// The mountpoint as the kernel's table names it.
pub(crate) fn resolve(mountpoint: &Path) -> Result<PathBuf, MountError> {
    if let Some(listed) = listed(mountpoint) {
        return Ok(listed);
    }
    match mountpoint.canonicalize() {
        Ok(path) => Ok(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(MountError::NoMountpoint(mountpoint.to_owned())),
        // A dead mount cannot be looked at, but its parent can.
        Err(error) => match (mountpoint.parent(), mountpoint.file_name()) {
            (Some(parent), Some(name)) if Errno::from_io_error(&error).is_some_and(is_of_the_dead) => {
                let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                let action = format!("resolve {}", parent.display());
                Ok(parent.canonicalize().map_err(MountError::io(action))?.join(name))
            }
            _ => Err(MountError::Io { action: format!("resolve {}", mountpoint.display()), error }),
        },
    }
}

/// The topmost mount at `mountpoint`, which must be resolved.
pub(crate) fn entry_at(mountpoint: &Path) -> Result<Option<MountEntry>, MountError> {
    let table = std::fs::read(TABLE).map_err(MountError::io(format!("read {TABLE}")))?;
    Ok(parse(&table).rfind(|entry| entry.mountpoint == mountpoint))
}

/// What `statfs` says, to `user` and group; `None` when it says nothing within `limit`.
pub(crate) fn answer(mountpoint: &Path, limit: Duration, user: Option<(u32, u32)>) -> Option<Result<(), Errno>> {
    let (tell, told) = mpsc::channel();
    let path = mountpoint.to_owned();
    // A thread of its own, which a server that hangs can keep: it ends when the server answers or dies.
    std::thread::Builder::new()
        .name("forebay-statfs".to_owned())
        .spawn(move || tell.send(become_user(user).and_then(|()| rustix::fs::statfs(&path).map(drop))))
        .ok()?;
    told.recv_timeout(limit).ok()
}

/// Makes this thread, and no other, one of `user`'s. Only root can.
fn become_user(user: Option<(u32, u32)>) -> Result<(), Errno> {
    let Some((user, group)) = user else { return Ok(()) };
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_thread_res_uid(user, user, user)
}

/// The lines of a `mountinfo`, as proc(5) describes them; what does not look like one is passed over.
fn parse(table: &[u8]) -> impl DoubleEndedIterator<Item = MountEntry> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        // ID, parent, MAJOR:MINOR, root, mountpoint, options, any number of tags, `-`, type, source, options.
        let dash = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
        let text = |field: &[u8]| String::from_utf8_lossy(&unescape(field)).into_owned();
        let options = text(fields.get(dash + 3).copied().unwrap_or_default());
        let id = |name: &str| options.split(',').find_map(|option| option.strip_prefix(name)?.parse().ok());
        Some(MountEntry {
            device: text(fields.get(2)?),
            mountpoint: OsString::from_vec(unescape(fields.get(4)?)).into(),
            fs_type: text(fields.get(dash + 1)?),
            source: text(fields.get(dash + 2)?),
            owner: id("user_id=").zip(id("group_id=")),
        })
    })
}

/// The kernel writes space, tab, newline, backslash and `#` as `\` and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|digits| byte == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match octal {
            Some(digits) => {
                let value = digits.iter().fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                // Three octal digits may say up to 511; the kernel writes bytes.
                bytes.push(value as u8);
                rest = &tail[3..];
            }
            None => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    bytes
}

/// Whether there is anything in `directory`, which a mount would hide.
pub(crate) fn hides_something(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some())
}

/// `source` as the value of one option of `fusermount3`.
pub(crate) fn escape_option(source: &str) -> String {
    source.replace('\\', "\\\\").replace(',', "\\,")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: &[u8] = b"22 1 0:20 / /proc rw,relatime - proc proc rw\n\
        31 22 0:46 / /mnt/a\\040b ro,nosuid shared:7 master:1 - fuse.forebay s3://b/p ro,user_id=7,group_id=8\n\
        garbage\n\
        32 31 0:47 / /mnt/a\\040b ro - fuse.sshfs host: rw\n";

    #[test]
    fn the_kernels_table_is_read_with_its_escapes_and_tags() {
        let entries: Vec<_> = parse(TABLE).collect();
        assert_eq!(entries.len(), 3);
        assert_eq!(entries[1].mountpoint, Path::new("/mnt/a b"));
        assert_eq!((entries[1].device.as_str(), entries[1].fs_type.as_str()), ("0:46", FS_TYPE));
        assert_eq!((entries[1].source.as_str(), entries[1].owner), ("s3://b/p", Some((7, 8))));
        let top = parse(TABLE).rfind(|entry| entry.mountpoint == Path::new("/mnt/a b"));
        assert_eq!(top.map(|entry| entry.fs_type), Some("fuse.sshfs".to_owned()));
    }

    #[test]
    fn what_is_no_mount_of_ours_is_not_listed_whatever_leads_there() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("link", directory.path().join("link")).unwrap();
        std::os::unix::fs::symlink("/proc", directory.path().join("proc")).unwrap();
        for name in ["link", "proc", "missing", "missing/below", ""] {
            assert_eq!(listed(&directory.path().join(name)), None, "{name}");
        }
        assert_eq!(listed(Path::new("/")), None);
    }

    #[test]
    fn a_plain_directory_is_not_mounted_and_cannot_be_unmounted() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(inspect(directory.path()).unwrap(), MountState::NotMounted);
        assert!(!repair(directory.path()).unwrap());
        assert!(!is_answered(directory.path()));
        assert!(matches!(unmount(directory.path(), false), Err(MountError::NotMounted(_))));
        let missing = directory.path().join("missing");
        assert!(matches!(inspect(&missing), Err(MountError::NoMountpoint(_))));
    }

    #[test]
    fn other_file_systems_are_left_alone() {
        assert!(matches!(inspect(Path::new("/proc")).unwrap(), MountState::Other { .. }));
        assert!(!repair(Path::new("/proc")).unwrap());
        let error = unmount(Path::new("/proc"), true).unwrap_err();
        assert!(error.to_string().contains("not of forebay"), "{error}");
    }

    #[test]
    fn commas_of_a_source_are_escaped() {
        assert_eq!(escape_option("s3://a,b\\c"), "s3://a\\,b\\\\c");
    }

    proptest! {
        #[test]
        fn no_table_makes_the_parser_panic(table in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&table).count();
        }
    }
}
