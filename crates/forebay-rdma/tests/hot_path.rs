//! What a hit costs the server's I/O thread: no allocation, and next to no system call, whether clients prove who they
//! are or not.
//!
//! The server has an I/O thread of its own in this process, over shared memory, and the client is a thread that does nothing but
//! ask, with enough reads under way that the server's I/O thread hardly ever sleeps. That thread identifies itself by calling the
//! service: from then on an allocator counts what it allocates, and `strace`, where there is one, what it asks of the kernel.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::admission::{HOUR, somebody, worker_of};
use common::*;
use forebay_identity::testing::Cluster;
use forebay_identity::{LiveIdentity, Pass, Passes};
use forebay_memory::{Pool, Span};
use forebay_rdma::{Library, RdmaServer, ServerOptions, ServerSecurity, wire};
use forebay_testkit::Telling;
use forebay_transport::wire::{RequestHeader, set_tag};
use forebay_transport::{Op, Provenance, Request, Response, ResponsePayload, Service};
use forebay_types::{BlockKey, Failure, FailureKind, FileId, Role};
use forebay_ucx::{Message, Payload};
use tokio::sync::Mutex;

/// Bytes of a read: below the crossover to rendezvous, and also the smallest that is commonly measured.
const READ: u32 = 4096;
/// Reads under way at once.
const DEPTH: usize = 128;
/// Reads that are counted.
const HITS: u64 = 10_000;
/// Reads before that, until every list and table has its size.
const WARM_UP: u64 = 5_000;
/// What a client that was admitted connects with.
const CLIENT_ID: NonZeroU64 = NonZeroU64::new(0x1d).unwrap();

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static IO_THREAD: AtomicI32 = AtomicI32::new(0);
/// The I/O threads of two tests would be one too many for the counters.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

thread_local! {
    static IS_LANE: Cell<bool> = const { Cell::new(false) };
}

#[global_allocator]
static ALLOCATOR: Telling = Telling(|| {
    if COUNTING.load(Ordering::Relaxed) && IS_LANE.get() {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
});

/// A service that has everything in memory: the same bytes for every block, with the checksums of their sectors beside.
struct Hits {
    bytes: Span,
    checksums: Bytes,
}

impl Hits {
    fn new(pool: &Pool, checksums: usize) -> Arc<Self> {
        let mut bytes = pool.try_alloc(1 << 20).unwrap();
        bytes.fill(7);
        Arc::new(Self { bytes: bytes.freeze(), checksums: Bytes::from(vec![1; checksums]) })
    }
}

#[async_trait::async_trait]
impl Service for Hits {
    fn try_handle(&self, request: &Request) -> Option<Response> {
        if !IS_LANE.replace(true) {
            IO_THREAD.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
        }
        let payload = ResponsePayload::Spans([self.bytes.slice(0..request.length as usize)].into_iter().collect());
        Some(Response { provenance: Provenance::default(), body: self.checksums.clone(), payload })
    }

    async fn handle(&self, _request: Request, _takes_files: bool) -> Result<Response, Failure> {
        Err(Failure::new(FailureKind::Internal, "it was to be a hit"))
    }
}

fn read(length: u32) -> Request {
    Request::on_block(Op::Read, BlockKey { file: FileId([1; 16]), index: 0 }, 0, length, Duration::from_secs(30))
}

/// A server that hits, and how its one client is let in.
struct Hot {
    server: RdmaServer,
    /// `None`: the client need not prove who it is.
    pass: Option<Pass>,
}

impl Hot {
    /// Without checksums or with `checksums` bytes of them, for somebody who `is_admitted` or for anybody.
    async fn serve(library: &'static Library, checksums: usize, is_admitted: bool) -> Self {
        let passes = Arc::<forebay_locks::Mutex<Passes>>::default();
        let demands = || {
            let live = LiveIdentity::new(worker_of(&Cluster::new(), None));
            ServerSecurity { live, passes: Arc::clone(&passes), accepts_plain: false }
        };
        let memory = pool(16);
        let service = Hits::new(&memory, checksums);
        let io_thread = io_thread_of(library, "server", memory);
        let security = is_admitted.then(demands);
        let options = ServerOptions { security, ..ServerOptions::new(address(0), CLUSTER, BLOCK_SIZE) };
        let server = RdmaServer::bind(io_thread, options, service).await.unwrap();
        let admit = || {
            let (pass, reader) = (Pass::random().unwrap(), somebody(Role::Reader, HOUR));
            passes.lock().issue(CLIENT_ID.get(), pass, reader, Instant::now()).unwrap();
            pass
        };
        Self { server, pass: is_admitted.then(admit) }
    }
}

/// Has a server answer reads as fast as it can, from a thread that does nothing but ask: after [`WARM_UP`] replies,
/// and when `ready` says so, [`HITS`] are counted until `at_end`, with [`DEPTH`] reads under way all the time.
fn flood(
    library: &'static Library,
    (server, pass): (SocketAddr, Option<Pass>),
    ready: impl Fn() -> bool,
    at_end: impl FnOnce(),
) {
    let worker = raw::worker(library, pass.map(|_| CLIENT_ID));
    let shown = pass.map_or(0, |pass| pass.client);
    let replies = Rc::new(Cell::new(0));
    let welcome = Rc::new(Cell::new(false));
    worker
        .on_message(wire::WELCOME, {
            let welcome = Rc::clone(&welcome);
            move |_| welcome.set(true)
        })
        .unwrap();
    let mut request = RequestHeader::of(1, &read(READ)).encode();
    set_tag(&mut request, shown);
    let counter = Rc::clone(&replies);
    let again = move |message: Message<'_>| {
        assert_eq!(message.data.len(), READ as usize);
        counter.set(counter.get() + 1);
        raw::send(&message.from.unwrap(), wire::REQUEST, &request, Payload::None);
    };
    worker.on_message(wire::REPLY, again).unwrap();
    let endpoint = match pass {
        Some(_) => worker.connect_with_id(server, None),
        None => worker.connect(server, None),
    };
    let endpoint = endpoint.unwrap();
    let start = Instant::now();
    let until = |reached: &dyn Fn() -> bool| {
        while !reached() {
            worker.progress();
            assert!(start.elapsed() < Duration::from_secs(60), "{} replies came", replies.get());
        }
    };
    raw::send(&endpoint, wire::HELLO, &wire::hello_with(&ours(), library.version(), shown), Payload::None);
    until(&|| welcome.get());
    for _ in 0..DEPTH {
        raw::send(&endpoint, wire::REQUEST, &request, Payload::None);
    }
    until(&|| replies.get() >= WARM_UP);
    until(&ready);
    let counted = replies.get() + HITS;
    until(&|| replies.get() >= counted);
    at_end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_hit_allocates_nothing() {
    let _alone = ONE_AT_A_TIME.lock().await;
    // Without checksums, and with those of a whole block of 4 MiB; for anybody, and for somebody who was admitted.
    for (checksums, is_admitted) in [(0, false), (512, false), (0, true)] {
        let Some(library) = library_over_shared_memory() else { return };
        let Hot { server, pass } = Hot::serve(library, checksums, is_admitted).await;
        let address = server.local_addr();
        let begin = || {
            ALLOCATIONS.store(0, Ordering::Relaxed);
            COUNTING.store(true, Ordering::Relaxed);
            true
        };
        let flood = tokio::task::spawn_blocking(move || {
            flood(library, (address, pass), begin, || COUNTING.store(false, Ordering::Relaxed));
        });
        flood.await.unwrap();
        let allocations = ALLOCATIONS.load(Ordering::Relaxed);
        println!("{allocations} allocations for {HITS} hits with {checksums} bytes of checksums, {pass:?}");
        // An operation's state is made when there are more of them than ever before.
        assert!(
            allocations <= DEPTH as u64,
            "{allocations} allocations for {HITS} hits with {checksums} bytes of checksums"
        );
        server.close().await;
    }
}

/// `strace` on one thread.
struct Strace {
    child: Child,
    thread: i32,
    log: tempfile::NamedTempFile,
    looked: Instant,
    attached: bool,
}

impl Strace {
    /// Begins to attach, or says why not.
    fn start(thread: i32) -> Result<Self, String> {
        let log = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
        let child = Command::new("strace")
            .args(["-q", "-o"])
            .arg(log.path())
            .args(["-p", &thread.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("strace: {error}"))?;
        Ok(Self { child, thread, log, looked: Instant::now(), attached: false })
    }

    /// Whether it counts, or has ended because it cannot. Looks every 5 ms, and leaves the caller time for its work.
    fn is_attached(&mut self) -> bool {
        if !self.attached && self.looked.elapsed() > Duration::from_millis(5) {
            self.looked = Instant::now();
            let status = std::fs::read_to_string(format!("/proc/self/task/{}/status", self.thread)).unwrap_or_default();
            let traced = status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"));
            self.attached = traced || !matches!(self.child.try_wait(), Ok(None));
        }
        self.attached
    }

    /// Detaches, and says what was called how often.
    fn detach(mut self) -> Result<BTreeMap<String, u64>, String> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Err(format!("strace cannot attach to a thread of this process: {status}"));
        }
        let id = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(id, rustix::process::Signal::INT);
        let _ = self.child.wait();
        let text = std::fs::read_to_string(self.log.path()).unwrap_or_default();
        let mut calls = BTreeMap::<_, u64>::new();
        for line in text.lines() {
            *calls.entry(line.split('(').next().unwrap_or_default().to_owned()).or_default() += 1;
        }
        Ok(calls)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_hit_makes_no_system_call() {
    assert_no_system_call(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_hit_of_somebody_who_was_admitted_makes_no_system_call() {
    assert_no_system_call(true).await;
}

async fn assert_no_system_call(is_admitted: bool) {
    let _alone = ONE_AT_A_TIME.lock().await;
    let Some(library) = library_over_shared_memory() else { return };
    let Hot { server, pass } = Hot::serve(library, 0, is_admitted).await;
    let address = server.local_addr();
    let calls = match tokio::task::spawn_blocking(move || system_calls(library, (address, pass))).await.unwrap() {
        Ok(calls) => calls,
        Err(reason) => return skipped(reason),
    };
    // On a machine that does a lot else the client is stopped now and then, and the I/O thread has reason to sleep: that is no
    // hit's.
    let of_hits = calls.iter().filter(|(name, _)| !OF_SLEEP.contains(&name.as_str()));
    let of_hits: u64 = of_hits.map(|(_, count)| count).sum();
    assert!(of_hits <= HITS / 100, "{of_hits} system calls for {HITS} hits: {calls:?}");
    if forebay_testkit::is_long_run() {
        let all: u64 = calls.values().sum();
        assert!(all <= HITS / 20, "on a machine that does nothing else: {calls:?}");
    }
    server.close().await;
}

/// What an I/O thread calls before it sleeps, while, and when it is woken.
const OF_SLEEP: [&str; 7] = ["epoll_wait", "epoll_pwait", "futex", "poll", "read", "recvfrom", "write"];

/// What the server's I/O thread asks of the kernel during [`HITS`] hits and how often, or why that cannot be counted.
fn system_calls(
    library: &'static Library,
    server: (SocketAddr, Option<Pass>),
) -> Result<BTreeMap<String, u64>, String> {
    let strace = RefCell::new(None);
    let attached = || {
        let mut strace = strace.borrow_mut();
        let strace = strace.get_or_insert_with(|| Strace::start(IO_THREAD.load(Ordering::Relaxed)));
        strace.as_mut().map_or(true, Strace::is_attached)
    };
    let mut calls = Err("it was not begun".to_owned());
    flood(library, server, attached, || {
        if let Some(strace) = strace.take() {
            calls = strace.and_then(Strace::detach);
        }
    });
    if let Ok(calls) = &calls {
        println!("system calls for {HITS} hits: {calls:?}");
    }
    calls
}
