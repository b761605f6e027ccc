//! One link over several paths to a worker: the shell around [`PathSelector`].
//!
//! A call that fails on one path is not repeated here, because its buffer may still be written to: the caller gets
//! [`LinkError::OtherPath`] and asks again with another buffer, at once.
//!
//! While a path is down, or requests are under way over one of several cards, a task looks at what is due: probes, and
//! questions to cards that are silent. It also runs for idle mounts, so that RDMA that works again is found before the
//! next read. Readers do not pay for probes; only one that would fail otherwise waits for what a probe finds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use forebay_locks::Mutex;
use forebay_memory::SpanMut;
use forebay_transport::{CallError, LinkError, Op, Payload, Reply, Request, Transport, TransportKind};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use super::selector::{Choice, PathKind, PathPolicy, PathSelector, Ping, Switch};
use super::stats::{PathReport, PathStats};

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

/// How long a request that would fail otherwise waits for what a probe finds. One that finds a path well takes no more
/// than a few milliseconds; requests that have another replica to ask shall not wait for a host that says nothing.
pub(super) const PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// A link over any of several paths.
pub struct PathsTransport {
    shared: Arc<PathsShared>,
    /// The one that looks at what is due.
    tasks: TaskTracker,
    _stop: DropGuard,
}

struct PathsShared {
    worker: String,
    paths: Vec<Path>,
    selector: Mutex<PathSelector>,
    /// The longest that a request over RDMA may take before another path is tried.
    operation_timeout: Duration,
    stats: Arc<PathStats>,
    random: AtomicU64,
    /// Whether a path is down: calls look at this, and at the selector only for a path.
    is_down: AtomicBool,
    /// What is due may have changed.
    changed: Notify,
    /// A probe has ended.
    probed: Notify,
    /// Told when a path goes down.
    fallen: Arc<Notify>,
    stop: CancellationToken,
}

/// A request under way over a path; dropped when its caller leaves.
struct InFlight<'a> {
    selector: &'a Mutex<PathSelector>,
    path: usize,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.selector.lock().left(self.path);
    }
}

impl PathsTransport {
    /// A link to `worker`, an address for logs. Its task is tracked by `tasks`.
    #[must_use]
    pub fn new(
        worker: impl Into<String>,
        paths: Vec<Path>,
        options: PathOptions,
        stats: Arc<PathStats>,
        tasks: TaskTracker,
    ) -> Self {
        let selector = PathSelector::new(options.policy, paths.iter().map(|path| path.kind));
        Self::with_selector(worker.into(), paths, selector, options.operation_timeout, stats, tasks, Arc::default())
    }

    /// The same, over paths as they are in `selector`; `fallen` is told when one goes down.
    pub(super) fn with_selector(
        worker: String,
        paths: Vec<Path>,
        selector: PathSelector,
        operation_timeout: Duration,
        stats: Arc<PathStats>,
        tasks: TaskTracker,
        fallen: Arc<Notify>,
    ) -> Self {
        let stop = CancellationToken::new();
        let shared = PathsShared {
            worker,
            paths,
            operation_timeout,
            stats,
            random: AtomicU64::new(0x9e37_79b9_7f4a_7c15),
            is_down: AtomicBool::new(!selector.is_whole()),
            selector: Mutex::new(selector),
            changed: Notify::new(),
            probed: Notify::new(),
            fallen,
            stop: stop.clone(),
        };
        let transport = Self { shared: Arc::new(shared), tasks, _stop: stop.drop_guard() };
        if transport.shared.selector.lock().begin_watch() {
            transport.watch();
        }
        transport
    }

    /// Whether every path is up.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        !self.shared.is_down.load(Ordering::Relaxed)
    }

    /// Whether it has RDMA paths, and all are down.
    pub(super) fn has_fallen(&self) -> bool {
        self.shared.selector.lock().has_fallen()
    }

    /// How its paths are.
    #[must_use]
    pub fn report(&self) -> Vec<PathReport> {
        let selector = self.shared.selector.lock();
        let paths = self.shared.paths.iter().zip(selector.causes());
        paths.map(|(path, cause)| PathReport::new(&path.name, path.kind, cause)).collect()
    }

    /// Looks at what is due from now on, in the background, until nothing is.
    #[cold]
    fn watch(&self) {
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(shared.watch());
    }

    /// Something happened to `path`: has the selector take note of it, and everything that it concerns.
    #[cold]
    fn judge(
        &self,
        path: usize,
        cause: &str,
        note: impl FnOnce(&mut PathSelector, std::time::Instant) -> Option<Switch>,
    ) {
        if self.shared.judge(path, cause, note) {
            self.watch();
        }
    }

    /// The path for a request that would fail, did it not wait for what a probe finds, or why there is none; and how long
    /// that took.
    #[cold]
    async fn choose_after_probe(&self, deadline: Duration) -> (Result<usize, String>, Duration) {
        let began = Instant::now();
        let until = began + deadline.min(PROBE_PATIENCE);
        let chosen = loop {
            let probed = self.shared.probed.notified();
            let choice = self.shared.selector.lock().choose(self.shared.random(), Instant::now().into_std());
            match choice {
                Choice::Use(path) => break Ok(path),
                Choice::Refuse(reason) => break Err(reason),
                Choice::Wait if tokio::time::timeout_at(until, probed).await.is_ok() => {}
                Choice::Wait => break Err(self.shared.selector.lock().cause()),
            }
        };
        (chosen, began.elapsed())
    }
}

impl PathsShared {
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

    /// Does what is due, until nothing is or the link is given up.
    async fn watch(self: Arc<Self>) {
        let mut pings = FuturesUnordered::new();
        loop {
            let look = self.selector.lock().look(Instant::now().into_std());
            pings.extend(look.pings.into_iter().map(|ping| self.find_out(ping)));
            if look.done {
                return;
            }
            let due = async {
                match look.next {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.stop.cancelled() => return,
                Some(()) = pings.next() => {}
                () = self.changed.notified() => {}
                () = due => {}
            }
        }
    }

    async fn find_out(&self, ping: Ping) {
        let (Ping::Probe(path) | Ping::Suspected(path)) = ping;
        let outcome = self.ping(path).await;
        let cause = outcome.as_ref().err().cloned().unwrap_or_default();
        if let (Ping::Probe(_), Err(cause)) = (ping, &outcome) {
            debug!(worker = self.worker, path = self.paths[path].name, cause, "RDMA is still down");
        }
        // The one that watches asks.
        let _ = self.judge(path, &cause, |selector, now| match ping {
            Ping::Probe(_) => selector.probed(path, outcome, now),
            Ping::Suspected(_) => selector.cleared(path, outcome, now),
        });
        self.probed.notify_waiters();
    }

    /// Has the selector take note of something, and tells what that changes. Returns whether a task has to begin to
    /// watch.
    #[must_use = "nobody may be watching"]
    fn judge(
        &self,
        path: usize,
        cause: &str,
        note: impl FnOnce(&mut PathSelector, std::time::Instant) -> Option<Switch>,
    ) -> bool {
        let mut selector = self.selector.lock();
        let switch = note(&mut selector, Instant::now().into_std());
        let is_down = !selector.is_whole();
        self.is_down.store(is_down, Ordering::Relaxed);
        let begins = selector.begin_watch();
        drop(selector);
        self.tell(switch, path, cause);
        self.changed.notify_one();
        if is_down {
            self.fallen.notify_one();
        }
        begins
    }

    /// One log line and one count for each switch.
    fn tell(&self, switch: Option<Switch>, path: usize, cause: &str) {
        let Some(switch) = switch else { return };
        let (worker, path) = (&self.worker, &self.paths[path].name);
        let (counter, what) = match switch {
            Switch::PathDown(_) => (&self.stats.left_out, "RDMA path failed, the others are used"),
            Switch::FellBack => (&self.stats.fell_back, "RDMA failed, falling back to TCP"),
            Switch::Unreachable => {
                (&self.stats.unreachable, "RDMA failed, and `network.rdma.data.fallback` allows nothing else")
            }
            Switch::PathUp(_) => (&self.stats.taken_back, "RDMA path is back"),
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
        if is_for_tcp(request.op)
            && let Some(tcp) = shared.paths.iter().find(|path| path.kind == PathKind::Tcp)
        {
            return tcp.link.call(request, into).await;
        }
        let mut began = Instant::now();
        let (chosen, begins) = {
            let mut selector = shared.selector.lock();
            (selector.choose(shared.random(), began.into_std()), selector.begin_watch())
        };
        if begins {
            self.watch();
        }
        let chosen = match chosen {
            Choice::Use(path) => Ok(path),
            Choice::Refuse(reason) => Err(reason),
            Choice::Wait => {
                let (chosen, waited) = Box::pin(self.choose_after_probe(request.deadline)).await;
                request.deadline = request.deadline.saturating_sub(waited);
                began = Instant::now();
                chosen
            }
        };
        let path = chosen.map_err(|reason| LinkError::NotAllowed { peer: shared.worker.clone(), reason })?;
        let kind = shared.paths[path].kind;
        let in_flight = InFlight { selector: &shared.selector, path };
        let given = request.deadline;
        if kind == PathKind::Rdma {
            request.deadline = given.min(shared.operation_timeout);
        }
        let answer = shared.paths[path].link.call(request, into).await;
        // What follows ends it, too.
        std::mem::forget(in_flight);
        let now = Instant::now();
        let error = match answer {
            Err(CallError::Link(error)) => error,
            answer => {
                shared.selector.lock().answered(path, now.into_std());
                shared.stats.answered(kind, received(&answer), now - began);
                return answer;
            }
        };
        let cause = error.to_string();
        let has_time = given > shared.operation_timeout;
        self.judge(path, &cause, |selector, now| match error {
            // A link that is dead is found out by itself; this may be an origin that takes its time.
            LinkError::TimedOut { .. } => {
                selector.suspect(path, now);
                None
            }
            _ => selector.failed(path, cause.clone(), now),
        });
        let goes_on = !matches!(error, LinkError::TimedOut { .. }) || has_time;
        let has_another =
            kind == PathKind::Rdma && goes_on && shared.selector.lock().has_another(Instant::now().into_std());
        Err(match has_another {
            true => LinkError::OtherPath { peer: shared.worker.clone(), reason: cause },
            false => error,
        }
        .into())
    }

    fn kind(&self) -> TransportKind {
        match self.shared.paths.iter().find(|path| path.kind == PathKind::Rdma) {
            Some(path) if path.link.kind() == TransportKind::Verbs => TransportKind::Verbs,
            Some(_) => TransportKind::Ucx,
            None => TransportKind::Tcp,
        }
    }

    fn peer(&self) -> &str {
        &self.shared.worker
    }

    async fn close(&self) {
        self.shared.stop.cancel();
        futures::future::join_all(self.shared.paths.iter().map(|path| path.link.close())).await;
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Whether a request goes over TCP whatever other paths there are: what is written has large bodies, which RDMA does
/// not take, and which are not to delay other requests there.
pub(super) fn is_for_tcp(op: Op) -> bool {
    matches!(op, Op::Change | Op::Upload | Op::Refresh)
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
