//! The directory of a [`super::FileStore`]: `lock`, `log`, and `snapshot`.
//!
//! A commit is appended to the log and synced. When the log has grown, all entries are written to `snapshot.new`, which
//! is synced and renamed over `snapshot`; then the log is emptied. A crash between the two leaves a log whose records the
//! snapshot already has, which their revisions tell. Revisions have no gaps, so that a missing record is noticed.
//!
//! All of it is this user's alone (`forebay-private`): who could write here would say what the cluster mounts, and from
//! where.

use std::collections::HashSet;
use std::fs::{File, TryLockError};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use forebay_private::{Opening, PrivateDirectory};
use tracing::warn;

use super::record::{self, Frame};
use super::table::{Change, Plan, Table};
use crate::StateError;

/// How the log and the snapshot begin: what they are, and the version of their format.
const LOG_MAGIC: &[u8; 16] = b"forebay state l1";
const SNAPSHOT_MAGIC: &[u8; 16] = b"forebay state s1";
/// The files' names.
const LOCK: &str = "lock";
const LOG: &str = "log";
const SNAPSHOT: &str = "snapshot";
const NEW_SNAPSHOT: &str = "snapshot.new";
/// The log is not shortened before it has this many bytes: rewriting a snapshot for every few commits would cost more
/// than reading this much at the next start.
const MIN_LOG_TO_COMPACT: u64 = 4 << 20;

/// What is wrong with the last revision that there is.
const LAST: &str = "it has a revision after which there is none";

/// The files, open and locked.
#[derive(Debug)]
pub(super) struct Disk {
    directory: PrivateDirectory,
    log: File,
    /// Bytes of the log that are written and synced.
    length: u64,
    /// Bytes of the last snapshot.
    snapshot: u64,
    /// Set when the log's end on the disk is not known any more.
    failed: bool,
    lock: File,
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Closing alone would not do: a child process that is just being started shares the descriptor for a moment.
        let _ = self.lock.unlock();
    }
}

impl Disk {
    /// Opens the directory, making it if needed, and reads what it holds. Leases that were held are ended.
    pub(super) fn open(directory: &Path) -> Result<(Self, Table), StateError> {
        let directory = create(directory)?;
        let lock = lock(&directory)?;
        let mut table = Table::default();
        let snapshot = read_snapshot(&directory, &mut table)?;
        let path = directory.path().join(LOG);
        let mut log = directory.file(LOG, Opening::OrMade)?;
        let length = read_log(&path, &mut log, snapshot.is_some(), &mut table)?;
        let mut disk = Self { directory, log, length, snapshot: snapshot.unwrap_or(0), failed: false, lock };
        disk.trim().map_err(failed("write", &path))?;
        if let Plan::Change(change) = table.plan_end(&HashSet::new()) {
            disk.append(std::slice::from_ref(&change))?;
            table.apply(&change);
        }
        Ok((disk, table))
    }

    /// Makes changes durable, all together.
    pub(super) fn append(&mut self, changes: &[Change]) -> Result<(), StateError> {
        let path = self.directory.path().join(LOG);
        if self.failed {
            let cause =
                io::Error::other("a write failed before, what is on the disk is not known: restart this process");
            return Err(failed("write", &path)(cause));
        }
        let mut bytes = Vec::new();
        for change in changes {
            record::write(change, &mut bytes);
        }
        if let Err(error) = self.log.write_all(&bytes) {
            // A full disk is no reason to stop for good, as long as half a record can be taken back.
            self.failed = self.trim().is_err();
            return Err(failed("write", &path)(error));
        }
        if let Err(error) = self.log.sync_data() {
            // After a failed sync the kernel drops the pages that it could not write: trying again would lie.
            self.failed = true;
            return Err(failed("sync", &path)(error));
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Whether the log is long enough to be replaced by a snapshot.
    pub(super) fn wants_compaction(&self) -> bool {
        !self.failed && self.length > MIN_LOG_TO_COMPACT.max(2 * self.snapshot)
    }

    /// Writes all entries to a new snapshot and empties the log.
    pub(super) fn compact(&mut self, table: &Table) -> Result<(), StateError> {
        // If it fails, as on a full disk, it is tried again when the log has twice this length, not at each commit.
        self.snapshot = self.length;
        let (new, path) = (self.directory.path().join(NEW_SNAPSHOT), self.directory.path().join(SNAPSHOT));
        let file = self.directory.file(NEW_SNAPSHOT, Opening::Emptied)?;
        let length = write_snapshot(file, table).map_err(failed("write", &new))?;
        self.directory.rename(NEW_SNAPSHOT, SNAPSHOT).map_err(failed("replace", &path))?;
        sync_directory(self.directory.path())?;
        self.snapshot = length;
        self.length = LOG_MAGIC.len() as u64;
        self.trim().map_err(|error| {
            self.failed = true;
            failed("shorten", &self.directory.path().join(LOG))(error)
        })
    }

    /// Cuts the log at its known length.
    fn trim(&mut self) -> io::Result<()> {
        self.log.set_len(self.length)?;
        self.log.seek(SeekFrom::Start(self.length))?;
        self.log.sync_data()
    }
}

/// Makes a directory and those above it that are missing, durably.
fn create(directory: &Path) -> Result<PrivateDirectory, StateError> {
    let missing: Vec<&Path> = directory.ancestors().take_while(|above| !above.exists()).collect();
    let is_ours = |name: &str| [LOCK, LOG, SNAPSHOT, NEW_SNAPSHOT].contains(&name);
    let opened = PrivateDirectory::make_all(directory, is_ours)?;
    for made in missing {
        // A relative path ends with an empty one, which is the current directory.
        let above = made.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        sync_directory(above)?;
    }
    Ok(opened)
}

fn lock(directory: &PrivateDirectory) -> Result<File, StateError> {
    let path = directory.path().join(LOCK);
    let mut file = directory.file(LOCK, Opening::OrMade)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // The name of the holder only helps to find it.
            let _ = file.take(200).read_to_string(&mut holder);
            let holder = if holder.trim().is_empty() { "another process" } else { holder.trim() };
            return Err(StateError::InUse { path: directory.path().to_owned(), holder: holder.to_owned() });
        }
        Err(TryLockError::Error(error)) => return Err(failed("lock", &path)(error)),
    }
    let program = std::env::args().next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    file.set_len(0)
        .and_then(|()| file.write_all(format!("process {} ({name})\n", std::process::id()).as_bytes()))
        .map_err(failed("write", &path))?;
    Ok(file)
}

/// Reads a snapshot into `table`; returns its length in bytes, or `None` if there is none.
fn read_snapshot(directory: &PrivateDirectory, table: &mut Table) -> Result<Option<u64>, StateError> {
    let path = &directory.path().join(SNAPSHOT);
    let mut file = match directory.file(SNAPSHOT, Opening::ReadOnly) {
        Ok(file) => file,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(failed("read", path))?;
    let bytes = Bytes::from(bytes);
    if !bytes.starts_with(SNAPSHOT_MAGIC) {
        return Err(corrupted(path, 0, "it does not begin as a snapshot does"));
    }
    let mut offset = SNAPSHOT_MAGIC.len();
    loop {
        match record::read(&bytes, offset) {
            Frame::Whole(change, _) if is_last(&change) => return Err(corrupted(path, offset, LAST)),
            Frame::Whole(change, end) => {
                table.apply(&change);
                offset = end;
                if change.puts.is_empty() {
                    break;
                }
            }
            Frame::End | Frame::Torn => return Err(corrupted(path, offset, "its end is missing")),
            Frame::Damaged(reason) => return Err(corrupted(path, offset, reason)),
        }
    }
    if offset != bytes.len() {
        return Err(corrupted(path, offset, "more follows after its end"));
    }
    Ok(Some(bytes.len() as u64))
}

fn write_snapshot(file: File, table: &Table) -> io::Result<u64> {
    let mut file = BufWriter::new(file);
    file.write_all(SNAPSHOT_MAGIC)?;
    let mut length = SNAPSHOT_MAGIC.len();
    let end = Change { revision: table.revision(), ..Change::default() };
    let mut bytes = Vec::new();
    for change in table.as_changes().chain([end]) {
        bytes.clear();
        record::write(&change, &mut bytes);
        file.write_all(&bytes)?;
        length += bytes.len();
    }
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok(length as u64)
}

/// Plays the log back into `table`; returns the length of what is whole.
fn read_log(path: &Path, log: &mut File, has_snapshot: bool, table: &mut Table) -> Result<u64, StateError> {
    let mut bytes = Vec::new();
    log.read_to_end(&mut bytes).map_err(failed("read", path))?;
    let bytes = Bytes::from(bytes);
    if !bytes.starts_with(LOG_MAGIC) {
        // The first start of all may have ended before the log's first bytes were on the disk.
        let is_unwritten = LOG_MAGIC.starts_with(&bytes) || bytes.iter().all(|byte| *byte == 0);
        if has_snapshot || !is_unwritten {
            return Err(corrupted(path, 0, "it does not begin as a log does"));
        }
        log.set_len(0)
            .and_then(|()| log.rewind())
            .and_then(|()| log.write_all(LOG_MAGIC))
            .and_then(|()| log.sync_all())
            .map_err(failed("write", path))?;
        sync_directory(path.parent().unwrap_or(path))?;
        return Ok(LOG_MAGIC.len() as u64);
    }
    let mut offset = LOG_MAGIC.len();
    loop {
        match record::read(&bytes, offset) {
            Frame::Whole(change, _) if is_last(&change) => return Err(corrupted(path, offset, LAST)),
            Frame::Whole(change, end) => {
                if change.revision.0 > table.revision().0 + 1 {
                    return Err(corrupted(path, offset, "records before this one are missing"));
                }
                if change.revision > table.revision() {
                    table.apply(&change);
                }
                offset = end;
            }
            Frame::End => return Ok(offset as u64),
            Frame::Torn => {
                let bytes = bytes.len() - offset;
                warn!(path = %path.display(), offset, bytes, "dropping the unfinished end of the log, as after a crash");
                return Ok(offset as u64);
            }
            Frame::Damaged(reason) => return Err(corrupted(path, offset, reason)),
        }
    }
}

/// Whether nothing could be committed after it. No store comes that far.
fn is_last(change: &Change) -> bool {
    change.revision.0 == u64::MAX
}

fn sync_directory(directory: &Path) -> Result<(), StateError> {
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed("sync", directory))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    let path = path.to_owned();
    move |cause| StateError::Io { action, path, cause: Arc::new(cause) }
}

fn corrupted(file: &Path, offset: usize, reason: &str) -> StateError {
    StateError::Corrupted { file: file.to_owned(), offset: offset as u64, reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::super::writer::{Published, Queue, Request, Writer};
    use super::*;
    use crate::{Revision, Transaction};

    /// A descriptor that can be neither written to nor shortened, as a disk that fails.
    fn break_log(disk: &mut Disk) {
        disk.log = File::open(disk.directory.path().join(LOG)).unwrap();
    }

    #[test]
    fn a_commit_that_cannot_be_written_fails_and_nobody_sees_it() {
        let directory = tempfile::tempdir().unwrap();
        let (mut disk, table) = Disk::open(directory.path()).unwrap();
        break_log(&mut disk);
        let (queue, published) = (Queue::default(), Published::new(table.clone()));
        let mut answers = Vec::new();
        for key in ["a", "b"] {
            let (answer, answered) = oneshot::channel();
            assert!(queue.push(Request::Commit(Transaction::new().put(key, "x"), answer), None));
            answers.push(answered);
        }
        queue.close();
        Writer { store: "files", disk: Some(disk), table, held: HashSet::new(), published: &published }.run(&queue);
        for answer in answers {
            let error = answer.blocking_recv().unwrap().unwrap_err();
            assert!(matches!(error, StateError::Io { .. }), "{error}");
        }
        assert_eq!(published.read(|table| table.list("").entries.len()), 0);
    }

    #[test]
    fn after_a_write_of_unknown_end_nothing_more_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let (mut disk, table) = Disk::open(directory.path()).unwrap();
        let Plan::Change(change) = table.plan(&Transaction::new().put("a", "x"), &HashSet::new()) else { panic!() };
        break_log(&mut disk);
        disk.append(std::slice::from_ref(&change)).unwrap_err();
        let path = directory.path().join("log");
        disk.log = File::options().read(true).write(true).open(&path).unwrap();
        let error = disk.append(std::slice::from_ref(&change)).unwrap_err();
        assert!(error.to_string().contains("restart this process"), "{error}");
        drop(disk);
        let (mut disk, table) = Disk::open(directory.path()).unwrap();
        assert_eq!(table.list("").entries.len(), 0);
        disk.append(&[change]).unwrap();
        drop(disk);
        assert_eq!(Disk::open(directory.path()).unwrap().1.list("").entries.len(), 1);
    }

    #[test]
    fn what_an_earlier_version_left_open_to_others_is_closed_to_them_and_a_link_is_refused() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        drop(Disk::open(path).unwrap());
        let chmod = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        chmod(path, 0o755);
        chmod(&path.join(LOG), 0o644);
        drop(Disk::open(path).unwrap());
        assert_eq!((mode(path), mode(&path.join(LOG))), (0o700, 0o600));
        symlink(path.join("elsewhere"), path.join(SNAPSHOT)).unwrap();
        assert!(matches!(Disk::open(path), Err(StateError::NotOurs(_))));
        std::fs::remove_file(path.join(SNAPSHOT)).unwrap();
        std::fs::write(path.join("elsewhere"), "").unwrap();
        chmod(path, 0o770);
        let refused = Disk::open(path).unwrap_err();
        assert!(refused.to_string().contains("`elsewhere`"), "{refused}");
    }

    #[test]
    fn a_revision_after_which_there_is_none_is_damage() {
        for (name, magic) in [("log", LOG_MAGIC), ("snapshot", SNAPSHOT_MAGIC)] {
            let directory = tempfile::tempdir().unwrap();
            drop(Disk::open(directory.path()).unwrap());
            let mut bytes = magic.to_vec();
            let before = Change { revision: Revision(u64::MAX - 1), ..Change::default() };
            let last = Change { revision: Revision(u64::MAX), ..Change::default() };
            let changes: &[Change] = if name == "log" { &[last] } else { std::slice::from_ref(&before) };
            changes.iter().for_each(|change| record::write(change, &mut bytes));
            std::fs::write(directory.path().join(name), &bytes).unwrap();
            if name == "snapshot" {
                let mut log = LOG_MAGIC.to_vec();
                record::write(&Change { revision: Revision(u64::MAX), ..Change::default() }, &mut log);
                std::fs::write(directory.path().join("log"), log).unwrap();
            }
            let refused = Disk::open(directory.path()).unwrap_err();
            assert!(matches!(refused, StateError::Corrupted { .. }), "{refused}");
        }
    }
}
