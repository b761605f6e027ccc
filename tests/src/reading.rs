//! The ways in which programs read a mount.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_testkit::DataSet;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use rustix::fs::{Advice, OFlags};

use crate::{TreeFile, eventually};

/// What `O_DIRECT` wants offsets, lengths and buffers to be multiples of, everywhere.
const ALIGNMENT: usize = 4096;
/// What `cp` and `cat` read at a time.
const CHUNK: usize = 1 << 20;
/// How long readers may take for what they are waited for: some thousand reads with a fifth of a processor, at most.
const GO_ON_WITHIN: Duration = Duration::from_secs(120);

/// Reads a file from its start to its end, as `cat` does, and compares every byte.
///
/// # Panics
/// When a byte, the length or the end is not as it should be.
#[track_caller]
pub fn verify(path: &Path, data: DataSet, size: u64) {
    let mut file = File::open(path).unwrap_or_else(|error| panic!("opening {}: {error}", path.display()));
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    loop {
        let count = file.read(&mut buffer).unwrap_or_else(|error| panic!("{} at {offset}: {error}", path.display()));
        if count == 0 {
            break;
        }
        let wrong = data.first_difference(offset, &buffer[..count]);
        assert_eq!(wrong, None, "{}: the byte at this offset is wrong", path.display());
        offset += count as u64;
    }
    assert_eq!(offset, size, "{}: length", path.display());
}

/// As [`verify`], past the kernel's page cache.
///
/// # Panics
/// As [`verify`].
#[track_caller]
pub fn verify_direct(path: &Path, data: DataSet, size: u64) {
    let file = DirectFile::open(path).unwrap_or_else(|error| panic!("opening {}: {error}", path.display()));
    let mut offset = 0;
    while offset < size {
        file.verify(path, data, size, offset, CHUNK);
        offset += CHUNK as u64;
    }
}

/// As [`verify_direct`], from the end to the start: such a reader is not read ahead for, so that nothing of what it gets was
/// kept by the mount.
///
/// # Panics
/// As [`verify`].
#[track_caller]
pub fn verify_backwards(path: &Path, data: DataSet, size: u64) {
    const LENGTH: u64 = 64 << 10;
    let file = DirectFile::open(path).unwrap_or_else(|error| panic!("opening {}: {error}", path.display()));
    for chunk in (0..size.div_ceil(LENGTH)).rev() {
        file.verify(path, data, size, chunk * LENGTH, LENGTH as usize);
    }
}

/// Reads `length` bytes at `offset` with a descriptor of its own.
///
/// # Errors
/// The kernel's.
pub fn read_at(path: &Path, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    File::open(path)?.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

/// Reads the first 4 KiB of a file, which must fail. The kernel's error.
///
/// # Panics
/// When they can be read.
#[track_caller]
pub fn read_error(path: &Path) -> io::Error {
    match read_at(path, 0, ALIGNMENT) {
        Ok(_) => panic!("{} can be read", path.display()),
        Err(error) => error,
    }
}

/// Makes the kernel forget the pages of a file, so that the next read asks the file system.
///
/// # Panics
/// When the file cannot be opened.
pub fn forget_pages(path: &Path) {
    let file = File::open(path).unwrap_or_else(|error| panic!("opening {}: {error}", path.display()));
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).expect("advice on a file");
}

/// A file that is read past the kernel's page cache.
#[derive(Debug)]
pub struct DirectFile(File);

impl DirectFile {
    /// Opens it with `O_DIRECT`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(path: &Path) -> io::Result<Self> {
        // The flag differs between architectures.
        let flag = OFlags::DIRECT.bits() as i32;
        Ok(Self(File::options().read(true).custom_flags(flag).open(path)?))
    }

    /// Reads up to `length` bytes at `offset`, both multiples of 4096: fewer only at the end of the file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read_at(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut memory = vec![0; length + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        let buffer = &mut memory[start..start + length];
        let mut done = 0;
        while done < length {
            let count = self.0.read_at(&mut buffer[done..], offset + done as u64)?;
            done += count;
            // A direct read that ends within a page has met the end of the file.
            if count == 0 || !count.is_multiple_of(ALIGNMENT) {
                break;
            }
        }
        Ok(buffer[..done].to_vec())
    }

    /// Reads `length` bytes at `offset` and compares them.
    ///
    /// # Panics
    /// When the read fails, is short before the end of the file, or has a wrong byte.
    #[track_caller]
    pub fn verify(&self, path: &Path, data: DataSet, size: u64, offset: u64, length: usize) {
        let bytes =
            self.read_at(offset, length).unwrap_or_else(|error| panic!("{} at {offset}: {error}", path.display()));
        let expected = size.saturating_sub(offset).min(length as u64);
        assert_eq!(bytes.len() as u64, expected, "{} at {offset}: a short read", path.display());
        assert_eq!(data.first_difference(offset, &bytes), None, "{}: wrong byte", path.display());
    }
}

/// Reads `count` ranges of up to `longest` bytes at random offsets, and compares them.
///
/// # Panics
/// When one of them is not what it should be.
#[track_caller]
pub fn verify_random_ranges(root: &Path, file: &TreeFile, count: usize, longest: u64, seed: u64) {
    let path = root.join(&file.path);
    let open = File::open(&path).unwrap_or_else(|error| panic!("opening {}: {error}", path.display()));
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..count {
        let start = random.random_range(0..file.size);
        let end = (start + random.random_range(1..=longest)).min(file.size);
        let mut bytes = vec![0; (end - start) as usize];
        open.read_exact_at(&mut bytes, start)
            .unwrap_or_else(|error| panic!("{} {start}..{end}: {error}", path.display()));
        assert_eq!(file.data.first_difference(start, &bytes), None, "{} {start}..{end}", path.display());
    }
}

/// What a [`reading loop`](read_while) saw.
#[derive(Debug)]
pub struct Progress {
    reads: AtomicU64,
    stop: AtomicBool,
}

impl Progress {
    /// Reads that came back right so far.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Waits until `more` reads came back right.
    ///
    /// # Panics
    /// When that takes too long.
    #[track_caller]
    pub fn reads_on(&self, more: u64) {
        let target = self.reads() + more;
        eventually("readers go on", GO_ON_WITHIN, || self.reads() >= target);
    }
}

/// Runs `meanwhile` while `readers` threads read 64 KiB at random places of a file, directly, and compare them. Gives the
/// longest time that one read took.
///
/// # Panics
/// When a read fails or is wrong, or `meanwhile` panics.
#[track_caller]
pub fn read_while(root: &Path, file: &TreeFile, readers: u64, meanwhile: impl FnOnce(&Progress)) -> Duration {
    const LENGTH: usize = 64 << 10;
    let path = root.join(&file.path);
    let progress = Progress { reads: AtomicU64::new(0), stop: AtomicBool::new(false) };
    let read = |seed: u64| {
        let open = DirectFile::open(&path).unwrap_or_else(|error| panic!("opening {}: {error}", path.display()));
        let mut random = StdRng::seed_from_u64(seed);
        let mut longest = Duration::ZERO;
        while !progress.stop.load(Ordering::Relaxed) {
            let offset = random.random_range(0..file.size.div_ceil(LENGTH as u64)) * LENGTH as u64;
            let started = Instant::now();
            open.verify(&path, file.data, file.size, offset, LENGTH);
            longest = longest.max(started.elapsed());
            progress.reads.fetch_add(1, Ordering::Relaxed);
        }
        longest
    };
    std::thread::scope(|scope| {
        let read = &read;
        let threads: Vec<_> = (0..readers).map(|seed| scope.spawn(move || read(seed))).collect();
        // The readers must end also when `meanwhile` panics.
        let stop = StopOnDrop(&progress.stop);
        meanwhile(&progress);
        drop(stop);
        threads.into_iter().map(|thread| thread.join().expect("a reader failed")).max().unwrap_or_default()
    })
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
