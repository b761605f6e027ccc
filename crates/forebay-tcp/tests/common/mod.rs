//! What the tests of this crate share: a server and a client on loopback, and peers that speak the protocol by hand.

// Each test binary uses a part of it.
#![allow(dead_code)]

pub(crate) mod identities;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use forebay_tcp::{ClientOptions, CloseReason, ServerOptions, TcpServer, TcpTransport};
use forebay_transport::conformance::{Behaviour, assert_bytes, pool, read, within};
use forebay_transport::wire::{CONNECTION_ID, HEADER_LEN, HELLO_LEN, Hello, ReplyHeader, RequestHeader};
use forebay_transport::{CallError, Op, Provenance, Reply, Request, Service, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

pub(crate) const CLUSTER: &str = "test";
pub(crate) const BLOCK_SIZE: u32 = forebay_types::MAX_BLOCK_SIZE;
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn loopback() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

pub(crate) fn server_options() -> ServerOptions {
    ServerOptions { io_threads: Some(2), ..ServerOptions::new(loopback(), CLUSTER, BLOCK_SIZE) }
}

pub(crate) fn client_options() -> ClientOptions {
    ClientOptions::new(CLUSTER, BLOCK_SIZE)
}

pub(crate) fn serve(options: ServerOptions, service: Arc<dyn Service>) -> TcpServer {
    TcpServer::bind(options, service).unwrap()
}

pub(crate) fn link(address: SocketAddr, options: ClientOptions) -> Arc<TcpTransport> {
    Arc::new(TcpTransport::new(address.to_string(), options))
}

/// Calls with a buffer of its own.
pub(crate) async fn call(transport: &TcpTransport, request: Request) -> Result<Reply, CallError> {
    let into = pool(1).try_alloc(request.length as usize);
    within("an answer", transport.call(request, into)).await
}

/// Fails unless a read through `transport` brings the right bytes.
pub(crate) async fn assert_serves(transport: &TcpTransport) {
    let request = read(Behaviour::AtOnce, 1, 5, 10_000, LONG);
    assert_bytes(&call(transport, request.clone()).await.unwrap(), &request, 10_000);
}

/// How many connections `server` closed or refused for this reason.
pub(crate) fn closed(server: &TcpServer, reason: CloseReason) -> u64 {
    server.closed_counts()().into_iter().filter(|(of, _)| *of == reason).map(|(_, count)| count).sum()
}

/// Allows this process as many open files as it may have, and says how many: both ends of connections are in it.
pub(crate) fn raise_open_files() -> u64 {
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limits.maximum, ..limits };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    limits.maximum.unwrap_or(u64::MAX)
}

/// A connection from `source`, an address of this host, on which nothing was said.
pub(crate) async fn connect_from(source: IpAddr, address: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((source, 0).into())?;
    socket.connect(address).await
}

/// A connection on which the hellos have been exchanged, and the rest is up to the test.
pub(crate) async fn raw(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    greet(&mut stream).await;
    stream
}

pub(crate) async fn greet(stream: &mut TcpStream) {
    stream.write_all(&Hello::ours(CLUSTER, BLOCK_SIZE).encode()).await.unwrap();
    let mut hello = [0; HELLO_LEN];
    within("a hello", stream.read_exact(&mut hello)).await.unwrap();
}

pub(crate) async fn send(stream: &mut TcpStream, id: u64, request: &Request) {
    stream.write_all(&RequestHeader::of(id, request).encode()).await.unwrap();
    stream.write_all(&request.body).await.unwrap();
}

/// A whole reply: header, body, payload.
pub(crate) async fn receive(stream: &mut TcpStream) -> std::io::Result<(ReplyHeader, Vec<u8>, Vec<u8>)> {
    let mut header = [0; HEADER_LEN];
    within("a header", stream.read_exact(&mut header)).await?;
    let header = ReplyHeader::decode(&header).unwrap();
    let (mut body, mut payload) = (vec![0; header.body_len as usize], vec![0; header.payload_len as usize]);
    within("a body", stream.read_exact(&mut body)).await?;
    within("a payload", stream.read_exact(&mut payload)).await?;
    Ok((header, body, payload))
}

/// Waits until the peer closes the connection, after whatever it still had to say.
pub(crate) async fn wait_for_close(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    // Reset, perhaps: a server that has had enough does not read the rest.
    let _ = within("the peer closes the connection", stream.read_to_end(&mut rest)).await;
}

/// A listener for a server that the test plays.
pub(crate) async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Accepts a connection, exchanges hellos, answers the first ping, and takes one request without a body.
pub(crate) async fn accept_request(listener: &TcpListener) -> (TcpStream, RequestHeader) {
    let (mut stream, _) = within("a connection", listener.accept()).await.unwrap();
    greet(&mut stream).await;
    let mut header = [0; HEADER_LEN];
    within("a ping", stream.read_exact(&mut header)).await.unwrap();
    let ping = RequestHeader::decode(&header).unwrap();
    assert_eq!((ping.op, ping.id), (Op::Ping, CONNECTION_ID));
    let provenance = Provenance::default();
    let alive = ReplyHeader { id: CONNECTION_ID, failure: None, body_len: 0, payload_len: 0, provenance };
    stream.write_all(&alive.encode()).await.unwrap();
    within("a request", stream.read_exact(&mut header)).await.unwrap();
    (stream, RequestHeader::decode(&header).unwrap())
}
