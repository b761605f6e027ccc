//! Whatever a peer sends to an RDMA listener costs that peer its connection at most, and no other peer anything.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::raw::{Raw, announce, by_hand, noise, send};
use common::*;
use forebay_rdma::{IoThreadStats, Library, RdmaServer, RdmaTransport, ServerOptions, wire};
use forebay_transport::conformance::{Behaviour, Scripted, pattern, read, until};
use forebay_transport::wire::{
    CONNECTION_ID, HEADER_LEN, HELLO_LEN, Hello, MAX_PAYLOAD, MAX_REQUEST_BODY, RequestHeader,
};
use forebay_transport::{Op, Request, Transport};
use forebay_types::{FailureKind, crc32c};
use forebay_ucx::{Payload, Protocol};

const HEARS: [u16; 2] = [wire::WELCOME, wire::REPLY];

/// The server under test, and a client that behaves and must not notice anything.
struct Scene {
    library: &'static Library,
    server: RdmaServer,
    link: Arc<RdmaTransport>,
}

impl Scene {
    async fn new(adjust: impl FnOnce(&mut ServerOptions)) -> Option<Self> {
        let library = library()?;
        let mut options = ServerOptions::new(address(0), CLUSTER, BLOCK_SIZE);
        adjust(&mut options);
        let io_thread = io_thread_of(library, "server", pool(64));
        let server = RdmaServer::bind(io_thread, options, Scripted::new()).await.unwrap();
        let (_, link) = link(library, server.local_addr());
        let scene = Self { library, server, link };
        assert_serves(&scene.link).await;
        Some(scene)
    }

    /// How many connections were not accepted, and for how many there was no place.
    fn refused(&self) -> (u64, u64) {
        let IoThreadStats { refused, no_room, .. } = self.server.io_thread().stats();
        (refused, no_room)
    }

    async fn end(self) {
        until("only the good client is left", || self.server.connections() == 1).await;
        assert_serves(&self.link).await;
        self.link.close().await;
        self.server.close().await;
    }
}

fn honest() -> [u8; HEADER_LEN] {
    RequestHeader::of(1, &read(Behaviour::AtOnce, 0, 0, 100, LONG)).encode()
}

/// A header with whatever bytes at `at`, and a checksum that is right.
fn forged(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut header = honest();
    header[at..at + bytes.len()].copy_from_slice(bytes);
    let crc = crc32c(&header[..HEADER_LEN - 4]);
    header[HEADER_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
    header.to_vec()
}

/// The peer is told why, and its connection closed.
async fn assert_dismissed(raw: &Raw, endpoint: &forebay_ucx::Endpoint, case: &str) {
    let told = raw.next(case).await;
    let (header, reason) = told.reply();
    assert_eq!((header.id, header.failure), (CONNECTION_ID, Some(FailureKind::InvalidArgument)), "{case}");
    println!("{case}: {}", String::from_utf8_lossy(&reason));
    assert!(!reason.is_empty());
    let status = tokio::time::timeout(Duration::from_secs(20), endpoint.failed()).await;
    assert!(status.is_ok(), "{case}: the connection stays");
}

#[test]
fn a_wrong_hello_is_refused_and_told_why() {
    by_hand(async {
        let Some(scene) = Scene::new(|_| {}).await else { return };
        let version = scene.library.version();
        let good = wire::hello(&ours(), version);
        let mut damaged = good;
        damaged[100] ^= 1;
        let newer = [&Hello { protocol: 99, ..ours() }.encode()[..], &good[HELLO_LEN..]].concat();
        let other = forebay_ucx::Version { minor: version.minor + 1, ..version };
        let cases: [(&str, Vec<u8>); 10] = [
            ("no header", Vec::new()),
            ("a cut hello", good[..10].to_vec()),
            ("a hello without UCX's version", good[..HELLO_LEN].to_vec()),
            ("a hello that goes on", [&good[..], &[0]].concat()),
            ("a damaged hello", damaged.to_vec()),
            ("another protocol", newer),
            ("another cluster", wire::hello(&Hello { cluster: "elsewhere".into(), ..ours() }, version).to_vec()),
            ("another block size", wire::hello(&Hello { block_size: BLOCK_SIZE / 4, ..ours() }, version).to_vec()),
            ("no block size", wire::hello(&Hello { block_size: 0, ..ours() }, version).to_vec()),
            ("another UCX", wire::hello(&ours(), other).to_vec()),
        ];
        for (case, hello) in cases {
            let raw = Raw::new(scene.library, &HEARS);
            let endpoint = raw.connect(scene.server.local_addr());
            send(&endpoint, wire::HELLO, &hello, Payload::None);
            assert_dismissed(&raw, &endpoint, case).await;
            assert_serves(&scene.link).await;
        }
        scene.end().await;
    });
}

#[test]
fn what_the_protocol_does_not_allow_costs_the_sender_its_connection_and_nobody_else_anything() {
    by_hand(async {
        let Some(scene) = Scene::new(|_| {}).await else { return };
        let mut flipped = honest();
        flipped[20] ^= 1;
        let long_body = (MAX_REQUEST_BODY + 1).to_le_bytes();
        let upload = RequestHeader::of(1, &Request::on_path(Op::Upload, Bytes::new(), LONG));
        let upload = RequestHeader { body_len: MAX_REQUEST_BODY + 1, ..upload }.encode();
        let cases: [(&str, Vec<u8>, usize); 14] = [
            ("no header", Vec::new(), 0),
            ("a cut header", honest()[..63].to_vec(), 0),
            ("noise", vec![0xff; 500], 0),
            ("a reply's magic", forged(0, b"FA"), 0),
            ("a damaged header", flipped.to_vec(), 0),
            ("an unknown operation", forged(2, &[99]), 0),
            ("a body of 4 GiB that is not there", forged(4, &u32::MAX.to_le_bytes()), 0),
            ("a body beyond the limit that is not there", forged(4, &long_body), 0),
            ("a body beyond the limit", forged(4, &long_body), MAX_REQUEST_BODY as usize + 1),
            ("a body that only TCP takes", upload.to_vec(), MAX_REQUEST_BODY as usize + 1),
            ("a read beyond the limit", forged(44, &(MAX_PAYLOAD + 1).to_le_bytes()), 0),
            ("a body shorter than said", forged(4, &5000u32.to_le_bytes()), 4999),
            ("data beside a header that has none", honest().to_vec(), 100),
            ("a body in the header that was not announced", [&honest()[..], &[1; 50]].concat(), 0),
        ];
        for (case, header, data) in cases {
            let raw = Raw::new(scene.library, &HEARS);
            let endpoint = raw.greet(scene.server.local_addr()).await;
            endpoint.am_send(wire::REQUEST, &header, noise(data), None, Protocol::Eager).detach();
            assert_dismissed(&raw, &endpoint, case).await;
            assert_serves(&scene.link).await;
        }
        scene.end().await;
    });
}

#[test]
fn data_that_is_only_announced_is_not_fetched_and_costs_the_connection() {
    by_hand(async {
        let Some(scene) = Scene::new(|_| {}).await else { return };
        let memory = pool(32);
        let hello = wire::hello(&ours(), scene.library.version());
        for (case, id, header, length) in [
            ("4 MiB with a request", wire::REQUEST, honest().to_vec(), 4 << 20),
            ("a body by rendezvous", wire::REQUEST, forged(4, &60_000u32.to_le_bytes()), 60_000),
            ("16 MiB with a request", wire::REQUEST, forged(4, &u32::MAX.to_le_bytes()), 16 << 20),
            ("4 MiB with a second hello", wire::HELLO, hello.to_vec(), 4 << 20),
        ] {
            let raw = Raw::new(scene.library, &HEARS);
            let endpoint = raw.greet(scene.server.local_addr()).await;
            announce(&endpoint, id, &header, &memory, length);
            assert_dismissed(&raw, &endpoint, case).await;
            endpoint.close(true).await;
            assert_eq!(memory.used(), 0, "{case}: the sender's memory comes back");
            assert_serves(&scene.link).await;
        }
        scene.end().await;
    });
}

#[test]
fn a_request_before_a_hello_and_a_second_hello_cost_the_connection() {
    by_hand(async {
        let Some(scene) = Scene::new(|_| {}).await else { return };
        let raw = Raw::new(scene.library, &HEARS);
        let endpoint = raw.connect(scene.server.local_addr());
        send(&endpoint, wire::REQUEST, &honest(), Payload::None);
        assert_dismissed(&raw, &endpoint, "a request before a hello").await;
        let raw = Raw::new(scene.library, &HEARS);
        let endpoint = raw.greet(scene.server.local_addr()).await;
        send(&endpoint, wire::HELLO, &wire::hello(&ours(), raw.version()), Payload::None);
        assert_dismissed(&raw, &endpoint, "a second hello").await;
        let raw = Raw::new(scene.library, &HEARS);
        let endpoint = raw.connect(scene.server.local_addr());
        send(&endpoint, wire::HELLO, &wire::hello(&ours(), raw.version()), noise(100));
        assert_dismissed(&raw, &endpoint, "a hello with data").await;
        scene.end().await;
    });
}

#[test]
fn messages_that_are_not_for_a_server_are_dropped() {
    by_hand(async {
        let Some(scene) = Scene::new(|_| {}).await else { return };
        let memory = pool(32);
        let raw = Raw::new(scene.library, &HEARS);
        let endpoint = raw.greet(scene.server.local_addr()).await;
        for id in [wire::REPLY, wire::WELCOME, 77, 5, 0] {
            send(&endpoint, id, &[9; 64], Payload::None);
            send(&endpoint, id, &[9; 64], noise(1000));
            announce(&endpoint, id, &[9; 64], &memory, 1 << 20);
        }
        send(&endpoint, wire::REQUEST, &honest(), Payload::None);
        let answer = raw.next("an answer all the same").await;
        assert_eq!(answer.data, (0..100).map(|at| pattern(0, at)).collect::<Vec<_>>());
        until("the sender's memory comes back", || memory.used() == 0).await;
        endpoint.close(true).await;
        scene.end().await;
    });
}

#[test]
fn a_peer_that_says_nothing_is_not_waited_for() {
    by_hand(async {
        // A peer that does say something has to be in time, too, and on a busy machine.
        let hello_timeout = Duration::from_secs(4);
        let Some(scene) = Scene::new(|options| options.hello_timeout = hello_timeout).await else { return };
        let raw = Raw::new(scene.library, &HEARS);
        let endpoint = raw.connect(scene.server.local_addr());
        until("it is connected", || scene.server.connections() == 2).await;
        let start = Instant::now();
        endpoint.failed().await;
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
        scene.end().await;
    });
}

#[test]
fn a_reader_that_takes_nothing_delays_nobody_and_is_closed_in_the_end() {
    by_hand(async {
        let stall_timeout = Duration::from_millis(800);
        let Some(scene) = Scene::new(|options| options.stall_timeout = stall_timeout).await else { return };
        let raw = Raw::new(scene.library, &[wire::WELCOME]);
        // Keeps what it is offered, and never fetches it.
        let kept = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let keeper = std::rc::Rc::clone(&kept);
        let keep = move |message: forebay_ucx::Message<'_>| {
            if let forebay_ucx::Data::Rendezvous(rendezvous) = message.data {
                keeper.borrow_mut().push(rendezvous);
            }
        };
        raw.worker.on_message(wire::REPLY, keep).unwrap();
        let endpoint = raw.greet(scene.server.local_addr()).await;
        for id in 1..=8 {
            let request = read(Behaviour::AtOnce, id, 0, MAX_PAYLOAD, LONG);
            send(&endpoint, wire::REQUEST, &RequestHeader::of(id, &request).encode(), Payload::None);
        }
        until("it has been offered them all", || kept.borrow().len() == 8).await;
        let start = Instant::now();
        assert_serves(&scene.link).await;
        assert!(start.elapsed() < Duration::from_secs(30));
        until("the reader is closed", || scene.server.connections() == 1).await;
        kept.borrow_mut().clear();
        scene.end().await;
    });
}

#[test]
fn one_connection_more_than_allowed_is_refused_and_one_request_more_fails() {
    by_hand(async {
        let limits =
            |options: &mut ServerOptions| (options.max_connections, options.max_requests_per_connection) = (2, 3);
        let Some(scene) = Scene::new(limits).await else { return };
        let raw = Raw::new(scene.library, &HEARS);
        let endpoint = raw.greet(scene.server.local_addr()).await;
        let refused = raw.connect(scene.server.local_addr());
        send(&refused, wire::HELLO, &wire::hello(&ours(), raw.version()), Payload::None);
        tokio::time::timeout(Duration::from_secs(20), refused.failed()).await.expect("it is refused");
        assert_eq!(scene.refused(), (1, 1));
        for id in 1..=4 {
            let request = read(Behaviour::Never, id, 0, 100, LONG);
            send(&endpoint, wire::REQUEST, &RequestHeader::of(id, &request).encode(), Payload::None);
        }
        let (header, _) = raw.next("the answer to the fourth").await.reply();
        assert_eq!((header.id, header.failure), (4, Some(FailureKind::OutOfResources)));
        assert_eq!(raw.unheard(), 0);
        endpoint.close(true).await;
        refused.close(true).await;
        scene.end().await;
    });
}

#[test]
fn connections_for_which_there_is_no_place_are_counted() {
    by_hand(async {
        let limit = |options: &mut ServerOptions| options.max_connections_per_client = 1;
        let Some(scene) = Scene::new(limit).await else { return };
        let raw = Raw::new(scene.library, &HEARS);
        let endpoint = raw.connect(scene.server.local_addr());
        send(&endpoint, wire::HELLO, &wire::hello(&ours(), raw.version()), Payload::None);
        assert_dismissed(&raw, &endpoint, "a hello too many of this host").await;
        assert_eq!(scene.refused(), (0, 1));
        scene.end().await;
        let places = |options: &mut ServerOptions| {
            options.max_greeting_per_client = 1;
            // It goes because it makes way, however long it takes others here to connect.
            options.hello_timeout = 10 * LONG;
        };
        let Some(scene) = Scene::new(places).await else { return };
        let silent = raw.connect(scene.server.local_addr());
        until("it is accepted", || scene.server.connections() == 2).await;
        // Whoever comes before it has had the time for a hello is refused.
        let begun = Instant::now();
        let taken = loop {
            let next = raw.connect(scene.server.local_addr());
            send(&next, wire::HELLO, &wire::hello(&ours(), raw.version()), Payload::None);
            let refused = tokio::time::timeout(Duration::from_secs(20), next.failed());
            tokio::select! {
                _ = refused => {
                    assert!(begun.elapsed() < Duration::from_secs(60), "it is never taken in");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                heard = raw.next("a welcome") => {
                    assert_eq!(heard.message, wire::WELCOME);
                    break next;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), silent.failed()).await.expect("it makes way");
        let (refused, no_room) = scene.refused();
        assert_eq!(no_room, refused + 1);
        taken.close(true).await;
        scene.end().await;
    });
}
