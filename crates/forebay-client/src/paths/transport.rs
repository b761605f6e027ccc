//! One link over several paths to a worker: the shell around [`PathSelector`].
//!
//! A call that fails on one path is not repeated here, because its buffer may still be written to: the caller gets
//! [`LinkError::OtherPath`] and asks again with another buffer, at once. Of a large read that is divided among several
//! cards ([`striped`]), a part that fails is asked for again here, with memory of its own.
//!
//! While a path is down, or requests are under way over one of several cards, a task looks at what is due: probes, and
//! questions to cards that are silent. It also runs for idle mounts, so that RDMA that works again is found before the
//! next read. Readers do not pay for probes; only one that would fail otherwise waits for what a probe finds.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_cluster::HedgeBudget;
use forebay_locks::Mutex;
use forebay_memory::SpanMut;
use forebay_transport::{CallError, LinkError, Op, Payload, Reply, Request, Transport, TransportKind};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::selector::{Choice, PathKind, PathSelector, Switch};
use super::shared::{InFlight, Path, PathOptions, PathsShared};
use super::stats::{PathReport, PathStats};
use super::striped::{self, Outcome, Ways, may_be_divided};
use super::striping::{Division, Ended};

/// How long a request that would fail otherwise waits for what a probe finds. One that finds a path well takes no more
/// than a few milliseconds; requests that have another replica to ask shall not wait for a host that says nothing.
pub(super) const PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// Of a hundred reads that are divided, as many parts may be asked for twice because they are late: as for reads that
/// another worker is asked for, too (`client.hedge.budget`).
const LATE_PERCENT: u32 = 5;

/// A link over any of several paths.
pub struct PathsTransport {
    shared: Arc<PathsShared>,
    /// The one that looks at what is due.
    tasks: TaskTracker,
    _stop: DropGuard,
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
        Self::with_selector(worker.into(), paths, selector, options, stats, tasks, Arc::default())
    }

    /// The same, over paths as they are in `selector`; `fallen` is told when one goes down.
    pub(super) fn with_selector(
        worker: String,
        paths: Vec<Path>,
        mut selector: PathSelector,
        options: PathOptions,
        stats: Arc<PathStats>,
        tasks: TaskTracker,
        fallen: Arc<Notify>,
    ) -> Self {
        if options.striping.is_some() {
            let node = |path: &Path| path.card.as_ref().and_then(|card| card.numa_node);
            selector = selector.striping(paths.iter().map(node));
        }
        let stop = CancellationToken::new();
        let shared = PathsShared {
            worker,
            paths,
            operation_timeout: options.operation_timeout,
            // With one card there is nothing to divide a read among.
            spare: options.striping.filter(|_| selector.loads().is_some()),
            budget: HedgeBudget::new(LATE_PERCENT),
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
        let mut selector = self.shared.selector.lock();
        let causes: Vec<_> = selector.causes().collect();
        let mut loads = selector.loads();
        let report = |(number, (path, cause)): (usize, (&Path, Option<String>))| {
            let speed = loads.as_mut().and_then(|loads| loads.bytes_per_second(number));
            PathReport::new(&path.name, path.kind, cause, speed)
        };
        self.shared.paths.iter().zip(causes).enumerate().map(report).collect()
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

    /// The path for a request that would fail, did it not wait for what a probe finds, or why there is none; and how
    /// long that took.
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

    /// Carries out a request that began over a path.
    async fn over(
        &self,
        in_flight: InFlight<'_>,
        mut request: Request,
        into: Option<SpanMut>,
        began: Instant,
    ) -> Result<Reply, CallError> {
        let (shared, path) = (&*self.shared, in_flight.path);
        let Path { kind, link, card, .. } = &shared.paths[path];
        let given = request.deadline;
        if *kind == PathKind::Rdma {
            request.deadline = given.min(shared.operation_timeout);
        }
        // Only where reads are striped: what came of one tells whether the next is worth dividing.
        let is_whole = in_flight.sent.is_some() && may_be_divided(&request);
        let answer = link.call(request, into).await;
        // What follows ends it, too.
        let sent = in_flight.end();
        let now = Instant::now();
        let error = match answer {
            Err(CallError::Link(error)) => error,
            answer => {
                let bytes = received(&answer);
                {
                    let mut selector = shared.selector.lock();
                    selector.answered(path, now.into_std());
                    if sent.is_some() {
                        let is_cached = answer.as_ref().is_ok_and(|reply| reply.provenance.origin == 0);
                        let how = if is_cached && bytes > 0 { Ended::Delivered } else { Ended::Otherwise };
                        shared.ended(&mut selector, path, sent, how);
                        if let Some(loads) = selector.loads().filter(|_| is_whole && answer.is_ok()) {
                            loads.whole(is_cached);
                        }
                    }
                }
                if let Some(card) = card {
                    card.answered(bytes);
                }
                shared.stats.answered(*kind, bytes, now - began);
                return answer;
            }
        };
        if sent.is_some() {
            shared.ended(&mut shared.selector.lock(), path, sent, Ended::Otherwise);
        }
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
            *kind == PathKind::Rdma && goes_on && shared.selector.lock().has_another(Instant::now().into_std());
        Err(match has_another {
            true => LinkError::OtherPath { peer: shared.worker.clone(), reason: cause },
            false => error,
        }
        .into())
    }

    /// A read that is divided: what it brought, or memory to ask for it as a whole.
    async fn striped(
        &self,
        request: &mut Request,
        into: SpanMut,
        division: &Division,
    ) -> ControlFlow<Result<Reply, CallError>, SpanMut> {
        let (began, stats) = (Instant::now(), &self.shared.stats.striping);
        let again = |reason: &str| LinkError::OtherPath { peer: self.shared.worker.clone(), reason: reason.to_owned() };
        match striped::read(self, request, into, division).await {
            Outcome::Answered(answer) => {
                if answer.is_ok() {
                    stats.reads.fetch_add(1, Ordering::Relaxed);
                    stats.parts.fetch_add(division.len() as u64, Ordering::Relaxed);
                }
                ControlFlow::Break(answer)
            }
            Outcome::NotCached => {
                stats.not_cached.fetch_add(1, Ordering::Relaxed);
                if let Some(loads) = self.shared.selector.lock().loads() {
                    loads.lacked();
                }
                request.deadline = request.deadline.saturating_sub(began.elapsed());
                match self.spare(request.length) {
                    Some(room) => ControlFlow::Continue(room),
                    None => ControlFlow::Break(Err(again("not all of a read is cached").into())),
                }
            }
            Outcome::Anew => ControlFlow::Break(Err(again("there is no memory for the parts of a read").into())),
        }
    }
}

impl Ways for PathsTransport {
    async fn ask(&self, path: usize, request: Request, into: SpanMut) -> Result<Reply, CallError> {
        let began = Instant::now();
        let (in_flight, begins) = {
            let mut selector = self.shared.selector.lock();
            selector.begin(path, began.into_std());
            (self.shared.sent(&mut selector, path, request.length, began), selector.begin_watch())
        };
        if begins {
            self.watch();
        }
        self.over(in_flight, request, Some(into), began).await
    }

    #[cold]
    fn is_late(&self, path: usize, bytes: u32, waited: Duration, is_to_be_asked: bool) -> Option<usize> {
        let (shared, now) = (&*self.shared, Instant::now().into_std());
        let (other, begins) = {
            let mut selector = shared.selector.lock();
            if let Some(loads) = selector.loads() {
                loads.late(path, waited, now);
            }
            selector.doubt(path, now);
            (selector.instead_of(path, (bytes, None), false, shared.random(), now), selector.begin_watch())
        };
        if begins {
            self.watch();
        }
        shared.changed.notify_one();
        let other = other.filter(|_| is_to_be_asked && shared.budget.take(false))?;
        shared.stats.striping.late.fetch_add(1, Ordering::Relaxed);
        debug!(worker = shared.worker, path = shared.paths[path].name, ?waited, "a part of a read is late");
        Some(other)
    }

    #[cold]
    fn has_failed(&self, path: usize, bytes: u32) -> Option<usize> {
        let (shared, now) = (&*self.shared, Instant::now().into_std());
        let other = shared.selector.lock().instead_of(path, (bytes, None), true, shared.random(), now)?;
        shared.stats.striping.failed.fetch_add(1, Ordering::Relaxed);
        Some(other)
    }

    fn spare(&self, bytes: u32) -> Option<SpanMut> {
        self.shared.spare.as_ref().and_then(|pool| pool.try_alloc(bytes as usize))
    }
}

#[async_trait::async_trait]
impl Transport for PathsTransport {
    async fn call(&self, mut request: Request, mut into: Option<SpanMut>) -> Result<Reply, CallError> {
        let shared = &*self.shared;
        if is_for_tcp(request.op)
            && let Some(tcp) = shared.paths.iter().find(|path| path.kind == PathKind::Tcp)
        {
            return tcp.link.call(request, into).await;
        }
        if shared.spare.is_some()
            && let Some(division) = shared.divide(&request, into.as_ref())
            && let Some(buffer) = into.take()
        {
            into = match Box::pin(self.striped(&mut request, buffer, &division)).await {
                ControlFlow::Continue(room) => Some(room),
                ControlFlow::Break(answer) => return answer,
            };
        }
        let mut began = Instant::now();
        let bytes = if request.op.brings_payload() { request.length } else { 0 };
        let near = if shared.spare.is_some() { into.as_ref().and_then(SpanMut::numa_node) } else { None };
        let (chosen, begins) = {
            let mut selector = shared.selector.lock();
            shared.look_at_cards(&mut selector);
            let chosen = selector.choose_for((bytes, near), shared.random(), began.into_std());
            let chosen = match chosen {
                Choice::Use(path) => Ok(Ok(shared.sent(&mut selector, path, bytes, began))),
                Choice::Refuse(reason) => Ok(Err(reason)),
                Choice::Wait => Err(()),
            };
            (chosen, selector.begin_watch())
        };
        if begins {
            self.watch();
        }
        let chosen = match chosen {
            Ok(chosen) => chosen,
            Err(()) => {
                let (chosen, waited) = Box::pin(self.choose_after_probe(request.deadline)).await;
                request.deadline = request.deadline.saturating_sub(waited);
                began = Instant::now();
                chosen.map(|path| InFlight { shared, path, sent: None })
            }
        };
        let in_flight = chosen.map_err(|reason| LinkError::NotAllowed { peer: shared.worker.clone(), reason })?;
        self.over(in_flight, request, into, began).await
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
