//! The suite that every transport passes, over the window where that can be, and over loopback: as it is, and between two ends that
//! prove who they are; and by threads that wait for their answers themselves.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::identities::{Cluster, demanding, options_of};
use common::*;
use forebay_identity::LiveIdentity;
use forebay_memory::Pool;
use forebay_shm::{ServerOptions, WindowServer};
use forebay_tcp::TcpServer;
use forebay_transport::conformance::{Driven, Fixture};
use forebay_transport::{PeerMemory as _, Service, Transport};
use forebay_types::Role;
use tokio::sync::Mutex;

struct Near<const PROVES: bool, const DRIVEN: bool = false> {
    service: Arc<dyn Service>,
    /// Those of the worker and of the client, if they prove any.
    identities: Option<[Arc<LiveIdentity>; 2]>,
    pool: Pool,
    address: SocketAddr,
    servers: Mutex<Option<(TcpServer, WindowServer)>>,
    client: Arc<AsClient>,
    was_dead: AtomicBool,
}

fn demands(options: ServerOptions, identities: Option<&[Arc<LiveIdentity>; 2]>) -> ServerOptions {
    ServerOptions { security: identities.map(|[worker, _]| demanding(worker)), ..options }
}

#[async_trait::async_trait]
impl<const PROVES: bool, const DRIVEN: bool> Fixture for Near<PROVES, DRIVEN> {
    async fn start(service: Arc<dyn Service>) -> Self {
        let identities = PROVES.then(|| {
            let cluster = Cluster::new();
            [cluster.live(Role::Worker, "node1"), cluster.live(Role::Reader, "suite")]
        });
        let pool = shared_pool(16);
        let service: Arc<dyn Service> = Arc::new(Copied { service, pool: pool.clone() });
        let Worker { tcp, window, .. } =
            Worker::start_with(&pool, Arc::clone(&service), |options| demands(options, identities.as_ref()));
        let address = tcp.local_addr();
        let options = identities.as_ref().map_or_else(client_options, |[_, client]| options_of(client));
        let client = AsClient::new(near_with(address, options));
        // Nothing is asked of the service that the suite counts.
        let _ = client.near.call(read(0, 0, 1, LONG), None).await;
        forebay_transport::conformance::until("the window is open", || client.near.is_open()).await;
        Self {
            service,
            identities,
            pool,
            address,
            servers: Mutex::new(Some((tcp, window))),
            client,
            was_dead: AtomicBool::new(false),
        }
    }

    fn transport(&self) -> Arc<dyn Transport> {
        if DRIVEN { Arc::new(Driven::new(self.client.clone(), usize::MAX)) } else { self.client.clone() }
    }

    async fn kill(&self) -> bool {
        self.was_dead.store(true, Ordering::Relaxed);
        if let Some((tcp, window)) = self.servers.lock().await.take() {
            tokio::join!(tcp.close(), window.close());
        }
        true
    }

    async fn revive(&self) {
        let tcp = tcp_server(self.address, Arc::clone(&self.service));
        let options = demands(server_options(socket_of(self.address)), self.identities.as_ref());
        let window = WindowServer::bind(options, &self.pool, Arc::clone(&self.service)).unwrap();
        *self.servers.lock().await = Some((tcp, window));
    }
}

impl<const PROVES: bool, const DRIVEN: bool> Drop for Near<PROVES, DRIVEN> {
    fn drop(&mut self) {
        let (answered, seen) = (self.client.answered.load(Ordering::Relaxed), self.client.near.report().reads);
        if !std::thread::panicking() {
            // After its death, the peer is read from again before it is seen again.
            let was_dead = self.was_dead.load(Ordering::Relaxed);
            let none = format_args!("{answered} reads were answered, and none of them by the window");
            assert!(seen > 0 || answered == 0 || was_dead, "{none}");
        }
    }
}

mod as_it_is {
    forebay_transport::transport_conformance!(super::Near<false>);
}

mod with_proof {
    forebay_transport::transport_conformance!(super::Near<true>);
}

mod driven {
    forebay_transport::transport_conformance!(super::Near<false, true>);
}

mod driven_with_proof {
    forebay_transport::transport_conformance!(super::Near<true, true>);
}
