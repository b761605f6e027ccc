//! Files of this user alone.

use std::fs::{File, Metadata};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{NotOurs, PrivateError, our_user};

/// What others may do with a file.
const OTHERS: u32 = 0o077;

/// How a file is opened: to be read and written, unless it is said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It must be there.
    Existing,
    /// It must be there, and is only read.
    ReadOnly,
    /// It must be there, and the page cache is passed by. `InvalidInput` where its file system cannot do that.
    Direct,
    /// It is made if it is not there.
    OrMade,
    /// It must not be there.
    New,
    /// It is made if it is not there, and emptied if it is.
    Emptied,
}

impl Opening {
    fn flags(self) -> OFlags {
        match self {
            Self::Existing => OFlags::RDWR,
            Self::ReadOnly => OFlags::RDONLY,
            Self::Direct => OFlags::RDWR | OFlags::DIRECT,
            Self::OrMade | Self::Emptied => OFlags::RDWR | OFlags::CREATE,
            Self::New => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        }
    }
}

/// Opens a file that is this user's alone, of mode 0600: what is wider is made so. Whose its directory is was asked
/// when that was opened. Blocks as opening a file does.
///
/// # Errors
/// [`PrivateError`]; a file that is not ours was not changed.
pub fn open_file(path: &Path, opening: Opening) -> Result<File, PrivateError> {
    open_at(CWD, path, path, opening)
}

/// Opens `name`, which errors call `path`, from a directory.
pub(crate) fn open_at(
    directory: BorrowedFd<'_>,
    name: &Path,
    path: &Path,
    opening: Opening,
) -> Result<File, PrivateError> {
    // What is not ours may be a pipe, which would have us wait for its other end, or a terminal.
    let careful = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(directory, name, opening.flags() | careful, Mode::RUSR | Mode::WUSR);
    let file = File::from(opened.map_err(|error| cannot_open(path, error))?);
    let found = file.metadata().map_err(|error| PrivateError::io("look at", path, error))?;
    check(&found, path)?;
    close_to_others(&file, &found, path)?;
    // Reads of a regular file are to wait: io_uring would take the flag at its word.
    rustix::fs::fcntl_getfl(&file)
        .and_then(|flags| rustix::fs::fcntl_setfl(&file, flags.difference(OFlags::NONBLOCK)))
        .map_err(|error| PrivateError::io("set the flags of", path, error))?;
    // Not by a flag: it would have emptied what is not ours.
    if opening == Opening::Emptied && found.len() > 0 {
        file.set_len(0).map_err(|error| PrivateError::io("empty", path, error))?;
    }
    Ok(file)
}

fn cannot_open(path: &Path, error: Errno) -> PrivateError {
    match error {
        Errno::LOOP => NotOurs::of_link(path).into(),
        Errno::ISDIR | Errno::NXIO => of_no_file(path).into(),
        error => PrivateError::io("open", path, error),
    }
}

fn of_no_file(path: &Path) -> NotOurs {
    NotOurs::new(path, "it is no regular file", format!("remove it (`rm -r {}`)", path.display()))
}

/// Whether an open file is one that we made, as far as that can be told.
fn check(found: &Metadata, path: &Path) -> Result<(), NotOurs> {
    if !found.is_file() {
        return Err(of_no_file(path));
    }
    if found.uid() != our_user() {
        return Err(NotOurs::file_of(path, found.uid()));
    }
    // None: it was removed after it was opened.
    if found.nlink() > 1 {
        let what = format!("it has {} names, of which others may have made one", found.nlink());
        let remedy = format!("remove all but one, which `find / -xdev -samefile {}` lists", path.display());
        return Err(NotOurs::new(path, what, remedy));
    }
    Ok(())
}

/// Has nobody else open it any more. Who has it open already keeps it.
fn close_to_others(file: &File, found: &Metadata, path: &Path) -> Result<(), PrivateError> {
    let before = found.mode() & 0o7777;
    if before & OTHERS == 0 {
        return Ok(());
    }
    rustix::fs::fchmod(file, Mode::RUSR | Mode::WUSR)
        .map_err(|error| PrivateError::io("change the mode of", path, error))?;
    let after = file.metadata().map_err(|error| PrivateError::io("look at", path, error))?.mode() & 0o7777;
    if after & OTHERS != 0 {
        return Err(NotOurs::of_lasting_mode(path, after).into());
    }
    let before = format!("{before:04o}");
    tracing::info!(path = %path.display(), before, "a file that others could open is closed to them");
    Ok(())
}
