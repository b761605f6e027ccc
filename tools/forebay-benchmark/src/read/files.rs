//! Writing and reading one file.
//!
//! A file is read from its beginning to its end with one buffer, as ReadTest did; past the page cache where the file system
//! allows that (`O_DIRECT`), since otherwise the second reader would measure memory. Where it does not, the kernel is asked to
//! forget the file first, which it need not do.
//!
//! Checking is part of the time, as it was in ReadTest: [`Pattern`] costs a fraction of what the bytes do. A file that differs is read
//! to its end all the same: all that differs is told.
//!
//! Writing must lose no data: a file that is already there is one of ours, which its contents show, or it stays.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, Mode, OFlags, fadvise};

use super::differences::Differences;
use super::pattern::Pattern;

/// What direct reads want memory and length to be multiples of.
const ALIGNMENT: usize = 4096;
/// A file is known to be ours by so many bytes at its beginning, in its middle and at its end.
const SAMPLE: u64 = 64 << 10;

/// How files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct How {
    /// Bytes asked for at a time.
    pub buffer: usize,
    /// Past the page cache, where that can be.
    pub direct: bool,
    /// Every byte is compared with what [`write()`] wrote.
    pub check: bool,
}

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// From before it was opened until its last byte was there.
    pub took: Duration,
    /// How long it was.
    pub bytes: u64,
    /// Whether it was read past the page cache.
    pub direct: bool,
    /// What of it is not as it was written, if that was looked at.
    pub differences: Differences,
}

/// Why a file could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refused.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// `read`, `write`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// It has another size than it should.
    #[error("{} has {found} bytes where {expected} were expected", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// What it should have.
        expected: u64,
        /// What it has.
        found: u64,
    },
    /// There is one already, and not of ours.
    #[error("{} is there, and is not what `bench read --write` writes", .0.display())]
    Exists(PathBuf),
    /// It was asked to end.
    #[error("interrupted")]
    Interrupted,
}

/// Memory to read into, aligned as direct reads want it.
#[derive(Debug)]
pub struct Buffer {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    /// At least `length` bytes: whole pages.
    #[must_use]
    pub fn new(length: usize) -> Self {
        let length = length.max(1).next_multiple_of(ALIGNMENT);
        let memory = vec![0; length + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self { memory, start, length }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.length]
    }
}

/// Writes `bytes` bytes of the pattern of the file's name, and waits until they are safe. How long that took. A file that is
/// there is written over if this wrote it, whatever its size, or if `overwrite` says so.
///
/// # Errors
/// [`FileError`].
pub fn write(
    path: &Path,
    bytes: u64,
    overwrite: bool,
    buffer: &mut Buffer,
    stop: &AtomicBool,
) -> Result<Duration, FileError> {
    let failed = |error| FileError::Io { doing: "write", path: path.to_owned(), error };
    let pattern = pattern_of(path);
    let mut began = Instant::now();
    let mut file = match File::create_new(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            if !may_be_replaced(path, pattern, overwrite).map_err(failed)? {
                return Err(FileError::Exists(path.to_owned()));
            }
            began = Instant::now();
            let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?)
        }
        created => created.map_err(failed)?,
    };
    let mut at = 0;
    while at < bytes {
        if stop.load(Ordering::Relaxed) {
            return Err(FileError::Interrupted);
        }
        let length = usize::try_from(bytes - at).unwrap_or(usize::MAX).min(buffer.length);
        let piece = &mut buffer.bytes()[..length];
        pattern.fill(at, piece);
        file.write_all(piece).map_err(failed)?;
        at += length as u64;
    }
    // Closing says nothing in Rust, this does: an object store has the file, or there is an error.
    file.sync_all().map_err(failed)?;
    Ok(began.elapsed())
}

/// Reads a file of `expected` bytes, or of any size. Where it is checked, what differs is no error: it is told in [`Reading`].
///
/// # Errors
/// [`FileError`].
pub fn read(
    path: &Path,
    expected: Option<u64>,
    how: How,
    buffer: &mut Buffer,
    stop: &AtomicBool,
) -> Result<Reading, FileError> {
    let failed = |error| FileError::Io { doing: "read", path: path.to_owned(), error };
    let pattern = pattern_of(path);
    let began = Instant::now();
    let (mut file, direct) = open(path, how.direct).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    let mut differences =
        Differences { expected_size: expected.filter(|expected| *expected != size), ..Differences::default() };
    if let Some(expected) = differences.expected_size.filter(|_| !how.check) {
        return Err(FileError::Size { path: path.to_owned(), expected, found: size });
    }
    let mut at = 0;
    while at < size {
        if stop.load(Ordering::Relaxed) {
            return Err(FileError::Interrupted);
        }
        let bytes = buffer.bytes();
        let count = match file.read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(failed)?,
        };
        if count == 0 {
            return Err(FileError::Size { path: path.to_owned(), expected: size, found: at });
        }
        if how.check {
            differences.look(pattern, at, &bytes[..count]);
        }
        at += count as u64;
    }
    Ok(Reading { took: began.elapsed(), bytes: at, direct, differences })
}

/// Whether nothing is lost with a file, or what is lost was given up.
fn may_be_replaced(path: &Path, pattern: Pattern, overwrite: bool) -> io::Result<bool> {
    // A link leads to a file of another name, and a disk is no place for a pattern.
    if !std::fs::symlink_metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    if overwrite {
        return Ok(true);
    }
    let file = File::from(rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?);
    let size = file.metadata()?.len();
    let mut sample = vec![0; size.min(SAMPLE) as usize];
    for at in [0, (size - sample.len() as u64) / 2, size - sample.len() as u64] {
        file.read_exact_at(&mut sample, at)?;
        if pattern.mismatch(at, &sample).is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What belongs into a file depends on its name alone, so that copies can be checked.
fn pattern_of(path: &Path) -> Pattern {
    Pattern::of(path.file_name().unwrap_or_default().as_bytes())
}

/// Opens a file past the page cache, if that is wanted and can be; whether it is so.
fn open(path: &Path, direct: bool) -> io::Result<(File, bool)> {
    if direct {
        match rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECT, Mode::empty()) {
            Ok(file) => return Ok((File::from(file), true)),
            // What a file system that cannot says; see open(2).
            Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let file = File::open(path)?;
    if direct {
        // A hint: whether it was taken cannot be told.
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
    }
    Ok((file, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOW: How = How { buffer: 64 << 10, direct: false, check: true };

    fn go() -> AtomicBool {
        AtomicBool::new(false)
    }

    #[test]
    fn what_was_written_is_read_back_whatever_the_size_and_past_the_page_cache_too() {
        let directory = tempfile::tempdir().unwrap();
        let mut buffer = Buffer::new(HOW.buffer);
        for size in [0, 1, 4095, 4096, (64 << 10) + 7, 300_001] {
            let path = directory.path().join(format!("file{size}"));
            write(&path, size, false, &mut buffer, &go()).unwrap();
            for direct in [false, true] {
                let reading = read(&path, Some(size), How { direct, ..HOW }, &mut buffer, &go()).unwrap();
                assert_eq!(reading.bytes, size);
                assert!(direct || !reading.direct);
            }
        }
    }

    #[test]
    fn what_differs_is_told_of_the_whole_file_and_a_copy_under_another_name_differs() {
        let directory = tempfile::tempdir().unwrap();
        let (path, copy) = (directory.path().join("a"), directory.path().join("b"));
        let mut buffer = Buffer::new(4096);
        write(&path, 10_000, false, &mut buffer, &go()).unwrap();
        std::fs::copy(&path, &copy).unwrap();
        let mut reading = |path: &Path, expected| read(path, expected, HOW, &mut buffer, &go()).unwrap();
        let found = reading(&copy, None).differences;
        // Three bytes of the two names' hashes differ.
        assert_eq!((found.bytes, found.shown[0].offset), (10_000 / 8 * 3, 0), "{found:?}");
        assert!(reading(&path, None).differences.is_none());
        // In two reads, and the last byte.
        let mut bytes = std::fs::read(&path).unwrap();
        for at in [100, 9_999] {
            bytes[at] ^= 1;
        }
        std::fs::write(&path, &bytes).unwrap();
        let found = reading(&path, Some(10_001));
        let offsets: Vec<u64> = found.differences.shown.iter().map(|shown| shown.offset).collect();
        assert_eq!((offsets, found.differences.bytes, found.bytes), (vec![100, 9_999], 2, 10_000));
        assert_eq!(found.differences.expected_size, Some(10_001));
    }

    #[test]
    fn unless_it_is_checked_contents_do_not_matter_and_a_size_does() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        std::fs::write(&path, vec![0; 10_000]).unwrap();
        let unchecked = How { check: false, ..HOW };
        let mut buffer = Buffer::new(4096);
        assert!(read(&path, None, unchecked, &mut buffer, &go()).unwrap().differences.is_none());
        let error = read(&path, Some(10_001), unchecked, &mut buffer, &go()).unwrap_err();
        assert!(matches!(error, FileError::Size { expected: 10_001, found: 10_000, .. }), "{error}");
        let error = read(&directory.path().join("none"), None, HOW, &mut buffer, &go()).unwrap_err();
        assert!(error.to_string().contains("cannot read") && error.to_string().contains("none"), "{error}");
    }

    #[test]
    fn a_file_of_ours_is_written_again_and_anybody_elses_only_when_that_is_wanted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let mut buffer = Buffer::new(4096);
        let mut write = |path: &Path, size, overwrite| super::write(path, size, overwrite, &mut buffer, &go());
        // Longer than three samples, shorter than one, and cut off in the middle.
        for size in [500_000, 1000, 0, 7] {
            write(&path, size, false).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().len(), size);
        }
        for precious in [&b"precious"[..], &vec![0; 1 << 20]] {
            std::fs::write(&path, precious).unwrap();
            let error = write(&path, 1000, false).unwrap_err();
            assert!(matches!(&error, FileError::Exists(of) if *of == path), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), precious);
        }
        write(&path, 1000, true).unwrap();
        // A link, dangling or not, is not followed.
        let (link, target) = (directory.path().join("link"), directory.path().join("target"));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        for overwrite in [false, true] {
            assert!(matches!(write(&link, 1000, overwrite), Err(FileError::Io { .. })));
            assert!(!target.exists());
        }
    }

    #[test]
    fn who_is_told_to_stop_stops() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let mut buffer = Buffer::new(4096);
        write(&path, 4096, false, &mut buffer, &go()).unwrap();
        let stop = AtomicBool::new(true);
        assert!(matches!(read(&path, None, HOW, &mut buffer, &stop), Err(FileError::Interrupted)));
        assert!(matches!(write(&path, 4096, false, &mut buffer, &stop), Err(FileError::Interrupted)));
    }
}
