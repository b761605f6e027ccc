//! Over real sockets: what a server may do to a connection, and what goes over it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderMap;
use object_store::client::HttpErrorKind;
use rustls::ClientConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};
use tokio_rustls::TlsAcceptor;

use super::*;

/// The other HTTP client: it answers 299 to everything.
#[derive(Debug, Default)]
struct Others(AtomicU64);

#[derive(Debug)]
struct Counting(Arc<Others>);

#[async_trait::async_trait]
impl HttpService for Counting {
    async fn call(&self, _: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.0.0.fetch_add(1, Ordering::Relaxed);
        let mut response = HttpResponse::new(Bytes::new().into());
        *response.status_mut() = StatusCode::from_u16(299).unwrap();
        Ok(response)
    }
}

fn settings() -> Settings {
    Settings {
        plain: true,
        tls: false,
        resolver: None,
        connect_timeout: Duration::from_secs(60),
        silence: Duration::from_secs(60),
        idle_connections: 4,
    }
}

/// A client, and how often it went to the other HTTP client.
fn service(connector: Connector) -> (InPlaceService, Arc<Others>) {
    let others = Arc::new(Others::default());
    (InPlaceService::new(HttpClient::new(Counting(Arc::clone(&others))), connector), others)
}

/// A server whose connections give these answers, one after the other, and close after their last one. How many were accepted.
async fn server(connections: Vec<Vec<&'static [u8]>>) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/bucket/key", listener.local_addr().unwrap());
    let accepted = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&accepted);
    tokio::spawn(async move {
        for answers in connections {
            let (stream, _) = listener.accept().await.unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(answer_each(stream, answers));
        }
    });
    (url, accepted)
}

async fn answer_each(mut stream: impl AsyncRead + AsyncWrite + Unpin, answers: Vec<&'static [u8]>) {
    for answer in answers {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => request.push(byte),
                Err(_) => return,
            }
        }
        // A client may have enough of it.
        let _ = stream.write_all(answer).await;
        let _ = stream.flush().await;
    }
    let _ = stream.shutdown().await;
}

fn get(url: &str) -> (HttpRequest, Slot) {
    let slot = Slot::default();
    let mut request = HttpRequest::new(object_store::client::HttpRequestBody::empty());
    *request.uri_mut() = url.parse().unwrap();
    request.extensions_mut().insert(slot.clone());
    (request, slot)
}

/// Reads the body of a partial answer.
async fn read(service: &InPlaceService, url: &str) -> Result<Vec<u8>, HttpError> {
    let (request, slot) = get(url);
    let response = service.call(request).await?;
    assert_eq!(response.status(), StatusCode::PARTIAL_CONTENT);
    let body = slot.take().unwrap();
    let mut into = vec![0; usize::try_from(body.length()).unwrap()];
    let mut last = 0;
    body.read(&mut into, |so_far| last = so_far.len()).await?;
    assert_eq!(last, into.len());
    Ok(into)
}

const FIVE: &[u8] = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\n\r\nhello";

#[tokio::test]
async fn answers_follow_each_other_on_one_connection_and_the_next_one_begins_when_it_has_closed() {
    let (url, accepted) = server(vec![vec![FIVE, FIVE], vec![FIVE]]).await;
    let (service, others) = service(Connector::new(settings()).unwrap());
    for connections in [1, 1, 2] {
        assert_eq!(read(&service, &url).await.unwrap(), b"hello");
        assert_eq!(accepted.load(Ordering::Relaxed), connections);
    }
    assert_eq!(others.0.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_connection_is_not_used_again_that_is_to_close_or_says_more_than_was_asked_for() {
    let closing: &[u8] = b"HTTP/1.1 206 P\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";
    let chatty: &[u8] = b"HTTP/1.1 206 P\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 206 P\r\nContent-Length: 2\r\n\r\nno";
    let (url, accepted) = server(vec![vec![closing, FIVE], vec![chatty, FIVE], vec![FIVE]]).await;
    let (service, _) = service(Connector::new(settings()).unwrap());
    assert_eq!(read(&service, &url).await.unwrap(), b"hi");
    assert_eq!(read(&service, &url).await.unwrap(), b"hi");
    assert_eq!(read(&service, &url).await.unwrap(), b"hello");
    assert_eq!(accepted.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_body_that_ends_early_or_is_not_taken_costs_its_connection() {
    let short: &[u8] = b"HTTP/1.1 206 P\r\nContent-Length: 9\r\n\r\nhello";
    let (url, accepted) = server(vec![vec![short], vec![FIVE, FIVE], vec![FIVE]]).await;
    let (service, _) = service(Connector::new(settings()).unwrap());
    let error = read(&service, &url).await.unwrap_err();
    assert_eq!(error.kind(), HttpErrorKind::Interrupted);
    let (request, slot) = get(&url);
    assert_eq!(service.call(request).await.unwrap().status(), StatusCode::PARTIAL_CONTENT);
    drop(slot);
    assert_eq!(read(&service, &url).await.unwrap(), b"hello");
    assert_eq!(accepted.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn refusals_come_with_what_they_say_and_leave_the_connection_open() {
    let denied: &[u8] = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 6\r\n\r\n<Err/>";
    let parts: &[u8] = b"HTTP/1.1 503 Slow Down\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n<Er\r\n3\r\nr/>\r\n0\r\n\r\n";
    let trailing: &[u8] = b"HTTP/1.1 503 S\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n<Err/>\r\n0\r\na: b\r\n\r\n";
    let to_the_end: &[u8] = b"HTTP/1.1 500 Error\r\n\r\n<Err/>";
    let (url, accepted) = server(vec![vec![denied, parts, trailing, FIVE], vec![to_the_end]]).await;
    let (service, others) = service(Connector::new(settings()).unwrap());
    for (status, connections) in [(403, 1), (503, 1), (503, 1), (500, 2)] {
        let (request, slot) = get(&url);
        let response = service.call(request).await.unwrap();
        assert_eq!((response.status().as_u16(), accepted.load(Ordering::Relaxed)), (status, connections));
        assert!(slot.take().is_none());
        assert_eq!(response.into_body().bytes().await.unwrap(), "<Err/>");
    }
    assert_eq!(others.0.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn what_was_not_asked_for_is_not_read() {
    let whole: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\nabc";
    let parts: &[u8] = b"HTTP/1.1 206 P\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let (url, _) = server(vec![vec![whole], vec![parts]]).await;
    let (service, _) = service(Connector::new(settings()).unwrap());
    for status in [200, 206] {
        let (request, slot) = get(&url);
        let response = service.call(request).await.unwrap();
        assert_eq!(response.status().as_u16(), status);
        assert!(slot.take().is_none() && response.into_body().bytes().await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn redirects_and_requests_of_other_kinds_go_to_the_other_client() {
    let elsewhere: &[u8] = b"HTTP/1.1 307 Elsewhere\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n";
    let (url, accepted) = server(vec![vec![elsewhere]]).await;
    let (service, others) = service(Connector::new(settings()).unwrap());
    let mut requests: Vec<HttpRequest> = (0..4).map(|_| get(&url).0).collect();
    *requests[1].method_mut() = Method::HEAD;
    requests[2].extensions_mut().clear();
    *requests[3].uri_mut() = url.replace("http:", "https:").parse().unwrap();
    for (request, number) in requests.into_iter().zip(1..) {
        assert_eq!(service.call(request).await.unwrap().status().as_u16(), 299);
        assert_eq!((others.0.load(Ordering::Relaxed), accepted.load(Ordering::Relaxed)), (number, 1));
    }
    let (service, others) = self::service(Connector::new(Settings { plain: false, ..settings() }).unwrap());
    assert_eq!(service.call(get(&url).0).await.unwrap().status().as_u16(), 299);
    assert_eq!(others.0.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn after_silence_on_an_old_connection_the_next_attempt_is_to_be_a_new_one() {
    let (service, _) = service(Connector::new(settings()).unwrap());
    let url = "http://127.0.0.1:1/bucket/key";
    let target = Target::of(&Url::parse(url).unwrap()).unwrap();
    let (ours, _silent): (Vec<_>, Vec<_>) = (0..2).map(|_| tokio::io::duplex(1 << 16)).unzip();
    for stream in ours {
        service.pool.put(&target, Connection::new(Box::new(stream), Duration::from_secs(10)));
    }
    assert_eq!(read(&service, url).await.unwrap_err().kind(), HttpErrorKind::Timeout);
    assert!(service.pool.take(&target).is_none());
}

#[tokio::test]
async fn nobody_who_listens_is_a_failure_to_connect() {
    // A port that is taken, so that no other test listens there.
    let silent = TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let (service, _) = service(Connector::new(settings()).unwrap());
    assert_eq!(read(&service, &url).await.unwrap_err().kind(), HttpErrorKind::Connect);
}

#[tokio::test]
async fn names_that_a_record_chose_are_looked_at() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://localhost:{}/", listener.local_addr().unwrap().port());
    let options = crate::OriginOptions {
        chosen_by: crate::ChosenBy::RecordWithServer { may_be_local: false },
        ..crate::OriginOptions::default()
    };
    let resolver = super::super::guard::resolver(&options);
    let (service, _) = service(Connector::new(Settings { resolver, ..settings() }).unwrap());
    let error = read(&service, &url).await.unwrap_err();
    assert!(error.kind() == HttpErrorKind::Connect && error.to_string().contains("loopback"), "{error}");
}

#[tokio::test]
async fn over_tls_a_server_is_believed_that_its_certificate_names() {
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = issued.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = config.with_single_cert(vec![certificate.clone()], key.into()).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // A client that does not believe it ends the handshake.
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            tokio::spawn(answer_each(stream, vec![FIVE, FIVE]));
        }
    });
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let (service, others) = service(Connector::trusting(settings(), config));
    for _ in 0..3 {
        assert_eq!(read(&service, &format!("https://localhost:{port}/b/k")).await.unwrap(), b"hello");
    }
    let error = read(&service, &format!("https://127.0.0.1:{port}/b/k")).await.unwrap_err();
    assert_eq!((error.kind(), others.0.load(Ordering::Relaxed)), (HttpErrorKind::Connect, 0));
}

#[test]
fn the_head_of_a_request_has_its_headers() {
    let url = Url::parse("http://h/k").unwrap();
    let headers = HeaderMap::from_iter([(http::header::RANGE, http::HeaderValue::from_static("bytes=0-4"))]);
    assert!(head::request(&url, &headers).ends_with(b"range: bytes=0-4\r\n\r\n"));
}
