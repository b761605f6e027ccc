//! What a run makes outside of its directory, and removes: known by its name, so that a run that was killed can be cleaned up after.
//!
//! A run has one name, `forebay-bench-` and six letters, for all of it: a directory for processes among the temporary
//! files, and one for the files that are read wherever they are read, with a number behind the name. The name is
//! written down before any of that is there. The next run goes by it, and never by a path in a list: where files are
//! read it knows from its own settings, which must be the same. In such a directory it removes what this benchmark
//! writes, and nothing else.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What the names of all runs begin with.
const PREFIX: &str = "forebay-bench-";
/// Letters behind it, as `tempfile` chooses them.
const LETTERS: usize = 6;

/// What one run has made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// Its name.
    pub name: String,
    /// Where its temporary files are: `/tmp`.
    pub temporary: PathBuf,
}

impl Made {
    /// What the names of all runs begin with.
    pub const PREFIX: &str = PREFIX;

    /// Whether a run may have made it.
    pub(super) fn is_ours(&self) -> bool {
        let letters = self.name.strip_prefix(PREFIX).unwrap_or_default();
        let is_name = letters.len() == LETTERS && letters.bytes().all(|letter| letter.is_ascii_alphanumeric());
        is_name && self.temporary.is_absolute()
    }

    /// The directory of its processes.
    #[must_use]
    pub fn of_processes(&self) -> PathBuf {
        self.temporary.join(&self.name)
    }

    /// The name of the directory of its files in the place `number`.
    #[must_use]
    pub fn of_files(&self, number: usize) -> String {
        format!("{}-{number}", self.name)
    }
}

/// The name of a file in such a directory.
#[must_use]
pub fn file_name(number: u32) -> String {
    format!("file{number:02}")
}

/// Removes such a directory with the files of these names in it; one that is not there is removed.
///
/// # Errors
/// What the system says; that it is not empty, when there is something else in it.
pub fn remove_files(directory: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.is_dir() => return Err(io::ErrorKind::NotADirectory.into()),
        Ok(_) => {}
    }
    // All names first: what is removed while a directory is listed may hide what follows it.
    let entries: Vec<_> = std::fs::read_dir(directory)?.collect::<Result<_, _>>()?;
    for entry in entries {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("file")?.parse().ok());
        if number.is_some_and(|number| *name == *file_name(number)) && entry.file_type()?.is_file() {
            std::fs::remove_file(entry.path())?;
        }
    }
    std::fs::remove_dir(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_a_run_has_are_taken_for_one() {
        let is_ours =
            |name: &str, temporary: &str| Made { name: name.to_owned(), temporary: temporary.into() }.is_ours();
        assert!(is_ours("forebay-bench-a1B2c3", "/tmp"));
        for name in ["", "precious", "forebay-bench-", "forebay-bench-../../", "forebay-bench-20260131-235959"] {
            assert!(!is_ours(name, "/tmp"), "{name}");
        }
        assert!(!is_ours("forebay-bench-a1B2c3", "tmp"));
    }

    #[test]
    fn files_of_ours_are_removed_with_their_directory_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("forebay-bench-a1B2c3-0");
        let remove = || remove_files(&directory);
        remove().unwrap();
        std::fs::create_dir(&directory).unwrap();
        let (ours, theirs, link) = (file_name(100), "file1", file_name(7));
        for name in [&ours, theirs] {
            std::fs::write(directory.join(name), "").unwrap();
        }
        std::os::unix::fs::symlink(root.path().join("precious"), directory.join(&link)).unwrap();
        assert_eq!(remove().unwrap_err().kind(), io::ErrorKind::DirectoryNotEmpty);
        let mut left: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [link.as_str(), theirs]);
        std::fs::remove_file(directory.join(theirs)).unwrap();
        std::fs::remove_file(directory.join(link)).unwrap();
        remove().unwrap();
        assert!(!directory.exists());
    }
}
