//! Attacks on identities over UCX: each by a real connection to a real listener. What a peer could forge below the messages, the
//! connection that one belongs to, is forged here by what it shows.

mod common;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::admission::{Admitting, HOUR, somebody, worker_of};
use common::raw::{Heard, Raw, by_hand, noise, send};
use common::*;
use forebay_identity::testing::Cluster;
use forebay_identity::{LiveIdentity, PASS_LIFETIME, Pass, Passes, Peer};
use forebay_locks::Mutex;
use forebay_rdma::{ClientOptions, ClientSecurity, IoThread, Library, RdmaServer, RdmaTransport, ServerSecurity, wire};
use forebay_transport::conformance::{self, Behaviour, Scripted, payload_of, read, until};
use forebay_transport::wire::{CONNECTION_ID, HEADER_LEN, ReplyHeader, RequestHeader, set_tag, tag};
use forebay_transport::{CallError, LinkError, Op, Provenance, Request, Transport};
use forebay_types::{FailureKind, Role};
use forebay_ucx::{Endpoint, Listener, Payload as Sent};

/// No test waits for longer, however busy the machine.
const PATIENCE: Duration = Duration::from_secs(30);
const ID: NonZeroU64 = NonZeroU64::new(0x1d).unwrap();
const ANOTHER_ID: NonZeroU64 = NonZeroU64::new(0xa1d).unwrap();

/// A server whose clients have to be admitted.
struct Scene {
    library: &'static Library,
    cluster: Cluster,
    live: Arc<LiveIdentity>,
    passes: Arc<Mutex<Passes>>,
    service: Arc<Scripted>,
    server: RdmaServer,
}

impl Scene {
    async fn new() -> Option<Self> {
        Self::accepting_plain(false).await
    }

    async fn accepting_plain(accepts_plain: bool) -> Option<Self> {
        let library = library()?;
        let cluster = Cluster::new();
        let live = LiveIdentity::new(worker_of(&cluster, None));
        let (passes, service) = (Arc::<Mutex<Passes>>::default(), Scripted::new());
        let security = ServerSecurity { live: Arc::clone(&live), passes: Arc::clone(&passes), accepts_plain };
        let server = serve_with(library, 0, service.clone(), Some(security)).await;
        Some(Self { library, cluster, live, passes, service, server })
    }

    fn raw(&self) -> Raw {
        Raw::with_client_id(self.library, &[wire::WELCOME, wire::REPLY], Some(ID))
    }

    /// As the worker does over TCP.
    fn admit(&self, client_id: NonZeroU64, peer: Peer) -> Pass {
        let pass = Pass::random().unwrap();
        self.passes.lock().issue(client_id.get(), pass, peer, Instant::now()).unwrap();
        pass
    }

    fn connect(&self, raw: &Raw) -> Endpoint {
        raw.worker.connect_with_id(self.server.local_addr(), None).unwrap()
    }

    /// A connection of somebody who was admitted.
    async fn greet(&self, raw: &Raw, peer: Peer) -> (Endpoint, Pass) {
        let pass = self.admit(ID, peer);
        let endpoint = self.connect(raw);
        say_hello(raw, &endpoint, pass.client);
        let welcome = raw.next("a welcome").await;
        assert_eq!(welcome.message, wire::WELCOME);
        assert_eq!(wire::check_hello(&ours(), raw.version(), &welcome.header), Ok(pass.server));
        (endpoint, pass)
    }

    /// The server does not accept this connection, whatever is said on it.
    async fn assert_rejected(&self, raw: &Raw, endpoint: Endpoint, case: &str) {
        let (before, connections) = (self.unadmitted(), self.server.connections());
        say_hello(raw, &endpoint, 0);
        let failed = tokio::time::timeout(PATIENCE, endpoint.failed()).await;
        assert!(failed.is_ok(), "{case}: it is accepted");
        assert!(self.unadmitted() > before, "{case}");
        assert_eq!((self.server.connections(), raw.unheard()), (connections, 0), "{case}");
        endpoint.close(true).await;
    }

    fn unadmitted(&self) -> u64 {
        self.server.io_thread().stats().unadmitted
    }

    fn forged(&self) -> u64 {
        self.server.io_thread().stats().forged
    }
}

fn say_hello(raw: &Raw, endpoint: &Endpoint, tag: u64) {
    send(endpoint, wire::HELLO, &wire::hello_with(&ours(), raw.version(), tag), Sent::None);
}

/// The header of a request that shows `tag`.
fn request_with(id: u64, request: &Request, tag: u64) -> [u8; HEADER_LEN] {
    let mut header = RequestHeader::of(id, request).encode();
    set_tag(&mut header, tag);
    header
}

fn a_read() -> Request {
    read(Behaviour::AtOnce, 1, 0, 100, LONG)
}

fn tag_of(heard: &Heard) -> u64 {
    tag(heard.header.first_chunk().unwrap())
}

/// The peer is told why, and its connection closed.
async fn assert_dismissed(raw: &Raw, endpoint: &Endpoint, kind: FailureKind, why: &str) {
    let (header, reason) = raw.next(why).await.reply();
    assert_eq!((header.id, header.failure), (CONNECTION_ID, Some(kind)), "{why}");
    let reason = String::from_utf8(reason).unwrap();
    assert!(reason.contains(why), "{reason}");
    assert!(tokio::time::timeout(PATIENCE, endpoint.failed()).await.is_ok(), "{why}: the connection stays");
}

#[test]
fn who_was_not_admitted_is_rejected_before_there_is_a_connection() {
    by_hand(async {
        let Some(scene) = Scene::new().await else { return };
        let raw = scene.raw();
        let plain = raw.connect(scene.server.local_addr());
        scene.assert_rejected(&raw, plain, "without a client id").await;
        scene.assert_rejected(&raw, scene.connect(&raw), "an unknown client id").await;
        let too_early = Instant::now().checked_sub(PASS_LIFETIME).unwrap();
        let pass = Pass::random().unwrap();
        scene.passes.lock().issue(ID.get(), pass, somebody(Role::Reader, HOUR), too_early).unwrap();
        scene.assert_rejected(&raw, scene.connect(&raw), "an admission that has expired").await;
        scene.admit(ANOTHER_ID, somebody(Role::Reader, HOUR));
        scene.assert_rejected(&raw, scene.connect(&raw), "somebody else's admission").await;
        scene.server.close().await;
    });
}

#[test]
fn an_admission_is_good_for_one_connection_and_for_who_knows_its_pass() {
    by_hand(async {
        let Some(scene) = Scene::new().await else { return };
        let reader = || somebody(Role::Reader, HOUR);
        let raw = scene.raw();
        let (endpoint, pass) = scene.greet(&raw, reader()).await;
        scene.assert_rejected(&raw, scene.connect(&raw), "a second connection").await;
        // Whoever knows the client id can come in the place of its owner, and does not know the pass.
        for wrong in [0, pass.client, pass.server] {
            scene.admit(ID, reader());
            let impostor = scene.connect(&raw);
            say_hello(&raw, &impostor, wrong);
            assert_dismissed(&raw, &impostor, FailureKind::InvalidArgument, "it shows no pass").await;
            impostor.close(true).await;
        }
        until("the others are gone", || scene.server.connections() == 1).await;
        send(&endpoint, wire::REQUEST, &request_with(1, &a_read(), pass.client), Sent::None);
        assert_eq!(raw.next("an answer").await.reply().0.failure, None);
        endpoint.close(true).await;
        scene.server.close().await;
    });
}

#[test]
fn a_message_that_does_not_show_the_pass_is_dropped_and_costs_its_victim_nothing() {
    by_hand(async {
        let Some(scene) = Scene::new().await else { return };
        let raw = scene.raw();
        let (endpoint, pass) = scene.greet(&raw, somebody(Role::Admin, HOUR)).await;
        let free = Request::on_path(Op::Free, Bytes::new(), LONG);
        for wrong in [0, pass.server, pass.client ^ 1] {
            send(&endpoint, wire::REQUEST, &request_with(1, &free, wrong), Sent::None);
        }
        send(&endpoint, wire::REQUEST, b"garbage", Sent::None);
        say_hello(&raw, &endpoint, pass.client);
        send(&endpoint, wire::REQUEST, &request_with(2, &a_read(), pass.client), Sent::None);
        let answer = raw.next("the answer to the one that is right").await;
        let (header, _) = answer.reply();
        assert_eq!((header.id, header.failure, tag_of(&answer)), (2, None, pass.server));
        assert_eq!((scene.forged(), raw.unheard(), scene.service.started()), (5, 0, 1));
        endpoint.close(true).await;
        scene.server.close().await;
    });
}

#[test]
fn nobody_changes_frees_or_plants_anything_over_rdma() {
    by_hand(async {
        let Some(scene) = Scene::new().await else { return };
        for role in [Role::Reader, Role::Writer, Role::Admin, Role::Worker, Role::Coordinator] {
            let raw = scene.raw();
            let (endpoint, pass) = scene.greet(&raw, somebody(role, HOUR)).await;
            for op in [Op::Change, Op::Upload, Op::Free, Op::Adopt, Op::Refresh, Op::Admit, Op::Stats] {
                let request = Request::on_path(op, Bytes::new(), LONG);
                send(&endpoint, wire::REQUEST, &request_with(9, &request, pass.client), Sent::None);
                let (header, _) = raw.next("a refusal").await.reply();
                let refused = (9, Some(FailureKind::PermissionDenied));
                assert_eq!((header.id, header.failure), refused, "{role} {op:?}");
            }
            send(&endpoint, wire::REQUEST, &request_with(10, &a_read(), pass.client), Sent::None);
            assert_eq!(raw.next("bytes").await.reply().0.failure, None, "{role}");
            endpoint.close(true).await;
        }
        scene.server.close().await;
    });
}

#[test]
fn who_is_denied_is_cut_within_seconds_and_does_not_come_again() {
    by_hand(async {
        let Some(scene) = Scene::new().await else { return };
        let (raw, reader) = (scene.raw(), somebody(Role::Reader, HOUR));
        let (endpoint, pass) = scene.greet(&raw, reader.clone()).await;
        // What it is answered after that, it does not get.
        let slow = read(Behaviour::Gated, 1, 0, 100, LONG);
        send(&endpoint, wire::REQUEST, &request_with(1, &slow, pass.client), Sent::None);
        until("it is asked", || scene.service.started() == 1).await;
        scene.live.replace(worker_of(&scene.cluster, Some(reader.identity.clone())));
        let start = Instant::now();
        assert_dismissed(&raw, &endpoint, FailureKind::PermissionDenied, "is denied").await;
        // Five seconds, by the clock of a server that has the processor when it is its turn.
        println!("cut after {:?}", start.elapsed());
        scene.service.open(1);
        let still_waits = scene.admit(ID, reader);
        let again = scene.connect(&raw);
        say_hello(&raw, &again, still_waits.client);
        assert_dismissed(&raw, &again, FailureKind::InvalidArgument, "is denied").await;
        assert_eq!(raw.unheard(), 0);
        until("nobody is left", || scene.server.connections() == 0).await;
        scene.server.close().await;
    });
}

fn admitted_link(
    library: &'static Library,
    server: std::net::SocketAddr,
    tcp: Arc<dyn Transport>,
) -> (Arc<IoThread>, Arc<RdmaTransport>) {
    // A ping among the messages is nothing that a server by hand expects, however slow the machine.
    let patient = ClientOptions { keepalive: LONG, dead_after: 2 * LONG, ..client_options() };
    link_with(library, server, ClientOptions { security: Some(ClientSecurity::over(tcp)), ..patient })
}

#[test]
fn whose_certificate_ends_comes_again_and_loses_no_answer() {
    by_hand(async {
        let Some(scene) = Scene::new().await else { return };
        let lasts = [Duration::from_secs(1), HOUR];
        let tcp = Admitting::new(&scene.passes, Role::Reader, lasts);
        let (_io_thread, link) = admitted_link(scene.library, scene.server.local_addr(), tcp.clone());
        assert_serves(&link).await;
        let slow = read(Behaviour::Gated, 1, 0, 1000, LONG);
        let asking = tokio::task::spawn_local({
            let (link, slow) = (Arc::clone(&link), slow.clone());
            async move { call(&link, slow).await }
        });
        let start = Instant::now();
        while tcp.asked() < 2 {
            assert_serves(&link).await;
            assert!(start.elapsed() < PATIENCE, "it does not come again");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_serves(&link).await;
        scene.service.open(1);
        conformance::assert_bytes(&asking.await.unwrap().unwrap(), &slow, 1000);
        until("the first connection has ended", || scene.server.connections() == 1).await;
        assert_serves(&link).await;
        link.close().await;
        scene.server.close().await;
    });
}

#[test]
fn who_need_prove_nothing_yet_is_served_beside_those_who_do() {
    by_hand(async {
        let Some(scene) = Scene::accepting_plain(true).await else { return };
        let (_of_plain, plain) = link(scene.library, scene.server.local_addr());
        let tcp = Admitting::new(&scene.passes, Role::Reader, [HOUR; 2]);
        let (_of_admitted, admitted) = admitted_link(scene.library, scene.server.local_addr(), tcp);
        assert_serves(&plain).await;
        assert_serves(&admitted).await;
        let raw = scene.raw();
        scene.assert_rejected(&raw, scene.connect(&raw), "an unknown client id").await;
        plain.close().await;
        admitted.close().await;
        scene.server.close().await;
    });
}

/// A server by hand, and a client that was admitted to it.
struct Counterpart {
    raw: Raw,
    listener: Listener,
    io_thread: Arc<IoThread>,
    link: Arc<RdmaTransport>,
    passes: Arc<Mutex<Passes>>,
}

impl Counterpart {
    fn new() -> Option<Self> {
        let library = library()?;
        let raw = Raw::new(library, &[wire::HELLO, wire::REQUEST]);
        let listener = raw.worker.listen(address(0)).unwrap();
        let passes = Arc::<Mutex<Passes>>::default();
        let tcp = Admitting::new(&passes, Role::Reader, [HOUR; 2]);
        let (io_thread, link) = admitted_link(library, listener.address(), tcp);
        Some(Self { raw, listener, io_thread, link, passes })
    }

    /// The client's connection, its hello, and the pass that it shows.
    async fn accept(&self) -> (Endpoint, Pass) {
        let request = self.listener.accept().await;
        assert_eq!(request.client_id(), Some(self.io_thread.client_id()));
        let endpoint = request.accept().unwrap();
        let hello = self.raw.next("a hello").await;
        assert_eq!(hello.message, wire::HELLO);
        let shown = wire::check_hello(&ours(), self.raw.version(), &hello.header).unwrap();
        let redeemed = self.passes.lock().redeem(self.io_thread.client_id().get(), shown, Instant::now());
        (endpoint, redeemed.expect("it shows its pass").0)
    }
}

#[test]
fn a_reply_that_does_not_show_the_pass_is_dropped() {
    by_hand(async {
        let Some(scene) = Counterpart::new() else { return };
        let right = Bytes::from_static(&[7; 100]);
        let (reply, endpoint) = tokio::join!(call(&scene.link, a_read()), async {
            let (endpoint, pass) = scene.accept().await;
            let welcome = wire::hello_with(&ours(), scene.raw.version(), pass.server);
            send(&endpoint, wire::WELCOME, &welcome, Sent::None);
            let request = scene.raw.next("a request").await;
            assert_eq!((request.message, tag_of(&request)), (wire::REQUEST, pass.client));
            let header =
                ReplyHeader { id: 1, failure: None, body_len: 0, payload_len: 100, provenance: Provenance::default() };
            let goodbye = ReplyHeader { failure: Some(FailureKind::Internal), payload_len: 0, ..header.clone() };
            let goodbye = ReplyHeader { id: CONNECTION_ID, ..goodbye };
            let with = |header: &ReplyHeader, tag| {
                let mut bytes = header.encode();
                set_tag(&mut bytes, tag);
                bytes
            };
            for wrong in [0, pass.client, pass.server ^ 1] {
                send(&endpoint, wire::REPLY, &with(&header, wrong), noise(100));
                send(&endpoint, wire::REPLY, &with(&goodbye, wrong), Sent::None);
            }
            let another = wire::hello_with(&ours(), scene.raw.version(), 0);
            send(&endpoint, wire::WELCOME, &another, Sent::None);
            send(&endpoint, wire::REPLY, &with(&header, pass.server), right.clone());
            endpoint
        });
        assert_eq!(payload_of(&reply.unwrap()), right);
        assert_eq!(scene.io_thread.stats().forged, 7);
        endpoint.close(true).await;
        scene.link.close().await;
    });
}

#[test]
fn whoever_listens_at_a_workers_address_and_does_not_know_the_pass_gets_no_request() {
    by_hand(async {
        let Some(scene) = Counterpart::new() else { return };
        let (result, endpoint) = tokio::join!(call(&scene.link, a_read()), async {
            let (endpoint, pass) = scene.accept().await;
            // All that it has heard.
            let welcome = wire::hello_with(&ours(), scene.raw.version(), pass.client);
            send(&endpoint, wire::WELCOME, &welcome, Sent::None);
            endpoint
        });
        let Err(CallError::Link(LinkError::Refused { reason, .. })) = result else { panic!("{result:?}") };
        assert!(reason.contains("it does not know the pass"), "{reason}");
        assert_eq!(scene.raw.unheard(), 0, "it heard a request");
        endpoint.close(true).await;
        scene.link.close().await;
    });
}
