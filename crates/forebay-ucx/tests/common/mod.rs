//! What the tests share: a libucp if there is one, contexts over each fabric that works without hardware, a peer that
//! echoes, and children that can be killed.

// Each test program uses a part of this.
#![allow(dead_code)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_memory::{FRAME_SIZE, Pool, PoolOptions, SpanMut};
use forebay_types::ByteSize;
use forebay_ucx::{
    Context, Data, Endpoint, Library, Listener, Message, Options, Payload, Protocol, Registration, Resource, SpansMut,
    Worker,
};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, LocalSet};

pub(crate) const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// No wait in these tests takes longer, on a loaded machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(300);
/// The transports that need no NIC, by what they are called in a message. The connection manager is tcp's in both.
pub(crate) const FABRICS: [(&str, &[&str]); 2] = [("tcp", &["tcp"]), ("shared memory", &["sysv", "cma", "tcp"])];

pub(crate) const REQUEST: u16 = 1;
pub(crate) const REPLY: u16 = 2;
const GREETING: u16 = 3;
const GREETING_BACK: u16 = 4;

/// The library; `None`, after saying so, where there is none.
pub(crate) fn library() -> Option<&'static Library> {
    match Library::load(None) {
        Ok(library) if !forebay_ucx::sockets_are_sound(library.version()) => {
            let version = library.version();
            let _ =
                writeln!(std::io::stderr(), "skipped: UCX {version} can abort a process with connections over sockets");
            None
        }
        Ok(library) => Some(library),
        Err(forebay_ucx::Error::Load(forebay_ucx::LoadError::NotFound { .. })) => {
            // Past the test harness, which shows what it captured of failed tests only.
            let _ = writeln!(std::io::stderr(), "skipped: libucp is not installed (apt-get install libucx0)");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn context(library: &'static Library, transports: &[&str]) -> Context {
    let options = Options::tuned()
        .one_sided()
        .transports(transports.iter().copied())
        .devices(["lo"])
        // A test is both peers in one thread. While a loaded machine does not run it, its windows are closed, and that is no
        // peer that is gone.
        .prefer("TCP_USER_TIMEOUT", "10m");
    Context::new(library, &options).unwrap()
}

/// Runs `test` over each fabric, in a current-thread runtime, with a deadline.
pub(crate) fn over_each_fabric<F: Future<Output = ()>>(test: impl Fn(Context) -> F) {
    let Some(library) = library() else { return };
    for (name, transports) in FABRICS {
        println!("over {name}, UCX {}", library.version());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let test = test(context(library, transports));
        LocalSet::new().block_on(&runtime, async {
            tokio::time::timeout(DEADLINE, test).await.unwrap_or_else(|_| panic!("no end over {name}"));
        });
    }
}

/// Waits until `condition` holds.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE / 2, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub(crate) fn pool(frames: u64) -> Pool {
    Pool::new(PoolOptions::fixed(ByteSize::bytes(frames * FRAME_SIZE as u64))).unwrap()
}

/// A worker, and the task that drives it.
pub(crate) struct Driven {
    pub(crate) worker: Worker,
    driver: JoinHandle<()>,
}

impl Driven {
    pub(crate) fn new(context: &Context) -> Self {
        let worker = Worker::new(context).unwrap();
        let driver = tokio::task::spawn_local({
            let worker = worker.clone();
            async move {
                let ended = worker.drive().await;
                panic!("the worker is not driven any more: {ended:?}");
            }
        });
        Self { worker, driver }
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Bytes that tell their position, and differ by `seed`.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    for (word, bytes) in (0..).zip(bytes.chunks_mut(8)) {
        let word = (word ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
    }
    bytes
}

/// Buffers of the pool for `length` bytes.
pub(crate) fn buffers(pool: &Pool, length: usize) -> SpansMut {
    let mut left = length;
    let mut spans = SpansMut::new();
    while left > 0 {
        let part = left.min(FRAME_SIZE);
        spans.push(pool.try_alloc(part).expect("the pool is large enough for the test"));
        left -= part;
    }
    spans
}

pub(crate) fn filled(mut spans: SpansMut, bytes: &[u8]) -> Payload {
    let mut rest = bytes;
    for span in &mut spans {
        let (now, later) = rest.split_at(span.len());
        span.copy_from_slice(now);
        rest = later;
    }
    Payload::Spans(spans.into_iter().map(SpanMut::freeze).collect())
}

/// A peer that sends back what it gets, from memory of `pool`.
pub(crate) fn echo(worker: &Worker, pool: Pool, registration: Option<Registration>) {
    let handler = move |message: Message<'_>| {
        let from = message.from.expect("messages name their endpoint");
        let header = message.header.to_vec();
        let registration = registration.clone();
        match message.data {
            Data::Eager(bytes) => {
                let payload = filled(buffers(&pool, bytes.len()), bytes);
                from.am_send(REPLY, &header, payload, registration.as_ref(), Protocol::Auto).detach();
            }
            Data::Rendezvous(rendezvous) => {
                let into = buffers(&pool, rendezvous.len());
                let receiving = rendezvous.receive(into, registration.as_ref());
                tokio::task::spawn_local(async move {
                    let (spans, landed) = receiving.await;
                    if landed.is_ok() {
                        let payload = Payload::Spans(spans.into_iter().map(SpanMut::freeze).collect());
                        from.am_send(REPLY, &header, payload, registration.as_ref(), Protocol::Auto).detach();
                    }
                });
            }
        }
    };
    worker.on_message(REQUEST, handler).unwrap();
}

/// A listener on a free port that accepts every client; the endpoints live as long as the task.
pub(crate) fn accept_everyone(listener: Listener) -> JoinHandle<()> {
    tokio::task::spawn_local(async move {
        let mut endpoints = Vec::new();
        loop {
            let request = listener.accept().await;
            assert!(request.peer().is_some_and(|peer| peer.ip().is_loopback()));
            endpoints.extend(request.accept());
        }
    })
}

/// Has `worker` answer greetings.
pub(crate) fn be_polite(worker: &Worker) {
    let handler = |message: Message<'_>| {
        message.from.unwrap().am_send(GREETING_BACK, b"", Payload::None, None, Protocol::Auto).detach();
    };
    worker.on_message(GREETING, handler).unwrap();
}

/// Waits until `endpoint`, the first of its worker, is connected to a polite peer.
pub(crate) async fn greet(endpoint: &Endpoint) {
    let (hear, heard) = oneshot::channel();
    let hear = std::cell::Cell::new(Some(hear));
    let handler = move |_: Message<'_>| hear.take().unwrap().send(()).unwrap();
    endpoint.worker().on_message(GREETING_BACK, handler).unwrap();
    endpoint.am_send(GREETING, b"", Payload::None, None, Protocol::Auto).await.unwrap();
    heard.await.unwrap();
}

type Waiting = Rc<RefCell<HashMap<u64, oneshot::Sender<Vec<u8>>>>>;

/// The asking side of [`echo`].
pub(crate) struct Asker {
    pub(crate) endpoint: Endpoint,
    waiting: Waiting,
    pool: Pool,
    registration: Option<Registration>,
    next: std::cell::Cell<u64>,
}

impl Asker {
    pub(crate) fn new(worker: &Worker, address: SocketAddr, pool: &Pool, registration: Option<&Registration>) -> Self {
        let waiting = Waiting::default();
        let handler = {
            let (waiting, pool, registration) = (Rc::clone(&waiting), pool.clone(), registration.cloned());
            move |message: Message<'_>| {
                let id = u64::from_le_bytes(message.header.try_into().unwrap());
                let waiter = waiting.borrow_mut().remove(&id).expect("each reply comes once");
                match message.data {
                    Data::Eager(bytes) => _ = waiter.send(bytes.to_vec()),
                    Data::Rendezvous(rendezvous) => {
                        let into = buffers(&pool, rendezvous.len());
                        let receiving = rendezvous.receive(into, registration.as_ref());
                        tokio::task::spawn_local(async move {
                            let (spans, landed) = receiving.await;
                            let bytes = spans.iter().map(|span| &span[..]).collect::<Vec<_>>().concat();
                            assert_eq!(landed, Ok(bytes.len()));
                            let _ = waiter.send(bytes);
                        });
                    }
                }
            }
        };
        worker.on_message(REPLY, handler).unwrap();
        let endpoint = worker.connect(address, None).unwrap();
        let registration = registration.cloned();
        Self { endpoint, waiting, pool: pool.clone(), registration, next: Default::default() }
    }

    /// Sends `bytes`, from the pool or from elsewhere, and gives back what the peer echoes.
    pub(crate) async fn ask(&self, bytes: &[u8], from_pool: bool, protocol: Protocol) -> Vec<u8> {
        let id = self.next.replace(self.next.get() + 1);
        let payload = match (bytes, from_pool) {
            ([], _) => Payload::None,
            (_, true) => filled(buffers(&self.pool, bytes.len()), bytes),
            (_, false) => Payload::Bytes(Bytes::copy_from_slice(bytes)),
        };
        let (waiter, answer) = oneshot::channel();
        self.waiting.borrow_mut().insert(id, waiter);
        let registration = self.registration.as_ref();
        self.endpoint.am_send(REQUEST, &id.to_le_bytes(), payload, registration, protocol).await.unwrap();
        answer.await.unwrap()
    }
}

/// Another process of this test program, killed when dropped.
pub(crate) struct Peer {
    child: Child,
    pub(crate) address: SocketAddr,
}

const TRANSPORTS: &str = "FOREBAY_TEST_TRANSPORTS";

impl Peer {
    /// Runs the ignored test `role`, which calls [`Peer::play`], over `transports`.
    pub(crate) fn start(role: &str, transports: &[&str]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([role, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(TRANSPORTS, transports.join(","))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let address = output.lines().find_map(|line| line.unwrap().split_once("listening on ")?.1.parse().ok());
        Self { child, address: address.expect("the child says where it listens") }
    }

    /// The other side of [`Peer::start`]: listens, says where, and serves until it is killed.
    pub(crate) fn play(serve: impl Fn(&Worker)) {
        let transports = std::env::var(TRANSPORTS).expect("another test starts this");
        let context = context(library().unwrap(), &transports.split(',').collect::<Vec<_>>());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let driven = Driven::new(&context);
            serve(&driven.worker);
            be_polite(&driven.worker);
            let listener = driven.worker.listen(LOOPBACK).unwrap();
            println!("listening on {}", listener.address());
            // Not for ever, should the parent be killed.
            let _ = tokio::time::timeout(2 * DEADLINE, accept_everyone(listener)).await;
        });
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops it without a trace of it being seen by its peers.
    pub(crate) fn hang(&self) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::STOP).unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn has(lanes: &[Resource], transport: &str) -> bool {
    lanes.iter().any(|lane| lane.transport == transport)
}
