//! What a client makes of a server that breaks the protocol: the call fails in words, memory beside the caller's buffer is
//! not touched, and the next call has a new connection.

mod common;

use std::sync::Arc;

use common::raw::{Heard, Raw, announce, by_hand, noise, send};
use common::*;
use forebay_memory::Pool;
use forebay_rdma::{ClientOptions, IoThread, RdmaTransport, wire};
use forebay_transport::conformance::{Behaviour, read, until};
use forebay_transport::wire::{CONNECTION_ID, HEADER_LEN, Hello, MAX_PAYLOAD, MAX_REPLY_BODY, ReplyHeader};
use forebay_transport::{CallError, LinkError, Payload, Provenance, Reply, Transport};
use forebay_types::{FailureKind, crc32c};
use forebay_ucx::{Endpoint, Listener, Payload as Sent, Protocol};

const HEARS: [u16; 2] = [wire::HELLO, wire::REQUEST];
/// Bytes that are asked for.
const ASKED: usize = 1000;
/// Bytes before and behind them that must not be touched.
const CANARY: usize = 4096;

/// A server by hand, and the client under test.
struct Scene {
    raw: Raw,
    listener: Listener,
    link: Arc<RdmaTransport>,
    /// What the server sends from.
    memory: Pool,
    /// What the client receives into.
    buffers: Pool,
    _io_thread: Arc<IoThread>,
}

impl Scene {
    fn new() -> Option<Self> {
        let library = library()?;
        let raw = Raw::new(library, &HEARS);
        let listener = raw.worker.listen(address(0)).unwrap();
        let buffers = pool(64);
        let io_thread = io_thread_of(library, "client", buffers.clone());
        // A ping among the messages is nothing that the server by hand expects, however slow the machine.
        let patient = ClientOptions { keepalive: LONG, dead_after: 2 * LONG, ..client_options() };
        let link = Arc::new(RdmaTransport::new(listener.address().to_string(), Arc::clone(&io_thread), patient));
        Some(Self { raw, listener, link, memory: pool(32), buffers, _io_thread: io_thread })
    }

    /// One read, on a new connection, that the server answers with `answer`.
    async fn read_answered(&self, answer: impl FnOnce(&Endpoint, &Heard)) -> (Result<Reply, CallError>, Endpoint) {
        let (head, into) = self.buffers.try_alloc(CANARY + ASKED + CANARY).unwrap().split_at(CANARY);
        let (into, tail) = into.split_at(ASKED);
        let (mut head, mut into, mut tail) = (head, into, tail);
        head.fill(0xee);
        into.fill(0xdd);
        tail.fill(0xee);
        let request = read(Behaviour::AtOnce, 0, 0, ASKED as u32, LONG);
        let (result, endpoint) = tokio::join!(self.link.call(request, Some(into)), async {
            let (endpoint, request) = self.raw.serve_one(&self.listener).await;
            answer(&endpoint, &request);
            endpoint
        });
        assert!(head.iter().chain(tail.iter()).all(|byte| *byte == 0xee), "memory beside the buffer was written to");
        (result, endpoint)
    }

    /// A reply as it should be, on a connection of its own: what was done before has left no trace.
    async fn assert_works(&self, case: &str) {
        let (result, endpoint) = self
            .read_answered(|endpoint, _| {
                send(
                    endpoint,
                    wire::REPLY,
                    &ReplyHeader { payload_len: ASKED as u32, ..reply(1) }.encode(),
                    noise(ASKED),
                );
            })
            .await;
        let Payload::Landed(bytes) = result.unwrap_or_else(|error| panic!("{case}: {error}")).payload else { panic!() };
        assert_eq!(bytes[..], noise(ASKED)[..], "{case}");
        drop(bytes);
        self.hang_up(endpoint).await;
    }

    async fn assert_nothing_held(&self) {
        until("all memory is back", || (self.memory.used(), self.buffers.used()) == (0, 0)).await;
    }

    /// Closes a connection, and waits until the client has seen it.
    async fn hang_up(&self, endpoint: Endpoint) {
        endpoint.close(true).await;
        until("the client sees it", || self._io_thread.stats().connections == 0).await;
    }
}

fn reply(id: u64) -> ReplyHeader {
    ReplyHeader { id, failure: None, body_len: 0, payload_len: 0, provenance: Provenance::default() }
}

/// A header with whatever bytes at `at`, and a checksum that is right.
fn forged(header: &ReplyHeader, at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut header = header.encode();
    header[at..at + bytes.len()].copy_from_slice(bytes);
    let crc = crc32c(&header[..HEADER_LEN - 4]);
    header[HEADER_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
    header.to_vec()
}

#[test]
fn replies_that_the_protocol_does_not_allow_fail_the_call_and_end_the_connection() {
    by_hand(async {
        let Some(scene) = Scene::new() else { return };
        let mut damaged = reply(1).encode();
        damaged[30] ^= 1;
        let of = |payload_len: usize| ReplyHeader { payload_len: payload_len as u32, ..reply(1) };
        let failed = Some(FailureKind::NotFound);
        let cases: [(&str, Vec<u8>, usize); 18] = [
            ("no header", Vec::new(), 0),
            ("a cut header", reply(1).encode()[..63].to_vec(), 0),
            ("a damaged header", damaged.to_vec(), 0),
            ("a request's magic", forged(&reply(1), 0, b"FQ"), 0),
            ("an answer to nothing", reply(77).encode().to_vec(), 0),
            ("an answer to nothing, with data", ReplyHeader { payload_len: 10, ..reply(77) }.encode().to_vec(), 10),
            ("one byte more than asked", of(ASKED + 1).encode().to_vec(), ASKED + 1),
            ("much more than asked", of(4000).encode().to_vec(), 4000),
            ("less than it says", of(ASKED).encode().to_vec(), ASKED - 1),
            ("more than it says", of(ASKED).encode().to_vec(), ASKED + 1),
            ("no data where it says some", of(ASKED).encode().to_vec(), 0),
            ("data where it says none", reply(1).encode().to_vec(), 100),
            ("a payload beyond the limit", forged(&reply(1), 16, &(MAX_PAYLOAD + 1).to_le_bytes()), 0),
            ("a body beyond the limit", forged(&reply(1), 4, &(MAX_REPLY_BODY + 1).to_le_bytes()), 0),
            ("a body of 4 GiB", forged(&reply(1), 4, &u32::MAX.to_le_bytes()), 0),
            ("a body that was not announced", [&reply(1).encode()[..], &[1; 50]].concat(), 0),
            ("a failure with payload", ReplyHeader { failure: failed, ..of(10) }.encode().to_vec(), 10),
            ("payload for nobody", ReplyHeader { payload_len: 10, ..reply(CONNECTION_ID) }.encode().to_vec(), 10),
        ];
        for (case, header, data) in cases {
            let (result, endpoint) = scene
                .read_answered(|endpoint, _| {
                    endpoint.am_send(wire::REPLY, &header, noise(data), None, Protocol::Eager).detach();
                })
                .await;
            let Err(CallError::Link(error @ LinkError::Protocol { .. })) = result else { panic!("{case}: {result:?}") };
            println!("{case}: {error}");
            scene.hang_up(endpoint).await;
            scene.assert_nothing_held().await;
            scene.assert_works(case).await;
        }
    });
}

#[test]
fn announced_data_that_was_not_asked_for_is_not_fetched() {
    by_hand(async {
        let Some(scene) = Scene::new() else { return };
        let of = |payload_len: usize| ReplyHeader { payload_len: payload_len as u32, ..reply(1) };
        for (case, header, length) in [
            ("1 MiB where 1000 bytes were asked for", of(1 << 20), 1 << 20),
            ("1 MiB that says 1000 bytes", of(ASKED), 1 << 20),
            ("1 MiB that says nothing", reply(1), 1 << 20),
            ("a body by rendezvous", ReplyHeader { body_len: 1 << 20, ..reply(1) }, 1 << 20),
            ("an answer to nothing", ReplyHeader { payload_len: 1 << 20, ..reply(77) }, 1 << 20),
            ("a failure", ReplyHeader { failure: Some(FailureKind::NotFound), ..of(1 << 20) }, 1 << 20),
        ] {
            let (result, endpoint) = scene
                .read_answered(|endpoint, _| {
                    announce(endpoint, wire::REPLY, &header.encode(), &scene.memory, length);
                })
                .await;
            assert!(matches!(&result, Err(CallError::Link(LinkError::Protocol { .. }))), "{case}: {result:?}");
            scene.hang_up(endpoint).await;
            scene.assert_nothing_held().await;
            scene.assert_works(case).await;
        }
    });
}

#[test]
fn a_second_answer_ends_the_connection_and_changes_nothing_in_the_first() {
    by_hand(async {
        let Some(scene) = Scene::new() else { return };
        for by_rendezvous in [false, true] {
            let header = ReplyHeader { payload_len: ASKED as u32, ..reply(1) }.encode();
            let (result, endpoint) = scene
                .read_answered(|endpoint, _| {
                    for _ in 0..3 {
                        if by_rendezvous {
                            announce(endpoint, wire::REPLY, &header, &scene.memory, ASKED);
                        } else {
                            send(endpoint, wire::REPLY, &header, noise(ASKED));
                        }
                    }
                })
                .await;
            match result {
                Ok(Reply { payload: Payload::Landed(bytes), .. }) => {
                    assert!(by_rendezvous || bytes[..] == noise(ASKED)[..]);
                }
                // The second one came before the first was fetched.
                Err(CallError::Link(LinkError::Lost { .. })) if by_rendezvous => {}
                other => panic!("{other:?}"),
            }
            let status = tokio::time::timeout(std::time::Duration::from_secs(20), endpoint.failed()).await;
            assert!(status.is_ok(), "the client keeps the connection");
            scene.hang_up(endpoint).await;
            scene.assert_nothing_held().await;
            scene.assert_works("after a second answer").await;
        }
    });
}

#[test]
fn a_server_that_is_not_one_of_ours_is_refused_by_name() {
    by_hand(async {
        let Some(scene) = Scene::new() else { return };
        let version = scene.raw.version();
        let other = forebay_ucx::Version { minor: version.minor + 1, ..version };
        let good = wire::hello(&ours(), version);
        let newer = [&Hello { protocol: 99, version: "9.9.9".into(), ..ours() }.encode()[..], &good[128..]];
        for (welcome, words) in [
            (wire::hello(&Hello { cluster: "elsewhere".into(), ..ours() }, version).to_vec(), "elsewhere".to_owned()),
            (newer.concat(), "9.9.9".to_owned()),
            (
                wire::hello(&Hello { block_size: BLOCK_SIZE / 4, ..ours() }, version).to_vec(),
                "`block.size` is 1MiB, ours is 4MiB".to_owned(),
            ),
            (vec![b'H'; 132], "does not speak Forebay".to_owned()),
            (good[..50].to_vec(), "50 bytes".to_owned()),
            (wire::hello(&ours(), other).to_vec(), format!("{}.{}", other.major, other.minor)),
        ] {
            let into = scene.buffers.try_alloc(ASKED);
            let request = read(Behaviour::AtOnce, 0, 0, ASKED as u32, LONG);
            let (result, _endpoint) = tokio::join!(scene.link.call(request, into), async {
                let endpoint = scene.listener.accept().await.accept().unwrap();
                assert_eq!(scene.raw.next("a hello").await.message, wire::HELLO);
                send(&endpoint, wire::WELCOME, &welcome, Sent::None);
                endpoint
            });
            let Err(CallError::Link(error @ LinkError::Refused { .. })) = result else { panic!("{result:?}") };
            assert!(error.to_string().contains(&words), "{error}");
        }
        scene.assert_works("after the refusals").await;
    });
}

#[test]
fn messages_that_are_not_for_a_client_are_dropped() {
    by_hand(async {
        let Some(scene) = Scene::new() else { return };
        let (result, _endpoint) = scene
            .read_answered(|endpoint, _| {
                for id in [wire::HELLO, wire::REQUEST, 77, 0] {
                    send(endpoint, id, &[9; 64], noise(500));
                    announce(endpoint, id, &[9; 64], &scene.memory, 1 << 20);
                }
                let header = ReplyHeader { payload_len: ASKED as u32, ..reply(1) };
                send(endpoint, wire::REPLY, &header.encode(), noise(ASKED));
            })
            .await;
        assert!(result.is_ok(), "{result:?}");
    });
}
