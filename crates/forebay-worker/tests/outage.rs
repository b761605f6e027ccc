//! A client whose only worker is away for a while: which requests wait for it, for how long, and which read the origin
//! meanwhile; and a worker that another one joins.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use common::{SECOND, namespace, origin, path, pattern, store, worker};
use forebay_client::{Away, Client, ClientOptions, ClientStats, Connector, OpenFile};
use forebay_cluster::{Backoff, Member, Membership, StaticMembership, Topology};
use forebay_origin::FakeOrigin;
use forebay_transport::fake::FakeTransport;
use forebay_transport::{CallError, LinkError, LocalTransport, Op, Request, Response, Service, Transport};
use forebay_types::{Failure, FailureKind};
use tokio::time::Instant;

const TIMEOUT: Duration = Duration::from_secs(20);
const BYTES: usize = 9 << 20;
/// The longest pause between two tries, and some.
const PAUSE: Duration = Duration::from_secs(3);

struct OneLink(Arc<FakeTransport>);

impl Connector for OneLink {
    fn connect(&self, _member: &Member) -> Arc<dyn Transport> {
        Arc::clone(&self.0) as Arc<dyn Transport>
    }
}

struct Scene {
    origin: Arc<FakeOrigin>,
    link: Arc<FakeTransport>,
    client: Client,
    file: Arc<OpenFile>,
    bytes: Vec<u8>,
}

impl Scene {
    async fn new(away: impl AsyncFnOnce(&Arc<FakeOrigin>) -> Away) -> Self {
        let origin = origin();
        let bytes = pattern(BYTES, 7);
        origin.put("f", bytes.clone());
        let service = worker(&origin).await as Arc<dyn Service>;
        let link = Arc::new(FakeTransport::new("one", service));
        let backoff = Backoff { initial: SECOND, max: 10 * SECOND };
        let options = ClientOptions { backoff, request_timeout: TIMEOUT, ..ClientOptions::default() };
        let (members, connector) = (Arc::new(StaticMembership::new(["one"])), Arc::new(OneLink(Arc::clone(&link))));
        let (buffers, runtime) = (store(64, None).await, tokio::runtime::Handle::current());
        let away = away(&origin).await;
        let client = Client::with_resort(members, connector, buffers, options, away, runtime);
        let attr = client.stat(&path("/s3/f"), false).await.unwrap().attr;
        let file = client.open(attr.version().unwrap().clone());
        Self { origin, link, client, file, bytes }
    }

    async fn assert_reads(&self, at: usize, length: usize) {
        let spans = self.file.read(at as u64, length as u32).await.unwrap();
        let read: Vec<u8> = spans.iter().flat_map(|span| span.iter().copied()).collect();
        assert!(read == self.bytes[at..at + length], "{length} bytes at {at}");
    }

    fn stats(&self) -> &ClientStats {
        self.client.stats()
    }

    fn waiting(&self) -> u64 {
        self.stats().waiting_for_workers.load(Ordering::Relaxed)
    }
}

#[tokio::test(start_paused = true)]
async fn readers_wait_for_the_only_worker_and_get_the_right_bytes_when_it_is_back() {
    let scene = Scene::new(async |_| Away::Wait).await;
    scene.link.kill();
    let began = Instant::now();
    let back = async {
        tokio::time::sleep(8 * SECOND).await;
        assert!(scene.waiting() > 0);
        scene.link.revive();
    };
    let reads = (0..32).map(|index| scene.assert_reads(index * 200_000, 100_000));
    let found = async { scene.client.stat(&path("/s3/f"), true).await.unwrap().attr.size() };
    let (_, _, size) = tokio::join!(futures::future::join_all(reads), back, found);
    assert_eq!(size, BYTES as u64);
    let waited = began.elapsed();
    assert!((8 * SECOND..8 * SECOND + PAUSE).contains(&waited), "{waited:?}");
    assert_eq!(scene.stats().outages.load(Ordering::Relaxed), 1, "one, however many wait");
    assert_eq!(scene.stats().failed_reads.load(Ordering::Relaxed), 0);
    assert_eq!(scene.waiting(), 0);
    let asked = scene.link.calls(Op::Read) + scene.link.calls(Op::Fill);
    assert!(asked < 33 * 16, "{asked} requests: who waits does not hammer");
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_a_request_may_take_and_whoever_gives_up_is_counted_no_more() {
    let scene = Scene::new(async |_| Away::Wait).await;
    scene.link.kill();
    let began = Instant::now();
    let failure = scene.client.stat(&path("/s3/f"), true).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Unavailable, "{failure}");
    assert!((TIMEOUT - PAUSE..=TIMEOUT).contains(&began.elapsed()), "{:?}", began.elapsed());

    let impatient = tokio::time::timeout(SECOND, scene.file.read(0, 10)).await;
    assert!(impatient.is_err(), "a second is not enough to give up by itself");
    tokio::task::yield_now().await;
    let began = Instant::now();
    assert!(scene.file.read(0, 10).await.is_err());
    assert!(began.elapsed() < 2 * TIMEOUT, "{:?}", began.elapsed());
    tokio::time::sleep(2 * TIMEOUT).await;
    assert_eq!(scene.waiting(), 0);
    assert_eq!(scene.stats().outages.load(Ordering::Relaxed), 1, "it is the same one");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_closed_keeps_nobody_waiting() {
    let scene = Scene::new(async |_| Away::Wait).await;
    scene.link.kill();
    let began = Instant::now();
    let close = async {
        tokio::time::sleep(SECOND).await;
        scene.client.close().await;
    };
    let name = path("/s3/f");
    let (read, ()) = tokio::join!(scene.client.stat(&name, true), close);
    assert!(read.is_err() && began.elapsed() < PAUSE, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_does_not_want_us_is_not_waited_for_and_one_that_answers_neither() {
    let scene = Scene::new(async |_| Away::Wait).await;
    let began = Instant::now();
    let refused = LinkError::Refused { peer: "one".into(), reason: "another cluster".into() };
    scene.link.fail_next(1, &CallError::Link(refused));
    assert!(scene.client.stat(&path("/s3/f"), true).await.is_err());
    assert_eq!(scene.client.stat(&path("/s3/none"), true).await.unwrap_err().kind(), FailureKind::NotFound);
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    assert_eq!(scene.stats().outages.load(Ordering::Relaxed), 0);
}

fn unproved() -> CallError {
    let reason = "it speaks TLS only; set `security.mode` as it is set there".to_owned();
    LinkError::Unproved { peer: "one".into(), reason }.into()
}

#[tokio::test(start_paused = true)]
async fn who_does_not_prove_who_it_is_is_told_so_at_once() {
    let scene = Scene::new(async |_| Away::Wait).await;
    let began = Instant::now();
    scene.link.fail_next(1000, &unproved());
    let failures = [
        scene.client.stat(&path("/s3/f"), true).await.map(|_| ()).unwrap_err(),
        scene.file.read(0, 10).await.map(|_| ()).unwrap_err(),
        scene.client.remove(&path("/s3/f")).await.unwrap_err(),
    ];
    for failure in failures {
        assert_eq!(failure.kind(), FailureKind::PermissionDenied, "{failure}");
        assert!(failure.message().ends_with("; set `security.mode` as it is set there"), "{failure}");
    }
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    assert_eq!(scene.stats().outages.load(Ordering::Relaxed), 0);
}

/// One that has another key than the others costs a failover, and only the word of all of them is that the client is denied.
#[tokio::test(start_paused = true)]
async fn another_worker_is_asked_when_one_does_not_believe_who_we_are() {
    let origin = origin();
    origin.put("f", pattern(BYTES, 7));
    let service = worker(&origin).await as Arc<dyn Service>;
    let links = ["one", "two"].map(|name| Arc::new(FakeTransport::new(name, Arc::clone(&service))));
    let [one, two] = links.clone();
    let topology = ArcSwap::from(StaticMembership::new(["one", "two"]).topology());
    let cluster = Arc::new(Joining { topology, links });
    let options = ClientOptions { request_timeout: TIMEOUT, ..ClientOptions::default() };
    let (buffers, runtime) = (store(64, None).await, tokio::runtime::Handle::current());
    let client = Client::with_resort(
        Arc::clone(&cluster) as _,
        Arc::clone(&cluster) as _,
        buffers,
        options,
        Away::Wait,
        runtime,
    );
    let name = path("/s3/f");
    let found =
        async || client.stat(&name, true).await.map(|found| found.attr.size()).map_err(|failure| failure.kind());
    let began = Instant::now();
    assert_eq!(found().await, Ok(BYTES as u64));
    let (owner, other) = if one.calls(Op::Stat) > 0 { (one, two) } else { (two, one) };
    owner.fail_next(1, &unproved());
    assert_eq!(found().await, Ok(BYTES as u64));
    owner.fail_next(1, &unproved());
    other.fail_next(1, &unproved());
    assert_eq!(found().await, Err(FailureKind::PermissionDenied));
    for (refuses, away) in [(&owner, &other), (&other, &owner)] {
        refuses.fail_next(1, &unproved());
        away.kill();
        assert_eq!(found().await, Err(FailureKind::Unavailable), "the one that is away may believe it");
        away.revive();
    }
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
}

/// It was restarted while the cluster's state is away.
#[tokio::test(start_paused = true)]
async fn a_worker_that_does_not_know_yet_what_is_mounted_is_waited_for() {
    let (origin, bytes) = (origin(), pattern(BYTES, 7));
    origin.put("f", bytes.clone());
    origin.put("g", bytes.clone());
    let worker = worker(&origin).await;
    let link = Arc::new(FakeTransport::new("one", Arc::clone(&worker) as Arc<dyn Service>));
    let backoff = Backoff { initial: SECOND / 10, max: 2 * SECOND };
    let options = ClientOptions { backoff, request_timeout: TIMEOUT, ..ClientOptions::default() };
    let (members, connector) = (Arc::new(StaticMembership::new(["one"])), Arc::new(OneLink(Arc::clone(&link))));
    let (buffers, runtime) = (store(64, None).await, tokio::runtime::Handle::current());
    let client = Client::with_resort(members, connector, buffers, options, Away::Wait, runtime);
    let attr = client.stat(&path("/s3/f"), true).await.unwrap().attr;
    let file = client.open(attr.version().unwrap().clone());

    worker.set_namespace(namespace(&[]).and_others()).await;
    let (f, g) = (path("/s3/f"), path("/s3/g"));
    let asked = link.calls(Op::Stat);
    let began = Instant::now();
    let told = async {
        tokio::time::sleep(8 * SECOND).await;
        assert!(client.stats().waiting_for_workers.load(Ordering::Relaxed) >= 2);
        worker.set_namespace(namespace(&[("/s3", &origin)])).await;
    };
    let (found, read, removed, ()) = tokio::join!(client.stat(&f, true), file.read(0, 1000), client.remove(&g), told);
    assert_eq!(found.unwrap().attr.size(), BYTES as u64);
    let read: Vec<u8> = read.unwrap().iter().flat_map(|span| span.iter().copied()).collect();
    assert!(read == bytes[..1000]);
    removed.unwrap();
    assert!((8 * SECOND..8 * SECOND + PAUSE).contains(&began.elapsed()), "{:?}", began.elapsed());
    assert!(link.calls(Op::Stat) - asked < 16, "who waits does not hammer");
    assert_eq!(client.stats().outages.load(Ordering::Relaxed), 0, "it can be reached");

    worker.set_namespace(namespace(&[]).and_others()).await;
    let began = Instant::now();
    assert_eq!(client.stat(&f, true).await.unwrap_err().kind(), FailureKind::NotReady);
    assert!((TIMEOUT - PAUSE..=TIMEOUT).contains(&began.elapsed()), "{:?}", began.elapsed());

    // So is one that is about to end, and has told no client of that yet.
    worker.set_namespace(namespace(&[("/s3", &origin)])).await;
    origin.set_delay(8 * SECOND);
    let began = Instant::now();
    let ends = async {
        tokio::time::sleep(SECOND).await;
        worker.close().await;
    };
    let (read, ()) = tokio::join!(file.read(BYTES as u64 / 2, 1000), ends);
    assert_eq!(read.unwrap_err().kind(), FailureKind::NotReady);
    assert!((TIMEOUT - PAUSE..=TIMEOUT).contains(&began.elapsed()), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn who_may_read_the_origin_does_not_wait_and_comes_back_to_the_worker() {
    let resort = async |origin: &Arc<FakeOrigin>| {
        let resort = worker(origin).await as Arc<dyn Service>;
        Away::Origin(Arc::new(LocalTransport::new(resort)))
    };
    let scene = Scene::new(resort).await;
    scene.link.kill();
    let began = Instant::now();
    for at in (0..BYTES - 100_000).step_by(1_234_567) {
        scene.assert_reads(at, 100_000).await;
    }
    assert_eq!(scene.client.stat(&path("/s3/f"), true).await.unwrap().attr.size(), BYTES as u64);
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    let direct = || scene.stats().direct_requests.load(Ordering::Relaxed);
    assert!(direct() > 0);
    assert_eq!(scene.stats().outages.load(Ordering::Relaxed), 1);
    assert_eq!(scene.stats().failed_reads.load(Ordering::Relaxed), 0);

    // What is replaced meanwhile is not mixed with what was read.
    scene.origin.put("f", pattern(BYTES, 8));
    let failure = scene.file.read(BYTES as u64 - 1000, 1000).await.map(|_| ()).err();
    assert!(failure.is_none_or(|failure| failure.kind() == FailureKind::VersionChanged));

    scene.link.revive();
    tokio::time::sleep(20 * SECOND).await;
    let before = direct();
    assert!(scene.client.stat(&path("/s3/f"), true).await.is_ok());
    assert_eq!(direct(), before, "the worker is asked again");
}

#[tokio::test(start_paused = true)]
async fn who_has_never_heard_of_a_worker_is_told_at_once() {
    let origin = origin();
    let link = Arc::new(FakeTransport::new("one", worker(&origin).await as Arc<dyn Service>));
    link.kill();
    let (members, connector) = (Arc::new(StaticMembership::new(["one"])), Arc::new(OneLink(link)));
    let (buffers, runtime) = (store(64, None).await, tokio::runtime::Handle::current());
    let client = Client::with_resort(members, connector, buffers, ClientOptions::default(), Away::Wait, runtime);
    let began = Instant::now();
    assert_eq!(client.stat(&path("/s3/f"), true).await.unwrap_err().kind(), FailureKind::Unavailable);
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
}

/// A worker that takes its time to find out that it cannot read.
struct Unable {
    service: Arc<dyn Service>,
    asked: AtomicU64,
}

#[async_trait::async_trait]
impl Service for Unable {
    async fn handle(&self, request: Request, takes_files: bool) -> Result<Response, Failure> {
        if !matches!(request.op, Op::Read | Op::Fill) {
            return self.service.handle(request, takes_files).await;
        }
        self.asked.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(4 * SECOND).await;
        Err(Failure::new(FailureKind::Unavailable, "the origin does not answer"))
    }
}

/// Two workers, of which one is there at first.
struct Joining {
    topology: ArcSwap<Topology>,
    links: [Arc<FakeTransport>; 2],
}

impl Membership for Joining {
    fn topology(&self) -> Arc<Topology> {
        self.topology.load_full()
    }
}

impl Connector for Joining {
    fn connect(&self, member: &Member) -> Arc<dyn Transport> {
        let link = self.links.iter().find(|link| link.peer() == &*member.name);
        Arc::clone(link.unwrap()) as Arc<dyn Transport>
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_joins_while_the_others_fail_is_asked_before_anybody_gives_up() {
    let origin = origin();
    origin.put("f", pattern(BYTES, 7));
    let old = Arc::new(Unable { service: worker(&origin).await as Arc<dyn Service>, asked: AtomicU64::new(0) });
    let new = worker(&origin).await as Arc<dyn Service>;
    let links = [FakeTransport::new("old", Arc::clone(&old) as Arc<dyn Service>), FakeTransport::new("new", new)];
    let topology = StaticMembership::new(["old"]).topology();
    let cluster = Arc::new(Joining { topology: ArcSwap::from(topology), links: links.map(Arc::new) });
    let options = ClientOptions { request_timeout: TIMEOUT, ..ClientOptions::default() };
    let (buffers, runtime) = (store(64, None).await, tokio::runtime::Handle::current());
    let client = Client::new(Arc::clone(&cluster) as _, Arc::clone(&cluster) as _, buffers, options, runtime);
    let version = client.stat(&path("/s3/f"), false).await.unwrap().attr.version().unwrap().clone();
    let file = client.open(version);
    let joins = async {
        tokio::time::sleep(SECOND).await;
        cluster.topology.store(StaticMembership::new(["old", "new"]).topology());
    };
    let (read, ()) = tokio::join!(file.read(0, 100), joins);
    let read: Vec<u8> = read.unwrap().iter().flat_map(|span| span.iter().copied()).collect();
    assert_eq!(read, pattern(BYTES, 7)[..100]);
    assert_eq!(old.asked.load(Ordering::Relaxed), 1, "who has said that it cannot is not asked again");
}
