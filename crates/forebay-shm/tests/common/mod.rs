//! What the tests of this crate share: a worker whose memory is shared, a client as the real one asks, and peers that speak the
//! protocol by hand.

// Each test binary uses a part of it.
#![allow(dead_code)]

pub(crate) mod identities;

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_locks::Mutex;
use forebay_memory::{Pool, PoolOptions, Sharing, Span, SpanMut, Spans};
use forebay_private::PrivateDirectory;
use forebay_shm::{ClientOptions, NearTransport, ServerOptions, WindowServer, default_directory, socket_path};
use forebay_tcp::{TcpServer, TcpTransport};
use forebay_transport::conformance::{pattern, until};
use forebay_transport::wire::{HEADER_LEN, HELLO_LEN, Hello, ReplyHeader, RequestHeader};
use forebay_transport::{
    CallError, Caller, LinkError, Op, PeerMemory as _, Provenance, Reply, Request, Response, ResponsePayload, Service,
    Transport, TransportKind,
};
use forebay_types::{BlockKey, ByteSize, Failure, FailureKind, FileId};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};

pub(crate) const CLUSTER: &str = "test";
pub(crate) const BLOCK_SIZE: u32 = forebay_types::MAX_BLOCK_SIZE;
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// Bytes of a worker's hello.
pub(crate) const GREETING_LEN: usize = HELLO_LEN + 24;
pub(crate) const FRAME: usize = forebay_memory::FRAME_SIZE;

/// A pool of `frames` × 4 MiB that other processes can be shown.
pub(crate) fn shared_pool(frames: u64) -> Pool {
    let size = ByteSize::mib(4 * frames);
    Pool::new(PoolOptions { huge_pages: false, sharing: Sharing::Always, ..PoolOptions::fixed(size) }).unwrap()
}

/// The socket of a worker at `address`.
pub(crate) fn socket_of(address: SocketAddr) -> PathBuf {
    socket_path(&default_directory(), address)
}

/// A socket that no other test has.
pub(crate) fn path() -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    default_directory().join(format!("test-{}-{number}.sock", std::process::id()))
}

pub(crate) fn server_options(path: impl Into<PathBuf>) -> ServerOptions {
    ServerOptions { close_timeout: Duration::from_millis(300), ..ServerOptions::new(path, CLUSTER, BLOCK_SIZE) }
}

pub(crate) fn client_options() -> ClientOptions {
    ClientOptions { connect_timeout: Duration::from_secs(10), ..ClientOptions::new(CLUSTER, BLOCK_SIZE) }
}

pub(crate) fn tcp_server(address: SocketAddr, service: Arc<dyn Service>) -> TcpServer {
    TcpServer::bind(forebay_tcp::ServerOptions::new(address, CLUSTER, BLOCK_SIZE), service).unwrap()
}

pub(crate) fn loopback() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// A client of the worker at `address`.
pub(crate) fn near(address: SocketAddr) -> Arc<NearTransport> {
    near_with(address, client_options())
}

/// As above, with other options.
pub(crate) fn near_with(address: SocketAddr, options: ClientOptions) -> Arc<NearTransport> {
    let over_tcp = forebay_tcp::ClientOptions::new(CLUSTER, BLOCK_SIZE);
    let other = Arc::new(TcpTransport::new(address.to_string(), over_tcp));
    Arc::new(NearTransport::new(address.to_string(), other, options))
}

/// A client that sees the memory.
pub(crate) async fn open(address: SocketAddr) -> Arc<NearTransport> {
    let near = near(address);
    until_open(&near).await;
    near
}

/// Waits until reads go by the window.
pub(crate) async fn until_open(near: &NearTransport) {
    let start = std::time::Instant::now();
    while !near.is_open() {
        assert!(start.elapsed() < LONG, "waited in vain: {:?}", near.report());
        let _ = near.call(Request::on_path(Op::Ping, Default::default(), LONG), None).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A worker: blocks of one file, where the test put them.
pub(crate) struct BlockService {
    blocks: Mutex<HashMap<u64, Spans>>,
    /// Which worker it says that it is; zero to say nothing.
    pub(crate) instance: AtomicU64,
    /// Those who may see some of it only: their identities have this in them.
    pub(crate) confines: Mutex<Option<&'static str>>,
}

impl BlockService {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { blocks: Mutex::default(), instance: AtomicU64::new(0), confines: Mutex::default() })
    }

    /// Puts `length` bytes of the pattern of block `index` there, in memory of `pool`.
    pub(crate) fn put(&self, pool: &Pool, index: u64, length: usize) {
        let mut memory = pool.try_alloc(length).unwrap();
        for (at, byte) in memory.iter_mut().enumerate() {
            *byte = pattern(index, at as u32);
        }
        self.put_spans(index, Spans::from_iter([memory.freeze()]));
    }

    pub(crate) fn put_spans(&self, index: u64, spans: Spans) {
        self.blocks.lock().insert(index, spans);
    }

    /// Drops a block: only those that look at it keep it.
    pub(crate) fn remove(&self, index: u64) {
        self.blocks.lock().remove(&index);
    }
}

#[async_trait::async_trait]
impl Service for BlockService {
    fn shows_all(&self, caller: &Caller) -> bool {
        !self.confines.lock().is_some_and(|confined| caller.to_string().contains(confined))
    }

    fn try_handle(&self, request: &Request) -> Option<Response> {
        let blocks = self.blocks.lock();
        let spans = blocks.get(&request.block.index)?;
        let (mut skip, mut left) = (request.offset as usize, request.length as usize);
        let mut found = Spans::new();
        for span in spans {
            let start = skip.min(span.len());
            let end = (start + left).min(span.len());
            skip -= start;
            left -= end - start;
            found.push(span.slice(start..end));
        }
        Some(Response::of_spans(found, Provenance::default()))
    }

    async fn handle(&self, request: Request, _takes_files: bool) -> Result<Response, Failure> {
        match request.op {
            Op::Ping => Ok(Response::of_body(match self.instance.load(Ordering::Relaxed) {
                0 => Default::default(),
                instance => instance.to_le_bytes().to_vec().into(),
            })),
            _ => Err(Failure::new(FailureKind::NotFound, "no such block")),
        }
    }
}

/// A read of block `index`.
pub(crate) fn read(index: u64, offset: u32, length: u32, deadline: Duration) -> Request {
    Request::on_block(Op::Read, BlockKey { file: FileId([1; 16]), index }, offset, length, deadline)
}

/// The views that a read brings by the window.
pub(crate) async fn view(near: &NearTransport, index: u64, offset: u32, length: u32) -> Vec<Span> {
    match near.call(read(index, offset, length, LONG), None).await.unwrap().payload {
        forebay_transport::Payload::Shared(spans) => spans.into_vec(),
        payload => panic!("{payload:?}"),
    }
}

/// Whether `view` is as block `index` was from `offset` on.
pub(crate) fn is_right(view: &[Span], index: u64, offset: u32) -> bool {
    view.iter().flat_map(|span| span.iter()).enumerate().all(|(at, byte)| *byte == pattern(index, offset + at as u32))
}

/// Takes all the memory that is free and writes to it.
pub(crate) fn fill(pool: &Pool) -> Vec<SpanMut> {
    let mut taken = Vec::new();
    for size in [FRAME, 32 << 10] {
        while let Some(mut memory) = pool.try_alloc(size) {
            memory.fill(0xee);
            taken.push(memory);
        }
    }
    taken
}

/// A worker, its pool and its servers.
pub(crate) struct Worker {
    pub(crate) pool: Pool,
    pub(crate) tcp: TcpServer,
    pub(crate) window: WindowServer,
}

impl Worker {
    /// Serves `service`, whose bytes lie in `pool`.
    pub(crate) fn start(pool: &Pool, service: Arc<dyn Service>) -> Self {
        Self::start_with(pool, service, |options| options)
    }

    /// As above, with other options.
    pub(crate) fn start_with(
        pool: &Pool,
        service: Arc<dyn Service>,
        change: impl FnOnce(ServerOptions) -> ServerOptions,
    ) -> Self {
        let tcp = tcp_server(loopback(), Arc::clone(&service));
        let options = change(server_options(socket_of(tcp.local_addr())));
        let window = WindowServer::bind(options, pool, service).unwrap();
        Self { pool: pool.clone(), tcp, window }
    }

    pub(crate) async fn until_free(&self) {
        until("all memory is free", || self.pool.used() == 0 && self.window.pinned() == 0).await;
    }
}

/// A service whose bytes are copied into memory that is shared. It is not asked pings, which clients send to find the worker.
pub(crate) struct Copied {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) pool: Pool,
}

impl Copied {
    fn copied(&self, mut memory: SpanMut, response: &Response) -> Response {
        let ResponsePayload::Spans(spans) = &response.payload else { unreachable!() };
        let mut pieces = Spans::new();
        for span in spans {
            let (mut piece, rest) = memory.split_at(span.len());
            piece.copy_from_slice(span);
            pieces.push(piece.freeze());
            memory = rest;
        }
        Response { body: response.body.clone(), ..Response::of_spans(pieces, response.provenance) }
    }
}

#[async_trait::async_trait]
impl Service for Copied {
    fn try_handle(&self, request: &Request) -> Option<Response> {
        if request.op == Op::Ping {
            return Some(Response::of_body(Default::default()));
        }
        let memory = self.pool.try_alloc(request.length as usize + 1)?;
        let response = self.service.try_handle(request)?;
        Some(self.copied(memory, &response))
    }

    async fn handle(&self, request: Request, takes_files: bool) -> Result<Response, Failure> {
        let length = request.length as usize;
        let response = self.service.handle(request, takes_files).await?;
        if response.payload.len() > length || response.payload.is_empty() {
            return Ok(response);
        }
        let memory = self.pool.alloc(length, LONG).await.unwrap();
        Ok(self.copied(memory, &response))
    }
}

/// Asks as the client does: without a buffer while memory is shared, and again with one when that was not so.
pub(crate) struct AsClient {
    pub(crate) near: Arc<NearTransport>,
    /// Reads that were answered.
    pub(crate) answered: AtomicUsize,
    /// Calls that hold a buffer.
    under_way: AtomicUsize,
}

impl AsClient {
    pub(crate) fn new(near: Arc<NearTransport>) -> Arc<Self> {
        Arc::new(Self { near, answered: AtomicUsize::new(0), under_way: AtomicUsize::new(0) })
    }
}

/// Counts a call for as long as it lasts.
struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait::async_trait]
impl Transport for AsClient {
    async fn call(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let _ends = UnderWay(&self.under_way);
        // Dropped before the call counts as ended.
        let mut buffer = into;
        let mut result = Err(LinkError::OtherPath { peer: String::new(), reason: String::new() }.into());
        if request.op == Op::Read && self.near.is_open() {
            result = self.near.call(request.clone(), None).await;
        }
        let is_read = request.op == Op::Read;
        if matches!(result, Err(CallError::Link(LinkError::OtherPath { .. }))) {
            result = self.near.call(request, buffer.take()).await;
        }
        self.answered.fetch_add(usize::from(is_read && result.is_ok()), Ordering::Relaxed);
        result
    }

    fn kind(&self) -> TransportKind {
        self.near.kind()
    }

    fn peer(&self) -> &str {
        self.near.peer()
    }

    async fn close(&self) {
        self.near.close().await;
        // The buffers that the window had no use for are with the calls.
        until("the calls have ended", || self.under_way.load(Ordering::SeqCst) == 0).await;
    }
}

/// A socket that a test speaks by hand. Waits, but not without end.
pub(crate) struct Raw {
    pub(crate) fd: OwnedFd,
    /// Where it listens, if it does; goes with it.
    path: Option<PathBuf>,
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    for timeout in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(&fd, timeout, Some(Duration::from_secs(30))).unwrap();
    }
    fd
}

impl Raw {
    /// A client that has connected and says nothing.
    pub(crate) fn connect(path: &Path) -> Self {
        let fd = socket();
        rustix::net::connect(&fd, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Self { fd, path: None }
    }

    /// A client that has exchanged hellos.
    pub(crate) fn greet(path: &Path) -> Self {
        let raw = Self::connect(path);
        raw.send(&Hello::ours(CLUSTER, BLOCK_SIZE).encode());
        assert_eq!(raw.receive().unwrap().len(), GREETING_LEN);
        raw
    }

    /// A server.
    pub(crate) fn listen(path: &Path) -> Self {
        let fd = socket();
        PrivateDirectory::make(path.parent().unwrap(), |_| false).unwrap();
        // A test that was killed may have left its own.
        let _ = std::fs::remove_file(path);
        rustix::net::bind(&fd, &SocketAddrUnix::new(path).unwrap()).unwrap();
        rustix::net::listen(&fd, 8).unwrap();
        Self { fd, path: Some(path.to_owned()) }
    }

    pub(crate) fn accept(&self) -> Self {
        let fd = rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC).unwrap();
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(Duration::from_secs(30))).unwrap();
        Self { fd, path: None }
    }

    /// What it sends may come too late.
    pub(crate) fn send(&self, packet: &[u8]) {
        let _ = rustix::net::send(&self.fd, packet, SendFlags::NOSIGNAL);
    }

    pub(crate) fn send_with(&self, packet: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let _ = rustix::net::sendmsg(&self.fd, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL);
    }

    pub(crate) fn ask(&self, id: u64, request: &Request) {
        self.send(&[&RequestHeader::of(id, request).encode()[..], &request.body].concat());
    }

    pub(crate) fn release(&self, ids: &[u64]) {
        self.send(&releases(ids));
    }

    /// The next packet; `None` at the end.
    pub(crate) fn receive(&self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 70_000];
        let (mut slices, mut none) = ([IoSliceMut::new(&mut buffer)], RecvAncillaryBuffer::default());
        match rustix::net::recvmsg(&self.fd, &mut slices, &mut none, RecvFlags::empty()) {
            Ok(received) => {
                buffer.truncate(received.bytes);
                Some(buffer).filter(|packet| !packet.is_empty())
            }
            Err(rustix::io::Errno::CONNRESET) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// The next packet, and how many descriptors came with it; `None` at the end. Nothing that was sent is missed.
    pub(crate) fn receive_any(&self) -> Option<(Vec<u8>, usize)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let (mut buffer, mut control) = (vec![0; 70_000], RecvAncillaryBuffer::new(&mut space));
        let mut receive = || {
            rustix::net::recvmsg(&self.fd, &mut [IoSliceMut::new(&mut buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)
        };
        let received = match receive() {
            Err(rustix::io::Errno::CONNRESET) => receive(),
            received => received,
        };
        let length = received.unwrap().bytes;
        let descriptors = control.drain().map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.count(),
            _ => 0,
        });
        let descriptors: usize = descriptors.sum();
        buffer.truncate(length);
        Some((buffer, descriptors)).filter(|(packet, _)| !packet.is_empty())
    }

    /// The next reply: its header and what follows.
    pub(crate) fn reply(&self) -> Option<(ReplyHeader, Vec<u8>)> {
        let packet = self.receive()?;
        let (header, rest) = packet.split_first_chunk::<HEADER_LEN>().unwrap();
        Some((ReplyHeader::decode(header).unwrap(), rest.to_vec()))
    }

    /// The words in which the peer ends the session, which it does then.
    pub(crate) fn goodbye(&self) -> String {
        loop {
            let packet = self.receive().expect("words before the end");
            // To a client that does not fit, a worker says hello before it goes.
            if packet.starts_with(b"FOREBAY") {
                continue;
            }
            let (header, body) = packet.split_first_chunk::<HEADER_LEN>().unwrap();
            let header = ReplyHeader::decode(header).unwrap();
            if header.id == 0 {
                assert_eq!(self.receive(), None);
                return header.failure(body).unwrap().message().to_owned();
            }
        }
    }
}

pub(crate) fn releases(ids: &[u64]) -> Vec<u8> {
    let head = [&b"FR"[..], &(ids.len() as u16).to_le_bytes(), &[0; 4]].concat();
    ids.iter().fold(head, |packet, id| [&packet[..], &id.to_le_bytes()].concat())
}
