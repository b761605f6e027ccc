//! A link to a worker of which only the TCP address is known: it asks the worker for its other paths when it is first used.

use std::sync::Arc;

use bytes::Bytes;
use forebay_memory::SpanMut;
use forebay_transport::message::PathsReply;
use forebay_transport::{CallError, LinkError, Op, Reply, Request, Transport, TransportKind};
use tokio::sync::OnceCell;

use super::{Path, PathKind, PathOptions, PathStats, PathsTransport};

/// Makes the paths over RDMA of what a worker says of itself.
pub trait PathMaker: Send + Sync + 'static {
    /// The paths to `worker`, `HOST:PORT` over TCP, which offers `paths`; none when they are of no use here.
    fn paths(&self, worker: &str, paths: &PathsReply) -> Vec<Path>;
}

/// The link.
pub struct DiscoveringTransport {
    tcp: Arc<dyn Transport>,
    maker: Arc<dyn PathMaker>,
    options: PathOptions,
    stats: Arc<PathStats>,
    found: OnceCell<PathsTransport>,
}

impl DiscoveringTransport {
    /// A link to the worker that `tcp` leads to.
    #[must_use]
    pub fn new(
        tcp: Arc<dyn Transport>,
        maker: Arc<dyn PathMaker>,
        options: PathOptions,
        stats: Arc<PathStats>,
    ) -> Self {
        Self { tcp, maker, options, stats, found: OnceCell::new() }
    }

    /// The paths, asked for by whoever comes first.
    async fn found(&self, deadline: std::time::Duration) -> Result<&PathsTransport, CallError> {
        let ask = async {
            let reply = self.tcp.call(Request::on_path(Op::Paths, Bytes::new(), deadline), None).await;
            let offered = match reply {
                Ok(reply) => PathsReply::decode(&reply.body).map_err(|failure| LinkError::Protocol {
                    peer: self.tcp.peer().to_owned(),
                    reason: failure.to_string(),
                })?,
                Err(error) => return Err(error),
            };
            let mut paths = self.maker.paths(self.tcp.peer(), &offered);
            paths.push(Path { name: "tcp".to_owned(), kind: PathKind::Tcp, link: Arc::clone(&self.tcp) });
            let stats = Arc::clone(&self.stats);
            Ok::<_, CallError>(PathsTransport::new(self.tcp.peer(), paths, self.options, stats))
        };
        self.found.get_or_try_init(|| ask).await
    }
}

#[async_trait::async_trait]
impl Transport for DiscoveringTransport {
    async fn call(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        match self.found.get() {
            Some(paths) => paths.call(request, into).await,
            None => self.found(request.deadline).await?.call(request, into).await,
        }
    }

    fn kind(&self) -> TransportKind {
        self.found.get().map_or(TransportKind::Tcp, |paths| paths.kind())
    }

    fn peer(&self) -> &str {
        self.tcp.peer()
    }

    async fn close(&self) {
        match self.found.get() {
            Some(paths) => paths.close().await,
            None => self.tcp.close().await,
        }
    }
}
