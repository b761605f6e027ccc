//! Whatever a peer does over verbs costs it its connection at most, and no other peer anything; and it reaches no memory but what waits
//! for it.

mod common;
#[path = "verbs_hostile/messages.rs"]
mod messages;

use std::net::SocketAddr;
use std::sync::Arc;

use common::verbs::*;
use common::*;
use forebay_memory::{SpanMut, Spans};
use forebay_rdma::RdmaTransport;
use forebay_rdma::verbs::VerbsServer;
use forebay_transport::conformance::{Behaviour, Scripted, read, until};
use forebay_transport::wire::{CONNECTION_ID, HEADER_LEN, MAX_PAYLOAD, MAX_REQUEST_BODY, ReplyHeader, RequestHeader};
use forebay_transport::{CallError, LinkError, Op, Payload, Provenance, Reply, Request, Transport};
use forebay_types::{ByteSize, FailureKind};
use forebay_verbs::{Post, Remote};
use tokio::runtime::Runtime;

/// The server under test, and a client that behaves and must not notice anything.
struct Scene {
    devices: Devices,
    runtime: Runtime,
    server: VerbsServer,
    link: Arc<RdmaTransport>,
}

impl Scene {
    fn new() -> Option<Self> {
        let devices = devices()?;
        let runtime = Runtime::new().unwrap();
        let server = runtime.block_on(devices.serve(0, Scripted::new(), None));
        let link = runtime.block_on(async { devices.good_link(server.local_addr()) });
        let scene = Self { devices, runtime, server, link };
        scene.assert_serves();
        Some(scene)
    }

    fn assert_serves(&self) {
        self.runtime.block_on(common::assert_serves(&self.link));
    }

    fn address(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// A peer that has greeted.
    fn greet<'a>(&self, raw: &'a Raw) -> RawPair<'a> {
        let mut pair = raw.connect(&self.devices, self.address(), &offer(32, 4096)).unwrap();
        pair.send(&frame(HELLO, &hello()), Post::default());
        assert_eq!(pair.hear("a welcome")[0], WELCOME);
        pair
    }

    fn end(self) {
        self.runtime.block_on(until("only the good client is left", || self.server.connections() == 1));
        self.assert_serves();
        self.runtime.block_on(async {
            self.link.close().await;
            self.server.close().await;
        });
    }
}

fn honest(id: u64, length: u32) -> Vec<u8> {
    RequestHeader::of(id, &read(Behaviour::AtOnce, 0, 0, length, LONG)).encode().to_vec()
}

#[test]
fn who_speaks_something_else_is_rejected_before_there_is_a_connection() {
    let Some(scene) = Scene::new() else { return };
    let raw = Raw::new(&scene.devices.client);
    let newer = {
        let mut newer = offer(32, 1024);
        newer[4] = 9;
        newer
    };
    for (case, said, words) in [
        ("nothing", vec![], "does not speak Forebay"),
        ("something else", b"GET / HTTP/1.1\r\nHost: x\r\n".to_vec(), "does not speak Forebay"),
        ("another version", newer, "version 9"),
        ("no frames", offer(0, 1024), "makes no sense"),
        ("frames of no length", offer(32, 0), "makes no sense"),
        ("frames of 4 GiB", offer(32, u32::MAX), "makes no sense"),
    ] {
        let refused = raw.connect(&scene.devices, scene.address(), &said).err().expect(case);
        assert!(refused.contains(words), "{case}: {refused}");
        scene.assert_serves();
    }
    scene.end();
}

#[test]
fn what_the_protocol_does_not_allow_costs_the_sender_its_connection_and_nobody_else_anything() {
    let Some(scene) = Scene::new() else { return };
    let request = |id| frame(REQUEST, &honest(id, 100));
    let with_window = || frame_with(REQUEST, 0, (7, 4096), &honest(1, 100));
    let waits =
        || frame_with(REQUEST, 0, (7, 4096), &RequestHeader::of(1, &read(Behaviour::Never, 0, 0, 9999, LONG)).encode());
    let long = RequestHeader::of(1, &Request::on_path(Op::Upload, Default::default(), LONG));
    let long = RequestHeader { body_len: MAX_REQUEST_BODY + 1, ..long }.encode();
    let mut beyond = RequestHeader::of(1, &read(Behaviour::AtOnce, 0, 0, 1, LONG));
    beyond.length = MAX_PAYLOAD + 1;
    let cases: [(&str, Vec<Vec<u8>>); 16] = [
        ("nothing at all", vec![vec![]]),
        ("a cut frame", vec![request(1)[..10].to_vec()]),
        ("an unknown kind", vec![frame(99, &honest(1, 100))]),
        (
            "unknown flags",
            vec![{
                let mut frame = request(1);
                frame[1] = 0x80;
                frame
            }],
        ),
        ("a cut header", vec![frame(REQUEST, &honest(1, 100)[..63])]),
        ("noise", vec![frame(REQUEST, &[0xff; 500])]),
        ("a reply", vec![frame(REPLY, &reply(1, 0).encode())]),
        ("a second hello", vec![frame(HELLO, &hello())]),
        ("a piece of nothing", vec![frame(MORE, &[1; 10])]),
        ("a body that only TCP takes", vec![frame(REQUEST, &long)]),
        ("a read beyond the limit", vec![frame(REQUEST, &beyond.encode())]),
        ("credits that it was not given", vec![frame_with(REQUEST, 1000, (0, 0), &honest(1, 100))]),
        ("two requests under one number", vec![waits(), with_window()]),
        ("credits for nothing", vec![frame(CREDITS, &[])]),
        ("memory for us to read", vec![frame(OPENED, &[1; 32])]),
        ("that it has forgotten what it was not told", vec![frame(FORGOTTEN, &[])]),
    ];
    let raw = Raw::new(&scene.devices.client);
    for (case, frames) in cases {
        let mut pair = scene.greet(&raw);
        frames.iter().for_each(|frame| pair.send(frame, Post::default()));
        let (header, reason) = pair.reply(case);
        println!("{case}: {}", String::from_utf8_lossy(&reason));
        assert_eq!((header.id, header.failure), (CONNECTION_ID, Some(FailureKind::InvalidArgument)), "{case}");
        pair.ends(case);
        scene.assert_serves();
    }
    scene.end();
}

#[test]
fn who_sends_on_without_credits_or_says_nothing_first_loses_its_connection() {
    let Some(scene) = Scene::new() else { return };
    let raw = Raw::new(&scene.devices.client);
    let mut silent = raw.connect(&scene.devices, scene.address(), &offer(32, 4096)).unwrap();
    silent.send(&frame(REQUEST, &honest(1, 100)), Post::default());
    silent.ends("a request before a hello");
    drop(silent);
    // It never says that it has taken an answer, so it has 32 frames of the server's at most.
    let mut greedy = scene.greet(&raw);
    for id in 1..=200 {
        greedy.send(&frame(REQUEST, &honest(id, 100)), Post::default());
    }
    drop(greedy);
    scene.end();
}

#[test]
fn a_place_for_an_answer_that_is_not_there_costs_its_own_connection() {
    let Some(scene) = Scene::new() else { return };
    let raw = Raw::new(&scene.devices.client);
    for (key, address) in [(0x0bad_cafe, 4096), (1, 0), (u32::MAX, u64::MAX - 100)] {
        let mut pair = scene.greet(&raw);
        pair.send(&frame_with(REQUEST, 0, (key, address), &honest(1, 100_000)), Post::default());
        pair.ends("a write that goes nowhere");
        drop(pair);
        scene.assert_serves();
    }
    scene.end();
}

fn reply(id: u64, payload_len: u32) -> ReplyHeader {
    ReplyHeader { id, failure: None, body_len: 0, payload_len, provenance: Provenance::default() }
}

/// Bytes that are asked for, too many to come with the answer.
const ASKED: usize = 100_000;
/// Bytes before and behind them that must not be touched.
const CANARY: usize = 4096;

/// A server by hand, and the client under test.
struct Client {
    runtime: Runtime,
    raw: Raw,
    _listener: forebay_verbs::Id,
    link: Arc<RdmaTransport>,
    buffers: forebay_memory::Pool,
}

/// The key and the address of a request's window.
fn window(request: &[u8]) -> Remote {
    let key = u32::from_le_bytes(request[4..8].try_into().unwrap());
    Remote { key, address: u64::from_le_bytes(request[8..16].try_into().unwrap()) }
}

impl Client {
    fn new() -> Option<Self> {
        let devices = devices()?;
        let raw = Raw::new(&devices.server);
        Some(Self::of(&devices, raw, None))
    }

    /// One whose payload comes in messages.
    fn in_messages() -> Option<Self> {
        let devices = devices()?;
        let raw = Raw::in_messages(&devices.server);
        Some(Self::of(&devices, raw, Some(ByteSize::mib(1))))
    }

    fn of(devices: &Devices, raw: Raw, receive_buffers: Option<ByteSize>) -> Self {
        let runtime = Runtime::new().unwrap();
        let (listener, address) = raw.listen(devices.server.1);
        let buffers = pool(8);
        let patient = forebay_rdma::ClientOptions { keepalive: LONG, dead_after: 2 * LONG, ..client_options() };
        let link = runtime.block_on(async { devices.link_by(address, patient, buffers.clone(), receive_buffers) });
        Self { runtime, raw, _listener: listener, link, buffers }
    }

    /// Bytes for the server to write.
    fn noise(&self, length: usize) -> Spans {
        let mut span = self.raw.registration.pool().try_alloc(length).unwrap();
        span.fill(0x5a);
        Spans::from_iter([span.freeze()])
    }

    /// One read of so many bytes, on a new connection, which the server answers by `answer`. What became of it, and the connection.
    fn read_answered<'a>(
        &'a self,
        length: usize,
        answer: impl FnOnce(&mut RawPair<'a>, &[u8]),
    ) -> (Result<Reply, CallError>, RawPair<'a>) {
        let (head, rest) = self.buffers.try_alloc(CANARY + length + CANARY).unwrap().split_at(CANARY);
        let (into, tail) = rest.split_at(length);
        let mark = |mut span: SpanMut| {
            span.fill(0xee);
            span
        };
        let (head, into, tail) = (mark(head), mark(into), mark(tail));
        let link = Arc::clone(&self.link);
        let request = read(Behaviour::AtOnce, 0, 0, length as u32, LONG);
        let call = self.runtime.spawn(async move { link.call(request, Some(into)).await });
        let (mut pair, asked) = self.raw.serve_one();
        answer(&mut pair, &asked);
        let result = self.runtime.block_on(call).unwrap();
        assert!(head.iter().chain(tail.iter()).all(|byte| *byte == 0xee), "memory beside the buffer was written to");
        (result, pair)
    }

    /// That what comes for an answer breaks the protocol, and costs the connection and no memory.
    fn breaks(&self, case: &str, length: usize, send: impl FnOnce(&mut RawPair<'_>)) {
        let (result, mut pair) = self.read_answered(length, |pair, _| send(pair));
        let Err(CallError::Link(error @ LinkError::Protocol { .. })) = result else { panic!("{case}: {result:?}") };
        println!("{case}: {error}");
        pair.ends(case);
        drop(pair);
        self.assert_nothing_held();
    }

    fn assert_nothing_held(&self) {
        self.runtime.block_on(until("all memory is back", || self.buffers.used() == 0));
    }
}

#[test]
fn answers_that_the_protocol_does_not_allow_fail_the_call_and_end_the_connection() {
    let Some(client) = Client::new() else { return };
    let written = |header: ReplyHeader| {
        let mut frame = frame(REPLY, &header.encode());
        frame[1] = 1;
        frame
    };
    let small = 1000;
    let mut damaged = reply(1, 0).encode();
    damaged[30] ^= 1;
    let cases: [(&str, usize, Vec<u8>); 11] = [
        ("an answer that leaves its key in use", ASKED, written(reply(1, ASKED as u32))),
        ("one without payload that does", ASKED, frame(REPLY, &reply(1, 0).encode())),
        ("written where nothing was offered", small, written(reply(1, small as u32))),
        ("one byte more than asked", small, frame(REPLY, &[&reply(1, 1001).encode()[..], &[7; 1001]].concat())),
        ("more than goes with an answer", small, frame(REPLY, &reply(1, 5000).encode())),
        ("an answer to nothing", small, frame(REPLY, &reply(77, 0).encode())),
        ("a damaged header", small, frame(REPLY, &damaged)),
        ("a request", small, frame(REQUEST, &honest(1, 100))),
        ("more than it says", small, frame(REPLY, &[&reply(1, 0).encode()[..], &[1]].concat())),
        ("memory to read for who did not ask for that", small, frame(OPENED, &[1; 32])),
        ("and that it is to be forgotten", small, frame(FORGET, &[])),
    ];
    for (case, length, answer) in cases {
        client.breaks(case, length, |pair| pair.send(&answer, Post::default()));
    }
    let (result, _pair) = client.read_answered(ASKED, |pair, request| {
        let window = window(request);
        let write = Some((client.noise(ASKED), window));
        pair.send(&written(reply(1, ASKED as u32)), Post { write, invalidate: Some(window.key), ..Post::default() });
    });
    let Payload::Landed(bytes) = result.unwrap().payload else { panic!("it did not land") };
    assert!(bytes.len() == ASKED && bytes.iter().all(|byte| *byte == 0x5a), "what is right still works");
}

#[test]
fn what_was_answered_cannot_be_written_to_any_more() {
    let Some(client) = Client::new() else { return };
    let mut remote = None;
    let (result, mut pair) = client.read_answered(ASKED, |pair, request| {
        let window = window(request);
        remote = Some(window);
        let mut answer = frame(REPLY, &reply(1, ASKED as u32).encode());
        answer[1] = 1;
        let write = Some((client.noise(ASKED), window));
        pair.send(&answer, Post { write, invalidate: Some(window.key), ..Post::default() });
    });
    let Payload::Landed(mut bytes) = result.unwrap().payload else { panic!("it did not land") };
    bytes.fill(0xaa);
    // The same place, under the same key.
    let again = Some((client.noise(ASKED), remote.unwrap()));
    pair.send(&frame(CREDITS, &[]), Post { write: again, ..Post::default() });
    pair.ends("a write under a key whose use has ended");
    assert!(bytes.iter().all(|byte| *byte == 0xaa), "memory that was given back was written to");
    drop((bytes, pair));
    client.assert_nothing_held();
}

#[test]
fn a_server_that_keeps_a_buffer_waiting_has_it_until_the_connection_has_ended() {
    let Some(client) = Client::new() else { return };
    let link = Arc::clone(&client.link);
    let into = client.buffers.try_alloc(ASKED);
    let request = read(Behaviour::AtOnce, 0, 0, ASKED as u32, std::time::Duration::from_secs(20));
    let call = client.runtime.spawn(async move { link.call(request, into).await });
    let (pair, _) = client.raw.serve_one();
    let result = client.runtime.block_on(call).unwrap();
    assert!(matches!(result, Err(CallError::Link(LinkError::TimedOut { .. }))), "{result:?}");
    assert!(client.buffers.used() > 0, "the server may write to it still");
    drop(pair);
    client.assert_nothing_held();
}

#[test]
fn a_header_is_as_long_as_the_tests_here_believe() {
    assert_eq!(frame(REQUEST, &honest(1, 1)).len(), 16 + HEADER_LEN);
}
