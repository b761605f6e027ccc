//! Clients that read a worker's memory by themselves, between two devices, while blocks are evicted, others come in
//! their place, bits flip and rights change. Every byte is compared.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use forebay_memory::{Pool, Span, Spans};
use forebay_one_sided::{Location, Sealed};
use forebay_rdma::verbs::{VerbsServer, VerbsThread};
use forebay_rdma::{ClientOptions, RdmaTransport, ServerOptions};
use forebay_transport::{Caller, Op, Payload, Provenance, Request, Response, Service, Transport};
use forebay_types::{BlockKey, Failure, FailureKind, FileId, SECTOR_SIZE, SectorChecksums, SectorRange};

use crate::common::verbs::{Devices, devices};
use crate::common::{BLOCK_SIZE, CLUSTER, client_options, pool};

/// Bytes of each block.
const LENGTH: u32 = 8 * SECTOR_SIZE;
const PAGE: u32 = 4096;
const BLOCKS: u64 = 6;
const PATIENCE: Duration = Duration::from_secs(300);

fn key(index: u64) -> BlockKey {
    BlockKey { file: FileId([9; 16]), index }
}

fn truth(index: u64, offset: u32, length: u32) -> Vec<u8> {
    let word = |at: u32| (((index + 1) << 40) | u64::from(at)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (offset / 8..(offset + length) / 8).flat_map(|at| word(at).to_le_bytes()).collect()
}

/// A worker whose memory is read. It answers from what it computes, and tells where it holds the same.
struct Slab {
    pool: Pool,
    held: Mutex<HashMap<u64, Sealed<Span>>>,
    asked: AtomicU64,
    shows: AtomicBool,
    number: AtomicU64,
}

impl Slab {
    fn new() -> Arc<Self> {
        let pool = pool(16);
        pool.let_peers_read();
        let (held, asked, number) = (Mutex::default(), AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { pool, held, asked, shows: AtomicBool::new(true), number })
    }

    /// Puts a block into memory and seals it, if there is room.
    fn hold(&self, index: u64) {
        let Some(mut landing) = self.pool.try_alloc(LENGTH as usize) else { return };
        landing.copy_from_slice(&truth(index, 0, LENGTH));
        let bytes = landing.freeze();
        let at = bytes.place().unwrap().offset / u64::from(SECTOR_SIZE);
        let sectors = SectorRange::new(0, LENGTH / SECTOR_SIZE).unwrap();
        let checksums = SectorChecksums::of(&bytes);
        let board = self.pool.board().unwrap();
        let sealed = board.seal(key(index), sectors, at as u32, &checksums, bytes).unwrap();
        self.held.lock().insert(index, sealed);
    }

    fn evict(&self, index: u64) {
        let evicted = self.held.lock().remove(&index);
        drop(evicted);
    }

    /// A bit of a block that is held flips, as memory does it: nobody knows.
    fn flip(&self, index: u64, at: u32) {
        let held = self.held.lock();
        let Some(sealed) = held.get(&index) else { return };
        let place = sealed.bytes().place().unwrap().offset as usize + (at % LENGTH) as usize;
        let (base, length) = self.pool.mapping();
        assert!(place < length);
        // SAFETY: the byte lies in the mapping, and nobody of this process reads it: it is there for the card.
        unsafe {
            let byte = base.as_ptr().add(place);
            byte.write_volatile(byte.read_volatile() ^ 4);
        }
    }

    fn answer(&self, request: &Request) -> Option<Response> {
        let mut landing = self.pool.try_alloc(request.length as usize)?;
        landing.copy_from_slice(&truth(request.block.index, request.offset, request.length));
        let provenance = Provenance { memory: request.length, ..Provenance::default() };
        Some(Response::of_spans(Spans::from_iter([landing.freeze()]), provenance))
    }
}

#[async_trait::async_trait]
impl Service for Slab {
    fn shows_all(&self, _caller: &Caller) -> bool {
        self.shows.load(Ordering::SeqCst)
    }

    fn shown_number(&self) -> u64 {
        self.number.load(Ordering::SeqCst)
    }

    fn locate(&self, request: &Request) -> Option<Location> {
        let held = self.held.lock();
        let sealed = held.get(&request.block.index)?;
        Some(Location { generation: sealed.generation(), at: sealed.at(), first: 0, length: LENGTH })
    }

    fn try_handle(&self, request: &Request) -> Option<Response> {
        if request.op != Op::Read {
            return None;
        }
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.answer(request)
    }

    async fn handle(&self, request: Request, _takes_files: bool) -> Result<Response, Failure> {
        let began = Instant::now();
        while request.op == Op::Read && began.elapsed() < PATIENCE {
            if let Some(response) = self.answer(&request) {
                return Ok(response);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Err(Failure::new(FailureKind::OutOfResources, "there is no memory"))
    }
}

/// A client, and what it reads into.
struct Client {
    memory: Pool,
    thread: Arc<VerbsThread>,
    link: RdmaTransport,
}

impl Client {
    fn new(devices: &Devices, server: &VerbsServer, one_sided: bool) -> Self {
        let memory = pool(8);
        let thread = Devices::thread(&devices.client, memory.clone());
        let options = ClientOptions { bind: Some(devices.client.1), one_sided, ..client_options() };
        let link = RdmaTransport::over_verbs(server.local_addr().to_string(), Arc::clone(&thread), options);
        Self { memory, thread, link }
    }

    async fn read(&self, index: u64, offset: u32, length: u32) {
        let into = self.memory.try_alloc(length as usize).unwrap();
        let request = Request::on_block(Op::Read, key(index), offset, length, PATIENCE);
        let reply = self.link.call(request, Some(into)).await.unwrap();
        let Payload::Landed(bytes) = reply.payload else { panic!("nothing landed") };
        assert!(
            bytes[..] == truth(index, offset, length),
            "{length} bytes at {offset} of block {index} are not its own"
        );
    }

    /// How many reads it has made by itself, and how many it did not believe.
    fn counts(&self) -> (u64, u64) {
        let stats = self.thread.stats();
        (stats.one_sided, stats.one_sided_refused)
    }
}

async fn serve(devices: &Devices, slab: &Arc<Slab>) -> VerbsServer {
    let address = std::net::SocketAddr::new(devices.server.1, 0);
    let thread = Devices::thread(&devices.server, slab.pool.clone());
    let options = ServerOptions::new(address, CLUSTER, BLOCK_SIZE);
    VerbsServer::bind(thread, options, Arc::clone(slab) as Arc<dyn Service>).await.unwrap()
}

/// Numbers that look like any.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_that_is_there_is_read_without_the_worker() {
    let Some(devices) = devices() else { return };
    let slab = Slab::new();
    slab.hold(1);
    let server = serve(&devices, &slab).await;
    let client = Client::new(&devices, &server, true);
    let began = Instant::now();
    while client.counts().0 < 100 {
        assert!(began.elapsed() < PATIENCE, "the worker is asked for everything");
        client.read(1, 0, LENGTH).await;
        client.read(1, 5 * PAGE, PAGE).await;
        // What does not begin and end with pages is the worker's.
        client.read(1, 8, 4096).await;
    }
    let asked = slab.asked.load(Ordering::SeqCst);
    assert!(asked >= 50, "{asked} requests: what is not of pages was read all the same");
    assert_eq!(client.counts().1, 0, "nothing has changed");
    client.link.close().await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_want_it_or_may_not_see_all_asks_for_everything() {
    let Some(devices) = devices() else { return };
    let slab = Slab::new();
    slab.hold(1);
    let server = serve(&devices, &slab).await;
    let (other, confined) = (Client::new(&devices, &server, false), Client::new(&devices, &server, true));
    for _ in 0..20 {
        other.read(1, 0, PAGE).await;
    }
    slab.shows.store(false, Ordering::SeqCst);
    for _ in 0..20 {
        confined.read(1, 0, PAGE).await;
    }
    assert_eq!((other.counts(), confined.counts()), ((0, 0), (0, 0)));
    assert_eq!(slab.asked.load(Ordering::SeqCst), 40);
    other.link.close().await;
    confined.link.close().await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_evicted_or_flips_while_it_is_read_no_wrong_byte_comes() {
    let Some(devices) = devices() else { return };
    let slab = Slab::new();
    let server = serve(&devices, &slab).await;
    let client = Arc::new(Client::new(&devices, &server, true));
    let stop = Arc::new(AtomicBool::new(false));
    let evictor = {
        let (slab, stop) = (Arc::clone(&slab), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut numbers = Numbers(1);
            while !stop.load(Ordering::SeqCst) {
                slab.hold(numbers.next(BLOCKS));
                slab.flip(numbers.next(BLOCKS), numbers.next(u64::from(LENGTH)) as u32);
                std::thread::sleep(Duration::from_micros(numbers.next(3000)));
                slab.evict(numbers.next(BLOCKS));
            }
        })
    };
    let readers = (0..4).map(|reader| {
        let client = Arc::clone(&client);
        tokio::spawn(async move {
            let mut numbers = Numbers(reader + 100);
            let began = Instant::now();
            while client.counts().0 < 200 || client.counts().1 < 20 {
                assert!(began.elapsed() < PATIENCE, "{:?} reads were believed and not", client.counts());
                let offset = numbers.next(u64::from(LENGTH / PAGE)) as u32 * PAGE;
                let most = (LENGTH - offset) / PAGE;
                let length = (1 + numbers.next(u64::from(most)) as u32) * PAGE;
                client.read(numbers.next(BLOCKS), offset, length).await;
            }
        })
    });
    let readers: Vec<_> = readers.collect();
    for reader in readers {
        reader.await.unwrap();
    }
    stop.store(true, Ordering::SeqCst);
    evictor.join().unwrap();
    client.link.close().await;
    server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_loses_its_rights_reads_nothing_by_itself_soon_and_has_its_connection() {
    let Some(devices) = devices() else { return };
    let slab = Slab::new();
    slab.hold(1);
    let server = serve(&devices, &slab).await;
    let client = Client::new(&devices, &server, true);
    for is_denied in [true, false] {
        let began = Instant::now();
        let before = client.counts().0;
        while client.counts().0 < before + 20 {
            assert!(began.elapsed() < PATIENCE, "the worker is asked for everything");
            client.read(1, 0, PAGE).await;
        }
        // Its rights, or a mount that is removed: then it may go on with other keys.
        if is_denied {
            slab.shows.store(false, Ordering::SeqCst);
        } else {
            slab.number.fetch_add(1, Ordering::SeqCst);
        }
        let (mut in_a_row, wanted) = (0, if is_denied { 50 } else { 1 });
        while in_a_row < wanted {
            assert!(began.elapsed() < PATIENCE, "it reads on");
            let (alone, asked) = (client.counts().0, slab.asked.load(Ordering::SeqCst));
            client.read(1, 0, PAGE).await;
            let has_asked = slab.asked.load(Ordering::SeqCst) > asked && client.counts().0 == alone;
            in_a_row = if has_asked { in_a_row + 1 } else { 0 };
        }
        slab.shows.store(true, Ordering::SeqCst);
    }
    assert_eq!(server.connections(), 1, "the same one");
    client.link.close().await;
    server.close().await;
}
