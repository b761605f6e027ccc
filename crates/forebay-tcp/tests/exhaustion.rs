//! Whoever takes connections, memory or places and gives nothing for them loses them, and nobody else notices.

mod common;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::*;
use forebay_memory::Spans;
use forebay_tcp::{ClientOptions, CloseReason, ServerOptions, TcpServer, TcpTransport};
use forebay_transport::conformance::{Behaviour, Scripted, digest, pool, read, until, within};
use forebay_transport::wire::{Hello, MAX_UPLOAD_BODY, RequestHeader};
use forebay_transport::{CallError, LinkError, Op, Provenance, Request, Response, Service, Transport};
use forebay_types::{ByteSize, Failure};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

/// Connections of both kinds and everything else that a test opens.
const SPARE_FILES: u64 = 300;
/// Hosts that attack, each from an address of its own.
const HOSTS: u8 = 16;

fn host(number: u8) -> IpAddr {
    [127, 0, 1, number].into()
}

fn one_connection() -> ClientOptions {
    ClientOptions { connections: 1, ..client_options() }
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_who_say_nothing_keep_no_reader_from_reading() {
    // Both ends of each connection are in this process.
    let most = (raise_open_files().saturating_sub(SPARE_FILES) / 2).min(4096);
    let each = usize::try_from(most).unwrap() / usize::from(HOSTS);
    let options = ServerOptions { hello_timeout: Duration::from_secs(2), ..server_options() };
    let limit = options.max_greeting;
    let server = serve(options, Scripted::new());
    let address = server.local_addr();
    let reader = link(address, one_connection());
    assert_serves(&reader).await;

    let mut attack = JoinSet::new();
    for number in 1..=HOSTS {
        attack.spawn(async move {
            let mut idlers = Vec::new();
            for _ in 0..each {
                idlers.push(connect_from(host(number), address).await.unwrap());
            }
            idlers
        });
    }
    let mut idlers: Vec<TcpStream> = Vec::new();
    let start = Instant::now();
    while !attack.is_empty() {
        while let Some(opened) = attack.try_join_next() {
            idlers.extend(opened.unwrap());
        }
        assert_serves(&reader).await;
        assert!(server.greeting() <= limit && server.connections() == 1);
        assert!(start.elapsed() < Duration::from_secs(30), "{} have connected", idlers.len());
    }
    // One who comes now, from a host of its own, gets in before all those have had their time.
    let newcomer = link(address, ClientOptions { bind: Some([127, 0, 0, 9].into()), ..one_connection() });
    let start = Instant::now();
    while call(&newcomer, read(Behaviour::AtOnce, 1, 0, 100, LONG)).await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(30), "nobody gets in");
    }
    let told = || closed(&server, CloseReason::LateHello) + closed(&server, CloseReason::GreetingLimit);
    until("each of them is closed", || told() >= idlers.len() as u64 && server.greeting() == 0).await;
    assert_serves(&reader).await;
    assert_serves(&newcomer).await;
    drop(idlers);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hello_that_comes_byte_by_byte_is_waited_for_no_longer_than_another() {
    let hello_timeout = Duration::from_millis(300);
    let server = serve(ServerOptions { hello_timeout, ..server_options() }, Scripted::new());
    let mut slow = TcpStream::connect(server.local_addr()).await.unwrap();
    for byte in Hello::ours(CLUSTER, BLOCK_SIZE).encode() {
        if slow.write_all(&[byte]).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    wait_for_close(&mut slow).await;
    until("it is counted", || closed(&server, CloseReason::LateHello) == 1).await;
    assert_eq!(server.connections(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_has_all_its_connections_leaves_room_for_another_host() {
    let service = Scripted::new();
    let server = serve(ServerOptions { max_connections_per_client: 2, ..server_options() }, service.clone());
    let mut streams = Vec::new();
    for id in 1..=2 {
        let mut stream = raw(server.local_addr()).await;
        send(&mut stream, id, &read(Behaviour::Gated, id, 0, 10, LONG)).await;
        streams.push(stream);
    }
    until("both are being answered", || service.started() == 2).await;
    let same_host = link(server.local_addr(), one_connection());
    let result = call(&same_host, read(Behaviour::AtOnce, 0, 0, 10, LONG)).await;
    let Err(CallError::Link(LinkError::Refused { reason, .. })) = result else { panic!("{result:?}") };
    assert!(reason.contains("2 connections from your address"), "{reason}");
    let other_host = link(server.local_addr(), ClientOptions { bind: Some(host(1)), ..one_connection() });
    assert_serves(&other_host).await;
    until("the refusal is counted", || closed(&server, CloseReason::ClientLimit) == 1).await;
    service.open(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_idle_longest_makes_way_and_notices_nothing() {
    let options = ServerOptions { max_connections: 2, makes_way_after: Duration::ZERO, ..server_options() };
    let server = serve(options, Scripted::new());
    let links: Vec<_> = (0..3).map(|_| link(server.local_addr(), one_connection())).collect();
    for _ in 0..20 {
        for link in &links {
            assert_serves(link).await;
            assert!(server.connections() <= 2);
        }
    }
    assert!(closed(&server, CloseReason::MadeWay) >= 20);
    assert_eq!(closed(&server, CloseReason::Limit), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_idle_for_long_is_closed_and_made_again_when_it_is_needed() {
    let server = serve(ServerOptions { idle_timeout: Duration::from_millis(50), ..server_options() }, Scripted::new());
    let link = link(server.local_addr(), client_options());
    for round in 1..=3 {
        assert_serves(&link).await;
        until("it is closed", || server.connections() == 0 && closed(&server, CloseReason::Idle) >= round).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_meet_the_end_of_an_idle_connection_are_made_again_over_another() {
    const IDLE: Duration = Duration::from_millis(60);
    let server = serve(ServerOptions { idle_timeout: IDLE, ..server_options() }, Scripted::new());
    let body = Bytes::from(vec![7; 100_000]);
    let mut callers = JoinSet::new();
    for caller in 0..8 {
        // Each has a connection of its own, which is idle between two calls for about as long as it may be.
        let (link, body) = (link(server.local_addr(), one_connection()), body.clone());
        callers.spawn(async move {
            for round in 0..25 {
                let request = match round % 2 {
                    0 => read(Behaviour::AtOnce, 1, 0, 5000, LONG),
                    _ => Request::on_path(Op::Upload, body.clone(), LONG),
                };
                let reply = call(&link, request).await.unwrap_or_else(|error| panic!("{caller}: {error}"));
                assert!(round % 2 == 0 || reply.body == digest(&body));
                tokio::time::sleep(IDLE + Duration::from_millis(caller * 3)).await;
            }
        });
    }
    while let Some(ended) = within("the callers", callers.join_next()).await {
        ended.unwrap();
    }
    assert!(closed(&server, CloseReason::Idle) > 0);
}

/// As little memory for large bodies as there can be.
fn small_server() -> ServerOptions {
    ServerOptions { body_memory: ByteSize::bytes(0), ..server_options() }
}

fn upload_header(length: u32) -> RequestHeader {
    RequestHeader { body_len: length, ..RequestHeader::of(1, &Request::on_path(Op::Upload, Bytes::new(), LONG)) }
}

async fn assert_takes_uploads(server: &TcpServer) {
    let (link, body) = (link(server.local_addr(), client_options()), Bytes::from(vec![3; 1 << 20]));
    let reply = within("an upload", link.call(Request::on_path(Op::Upload, body.clone(), LONG), None)).await.unwrap();
    assert!(reply.body == digest(&body));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_stalls_gives_its_memory_back_and_loses_its_connection() {
    let server = serve(ServerOptions { hello_timeout: Duration::from_secs(2), ..small_server() }, Scripted::new());
    let memory = server.body_memory_gauge();
    let mut stalled = raw(server.local_addr()).await;
    assert_eq!(memory(), 0);
    stalled.write_all(&upload_header(MAX_UPLOAD_BODY).encode()).await.unwrap();
    until("its memory is reserved", || memory() == MAX_UPLOAD_BODY as usize).await;
    // It may be closed already, on a machine that does a lot else.
    let _ = stalled.write_all(&[1; 1 << 20]).await;
    wait_for_close(&mut stalled).await;
    until("its memory is free", || memory() == 0).await;
    assert_eq!(closed(&server, CloseReason::LateRequest), 1);
    assert_takes_uploads(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_gets_on_too_slowly_as_a_whole_is_closed() {
    let options = ServerOptions {
        hello_timeout: LONG,
        // One who gets on has to be in time, too, and on a busy machine.
        body_grace: Duration::from_secs(3),
        body_rate: ByteSize::gib(1),
        ..small_server()
    };
    let server = serve(options, Scripted::new());
    let memory = server.body_memory_gauge();
    let mut slow = raw(server.local_addr()).await;
    slow.write_all(&upload_header(MAX_UPLOAD_BODY).encode()).await.unwrap();
    // At this rate, it would take ten seconds.
    let piece = vec![1; 64 << 10];
    let start = Instant::now();
    while slow.write_all(&piece).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(start.elapsed() < Duration::from_secs(30), "it is not closed");
    }
    until("its memory is free", || memory() == 0).await;
    assert_eq!(closed(&server, CloseReason::SlowUpload), 1);
    assert_takes_uploads(&server).await;
}

/// Answers each read with the same bytes.
struct Same(Spans);

#[async_trait::async_trait]
impl Service for Same {
    fn try_handle(&self, _request: &Request) -> Option<Response> {
        Some(Response::of_spans(self.0.clone(), Provenance::default()))
    }

    async fn handle(&self, _request: Request, _takes_files: bool) -> Result<Response, Failure> {
        unreachable!("all is answered at once")
    }
}

/// A client that has asked for four times `length` bytes and takes none of them.
async fn never_reads(server: &TcpServer, length: u32) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(server.local_addr()).await.unwrap();
    greet(&mut stream).await;
    let header = |id| RequestHeader::of(id, &read(Behaviour::AtOnce, id, 0, length, LONG)).encode();
    stream.write_all(&(1..=4).flat_map(header).collect::<Vec<u8>>()).await.unwrap();
    stream
}

async fn assert_reads(reader: &TcpTransport, length: u32) {
    let reply = call(reader, read(Behaviour::AtOnce, 1, 0, length, LONG)).await;
    assert!(reply.is_ok(), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_who_never_take_their_answers_are_closed_and_others_go_on() {
    const CLIENTS: usize = 512;
    const LENGTH: u32 = 4 << 20;
    raise_open_files();
    let memory = pool(2);
    let payload = Spans::from_iter([memory.try_alloc(LENGTH as usize).unwrap().freeze()]);
    // While those who take nothing have all places, they are closed after a third of this. The reader has to be in time,
    // too, and on a busy machine.
    let options = ServerOptions { max_requests: 128, stall_timeout: Duration::from_secs(3), ..server_options() };
    let server = serve(options, Arc::new(Same(payload)));
    let reader = link(server.local_addr(), one_connection());
    assert_reads(&reader, LENGTH).await;
    let mut streams = Vec::new();
    for _ in 0..CLIENTS {
        streams.push(never_reads(&server, LENGTH).await);
    }
    let start = Instant::now();
    while server.connections() > 1 {
        assert_reads(&reader, LENGTH).await;
        assert!(start.elapsed() < 2 * LONG, "some are not closed");
    }
    // The kernel may have given some of them up before the server did.
    assert!(closed(&server, CloseReason::RepliesNotTaken) > 0);
    assert_reads(&reader, LENGTH).await;
}
