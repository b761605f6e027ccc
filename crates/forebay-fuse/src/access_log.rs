//! The access log: a line for each request of the kernel, for the handles that have it open.
//!
//! While no handle has it open, a request pays for one load of a counter that hardly ever changes. Each reader has a
//! queue of its own, bounded in bytes: a reader that is too slow misses lines, and is told how many. A request never
//! waits for a reader.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use chrono::{DateTime, Local};
use forebay_fuse_io::{Errno, Header};
use forebay_locks::Mutex;
use tokio::sync::Notify;

use crate::stats::{Operation, errno_name};

/// Bytes that are kept for a reader, at most: some ten thousand lines.
const MAX_QUEUED: usize = 1 << 20;
/// Readers at once.
const MAX_READERS: usize = 8;
/// How long a reader waits for a line. A process within a read cannot be killed before it is answered, so it is told that
/// there is nothing new.
const QUIET: Duration = Duration::from_secs(1);
const NOTHING_NEW: &[u8] = b"#\n";

/// What is to be logged of requests, and the readers of the log.
#[derive(Default)]
pub(crate) struct AccessLog {
    open: AtomicUsize,
    readers: Mutex<Vec<Arc<LogReader>>>,
}

/// A handle that has the log open.
#[derive(Default)]
pub(crate) struct LogReader {
    queue: Mutex<Queue>,
    arrived: Notify,
    /// A read that waits is to be answered, with whatever there is.
    is_to_answer: AtomicBool,
}

#[derive(Default)]
struct Queue {
    bytes: VecDeque<u8>,
    dropped: u64,
}

/// A request that is to be logged once it is answered.
pub(crate) struct Seen {
    uid: u32,
    gid: u32,
    pid: u32,
    what: What,
}

/// What a request is about.
pub(crate) enum What {
    /// A name in a directory.
    Name(u64, Box<[u8]>),
    /// An inode.
    Inode(u64),
    /// Bytes of a file: its inode, how many, from where on.
    Bytes(u64, u32, u64),
    /// Names of a directory: its inode, from which position on.
    Names(u64, u64),
}

impl AccessLog {
    /// A reader of all lines from now on; `None` when there are too many.
    pub(crate) fn open(&self) -> Option<Arc<LogReader>> {
        let mut readers = self.readers.lock();
        if readers.len() >= MAX_READERS {
            return None;
        }
        let reader = Arc::new(LogReader::default());
        readers.push(Arc::clone(&reader));
        self.open.store(readers.len(), Ordering::Relaxed);
        Some(reader)
    }

    /// `reader` reads no more.
    pub(crate) fn close(&self, reader: &Arc<LogReader>) {
        let mut readers = self.readers.lock();
        readers.retain(|other| !Arc::ptr_eq(other, reader));
        self.open.store(readers.len(), Ordering::Relaxed);
    }

    /// Answers reads that wait: nobody takes requests at this moment, so there will be nothing to tell of.
    pub(crate) fn answer_readers(&self) {
        for reader in self.readers.lock().iter() {
            reader.is_to_answer.store(true, Ordering::Release);
            reader.arrived.notify_one();
        }
    }

    /// Notes a request, if the log has a reader.
    #[inline]
    pub(crate) fn seen(&self, header: &Header, what: impl FnOnce() -> What) -> Option<Seen> {
        if self.open.load(Ordering::Relaxed) == 0 {
            return None;
        }
        Some(Seen { uid: header.uid, gid: header.gid, pid: header.pid, what: what() })
    }

    /// The request was answered like that.
    #[cold]
    pub(crate) fn answered(&self, seen: &Seen, operation: Operation, outcome: Result<(), Errno>, took: Duration) {
        let line = line(Local::now(), seen, operation, outcome.map_err(Errno::number), took);
        self.readers.lock().iter().for_each(|reader| reader.push(line.as_bytes()));
    }
}

impl LogReader {
    fn push(&self, line: &[u8]) {
        self.queue.lock().push(line);
        self.arrived.notify_one();
    }

    /// What comes next, `most` bytes at most; after a while of nothing a line that says so.
    pub(crate) async fn next(&self, most: usize) -> Vec<u8> {
        let nothing_new = || NOTHING_NEW[..NOTHING_NEW.len().min(most)].to_vec();
        let lines = async {
            loop {
                let arrived = self.arrived.notified();
                let bytes = self.queue.lock().take(most);
                if !bytes.is_empty() {
                    return bytes;
                }
                if self.is_to_answer.swap(false, Ordering::AcqRel) {
                    return nothing_new();
                }
                arrived.await;
            }
        };
        tokio::time::timeout(QUIET, lines).await.unwrap_or_else(|_| nothing_new())
    }
}

impl Queue {
    fn push(&mut self, line: &[u8]) {
        let notice = self.notice();
        if self.bytes.len() + notice.len() + line.len() > MAX_QUEUED {
            self.dropped += 1;
            return;
        }
        self.dropped = 0;
        self.bytes.extend(notice.as_bytes());
        self.bytes.extend(line);
    }

    fn take(&mut self, most: usize) -> Vec<u8> {
        if self.bytes.is_empty() {
            let notice = self.notice();
            self.bytes.extend(notice.as_bytes());
            self.dropped = 0;
        }
        let taken = self.bytes.len().min(most);
        self.bytes.drain(..taken).collect()
    }

    fn notice(&self) -> String {
        match self.dropped {
            0 => String::new(),
            dropped => format!("# {dropped} lines are missing here: they were read too slowly\n"),
        }
    }
}

/// `2026.11.21 16:00:00.123456 [uid:0,gid:0,pid:123] read (17,4096,8192): OK <0.000123>`.
fn line(now: DateTime<Local>, seen: &Seen, operation: Operation, outcome: Result<(), i32>, took: Duration) -> String {
    let Seen { uid, gid, pid, what } = seen;
    let mut line = now.format("%Y.%m.%d %H:%M:%S%.6f").to_string();
    let about = match what {
        // A name may hold anything, also the end of a line.
        What::Name(parent, name) => format!("{parent},{}", String::from_utf8_lossy(name).escape_debug()),
        What::Inode(ino) => ino.to_string(),
        What::Bytes(ino, size, offset) => format!("{ino},{size},{offset}"),
        What::Names(ino, offset) => format!("{ino},{offset}"),
    };
    let outcome = outcome.map_or_else(errno_name, |()| "OK");
    let (operation, took) = (operation.name(), took.as_secs_f64());
    // A string takes everything.
    let _ = writeln!(line, " [uid:{uid},gid:{gid},pid:{pid}] {operation} ({about}): {outcome} <{took:.6}>");
    line
}

#[cfg(test)]
mod tests {
    use chrono::TimeZone as _;

    use super::*;

    fn seen(what: What) -> Seen {
        Seen { uid: 1000, gid: 100, pid: 123, what }
    }

    #[test]
    fn a_line_says_when_who_what_and_how_long() {
        let now = Local.with_ymd_and_hms(2026, 11, 21, 16, 0, 0).unwrap() + Duration::from_micros(123_456);
        let took = Duration::from_micros(123);
        let read = line(now, &seen(What::Bytes(17, 4096, 8192)), Operation::Read, Ok(()), took);
        assert_eq!(read, "2026.11.21 16:00:00.123456 [uid:1000,gid:100,pid:123] read (17,4096,8192): OK <0.000123>\n");
        let name = What::Name(1, b"a\nb".as_slice().into());
        let lookup = line(now, &seen(name), Operation::Lookup, Err(libc::ENOENT), took);
        assert!(lookup.ends_with("] lookup (1,a\\nb): ENOENT <0.000123>\n"), "{lookup}");
        assert_eq!(lookup.lines().count(), 1);
    }

    #[tokio::test]
    async fn every_reader_gets_every_line_and_one_that_left_none() {
        let log = AccessLog::default();
        let (first, second) = (log.open().unwrap(), log.open().unwrap());
        log.answered(&seen(What::Inode(1)), Operation::Open, Ok(()), Duration::ZERO);
        log.close(&second);
        log.answered(&seen(What::Inode(2)), Operation::Open, Ok(()), Duration::ZERO);
        let lines = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().lines().count();
        assert_eq!((lines(first.next(1 << 20).await), lines(second.next(1 << 20).await)), (2, 1));
        log.close(&first);
        assert_eq!(log.open.load(Ordering::Relaxed), 0);
        let readers: Vec<_> = std::iter::from_fn(|| log.open()).collect();
        assert_eq!(readers.len(), MAX_READERS);
    }

    #[tokio::test]
    async fn a_reader_is_never_kept_waiting_for_long() {
        let reader = LogReader::default();
        assert_eq!(reader.next(100).await, NOTHING_NEW);
    }

    #[tokio::test]
    async fn reads_that_wait_are_answered_at_once_where_nobody_takes_requests() {
        let log = AccessLog::default();
        let reader = log.open().unwrap();
        let mut read = std::pin::pin!(reader.next(100));
        assert!(polled(read.as_mut()).is_none(), "there is nothing");
        log.answer_readers();
        assert_eq!(polled(read).as_deref(), Some(NOTHING_NEW));
        // Also one that begins just then.
        log.answer_readers();
        assert_eq!(polled(std::pin::pin!(reader.next(1))).as_deref(), Some(&NOTHING_NEW[..1]));
    }

    /// What it gives without waiting any longer.
    fn polled<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn a_slow_reader_is_told_how_much_it_missed_and_memory_stays_bounded() {
        let reader = LogReader::default();
        let line = [b"x".repeat(1023), b"\n".to_vec()].concat();
        for _ in 0..MAX_QUEUED / line.len() + 10 {
            reader.push(&line);
        }
        assert_eq!(reader.queue.lock().bytes.len(), MAX_QUEUED);
        let all = reader.next(2 * MAX_QUEUED).await;
        assert_eq!(all.len(), MAX_QUEUED);
        let notice = String::from_utf8(reader.next(1 << 20).await).unwrap();
        assert!(notice.starts_with("# 10 lines are missing"), "{notice}");
        reader.push(b"next\n");
        assert_eq!(reader.next(1 << 20).await, b"next\n");
    }
}
