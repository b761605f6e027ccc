//! Large bodies: their memory is bounded, and they do not hold up other requests.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use common::*;
use forebay_tcp::{ClientOptions, ServerOptions};
use forebay_transport::conformance::{Behaviour, Scripted, digest, read, until, within};
use forebay_transport::wire::{CONNECTION_ID, MAX_REQUEST_BODY, MAX_UPLOAD_BODY, RequestHeader};
use forebay_transport::{CallError, LinkError, Op, Request, Response, Service, Transport};
use forebay_types::{ByteSize, Failure, FailureKind};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// Holds uploads until it is told to let them go, and adds up how many bytes of them it holds. Reads are [`Scripted`]'s.
struct Holding {
    gate: Semaphore,
    uploads: AtomicUsize,
    held: AtomicUsize,
    most: AtomicUsize,
    reads: Arc<Scripted>,
}

impl Holding {
    fn new() -> Arc<Self> {
        let count = || AtomicUsize::new(0);
        let (uploads, held, most) = (count(), count(), count());
        Arc::new(Self { gate: Semaphore::new(0), uploads, held, most, reads: Scripted::new() })
    }

    fn uploads(&self) -> usize {
        self.uploads.load(Ordering::SeqCst)
    }
}

#[async_trait::async_trait]
impl Service for Holding {
    fn try_handle(&self, request: &Request) -> Option<Response> {
        self.reads.try_handle(request)
    }

    async fn handle(&self, request: Request, takes_files: bool) -> Result<Response, Failure> {
        if request.op != Op::Upload {
            return self.reads.handle(request, takes_files).await;
        }
        let length = request.body_len();
        let held = self.held.fetch_add(length, Ordering::SeqCst) + length;
        self.most.fetch_max(held, Ordering::SeqCst);
        self.uploads.fetch_add(1, Ordering::SeqCst);
        self.gate.acquire().await.unwrap().forget();
        self.held.fetch_sub(length, Ordering::SeqCst);
        Ok(Response::of_body(digest(&request.body)))
    }
}

fn bytes(length: usize) -> Bytes {
    (0..length).map(|at| (at ^ (at >> 9)) as u8).collect::<Vec<_>>().into()
}

fn upload(body: &Bytes) -> Request {
    Request::on_path(Op::Upload, body.clone(), LONG)
}

/// The next answer, which request it is to, and how often the server said before that it lives.
async fn answer(stream: &mut TcpStream) -> (u64, Vec<u8>, u32) {
    let mut signs_of_life = 0;
    loop {
        let (header, body, _) = receive(stream).await.unwrap();
        match header.id {
            CONNECTION_ID => signs_of_life += 1,
            id => return (id, body, signs_of_life),
        }
    }
}

/// As little memory for large bodies as there can be.
fn small_server() -> ServerOptions {
    ServerOptions { body_memory: ByteSize::bytes(0), keepalive: Duration::from_millis(100), ..server_options() }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_stay_within_their_memory_and_those_who_wait_delay_nobody_and_are_not_taken_for_dead() {
    let service = Holding::new();
    let server = serve(small_server(), service.clone());
    let keepalive = Duration::from_millis(200);
    // The server's threads may be without a processor for a while.
    let dead_after = Duration::from_secs(5);
    let options = ClientOptions { keepalive, dead_after, ..client_options() };
    let links: Vec<_> = (0..2).map(|_| link(server.local_addr(), options.clone())).collect();
    let body = bytes(30 << 20);
    let uploads: Vec<_> = (0..8)
        .map(|number| {
            let (link, body) = (links[number % 2].clone(), body.clone());
            tokio::spawn(async move { link.call(upload(&body), None).await })
        })
        .collect();
    until("two uploads reach the service", || service.uploads() == 2).await;
    // Longer than a silent peer is believed to live.
    let end = tokio::time::Instant::now() + dead_after * 3 / 2;
    while tokio::time::Instant::now() < end {
        for link in &links {
            assert_serves(link).await;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(service.uploads(), 2, "there is memory for two");
    let small = links[0].call(upload(&bytes(MAX_REQUEST_BODY as usize)), None);
    service.gate.add_permits(9);
    assert!(within("a small upload", small).await.is_ok(), "what is small does not wait for memory");
    let expected = digest(&body);
    for upload in uploads {
        assert!(within("an upload", upload).await.unwrap().unwrap().body == expected);
    }
    assert!(service.most.load(Ordering::SeqCst) <= (MAX_UPLOAD_BODY + MAX_REQUEST_BODY) as usize);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_does_not_get_on_with_a_large_body_loses_the_memory_that_it_has() {
    let service = Holding::new();
    service.gate.add_permits(2);
    // Those who do get on have to be in time, too, and on a busy machine.
    let hello_timeout = Duration::from_secs(3);
    let server = serve(ServerOptions { hello_timeout, ..small_server() }, service.clone());
    let header = RequestHeader { body_len: MAX_UPLOAD_BODY, ..RequestHeader::of(1, &upload(&Bytes::new())) };
    let mut silent = raw(server.local_addr()).await;
    silent.write_all(&header.encode()).await.unwrap();
    let link = link(server.local_addr(), client_options());
    let body = bytes(1 << 20);
    assert!(within("the first upload", link.call(upload(&body), None)).await.is_ok());
    wait_for_close(&mut silent).await;

    let mut trickling = raw(server.local_addr()).await;
    trickling.write_all(&header.encode()).await.unwrap();
    let trickle = async {
        // Some bytes come all the time, and would for hours.
        while trickling.write_all(&[7; 1000]).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within("the peer that trickles is closed", trickle).await;
    assert!(within("the second upload", link.call(upload(&body), None)).await.is_ok());
    assert_eq!(service.uploads(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_body_may_take_longer_than_a_message_as_long_as_it_gets_on() {
    let service = Holding::new();
    service.gate.add_permits(1);
    let hello_timeout = Duration::from_secs(3);
    let server = serve(ServerOptions { hello_timeout, ..small_server() }, service.clone());
    let mut stream = raw(server.local_addr()).await;
    let body = bytes(5 << 20);
    stream.write_all(&RequestHeader::of(1, &upload(&body)).encode()).await.unwrap();
    for piece in body.chunks(256 << 10) {
        tokio::time::sleep(Duration::from_millis(200)).await;
        stream.write_all(piece).await.unwrap();
    }
    let (_, answer, signs_of_life) = answer(&mut stream).await;
    assert!(answer == digest(&body));
    assert!(signs_of_life > 0, "a client must know meanwhile that its server lives");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_closes_and_a_client_leaves_while_bodies_wait_for_memory() {
    let service = Holding::new();
    let server = serve(small_server(), service.clone());
    let link = link(server.local_addr(), client_options());
    let body = bytes(40 << 20);
    let mut uploads: Vec<_> = (0..4)
        .map(|_| {
            let (link, body) = (link.clone(), body.clone());
            tokio::spawn(async move { link.call(upload(&body), None).await })
        })
        .collect();
    until("one upload reaches the service", || service.uploads() == 1).await;
    uploads.pop().unwrap().abort();
    assert_serves(&link).await;
    within("close", server.close()).await;
    for upload in uploads {
        let result = within("an upload", upload).await.unwrap();
        // On a busy machine, one may still be connecting when the server closes.
        let failed = matches!(&result, Err(CallError::Link(LinkError::Lost { .. } | LinkError::Connect { .. })));
        assert!(failed, "{result:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_over_the_limit_is_not_sent() {
    let server = serve(server_options(), Scripted::new());
    let link = link(server.local_addr(), client_options());
    let result = link.call(upload(&bytes(MAX_UPLOAD_BODY as usize + 1)), None).await;
    let Err(CallError::Service(failure)) = result else { panic!("{result:?}") };
    assert_eq!(failure.kind(), FailureKind::InvalidArgument);
    assert_serves(&link).await;
}

/// Memory that can be seen to go.
struct Counted(Vec<u8>, #[expect(dead_code, reason = "it is counted")] Arc<()>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_which_nothing_was_sent_goes_with_its_caller() {
    let (listener, address) = listener().await;
    let link = link(address, ClientOptions { connections: 1, ..client_options() });
    let call = |count: &Arc<()>| {
        let mut request = Request::on_path(Op::Upload, Bytes::from_static(b"head"), LONG);
        request.tail = Bytes::from_owner(Counted(vec![1; 16 << 20], Arc::clone(count)));
        let link = link.clone();
        tokio::spawn(async move { link.call(request, None).await })
    };
    let (first, second) = (Arc::new(()), Arc::new(()));
    let begun = call(&first);
    // The server takes no more than the first header: the rest fills the sockets.
    let (_stream, _) = accept_request(&listener).await;
    let waiting = call(&second);
    let ping = Request { deadline: Duration::from_millis(50), ..read(Behaviour::AtOnce, 0, 0, 0, LONG) };
    // Behind the others: when it has given up, they have been queued.
    assert!(link.call(ping, None).await.is_err());
    waiting.abort();
    until("the body that was not begun is gone", || Arc::strong_count(&second) == 1).await;
    begun.abort();
    assert!(within("the call", begun).await.is_err());
    assert_eq!(Arc::strong_count(&first), 2, "one that was begun stays until its connection ends");
    within("close", link.close()).await;
    until("everything is gone", || Arc::strong_count(&first) == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_for_a_message_does_not_pass_while_the_server_does_not_read_it() {
    let service = Scripted::new();
    let hello_timeout = Duration::from_secs(2);
    let options = ServerOptions { max_requests_per_connection: 1, hello_timeout, ..server_options() };
    let server = serve(options, service.clone());
    let mut stream = raw(server.local_addr()).await;
    let second = RequestHeader::of(2, &read(Behaviour::AtOnce, 0, 0, 10, LONG)).encode();
    send(&mut stream, 1, &read(Behaviour::Gated, 0, 0, 10, LONG)).await;
    stream.write_all(&second[..30]).await.unwrap();
    until("the first is being answered", || service.started() == 1).await;
    tokio::time::sleep(2 * hello_timeout).await;
    service.open(1);
    assert_eq!(answer(&mut stream).await.0, 1);
    stream.write_all(&second[30..40]).await.unwrap();
    tokio::time::sleep(hello_timeout / 8).await;
    stream.write_all(&second[40..]).await.unwrap();
    assert_eq!(answer(&mut stream).await.0, 2);
}
