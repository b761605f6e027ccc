//! Which worker to ask, and which to ask next when it does not answer. What is about blocks is in [`crate::blocks`], what is about
//! names in [`crate::names`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use forebay_cluster::{Backoff, HedgeOptions, Membership, PlacementKey};
use forebay_memory::SpanMut;
use forebay_transport::{CallError, Flags, LinkError, Op, Reply, Request, Transport};
use forebay_types::{Failure, FailureKind, FileId, FsPath};
use moka::sync::Cache;
use tokio_util::task::TaskTracker;

use crate::attempts::{Attempts, Verdict};
use crate::connector::Connector;
use crate::downloads::Downloads;
use crate::hedging::Hedging;
use crate::judge::Judge;
use crate::missed::OwnChanges;
use crate::outage::{Outage, Remedy};
use crate::routes::{Closing, Link, Routes};
use crate::stats::ClientStats;

/// How long a worker that is told of a change may keep its author waiting.
const TOLD_WITHIN: Duration = Duration::from_secs(5);

/// Files that several workers hold each block of, and that are open or were lately: what a client needs to know of them.
const MAX_REPLICATED: u64 = 65_536;

/// What came of a change.
pub(crate) struct Changed {
    /// The body of the answer.
    pub(crate) result: Result<Bytes, Failure>,
    /// Whether it was sent before, to a worker whose answer did not come or was no answer: it may have been made then.
    pub(crate) repeated: bool,
    /// The worker that answered.
    pub(crate) by: Option<Arc<Link>>,
}

pub(crate) struct Router {
    membership: Arc<dyn Membership>,
    pub(crate) connector: Arc<dyn Connector>,
    routes: ArcSwap<Routes>,
    closing: Closing,
    timeout: Duration,
    /// How many workers hold each block of a file; one, of those that are not here.
    replicas: Cache<FileId, u8>,
    /// Whether there ever was a file with several.
    replicates: AtomicBool,
    /// Counts requests on files with several replicas.
    turns: AtomicU64,
    pub(crate) changes: OwnChanges,
    pub(crate) downloads: Downloads,
    pub(crate) hedging: Hedging,
    pub(crate) stats: Arc<ClientStats>,
    pub(crate) judge: Judge,
    pub(crate) away: Away,
}

/// What becomes of requests while no worker can be reached. Changes are tried again in either case.
#[derive(Clone, Default)]
pub enum Away {
    /// They fail.
    #[default]
    Fail,
    /// They wait for one, for as long as a request may take.
    Wait,
    /// This reads the origin for them.
    Origin(Arc<dyn Transport>),
}

impl std::fmt::Debug for Away {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Fail => "Fail",
            Self::Wait => "Wait",
            Self::Origin(_) => "Origin",
        })
    }
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
        let (replicas, replicates) = (Cache::new(MAX_REPLICATED), AtomicBool::new(false));
        let (turns, changes) = (AtomicU64::new(0), OwnChanges::default());
        let judge = Judge { backoff, stats: Arc::clone(&stats), outage: Outage::default(), has_resort: false };
        let router = Self {
            membership,
            connector,
            routes,
            closing,
            timeout,
            replicas,
            replicates,
            turns,
            changes,
            downloads: Downloads::unlimited(),
            hedging: Hedging::new(None, Arc::clone(&stats)),
            stats,
            judge,
            away: Away::Fail,
        };
        router.routes();
        router
    }

    /// With these bounds on requests on blocks to other processes.
    pub(crate) fn limited_to(self, downloads: Downloads) -> Self {
        Self { downloads, ..self }
    }

    /// And with reads hedged so, if at all.
    pub(crate) fn hedged(self, options: Option<HedgeOptions>) -> Self {
        let hedging = Hedging::new(options, Arc::clone(&self.stats));
        Self { hedging, ..self }
    }

    /// And this is done while no worker can be reached.
    pub(crate) fn when_away(mut self, away: Away) -> Self {
        self.judge.has_resort = matches!(away, Away::Origin(_));
        Self { away, ..self }
    }

    /// The routes as they are now.
    pub(crate) fn routes(&self) -> arc_swap::Guard<Arc<Routes>> {
        let topology = self.membership.topology();
        let routes = self.routes.load();
        if Arc::ptr_eq(&routes.topology, &topology) { routes } else { self.reroute(&topology) }
    }

    /// The routes as they were when a request last had to look. A hit needs to know only the worker in this process,
    /// and need not know it to the moment. Nothing that readers share is written to.
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

    pub(crate) fn replicas_of(&self, file: FileId) -> u8 {
        // Most clients never see a file with several, and do not pay for them.
        if self.replicates.load(Ordering::Relaxed) { self.replicas.get(&file).unwrap_or(1) } else { 1 }
    }

    /// A change, to the worker that owns `key`. When no worker at all can be reached, it is tried again, for as long as a
    /// question may take: a worker that is being restarted costs a writer no error.
    pub(crate) async fn change(&self, key: PlacementKey, mut request: Request, timeout: Duration) -> Changed {
        let began = tokio::time::Instant::now();
        let mut pause = self.judge.backoff.initial;
        let mut repeated = false;
        loop {
            let mut attempts = self.attempts(key, 1, timeout.saturating_sub(began.elapsed()));
            while let Some((link, left)) = attempts.next() {
                request.deadline = left;
                let answer = self.counted(&link, request.clone(), None).await;
                let was_not_made = match &answer {
                    Err(CallError::Link(error)) => {
                        matches!(
                            error,
                            LinkError::Connect { .. } | LinkError::Refused { .. } | LinkError::Unproved { .. }
                        )
                    }
                    Err(CallError::Service(failure)) => failure.kind() == FailureKind::NotReady,
                    Ok(_) => false,
                };
                match attempts.judge(&link, answer) {
                    Verdict::Settled(result) => {
                        return Changed { result: result.map(|reply| reply.body), repeated, by: Some(link) };
                    }
                    Verdict::AskNext => repeated |= !was_not_made,
                }
            }
            let is_final = attempts.is_answered() || attempts.is_denied() || attempts.routes.links.is_empty();
            let left = self.timeout.min(timeout).saturating_sub(began.elapsed());
            if is_final || left.is_zero() {
                return Changed { result: Err(attempts.exhausted()), repeated, by: None };
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 2).min(self.judge.backoff.max);
        }
    }

    /// No worker is left to ask, unless one has joined meanwhile. When no worker can be reached, or none is ready, it
    /// may be worth waiting for one. `None`: workers are to be asked again. Otherwise the outcome of the request;
    /// `request` has all that a worker needs that has never heard of its file.
    #[cold]
    pub(crate) async fn when_all_are_silent(
        &self,
        attempts: &mut Attempts<'_>,
        request: &Request,
    ) -> Option<Result<Reply, Failure>> {
        if attempts.go_on(&self.routes(), self.turn(attempts.replicas())) {
            return None;
        }
        let outage = &self.judge.outage;
        match &self.away {
            Away::Origin(origin) if attempts.reached_nobody() => {
                if !attempts.is_not_ready() {
                    outage.begin(attempts.cause(), Remedy::Origin, &self.stats);
                }
                self.stats.direct_requests.fetch_add(1, Ordering::Relaxed);
                let request = Request { deadline: attempts.left(), ..request.clone() };
                Some(origin.call(request, None).await.map_err(Failure::from))
            }
            Away::Wait if attempts.reached_nobody() && !outage.is_first() => {
                let goes_on = match attempts.is_not_ready() {
                    true => outage.pause_for_one(attempts.pauses(), &self.stats).await,
                    false => {
                        outage.begin(attempts.cause(), Remedy::Wait(self.timeout), &self.stats);
                        outage.pause(attempts.pauses(), &self.stats).await
                    }
                };
                if !goes_on {
                    return Some(Err(attempts.exhausted()));
                }
                attempts.renew(Arc::clone(&self.routes()), self.turn(attempts.replicas()));
                None
            }
            _ => Some(Err(attempts.exhausted())),
        }
    }

    /// A call, and how long it took.
    pub(crate) async fn counted(
        &self,
        link: &Link,
        request: Request,
        into: Option<SpanMut>,
    ) -> Result<Reply, CallError> {
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
    pub(crate) async fn catch_up(&self, link: &Link, changes: u64, left: Duration) -> Result<(), CallError> {
        match self.forget(link, &FsPath::root(), Flags::BELOW, left).await {
            // Who may not have it forget may not write either: it has tried to, and has no write of its own to miss.
            Err(CallError::Service(refused)) if refused.kind() == FailureKind::PermissionDenied => {}
            told => drop(told?),
        }
        link.missed.caught_up(changes);
        Ok(())
    }

    /// Has a member ask the origin again about `path` when it is asked next.
    pub(crate) async fn refresh(&self, link: &Link, path: &FsPath, flags: Flags) -> Result<(), Failure> {
        self.note(link, self.forget(link, path, flags, self.timeout).await).map(|_| ())
    }

    async fn forget(&self, link: &Link, path: &FsPath, flags: Flags, left: Duration) -> Result<Reply, CallError> {
        let within = left.min(TOLD_WITHIN);
        let request = Request::on_path(Op::Refresh, path.as_bytes().to_vec().into(), within).with_flags(flags);
        link.transport.call(request, None).await
    }

    /// What the answer of one member, asked without failover, says about its health, and the answer.
    pub(crate) fn note(&self, link: &Link, answer: Result<Reply, CallError>) -> Result<Reply, Failure> {
        self.judge.note(link, answer)
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Closes the links, and waits until those that were out of use already are closed, too.
    pub(crate) async fn close(&self) {
        let routes = Arc::clone(&self.routes.load());
        futures::future::join_all(routes.all().map(|link| link.close())).await;
        self.closing.tasks.close();
        self.closing.tasks.wait().await;
        self.connector.close().await;
    }

    pub(crate) fn attempts(&self, key: PlacementKey, replicas: u8, timeout: Duration) -> Attempts<'_> {
        let of = (key, replicas, self.turn(replicas));
        Attempts::new(&self.judge, Arc::clone(&self.routes()), of, timeout)
    }

    fn turn(&self, replicas: u8) -> u64 {
        if replicas > 1 { self.turns.fetch_add(1, Ordering::Relaxed) } else { 0 }
    }
}
