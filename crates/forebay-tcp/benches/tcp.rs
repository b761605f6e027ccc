//! Loopback throughput and latency of the transport, against plain blocking sockets that do the same exchange.
//!
//! `cargo bench -p forebay-tcp [-- SECONDS [CONNECTIONS]]`. Then parts of files are sent the other way. Client and server each have a thread and a runtime of their
//! own. Each read gets a buffer from a pool, as in the product. `iperf3 -s` and `iperf3 -c 127.0.0.1` give the figure of
//! a stream that nobody asks for.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_memory::{Pool, PoolOptions, Span, Spans};
use forebay_tcp::{ClientOptions, ServerOptions, TcpServer, TcpTransport};
use forebay_transport::{Op, Provenance, Request, Response, Service, Transport};
use forebay_types::{BlockKey, ByteSize, Failure, FailureKind, FileId, MAX_BLOCK_SIZE};

const SIZES: [usize; 4] = [4 << 10, 64 << 10, 1 << 20, 4 << 20];
const DEPTHS: [usize; 2] = [1, 8];
const PARTS: [usize; 3] = [1 << 20, 8 << 20, 64 << 20];
/// Blocks that reads go round: more than the caches of the processor hold.
const BLOCKS: u64 = 16;
const HEADER: usize = 64;

/// Serves blocks from memory.
struct Blocks(Vec<Span>);

#[async_trait::async_trait]
impl Service for Blocks {
    fn try_handle(&self, request: &Request) -> Option<Response> {
        if request.op != Op::Read {
            return None;
        }
        let block = &self.0[(request.block.index % BLOCKS) as usize];
        let spans = Spans::from_iter([block.slice(0..request.length as usize)]);
        Some(Response::of_spans(spans, Provenance { memory: request.length, ..Provenance::default() }))
    }

    async fn handle(&self, request: Request, _takes_files: bool) -> Result<Response, Failure> {
        match request.op {
            Op::Upload => Ok(Response::of_body(Bytes::new())),
            _ => Err(Failure::new(FailureKind::Unsupported, "only reads and uploads")),
        }
    }
}

/// What one run measured.
struct Figures {
    mib_per_second: f64,
    p50: Duration,
}

fn figures(size: usize, mut latencies: Vec<Duration>, wall: Duration) -> Figures {
    latencies.sort_unstable();
    let bytes = (latencies.len() * size) as f64;
    Figures { mib_per_second: bytes / f64::from(1 << 20) / wall.as_secs_f64(), p50: latencies[latencies.len() / 2] }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn start_server() -> String {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(4 * BLOCKS))).expect("a pool");
        let block = |_| {
            let mut block = pool.try_alloc(4 << 20).expect("a block");
            block.fill(7);
            block.freeze()
        };
        let service = Arc::new(Blocks((0..BLOCKS).map(block).collect()));
        runtime().block_on(async {
            let options = ServerOptions::new(([127, 0, 0, 1], 0).into(), "bench", MAX_BLOCK_SIZE);
            let server = TcpServer::bind(options, service).expect("a server");
            tell.send(server.local_addr().to_string()).expect("a listener");
            std::future::pending::<()>().await;
        });
    });
    told.recv().expect("an address")
}

fn forebay(address: &str, size: usize, depth: usize, connections: usize, seconds: u64) -> Figures {
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(4 * 16))).expect("a pool");
    runtime().block_on(async {
        let options = ClientOptions { connections, ..ClientOptions::new("bench", MAX_BLOCK_SIZE) };
        let transport = Arc::new(TcpTransport::new(address, options));
        let start = Instant::now();
        let end = start + Duration::from_secs(seconds);
        let tasks = (0..depth as u64).map(|task| {
            let (transport, pool) = (Arc::clone(&transport), pool.clone());
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                let mut index = task;
                while Instant::now() < end {
                    let begin = Instant::now();
                    let into = pool.try_alloc(size).expect("a buffer");
                    let block = BlockKey { file: FileId([0; 16]), index };
                    let request = Request::on_block(Op::Read, block, 0, size as u32, Duration::from_secs(5));
                    transport.call(request, Some(into)).await.expect("a reply");
                    latencies.push(begin.elapsed());
                    index += 1;
                }
                latencies
            })
        });
        let mut latencies = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            latencies.extend(task.await.expect("a task"));
        }
        let figures = figures(size, latencies, start.elapsed());
        transport.close().await;
        figures
    })
}

/// Parts of `size` bytes, which the server receives whole and forgets; MiB/s.
fn uploads(address: &str, size: usize, depth: usize, connections: usize, seconds: u64) -> f64 {
    let bytes = Bytes::from(vec![7; size]);
    runtime().block_on(async {
        let options = ClientOptions { connections, ..ClientOptions::new("bench", MAX_BLOCK_SIZE) };
        let transport = Arc::new(TcpTransport::new(address, options));
        let start = Instant::now();
        let end = start + Duration::from_secs(seconds);
        let tasks = (0..depth).map(|_| {
            let (transport, bytes) = (Arc::clone(&transport), bytes.clone());
            tokio::spawn(async move {
                let mut sent = 0;
                while Instant::now() < end {
                    let mut request = Request::on_path(Op::Upload, Bytes::new(), Duration::from_secs(60));
                    request.tail = bytes.clone();
                    transport.call(request, None).await.expect("a reply");
                    sent += bytes.len();
                }
                sent
            })
        });
        let mut sent = 0;
        for task in tasks.collect::<Vec<_>>() {
            sent += task.await.expect("a task");
        }
        let rate = sent as f64 / f64::from(1 << 20) / start.elapsed().as_secs_f64();
        transport.close().await;
        rate
    })
}

/// The same exchange over one blocking socket, as simple as can be.
fn plain(size: usize, depth: usize, seconds: u64) -> Figures {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.set_nodelay(true).expect("an option");
        let blocks: Vec<Vec<u8>> = (0..BLOCKS).map(|_| vec![7; HEADER + size]).collect();
        let mut header = [0; HEADER];
        for block in blocks.iter().cycle() {
            if stream.read_exact(&mut header).is_err() || stream.write_all(block).is_err() {
                return;
            }
        }
    });
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_nodelay(true).expect("an option");
    let mut buffers: Vec<Vec<u8>> = (0..16).map(|_| vec![0; HEADER + size]).collect();
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds);
    let mut begun = std::collections::VecDeque::new();
    let mut latencies = Vec::new();
    for _ in 0..depth {
        begun.push_back(Instant::now());
        stream.write_all(&[0; HEADER]).expect("a request");
    }
    let mut turn = 0;
    while let Some(begin) = begun.pop_front() {
        stream.read_exact(&mut buffers[turn]).expect("a reply");
        turn = (turn + 1) % 16;
        latencies.push(begin.elapsed());
        if Instant::now() < end {
            begun.push_back(Instant::now());
            stream.write_all(&[0; HEADER]).expect("a request");
        }
    }
    let figures = figures(size, latencies, start.elapsed());
    drop(stream);
    server.join().expect("the server");
    figures
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let seconds = numbers.next().unwrap_or(2);
    let connections = numbers.next().map_or(4, |connections: u64| connections as usize);
    let address = start_server();
    println!("                  plain sockets            forebay, {connections} connections");
    println!("  size  depth     MiB/s     p50 µs         MiB/s     p50 µs");
    for size in SIZES {
        for depth in DEPTHS {
            let plain = plain(size, depth, seconds);
            let ours = forebay(&address, size, depth, connections, seconds);
            println!(
                "{:>5}K  {depth:>5}  {:>8.0}  {:>9.1}      {:>8.0}  {:>9.1}",
                size >> 10,
                plain.mib_per_second,
                plain.p50.as_nanos() as f64 / 1e3,
                ours.mib_per_second,
                ours.p50.as_nanos() as f64 / 1e3,
            );
        }
    }
    println!();
    println!("  uploads of  at once     MiB/s");
    for size in PARTS {
        for depth in [1, 4] {
            let rate = uploads(&address, size, depth, connections, seconds);
            println!("{:>10}M  {depth:>7}  {rate:>8.0}", size >> 20);
        }
    }
}
