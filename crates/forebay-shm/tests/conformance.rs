//! The suite that every transport passes, over the window where that can be, and over loopback.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::*;
use forebay_memory::Pool;
use forebay_shm::WindowServer;
use forebay_tcp::TcpServer;
use forebay_transport::conformance::Fixture;
use forebay_transport::{PeerMemory as _, Service, Transport};
use tokio::sync::Mutex;

struct Near {
    service: Arc<dyn Service>,
    pool: Pool,
    address: SocketAddr,
    servers: Mutex<Option<(TcpServer, WindowServer)>>,
    client: Arc<AsClient>,
    was_dead: AtomicBool,
}

#[async_trait::async_trait]
impl Fixture for Near {
    async fn start(service: Arc<dyn Service>) -> Self {
        let pool = shared_pool(16);
        let service: Arc<dyn Service> = Arc::new(Copied { service, pool: pool.clone() });
        let Worker { tcp, window, .. } = Worker::start(&pool, Arc::clone(&service));
        let address = tcp.local_addr();
        let client = AsClient::new(near(address));
        // Nothing is asked of the service that the suite counts.
        let _ = client.near.call(read(0, 0, 1, LONG), None).await;
        forebay_transport::conformance::until("the window is open", || client.near.is_open()).await;
        Self {
            service,
            pool,
            address,
            servers: Mutex::new(Some((tcp, window))),
            client,
            was_dead: AtomicBool::new(false),
        }
    }

    fn transport(&self) -> Arc<dyn Transport> {
        self.client.clone()
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
        let options = server_options(socket_of(self.address));
        let window = WindowServer::bind(options, &self.pool, Arc::clone(&self.service)).unwrap();
        *self.servers.lock().await = Some((tcp, window));
    }
}

impl Drop for Near {
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

forebay_transport::transport_conformance!(Near);
