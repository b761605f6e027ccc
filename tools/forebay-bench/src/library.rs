//! The client library in this process, put together as the `forebay` binary does it, without a kernel in between.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use forebay_client::{Client, ClientOptions, Connector, OpenFile};
use forebay_cluster::{Member, StaticMembership};
use forebay_engine::FetchPolicy;
use forebay_memory::{Pool, PoolOptions, Span};
use forebay_origin::OriginOptions;
use forebay_store::{Eviction, Store, StoreOptions};
use forebay_tcp::TcpTransport;
use forebay_testkit::DataSet;
use forebay_transport::{LocalTransport, Service, Transport};
use forebay_types::{ByteSize, FileVersion, FsPath, MAX_BLOCK_SIZE};
use forebay_worker::{MetadataOptions, Namespace, Worker, WorkerOptions};
use tokio::runtime::{Handle, Runtime};

use crate::fio::Access;
use crate::fixture::{Fixture, LARGE};
use crate::latencies::Latencies;
use crate::rounds::Sample;

/// The cluster that `forebay worker` is in.
const FOREBAY: &str = "forebay";
/// Memory for what was prefetched from another process, as `client.memory.size` has it.
const BUFFERS: ByteSize = ByteSize::mib(256);
/// The smallest that a pool should be.
const NO_BUFFERS: ByteSize = ByteSize::mib(8);

/// `worker.memory.verify_interval`, by default.
const CHECK_EVERY: Duration = Duration::from_secs(300);

/// When a worker compares what it has in memory with its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checks {
    /// As workers do by default: once in a while.
    Default,
    /// At each read.
    EachRead,
    /// Never.
    None,
}

/// A client, and the large file as it knows it.
pub(crate) struct Library {
    client: Client,
    version: FileVersion,
    runtime: Handle,
    worker: Option<(Arc<Worker>, Store)>,
}

struct Local(Arc<dyn Service>);

impl Connector for Local {
    fn connect(&self, _member: &Member) -> Arc<dyn Transport> {
        Arc::new(LocalTransport::new(Arc::clone(&self.0)))
    }
}

struct Tcp;

impl Connector for Tcp {
    fn connect(&self, member: &Member) -> Arc<dyn Transport> {
        Arc::new(TcpTransport::new(
            Arc::clone(&member.address),
            forebay_tcp::ClientOptions::new(FOREBAY, MAX_BLOCK_SIZE),
        ))
    }
}

fn pool(size: ByteSize) -> anyhow::Result<Pool> {
    Ok(Pool::new(PoolOptions::fixed(size))?)
}

/// A worker that caches `directory` in `memory`, with its store.
///
/// # Errors
/// When there is no such directory, or not so much memory.
pub(crate) async fn worker(directory: &Path, memory: ByteSize, checks: Checks) -> anyhow::Result<(Arc<Worker>, Store)> {
    let store = StoreOptions {
        verify_reads: checks != Checks::None,
        verify_interval: if checks == Checks::Default { CHECK_EVERY } else { Duration::ZERO },
        high_watermark: 95,
        low_watermark: 90,
        ..StoreOptions::in_memory(pool(memory)?)
    };
    let store = Store::open(store).await?;
    // Reads are warm, so it does not matter where the bytes once came from.
    let origin = forebay_origin::open(&format!("file://{}", directory.display()), &OriginOptions::default())?;
    let options = WorkerOptions {
        block_size: MAX_BLOCK_SIZE,
        fetch: FetchPolicy::origin(64 << 10, u64::from(MAX_BLOCK_SIZE)),
        deadline: Duration::from_secs(60),
        metadata: MetadataOptions { ttl: Duration::from_secs(3600), entries: 1000 },
        takes_changes: true,
    };
    let namespace = Namespace::new([(FsPath::root(), origin)])?;
    let worker = Arc::new(Worker::new(store.clone(), namespace, options));
    Ok((worker, store))
}

impl Library {
    /// A client of a worker in this process, warm.
    pub(crate) async fn local(fixture: &Fixture, checks: Checks) -> anyhow::Result<Self> {
        let (worker, store) = worker(&fixture.bucket(), fixture.memory(), checks).await?;
        let connector = Arc::new(Local(Arc::clone(&worker) as Arc<dyn Service>));
        let membership = StaticMembership::new(["local"]);
        Self::warm(membership, connector, NO_BUFFERS, Some((worker, store))).await
    }

    /// A client of the worker at `address`, warm.
    pub(crate) async fn tcp(address: &str) -> anyhow::Result<Self> {
        Self::warm(StaticMembership::new([address]), Arc::new(Tcp), BUFFERS, None).await
    }

    async fn warm(
        membership: StaticMembership,
        connector: Arc<dyn Connector>,
        buffers: ByteSize,
        worker: Option<(Arc<Worker>, Store)>,
    ) -> anyhow::Result<Self> {
        let buffers = StoreOptions { eviction: Eviction::Fifo, ..StoreOptions::in_memory(pool(buffers)?) };
        let buffers = Store::open(buffers).await?;
        let runtime = Handle::current();
        let client = Client::new(Arc::new(membership), connector, buffers, ClientOptions::default(), runtime.clone());
        let stat = client.stat(&FsPath::new(format!("/{LARGE}"))?, false).await?;
        let version = stat.attr.version().context("the large file is a directory")?.clone();
        let file = client.open(version.clone());
        for offset in (0..version.size).step_by(1 << 20) {
            file.read(offset, 1 << 20).await?;
        }
        Ok(Self { client, version, runtime, worker })
    }

    /// Reads for `time` with `threads` threads, each a part of the file of its own through a handle of its own.
    pub(crate) fn read(&self, access: Access, threads: u32, time: Duration) -> anyhow::Result<Sample> {
        side_by_side(access, threads, self.version.size, time, || {
            let file = self.client.open(self.version.clone());
            move |offset: u64, buffer: &mut [u8]| self.read_once(&file, offset, buffer)
        })
    }

    /// As the mount does it: what is in memory of this process without waiting, and else by the runtime.
    fn read_once(&self, file: &Arc<OpenFile>, offset: u64, buffer: &mut [u8]) -> anyhow::Result<()> {
        let length = u32::try_from(buffer.len())?;
        let spans = match file.try_read(offset, length) {
            Some(spans) => spans,
            None => self.runtime.block_on(file.read(offset, length))?,
        };
        let mut rest = buffer;
        for span in &spans {
            let (filled, left) = rest.split_at_mut(span.len());
            filled.copy_from_slice(span);
            rest = left;
        }
        anyhow::ensure!(rest.is_empty(), "a short read at {offset}");
        Ok(())
    }

    /// Ends it.
    pub(crate) fn close(self, runtime: &Runtime) {
        runtime.block_on(async {
            self.client.close().await;
            if let Some((worker, store)) = self.worker {
                worker.close().await;
                drop(worker);
                store.close().await;
            }
        });
    }
}

/// The bytes of the large file in plain memory, of the kind that a worker keeps them in.
pub(crate) struct Plain {
    blocks: Vec<Span>,
    size: u64,
}

impl Plain {
    pub(crate) fn new(size: u64) -> anyhow::Result<Self> {
        let memory = pool(ByteSize::bytes(size.next_multiple_of(u64::from(MAX_BLOCK_SIZE))))?;
        let blocks = (0..size).step_by(MAX_BLOCK_SIZE as usize).map(|offset| {
            let mut block = memory.try_alloc(MAX_BLOCK_SIZE as usize).context("the pool is too small")?;
            DataSet::new(1).fill(offset, &mut block);
            anyhow::Ok(block.freeze())
        });
        Ok(Self { blocks: blocks.collect::<anyhow::Result<_>>()?, size })
    }

    /// Copies as [`Library::read`] reads: the least that any reader pays.
    pub(crate) fn read(&self, access: Access, threads: u32, time: Duration) -> anyhow::Result<Sample> {
        side_by_side(access, threads, self.size, time, || {
            |offset: u64, buffer: &mut [u8]| {
                // A read lies in one block, since both are powers of two.
                let (block, start) = (offset / u64::from(MAX_BLOCK_SIZE), offset % u64::from(MAX_BLOCK_SIZE));
                let (block, start) = (usize::try_from(block)?, usize::try_from(start)?);
                buffer.copy_from_slice(&self.blocks[block][start..start + buffer.len()]);
                Ok(())
            }
        })
    }
}

/// Threads that read parts of `size` bytes with what `reader` makes for each.
fn side_by_side<R>(
    access: Access,
    threads: u32,
    size: u64,
    time: Duration,
    reader: impl Fn() -> R + Sync,
) -> anyhow::Result<Sample>
where
    R: FnMut(u64, &mut [u8]) -> anyhow::Result<()>,
{
    let part = size / u64::from(threads);
    let block = access.block();
    let started = Instant::now();
    let work = |thread: u64| {
        let (mut read, mut buffer) = (reader(), vec![0; block as usize]);
        let mut latencies = Latencies::default();
        let blocks = part / u64::from(block);
        let mut random = thread;
        for step in 0.. {
            let at = match access {
                Access::Sequential => step % blocks,
                Access::Random => {
                    // Knuth's MMIX generator; its upper bits are the good ones.
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (random >> 33) % blocks
                }
            };
            let began = Instant::now();
            // One at least: a busy machine may not have let this begin before the time was over.
            if step > 0 && began.duration_since(started) >= time {
                break;
            }
            read(thread * part + at * u64::from(block), &mut buffer)?;
            latencies.add(began.elapsed());
        }
        anyhow::Ok(latencies)
    };
    let mut all = Latencies::default();
    std::thread::scope(|scope| {
        let work = &work;
        let readers: Vec<_> = (0..u64::from(threads)).map(|thread| scope.spawn(move || work(thread))).collect();
        readers.into_iter().try_for_each(|reader| {
            all.append(reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??);
            anyhow::Ok(())
        })
    })?;
    Ok(all.sample(block, started.elapsed()))
}
