//! What the tests of this crate share: I/O threads over shared memory and TCP, which need no card.
#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod admission;
pub(crate) mod driving;
pub(crate) mod raw;
pub(crate) mod verbs;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_memory::{Pool, PoolOptions};
use forebay_rdma::{
    ClientOptions, IoThread, IoThreadOptions, RdmaServer, RdmaTransport, ServerOptions, ServerSecurity, Trace,
};
use forebay_transport::wire::Hello;
use forebay_transport::{CallError, Reply, Request, Service, Transport, conformance};
use forebay_types::{ByteSize, MAX_BLOCK_SIZE};
use forebay_ucx::{Library, sockets_are_sound};

/// What UCX uses in this program unless the environment says so.
static TRANSPORTS: OnceLock<&str> = OnceLock::new();
pub(crate) const CLUSTER: &str = "test";
pub(crate) const BLOCK_SIZE: u32 = MAX_BLOCK_SIZE;
/// What it uses by default. Over shared memory a peer whose connecting fails crashes the process at the other end now and then (ADR 0008).
const SOCKETS: &str = "tcp,self";
/// Names UCX's transports, where they are not to be sockets.
const TLS: &str = "FOREBAY_TEST_UCX_TLS";
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The hello that all of ours say.
pub(crate) fn ours() -> Hello {
    Hello::ours(CLUSTER, BLOCK_SIZE)
}

/// The library, or `None` with a word about why not.
pub(crate) fn library() -> Option<&'static Library> {
    match Library::load(None) {
        Ok(library) if std::env::var_os(TLS).is_none() && !sockets_are_sound(library.version()) => {
            skipped(format!("UCX {} can abort a process with connections over sockets", library.version()));
            None
        }
        Ok(library) => Some(library),
        Err(error) => {
            skipped(&error);
            None
        }
    }
}

/// The library for tests that are about shared memory.
pub(crate) fn library_over_shared_memory() -> Option<&'static Library> {
    TRANSPORTS.get_or_init(|| "sysv,cma,tcp,self");
    library()
}

/// Says why a test does not run here, past the test harness, which shows what it captured of failed tests only.
pub(crate) fn skipped(reason: impl std::fmt::Display) {
    forebay_testkit::skipped(&reason.to_string());
}

/// What UCX is to use: sockets by default, `FOREBAY_TEST_UCX_TLS` otherwise, on the devices that
/// `FOREBAY_TEST_UCX_SERVER` and `FOREBAY_TEST_UCX_CLIENT` name.
fn setting(variable: &str, default: &str) -> Vec<String> {
    let value = std::env::var(variable).unwrap_or_else(|_| default.to_owned());
    value.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The transports that UCX is to use.
fn transports() -> Vec<String> {
    setting(TLS, TRANSPORTS.get_or_init(|| SOCKETS))
}

pub(crate) fn io_thread_of(library: &'static Library, name: &str, pool: Pool) -> Arc<IoThread> {
    Arc::new(IoThread::start(library, io_thread_options(name, pool)).unwrap())
}

pub(crate) fn traced_io_thread(library: &'static Library, name: &str, pool: Pool, trace: &Arc<Trace>) -> Arc<IoThread> {
    let options = IoThreadOptions { trace: Some(Arc::clone(trace)), ..io_thread_options(name, pool) };
    Arc::new(IoThread::start(library, options).unwrap())
}

pub(crate) fn io_thread_options(name: &str, pool: Pool) -> IoThreadOptions {
    let registered = pool.capacity();
    IoThreadOptions {
        // Not what other tests make and remove meanwhile.
        devices: setting(&format!("FOREBAY_TEST_UCX_{}", name.to_uppercase()), "lo"),
        transports: transports(),
        ..IoThreadOptions::new(name, pool, registered)
    }
}

pub(crate) fn pool(mib: u64) -> Pool {
    Pool::new(PoolOptions { huge_pages: false, ..PoolOptions::fixed(ByteSize::mib(mib)) }).unwrap()
}

/// Where servers listen: loopback, or `FOREBAY_TEST_UCX_ADDRESS`.
pub(crate) fn address(port: u16) -> SocketAddr {
    let ip = std::env::var("FOREBAY_TEST_UCX_ADDRESS").ok().and_then(|text| text.parse().ok());
    SocketAddr::new(ip.unwrap_or(Ipv4Addr::LOCALHOST.into()), port)
}

pub(crate) fn client_options() -> ClientOptions {
    ClientOptions {
        connect_timeout: Duration::from_secs(20),
        keepalive: Duration::from_millis(200),
        dead_after: Duration::from_secs(5),
        require_rdma: std::env::var_os("FOREBAY_TEST_UCX_REQUIRE_RDMA").is_some(),
        ..ClientOptions::new(CLUSTER, BLOCK_SIZE)
    }
}

pub(crate) async fn serve(library: &'static Library, port: u16, service: Arc<dyn Service>) -> RdmaServer {
    serve_with(library, port, service, None).await
}

/// As above, to those whom `security` lets in.
pub(crate) async fn serve_with(
    library: &'static Library,
    port: u16,
    service: Arc<dyn Service>,
    security: Option<ServerSecurity>,
) -> RdmaServer {
    let io_thread = io_thread_of(library, "server", pool(64));
    let options = ServerOptions { security, ..ServerOptions::new(address(port), CLUSTER, BLOCK_SIZE) };
    RdmaServer::bind(io_thread, options, service).await.unwrap()
}

pub(crate) fn link(library: &'static Library, server: SocketAddr) -> (Arc<IoThread>, Arc<RdmaTransport>) {
    link_with(library, server, client_options())
}

/// As above, with other options.
pub(crate) fn link_with(
    library: &'static Library,
    server: SocketAddr,
    options: ClientOptions,
) -> (Arc<IoThread>, Arc<RdmaTransport>) {
    let io_thread = io_thread_of(library, "client", pool(64));
    let transport = Arc::new(RdmaTransport::new(server.to_string(), Arc::clone(&io_thread), options));
    (io_thread, transport)
}

/// Calls with a buffer of its own.
pub(crate) async fn call(transport: &RdmaTransport, request: Request) -> Result<Reply, CallError> {
    let into = conformance::pool(1).try_alloc(request.length as usize);
    conformance::within("an answer", transport.call(request, into)).await
}

/// Fails unless a read through `transport` brings the right bytes.
pub(crate) async fn assert_serves(transport: &RdmaTransport) {
    let request = conformance::read(conformance::Behaviour::AtOnce, 1, 5, 10_000, LONG);
    conformance::assert_bytes(&call(transport, request.clone()).await.unwrap(), &request, 10_000);
}
