//! The TCP transport alone, against iperf3: what framing, multiplexing and landing in the caller's buffer cost.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_memory::{Pool, PoolOptions};
use forebay_tcp::{ClientOptions, TcpTransport};
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
    let outcomes = rounds::measure("transport", cases.collect(), fixture.settings.repeat, progress, || ())?;
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
    report.samples("transport", outcomes);
    Ok(())
}

/// A read of the first `size` bytes of `block`.
pub(crate) async fn call(transport: &dyn Transport, pool: &Pool, block: BlockKey, size: u32) -> anyhow::Result<Reply> {
    let into = pool.alloc(size as usize, DEADLINE).await?;
    let request = Request::on_block(Op::Read, block, 0, size, DEADLINE);
    Ok(transport.call(request, Some(into)).await?)
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
