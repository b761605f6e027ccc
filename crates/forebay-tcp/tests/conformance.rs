//! The suite that every transport passes, over loopback.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_tcp::{ServerOptions, TcpServer, TcpTransport};
use forebay_transport::conformance::Fixture;
use forebay_transport::{Service, Transport};
use tokio::sync::Mutex;

struct Tcp {
    service: Arc<dyn Service>,
    address: SocketAddr,
    server: Mutex<Option<TcpServer>>,
    transport: Arc<TcpTransport>,
}

#[async_trait::async_trait]
impl Fixture for Tcp {
    async fn start(service: Arc<dyn Service>) -> Self {
        let server = common::serve(common::server_options(), service.clone());
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
        let options = ServerOptions { address: self.address, ..common::server_options() };
        *self.server.lock().await = Some(common::serve(options, self.service.clone()));
    }
}

forebay_transport::transport_conformance!(Tcp);
