//! A worker and its client over the local transport, and over several workers that come and go.

mod common;

use std::collections::HashMap;
use std::sync::Arc;

use common::{SECOND, origin, path, pattern, store};
use forebay_client::{Client, ClientOptions, Connector};
use forebay_cluster::{Backoff, Member, Membership, StaticMembership};
use forebay_engine::FetchPolicy;
use forebay_memory::{Pool, PoolOptions, Spans};
use forebay_origin::{FakeOrigin, Origin};
use forebay_store::{Store, StoreOptions};
use forebay_transport::fake::FakeTransport;
use forebay_transport::{CallError, LocalTransport, Op, Request, Service, Transport};
use forebay_types::{BlockKey, ByteSize, Failure, FailureKind, FileVersion, FsPath, MAX_BLOCK_SIZE};
use forebay_worker::{MetadataOptions, Namespace, Worker, WorkerOptions};

async fn worker(origin: &Arc<FakeOrigin>) -> Arc<Worker> {
    worker_with(origin, store(64, None).await)
}

fn worker_with(origin: &Arc<FakeOrigin>, store: Store) -> Arc<Worker> {
    let mount = (FsPath::root(), Arc::clone(origin) as Arc<dyn Origin>);
    let options = WorkerOptions {
        block_size: MAX_BLOCK_SIZE,
        fetch: FetchPolicy::origin(64 << 10, 4 << 20),
        deadline: 20 * SECOND,
        metadata: MetadataOptions { ttl: 60 * SECOND, entries: 10_000 },
        takes_changes: true,
    };
    Arc::new(Worker::new(store, Namespace::new([mount]).unwrap(), options))
}

/// Links by member name.
struct Links(HashMap<String, Arc<dyn Transport>>);

impl Connector for Links {
    fn connect(&self, member: &Member) -> Arc<dyn Transport> {
        Arc::clone(&self.0[&*member.name])
    }
}

async fn client(links: impl IntoIterator<Item = (String, Arc<dyn Transport>)>) -> Client {
    let links: HashMap<_, _> = links.into_iter().collect();
    let membership: Arc<dyn Membership> = Arc::new(StaticMembership::new(links.keys()));
    let backoff = Backoff { initial: SECOND, max: 30 * SECOND };
    let options = ClientOptions { backoff, request_timeout: 20 * SECOND, ..ClientOptions::default() };
    let buffers = store(64, None).await;
    Client::new(membership, Arc::new(Links(links)), buffers, options, tokio::runtime::Handle::current())
}

async fn local(origin: &Arc<FakeOrigin>) -> (Arc<Worker>, Client) {
    let worker = worker(origin).await;
    let link: Arc<dyn Transport> = Arc::new(LocalTransport::new(Arc::clone(&worker) as Arc<dyn Service>));
    let client = client([("local".to_owned(), link)]).await;
    (worker, client)
}

fn bytes_of(spans: &Spans) -> Vec<u8> {
    spans.iter().flat_map(|span| span.iter().copied()).collect()
}

async fn version(client: &Client, name: &str) -> FileVersion {
    client.stat(&path(name), false).await.unwrap().attr.version().unwrap().clone()
}

#[tokio::test]
async fn a_file_is_read_cold_then_warm_without_waiting() {
    let origin = origin();
    let bytes = pattern(9 << 20, 1);
    origin.put("d/f", bytes.clone());
    let (worker, client) = local(&origin).await;
    let file = client.open(version(&client, "/d/f").await);
    assert!(file.try_read(0, 100).is_none());
    assert_eq!(bytes_of(&file.read(0, 100).await.unwrap()), bytes[..100]);
    assert_eq!(bytes_of(&file.try_read(0, 100).unwrap()), bytes[..100]);
    // Over the end of a block and over the end of the file.
    let at = MAX_BLOCK_SIZE as usize - 10;
    assert_eq!(bytes_of(&file.read(at as u64, 20).await.unwrap()), bytes[at..at + 20]);
    assert_eq!(bytes_of(&file.read((9 << 20) - 5, 4096).await.unwrap()), bytes[(9 << 20) - 5..]);
    assert!(file.read(9 << 20, 4096).await.unwrap().is_empty());
    assert!(worker.counts().bytes_memory >= 100);
    client.close().await;
    worker.close().await;
}

#[tokio::test]
async fn an_empty_file_reads_as_nothing() {
    let origin = origin();
    origin.put("empty", Vec::new());
    let (_worker, client) = local(&origin).await;
    let file = client.open(version(&client, "/empty").await);
    assert!(file.read(0, 4096).await.unwrap().is_empty());
    assert!(file.try_read(0, 4096).unwrap().is_empty());
    assert_eq!(origin.counts().gets, 0);
}

#[tokio::test]
async fn a_reader_never_sees_two_versions() {
    let origin = origin();
    let (old, new) = (pattern(9 << 20, 1), pattern(9 << 20, 2));
    origin.put("f", old.clone());
    let (_worker, client) = local(&origin).await;
    let before = client.open(version(&client, "/f").await);
    assert_eq!(bytes_of(&before.read(0, 4096).await.unwrap()), old[..4096]);
    origin.put("f", new.clone());
    // What was cached is still the old version; what was not is gone.
    assert_eq!(bytes_of(&before.read(0, 4096).await.unwrap()), old[..4096]);
    assert_eq!(before.read(8 << 20, 4096).await.unwrap_err().kind(), FailureKind::VersionChanged);
    // The failure made the worker forget what it believed of the name.
    let after = client.open(version(&client, "/f").await);
    assert_eq!(bytes_of(&after.read(0, 4096).await.unwrap()), new[..4096]);
    assert_eq!(bytes_of(&before.read(0, 4096).await.unwrap()), old[..4096]);
}

/// Invariant 2.
#[tokio::test]
async fn a_bit_that_flips_in_a_workers_memory_is_found_by_the_client_and_filled_again() {
    for verify_reads in [true, false] {
        flipped_bit_is_filled_again(verify_reads).await;
    }
}

async fn flipped_bit_is_filled_again(verify_reads: bool) {
    let origin = origin();
    let bytes = pattern(4 << 20, 5);
    origin.put("f", bytes.clone());
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(64))).unwrap();
    let verified = StoreOptions { verify_reads, ..StoreOptions::in_memory(pool) };
    let worker = worker_with(&origin, Store::open(verified).await.unwrap());
    let linked = || -> Arc<dyn Transport> {
        Arc::new(FakeTransport::new("w".to_owned(), Arc::clone(&worker) as Arc<dyn Service>))
    };
    let read = async |client: &Client| {
        let file = client.open(version(client, "/f").await);
        bytes_of(&file.read(0, 4 << 20).await.unwrap())
    };
    let first = client([("w".to_owned(), linked())]).await;
    assert!(read(&first).await == bytes);
    let key = BlockKey { file: version(&first, "/f").await.id(), index: 0 };
    let cached = worker.store().try_read(&key, 0, 4 << 20).unwrap();
    let (base, length) = worker.store().pool().mapping();
    let at = cached[0].as_ptr().addr() - base.as_ptr().addr() + 1_000_000;
    drop(cached);
    assert!(at < length);
    // SAFETY: inside the mapping, and nothing reads these bytes now: faulty memory does not ask for more.
    unsafe { *base.as_ptr().add(at) ^= 0x10 };
    let second = client([("w".to_owned(), linked())]).await;
    assert!(read(&second).await == bytes);
    assert_eq!(second.stats().corrupt_sectors.load(std::sync::atomic::Ordering::Relaxed), 1);
    assert_eq!(worker.store().stats().memory.corrupt_sectors, 1);
    assert_eq!(origin.counts().gets, 2, "the block was fetched again");
    assert!(read(&client([("w".to_owned(), linked())]).await).await == bytes);
    assert_eq!(worker.store().stats().memory.corrupt_sectors, 1);
}

#[tokio::test]
async fn a_sequential_reader_is_fetched_ahead_of() {
    let origin = origin();
    let bytes = pattern(64 << 20, 3);
    origin.put("f", bytes.clone());
    let (_worker, client) = local(&origin).await;
    let file = client.open(version(&client, "/f").await);
    let step = 1 << 20;
    for at in (0..32 << 20).step_by(step) {
        assert_eq!(bytes_of(&file.read(at as u64, step as u32).await.unwrap()), bytes[at..at + step]);
    }
    let deadline = tokio::time::Instant::now() + 10 * SECOND;
    while file.try_read(36 << 20, 1 << 20).is_none() {
        assert!(tokio::time::Instant::now() < deadline, "nothing was fetched ahead");
        tokio::task::yield_now().await;
    }
    client.close().await;
    let mut fetched: Vec<_> = origin.reads().into_iter().map(|(_, range)| range).collect();
    fetched.sort_by_key(|range| range.start);
    assert!(fetched.windows(2).all(|pair| pair[0].end <= pair[1].start), "a byte was fetched twice: {fetched:?}");
}

#[tokio::test]
async fn requests_that_make_no_sense_are_refused() {
    let origin = origin();
    let version = origin.put("f", pattern(100_000, 1));
    let (worker, _client) = local(&origin).await;
    let link = LocalTransport::new(Arc::clone(&worker) as Arc<dyn Service>);
    let key = forebay_types::BlockKey { file: version.id(), index: 0 };
    let kind = |result: Result<_, CallError>| match result {
        Err(CallError::Service(failure)) => failure.kind(),
        Err(CallError::Link(error)) => panic!("{error}"),
        Ok(_) => panic!("it was answered"),
    };
    let read = |offset, length| Request::on_block(Op::Read, key, offset, length, SECOND);
    assert_eq!(kind(link.call(read(0, 10), None).await), FailureKind::NeedsDescription);
    let described = |request: Request| request.with_body(version.encode().into());
    for (offset, length) in [(0, 0), (0, 100_001), (100_000, 1), (u32::MAX, 10)] {
        let refused = link.call(described(read(offset, length)), None).await;
        assert_eq!(kind(refused), FailureKind::InvalidArgument, "{offset} {length}");
    }
    // The description of another file, garbage, and an origin that this worker has no mount on.
    let other = origin.put("g", pattern(10, 1));
    for body in [other.encode(), b"garbage".to_vec()] {
        let refused = link.call(read(0, 10).with_body(body.into()), None).await;
        assert_eq!(kind(refused), FailureKind::InvalidArgument);
    }
    let foreign = FileVersion { origin: "s3://secret".into(), ..version.clone() };
    let key = forebay_types::BlockKey { file: foreign.id(), index: 0 };
    let request = Request::on_block(Op::Read, key, 0, 10, SECOND).with_body(foreign.encode().into());
    assert_eq!(kind(link.call(request, None).await), FailureKind::Unavailable);
    for op in [Op::Stat, Op::List] {
        let refused = link.call(Request::on_path(op, vec![0xff; 40].into(), SECOND), None).await;
        assert_eq!(kind(refused), FailureKind::InvalidArgument);
    }
}

/// Three workers behind fakes that can be killed.
async fn three(origin: &Arc<FakeOrigin>) -> (Vec<Arc<FakeTransport>>, Vec<Arc<Worker>>, Client) {
    let (mut fakes, mut workers, mut links) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..3 {
        let worker = worker(origin).await;
        let fake = Arc::new(FakeTransport::new(format!("w{number}"), Arc::clone(&worker) as Arc<dyn Service>));
        links.push((format!("w{number}"), Arc::clone(&fake) as Arc<dyn Transport>));
        fakes.push(fake);
        workers.push(worker);
    }
    (fakes, workers, client(links).await)
}

#[tokio::test]
async fn several_workers_serve_one_file_at_once() {
    let origin = origin();
    let bytes = pattern(48 << 20, 4);
    origin.put("f", bytes.clone());
    let (_fakes, workers, client) = three(&origin).await;
    let file = client.open(version(&client, "/f").await);
    for at in (0..bytes.len()).step_by(1 << 20) {
        assert_eq!(bytes_of(&file.read(at as u64, 1 << 20).await.unwrap()), bytes[at..at + (1 << 20)]);
    }
    client.close().await;
    for worker in &workers {
        assert!(worker.counts().bytes_origin > 0, "a worker served nothing");
    }
    assert_eq!(origin.counts().bytes, 48 << 20, "each byte is fetched once in the whole cluster");
}

#[tokio::test(start_paused = true)]
async fn a_dead_worker_costs_its_readers_no_error() {
    let origin = origin();
    let bytes = pattern(48 << 20, 5);
    origin.put("f", bytes.clone());
    let (fakes, _workers, client) = three(&origin).await;
    let file = client.open(version(&client, "/f").await);
    for dead in &fakes {
        dead.kill();
        for at in (0..bytes.len()).step_by(1_234_567) {
            let length = 100_000.min(bytes.len() - at);
            assert_eq!(bytes_of(&file.read(at as u64, length as u32).await.unwrap()), bytes[at..at + length]);
        }
        assert_eq!(client.stat(&path("/f"), true).await.unwrap().attr.size(), 48 << 20);
        dead.revive();
        tokio::time::sleep(60 * SECOND).await;
    }
    assert!(client.stats().failovers.load(std::sync::atomic::Ordering::Relaxed) > 0);
}

#[tokio::test(start_paused = true)]
async fn with_no_worker_left_the_error_says_so() {
    let origin = origin();
    origin.put("f", pattern(100, 1));
    let (fakes, _workers, client) = three(&origin).await;
    let file = client.open(version(&client, "/f").await);
    fakes.iter().for_each(|fake| fake.kill());
    let failure: Failure = file.read(0, 10).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Unavailable, "{failure}");
    fakes.iter().for_each(|fake| fake.revive());
    assert!(file.read(0, 10).await.is_ok(), "the last resort is to try those who failed");
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_memory_is_asked_again_after_pauses_and_no_longer_than_the_deadline() {
    let origin = origin();
    let bytes = pattern(1 << 20, 6);
    origin.put("f", bytes.clone());
    let worker = worker(&origin).await;
    let fake = Arc::new(FakeTransport::new("w", worker as Arc<dyn Service>));
    let client = client([("w".to_owned(), Arc::clone(&fake) as Arc<dyn Transport>)]).await;
    let file = client.open(version(&client, "/f").await);
    let full = CallError::Service(Failure::new(FailureKind::OutOfResources, "scripted"));
    fake.fail_next(usize::from(u16::MAX), &full);
    let began = tokio::time::Instant::now();
    let failure = file.read(0, 4096).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::OutOfResources, "{failure}");
    assert!((19 * SECOND..=20 * SECOND).contains(&began.elapsed()), "{:?}", began.elapsed());
    // Pauses are 5 ms at first, 500 ms at last, and at least half of that.
    assert!((40..=100).contains(&fake.calls(Op::Read)), "{} in 20 s", fake.calls(Op::Read));
    client.close().await;
}
