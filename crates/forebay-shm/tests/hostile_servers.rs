//! A process that listens at a worker's socket and does not speak as one is not used, and reads go the other way.

mod common;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use forebay_shm::NearTransport;
use forebay_transport::conformance::{Scripted, until, within};
use forebay_transport::wire::{HELLO_LEN, Hello, ReplyHeader};
use forebay_transport::{CallError, LinkError, Op, PeerMemory as _, Provenance, Request, Transport};
use forebay_types::FailureKind;
use rustix::fs::MemfdFlags;

const LENGTH: u64 = 64 << 10;

/// An address that no worker is at: its port is held, so that its socket is ours.
fn held() -> (TcpListener, SocketAddr, PathBuf) {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap();
    (held, address, socket_of(address))
}

/// 64 KiB of memory, which a descriptor leads to.
fn memory(name: &str) -> OwnedFd {
    let memory = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, LENGTH).unwrap();
    memory
}

/// How often this process has the memory of that name, as descriptor or mapped.
fn uses(name: &str) -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let open = targets.filter(|target| target.to_string_lossy().contains(name)).count();
    let mapped = std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains(name)).count();
    open + mapped
}

fn greeting(length: u64) -> Vec<u8> {
    [&Hello::ours(CLUSTER, BLOCK_SIZE).encode()[..], &length.to_le_bytes(), &64u32.to_le_bytes(), &[0; 12]].concat()
}

fn reply(id: u64, length: u32, places: &[(u64, u32)]) -> Vec<u8> {
    let header = ReplyHeader { id, failure: None, body_len: 0, payload_len: length, provenance: Provenance::default() };
    places.iter().fold(header.encode().to_vec(), |packet, (offset, length)| {
        [&packet[..], &offset.to_le_bytes(), &length.to_le_bytes(), &[0; 4]].concat()
    })
}

fn goodbye(kind: FailureKind, words: &str) -> Vec<u8> {
    let (failure, body_len) = (Some(kind), words.len() as u32);
    let header = ReplyHeader { id: 0, failure, body_len, payload_len: 0, provenance: Provenance::default() };
    [&header.encode()[..], words.as_bytes()].concat()
}

async fn ping(near: &NearTransport) -> Result<(), CallError> {
    near.call(Request::on_path(Op::Ping, Default::default(), Duration::from_millis(50)), None).await.map(drop)
}

/// Waits until an attempt has failed; why.
async fn why(near: &NearTransport) -> String {
    // The ping gets no answer, but it makes the attempt begin.
    let _ = ping(near).await;
    until("the attempt fails", || near.report().why.is_some()).await;
    assert!(!near.is_open());
    near.report().why.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_that_is_wrong_in_any_way_is_not_believed() {
    let other = Hello::ours("elsewhere", BLOCK_SIZE).encode();
    let elsewhere = [&other[..], &greeting(LENGTH)[HELLO_LEN..]].concat();
    let refusal = goodbye(FailureKind::InvalidArgument, "not you");
    let cases: [(&[u8], usize, &str); 9] = [
        (&greeting(LENGTH), 0, "no descriptor"),
        (&greeting(LENGTH + 1), 1, "promised"),
        (&greeting(0), 1, ""),
        (&greeting(u64::MAX), 1, "promised"),
        (&greeting(LENGTH)[..HELLO_LEN], 1, "128 bytes"),
        (&[&greeting(LENGTH)[..], &[0; 5000]].concat(), 1, "5152 bytes"),
        (&[b'x'; 152], 1, "does not speak"),
        (&elsewhere, 1, "elsewhere"),
        (&refusal, 0, "not you"),
    ];
    for (number, (packet, descriptors, words)) in cases.into_iter().enumerate() {
        let (_held, address, path) = held();
        let (server, near) = (Raw::listen(&path), near(address));
        let memory_name = format!("forebay-hostile-{}-{number}", std::process::id());
        let memory = memory(&memory_name);
        let packet = packet.to_vec();
        let speaking = {
            let memory = memory.try_clone().unwrap();
            tokio::task::spawn_blocking(move || {
                let session = server.accept();
                // Descriptors that were not asked for, too.
                let all = [memory.as_fd(), memory.as_fd(), memory.as_fd()];
                session.send_with(&packet, &all[..descriptors * (1 + number % 3)]);
                session
            })
        };
        let why = why(&near).await;
        let session = within("the server", speaking).await.unwrap();
        assert!(why.contains(words), "{why} for {words}");
        assert_eq!(session.receive().map(|hello| hello.len()), Some(HELLO_LEN));
        assert_eq!(session.receive(), None);
        drop(session);
        let used = uses(&memory_name);
        assert_eq!(used, 1, "a descriptor or a mapping is left of case {number}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_says_nothing_is_not_waited_for_and_one_that_closes_is_not_used() {
    let (_held, address, path) = held();
    let server = Raw::listen(&path);
    let options = forebay_tcp::ClientOptions::new(CLUSTER, BLOCK_SIZE);
    let other = Arc::new(forebay_tcp::TcpTransport::new(address.to_string(), options));
    let connect_timeout = Duration::from_millis(100);
    let options = forebay_shm::ClientOptions { connect_timeout, ..client_options() };
    let near = NearTransport::new(address.to_string(), other, options);
    assert!(why(&near).await.contains("no answer within"));
    let session = server.accept();
    assert_eq!(session.receive().map(|hello| hello.len()), Some(HELLO_LEN));
    assert_eq!(session.receive(), None);

    let (_held, address, path) = held();
    let (server, near) = (Raw::listen(&path), common::near(address));
    let closing = tokio::task::spawn_blocking(move || drop(server.accept()));
    assert!(why(&near).await.contains("before it said hello"));
    within("the server", closing).await.unwrap();
    within("the close", near.close()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_is_wrong_in_any_way_ends_the_session_and_the_read_goes_another_way() {
    let (memory_length, limit) = (LENGTH as u32, 1000);
    let cases: [(Vec<u8>, &str); 12] = [
        (reply(1, 1000, &[(LENGTH, 1000)]), "are not in its 65536 bytes"),
        (reply(1, 1000, &[(LENGTH - 999, 1000)]), "are not in its"),
        (reply(1, 1000, &[(u64::MAX, 1000)]), "are not in its"),
        (reply(1, 1000, &[(0, 500), (u64::MAX - 100, 500)]), "are not in its"),
        (reply(1, 1000, &[(0, 1000), (8, 0)]), "are not in its"),
        (reply(1, 1000, &[(0, 999)]), "999 bytes together"),
        (reply(1, 1000, &[(0, 500), (0, 501)]), "1001 bytes together"),
        (reply(1, limit + 1, &[(0, limit + 1)]), "1001 bytes of payload where 1000"),
        (reply(1, memory_length, &[(0, memory_length)]), "where 1000 are allowed"),
        (reply(2, 1000, &[(0, 1000)]), "call 2, which is not under way"),
        (vec![b'x'; 100], "does not speak"),
        (goodbye(FailureKind::Unavailable, "closing down"), "closing down"),
    ];
    for (number, (packet, words)) in cases.into_iter().enumerate() {
        let (held, address, path) = held();
        drop(held);
        let service = Scripted::new();
        let _tcp = tcp_server(address, service);
        let (server, near) = (Raw::listen(&path), near(address));
        let memory_name = format!("forebay-hostile-reply-{}-{number}", std::process::id());
        let memory = memory(&memory_name);
        let memory_in_server = memory.try_clone().unwrap();
        let speaking = tokio::task::spawn_blocking(move || {
            let session = server.accept();
            session.send_with(&greeting(LENGTH), &[memory_in_server.as_fd()]);
            assert_eq!(session.receive().unwrap().len(), HELLO_LEN);
            assert_eq!(session.receive().unwrap().len(), 64);
            session.send(&packet);
            // Until its end, which is the end of everything that looks.
            while session.receive().is_some() {}
        });
        until_open(&near).await;
        let asked =
            forebay_transport::conformance::read(forebay_transport::conformance::Behaviour::AtOnce, 0, 0, 1000, LONG);
        let result = within("an answer", near.call(asked.clone(), None)).await;
        let Err(CallError::Link(LinkError::OtherPath { reason, .. })) = &result else {
            panic!("{result:?} for {words}")
        };
        assert!(reason.contains(words), "{reason} for {words}");
        assert!(!near.is_open());
        let into = forebay_transport::conformance::pool(1).try_alloc(1000);
        assert!(within("the other way", near.call(asked, into)).await.is_ok());
        within("the server sees the end", speaking).await.unwrap();
        until("nothing is left", || uses(&memory_name) == 1).await;
        within("the close", near.close()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_costs_each_call_its_deadline_and_one_that_dies_costs_its_calls() {
    let (held, address, path) = held();
    drop(held);
    let _tcp = tcp_server(address, BlockService::new());
    let (server, near) = (Raw::listen(&path), near(address));
    let memory = memory("forebay-hostile-hangs");
    let speaking = tokio::task::spawn_blocking(move || {
        let session = server.accept();
        session.send_with(&greeting(LENGTH), &[memory.as_fd()]);
        session.receive().unwrap();
        session
    });
    let _ = ping(&near).await;
    until("it is open", || near.is_open()).await;
    let late = within("a deadline", near.call(read(1, 0, 10, Duration::from_millis(50)), None)).await;
    assert!(matches!(late, Err(CallError::Link(LinkError::TimedOut { .. }))), "{late:?}");
    assert!(near.is_open());
    let waiting = tokio::spawn({
        let near = Arc::clone(&near);
        async move { near.call(read(1, 0, 10, LONG), None).await }
    });
    let session = within("the server", speaking).await.unwrap();
    // Both requests.
    session.receive().and(session.receive()).unwrap();
    drop(session);
    let lost = within("the loss", waiting).await.unwrap();
    assert!(matches!(lost, Err(CallError::Link(LinkError::OtherPath { .. }))), "{lost:?}");
    assert!(!near.is_open());
}
