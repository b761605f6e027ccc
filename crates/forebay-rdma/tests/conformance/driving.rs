//! Threads that wait for the answers to their reads themselves, over UCX: they post and poll, and the I/O thread goes on with what is
//! late. The suite runs over such threads, too.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_rdma::{ClientOptions, IoThread, Library, RdmaTransport, wire};
use forebay_transport::conformance::{
    Behaviour, Driven, Scripted, assert_bytes, is_link_error, pool, read, slowness, until, within,
};
use forebay_transport::driving::DriveOptions;
use forebay_transport::wire::{HEADER_LEN, ReplyHeader, RequestHeader};
use forebay_transport::{CallError, LinkError, Payload, Provenance, Reply, Request, Transport};
use forebay_ucx::{Endpoint, Protocol, sockets_are_sound};
use tokio::runtime::Handle;

use crate::common::raw::{Raw, announce, by_hand, noise, send};
use crate::common::{self, LONG};

/// How long a thread waits here: longer than an answer takes most of the time, also where others have the processors.
pub(crate) fn drive() -> DriveOptions {
    DriveOptions { wait: Duration::from_millis(20) * slowness(), spin: Duration::from_micros(50) }
}

/// What comes with the message, and what may be fetched.
const LENGTHS: [u32; 3] = [100, 4096, 64 << 10];

/// The library, where threads drive it: not an old one.
fn library() -> Option<&'static Library> {
    let library = common::library()?;
    let version = library.version();
    if !sockets_are_sound(version) {
        common::skipped(format!("no thread drives UCX {version}"));
    }
    sockets_are_sound(version).then_some(library)
}

/// A link whose callers may wait, whatever other tests' threads do, with its I/O thread.
fn link(library: &'static Library, server: std::net::SocketAddr) -> (Arc<IoThread>, Arc<RdmaTransport>, Arc<Driven>) {
    let options = ClientOptions { drive: drive(), ..common::client_options() };
    let (io_thread, link) = common::link_with(library, server, options);
    let threads = Arc::new(Driven::new(link.clone(), usize::MAX));
    (io_thread, link, threads)
}

/// A call by a thread that is none of the runtime's.
async fn ask(link: &Arc<Driven>, request: Request) -> Result<Reply, CallError> {
    let (link, runtime) = (Arc::clone(link), Handle::current());
    let thread = move || {
        let into = pool(1).try_alloc(request.length as usize);
        runtime.block_on(link.call(request, into))
    };
    within("an answer", tokio::task::spawn_blocking(thread)).await.unwrap()
}

/// Reads until so many more answers were received by the threads that asked.
async fn until_driven(threads: &Arc<Driven>, io_thread: &IoThread, times: u64) {
    let (begun, goal) = (Instant::now(), io_thread.driven() + times);
    for index in 0.. {
        if io_thread.driven() >= goal {
            return;
        }
        assert!(begun.elapsed() < 4 * LONG * slowness(), "no thread has its answers itself: {}", io_thread.driven());
        let length = LENGTHS[index % LENGTHS.len()];
        let request = read(Behaviour::AtOnce, index as u64, 5, length, LONG);
        assert_bytes(&ask(threads, request.clone()).await.unwrap(), &request, length as usize);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_receives_its_answers_itself_by_a_worker_of_ucx_that_goes_when_nobody_uses_it() {
    let Some(library) = library() else { return };
    let server = common::serve(library, 0, Scripted::new()).await;
    let (io_thread, link, threads) = link(library, server.local_addr());
    assert_eq!(io_thread.driven(), 0);
    until_driven(&threads, &io_thread, 50).await;
    assert!(threads.answered() >= 50, "they are the answers that came while the threads waited");
    assert!(server.connections() >= 2);
    // What is long goes the usual way.
    let (driven, long) = (io_thread.driven(), read(Behaviour::AtOnce, 1, 0, 1 << 20, LONG));
    assert_bytes(&ask(&threads, long.clone()).await.unwrap(), &long, 1 << 20);
    assert_eq!(io_thread.driven(), driven);
    until("it goes, as nobody uses it", || server.connections() == 1).await;
    until("nor does the client have it", || io_thread.stats().connections == 1).await;
    until_driven(&threads, &io_thread, 1).await;
    within("close", link.close()).await;
    until("the worker has no connection", || server.connections() == 0).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_worker_of_ucx_serves_the_links_to_several_servers() {
    let Some(library) = library() else { return };
    let servers = [common::serve(library, 0, Scripted::new()).await, common::serve(library, 0, Scripted::new()).await];
    let io_thread = common::io_thread_of(library, "client", common::pool(64));
    let links = servers.each_ref().map(|server| {
        let options = ClientOptions { drive: drive(), ..common::client_options() };
        Arc::new(RdmaTransport::new(server.local_addr().to_string(), Arc::clone(&io_thread), options))
    });
    let threads = links.each_ref().map(|link| Arc::new(Driven::new(link.clone(), usize::MAX)));
    for _ in 0..3 {
        for threads in &threads {
            until_driven(threads, &io_thread, 5).await;
        }
    }
    within("close", links[0].close()).await;
    until("the first has no connection", || servers[0].connections() == 0).await;
    until_driven(&threads[1], &io_thread, 5).await;
    within("close", links[1].close()).await;
    until("nor has the second", || servers[1].connections() == 0).await;
    for server in servers {
        server.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_late_comes_all_the_same_and_others_do_not_wait_for_it() {
    let Some(library) = library() else { return };
    let service = Scripted::new();
    let server = common::serve(library, 0, service.clone()).await;
    for length in LENGTHS {
        let (io_thread, link, threads) = link(library, server.local_addr());
        until_driven(&threads, &io_thread, 1).await;
        let started = service.started();
        let late = read(Behaviour::Gated, 7, 0, length, LONG);
        let waiting = tokio::spawn({
            let (threads, late) = (Arc::clone(&threads), late.clone());
            async move { ask(&threads, late).await }
        });
        until("the read reaches the service", || service.started() > started).await;
        for index in 0..20 {
            let request = read(Behaviour::AtOnce, index, 0, length, LONG);
            assert_bytes(&ask(&threads, request.clone()).await.unwrap(), &request, length as usize);
        }
        assert!(!waiting.is_finished());
        service.open(1);
        let reply = within("the late answer", waiting).await.unwrap().unwrap();
        assert_bytes(&reply, &late, length as usize);
        until_driven(&threads, &io_thread, 2).await;
        within("close", link.close()).await;
        until("the worker has no connection", || server.connections() == 0).await;
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_is_never_answered_gives_its_memory_back() {
    let Some(library) = library() else { return };
    let server = common::serve(library, 0, Scripted::new()).await;
    let memory = pool(1);
    for length in LENGTHS {
        let (io_thread, link, threads) = link(library, server.local_addr());
        until_driven(&threads, &io_thread, 1).await;
        let (threads, into, runtime) = (Arc::clone(&threads), memory.try_alloc(length as usize), Handle::current());
        let request = read(Behaviour::Never, 0, 0, length, 4 * drive().wait);
        let call = tokio::task::spawn_blocking(move || runtime.block_on(threads.call(request, into)));
        let result = within("the deadline", call).await.unwrap();
        assert!(result.is_err(), "{result:?}");
        until("the memory is free", || memory.used() == 0).await;
        within("close", link.close()).await;
        until("the worker has no connection", || server.connections() == 0).await;
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_is_closed_ends_what_a_thread_has_asked_for() {
    let Some(library) = library() else { return };
    let service = Scripted::new();
    let server = common::serve(library, 0, service.clone()).await;
    let (io_thread, link, threads) = link(library, server.local_addr());
    until_driven(&threads, &io_thread, 1).await;
    let (started, memory) = (service.started(), pool(1));
    let waiting = tokio::task::spawn_blocking({
        let (threads, into, runtime) = (Arc::clone(&threads), memory.try_alloc(64 << 10), Handle::current());
        let request = read(Behaviour::Gated, 7, 0, 64 << 10, LONG);
        move || runtime.block_on(threads.call(request, into))
    });
    until("the read reaches the service", || service.started() > started).await;
    within("close", link.close()).await;
    let result = within("its end", waiting).await.unwrap();
    assert!(is_link_error(&result), "{result:?}");
    assert_eq!(memory.used(), 0, "UCX has it no more");
    until("the worker has no connection", || server.connections() == 0).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_io_thread_that_ends_ends_what_a_thread_has_asked_for() {
    let Some(library) = library() else { return };
    let service = Scripted::new();
    let server = common::serve(library, 0, service.clone()).await;
    let (io_thread, _link, threads) = link(library, server.local_addr());
    until_driven(&threads, &io_thread, 1).await;
    let (started, memory) = (service.started(), pool(1));
    let waiting = tokio::task::spawn_blocking({
        let (threads, into, runtime) = (Arc::clone(&threads), memory.try_alloc(4096), Handle::current());
        let request = read(Behaviour::Gated, 7, 0, 4096, LONG);
        move || runtime.block_on(threads.call(request, into))
    });
    until("the read reaches the service", || service.started() > started).await;
    within("its end", io_thread.close()).await;
    let result = within("the call's end", waiting).await.unwrap();
    assert!(is_link_error(&result), "{result:?}");
    until("the memory is free", || memory.used() == 0).await;
    until("the worker has no connection", || server.connections() == 0).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_the_worker_has_ended_meanwhile_are_not_asked() {
    let Some(library) = library() else { return };
    let service = Scripted::new();
    let mut server = common::serve(library, 0, service.clone()).await;
    let address = server.local_addr();
    let (io_thread, _link, threads) = link(library, address);
    for _ in 0..2 {
        until_driven(&threads, &io_thread, 5).await;
        server.close().await;
        server = common::serve(library, address.port(), service.clone()).await;
        let begun = Instant::now();
        // The end of a connection may be in the midst of a call, as without threads that wait.
        loop {
            let request = read(Behaviour::AtOnce, 3, 0, 64 << 10, LONG);
            match ask(&threads, request.clone()).await {
                Ok(reply) => break assert_bytes(&reply, &request, 64 << 10),
                Err(error) => assert!(begun.elapsed() < 4 * LONG, "{error}"),
            }
        }
    }
    server.close().await;
}

/// Bytes that are asked for.
const ASKED: usize = 1000;
/// Bytes before and behind them that must not be touched.
const CANARY: usize = 4096;

fn reply(id: u64, payload_len: usize) -> ReplyHeader {
    let provenance = Provenance::default();
    ReplyHeader { id, failure: None, body_len: 0, payload_len: payload_len as u32, provenance }
}

/// Serves by hand: as it should be over the first connection, and by `answer` over all others, which counts.
fn serve_by_hand(raw: &Rc<Raw>, listener: forebay_ucx::Listener, answer: impl Fn(&Endpoint, u64) + 'static) {
    tokio::task::spawn_local(async move {
        let mut accepted = Vec::new();
        loop {
            accepted.push(listener.accept().await.accept().unwrap());
        }
    });
    let (raw, mut first) = (Rc::clone(raw), None);
    tokio::task::spawn_local(async move {
        loop {
            if raw.unheard() == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            let heard = raw.next("what has come").await;
            let Some(endpoint) = heard.from.clone() else { continue };
            match heard.message {
                wire::HELLO => {
                    first.get_or_insert(endpoint.key());
                    let hello = wire::hello(&common::ours(), raw.version());
                    send(&endpoint, wire::WELCOME, &hello, forebay_ucx::Payload::None);
                }
                _ => {
                    let header = heard.header.first_chunk::<HEADER_LEN>().unwrap();
                    let id = RequestHeader::decode(header).unwrap().id;
                    if first == Some(endpoint.key()) {
                        send(&endpoint, wire::REPLY, &reply(id, ASKED).encode(), noise(ASKED));
                    } else {
                        answer(&endpoint, id);
                    }
                }
            }
        }
    });
}

#[test]
fn a_server_that_breaks_the_protocol_to_a_thread_touches_nothing_and_is_asked_again_over_another_connection() {
    by_hand(async {
        let Some(library) = library() else { return };
        let memory = common::pool(32);
        for case in ["one byte more", "much more", "announced", "less than it says", "cut off", "unasked"] {
            let raw = Rc::new(Raw::new(library, &[wire::HELLO, wire::REQUEST]));
            let listener = raw.worker.listen(common::address(0)).unwrap();
            let options = ClientOptions {
                // A ping among the messages is nothing that the server by hand expects.
                keepalive: LONG,
                dead_after: 2 * LONG,
                drive: drive(),
                ..common::client_options()
            };
            let buffers = common::pool(64);
            let io_thread = common::io_thread_of(library, "client", buffers.clone());
            let address = listener.address().to_string();
            let link = Arc::new(RdmaTransport::new(address, Arc::clone(&io_thread), options));
            let threads = Arc::new(Driven::new(link.clone(), usize::MAX));
            let broken = Rc::new(Cell::new(0));
            serve_by_hand(&raw, listener, {
                let (broken, memory) = (Rc::clone(&broken), memory.clone());
                move |endpoint, id| {
                    broken.set(broken.get() + 1);
                    let say = |header: &[u8], length| {
                        endpoint.am_send(wire::REPLY, header, noise(length), None, Protocol::Eager).detach();
                    };
                    match case {
                        "one byte more" => say(&reply(id, ASKED + 1).encode(), ASKED + 1),
                        "much more" => say(&reply(id, 4000).encode(), 4000),
                        "announced" => announce(endpoint, wire::REPLY, &reply(id, 1 << 20).encode(), &memory, 1 << 20),
                        "less than it says" => say(&reply(id, ASKED).encode(), ASKED - 1),
                        "cut off" => say(&reply(id, ASKED).encode()[..63], 0),
                        _ => say(&reply(id + 70, 0).encode(), 0),
                    }
                }
            });
            while broken.get() == 0 {
                let (mut head, into) = buffers.try_alloc(CANARY + ASKED + CANARY).unwrap().split_at(CANARY);
                let (into, mut tail) = into.split_at(ASKED);
                head.fill(0xee);
                tail.fill(0xee);
                let (threads, runtime) = (Arc::clone(&threads), Handle::current());
                let request = read(Behaviour::AtOnce, 0, 0, ASKED as u32, LONG);
                let call = move || runtime.block_on(threads.call(request, Some(into)));
                match within("an answer", tokio::task::spawn_blocking(call)).await.unwrap() {
                    Ok(Reply { payload: Payload::Landed(bytes), .. }) => assert_eq!(bytes[..], noise(ASKED)[..]),
                    Err(CallError::Link(LinkError::Protocol { .. })) => {}
                    other => panic!("{case}: {other:?}"),
                }
                assert!(head.iter().chain(tail.iter()).all(|byte| *byte == 0xee), "memory beside it was written to");
            }
            until("all memory is back", || (memory.used(), buffers.used()) == (0, 0)).await;
            within("close", link.close()).await;
        }
    });
}
