//! Which worker to ask, and whom to ask next when it does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use forebay_cluster::{Backoff, Membership, PlacementKey};
use forebay_memory::SpanMut;
use forebay_store::Store;
use forebay_transport::{CallError, Flags, LinkError, Op, Payload, Reply, Request};
use forebay_types::{BlockKey, Failure, FailureKind, FileId, FileVersion, FsPath, MAX_BLOCK_SIZE};
use moka::sync::Cache;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::connector::Connector;
use crate::downloads::Downloads;
use crate::landing::Landing;
use crate::missed::OwnChanges;
use crate::routes::{Closing, Link, Order, Routes};
use crate::stats::ClientStats;

/// Workers that are asked about one request when those before them answered that they cannot: three origins that are
/// down are one origin that is down.
const MAX_ANSWERS: u32 = 3;

/// How long a worker that is told of a change may keep the one who made it waiting.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// Files that several workers hold each block of, and that are open or were lately: what a client needs to know of them.
const MOST_REPLICATED: u64 = 65_536;

/// What came of a change.
pub(crate) struct Changed {
    /// The body of the answer.
    pub(crate) result: Result<Bytes, Failure>,
    /// Whether it was sent before, to somebody whose answer did not come or was no answer: it may have been made then.
    pub(crate) repeated: bool,
    /// Who answered.
    pub(crate) by: Option<Arc<Link>>,
}

pub(crate) struct Router {
    membership: Arc<dyn Membership>,
    pub(crate) connector: Arc<dyn Connector>,
    routes: ArcSwap<Routes>,
    closing: Closing,
    pub(crate) backoff: Backoff,
    timeout: Duration,
    /// How many workers hold each block of a file; one, of those that are not here.
    replicas: Cache<FileId, u8>,
    /// Whether there ever was a file with several.
    replicates: AtomicBool,
    /// Counts requests on files with several replicas.
    turns: AtomicU64,
    pub(crate) changes: OwnChanges,
    downloads: Downloads,
    pub(crate) stats: Arc<ClientStats>,
}

impl Router {
    pub(crate) fn new(
        membership: Arc<dyn Membership>,
        connector: Arc<dyn Connector>,
        backoff: Backoff,
        timeout: Duration,
        stats: Arc<ClientStats>,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        let routes = ArcSwap::from_pointee(Routes::none());
        let closing = Closing { runtime, tasks: TaskTracker::new() };
        let (replicas, replicates) = (Cache::new(MOST_REPLICATED), AtomicBool::new(false));
        let (turns, changes) = (AtomicU64::new(0), OwnChanges::default());
        let router = Self {
            membership,
            connector,
            routes,
            closing,
            backoff,
            timeout,
            replicas,
            replicates,
            turns,
            changes,
            downloads: Downloads::unlimited(),
            stats,
        };
        router.routes();
        router
    }

    /// With these bounds on requests on blocks to other processes.
    pub(crate) fn limited_to(self, downloads: Downloads) -> Self {
        Self { downloads, ..self }
    }

    /// The routes as they are now.
    pub(crate) fn routes(&self) -> arc_swap::Guard<Arc<Routes>> {
        let topology = self.membership.topology();
        let routes = self.routes.load();
        if Arc::ptr_eq(&routes.topology, &topology) { routes } else { self.reroute(&topology) }
    }

    /// The routes as they were when somebody last had to look: what a hit needs to know, the worker in this process, it needs
    /// not know to the moment. Nothing that readers share is written to.
    #[inline]
    pub(crate) fn routes_seen(&self) -> arc_swap::Guard<Arc<Routes>> {
        self.routes.load()
    }

    #[cold]
    fn reroute(&self, topology: &Arc<forebay_cluster::Topology>) -> arc_swap::Guard<Arc<Routes>> {
        self.routes.rcu(|old| old.renewed(topology, &*self.connector, &self.closing, &self.changes));
        self.routes.load()
    }

    /// A file that is opened has each of its blocks on so many workers.
    pub(crate) fn replicate(&self, file: FileId, replicas: u8) {
        if replicas > 1 {
            self.replicas.insert(file, replicas);
            self.replicates.store(true, Ordering::Relaxed);
        } else if self.replicates.load(Ordering::Relaxed) {
            self.replicas.invalidate(&file);
        }
    }

    fn replicas_of(&self, file: FileId) -> u8 {
        // Most clients never see a file with several, and do not pay for them.
        if self.replicates.load(Ordering::Relaxed) { self.replicas.get(&file).unwrap_or(1) } else { 1 }
    }

    /// Calls about `key`, worker after worker, until one answers what settles the matter.
    ///
    /// A payload lands in `into`; who is asked after the first is asked for none.
    pub(crate) async fn call(
        &self,
        key: PlacementKey,
        mut request: Request,
        mut into: Option<SpanMut>,
    ) -> Result<Reply, Failure> {
        let mut attempts = self.attempts(key, 1, self.timeout);
        while let Some((link, left)) = attempts.next() {
            if let Some(changes) = link.missed.due()
                && let Err(error) = self.catch_up(&link, changes).await
            {
                attempts.pass_over(&link, error);
                continue;
            }
            request.deadline = left;
            let into = into.take();
            if into.is_none() {
                request.length = 0;
            }
            match attempts.judge(&link, self.counted(&link, request.clone(), into).await) {
                Verdict::Settled(result) => return result,
                Verdict::AskNext => {}
            }
        }
        Err(attempts.exhausted())
    }

    /// A request on the namespace, to the worker that owns `key`.
    pub(crate) async fn ask(&self, key: PlacementKey, op: Op, body: Bytes, flags: Flags) -> Result<Bytes, Failure> {
        let mut request = Request::on_path(op, body, self.timeout);
        request.flags = flags;
        Ok(self.call(key, request, None).await?.body)
    }

    /// A change, to the worker that owns `key`. When no worker at all can be reached, it is tried again, for as long as a
    /// question may take: a worker that is being restarted costs a writer no error.
    pub(crate) async fn change(&self, key: PlacementKey, mut request: Request, timeout: Duration) -> Changed {
        let began = tokio::time::Instant::now();
        let mut pause = self.backoff.initial;
        let mut repeated = false;
        loop {
            let mut attempts = self.attempts(key, 1, timeout.saturating_sub(began.elapsed()));
            while let Some((link, left)) = attempts.next() {
                request.deadline = left;
                let answer = self.counted(&link, request.clone(), None).await;
                let never_arrived =
                    matches!(&answer, Err(CallError::Link(LinkError::Connect { .. } | LinkError::Refused { .. })));
                match attempts.judge(&link, answer) {
                    Verdict::Settled(result) => {
                        return Changed { result: result.map(|reply| reply.body), repeated, by: Some(link) };
                    }
                    Verdict::AskNext => repeated |= !never_arrived,
                }
            }
            let is_answered = attempts.answers > 0 || attempts.routes.links.is_empty();
            if is_answered || began.elapsed() + pause >= self.timeout.min(timeout) {
                return Changed { result: Err(attempts.exhausted()), repeated, by: None };
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(self.backoff.max);
        }
    }

    /// A request on a block that has no payload.
    pub(crate) async fn fill(
        &self,
        version: &FileVersion,
        key: BlockKey,
        offset: u32,
        length: u32,
    ) -> Result<Reply, Failure> {
        let request = Request::on_block(Op::Fill, key, offset, length, self.timeout);
        self.on_block(version, request, None).await
    }

    /// Bytes of a block. From another process, they land in a buffer of `buffers`.
    pub(crate) async fn read(
        &self,
        version: &FileVersion,
        key: BlockKey,
        offset: u32,
        length: u32,
        flags: Flags,
        buffers: &Store,
    ) -> Result<Reply, Failure> {
        let request = Request::on_block(Op::Read, key, offset, length, self.timeout).with_flags(flags);
        self.on_block(version, request, Some(Landing::new(buffers, &mut || None, &*self.connector))).await
    }

    /// The same, landing in what is lent if it can. Whoever sends them checks them.
    pub(crate) async fn read_into(
        &self,
        version: &FileVersion,
        key: BlockKey,
        offset: u32,
        length: u32,
        landing: Landing<'_, '_>,
    ) -> Result<Reply, Failure> {
        let request = Request::on_block(Op::Read, key, offset, length, self.timeout);
        self.on_block(version, request, Some(landing)).await
    }

    async fn on_block(
        &self,
        version: &FileVersion,
        mut request: Request,
        mut landing: Option<Landing<'_, '_>>,
    ) -> Result<Reply, Failure> {
        let replicas = self.replicas_of(request.block.file);
        let mut attempts = self.attempts(PlacementKey::from(&request.block), replicas, self.timeout);
        while let Some((link, left)) = attempts.next() {
            let (_turn, left) = self.downloads.turn(&link, left).await?;
            request.deadline = left;
            let begun = (replicas > 1).then(|| Timed::begin(&link));
            let answer = self.call_described(&link, version, &request, landing.as_mut()).await?;
            if let Some(begun) = begun {
                begun.end(answer.is_ok());
            }
            match attempts.judge(&link, answer) {
                Verdict::Settled(result) => return complete(result?, &request),
                Verdict::AskNext => landing.iter_mut().for_each(|landing| landing.must_land |= attempts.paths > 0),
            }
        }
        Err(attempts.exhausted())
    }

    /// A request on a block to one member, with the description of its file version if it asks for that. It is not sent with
    /// each request because those that hit need none.
    ///
    /// # Errors
    /// When there is no memory to land the answer in.
    pub(crate) async fn call_described(
        &self,
        link: &Link,
        version: &FileVersion,
        request: &Request,
        mut landing: Option<&mut Landing<'_, '_>>,
    ) -> Result<Result<Reply, CallError>, Failure> {
        // Whoever starts a file of one block is likely the first to read it there: the worker shall not have to ask.
        let is_first = request.block.index == 0 && request.offset == 0 && version.size <= u64::from(MAX_BLOCK_SIZE);
        let first = match is_first && !link.is_local {
            true => request.clone().with_body(version.encode().into()),
            false => request.clone(),
        };
        let into = match &mut landing {
            Some(landing) => landing.room(link, request.length).await?,
            None => None,
        };
        let answer = self.counted(link, first, into).await;
        match &answer {
            Err(CallError::Service(failure)) if failure.kind() == FailureKind::NeedsDescription => {}
            _ => return Ok(answer),
        }
        let described = request.clone().with_body(version.encode().into());
        let into = match landing {
            Some(landing) => landing.room(link, request.length).await?,
            None => None,
        };
        Ok(self.counted(link, described, into).await)
    }

    /// A call, and how long it took.
    async fn counted(&self, link: &Link, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        let (op, began) = (request.op, Instant::now());
        let answer = link.transport.call(request, into).await;
        self.stats.called(link.is_local, op, &answer, began.elapsed());
        answer
    }

    /// Has a member that was not told of changes forget whatever it knew.
    ///
    /// # Errors
    /// When it cannot be told of that either: then it is not to be asked, or a client would miss its own write.
    #[cold]
    async fn catch_up(&self, link: &Link, changes: u64) -> Result<(), CallError> {
        self.forget(link, &FsPath::root(), Flags::BELOW).await?;
        link.missed.caught_up(changes);
        Ok(())
    }

    /// Has a member ask the origin again about `path` when it is asked next.
    pub(crate) async fn refresh(&self, link: &Link, path: &FsPath, flags: Flags) -> Result<(), Failure> {
        self.note(link, self.forget(link, path, flags).await).map(|_| ())
    }

    async fn forget(&self, link: &Link, path: &FsPath, flags: Flags) -> Result<Reply, CallError> {
        let within = self.timeout.min(TOLD_WITHIN);
        let request = Request::on_path(Op::Refresh, path.as_bytes().to_vec().into(), within).with_flags(flags);
        link.transport.call(request, None).await
    }

    /// What the answer of one member, asked without failover, says about its health, and the answer.
    pub(crate) fn note(&self, link: &Link, answer: Result<Reply, CallError>) -> Result<Reply, Failure> {
        match &answer {
            Err(CallError::Link(LinkError::OtherPath { .. })) => {}
            Err(CallError::Link(error)) => self.unreachable(link, error),
            Ok(_) | Err(CallError::Service(_)) => reached(link),
        }
        answer.map_err(Failure::from)
    }

    fn unreachable(&self, link: &Link, error: &LinkError) {
        if link.health.lock().failed(Instant::now(), &self.backoff) {
            warn!(worker = %link.member, %error, "worker cannot be reached, its blocks are read through others");
        }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Closes the links and waits until those that nobody used any more are closed, too.
    pub(crate) async fn close(&self) {
        let routes = Arc::clone(&self.routes.load());
        futures::future::join_all(routes.all().map(|link| link.close())).await;
        self.closing.tasks.close();
        self.closing.tasks.wait().await;
        self.connector.close().await;
    }

    fn attempts(&self, key: PlacementKey, replicas: u8, timeout: Duration) -> Attempts<'_> {
        let routes = Arc::clone(&self.routes());
        let turn = if replicas > 1 { self.turns.fetch_add(1, Ordering::Relaxed) } else { 0 };
        Attempts {
            router: self,
            order: routes.order(key, replicas, turn),
            routes,
            passed_over: Vec::new(),
            started: Instant::now(),
            timeout,
            tries: 0,
            answers: 0,
            again: None,
            paths: 0,
            last: None,
        }
    }
}

/// What is wrong with a cluster of nobody.
pub(crate) fn no_workers() -> Failure {
    let message = "there are no workers; start one, or name them with --workers or `cluster.workers`";
    Failure::new(FailureKind::Unavailable, message)
}

fn reached(link: &Link) {
    if link.health.lock().succeeded() {
        info!(worker = %link.member, "worker is back");
    }
}

/// One request that a link's speed is judged by. Dropped before its end, it counts as one that failed.
struct Timed<'a> {
    link: &'a Link,
    begun: Instant,
    answered: bool,
}

impl<'a> Timed<'a> {
    fn begin(link: &'a Link) -> Self {
        link.latency.sent();
        Self { link, begun: Instant::now(), answered: false }
    }

    fn end(mut self, answered: bool) {
        self.answered = answered;
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        self.link.latency.ended(self.answered.then(|| self.begun.elapsed()));
    }
}

/// A reply to a read must carry all the bytes: a service that sends fewer has a fault.
pub(crate) fn complete(reply: Reply, request: &Request) -> Result<Reply, Failure> {
    let length = match &reply.payload {
        Payload::None => 0,
        Payload::Landed(span) => span.len(),
        Payload::Shared(spans) => spans.iter().map(|span| span.len()).sum(),
    };
    if request.op == Op::Read && length != request.length as usize {
        let message = format!("a worker sent {length} of {} bytes of block {}", request.length, request.block);
        return Err(Failure::new(FailureKind::Corrupt, message));
    }
    Ok(reply)
}

/// The way of one request through the workers.
struct Attempts<'a> {
    router: &'a Router,
    routes: Arc<Routes>,
    order: Order,
    /// Members that were left out because they failed lately: a last resort.
    passed_over: Vec<usize>,
    started: Instant,
    /// How long it may take in all.
    timeout: Duration,
    tries: u32,
    answers: u32,
    /// The worker to ask again, over another path.
    again: Option<Arc<Link>>,
    paths: u32,
    last: Option<Failure>,
}

enum Verdict {
    Settled(Result<Reply, Failure>),
    AskNext,
}

/// Paths of one worker that are tried for one request: more than any machine has network cards.
const MAX_PATHS: u32 = 16;

impl Attempts<'_> {
    /// The next worker to ask and how long it may take.
    fn next(&mut self) -> Option<(Arc<Link>, Duration)> {
        let now = Instant::now();
        let left = self.timeout.checked_sub(now - self.started).filter(|left| !left.is_zero())?;
        if self.answers >= MAX_ANSWERS {
            return None;
        }
        if let Some(link) = self.again.take() {
            return Some((link, left));
        }
        let admitted = loop {
            let Some(at) = self.order.next(&self.routes) else { break None };
            if self.routes.links[at].health.lock().admit(now, &self.router.backoff) {
                break Some(at);
            }
            self.passed_over.push(at);
        };
        // Everyone else failed: better a worker that was dead a moment ago than none.
        let at = admitted.or_else(|| (!self.passed_over.is_empty()).then(|| self.passed_over.remove(0)))?;
        self.tries += 1;
        if self.tries > 1 {
            self.router.stats.failovers.fetch_add(1, Ordering::Relaxed);
        }
        Some((Arc::clone(&self.routes.links[at]), left))
    }

    /// The worker that was next is not asked, since it would say what was before a change.
    fn pass_over(&mut self, link: &Arc<Link>, error: CallError) {
        match error {
            CallError::Link(_) => drop(self.judge(link, Err(error))),
            CallError::Service(failure) => {
                self.answers += 1;
                self.last = Some(failure.context(format!("{} could not be told of a change", link.member)));
            }
        }
    }

    fn judge(&mut self, link: &Arc<Link>, answer: Result<Reply, CallError>) -> Verdict {
        match answer {
            Err(CallError::Link(error @ LinkError::OtherPath { .. })) if self.paths < MAX_PATHS => {
                self.paths += 1;
                self.again = Some(Arc::clone(link));
                self.last = Some(CallError::Link(error).into());
                Verdict::AskNext
            }
            Err(CallError::Link(error)) => {
                self.router.unreachable(link, &error);
                self.last = Some(CallError::Link(error).into());
                Verdict::AskNext
            }
            answered => {
                reached(link);
                match answered.map_err(Failure::from) {
                    Err(failure) if failure.kind().is_transient() => {
                        self.answers += 1;
                        self.last = Some(failure);
                        Verdict::AskNext
                    }
                    settled => Verdict::Settled(settled),
                }
            }
        }
    }

    /// Nobody is left to ask.
    fn exhausted(self) -> Failure {
        self.last.unwrap_or_else(|| {
            if self.routes.links.is_empty() {
                return no_workers();
            }
            Failure::new(FailureKind::Unavailable, format!("no worker answered within {:?}", self.timeout))
        })
    }
}
