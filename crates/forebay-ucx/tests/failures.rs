//! Peers that die and peers that hang, in processes of their own.

mod common;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use common::*;
use forebay_memory::FRAME_SIZE;
use forebay_ucx::{Data, Error, Message, Payload, Protocol, Registration};

/// Messages under way at once.
const DEPTH: u64 = 8;

#[test]
#[ignore = "a process of other tests"]
fn a_peer_that_echoes() {
    Peer::play(|worker| echo(worker, pool(64), None));
}

#[test]
#[ignore = "a process of other tests"]
fn a_peer_that_keeps_what_it_is_offered() {
    let kept = Rc::new(RefCell::new(Vec::new()));
    Peer::play(|worker| {
        let kept = Rc::clone(&kept);
        let handler = move |message: Message<'_>| {
            message.from.unwrap().am_send(REPLY, message.header, Payload::None, None, Protocol::Auto).detach();
            if let Data::Rendezvous(rendezvous) = message.data {
                kept.borrow_mut().push(rendezvous);
            }
        };
        worker.on_message(REQUEST, handler).unwrap();
    });
}

fn over_each_fabric_with<F: Future<Output = ()>>(role: &'static str, test: impl Fn(Peer, forebay_ucx::Context) -> F) {
    over_each_fabric(|context| {
        let shared = context.resources().iter().any(|resource| resource.is_shared_memory());
        test(Peer::start(role, FABRICS[usize::from(shared)].1), context)
    });
}

#[test]
fn a_peer_killed_mid_transfer_ends_every_operation_and_all_memory_comes_back() {
    over_each_fabric_with("a_peer_that_echoes", |mut peer, context| async move {
        for round in 0..3 {
            let pool = pool(64);
            let registration = Registration::whole(&context, &pool).unwrap();
            let client = Driven::new(&context);
            let replies = Rc::new(Cell::new(0));
            let handler = {
                let (replies, pool, registration) = (Rc::clone(&replies), pool.clone(), registration.clone());
                move |message: Message<'_>| {
                    replies.set(replies.get() + 1);
                    if let Data::Rendezvous(rendezvous) = message.data {
                        let into = buffers(&pool, rendezvous.len());
                        let receiving = rendezvous.receive(into, Some(&registration));
                        tokio::task::spawn_local(async move { drop(receiving.await) });
                    }
                }
            };
            client.worker.on_message(REPLY, handler).unwrap();
            let endpoint = client.worker.connect(peer.address, None).unwrap();
            greet(&endpoint).await;
            let streams: Vec<_> = (0..DEPTH)
                .map(|number| {
                    let (endpoint, pool, registration) = (endpoint.clone(), pool.clone(), registration.clone());
                    // Made once: without optimisation it takes longer than all else together.
                    let bytes = pattern(number, FRAME_SIZE);
                    tokio::task::spawn_local(async move {
                        loop {
                            let payload = filled(buffers(&pool, FRAME_SIZE), &bytes);
                            let header = number.to_le_bytes();
                            let sent = endpoint
                                .am_send(REQUEST, &header, payload, Some(&registration), Protocol::Rendezvous)
                                .await;
                            if let Err(error) = sent {
                                return error;
                            }
                            // One at a time for each stream: the reply takes room too.
                            tokio::task::yield_now().await;
                        }
                    })
                })
                .collect();
            until("transfers are under way", || replies.get() > 20).await;
            peer.kill();
            let killed = Instant::now();
            let status = endpoint.failed().await;
            println!("round {round}: {status} after {:?}, {} operations left", killed.elapsed(), endpoint.operations());
            endpoint.close(true).await;
            for stream in streams {
                assert!(matches!(stream.await.unwrap(), Error::Ended(_) | Error::Closed));
            }
            until("all memory is back", || pool.used() == 0).await;
            assert_eq!(client.worker.operations(), 0);
            // A new peer can be connected to at once.
            let shared = context.resources().iter().any(|resource| resource.is_shared_memory());
            peer = Peer::start("a_peer_that_echoes", FABRICS[usize::from(shared)].1);
        }
    });
}

#[test]
fn a_peer_that_hangs_is_closed_by_force_and_all_memory_comes_back() {
    over_each_fabric_with("a_peer_that_keeps_what_it_is_offered", |peer, context| async move {
        let pool = pool(16);
        let client = Driven::new(&context);
        let replies = Rc::new(Cell::new(0));
        let counter = Rc::clone(&replies);
        client.worker.on_message(REPLY, move |_| counter.set(counter.get() + 1)).unwrap();
        let endpoint = client.worker.connect(peer.address, None).unwrap();
        greet(&endpoint).await;
        let send = |number: u64| {
            let payload = filled(buffers(&pool, FRAME_SIZE), &pattern(number, FRAME_SIZE));
            endpoint.am_send(REQUEST, &number.to_le_bytes(), payload, None, Protocol::Rendezvous)
        };
        let mut sending: Vec<_> = (0..DEPTH).map(send).collect();
        until("the peer has them all", || replies.get() == DEPTH).await;
        peer.hang();
        sending.extend((0..DEPTH).map(send));
        let flushed = tokio::time::timeout(Duration::from_millis(100), endpoint.flush()).await;
        println!("flush: {flushed:?}");
        assert_eq!(pool.used(), 2 * DEPTH * FRAME_SIZE as u64);
        let start = Instant::now();
        endpoint.close(true).await;
        println!("closed in {:?}", start.elapsed());
        for sending in sending {
            assert!(matches!(sending.await, Err(Error::Ended(_))));
        }
        assert_eq!((pool.used(), client.worker.operations()), (0, 0));
    });
}

#[test]
fn a_worker_dropped_with_everything_under_way_ends_it_all() {
    over_each_fabric_with("a_peer_that_keeps_what_it_is_offered", |peer, context| async move {
        let pool = pool(8);
        let client = Driven::new(&context);
        let endpoint = client.worker.connect(peer.address, None).unwrap();
        greet(&endpoint).await;
        for number in 0..DEPTH {
            let payload = filled(buffers(&pool, FRAME_SIZE), &pattern(number, FRAME_SIZE));
            endpoint.am_send(REQUEST, &number.to_le_bytes(), payload, None, Protocol::Rendezvous).detach();
        }
        drop(endpoint);
        drop(client);
        until("all memory is back", || pool.used() == 0).await;
        drop(peer);
    });
}
