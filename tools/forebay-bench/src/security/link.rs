//! A worker in a process of its own that has some blocks in memory, and a client of it in this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use forebay_memory::Pool;
use forebay_tcp::TcpTransport;
use forebay_testkit::WorkerProcess;
use forebay_transport::message::StatReply;
use forebay_transport::{Op, Request, Transport};
use forebay_types::{FileVersion, MAX_BLOCK_SIZE, TcpSecurity};
use tokio::runtime::Runtime;

use crate::fixture::{Fixture, LARGE};
use crate::mount::start_worker;
use crate::process::cpu_seconds;
use crate::rounds::Sample;
use crate::transport::{Blocks, DEADLINE, calls};

use super::cluster::Cluster;

/// Blocks that reads go round: more than the caches of the processor hold.
const BLOCKS: u64 = 16;
/// How long a turn reads before it counts: what the turn before it has left in caches and queues is out of the way
/// then.
const LEAD: Duration = Duration::from_millis(20);

/// Both of them.
pub(crate) struct Link {
    worker: WorkerProcess,
    level: Option<TcpSecurity>,
    transport: Arc<dyn Transport>,
    blocks: Blocks,
}

impl Link {
    /// Starts a worker that demands `level`, and has it take the blocks into its memory.
    ///
    /// # Errors
    /// When it does not start, or does not have them in memory in the end.
    pub(crate) fn start(
        fixture: &Fixture,
        runtime: &Runtime,
        pool: &Pool,
        cluster: &Cluster,
        level: Option<TcpSecurity>,
    ) -> anyhow::Result<Self> {
        let settings = cluster.worker_settings(level);
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let worker = start_worker(fixture, &settings)?;
        let transport: Arc<dyn Transport> =
            Arc::new(TcpTransport::new(worker.address().to_string(), cluster.client(level)?));
        let blocks = runtime.block_on(warm(&*transport, pool))?;
        Ok(Self { worker, level, transport, blocks })
    }

    /// What the worker demands.
    pub(crate) fn level(&self) -> Option<TcpSecurity> {
        self.level
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> String {
        self.worker.address().to_string()
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.worker.pid()
    }

    /// What it has in memory.
    pub(crate) fn blocks(&self) -> Blocks {
        self.blocks
    }

    /// CPU time that the worker and this process have used so far, in seconds.
    ///
    /// # Errors
    /// When the worker has ended.
    pub(crate) fn used(&self) -> anyhow::Result<[f64; 2]> {
        Ok([cpu_seconds(self.worker.pid())?, cpu_seconds(std::process::id())?])
    }

    /// Reads of `size` bytes, `depth` at once, for `time`.
    ///
    /// # Errors
    /// When one fails.
    pub(crate) fn turn(
        &self,
        runtime: &Runtime,
        pool: &Pool,
        size: u32,
        depth: usize,
        time: Duration,
    ) -> anyhow::Result<Sample> {
        let reads = |time| runtime.block_on(calls(&self.transport, pool, self.blocks, size, depth, time));
        reads(LEAD.min(time))?;
        let (before, began) = (self.used()?, Instant::now());
        let sample = reads(time)?;
        let gib = sample.rate * began.elapsed().as_secs_f64() / f64::from(1 << 30);
        let [worker, client] = self.used()?;
        Ok(Sample { cpu: (worker - before[0]) / gib, reader: (client - before[1]) / gib, ..sample })
    }

    /// Ends both.
    ///
    /// # Errors
    /// When the system refuses to end the worker.
    pub(crate) fn close(self, runtime: &Runtime) -> anyhow::Result<()> {
        runtime.block_on(self.transport.close());
        Ok(self.worker.stop()?)
    }
}

/// Has the worker take the first blocks of the large file into its memory.
async fn warm(transport: &dyn Transport, pool: &Pool) -> anyhow::Result<Blocks> {
    let version = describe(transport).await?;
    let count = (version.size / u64::from(MAX_BLOCK_SIZE)).min(BLOCKS);
    ensure!(count > 0, "the large file has no whole block");
    let (blocks, deadline) = (Blocks { file: version.id(), count }, Instant::now() + DEADLINE);
    for index in 0..count {
        while !is_from_memory(transport, pool, &version, blocks, index).await? {
            ensure!(Instant::now() < deadline, "block {index} is not in the worker's memory after {DEADLINE:?}");
        }
    }
    Ok(blocks)
}

/// What the large file is to the worker.
async fn describe(transport: &dyn Transport) -> anyhow::Result<FileVersion> {
    let stat = Request::on_path(Op::Stat, format!("/{LARGE}").into_bytes().into(), DEADLINE);
    let stat = StatReply::decode(&transport.call(stat, None).await?.body)?;
    stat.attr.version().cloned().context("the large file is a directory")
}

/// Reads a whole block, which the worker fetches if need be, and says whether it had all of it in memory.
async fn is_from_memory(
    transport: &dyn Transport,
    pool: &Pool,
    version: &FileVersion,
    blocks: Blocks,
    index: u64,
) -> anyhow::Result<bool> {
    let into = pool.alloc(MAX_BLOCK_SIZE as usize, DEADLINE).await?;
    let read = Request::on_block(Op::Read, blocks.of_read(index), 0, MAX_BLOCK_SIZE, DEADLINE);
    let reply = transport.call(read.with_body(version.encode().into()), Some(into)).await?;
    Ok(reply.provenance.memory == MAX_BLOCK_SIZE)
}
