//! Which worker to ask, and whom to ask next when it does not answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use forebay_cluster::{Backoff, Health, Member, Membership, PlacementKey, Ring};
use forebay_memory::SpanMut;
use forebay_store::Store;
use forebay_transport::{CallError, Flags, LinkError, Op, Payload, Reply, Request, Transport, TransportKind};
use forebay_types::{BlockKey, Failure, FailureKind, FileVersion};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tracing::{info, warn};

use crate::stats::ClientStats;

/// Workers that are asked about one request when those before them answered that they cannot: three origins that are
/// down are one origin that is down.
const MAX_ANSWERS: u32 = 3;

/// Makes links to workers. A link is made when the member is first seen and connects when it is first used.
pub trait Connector: Send + Sync + 'static {
    /// A link to `member`.
    fn connect(&self, member: &Member) -> Arc<dyn Transport>;

    /// How the links are and what was counted of them, for people and monitoring.
    fn report(&self) -> serde_json::Value {
        serde_json::Value::Null
    }

    /// Ends what the links share. They are closed before.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// A link to a member, and whether it is worth using.
pub(crate) struct Link {
    pub(crate) member: Arc<str>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) local: bool,
    health: Mutex<Health>,
}

/// A ring and the links to its members, in step.
pub(crate) struct Routes {
    pub(crate) ring: Arc<Ring>,
    pub(crate) links: Vec<Arc<Link>>,
    /// Whether any link is local.
    pub(crate) local: bool,
}

pub(crate) struct Router {
    membership: Arc<dyn Membership>,
    pub(crate) connector: Arc<dyn Connector>,
    routes: ArcSwap<Routes>,
    backoff: Backoff,
    timeout: Duration,
    pub(crate) stats: Arc<ClientStats>,
}

impl Router {
    pub(crate) fn new(
        membership: Arc<dyn Membership>,
        connector: Arc<dyn Connector>,
        backoff: Backoff,
        timeout: Duration,
        stats: Arc<ClientStats>,
    ) -> Self {
        let routes = ArcSwap::from_pointee(Routes { ring: Arc::default(), links: Vec::new(), local: false });
        let router = Self { membership, connector, routes, backoff, timeout, stats };
        router.routes();
        router
    }

    /// The routes as they are now.
    pub(crate) fn routes(&self) -> arc_swap::Guard<Arc<Routes>> {
        let ring = self.membership.ring();
        let routes = self.routes.load();
        if Arc::ptr_eq(&routes.ring, &ring) { routes } else { self.reroute(ring) }
    }

    #[cold]
    fn reroute(&self, ring: Arc<Ring>) -> arc_swap::Guard<Arc<Routes>> {
        self.routes.rcu(|old| {
            let known: HashMap<&str, &Arc<Link>> = old.links.iter().map(|link| (&*link.member, link)).collect();
            let link = |member: &Member| match known.get(&*member.name) {
                Some(link) if link.transport.peer() == &*member.address => Arc::clone(link),
                _ => Arc::new(self.link(member)),
            };
            let links: Vec<_> = ring.members().iter().map(link).collect();
            Routes { local: links.iter().any(|link| link.local), ring: Arc::clone(&ring), links }
        });
        self.routes.load()
    }

    fn link(&self, member: &Member) -> Link {
        let transport = self.connector.connect(member);
        let local = transport.kind() == TransportKind::Local;
        Link { member: Arc::clone(&member.name), transport, local, health: Mutex::default() }
    }

    /// Calls about `key`, worker after worker, until one answers what settles the matter.
    ///
    /// `request` makes the request for the time that is left; `into` makes the buffer for each attempt.
    async fn call(&self, key: PlacementKey, mut request: Request) -> Result<Reply, Failure> {
        let mut attempts = self.attempts(key);
        while let Some((link, left)) = attempts.next() {
            request.deadline = left;
            match attempts.judge(&link, link.transport.call(request.clone(), None).await) {
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
        Ok(self.call(key, request).await?.body)
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
        self.on_block(version, request, Some(buffers)).await
    }

    async fn on_block(
        &self,
        version: &FileVersion,
        mut request: Request,
        buffers: Option<&Store>,
    ) -> Result<Reply, Failure> {
        let mut attempts = self.attempts(PlacementKey::from(&request.block));
        while let Some((link, left)) = attempts.next() {
            request.deadline = left;
            let mut answer = link.transport.call(request.clone(), landing(&link, buffers, request.length).await?).await;
            // A worker that has never heard of this version asks for its description; the description is not sent
            // with each request because those that hit need none.
            if matches!(&answer, Err(CallError::Service(failure)) if failure.kind() == FailureKind::NeedsDescription) {
                let described = request.clone().with_body(version.encode().into());
                answer = link.transport.call(described, landing(&link, buffers, request.length).await?).await;
            }
            match attempts.judge(&link, answer) {
                Verdict::Settled(result) => return checked(result?, &request),
                Verdict::AskNext => {}
            }
        }
        Err(attempts.exhausted())
    }

    /// A request to one member, without failover.
    pub(crate) async fn ask_member(&self, link: &Link, request: Request) -> Result<Reply, Failure> {
        Ok(link.transport.call(request, None).await?)
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    fn attempts(&self, key: PlacementKey) -> Attempts<'_> {
        let routes = Arc::clone(&self.routes());
        let ranked = match routes.links.len() {
            1 => vec![0],
            _ => routes.ring.ranked(key),
        };
        Attempts {
            router: self,
            routes,
            ranked: ranked.into_iter(),
            passed_over: Vec::new(),
            started: Instant::now(),
            tries: 0,
            answers: 0,
            again: None,
            paths: 0,
            last: None,
        }
    }
}

/// A reply to a read must carry all the bytes: a service that sends fewer has a fault.
fn checked(reply: Reply, request: &Request) -> Result<Reply, Failure> {
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

async fn landing(link: &Link, buffers: Option<&Store>, length: u32) -> Result<Option<SpanMut>, Failure> {
    match buffers {
        Some(buffers) if !link.local => Ok(Some(buffers.landing(length).await?)),
        _ => Ok(None),
    }
}

/// The way of one request through the workers.
struct Attempts<'a> {
    router: &'a Router,
    routes: Arc<Routes>,
    ranked: std::vec::IntoIter<usize>,
    /// Members that were left out because they failed lately: a last resort.
    passed_over: Vec<usize>,
    started: Instant,
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
        let left = self.router.timeout.checked_sub(now - self.started).filter(|left| !left.is_zero())?;
        if self.answers >= MAX_ANSWERS {
            return None;
        }
        if let Some(link) = self.again.take() {
            return Some((link, left));
        }
        let admitted = loop {
            let Some(at) = self.ranked.next() else { break None };
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

    fn judge(&mut self, link: &Arc<Link>, answer: Result<Reply, CallError>) -> Verdict {
        match answer {
            Err(CallError::Link(error @ LinkError::OtherPath { .. })) if self.paths < MAX_PATHS => {
                self.paths += 1;
                self.again = Some(Arc::clone(link));
                self.last = Some(CallError::Link(error).into());
                Verdict::AskNext
            }
            Err(CallError::Link(error)) => {
                if link.health.lock().failed(Instant::now(), &self.router.backoff) {
                    warn!(worker = %link.member, %error, "worker cannot be reached, its blocks are read through others");
                }
                self.last = Some(CallError::Link(error).into());
                Verdict::AskNext
            }
            answered => {
                if link.health.lock().succeeded() {
                    info!(worker = %link.member, "worker is back");
                }
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
            let message = if self.routes.links.is_empty() {
                "there are no workers; start one, or name them with --workers or `cluster.workers`".to_owned()
            } else {
                format!("no worker answered within {:?}", self.router.timeout)
            };
            Failure::new(FailureKind::Unavailable, message)
        })
    }
}
