//! The suite that every transport passes, over loopback: with a server on I/O threads, with one on a runtime, with one
//! that sends large payloads without a copy, and between two ends that prove who they are, and may encrypt everything; and
//! over a Unix socket. All that also by threads that wait for their answers themselves.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;

use common::identities::{Cluster, proving, server_security};
use forebay_identity::LiveIdentity;
use forebay_private::{PrivateListener, socket_address};
use forebay_tcp::{ClientOptions, ServerOptions, TcpSecurity, TcpServer, TcpTransport, TcpZeroCopy};
use forebay_transport::conformance::{Driven, Fixture};
use forebay_transport::{Service, Transport};
use forebay_types::Role;
use tokio::sync::Mutex;

/// What the ends prove, and what becomes of their bytes then.
const NOTHING: u8 = 0;
const AUTH: u8 = 1;
const ENCRYPT: u8 = 2;

fn level(security: u8) -> TcpSecurity {
    if security == ENCRYPT { TcpSecurity::Encrypt } else { TcpSecurity::Auth }
}

/// With a server on so many I/O threads.
struct Tcp<
    const IO_THREADS: usize,
    const ZERO_COPY: bool = false,
    const SECURITY: u8 = NOTHING,
    const DRIVEN: bool = false,
> {
    service: Arc<dyn Service>,
    /// Those of the worker, and of a client that may do all that the suite does.
    identities: Option<[Arc<LiveIdentity>; 2]>,
    address: SocketAddr,
    server: Mutex<Option<TcpServer>>,
    transport: Arc<TcpTransport>,
}

impl<const IO_THREADS: usize, const ZERO_COPY: bool, const SECURITY: u8, const DRIVEN: bool>
    Tcp<IO_THREADS, ZERO_COPY, SECURITY, DRIVEN>
{
    fn options(identities: Option<&[Arc<LiveIdentity>; 2]>) -> ServerOptions {
        let zero_copy = if ZERO_COPY { TcpZeroCopy::On } else { TcpZeroCopy::Off };
        let security = identities.map(|[worker, _]| server_security(worker, level(SECURITY)));
        ServerOptions { io_threads: Some(IO_THREADS), zero_copy, security, ..common::server_options() }
    }
}

#[async_trait::async_trait]
impl<const IO_THREADS: usize, const ZERO_COPY: bool, const SECURITY: u8, const DRIVEN: bool> Fixture
    for Tcp<IO_THREADS, ZERO_COPY, SECURITY, DRIVEN>
{
    async fn start(service: Arc<dyn Service>) -> Self {
        let identities = (SECURITY != NOTHING).then(|| {
            let cluster = Cluster::new();
            [cluster.live(Role::Worker, "node1"), cluster.live(Role::Admin, "suite")]
        });
        let server = common::serve(Self::options(identities.as_ref()), service.clone());
        let address = server.local_addr();
        let security = identities.as_ref().map(|[_, client]| proving(client, level(SECURITY)));
        let transport = common::link(address, ClientOptions { security, ..common::client_options() });
        Self { service, identities, address, server: Mutex::new(Some(server)), transport }
    }

    fn transport(&self) -> Arc<dyn Transport> {
        if DRIVEN { Arc::new(Driven::new(self.transport.clone(), usize::MAX)) } else { self.transport.clone() }
    }

    async fn kill(&self) -> bool {
        if let Some(server) = self.server.lock().await.take() {
            server.close().await;
        }
        true
    }

    async fn revive(&self) {
        let options = ServerOptions { address: self.address, ..Self::options(self.identities.as_ref()) };
        *self.server.lock().await = Some(common::serve(options, self.service.clone()));
    }
}

/// Over a Unix socket of this user alone.
struct Private {
    service: Arc<dyn Service>,
    directory: tempfile::TempDir,
    server: Mutex<Option<TcpServer>>,
    transport: Arc<TcpTransport>,
}

impl Private {
    fn serve(directory: &tempfile::TempDir, service: Arc<dyn Service>) -> TcpServer {
        let listener = PrivateListener::bind(&directory.path().join("worker.sock")).unwrap();
        TcpServer::private(listener, common::server_options(), service).unwrap()
    }
}

#[async_trait::async_trait]
impl Fixture for Private {
    async fn start(service: Arc<dyn Service>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let server = Self::serve(&directory, service.clone());
        let address = socket_address(&directory.path().join("worker.sock"));
        let transport = Arc::new(TcpTransport::new(address, common::client_options()));
        Self { service, directory, server: Mutex::new(Some(server)), transport }
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
        *self.server.lock().await = Some(Self::serve(&self.directory, self.service.clone()));
    }
}

mod over_a_unix_socket {
    forebay_transport::transport_conformance!(super::Private);
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

mod with_proof {
    forebay_transport::transport_conformance!(super::Tcp<2, false, { super::AUTH }>);
}

mod encrypted {
    forebay_transport::transport_conformance!(super::Tcp<2, false, { super::ENCRYPT }>);
}

mod driven {
    forebay_transport::transport_conformance!(super::Tcp<2, false, { super::NOTHING }, true>);
}

mod driven_on_a_runtime {
    forebay_transport::transport_conformance!(super::Tcp<0, false, { super::NOTHING }, true>);
}

mod driven_with_proof {
    forebay_transport::transport_conformance!(super::Tcp<2, false, { super::AUTH }, true>);
}

mod driven_where_all_is_encrypted {
    forebay_transport::transport_conformance!(super::Tcp<2, false, { super::ENCRYPT }, true>);
}
