//! The suite that every transport passes, over loopback: with a server on I/O threads, with one on a runtime, with one
//! that sends large payloads without a copy, and between two ends that prove who they are.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_identity::{ClusterKey, Live, Material, Scope, Trust};
use forebay_tcp::{ClientOptions, ClientSecurity, ServerOptions, ServerSecurity, TcpServer, TcpTransport, TcpZeroCopy};
use forebay_transport::conformance::Fixture;
use forebay_transport::{Service, Transport};
use forebay_types::Role;
use tokio::sync::Mutex;

/// Those of a worker, and of a client that may do all that the suite does.
struct Identities {
    worker: Arc<Live>,
    client: Arc<Live>,
}

impl Identities {
    fn new() -> Self {
        let (key, scope) = (ClusterKey::generate().unwrap(), Scope::new("example.org", "test").unwrap());
        let live = |role, name| {
            let authorities = Role::ALL.map(|role| key.authority(&scope, role).unwrap().certificate().clone());
            let trust = Trust::new(scope.clone(), &authorities, []).unwrap();
            let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
            let credentials = key.authority(&scope, role).unwrap().issue(name, now - hour, now + hour).unwrap();
            Live::new(Material::new(credentials, trust, now).unwrap())
        };
        Self { worker: live(Role::Worker, "node1"), client: live(Role::Admin, "suite") }
    }
}

/// With a server on so many I/O threads.
struct Tcp<const IO_THREADS: usize, const ZERO_COPY: bool = false, const PROVED: bool = false> {
    service: Arc<dyn Service>,
    identities: Option<Identities>,
    address: SocketAddr,
    server: Mutex<Option<TcpServer>>,
    transport: Arc<TcpTransport>,
}

impl<const IO_THREADS: usize, const ZERO_COPY: bool, const PROVED: bool> Tcp<IO_THREADS, ZERO_COPY, PROVED> {
    fn options(identities: Option<&Identities>) -> ServerOptions {
        let zero_copy = if ZERO_COPY { TcpZeroCopy::On } else { TcpZeroCopy::Off };
        let security = identities.map(|it| ServerSecurity::new(&it.worker).unwrap());
        ServerOptions { io_threads: Some(IO_THREADS), zero_copy, security, ..common::server_options() }
    }
}

#[async_trait::async_trait]
impl<const IO_THREADS: usize, const ZERO_COPY: bool, const PROVED: bool> Fixture
    for Tcp<IO_THREADS, ZERO_COPY, PROVED>
{
    async fn start(service: Arc<dyn Service>) -> Self {
        let identities = PROVED.then(Identities::new);
        let server = common::serve(Self::options(identities.as_ref()), service.clone());
        let address = server.local_addr();
        let security = identities.as_ref().map(|it| ClientSecurity::to_worker(&it.client).unwrap());
        let transport = common::link(address, ClientOptions { security, ..common::client_options() });
        Self { service, identities, address, server: Mutex::new(Some(server)), transport }
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
        let options = ServerOptions { address: self.address, ..Self::options(self.identities.as_ref()) };
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

mod with_proof {
    forebay_transport::transport_conformance!(super::Tcp<2, false, true>);
}
