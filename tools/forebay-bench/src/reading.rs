//! Whole files, read as programs read them that are not fio.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use rustix::fs::OFlags;

/// Small files read at once.
pub(crate) const READERS: usize = 8;
/// Bytes in a read.
const READ: usize = 1 << 20;
/// `O_DIRECT` wants buffers and offsets aligned like this.
const ALIGNMENT: usize = 4096;

/// A buffer that `O_DIRECT` takes.
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    pub(crate) fn new(length: usize) -> Self {
        let bytes = vec![0; length + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Self { bytes, start }
    }

    pub(crate) fn get(&mut self, length: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + length]
    }
}

/// Opens a file for reading, with more flags.
///
/// # Errors
/// When it cannot be opened.
pub(crate) fn open(path: &Path, flags: OFlags) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    // The flags are few and low.
    options.read(true).custom_flags(flags.bits() as i32);
    options.open(path).with_context(|| format!("cannot open {}", path.display()))
}

/// Reads a file from one end to the other; how many bytes.
///
/// # Errors
/// When it cannot be opened or read.
pub(crate) fn read_to_end(path: &Path, flags: OFlags) -> anyhow::Result<u64> {
    read_with(path, flags, &mut Aligned::new(READ))
}

fn read_with(path: &Path, flags: OFlags, buffer: &mut Aligned) -> anyhow::Result<u64> {
    let (mut file, mut bytes) = (open(path, flags)?, 0);
    loop {
        let count = file.read(buffer.get(READ)).with_context(|| format!("cannot read {}", path.display()))?;
        if count == 0 {
            return Ok(bytes);
        }
        bytes += count as u64;
    }
}

/// Reads here and there.
#[derive(Clone, Copy)]
pub(crate) struct Reach {
    /// Bytes in each, a multiple of 4096.
    pub(crate) length: u64,
    /// How far apart they are at least: twice as much leaves a gap between any two.
    pub(crate) apart: u64,
    /// How many there are at most.
    pub(crate) most: u64,
}

/// Reads at multiples of their length, evenly far apart in an order that jumps about, none at the beginning.
///
/// # Errors
/// As [`read_to_end`].
pub(crate) fn read_at_random(path: &Path, flags: OFlags, reach: Reach) -> anyhow::Result<u64> {
    let Reach { length, apart, most } = reach;
    let (file, mut buffer) = (open(path, flags)?, Aligned::new(length as usize));
    let size = file.metadata()?.len();
    let reads = most.min(size / apart).max(1);
    let apart = size / reads / length;
    let mut bytes = 0;
    for read in 0..reads {
        // 389 is a prime and no factor of the number of reads, so that every place comes once.
        let place = read * 389 % reads * apart + apart / 2;
        bytes += file.read_at(buffer.get(length as usize), place * length)? as u64;
    }
    Ok(bytes)
}

/// Reads every file below `root` that `keys` name, [`READERS`] at once; how many bytes.
///
/// # Errors
/// As [`read_to_end`].
pub(crate) fn read_each(root: &Path, keys: &[String]) -> anyhow::Result<u64> {
    let next = AtomicUsize::new(0);
    let reader = || {
        let (mut bytes, mut buffer) = (0, Aligned::new(READ));
        while let Some(key) = keys.get(next.fetch_add(1, Ordering::Relaxed)) {
            bytes += read_with(&root.join(key), OFlags::empty(), &mut buffer)?;
        }
        anyhow::Ok(bytes)
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(reader)).collect();
        let joined =
            readers.into_iter().map(|reader| reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))?);
        joined.sum::<anyhow::Result<u64>>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_read_once_whatever_reader_takes_it() {
        let directory = tempfile::tempdir().unwrap();
        let keys: Vec<String> = (0..20).map(|number| format!("{number}.bin")).collect();
        keys.iter().for_each(|key| std::fs::write(directory.path().join(key), [7; 1000]).unwrap());
        assert_eq!(read_each(directory.path(), &keys).unwrap(), 20_000);
        assert_eq!(read_to_end(&directory.path().join("3.bin"), OFlags::empty()).unwrap(), 1000);
        assert!(read_each(directory.path(), &["gone".to_owned()]).is_err());
    }
}
