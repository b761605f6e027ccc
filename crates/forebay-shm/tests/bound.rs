//! What clients look at is bounded, and no client waits for long for one that lets nothing go.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::*;
use forebay_memory::Pool;
use forebay_shm::ServerOptions;
use forebay_transport::conformance::{pattern, pool as private_pool, until, within};
use forebay_transport::{CallError, LinkError, Op, Payload, PeerMemory as _, Reply, Request, Transport};

fn is_other_path(result: &Result<Reply, CallError>) -> bool {
    matches!(result, Err(CallError::Link(LinkError::OtherPath { .. })))
}

/// Blocks `1..=count` of 4 MiB, each in a frame of its own.
fn service_of(pool: &Pool, count: u64) -> Arc<BlockService> {
    let service = BlockService::new();
    (1..=count).for_each(|index| service.put(pool, index, FRAME));
    service
}

/// What a piece of a read brought: it is kept until the whole is there.
async fn piece(client: &AsClient, own: &Pool, index: u64, offset: u32, length: u32) -> Payload {
    let reply = client.call(read(index, offset, length, LONG), own.try_alloc(length as usize)).await;
    reply.unwrap().payload
}

fn bytes(payload: &Payload) -> Vec<u8> {
    match payload {
        Payload::Shared(spans) => spans.iter().flat_map(|span| span.to_vec()).collect(),
        Payload::Landed(span) => span.to_vec(),
        payload => panic!("{payload:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_hold_one_piece_while_they_wait_for_the_next_all_end_with_right_bytes() {
    const LENGTH: u32 = 1000;
    let pool = shared_pool(8);
    let worker = Worker::start(&pool, service_of(&pool, 8));
    let client = AsClient::new(open(worker.tcp.local_addr()).await);
    let own = private_pool(2);
    let began = Instant::now();
    // More than may be shown hold their first piece, and none lets go before it has its second.
    let readers = (0..32u64).map(|reader| {
        let (client, own) = (Arc::clone(&client), own.clone());
        tokio::spawn(async move {
            for round in 0..4 {
                let first = 1 + (reader + round) % 7;
                let offset = FRAME as u32 - LENGTH;
                let pieces = (
                    piece(&client, &own, first, offset, LENGTH).await,
                    piece(&client, &own, first + 1, 0, LENGTH).await,
                );
                let wanted = |index, offset| (0..LENGTH).map(move |at| pattern(index, offset + at)).collect::<Vec<_>>();
                assert!(bytes(&pieces.0) == wanted(first, offset) && bytes(&pieces.1) == wanted(first + 1, 0));
            }
        })
    });
    for reader in readers.collect::<Vec<_>>() {
        within("a reader", reader).await.unwrap();
    }
    assert!(began.elapsed() < LONG / 2, "they waited for one another: {:?}", began.elapsed());
    until("nothing is looked at", || worker.window.pinned() == 0).await;
    assert!(client.near.report().reads > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_lets_go_fails_no_other_and_only_costs_it_copies() {
    let pool = shared_pool(8);
    let worker = Worker::start(&pool, service_of(&pool, 8));
    let holder = open(worker.tcp.local_addr()).await;
    let mut held = Vec::new();
    for index in 1..=4 {
        held.push(view(&holder, index, 0, 100).await);
    }
    let near = open(worker.tcp.local_addr()).await;
    let other = AsClient::new(Arc::clone(&near));
    let own = private_pool(1);
    // One more of the other's, and then none: but each read ends soon, and with its bytes.
    let seen = view(&near, 5, 0, 100).await;
    let began = Instant::now();
    let asks = (0..64).map(|_| near.call(read(6, 0, 100, LONG), None));
    let asks: Vec<_> = futures_of(asks.collect()).await;
    assert!(asks.iter().all(is_other_path), "{asks:?}");
    assert!(began.elapsed() < LONG / 2, "each waited for the one before it: {:?}", began.elapsed());
    for index in 5..=8 {
        let landed = bytes(&piece(&other, &own, index, 7, 100).await);
        assert!(landed.iter().enumerate().all(|(at, byte)| *byte == pattern(index, 7 + at as u32)));
    }
    // Three quarters of the pool are shown at most, also to those that are shown nothing yet.
    let third = open(worker.tcp.local_addr()).await;
    let sixth = view(&third, 6, 0, 100).await;
    let fourth = open(worker.tcp.local_addr()).await;
    assert!(is_other_path(&fourth.call(read(7, 0, 100, LONG), None).await));
    assert_eq!(worker.window.pinned(), 6 * FRAME as u64);
    drop((held, seen, sixth));
    until("nothing is looked at", || worker.window.pinned() == 0).await;
    until_open(&near).await;
    assert!(is_right(&view(&near, 7, 0, 100).await, 7, 0));
}

/// Awaits all of them at once.
async fn futures_of<F: Future<Output = Result<Reply, CallError>>>(asks: Vec<F>) -> Vec<F::Output> {
    let mut asks: Vec<_> = asks.into_iter().map(|ask| (Box::pin(ask), None)).collect();
    std::future::poll_fn(|context| {
        for (ask, answer) in asks.iter_mut().filter(|(_, answer)| answer.is_none()) {
            if let std::task::Poll::Ready(ready) = ask.as_mut().poll(context) {
                *answer = Some(ready);
            }
        }
        if asks.iter().all(|(_, answer)| answer.is_some()) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    asks.into_iter().filter_map(|(_, answer)| answer).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_the_line_by_a_mistake_lets_the_next_have_his_turn() {
    let pool = shared_pool(4);
    let service = service_of(&pool, 3);
    let worker = Worker::start_with(&pool, service, |options| ServerOptions { patience: LONG, ..options });
    let path = socket_of(worker.tcp.local_addr());
    let (one, two) = (Raw::greet(&path), Raw::greet(&path));
    one.ask(1, &read(1, 0, 100, LONG));
    one.reply().unwrap();
    two.ask(1, &read(2, 0, 100, LONG));
    two.reply().unwrap();
    assert_eq!(worker.window.pinned(), 2 * FRAME as u64);
    one.ask(2, &read(3, 0, 100, LONG));
    tokio::time::sleep(Duration::from_millis(50)).await;
    // It would fit, as that block is shown already, but stands behind.
    two.ask(2, &read(1, 0, 100, LONG));
    tokio::time::sleep(Duration::from_millis(50)).await;
    one.send(b"nonsense");
    let (header, places) = two.reply().unwrap();
    assert_eq!((header.id, header.payload_len, places.len()), (2, 100, 16));
    drop((one, two));
    until("nothing is looked at", || worker.window.pinned() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lies_in_one_frame_counts_once_and_as_the_whole_of_it() {
    let pool = shared_pool(4);
    let (service, small) = (BlockService::new(), 32 << 10);
    (1..=3).for_each(|index| service.put(&pool, index, small));
    let worker = Worker::start(&pool, service);
    let near = open(worker.tcp.local_addr()).await;
    let mut seen: Vec<Vec<_>> = Vec::new();
    for index in 1..=3 {
        seen.push(view(&near, index, 0, 100).await);
    }
    assert_eq!(worker.window.pinned(), FRAME as u64);
    drop(seen);
    until("nothing is looked at", || worker.window.pinned() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_here_is_not_taken_for_the_one_that_the_address_leads_to() {
    let pool = shared_pool(2);
    let (here, there) = (BlockService::new(), BlockService::new());
    here.put(&pool, 1, 1000);
    let tcp = tcp_server(loopback(), there.clone());
    let options = ServerOptions { instance: 7, ..server_options(socket_of(tcp.local_addr())) };
    let window = forebay_shm::WindowServer::bind(options, &pool, here).unwrap();
    for instance in [0, 8, 7] {
        there.instance.store(instance, Ordering::Relaxed);
        let near = near(tcp.local_addr());
        near.call(Request::on_path(Op::Ping, Default::default(), LONG), None).await.unwrap();
        if instance == 7 {
            until_open(&near).await;
        } else {
            until("the attempt fails", || near.report().why.is_some()).await;
            let why = near.report().why.unwrap();
            assert!(why.contains("another worker") && !near.is_open(), "{why}");
        }
        within("the close", near.close()).await;
    }
    until("nobody is left", || window.connections() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_with_two_addresses_has_one_bound() {
    let pool = shared_pool(4);
    let service = service_of(&pool, 3);
    let worker = Worker::start(&pool, service.clone());
    let second = tcp_server(loopback(), service);
    let path = socket_of(second.local_addr());
    worker.window.also_listen(&path).unwrap();
    assert!(worker.window.also_listen(&path).is_err());
    let (one, two) = (open(worker.tcp.local_addr()).await, open(second.local_addr()).await);
    let seen = [view(&one, 1, 0, 100).await, view(&two, 2, 0, 100).await];
    assert_eq!((worker.window.connections(), worker.window.pinned()), (2, 2 * FRAME as u64));
    assert!(is_other_path(&two.call(read(3, 0, 100, LONG), None).await));
    drop(seen);
    within("the close", worker.window.close()).await;
    until("nobody is left", || worker.window.connections() == 0).await;
}
