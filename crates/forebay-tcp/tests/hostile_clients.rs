//! Whatever a peer sends to the data port costs that peer its connection, and no other peer anything.

mod common;

use std::time::{Duration, Instant};

use bytes::Bytes;
use common::*;
use forebay_tcp::ServerOptions;
use forebay_transport::conformance::{Behaviour, Scripted, assert_bytes, pattern, read, until, within};
use forebay_transport::wire::{
    CONNECTION_ID, HEADER_LEN, Hello, MAX_PAYLOAD, MAX_REQUEST_BODY, MAX_UPLOAD_BODY, RequestHeader,
};
use forebay_transport::{Op, Request};
use forebay_types::{FailureKind, crc32c};
use proptest::prelude::*;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// The deadline of a request that may never be answered.
const SOON: Duration = Duration::from_millis(200);

/// A header with whatever bytes at `at`, and a checksum that is right. Those bytes may make it a request that the service
/// never answers: the server gives it up soon, as its deadline says.
fn forged(at: usize, bytes: &[u8]) -> [u8; HEADER_LEN] {
    let mut header = RequestHeader::of(1, &read(Behaviour::AtOnce, 0, 0, 100, SOON)).encode();
    header[at..at + bytes.len()].copy_from_slice(bytes);
    let crc = crc32c(&header[..HEADER_LEN - 4]);
    header[HEADER_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
    header
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_and_huge_lengths_cost_the_sender_its_connection_and_nobody_else_anything() {
    let server = serve(server_options(), Scripted::new());
    let link = link(server.local_addr(), client_options());
    assert_serves(&link).await;
    let good = RequestHeader::of(1, &read(Behaviour::AtOnce, 0, 0, 100, LONG)).encode();
    let mut flipped = good;
    flipped[20] ^= 1;
    let long_upload = Request::on_path(Op::Upload, Bytes::new(), LONG);
    let long_upload = RequestHeader { body_len: MAX_UPLOAD_BODY + 1, ..RequestHeader::of(1, &long_upload) }.encode();
    let bad: [&[u8]; 8] = [
        &[0xff; 500],
        b"GET / HTTP/1.1\r\nHost: forebay\r\nUser-Agent: a browser that somebody pointed at the wrong port\r\n\r\n",
        &flipped,
        &forged(4, &u32::MAX.to_le_bytes()),
        &forged(4, &(MAX_REQUEST_BODY + 1).to_le_bytes()),
        &forged(44, &(MAX_PAYLOAD + 1).to_le_bytes()),
        &forged(2, &[99]),
        &long_upload,
    ];
    for bytes in bad {
        let mut stream = raw(server.local_addr()).await;
        stream.write_all(bytes).await.unwrap();
        let (header, reason, _) = receive(&mut stream).await.unwrap();
        assert_eq!((header.id, header.failure), (CONNECTION_ID, Some(FailureKind::InvalidArgument)));
        assert!(!reason.is_empty());
        wait_for_close(&mut stream).await;
        assert_serves(&link).await;
    }
    until("only the good client is left", || server.connections() == 1).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_hello_is_refused() {
    let server = serve(server_options(), Scripted::new());
    let ours = Hello::ours(CLUSTER, BLOCK_SIZE);
    let mut damaged = ours.encode();
    damaged[100] ^= 1;
    let stranger = [b' '; 128];
    let newer = Hello { protocol: 99, ..ours.clone() }.encode();
    let elsewhere = Hello { cluster: "elsewhere".into(), ..ours.clone() }.encode();
    let smaller_blocks = Hello { block_size: BLOCK_SIZE / 4, ..ours.clone() }.encode();
    let no_block_size = Hello { block_size: 0, ..ours }.encode();
    for hello in [damaged, stranger, newer, elsewhere, smaller_blocks, no_block_size] {
        let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
        stream.write_all(&hello).await.unwrap();
        wait_for_close(&mut stream).await;
    }
    // One that only looks whether the port is open.
    drop(TcpStream::connect(server.local_addr()).await.unwrap());
    until("nobody is left", || server.connections() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_stops_in_a_hello_or_in_a_message_is_not_waited_for() {
    // Those who do say hello have to be in time, too, and on a busy machine.
    let hello_timeout = Duration::from_secs(2);
    let server = serve(ServerOptions { hello_timeout, ..server_options() }, Scripted::new());
    let address = server.local_addr();
    let silent = TcpStream::connect(address).await.unwrap();
    let mut half_hello = TcpStream::connect(address).await.unwrap();
    half_hello.write_all(&Hello::ours(CLUSTER, BLOCK_SIZE).encode()[..50]).await.unwrap();
    let mut half_header = raw(address).await;
    half_header.write_all(&forged(0, &[])[..30]).await.unwrap();
    let mut half_body = raw(address).await;
    half_body.write_all(&forged(4, &1000u32.to_le_bytes())).await.unwrap();
    half_body.write_all(&[1; 999]).await.unwrap();
    // This one has nothing to say for now, which is no fault.
    let mut idle = raw(address).await;
    for mut stream in [silent, half_hello, half_header, half_body] {
        let start = Instant::now();
        wait_for_close(&mut stream).await;
        assert!(start.elapsed() < Duration::from_secs(30));
    }
    send(&mut idle, 1, &read(Behaviour::AtOnce, 1, 0, 10, LONG)).await;
    assert_eq!(receive(&mut idle).await.unwrap().2, (0..10).map(|at| pattern(1, at)).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_has_closed_its_half_still_gets_its_replies() {
    let service = Scripted::new();
    let server = serve(server_options(), service.clone());
    let mut stream = raw(server.local_addr()).await;
    for id in 1..=3 {
        send(&mut stream, id, &read(Behaviour::Gated, id, 0, 1000, LONG)).await;
    }
    stream.shutdown().await.unwrap();
    until("the requests reach the service", || service.started() == 3).await;
    service.open(3);
    for _ in 0..3 {
        let (header, _, payload) = receive(&mut stream).await.unwrap();
        assert_eq!(payload[999], pattern(header.id, 999));
    }
    wait_for_close(&mut stream).await;
    until("it is gone", || server.connections() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_has_closed_its_half_is_kept_until_the_deadline_of_what_it_asked_for() {
    let server = serve(server_options(), Scripted::new());
    let mut stream = raw(server.local_addr()).await;
    send(&mut stream, 1, &read(Behaviour::Never, 1, 0, 1000, SOON)).await;
    stream.shutdown().await.unwrap();
    let (header, _, _) = receive(&mut stream).await.unwrap();
    assert_eq!((header.id, header.failure), (1, Some(FailureKind::TimedOut)));
    wait_for_close(&mut stream).await;
    until("it is gone", || server.connections() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_takes_nothing_delays_nobody_and_is_closed_in_the_end() {
    let stall_timeout = Duration::from_millis(700);
    let server = serve(ServerOptions { stall_timeout, ..server_options() }, Scripted::new());
    let mut stream = raw(server.local_addr()).await;
    for id in 1..=8 {
        send(&mut stream, id, &read(Behaviour::AtOnce, id, 0, MAX_PAYLOAD, LONG)).await;
    }
    let link = link(server.local_addr(), client_options());
    let start = Instant::now();
    assert_serves(&link).await;
    assert!(start.elapsed() < Duration::from_secs(30));
    until("the reader is closed", || server.connections() == 1).await;
    assert_serves(&link).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_is_slow_gets_everything() {
    let server = serve(server_options(), Scripted::new());
    let mut stream = raw(server.local_addr()).await;
    let request = read(Behaviour::AtOnce, 7, 3, 200_000, LONG);
    for id in 1..=40 {
        send(&mut stream, id, &request).await;
    }
    for id in 1..=40 {
        let (header, _, payload) = receive(&mut stream).await.unwrap();
        assert_eq!(header.id, id);
        assert!((0..200_000).all(|at| payload[at as usize] == pattern(7, 3 + at)));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_panics_fails_that_request_alone() {
    let server = serve(server_options(), Scripted::new());
    let link = link(server.local_addr(), client_options());
    let result = call(&link, read(Behaviour::Panics, 0, 0, 10, LONG)).await;
    assert!(format!("{result:?}").contains("Internal"), "{result:?}");
    assert_serves(&link).await;
}

/// Pieces of conversations: noise, true headers, forged headers, cut ones.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let honest = |index, length, body: Vec<u8>| {
        let request = read(Behaviour::AtOnce, index, 0, length, LONG).with_body(Bytes::from(body));
        [&RequestHeader::of(index, &request).encode()[..], &request.body].concat()
    };
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..300),
        (any::<u64>(), 0u32..10_000, prop::collection::vec(any::<u8>(), 0..100))
            .prop_map(move |(a, b, c)| honest(a, b, c)),
        (any::<u64>(), 60_000usize..200_000, any::<bool>()).prop_map(|(id, length, whole)| {
            let request = Request::on_path(Op::Upload, vec![1; length].into(), LONG);
            let sent = if whole { length } else { length / 2 };
            [&RequestHeader::of(id, &request).encode()[..], &request.body[..sent]].concat()
        }),
        (0usize..52, any::<[u8; 8]>()).prop_map(|(at, bytes)| forged(at, &bytes).to_vec()),
        (0usize..64).prop_map(|length| forged(0, &[])[..length].to_vec()),
        Just(RequestHeader::of(0, &Request::on_path(Op::Ping, Bytes::new(), LONG)).encode().to_vec()),
    ]
}

#[test]
fn no_bytes_on_the_data_port_disturb_the_others() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (server, link) = runtime.block_on(async {
        let server =
            serve(ServerOptions { hello_timeout: Duration::from_secs(1), ..server_options() }, Scripted::new());
        let link = link(server.local_addr(), client_options());
        (server, link)
    });
    // A case that fails has waited for half a minute, and so do those that it is made smaller by: a few are enough.
    let config =
        ProptestConfig { cases: 200, failure_persistence: None, max_shrink_time: 60_000, ..ProptestConfig::default() };
    let cases = (any::<bool>(), prop::collection::vec(message(), 1..6), any::<bool>());
    proptest!(config, |((greeted, messages, patient) in cases)| {
        runtime.block_on(async {
            let address = server.local_addr();
            let mut stream = if greeted { raw(address).await } else { TcpStream::connect(address).await.unwrap() };
            for message in messages {
                // The server may have had enough already.
                if stream.write_all(&message).await.is_err() {
                    break;
                }
            }
            if patient {
                let _ = stream.shutdown().await;
                wait_for_close(&mut stream).await;
            }
            assert_serves(&link).await;
        });
    });
    runtime.block_on(async {
        let request = read(Behaviour::Later, 2, 0, 1 << 20, LONG);
        assert_bytes(&call(&link, request.clone()).await.unwrap(), &request, 1 << 20);
        // Some have asked for what never comes, and have left: their requests end here at the latest.
        within("close", server.close()).await;
    });
}
