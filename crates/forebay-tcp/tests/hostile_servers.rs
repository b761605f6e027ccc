//! What a client makes of a server that is silent, wrong, gone, or too busy.

mod common;

use std::time::{Duration, Instant};

use common::*;
use forebay_tcp::ClientOptions;
use forebay_transport::conformance::{Behaviour, Scripted, pool, read, until, within};
use forebay_transport::wire::{CONNECTION_ID, Hello, ReplyHeader};
use forebay_transport::{CallError, LinkError, Provenance, Transport};
use forebay_types::FailureKind;
use tokio::io::AsyncWriteExt;

/// The test may take its time to say hello.
fn quick() -> ClientOptions {
    ClientOptions {
        connect_timeout: LONG,
        keepalive: Duration::from_millis(200),
        dead_after: Duration::from_millis(600),
        ..client_options()
    }
}

fn reply(id: u64) -> ReplyHeader {
    ReplyHeader { id, failure: None, body_len: 0, payload_len: 0, provenance: Provenance::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_accepts_and_never_answers_costs_the_connect_timeout() {
    // The kernel accepts for a process that is stopped.
    let (_listener, address) = listener().await;
    let link = link(address, ClientOptions { connect_timeout: Duration::from_millis(300), ..quick() });
    let start = Instant::now();
    let result = call(&link, read(Behaviour::AtOnce, 0, 0, 10, LONG)).await;
    assert!(matches!(result, Err(CallError::Link(LinkError::Connect { .. }))), "{result:?}");
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_falls_silent_costs_its_calls_dead_after_and_not_their_deadline() {
    let (listener, address) = listener().await;
    let link = link(address, quick());
    let memory = pool(1);
    let start = Instant::now();
    let call = tokio::spawn({
        let (link, into) = (link.clone(), memory.try_alloc(10));
        async move { link.call(read(Behaviour::AtOnce, 0, 0, 10, LONG), into).await }
    });
    let (mut stream, _) = accept_request(&listener).await;
    let result = within("the call", call).await.unwrap();
    assert!(matches!(&result, Err(CallError::Link(LinkError::Lost { .. }))), "{result:?}");
    assert!((Duration::from_millis(600)..Duration::from_secs(30)).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert_eq!(memory.used(), 0);
    // It was asked whether it lives.
    let mut asked = [0; 64];
    within("a ping", tokio::io::AsyncReadExt::read_exact(&mut stream, &mut asked)).await.unwrap();
    assert_eq!(asked[2], forebay_transport::Op::Ping as u8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_service_is_not_taken_for_a_dead_peer() {
    let service = Scripted::new();
    let server = serve(server_options(), service.clone());
    // The server's threads may be without a processor for a while.
    let dead_after = Duration::from_secs(5);
    let link = link(server.local_addr(), ClientOptions { dead_after, ..quick() });
    let waiting = tokio::spawn({
        let link = link.clone();
        async move { call(&link, read(Behaviour::Gated, 0, 0, 10, LONG)).await }
    });
    tokio::time::sleep(dead_after * 3 / 2).await;
    service.open(1);
    assert!(within("the call", waiting).await.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_one_of_ours_is_refused_by_name() {
    for (hello, words) in [
        (Hello { cluster: "elsewhere".into(), ..Hello::ours(CLUSTER, BLOCK_SIZE) }.encode(), "elsewhere"),
        (Hello { protocol: 99, version: "7.7.7".into(), ..Hello::ours(CLUSTER, BLOCK_SIZE) }.encode(), "7.7.7"),
        (Hello::ours(CLUSTER, BLOCK_SIZE / 4).encode(), "`block.size` is 1MiB, ours is 4MiB"),
        (Hello::ours(CLUSTER, 0).encode(), "`block.size`"),
        ([b'H'; 128], "does not speak Forebay"),
    ] {
        let (listener, address) = listener().await;
        let link = link(address, quick());
        let (result, _stream) = tokio::join!(call(&link, read(Behaviour::AtOnce, 0, 0, 10, LONG)), async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(&hello).await.unwrap();
            stream
        });
        let Err(CallError::Link(error @ LinkError::Refused { .. })) = result else { panic!("{result:?}") };
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_that_the_protocol_does_not_allow_end_the_connection() {
    let mut damaged = reply(1).encode();
    damaged[30] ^= 1;
    let failed = Some(FailureKind::NotFound);
    let wrong = [
        damaged,
        reply(77).encode(),
        ReplyHeader { payload_len: 11, ..reply(1) }.encode(),
        ReplyHeader { payload_len: 10, failure: failed, ..reply(1) }.encode(),
        ReplyHeader { payload_len: 10, ..reply(CONNECTION_ID) }.encode(),
        ReplyHeader { body_len: 1 << 20, ..reply(CONNECTION_ID) }.encode(),
    ];
    for header in wrong {
        let (listener, address) = listener().await;
        let link = link(address, ClientOptions { dead_after: LONG, ..quick() });
        let memory = pool(1);
        let (result, _stream) =
            tokio::join!(link.call(read(Behaviour::AtOnce, 0, 0, 10, LONG), memory.try_alloc(10)), async {
                let (mut stream, request) = accept_request(&listener).await;
                assert_eq!(request.id, 1);
                stream.write_all(&header).await.unwrap();
                stream.write_all(&[1; 200]).await.unwrap();
                stream
            });
        assert!(matches!(&result, Err(CallError::Link(LinkError::Protocol { .. }))), "{result:?}");
        assert_eq!(memory.used(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_within_a_payload_is_lost_and_the_next_call_makes_another() {
    let (listener, address) = listener().await;
    let link = link(address, ClientOptions { dead_after: LONG, ..quick() });
    let memory = pool(1);
    for _ in 0..2 {
        let (result, ()) =
            tokio::join!(link.call(read(Behaviour::AtOnce, 0, 0, 10, LONG), memory.try_alloc(10)), async {
                let (mut stream, request) = accept_request(&listener).await;
                stream.write_all(&ReplyHeader { payload_len: 10, ..reply(request.id) }.encode()).await.unwrap();
                stream.write_all(&[1; 9]).await.unwrap();
            });
        assert!(matches!(&result, Err(CallError::Link(LinkError::Lost { .. }))), "{result:?}");
        assert_eq!(memory.used(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_too_many_calls_that_were_given_up_retires() {
    let service = Scripted::new();
    let server = serve(server_options(), service.clone());
    let options = ClientOptions { connections: 1, max_abandoned: 3, ..client_options() };
    let link = link(server.local_addr(), options);
    let memory = pool(1);
    let staying = tokio::spawn({
        let link = link.clone();
        async move { call(&link, read(Behaviour::Gated, 0, 0, 10, LONG)).await }
    });
    until("the call that stays", || service.started() == 1).await;
    for given_up in 1..=4 {
        let call = link.call(read(Behaviour::Never, 0, 0, 10, LONG), memory.try_alloc(10));
        // Only what the server has received counts as given up: a call that was never sent leaves nothing behind.
        tokio::select! {
            biased;
            reply = call => panic!("a reply to a call that is never answered: {reply:?}"),
            () = until("the call reaches the service", || service.started() == 1 + given_up) => {}
        }
    }
    assert_eq!(memory.used(), 0, "nothing is on its way to their buffers");
    // New calls take another connection, and the old one lives as long as a caller waits on it.
    assert_serves(&link).await;
    assert_eq!(server.connections(), 2);
    service.open(1);
    assert!(within("the call that stayed", staying).await.unwrap().is_ok());
    until("the old connection ends", || server.connections() == 1).await;
    assert_serves(&link).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_made_from_the_address_that_was_configured() {
    let (listener, address) = listener().await;
    let options = ClientOptions { bind: Some([127, 0, 0, 9].into()), ..quick() };
    let link = link(address, options);
    let (result, ()) = tokio::join!(call(&link, read(Behaviour::AtOnce, 0, 0, 10, LONG)), async {
        let (_, peer) = listener.accept().await.unwrap();
        assert_eq!(peer.ip(), std::net::IpAddr::from([127, 0, 0, 9]));
    });
    assert!(result.is_err());
}

#[test]
fn calls_fail_when_the_runtime_that_their_connection_lives_in_goes_away() {
    let server_side = tokio::runtime::Runtime::new().unwrap();
    let service = Scripted::new();
    let server = server_side.block_on(async { serve(server_options(), service.clone()) });
    let first = tokio::runtime::Runtime::new().unwrap();
    let link = link(server.local_addr(), ClientOptions { connections: 1, ..client_options() });
    first.block_on(assert_serves(&link));
    let second = tokio::runtime::Runtime::new().unwrap();
    let (link_again, memory) = (link.clone(), pool(1));
    let into = memory.try_alloc(10);
    let call = second.spawn(async move { link_again.call(read(Behaviour::Never, 0, 0, 10, LONG), into).await });
    second.block_on(until("the call reaches the service", || service.started() == 2));
    first.shutdown_timeout(Duration::from_secs(5));
    let result = second.block_on(within("the call", call)).unwrap();
    assert!(matches!(&result, Err(CallError::Link(LinkError::Lost { .. }))), "{result:?}");
    second.block_on(assert_serves(&link));
}
