//! What the paths to one worker share: which there are, what is under way over each, and what is found out of those
//! that are down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use forebay_cluster::HedgeBudget;
use forebay_locks::Mutex;
use forebay_memory::{Pool, SpanMut};
use forebay_transport::{CallError, Op, Request, Transport};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::cards::CardTraffic;
use super::selector::{PathKind, PathPolicy, PathSelector, Ping, Switch};
use super::stats::PathStats;
use super::striped::may_be_divided;
use super::striping::{Division, Ended, Sent};

/// One way to a worker.
pub struct Path {
    /// What it is, for logs: `tcp`, or the network card.
    pub name: String,
    /// Whether it is one of those that are preferred.
    pub kind: PathKind,
    /// Its link.
    pub link: Arc<dyn Transport>,
    /// The card of this host that it goes over, if it goes over one.
    pub card: Option<Arc<CardTraffic>>,
}

/// How the paths of workers are used.
#[derive(Clone, Debug)]
pub struct PathOptions {
    /// When which path is used.
    pub policy: PathPolicy,
    /// The longest that a request over RDMA may take before another path is tried.
    pub operation_timeout: Duration,
    /// Has large reads of a worker that is reached over several cards divided among these, if they land in this memory,
    /// of which what has to be asked for again gets some; none: every request goes over one card.
    pub striping: Option<Pool>,
}

/// The paths of one worker.
pub(super) struct PathsShared {
    pub(super) worker: String,
    pub(super) paths: Vec<Path>,
    pub(super) selector: Mutex<PathSelector>,
    /// The longest that a request over RDMA may take before another path is tried.
    pub(super) operation_timeout: Duration,
    /// Memory for parts of reads; none where no read is divided.
    pub(super) spare: Option<Pool>,
    /// How many parts may be asked for twice.
    pub(super) budget: HedgeBudget,
    pub(super) stats: Arc<PathStats>,
    pub(super) random: AtomicU64,
    /// Whether a path is down: calls look at this, and at the selector only for a path.
    pub(super) is_down: AtomicBool,
    /// What is due may have changed.
    pub(super) changed: Notify,
    /// A probe has ended.
    pub(super) probed: Notify,
    /// Told when a path goes down.
    pub(super) fallen: Arc<Notify>,
    pub(super) stop: CancellationToken,
}

/// A request under way over a path; dropped when its caller leaves.
pub(super) struct InFlight<'a> {
    pub(super) shared: &'a PathsShared,
    pub(super) path: usize,
    /// What was noted of it for its path, and its bytes, where reads are striped.
    pub(super) sent: Option<(Sent, u32)>,
}

impl InFlight<'_> {
    /// It has ended: what follows says how.
    pub(super) fn end(self) -> Option<(Sent, u32)> {
        let sent = self.sent;
        std::mem::forget(self);
        sent
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut selector = self.shared.selector.lock();
        if selector.left(self.path, Instant::now().into_std()) {
            // Where no task looks yet, the next request has one begin to.
            self.shared.changed.notify_one();
        }
        self.shared.ended(&mut selector, self.path, self.sent, Ended::Otherwise);
    }
}

impl PathsShared {
    /// A request for `bytes` is sent over `path`, as `selector` knows.
    pub(super) fn sent(&self, selector: &mut PathSelector, path: usize, bytes: u32, now: Instant) -> InFlight<'_> {
        let sent = selector.loads().and_then(|loads| loads.sent(path, bytes, now.into_std()));
        if let (Some(_), Some(card)) = (sent, &self.paths[path].card) {
            card.sent(bytes);
        }
        InFlight { shared: self, path, sent: sent.map(|sent| (sent, bytes)) }
    }

    /// That request ended.
    pub(super) fn ended(&self, selector: &mut PathSelector, path: usize, sent: Option<(Sent, u32)>, how: Ended) {
        let Some((sent, bytes)) = sent else { return };
        if let Some(loads) = selector.loads() {
            loads.ended(path, sent, how, Instant::now().into_std());
        }
        if let Some(card) = &self.paths[path].card {
            card.ended(bytes);
        }
    }

    /// Tells the selector what goes over its cards to other workers.
    pub(super) fn look_at_cards(&self, selector: &mut PathSelector) {
        let Some(loads) = selector.loads() else { return };
        for (number, path) in self.paths.iter().enumerate() {
            if let Some(card) = &path.card {
                loads.on_card(number, card.in_flight());
            }
        }
    }

    /// How a read is divided among cards; none: it is not. Those that land in a buffer of somebody else's never are: a part
    /// that is late, and came over another card meanwhile, would keep that, and a mount answers when it has it back.
    pub(super) fn divide(&self, request: &Request, into: Option<&SpanMut>) -> Option<Division> {
        if !may_be_divided(request) {
            return None;
        }
        let (pool, into) = self.spare.as_ref().zip(into)?;
        if into.len() < request.length as usize || !into.is_of(pool) {
            return None;
        }
        let mut selector = self.selector.lock();
        self.look_at_cards(&mut selector);
        let division = selector.divide(request.length, Instant::now().into_std())?;
        self.budget.read();
        Some(division)
    }

    /// SplitMix64: good enough to spread requests, and nothing to lock.
    pub(super) fn random(&self) -> u64 {
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
    pub(super) async fn watch(self: Arc<Self>) {
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
    pub(super) fn judge(
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
