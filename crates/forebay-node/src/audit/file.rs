//! The file of an audit log, and those that it was renamed to when it was full: `FILE.1` is the last one, `FILE.2` the one before.
//!
//! It is locked, since lines of two processes, and what they rename, would be in each other's way. Each write looks where the
//! file ends: whoever empties it, removes it, or left half a line in it when it was killed, loses no later line.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use forebay_private::{Opening, open_file};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// What stands behind the name of a file that is to take the place of a full one.
const FRESH: &str = "new";

/// The open file.
#[derive(Debug)]
pub(super) struct AuditFile {
    path: PathBuf,
    /// Bytes; a file that would outgrow this is renamed.
    max_size: u64,
    /// How many renamed files there are at most, from 1.
    keep: u32,
    file: File,
}

impl AuditFile {
    /// Opens `path`, and goes on behind what it holds.
    ///
    /// # Errors
    /// When it cannot be had as this user's alone, or another process writes to it.
    pub(super) fn open(path: &Path, max_size: u64, keep: u32) -> anyhow::Result<Self> {
        Ok(Self { path: path.to_owned(), max_size, keep, file: locked(path, Opening::OrMade)? })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Begins a new file if this one has no room for `length` more bytes, or has been removed.
    ///
    /// # Errors
    /// When that cannot be: the file stays then.
    pub(super) fn make_room(&mut self, length: usize) -> anyhow::Result<()> {
        let found = self.file.metadata()?;
        let is_gone = found.nlink() == 0;
        if is_gone || is_full(found.len(), length as u64, self.max_size) { self.rotate() } else { Ok(()) }
    }

    /// Adds `lines`, which are whole.
    ///
    /// # Errors
    /// The kernel's. Nothing of them is there then, as far as that could be undone.
    pub(super) fn append(&self, lines: &[u8]) -> io::Result<()> {
        let end = self.file.metadata()?.len();
        let written = if self.ends_within_a_line(end)? {
            self.file.write_all_at(&[&b"\n"[..], lines].concat(), end)
        } else {
            self.file.write_all_at(lines, end)
        };
        if written.is_err() {
            let _ = self.file.set_len(end);
        }
        written
    }

    /// Waits until what was written would survive the machine.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn ends_within_a_line(&self, end: u64) -> io::Result<bool> {
        let Some(last) = end.checked_sub(1) else { return Ok(false) };
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, last)?;
        Ok(byte != *b"\n")
    }

    fn rotate(&mut self) -> anyhow::Result<()> {
        // Made first: where there is no room for it, nothing is renamed, and nothing falls off the end.
        let fresh_path = self.behind(FRESH);
        let fresh = locked(&fresh_path, Opening::Emptied)?;
        for number in (1..self.keep).rev() {
            rename(&self.behind(number), &self.behind(number + 1))?;
        }
        rename(&self.path, &self.behind(1))?;
        rename(&fresh_path, &self.path)?;
        self.file = fresh;
        Ok(())
    }

    /// The path with something behind it.
    fn behind(&self, suffix: impl Display) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(format!(".{suffix}"));
        name.into()
    }
}

/// Whether a file of `held` bytes is to be renamed before `more` are written. One that is empty never is.
fn is_full(held: u64, more: u64, max_size: u64) -> bool {
    held > 0 && held.saturating_add(more) > max_size
}

fn locked(path: &Path, opening: Opening) -> anyhow::Result<File> {
    let file = open_file(path, opening)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => anyhow::bail!("another process writes to {}", path.display()),
        Err(error) => Err(io::Error::from(error)).with_context(|| format!("cannot lock {}", path.display())),
    }
}

/// Renames what is there.
fn rename(from: &Path, to: &Path) -> anyhow::Result<()> {
    match std::fs::rename(from, to) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        renamed => renamed.with_context(|| format!("cannot rename {} to {}", from.display(), to.display())),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A file to which nothing can be written, as if its disk were full.
    pub(in super::super) fn unwritable(path: &Path) -> AuditFile {
        AuditFile { path: path.to_owned(), max_size: u64::MAX, keep: 1, file: File::open(path).unwrap() }
    }

    fn add(file: &mut AuditFile, lines: &str) {
        file.make_room(lines.len()).unwrap();
        file.append(lines.as_bytes()).unwrap();
    }

    fn text(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_full_file_is_renamed_and_the_oldest_goes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        let mut file = AuditFile::open(&path, 8, 2).unwrap();
        // One that is longer than a file may be gets one of its own.
        for lines in ["one\n", "two\n", "three\n", "four five six\n", "end\n"] {
            add(&mut file, lines);
        }
        let texts = ["", ".1", ".2"].map(|suffix| text(&directory.path().join(format!("audit{suffix}"))));
        assert_eq!(texts, ["end\n", "four five six\n", "three\n"]);
        let entries = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
        let modes: Vec<_> = entries.map(|path| path.metadata().unwrap().permissions().mode() & 0o777).collect();
        assert_eq!(modes, [0o600; 3]);
    }

    #[test]
    fn a_file_is_full_when_what_comes_would_outgrow_it() {
        assert!(!is_full(4, 4, 8) && is_full(4, 5, 8) && !is_full(0, 9, 8) && is_full(8, u64::MAX, 8));
    }

    #[test]
    fn lines_go_behind_those_that_are_there_and_behind_half_a_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        std::fs::write(&path, "old\nhal").unwrap();
        let mut file = AuditFile::open(&path, 1000, 2).unwrap();
        add(&mut file, "new\n");
        assert_eq!(text(&path), "old\nhal\nnew\n");
        // Somebody empties it, and then removes it.
        std::fs::write(&path, "").unwrap();
        add(&mut file, "more\n");
        assert_eq!(text(&path), "more\n");
        std::fs::remove_file(&path).unwrap();
        add(&mut file, "again\n");
        assert_eq!(text(&path), "again\n");
    }

    #[test]
    fn two_processes_never_write_to_one_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        let mut file = AuditFile::open(&path, 4, 1).unwrap();
        let refused = || AuditFile::open(&path, 4, 1).unwrap_err().to_string();
        assert!(refused().contains("another process writes to"), "{}", refused());
        add(&mut file, "one\n");
        add(&mut file, "two\n");
        assert!(refused().contains("another process writes to"), "{}", refused());
        drop(file);
        AuditFile::open(&path, 4, 1).unwrap();
    }

    /// Nothing falls off the end for the sake of a file that cannot be made.
    #[test]
    fn where_no_new_file_can_be_made_all_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        let mut file = AuditFile::open(&path, 4, 1).unwrap();
        add(&mut file, "one\n");
        add(&mut file, "two\n");
        std::fs::create_dir(directory.path().join("audit.new")).unwrap();
        assert!(file.make_room(4).is_err());
        file.append(b"six\n").unwrap();
        assert_eq!((text(&path).as_str(), text(&directory.path().join("audit.1")).as_str()), ("two\nsix\n", "one\n"));
    }
}
