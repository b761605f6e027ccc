//! A view of a worker's memory stays as it is for as long as there is one, and costs the worker nothing afterwards.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;
use forebay_memory::Spans;
use forebay_shm::{ServerOptions, WindowError, WindowServer};
use forebay_transport::conformance::{Behaviour, Scripted, until, within};
use forebay_transport::{CallError, LinkError, Op, Payload, PeerMemory as _, Request, Transport};
use forebay_types::FailureKind;

const BRIEF: Duration = Duration::from_millis(100);
const WHOLE: u32 = FRAME as u32;

/// A worker of `frames` × 4 MiB with as many blocks as are named, of 4 MiB each, and a client that sees them.
async fn start(frames: u64, blocks: &[u64]) -> (Worker, Arc<BlockService>, Arc<forebay_shm::NearTransport>) {
    start_with(frames, blocks, |options| options).await
}

/// As above, with other options of the server.
async fn start_with(
    frames: u64,
    blocks: &[u64],
    change: impl FnOnce(ServerOptions) -> ServerOptions,
) -> (Worker, Arc<BlockService>, Arc<forebay_shm::NearTransport>) {
    let (pool, service) = (shared_pool(frames), BlockService::new());
    blocks.iter().for_each(|index| service.put(&pool, *index, FRAME));
    let worker = Worker::start_with(&pool, service.clone(), change);
    let near = open(worker.tcp.local_addr()).await;
    (worker, service, near)
}

fn is_other_path(result: &Result<forebay_transport::Reply, CallError>) -> bool {
    matches!(result, Err(CallError::Link(LinkError::OtherPath { .. })))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extent_is_not_used_again_while_a_client_has_a_view_of_it_and_is_when_the_last_is_gone() {
    let (worker, service, near) = start(2, &[3]).await;
    let seen = view(&near, 3, 0, WHOLE).await;
    service.remove(3);
    let others = fill(&worker.pool);
    assert_eq!((others.len(), worker.window.pinned()), (1, FRAME as u64));
    assert!(is_right(&seen, 3, 0));
    let slice = [seen[0].slice(1000..2000)];
    drop(seen);
    // As long as any part of it is seen.
    assert!(worker.pool.try_alloc(1).is_none() && is_right(&slice, 3, 1000));
    drop(slice);
    until("the memory is free", || worker.pool.try_alloc(FRAME).is_some()).await;
    drop(others);
    worker.until_free().await;
    assert_eq!(near.report().state, "open");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_who_goes_on_gives_back_what_he_read_with_his_next_request() {
    let (worker, service, near) = start(3, &[1]).await;
    for round in 0..1000 {
        let seen = view(&near, 1, round * 4096, 4096).await;
        assert!(is_right(&seen, 1, round * 4096) && worker.window.pinned() == FRAME as u64);
    }
    let report = near.report();
    assert!(report.reads >= 1000 && report.bytes >= 1000 * 4096 && report.why.is_none(), "{report:?}");
    service.remove(1);
    worker.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_looks_at_outlives_the_session_the_transport_and_the_server() {
    let (worker, service, near) = start(2, &[5]).await;
    let seen = view(&near, 5, 0, WHOLE).await;
    service.remove(5);
    within("the client's close", near.close()).await;
    drop(near);
    let others = fill(&worker.pool);
    assert!(is_right(&seen, 5, 0) && others.len() == 1 && worker.window.connections() == 1);
    let began = Instant::now();
    within("the server's close", worker.window.close()).await;
    assert!(began.elapsed() >= BRIEF, "it did not wait for the client");
    let Worker { pool, tcp, window } = worker;
    drop(window);
    drop(others);
    // No server hears of it any more when the view is let go of, so that memory is never used again.
    assert_eq!((fill(&pool).len(), is_right(&seen, 5, 0)), (1, true));
    within("the other server's close", tcp.close()).await;
    drop((pool, tcp, service));
    assert!(is_right(&seen, 5, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_dropped_gives_nothing_away_and_one_that_is_closed_waits_for_those_who_are_about_to_finish() {
    let (worker, service, near) = start(2, &[5]).await;
    let seen = view(&near, 5, 0, WHOLE).await;
    service.remove(5);
    let Worker { pool, window, tcp: _tcp } = worker;
    drop(window);
    until("the session is lost", || !near.is_open()).await;
    assert_eq!((fill(&pool).len(), is_right(&seen, 5, 0)), (1, true));

    // Those who are about to finish may have no processor for a while.
    let patient = |options| ServerOptions { close_timeout: LONG, ..options };
    let (worker, service, near) = start_with(2, &[5], patient).await;
    let seen = view(&near, 5, 0, WHOLE).await;
    service.remove(5);
    let closing = async {
        until("the client knows", || !near.is_open()).await;
        drop(seen);
    };
    within("the close", async { tokio::join!(worker.window.close(), closing) }).await;
    assert_eq!(worker.pool.used(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_looked_at_is_free_when_its_socket_is_closed() {
    let (worker, service, _near) = start(2, &[7]).await;
    let raw = Raw::greet(&socket_of(worker.tcp.local_addr()));
    raw.ask(1, &read(7, 0, WHOLE, LONG));
    assert_eq!(raw.reply().unwrap().0.payload_len, WHOLE);
    service.remove(7);
    assert_eq!(fill(&worker.pool).len(), 1);
    drop(raw);
    worker.until_free().await;
    until("the session is over", || worker.window.connections() == 1).await;
}

/// What the test below starts: a client that looks at a block and does not stop.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process of other tests"]
async fn a_process_that_looks() {
    let address = std::env::var("FOREBAY_TEST_LOOK_AT").expect("another test starts this");
    let near = open(address.parse().unwrap()).await;
    let seen = view(&near, 7, 0, WHOLE).await;
    println!("\nlooking: {}", is_right(&seen, 7, 0));
    std::io::stdout().flush().unwrap();
    tokio::time::sleep(LONG).await;
    drop(seen);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_process_looked_at_is_free_when_it_is_killed() {
    let (worker, service, _near) = start(2, &[7]).await;
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_that_looks", "--ignored", "--nocapture"])
        .env("FOREBAY_TEST_LOOK_AT", worker.tcp.local_addr().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = tokio::task::spawn_blocking(move || {
        let mut said = lines.map_while(Result::ok).filter(|line| line.starts_with("looking"));
        (said.next(), said)
    });
    let (said, _rest) = within("the process looks", said).await.unwrap();
    assert_eq!(said.as_deref(), Some("looking: true"));
    service.remove(7);
    assert_eq!((fill(&worker.pool).len(), worker.window.pinned()), (1, FRAME as u64));
    child.kill().unwrap();
    child.wait().unwrap();
    worker.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reply_to_a_caller_that_has_left_is_released() {
    let (service, pool) = (Scripted::new(), shared_pool(4));
    let worker = Worker::start(&pool, Arc::new(Copied { service: service.clone(), pool: pool.clone() }));
    let near = open(worker.tcp.local_addr()).await;
    let before = service.started();
    let gated = |deadline| forebay_transport::conformance::read(Behaviour::Gated, 1, 0, 100_000, deadline);
    let leaving = tokio::spawn({
        let near = Arc::clone(&near);
        async move { near.call(gated(LONG), None).await }
    });
    let staying = tokio::spawn({
        let near = Arc::clone(&near);
        async move { near.call(gated(LONG), None).await }
    });
    until("the calls reach the service", || service.started() == before + 2).await;
    leaving.abort();
    assert!(leaving.await.is_err());
    let late = near.call(gated(BRIEF), None).await;
    assert!(matches!(late, Err(CallError::Link(LinkError::TimedOut { .. }))) || is_timeout(&late), "{late:?}");
    service.open(3);
    let reply = within("the call that stayed", staying).await.unwrap().unwrap();
    let Payload::Shared(seen) = reply.payload else { panic!("no view") };
    // Of the extent that 100,000 bytes take.
    until("only one is seen", || service.ended() == before + 3 && pool.used() == 131_072).await;
    drop(seen);
    worker.until_free().await;
}

fn is_timeout(result: &Result<forebay_transport::Reply, CallError>) -> bool {
    matches!(result, Err(CallError::Service(failure)) if failure.kind() == FailureKind::TimedOut)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_looked_at_is_bounded_and_what_does_not_fit_waits_in_order() {
    let (pool, service) = (shared_pool(4), BlockService::new());
    [1, 2, 3].iter().for_each(|index| service.put(&pool, *index, FRAME));
    let worker = Worker::start_with(&pool, service, |options| ServerOptions { patience: LONG, ..options });
    let near = open(worker.tcp.local_addr()).await;
    let first = view(&near, 1, 0, WHOLE).await;
    let second = view(&near, 2, 0, WHOLE).await;
    // Again what is shown already costs nothing more.
    drop(view(&near, 2, 100, 100).await);
    assert_eq!(worker.window.pinned(), 2 * FRAME as u64);
    let ask = |index| Box::pin(view(&near, index, 0, 100));
    let (mut third, mut fourth) = (ask(3), ask(2));
    // Each is sent when it is first polled, and not by a task that may be late.
    assert!(tokio::time::timeout(BRIEF, &mut third).await.is_err());
    // Behind the third, though it would fit.
    assert!(tokio::time::timeout(BRIEF, &mut fourth).await.is_err());
    // Another client has its one.
    let other = open(worker.tcp.local_addr()).await;
    let elsewhere = within("another client's", view(&other, 3, 0, 100)).await;
    drop((first, elsewhere));
    assert!(is_right(&within("the third", third).await, 3, 0));
    assert!(is_right(&within("the fourth", fourth).await, 2, 0));
    drop(second);
    until("nothing is looked at", || worker.window.pinned() == 0).await;
    assert_eq!(near.report().state, "open");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_cannot_be_shown_are_read_another_way_and_the_next_are_seen_again() {
    let (worker, service, near) = start(16, &[1]).await;
    let pieces = (0..400).map(|_| worker.pool.try_alloc(100).unwrap().freeze());
    // Every other one, so that no two lie side by side.
    service.put_spans(2, pieces.step_by(2).collect());
    let private = forebay_transport::conformance::pool(1);
    service.put(&private, 3, 5000);
    for (index, length) in [(2, 20_000), (3, 5000)] {
        until_open(&near).await;
        let result = near.call(read(index, 0, length, LONG), None).await;
        assert!(is_other_path(&result) && !near.is_open(), "{result:?}");
        assert!(is_other_path(&near.call(read(index, 0, length, LONG), None).await));
        let reply = near.call(read(index, 0, length, LONG), private.try_alloc(length as usize)).await.unwrap();
        assert!(matches!(reply.payload, Payload::Landed(span) if span.len() == length as usize));
    }
    until_open(&near).await;
    assert!(is_right(&view(&near, 1, 50, 1000).await, 1, 50));
    // Two that touch are one.
    let (head, tail) = worker.pool.try_alloc(1000).unwrap().split_at(300);
    service.put_spans(4, Spans::from_iter([head.freeze(), tail.freeze()]));
    assert_eq!(view(&near, 4, 0, 1000).await.len(), 1);
    assert_eq!(worker.window.connections(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_reads_without_a_buffer_go_by_the_window_and_failures_arrive_as_they_are() {
    let (worker, _store, near) = start(4, &[1]).await;
    let reads = near.report().reads;
    let landed = near.call(read(1, 0, 100, LONG), worker.pool.try_alloc(100)).await.unwrap();
    assert!(matches!(landed.payload, Payload::Landed(_)));
    near.call(Request::on_path(Op::Ping, Default::default(), LONG), None).await.unwrap();
    let missing = near.call(read(99, 0, 100, LONG), None).await;
    assert!(matches!(&missing, Err(CallError::Service(why)) if why.kind() == FailureKind::NotFound), "{missing:?}");
    let huge = near.call(read(1, 0, u32::MAX, LONG), None).await;
    assert!(matches!(&huge, Err(CallError::Service(why)) if why.kind() == FailureKind::InvalidArgument), "{huge:?}");
    assert_eq!(near.report().reads, reads);
    assert!(near.may_open() && near.kind() == forebay_transport::TransportKind::Tcp);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_calls_than_the_worker_allows_wait_for_their_turn() {
    let (service, pool) = (Scripted::new(), shared_pool(4));
    let service: Arc<dyn forebay_transport::Service> = Arc::new(Copied { service, pool: pool.clone() });
    let tcp = tcp_server(loopback(), Arc::clone(&service));
    let options = ServerOptions { max_requests_per_connection: 2, ..server_options(socket_of(tcp.local_addr())) };
    let window = WindowServer::bind(options, &pool, service).unwrap();
    let near = open(tcp.local_addr()).await;
    let calls: Vec<_> = (0..200)
        .map(|index| {
            let near = Arc::clone(&near);
            let read = forebay_transport::conformance::read(Behaviour::Later, index, 0, 1000, LONG);
            tokio::spawn(async move { near.call(read, None).await.is_ok() })
        })
        .collect();
    for call in calls {
        assert!(within("a call", call).await.unwrap());
    }
    assert_eq!((window.connections(), near.report().state), (1, "open"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_there_again_is_seen_again() {
    let (worker, _store, near) = start(4, &[1]).await;
    let held = view(&near, 1, 0, 100).await;
    within("the close", worker.window.close()).await;
    until("the loss is known", || !near.is_open()).await;
    let service = BlockService::new();
    service.put(&worker.pool, 8, 1000);
    let path = socket_of(worker.tcp.local_addr());
    let _window = WindowServer::bind(server_options(path.clone()), &worker.pool, service.clone()).unwrap();
    let twice = WindowServer::bind(server_options(path), &worker.pool, service).map(drop);
    assert!(matches!(twice, Err(WindowError::InUse { .. })), "{twice:?}");
    until_open(&near).await;
    assert!(is_right(&view(&near, 8, 5, 100).await, 8, 5) && is_right(&held, 1, 0));
}

#[tokio::test]
async fn a_pool_of_one_process_is_not_opened() {
    let refused =
        WindowServer::bind(server_options(path()), &forebay_transport::conformance::pool(1), BlockService::new());
    assert!(matches!(refused.map(drop), Err(WindowError::Private)));
}
