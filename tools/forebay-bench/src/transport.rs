//! The TCP transport alone, against iperf3: what framing, multiplexing and landing in the caller's buffer cost.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use forebay_memory::{Pool, PoolOptions};
use forebay_tcp::{ClientOptions, TcpTransport};
use forebay_transport::driving::permitted;
use forebay_transport::{Op, Reply, Request, Transport};
use forebay_types::{BlockKey, ByteSize, FileId, MAX_BLOCK_SIZE};
use tokio::runtime::Runtime;

use crate::fio::count;
use crate::fixture::Fixture;
use crate::iperf::Iperf;
use crate::latencies::Latencies;
use crate::progress::Progress;
use crate::report::{Report, Table, kilo, latency, percent, rate};
use crate::rounds::{self, Case, Sample};
use crate::server::{CLUSTER, ServerProcess};

pub(crate) const SIZES: [(u32, &str); 4] =
    [(4 << 10, "4 KiB"), (64 << 10, "64 KiB"), (1 << 20, "1 MiB"), (4 << 20, "4 MiB")];
/// Calls under way at once, and the streams of iperf3 that they are compared with: as many as there are connections.
const DEPTHS: [(usize, u32); 2] = [(1, 1), (8, 4)];
/// What the transport is to reach of iperf3 with 1 MiB.
const TARGET: f64 = 0.8;
/// Bytes of a read that its own thread waits for.
const SMALL: u32 = 4 << 10;
/// Bytes of a request, in the ping-pong that it is compared with.
const REQUEST: usize = 64;
/// What such a read may take of a ping-pong.
const ROUND_TRIP_TARGET: f64 = 1.5;
/// Longer than any call takes.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// The blocks that reads go round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blocks {
    /// The file version that they are of.
    pub(crate) file: FileId,
    /// How many: those from its start on.
    pub(crate) count: u64,
}

impl Blocks {
    /// For the server that has the same bytes for every read (`server.rs`).
    pub(crate) const ONE: Self = Self { file: FileId([0; 16]), count: 1 };

    /// The block of read `number`.
    pub(crate) fn of_read(self, number: u64) -> BlockKey {
        BlockKey { file: self.file, index: number % self.count.max(1) }
    }
}

/// Measures it.
///
/// # Errors
/// When a part does not start or a call fails.
pub(crate) fn measure(
    fixture: &Fixture,
    runtime: &Runtime,
    progress: &Progress,
    report: &mut Report,
) -> anyhow::Result<()> {
    progress.say("The TCP transport alone");
    let (iperf, server) = (Iperf::start()?, ServerProcess::start(&[])?);
    let transport: Arc<dyn Transport> =
        Arc::new(TcpTransport::new(server.address.as_str(), ClientOptions::new(CLUSTER, MAX_BLOCK_SIZE)));
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(64)))?;
    let time = fixture.settings.time;
    let rows: Vec<_> = SIZES.iter().flat_map(|size| DEPTHS.iter().map(move |depth| (*size, *depth))).collect();
    let (iperf, transport, pool) = (&iperf, &transport, &pool);
    let cases = rows.iter().flat_map(|((size, name), (depth, streams))| {
        let ours = move || runtime.block_on(calls(transport, pool, Blocks::ONE, *size, *depth, time));
        let theirs = move || iperf.run(*streams, *size, time);
        [
            Case::new(format!("transport, {name}, {depth} at once"), ours),
            Case::new(format!("iperf3, {name}, {}", count(*streams, "stream")), theirs),
        ]
    });
    let alone = move || calls_alone(runtime, transport, pool, Blocks::ONE, SMALL, time);
    let round_trip =
        [Case::new("transport, 4 KiB, its own thread", alone), Case::new("ping-pong", move || ping_pong(SMALL, time))];
    let cases = cases.chain(round_trip).collect();
    let outcomes = rounds::measure("transport", cases, fixture.settings.repeat, progress, || ())?;
    runtime.block_on(transport.close());

    let header = ["read", "at once", "transport GB/s", "transport k/s", "p50/p99 µs", "iperf3 GB/s", "ratio"];
    let text = "Requests and replies between two processes over loopback, each reply into a buffer of its own, over 4 \
                connections; iperf3, which only sends, in pieces of the same size (at most 1 MiB), with one stream \
                against one request and 4 against 8.";
    let mut table = Table::new("TCP transport", text.to_owned(), &header);
    for (((size, name), (depth, _)), pair) in rows.iter().zip(outcomes.chunks_exact(2)) {
        let [ours, theirs] = pair else { continue };
        let ratio = ours.ratio(theirs, |sample| sample.rate);
        let (at_once, ratio_text) = (depth.to_string(), percent(ratio));
        let cells = [(*name).to_owned(), at_once, rate(ours), kilo(ours), latency(ours), rate(theirs), ratio_text];
        table.row(cells.into());
        if *size == 1 << 20 {
            report.ratio_target(&format!("TCP transport, {name}, {depth} at once"), "iperf3", TARGET, ratio);
        }
    }
    report.table(table);
    if let [.., ours, theirs] = &outcomes[..] {
        let ratio = ours.ratio(theirs, |sample| sample.p50);
        let text = "Reads of 4 KiB, one after the other, by a thread that waits for each answer itself, as a mount's threads do; and a \
                    plain ping-pong between two threads of one process that block in `read(2)`: 64 bytes, and 4 KiB in return.";
        let mut table =
            Table::new("TCP round trip", text.to_owned(), &["4 KiB", "k/s", "p50/p99 µs", "of the ping-pong"]);
        table.row(vec!["transport".to_owned(), kilo(ours), latency(ours), percent(ratio)]);
        table.row(vec!["ping-pong".to_owned(), kilo(theirs), latency(theirs), String::new()]);
        report.table(table);
        report.max_target("TCP transport, 4 KiB, round trip", "a plain blocking ping-pong", ROUND_TRIP_TARGET, ratio);
    }
    report.samples("transport", outcomes);
    Ok(())
}

/// A read of the first `size` bytes of `block`.
pub(crate) async fn call(transport: &dyn Transport, pool: &Pool, block: BlockKey, size: u32) -> anyhow::Result<Reply> {
    let into = pool.alloc(size as usize, DEADLINE).await?;
    let request = Request::on_block(Op::Read, block, 0, size, DEADLINE);
    Ok(transport.call(request, Some(into)).await?)
}

/// Reads of `size` bytes of `blocks` for `time`, one after the other, by this thread, which waits for each answer itself, as a reader's
/// own does.
pub(crate) fn calls_alone(
    runtime: &Runtime,
    transport: &Arc<dyn Transport>,
    pool: &Pool,
    blocks: Blocks,
    size: u32,
    time: Duration,
) -> anyhow::Result<Sample> {
    let (started, mut latencies) = (Instant::now(), Latencies::default());
    let mut number = 0;
    while latencies.is_empty() || started.elapsed() < time {
        let began = Instant::now();
        let mut read = pin!(call(&**transport, pool, blocks.of_read(number), size));
        let first = {
            let _entered = runtime.enter();
            permitted(1, || read.as_mut().poll(&mut Context::from_waker(Waker::noop()))).0
        };
        let reply = match first {
            Poll::Ready(reply) => reply?,
            Poll::Pending => runtime.block_on(read)?,
        };
        latencies.add(began.elapsed());
        number += 1;
        drop(reply);
    }
    Ok(latencies.sample(size, started.elapsed()))
}

/// Requests, and `size` bytes in return, over a socket between two threads that block.
fn ping_pong(size: u32, time: Duration) -> anyhow::Result<Sample> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    std::thread::scope(move |scope| {
        // It ends with the client's end of the connection.
        scope.spawn(move || {
            let (mut request, answer) = ([0_u8; REQUEST], vec![0x5a_u8; size as usize]);
            while server.read_exact(&mut request).is_ok() && server.write_all(&answer).is_ok() {}
        });
        let (request, mut answer) = ([0_u8; REQUEST], vec![0_u8; size as usize]);
        let (started, mut latencies) = (Instant::now(), Latencies::default());
        while latencies.is_empty() || started.elapsed() < time {
            let began = Instant::now();
            client.write_all(&request)?;
            client.read_exact(&mut answer)?;
            latencies.add(began.elapsed());
        }
        Ok(latencies.sample(size, started.elapsed()))
    })
}

/// Reads of `size` bytes of `blocks`, `depth` at once, for `time`.
pub(crate) async fn calls(
    transport: &Arc<dyn Transport>,
    pool: &Pool,
    blocks: Blocks,
    size: u32,
    depth: usize,
    time: Duration,
) -> anyhow::Result<Sample> {
    let started = Instant::now();
    let tasks: Vec<_> = (0..depth as u64)
        .map(|first| {
            let (transport, pool) = (Arc::clone(transport), pool.clone());
            tokio::spawn(async move {
                let mut latencies = Latencies::default();
                let mut number = first;
                // One at least: a busy machine may not have let this begin before the time was over.
                while latencies.is_empty() || started.elapsed() < time {
                    let began = Instant::now();
                    let reply = call(&*transport, &pool, blocks.of_read(number), size).await?;
                    latencies.add(began.elapsed());
                    number += 1;
                    drop(reply);
                }
                anyhow::Ok(latencies)
            })
        })
        .collect();
    let mut all = Latencies::default();
    for task in tasks {
        all.append(task.await??);
    }
    Ok(all.sample(size, started.elapsed()))
}
