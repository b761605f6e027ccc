//! Where files are, and what is asked of them there: each question is a call of the system.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
#[cfg(feature = "fuzzing")]
use std::sync::Arc;

use super::answers::{Access, Ownership};
use super::links;
#[cfg(feature = "fuzzing")]
use super::memory::MemoryTree;

/// Most of one file that is read. `/proc/net/tcp` of a busy machine is the longest: 150 bytes a connection.
pub(crate) const MAX_TEXT: u64 = 16 << 20;
/// Most names of one directory that are looked at.
const MAX_NAMES: usize = 65_536;

/// Where files are. Paths are given without the leading `/`.
#[derive(Clone, Debug)]
pub(crate) enum Tree {
    /// Below this folder, which is `/` on this machine.
    Folder(PathBuf),
    /// In memory, for fuzzers.
    #[cfg(feature = "fuzzing")]
    Memory(Arc<MemoryTree>),
}

/// What is at a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) is_file: bool,
    pub(crate) is_folder: bool,
    pub(crate) owned: Ownership,
}

impl Tree {
    /// The folder, if there is one.
    pub(crate) fn folder(&self) -> Option<&Path> {
        match self {
            Self::Folder(prefix) => Some(prefix),
            #[cfg(feature = "fuzzing")]
            Self::Memory(_) => None,
        }
    }

    /// What is there; links are followed.
    pub(crate) fn found(&self, path: &Path) -> Option<Found> {
        match self {
            Self::Folder(prefix) => {
                let found = fs::metadata(place(prefix, path, true)?).ok()?;
                let owned = Ownership { user: found.uid(), mode: found.mode() & 0o7777 };
                Some(Found { is_file: found.is_file(), is_folder: found.is_dir(), owned })
            }
            #[cfg(feature = "fuzzing")]
            Self::Memory(tree) => tree.is_file(path).map(|is_file| {
                let owned = Ownership { user: 0, mode: if is_file { 0o644 } else { 0o755 } };
                Found { is_file, is_folder: !is_file, owned }
            }),
        }
    }

    /// A regular file's bytes.
    pub(crate) fn read(&self, path: &Path) -> Option<Vec<u8>> {
        match self {
            Self::Folder(prefix) => {
                // A pipe in the place of a file must not keep us waiting.
                let mut options = OpenOptions::new();
                options.read(true).custom_flags(libc::O_NONBLOCK);
                let file = options.open(place(prefix, path, true)?).ok()?;
                file.metadata().ok()?.is_file().then_some(())?;
                let mut bytes = Vec::new();
                file.take(MAX_TEXT).read_to_end(&mut bytes).ok()?;
                Some(bytes)
            }
            #[cfg(feature = "fuzzing")]
            Self::Memory(tree) => tree.read(path).map(<[u8]>::to_vec),
        }
    }

    /// The names in a directory, in no order; `None` when it cannot be read.
    pub(crate) fn names(&self, directory: &Path) -> Option<Vec<String>> {
        match self {
            Self::Folder(prefix) => {
                let entries = fs::read_dir(place(prefix, directory, true)?).ok()?;
                let names = entries.take(MAX_NAMES).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
                Some(names.collect())
            }
            #[cfg(feature = "fuzzing")]
            Self::Memory(tree) => tree.names(directory),
        }
    }

    /// What a symbolic link says.
    pub(crate) fn link(&self, path: &Path) -> Option<PathBuf> {
        match self {
            Self::Folder(prefix) => fs::read_link(place(prefix, path, false)?).ok(),
            #[cfg(feature = "fuzzing")]
            Self::Memory(_) => None,
        }
    }

    /// What a path leads to, all links followed.
    pub(crate) fn resolved(&self, path: &Path) -> Option<PathBuf> {
        match self {
            Self::Folder(prefix) => links::follow(prefix, path, true).map(|followed| followed.place),
            #[cfg(feature = "fuzzing")]
            Self::Memory(_) => Some(path.to_owned()),
        }
    }

    /// Opens a device node and closes it again.
    pub(crate) fn access(&self, path: &Path) -> Access {
        let opened = match self {
            Self::Folder(prefix) => open_device(prefix, path),
            #[cfg(feature = "fuzzing")]
            Self::Memory(tree) => match tree.is_file(path) {
                Some(true) => Ok(()),
                Some(false) => Err(ErrorKind::IsADirectory.into()),
                None => Err(ErrorKind::NotFound.into()),
            },
        };
        match opened {
            Ok(()) => Access::Granted,
            Err(error) if error.kind() == ErrorKind::NotFound => Access::Missing,
            Err(error) => {
                let words = error.to_string();
                Access::Refused(words.split(" (os error").next().unwrap_or_default().to_owned())
            }
        }
    }

    /// Whether a file can be opened for writing. Nothing is written.
    pub(crate) fn may_write(&self, path: &Path) -> bool {
        match self {
            Self::Folder(prefix) => {
                place(prefix, path, true).is_some_and(|place| OpenOptions::new().write(true).open(place).is_ok())
            }
            #[cfg(feature = "fuzzing")]
            Self::Memory(tree) => tree.is_file(path) == Some(true),
        }
    }

    /// What is free in the file system of a folder, in bytes.
    pub(crate) fn free_bytes(&self, folder: &Path) -> Option<u64> {
        match self {
            Self::Folder(prefix) => {
                let space = rustix::fs::statvfs(&place(prefix, folder, true)?).ok()?;
                Some(space.f_bavail.saturating_mul(space.f_frsize))
            }
            #[cfg(feature = "fuzzing")]
            Self::Memory(tree) => tree.is_file(folder).map(|_| 1 << 40),
        }
    }
}

/// Where `path` is on this machine. Below `/` the kernel follows links by itself.
fn place(prefix: &Path, path: &Path, is_end_followed: bool) -> Option<PathBuf> {
    if prefix == Path::new("/") {
        return Some(prefix.join(path));
    }
    Some(prefix.join(links::follow(prefix, path, is_end_followed)?.place))
}

fn open_device(prefix: &Path, path: &Path) -> io::Result<()> {
    let place = place(prefix, path, true).ok_or(ErrorKind::NotFound)?;
    File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(place).map(drop)
}
