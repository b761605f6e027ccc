//! Threads that wait for the answers to their reads themselves, over UCX: they post and poll, and the I/O thread goes on with what is
//! late. The suite runs over such threads, too.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_rdma::{ClientOptions, IoThread, Library, Listening, RdmaTransport, wire};
use forebay_transport::conformance::{
    Behaviour, Driven, Scripted, assert_bytes, is_link_error, pool, read, until, within,
};
use forebay_transport::wire::{HEADER_LEN, ReplyHeader, RequestHeader};
use forebay_transport::{CallError, LinkError, Payload, Provenance, Reply, Service, Transport};
use forebay_ucx::{Endpoint, Protocol, sockets_are_sound};
use tokio::runtime::Handle;

use crate::common::driving::{self, Ends, Threads, drive};
use crate::common::raw::{Raw, announce, by_hand, noise, send};
use crate::common::{self, LONG};

/// The library, where threads drive it: not an old one.
fn library() -> Option<&'static Library> {
    let library = common::library()?;
    let version = library.version();
    if !sockets_are_sound(version) {
        common::skipped(format!("no thread drives UCX {version}"));
    }
    sockets_are_sound(version).then_some(library)
}

/// Both ends over UCX.
struct Ucx(&'static Library);

#[async_trait::async_trait]
impl Ends for Ucx {
    async fn serve(&self, port: u16, service: Arc<dyn Service>) -> Arc<dyn Listening> {
        Arc::new(common::serve(self.0, port, service).await)
    }

    fn threads(&self, server: SocketAddr) -> Threads {
        self.with_io_thread(server).1
    }
}

impl Ucx {
    fn with_io_thread(&self, server: SocketAddr) -> (Arc<IoThread>, Threads) {
        let options = ClientOptions { drive: drive(), ..common::client_options() };
        let (io_thread, link) = common::link_with(self.0, server, options);
        let threads = Threads::new(link, Some(Arc::clone(&io_thread)));
        (io_thread, threads)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_receives_its_answers_itself_by_a_worker_of_ucx_that_goes_when_nobody_uses_it() {
    let Some(library) = library() else { return };
    let server = common::serve(library, 0, Scripted::new()).await;
    let (io_thread, threads) = Ucx(library).with_io_thread(server.local_addr());
    assert_eq!(io_thread.driven(), 0);
    threads.until_driven(&server, 50).await;
    assert!(threads.driven.answered() >= 50, "they are the answers that came while the threads waited");
    assert!(server.connections() >= 2);
    // What is long goes the usual way.
    let (driven, long) = (io_thread.driven(), read(Behaviour::AtOnce, 1, 0, 1 << 20, LONG));
    assert_bytes(&threads.ask(long.clone()).await.unwrap(), &long, 1 << 20);
    assert_eq!(io_thread.driven(), driven);
    until("it goes, as nobody uses it", || server.connections() == 1).await;
    until("nor does the client have it", || io_thread.stats().connections == 1).await;
    threads.until_driven(&server, 1).await;
    threads.end(&server).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_worker_of_ucx_serves_the_links_to_several_servers() {
    let Some(library) = library() else { return };
    let servers = [common::serve(library, 0, Scripted::new()).await, common::serve(library, 0, Scripted::new()).await];
    let io_thread = common::io_thread_of(library, "client", common::pool(64));
    let [first, second] = servers.each_ref().map(|server| {
        let options = ClientOptions { drive: drive(), ..common::client_options() };
        let link = RdmaTransport::new(server.local_addr().to_string(), Arc::clone(&io_thread), options);
        Threads::new(Arc::new(link), Some(Arc::clone(&io_thread)))
    });
    for _ in 0..3 {
        first.until_driven(&servers[0], 5).await;
        second.until_driven(&servers[1], 5).await;
    }
    first.end(&servers[0]).await;
    second.until_driven(&servers[1], 5).await;
    second.end(&servers[1]).await;
    for server in servers {
        server.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_late_comes_all_the_same_and_others_do_not_wait_for_it() {
    let Some(library) = library() else { return };
    driving::an_answer_that_is_late_comes_all_the_same_and_others_do_not_wait_for_it(&Ucx(library)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_is_never_answered_gives_its_memory_back() {
    let Some(library) = library() else { return };
    driving::a_read_that_is_never_answered_gives_its_memory_back(&Ucx(library)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_is_closed_ends_what_a_thread_has_asked_for() {
    let Some(library) = library() else { return };
    driving::a_link_that_is_closed_ends_what_a_thread_has_asked_for(&Ucx(library)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_io_thread_that_ends_ends_what_a_thread_has_asked_for() {
    let Some(library) = library() else { return };
    let service = Scripted::new();
    let server = common::serve(library, 0, service.clone()).await;
    let (io_thread, threads) = Ucx(library).with_io_thread(server.local_addr());
    threads.until_driven(&server, 1).await;
    let (started, memory) = (service.started(), pool(1));
    let waiting = threads.begin(read(Behaviour::Gated, 7, 0, 4096, LONG), &memory);
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
    driving::connections_that_the_worker_has_ended_meanwhile_are_not_asked(&Ucx(library)).await;
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
