//! A worker while it is one of a cluster.

use std::sync::Arc;
use std::time::Duration;

use forebay_client::Connector;
use forebay_cluster::records::members::WorkerRecord;
use forebay_cluster::{Backoff, Standing};
use forebay_state::StateStore;
use forebay_state::membership::{Members, Registered, RegisteredOptions};
use forebay_types::Tenure;
use forebay_worker::{DrainOptions, Worker};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::leaving::Leaving;
use crate::worker_peers::WorkerPeers;

/// How a worker behaves among others.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// How long others may take, all together, before the origin is asked.
    pub peer_timeout: Duration,
    /// How long one that failed is left out.
    pub backoff: Backoff,
    /// How it is registered.
    pub registration: RegisteredOptions,
    /// How it hands over what it holds.
    pub drain: DrainOptions,
}

/// A worker that joined a cluster, or is about to.
pub struct Joined {
    name: String,
    peers: Arc<WorkerPeers>,
    registered: Arc<Registered>,
    stop: CancellationToken,
    leaving: JoinHandle<()>,
}

impl Joined {
    /// Has `worker` ask the other `members` before the origin, and registers it once `ready` is over.
    #[must_use]
    pub fn join(
        worker: &Arc<Worker>,
        record: WorkerRecord,
        store: Arc<dyn StateStore>,
        members: Arc<Members>,
        connector: Arc<dyn Connector>,
        options: JoinOptions,
        ready: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let JoinOptions { peer_timeout, backoff, registration, drain } = options;
        let name = record.name.clone();
        let peers = WorkerPeers::new(&name, Arc::clone(&members) as _, connector, backoff, peer_timeout);
        let peers = Arc::new(peers);
        // A pass over two peers that do not answer must not take longer than one.
        worker.ask_peers(Arc::clone(&peers) as _, peer_timeout);
        let owner = Arc::clone(worker);
        let begins = move |tenure: &Arc<Tenure>| owner.own_during(tenure);
        let registered = Arc::new(Registered::start(store, record, registration, begins, ready));
        let stop = CancellationToken::new();
        let leaving = Leaving {
            name: name.clone(),
            worker: Arc::clone(worker),
            peers: Arc::clone(&peers),
            registered: Arc::clone(&registered),
            members,
            options: drain,
        };
        let leaving = tokio::spawn(leaving.whenever_asked(stop.clone()));
        Self { name, peers, registered, stop, leaving }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its record says; `None` before it is registered for the first time.
    #[must_use]
    pub fn standing(&self) -> watch::Receiver<Option<Standing>> {
        self.registered.standing()
    }

    /// Leaves, and ends the links to the others.
    pub async fn close(self) {
        self.stop.cancel();
        // First the others learn that it goes.
        self.registered.close().await;
        // It does not panic, and if it did that has been told.
        let _ = self.leaving.await;
        self.peers.close().await;
    }
}
