//! A directory of this user alone, by its descriptor.

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::{NotOurs, PrivateError, our_user};
use crate::file::{self, Opening};

/// What the owner alone may do with a directory.
const OWNER: u32 = 0o700;
/// What others may.
const OTHERS: u32 = 0o077;
/// What `mkfs` makes in the root of a file system.
const OF_FILE_SYSTEM: &str = "lost+found";

/// An open directory that only this user can enter.
#[derive(Debug)]
pub struct PrivateDirectory {
    path: PathBuf,
    descriptor: OwnedFd,
}

impl PrivateDirectory {
    /// Opens the directory, and makes it if it is not there; what it is in must be. `is_ours`: the names that this use
    /// of the directory makes in it, which decide whether one that others may enter is closed to them or refused.
    ///
    /// # Errors
    /// [`PrivateError`].
    pub fn make(path: &Path, is_ours: impl Fn(&str) -> bool) -> Result<Self, PrivateError> {
        match DirBuilder::new().mode(OWNER).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(PrivateError::io("make", path, error)),
            _ => Self::open(path, is_ours),
        }
    }

    /// As [`PrivateDirectory::make`], with all that is missing above it, which is this user's alone as well.
    ///
    /// # Errors
    /// [`PrivateError`].
    pub fn make_all(path: &Path, is_ours: impl Fn(&str) -> bool) -> Result<Self, PrivateError> {
        let made = DirBuilder::new().recursive(true).mode(OWNER).create(path);
        made.map_err(|error| PrivateError::io("make", path, error))?;
        Self::open(path, is_ours)
    }

    /// As [`PrivateDirectory::make`], where it must be there.
    ///
    /// # Errors
    /// [`PrivateError`].
    pub fn open(path: &Path, is_ours: impl Fn(&str) -> bool) -> Result<Self, PrivateError> {
        let directory = Self::look(path)?;
        directory.close_to_others(&is_ours)?;
        Ok(directory)
    }

    /// Opens the directory as it is: its owner is this user, whoever else may enter it.
    ///
    /// # Errors
    /// [`PrivateError`].
    pub fn look(path: &Path) -> Result<Self, PrivateError> {
        // A slash at the end would have a link followed.
        let path = path.components().as_path();
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| cannot_open(path, error))?;
        let directory = Self { path: path.to_owned(), descriptor };
        match directory.stat()?.st_uid {
            theirs if theirs != our_user() => Err(NotOurs::directory_of(path, theirs).into()),
            _ => Ok(directory),
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file in it, as [`open_file`](crate::open_file) does.
    ///
    /// # Errors
    /// [`PrivateError`].
    pub fn file(&self, name: &str, opening: Opening) -> Result<File, PrivateError> {
        file::open_at(self.descriptor.as_fd(), Path::new(name), &self.path.join(name), opening)
    }

    /// Puts one of its files in the place of another.
    ///
    /// # Errors
    /// The kernel's.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.descriptor, from, &self.descriptor, to)?)
    }

    /// Removes a file from it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.descriptor, name, AtFlags::empty())?)
    }

    /// The names in it.
    ///
    /// # Errors
    /// [`PrivateError::Io`].
    pub fn names(&self) -> Result<Vec<OsString>, PrivateError> {
        let unreadable = |error: Errno| PrivateError::io("read", &self.path, error);
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.descriptor).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        Ok(names)
    }

    fn stat(&self) -> Result<Stat, PrivateError> {
        rustix::fs::fstat(&self.descriptor).map_err(|error| PrivateError::io("look at", &self.path, error))
    }

    /// Has nobody else enter it any more, unless it is one that others use.
    fn close_to_others(&self, is_ours: &dyn Fn(&str) -> bool) -> Result<(), PrivateError> {
        let before = self.stat()?.st_mode & 0o7777;
        if before & OTHERS == 0 {
            return Ok(());
        }
        let names = self.names()?;
        let is_known = |name: &OsString| name.to_str().is_some_and(|name| name == OF_FILE_SYSTEM || is_ours(name));
        if let Some(stranger) = names.iter().find(|name| !is_known(name)) {
            let stranger = stranger.to_string_lossy();
            let what = format!("others may enter it (mode {before:04o}), and it holds `{stranger}`, which is not ours");
            let path = self.path.display();
            let remedy = format!("give a directory for this use alone, or close it to others with `chmod 0700 {path}`");
            return Err(NotOurs::new(&self.path, what, remedy).into());
        }
        rustix::fs::fchmod(&self.descriptor, Mode::RWXU)
            .map_err(|error| PrivateError::io("change the mode of", &self.path, error))?;
        let after = self.stat()?.st_mode & 0o7777;
        if after & OTHERS != 0 {
            return Err(NotOurs::of_lasting_mode(&self.path, after).into());
        }
        let before = format!("{before:04o}");
        tracing::info!(path = %self.path.display(), before, "a directory that others could enter is closed to them");
        Ok(())
    }
}

impl AsFd for PrivateDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Why `path` was not opened as a directory: with both flags, the kernel calls a link no directory.
fn cannot_open(path: &Path, error: Errno) -> PrivateError {
    let is_link = || std::fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
    match error {
        Errno::NOTDIR | Errno::LOOP if is_link() => NotOurs::of_link(path).into(),
        error => PrivateError::io("open", path, error),
    }
}
