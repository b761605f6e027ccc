//! A kernel that sends requests in the entries of rings, and everything else over a socket.
//!
//! It does with entries what Linux does: a request goes into the entry that was given back last, requests wait in line where a
//! queue has none, an answer is looked for by its number, and what makes no sense is refused with the same error. On demand it
//! refuses entries, or wants to be asked again.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use forebay_locks::{Condvar, Mutex};
use forebay_memory::Pool;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::device::Wire;
use super::{Answered, FakeKernel, SOON, about, encode, init};
use crate::channel::ring::cpus::Cpus;
use crate::channel::ring::entry::Entries;
use crate::channel::ring::queue::Command;
use crate::channel::ring::submit::{Completion, Submit};
use crate::protocol::abi::{capability, opcode};
use crate::protocol::request::Header;
use crate::reply::Dispatch;
use crate::session::{Session, SessionOptions};
use forebay_types::FuseIo;

/// Processors of the machine that is played. Ours are all but the last.
pub(crate) const QUEUES: u16 = 3;

thread_local! {
    /// What [`installed`] gives.
    static INSTALLED: RefCell<Option<FakeRings>> = const { RefCell::new(None) };
}

/// The kernel whose rings this thread makes.
pub(crate) fn installed() -> Option<FakeRings> {
    INSTALLED.with_borrow(Clone::clone)
}

/// The kernel's side of all rings of a mount.
#[derive(Clone, Default)]
pub(crate) struct FakeRings(Arc<FakeKernelShared>);

#[derive(Default)]
struct FakeKernelShared {
    state: Mutex<FakeKernelState>,
    changed: Condvar,
}

#[derive(Default)]
struct FakeKernelState {
    sides: Vec<Side>,
    queues: HashMap<u16, Queue>,
    latest: u64,
    answers: HashMap<u64, Answered>,
    has_ended: bool,
    /// Results that the next commands have in place of what they deserve.
    injected: VecDeque<i32>,
}

/// One thread's ring.
struct Side {
    completions: VecDeque<Completion>,
    wake: Arc<OwnedFd>,
    entries: Option<Arc<Entries>>,
}

/// An entry: of which ring, and which.
type Place = (usize, u32);

#[derive(Default)]
struct Queue {
    available: Vec<Place>,
    serving: HashMap<u64, Place>,
    in_line: VecDeque<Message>,
}

struct Message {
    header: Header,
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl FakeRings {
    /// The processors to share queues among.
    pub(crate) fn cpus(&self) -> Cpus {
        Cpus { queues: QUEUES, ours: (0..QUEUES - 1).collect() }
    }

    /// A ring.
    pub(crate) fn ring(&self) -> io::Result<FakeRing> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut state = self.0.state.lock();
        state.sides.push(Side { completions: VecDeque::new(), wake: Arc::clone(&wake), entries: None });
        Ok(FakeRing { kernel: self.clone(), number: state.sides.len() - 1, wake, entries: None })
    }

    /// The next commands of any ring have these results, as far as they are not 0.
    pub(crate) fn inject(&self, results: impl IntoIterator<Item = i32>) {
        self.0.state.lock().injected.extend(results);
    }

    /// How many of these are still to come.
    pub(crate) fn injected(&self) -> usize {
        self.0.state.lock().injected.len()
    }

    /// Entries of queue `qid` that the kernel has.
    pub(crate) fn available(&self, qid: u16) -> usize {
        self.0.state.lock().queues.get(&qid).map_or(0, |queue| queue.available.len())
    }

    /// Whether there is an answer to `unique` by now.
    pub(crate) fn is_answered(&self, unique: u64) -> bool {
        self.0.state.lock().answers.contains_key(&unique)
    }

    /// Waits until `holds`.
    pub(crate) fn wait_until(&self, mut holds: impl FnMut(&Self) -> bool) {
        let until = Instant::now() + SOON;
        while !holds(self) {
            assert!(Instant::now() < until, "it does not come true");
            drop(self.0.changed.wait_for(self.0.state.lock(), Duration::from_millis(1)));
        }
    }

    /// Sends a request on a program's behalf that runs on processor `qid`.
    pub(crate) fn send(&self, qid: u16, header: Header, head: &[u8], tail: &[u8]) -> u64 {
        let mut state = self.0.state.lock();
        state.latest += 2;
        let unique = state.latest;
        let header = Header { unique, length: 0, ..header };
        let message = Message { header, head: head.to_vec(), tail: tail.to_vec() };
        state.queues.entry(qid).or_default().in_line.push_back(message);
        state.hand_out(qid);
        unique
    }

    fn answer(&self, unique: u64) -> Answered {
        let mut state = self.0.state.lock();
        let until = Instant::now() + SOON;
        loop {
            if let Some(answer) = state.answers.remove(&unique) {
                return answer;
            }
            let is_late;
            (state, is_late) = self.0.changed.wait_until(state, until);
            assert!(!is_late, "there is no answer");
        }
    }

    /// Ends the mount: every entry that waits for a request is given back.
    fn end(&self) {
        let mut state = self.0.state.lock();
        state.has_ended = true;
        let available: Vec<Place> = state.queues.values_mut().flat_map(|queue| queue.available.drain(..)).collect();
        for place in available {
            state.complete(place, -libc::ENOTCONN);
        }
    }
}

impl FakeKernelState {
    fn command(&mut self, (side, entry): Place, command: Command, entries: &Entries) -> i32 {
        let qid = entries.qid(entry);
        if self.has_ended {
            return -libc::ENOTCONN;
        }
        match self.injected.pop_front() {
            Some(result @ ..0) => return result,
            _ if qid >= QUEUES => return -libc::EINVAL,
            _ => {}
        }
        let queue = self.queues.entry(qid).or_default();
        if command == Command::Commit {
            let id = entries.commit_id(entry);
            let Some(place) = queue.serving.remove(&id) else { return -libc::ENOENT };
            assert_eq!(place, (side, entry), "an answer is in the entry of its request");
            let (unique, error, body) = entries.fetch(entry);
            let answer = if !(-511..=0).contains(&error) || unique != id {
                Answered::error(libc::EINVAL)
            } else {
                Answered { error: -error, body: if error == 0 { body } else { Vec::new() } }
            };
            assert!(self.answers.insert(id, answer).is_none(), "{id} is answered twice");
        }
        self.queues.entry(qid).or_default().available.push((side, entry));
        self.hand_out(qid);
        0
    }

    /// Puts requests that stand in line into entries.
    fn hand_out(&mut self, qid: u16) {
        loop {
            let Some(queue) = self.queues.get_mut(&qid) else { return };
            if queue.available.is_empty() || queue.in_line.is_empty() {
                return;
            }
            let (Some(place), Some(message)) = (queue.available.pop(), queue.in_line.pop_front()) else { return };
            queue.serving.insert(message.header.unique, place);
            if let Some(entries) = &self.sides[place.0].entries {
                entries.bring(place.1, &encode(&message.header), &message.head, &message.tail);
            }
            self.complete(place, 0);
        }
    }

    fn complete(&mut self, (side, entry): Place, result: i32) {
        let side = &mut self.sides[side];
        side.completions.push_back(Completion::Entry(entry, result));
        rustix::io::write(&side.wake, &1_u64.to_ne_bytes()).unwrap();
    }
}

/// What a ring thread takes for its ring.
pub(crate) struct FakeRing {
    kernel: FakeRings,
    number: usize,
    wake: Arc<OwnedFd>,
    entries: Option<Arc<Entries>>,
}

impl Submit for FakeRing {
    fn begin(&mut self, _: &Arc<OwnedFd>, entries: &Arc<Entries>) -> io::Result<()> {
        self.entries = Some(Arc::clone(entries));
        self.kernel.0.state.lock().sides[self.number].entries = Some(Arc::clone(entries));
        Ok(())
    }

    fn command(&mut self, entry: u32, command: Command) -> io::Result<()> {
        let Some(entries) = &self.entries else { return Err(io::Error::from_raw_os_error(libc::EBADF)) };
        let mut state = self.kernel.0.state.lock();
        match state.command((self.number, entry), command, entries) {
            0 => {}
            error => state.complete((self.number, entry), error),
        }
        self.kernel.0.changed.notify_all();
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, within: Option<Duration>) -> io::Result<()> {
        let Some(entries) = &self.entries else { return Ok(()) };
        // SAFETY: the entries are kept, and with them the descriptor.
        let bell = unsafe { BorrowedFd::borrow_raw(entries.ready().bell()) };
        let within = Timespec::try_from(within.unwrap_or(SOON)).map_err(io::Error::other)?;
        let mut both = [PollFd::new(&bell, PollFlags::IN), PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN)];
        poll(&mut both, Some(&within))?;
        let (is_rung, is_woken) = (!both[0].revents().is_empty(), !both[1].revents().is_empty());
        let mut counter = [0; 8];
        if is_woken {
            rustix::io::read(&self.wake, &mut counter)?;
        }
        if is_rung {
            rustix::io::read(bell, &mut counter)?;
            self.kernel.0.state.lock().sides[self.number].completions.push_back(Completion::Bell);
        }
        Ok(())
    }

    fn completion(&mut self) -> Option<Completion> {
        self.kernel.0.state.lock().sides[self.number].completions.pop_front()
    }
}

/// A mount over rings.
pub(crate) struct FakeRingMount {
    pub(crate) rings: FakeRings,
    pub(crate) wire: Wire,
    pub(crate) payloads: Pool,
    session: JoinHandle<io::Result<()>>,
    sent: u16,
}

impl FakeRingMount {
    /// Mounts, with `rings` in the kernel's place.
    pub(crate) fn over<D: Dispatch>(rings: FakeRings, dispatch: Arc<D>, options: &SessionOptions) -> Self {
        let (mut wire, device) = Wire::new();
        let unique = wire.send(about(opcode::INIT, 0), &init(capability::OVER_IO_URING), &[]);
        INSTALLED.set(Some(rings.clone()));
        let options = SessionOptions { io: FuseIo::Uring, ..options.clone() };
        let session = Session::start(device, dispatch, &options);
        INSTALLED.set(None);
        let session = session.unwrap();
        assert_eq!(wire.answer(unique).body.len(), 64);
        let payloads = session.payloads().unwrap().clone();
        Self { rings, wire, payloads, session: thread::spawn(move || session.run()), sent: 0 }
    }
}

impl FakeKernel for FakeRingMount {
    fn start<D: Dispatch>(dispatch: Arc<D>, options: &SessionOptions) -> Self {
        let mount = Self::over(FakeRings::default(), dispatch, options);
        // Before every queue has an entry requests go over the device, as Linux does it.
        mount.rings.wait_until(|rings| (0..QUEUES).all(|qid| rings.available(qid) > 0));
        mount
    }

    fn request(&mut self, header: Header, head: &[u8], tail: &[u8]) -> u64 {
        self.sent = (self.sent + 1) % QUEUES;
        self.rings.send(self.sent, header, head, tail)
    }

    fn tell(&mut self, header: Header, head: &[u8], tail: &[u8]) {
        self.wire.send(header, head, tail);
    }

    fn reply(&mut self, unique: u64) -> Answered {
        self.rings.answer(unique)
    }

    fn abort(self) -> io::Result<()> {
        self.rings.end();
        self.wire.end();
        let outcome = self.session.join().unwrap();
        // A kernel forgets the memory of a process that is done with it.
        self.rings.0.state.lock().sides.clear();
        outcome
    }
}
