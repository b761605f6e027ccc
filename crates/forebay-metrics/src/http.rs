//! An HTTP listener that no client can keep busy: what every page and every interface of a process is served by.
//!
//! Connections are bounded in number and in time, and so are the heads of requests. When all places are taken, the
//! connection that has asked nothing for longest is closed for the next ([`crate::places`]); only when all are being
//! answered, the next one waits. So idle connections, however many, keep no client from being answered.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::places::{Doing, Places};

/// How long accepting rests after an error, such as too many open files, that would only come back at once.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// What a listener allows.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// Connections at once.
    pub connections: usize,
    /// How long the head of a request may take to arrive; an idle connection is closed after it, too.
    pub head_within: Duration,
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
    /// Serves `router` to all connections of `listener`. Each request has the address that it came from as an extension,
    /// [`ConnectInfo`]. Must be called within a tokio runtime.
    #[must_use]
    pub fn start(listener: TcpListener, router: Router, limits: HttpLimits) -> Self {
        let stop = CancellationToken::new();
        let seats = Seats { places: Places::new(limits.connections), leave: HashMap::new() };
        let shared = HttpShared { limits, router, seats: Mutex::new(seats), left: Notify::new() };
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
    router: Router,
    seats: Mutex<Seats>,
    /// A connection has left its place, or may be told to.
    left: Notify,
}

/// The places, and how connections are told to leave them.
struct Seats {
    places: Places,
    leave: HashMap<u64, CancellationToken>,
}

/// The place of a connection; free again when it is dropped.
struct Place {
    shared: Arc<HttpShared>,
    number: u64,
    /// It is to end.
    told: CancellationToken,
}

impl HttpShared {
    /// A place, once there is one.
    async fn place(self: &Arc<Self>, stop: &CancellationToken) -> Place {
        loop {
            if let Some(place) = self.try_place(stop) {
                return place;
            }
            // What happens before this waits for it is not forgotten.
            self.left.notified().await;
        }
    }

    /// A place; or else a connection is told to leave its own, if any can be.
    fn try_place(self: &Arc<Self>, stop: &CancellationToken) -> Option<Place> {
        let mut seats = self.seats.lock();
        if let Some(number) = seats.places.take() {
            let told = stop.child_token();
            seats.leave.insert(number, told.clone());
            return Some(Place { shared: Arc::clone(self), number, told });
        }
        let leaves = seats.places.make_room()?;
        seats.leave.get(&leaves)?.cancel();
        None
    }
}

impl Place {
    fn now(&self, doing: Doing) {
        self.shared.seats.lock().places.now(self.number, doing);
        if doing == Doing::Idle {
            self.shared.left.notify_one();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut seats = self.shared.seats.lock();
        seats.places.leave(self.number);
        seats.leave.remove(&self.number);
        drop(seats);
        self.shared.left.notify_one();
    }
}

async fn serve(listener: TcpListener, shared: Arc<HttpShared>, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let (stream, peer) = listener.accept().await?;
            Ok::<_, std::io::Error>((stream, peer, shared.place(&stop).await))
        };
        let next = tokio::select! {
            next = next => next,
            () = stop.cancelled() => break,
        };
        match next {
            Ok((stream, peer, place)) => drop(connections.spawn(connection(stream, peer, place))),
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

async fn connection(stream: TcpStream, peer: SocketAddr, place: Place) {
    let (place, limits) = (&place, place.shared.limits);
    let router = TowerToHyperService::new(place.shared.router.clone());
    let has_asked = AtomicBool::new(false);
    let answer = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        has_asked.store(true, Ordering::Relaxed);
        place.now(Doing::Answered);
        let answer = router.call(request);
        async move {
            let answer = answer.await;
            place.now(Doing::Idle);
            answer
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head_within);
    let served = http.serve_connection(TokioIo::new(stream), answer);
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        _ = tokio::time::timeout(limits.lasts_at_most, place.told.cancelled()) => {
            if !has_asked.load(Ordering::Relaxed) {
                // No answer is lost; it would be waited for until its head should have come.
                return;
            }
            served.as_mut().graceful_shutdown();
            tokio::time::timeout(limits.ends_within, served).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection ended");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const WITHIN: Duration = Duration::from_secs(30);

    /// How often `/held` was asked for.
    static HELD: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(0);

    async fn server(connections: usize) -> (HttpServer, SocketAddr) {
        let limits = HttpLimits {
            connections,
            head_within: WITHIN,
            lasts_at_most: 10 * WITHIN,
            ends_within: Duration::from_secs(2),
        };
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new()
            .route("/", get(|| async { "here" }))
            .route("/never", get(|| async { std::future::pending::<&'static str>().await }))
            .route(
                "/held",
                get(|| async {
                    HELD.add_permits(1);
                    std::future::pending::<&'static str>().await
                }),
            );
        (HttpServer::start(listener, router, limits), address)
    }

    async fn ask(stream: &mut TcpStream, page: &str) {
        stream.write_all(format!("GET {page} HTTP/1.1\r\nhost: here\r\n\r\n").as_bytes()).await.unwrap();
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
}
