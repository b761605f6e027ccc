//! A link to a worker of which only the TCP address is known: it asks the worker for its other paths when it is first used.
//!
//! A worker that comes back may listen elsewhere, or have gained RDMA. So the link asks again while a path is down or the
//! worker has offered none, no more often than paths are probed, in a task of its own that needs no reader; when the answer
//! has changed, new paths take the place of the old ones, whose calls under way end as they will.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use forebay_locks::Mutex;
use forebay_memory::SpanMut;
use forebay_transport::message::PathsReply;
use forebay_transport::{CallError, LinkError, Op, Reply, Request, Transport, TransportKind};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::{debug, info};

use super::selector::{Fallback, PathKind, PathPolicy, PathSelector};
use super::shared::{Path, PathOptions};
use super::stats::{PathStats, WorkerReport};
use super::transport::{PROBE_PATIENCE, PathsTransport, is_for_tcp};

/// The paths over RDMA to a worker.
pub struct WorkerPaths {
    /// For reads and fills; or why there are none.
    pub data: Result<Vec<Path>, String>,
    /// For attributes and listings.
    pub metadata: Vec<Path>,
}

/// Makes the paths over RDMA of what a worker says of itself.
pub trait PathMaker: Send + Sync + 'static {
    /// The paths to the worker that `tcp` leads to, and which offers `paths`; none when they are of no use here.
    fn paths(&self, tcp: &Arc<dyn Transport>, paths: &PathsReply) -> WorkerPaths;
}

/// The link.
pub struct WorkerLink {
    shared: Arc<WorkerLinkShared>,
    _stop: DropGuard,
}

struct WorkerLinkShared {
    tcp: Arc<dyn Transport>,
    maker: Arc<dyn PathMaker>,
    options: PathOptions,
    stats: Arc<PathStats>,
    found: ArcSwapOption<Found>,
    /// Held by the call that asks the worker for its paths the first time.
    asking: tokio::sync::Mutex<()>,
    /// When it last did not answer the first question, and how.
    refused: Mutex<Option<(Instant, CallError)>>,
    /// A path went down.
    fallen: Arc<Notify>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// What the worker said, and what became of it.
struct Found {
    offered: PathsReply,
    data: Arc<PathsTransport>,
    metadata: Arc<PathsTransport>,
    /// Whether there is any RDMA in it.
    has_rdma: bool,
}

impl Found {
    /// Whether the worker is not to be asked again.
    fn is_well(&self) -> bool {
        self.has_rdma && self.data.is_whole() && self.metadata.is_whole()
    }
}

impl WorkerLink {
    /// A link to the worker that `tcp` leads to.
    #[must_use]
    pub fn new(
        tcp: Arc<dyn Transport>,
        maker: Arc<dyn PathMaker>,
        options: PathOptions,
        stats: Arc<PathStats>,
    ) -> Self {
        let stop = CancellationToken::new();
        let shared = WorkerLinkShared {
            tcp,
            maker,
            options,
            stats,
            found: ArcSwapOption::empty(),
            asking: tokio::sync::Mutex::default(),
            refused: Mutex::default(),
            fallen: Arc::default(),
            stop: stop.clone(),
            tasks: TaskTracker::new(),
        };
        Self { shared: Arc::new(shared), _stop: stop.drop_guard() }
    }

    /// How the worker's paths are.
    #[must_use]
    pub fn report(&self) -> WorkerReport {
        let (data, metadata) = match &*self.shared.found.load() {
            Some(found) => (found.data.report(), found.metadata.report()),
            None => Default::default(),
        };
        WorkerReport { worker: self.shared.tcp.peer().to_owned(), data, metadata }
    }
}

impl WorkerLinkShared {
    /// The paths. The first caller asks for them; callers that come meanwhile get the same answer.
    async fn first(self: &Arc<Self>, deadline: Duration) -> Result<Arc<Found>, CallError> {
        let timed_out = || LinkError::TimedOut { peer: self.tcp.peer().to_owned(), waited: deadline };
        let began = Instant::now();
        let _asking = tokio::time::timeout(deadline, self.asking.lock()).await.map_err(|_| timed_out())?;
        if let Some(found) = self.found.load_full() {
            return Ok(found);
        }
        if let Some((at, error)) = &*self.refused.lock()
            && *at > began
        {
            return Err(error.clone());
        }
        let offered = match self.ask(deadline.saturating_sub(began.elapsed())).await {
            Ok(offered) => offered,
            Err(error) => {
                *self.refused.lock() = Some((Instant::now(), error.clone()));
                return Err(error);
            }
        };
        let found = Arc::new(self.made(offered, None));
        self.found.store(Some(Arc::clone(&found)));
        self.tasks.spawn(Arc::clone(self).renew());
        Ok(found)
    }

    /// Asks again whenever there is a reason to and it is time, until the link is given up.
    async fn renew(self: Arc<Self>) {
        let every = self.options.policy.probe_after();
        let mut asked = Instant::now();
        loop {
            let is_well = self.found.load().as_ref().is_some_and(|found| found.is_well());
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.fallen.notified(), if is_well => continue,
                () = tokio::time::sleep_until(asked + every), if !is_well => {}
            }
            if self.found.load().as_ref().is_some_and(|found| found.is_well()) {
                continue;
            }
            asked = Instant::now();
            let offered = tokio::select! {
                () = self.stop.cancelled() => return,
                offered = self.ask(self.options.operation_timeout) => offered,
            };
            match offered {
                Ok(offered) => self.take(offered),
                Err(error) => debug!(worker = self.tcp.peer(), %error, "the worker does not say how to reach it"),
            }
        }
    }

    /// Why a request fails that no path may be used for: it may be that the worker is away, or that identities do not fit.
    #[cold]
    async fn refusal(&self, peer: String, reason: String, deadline: Duration) -> LinkError {
        let ping = Request::on_path(Op::Ping, Bytes::new(), deadline.min(PROBE_PATIENCE));
        match self.tcp.call(ping, None).await {
            Err(CallError::Link(unproved @ LinkError::Unproved { .. })) => unproved,
            Err(CallError::Link(_)) => LinkError::Connect { peer, reason },
            Ok(_) | Err(CallError::Service(_)) => LinkError::NotAllowed { peer, reason },
        }
    }

    async fn ask(&self, deadline: Duration) -> Result<PathsReply, CallError> {
        let reply = self.tcp.call(Request::on_path(Op::Paths, Bytes::new(), deadline), None).await?;
        let wrong = |failure: forebay_types::Failure| LinkError::Protocol {
            peer: self.tcp.peer().to_owned(),
            reason: failure.to_string(),
        };
        Ok(PathsReply::decode(&reply.body).map_err(wrong)?)
    }

    /// What to make of an offer. What is offered as before stays as it is; what takes the place of paths that are all down
    /// is probed first.
    fn made(&self, offered: PathsReply, old: Option<&Found>) -> Found {
        let WorkerPaths { data, metadata } = self.maker.paths(&self.tcp, &offered);
        let has_rdma = data.as_ref().is_ok_and(|paths| !paths.is_empty()) || !metadata.is_empty();
        let data = match old.filter(|old| old.offered.has_data_of(&offered)) {
            Some(old) => Arc::clone(&old.data),
            None => self.transport(data, self.options.clone(), old.map(|old| &*old.data)),
        };
        // Attributes are never worth an error.
        let policy = PathPolicy { fallback: Fallback::Auto, ..self.options.policy };
        let metadata = match old.filter(|old| old.offered.has_metadata_of(&offered)) {
            Some(old) => Arc::clone(&old.metadata),
            None => {
                let options = PathOptions { policy, striping: None, ..self.options.clone() };
                self.transport(Ok(metadata), options, old.map(|old| &*old.metadata))
            }
        };
        Found { offered, data, metadata, has_rdma }
    }

    fn transport(
        &self,
        rdma: Result<Vec<Path>, String>,
        options: PathOptions,
        old: Option<&PathsTransport>,
    ) -> Arc<PathsTransport> {
        let (mut paths, without) = match rdma {
            Ok(paths) => (paths, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        paths.push(Path { name: "tcp".to_owned(), kind: PathKind::Tcp, link: Arc::clone(&self.tcp), card: None });
        let mut selector = PathSelector::new(options.policy, paths.iter().map(|path| path.kind));
        if let Some(reason) = without {
            selector = selector.without_because(reason);
        }
        if old.is_some_and(PathsTransport::has_fallen) {
            selector = selector.on_probation("it took the place of one that failed", Instant::now().into_std());
        }
        let (worker, stats) = (self.tcp.peer().to_owned(), Arc::clone(&self.stats));
        let (tasks, fallen) = (self.tasks.clone(), Arc::clone(&self.fallen));
        Arc::new(PathsTransport::with_selector(worker, paths, selector, options, stats, tasks, fallen))
    }

    /// New paths, if they have changed.
    fn take(&self, offered: PathsReply) {
        let old = self.found.load_full();
        if old.as_ref().is_some_and(|old| old.offered == offered) {
            return;
        }
        info!(worker = self.tcp.peer(), %offered, "the worker is reached by other paths than before");
        self.stats.renewed.fetch_add(1, Ordering::Relaxed);
        self.found.store(Some(Arc::new(self.made(offered, old.as_deref()))));
    }
}

#[async_trait::async_trait]
impl Transport for WorkerLink {
    async fn call(&self, mut request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        if is_for_tcp(request.op) {
            return self.shared.tcp.call(request, into).await;
        }
        let found = match self.shared.found.load_full() {
            Some(found) => found,
            None => {
                let began = Instant::now();
                let found = self.shared.first(request.deadline).await?;
                request.deadline = request.deadline.saturating_sub(began.elapsed());
                found
            }
        };
        match request.op {
            Op::Read | Op::Fill | Op::StatRead => {
                let deadline = request.deadline;
                match found.data.call(request, into).await {
                    Err(CallError::Link(LinkError::NotAllowed { peer, reason })) => {
                        Err(Box::pin(self.shared.refusal(peer, reason, deadline)).await.into())
                    }
                    answer => answer,
                }
            }
            Op::Stat | Op::List => found.metadata.call(request, into).await,
            _ => self.shared.tcp.call(request, into).await,
        }
    }

    fn kind(&self) -> TransportKind {
        self.shared.found.load().as_ref().map_or(TransportKind::Tcp, |found| found.data.kind())
    }

    fn peer(&self) -> &str {
        self.shared.tcp.peer()
    }

    async fn close(&self) {
        let close_found = || async {
            if let Some(found) = self.shared.found.load_full() {
                tokio::join!(found.data.close(), found.metadata.close());
            }
        };
        self.shared.stop.cancel();
        // Paths are asked for over TCP.
        self.shared.tcp.close().await;
        close_found().await;
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        // Those that were found meanwhile.
        close_found().await;
    }
}
