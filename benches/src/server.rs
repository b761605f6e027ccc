//! The other end of the transport section: a service that always has the bytes, in a process of its own.
//!
//! It ends when its standard input does, so it never outlives whoever started it.

use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context as _;
use forebay_memory::{Pool, PoolOptions, Span};
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

/// Serves until standard input ends.
///
/// # Errors
/// When it cannot listen.
pub(crate) fn run() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(8)))?;
    let mut block = pool.try_alloc(MAX_BLOCK_SIZE as usize).context("a new pool has no block")?;
    // Pages that were never written are all the same one, which stays in the processor's cache.
    block.fill(0x5a);
    let service: Arc<dyn Service> = Arc::new(OneBlock(block.freeze()));
    let options = ServerOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), CLUSTER);
    let server = runtime.block_on(async { TcpServer::bind(options, service) })?;
    println!("listening on {}", server.local_addr());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    runtime.block_on(server.close());
    Ok(())
}
