//! What a ring does beside what every channel does, with the kernel played by a fake.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use forebay_locks::Mutex;

use super::queue::Command;
use super::submit::Completion;
use super::thread::RingThread;
use super::*;
use crate::HeldBytes;
use crate::errno::Errno;
use crate::fakes::ring::{FakeRingMount, FakeRings, QUEUES};
use crate::fakes::{Answered, FakeKernel, Fields, SOON, about, encode};
use crate::protocol::abi::opcode::{READ, STATFS, WRITE};
use crate::protocol::request::Header;
use crate::reply::{Answer, Reply, Request};
use crate::session::SessionOptions;

/// Hands every request to the test; STATFS is answered at once.
struct HandOver {
    requests: Mutex<Sender<(Reply, HeldBytes)>>,
}

impl Dispatch for HandOver {
    fn dispatch(&self, request: Request<'_>) {
        if request.header().opcode == STATFS {
            request.now().ok();
        } else {
            // The test may not be listening any more.
            let _ = self.requests.lock().send(request.keep_bytes());
        }
    }

    fn forget(&self, _: u64, _: u64) {}

    fn interrupted(&self, _: u64) {}
}

/// Of three queues with eight entries.
const ENTRIES: usize = 24;

fn all_available(rings: &FakeRings) -> usize {
    (0..QUEUES).map(|qid| rings.available(qid)).sum()
}

struct Mount {
    kernel: FakeRingMount,
    requests: Receiver<(Reply, HeldBytes)>,
    pool: Pool,
}

impl Mount {
    fn over(rings: FakeRings) -> Self {
        let (sender, requests) = channel();
        let pool = Pool::new(PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(64)) }).unwrap();
        let options = SessionOptions { ring_depth: 8, pool: Some(pool.clone()), ..SessionOptions::default() };
        let kernel = FakeRingMount::over(rings, Arc::new(HandOver { requests: Mutex::new(sender) }), &options);
        Self { kernel, requests, pool }
    }

    fn new() -> Self {
        let mount = Self::over(FakeRings::default());
        mount.kernel.rings.wait_until(|rings| all_available(rings) == ENTRIES);
        mount
    }

    /// Has the kernel ask, and gives what came.
    fn ask(&mut self, opcode: u32, head: &[u8], tail: &[u8]) -> (u64, Reply, HeldBytes) {
        let unique = self.kernel.request(about(opcode, 2), head, tail);
        let (reply, data) = self.requests.recv_timeout(SOON).unwrap();
        assert_eq!(reply.unique(), unique);
        (unique, reply, data)
    }

    fn read(&mut self) -> (u64, Reply) {
        let (unique, reply, data) = self.ask(READ, &[0; 40], &[]);
        drop(data);
        (unique, reply)
    }

    /// Unmounts; all memory must be back.
    fn end(self) {
        let Self { kernel, requests, pool } = self;
        drop(requests);
        kernel.abort().unwrap();
        assert_eq!(pool.used(), 0, "payloads are freed");
    }
}

#[test]
fn a_read_lands_in_the_memory_that_the_kernel_takes_it_from() {
    let mut mount = Mount::new();
    for _ in 0..20 {
        let (unique, mut reply) = mount.read();
        let mut payload = reply.lend().unwrap();
        assert!(reply.lend().is_none(), "it is lent once");
        let (base, length) = mount.kernel.payloads.mapping();
        let at = payload.as_ptr().addr() - base.as_ptr().addr();
        assert!(at + payload.len() <= length, "it is of the memory that the session told of");
        payload[..4].copy_from_slice(b"data");
        // As a transport does that was asked for so much.
        payload.truncate(4);
        assert!(reply.filled(payload, 4));
        assert_eq!(mount.kernel.reply(unique), Answered::bytes(b"data"));
    }
    mount.end();
}

#[test]
fn an_answer_waits_until_nobody_can_write_to_its_payload_any_more() {
    let mut mount = Mount::new();
    let (unique, mut reply) = mount.read();
    let payload = reply.lend().unwrap();
    // The deadline passed, while the transport still has the buffer.
    reply.error(Errno::ETIMEDOUT);
    // Others are served meanwhile, also of that queue.
    for _ in 0..QUEUES {
        let other = mount.kernel.request(about(STATFS, 1), &[], &[]);
        assert_eq!(mount.kernel.reply(other).error, 0);
    }
    assert!(!mount.kernel.rings.is_answered(unique));
    drop(payload);
    assert_eq!(mount.kernel.reply(unique), Answered::error(libc::ETIMEDOUT));
    mount.end();
}

#[test]
fn bytes_from_elsewhere_wait_until_nobody_can_write_over_them() {
    let mut mount = Mount::new();
    let (unique, mut reply) = mount.read();
    let mut payload = reply.lend().unwrap();
    reply.data(b"from elsewhere");
    let other = mount.kernel.request(about(STATFS, 1), &[], &[]);
    assert_eq!(mount.kernel.reply(other).error, 0);
    assert!(!mount.kernel.rings.is_answered(unique));
    payload.fill(1);
    drop(payload);
    assert_eq!(mount.kernel.reply(unique), Answered::bytes(b"from elsewhere"));
    mount.end();
}

#[test]
fn a_deadline_that_passes_while_a_transport_has_the_payload_is_one_error_and_later_reads_land_in_it() {
    let mut mount = Mount::new();
    let depth = mount.kernel.rings.available(0);
    for _ in 0..2 {
        let mut lent = Vec::new();
        for _ in 0..depth {
            let unique = mount.kernel.rings.send(0, about(READ, 2), &[0; 40], &[]);
            let (mut reply, data) = mount.requests.recv_timeout(SOON).unwrap();
            drop(data);
            lent.push((unique, reply.lend().unwrap()));
            // The task that waited for the transport is dropped, and the reply with it.
            drop(reply);
        }
        // Another queue is served meanwhile.
        let other = mount.kernel.rings.send(1, about(STATFS, 1), &[], &[]);
        assert_eq!(mount.kernel.reply(other).error, 0);
        for (unique, mut payload) in lent {
            assert!(!mount.kernel.rings.is_answered(unique));
            payload.fill(1);
            drop(payload);
            // The fake refuses a second answer to one number.
            assert_eq!(mount.kernel.reply(unique), Answered::error(libc::EIO));
        }
    }
    mount.end();
}

#[test]
fn what_was_filled_elsewhere_is_copied() {
    let mut mount = Mount::new();
    let (unique, reply) = mount.read();
    let mut elsewhere = mount.pool.try_alloc(100).unwrap();
    elsewhere[..3].copy_from_slice(b"abc");
    assert!(!reply.filled(elsewhere, 3));
    assert_eq!(mount.kernel.reply(unique), Answered::bytes(b"abc"));
    // More than there is.
    let (unique, mut reply) = mount.read();
    let (head, tail) = reply.lend().unwrap().split_at(10);
    drop(tail);
    assert!(!reply.filled(head, 11));
    assert_eq!(mount.kernel.reply(unique), Answered::error(libc::EIO));
    // A later part of the payload.
    let (unique, mut reply) = mount.read();
    let (head, mut tail) = reply.lend().unwrap().split_at(10);
    drop(head);
    tail[..3].copy_from_slice(b"def");
    assert!(!reply.filled(tail, 3));
    assert_eq!(mount.kernel.reply(unique), Answered::bytes(b"def"));
    mount.end();
}

#[test]
fn an_answer_waits_for_those_who_read_what_is_written() {
    let mut mount = Mount::new();
    let head = Fields::default().u64(7).u64(0).u32(5).u32(0).u64(0).u32(0).u32(0).0;
    for is_error in [false, true] {
        let (unique, reply, data) = mount.ask(WRITE, &head, b"hello");
        if is_error {
            reply.error(Errno::EROFS)
        } else {
            reply.written(5)
        }
        let reader = std::thread::spawn(move || data.to_vec());
        let answer = mount.kernel.reply(unique);
        assert_eq!(answer.error, if is_error { libc::EROFS } else { 0 });
        assert_eq!(reader.join().unwrap(), b"hello", "the answer was not written over it");
    }
    mount.end();
}

#[test]
fn what_is_no_write_brings_no_bytes_and_its_answer_waits_for_nobody() {
    let mut mount = Mount::new();
    let too_long = Fields::default().u64(7).u64(0).u32(6).u32(0).u64(0).u32(0).u32(0).0;
    for (opcode, head) in [(READ, vec![0; 40]), (WRITE, too_long)] {
        let (unique, reply, data) = mount.ask(opcode, &head, b"bytes");
        assert!(data.is_empty(), "the payload of operation {opcode}");
        reply.error(Errno::EINVAL);
        assert_eq!(mount.kernel.reply(unique), Answered::error(libc::EINVAL));
        drop(data);
    }
    mount.end();
}

#[test]
fn a_longer_answer_than_the_kernel_has_room_for_is_an_error() {
    let mut mount = Mount::new();
    let (unique, reply) = mount.read();
    reply.data(&vec![0; (1 << 20) + 1]);
    assert_eq!(mount.kernel.reply(unique), Answered::error(libc::EIO));
    mount.end();
}

#[test]
fn a_request_waits_in_line_while_all_entries_of_its_queue_are_kept() {
    let mut mount = Mount::new();
    let depth = mount.kernel.rings.available(0);
    let mut held = Vec::new();
    for _ in 0..depth {
        mount.kernel.rings.send(0, about(READ, 2), &[0; 40], &[]);
        held.push(mount.requests.recv_timeout(SOON).unwrap());
    }
    let waits = mount.kernel.rings.send(0, about(STATFS, 1), &[], &[]);
    let other = mount.kernel.rings.send(1, about(STATFS, 1), &[], &[]);
    assert_eq!(mount.kernel.reply(other).error, 0);
    assert!(!mount.kernel.rings.is_answered(waits));
    held.pop();
    assert_eq!(mount.kernel.reply(waits).error, 0);
    drop(held);
    mount.end();
}

#[test]
fn commands_that_the_kernel_could_not_take_are_given_again() {
    let rings = FakeRings::default();
    rings.inject([-libc::EAGAIN, 0, -libc::EINTR, -libc::EAGAIN]);
    let mut mount = Mount::over(rings.clone());
    rings.wait_until(|rings| all_available(rings) == ENTRIES);
    for _ in 0..10 {
        rings.inject([-libc::EAGAIN]);
        let unique = mount.kernel.request(about(STATFS, 1), &[], &[]);
        assert_eq!(mount.kernel.reply(unique).error, 0);
    }
    mount.end();
}

#[test]
fn an_entry_less_does_no_harm() {
    let rings = FakeRings::default();
    rings.inject([-libc::ENOMEM, -libc::ENOMEM, -libc::ENOMEM]);
    let mut mount = Mount::over(rings.clone());
    rings.wait_until(|rings| all_available(rings) == ENTRIES - 3);
    let unique = mount.kernel.request(about(STATFS, 1), &[], &[]);
    assert_eq!(mount.kernel.reply(unique).error, 0);
    mount.end();
}

#[test]
fn rings_that_the_kernel_refuses_leave_everything_to_the_device() {
    let rings = FakeRings::default();
    rings.inject([-libc::EINVAL; ENTRIES]);
    let Mount { mut kernel, requests, pool } = Mount::over(rings.clone());
    rings.wait_until(|rings| rings.injected() == 0);
    let unique = kernel.wire.send(about(STATFS, 1), &[], &[]);
    assert_eq!(kernel.wire.answer(unique).error, 0);
    drop(requests);
    kernel.abort().unwrap();
    assert_eq!(pool.used(), 0, "it has taken none, so none is its own");
}

#[test]
fn what_is_answered_after_the_end_harms_nobody() {
    let mut mount = Mount::new();
    let (_, reply) = mount.read();
    let (_, mut lender) = mount.read();
    let payload = lender.lend();
    let Mount { kernel, requests, pool } = mount;
    drop(requests);
    kernel.abort().unwrap();
    reply.ok();
    drop(lender);
    drop(payload);
    assert_eq!(pool.used(), 0);
}

/// A ring that breaks when it is waited for.
struct Breaks;

impl Submit for Breaks {
    fn begin(&mut self, _: &Arc<OwnedFd>, _: &Arc<Entries>) -> io::Result<()> {
        Ok(())
    }

    fn command(&mut self, _: u32, _: Command) -> io::Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn wait(&mut self, _: Option<Duration>) -> io::Result<()> {
        panic!("this one breaks")
    }

    fn completion(&mut self) -> Option<Completion> {
        None
    }
}

#[test]
fn a_thread_that_panics_leaves_the_kernel_its_memory_and_says_that_it_failed() {
    let options = RingOptions { threads: 1, depth: 2, memory: 1 << 30, payload: 1 << 20, pool: None };
    let (sender, _requests) = channel();
    let dispatch = Arc::new(HandOver { requests: Mutex::new(sender) });
    let cpus = Cpus { queues: 1, ours: Vec::new() };
    let prepared = Prepared::with(&options, &cpus, |_| Ok(Breaks), &dispatch).unwrap();
    let entries = Arc::downgrade(&prepared.threads[0].1.entries);
    let (failed, failures) = channel();
    let failed: OnFailure = Box::new(move |error| failed.send(error.to_string()).unwrap());
    let device = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let rings = prepared.go_live(device, failed).unwrap();
    assert_eq!(failures.recv_timeout(SOON).unwrap(), "a ring thread panicked");
    assert!(rings.join().is_err());
    assert!(entries.upgrade().is_some());
}

/// A system call of a ring thread, and how many commands it hands over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Flush(usize),
    Wait(usize),
}

/// A ring to which so many requests come together each time that it is waited for; then the mount ends.
struct Bursts {
    left: VecDeque<usize>,
    entries: Option<Arc<Entries>>,
    queued: usize,
    with_kernel: Vec<u32>,
    completions: VecDeque<Completion>,
    calls: Vec<Call>,
}

impl Submit for Bursts {
    fn begin(&mut self, _: &Arc<OwnedFd>, entries: &Arc<Entries>) -> io::Result<()> {
        self.entries = Some(Arc::clone(entries));
        Ok(())
    }

    fn command(&mut self, entry: u32, _: Command) -> io::Result<()> {
        self.queued += 1;
        self.with_kernel.push(entry);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.calls.push(Call::Flush(std::mem::take(&mut self.queued)));
        Ok(())
    }

    fn wait(&mut self, _: Option<Duration>) -> io::Result<()> {
        self.calls.push(Call::Wait(std::mem::take(&mut self.queued)));
        let Some(burst) = self.left.pop_front() else {
            let ended = self.with_kernel.drain(..).map(|entry| Completion::Entry(entry, -libc::ENOTCONN));
            self.completions.extend(ended);
            return Ok(());
        };
        for entry in self.with_kernel.split_off(self.with_kernel.len() - burst) {
            let header = Header { unique: u64::from(entry) + 1, ..about(STATFS, 1) };
            self.entries.as_ref().unwrap().bring(entry, &encode(&header), &[], &[]);
            self.completions.push_back(Completion::Entry(entry, 0));
        }
        Ok(())
    }

    fn completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }
}

#[test]
fn one_answer_goes_with_the_call_that_waits_and_several_go_before_it_sixteen_at_a_time() {
    const DEPTH: u32 = 24;
    let pool = Pool::new(PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(64)) }).unwrap();
    let entries = Entries::new(&[(0, DEPTH)], 1 << 20, &pool, Ready::new(DEPTH).unwrap()).unwrap();
    let mut thread = RingThread {
        submit: Bursts {
            left: [1, 2, 20].into(),
            entries: None,
            queued: 0,
            with_kernel: Vec::new(),
            completions: VecDeque::new(),
            calls: Vec::new(),
        },
        entries: Arc::new(entries),
        machine: Machine::new([DEPTH]),
        counters: Arc::default(),
        is_given_up: Arc::default(),
    };
    let device = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    thread.register(&Arc::new(device)).unwrap();
    let (sender, _requests) = channel();
    thread.serve(&HandOver { requests: Mutex::new(sender) }).unwrap();
    let registered = [Call::Flush(DEPTH as usize), Call::Wait(0)];
    let one_and_two = [Call::Wait(1), Call::Flush(2), Call::Wait(0)];
    let twenty = [Call::Flush(16), Call::Flush(4), Call::Wait(0)];
    assert_eq!(thread.submit.calls, [registered.as_slice(), &one_and_two, &twenty].concat());
}

#[test]
fn queues_have_fewer_entries_where_memory_is_short() {
    let options =
        |memory: u64| RingOptions { threads: 8, depth: 64, memory: memory << 20, payload: 1 << 20, pool: None };
    let cpus = Cpus { queues: 4, ours: vec![0, 1] };
    let depth = |memory| plan(&options(memory), &cpus).map(|(plans, depth)| (plans.len(), depth));
    assert_eq!(depth(160).unwrap(), (2, 64));
    assert_eq!(depth(159).unwrap(), (2, 32));
    assert_eq!(depth(64).unwrap(), (2, 16));
    // Fewer for the processors that are not ours, and then for all.
    assert_eq!(depth(63).unwrap(), (2, 16));
    assert_eq!(depth(16).unwrap(), (2, 4));
    assert!(matches!(depth(15), Err(NoUring::Memory(_))));
}

#[test]
fn rings_that_may_not_be_made_are_forbidden() {
    let options = RingOptions { threads: 2, depth: 1, memory: 1 << 30, payload: 1 << 20, pool: None };
    let cpus = Cpus { queues: 2, ours: vec![0, 1] };
    let (sender, _requests) = channel();
    let dispatch = Arc::new(HandOver { requests: Mutex::new(sender) });
    let with = |number: i32| {
        let make = move |_| Err::<crate::fakes::ring::FakeRing, _>(io::Error::from_raw_os_error(number));
        Prepared::with(&options, &cpus, make, &dispatch).err().unwrap()
    };
    assert!(matches!(with(libc::EPERM), NoUring::Forbidden(_)));
    assert!(matches!(with(libc::ENOSYS), NoUring::Forbidden(_)));
    assert!(matches!(with(libc::ENOMEM), NoUring::Memory(_)));
}
