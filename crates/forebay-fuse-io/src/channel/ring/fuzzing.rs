//! What a fuzzer has the kernel do with the entries of a ring thread: what it puts into them, how it completes their commands, and
//! when whatever was asked is answered. The loop of the thread is the real one; it is over when there is nothing more to do.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::slice::Iter;
use std::sync::Arc;
use std::time::Duration;

use forebay_locks::Mutex;
use forebay_memory::{Pool, PoolOptions, SpanMut};
use forebay_types::ByteSize;
use rustix::event::{EventfdFlags, eventfd};

use super::entry::Entries;
use super::headers::HEADER_SIZE;
use super::queue::{Command, Machine};
use super::ready::Ready;
use super::submit::{Completion, Submit};
use super::thread::RingThread;
use crate::attributes::Kind;
use crate::errno::Errno;
use crate::protocol::names::NameBuffer;
use crate::protocol::request::Operation;
use crate::reply::{Answer, Dispatch, HeldBytes, Reply, Request};

/// Where the header page says what the kernel calls a request.
const COMMIT_ID: usize = 264;
/// Where it says how long the payload is.
const PAYLOAD_SIZE: usize = 272;
/// What a payload is filled with that is lent.
const LANDED: u8 = 0x5a;

thread_local! {
    /// Where payloads lie.
    static POOL: Pool = {
        let options = PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(8)) };
        Pool::new(options).unwrap_or_else(|error| unreachable!("{error}"))
    };
}

/// What happens.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// The kernel completes the command of an entry, if it has it.
    Complete {
        /// Which.
        entry: u8,
        /// With this: a negative error number, or there is a request.
        result: i16,
        /// What it puts at the beginning of the header page.
        page: &'a [u8],
        /// And at that of the payload.
        payload: &'a [u8],
        /// How the request is answered.
        how: How,
    },
    /// Something happens to one of the requests that were kept.
    Later {
        /// To which.
        which: u8,
        /// What.
        what: Later,
    },
    /// The mount has ended, as is learnt from the device.
    End,
}

/// What serves a mount does with a request.
#[derive(Clone, Copy, Debug)]
pub enum How {
    /// Answers with so many bytes.
    Data(u16),
    /// Answers with an error.
    Error(i32),
    /// Drops it.
    Dropped,
    /// Answers with names, of at most so many bytes.
    Names(u16),
    /// Keeps it, to be answered later.
    Kept,
    /// The same, with the data of a WRITE.
    KeptBytes,
    /// The same, and lets its payload be written to.
    Lent,
}

/// What it does later.
#[derive(Clone, Copy, Debug)]
pub enum Later {
    /// Answers with so many bytes.
    Data(u16),
    /// Answers with an error.
    Error(i32),
    /// Answers with so many bytes of the payload, which is written to even if it is too late.
    Filled(u16),
    /// Lets go of the data, and of the payload.
    LetGo,
    /// Drops it.
    Drop,
}

/// All of it happens to a thread with queues of so many entries each, whose payloads have `capacity` bytes: at most eight entries, and at
/// most 32 KiB.
///
/// # Panics
/// When an entry is given to the kernel that is its own, that was not answered, or that somebody still reads or writes; when an answer is
/// not the one that was given, or has another number than its request; when one that was answered does not go back, or the thread ends
/// for no reason; when what was to be written changes while somebody has it.
pub fn rings(depths: &[u32], capacity: usize, steps: &[Step<'_>]) {
    let count: u32 = depths.iter().sum();
    let queues: Vec<(u16, u32)> = (0..).zip(depths.iter().copied()).collect();
    let ready = Ready::new(count).unwrap_or_else(|error| unreachable!("{error}"));
    let entries = POOL.with(|pool| Entries::new(&queues, capacity, pool, ready));
    let entries = Arc::new(entries.unwrap_or_else(|error| unreachable!("{error}")));
    let device = eventfd(0, EventfdFlags::CLOEXEC).unwrap_or_else(|error| unreachable!("{error}"));
    let seen = (0..count).map(|_| Seen::default()).collect();
    let state = State { capacity, seen, kept: Vec::new(), serving: None, has_ended: false, wrong: None };
    let state = Arc::new(Mutex::new(state));
    let submit = Kernel {
        steps: steps.iter(),
        state: Arc::clone(&state),
        entries: Arc::clone(&entries),
        completions: VecDeque::new(),
        left: Left::Steps,
    };
    let machine = Machine::new(depths.iter().copied());
    let mut thread = RingThread { submit, entries, machine, counters: Arc::default(), is_given_up: Arc::default() };
    let dispatch = Served(Arc::clone(&state));
    let outcome = thread.register(&Arc::new(device)).and_then(|()| thread.serve(&dispatch));
    let kept = std::mem::take(&mut state.lock().kept);
    drop(kept);
    let state = state.lock();
    assert!(state.wrong.is_none(), "{:?}", state.wrong);
    let mut begin = 0;
    let has_lost_a_queue = depths.iter().any(|depth| {
        let queue = begin..begin + *depth as usize;
        begin = queue.end;
        state.seen[queue].iter().all(|seen| seen.is_gone)
    });
    match outcome {
        Ok(()) => assert!(state.has_ended, "the mount is there, and nobody serves it"),
        Err(error) => assert!(has_lost_a_queue, "the thread failed for no reason: {error}"),
    }
    assert_ne!(thread.is_clean(), state.seen.iter().any(|seen| seen.is_kernels), "whether the kernel has any entry");
}

/// An entry as the kernel sees it.
struct Seen {
    is_kernels: bool,
    /// The kernel takes it no more.
    is_gone: bool,
    /// What the kernel was asked last, or has to be asked next.
    command: Command,
    /// What it calls the request that is in it, and by which number the answer goes.
    names: (u64, u64),
    /// How many bytes of payload came with the request, and how they begin.
    brought: (usize, Vec<u8>),
    /// What the answer has to be: an error number or 0, and the body.
    answer: (i32, Vec<u8>),
}

impl Default for Seen {
    fn default() -> Self {
        let (command, brought, answer) = (Command::Register, (0, Vec::new()), (0, Vec::new()));
        Self { is_kernels: false, is_gone: false, command, names: (0, 0), brought, answer }
    }
}

impl Seen {
    /// Whether this is the payload that came.
    fn is_brought(&self, bytes: &[u8]) -> bool {
        let (length, known) = &self.brought;
        bytes.len() == *length && bytes.starts_with(&known[..known.len().min(*length)])
    }
}

/// A request that is answered later.
struct KeptRequest {
    entry: usize,
    reply: Option<Reply>,
    held: Option<(HeldBytes, Vec<u8>)>,
    lent: Option<SpanMut>,
}

/// What the kernel and those who serve know.
struct State {
    capacity: usize,
    seen: Vec<Seen>,
    kept: Vec<KeptRequest>,
    /// Which entry is served next, and how.
    serving: Option<(usize, How)>,
    has_ended: bool,
    /// The first thing that should not be, noted where panics are contained.
    wrong: Option<String>,
}

impl State {
    /// What the kernel has to be told when `body` is answered.
    fn told(&self, body: Vec<u8>) -> (i32, Vec<u8>) {
        if body.len() > self.capacity { (libc::EIO, Vec::new()) } else { (0, body) }
    }

    fn later(&mut self, which: u8, what: Later) {
        if self.kept.is_empty() {
            return;
        }
        let which = usize::from(which) % self.kept.len();
        let mut kept = self.kept.swap_remove(which);
        let entry = kept.entry;
        match (what, kept.reply.take()) {
            (Later::Data(length), Some(reply)) => {
                let body = body(entry, length);
                reply.data(&body);
                self.seen[entry].answer = self.told(body);
            }
            (Later::Error(number), Some(reply)) => {
                reply.error(Errno::new(number));
                self.seen[entry].answer = (Errno::new(number).number(), Vec::new());
            }
            (Later::Filled(length), reply) => match (reply, kept.lent.take()) {
                (Some(reply), Some(mut span)) => {
                    span.fill(LANDED);
                    let is_in_place = reply.filled(span, length.into());
                    assert_eq!(is_in_place, usize::from(length) <= self.capacity);
                    self.seen[entry].answer = self.told(vec![LANDED; length.into()]);
                }
                (None, Some(mut span)) => span.fill(!LANDED),
                (reply, None) => kept.reply = reply,
            },
            (Later::LetGo, reply) => {
                kept.reply = reply;
                kept.lent = None;
                if let Some((held, before)) = kept.held.take() {
                    assert!(*held == before[..], "what was to be written has changed");
                }
            }
            (Later::Drop, reply) => drop(reply),
            (Later::Data(_) | Later::Error(_), None) => {}
        }
        if kept.reply.is_some() || kept.held.is_some() || kept.lent.is_some() {
            self.kept.push(kept);
        }
    }
}

/// What an answer of so many bytes is made of.
fn body(entry: usize, length: u16) -> Vec<u8> {
    vec![entry as u8 | 0x80; length.into()]
}

/// What is left for the kernel to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    Steps,
    /// All that is kept was let go of, and has to come back.
    Kept,
    Nothing,
}

/// The kernel.
struct Kernel<'a> {
    steps: Iter<'a, Step<'a>>,
    state: Arc<Mutex<State>>,
    entries: Arc<Entries>,
    completions: VecDeque<(u32, i32, How)>,
    left: Left,
}

impl Kernel<'_> {
    fn complete(&mut self, entry: u8, result: i16, page: &[u8], payload: &[u8], how: How) {
        let mut state = self.state.lock();
        let (entry, capacity) = (usize::from(entry) % state.seen.len(), state.capacity);
        let seen = &mut state.seen[entry];
        if !seen.is_kernels {
            return;
        }
        if result >= 0 {
            let mut whole = [0; HEADER_SIZE];
            let (page, payload) = (&page[..page.len().min(HEADER_SIZE)], &payload[..payload.len().min(capacity)]);
            whole[..page.len()].copy_from_slice(page);
            self.entries.place(entry as u32, &whole, payload);
            // The first four bytes of eight, on all machines that have rings.
            let size = number(&whole, PAYLOAD_SIZE) as u32 as usize;
            seen.names = (number(&whole, COMMIT_ID), number(&whole, 8));
            seen.brought = (size.min(capacity), payload.to_vec());
            seen.answer = (libc::EIO, Vec::new());
            seen.command = Command::Commit;
        }
        seen.is_kernels = false;
        match -i32::from(result) {
            ..=0 | libc::EAGAIN | libc::EINTR => {}
            error => {
                seen.is_gone = true;
                state.has_ended |= matches!(error, libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED);
            }
        }
        self.completions.push_back((entry as u32, result.into(), how));
    }

    /// All has been answered, so the kernel has every entry that it takes, and gives it back.
    fn end(&mut self) {
        let mut state = self.state.lock();
        let is_back = state.seen.iter().all(|seen| seen.is_kernels || seen.is_gone);
        assert!(is_back || state.has_ended, "an entry that was answered was not given back");
        state.has_ended = true;
        for (entry, seen) in (0..).zip(&mut state.seen) {
            if std::mem::take(&mut seen.is_kernels) {
                seen.is_gone = true;
                self.completions.push_back((entry, -libc::ENOTCONN, How::Dropped));
            }
        }
    }
}

impl Submit for Kernel<'_> {
    fn begin(&mut self, _: &Arc<OwnedFd>, _: &Arc<Entries>) -> io::Result<()> {
        Ok(())
    }

    fn command(&mut self, entry: u32, command: Command) -> io::Result<()> {
        let mut state = self.state.lock();
        let at = entry as usize;
        assert!(state.kept.iter().all(|kept| kept.entry != at), "somebody still uses entry {entry}");
        let seen = &mut state.seen[at];
        assert!(!seen.is_kernels && !seen.is_gone && seen.command == command, "{command:?} of entry {entry}");
        if command == Command::Commit {
            let (unique, error, body) = self.entries.fetch(entry);
            assert_eq!((self.entries.commit_id(entry), unique), seen.names);
            assert_eq!((-error, body), seen.answer);
        }
        seen.is_kernels = true;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Does one thing more. The thread sleeps, so all that it could do is done.
    fn wait(&mut self, _: Option<Duration>) -> io::Result<()> {
        match (self.steps.next(), self.left) {
            (Some(Step::Complete { entry, result, page, payload, how }), _) => {
                self.complete(*entry, *result, page, payload, *how);
            }
            (Some(Step::Later { which, what }), _) => self.state.lock().later(*which, *what),
            (Some(Step::End), _) => {
                self.state.lock().has_ended = true;
                self.entries.ready().end();
            }
            (None, Left::Steps) => {
                self.left = Left::Kept;
                self.state.lock().kept.clear();
            }
            (None, Left::Kept) => {
                self.left = Left::Nothing;
                self.end();
            }
            (None, Left::Nothing) => unreachable!("the kernel has nothing any more, and is waited for"),
        }
        Ok(())
    }

    fn completion(&mut self) -> Option<Completion> {
        let (entry, result, how) = self.completions.pop_front()?;
        if result >= 0 {
            self.state.lock().serving = Some((entry as usize, how));
        }
        Some(Completion::Entry(entry, result))
    }
}

/// Eight bytes of a page that has them.
fn number(page: &[u8; HEADER_SIZE], at: usize) -> u64 {
    page.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

/// What serves the mount.
struct Served(Arc<Mutex<State>>);

impl Dispatch for Served {
    fn dispatch(&self, request: Request<'_>) {
        let mut state = self.0.lock();
        let Some((entry, how)) = state.serving.take() else {
            state.wrong = Some("a request comes that the kernel did not send".to_owned());
            return;
        };
        let mut is_write = false;
        if let Ok(Operation::Write { data, .. }) = request.operation() {
            is_write = true;
            if !state.seen[entry].is_brought(data) {
                state.wrong = Some("what is to be written is not what came".to_owned());
            }
        }
        let (mut held, mut lent) = (None, None);
        let reply = match how {
            How::Data(length) => {
                let body = body(entry, length);
                request.now().data(&body);
                state.seen[entry].answer = state.told(body);
                return;
            }
            How::Error(number) => {
                request.now().error(Errno::new(number));
                state.seen[entry].answer = (Errno::new(number).number(), Vec::new());
                return;
            }
            How::Dropped => return drop(request),
            How::Names(size) => {
                let mut names = request.keep().names(size.into());
                let mut same = NameBuffer::new(vec![0; state.capacity], size.into());
                let mut next = 0;
                while !names.add(7, next, Kind::RegularFile, b"a name") {
                    if same.add(7, next, Kind::RegularFile, b"a name") {
                        state.wrong = Some("there is no room for a name that was added".to_owned());
                        break;
                    }
                    next += 1;
                }
                names.send();
                state.seen[entry].answer = (0, same.filled().to_vec());
                return;
            }
            How::Kept => request.keep(),
            How::KeptBytes => {
                let (reply, bytes) = request.keep_bytes();
                let is_right = if is_write { state.seen[entry].is_brought(&bytes) } else { bytes.is_empty() };
                if !is_right {
                    state.wrong = Some("what is kept is not what came to be written".to_owned());
                }
                let before = bytes.to_vec();
                // Of anything else nothing is held.
                held = is_write.then_some((bytes, before));
                reply
            }
            How::Lent => {
                let mut reply = request.keep();
                lent = reply.lend();
                if lent.as_ref().is_none_or(|span| span.len() != state.capacity) {
                    state.wrong = Some("a payload is not lent that nobody else has".to_owned());
                }
                reply
            }
        };
        state.kept.push(KeptRequest { entry, reply: Some(reply), held, lent });
    }

    fn forget(&self, _node: u64, _count: u64) {}

    fn interrupted(&self, _unique: u64) {}
}
