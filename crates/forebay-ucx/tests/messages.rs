//! Listening, connecting, and active messages, within one process.

mod common;

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::*;
use forebay_memory::{FRAME_SIZE, Pool};
use forebay_types::ByteSize;
use forebay_ucx::{Context, Data, Error, Message, Payload, Protocol, Registration, SpansMut, Status, Version, Worker};
use smallvec::smallvec;

/// A message that is dropped.
const GARBAGE: u16 = 9;

/// A server and a client with workers of their own; the pools' memory must all come back.
async fn with_echo<F: Future<Output = ()>>(context: Context, registered: bool, test: impl FnOnce(Asker) -> F) {
    let pools = [pool(40), pool(40)];
    let registrations = pools.each_ref().map(|pool| registered.then(|| Registration::whole(&context, pool).unwrap()));
    let (server, client) = (Driven::new(&context), Driven::new(&context));
    echo(&server.worker, pools[0].clone(), registrations[0].clone());
    server.worker.on_message(GARBAGE, |_| {}).unwrap();
    let listener = server.worker.listen(LOOPBACK).unwrap();
    let address = listener.address();
    assert_ne!(address.port(), 0);
    let accepting = accept_everyone(listener);
    test(Asker::new(&client.worker, address, &pools[1], registrations[1].as_ref())).await;
    accepting.abort();
    assert!(client.worker.close(DEADLINE).await && server.worker.close(DEADLINE).await);
    until("all memory is back", || pools.iter().all(|pool| pool.used() == 0)).await;
}

#[test]
fn every_size_comes_back_byte_for_byte() {
    let sizes =
        [0, 1, 2, 7, 8, 63, 64, 100, 1000, 4096, 8191, 8192, 8193, 32768, 65536, 100_000, 1 << 20, 4 << 20, 8 << 20];
    for registered in [false, true] {
        over_each_fabric(|context| {
            with_echo(context, registered, |asker| async move {
                for (seed, size) in sizes.into_iter().enumerate() {
                    let bytes = pattern(seed as u64, size);
                    for (from_pool, protocol) in [
                        (true, Protocol::Auto),
                        (false, Protocol::Auto),
                        (true, Protocol::Rendezvous),
                        (false, Protocol::Eager),
                    ] {
                        let back = asker.ask(&bytes, from_pool, protocol).await;
                        assert!(back == bytes, "{size} bytes, {protocol:?}, from the pool: {from_pool}");
                    }
                }
            })
        });
    }
}

#[test]
fn many_messages_of_mixed_sizes_are_under_way_at_once() {
    over_each_fabric(|context| {
        with_echo(context, true, |asker| async move {
            let asker = Rc::new(asker);
            asker.ask(b"hello", false, Protocol::Auto).await;
            for round in 0..4 {
                let asked: Vec<_> = (0..128_u64)
                    .map(|number| {
                        let asker = Rc::clone(&asker);
                        tokio::task::spawn_local(async move {
                            let bytes = pattern(round << 32 | number, [16, 5000, 40_000, 300_000][number as usize % 4]);
                            assert!(asker.ask(&bytes, true, Protocol::Auto).await == bytes, "message {number}");
                        })
                    })
                    .collect();
                for asked in asked {
                    asked.await.unwrap();
                }
            }
            assert_eq!(asker.endpoint.operations(), 0);
        })
    });
}

#[test]
fn the_lanes_and_addresses_of_an_endpoint_are_known() {
    over_each_fabric(|context| {
        let shared = context.resources().iter().any(|resource| resource.is_shared_memory());
        with_echo(context, false, move |asker| async move {
            asker.ask(b"hello", false, Protocol::Auto).await;
            let lanes = asker.endpoint.lanes().unwrap();
            println!("{lanes:?}");
            assert!(has(&lanes, if shared { "sysv" } else { "tcp" }), "{lanes:?}");
            let (local, remote) = asker.endpoint.addresses().unwrap();
            assert!(local.is_some_and(|local| local.ip().is_loopback()) && remote.is_some());
        })
    });
}

#[test]
fn a_header_without_data_arrives_and_one_that_is_too_long_is_refused() {
    over_each_fabric(|context| {
        with_echo(context, false, |asker| async move {
            assert!(asker.ask(&[], false, Protocol::Auto).await.is_empty());
            let limit = asker.endpoint.worker().max_header();
            assert!(limit >= 128, "{limit}");
            let header = vec![0; limit + 1];
            let sent = asker.endpoint.am_send(REQUEST, &header, Payload::None, None, Protocol::Auto).await;
            assert_eq!(sent, Err(Error::HeaderTooLong { length: limit + 1, limit }));
        })
    });
}

/// A server whose handler counts, and does `what` with each message.
async fn with_handler<F: Future<Output = ()>>(
    context: Context,
    what: impl Fn(Message<'_>) + 'static,
    test: impl FnOnce(Worker, forebay_ucx::Endpoint, Rc<Cell<u32>>) -> F,
) {
    let (server, client) = (Driven::new(&context), Driven::new(&context));
    let count = Rc::new(Cell::new(0));
    let counter = Rc::clone(&count);
    let handler = move |message: Message<'_>| {
        counter.set(counter.get() + 1);
        what(message);
    };
    server.worker.on_message(REQUEST, handler).unwrap();
    assert_eq!(server.worker.on_message(REQUEST, |_| {}), Err(Error::HandlerTaken(REQUEST)));
    let listener = server.worker.listen(LOOPBACK).unwrap();
    let endpoint = client.worker.connect(listener.address(), None).unwrap();
    let accepting = accept_everyone(listener);
    be_polite(&server.worker);
    greet(&endpoint).await;
    test(server.worker.clone(), endpoint, count).await;
    accepting.abort();
    assert!(client.worker.close(DEADLINE).await && server.worker.close(DEADLINE).await);
}

fn unregistered(length: usize) -> Bytes {
    Bytes::from(pattern(1, length))
}

#[test]
fn long_data_before_the_first_answer_is_sent_or_refused_but_aborts_nothing() {
    over_each_fabric(|context| {
        let old = context.library().version() < Version { major: 1, minor: 16, patch: 0 };
        with_echo(context, false, move |asker| async move {
            let sent = |length| asker.endpoint.am_send(GARBAGE, b"", unregistered(length), None, Protocol::Auto);
            let early = [sent(4096).await, sent(300_000).await, sent(FRAME_SIZE).await];
            assert_eq!(early[0], Ok(()));
            for early in &early[1..] {
                let refused = matches!(early, Err(Error::TooEarly { limit: 4096, .. }));
                assert!(if old { refused } else { early.is_ok() }, "{early:?}");
            }
            asker.ask(b"hello", false, Protocol::Auto).await;
            assert_eq!(sent(FRAME_SIZE).await, Ok(()));
        })
    });
}

#[test]
fn data_that_nobody_wants_ends_the_senders_operation() {
    over_each_fabric(|context| {
        with_handler(
            context,
            |_: Message<'_>| {},
            |_, endpoint, count| async move {
                for protocol in [Protocol::Eager, Protocol::Rendezvous] {
                    endpoint.am_send(REQUEST, b"", unregistered(1 << 20), None, protocol).await.unwrap();
                }
                until("both came", || count.get() == 2).await;
            },
        )
    });
}

#[test]
fn data_may_be_received_or_declined_long_after_the_handler_returned() {
    let kept = Rc::new(Cell::new(None));
    over_each_fabric(|context| {
        let (keep, kept) = (Rc::clone(&kept), Rc::clone(&kept));
        let handler = move |message: Message<'_>| {
            let Data::Rendezvous(rendezvous) = message.data else { panic!("not a rendezvous") };
            keep.set(Some(rendezvous));
        };
        with_handler(context, handler, |_, endpoint, count| async move {
            let pool = pool(2);
            let data = unregistered(100_000);
            let sending = endpoint.am_send(REQUEST, b"", data.clone(), None, Protocol::Rendezvous);
            until("it came", || count.get() == 1).await;
            let into: SpansMut = smallvec![pool.try_alloc(FRAME_SIZE).unwrap()];
            let (spans, landed) = kept.take().unwrap().receive(into, None).await;
            assert_eq!(landed, Ok(data.len()));
            assert!(*spans[0] == data[..]);
            sending.await.unwrap();

            let sending = endpoint.am_send(REQUEST, b"", data.clone(), None, Protocol::Rendezvous);
            until("it came", || count.get() == 2).await;
            let into: SpansMut = smallvec![pool.try_alloc(1000).unwrap()];
            let (into, refused) = kept.take().unwrap().receive(into, None).await;
            assert_eq!(refused, Err(Error::BufferTooSmall { length: data.len(), room: 1000 }));
            assert_eq!(into.len(), 1);
            sending.await.unwrap();
        })
    });
}

#[test]
fn a_panic_in_a_handler_loses_its_message_only() {
    over_each_fabric(|context| {
        let handler = |message: Message<'_>| assert!(message.header.is_empty(), "a panic for the test");
        with_handler(context, handler, |_, endpoint, count| async move {
            endpoint.am_send(REQUEST, b"x", unregistered(10), None, Protocol::Eager).await.unwrap();
            endpoint.am_send(REQUEST, b"x", unregistered(1 << 20), None, Protocol::Rendezvous).await.unwrap();
            endpoint.am_send(REQUEST, b"", Payload::None, None, Protocol::Auto).await.unwrap();
            until("all came", || count.get() == 3).await;
        })
    });
}

#[test]
fn a_dropped_future_leaves_its_memory_with_the_operation() {
    let kept = Rc::new(Cell::new(None));
    over_each_fabric(|context| {
        let (keep, kept) = (Rc::clone(&kept), Rc::clone(&kept));
        let handler = move |message: Message<'_>| {
            if let Data::Rendezvous(rendezvous) = message.data {
                keep.set(Some(rendezvous));
            }
        };
        with_handler(context, handler, |_, endpoint, count| async move {
            let (sent, received) = (pool(1), pool(1));
            let bytes = pattern(9, FRAME_SIZE);
            let payload = filled(buffers(&sent, FRAME_SIZE), &bytes);
            drop(endpoint.am_send(REQUEST, b"", payload, None, Protocol::Rendezvous));
            until("it came", || count.get() == 1).await;
            assert_eq!(sent.used(), FRAME_SIZE as u64, "the peer has yet to read it");
            let receiving = kept.take().unwrap().receive(buffers(&received, FRAME_SIZE), None);
            let under_way = received.used();
            drop(receiving);
            until("both ended", || sent.used() == 0 && received.used() == 0).await;
            // Some transports end at once; where they did not, dropping freed nothing.
            println!("{under_way} bytes were held by the receiving operation");
        })
    });
}

#[test]
fn closing_with_operations_under_way_returns_every_buffer() {
    let kept = Rc::new(std::cell::RefCell::new(Vec::new()));
    over_each_fabric(|context| {
        let keep = Rc::clone(&kept);
        let handler = move |message: Message<'_>| {
            if let Data::Rendezvous(rendezvous) = message.data {
                keep.borrow_mut().push(rendezvous);
            }
        };
        let kept = Rc::clone(&kept);
        with_handler(context, handler, |_, endpoint, count| async move {
            let pool = pool(8);
            let sending: Vec<_> = (0..8)
                .map(|_| {
                    let payload = filled(buffers(&pool, FRAME_SIZE), &pattern(1, FRAME_SIZE));
                    endpoint.am_send(REQUEST, b"", payload, None, Protocol::Rendezvous)
                })
                .collect();
            until("some came", || count.get() >= 1).await;
            assert_eq!(endpoint.operations(), 8);
            endpoint.close(true).await;
            assert_eq!((endpoint.operations(), pool.used()), (0, 0));
            for sending in sending {
                assert!(matches!(sending.await, Err(Error::Ended(_))));
            }
            assert_eq!(endpoint.failed().await, Status::CANCELED);
            let late = endpoint.am_send(REQUEST, b"", Payload::None, None, Protocol::Auto).await;
            assert_eq!(late, Err(Error::Closed));
            // What was announced by an endpoint that is gone is declined in peace.
            kept.borrow_mut().clear();
        })
    });
}

#[test]
fn a_handler_may_close_the_endpoint_that_its_message_came_by() {
    over_each_fabric(|context| {
        let handler = |message: Message<'_>| {
            let endpoint = message.from.unwrap();
            tokio::task::spawn_local(async move { endpoint.close(true).await });
        };
        with_handler(context, handler, |_, endpoint, _| async move {
            endpoint.am_send(REQUEST, b"", Payload::None, None, Protocol::Auto).await.unwrap();
            println!("{}", endpoint.failed().await);
            let late = endpoint.am_send(REQUEST, b"", Payload::None, None, Protocol::Auto).await;
            assert!(matches!(late, Err(Error::Ended(_))), "{late:?}");
        })
    });
}

#[test]
fn a_connection_that_is_refused_or_that_nobody_takes_fails() {
    over_each_fabric(|context| async move {
        let (server, client) = (Driven::new(&context), Driven::new(&context));
        let listener = server.worker.listen(LOOPBACK).unwrap();
        let address = listener.address();
        let endpoint = client.worker.connect(address, None).unwrap();
        listener.accept().await.reject();
        assert_eq!(endpoint.failed().await, Status::REJECTED);
        drop((endpoint, listener));
        let endpoint = client.worker.connect(address, None).unwrap();
        let status = endpoint.failed().await;
        assert_ne!(status, Status::CANCELED);
        println!("nobody listens: {status}");
    });
}

#[test]
fn a_listener_restarts_on_its_port_and_a_busy_port_is_named() {
    over_each_fabric(|context| async move {
        let client = Driven::new(&context);
        let mut address = LOOPBACK;
        for round in 0..3 {
            let server = Driven::new(&context);
            server.worker.on_message(REQUEST, |_| {}).unwrap();
            let listener = server.worker.listen(address).unwrap();
            address = listener.address();
            let busy = server.worker.listen(address).unwrap_err();
            assert_eq!(busy, Error::PortBusy { address });
            let accepting = accept_everyone(listener);
            let endpoint = client.worker.connect(address, None).unwrap();
            endpoint.am_send(REQUEST, b"", Payload::None, None, Protocol::Auto).await.unwrap();
            endpoint.flush().await.unwrap_or_else(|error| panic!("round {round}: {error}"));
            // The server goes first, so that its side of the connection lingers.
            accepting.abort();
            assert!(accepting.await.unwrap_err().is_cancelled());
            assert!(server.worker.close(DEADLINE).await);
            drop(server);
            endpoint.close(true).await;
        }
    });
}

#[test]
fn a_worker_that_has_nothing_to_do_sleeps() {
    over_each_fabric(|context| {
        with_echo(context, false, |asker| async move {
            asker.ask(b"wake up", false, Protocol::Auto).await;
            let processor_time = || {
                let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
            };
            let (wall, processor) = (Instant::now(), processor_time());
            tokio::time::sleep(Duration::from_millis(500)).await;
            let share = (processor_time() - processor).as_secs_f64() / wall.elapsed().as_secs_f64();
            assert!(share < 0.1, "idle workers take {:.0} % of a processor", share * 100.0);
            asker.ask(b"again", false, Protocol::Auto).await;
        })
    });
}

#[test]
fn a_registration_grows_and_says_what_it_covers() {
    let Some(library) = library() else { return };
    let context = context(library, &["tcp", "sysv"]);
    let pool: Pool = pool(8);
    let part = ByteSize::mib(8);
    let registration = Registration::growing(&context, &pool, part);
    let span = pool.try_alloc(FRAME_SIZE).unwrap();
    assert!(!registration.covers(&span));
    registration.grow_to(ByteSize::mib(9)).unwrap();
    assert_eq!(registration.size(), ByteSize::mib(16));
    assert!(registration.covers(&span) && registration.covers(&span[10..20]));
    let others: Vec<_> = std::iter::from_fn(|| pool.try_alloc(FRAME_SIZE)).collect();
    assert_eq!(others.iter().filter(|span| registration.covers(span)).count(), 3);
    registration.grow_to(ByteSize::gib(1)).unwrap();
    assert_eq!(registration.size(), pool.capacity());
    assert!(others.iter().all(|span| registration.covers(span)) && !registration.covers(&[0; 16]));
    let other = Worker::new(&self::context(library, &["tcp"])).unwrap();
    let endpoint = other.connect(([127, 0, 0, 1], 9).into(), None).unwrap();
    let sent = endpoint.am_send(REQUEST, b"", span.freeze(), Some(&registration), Protocol::Auto);
    drop(sent);
}

#[test]
fn parts_are_registered_here_and_there_and_their_memory_stays_mapped_until_the_context_has_ended() {
    let Some(library) = library() else { return };
    let context = context(library, &["tcp", "sysv"]);
    let pool: Pool = pool(3);
    let registration = Registration::growing(&context, &pool, ByteSize::mib(4));
    let frames: Vec<_> = std::iter::from_fn(|| pool.try_alloc(FRAME_SIZE)).collect();
    let parts: Vec<_> = frames.iter().map(|frame| registration.part_of(frame)).collect();
    assert_eq!((parts.len(), registration.parts()), (3, 3));
    assert_eq!(registration.part_of(&[0; 16]), None);
    registration.add(parts[2].unwrap()).unwrap();
    registration.add(parts[2].unwrap()).unwrap();
    registration.add(7).unwrap();
    let covered: Vec<_> = frames.iter().map(|frame| registration.covers(frame)).collect();
    assert_eq!((covered, registration.size()), (vec![false, false, true], ByteSize::mib(4)));
    registration.grow_to(ByteSize::mib(5)).unwrap();
    assert_eq!(registration.size(), pool.capacity(), "what was registered before is not again");

    let (base, _) = pool.mapping();
    let is_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let mut ranges = maps.lines().filter_map(|line| line.split_once(' ')?.0.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        ranges.any(|(start, end)| (number(start)..number(end)).contains(&base.as_ptr().addr()))
    };
    drop((frames, pool, registration));
    assert!(is_mapped(), "the card may still write to it");
    drop(context);
    assert!(!is_mapped());
}

#[test]
fn messages_that_nobody_asked_for_are_dropped() {
    over_each_fabric(|context| async move {
        const ASKED: u16 = 9;
        let server = Driven::new(&context);
        be_polite(&server.worker);
        let heard = Rc::new(Cell::new(0));
        let counter = Rc::clone(&heard);
        server.worker.on_message(ASKED, move |_| counter.set(counter.get() + 1)).unwrap();
        let listener = server.worker.listen(LOOPBACK).unwrap();
        let address = listener.address();
        let accepting = accept_everyone(listener);
        let client = Driven::new(&context);
        let pool = pool(8);
        let endpoint = client.worker.connect(address, None).unwrap();
        greet(&endpoint).await;
        for id in (0..300).chain([1000, u16::MAX]).filter(|id| *id != ASKED) {
            // Those of the greeting have handlers.
            if id == 3 || id == 4 {
                continue;
            }
            endpoint.am_send(id, b"header", Payload::None, None, Protocol::Auto).detach();
            let short = filled(buffers(&pool, 100), &pattern(1, 100));
            endpoint.am_send(id, b"header", short, None, Protocol::Eager).await.unwrap();
            let long = filled(buffers(&pool, 100_000), &pattern(1, 100_000));
            // Beyond the table UCX answers that there is no such number.
            let _ = endpoint.am_send(id, b"header", long, None, Protocol::Rendezvous).await;
        }
        endpoint.am_send(ASKED, b"", Payload::None, None, Protocol::Auto).await.unwrap();
        until("the message that was asked for", || heard.get() == 1).await;
        until("all memory is back", || pool.used() == 0).await;
        assert!(matches!(server.worker.on_message(ASKED, |_| {}), Err(Error::HandlerTaken(ASKED))));
        assert!(server.worker.on_message(ASKED - 1, |_| {}).is_ok());
        assert!(matches!(server.worker.on_message(64, |_| {}), Err(Error::MessageNumber { id: 64, .. })));
        endpoint.close(true).await;
        accepting.abort();
    });
}
