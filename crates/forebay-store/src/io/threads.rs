//! Disk I/O by threads, where io_uring is not to be had.

use std::fs::File;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use forebay_locks::Mutex;

use super::ending;
use super::front::{Back, Front, Kind, Operation};
use super::traits::Files;
use super::watch::Limits;

/// Operations under way at a time, each on a thread of its own. NVMe drives want more, but threads are not the way to
/// get there. They are of one disk: if it hangs, they wait with it, and those of others go on.
const THREADS: usize = 8;

/// Starts the threads.
pub(super) fn start(files: Files, dir: &Path, limits: Limits) -> io::Result<Front<Threads>> {
    let (operations, queue) = mpsc::channel();
    let queue = Arc::new(Mutex::new(queue));
    let mut threads = Threads { operations: Some(operations), threads: Vec::new() };
    for _ in 0..THREADS {
        let (queue, files) = (Arc::clone(&queue), files.clone());
        let thread = std::thread::Builder::new().name("forebay-disk".into());
        threads.threads.push(thread.spawn(move || serve(&queue, &files))?);
    }
    Ok(Front::new(threads, THREADS, dir, limits))
}

/// The threads; dropping it waits for the operations under way, unless the disk hangs.
pub(super) struct Threads {
    operations: Option<mpsc::Sender<Operation>>,
    threads: Vec<JoinHandle<()>>,
}

impl Back for Threads {
    fn begin(&self, operation: Operation) {
        // Without threads the operation drops, and its waiter sees a closed channel.
        if let Some(operations) = &self.operations {
            let _ = operations.send(operation);
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.operations = None;
        ending::join(self.threads.drain(..));
    }
}

fn serve(queue: &Mutex<mpsc::Receiver<Operation>>, files: &Files) {
    loop {
        // One idle thread waits in `recv`, the others for the lock.
        let next = queue.lock().recv();
        let Ok(mut operation) = next else { return };
        let offset = operation.offset;
        let result = match &mut operation.kind {
            Kind::Read { into, is_probe, .. } => read(if *is_probe { &files.write } else { &files.read }, offset, into),
            Kind::Write { from, .. } => write(files, offset, &from.parts()),
        };
        operation.end(result);
    }
}

fn read(file: &File, offset: u64, into: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, offset)
}

fn write(files: &Files, mut offset: u64, parts: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut left = &mut slices[..];
    while !left.is_empty() {
        match rustix::io::pwritev(&*files.write, left, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                offset += written as u64;
                IoSlice::advance_slices(&mut left, written);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
