//! An HTTP listener that no client can keep busy: what every page and every interface of a process is served by.
//!
//! Connections are bounded in number and in time, and so are the parts of what clients send and read. When all places
//! are taken, the connection that has asked nothing for longest is closed for the next ([`crate::places`]); only when
//! all are being answered, the next one waits. So idle connections, however many, keep no client from being answered.
//!
//! Every listener has names, and answers to no other ([`crate::hosts`]), and says who may ask it for what ([`crate::access`]), or it
//! judges each request by a signature that holds both ([`HttpServer::start_judging`]). It may be a port, or a Unix socket of this user
//! alone.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use forebay_identity::AuditPeer;
use forebay_locks::Mutex;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::TokioTimer;
use hyper_util::service::TowerToHyperService;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::access::{Access, Caller, Opened, Operation};
use crate::audit::turned_away;
use crate::guard::{Gate, guarded, tls_only};
use crate::hosts::HostNames;
use crate::listener::{Accepted, HttpListener};
use crate::patience::Patience;
use crate::refused::{self, Reason};
use crate::seats::{Place, Seats};
use crate::socket::{AnswerBody, RequestBody, Socket, Stream};

/// How long accepting rests after an error, such as too many open files, that would only come back at once.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// What a listener allows.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// Connections at once. Of these, one address has half at most, other than that of loopback.
    pub connections: usize,
    /// How long a handshake, and then the head of a request, may take to arrive; an idle connection is closed after it, too.
    pub head_within: Duration,
    /// How long the body of a request may take to arrive, from its head on.
    pub body_within: Duration,
    /// How long a client may read nothing of what is sent to it.
    pub write_within: Duration,
    /// How many bytes a second a client has to read of it, on the average of that time; 0: one now and then will do.
    pub write_rate: u64,
    /// How long a connection may last: for more, a client makes another.
    pub lasts_at_most: Duration,
    /// How long answers under way may take once their connection is to end.
    pub ends_within: Duration,
}

/// A listener, while it serves. Dropping it ends its tasks without waiting for them.
#[derive(Debug)]
pub struct HttpServer {
    stop: CancellationToken,
    serving: Mutex<Option<JoinHandle<()>>>,
}

impl HttpServer {
    /// Serves `router` to all connections of `listener` that ask for one of `hosts`, and to whom `access` allows what they ask for:
    /// `operations` says what that takes. Each request that came from an address has that as an extension, [`ConnectInfo`]. Over a
    /// Unix socket no TLS is spoken, whatever `access` is: nobody listens in there. Must be called within a tokio runtime.
    #[must_use]
    pub fn start(
        listener: impl Into<HttpListener>,
        router: Router,
        operations: &'static [Operation],
        access: Access,
        hosts: HostNames,
        limits: HttpLimits,
    ) -> Self {
        let gate = Gate { access: access.clone(), operations };
        Self::run(listener.into(), guarded(router, gate, hosts), access, limits)
    }

    /// The same for a `router` that judges each request itself, and records what becomes of it: by a signature over all that it asks
    /// for, its host among it, which no page of another site can make. Of `access` counts whether TLS is spoken.
    #[must_use]
    pub fn start_judging(
        listener: impl Into<HttpListener>,
        router: Router,
        access: Access,
        limits: HttpLimits,
    ) -> Self {
        Self::run(listener.into(), router, access, limits)
    }

    fn run(listener: HttpListener, router: Router, access: Access, limits: HttpLimits) -> Self {
        let stop = CancellationToken::new();
        let seats = Seats::new(limits.connections, stop.clone());
        let shared = HttpShared { limits, tls_only: tls_only(&access), access, router, seats };
        let serving = tokio::spawn(serve(listener, Arc::new(shared), stop.clone()));
        Self { stop, serving: Mutex::new(Some(serving)) }
    }

    /// Ends it. Answers under way may finish, for a moment.
    pub async fn close(&self) {
        self.stop.cancel();
        let serving = self.serving.lock().take();
        if let Some(serving) = serving {
            // It panics only if accepting does, and then there is nothing left to wait for.
            let _ = serving.await;
        }
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(serving) = self.serving.lock().take() {
            serving.abort();
        }
    }
}

struct HttpShared {
    limits: HttpLimits,
    access: Access,
    router: Router,
    /// For those who should speak TLS, and do not.
    tls_only: Router,
    seats: Arc<Seats>,
}

async fn serve(listener: HttpListener, shared: Arc<HttpShared>, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        let next = tokio::select! {
            next = next_connection(&listener, &shared.seats) => next,
            () = stop.cancelled() => break,
        };
        match next {
            Ok((accepted, place)) => drop(connections.spawn(connection(accepted, place, Arc::clone(&shared)))),
            Err(error) => {
                warn!(%error, "no connection is taken for a moment");
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    // Each ends within its own time.
    while connections.join_next().await.is_some() {}
}

/// The next connection that has a place. It takes one after it was accepted: so the place can be that of another one.
async fn next_connection(listener: &HttpListener, seats: &Arc<Seats>) -> std::io::Result<(Accepted, Place)> {
    loop {
        let accepted = listener.accept().await?;
        let source = accepted.source();
        if let Some(place) = seats.place(source).await {
            return Ok((accepted, place));
        }
        refused::count(Reason::Share);
        debug!(?source, "a connection is closed: as many of this address as may be are being answered");
    }
}

async fn connection(accepted: Accepted, place: Place, shared: Arc<HttpShared>) {
    let (nobody, peer) = (Caller(None), accepted.peer());
    let (stream, from) = match accepted {
        Accepted::Tcp(stream, from) => (stream, from),
        Accepted::Private(stream) => return answer(stream, peer, nobody, place, &shared, &shared.router).await,
    };
    let opened = tokio::select! {
        opened = tokio::time::timeout(shared.limits.head_within, shared.access.open(stream)) => opened,
        // It has asked for nothing yet.
        () = place.told() => return,
    };
    match opened {
        Ok(Ok(Opened::Plain(stream))) => answer(stream, peer, nobody, place, &shared, &shared.router).await,
        Ok(Ok(Opened::Secure(stream, caller))) => answer(*stream, peer, caller, place, &shared, &shared.router).await,
        Ok(Ok(Opened::NotSecure(stream))) => answer(stream, peer, nobody, place, &shared, &shared.tls_only).await,
        Ok(Err(error)) => {
            refused::count(Reason::Proof);
            // Who only breaks off is not turned away.
            if matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::Other) {
                turned_away(&shared.access, Some(peer), &error.to_string());
            }
            debug!(%from, %error, "a connection is closed: it does not prove who it is");
        }
        Err(_) => debug!(%from, "a connection is closed: its handshake does not end"),
    }
}

/// Answers what comes over a connection until that ends.
async fn answer<S: Stream>(
    stream: S,
    peer: AuditPeer,
    caller: Caller,
    place: Place,
    shared: &HttpShared,
    router: &Router,
) {
    let (limits, turn) = (shared.limits, place.turn());
    let router = TowerToHyperService::new(router.clone());
    let answer = service_fn(|mut request: Request<Incoming>| {
        turn.asked();
        if let AuditPeer::Address(from) = peer {
            request.extensions_mut().insert(ConnectInfo(from));
        }
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(caller.clone());
        let (asking, answering) = (Arc::clone(&turn), Arc::clone(&turn));
        let answer = router.call(request.map(|body| RequestBody::new(body, limits.body_within, asking)));
        async move { answer.await.map(|answer| answer.map(|body| AnswerBody::new(body, answering))) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head_within);
    let patience = Patience::new(limits.write_within, limits.write_rate);
    let served = http.serve_connection(Socket::new(stream, patience, Arc::clone(&turn)), answer);
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        _ = tokio::time::timeout(limits.lasts_at_most, place.told()) => {
            let Some(grace) = place.grace(limits.ends_within) else { return };
            served.as_mut().graceful_shutdown();
            tokio::time::timeout(grace, served).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection ended");
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use forebay_private::PrivateListener;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream, UnixStream};

    use super::*;

    const WITHIN: Duration = Duration::from_secs(30);
    /// More than the kernel keeps of what nobody reads.
    const LARGE: usize = 64 << 20;

    /// How often `/held` was asked for.
    static HELD: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(0);

    async fn server(connections: usize) -> (HttpServer, SocketAddr) {
        server_of(limits(connections)).await
    }

    async fn server_of(limits: HttpLimits) -> (HttpServer, SocketAddr) {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/", get(|| async { "here" }).post(|body: String| async move { body }))
            .route("/large", get(|| async { vec![b'x'; LARGE] }))
            .route("/never", get(|| async { std::future::pending::<&'static str>().await }))
            .route(
                "/held",
                get(|| async {
                    HELD.add_permits(1);
                    std::future::pending::<&'static str>().await
                }),
            );
        (HttpServer::start(listener, router, &[], Access::everybody(), HostNames::new(), limits), address)
    }

    #[tokio::test]
    async fn a_unix_socket_of_this_user_is_answered_as_a_port_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("private/rest.sock");
        let listener = PrivateListener::bind(&path).unwrap();
        let router = Router::new().route("/", get(|| async { "here" }));
        let server = HttpServer::start(listener, router, &[], Access::everybody(), HostNames::new(), limits(4));
        for (lines, status) in [
            ("host: localhost", "200"),
            ("host: evil.example", "421"),
            ("host: localhost\r\norigin: http://evil.example", "403"),
        ] {
            let mut stream = UnixStream::connect(&path).await.unwrap();
            stream.write_all(format!("GET / HTTP/1.0\r\n{lines}\r\n\r\n").as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer.split(' ').nth(1), Some(status), "{lines}: {answer}");
        }
        tokio::time::timeout(WITHIN, server.close()).await.unwrap();
        assert!(UnixStream::connect(&path).await.is_err());
    }

    #[tokio::test]
    async fn who_says_nothing_at_a_unix_socket_is_closed_in_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("private/rest.sock");
        let listener = PrivateListener::bind(&path).unwrap();
        let router = Router::new().route("/", get(|| async { "here" }));
        let limits = HttpLimits { head_within: Duration::from_millis(200), ..limits(1) };
        let server = HttpServer::start(listener, router, &[], Access::everybody(), HostNames::new(), limits);
        for _ in 0..3 {
            let mut silent = UnixStream::connect(&path).await.unwrap();
            let ended = tokio::time::timeout(WITHIN, silent.read_to_end(&mut Vec::new())).await;
            assert!(ended.is_ok(), "it is kept");
        }
        tokio::time::timeout(WITHIN, server.close()).await.unwrap();
    }

    async fn ask(stream: &mut TcpStream, page: &str) {
        stream.write_all(format!("GET {page} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    }

    /// The answer to a request, of which the connection stays open; empty when it is closed.
    async fn answer(stream: &mut TcpStream) -> String {
        let mut answer = vec![0; 4096];
        let read = tokio::time::timeout(WITHIN, stream.read(&mut answer)).await.expect("no answer");
        answer.truncate(read.unwrap_or(0));
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn who_was_idle_longest_is_closed_for_whoever_comes() {
        let (server, address) = server(2).await;
        let mut first = TcpStream::connect(address).await.unwrap();
        ask(&mut first, "/").await;
        assert!(answer(&mut first).await.ends_with("here"));
        let mut second = TcpStream::connect(address).await.unwrap();
        ask(&mut second, "/").await;
        assert!(answer(&mut second).await.ends_with("here"));
        let mut third = TcpStream::connect(address).await.unwrap();
        ask(&mut third, "/").await;
        assert!(answer(&mut third).await.ends_with("here"));
        assert_eq!(answer(&mut first).await, "", "it is closed");
        ask(&mut second, "/").await;
        assert!(answer(&mut second).await.ends_with("here"), "it stays");
        tokio::time::timeout(WITHIN, server.close()).await.unwrap();
    }

    #[tokio::test]
    async fn who_is_being_answered_is_not_closed_and_who_comes_waits() {
        let (server, address) = server(1).await;
        let mut busy = TcpStream::connect(address).await.unwrap();
        ask(&mut busy, "/held").await;
        // Before that it is one that says nothing, and would have to make room.
        tokio::time::timeout(WITHIN, HELD.acquire()).await.expect("it is being answered").unwrap().forget();
        let mut late = TcpStream::connect(address).await.unwrap();
        ask(&mut late, "/").await;
        let waits = tokio::time::timeout(Duration::from_millis(200), late.read(&mut [0; 1])).await;
        assert!(waits.is_err(), "there is no place for it: {waits:?}");
        drop(busy);
        assert!(answer(&mut late).await.ends_with("here"));
        tokio::time::timeout(WITHIN, server.close()).await.unwrap();
    }

    #[tokio::test]
    async fn whatever_its_connections_do_a_server_ends() {
        let (server, address) = server(4).await;
        let mut busy = TcpStream::connect(address).await.unwrap();
        ask(&mut busy, "/never").await;
        let _silent = TcpStream::connect(address).await.unwrap();
        let mut half = TcpStream::connect(address).await.unwrap();
        half.write_all(b"GET / HT").await.unwrap();
        let mut last = TcpStream::connect(address).await.unwrap();
        ask(&mut last, "/").await;
        assert!(answer(&mut last).await.ends_with("here"));
        tokio::time::timeout(WITHIN / 3, server.close()).await.expect("it waits for those who say nothing");
        assert!(TcpStream::connect(address).await.is_err());
    }

    /// Waits until the connection is closed, and reads nothing of what was sent before.
    async fn closed_unread(stream: &TcpStream) {
        let closed = async {
            // An answer that nobody reads ends with a reset, which is an error of the socket.
            while stream.take_error().unwrap().is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(WITHIN, closed).await.expect("it is kept");
    }

    fn limits(connections: usize) -> HttpLimits {
        HttpLimits {
            connections,
            head_within: WITHIN,
            body_within: WITHIN,
            write_within: WITHIN,
            write_rate: 0,
            lasts_at_most: 10 * WITHIN,
            ends_within: Duration::from_secs(2),
        }
    }

    #[tokio::test]
    async fn a_request_for_another_host_or_of_another_origin_reaches_no_page() {
        let (server, address) = server(4).await;
        for (lines, status) in [
            ("host: evil.example", "421"),
            ("host: localhost\r\norigin: http://evil.example", "403"),
            ("x: y", "400"),
            ("host: localhost", "200"),
        ] {
            for page in ["/", "/nowhere"] {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(format!("GET {page} HTTP/1.1\r\n{lines}\r\n\r\n").as_bytes()).await.unwrap();
                let answer = answer(&mut stream).await;
                let status = if status == "200" && page != "/" { "404" } else { status };
                assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{lines} {page}: {answer}");
                assert_eq!(answer.contains("network.http.hosts"), matches!(status, "421" | "403"), "{answer}");
            }
        }
        tokio::time::timeout(WITHIN, server.close()).await.unwrap();
    }

    #[tokio::test]
    async fn who_reads_nothing_of_an_answer_is_closed_in_time() {
        let (server, address) = server_of(HttpLimits { write_within: Duration::from_millis(200), ..limits(4) }).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        ask(&mut stream, "/large").await;
        closed_unread(&stream).await;
        tokio::time::timeout(WITHIN, server.close()).await.unwrap();
    }

    #[tokio::test]
    async fn who_reads_on_gets_all_of_a_large_answer() {
        let (server, address) = server(4).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /large HTTP/1.0\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut all = Vec::new();
        tokio::time::timeout(WITHIN, stream.read_to_end(&mut all)).await.expect("an end").unwrap();
        assert!(all.len() > LARGE);
        tokio::time::timeout(WITHIN, server.close()).await.unwrap();
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_is_not_waited_for() {
        let (server, address) = server_of(HttpLimits { body_within: Duration::from_millis(200), ..limits(4) }).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nhalf").await.unwrap();
        let mut all = String::new();
        tokio::time::timeout(WITHIN, stream.read_to_string(&mut all)).await.expect("it is closed").unwrap();
        assert!(all.starts_with("HTTP/1.1 400 "), "{all}");
        tokio::time::timeout(WITHIN, server.close()).await.unwrap();
    }

    #[tokio::test]
    async fn who_holds_an_answer_up_makes_room_for_who_comes() {
        let (server, address) = server(1).await;
        let mut unread = TcpStream::connect(address).await.unwrap();
        ask(&mut unread, "/large").await;
        unread.readable().await.unwrap();
        let mut unsent = TcpStream::connect(address).await.unwrap();
        let head = "POST / HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n";
        unsent.write_all(head.as_bytes()).await.unwrap();
        assert!(answer(&mut unsent).await.starts_with("HTTP/1.1 100 "), "it is asked to send the rest");
        closed_unread(&unread).await;
        let mut other = TcpStream::connect(address).await.unwrap();
        ask(&mut other, "/").await;
        assert!(answer(&mut other).await.ends_with("here"));
        assert_eq!(answer(&mut unsent).await, "", "it is closed");
        tokio::time::timeout(WITHIN, server.close()).await.unwrap();
    }
}
