//! Several paths to one worker behind one link: the shell around [`PathSelector`].
//!
//! [`WorkerLink`] is a worker's link: it asks for the worker's paths, one set for data and one for attributes and listings,
//! which are small and must not wait behind blocks. Each set is a [`PathsTransport`].
//!
//! A call that fails on one path is not repeated here, because its buffer may still be written to: the caller gets
//! [`LinkError::OtherPath`] and asks again with another buffer, at once. Probes are pings, in tasks of their own, so that
//! no reader pays for them.

mod link;
mod selector;
mod stats;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use forebay_memory::SpanMut;
use forebay_transport::{CallError, LinkError, Op, Payload, Reply, Request, Transport, TransportKind};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

pub use link::{PathMaker, WorkerLink, WorkerPaths};
pub use selector::{Choice, Fallback, PathKind, PathPolicy, PathSelector, Switch};
pub use stats::{PathReport, PathStats, WorkerReport};

/// One way to a worker.
pub struct Path {
    /// What it is, for logs: `tcp`, or the network card.
    pub name: String,
    /// Whether it is one of those that are preferred.
    pub kind: PathKind,
    /// Its link.
    pub link: Arc<dyn Transport>,
}

/// How the paths of workers are used.
#[derive(Clone, Copy, Debug)]
pub struct PathOptions {
    /// When which path is used.
    pub policy: PathPolicy,
    /// The longest that a request over RDMA may take before another path is tried.
    pub operation_timeout: Duration,
}

/// A link over any of several paths.
pub struct PathsTransport {
    shared: Arc<Shared>,
    /// Probes.
    tasks: TaskTracker,
}

struct Shared {
    worker: String,
    paths: Vec<Path>,
    selector: Mutex<PathSelector>,
    /// The longest that a request over RDMA may take before another path is tried.
    operation_timeout: Duration,
    stats: Arc<PathStats>,
    random: AtomicU64,
    /// Whether a path is down: calls look at this, and at the selector only for a path.
    is_down: AtomicBool,
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
    /// A link to `worker`, an address for logs. Its probes are tracked by `tasks`.
    #[must_use]
    pub fn new(
        worker: impl Into<String>,
        paths: Vec<Path>,
        options: PathOptions,
        stats: Arc<PathStats>,
        tasks: TaskTracker,
    ) -> Self {
        let selector = PathSelector::new(options.policy, paths.iter().map(|path| path.kind));
        Self::with_selector(worker.into(), paths, selector, options.operation_timeout, stats, tasks)
    }

    fn with_selector(
        worker: String,
        paths: Vec<Path>,
        selector: PathSelector,
        operation_timeout: Duration,
        stats: Arc<PathStats>,
        tasks: TaskTracker,
    ) -> Self {
        let random = AtomicU64::new(0x9e37_79b9_7f4a_7c15);
        let is_down = AtomicBool::new(!selector.is_whole());
        let selector = Mutex::new(selector);
        let shared = Shared { worker, paths, selector, operation_timeout, stats, random, is_down };
        Self { shared: Arc::new(shared), tasks }
    }

    /// Whether every path is up.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        !self.shared.is_down.load(Ordering::Relaxed)
    }

    /// Whether it has RDMA paths, and all are down.
    fn has_fallen(&self) -> bool {
        self.shared.selector.lock().has_fallen()
    }

    /// How its paths are.
    #[must_use]
    pub fn report(&self) -> Vec<PathReport> {
        let selector = self.shared.selector.lock();
        let paths = self.shared.paths.iter().zip(selector.causes());
        paths.map(|(path, down)| PathReport::new(&path.name, path.kind, down)).collect()
    }

    /// Probes what is due, in the background.
    fn probe(&self) {
        if self.is_whole() {
            return;
        }
        while let Some(path) = self.shared.selector.lock().due(Instant::now().into_std()) {
            let shared = Arc::clone(&self.shared);
            self.tasks.spawn(async move {
                let outcome = shared.ping(path).await;
                if let Err(cause) = &outcome {
                    tracing::debug!(
                        worker = shared.worker,
                        path = shared.paths[path].name,
                        cause,
                        "RDMA is still down"
                    );
                }
                shared.judge(path, None, |selector, now| selector.probed(path, outcome, now));
            });
        }
    }

    /// A request over `path` got no answer in time: finds out, in the background, whether that was the path's fault.
    fn suspect(&self, path: usize) {
        if !self.shared.selector.lock().suspect(path) {
            return;
        }
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move {
            let outcome = shared.ping(path).await;
            let cause = outcome.as_ref().err().cloned();
            shared.judge(path, cause.as_deref(), |selector, now| selector.cleared(path, outcome, now));
        });
    }
}

impl Shared {
    /// SplitMix64: good enough to spread requests, and nothing to lock.
    fn random(&self) -> u64 {
        let seed = self.random.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 27)
    }

    /// Why a path does not answer, if it does not.
    async fn ping(&self, path: usize) -> Result<(), String> {
        let ping = Request::on_path(Op::Ping, Bytes::new(), self.operation_timeout);
        match self.paths[path].link.call(ping, None).await {
            Err(CallError::Link(error)) => Err(error.to_string()),
            Ok(_) | Err(CallError::Service(_)) => Ok(()),
        }
    }

    /// Has the selector take note of something, and tells what that changes.
    fn judge(
        &self,
        path: usize,
        cause: Option<&str>,
        note: impl FnOnce(&mut PathSelector, std::time::Instant) -> Option<Switch>,
    ) {
        let mut selector = self.selector.lock();
        let switch = note(&mut selector, Instant::now().into_std());
        self.is_down.store(!selector.is_whole(), Ordering::Relaxed);
        drop(selector);
        self.tell(switch, path, cause);
    }

    /// One log line and one count for each switch.
    fn tell(&self, switch: Option<Switch>, path: usize, cause: Option<&str>) {
        let Some(switch) = switch else { return };
        let (worker, path, cause) = (&self.worker, &self.paths[path].name, cause.unwrap_or_default());
        let (counter, what) = match switch {
            Switch::PathDown(_) => (&self.stats.paths_down, "RDMA path failed, the others are used"),
            Switch::FellBack => (&self.stats.fell_back, "RDMA failed, falling back to TCP"),
            Switch::Unreachable => {
                (&self.stats.unreachable, "RDMA failed, and `network.rdma.data.fallback` allows nothing else")
            }
            Switch::PathUp(_) => (&self.stats.paths_up, "RDMA path is back"),
            Switch::FailedBack => (&self.stats.failed_back, "RDMA is back"),
        };
        match switch {
            Switch::PathUp(_) | Switch::FailedBack => info!(%worker, path, "{what}"),
            _ => warn!(%worker, path, cause, "{what}"),
        }
        let at = humantime::format_rfc3339_seconds(SystemTime::now());
        let why = if cause.is_empty() { String::new() } else { format!(": {cause}") };
        self.stats.switched(counter, format!("{at} {worker} {path}: {what}{why}"));
    }
}

#[async_trait::async_trait]
impl Transport for PathsTransport {
    async fn call(&self, mut request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        let shared = &*self.shared;
        if link::is_for_tcp(request.op)
            && let Some(tcp) = shared.paths.iter().find(|path| path.kind == PathKind::Tcp)
        {
            return tcp.link.call(request, into).await;
        }
        self.probe();
        let chosen = shared.selector.lock().choose(shared.random());
        let path = match chosen {
            Choice::Use(path) => path,
            Choice::Refuse(reason) => return Err(LinkError::Connect { peer: shared.worker.clone(), reason }.into()),
        };
        let kind = shared.paths[path].kind;
        let in_flight = InFlight { selector: &shared.selector, path };
        let given = request.deadline;
        if kind == PathKind::Rdma {
            request.deadline = given.min(shared.operation_timeout);
        }
        let began = Instant::now();
        let error = match shared.paths[path].link.call(request, into).await {
            Err(CallError::Link(error)) => error,
            answer => {
                shared.stats.answered(kind, received(&answer), began.elapsed());
                return answer;
            }
        };
        // What follows ends it, too.
        std::mem::forget(in_flight);
        let cause = error.to_string();
        let has_time = given > shared.operation_timeout;
        if matches!(error, LinkError::TimedOut { .. }) {
            // A link that is dead is found out by itself; this may be an origin that takes its time.
            self.suspect(path);
        } else {
            shared.judge(path, Some(&cause), |selector, now| selector.failed(path, cause.clone(), now));
        }
        let goes_on = !matches!(error, LinkError::TimedOut { .. }) || has_time;
        let has_another = kind == PathKind::Rdma && goes_on && shared.selector.lock().has_another();
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

/// Bytes of payload and body that came with an answer.
fn received(answer: &Result<Reply, CallError>) -> usize {
    let Ok(reply) = answer else { return 0 };
    let payload = match &reply.payload {
        Payload::None => 0,
        Payload::Landed(span) => span.len(),
        Payload::Shared(spans) => spans.iter().map(|span| span.len()).sum(),
    };
    payload + reply.body.len()
}
