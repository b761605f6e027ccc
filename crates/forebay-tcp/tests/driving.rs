//! Threads that wait for the answers to their reads themselves: what becomes of answers that are late, of connections that end, and
//! of what others wait for. The suite (`conformance.rs`) runs over such threads, too.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use forebay_tcp::{ClientOptions, ServerOptions, TcpTransport};
use forebay_transport::conformance::{
    Behaviour, Driven, Scripted, assert_bytes, is_link_error, payload_of, pool, read, until, within,
};
use forebay_transport::driving::DriveOptions;
use forebay_transport::wire::{CONNECTION_ID, HEADER_LEN, ReplyHeader, RequestHeader};
use forebay_transport::{CallError, LinkError, Op, Provenance, Reply, Request, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long a thread waits here: longer than an answer takes on a busy machine, most of the time.
const WAIT: Duration = Duration::from_millis(5);
const LENGTH: u32 = 4096;

fn driving() -> ClientOptions {
    let drive = DriveOptions { wait: WAIT, ..DriveOptions::default() };
    ClientOptions { drive, connections: 1, ..client_options() }
}

/// A link whose callers may wait, whatever other tests' threads do.
fn driven(link: &Arc<TcpTransport>) -> Arc<Driven> {
    Arc::new(Driven::new(link.clone(), usize::MAX))
}

/// A call by a thread that is none of the runtime's.
async fn ask(link: &Arc<Driven>, request: Request) -> Result<Reply, CallError> {
    let (link, runtime) = (Arc::clone(link), tokio::runtime::Handle::current());
    let thread = move || {
        let into = pool(1).try_alloc(request.length as usize);
        runtime.block_on(link.call(request, into))
    };
    within("an answer", tokio::task::spawn_blocking(thread)).await.unwrap()
}

/// Reads until so many answers came to the threads that asked.
async fn until_driven(link: &Arc<Driven>, times: u64) {
    let begun = std::time::Instant::now();
    for index in 0.. {
        if link.answered() >= times {
            return;
        }
        assert!(begun.elapsed() < 2 * LONG, "no thread has its answers itself: {} did", link.answered());
        let request = read(Behaviour::AtOnce, index, 0, LENGTH, LONG);
        assert_bytes(&ask(link, request.clone()).await.unwrap(), &request, LENGTH as usize);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_has_the_answers_to_its_reads_itself_over_a_connection_of_its_own() {
    let server = serve(server_options(), Scripted::new());
    let link = link(server.local_addr(), driving());
    let threads = driven(&link);
    until_driven(&threads, 200).await;
    // What went with a late answer has ended by then.
    until("there is one that calls share, and one for the thread", || server.connections() == 2).await;
    // Who may not wait, and what is long, goes the usual way.
    let before = threads.answered();
    assert_serves(&link).await;
    let long = read(Behaviour::AtOnce, 1, 0, 1 << 20, LONG);
    assert_bytes(&ask(&threads, long.clone()).await.unwrap(), &long, 1 << 20);
    assert_eq!(threads.answered(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_thread_waits_where_none_is_to() {
    let server = serve(server_options(), Scripted::new());
    let never = DriveOptions { wait: Duration::ZERO, ..DriveOptions::default() };
    let threads = driven(&link(server.local_addr(), ClientOptions { drive: never, ..driving() }));
    let none_may = Arc::new(Driven::new(link(server.local_addr(), driving()), 0));
    for index in 0..20 {
        for link in [&threads, &none_may] {
            let request = read(Behaviour::AtOnce, index, 0, LENGTH, LONG);
            assert_bytes(&ask(link, request.clone()).await.unwrap(), &request, LENGTH as usize);
        }
    }
    assert_eq!((threads.answered(), none_may.answered(), server.connections()), (0, 0, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_late_comes_all_the_same_and_others_do_not_wait_for_it() {
    let service = Scripted::new();
    let server = serve(server_options(), service.clone());
    let threads = driven(&link(server.local_addr(), driving()));
    until_driven(&threads, 1).await;
    let started = service.started();
    let late = read(Behaviour::Gated, 7, 0, LENGTH, LONG);
    let waiting = tokio::spawn({
        let (threads, late) = (Arc::clone(&threads), late.clone());
        async move { ask(&threads, late).await }
    });
    until("the read reaches the service", || service.started() > started).await;
    for index in 0..100 {
        let request = read(Behaviour::AtOnce, index, 0, LENGTH, LONG);
        assert_bytes(&ask(&threads, request.clone()).await.unwrap(), &request, LENGTH as usize);
    }
    assert!(!waiting.is_finished());
    service.open(1);
    let reply = within("the late answer", waiting).await.unwrap().unwrap();
    assert_bytes(&reply, &late, LENGTH as usize);
    // A connection takes the place of the one that went with it.
    until_driven(&threads, threads.answered() + 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_is_never_answered_costs_its_deadline_and_gives_its_memory_back() {
    let server = serve(server_options(), Scripted::new());
    let link = link(server.local_addr(), driving());
    let threads = driven(&link);
    let memory = pool(1);
    for deadline in [Duration::from_micros(300), 4 * WAIT] {
        until_driven(&threads, threads.answered() + 1).await;
        let (threads, into) = (Arc::clone(&threads), memory.try_alloc(LENGTH as usize));
        let runtime = tokio::runtime::Handle::current();
        let request = read(Behaviour::Never, 0, 0, LENGTH, deadline);
        let begun = std::time::Instant::now();
        let call = tokio::task::spawn_blocking(move || runtime.block_on(threads.call(request, into)));
        let result = within("the deadline", call).await.unwrap();
        assert!(begun.elapsed() >= deadline, "{:?}", begun.elapsed());
        // Whose clock was faster, the service's or ours.
        assert!(result.is_err(), "{result:?}");
        until("the memory is free", || memory.used() == 0).await;
    }
    within("close", link.close()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_the_server_gave_up_meanwhile_cost_no_error() {
    let options = ServerOptions { idle_timeout: Duration::from_millis(200), ..server_options() };
    let server = serve(options, Scripted::new());
    let threads = driven(&link(server.local_addr(), driving()));
    for _ in 0..2 {
        until_driven(&threads, threads.answered() + 5).await;
        until("they are given up", || server.connections() == 0).await;
        let request = read(Behaviour::AtOnce, 3, 0, LENGTH, LONG);
        assert_bytes(&ask(&threads, request.clone()).await.unwrap(), &request, LENGTH as usize);
    }
}

/// Serves one connection by hand, until it is to be silent. Then it takes what comes and says nothing.
async fn serve_by_hand(mut stream: TcpStream, is_silent: Arc<AtomicBool>) {
    greet(&mut stream).await;
    let mut header = [0; HEADER_LEN];
    while stream.read_exact(&mut header).await.is_ok() {
        let request = RequestHeader::decode(&header).unwrap();
        let mut body = vec![0; request.body_len as usize];
        stream.read_exact(&mut body).await.unwrap();
        if is_silent.load(Ordering::SeqCst) {
            continue;
        }
        let payload = vec![7; if request.op == Op::Read { request.length as usize } else { 0 }];
        let (id, payload_len) = (request.id, payload.len() as u32);
        assert!(request.op == Op::Read || id == CONNECTION_ID);
        let reply = ReplyHeader { id, failure: None, body_len: 0, payload_len, provenance: Provenance::default() };
        if stream.write_all(&[&reply.encode()[..], &payload[..]].concat()).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_is_taken_for_death_on_a_connection_of_a_thread_too() {
    let (listener, address) = listener().await;
    let is_silent = Arc::new(AtomicBool::new(false));
    let serving = tokio::spawn({
        let is_silent = Arc::clone(&is_silent);
        async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve_by_hand(stream, Arc::clone(&is_silent)));
            }
        }
    });
    let (keepalive, dead_after) = (Duration::from_secs(1), Duration::from_secs(4));
    let threads = driven(&link(address, ClientOptions { keepalive, dead_after, ..driving() }));
    let begun = std::time::Instant::now();
    while threads.answered() < 5 {
        assert!(begun.elapsed() < 2 * LONG, "no thread has its answers itself");
        let reply = ask(&threads, read(Behaviour::AtOnce, 0, 0, LENGTH, LONG)).await.unwrap();
        assert_eq!(payload_of(&reply), [7; LENGTH as usize]);
    }
    is_silent.store(true, Ordering::SeqCst);
    let result = ask(&threads, read(Behaviour::AtOnce, 0, 0, LENGTH, LONG)).await;
    assert!(matches!(&result, Err(CallError::Link(LinkError::Lost { .. }))), "{result:?}");
    serving.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_is_closed_while_a_thread_waits_ends_its_read() {
    let service = Scripted::new();
    let server = serve(server_options(), service.clone());
    let link = link(server.local_addr(), driving());
    let threads = driven(&link);
    until_driven(&threads, 1).await;
    let started = service.started();
    let waiting = tokio::spawn({
        let threads = Arc::clone(&threads);
        async move { ask(&threads, read(Behaviour::Gated, 1, 0, LENGTH, LONG)).await }
    });
    until("the read reaches the service", || service.started() > started).await;
    within("close", link.close()).await;
    let result = within("the read", waiting).await.unwrap();
    assert!(is_link_error(&result), "{result:?}");
    assert!(is_link_error(&ask(&threads, read(Behaviour::AtOnce, 1, 0, LENGTH, LONG)).await));
}
