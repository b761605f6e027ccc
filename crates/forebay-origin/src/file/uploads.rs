//! Uploads in parts: a hidden directory in the root for each, in it a file for each part, which is called by its number, and
//! one, `path`, that says what the upload is for.
//!
//! A part's place in the file is known only when all parts are, since they may be of any sizes; so completing an upload
//! copies them, in the kernel, into one draft. A part that is sent again is renamed over the one before. Its tag is made of
//! inode, time and size, so that a list of tags that is out of date is found out.
//!
//! Completing and giving up take the directory's lock: a request that is repeated while the first one is still at work
//! waits for it, and then finds its outcome. What was completed is remembered for a while (`file/completed.rs`), so
//! that a repeated request gets the same answer. A process that was started since does not know, and says that there is
//! no such upload.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use bytes::Bytes;
use forebay_types::{Attr, Failure, PartPage, UploadMarker, UploadPage, UploadedPart};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use tracing::{info, warn};

use super::directory::{Directory, HIDDEN, nanos, proc_path};
use super::given_up::GivenUp;
use super::writes::new_name;
use crate::names::{no_such_part, no_such_upload, not_of_size};
use crate::pending::Collecting;

/// Hidden files and directories that were not touched for so long are left over.
const LEFT_OVER: Duration = Duration::from_secs(7 * 24 * 3600);
const PATH: &str = "path";

impl Directory {
    pub(super) fn begin_upload(&self, path: &[u8]) -> Result<String, Failure> {
        self.check_file(path)?;
        let (root, upload) = (self.root(path)?, new_name());
        let begin = || {
            rustix::fs::mkdirat(&root, hidden(&upload), Mode::from_raw_mode(0o700))?;
            let directory = open_directory(&root, &hidden(&upload))?;
            write_file(&directory, PATH, path).map(drop)
        };
        // An upload that failed to begin is removed here, since no caller knows its name and can abort it. A full disk,
        // for one, has room for the directory, and not for what is in it.
        begin()
            .map_err(|error| self.failure(path, error))
            .and_then(|()| self.sync_directory(&root, path))
            .inspect_err(|_| self.remove_upload(&upload))?;
        Ok(upload)
    }

    pub(super) fn upload_part(&self, path: &[u8], upload: &str, number: u32, bytes: &Bytes) -> Result<String, Failure> {
        let directory = self.upload(path, upload)?;
        // Whoever gives the upload up waits for it: what comes into a directory while it is removed would keep it.
        rustix::fs::flock(&directory, FlockOperation::LockShared).map_err(|error| self.failure(path, error))?;
        let draft = new_name();
        let send = || {
            let file = write_file(&directory, &draft, bytes)?;
            rustix::fs::renameat(&directory, &draft, &directory, number.to_string())?;
            rustix::fs::fsync(&directory)?;
            rustix::fs::fstat(&file)
        };
        match send() {
            Ok(stat) => Ok(part_tag(&stat)),
            // Given up meanwhile.
            Err(Errno::NOENT) => Err(no_such_upload(&self.url, path)),
            Err(error) => {
                // What came of it is of no use.
                let _ = rustix::fs::unlinkat(&directory, &draft, AtFlags::empty());
                Err(self.failure(path, error))
            }
        }
    }

    pub(super) fn complete_upload(
        &self,
        path: &[u8],
        (upload, size, tags): (&str, u64, &[String]),
        given_up: &GivenUp,
    ) -> Result<Attr, Failure> {
        if let Some(attr) = self.completed.find(path, upload) {
            return Ok(attr);
        }
        let directory = self.upload(path, upload)?;
        rustix::fs::flock(&directory, FlockOperation::LockExclusive).map_err(|error| self.failure(path, error))?;
        // While it waited, another request may have completed it, or given it up.
        if let Some(attr) = self.completed.find(path, upload) {
            return Ok(attr);
        }
        self.upload(path, upload)?;
        let mut found = 0;
        for (tag, number) in tags.iter().zip(1..) {
            let stat = rustix::fs::statat(&directory, number.to_string(), AtFlags::SYMLINK_NOFOLLOW).ok();
            let stat = stat.filter(|stat| part_tag(stat) == *tag);
            found += length(&stat.ok_or_else(|| no_such_part(&self.url, path, number))?);
        }
        if found != size {
            return Err(not_of_size(&self.url, path, size, found));
        }
        let draft = self.draft(path)?;
        for (tag, number) in tags.iter().zip(1..) {
            let mut part = self.part(&directory, path, number, tag)?;
            // Copies in the kernel.
            std::io::copy(&mut part, &mut &draft.file).map_err(|error| self.io_failure(path, &error))?;
        }
        let written = draft.file.metadata().map_err(|error| self.io_failure(path, &error))?.len();
        if written != size {
            return Err(not_of_size(&self.url, path, size, written));
        }
        let attr = self.place(draft, path, given_up)?;
        self.completed.remember(upload, &attr);
        self.remove_upload(upload);
        Ok(attr)
    }

    pub(super) fn abort_upload(&self, path: &[u8], upload: &str) -> Result<(), Failure> {
        let Ok(directory) = self.upload(path, upload) else { return Ok(()) };
        rustix::fs::flock(&directory, FlockOperation::LockExclusive).map_err(|error| self.failure(path, error))?;
        self.remove_upload(upload);
        Ok(())
    }

    pub(super) fn list_parts(&self, path: &[u8], upload: &str, after: u32, max: usize) -> Result<PartPage, Failure> {
        let directory = self.upload(path, upload)?;
        // Whoever completes the upload or gives it up waits for it: of what is removed meanwhile, parts would be left out.
        rustix::fs::flock(&directory, FlockOperation::LockShared).map_err(|error| self.failure(path, error))?;
        self.upload(path, upload)?;
        let mut numbers = Vec::new();
        let entries = std::fs::read_dir(proc_path(&directory)).map_err(|error| self.io_failure(path, &error))?;
        for entry in entries {
            let entry = entry.map_err(|error| self.io_failure(path, &error))?;
            numbers.extend(number_of(&entry.file_name()).filter(|number| *number > after));
        }
        numbers.sort_unstable();
        let has_more = numbers.len() > max;
        numbers.truncate(max);
        let part = |number: u32| -> Result<UploadedPart, Failure> {
            let stat = rustix::fs::statat(&directory, number.to_string(), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|error| self.failure(path, error))?;
            let modified_nanos = nanos(stat.st_mtime, stat.st_mtime_nsec);
            Ok(UploadedPart { number, tag: part_tag(&stat), size: length(&stat), modified_nanos })
        };
        let parts = numbers.into_iter().map(part).collect::<Result<Vec<_>, Failure>>()?;
        Ok(PartPage { parts, has_more })
    }

    pub(super) fn list_uploads(
        &self,
        prefix: &[u8],
        after: Option<&UploadMarker>,
        max: usize,
    ) -> Result<UploadPage, Failure> {
        let root = self.root(&[])?;
        let mut collecting = Collecting::new(prefix, after, max);
        for entry in std::fs::read_dir(&self.root).map_err(|error| self.io_failure(&[], &error))? {
            let name = entry.map_err(|error| self.io_failure(&[], &error))?.file_name();
            let Some(upload) = name_in(&name) else { continue };
            let directory = match open_directory(&root, &hidden(upload)) {
                Ok(directory) => directory,
                // It is over, or the draft of a file, which is called so, too.
                Err(Errno::NOENT | Errno::NOTDIR) => continue,
                Err(error) => return Err(self.failure(&[], error)),
            };
            // Nobody knows the name of one that is only being begun.
            let Some((path, begun)) = purpose(&directory) else { continue };
            collecting.add(&path, upload, nanos(begun.st_mtime, begun.st_mtime_nsec));
        }
        Ok(collecting.page())
    }

    /// Removes what was left over by processes that ended in the middle of something.
    pub(super) fn remove_left_over(&self) {
        let is_old = |entry: &std::fs::DirEntry| {
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            modified.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > LEFT_OVER))
        };
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(HIDDEN)).filter(is_old) {
            let path = entry.path();
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            match if is_directory { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) } {
                Ok(()) => info!(path = %path.display(), "removed what an upload had left over"),
                Err(error) => warn!(path = %path.display(), %error, "cannot remove what an upload has left over"),
            }
        }
    }

    /// The directory of an upload of `path`.
    fn upload(&self, path: &[u8], upload: &str) -> Result<OwnedFd, Failure> {
        let missing = || no_such_upload(&self.url, path);
        if !is_name(upload) {
            return Err(missing());
        }
        let directory = open_directory(&self.root(path)?, &hidden(upload)).map_err(|error| match error {
            Errno::NOENT => missing(),
            error => self.failure(path, error),
        })?;
        let is_of_path = purpose(&directory).is_some_and(|(known, _)| known == path);
        if is_of_path { Ok(directory) } else { Err(missing()) }
    }

    fn part(&self, directory: &OwnedFd, path: &[u8], number: usize, tag: &str) -> Result<File, Failure> {
        let part = open_file(directory, &number.to_string()).ok();
        let is_it = |file: &File| rustix::fs::fstat(file).is_ok_and(|stat| part_tag(&stat) == *tag);
        part.filter(is_it).ok_or_else(|| no_such_part(&self.url, path, number))
    }

    fn remove_upload(&self, upload: &str) {
        let path = self.root.join(hidden(upload));
        if let Err(error) = std::fs::remove_dir_all(&path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            warn!(path = %path.display(), %error, "cannot remove what an upload has left over; later it will be tried again");
        }
    }
}

fn hidden(upload: &str) -> String {
    format!("{}{upload}", String::from_utf8_lossy(HIDDEN))
}

/// Whether an upload may be called so: nothing else than what `new_name` gives, no `/`, no `..`.
fn is_name(upload: &str) -> bool {
    upload.len() == 32 && upload.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The upload whose directory is called so.
fn name_in(directory: &OsStr) -> Option<&str> {
    let upload = directory.as_encoded_bytes().strip_prefix(HIDDEN)?;
    std::str::from_utf8(upload).ok().filter(|upload| is_name(upload))
}

/// The number of the part that is called so; `None` for what is none: a draft of one, or what says what the upload is for.
fn number_of(name: &OsStr) -> Option<u32> {
    let text = name.to_str()?;
    let number: u32 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// What an upload is for, and what is known of the file that says so, which is as old as the upload.
fn purpose(directory: &OwnedFd) -> Option<(Vec<u8>, Stat)> {
    let mut file = open_file(directory, PATH).ok()?;
    let mut path = Vec::new();
    file.read_to_end(&mut path).ok()?;
    Some((path, rustix::fs::fstat(&file).ok()?))
}

fn open_directory(root: &OwnedFd, name: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(root, name, flags, Mode::empty())
}

fn open_file(directory: &OwnedFd, name: &str) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty()).map(File::from)
}

/// Writes a new file, and brings it to disk.
fn write_file(directory: &OwnedFd, name: &str, bytes: &[u8]) -> rustix::io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o600))?);
    file.write_all(bytes).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    rustix::fs::fsync(&file)?;
    Ok(file)
}

fn part_tag(stat: &Stat) -> String {
    format!("{:x}.{:x}.{:x}", stat.st_ino, nanos(stat.st_mtime, stat.st_mtime_nsec), length(stat))
}

fn length(stat: &Stat) -> u64 {
    // A regular file's size is not negative.
    u64::try_from(stat.st_size).unwrap_or(0)
}
