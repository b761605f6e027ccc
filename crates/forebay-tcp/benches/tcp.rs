//! Loopback throughput and latency of the transport, against plain blocking sockets that do the same exchange.
//!
//! `cargo bench -p forebay-tcp [-- SECONDS [CONNECTIONS [ROUNDS]] [WAY...]]`. Reads are measured in rounds, each of plain
//! sockets, a server on the threads of a runtime, one on an I/O thread for each processor, and such a one whose ends
//! prove who they are (`auth`) and encrypt everything (`encrypt`); what is printed is the median of each, and its throughput in
//! percent of that on I/O threads; with the names of ways, of these alone. Then parts of files are sent the other way.
//! The client has a thread and a runtime of its own. Each read gets a buffer from a pool, as in the product.
//! `iperf3 -s` and `iperf3 -c 127.0.0.1` give the figure of a stream without requests.
//!
//! It is for work on the transport: both ends are in one process, where a profiler sees them together. What security
//! costs a real worker and its client, and whether targets are met, `make bench ARGS="--only security"` measures.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_identity::{LiveIdentity, testing};
use forebay_memory::{Pool, PoolOptions, Span, Spans};
use forebay_tcp::{ClientOptions, ClientSecurity, ServerOptions, ServerSecurity, TcpSecurity, TcpServer, TcpTransport};
use forebay_transport::{Op, Provenance, Request, Response, Service, Transport};
use forebay_types::{BlockKey, ByteSize, Failure, FailureKind, FileId, MAX_BLOCK_SIZE, Role};

/// Bytes of a read, and how many there are at once.
const READS: [(usize, usize); 7] =
    [(4 << 10, 1), (4 << 10, 32), (64 << 10, 1), (64 << 10, 8), (1 << 20, 1), (1 << 20, 4), (4 << 20, 8)];
const PARTS: [usize; 3] = [1 << 20, 8 << 20, 64 << 20];
/// Blocks that reads go round: more than the caches of the processor hold.
const BLOCKS: u64 = 16;
const HEADER: usize = 64;
/// What the other ways are compared with.
const BASE: &str = "on I/O threads";

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
#[derive(Clone, Copy)]
struct Figures {
    mib_per_second: f64,
    p50: Duration,
    /// Processor time of a read, of both sides.
    processor: Duration,
}

/// The median of each figure.
fn median(rounds: &[Figures]) -> Figures {
    fn middle<T: PartialOrd + Copy>(mut values: Vec<T>) -> T {
        values.sort_by(|one, other| one.partial_cmp(other).expect("numbers"));
        values[values.len() / 2]
    }
    Figures {
        mib_per_second: middle(rounds.iter().map(|round| round.mib_per_second).collect()),
        p50: middle(rounds.iter().map(|round| round.p50).collect()),
        processor: middle(rounds.iter().map(|round| round.processor).collect()),
    }
}

/// Processor time of this process so far, as `/proc` has it in hundredths of a second.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc");
    let (_, after_name) = stat.rsplit_once(')').expect("a name");
    let ticks = after_name.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("ticks"));
    Duration::from_millis(ticks.sum::<u64>() * 10)
}

fn figures(size: usize, mut latencies: Vec<Duration>, wall: Duration, processor: Duration) -> Figures {
    latencies.sort_unstable();
    let bytes = (latencies.len() * size) as f64;
    Figures {
        mib_per_second: bytes / f64::from(1 << 20) / wall.as_secs_f64(),
        p50: latencies[latencies.len() / 2],
        processor: processor / latencies.len() as u32,
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// The identities of a worker and of a client.
struct Cluster {
    worker: Arc<LiveIdentity>,
    client: Arc<LiveIdentity>,
}

impl Cluster {
    fn new() -> Self {
        let cluster = testing::Cluster::new();
        Self { worker: cluster.live(Role::Worker, "worker"), client: cluster.live(Role::Writer, "client") }
    }
}

/// A server, and how clients are to connect to it.
#[derive(Clone)]
struct Served {
    address: String,
    security: Option<ClientSecurity>,
}

impl Served {
    fn link(&self, connections: usize) -> TcpTransport {
        let security = self.security.clone();
        let options = ClientOptions { connections, security, ..ClientOptions::new("bench", MAX_BLOCK_SIZE) };
        TcpTransport::new(self.address.as_str(), options)
    }
}

/// A server on `io_threads`, and on a runtime as the program has it.
fn start_server(io_threads: Option<usize>, security: Option<(&Cluster, TcpSecurity)>) -> Served {
    let (server, client) = security
        .map(|(cluster, level)| {
            let server = ServerSecurity::new(&cluster.worker, level).expect("random numbers");
            (server, ClientSecurity::to_worker(&cluster.client, level).expect("a configuration"))
        })
        .unzip();
    Served { address: listen(io_threads, server), security: client }
}

fn listen(io_threads: Option<usize>, security: Option<ServerSecurity>) -> String {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(4 * BLOCKS))).expect("a pool");
        let block = |_| {
            let mut block = pool.try_alloc(4 << 20).expect("a block");
            block.fill(7);
            block.freeze()
        };
        let service = Arc::new(Blocks((0..BLOCKS).map(block).collect()));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let address = ([127, 0, 0, 1], 0).into();
            let options =
                ServerOptions { io_threads, security, ..ServerOptions::new(address, "bench", MAX_BLOCK_SIZE) };
            let server = TcpServer::bind(options, service).expect("a server");
            tell.send(server.local_addr().to_string()).expect("a listener");
            std::future::pending::<()>().await;
        });
    });
    told.recv().expect("an address")
}

fn forebay(served: &Served, size: usize, depth: usize, connections: usize, seconds: u64) -> Figures {
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(4 * 16))).expect("a pool");
    runtime().block_on(async {
        let transport = Arc::new(served.link(connections));
        let (start, processor) = (Instant::now(), processor_time());
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
        let figures = figures(size, latencies, start.elapsed(), processor_time() - processor);
        transport.close().await;
        figures
    })
}

/// Parts of `size` bytes, which the server receives whole and forgets; MiB/s.
fn uploads(served: &Served, size: usize, depth: usize, connections: usize, seconds: u64) -> f64 {
    let bytes = Bytes::from(vec![7; size]);
    runtime().block_on(async {
        let transport = Arc::new(served.link(connections));
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
    let (start, processor) = (Instant::now(), processor_time());
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
    let figures = figures(size, latencies, start.elapsed(), processor_time() - processor);
    drop(stream);
    server.join().expect("the server");
    figures
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let seconds = numbers.next().unwrap_or(2);
    let connections = numbers.next().map_or(4, |connections: u64| connections as usize);
    let rounds = numbers.next().unwrap_or(1).max(1);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let ways: Vec<String> = std::env::args().skip(1).filter(|way| way.starts_with(char::is_alphabetic)).collect();
    let is_wanted = |name: &str| ways.is_empty() || ways.iter().any(|way| way == name);
    let cluster = Cluster::new();
    let dedicated = |security| start_server(Some(processors), security);
    let mut servers = vec![
        ("on a runtime", start_server(Some(0), None)),
        (BASE, dedicated(None)),
        ("auth", dedicated(Some((&cluster, TcpSecurity::Auth)))),
        ("encrypt", dedicated(Some((&cluster, TcpSecurity::Encrypt)))),
    ];
    servers.retain(|(name, _)| is_wanted(name));
    println!("{connections} connections\n size  depth                     MiB/s      %   p50 µs   cpu µs");
    for (size, depth) in READS {
        let mut sockets = Vec::new();
        let mut measured = vec![Vec::new(); servers.len()];
        for _ in 0..rounds {
            if is_wanted("sockets") {
                sockets.push(plain(size, depth, seconds));
            }
            for ((_, served), figures) in servers.iter().zip(&mut measured) {
                figures.push(forebay(served, size, depth, connections, seconds));
            }
        }
        let rows: Vec<(&str, Figures)> = std::iter::once(("sockets", &sockets))
            .chain(servers.iter().map(|(name, _)| *name).zip(&measured))
            .filter(|(_, rounds)| !rounds.is_empty())
            .map(|(name, rounds)| (name, median(rounds)))
            .collect();
        let base = rows.iter().find(|(name, _)| *name == BASE).map_or(f64::NAN, |(_, figures)| figures.mib_per_second);
        for (name, Figures { mib_per_second, p50, processor }) in rows {
            let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
            println!(
                "{:>4}K  {depth:>5}  {name:<14} {mib_per_second:>9.0} {:>6.1} {:>8.1} {:>8.1}",
                size >> 10,
                100.0 * mib_per_second / base,
                micros(p50),
                micros(processor)
            );
        }
    }
    let names: Vec<String> = servers.iter().map(|(name, _)| format!("{name:>14}")).collect();
    println!("\n  uploads of  at once  MiB/s {}", names.join(" "));
    for size in PARTS {
        for depth in [1, 4] {
            let rates: Vec<String> = servers
                .iter()
                .map(|(_, served)| format!("{:>14.0}", uploads(served, size, depth, connections, seconds)))
                .collect();
            println!("{:>10}M  {depth:>7}        {}", size >> 20, rates.join(" "));
        }
    }
}
