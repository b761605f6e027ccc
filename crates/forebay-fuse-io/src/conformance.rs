//! What every channel must do, run on each of them with the kernel played by a fake.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use forebay_locks::Mutex;

use crate::attributes::{Attributes, Kind, OpenedFlags, Statfs};
use crate::errno::Errno;
use crate::fakes::device::FakeDevice;
use crate::fakes::ring::FakeRingMount;
use crate::fakes::{Answered, FakeKernel, Fields, about};
use crate::protocol::abi::opcode::*;
use crate::protocol::encode;
use crate::protocol::request::Operation;
use crate::reply::{Answer, Dispatch, HeldBytes, Opened, Reply, Request};
use crate::session::SessionOptions;
use forebay_types::FuseIo;

/// Answers at once.
const NOW: u64 = 10;
/// Answers from another thread.
const LATER: u64 = 11;
/// Answers `ENOENT`.
const FAILS: u64 = 12;
/// Drops the request.
const DROPS: u64 = 13;
/// Keeps the request and drops the reply.
const DROPS_LATER: u64 = 14;
/// Panics.
const PANICS: u64 = 15;
/// Holds the reply until the session ends.
const HOLDS: u64 = 16;

const TTL: Duration = Duration::from_millis(1500);

/// A file system that does the same for every node, but answers in the way that the node's number says.
struct Echo {
    later: SyncSender<Later>,
    held: Mutex<Vec<Reply>>,
    forgotten: AtomicU64,
    interrupted: Mutex<VecDeque<u64>>,
    ended: AtomicU64,
}

enum Later {
    Answer(Reply, What),
    Write(Reply, HeldBytes),
    Names(Reply, u32, bool),
}

/// What is answered.
#[derive(Clone, Debug)]
enum What {
    Done,
    Entry,
    Attributes,
    Opened,
    Created,
    Written(u32),
    Copied(u64),
    Statfs,
    Bytes(Vec<u8>),
    Slices(Vec<u8>),
    Offset(u64),
    XattrSize(u32),
}

fn attributes() -> Attributes {
    let time = UNIX_EPOCH + Duration::from_nanos(1_234_567_890_123_456_789);
    Attributes {
        ino: 42,
        size: 1 << 33,
        blocks: 1 << 24,
        atime: time,
        mtime: time,
        ctime: time,
        kind: Kind::RegularFile,
        perm: 0o644,
        nlink: 1,
        uid: 1000,
        gid: 100,
        rdev: 0,
        blksize: 1 << 20,
    }
}

fn opened() -> Opened<'static> {
    Opened { handle: 7, flags: OpenedFlags::KEEP_CACHE | OpenedFlags::NOFLUSH, backing: None }
}

fn pattern(offset: u64, size: u32) -> Vec<u8> {
    (offset..offset + u64::from(size)).map(|at| (at % 251) as u8).collect()
}

impl What {
    fn of(operation: &Operation<'_>) -> Option<Self> {
        Some(match *operation {
            Operation::Lookup { .. } | Operation::MakeDirectory { .. } => Self::Entry,
            Operation::MakeNode { .. } | Operation::Symlink { .. } | Operation::Link { .. } => Self::Entry,
            Operation::GetAttr { .. } | Operation::SetAttr(_) => Self::Attributes,
            Operation::Open { .. } | Operation::OpenDir { .. } => Self::Opened,
            Operation::Create { .. } => Self::Created,
            // Of odd handles in pieces.
            Operation::Read { handle, offset, size, .. } if handle % 2 == 1 => Self::Slices(pattern(offset, size)),
            Operation::Read { offset, size, .. } => Self::Bytes(pattern(offset, size)),
            Operation::Write { data, .. } => Self::Written(data.len() as u32),
            Operation::CopyFileRange(copy) => Self::Written(copy.length as u32),
            Operation::CopyFileRange64(copy) => Self::Copied(copy.length),
            Operation::Statfs => Self::Statfs,
            Operation::ReadLink => Self::Bytes(b"../target".to_vec()),
            Operation::GetXattr { size: 0, .. } | Operation::ListXattr { size: 0 } => Self::XattrSize(5),
            Operation::GetXattr { .. } | Operation::ListXattr { .. } => Self::Bytes(b"value".to_vec()),
            Operation::Lseek { offset, .. } => Self::Offset(offset),
            Operation::Unlink { .. } | Operation::RemoveDirectory { .. } | Operation::Rename { .. } => Self::Done,
            Operation::Release { .. } | Operation::ReleaseDir { .. } | Operation::Flush { .. } => Self::Done,
            Operation::Fsync { .. } | Operation::FsyncDir { .. } | Operation::Access { .. } => Self::Done,
            Operation::Fallocate { .. } | Operation::SetXattr { .. } | Operation::RemoveXattr { .. } => Self::Done,
            _ => return None,
        })
    }

    fn tell(&self, answer: impl Answer) {
        match self {
            Self::Done => answer.ok(),
            Self::Entry => answer.entry(&attributes(), 3, TTL, TTL * 2),
            Self::Attributes => answer.attributes(&attributes(), TTL),
            Self::Opened => answer.opened(&opened()),
            Self::Created => answer.created(&attributes(), TTL, &opened()),
            Self::Written(bytes) => answer.written(*bytes),
            Self::Copied(bytes) => answer.copied(*bytes),
            Self::Statfs => answer.statfs(&Statfs { blocks: 9, ..Statfs::default() }),
            Self::Bytes(bytes) => answer.data(bytes),
            Self::Slices(bytes) => answer.slices(&bytes.chunks(bytes.len().div_ceil(5).max(1)).collect::<Vec<_>>()),
            Self::Offset(offset) => answer.offset(*offset),
            Self::XattrSize(bytes) => answer.xattr_size(*bytes),
        }
    }

    /// What the kernel is to see of it.
    fn body(&self) -> Vec<u8> {
        match self {
            Self::Done => Vec::new(),
            Self::Entry => encode::entry(&attributes(), 3, TTL, TTL * 2).to_vec(),
            Self::Attributes => encode::attributes(&attributes(), TTL).to_vec(),
            Self::Opened => encode::opened(7, opened().flags, None).to_vec(),
            Self::Created => encode::created(&attributes(), 0, TTL, 7, opened().flags, None).to_vec(),
            Self::Written(bytes) => encode::written(*bytes).to_vec(),
            Self::Copied(bytes) => encode::copied(*bytes).to_vec(),
            Self::Statfs => encode::statfs(&Statfs { blocks: 9, ..Statfs::default() }).to_vec(),
            Self::Bytes(bytes) | Self::Slices(bytes) => bytes.clone(),
            Self::Offset(offset) => encode::offset(*offset).to_vec(),
            Self::XattrSize(bytes) => encode::xattr_size(*bytes).to_vec(),
        }
    }
}

impl Echo {
    fn new() -> Arc<Self> {
        let (later, requests) = sync_channel(4096);
        thread::spawn(move || answer_later(&requests));
        Arc::new(Self {
            later,
            held: Mutex::default(),
            forgotten: AtomicU64::new(0),
            interrupted: Mutex::default(),
            ended: AtomicU64::new(0),
        })
    }
}

/// Ends with the file system. Takes a batch at a time, and answers the last first.
fn answer_later(requests: &Receiver<Later>) {
    while let Ok(first) = requests.recv() {
        let mut batch: Vec<Later> = std::iter::once(first).chain(requests.try_iter().take(16)).collect();
        batch.reverse();
        for later in batch {
            match later {
                Later::Answer(reply, what) => what.tell(reply),
                Later::Write(reply, data) => {
                    let is_whole = *data == *pattern(0, data.len() as u32);
                    let length = data.len() as u32;
                    drop(data);
                    if is_whole { reply.written(length) } else { reply.error(Errno::EINVAL) }
                }
                Later::Names(reply, size, plus) => {
                    let mut names = reply.names(size);
                    for next in 1.. {
                        let name = format!("name-{next}");
                        let is_full = match plus {
                            true => names.add_plus(&attributes(), next, name.as_bytes(), TTL, TTL),
                            false => names.add(42, next, Kind::RegularFile, name.as_bytes()),
                        };
                        if is_full {
                            break;
                        }
                    }
                    names.send();
                }
            }
        }
    }
}

impl Dispatch for Echo {
    fn dispatch(&self, request: Request<'_>) {
        let operation = match request.operation() {
            Ok(operation) => operation,
            Err(malformed) => return request.now().error(malformed.errno()),
        };
        let what = What::of(&operation);
        let names = match operation {
            Operation::ReadDir { size, .. } => Some((size, false)),
            Operation::ReadDirPlus { size, .. } => Some((size, true)),
            _ => None,
        };
        let is_write = matches!(operation, Operation::Write { .. });
        if let Some((size, plus)) = names {
            return self.later.send(Later::Names(request.keep(), size, plus)).unwrap();
        }
        let Some(what) = what else { return request.now().error(Errno::ENOSYS) };
        match request.header().node {
            NOW => what.tell(request.now()),
            LATER if is_write => {
                let (reply, data) = request.keep_bytes();
                self.later.send(Later::Write(reply, data)).unwrap();
            }
            LATER => self.later.send(Later::Answer(request.keep(), what)).unwrap(),
            FAILS => request.now().error(Errno::ENOENT),
            DROPS => drop(request),
            DROPS_LATER => drop(request.keep()),
            PANICS => panic!("a test of panics"),
            HOLDS => self.held.lock().push(request.keep()),
            _ => request.now().error(Errno::ESTALE),
        }
    }

    fn forget(&self, node: u64, count: u64) {
        assert_ne!(node, PANICS, "a test of panics");
        self.forgotten.fetch_add(count, Ordering::SeqCst);
    }

    fn interrupted(&self, unique: u64) {
        self.interrupted.lock().push_back(unique);
    }

    fn ended(&self, error: Option<&io::Error>) {
        assert!(error.is_none(), "{error:?}");
        self.ended.fetch_add(1, Ordering::SeqCst);
        // What a mount does with the requests that wait.
        self.held.lock().clear();
    }
}

/// Every operation that is answered: its number, head and tail.
fn operations() -> Vec<(u32, Vec<u8>, Vec<u8>)> {
    let none = Fields::default;
    let read = |handle: u64, size: u32| none().u64(handle).u64(100).u32(size).u32(0).u64(0).u32(0).u32(0).0;
    let write = |size: u32| none().u64(7).u64(0).u32(size).u32(0).u64(0).u32(0).u32(0).0;
    let copy = |length: u64| none().u64(7).u64(0).u64(NOW).u64(8).u64(0).u64(length).u64(0).0;
    let release = none().u64(7).u32(0).u32(0).u64(0).0;
    let name = || b"name\0".to_vec();
    vec![
        (LOOKUP, vec![], name()),
        (GETATTR, none().u32(0).u32(0).u64(0).0, vec![]),
        (SETATTR, vec![0; 88], vec![]),
        (READLINK, vec![], vec![]),
        (SYMLINK, vec![], b"name\0target\0".to_vec()),
        (MKNOD, none().u32(0o100_644).u32(0).u32(0).u32(0).0, name()),
        (MKDIR, none().u32(0o755).u32(0).0, name()),
        (UNLINK, vec![], name()),
        (RMDIR, vec![], name()),
        (RENAME, none().u64(2).0, b"old\0new\0".to_vec()),
        (RENAME2, none().u64(2).u32(1).u32(0).0, b"old\0new\0".to_vec()),
        (LINK, none().u64(2).0, name()),
        (OPEN, none().u32(0).u32(0).0, vec![]),
        (READ, read(8, 4096), vec![]),
        (READ, read(7, 100_001), vec![]),
        (READ, read(8, 0), vec![]),
        (WRITE, write(100_000), pattern(0, 100_000)),
        (WRITE, write(0), vec![]),
        (STATFS, vec![], vec![]),
        (RELEASE, release.clone(), vec![]),
        (FSYNC, none().u64(7).u32(0).u32(0).0, vec![]),
        (SETXATTR, none().u32(5).u32(0).0, b"user.x\0value".to_vec()),
        (GETXATTR, none().u32(0).u32(0).0, b"user.x\0".to_vec()),
        (GETXATTR, none().u32(9).u32(0).0, b"user.x\0".to_vec()),
        (LISTXATTR, none().u32(0).u32(0).0, vec![]),
        (REMOVEXATTR, vec![], b"user.x\0".to_vec()),
        (FLUSH, none().u64(7).u64(0).u64(0).0, vec![]),
        (OPENDIR, none().u32(0).u32(0).0, vec![]),
        (RELEASEDIR, release, vec![]),
        (FSYNCDIR, none().u64(7).u32(0).u32(0).0, vec![]),
        (ACCESS, none().u32(4).u32(0).0, vec![]),
        (CREATE, none().u32(0).u32(0o644).u32(0).u32(0).0, name()),
        (FALLOCATE, none().u64(7).u64(0).u64(10).u32(0).u32(0).0, vec![]),
        (LSEEK, none().u64(7).u64(1234).u32(3).u32(0).0, vec![]),
        (COPY_FILE_RANGE, copy(1000), vec![]),
        (COPY_FILE_RANGE_64, copy(1 << 40), vec![]),
    ]
}

/// What an operation of the list is answered.
fn expected(operation: u32, head: &[u8], tail: &[u8]) -> Answered {
    let operation = crate::protocol::request::parse(operation, head, tail).unwrap();
    Answered::bytes(&What::of(&operation).unwrap().body())
}

fn start<K: FakeKernel>(io: FuseIo) -> (K, Arc<Echo>) {
    let echo = Echo::new();
    let options = SessionOptions { io, ring_depth: 8, ..SessionOptions::default() };
    (K::start(Arc::clone(&echo), &options), echo)
}

/// Ends a mount, which must not take long; everything that waits is let go of.
fn end<K: FakeKernel>(kernel: K, echo: &Echo) {
    let started = Instant::now();
    kernel.abort().unwrap();
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    assert_eq!(echo.ended.load(Ordering::SeqCst), 1, "the end is told once");
}

fn every_operation_is_answered_now_and_later<K: FakeKernel>(io: FuseIo) {
    let (mut kernel, echo) = start::<K>(io);
    for node in [NOW, LATER] {
        for (operation, head, tail) in operations() {
            let unique = kernel.request(about(operation, node), &head, &tail);
            assert_eq!(kernel.reply(unique), expected(operation, &head, &tail), "operation {operation} of {node}");
        }
    }
    end(kernel, &echo);
}

fn every_operation_may_fail_be_dropped_and_panic<K: FakeKernel>(io: FuseIo) {
    let (mut kernel, echo) = start::<K>(io);
    let ways = [(FAILS, libc::ENOENT), (DROPS, libc::EIO), (DROPS_LATER, libc::EIO), (PANICS, libc::EIO)];
    for (node, error) in ways {
        for (operation, head, tail) in operations() {
            let unique = kernel.request(about(operation, node), &head, &tail);
            assert_eq!(kernel.reply(unique), Answered::error(error), "operation {operation} of {node}");
        }
    }
    for operation in [SYNCFS, TMPFILE, STATX, IOCTL, POLL, GETLK, BMAP, 4000] {
        let unique = kernel.request(about(operation, NOW), &[0; 16], &[]);
        assert_eq!(kernel.reply(unique), Answered::error(libc::ENOSYS), "operation {operation}");
    }
    end(kernel, &echo);
}

fn what_makes_no_sense_is_refused_and_the_next_is_served<K: FakeKernel>(io: FuseIo) {
    let (mut kernel, echo) = start::<K>(io);
    let long = [vec![b'x'; 256], vec![0]].concat();
    let names: [(&[u8], i32); 4] =
        [(b"\0", libc::EIO), (b"a/b\0", libc::EIO), (b"endless", libc::EIO), (&long, libc::ENAMETOOLONG)];
    for (name, error) in names {
        let unique = kernel.request(about(LOOKUP, NOW), &[], name);
        assert_eq!(kernel.reply(unique), Answered::error(error));
        let unique = kernel.request(about(LOOKUP, NOW), &[], b"name\0");
        assert_eq!(kernel.reply(unique).error, 0);
    }
    end(kernel, &echo);
}

fn a_thousand_requests_at_once_each_get_their_own_answer<K: FakeKernel>(io: FuseIo) {
    let (mut kernel, echo) = start::<K>(io);
    let read = |offset: u64| Fields::default().u64(8).u64(offset).u32(64).u32(0).u64(0).u32(0).u32(0).0;
    for batch in 0..10 {
        let offsets = batch * 100..(batch + 1) * 100;
        let node = |offset: u64| if offset.is_multiple_of(3) { NOW } else { LATER };
        let asked: Vec<_> =
            offsets.map(|offset| (offset, kernel.request(about(READ, node(offset)), &read(offset), &[]))).collect();
        for (offset, unique) in asked.into_iter().rev() {
            assert_eq!(kernel.reply(unique), Answered::bytes(&pattern(offset, 64)));
        }
    }
    end(kernel, &echo);
}

fn names_fill_what_was_asked_for_and_no_more<K: FakeKernel>(io: FuseIo) {
    let (mut kernel, echo) = start::<K>(io);
    for (operation, one) in [(READDIR, 32), (READDIRPLUS, 160)] {
        for size in [0, one - 1, one, one + 1, 4096] {
            let head = Fields::default().u64(7).u64(0).u32(size).u32(0).u64(0).u32(0).u32(0).0;
            let unique = kernel.request(about(operation, NOW), &head, &[]);
            let answer = kernel.reply(unique);
            assert_eq!(answer.error, 0);
            // Up to nine names are of one length.
            let most = if size < 4096 { size / one * one } else { size };
            assert!(answer.body.len() <= most as usize && answer.body.len() % 8 == 0, "{}", answer.body.len());
            assert!(size < one || answer.body.len() >= one as usize);
            assert!(size < 4096 || answer.body.len() > 3800);
        }
    }
    end(kernel, &echo);
}

fn what_is_not_answered_is_heard<K: FakeKernel>(io: FuseIo) {
    let (mut kernel, echo) = start::<K>(io);
    kernel.tell(about(FORGET, 5), &Fields::default().u64(3).0, &[]);
    kernel.tell(about(FORGET, PANICS), &Fields::default().u64(1).0, &[]);
    let pairs = Fields::default().u64(6).u64(10).u64(7).u64(100).0;
    kernel.tell(about(BATCH_FORGET, 0), &Fields::default().u32(2).u32(0).0, &pairs);
    kernel.tell(about(NOTIFY_REPLY, 0), &[], &[]);
    kernel.tell(about(INTERRUPT, 0), &Fields::default().u64(12).0, &[]);
    let deadline = Instant::now() + crate::fakes::SOON;
    while echo.forgotten.load(Ordering::SeqCst) < 113 || echo.interrupted.lock().is_empty() {
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
    assert_eq!((echo.forgotten.load(Ordering::SeqCst), echo.interrupted.lock().pop_front()), (113, Some(12)));
    // Nothing of it was answered: the next answer is that of the next request.
    let unique = kernel.request(about(STATFS, NOW), &[], &[]);
    assert_eq!(kernel.reply(unique).body.len(), 80);
    end(kernel, &echo);
}

fn the_end_comes_also_while_requests_are_under_way<K: FakeKernel>(io: FuseIo) {
    let (mut kernel, echo) = start::<K>(io);
    for _ in 0..6 {
        kernel.request(about(STATFS, HOLDS), &[], &[]);
    }
    let deadline = Instant::now() + crate::fakes::SOON;
    while echo.held.lock().len() < 6 {
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
    end(kernel, &echo);
}

/// Makes a test of each of these for a channel.
macro_rules! for_each_channel {
    ($($channel:ident: $fake:ty, $io:expr;)*) => {
        $(mod $channel {
            use super::*;

            #[test]
            fn every_operation_is_answered_now_and_later() {
                super::every_operation_is_answered_now_and_later::<$fake>($io);
            }

            #[test]
            fn every_operation_may_fail_be_dropped_and_panic() {
                super::every_operation_may_fail_be_dropped_and_panic::<$fake>($io);
            }

            #[test]
            fn what_makes_no_sense_is_refused_and_the_next_is_served() {
                super::what_makes_no_sense_is_refused_and_the_next_is_served::<$fake>($io);
            }

            #[test]
            fn a_thousand_requests_at_once_each_get_their_own_answer() {
                super::a_thousand_requests_at_once_each_get_their_own_answer::<$fake>($io);
            }

            #[test]
            fn names_fill_what_was_asked_for_and_no_more() {
                super::names_fill_what_was_asked_for_and_no_more::<$fake>($io);
            }

            #[test]
            fn what_is_not_answered_is_heard() {
                super::what_is_not_answered_is_heard::<$fake>($io);
            }

            #[test]
            fn the_end_comes_also_while_requests_are_under_way() {
                super::the_end_comes_also_while_requests_are_under_way::<$fake>($io);
            }
        })*
    };
}

for_each_channel! {
    device: FakeDevice, FuseIo::Device;
    ring: FakeRingMount, FuseIo::Uring;
}
