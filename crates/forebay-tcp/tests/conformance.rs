//! The suite that every transport passes, over loopback: with a server on lanes, and with one on a runtime.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_tcp::{ServerOptions, TcpServer, TcpTransport};
use forebay_transport::conformance::Fixture;
use forebay_transport::{Service, Transport};
use tokio::sync::Mutex;

/// With a server on so many lanes.
struct Tcp<const LANES: usize> {
    service: Arc<dyn Service>,
    address: SocketAddr,
    server: Mutex<Option<TcpServer>>,
    transport: Arc<TcpTransport>,
}

#[async_trait::async_trait]
impl<const LANES: usize> Fixture for Tcp<LANES> {
    async fn start(service: Arc<dyn Service>) -> Self {
        let options = ServerOptions { lanes: Some(LANES), ..common::server_options() };
        let server = common::serve(options, service.clone());
        let address = server.local_addr();
        let transport = common::link(address, common::client_options());
        Self { service, address, server: Mutex::new(Some(server)), transport }
    }

    fn transport(&self) -> Arc<dyn Transport> {
        self.transport.clone()
    }

    async fn kill(&self) -> bool {
        if let Some(server) = self.server.lock().await.take() {
            server.close().await;
        }
        true
    }

    async fn revive(&self) {
        let options = ServerOptions { address: self.address, lanes: Some(LANES), ..common::server_options() };
        *self.server.lock().await = Some(common::serve(options, self.service.clone()));
    }
}

mod on_lanes {
    forebay_transport::transport_conformance!(super::Tcp<2>);
}

mod on_a_runtime {
    forebay_transport::transport_conformance!(super::Tcp<0>);
}
