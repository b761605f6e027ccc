//! A directory on a local disk. Files in it stay for the next process, which checks every byte before it uses one.
//!
//! `<client.local.dir>/<whose>/lock` is locked by the mount whose it is; below `v1` is a [`Tree`]. The directory must be ours
//! alone: what others could write, others could make us serve. So each step goes from the descriptor of the one before and
//! follows no link, and what is looked at is what was opened.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use forebay_types::crc32c;
use rustix::fs::{FlockOperation, Mode, OFlags, Stat, flock, fstat, mkdirat, open as open_path, openat};
use rustix::io::Errno;

use crate::backend::BackendKind;
use crate::clone::readable;
use crate::error::{LocalError, failed};
use crate::tree::{Tree, TreeOptions};

/// The version of the layout; others lie beside it.
const LAYOUT: &str = "v1";
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

/// Opens the directory of the mount `owner` in `dir`, and makes what is not there. Fails if another process has it.
pub(crate) fn open(dir: &Path, owner: &str) -> Result<Tree, LocalError> {
    // Two owners of one checksum are told apart by the lock.
    let whose = format!("mount-{:08x}", crc32c(owner.as_bytes()));
    let path = dir.join(&whose);
    let ours = ours(&shared(dir)?, &whose, &path)?;
    let lock = lock(&ours, &path)?;
    let path = path.join(LAYOUT);
    let root = self::ours(&ours, LAYOUT, &path)?;
    let readable = readable(&root).map_err(failed("open", &path))?;
    let options = TreeOptions { kind: BackendKind::Directory, lasting: true, sets_aside: true };
    let tree = Tree::new(root, readable, options).map_err(failed("use", &path))?;
    Ok(tree.locked(lock))
}

/// The directory that mounts share. Only we, or root, may put something in the place of what is in it.
fn shared(dir: &Path) -> Result<OwnedFd, LocalError> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed("make", dir)(error)),
        _ => {}
    }
    let opened = open_path(dir, DIRECTORY, Mode::empty()).map_err(|error| failed("open", dir)(error.into()))?;
    let stat = fstat(&opened).map_err(|error| failed("look at", dir)(error.into()))?;
    let is_sticky = stat.st_mode & 0o1000 != 0;
    let why = (stat.st_mode & 0o022 != 0 && !is_sticky).then(|| format!("others may write to it, {}", mode_of(&stat)));
    is_ours(opened, dir, why)
}

/// The directory `name` in `parent`, which is ours alone.
fn ours(parent: &OwnedFd, name: &str, path: &Path) -> Result<OwnedFd, LocalError> {
    match mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(failed("make", path)(error.into())),
    }
    let opened = match openat(parent, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty()) {
        Ok(opened) => opened,
        Err(Errno::NOTDIR | Errno::LOOP) => {
            return Err(LocalError::NotOurs { path: path.to_owned(), why: "it is no directory".to_owned() });
        }
        Err(error) => return Err(failed("open", path)(error.into())),
    };
    let stat = fstat(&opened).map_err(|error| failed("look at", path)(error.into()))?;
    let why = if stat.st_uid != rustix::process::geteuid().as_raw() {
        Some(format!("it belongs to user {}", stat.st_uid))
    } else {
        (stat.st_mode & 0o077 != 0).then(|| mode_of(&stat))
    };
    is_ours(opened, path, why)
}

fn is_ours(opened: OwnedFd, path: &Path, why: Option<String>) -> Result<OwnedFd, LocalError> {
    match why {
        Some(why) => Err(LocalError::NotOurs { path: path.to_owned(), why }),
        None => Ok(opened),
    }
}

fn mode_of(stat: &Stat) -> String {
    format!("its mode is {:o}", stat.st_mode & 0o7777)
}

/// The lock of `ours`, held by us.
fn lock(ours: &OwnedFd, path: &Path) -> Result<File, LocalError> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let lock_path = path.join("lock");
    let lock = openat(ours, "lock", flags, Mode::RUSR | Mode::WUSR);
    let lock = lock.map_err(|error| failed("open", &lock_path)(error.into()))?;
    // It ends with the descriptor, so also with the process.
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock.into()),
        Err(Errno::WOULDBLOCK) => Err(LocalError::InUse(path.to_owned())),
        Err(error) => Err(failed("lock", &lock_path)(error.into())),
    }
}
