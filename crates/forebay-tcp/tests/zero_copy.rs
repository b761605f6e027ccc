//! Large payloads that the kernel sends from where they lie: what arrives, and until when their memory is held. Over loopback the
//! kernel copies after all; with a device between, as in the machine of `scripts/rdma-vm.sh`, it does not.

mod common;

use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use forebay_memory::Pool;
use forebay_tcp::{ClientOptions, ServerOptions, TcpServer, TcpZeroCopy, ZeroCopyCounts};
use forebay_transport::conformance::{Behaviour, assert_bytes, pattern, pool, read, until, within};
use forebay_transport::{FileSlice, Provenance, Request, Response, ResponsePayload, Service};
use forebay_types::{Failure, FailureKind, MAX_BLOCK_SIZE};
use futures::{StreamExt, stream};
use smallvec::smallvec;
use tokio::net::TcpStream;

const KIB: u32 = 1 << 10;
const MIB: u32 = 1 << 20;
/// Every third block is sent from a file.
const FILED: u64 = 3;

fn is_filed(request: &Request) -> bool {
    request.block.index.is_multiple_of(FILED)
}

/// Answers reads with the bytes of the suite, each from memory of its own, which another read gets as soon as it is given back.
struct BlockService {
    memory: Pool,
}

impl BlockService {
    fn new() -> Arc<Self> {
        Arc::new(Self { memory: pool(16) })
    }

    fn answer(&self, request: &Request) -> Option<Response> {
        let length = request.length as usize;
        let mut span = self.memory.try_alloc(length)?;
        let bytes = (request.offset..).map(|at| pattern(request.block.index, at));
        span.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
        let (front, back) = span.split_at(length / 3);
        Some(Response::of_spans(smallvec![front.freeze(), back.freeze()], Provenance::default()))
    }
}

#[async_trait::async_trait]
impl Service for BlockService {
    fn try_handle(&self, request: &Request) -> Option<Response> {
        if is_filed(request) { None } else { self.answer(request) }
    }

    async fn handle(&self, request: Request, takes_files: bool) -> Result<Response, Failure> {
        let response = loop {
            if let Some(response) = self.answer(&request) {
                break response;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        let ResponsePayload::Spans(spans) = &response.payload else { return Ok(response) };
        if !takes_files || !is_filed(&request) {
            return Ok(response);
        }
        let failed = |error: std::io::Error| Failure::new(FailureKind::Internal, error.to_string());
        let mut file = tempfile::tempfile().map_err(failed)?;
        spans.iter().try_for_each(|span| file.write_all(span)).map_err(failed)?;
        let slice = FileSlice { file: Arc::new(file), offset: 0, length: request.length, pin: Box::new(()) };
        Ok(Response { payload: ResponsePayload::File(slice), ..response })
    }
}

fn zero_copy_options(io_threads: usize) -> ServerOptions {
    ServerOptions { io_threads: Some(io_threads), zero_copy: TcpZeroCopy::On, ..server_options() }
}

/// Reads of many lengths, of which some are sent without a copy and some are not, and checks every byte.
async fn read_all(link: &Arc<forebay_tcp::TcpTransport>, rounds: u64) {
    let lengths = [1, 4 * KIB, 32 * KIB - 1, 32 * KIB, 32 * KIB + 1, 100_001, MIB, MAX_BLOCK_SIZE];
    let reads = (0..rounds * lengths.len() as u64).map(|index| {
        let length = lengths[index as usize % lengths.len()];
        let offset = (MAX_BLOCK_SIZE - length).min(index as u32 * 777);
        let request = read(Behaviour::AtOnce, index, offset, length, LONG);
        async move {
            let reply = call(link, request.clone()).await.unwrap();
            assert_bytes(&reply, &request, length as usize);
        }
    });
    stream::iter(reads).buffer_unordered(8).collect::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_of_every_length_arrive_as_they_are_and_their_memory_is_given_back() {
    for io_threads in [0, 2] {
        let service = BlockService::new();
        let server = serve(ServerOptions { takes_files: true, ..zero_copy_options(io_threads) }, service.clone());
        let link = link(server.local_addr(), ClientOptions { connections: 2, ..client_options() });
        read_all(&link, 12).await;
        until("all memory is given back", || service.memory.used() == 0).await;
        let ZeroCopyCounts { copied, lost, .. } = server.zero_copy_counts()();
        assert!(copied > 0 && lost == 0);
        within("close", server.close()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn to_a_peer_on_this_host_everything_is_copied_unless_somebody_says_so() {
    for zero_copy in [TcpZeroCopy::Auto, TcpZeroCopy::Off] {
        let service = BlockService::new();
        let server = serve(ServerOptions { zero_copy, ..server_options() }, service.clone());
        read_all(&link(server.local_addr(), client_options()), 1).await;
        assert_eq!(server.zero_copy_counts()(), ZeroCopyCounts::default());
    }
}

/// A client that asks for more than the sockets hold, and reads nothing.
async fn deaf_client(server: &TcpServer, service: &BlockService) -> TcpStream {
    let mut stream = raw(server.local_addr()).await;
    for id in 1..=4 {
        send(&mut stream, id, &read(Behaviour::AtOnce, 3 * id + 1, 0, MAX_BLOCK_SIZE, LONG)).await;
    }
    until("the kernel has some of it", || service.memory.used() > 0).await;
    // The first header is here: the payload was sent behind it.
    within("the first byte", stream.peek(&mut [0])).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_reads_late_gets_the_right_bytes() {
    let service = BlockService::new();
    let server = serve(zero_copy_options(2), service.clone());
    let mut stream = deaf_client(&server, &service).await;
    for _ in 1..=4 {
        let (header, _, payload) = receive(&mut stream).await.unwrap();
        let index = 3 * header.id + 1;
        assert!((0..).zip(&payload).all(|(at, byte)| *byte == pattern(index, at)), "of {}", header.id);
    }
    until("all memory is given back", || service.memory.used() == 0).await;
    assert_eq!(server.connections(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_given_back_when_a_client_goes_away_or_takes_nothing_or_the_server_closes() {
    for io_threads in [0, 2] {
        for how in ["goes away", "takes nothing", "the server closes", "the server is dropped"] {
            let service = BlockService::new();
            let stall_timeout = Duration::from_secs(if how == "takes nothing" { 3 } else { 30 });
            let server = serve(ServerOptions { stall_timeout, ..zero_copy_options(io_threads) }, service.clone());
            let counts = server.zero_copy_counts();
            let connections = server.connection_gauge();
            let (mut client, mut server) = (Some(deaf_client(&server, &service).await), Some(server));
            match (how, &server) {
                ("goes away", _) => client = None,
                ("the server closes", Some(server)) => within("close", server.close()).await,
                ("the server is dropped", _) => server = None,
                _ => {}
            }
            until("all memory is given back", || service.memory.used() == 0).await;
            until("the connection is gone", || connections() == 0).await;
            assert_eq!(counts().lost, 0, "{how}");
            drop((client, server));
        }
    }
}

/// With two devices between which packets really travel, and one of them in another network namespace: the address of the first, and
/// the file of that namespace. `scripts/rdma-guest.sh` makes them, and has some of the packets lost, so that the kernel sends again.
#[test]
#[ignore = "needs a device between two hosts: scripts/rdma-test.sh has one"]
fn through_a_device_the_kernel_makes_no_copy_and_the_bytes_are_right_though_packets_are_lost() {
    let setting = std::env::var("FOREBAY_TEST_ZERO_COPY_DEVICE").expect("the device and the other host's name space");
    let (address, namespace) = setting.split_once(' ').unwrap();
    let address = SocketAddr::new(address.parse().unwrap(), 0);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let service = BlockService::new();
    let server = serve(ServerOptions { address, zero_copy: TcpZeroCopy::Auto, ..server_options() }, service.clone());
    let (address, counts) = (server.local_addr(), server.zero_copy_counts());
    let namespace = std::fs::File::open(namespace).unwrap();
    let client = std::thread::spawn(move || {
        let network = rustix::thread::LinkNameSpaceType::Network;
        rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(network)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // The kernel waits twice as long after every packet that is lost in a row: between slow devices that is soon longer than
            // the silence after which a peer is taken for dead, and not what is tested here.
            let patient = ClientOptions { connections: 2, connect_timeout: LONG, dead_after: LONG, ..client_options() };
            read_all(&link(address, patient), 4).await;
            // One that asks for much and goes away.
            let mut stream = raw(address).await;
            for id in 1..=4 {
                send(&mut stream, id, &read(Behaviour::AtOnce, 3 * id + 1, 0, MAX_BLOCK_SIZE, LONG)).await;
            }
            within("the first byte", stream.peek(&mut [0])).await.unwrap();
        });
    });
    client.join().unwrap();
    runtime.block_on(until("all memory is given back", || service.memory.used() == 0));
    let ZeroCopyCounts { bytes, copied, lost } = counts();
    assert!(bytes >= 8 << 20 && copied == 0 && lost == 0, "{:?}", counts());
    runtime.block_on(within("close", server.close()));
}
