//! The suite that every transport passes, over verbs, where there are two devices: as it is, between two ends that prove who they
//! are, with payload in messages, as where a client's card has no memory windows, and by threads that wait for their answers themselves
//! (`driving.rs`). And clients that read the worker's memory by themselves, while that changes (`one_sided.rs`).

mod common;
#[path = "verbs/driving.rs"]
mod driving;
#[path = "verbs/one_sided.rs"]
mod one_sided;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::admission::{Admitting, HOUR, worker_of};
use common::verbs::{Devices, devices};
use forebay_identity::LiveIdentity;
use forebay_identity::testing::Cluster;
use forebay_rdma::verbs::VerbsServer;
use forebay_rdma::{ClientOptions, ClientSecurity, FabricOptions, RdmaTransport, ServerSecurity};
use forebay_transport::conformance::{Behaviour, Driven, Fixture, Scripted, read, until, within};
use forebay_transport::{LocalTransport, Service, Transport, TransportKind};
use forebay_types::{ByteSize, Role};
use tokio::sync::Mutex;

/// A worker and a client over verbs, of which the client may have to be admitted, its payload may come in messages, and its callers may
/// wait themselves; without devices, what holds for every transport is shown of the local one.
#[expect(clippy::large_enum_variant, reason = "there are few")]
enum Verbs<const PROVES: bool, const WINDOWS: bool, const DRIVES: bool> {
    Real {
        devices: Devices,
        service: Arc<dyn Service>,
        address: SocketAddr,
        security: Option<ServerSecurity>,
        server: Mutex<Option<VerbsServer>>,
        transport: Arc<RdmaTransport>,
    },
    Absent(Arc<LocalTransport>),
}

fn proofs() -> (ServerSecurity, ClientSecurity) {
    let live = LiveIdentity::new(worker_of(&Cluster::new(), None));
    let passes = Arc::default();
    let client = ClientSecurity::over(Admitting::new(&passes, Role::Admin, [HOUR; 2]));
    (ServerSecurity { live, passes, accepts_plain: false }, client)
}

#[async_trait::async_trait]
impl<const PROVES: bool, const WINDOWS: bool, const DRIVES: bool> Fixture for Verbs<PROVES, WINDOWS, DRIVES> {
    async fn start(service: Arc<dyn Service>) -> Self {
        let Some(devices) = devices() else { return Self::Absent(Arc::new(LocalTransport::new(service))) };
        let (security, of_client) = PROVES.then(proofs).unzip();
        let server = devices.serve(0, service.clone(), security.clone()).await;
        let address = server.local_addr();
        let defaults = common::client_options();
        let drive = if DRIVES { common::driving::drive() } else { defaults.drive };
        let options = ClientOptions { security: of_client, drive, ..defaults };
        // For nine messages at once: less than most answers have.
        let buffers = (!WINDOWS).then_some(ByteSize::kib(160));
        let transport = devices.link_by(address, options, common::pool(8), buffers);
        Self::Real { devices, service, address, security, server: Mutex::new(Some(server)), transport }
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
        if let Self::Real { devices, service, address, security, server, .. } = self {
            let revived = devices.serve(address.port(), service.clone(), security.clone()).await;
            *server.lock().await = Some(revived);
        }
    }
}

mod as_it_is {
    forebay_transport::transport_conformance!(super::Verbs<false, true, false>);
}

mod with_proof {
    forebay_transport::transport_conformance!(super::Verbs<true, true, false>);
}

mod in_messages {
    forebay_transport::transport_conformance!(super::Verbs<false, false, false>);
}

mod admitted_in_messages {
    forebay_transport::transport_conformance!(super::Verbs<true, false, false>);
}

mod by_threads_that_wait {
    forebay_transport::transport_conformance!(super::Verbs<false, true, true>);
}

mod by_threads_that_wait_with_proof {
    forebay_transport::transport_conformance!(super::Verbs<true, true, true>);
}

mod by_threads_that_wait_in_messages {
    forebay_transport::transport_conformance!(super::Verbs<false, false, true>);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_says_what_it_is() {
    let Some(devices) = devices() else { return };
    let link = devices.good_link(SocketAddr::new(devices.server.1, 1));
    assert_eq!(link.kind(), TransportKind::Verbs);
}

/// They keep their windows until they are answered, which these never are, so the connection makes way for one that has all of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_that_were_given_up_do_not_take_all_windows() {
    let Some(devices) = devices() else { return };
    let service = Scripted::new();
    let server = devices.serve(0, service.clone(), None).await;
    let buffers = common::pool(8);
    let link = devices.link(server.local_addr(), common::client_options(), buffers.clone());
    let staying = tokio::spawn({
        let link = Arc::clone(&link);
        async move { common::call(&link, read(Behaviour::Gated, 0, 0, 10_000, common::LONG)).await }
    });
    until("the read that stays", || service.started() == 1).await;
    // As many as there are windows, of which that one has one.
    for given_up in 1..=256 {
        let call = link.call(read(Behaviour::Never, 0, 0, 5000, common::LONG), buffers.try_alloc(5000));
        tokio::select! {
            biased;
            reply = call => panic!("a reply to a call that is never answered: {reply:?}"),
            () = until("the read reaches the service", || service.started() == 1 + given_up) => {}
        }
    }
    common::assert_serves(&link).await;
    assert!(!staying.is_finished());
    service.open(1);
    assert!(within("the read that stayed", staying).await.unwrap().is_ok());
    until("the old connection ends", || server.connections() == 1).await;
    link.close().await;
    until("all memory is back", || buffers.used() == 0).await;
    server.close().await;
}

/// The queue pairs of both ends are brought up by ourselves: the client's for what it asks, the worker's for the packets that its client
/// wants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_path_is_chosen_carries_requests_as_any_other() {
    let Some(devices) = devices() else { return };
    let server = devices.serve(0, Scripted::new(), None).await;
    let asked = FabricOptions {
        service_level: Some(3),
        traffic_class: Some(104),
        mtu: Some(512),
        ack_timeout: Some(Duration::from_secs(2)),
        retry_count: Some(5),
        rnr_retry_count: Some(3),
        ..FabricOptions::default()
    };
    for fabric in [asked, FabricOptions { mtu: Some(256), ..FabricOptions::default() }] {
        let thread = Devices::thread_on(&devices.client, common::pool(8), fabric);
        let options = ClientOptions { bind: Some(devices.client.1), ..common::client_options() };
        let link = Arc::new(RdmaTransport::over_verbs(server.local_addr().to_string(), thread, options));
        common::assert_serves(&link).await;
        link.close().await;
    }
    server.close().await;
}
