//! The suite that every transport passes, over whatever UCX has: shared memory by default.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_rdma::{Lane, RdmaServer, RdmaTransport};
use forebay_transport::conformance::Fixture;
use forebay_transport::{LocalTransport, Service, Transport};
use tokio::sync::Mutex;

/// A worker and a client over UCX; without UCX, what holds for every transport is shown of the local one.
enum Ucx {
    Real {
        service: Arc<dyn Service>,
        address: SocketAddr,
        server: Mutex<Option<RdmaServer>>,
        transport: Arc<RdmaTransport>,
        _lane: Arc<Lane>,
    },
    Absent(Arc<LocalTransport>),
}

#[async_trait::async_trait]
impl Fixture for Ucx {
    async fn start(service: Arc<dyn Service>) -> Self {
        let Some(library) = common::library() else { return Self::Absent(Arc::new(LocalTransport::new(service))) };
        let server = common::serve(library, 0, service.clone()).await;
        let address = server.local_addr();
        let (lane, transport) = common::link(library, address);
        Self::Real { service, address, server: Mutex::new(Some(server)), transport, _lane: lane }
    }

    fn transport(&self) -> Arc<dyn Transport> {
        match self {
            Self::Real { transport, .. } => transport.clone(),
            Self::Absent(local) => local.clone(),
        }
    }

    async fn kill(&self) -> bool {
        let Self::Real { server, .. } = self else { return false };
        if let Some(server) = server.lock().await.take() {
            server.close().await;
        }
        true
    }

    async fn revive(&self) {
        if let Self::Real { service, address, server, .. } = self
            && let Some(library) = common::library()
        {
            *server.lock().await = Some(common::serve(library, address.port(), service.clone()).await);
        }
    }
}

forebay_transport::transport_conformance!(Ucx);
