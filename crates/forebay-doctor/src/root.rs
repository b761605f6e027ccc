//! The file system as it is looked at: below a prefix, and never more of a file or directory than a bound.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Most of one file that is read. `/proc/net/tcp` of a busy machine is the longest: 150 bytes a connection.
const MOST_TEXT: u64 = 16 << 20;
/// Most names of one directory that are looked at.
const MOST_NAMES: usize = 65_536;

/// Where the machine's files are: `/`, or the folder of a recorded tree. Paths are given without the leading `/`.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self(PathBuf::from("/"))
    }
}

/// Whether this process may use a device node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// It is not there.
    #[default]
    Missing,
    /// It can be opened for reading and writing.
    Granted,
    /// It cannot: the system's words.
    Refused(String),
}

impl Root {
    /// The tree below `prefix`.
    #[must_use]
    pub fn new(prefix: impl Into<PathBuf>) -> Self {
        Self(prefix.into())
    }

    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// A regular file's text, without white space around it; `None` when it cannot be read. Many attributes of sysfs
    /// cannot, when they do not apply.
    pub(crate) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        // A pipe in the place of a file must not keep us waiting.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(self.path(path)).ok()?;
        file.metadata().ok()?.is_file().then_some(())?;
        let mut bytes = Vec::new();
        file.take(MOST_TEXT).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// As [`Root::text`], where an empty one says nothing.
    pub(crate) fn word(&self, path: impl AsRef<Path>) -> Option<String> {
        self.text(path).filter(|text| !text.is_empty())
    }

    /// A decimal number.
    pub(crate) fn number<T: std::str::FromStr>(&self, path: impl AsRef<Path>) -> Option<T> {
        self.text(path)?.parse().ok()
    }

    /// The names in a directory, numbers in their order; none when it cannot be read.
    pub(crate) fn names(&self, directory: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(directory)) else { return Vec::new() };
        let names = entries.take(MOST_NAMES).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort_by_cached_key(|name| (name.parse::<u32>().unwrap_or(u32::MAX), name.clone()));
        names
    }

    /// The last name in what a symbolic link points to, whether that is there or not.
    pub(crate) fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// What a path leads to, all links followed.
    pub(crate) fn resolved(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        fs::canonicalize(self.path(path)).ok()
    }

    /// Opens a device node and closes it again: permissions do not tell what a container's device rules refuse.
    pub(crate) fn access(&self, path: impl AsRef<Path>) -> Access {
        let opened = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(self.path(path));
        match opened {
            Ok(_) => Access::Granted,
            Err(error) if error.kind() == ErrorKind::NotFound => Access::Missing,
            Err(error) => {
                let words = error.to_string();
                Access::Refused(words.split(" (os error").next().unwrap_or_default().to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_files_are_cut_shown_or_unknown_and_nothing_waits() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        fs::write(folder.path().join("bytes"), b" 4: \xff\xfe\n").unwrap();
        File::create(folder.path().join("huge")).unwrap().set_len(MOST_TEXT + 1).unwrap();
        fs::write(folder.path().join("empty"), "").unwrap();
        std::os::unix::fs::symlink("nowhere/at/all", folder.path().join("dangling")).unwrap();
        std::os::unix::fs::symlink("loop", folder.path().join("loop")).unwrap();
        let pipe = std::ffi::CString::new(folder.path().join("pipe").to_str().unwrap()).unwrap();
        // SAFETY: a path that ends with a zero.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        assert_eq!(root.text("bytes").as_deref(), Some("4: \u{fffd}\u{fffd}"));
        assert_eq!(root.text("huge").unwrap().len() as u64, MOST_TEXT);
        assert_eq!((root.text("empty").as_deref(), root.word("empty")), (Some(""), None));
        for none in ["dangling", "loop", "pipe", ".", "missing", "missing/below"] {
            assert_eq!(root.text(none), None, "{none}");
        }
        assert_eq!(root.link_name("dangling").as_deref(), Some("all"));
        assert_eq!((root.resolved("dangling"), root.number::<u32>("bytes")), (None, None));
        assert_eq!(root.access("dangling"), Access::Missing);
        assert!(matches!(root.access("."), Access::Refused(_)));
        assert_eq!(root.access("/empty"), Access::Granted);
    }
}
