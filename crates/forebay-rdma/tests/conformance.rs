//! The suite that every transport passes, over whatever UCX has: sockets by default. As it is, between two ends that prove who they
//! are (then nothing is changed over it), and by threads that wait for their answers themselves (`driving.rs`).

mod common;
#[path = "conformance/driving.rs"]
mod driving;

use std::net::SocketAddr;
use std::sync::Arc;

use common::admission::{Admitting, HOUR, worker_of};
use forebay_identity::LiveIdentity;
use forebay_identity::testing::Cluster;
use forebay_rdma::{ClientOptions, ClientSecurity, IoThread, IoThreadStats, RdmaServer, RdmaTransport, ServerSecurity};
use forebay_transport::conformance::{self, Behaviour, Driven, Fixture, Scripted};
use forebay_transport::{LocalTransport, Payload, Service, Transport};
use forebay_types::{ByteSize, Role};
use tokio::sync::Mutex;

/// A worker and a client over UCX, of which the client may have to be admitted, and its callers may wait themselves; without UCX, what
/// holds for every transport is shown of the local one.
enum Ucx<const PROVES: bool, const DRIVES: bool> {
    Real {
        service: Arc<dyn Service>,
        address: SocketAddr,
        /// Whom the server accepts, if anybody has to prove who they are.
        security: Option<ServerSecurity>,
        server: Mutex<Option<RdmaServer>>,
        transport: Arc<RdmaTransport>,
        _io_thread: Arc<IoThread>,
    },
    Absent(Arc<LocalTransport>),
}

/// What a server demands, and how a client is admitted there, as somebody whose role would allow changes.
fn proofs() -> (ServerSecurity, ClientSecurity) {
    let live = LiveIdentity::new(worker_of(&Cluster::new(), None));
    let passes = Arc::default();
    let client = ClientSecurity::over(Admitting::new(&passes, Role::Admin, [HOUR; 2]));
    (ServerSecurity { live, passes, accepts_plain: false }, client)
}

#[async_trait::async_trait]
impl<const PROVES: bool, const DRIVES: bool> Fixture for Ucx<PROVES, DRIVES> {
    async fn start(service: Arc<dyn Service>) -> Self {
        let Some(library) = common::library() else { return Self::Absent(Arc::new(LocalTransport::new(service))) };
        let (security, of_client) = PROVES.then(proofs).unzip();
        let server = common::serve_with(library, 0, service.clone(), security.clone()).await;
        let address = server.local_addr();
        let defaults = common::client_options();
        let drive = if DRIVES { common::driving::drive() } else { defaults.drive };
        let options = ClientOptions { security: of_client, drive, ..defaults };
        let (io_thread, transport) = common::link_with(library, address, options);
        Self::Real { service, address, security, server: Mutex::new(Some(server)), transport, _io_thread: io_thread }
    }

    fn transport(&self) -> Arc<dyn Transport> {
        match self {
            Self::Real { transport, .. } if DRIVES => Arc::new(Driven::new(transport.clone(), usize::MAX)),
            Self::Real { transport, .. } => transport.clone(),
            Self::Absent(local) => local.clone(),
        }
    }

    fn carries_changes(&self) -> bool {
        matches!(self, Self::Real { security: None, .. } | Self::Absent(_))
    }

    async fn kill(&self) -> bool {
        let Self::Real { server, .. } = self else { return false };
        if let Some(server) = server.lock().await.take() {
            server.close().await;
        }
        true
    }

    async fn revive(&self) {
        if let Self::Real { service, address, security, server, .. } = self
            && let Some(library) = common::library()
        {
            let revived = common::serve_with(library, address.port(), service.clone(), security.clone()).await;
            *server.lock().await = Some(revived);
        }
    }
}

mod as_it_is {
    forebay_transport::transport_conformance!(super::Ucx<false, false>);
}

mod with_proof {
    forebay_transport::transport_conformance!(super::Ucx<true, false>);
}

mod by_threads_that_wait {
    forebay_transport::transport_conformance!(super::Ucx<false, true>);
}

mod by_threads_that_wait_with_proof {
    forebay_transport::transport_conformance!(super::Ucx<true, true>);
}

/// Of this transport alone, over the same fabric: in the virtual machine, over real verbs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_is_fetched_into_memory_of_the_caller_once_it_is_registered() {
    let Some(library) = common::library() else { return };
    let server = common::serve(library, 0, Scripted::new()).await;
    let (io_thread, transport) = common::link(library, server.local_addr());
    let caller = common::pool(12);
    assert!(!io_thread.is_registered(&caller.try_alloc(4096).unwrap()), "it is not registered");
    io_thread.register(&caller);
    let buffer = |length| caller.try_alloc(length).unwrap();
    let before = io_thread.stats();
    conformance::until("it is registered", || {
        io_thread.register_frame(&buffer(1 << 20));
        io_thread.is_registered(&buffer(1 << 20))
    })
    .await;
    let registered = io_thread.stats();
    assert_eq!(registered.caller_memory, ByteSize::mib(4), "the frame that it was asked about, and no other");
    assert_eq!(registered.registered.as_u64() - before.registered.as_u64(), 4 << 20);
    // Long enough for every fabric to fetch it.
    for (index, length) in [1 << 20, 900_000, 1 << 20].into_iter().enumerate() {
        let into = buffer(length);
        let at = into.as_ptr();
        let request = conformance::read(Behaviour::AtOnce, index as u64, 5, length as u32, common::LONG);
        let reply = conformance::within("an answer", transport.call(request.clone(), Some(into))).await.unwrap();
        conformance::assert_bytes(&reply, &request, length);
        let Payload::Landed(bytes) = reply.payload else { panic!("it did not land") };
        assert_eq!(bytes.as_ptr(), at);
    }
    // One of another frame, which is not registered: it lands all the same.
    let _rest: Vec<_> = std::iter::from_fn(|| caller.try_alloc(1 << 20)).take(4).collect();
    let request = conformance::read(Behaviour::AtOnce, 9, 0, 1 << 20, common::LONG);
    let reply = conformance::within("an answer", transport.call(request.clone(), Some(buffer(1 << 20)))).await.unwrap();
    conformance::assert_bytes(&reply, &request, 1 << 20);
    let IoThreadStats { caller_memory, fetched_into_caller_memory, registration_failures, .. } = io_thread.stats();
    assert_eq!((caller_memory, fetched_into_caller_memory, registration_failures), (ByteSize::mib(4), 3, 0));
    transport.close().await;
    server.close().await;
}
