//! Whatever a client sends costs that client its session, and no other client anything. What it looks at stays until it
//! is gone.

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use forebay_shm::{ServerOptions, WindowServer};
use forebay_transport::conformance::{Behaviour, Scripted, until, within};
use forebay_transport::wire::{HEADER_LEN, Hello, RequestHeader};
use forebay_transport::{Op, Request, Transport};
use forebay_types::{FailureKind, crc32c};

/// A worker with blocks 1 and 2 in 4 frames, and its socket.
fn start() -> (Worker, Arc<BlockService>, PathBuf) {
    let (pool, service) = (shared_pool(4), BlockService::new());
    service.put(&pool, 1, FRAME);
    service.put(&pool, 2, 1000);
    let worker = Worker::start(&pool, service.clone());
    let path = socket_of(worker.tcp.local_addr());
    (worker, service, path)
}

fn request(id: u64, request: &Request) -> Vec<u8> {
    [&RequestHeader::of(id, request).encode()[..], &request.body].concat()
}

/// A request with other bytes at `at` of its header, and a checksum that is right.
fn forged(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut header = request(1, &read(1, 0, 100, LONG));
    header[at..at + bytes.len()].copy_from_slice(bytes);
    let crc = crc32c(&header[..HEADER_LEN - 4]);
    header[HEADER_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
    header
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_costs_the_sender_its_session_in_words_and_nobody_else_anything() {
    let (worker, service, path) = start();
    let near = open(worker.tcp.local_addr()).await;
    let good = request(1, &read(1, 0, 100, LONG));
    let mut flipped = good.clone();
    flipped[20] ^= 1;
    let bad: [(&[u8], &str); 12] = [
        (&[0xff; 500], "does not speak"),
        (
            b"GET / HTTP/1.1\r\nHost: forebay\r\nUser-Agent: one that is at the wrong door, with much to say\r\n\r\n",
            "does not speak",
        ),
        (&flipped, "checksum"),
        (&good[..40], "40 bytes"),
        (&[&good[..], b"x"].concat(), "0 bytes has 1"),
        (&forged(4, &1000u32.to_le_bytes()), "1000 bytes has 0"),
        (&forged(44, &u32::MAX.to_le_bytes()), "over the limit"),
        (&forged(2, &[99]), "unknown operation"),
        (&[7; 69_000], "69000 bytes"),
        (&releases(&[1]), "released 1"),
        (&releases(&[]), "0 releases"),
        (&request(0, &read(1, 0, 100, LONG)), "number 0"),
    ];
    for (bytes, words) in bad {
        let raw = Raw::greet(&path);
        raw.send(bytes);
        let said = raw.goodbye();
        assert!(said.contains(words), "{said} for {words}");
        drop(raw);
        assert!(is_right(&within("a read", view(&near, 1, 7, 5000)).await, 1, 7));
    }
    let raw = Raw::greet(&path);
    rustix::net::send(&raw.fd, &[], rustix::net::SendFlags::NOSIGNAL).unwrap();
    assert!(raw.goodbye().contains("0 bytes"));
    drop(raw);
    until("only the good client is left", || worker.window.connections() == 1).await;
    [1, 2].iter().for_each(|index| service.remove(*index));
    worker.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_hello_or_none_is_refused_in_words() {
    let pool = shared_pool(1);
    let path = path();
    // Between two calls of a thread, a busy machine may let much time pass.
    let hello_timeout = Duration::from_secs(2);
    let options = ServerOptions { hello_timeout, ..server_options(path.clone()) };
    let server = WindowServer::bind(options, &pool, BlockService::new()).unwrap();
    let ours = Hello::ours(CLUSTER, BLOCK_SIZE);
    let elsewhere = Hello { cluster: "elsewhere".into(), ..ours.clone() }.encode();
    let smaller_blocks = Hello { block_size: BLOCK_SIZE / 4, ..ours.clone() }.encode();
    let short = &ours.encode()[..100];
    let wrong: [(&[u8], &str); 5] = [
        (&[b' '; 128], "does not speak"),
        (&elsewhere, "elsewhere"),
        (&smaller_blocks, "block.size"),
        (short, "100 bytes"),
        (&[1; 3000], "3000 bytes"),
    ];
    for (hello, words) in wrong {
        let raw = Raw::connect(&path);
        raw.send(hello);
        let said = raw.goodbye();
        assert!(said.contains(words), "{said}");
    }
    let silent = Raw::connect(&path);
    assert!(silent.goodbye().contains("no hello within"));
    drop(silent);
    drop(Raw::connect(&path));
    until("nobody is left", || server.connections() == 0).await;
    within("the close", server.close()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_asks_for_more_than_it_may_is_told_so() {
    let (service, pool, path) = (Scripted::new(), shared_pool(1), path());
    let options = ServerOptions { max_requests_per_connection: 3, max_connections: 1, ..server_options(path.clone()) };
    let server = WindowServer::bind(options, &pool, service.clone()).unwrap();
    let raw = Raw::greet(&path);
    for id in 1..=3 {
        raw.ask(id, &forebay_transport::conformance::read(Behaviour::Gated, id, 0, 10, LONG));
    }
    until("the requests reach the service", || service.started() == 3).await;
    assert!(Raw::connect(&path).goodbye().contains("1 sessions"));
    raw.ask(4, &read(1, 0, 10, LONG));
    assert!(raw.goodbye().contains("more than the 3 requests"));
    until("they are dropped", || service.ended() == 3).await;
    drop(raw);
    until("nobody is left", || server.connections() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_looks_at_stays_after_its_mistake_until_it_says_so_or_is_gone() {
    let (worker, service, path) = start();
    let raw = Raw::greet(&path);
    raw.ask(1, &read(1, 0, 4096, LONG));
    assert_eq!(raw.reply().unwrap().0.payload_len, 4096);
    // The number is in use.
    raw.ask(1, &read(2, 0, 10, LONG));
    assert!(raw.goodbye().contains("number 1 for two"));
    // What it says now is not listened to, but for what it gives back.
    raw.ask(5, &read(2, 0, 10, LONG));
    raw.send(&[3; 100]);
    raw.release(&[17]);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(worker.window.pinned(), FRAME as u64);
    raw.release(&[1]);
    until("it is given up", || worker.window.pinned() == 0).await;
    // One that only says that it will say no more still looks.
    let raw = Raw::greet(&path);
    raw.ask(1, &read(1, 0, 4096, LONG));
    raw.reply().unwrap();
    rustix::net::shutdown(&raw.fd, rustix::net::Shutdown::Write).unwrap();
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!(worker.window.pinned(), FRAME as u64);
    drop(raw);
    until("it is given up", || worker.window.pinned() == 0).await;
    // An unknown number after a known one: that one is given up, and the rest stays.
    let raw = Raw::greet(&path);
    raw.ask(1, &read(1, 0, 4096, LONG));
    raw.ask(2, &read(2, 0, 10, LONG));
    raw.reply().and(raw.reply()).unwrap();
    raw.release(&[2, 3, 1]);
    assert!(raw.goodbye().contains("released 3"));
    assert_eq!(worker.window.pinned(), FRAME as u64);
    drop(raw);
    [1, 2].iter().for_each(|index| service.remove(*index));
    worker.until_free().await;
    until("nobody is left", || worker.window.connections() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_reads_are_served_and_a_service_that_panics_fails_that_request_alone() {
    let (service, pool, path) = (Scripted::new(), shared_pool(1), path());
    let server = WindowServer::bind(server_options(path.clone()), &pool, service).unwrap();
    let raw = Raw::greet(&path);
    let path = |op| Request::on_path(op, Default::default(), LONG);
    for (id, asked, failure) in [
        (1, path(Op::Stat), Some(FailureKind::InvalidArgument)),
        (2, path(Op::Upload), Some(FailureKind::InvalidArgument)),
        (3, path(Op::Ping), None),
        (4, forebay_transport::conformance::read(Behaviour::Panics, 0, 0, 10, LONG), Some(FailureKind::Internal)),
        (5, forebay_transport::conformance::read(Behaviour::TooMuch, 0, 0, 10, LONG), Some(FailureKind::Internal)),
        (
            6,
            forebay_transport::conformance::read(Behaviour::Never, 0, 0, 10, Duration::from_millis(5)),
            Some(FailureKind::TimedOut),
        ),
        (7, path(Op::Ping), None),
    ] {
        raw.ask(id, &asked);
        let (header, _) = raw.reply().unwrap();
        assert_eq!((header.id, header.failure), (id, failure), "{asked:?}");
    }
    drop(raw);
    until("nobody is left", || server.connections() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_takes_no_replies_delays_nobody() {
    let (worker, service, path) = start();
    let near = open(worker.tcp.local_addr()).await;
    let raw = Raw::greet(&path);
    // More than the socket holds.
    for id in 1..=500 {
        raw.ask(id, &read(2, 0, 10, LONG));
    }
    assert!(is_right(&within("a read", view(&near, 1, 0, 1000)).await, 1, 0));
    for _ in 0..500 {
        assert_eq!(raw.reply().unwrap().0.failure, None);
    }
    raw.release(&(1..=64).collect::<Vec<_>>());
    raw.ask(501, &read(2, 0, 10, LONG));
    assert_eq!(raw.reply().unwrap().0.id, 501);
    drop(raw);
    [1, 2].iter().for_each(|index| service.remove(*index));
    near.close().await;
    worker.until_free().await;
}
