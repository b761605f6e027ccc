//! The other end of the transport sections: a service that always has the bytes, in a process of its own.
//!
//! It ends when its standard input does, so it never outlives the process that started it.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::Context as _;
use forebay_memory::{Pool, PoolOptions, Span};
use forebay_rdma::{IoThread, IoThreadOptions, Library, RdmaServer};
use forebay_tcp::{ServerOptions, TcpServer};
use forebay_transport::{Op, Provenance, Request, Response, Service};
use forebay_types::{ByteSize, Failure, FailureKind, MAX_BLOCK_SIZE};

/// The name of the cluster that both ends are in.
pub(crate) const CLUSTER: &str = "forebay-bench";

/// Answers every read with the start of one block.
struct OneBlock(Span);

#[async_trait::async_trait]
impl Service for OneBlock {
    fn try_handle(&self, request: &Request) -> Option<Response> {
        let length = request.length as usize;
        let is_read = request.op == Op::Read && length <= self.0.len();
        let provenance = Provenance { memory: request.length, ..Provenance::default() };
        is_read.then(|| Response::of_spans([self.0.slice(0..length)].into_iter().collect(), provenance))
    }

    async fn handle(&self, request: Request, _takes_files: bool) -> Result<Response, Failure> {
        let refused = || Failure::new(FailureKind::Unsupported, format!("{:?} is not measured", request.op));
        self.try_handle(&request).ok_or_else(refused)
    }
}

/// This program again, as a server.
pub(crate) struct ServerProcess {
    child: Child,
    /// Where it listens.
    pub(crate) address: String,
}

impl ServerProcess {
    /// Starts one: over UCX's `transports`, or over TCP if there are none.
    ///
    /// # Errors
    /// When it does not listen.
    pub(crate) fn start(transports: &[&str]) -> anyhow::Result<Self> {
        Self::spawn("serve-transport", transports)
    }

    /// Starts this program as something else that says where it listens.
    ///
    /// # Errors
    /// When it does not listen.
    pub(crate) fn spawn(command: &str, arguments: &[impl AsRef<OsStr>]) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(command)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start `{command}`"))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let address = line.trim().strip_prefix("listening on ").map(ToOwned::to_owned);
        let server = Self { child, address: address.unwrap_or_default() };
        anyhow::ensure!(!server.address.is_empty(), "`{command}` did not start");
        Ok(server)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Its standard input ends, and so does it.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Serves until standard input ends: over UCX's `transports`, or over TCP if there are none.
///
/// # Errors
/// When it cannot listen.
pub(crate) fn run(transports: &[String]) -> anyhow::Result<()> {
    // While there is one thread: only then can UCX be told to leave `malloc` alone.
    let library = if transports.is_empty() { None } else { Some(Library::load(None)?) };
    let runtime = tokio::runtime::Runtime::new()?;
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(8)))?;
    let mut block = pool.try_alloc(MAX_BLOCK_SIZE as usize).context("a new pool has no block")?;
    // Pages that were never written are all the same one, which stays in the processor's cache.
    block.fill(0x5a);
    let service: Arc<dyn Service> = Arc::new(OneBlock(block.freeze()));
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    if let Some(library) = library {
        let io_thread = Arc::new(IoThread::start(library, io_thread_options(transports, &pool))?);
        let options = forebay_rdma::ServerOptions::new(address, CLUSTER, MAX_BLOCK_SIZE);
        let server = runtime.block_on(RdmaServer::bind(io_thread, options, service))?;
        until_end(server.local_addr())?;
        runtime.block_on(server.close());
    } else {
        let options = ServerOptions::new(address, CLUSTER, MAX_BLOCK_SIZE);
        let server = runtime.block_on(async { TcpServer::bind(options, service) })?;
        until_end(server.local_addr())?;
        runtime.block_on(server.close());
    }
    Ok(())
}

/// Says where this process listens, and waits for the end of its standard input.
pub(crate) fn until_end(address: SocketAddr) -> std::io::Result<usize> {
    until(&address.to_string())
}

/// The same of what is no address.
pub(crate) fn until(place: &str) -> std::io::Result<usize> {
    println!("listening on {place}");
    std::io::stdin().read_to_end(&mut Vec::new())
}

/// An I/O thread with which all of `pool` is registered.
pub(crate) fn io_thread_options(transports: &[impl ToString], pool: &Pool) -> IoThreadOptions {
    let transports = transports.iter().map(ToString::to_string).collect();
    IoThreadOptions { transports, ..IoThreadOptions::new("bench", pool.clone(), pool.capacity()) }
}
