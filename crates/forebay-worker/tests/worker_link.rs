//! The link to a worker that says itself by which paths it is reached, in virtual time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use forebay_client::paths::{
    Fallback, Path, PathKind, PathMaker, PathOptions, PathPolicy, PathStats, WorkerLink, WorkerPaths,
};
use forebay_locks::Mutex;
use forebay_transport::fake::FakeTransport;
use forebay_transport::message::{PathAddress, PathsReply};
use forebay_transport::{CallError, LinkError, Op, Request, Response, Service, Transport};
use forebay_types::{BlockKey, Failure, FileId};

const SECOND: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_secs(300);

/// A worker that answers everything with nothing, and says how it is reached.
#[derive(Default)]
struct Offering(Mutex<PathsReply>);

#[async_trait::async_trait]
impl Service for Offering {
    async fn handle(&self, request: Request, _takes_files: bool) -> Result<Response, Failure> {
        Ok(Response::of_body(if request.op == Op::Paths { self.0.lock().encode() } else { Bytes::new() }))
    }
}

/// Paths over fakes, one for each port that a worker may name.
struct Fakes {
    links: [Arc<FakeTransport>; 3],
}

impl Fakes {
    fn path(&self, address: &PathAddress) -> Path {
        let link = Arc::clone(&self.links[usize::from(address.port)]) as Arc<dyn Transport>;
        Path { name: address.card.clone(), kind: PathKind::Rdma, link, card: None }
    }
}

impl PathMaker for Fakes {
    fn paths(&self, _tcp: &Arc<dyn Transport>, offered: &PathsReply) -> WorkerPaths {
        let data = offered.data.iter().map(|address| self.path(address)).collect();
        WorkerPaths { data: Ok(data), metadata: offered.metadata.iter().map(|address| self.path(address)).collect() }
    }
}

struct Scene {
    worker: Arc<Offering>,
    tcp: Arc<FakeTransport>,
    fakes: Arc<Fakes>,
    stats: Arc<PathStats>,
    link: WorkerLink,
}

fn at(port: u16) -> PathAddress {
    PathAddress { card: format!("card{port}"), host: String::new(), port }
}

/// A worker that offers data and metadata at these ports.
fn offer(data: Option<u16>, metadata: Option<u16>) -> PathsReply {
    let (ucx, data) = (Some("1.20.0".into()), data.map(at).into_iter().collect());
    PathsReply { ucx, data, metadata: metadata.map(at), verbs: None }
}

impl Scene {
    fn new(fallback: Fallback, offered: PathsReply) -> Self {
        let worker = Arc::new(Offering(Mutex::new(offered)));
        let fake = |name: &str| Arc::new(FakeTransport::new(name, Arc::clone(&worker) as Arc<dyn Service>));
        let tcp = fake("worker:29999");
        let fakes = Arc::new(Fakes { links: [fake("0"), fake("1"), fake("2")] });
        let policy = PathPolicy { fallback, retry_after: RETRY, silence: 2 * SECOND };
        let options = PathOptions { policy, operation_timeout: 5 * SECOND, striping: None };
        let stats = Arc::new(PathStats::default());
        let maker = Arc::clone(&fakes) as Arc<dyn PathMaker>;
        let link = WorkerLink::new(Arc::clone(&tcp) as Arc<dyn Transport>, maker, options, Arc::clone(&stats));
        Self { worker, tcp, fakes, stats, link }
    }

    async fn read(&self) -> Result<(), CallError> {
        let block = BlockKey { file: FileId([1; 16]), index: 0 };
        self.link.call(Request::on_block(Op::Fill, block, 0, 1, 10 * SECOND), None).await.map(drop)
    }

    async fn stat(&self) -> Result<(), CallError> {
        self.link.call(Request::on_path(Op::Stat, Bytes::new(), 10 * SECOND), None).await.map(drop)
    }

    /// Calls of this kind over each of the fakes, TCP last.
    fn calls(&self, op: Op) -> [u64; 4] {
        let [a, b, c] = &self.fakes.links;
        [a, b, c, &self.tcp].map(|link| link.calls(op))
    }
}

#[tokio::test(start_paused = true)]
async fn data_and_metadata_have_paths_of_their_own_and_everything_else_goes_over_tcp() {
    let scene = Scene::new(Fallback::Never, offer(Some(0), Some(1)));
    for _ in 0..3 {
        scene.read().await.unwrap();
        scene.stat().await.unwrap();
        scene.link.call(Request::on_path(Op::Stats, Bytes::new(), SECOND), None).await.unwrap();
    }
    assert_eq!((scene.calls(Op::Fill), scene.calls(Op::Stat)), ([3, 0, 0, 0], [0, 3, 0, 0]));
    assert_eq!((scene.calls(Op::Stats), scene.tcp.calls(Op::Paths)), ([0, 0, 0, 3], 1));
    let report = scene.link.report();
    let names =
        |paths: &[forebay_client::paths::PathReport]| paths.iter().map(|path| path.path.clone()).collect::<Vec<_>>();
    assert_eq!(
        (names(&report.data), names(&report.metadata)),
        (vec!["card0".into(), "tcp".into()], vec!["card1".into(), "tcp".into()])
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_written_goes_over_tcp_even_where_data_must_not() {
    let scene = Scene::new(Fallback::Never, offer(Some(0), Some(1)));
    for (op, length) in [(Op::Change, 100), (Op::Upload, 9 << 20), (Op::Refresh, 1)] {
        let request = Request::on_path(op, vec![1; length].into(), SECOND);
        scene.link.call(request, None).await.unwrap();
        assert_eq!(scene.calls(op), [0, 0, 0, 1]);
    }
    assert_eq!(scene.tcp.calls(Op::Paths), 0, "nor does it wait for other paths to be known");
}

#[tokio::test(start_paused = true)]
async fn without_a_metadata_listener_attributes_go_over_tcp_even_where_data_must_not() {
    let scene = Scene::new(Fallback::Never, offer(Some(0), None));
    scene.read().await.unwrap();
    scene.stat().await.unwrap();
    assert_eq!((scene.calls(Op::Fill), scene.calls(Op::Stat)), ([1, 0, 0, 0], [0, 0, 0, 1]));
    scene.fakes.links[0].kill();
    assert!(matches!(scene.read().await, Err(CallError::Link(_))));
    scene.stat().await.unwrap();
    assert_eq!(scene.tcp.calls(Op::Fill), 0);
}

#[tokio::test(start_paused = true)]
async fn metadata_that_fails_is_asked_for_again_over_tcp() {
    let scene = Scene::new(Fallback::Never, offer(Some(0), Some(1)));
    scene.stat().await.unwrap();
    scene.fakes.links[1].kill();
    let error = scene.stat().await.unwrap_err();
    assert!(matches!(error, CallError::Link(LinkError::OtherPath { .. })), "{error}");
    scene.stat().await.unwrap();
    scene.read().await.unwrap();
    assert_eq!((scene.calls(Op::Stat)[3], scene.calls(Op::Fill)), (1, [1, 0, 0, 0]));
    assert_eq!(scene.stats.fell_back.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_comes_back_elsewhere_is_found_and_one_that_is_where_it_was_is_probed() {
    let scene = Scene::new(Fallback::Auto, offer(Some(0), None));
    scene.read().await.unwrap();
    scene.fakes.links[0].kill();
    scene.read().await.unwrap_err();
    *scene.worker.0.lock() = offer(Some(2), None);
    scene.read().await.unwrap();
    assert_eq!(scene.calls(Op::Fill), [2, 0, 0, 1], "nobody waits for the worker to say where it is");
    // No reads come meanwhile: it is asked anew, and probed before it is used.
    tokio::time::sleep(RETRY + SECOND).await;
    scene.read().await.unwrap();
    assert_eq!(scene.calls(Op::Fill), [2, 0, 1, 1]);
    let counts = || {
        [&scene.stats.renewed, &scene.stats.fell_back, &scene.stats.failed_back].map(|it| it.load(Ordering::Relaxed))
    };
    assert_eq!((counts(), scene.tcp.calls(Op::Paths)), ([1, 1, 1], 2));
    // Now it only rests.
    scene.fakes.links[2].kill();
    scene.read().await.unwrap_err();
    scene.fakes.links[2].revive();
    tokio::time::sleep(RETRY + SECOND).await;
    scene.read().await.unwrap();
    assert_eq!(scene.calls(Op::Fill), [2, 0, 3, 1]);
    assert_eq!(counts(), [1, 2, 2]);
    scene.link.close().await;
}

#[tokio::test(start_paused = true)]
async fn with_never_an_idle_mount_finds_a_worker_that_was_restarted_elsewhere_before_anybody_reads() {
    let scene = Scene::new(Fallback::Never, offer(Some(0), None));
    scene.read().await.unwrap();
    scene.fakes.links[0].kill();
    scene.tcp.kill();
    assert!(scene.read().await.is_err());
    *scene.worker.0.lock() = offer(Some(2), None);
    scene.tcp.revive();
    tokio::time::sleep(3 * SECOND).await;
    scene.read().await.unwrap();
    assert_eq!((scene.calls(Op::Fill)[2], scene.calls(Op::Fill)[3]), (1, 0));
    scene.link.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_gains_rdma_is_used_by_it_in_time() {
    let scene = Scene::new(Fallback::Auto, PathsReply::default());
    scene.read().await.unwrap();
    *scene.worker.0.lock() = offer(Some(1), Some(1));
    scene.read().await.unwrap();
    tokio::time::sleep(RETRY).await;
    scene.read().await.unwrap();
    tokio::time::sleep(SECOND).await;
    scene.read().await.unwrap();
    scene.stat().await.unwrap();
    assert_eq!((scene.calls(Op::Fill), scene.calls(Op::Stat)), ([0, 1, 0, 3], [0, 1, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_cannot_be_asked_is_asked_again_by_the_next_call() {
    let scene = Scene::new(Fallback::Auto, offer(Some(0), None));
    scene.tcp.kill();
    assert!(matches!(scene.read().await, Err(CallError::Link(_))));
    scene.tcp.revive();
    scene.read().await.unwrap();
    assert_eq!(scene.calls(Op::Fill), [1, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_the_first_question_hears_its_answer_and_does_not_ask_again() {
    let scene = Scene::new(Fallback::Auto, offer(Some(0), None));
    scene.tcp.hang(true);
    let started = tokio::time::Instant::now();
    let reads = futures::future::join_all((0..8).map(|_| scene.read())).await;
    assert!(reads.iter().all(Result::is_err));
    assert!(started.elapsed() < 11 * SECOND, "each waited by itself: {:?}", started.elapsed());
    assert_eq!(scene.tcp.calls(Op::Paths), 1);
}

#[tokio::test(start_paused = true)]
async fn with_never_a_worker_that_was_restarted_is_read_again_within_seconds() {
    let scene = Scene::new(Fallback::Never, offer(Some(0), None));
    scene.read().await.unwrap();
    scene.fakes.links[0].kill();
    scene.tcp.kill();
    assert!(scene.read().await.is_err());
    tokio::time::sleep(5 * SECOND).await;
    let Err(CallError::Link(LinkError::Connect { .. })) = scene.read().await else { panic!("it is away") };
    scene.tcp.revive();
    let Err(CallError::Link(LinkError::NotAllowed { .. })) = scene.read().await else { panic!("RDMA is down") };
    *scene.worker.0.lock() = offer(Some(2), None);
    let back = tokio::time::Instant::now();
    while scene.read().await.is_err() {
        assert!(back.elapsed() < 5 * SECOND, "it is still refused");
        tokio::time::sleep(SECOND / 10).await;
    }
    assert_eq!(scene.calls(Op::Fill)[3], 0, "never over TCP");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_takes_too_long_does_not_condemn_a_path_that_answers_pings() {
    let scene = Scene::new(Fallback::Auto, offer(Some(0), None));
    scene.read().await.unwrap();
    scene.fakes.links[0].drop_requests(1);
    assert!(scene.read().await.is_err());
    tokio::time::sleep(SECOND).await;
    scene.read().await.unwrap();
    assert_eq!((scene.calls(Op::Fill)[3], scene.stats.fell_back.load(Ordering::Relaxed)), (0, 0));
    // One that answers nothing is.
    scene.fakes.links[0].hang(true);
    assert!(scene.read().await.is_err());
    tokio::time::sleep(6 * SECOND).await;
    scene.read().await.unwrap();
    assert_eq!(scene.stats.fell_back.load(Ordering::Relaxed), 1);
}
