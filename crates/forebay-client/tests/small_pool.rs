//! Buffers that are small beside what readers want at once: they limit how many are served together, and no reader is
//! passed over. In virtual time, so that what is waited for is counted, and how busy the machine is is not.

use std::sync::Arc;
use std::time::Duration;

use forebay_client::{Client, ClientOptions, Connector, OpenFile, PrefetchOptions};
use forebay_cluster::{Member, StaticMembership};
use forebay_memory::{Pool, PoolOptions, SpanMut};
use forebay_store::{Eviction, Store, StoreOptions};
use forebay_transport::{CallError, Payload, Provenance, Reply, Request, Transport, TransportKind};
use forebay_types::{ByteSize, FileVersion, VersionTag};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::Instant;

const FILE: u64 = 256 << 20;
/// A read, and the parts that the kernel sends it in.
const READ: u64 = 1 << 20;
const PART: u64 = 512 << 10;
const READERS: u64 = 32;
const READS: u32 = 16;
/// How long a reader stands in line, as for a mount.
const IN_LINE: Duration = Duration::from_secs(30);

/// A worker that takes as long for each answer.
#[derive(Clone, Copy)]
struct Distant(Duration);

#[async_trait::async_trait]
impl Transport for Distant {
    async fn call(&self, request: Request, into: Option<SpanMut>) -> Result<Reply, CallError> {
        tokio::time::sleep(self.0).await;
        let provenance = Provenance { memory: request.length, ..Provenance::default() };
        Ok(Reply { provenance, body: bytes::Bytes::new(), payload: into.map_or(Payload::None, Payload::Landed) })
    }

    fn kind(&self) -> TransportKind {
        TransportKind::Ucx
    }

    fn peer(&self) -> &str {
        "distant"
    }

    async fn close(&self) {}
}

impl Connector for Distant {
    fn connect(&self, _: &Member) -> Arc<dyn Transport> {
        Arc::new(*self)
    }
}

/// What the readers of a pool saw.
#[derive(Debug)]
struct Seen {
    took: Duration,
    /// The longest read.
    worst: Duration,
    /// Requests that left the line.
    gave_up: u64,
}

/// Each part is answered, and its memory given back, by itself.
async fn read_parts(file: &Arc<OpenFile>, offset: u64) -> u64 {
    let parts = (0..READ / PART).map(|part| async move {
        let read = file.read(offset + part * PART, PART as u32).await.expect("who stands in line gets memory");
        read.iter().map(|span| span.len() as u64).sum::<u64>()
    });
    futures::future::join_all(parts).await.into_iter().sum()
}

/// All readers read at random, at offsets of whole `alignment`s, through a pool of so many MiB.
async fn random_reads(pool: u64, alignment: u64, worker: Distant) -> Seen {
    let memory = Pool::new(PoolOptions::fixed(ByteSize::mib(pool))).unwrap();
    let in_memory = StoreOptions::in_memory(memory.clone());
    let buffers = StoreOptions { eviction: Eviction::Fifo, alloc_deadline: IN_LINE, ..in_memory };
    let buffers = Store::open(buffers).await.unwrap();
    let members = Arc::new(StaticMembership::new(["distant"]));
    let prefetch = PrefetchOptions { largest_request: PART as u32, ..PrefetchOptions::default() };
    let options = ClientOptions {
        prefetch,
        prefetch_budget: (pool << 20) / 2,
        request_timeout: 3 * IN_LINE,
        ..ClientOptions::default()
    };
    let client = Client::new(members, Arc::new(worker), buffers, options, tokio::runtime::Handle::current());
    let tag = VersionTag::Etag("\"1\"".into());
    let version = FileVersion { origin: "s3://b".into(), path: b"file".as_slice().into(), size: FILE, tag };
    let began = Instant::now();
    let readers = (0..READERS).map(|number| {
        let file = client.open(version.clone());
        async move {
            let (mut random, mut worst) = (StdRng::seed_from_u64(number), Duration::ZERO);
            for _ in 0..READS {
                let offset = random.random_range(0..(FILE - READ) / alignment) * alignment;
                let began = Instant::now();
                assert_eq!(read_parts(&file, offset).await, READ);
                worst = worst.max(began.elapsed());
            }
            worst
        }
    });
    let worst = futures::future::join_all(readers).await.into_iter().max().unwrap();
    let seen = Seen { took: began.elapsed(), worst, gave_up: memory.occupancy().failures };
    client.close().await;
    seen
}

#[tokio::test(start_paused = true)]
async fn small_buffers_cost_throughput_in_proportion_and_hold_nobody_up() {
    let worker = Distant(Duration::from_millis(4));
    // Of a page, so that parts are of a sector more than others, share one, and cross blocks.
    for alignment in [READ, 4096] {
        let large = random_reads(64, alignment, worker).await;
        for pool in [32, 16, 8] {
            let small = random_reads(pool, alignment, worker).await;
            let told = format!("{pool} MiB, offsets of {alignment}: {small:?}, and with 64 MiB {large:?}");
            println!("{told}");
            assert_eq!(small.gave_up, 0, "{told}");
            // Half as much memory may cost half the throughput; where it is scarce some is fetched twice.
            assert!(small.took < large.took * (64 / pool as u32) * 2, "{told}");
            // And all of them wait as long as each other, more or less: what a read takes in the mean is this divided by their number.
            assert!(small.worst < small.took / READS * 8, "{told}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_takes_its_time_and_few_buffers_cost_no_reader_an_error() {
    let seen = random_reads(8, 4096, Distant(Duration::from_millis(150))).await;
    assert!(seen.gave_up == 0 && seen.worst < IN_LINE, "{seen:?}");
}
