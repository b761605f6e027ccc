//! Threads that wait for the answers to their reads themselves, over verbs: they post and poll, and the I/O thread goes on with what is
//! late; through windows, and with payload in messages. The suite runs over such threads, too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_rdma::{ClientOptions, RdmaTransport};
use forebay_transport::conformance::{
    Behaviour, Driven, Scripted, assert_bytes, is_link_error, pool, read, slowness, until, within,
};
use forebay_transport::driving::DriveOptions;
use forebay_transport::{CallError, Reply, Request, Transport};
use forebay_types::ByteSize;
use tokio::runtime::Handle;

use crate::common::verbs::{Devices, devices};
use crate::common::{self, LONG};

/// How long a thread waits here: longer than an answer takes most of the time, also where others have the processors.
pub(crate) fn drive() -> DriveOptions {
    DriveOptions { wait: Duration::from_millis(20) * slowness(), spin: Duration::from_micros(50) }
}

/// What comes within the message, and what is written through a window, or comes before it.
const LENGTHS: [u32; 3] = [100, 4096, 64 << 10];
/// Through windows; and in messages, of which there are more than fit at once.
const BUFFERS: [Option<ByteSize>; 2] = [None, Some(ByteSize::kib(64))];

fn options() -> ClientOptions {
    ClientOptions { drive: drive(), ..common::client_options() }
}

/// A link whose callers may wait, whatever other tests' threads do.
fn driven(link: &Arc<RdmaTransport>) -> Arc<Driven> {
    Arc::new(Driven::new(link.clone(), usize::MAX))
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

/// Reads until so many answers came to the threads that asked, and somebody has a connection for that.
async fn until_driven(link: &Arc<Driven>, times: u64, has_own: impl Fn() -> bool) {
    let begun = Instant::now();
    for index in 0.. {
        if link.answered() >= times && has_own() {
            return;
        }
        assert!(begun.elapsed() < 4 * LONG * slowness(), "no thread has its answers itself: {} did", link.answered());
        let length = LENGTHS[index % LENGTHS.len()];
        let request = read(Behaviour::AtOnce, index as u64, 5, length, LONG);
        assert_bytes(&ask(link, request.clone()).await.unwrap(), &request, length as usize);
    }
}

fn link(devices: &Devices, server: std::net::SocketAddr) -> Arc<RdmaTransport> {
    link_by(devices, server, None)
}

fn link_by(devices: &Devices, server: std::net::SocketAddr, receive_buffers: Option<ByteSize>) -> Arc<RdmaTransport> {
    devices.link_by(server, options(), common::pool(8), receive_buffers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_has_its_answers_over_a_connection_of_its_own_that_goes_when_nobody_uses_it() {
    let Some(devices) = devices() else { return };
    let server = devices.serve(0, Scripted::new(), None).await;
    let link = link(&devices, server.local_addr());
    let threads = driven(&link);
    until_driven(&threads, 50, || server.connections() == 2).await;
    // What is long goes the usual way.
    let long = read(Behaviour::AtOnce, 1, 0, 1 << 20, LONG);
    assert_bytes(&ask(&threads, long.clone()).await.unwrap(), &long, 1 << 20);
    until("it goes, as nobody uses it", || server.connections() == 1).await;
    let again = read(Behaviour::AtOnce, 2, 0, 4096, LONG);
    assert_bytes(&ask(&threads, again.clone()).await.unwrap(), &again, 4096);
    within("close", link.close()).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_late_comes_all_the_same_and_others_do_not_wait_for_it() {
    let Some(devices) = devices() else { return };
    let service = Scripted::new();
    let server = devices.serve(0, service.clone(), None).await;
    for (buffers, length) in BUFFERS.iter().flat_map(|buffers| LENGTHS.map(|length| (*buffers, length))) {
        let link = link_by(&devices, server.local_addr(), buffers);
        let threads = driven(&link);
        until_driven(&threads, 1, || server.connections() >= 2).await;
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
        within("close", link.close()).await;
        until("the worker has no connection", || server.connections() == 0).await;
    }
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_that_is_never_answered_gives_its_memory_back() {
    let Some(devices) = devices() else { return };
    let server = devices.serve(0, Scripted::new(), None).await;
    let memory = pool(1);
    for (buffers, length) in BUFFERS.iter().flat_map(|buffers| LENGTHS.map(|length| (*buffers, length))) {
        let link = link_by(&devices, server.local_addr(), buffers);
        let threads = driven(&link);
        until_driven(&threads, 1, || server.connections() >= 2).await;
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
    let Some(devices) = devices() else { return };
    let service = Scripted::new();
    let server = devices.serve(0, service.clone(), None).await;
    let link = link(&devices, server.local_addr());
    let threads = driven(&link);
    until_driven(&threads, 1, || server.connections() >= 2).await;
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
    assert_eq!(memory.used(), 0, "no card has it any more");
    until("the worker has no connection", || server.connections() == 0).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_the_worker_has_ended_meanwhile_are_not_asked() {
    let Some(devices) = devices() else { return };
    let service = Scripted::new();
    let mut server = devices.serve(0, service.clone(), None).await;
    let address = server.local_addr();
    let threads = driven(&link(&devices, address));
    for _ in 0..2 {
        until_driven(&threads, threads.answered() + 5, || server.connections() >= 2).await;
        server.close().await;
        server = devices.serve(address.port(), service.clone(), None).await;
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
