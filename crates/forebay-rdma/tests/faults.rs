//! Peers that die and hang, in processes of their own; I/O threads closed in the middle of everything; callers that leave.

mod common;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::*;
use forebay_rdma::{ClientOptions, Library, RdmaServer, RdmaTransport, ServerOptions};
use forebay_transport::conformance::{Behaviour, Scripted, assert_bytes, read, until, within};
use forebay_transport::{CallError, LinkError, Transport};

/// Set for a test that is run again as the server of another process.
const ROLE: &str = "FOREBAY_TEST_ROLE";
/// Bytes of a read, well above the crossover to rendezvous.
const BLOCK: u32 = 1 << 20;

/// A server in another process, killed when dropped.
struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    /// Runs this very test once more, which then calls [`Server::play`].
    fn start(test: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, "server")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let address = output.lines().find_map(|line| line.unwrap().split_once("listening on ")?.1.parse().ok());
        Self { process, address: address.expect("the server says where it listens") }
    }

    /// In the other process: serves until it is killed. False in the first one.
    async fn play(library: &'static Library) -> bool {
        if std::env::var_os(ROLE).is_none() {
            return false;
        }
        let server = serve(library, 0, Scripted::new()).await;
        println!("listening on {}", server.local_addr());
        // Not for ever, should the parent be killed.
        tokio::time::sleep(Duration::from_secs(100)).await;
        true
    }

    fn goes_on(&self) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.process), rustix::process::Signal::CONT)
            .unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Readers that go on until their first error, which they give back.
fn readers(
    link: &Arc<RdmaTransport>,
    buffers: &forebay_memory::Pool,
    count: u64,
    deadline: Duration,
) -> (Arc<AtomicUsize>, Vec<tokio::task::JoinHandle<CallError>>) {
    let done = Arc::new(AtomicUsize::new(0));
    let reader = |index| {
        let (link, buffers, done) = (Arc::clone(link), buffers.clone(), Arc::clone(&done));
        tokio::spawn(async move {
            loop {
                let request = read(Behaviour::AtOnce, index, 0, BLOCK, deadline);
                let into = buffers.alloc(BLOCK as usize, LONG).await.unwrap();
                match link.call(request.clone(), Some(into)).await {
                    Ok(reply) => assert_bytes(&reply, &request, BLOCK as usize),
                    // The service has memory for some of these only.
                    Err(CallError::Service(_)) => {}
                    Err(error) => return error,
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    (Arc::clone(&done), (0..count).map(reader).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_mid_transfer_fails_its_calls_at_once_and_nothing_else() {
    let Some(library) = library() else { return };
    if Server::play(library).await {
        return;
    }
    let mut doomed = Server::start("a_server_killed_mid_transfer_fails_its_calls_at_once_and_nothing_else");
    let bystander = serve(library, 0, Scripted::new()).await;
    let buffers = pool(64);
    let io_thread = io_thread_of(library, "client", buffers.clone());
    // Silence is not what tells them.
    let patient = ClientOptions { dead_after: LONG, ..client_options() };
    let link = |address: SocketAddr| {
        Arc::new(RdmaTransport::new(address.to_string(), Arc::clone(&io_thread), patient.clone()))
    };
    let (to_doomed, to_bystander) = (link(doomed.address), link(bystander.local_addr()));
    assert_serves(&to_bystander).await;
    let (done, readers) = readers(&to_doomed, &buffers, 6, LONG);
    until("transfers are under way", || done.load(Ordering::Relaxed) > 10).await;
    doomed.process.kill().unwrap();
    let killed = Instant::now();
    for reader in readers {
        let error = within("the reader hears of it", reader).await.unwrap();
        assert!(matches!(error, CallError::Link(LinkError::Lost { .. } | LinkError::Connect { .. })), "{error}");
    }
    println!("the readers knew after {:?}", killed.elapsed());
    assert!(killed.elapsed() < patient.dead_after / 2, "{:?}", killed.elapsed());
    until("all memory is back", || buffers.used() == 0).await;
    assert_serves(&to_bystander).await;
    until("the I/O thread has nothing left to do", || io_thread.stats().operations_in_flight == 0).await;
    to_bystander.close().await;
    bystander.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_costs_each_call_one_deadline_and_nothing_else() {
    let Some(library) = library() else { return };
    if Server::play(library).await {
        return;
    }
    let hung = Server::start("a_server_that_hangs_costs_each_call_one_deadline_and_nothing_else");
    let bystander = serve(library, 0, Scripted::new()).await;
    let buffers = pool(64);
    let io_thread = io_thread_of(library, "client", buffers.clone());
    let deadline = Duration::from_secs(2);
    let patient = ClientOptions { keepalive: LONG, dead_after: LONG, ..client_options() };
    let to_hung = Arc::new(RdmaTransport::new(hung.address.to_string(), Arc::clone(&io_thread), patient));
    let to_bystander = RdmaTransport::new(bystander.local_addr().to_string(), Arc::clone(&io_thread), client_options());
    assert_serves(&to_hung).await;
    let (done, readers) = readers(&to_hung, &buffers, 6, deadline);
    until("transfers are under way", || done.load(Ordering::Relaxed) > 10).await;
    forebay_testkit::stop_process(hung.process.id()).unwrap();
    let stopped = Instant::now();
    for reader in readers {
        let error = within("the reader's deadline", reader).await.unwrap();
        assert!(matches!(error, CallError::Link(LinkError::TimedOut { .. })), "{error}");
    }
    let took = stopped.elapsed();
    println!("the readers gave up after {took:?}");
    // One after the other, six would take six deadlines.
    assert!(took < 5 * deadline, "{took:?}");
    assert_serves(&to_bystander).await;
    // What was being fetched stays with its operation: the server may go on at any time.
    hung.goes_on();
    assert_serves(&to_hung).await;
    until("all memory is back", || buffers.used() == 0).await;
    to_hung.close().await;
    to_bystander.close().await;
    bystander.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_server_is_given_up_when_it_stays_silent_and_its_memory_comes_back() {
    let Some(library) = library() else { return };
    if Server::play(library).await {
        return;
    }
    let hung = Server::start("a_hung_server_is_given_up_when_it_stays_silent_and_its_memory_comes_back");
    let buffers = pool(64);
    let io_thread = io_thread_of(library, "client", buffers.clone());
    let link = Arc::new(RdmaTransport::new(hung.address.to_string(), io_thread, client_options()));
    let (done, readers) = readers(&link, &buffers, 6, LONG);
    until("transfers are under way", || done.load(Ordering::Relaxed) > 10).await;
    forebay_testkit::stop_process(hung.process.id()).unwrap();
    let stopped = Instant::now();
    let mut lost = 0;
    for reader in readers {
        match within("the connection is given up", reader).await.unwrap() {
            CallError::Link(LinkError::Lost { .. }) => lost += 1,
            // It had its last answer just before, and asked when the connection was gone.
            CallError::Link(LinkError::Connect { .. }) => {}
            error => panic!("{error}"),
        }
    }
    assert!(lost > 0, "nobody was told that it was given up");
    // Silence of five seconds, and an attempt to connect.
    assert!(stopped.elapsed() < LONG, "{:?}", stopped.elapsed());
    until("all memory is back", || buffers.used() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_closed_in_the_middle_of_everything_gives_every_buffer_back() {
    let Some(library) = library() else { return };
    for round in 0..3 {
        let service = Scripted::new();
        let server = serve(library, 0, service.clone()).await;
        let buffers = pool(64);
        let io_thread = io_thread_of(library, "client", buffers.clone());
        let link =
            Arc::new(RdmaTransport::new(server.local_addr().to_string(), Arc::clone(&io_thread), client_options()));
        let (done, readers) = readers(&link, &buffers, 6, LONG);
        let waiting = tokio::spawn({
            let (link, into) = (Arc::clone(&link), buffers.try_alloc(100));
            async move { link.call(read(Behaviour::Never, 0, 0, 100, LONG), into).await }
        });
        until("transfers are under way", || done.load(Ordering::Relaxed) > 10 + round).await;
        match round {
            0 => within("the client's I/O thread ends", io_thread.close()).await,
            1 => within("the link ends", link.close()).await,
            _ => within("the server's I/O thread ends", server.close()).await,
        }
        let error = within("the waiting call", waiting).await.unwrap().unwrap_err();
        assert!(matches!(error, CallError::Link(_)), "{error}");
        for reader in readers {
            let error = within("a reader", reader).await.unwrap();
            assert!(matches!(error, CallError::Link(_)), "{error}");
        }
        until("all memory is back", || buffers.used() == 0).await;
        within("the rest ends", async { tokio::join!(io_thread.close(), server.close()) }).await;
        assert!(link.call(read(Behaviour::AtOnce, 0, 0, 1, LONG), buffers.try_alloc(1)).await.is_err());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_may_leave_at_any_time() {
    let Some(library) = library() else { return };
    let service = Scripted::new();
    let server = serve(library, 0, service.clone()).await;
    let buffers = pool(64);
    let io_thread = io_thread_of(library, "client", buffers.clone());
    let options = ClientOptions { max_outstanding: 2, ..client_options() };
    let quick = ClientOptions { connect_timeout: Duration::from_secs(5), ..options.clone() };
    // While connecting, to a peer that does not speak.
    let silent = std::net::TcpListener::bind(address(0)).unwrap();
    let nowhere = RdmaTransport::new(silent.local_addr().unwrap().to_string(), Arc::clone(&io_thread), quick);
    let call = nowhere.call(read(Behaviour::AtOnce, 0, 0, 10, LONG), buffers.try_alloc(10));
    assert!(tokio::time::timeout(Duration::from_millis(50), call).await.is_err());
    // While waiting for its turn, with two calls under way that wait for the service.
    let link = Arc::new(RdmaTransport::new(server.local_addr().to_string(), Arc::clone(&io_thread), options));
    let gated = |index| {
        let (link, into) = (Arc::clone(&link), buffers.try_alloc(10));
        tokio::spawn(async move { link.call(read(Behaviour::Gated, index, 0, 10, LONG), into).await })
    };
    let first = [gated(1), gated(2)];
    until("both are with the service", || service.started() == 2).await;
    let call = link.call(read(Behaviour::AtOnce, 0, 0, 10, LONG), buffers.try_alloc(10));
    assert!(tokio::time::timeout(Duration::from_millis(50), call).await.is_err());
    service.open(2);
    for call in first {
        assert!(within("the first calls", call).await.unwrap().is_ok());
    }
    // At every other moment of a transfer.
    for micros in (0..2000).step_by(20) {
        let call = link.call(read(Behaviour::AtOnce, 0, 0, BLOCK, LONG), buffers.try_alloc(BLOCK as usize));
        let _ = tokio::time::timeout(Duration::from_micros(micros), call).await;
    }
    assert_serves(&link).await;
    link.close().await;
    nowhere.close().await;
    until("all memory is back", || buffers.used() == 0).await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_with_too_many_calls_that_were_given_up_retires() {
    let Some(library) = library() else { return };
    let service = Scripted::new();
    let server = serve(library, 0, service.clone()).await;
    let options = ClientOptions { max_abandoned: 3, ..client_options() };
    let (client, link) = link_with(library, server.local_addr(), options);
    let buffers = pool(8);
    let staying = tokio::spawn({
        let link = Arc::clone(&link);
        async move { call(&link, read(Behaviour::Gated, 0, 0, 10, LONG)).await }
    });
    until("the call that stays", || service.started() == 1).await;
    for given_up in 1..=4 {
        let call = link.call(read(Behaviour::Never, 0, 0, 10, LONG), buffers.try_alloc(10));
        tokio::select! {
            biased;
            reply = call => panic!("a reply to a call that is never answered: {reply:?}"),
            () = until("the call reaches the service", || service.started() == 1 + given_up) => {}
        }
    }
    until("nothing is on its way to their buffers", || buffers.used() == 0).await;
    // New calls take another connection, and the old one lives as long as a caller waits on it.
    assert_serves(&link).await;
    assert_eq!(server.connections(), 2);
    assert!(!staying.is_finished());
    service.open(1);
    assert!(within("the call that stayed", staying).await.unwrap().is_ok());
    until("the old connection ends", || server.connections() == 1).await;
    assert_serves(&link).await;
    link.close().await;
    server.close().await;
    client.close().await;
}

/// A client that always has as many reads under way as it may is not one that takes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_always_full_outlives_the_stall_timeout() {
    let Some(library) = library() else { return };
    let io_thread = io_thread_of(library, "server", pool(64));
    // Whether replies are taken is looked at from the time for a hello on.
    let timeout = Duration::from_secs(2);
    let options = ServerOptions {
        hello_timeout: timeout,
        stall_timeout: timeout,
        ..ServerOptions::new(address(0), CLUSTER, BLOCK_SIZE)
    };
    let server = RdmaServer::bind(io_thread, options, Scripted::new()).await.unwrap();
    let (client, transport) = link(library, server.local_addr());
    let end = Instant::now() + 3 * timeout;
    let readers = (0..8).map(|reader| {
        let transport = Arc::clone(&transport);
        tokio::spawn(async move {
            let mut reads = 0;
            while Instant::now() < end {
                let request = read(Behaviour::AtOnce, reader, 5, BLOCK, LONG);
                assert_bytes(&call(&transport, request.clone()).await.unwrap(), &request, BLOCK as usize);
                reads += 1;
            }
            reads
        })
    });
    for reader in readers.collect::<Vec<_>>() {
        assert!(reader.await.unwrap() > 0);
    }
    let stats = server.stats();
    assert!(stats.connections == 1 && stats.bytes_sent > stats.replies * u64::from(BLOCK), "{stats:?}");
    server.close().await;
    client.close().await;
}
