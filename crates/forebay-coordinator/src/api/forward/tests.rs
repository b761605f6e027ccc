//! What the leader gets, and what comes back, over connections in memory.

use std::io;

use axum::extract::DefaultBodyLimit;
use axum::response::IntoResponse as _;
use forebay_locks::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::*;
use crate::leader::LeaderStream;

/// Gives out one end of a connection, once.
struct InMemory(Mutex<Option<DuplexStream>>);

#[async_trait::async_trait]
impl LeaderConnector for InMemory {
    async fn connect(&self, _leader: &LeaderRecord) -> io::Result<Box<dyn LeaderStream>> {
        let end = self.0.lock().take();
        end.map(|end| Box::new(end) as Box<dyn LeaderStream>).ok_or_else(|| io::Error::other("nobody is there"))
    }
}

fn leader() -> LeaderRecord {
    LeaderRecord { name: "leader".to_owned(), address: "leader.example:19999".to_owned() }
}

fn connection() -> (InMemory, DuplexStream) {
    let (ours, theirs) = duplex(64 << 10);
    (InMemory(Mutex::new(Some(ours))), theirs)
}

fn request(headers: &[(&str, &str)], body: impl Into<Body>) -> Request {
    let mut request = Request::post("/jobs");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(body.into()).unwrap();
    request.extensions_mut().insert(ConnectInfo(SocketAddr::from(([10, 0, 0, 7], 4711))));
    request
}

/// Reads until what came ends with `end`.
async fn read_until(stream: &mut DuplexStream, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        let mut chunk = [0; 4096];
        let read = stream.read(&mut chunk).await.unwrap();
        assert!(read > 0, "it ended: {text}");
        text.push_str(std::str::from_utf8(&chunk[..read]).unwrap());
    }
    text
}

/// The status and the body of what `fault` answers.
fn status(answer: Result<Response, Fault>) -> StatusCode {
    answer.map_or_else(|fault| fault.into_response().status(), |answer| answer.status())
}

#[tokio::test]
async fn a_request_and_its_answer_pass_without_what_is_about_their_connections() {
    let (connector, mut stream) = connection();
    let uri = Uri::from_static("/api/v1/jobs?a=b");
    let headers = [
        ("host", "follower:19999"),
        ("connection", "close, X-Of-This-Hop, x-forebay-forwarded"),
        ("x-of-this-hop", "1"),
        ("keep-alive", "timeout=5"),
        ("te", "trailers"),
        ("proxy-authorization", "Basic c2VjcmV0"),
        ("upgrade", "h2c"),
        ("origin", "http://follower:19999"),
        ("sec-fetch-site", "same-origin"),
        ("content-type", "application/json"),
        ("content-length", "2"),
        ("authorization", "Bearer token"),
        ("x-forwarded-for", "192.0.2.1"),
    ];
    let record = leader();
    let asked = to_leader(&connector, &record, &uri, request(&headers, "{}"));
    let answered = async {
        let seen = read_until(&mut stream, "{}").await;
        let answer = "HTTP/1.1 201 Created\r\nconnection: keep-alive, x-hop\r\nkeep-alive: timeout=9\r\nx-hop: 1\r\n\
                      content-type: application/json\r\ncontent-length: 6\r\n\r\n[1,2]\n";
        stream.write_all(answer.as_bytes()).await.unwrap();
        seen.to_lowercase()
    };
    let (answer, seen) = tokio::join!(asked, answered);
    assert!(seen.starts_with("post /api/v1/jobs?a=b http/1.1\r\n"), "{seen}");
    for there in [
        "host: leader.example:19999",
        "content-type: application/json",
        "content-length: 2",
        "x-forwarded-for: 192.0.2.1",
        "x-forwarded-for: 10.0.0.7",
        "x-forebay-forwarded: 1",
    ] {
        assert_eq!(seen.matches(&format!("\r\n{there}\r\n")).count(), 1, "{there}: {seen}");
    }
    let gone = ["\r\nx-of-this-hop", "\r\nkeep-alive", "\r\nte:", "\r\nupgrade", "c2vj", "follower", "sec-fetch"];
    for gone in gone.into_iter().chain(["authorization", "bearer"]) {
        assert!(!seen.contains(gone), "{gone}: {seen}");
    }
    assert!(seen.find("192.0.2.1") < seen.find("10.0.0.7"), "{seen}");

    let answer = answer.unwrap();
    assert_eq!(answer.status(), StatusCode::CREATED);
    assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/json");
    for gone in ["connection", "keep-alive", "x-hop"] {
        assert!(!answer.headers().contains_key(gone), "{gone}");
    }
    assert_eq!(axum::body::to_bytes(answer.into_body(), 100).await.unwrap(), "[1,2]\n");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_does_not_answer_in_time_is_not_waited_for() {
    let uri = Uri::from_static("/api/v1/jobs");
    let (connector, _silent) = connection();
    let began = Instant::now();
    let answer = to_leader(&connector, &leader(), &uri, request(&[], "{}")).await;
    assert_eq!(status(answer), StatusCode::GATEWAY_TIMEOUT);
    assert!(began.elapsed() >= ANSWER_WITHIN && began.elapsed() < ANSWER_WITHIN * 2, "{:?}", began.elapsed());

    // One that begins an answer, and does not end it: what came is no whole answer.
    let (connector, mut stream) = connection();
    let record = leader();
    let asked = to_leader(&connector, &record, &uri, request(&[("content-length", "2")], "{}"));
    let answered = async {
        read_until(&mut stream, "{}").await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\n[1,\r\n").await.unwrap();
    };
    let (answer, ()) = tokio::join!(asked, answered);
    let error = axum::body::to_bytes(answer.unwrap().into_body(), 100).await.unwrap_err();
    assert!(is_late(&error), "{error:?}");
}

fn is_late(error: &(dyn std::error::Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| (*error).source()).any(|error| error.to_string().contains("in time"))
}

#[tokio::test]
async fn a_leader_that_is_gone_or_no_coordinator_is_no_leader() {
    let uri = Uri::from_static("/api/v1/jobs");
    let (nobody, record) = (InMemory(Mutex::new(None)), leader());
    assert_eq!(status(to_leader(&nobody, &record, &uri, request(&[], "{}")).await), StatusCode::SERVICE_UNAVAILABLE);

    for said in ["", "220 mail.example ESMTP\r\n"] {
        let (connector, mut stream) = connection();
        let asked = to_leader(&connector, &record, &uri, request(&[("content-length", "2")], "{}"));
        let answered = async {
            read_until(&mut stream, "{}").await;
            stream.write_all(said.as_bytes()).await.unwrap();
            drop(stream);
        };
        let (answer, ()) = tokio::join!(asked, answered);
        assert_eq!(status(answer), StatusCode::SERVICE_UNAVAILABLE, "{said:?}");
    }

    let odd = LeaderRecord { address: "a\nb:1".to_owned(), ..record };
    let (connector, _stream) = connection();
    assert_eq!(status(to_leader(&connector, &odd, &uri, request(&[], "{}")).await), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_while_it_passes() {
    use tower_service::Service as _;

    // The limit is the router's.
    let answer = |request: Request| async move {
        let (connector, mut stream) = connection();
        let reading =
            tokio::spawn(async move { while stream.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {} });
        let answer = to_leader(&connector, &leader(), &Uri::from_static("/api/v1/jobs"), request).await;
        reading.abort();
        answer
    };
    let mut router: axum::Router =
        axum::Router::new().route("/jobs", axum::routing::post(answer)).layer(DefaultBodyLimit::max(1000));
    let chunks = futures::stream::iter((0..100).map(|_| Ok::<_, io::Error>(Bytes::from_static(&[b' '; 100]))));
    let answer = router.call(request(&[], Body::from_stream(chunks))).await.unwrap();
    assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
}
