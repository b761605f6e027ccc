//! Bounds: on connections, on requests in flight; and files as payload.

mod common;

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use common::*;
use forebay_tcp::{ClientOptions, ServerOptions, TcpError, TcpServer};
use forebay_transport::conformance::{Behaviour, Scripted, payload_of, read, until, within};
use forebay_transport::wire::CONNECTION_ID;
use forebay_transport::{
    CallError, FileSlice, LinkError, Provenance, Request, Response, ResponsePayload, Service, Transport,
};
use forebay_types::Failure;

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_is_named_together_with_what_to_do() {
    let server = serve(server_options(), Scripted::new());
    let options = ServerOptions { address: server.local_addr(), ..server_options() };
    let Err(error) = TcpServer::bind(options, Scripted::new()) else { panic!("two servers on one port") };
    assert!(matches!(error, TcpError::AddressInUse { .. }));
    let (text, port) = (error.to_string(), server.local_addr().port().to_string());
    assert!(text.contains(&port) && text.contains("in use") && text.contains("ss -ltnp"), "{text}");
    let elsewhere = ServerOptions { address: ([192, 0, 2, 1], 0).into(), ..server_options() };
    assert!(matches!(TcpServer::bind(elsewhere, Scripted::new()), Err(TcpError::Listen { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_can_have_its_port_again_at_once_after_a_restart() {
    let mut server = serve(server_options(), Scripted::new());
    let link = link(server.local_addr(), client_options());
    for _ in 0..5 {
        assert_serves(&link).await;
        let address = server.local_addr();
        server.close().await;
        server = serve(ServerOptions { address, ..server_options() }, Scripted::new());
        // A call that meets the old connection's end is told so; the one after it is served.
        let _ = call(&link, read(Behaviour::AtOnce, 0, 0, 10, LONG)).await;
    }
    assert_serves(&link).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_connections_are_served() {
    raise_open_files();
    let server = serve(server_options(), Scripted::new());
    let mut streams = Vec::new();
    for _ in 0..1000 {
        streams.push(raw(server.local_addr()).await);
    }
    until("all are connected", || server.connections() == 1000).await;
    for (id, stream) in streams.iter_mut().enumerate() {
        send(stream, id as u64 + 1, &read(Behaviour::Later, 1, 0, 100, LONG)).await;
    }
    for (id, stream) in streams.iter_mut().enumerate() {
        let (header, _, payload) = receive(stream).await.unwrap();
        assert_eq!((header.id, payload.len()), (id as u64 + 1, 100));
    }
    within("close", server.close()).await;
    assert_eq!(server.connections(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_over_the_limit_is_told_so_and_those_within_it_serve_its_calls() {
    let service = Scripted::new();
    let server = serve(ServerOptions { max_connections: 2, ..server_options() }, service.clone());
    let first = link(server.local_addr(), ClientOptions { connections: 4, ..client_options() });
    // Each call that waits makes the next one want another connection.
    let waiting: Vec<_> = (0..6)
        .map(|index| {
            let first = first.clone();
            tokio::spawn(async move { call(&first, read(Behaviour::Gated, index, 0, 10, LONG)).await })
        })
        .collect();
    until("its calls are served by the two", || service.started() == 6).await;
    assert_eq!(server.connections(), 2);
    let second = link(server.local_addr(), client_options());
    let result = call(&second, read(Behaviour::AtOnce, 0, 0, 10, LONG)).await;
    let Err(CallError::Link(LinkError::Refused { reason, .. })) = result else { panic!("{result:?}") };
    assert!(reason.contains("has its 2 connections"), "{reason}");
    service.open(6);
    for call in waiting {
        assert!(within("a call", call).await.unwrap().is_ok());
    }
    first.close().await;
    until("the first is gone", || server.connections() == 0).await;
    assert_serves(&second).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_over_a_connections_limit_wait_and_their_client_knows_that_the_server_lives() {
    let service = Scripted::new();
    let options =
        ServerOptions { max_requests_per_connection: 4, keepalive: Duration::from_millis(50), ..server_options() };
    let server = serve(options, service.clone());
    let mut stream = raw(server.local_addr()).await;
    for id in 1..=10 {
        send(&mut stream, id, &read(Behaviour::Gated, id, 0, 10, LONG)).await;
    }
    for _ in 0..3 {
        assert_eq!(receive(&mut stream).await.unwrap().0.id, CONNECTION_ID);
    }
    until("as many as may have begun", || service.started() >= 4).await;
    assert_eq!(service.started(), 4);
    service.open(10);
    let mut answered = 0;
    while answered < 10 {
        answered += usize::from(receive(&mut stream).await.unwrap().0.id != CONNECTION_ID);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_arrived_together_are_answered_one_after_the_other_where_only_one_is_allowed() {
    let service = Scripted::new();
    let hello_timeout = LONG;
    let options = ServerOptions { max_requests_per_connection: 1, hello_timeout, ..server_options() };
    let server = serve(options, service.clone());
    let mut stream = raw(server.local_addr()).await;
    for id in 1..=10 {
        send(&mut stream, id, &read(Behaviour::Gated, id, 0, 10, LONG)).await;
    }
    until("the first has begun", || service.started() == 1).await;
    service.open(10);
    let answers = async {
        for id in 1..=10 {
            assert_eq!(receive(&mut stream).await.unwrap().0.id, id);
        }
    };
    // Less than the time after which a connection that does not get on is closed.
    tokio::time::timeout(hello_timeout / 2, answers).await.expect("all are answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_over_the_limit_of_all_connections_wait_and_no_connection_is_taken_for_dead() {
    let service = Scripted::new();
    let keepalive = Duration::from_millis(100);
    let server = serve(ServerOptions { max_requests: 5, keepalive, ..server_options() }, service.clone());
    // The server's threads may be without a processor for a while.
    let dead_after = Duration::from_secs(5);
    let options = ClientOptions { keepalive, dead_after, ..client_options() };
    let links: Vec<_> = (0..3).map(|_| link(server.local_addr(), options.clone())).collect();
    let waiting: Vec<_> = (0..60)
        .map(|index| {
            let link = links[index % 3].clone();
            tokio::spawn(async move { call(&link, read(Behaviour::Gated, index as u64, 0, 10, LONG)).await })
        })
        .collect();
    until("the limit is reached", || service.started() == 5).await;
    tokio::time::sleep(dead_after * 3 / 2).await;
    assert_eq!(service.started(), 5);
    service.open(60);
    for call in waiting {
        let result = within("a call", call).await.unwrap();
        assert!(result.is_ok(), "{result:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_with_more_to_ask_does_not_keep_its_places_from_one_that_waits_for_them() {
    let service = Scripted::new();
    let options = ServerOptions {
        max_requests: 2,
        max_requests_per_connection: 2,
        keepalive: Duration::from_millis(50),
        ..server_options()
    };
    let server = serve(options, service.clone());
    let mut busy = raw(server.local_addr()).await;
    for id in 1..=6 {
        send(&mut busy, id, &read(Behaviour::Gated, id, 0, 10, LONG)).await;
    }
    until("it has all places", || service.started() == 2).await;
    let mut waiting = raw(server.local_addr()).await;
    send(&mut waiting, 1, &read(Behaviour::AtOnce, 1, 0, 10, LONG)).await;
    let told = within("a sign of life", receive(&mut waiting)).await.unwrap().0;
    assert_eq!(told.id, CONNECTION_ID, "it waits for a place");
    service.open(1);
    let answered = async { while receive(&mut waiting).await.unwrap().0.id == CONNECTION_ID {} };
    within("the place that became free", answered).await;
    service.open(5);
}

#[tokio::test(flavor = "multi_thread")]
async fn places_that_a_connection_keeps_for_later_leave_half_of_all_to_the_others() {
    let service = Scripted::new();
    let server = serve(ServerOptions { max_requests: 8, ..server_options() }, service.clone());
    let mut first = raw(server.local_addr()).await;
    for id in 1..=6 {
        send(&mut first, id, &read(Behaviour::Gated, id, 0, 10, LONG)).await;
    }
    until("they have begun", || service.started() == 6).await;
    service.open(5);
    for _ in 0..5 {
        assert_ne!(receive(&mut first).await.unwrap().0.id, CONNECTION_ID);
    }
    let mut second = raw(server.local_addr()).await;
    for id in 1..=5 {
        send(&mut second, id, &read(Behaviour::Gated, id, 0, 10, LONG)).await;
    }
    until("all have a place", || service.started() == 6 + 5).await;
    service.open(6);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_calls_than_a_client_may_have_under_way_wait_for_their_turn() {
    let service = Scripted::new();
    let server = serve(server_options(), service.clone());
    let link = link(server.local_addr(), ClientOptions { max_outstanding: 3, ..client_options() });
    let waiting: Vec<_> = (0..9)
        .map(|index| {
            let link = link.clone();
            tokio::spawn(async move { call(&link, read(Behaviour::Gated, index, 0, 10, LONG)).await })
        })
        .collect();
    until("some reach the service", || service.started() == 3).await;
    let brief = read(Behaviour::AtOnce, 0, 0, 10, Duration::from_millis(50));
    assert!(matches!(call(&link, brief).await, Err(CallError::Link(LinkError::TimedOut { .. }))));
    service.open(9);
    for call in waiting {
        assert!(within("a call", call).await.unwrap().is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_without_room_for_it_is_refused() {
    let server = serve(server_options(), Scripted::new());
    let link = link(server.local_addr(), client_options());
    let small = forebay_transport::conformance::pool(1).try_alloc(10);
    for into in [None, small] {
        let result = link.call(read(Behaviour::AtOnce, 0, 0, 11, LONG), into).await;
        assert!(matches!(&result, Err(CallError::Service(_))), "{result:?}");
    }
    assert_serves(&link).await;
}

/// Serves a file of bytes that repeat every 251.
struct Filed {
    file: Arc<std::fs::File>,
    /// What it says that the file has.
    length: u32,
}

#[async_trait::async_trait]
impl Service for Filed {
    async fn handle(&self, request: Request, takes_files: bool) -> Result<Response, Failure> {
        assert!(takes_files);
        let length = request.length.min(self.length - request.offset);
        let slice = FileSlice { file: self.file.clone(), offset: request.offset.into(), length, pin: Box::new(()) };
        let payload = ResponsePayload::File(slice);
        Ok(Response { provenance: Provenance::default(), body: Bytes::from_static(b"body"), payload })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bytes_of_a_file_arrive_and_a_file_that_is_too_short_ends_the_connection() {
    const LENGTH: u32 = 5 << 20;
    let mut file = tempfile::tempfile().unwrap();
    let bytes: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
    file.write_all(&bytes).unwrap();
    let service = Arc::new(Filed { file: Arc::new(file), length: LENGTH + 100 });
    let server = serve(ServerOptions { takes_files: true, ..server_options() }, service);
    let link = link(server.local_addr(), ClientOptions { connections: 1, ..client_options() });
    let reads = [(0, 1), (0, 0), (7, 4096), (1, 4 << 20), (1 << 20, 4 << 20), (LENGTH - 1, 1), (12_345, 300_000)];
    let calls = reads.map(|(offset, length)| {
        let link = link.clone();
        tokio::spawn(async move { call(&link, read(Behaviour::Later, 0, offset, length, LONG)).await })
    });
    for (call, (offset, length)) in calls.into_iter().zip(reads) {
        let reply = within("a call", call).await.unwrap().unwrap();
        assert_eq!(&reply.body[..], b"body");
        assert!(payload_of(&reply) == bytes[offset as usize..][..length as usize], "{length} at {offset}");
    }
    let result = call(&link, read(Behaviour::Later, 0, LENGTH - 50, 100, LONG)).await;
    assert!(matches!(&result, Err(CallError::Link(LinkError::Lost { .. }))), "{result:?}");
    let reply = call(&link, read(Behaviour::Later, 0, 0, 100, LONG)).await.unwrap();
    assert_eq!(payload_of(&reply), &bytes[..100]);
}
