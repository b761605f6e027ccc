//! Disk I/O by io_uring: one ring a slab, driven by one thread.
//!
//! The thread sleeps in the ring, which it also polls for a wake-up descriptor: a thread that has put an operation into
//! the channel writes to that descriptor. Operations live in a table of the thread from submission to completion, at
//! addresses that do not change.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use io_uring::{IoUring, opcode, squeue, types::Fd};
use rustix::event::EventfdFlags;

use super::ending;
use super::front::{Back, Front, Kind, Operation};
use super::traits::Files;
use super::watch::Limits;

/// Operations under way at a time; beyond it an NVMe drive only adds latency.
const DEPTH: usize = 128;
/// Room in the ring: every operation, and the wake-up.
const ENTRIES: u32 = 2 * DEPTH as u32;
/// Names the wake-up among completions.
const WAKE: u64 = u64::MAX;

/// Starts the ring and its thread; an error when the kernel refuses.
pub(super) fn start(files: Files, dir: &Path, limits: Limits) -> io::Result<Front<Uring>> {
    let ring = IoUring::new(ENTRIES)?;
    let wake = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (operations, queue) = mpsc::channel();
    let thread = std::thread::Builder::new().name("forebay-uring".into()).spawn({
        let wake = Arc::clone(&wake);
        move || Driver { table: Table::default(), vacant: Vec::new(), under_way: 0, queue, wake, files, ring }.run()
    })?;
    let back = Uring { operations: Some(operations), wake, thread: Some(thread) };
    Ok(Front::new(back, DEPTH, dir, limits))
}

/// The ring's other end; dropping it waits for the operations under way, unless the disk hangs.
pub(super) struct Uring {
    operations: Option<mpsc::Sender<Operation>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Uring {
    fn wake(&self) {
        // It can only fail when the counter is about to overflow: then the thread is awake anyway.
        let _ = rustix::io::write(self.wake.as_fd(), &1u64.to_ne_bytes());
    }
}

impl Back for Uring {
    fn begin(&self, operation: Operation) {
        // Without the thread the operation drops, and its waiter sees a closed channel.
        if let Some(operations) = &self.operations {
            let _ = operations.send(operation);
            self.wake();
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.operations = None;
        self.wake();
        ending::join(self.thread.take());
    }
}

/// An operation that the kernel works on.
struct UnderWay {
    operation: Operation,
    /// Bytes moved so far: the kernel may do less than it was asked to.
    done: usize,
    length: usize,
    /// For writes: what the kernel reads its pieces from.
    pieces: [libc::iovec; 3],
}

impl UnderWay {
    fn new(operation: Operation) -> Self {
        let length = operation.len();
        let pieces = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 3];
        Self { operation, done: 0, length, pieces }
    }
}

/// The operations that the kernel works on. Boxed: it keeps addresses of what is in them.
///
/// Dropped, also by a panic of the thread, it gives up those that the kernel will not be heard of again. It may still write to their
/// memory, which is never given back; but whoever waits for them is told.
#[derive(Default)]
struct Table(Vec<Option<Box<UnderWay>>>);

impl Drop for Table {
    fn drop(&mut self) {
        for under_way in self.0.drain(..).flatten() {
            Box::leak(under_way).operation.lose(io::Error::other("the io_uring of the disk is broken"));
        }
    }
}

struct Driver {
    table: Table,
    vacant: Vec<usize>,
    under_way: usize,
    queue: mpsc::Receiver<Operation>,
    wake: Arc<OwnedFd>,
    files: Files,
    ring: IoUring,
}

impl Driver {
    fn run(mut self) {
        self.await_wake();
        loop {
            let is_open = self.take_new();
            if !is_open && self.under_way == 0 {
                return;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                // Completions first, then again.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                Err(error) => {
                    tracing::error!(%error, "the io_uring of a slab is broken, its disk is lost until restart");
                    return;
                }
            }
            let completed: Vec<_> = self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
            for (position, result) in completed {
                if position == WAKE {
                    let _ = rustix::io::read(self.wake.as_fd(), &mut [0u8; 8]);
                    self.await_wake();
                } else {
                    // It was made from a `usize` below.
                    self.complete(position as usize, result);
                }
            }
        }
    }

    fn await_wake(&mut self) {
        let readable = libc::POLLIN as u32;
        let entry = opcode::PollAdd::new(Fd(self.wake.as_raw_fd()), readable).build().user_data(WAKE);
        self.push(&entry);
    }

    /// Submits what has come in; whether more can come.
    fn take_new(&mut self) -> bool {
        loop {
            match self.queue.try_recv() {
                Ok(operation) => self.submit_new(operation),
                Err(mpsc::TryRecvError::Empty) => return true,
                Err(mpsc::TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn submit_new(&mut self, operation: Operation) {
        let under_way = Some(Box::new(UnderWay::new(operation)));
        let position = match self.vacant.pop() {
            Some(position) => {
                self.table.0[position] = under_way;
                position
            }
            None => {
                self.table.0.push(under_way);
                self.table.0.len() - 1
            }
        };
        self.under_way += 1;
        self.submit(position);
    }

    /// Asks the kernel for what an operation still lacks.
    fn submit(&mut self, position: usize) {
        let Some(under_way) = &mut self.table.0[position] else { return };
        let done = under_way.done;
        let offset = under_way.operation.offset + done as u64;
        let entry = match &mut under_way.operation.kind {
            Kind::Read { into, is_probe, .. } => {
                let file = if *is_probe { &self.files.write } else { &self.files.read };
                let rest = &mut into[done..];
                // At most 4 MiB.
                opcode::Read::new(Fd(file.as_raw_fd()), rest.as_mut_ptr(), rest.len() as u32).offset(offset).build()
            }
            Kind::Write { from, .. } => {
                let mut skip = done;
                let mut count = 0;
                for part in from.parts() {
                    let skipped = skip.min(part.len());
                    skip -= skipped;
                    let rest = &part[skipped..];
                    if !rest.is_empty() {
                        under_way.pieces[count] =
                            libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
                        count += 1;
                    }
                }
                // At most three.
                opcode::Writev::new(Fd(self.files.write.as_raw_fd()), under_way.pieces.as_ptr(), count as u32)
                    .offset(offset)
                    .build()
            }
        };
        self.push(&entry.user_data(position as u64));
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the descriptors are open for as long as `self`; the memory belongs to a boxed `UnderWay` that stays
        // in the table until the kernel has completed the entry.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            // Full, which the bound on operations rules out but for completions that went back in; the kernel takes
            // what is there.
            let _ = self.ring.submit();
        }
    }

    fn complete(&mut self, position: usize, result: i32) {
        let Some(under_way) = &mut self.table.0[position] else { return };
        let moved = match result {
            1.. => Ok(result as usize),
            0 => Err(Some(match under_way.operation.kind {
                Kind::Read { .. } => io::ErrorKind::UnexpectedEof.into(),
                Kind::Write { .. } => io::ErrorKind::WriteZero.into(),
            })),
            _ if result == -libc::EINTR || result == -libc::EAGAIN => Err(None),
            _ => Err(Some(io::Error::from_raw_os_error(-result))),
        };
        let outcome = match moved {
            Ok(moved) => {
                under_way.done += moved;
                (under_way.done >= under_way.length).then_some(Ok(()))
            }
            Err(error) => error.map(Err),
        };
        let Some(outcome) = outcome else { return self.submit(position) };
        if let Some(ended) = self.table.0[position].take() {
            self.vacant.push(position);
            self.under_way -= 1;
            ended.operation.end(outcome);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::task::Poll;

    use forebay_locks::Mutex;
    use forebay_memory::{Pool, PoolOptions};
    use forebay_types::ByteSize;

    use super::super::traits::{DiskIo, is_silent};
    use super::super::write_buffer::{Page, WriteBuffer};
    use super::*;

    const PAGE: usize = 4096;

    /// Keeps what it is given, as a kernel that does not answer.
    struct Kept(Arc<Mutex<Vec<Operation>>>);

    impl Back for Kept {
        fn begin(&self, operation: Operation) {
            self.0.lock().push(operation);
        }
    }

    /// Of a disk that is waited for however long it takes: nothing else would end the waiting.
    #[tokio::test]
    async fn who_waits_for_a_ring_whose_thread_panics_is_told_and_its_memory_stays_the_kernels() {
        let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(4))).unwrap();
        let kept = Arc::new(Mutex::new(Vec::new()));
        let front = Front::new(Kept(Arc::clone(&kept)), 2, Path::new("slab"), Limits::default());
        let page = || pool.try_alloc(PAGE).unwrap();
        let mut read = front.read_at(0, page());
        let mut write = front.write_at(0, WriteBuffer::page(Page([7; PAGE]), None));
        let mut waits = front.read_at(0, page());
        assert!(futures::poll!(&mut read).is_pending() && futures::poll!(&mut write).is_pending());
        assert!(futures::poll!(&mut waits).is_pending());
        let begun = std::mem::take(&mut *kept.lock());
        assert_eq!(begun.len(), 2, "the third waits for a place");
        let thread = std::thread::spawn(move || {
            let under_way = |operation| Some(Box::new(UnderWay::new(operation)));
            let _table = Table(begun.into_iter().map(under_way).collect());
            panic!("as the thread of a ring may");
        });
        assert!(thread.join().is_err());
        assert!(matches!(futures::poll!(&mut read), Poll::Ready(Err(error)) if !is_silent(&error)));
        assert!(matches!(futures::poll!(&mut write), Poll::Ready(Err(error)) if !is_silent(&error)));
        // The third is begun: by a ring that is gone, it ends at once.
        assert!(futures::poll!(&mut waits).is_pending() && kept.lock().len() == 1);
        kept.lock().clear();
        assert!(waits.await.is_err());
        assert!(pool.used() > 0, "what the first read lands in");
        assert_eq!(front.watch().stats().under_way, 2, "a probe would not be answered");
    }
}
