//! Who is admitted: identities of one cluster, and a worker's TCP port as far as that admits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use forebay_identity::testing::Cluster;
use forebay_identity::{Identity, Material, Pass, Passes, Peer, testing};
use forebay_locks::Mutex;
use forebay_memory::SpanMut;
use forebay_transport::{CallError, Op, Payload, Provenance, Reply, Request, Transport, TransportKind};
use forebay_types::Role;

pub(crate) const HOUR: Duration = testing::HOUR;

/// Somebody whose certificate lasts for so long.
pub(crate) fn somebody(role: Role, lasts: Duration) -> Peer {
    let identity = testing::scope().identity(role, "team-a").unwrap();
    Peer { identity, until: SystemTime::now() + lasts, authority: None }
}

/// What a worker of this cluster proves and believes.
pub(crate) fn worker_of(cluster: &Cluster, denied: Option<Identity>) -> Material {
    cluster.material(Role::Worker, "node1", cluster.trust(denied), HOUR)
}

/// A link over TCP to a worker, as far as that admits: somebody of this role, whose certificates last for so long, one after the
/// other.
pub(crate) struct Admitting {
    passes: Arc<Mutex<Passes>>,
    role: Role,
    lasts: [Duration; 2],
    asked: AtomicUsize,
}

impl Admitting {
    pub(crate) fn new(passes: &Arc<Mutex<Passes>>, role: Role, lasts: [Duration; 2]) -> Arc<Self> {
        Arc::new(Self { passes: Arc::clone(passes), role, lasts, asked: AtomicUsize::new(0) })
    }

    /// How many passes it has given.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

#[async_trait::async_trait]
impl Transport for Admitting {
    async fn call(&self, request: Request, _into: Option<SpanMut>) -> Result<Reply, CallError> {
        assert_eq!(request.op, Op::Admit);
        let client_id = u64::from_le_bytes(request.body[..].try_into().unwrap());
        let asked = self.asked.fetch_add(1, Ordering::SeqCst);
        let pass = Pass::random().unwrap();
        let peer = somebody(self.role, self.lasts[asked.min(1)]);
        self.passes.lock().issue(client_id, pass, peer, Instant::now()).unwrap();
        let body = Bytes::copy_from_slice(&pass.encode());
        Ok(Reply { provenance: Provenance::default(), body, payload: Payload::None })
    }

    fn kind(&self) -> TransportKind {
        TransportKind::Tcp
    }

    fn peer(&self) -> &str {
        "worker:29999"
    }

    async fn close(&self) {}
}
