//! The staging directory: two files a draft, its bytes (`<id>.data`) and its record (`<id>.json`).
//!
//! Several mounts may share a directory, so nothing in it is locked but each staged file, by the process that works with it; a
//! lock ends with its process, also where processes do not see each other (containers). Where the file system knows no
//! locks, the process in the record counts.
//!
//! A draft's bytes come before its record and go after it: bytes without a record are those of a draft with nothing to
//! lose, or what a crash left of one, and are removed when no process has them locked.
//!
//! The directory and what is in it are this user's alone (`forebay-private`): whoever else could write there would have
//! us upload what they want. So nobody retries what another user staged, root neither.

use std::collections::hash_map::RandomState;
use std::fs::{File, TryLockError};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_private::{Opening, PrivateDirectory, open_file};

use crate::error::{StagingError, failed};
use crate::record::{FORMAT, Record};

/// Bytes without a record that are younger than this may be those of a draft that is just being made.
const YOUNG: Duration = Duration::from_secs(60);
/// What the names in a staging directory end with: bytes, a record, and one that is being written.
const SUFFIXES: [&str; 3] = [".data", ".json", ".json.new"];
/// How often, and how far apart, a lock is tried that may be held only to look at the draft.
const TRIES: u32 = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// What may take a disk long: a directory on a network, or a disk that is busy, may make any thread wait for it.
pub(crate) trait Disk: std::fmt::Debug + Send + Sync {
    /// Waits until a file, or a directory, outlives the machine.
    fn sync(&self, file: &File) -> io::Result<()>;

    /// Puts one file in the place of another.
    fn replace(&self, new: &Path, old: &Path) -> io::Result<()>;
}

/// The file system that the directory is on.
#[derive(Debug)]
struct FileSystem;

impl Disk for FileSystem {
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn replace(&self, new: &Path, old: &Path) -> io::Result<()> {
        std::fs::rename(new, old)
    }
}

/// A staging directory.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
}

impl Journal {
    /// Opens the directory, making it if needed.
    pub(crate) fn open(dir: &Path) -> Result<Self, StagingError> {
        PrivateDirectory::make_all(dir, is_ours)?;
        let journal = Self::at(dir);
        // Whether it takes files is better known now than at the first write.
        let (id, _file) = journal.create().map_err(failed("create a file in", dir))?;
        journal.remove(&id);
        Ok(journal)
    }

    /// The directory as it is, made or not.
    pub(crate) fn at(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), disk: Arc::new(FileSystem) }
    }

    /// Asks whose the directory is, if it is there.
    pub(crate) fn check(&self) -> Result<(), StagingError> {
        match PrivateDirectory::look(&self.dir) {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// The same directory, on another disk.
    #[cfg(test)]
    pub(crate) fn on(self, disk: Arc<dyn Disk>) -> Self {
        Self { disk, ..self }
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the bytes of a draft are.
    pub(crate) fn data(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.data"))
    }

    fn record(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }

    /// A new and empty staged file, locked; and its id.
    pub(crate) fn create(&self) -> io::Result<(String, File)> {
        loop {
            // Random, and short enough to be typed.
            let id = format!("{:010x}", RandomState::new().build_hasher().finish() >> 24);
            match open_file(&self.data(&id), Opening::New).map_err(io::Error::from) {
                Ok(file) => {
                    lock(&file)?;
                    return Ok((id, file));
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes a record in place of the one before. `durable`: it outlives the machine.
    pub(crate) fn write(&self, id: &str, record: &Record, durable: bool) -> io::Result<()> {
        let (path, new) = (self.record(id), self.dir.join(format!("{id}.json.new")));
        let mut file = open_file(&new, Opening::Emptied)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        if durable {
            self.sync(&file)?;
        }
        self.disk.replace(&new, &path)?;
        if durable {
            self.sync(&File::open(&self.dir)?)?;
        }
        Ok(())
    }

    /// Waits until what was written to a file outlives the machine.
    pub(crate) fn sync(&self, file: &File) -> io::Result<()> {
        self.disk.sync(file)
    }

    /// Reads a record; the error is for people.
    pub(crate) fn read(&self, id: &str) -> Result<Record, String> {
        let text = self.text(id).map_err(|error| error.to_string())?;
        let record: Record = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        if record.format == FORMAT { Ok(record) } else { Err(format!("it has format {}", record.format)) }
    }

    fn text(&self, id: &str) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        open_file(&self.record(id), Opening::ReadOnly)?.read_to_end(&mut text)?;
        Ok(text)
    }

    /// The drafts that have a record.
    pub(crate) fn ids(&self) -> io::Result<Vec<String>> {
        self.names(".json")
    }

    fn names(&self, suffix: &str) -> io::Result<Vec<String>> {
        let entries = match std::fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let id = name.to_str().and_then(|name| name.strip_suffix(suffix));
            names.extend(id.filter(|id| is_id(id)).map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    /// Takes over a draft whose process is gone, or has left it. `None`: it is in use. `patient`: others may look at it
    /// for a moment.
    pub(crate) fn claim(&self, id: &str, patient: bool) -> io::Result<Option<File>> {
        if !is_id(id) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let path = self.data(id);
        for _ in 0..if patient { TRIES } else { 1 } {
            let file = open_file(&path, Opening::Existing)?;
            match file.try_lock() {
                // Unless the process that had it removed it meanwhile.
                Ok(()) if std::fs::metadata(&path)?.ino() == file.metadata()?.ino() => return Ok(Some(file)),
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if patient => std::thread::sleep(BETWEEN_TRIES),
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(_)) if !self.owner_is_alive(id) => return Ok(Some(file)),
                Err(TryLockError::Error(_)) => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Whether a draft is in use.
    pub(crate) fn is_claimed(&self, id: &str) -> bool {
        let Ok(file) = open_file(&self.data(id), Opening::ReadOnly) else { return false };
        match file.try_lock_shared() {
            Ok(()) => false,
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(_)) => self.owner_is_alive(id),
        }
    }

    /// Whether `file` has the bytes of this draft.
    pub(crate) fn is_of(&self, id: &str, file: &File) -> bool {
        let numbers = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
        let there = std::fs::symlink_metadata(self.data(id)).map(numbers);
        is_id(id) && there.is_ok_and(|there| file.metadata().map(numbers).is_ok_and(|is| is == there))
    }

    fn owner_is_alive(&self, id: &str) -> bool {
        self.read(id).is_ok_and(|record| record.process.is_alive())
    }

    /// Whether there is anything left of a draft.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.data(id).exists()
    }

    /// Removes a record: nothing of the draft would be lost.
    pub(crate) fn remove_record(&self, id: &str) {
        remove(&self.record(id));
    }

    /// Removes a draft.
    pub(crate) fn remove(&self, id: &str) {
        remove(&self.record(id));
        remove(&self.data(id));
    }

    /// Removes what crashes left, and what has no record.
    pub(crate) fn sweep(&self) -> io::Result<()> {
        for id in self.names(".data")? {
            let path = self.data(&id);
            let is_young = |path: &Path| {
                let age = std::fs::metadata(path).and_then(|metadata| metadata.modified()).map(|time| time.elapsed());
                age.map_or(true, |age| age.is_ok_and(|age| age < YOUNG))
            };
            if !self.record(&id).exists() && !is_young(&path) && self.claim(&id, false).is_ok_and(|file| file.is_some())
            {
                remove(&path);
            }
        }
        for id in self.names(".json.new")? {
            if !self.has(&id) {
                remove(&self.dir.join(format!("{id}.json.new")));
            }
        }
        Ok(())
    }
}

/// Whether a name in the directory is one that we give.
fn is_ours(name: &str) -> bool {
    SUFFIXES.iter().any(|suffix| name.strip_suffix(suffix).is_some_and(is_id))
}

/// Locks a file that is only ours, if its file system can.
fn lock(file: &File) -> io::Result<()> {
    match file.try_lock() {
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(io::Error::other("somebody else has locked it")),
    }
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove a staged file");
    }
}

/// Ids come from the command line, too: nothing that leads out of the directory.
fn is_id(text: &str) -> bool {
    !text.is_empty() && text.len() <= 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::time::SystemTime;

    fn journal() -> (tempfile::TempDir, Journal) {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(&dir.path().join("a/staging")).unwrap();
        (dir, journal)
    }

    fn files(journal: &Journal) -> usize {
        std::fs::read_dir(&journal.dir).unwrap().count()
    }

    #[test]
    fn only_its_owner_can_enter_the_directory() {
        let (_dir, journal) = journal();
        assert_eq!(std::fs::metadata(&journal.dir).unwrap().mode() & 0o777, 0o700);
        let (id, file) = journal.create().unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(journal.data(&id)).unwrap().ino(), file.metadata().unwrap().ino());
    }

    fn chmod(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_directory_that_others_could_enter_is_closed_to_them_unless_they_use_it() {
        let (_dir, journal) = journal();
        let (id, _file) = journal.create().unwrap();
        std::fs::write(journal.dir.join("0123abcd.json.new"), "half").unwrap();
        for path in [&journal.dir, &journal.data(&id)] {
            chmod(path, 0o777);
        }
        Journal::open(&journal.dir).unwrap();
        assert!(!journal.is_claimed("0123abcd"), "that has no bytes");
        assert!(journal.is_claimed(&id));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&journal.dir), mode(&journal.data(&id))), (0o700, 0o600));
        std::fs::write(journal.dir.join("thesis.json"), "").unwrap();
        chmod(&journal.dir, 0o755);
        let refused = Journal::open(&journal.dir).unwrap_err();
        assert!(matches!(&refused, StagingError::NotOurs(not_ours) if not_ours.what.contains("thesis")), "{refused}");
    }

    #[test]
    fn a_link_among_the_drafts_is_not_followed() {
        let (dir, journal) = journal();
        let target = dir.path().join("target");
        std::fs::write(&target, "precious").unwrap();
        let id = "0123abcd";
        for link in [journal.data(id), journal.record(id), journal.dir.join(format!("{id}.json.new"))] {
            std::os::unix::fs::symlink(&target, link).unwrap();
        }
        assert_eq!(journal.claim(id, false).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(journal.read(id).unwrap_err().contains("symbolic link") && !journal.is_claimed(id));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&journal.dir, &link).unwrap();
        assert!(matches!(Journal::open(&link), Err(StagingError::NotOurs(_))));
        assert!(matches!(Journal::at(&link).check(), Err(StagingError::NotOurs(_))));
        assert!(Journal::at(&dir.path().join("missing")).check().is_ok());
        assert_eq!(std::fs::read(&target).unwrap(), b"precious");
    }

    #[test]
    fn what_another_user_staged_is_neither_listed_nor_taken_also_by_root() {
        let (_dir, journal) = journal();
        let (id, file) = journal.create().unwrap();
        file.unlock().unwrap();
        for path in [journal.data(&id), journal.dir.clone()] {
            if let Err(error) = std::os::unix::fs::chown(&path, Some(65_534), None) {
                let _ = writeln!(io::stderr(), "skipped: cannot give a file to another user: {error}");
                return;
            }
        }
        assert_eq!(journal.claim(&id, false).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(matches!(Journal::open(&journal.dir), Err(StagingError::NotOurs(_))));
        let refused = journal.check().unwrap_err();
        assert!(refused.to_string().contains("user 65534") && refused.to_string().contains("chown"), "{refused}");
    }

    #[test]
    fn a_draft_is_claimed_by_one() {
        let (_dir, journal) = journal();
        let (id, file) = journal.create().unwrap();
        assert!(journal.is_claimed(&id) && journal.claim(&id, false).unwrap().is_none());
        file.unlock().unwrap();
        assert!(!journal.is_claimed(&id));
        let claimed = journal.claim(&id, true).unwrap().unwrap();
        assert!(journal.is_claimed(&id));
        claimed.unlock().unwrap();
        for bad in ["", "../x", "zz", "0123456789", &"0".repeat(33)] {
            assert_eq!(journal.claim(bad, false).unwrap_err().kind(), io::ErrorKind::NotFound, "{bad:?}");
        }
    }

    #[test]
    fn old_bytes_without_a_record_are_swept_unless_somebody_has_them() {
        let (_dir, journal) = journal();
        let long_ago = SystemTime::now() - 2 * YOUNG;
        let (open, held) = journal.create().unwrap();
        held.set_modified(long_ago).unwrap();
        let (young, file) = journal.create().unwrap();
        file.unlock().unwrap();
        let (old, file) = journal.create().unwrap();
        file.set_modified(long_ago).unwrap();
        file.unlock().unwrap();
        std::fs::write(journal.dir.join("abc.json.new"), "half").unwrap();
        journal.sweep().unwrap();
        assert_eq!((journal.has(&open), journal.has(&young), journal.has(&old)), (true, true, false));
        assert_eq!(files(&journal), 2);
    }
}
