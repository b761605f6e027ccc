//! Several clients that read at once, each its files one after the other.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::differences::{Wrong, WrongFiles};
use super::files::{self, Buffer, FileError, How, Reading};

/// What clients read at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Together {
    /// Each client's files, in order.
    pub clients: Vec<Vec<Reading>>,
    /// From the first open to the last byte of all.
    pub took: Duration,
}

impl Together {
    /// The mean time of a file, of all clients' files.
    #[must_use]
    pub fn milliseconds_per_file(&self) -> f64 {
        let all: Vec<f64> = self.clients.iter().flatten().map(|reading| reading.took.as_secs_f64() * 1e3).collect();
        all.iter().sum::<f64>() / all.len().max(1) as f64
    }

    /// Whether all of it was read past the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.clients.iter().flatten().all(|reading| reading.direct)
    }

    /// Those that differ from what was written, of the lists that were given to [`together()`]: a file that several clients have read
    /// is one.
    ///
    /// # Errors
    /// All that do.
    pub fn right(&self, clients: &[Vec<PathBuf>]) -> Result<(), WrongFiles> {
        let mut found = WrongFiles::default();
        let mut paths = BTreeSet::new();
        for (path, reading) in clients.iter().zip(&self.clients).flat_map(|(list, readings)| list.iter().zip(readings))
        {
            found.files += usize::from(paths.insert(path));
            found.wrong.extend(
                Wrong::of(path, reading.bytes, &reading.differences).filter(|wrong| !found.wrong.contains(wrong)),
            );
        }
        if found.wrong.is_empty() { Ok(()) } else { Err(found) }
    }

    /// All bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.clients.iter().flatten().map(|reading| reading.bytes).sum()
    }
}

/// Reads each client's list, all clients at once, and asks `sample` right before and right after.
///
/// # Errors
/// The first that a client met; the others then stop.
pub fn together<S>(
    clients: &[Vec<PathBuf>],
    file_bytes: Option<u64>,
    how: How,
    stop: &AtomicBool,
    mut sample: impl FnMut() -> S,
) -> Result<(Together, S, S), FileError> {
    let start = Barrier::new(clients.len() + 1);
    // One that fails takes the others along, but not those of the next measurement.
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (start, failed) = (&start, &failed);
        let run = move |list: &[PathBuf]| {
            let mut buffer = Buffer::new(how.buffer);
            start.wait();
            let read = |path: &PathBuf| {
                if failed.load(Ordering::Relaxed) {
                    return Err(FileError::Interrupted);
                }
                files::read(path, file_bytes, how, &mut buffer, stop)
            };
            let readings: Result<Vec<Reading>, FileError> = list.iter().map(read).collect();
            if readings.is_err() {
                failed.store(true, Ordering::Relaxed);
            }
            readings
        };
        let readers: Vec<_> = clients.iter().map(|list| scope.spawn(move || run(list))).collect();
        let before = sample();
        let began = Instant::now();
        start.wait();
        let mut ended = Vec::with_capacity(readers.len());
        for reader in readers {
            ended.push(reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        let (took, after) = (began.elapsed(), sample());
        let interrupted = |ended: &Result<_, FileError>| matches!(ended, Err(FileError::Interrupted));
        // A reader that stopped for another's sake has nothing to tell.
        if let Some(first) = ended.iter().position(|ended| ended.is_err() && !interrupted(ended)) {
            ended.swap(0, first);
        }
        let clients = ended.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok((Together { clients, took }, before, after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOW: How = How { buffer: 4096, direct: false, check: true };

    #[test]
    fn each_client_reads_its_whole_list_and_the_mean_is_of_all_files() {
        let directory = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..3).map(|number| directory.path().join(format!("{number}"))).collect();
        let stop = AtomicBool::new(false);
        for path in &paths {
            files::write(path, 10_000, false, &mut Buffer::new(4096), &stop).unwrap();
        }
        let mut samples = 0;
        let lists = [paths.clone(), paths.clone()];
        let (read, before, after) = together(&lists, Some(10_000), HOW, &stop, || {
            samples += 1;
            samples
        })
        .unwrap();
        assert_eq!((before, after), (1, 2));
        assert_eq!((read.clients.len(), read.clients[0].len(), read.bytes()), (2, 3, 60_000));
        assert!(read.milliseconds_per_file() > 0.0 && !read.is_direct());
        assert!(read.took >= read.clients[0].iter().map(|reading| reading.took).sum());
    }

    #[test]
    fn all_files_of_all_clients_are_checked_and_each_that_differs_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..4).map(|number| directory.path().join(format!("{number}"))).collect();
        let stop = AtomicBool::new(false);
        for path in &paths {
            files::write(path, 10_000, false, &mut Buffer::new(4096), &stop).unwrap();
        }
        for at in [0, 2] {
            let mut bytes = std::fs::read(&paths[at]).unwrap();
            bytes[5000 + at] ^= 0xff;
            std::fs::write(&paths[at], bytes).unwrap();
        }
        let lists = [paths[..2].to_vec(), paths[2..].to_vec()];
        let (read, ..) = together(&lists, Some(10_000), HOW, &stop, || ()).unwrap();
        assert_eq!(read.clients.iter().map(Vec::len).sum::<usize>(), 4);
        let error = read.right(&lists).unwrap_err();
        let wrong: Vec<_> = error.wrong.iter().map(|wrong| wrong.path.clone()).collect();
        assert_eq!(wrong, [paths[0].clone(), paths[2].clone()]);
        let text = error.to_string();
        assert!(text.starts_with("2 of 4 files are not what"), "{text}");
        assert!(text.contains("offset 5000: got 0x") && text.contains("offset 5002: got 0x"), "{text}");
    }

    #[test]
    fn the_client_that_failed_says_why_and_not_the_one_that_stopped_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let stop = AtomicBool::new(false);
        files::write(&path, 10_000, false, &mut Buffer::new(4096), &stop).unwrap();
        let many = vec![path.clone(); 10_000];
        let lists = [many, vec![directory.path().join("none")]];
        let error = together(&lists, None, HOW, &stop, || ()).unwrap_err();
        assert!(error.to_string().contains("none"), "{error}");
    }
}
