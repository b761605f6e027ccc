//! Clients that read a worker's memory by themselves, between two devices, while blocks are evicted, others come in
//! their place, bits flip and rights change. Every byte is compared.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_locks::Mutex;
use forebay_memory::{Pool, Span, Spans};
use forebay_one_sided::{Generation, Location, Memory, Opened, Plan, Reach, RemotePlace, Sealed};
use forebay_rdma::verbs::{VerbsServer, VerbsThread};
use forebay_rdma::{ClientOptions, RdmaTransport, ServerOptions};
use forebay_transport::wire::{HEADER_LEN, ReplyHeader, RequestHeader};
use forebay_transport::{
    CallError, Caller, Flags, LinkError, Op, Payload, Provenance, Reply, Request, Response, Service, Transport, located,
};
use forebay_types::{BlockKey, Failure, FailureKind, FileId, SECTOR_SIZE, SectorChecksums, SectorRange};
use forebay_verbs::{Post, Read, Reading, Remote};

use crate::common::verbs::{
    Devices, HELLO, OPENED, REPLY, REQUEST, Raw, RawPair, WELCOME, devices, frame, hello, one_sided_offer,
};
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
        Self::over(devices, server.local_addr(), ClientOptions { one_sided, ..client_options() })
    }

    fn over(devices: &Devices, server: SocketAddr, options: ClientOptions) -> Self {
        let memory = pool(8);
        let thread = Devices::thread(&devices.client, memory.clone());
        let options = ClientOptions { bind: Some(devices.client.1), ..options };
        let link = RdmaTransport::over_verbs(server.to_string(), Arc::clone(&thread), options);
        Self { memory, thread, link }
    }

    async fn ask(&self, memory: &Pool, index: u64, offset: u32, length: u32) -> Result<Reply, CallError> {
        let into = memory.alloc(length as usize, PATIENCE).await.unwrap();
        let request = Request::on_block(Op::Read, key(index), offset, length, PATIENCE);
        self.link.call(request, Some(into)).await
    }

    async fn read(&self, index: u64, offset: u32, length: u32) {
        self.read_into(&self.memory, index, offset, length).await;
    }

    async fn read_into(&self, memory: &Pool, index: u64, offset: u32, length: u32) {
        let Payload::Landed(bytes) = self.ask(memory, index, offset, length).await.unwrap().payload else {
            panic!("nothing landed")
        };
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
    // Into memory that is not registered a page is copied, and nothing is registered for one read.
    let (elsewhere, before) = (pool(8), client.counts().0);
    while client.counts().0 < before + 20 {
        assert!(began.elapsed() < PATIENCE, "the worker is asked for every page");
        client.read_into(&elsewhere, 1, 3 * PAGE, PAGE).await;
    }
    let (alone, asked) = (client.counts().0, slab.asked.load(Ordering::SeqCst));
    client.read_into(&elsewhere, 1, 0, LENGTH).await;
    assert_eq!((client.counts().0, slab.asked.load(Ordering::SeqCst)), (alone, asked + 1));
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

/// A client by hand that has greeted, and may read.
fn greet<'a>(raw: &'a Raw, devices: &Devices, server: SocketAddr) -> RawPair<'a> {
    let mut pair = raw.connect(devices, server, &one_sided_offer(32, 8192)).unwrap();
    pair.send(&frame(HELLO, &hello()), Post::default());
    assert_eq!(pair.hear("a welcome")[0], WELCOME);
    pair
}

/// What it is told of the first page of a block: what is opened, and where that lies.
fn told_of(pair: &mut RawPair<'_>, index: u64) -> (Reach, Plan) {
    let request = Request::on_block(Op::Read, key(index), 0, PAGE, PATIENCE).with_flags(Flags::LOCATE);
    pair.send(&frame(REQUEST, &RequestHeader::of(1, &request).encode()), Post::default());
    let mut reach = Reach::default();
    loop {
        let heard = pair.hear("an answer");
        if heard[0] == OPENED {
            reach.open(Opened::decode(heard[16..].try_into().unwrap()).unwrap()).unwrap();
            continue;
        }
        assert_eq!(heard[0], REPLY);
        let header: &[u8; HEADER_LEN] = heard[16..].first_chunk().unwrap();
        let location = located::location(header).unwrap().expect("a location");
        return (reach, location.plan(key(index), 0, PAGE).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_of_one_connection_and_of_no_use_on_another() {
    let Some(devices) = devices() else { return };
    let slab = Slab::new();
    slab.hold(1);
    let server = serve(&devices, &slab).await;
    tokio::task::block_in_place(|| {
        let raw = Raw::reading(&devices.client, Reading::Ours);
        let mut owner = greet(&raw, &devices, server.local_addr());
        let (reach, plan) = told_of(&mut owner, 1);
        let requests = reach.requests(&plan).unwrap();
        let remote = |RemotePlace { address, key }| Remote { address, key };
        let page = |number| Read {
            number,
            into: raw.registration.pool().try_alloc(PAGE as usize).unwrap(),
            length: plan.len(),
            data: remote(requests.data),
            seals: remote(requests.seals),
            seals_length: plan.seals_len(),
        };
        let done = owner.read(page(1), "a page").expect("it has the keys");
        assert_eq!((plan.judge(&done.into, &done.seals), done.number), (Ok(()), 1));
        assert!(done.into[..] == truth(1, 0, PAGE));
        // They can be guessed, or learnt from somebody: the owner's are of its queue pair.
        let mut thief = greet(&raw, &devices, server.local_addr());
        assert!(thief.read(page(2), "what is not shown to it").is_none(), "it read by another one's key");
        drop(thief);
        let done = owner.read(page(3), "a page again").expect("it has its connection still");
        assert_eq!(plan.judge(&done.into, &done.seals), Ok(()));
        // What lies beside the board and beyond the slab is in nobody's reach.
        let beyond = Remote { address: requests.seals.address + (64 << 20), ..remote(requests.seals) };
        assert!(owner.read(Read { seals: beyond, ..page(4) }, "what lies beside").is_none());
    });
    server.close().await;
}

/// A worker's answer of so many bytes, all of them `of`, with a location.
fn answer(id: u64, of: u8, location: &[u8]) -> Vec<u8> {
    let provenance = Provenance { memory: PAGE, ..Provenance::default() };
    let mut header = ReplyHeader { id, failure: None, body_len: 0, payload_len: PAGE, provenance }.encode();
    header[32..52].copy_from_slice(location);
    // What it says of itself has to be right, or else it is not looked at.
    let crc = forebay_types::crc32c(&header[..HEADER_LEN - 4]);
    header[HEADER_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
    frame(REPLY, &[&header[..], &[of; PAGE as usize]].concat())
}

/// The number of the request that was heard.
fn number_of(heard: &[u8]) -> u64 {
    RequestHeader::decode(heard[16..].first_chunk().unwrap()).unwrap().id
}

/// A client of a worker by hand, which may be slow to answer.
fn patient(devices: &Devices, worker: SocketAddr) -> Arc<Client> {
    let (keepalive, dead_after) = (PATIENCE, 2 * PATIENCE);
    let options = ClientOptions { one_sided: true, keepalive, dead_after, ..client_options() };
    Arc::new(Client::over(devices, worker, options))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_tells_of_what_is_not_there_is_not_believed_and_asked() {
    let Some(devices) = devices() else { return };
    let raw = Raw::reading(&devices.server, Reading::Theirs);
    let (_listener, address) = raw.listen(devices.server.1);
    let client = patient(&devices, address);
    let ask = || {
        let client = Arc::clone(&client);
        tokio::spawn(async move { client.ask(&client.memory, 1, 0, PAGE).await })
    };
    let landed = |answered: Result<Reply, CallError>| match answered.unwrap().payload {
        Payload::Landed(bytes) => bytes.to_vec(),
        _ => panic!("nothing landed"),
    };
    // It shows memory of its own, of zeros, as slab and as board, and says that a run lies in its third sector.
    let first = ask();
    let (mut pair, heard) = tokio::task::block_in_place(|| {
        let (mut pair, heard) = raw.serve_one();
        for memory in [Memory::Slab, Memory::Board] {
            let shown = pair.show();
            let (start, length, address, key) = (0, shown.length, shown.address, shown.key);
            let opened = Opened { memory, key, start, length, address };
            pair.send(&frame(OPENED, &opened.encode()), Post { shows: Some(shown.window), ..Post::default() });
        }
        (pair, heard)
    });
    let lie = Location { generation: Generation::new(7).unwrap(), at: 2, first: 0, length: LENGTH };
    pair.send(&answer(number_of(&heard), 0x11, &lie.encode()), Post::default());
    assert!(landed(first.await.unwrap()) == [0x11; PAGE as usize]);
    // The client reads there, finds no seal, and asks.
    let second = ask();
    let heard = tokio::task::block_in_place(|| pair.hear("a request"));
    pair.send(&answer(number_of(&heard), 0x22, &[0; 20]), Post::default());
    assert!(landed(second.await.unwrap()) == [0x22; PAGE as usize]);
    assert_eq!(client.counts(), (0, 1));
    client.link.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_opens_what_cannot_be_or_tells_of_no_place_loses_the_connection() {
    let Some(devices) = devices() else { return };
    let raw = Raw::reading(&devices.server, Reading::Theirs);
    let (_listener, address) = raw.listen(devices.server.1);
    let client = patient(&devices, address);
    let opened = |memory: u32, address: u64| {
        let mut bytes = Opened { memory: Memory::Slab, key: 1, start: 0, length: 4096, address }.encode();
        bytes[..4].copy_from_slice(&memory.to_le_bytes());
        frame(OPENED, &bytes)
    };
    let generation = Generation::new(7).unwrap();
    let beyond = Location { generation, at: 0, first: 100, length: BLOCK_SIZE };
    let cases = [
        ("memory in too few bytes", frame(OPENED, &[0; 31])),
        ("memory of a kind that there is not", opened(2, 0)),
        ("memory beyond the last address", opened(0, u64::MAX - 5)),
        ("a run that ends beyond its block", answer(1, 0, &beyond.encode())),
    ];
    for (case, said) in cases {
        let asking = Arc::clone(&client);
        let call = tokio::spawn(async move { asking.ask(&asking.memory, 1, 0, PAGE).await });
        let pair = tokio::task::block_in_place(|| {
            let (mut pair, heard) = raw.serve_one();
            assert_eq!(number_of(&heard), 1, "{case}");
            pair.send(&said, Post::default());
            pair.ends(case);
            pair
        });
        let result = call.await.unwrap();
        assert!(matches!(result, Err(CallError::Link(LinkError::Protocol { .. }))), "{case}: {result:?}");
        drop(pair);
    }
    client.link.close().await;
}
