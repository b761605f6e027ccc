//! The suite that every transport passes, over loopback: with a server on I/O threads, with one on a runtime, and with one
//! that sends large payloads without a copy.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_tcp::{ServerOptions, TcpServer, TcpTransport, TcpZeroCopy};
use forebay_transport::conformance::Fixture;
use forebay_transport::{Service, Transport};
use tokio::sync::Mutex;

/// With a server on so many I/O threads.
struct Tcp<const IO_THREADS: usize, const ZERO_COPY: bool = false> {
    service: Arc<dyn Service>,
    address: SocketAddr,
    server: Mutex<Option<TcpServer>>,
    transport: Arc<TcpTransport>,
}

impl<const IO_THREADS: usize, const ZERO_COPY: bool> Tcp<IO_THREADS, ZERO_COPY> {
    fn options() -> ServerOptions {
        let zero_copy = if ZERO_COPY { TcpZeroCopy::On } else { TcpZeroCopy::Off };
        ServerOptions { io_threads: Some(IO_THREADS), zero_copy, ..common::server_options() }
    }
}

#[async_trait::async_trait]
impl<const IO_THREADS: usize, const ZERO_COPY: bool> Fixture for Tcp<IO_THREADS, ZERO_COPY> {
    async fn start(service: Arc<dyn Service>) -> Self {
        let server = common::serve(Self::options(), service.clone());
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
        let options = ServerOptions { address: self.address, ..Self::options() };
        *self.server.lock().await = Some(common::serve(options, self.service.clone()));
    }
}

mod on_io_threads {
    forebay_transport::transport_conformance!(super::Tcp<2>);
}

mod on_a_runtime {
    forebay_transport::transport_conformance!(super::Tcp<0>);
}

mod with_zero_copy_sends {
    forebay_transport::transport_conformance!(super::Tcp<2, true>);
}
