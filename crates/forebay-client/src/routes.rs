//! The links to workers, in step with the members of the cluster.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_cluster::{LatencyRecord, Member, PlacementKey, Ranked, Topology, favour};
use forebay_locks::Mutex;
use forebay_transport::{Op, PeerMemory, Transport, TransportKind};
use tokio_util::task::TaskTracker;

use crate::connector::Connector;
use crate::missed::{Missed, OwnChanges};
use crate::speed::Speed;

/// Workers that are looked up for a request at first, besides its replicas: most requests need one, the others only when it
/// fails.
const AT_FIRST: usize = 2;

/// A link to a member, and whether it is worth using. It is closed when it is no longer in use.
pub(crate) struct Link {
    pub(crate) member: Arc<str>,
    /// The address of the member; the transport may call its peer otherwise.
    address: Arc<str>,
    /// Who has to listen there.
    identity: Option<Arc<str>>,
    pub(crate) transport: Arc<dyn Transport>,
    /// Whether it leads to the worker in this process.
    pub(crate) is_local: bool,
    pub(crate) health: Mutex<forebay_cluster::Health>,
    pub(crate) latency: LatencyRecord,
    /// How it keeps up with reads.
    pub(crate) speed: Speed,
    /// The same with questions about names, which it may answer well while its disks are slow, and the other way round.
    names: Speed,
    /// Changes of names that the member was not told of.
    pub(crate) missed: Arc<Missed>,
    closing: Closing,
    closed: AtomicBool,
}

/// Where links are closed in the background.
#[derive(Clone)]
pub(crate) struct Closing {
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) tasks: TaskTracker,
}

impl Link {
    fn new(member: &Member, connector: &dyn Connector, closing: &Closing, changes: &OwnChanges) -> Self {
        let transport = connector.connect(member);
        let is_local = transport.kind() == TransportKind::Local;
        Self {
            member: Arc::clone(&member.name),
            address: Arc::clone(&member.address),
            identity: member.identity.clone(),
            transport,
            is_local,
            health: Mutex::default(),
            latency: LatencyRecord::default(),
            speed: Speed::default(),
            names: Speed::of_names(),
            missed: changes.missed_by(&member.name),
            closing: closing.clone(),
            closed: AtomicBool::new(false),
        }
    }

    /// Whether it leads there, and demands that identity.
    fn leads_to(&self, member: &Member) -> bool {
        self.address == member.address && self.identity == member.identity
    }

    /// How it keeps up with requests like `op`.
    #[inline]
    pub(crate) fn speed_of(&self, op: Op) -> &Speed {
        match op {
            Op::Stat | Op::StatRead | Op::List => &self.names,
            _ => &self.speed,
        }
    }

    /// Whether what it reads is shown where the worker has it, so that it needs no buffer here: now, it may change.
    #[inline]
    pub(crate) fn is_near(&self) -> bool {
        self.transport.memory().is_some_and(PeerMemory::is_open)
    }

    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.transport.close().await;
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if !self.closed.load(Ordering::Relaxed) {
            let transport = Arc::clone(&self.transport);
            self.closing.tasks.spawn_on(async move { transport.close().await }, &self.closing.runtime);
        }
    }
}

/// The members as they are, and a link to each.
pub(crate) struct Routes {
    pub(crate) topology: Arc<Topology>,
    /// How often blocks came to have other owners.
    pub(crate) placement: u64,
    /// In step with the members of the ring.
    pub(crate) links: Vec<Arc<Link>>,
    /// Links to those that are leaving.
    pub(crate) leaving: Vec<Arc<Link>>,
    /// Links to those that own nothing yet.
    damped: Vec<Arc<Link>>,
    /// The link to the worker in this process.
    pub(crate) local: Option<Arc<Link>>,
    /// Whether there is a link that may ever be near.
    may_be_near: bool,
}

impl Routes {
    pub(crate) fn none() -> Self {
        let (links, leaving, damped) = (Vec::new(), Vec::new(), Vec::new());
        Self { topology: Arc::default(), placement: 0, links, leaving, damped, local: None, may_be_near: false }
    }

    /// Routes to the members of `topology`, with the links of these routes where they lead to the same member at the same address.
    pub(crate) fn renewed(
        &self,
        topology: &Arc<Topology>,
        connector: &dyn Connector,
        closing: &Closing,
        changes: &OwnChanges,
    ) -> Self {
        changes.reroute(&self.topology, topology);
        let known: HashMap<&str, &Arc<Link>> = self.all().map(|link| (&*link.member, link)).collect();
        let link = |member: &Member| match known.get(&*member.name) {
            Some(link) if link.leads_to(member) => Arc::clone(link),
            _ => Arc::new(Link::new(member, connector, closing, changes)),
        };
        let links: Vec<_> = topology.ring.members().iter().map(link).collect();
        let leaving: Vec<_> = topology.leaving.iter().map(link).collect();
        let damped: Vec<_> = topology.damped.iter().map(link).collect();
        let local = links.iter().chain(&leaving).chain(&damped).find(|link| link.is_local).map(Arc::clone);
        let may_be_near = links.iter().any(|link| link.transport.memory().is_some_and(PeerMemory::may_open));
        let placement = self.placement + u64::from(self.topology.ring != topology.ring);
        Self { topology: Arc::clone(topology), placement, links, leaving, damped, local, may_be_near }
    }

    /// Every link, of those that own nothing too.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.links.iter().chain(&self.leaving).chain(&self.damped)
    }

    /// The link to the member called `name`.
    pub(crate) fn link(&self, name: &str) -> Option<&Arc<Link>> {
        self.all().find(|link| &*link.member == name)
    }

    /// The links to the workers that own `key` when so many own each, in rendezvous order.
    pub(crate) fn owners(&self, key: PlacementKey, replicas: u8) -> impl Iterator<Item = &Arc<Link>> {
        let first = self.topology.ring.first(key, usize::from(replicas.max(1)));
        first.into_iter().map(|at| &self.links[at])
    }

    /// The worker to ask for `key` with `op` while `link` does not answer, which none of `asked` is.
    #[cold]
    pub(crate) fn another(
        &self,
        link: &Link,
        (key, replicas): (PlacementKey, u8),
        op: Op,
        asked: &[Arc<Link>],
    ) -> Option<Arc<Link>> {
        let others = self.topology.in_place_of(&link.member, key, usize::from(replicas));
        let mut others = others.into_iter().filter_map(|member| self.link(&member.name));
        let is_worth_it = |other: &&Arc<Link>| {
            let is_asked = asked.iter().any(|asked| Arc::ptr_eq(asked, other));
            !is_asked && !other.speed_of(op).is_slow() && !other.health.lock().is_down()
        };
        others.find(is_worth_it).map(Arc::clone)
    }

    /// Whether the worker in this process is one of the owners of `key`.
    pub(crate) fn is_local(&self, key: PlacementKey, replicas: u8) -> bool {
        self.local.is_some() && self.owners(key, replicas).any(|link| link.is_local)
    }

    /// Whether a worker whose memory this process sees is one of the owners of `key`. It may be another story when it is asked.
    pub(crate) fn is_near(&self, key: PlacementKey, replicas: u8) -> bool {
        self.may_be_near && self.owners(key, replicas).any(|link| link.is_near())
    }

    /// Bytes of memory of workers in other processes that are seen here: of the one that shows least.
    pub(crate) fn memory_seen(&self) -> u64 {
        self.seen().min().unwrap_or(0)
    }

    /// How far ahead all readers together may be if no more than one `part`th of the memory that is seen is to be held for them, where
    /// each worker owns as much of what they read as every other. Without bound where none is seen.
    pub(crate) fn ahead(&self, part: u64) -> u64 {
        if !self.may_be_near {
            return u64::MAX;
        }
        let ahead = self.memory_seen().saturating_mul(self.links.len() as u64) / part;
        ahead.checked_div(self.seen().count() as u64).unwrap_or(u64::MAX)
    }

    /// Of each worker in another process whose memory is seen here, how much that is.
    fn seen(&self) -> impl Iterator<Item = u64> {
        let near = self.links.iter().filter(|link| !link.is_local && link.is_near());
        near.map(|link| link.transport.memory().map_or(0, PeerMemory::visible_bytes))
    }

    /// Which workers to ask about `key`, best first; `turn` counts requests.
    pub(crate) fn order(&self, key: PlacementKey, replicas: u8, turn: u64) -> Order {
        let replicas = usize::from(replicas.max(1));
        let mut first = self.topology.ring.first(key, replicas + AT_FIRST);
        let owners = replicas.min(first.len());
        if owners > 1 {
            let owners = &mut first[..owners];
            // Nothing is nearer than the memory of this process, and then what it sees of another's.
            let local = owners.iter().position(|at| self.links[*at].is_local);
            match local.or_else(|| owners.iter().position(|at| self.links[*at].is_near())) {
                Some(nearest) => owners[..=nearest].rotate_right(1),
                None => favour(owners, turn, |at| &self.links[at].latency),
            }
        }
        Order { key, first, next: 0, rest: None }
    }
}

/// Members in the order in which they are asked: the first few are looked up at once, the others when they are needed.
pub(crate) struct Order {
    key: PlacementKey,
    first: Ranked,
    next: usize,
    rest: Option<std::vec::IntoIter<usize>>,
}

impl Order {
    /// The member that comes first: where one owns each, the owner.
    pub(crate) fn first(&self) -> Option<usize> {
        self.first.first().copied()
    }

    /// The next member.
    pub(crate) fn next(&mut self, routes: &Routes) -> Option<usize> {
        if let Some(at) = self.first.get(self.next) {
            self.next += 1;
            return Some(*at);
        }
        if self.first.len() >= routes.links.len() {
            return None;
        }
        let (key, asked) = (self.key, self.first.len());
        let rest = || routes.topology.ring.ranked(key).split_off(asked).into_iter();
        self.rest.get_or_insert_with(rest).next()
    }
}
