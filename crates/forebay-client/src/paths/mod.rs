//! Several paths to one worker behind one link: the shell around [`PathSelector`].
//!
//! A call that fails on one path is not repeated here, because its buffer may still be written to: the caller gets
//! [`LinkError::OtherPath`] and asks again with another buffer, at once. Probes are pings, in tasks of their own, so that
//! no reader pays for them.

mod discovery;
mod selector;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use forebay_memory::SpanMut;
use forebay_transport::{CallError, LinkError, Op, Reply, Request, Transport, TransportKind};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

pub use discovery::{DiscoveringTransport, PathMaker};
pub use selector::{Choice, Fallback, PathKind, PathPolicy, PathSelector, Switch};

/// One way to a worker.
pub struct Path {
    /// What it is, for logs: `tcp`, or the network card.
    pub name: String,
    /// Whether it is one of those that are preferred.
    pub kind: PathKind,
    /// Its link.
    pub link: Arc<dyn Transport>,
}

/// Counters of the switches between paths, shared by the links to all workers.
#[derive(Debug, Default)]
pub struct PathStats {
    /// Workers that went from RDMA to TCP.
    pub fell_back: AtomicU64,
    /// Workers that came back to RDMA.
    pub failed_back: AtomicU64,
    /// Network cards that were left out.
    pub paths_down: AtomicU64,
    /// Workers that could not be reached because no RDMA path was up and the policy allows no other.
    pub unreachable: AtomicU64,
}

/// How the paths of workers are used.
#[derive(Clone, Copy, Debug)]
pub struct PathOptions {
    /// When which path is used.
    pub policy: PathPolicy,
    /// The longest that a request over RDMA may take before another path is tried.
    pub operation_timeout: Duration,
    /// Whether attributes and listings go over RDMA, too, while it is up. They never fail for want of it.
    pub metadata: bool,
}

/// A link over any of several paths.
pub struct PathsTransport {
    shared: Arc<Shared>,
    tasks: TaskTracker,
}

struct Shared {
    worker: String,
    paths: Vec<Path>,
    selector: Mutex<PathSelector>,
    /// The longest that a request over RDMA may take before another path is tried.
    operation_timeout: Duration,
    /// Whether attributes and listings take the paths of data.
    metadata: bool,
    stats: Arc<PathStats>,
    random: AtomicU64,
}

/// A request under way over a path; dropped when its caller leaves.
struct InFlight<'a> {
    selector: &'a Mutex<PathSelector>,
    path: usize,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.selector.lock().ended(self.path);
    }
}

impl PathsTransport {
    /// A link to `worker`, an address for logs.
    #[must_use]
    pub fn new(worker: impl Into<String>, paths: Vec<Path>, options: PathOptions, stats: Arc<PathStats>) -> Self {
        let PathOptions { policy, operation_timeout, metadata } = options;
        let selector = Mutex::new(PathSelector::new(policy, paths.iter().map(|path| path.kind)));
        let random = AtomicU64::new(0x9e37_79b9_7f4a_7c15);
        let shared = Shared { worker: worker.into(), paths, selector, operation_timeout, metadata, stats, random };
        Self { shared: Arc::new(shared), tasks: TaskTracker::new() }
    }

    /// Probes what is due, in the background.
    fn probe(&self) {
        while let Some(path) = self.shared.selector.lock().due(Instant::now().into_std()) {
            let shared = Arc::clone(&self.shared);
            self.tasks.spawn(async move {
                let ping = Request::on_path(Op::Ping, Bytes::new(), shared.operation_timeout);
                let outcome = match shared.paths[path].link.call(ping, None).await {
                    Err(CallError::Link(error)) => Err(error.to_string()),
                    Ok(_) | Err(CallError::Service(_)) => Ok(()),
                };
                if let Err(cause) = &outcome {
                    tracing::debug!(
                        worker = shared.worker,
                        path = shared.paths[path].name,
                        cause,
                        "RDMA is still down"
                    );
                }
                let switch = shared.selector.lock().probed(path, outcome, Instant::now().into_std());
                shared.tell(switch, path, None);
            });
        }
    }
}

impl Shared {
    /// SplitMix64: good enough to spread requests, and nothing to lock.
    fn random(&self) -> u64 {
        let seed = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 27)
    }

    /// One log line and one count for each switch.
    fn tell(&self, switch: Option<Switch>, path: usize, cause: Option<&str>) {
        let (worker, path, cause) = (&self.worker, &self.paths[path].name, cause.unwrap_or_default());
        let counter = match switch {
            None => return,
            Some(Switch::PathDown(_)) => {
                warn!(%worker, path, cause, "RDMA path failed, the others are used");
                &self.stats.paths_down
            }
            Some(Switch::FellBack) => {
                warn!(%worker, path, cause, "RDMA failed, falling back to TCP");
                &self.stats.fell_back
            }
            Some(Switch::Unreachable) => {
                warn!(%worker, path, cause, "RDMA failed, and `network.rdma.data.fallback` allows nothing else");
                &self.stats.unreachable
            }
            Some(Switch::PathUp(_)) => {
                info!(%worker, path, "RDMA path is back");
                return;
            }
            Some(Switch::FailedBack) => {
                info!(%worker, path, "RDMA is back");
                &self.stats.failed_back
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

#[async_trait::async_trait]
impl Transport for PathsTransport {
    async fn call(&self, mut request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        self.probe();
        let shared = &*self.shared;
        let is_data = matches!(request.op, Op::Read | Op::Fill);
        let tcp = || shared.paths.iter().find(|path| path.kind == PathKind::Tcp);
        if !is_data
            && !shared.metadata
            && let Some(tcp) = tcp()
        {
            return tcp.link.call(request, into).await;
        }
        let chosen = shared.selector.lock().choose(shared.random());
        let path = match chosen {
            Choice::Use(path) => path,
            Choice::Refuse(reason) => match tcp() {
                Some(tcp) if !is_data => return tcp.link.call(request, into).await,
                _ => return Err(LinkError::Connect { peer: shared.worker.clone(), reason }.into()),
            },
        };
        let in_flight = InFlight { selector: &shared.selector, path };
        if shared.paths[path].kind == PathKind::Rdma {
            request.deadline = request.deadline.min(shared.operation_timeout);
        }
        let answer = shared.paths[path].link.call(request, into).await;
        let Err(CallError::Link(error)) = answer else { return answer };
        // `failed` ends it, too.
        std::mem::forget(in_flight);
        let cause = error.to_string();
        let mut selector = shared.selector.lock();
        let switch = selector.failed(path, cause.clone(), Instant::now().into_std());
        let has_another = shared.paths[path].kind == PathKind::Rdma && (selector.has_another() || !is_data);
        drop(selector);
        shared.tell(switch, path, Some(&cause));
        Err(match has_another {
            true => LinkError::OtherPath { peer: shared.worker.clone(), reason: cause },
            false => error,
        }
        .into())
    }

    fn kind(&self) -> TransportKind {
        match self.shared.paths.iter().any(|path| path.kind == PathKind::Rdma) {
            true => TransportKind::Ucx,
            false => TransportKind::Tcp,
        }
    }

    fn peer(&self) -> &str {
        &self.shared.worker
    }

    async fn close(&self) {
        futures::future::join_all(self.shared.paths.iter().map(|path| path.link.close())).await;
        self.tasks.close();
        self.tasks.wait().await;
    }
}
