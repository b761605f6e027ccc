//! What somebody on the path between two ends learns, and can do, when all is encrypted.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use common::identities::{Cluster, options_of, proving, server_security};
use common::{LONG, assert_serves, call, client_options, link, serve, server_options};
use forebay_locks::Mutex;
use forebay_tcp::{ClientOptions, ServerOptions, TcpSecurity, TcpServer, TcpTransport};
use forebay_transport::conformance::{Behaviour, Scripted, assert_bytes, pool, read, until, within};
use forebay_transport::{
    CallError, FileSlice, LinkError, Op, Provenance, Request, Response, ResponsePayload, Service, Transport,
};
use forebay_types::{Failure, Role};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::net::TcpStream;

/// Somebody on the path, who may change bytes that a server says.
struct Tap {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<u8>>>,
    /// Which byte of them is changed on its way; `u64::MAX`: none.
    changes: Arc<AtomicU64>,
}

impl Tap {
    async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(common::loopback()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (heard, changes) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU64::new(u64::MAX)));
        let (record, change) = (Arc::clone(&heard), Arc::clone(&changes));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(server).await.unwrap();
                tokio::spawn(relay(client, server, Arc::clone(&record), Arc::clone(&change)));
            }
        });
        Self { address, heard, changes }
    }

    /// Changes the byte that is said so many bytes from now.
    fn change_after(&self, bytes: u64) {
        self.changes.store(self.heard.lock().len() as u64 + bytes, Ordering::SeqCst);
    }

    fn has_heard(&self, text: &[u8]) -> bool {
        self.heard.lock().windows(text.len()).any(|window| window == text)
    }
}

async fn relay(client: TcpStream, server: TcpStream, heard: Arc<Mutex<Vec<u8>>>, changes: Arc<AtomicU64>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let there = async { tokio::io::copy(&mut from_client, &mut to_server).await };
    let back = async {
        let mut bytes = vec![0; 64 << 10];
        loop {
            let count = from_server.read(&mut bytes).await?;
            if count == 0 {
                return to_client.shutdown().await;
            }
            let before = {
                let mut heard = heard.lock();
                heard.extend_from_slice(&bytes[..count]);
                (heard.len() - count) as u64
            };
            if let Some(at) = changes.load(Ordering::SeqCst).checked_sub(before).filter(|at| *at < count as u64) {
                bytes[at as usize] ^= 1;
            }
            to_client.write_all(&bytes[..count]).await?;
        }
    };
    let _ = tokio::join!(there, back);
}

/// Answers with text, from memory or from a file, and keeps what was uploaded.
struct Text {
    pool: forebay_memory::Pool,
    uploaded: Mutex<Bytes>,
}

const TEXT: &[u8] = b"nobody else is to read this. ";

impl Text {
    fn new() -> Arc<Self> {
        Arc::new(Self { pool: pool(16), uploaded: Mutex::default() })
    }

    fn of(length: usize) -> Vec<u8> {
        TEXT.iter().copied().cycle().take(length).collect()
    }
}

#[async_trait::async_trait]
impl Service for Text {
    async fn handle(&self, request: Request, takes_files: bool) -> Result<Response, Failure> {
        if request.op == Op::Upload {
            *self.uploaded.lock() = request.body;
            return Ok(Response::of_body(Bytes::new()));
        }
        let text = Self::of(request.length as usize);
        let (provenance, body) = (Provenance::default(), Bytes::new());
        let payload = if takes_files && request.offset == 1 {
            let mut file = tempfile::tempfile().unwrap();
            std::io::Write::write_all(&mut file, &text).unwrap();
            ResponsePayload::File(FileSlice {
                file: Arc::new(file),
                offset: 0,
                length: request.length,
                pin: Box::new(()),
            })
        } else {
            let mut span = self.pool.try_alloc(text.len()).unwrap();
            span.copy_from_slice(&text);
            ResponsePayload::Spans([span.freeze()].into_iter().collect())
        };
        Ok(Response { provenance, body, payload })
    }
}

fn text_server(cluster: &Cluster, service: Arc<Text>, level: TcpSecurity) -> TcpServer {
    let security = Some(server_security(&cluster.live(Role::Worker, "node1"), level));
    serve(ServerOptions { security, takes_files: true, ..server_options() }, service)
}

fn text_link(cluster: &Cluster, address: SocketAddr, level: TcpSecurity) -> Arc<TcpTransport> {
    let security = Some(proving(&cluster.live(Role::Writer, "team-a"), level));
    link(address, ClientOptions { security, connections: 1, ..client_options() })
}

/// What a read of so many bytes from `offset` brings: 0 is answered from memory, 1 from a file.
async fn text(link: &TcpTransport, offset: u32, length: u32) -> Result<Vec<u8>, CallError> {
    let request = read(Behaviour::AtOnce, 1, offset, length, LONG);
    let reply = within("an answer", link.call(request, pool(8).try_alloc(length as usize))).await?;
    let forebay_transport::Payload::Landed(span) = reply.payload else { panic!("{reply:?}") };
    Ok(span.to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_listens_in_reads_nothing() {
    let cluster = Cluster::new();
    for level in [TcpSecurity::Auth, TcpSecurity::Encrypt] {
        let service = Text::new();
        let server = text_server(&cluster, Arc::clone(&service), level);
        let tap = Tap::before(server.local_addr()).await;
        let link = text_link(&cluster, tap.address, level);
        for (offset, length) in [(0, 100), (0, 4 << 20), (1, 100), (1, 1 << 20)] {
            assert!(text(&link, offset, length).await.unwrap() == Text::of(length as usize));
        }
        let body = Bytes::from(Text::of(3 << 20));
        let upload = Request { body: body.clone(), ..Request::on_path(Op::Upload, Bytes::new(), LONG) };
        within("an answer", link.call(upload, None)).await.unwrap();
        assert!(*service.uploaded.lock() == body);
        // The control: without encryption it is there to be read.
        assert_eq!(tap.has_heard(TEXT), level == TcpSecurity::Auth);
        assert!(!tap.heard.lock().is_empty());
        server.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_changes_a_byte_on_the_way_ends_the_connection() {
    let cluster = Cluster::new();
    let server = text_server(&cluster, Text::new(), TcpSecurity::Encrypt);
    let tap = Tap::before(server.local_addr()).await;
    let link = text_link(&cluster, tap.address, TcpSecurity::Encrypt);
    // Of a record's header, type and version are constants to both ends; its length, and all that follows, is not.
    for after in [4, 5, 100, 17_000, 900_000] {
        assert!(text(&link, 0, 1 << 20).await.unwrap() == Text::of(1 << 20));
        tap.change_after(after);
        let lost = text(&link, 0, 1 << 20).await.map(|text| text.len());
        assert!(matches!(lost, Err(CallError::Link(LinkError::Lost { .. }))), "after {after}: {lost:?}");
    }
    server.close().await;
}

/// Neither end goes on in plain text when it was told to encrypt; a server that need not takes both.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_talked_into_plain_text() {
    let cluster = Cluster::new();
    let strict = text_server(&cluster, Text::new(), TcpSecurity::Encrypt);
    let refused = text(&text_link(&cluster, strict.local_addr(), TcpSecurity::Auth), 0, 100).await;
    let Err(CallError::Link(LinkError::Unproved { reason, .. })) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("set `network.tcp.security` here as it is set there"), "{reason}");
    let lax = text_server(&cluster, Text::new(), TcpSecurity::Auth);
    for level in [TcpSecurity::Auth, TcpSecurity::Encrypt] {
        assert!(text(&text_link(&cluster, lax.local_addr(), level), 0, 100).await.unwrap() == Text::of(100));
    }
    strict.close().await;
    lax.close().await;
}

/// More than fits into any buffer, in both directions at once.
#[tokio::test(flavor = "multi_thread")]
async fn large_and_small_go_beside_each_other() {
    let cluster = Cluster::new();
    let server = serve(
        ServerOptions {
            security: Some(server_security(&cluster.live(Role::Worker, "node1"), TcpSecurity::Encrypt)),
            ..server_options()
        },
        Scripted::new(),
    );
    let options = options_of(&cluster.live(Role::Writer, "team-a"));
    // The service makes all bytes at once, on the thread that would say that it lives.
    let options = ClientOptions { connections: 1, dead_after: LONG, ..options };
    let link = link(server.local_addr(), options);
    let reads = (0..64u32).map(|at| {
        let link = &link;
        async move {
            let length = if at % 2 == 0 { 512 << 10 } else { 1000 };
            let request = read(Behaviour::AtOnce, u64::from(at), 7, length, LONG);
            assert_bytes(&call(link, request.clone()).await.unwrap(), &request, length as usize);
        }
    });
    futures::future::join_all(reads).await;
    assert_serves(&link).await;
    server.close().await;
}

/// The keys of a connection are good for so many records; a reader notices nothing of that.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_whose_keys_are_worn_makes_way_for_another() {
    let cluster = Cluster::new();
    let service = Scripted::new();
    let security = Some(server_security(&cluster.live(Role::Worker, "node1"), TcpSecurity::Encrypt));
    let server = serve(ServerOptions { security, ..server_options() }, service.clone());
    let options = options_of(&cluster.live(Role::Writer, "team-a"));
    let link = link(server.local_addr(), ClientOptions { connections: 1, max_records: 200, ..options });
    let staying = tokio::spawn({
        let link = Arc::clone(&link);
        async move { call(&link, read(Behaviour::Gated, 0, 0, 10, LONG)).await }
    });
    until("the call that stays", || service.started() == 1).await;
    // 64 records at the least, each.
    for at in 1..=4 {
        let request = read(Behaviour::AtOnce, at, 0, 1 << 20, LONG);
        assert_bytes(&call(&link, request.clone()).await.unwrap(), &request, 1 << 20);
    }
    assert_serves(&link).await;
    assert_eq!(server.connections(), 2, "the first one stays for the call that waits on it");
    service.open(1);
    assert!(within("the call that stayed", staying).await.unwrap().is_ok());
    until("the worn connection ends", || server.connections() == 1).await;
    assert_serves(&link).await;
    server.close().await;
}
