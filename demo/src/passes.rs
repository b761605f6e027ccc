//! Reading everything through the mount, and comparing it with the source.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::bucket::Uploaded;
use crate::progress;

/// Bytes in one read: the largest that the kernel passes to FUSE in one piece.
const READ: usize = 1 << 20;
/// `O_DIRECT` wants buffers aligned like this.
const ALIGNMENT: usize = 4096;

/// What one pass over all files found.
pub(crate) struct Pass {
    pub(crate) files: usize,
    pub(crate) bytes: u64,
    pub(crate) took: Duration,
    /// Files whose bytes were not those of the source.
    pub(crate) wrong: Vec<String>,
}

/// Reads every file with `readers` threads.
pub(crate) fn read_all(mount: &Path, objects: &[Uploaded], readers: usize) -> anyhow::Result<Pass> {
    let bytes = objects.iter().map(|object| object.size).sum();
    let bar = progress::bar(bytes);
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let started = Instant::now();
    std::thread::scope(|scope| {
        let reader = || {
            let mut buffer = vec![0; READ + ALIGNMENT];
            while let Some(object) = objects.get(next.fetch_add(1, Ordering::Relaxed)) {
                let checksum = checksum_of(&mount.join(&object.key), &mut buffer, &bar)
                    .with_context(|| format!("cannot read {}", object.key))?;
                if checksum != object.checksum {
                    wrong.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(object.key.clone());
                }
            }
            anyhow::Ok(())
        };
        let threads: Vec<_> = (0..readers.max(1)).map(|_| scope.spawn(reader)).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => anyhow::bail!("a reader panicked"),
        })
    })?;
    let took = started.elapsed();
    bar.finish_and_clear();
    let wrong = wrong.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(Pass { files: objects.len(), bytes, took, wrong })
}

fn checksum_of(path: &Path, buffer: &mut [u8], bar: &indicatif::ProgressBar) -> anyhow::Result<blake3::Hash> {
    let mut file: File =
        OpenOptions::new().read(true).custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32).open(path)?;
    let start = buffer.as_ptr().align_offset(ALIGNMENT);
    let buffer = &mut buffer[start..start + READ];
    let mut hasher = blake3::Hasher::new();
    loop {
        let count = file.read(buffer)?;
        if count == 0 {
            return Ok(hasher.finalize());
        }
        hasher.update(&buffer[..count]);
        bar.inc(count as u64);
    }
}
