//! Files in a directory: how both backends store them.
//!
//! ```text
//! parts/17  parts/17.sums     being filled
//! ab/abcd…-1234.sums          the record of a file
//! ab/abcd…-1234               the file
//! ```
//!
//! The record gets its name before the file, so a file that has its name is whole and can be checked. Where files last, each
//! is on the disk before its name is.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use forebay_types::SECTOR_SIZE;
use rustix::fs::{
    AtFlags, Dir, FallocateFlags, Mode, OFlags, SeekFrom, Timespec, Timestamps, UTIME_NOW, fallocate, fchmod, fstatvfs,
    fsync, ftruncate, mkdirat, openat, renameat, seek, statat, unlinkat, utimensat,
};
use rustix::io::Errno;

use crate::backend::{BackendKind, FileBackend, Found, Part, View};
use crate::name::Name;
use crate::record::Record;

const PARTS: &str = "parts";
/// What addresses, offsets and lengths are multiples of past the page cache. Disks want their sector's size, 4 KiB at most.
const ALIGNMENT: usize = 4096;

/// What one kind of directory is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeOptions {
    pub(crate) kind: BackendKind,
    /// Whether files outlive the process: they are synced, and written and checked past the page cache.
    pub(crate) lasting: bool,
    /// Whether a file's room is set aside when it begins.
    pub(crate) sets_aside: bool,
}

/// A directory with files.
pub(crate) struct Tree {
    inner: Arc<TreeInner>,
}

struct TreeInner {
    /// The directory, for writing.
    root: OwnedFd,
    /// The same directory, for reading.
    readable: OwnedFd,
    options: TreeOptions,
    parts: AtomicU64,
    _lock: Option<File>,
    #[cfg(test)]
    on_step: Option<Box<dyn Fn(Step) + Send + Sync>>,
}

/// What was just done: a crash may come after each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Began,
    Wrote,
    Synced,
    Recorded,
    RecordNamed,
    Named,
}

impl Tree {
    pub(crate) fn new(root: OwnedFd, readable: OwnedFd, options: TreeOptions) -> io::Result<Self> {
        make(&root, PARTS)?;
        let inner = TreeInner {
            root,
            readable,
            options,
            parts: AtomicU64::new(0),
            _lock: None,
            #[cfg(test)]
            on_step: None,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Keeps a lock for as long as the tree.
    pub(crate) fn locked(mut self, lock: File) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            inner._lock = Some(lock);
        }
        self
    }

    /// Tells of each step.
    #[cfg(test)]
    pub(crate) fn watched(mut self, on_step: impl Fn(Step) + Send + Sync + 'static) -> Self {
        Arc::get_mut(&mut self.inner).unwrap().on_step = Some(Box::new(on_step));
        self
    }

    fn shards(&self) -> io::Result<Vec<String>> {
        let is_shard =
            |name: &String| name.len() == 2 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        Ok(self.inner.names(".")?.into_iter().filter(is_shard).collect())
    }

    /// What is whole in one of the directories.
    fn found_in(&self, shard: &str, found: &mut Vec<Found>) -> io::Result<()> {
        let inner = &self.inner;
        let names = inner.names(shard)?;
        let has_record: std::collections::HashSet<Name> =
            names.iter().filter_map(|name| Name::parse_checksums(name)).collect();
        let mut whole = std::collections::HashSet::new();
        for text in &names {
            let path = format!("{shard}/{text}");
            let Some(name) = Name::parse(text).filter(|name| name.shard() == shard && has_record.contains(name)) else {
                continue;
            };
            let stat = statat(&inner.root, &path, AtFlags::SYMLINK_NOFOLLOW)?;
            let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
            if is_file && u64::try_from(stat.st_size) == Ok(name.size) {
                let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
                found.push(Found { name, used: SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) });
                whole.insert(name);
            }
        }
        for text in names {
            let name = Name::parse(&text).or_else(|| Name::parse_checksums(&text));
            if !name.is_some_and(|name| whole.contains(&name)) {
                inner.unlink(&format!("{shard}/{text}"))?;
            }
        }
        Ok(())
    }
}

impl FileBackend for Tree {
    fn kind(&self) -> BackendKind {
        self.inner.options.kind
    }

    fn free(&self) -> io::Result<u64> {
        let stat = fstatvfs(&self.inner.root)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn begin(&self, name: Name) -> io::Result<Box<dyn Part>> {
        let inner = Arc::clone(&self.inner);
        let path = format!("{PARTS}/{}", inner.parts.fetch_add(1, Ordering::Relaxed));
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        let plain = inner.open(&inner.root, &path, flags)?;
        let direct = inner.options.lasting.then(|| inner.open(&inner.root, &path, OFlags::WRONLY | OFlags::DIRECT));
        // Where the file system has no such thing, the page cache is in between.
        let direct = direct.and_then(Result::ok);
        let part = TreePart { inner, name, path, plain, direct, view: None, written: 0, is_published: false };
        part.set_room()?;
        part.inner.step(Step::Began);
        Ok(Box::new(part))
    }

    fn open(&self, name: Name) -> io::Result<OwnedFd> {
        Ok(self.inner.open(&self.inner.readable, &path_of(name), OFlags::RDONLY)?.into())
    }

    fn view(&self, name: Name) -> io::Result<Box<dyn View>> {
        Ok(Box::new(self.inner.view(&path_of(name))?))
    }

    fn record(&self, name: Name) -> io::Result<Option<Record>> {
        let path = format!("{}/{}", name.shard(), name.checksums());
        let mut file = self.inner.open(&self.inner.readable, &path, OFlags::RDONLY)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(Record::decode(&bytes).filter(|record| record.name() == name))
    }

    fn used(&self, name: Name) {
        if self.inner.options.lasting {
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            let times = Timestamps { last_access: now, last_modification: now };
            // It only decides what is checked first after a restart.
            if let Err(error) = utimensat(&self.inner.root, path_of(name), &times, AtFlags::SYMLINK_NOFOLLOW) {
                tracing::debug!(%name, %error, "cannot write down when a file was used");
            }
        }
    }

    fn remove(&self, name: Name) -> io::Result<()> {
        self.inner.unlink(&path_of(name))?;
        self.inner.unlink(&format!("{}/{}", name.shard(), name.checksums()))
    }

    fn found(&self) -> io::Result<Vec<Found>> {
        for part in self.inner.names(PARTS)? {
            self.inner.unlink(&format!("{PARTS}/{part}"))?;
        }
        let mut found = Vec::new();
        for shard in self.shards()? {
            self.found_in(&shard, &mut found)?;
        }
        found.sort_by_key(|found| std::cmp::Reverse(found.used));
        Ok(found)
    }
}

fn path_of(name: Name) -> String {
    format!("{}/{name}", name.shard())
}

fn make(root: &OwnedFd, path: &str) -> io::Result<()> {
    match mkdirat(root, path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl TreeInner {
    fn open(&self, root: &OwnedFd, path: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(openat(root, path, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// The names in a directory; files only, so that nothing below is ever followed.
    fn names(&self, path: &str) -> io::Result<Vec<String>> {
        let dir = openat(&self.root, path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut names = Vec::new();
        for entry in Dir::read_from(&dir)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        match unlinkat(&self.root, path, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn view(&self, path: &str) -> io::Result<Reader> {
        if self.options.lasting
            && let Ok(file) = self.open(&self.readable, path, OFlags::RDONLY | OFlags::DIRECT)
        {
            return Ok(Reader { file, buffer: Vec::new() });
        }
        Ok(Reader { file: self.open(&self.readable, path, OFlags::RDONLY)?, buffer: Vec::new() })
    }

    fn sync(&self, file: impl std::os::fd::AsFd) -> io::Result<()> {
        if self.options.lasting {
            fsync(file)?;
        }
        Ok(())
    }

    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "only tests watch"))]
    fn step(&self, step: Step) {
        #[cfg(test)]
        if let Some(on_step) = &self.on_step {
            on_step(step);
        }
        let _ = step;
    }
}

/// A file that is being filled.
struct TreePart {
    inner: Arc<TreeInner>,
    name: Name,
    path: String,
    plain: File,
    /// The same, past the page cache.
    direct: Option<File>,
    view: Option<Reader>,
    /// Every byte before this one was written.
    written: u64,
    is_published: bool,
}

impl TreePart {
    fn set_room(&self) -> io::Result<()> {
        // Its length first: the kernel looks at it when it chooses pages.
        ftruncate(&self.plain, self.name.size)?;
        if !self.inner.options.sets_aside {
            return Ok(());
        }
        match fallocate(&self.plain, FallocateFlags::empty(), 0, self.name.size) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether every byte was written, and the file system says so, too.
    fn is_whole(&self) -> io::Result<bool> {
        let length = self.plain.metadata()?.len();
        let hole = seek(&self.plain, SeekFrom::Hole(0))?;
        Ok(length == self.name.size && hole == length && self.written == length)
    }

    fn write_record(&self, record: &Record) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        let mut file = self.inner.open(&self.inner.root, &self.record_path(), flags)?;
        file.write_all(&record.encode())?;
        fchmod(&file, Mode::RUSR)?;
        self.inner.sync(&file)
    }

    fn record_path(&self) -> String {
        format!("{}.sums", self.path)
    }

    fn name_both(&self) -> io::Result<()> {
        let (inner, shard) = (&self.inner, self.name.shard());
        make(&inner.root, &shard)?;
        inner.sync(&inner.root)?;
        renameat(&inner.root, self.record_path(), &inner.root, format!("{shard}/{}", self.name.checksums()))?;
        inner.step(Step::RecordNamed);
        renameat(&inner.root, &self.path, &inner.root, path_of(self.name))?;
        inner.step(Step::Named);
        if inner.options.lasting {
            fsync(openat(&inner.root, &shard, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)?;
        }
        Ok(())
    }
}

impl Part for TreePart {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        // The end of the last sector, and what is not aligned, goes through the page cache.
        let is_aligned = offset.is_multiple_of(ALIGNMENT as u64) && bytes.as_ptr().addr().is_multiple_of(ALIGNMENT);
        let direct = if is_aligned { bytes.len() / ALIGNMENT * ALIGNMENT } else { 0 };
        let (direct, plain) = bytes.split_at(if self.direct.is_some() { direct } else { 0 });
        if let Some(file) = self.direct.as_ref().filter(|_| !direct.is_empty()) {
            file.write_all_at(direct, offset)?;
        }
        if !plain.is_empty() {
            self.plain.write_all_at(plain, offset + direct.len() as u64)?;
        }
        if offset <= self.written {
            self.written = self.written.max(offset + bytes.len() as u64);
        }
        self.inner.step(Step::Wrote);
        Ok(())
    }

    fn view(&mut self) -> io::Result<&mut dyn View> {
        if self.view.is_none() {
            self.view = Some(self.inner.view(&self.path)?);
        }
        self.view.as_mut().map(|view| view as &mut dyn View).ok_or_else(|| io::Error::other("there is no view"))
    }

    fn publish(mut self: Box<Self>, record: &Record) -> io::Result<()> {
        // Where room was set aside and never written to, some file systems see holes only when all else is on the disk.
        self.inner.sync(&self.plain)?;
        if record.name() != self.name || !self.is_whole()? {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a file has holes, or another length than it should",
            ));
        }
        fchmod(&self.plain, Mode::RUSR)?;
        self.inner.sync(&self.plain)?;
        self.inner.step(Step::Synced);
        self.write_record(record)?;
        self.inner.step(Step::Recorded);
        let named = self.name_both();
        self.is_published = named.is_ok();
        named.inspect_err(|_| {
            // Whatever has got its name by now has it no more.
            for path in [path_of(self.name), format!("{}/{}", self.name.shard(), self.name.checksums())] {
                let _ = self.inner.unlink(&path);
            }
        })
    }
}

impl Drop for TreePart {
    fn drop(&mut self) {
        if self.is_published {
            return;
        }
        for path in [self.path.clone(), self.record_path()] {
            if let Err(error) = self.inner.unlink(&path) {
                tracing::warn!(%path, %error, "cannot remove a part of a materialised file");
            }
        }
    }
}

/// Reads a file, past the page cache where the descriptor says so.
struct Reader {
    file: File,
    buffer: Vec<u8>,
}

impl View for Reader {
    fn at(&mut self, offset: u64, length: usize) -> io::Result<&[u8]> {
        debug_assert!(offset.is_multiple_of(u64::from(SECTOR_SIZE)));
        let wanted = length.next_multiple_of(ALIGNMENT);
        if self.buffer.len() < wanted + ALIGNMENT {
            self.buffer.resize(wanted + ALIGNMENT, 0);
        }
        let start = self.buffer.as_ptr().align_offset(ALIGNMENT);
        let into = &mut self.buffer[start..start + wanted];
        let mut read = 0;
        while read < length {
            match self.file.read_at(&mut into[read..], offset + read as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&into[..length])
    }
}
