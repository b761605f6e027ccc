//! Questions about names to a worker that stands still, or is slow: others answer in its place, and nobody hears of what was before.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{SECOND, origin, path, pattern, store, worker};
use forebay_client::{Client, ClientOptions, ClientStats, Connector};
use forebay_cluster::{Backoff, HedgeOptions, Member, StaticMembership};
use forebay_origin::FakeOrigin;
use forebay_transport::fake::{Delay, FakeTransport};
use forebay_transport::{LinkError, Op, Service, Transport};
use forebay_types::FailureKind;
use tokio::time::{Instant, timeout};

/// How long a request and its answer travel.
const TRAVEL: Duration = Duration::from_millis(1);
const BYTES: usize = 1000;
/// What the budget has at first, and may owe.
const BURST: u64 = 32 + 256;

struct Links(Vec<Arc<FakeTransport>>);

impl Connector for Links {
    fn connect(&self, member: &Member) -> Arc<dyn Transport> {
        let link = self.0.iter().find(|link| link.peer() == &*member.name).expect("a link for each member");
        Arc::clone(link) as Arc<dyn Transport>
    }
}

/// Three workers on an origin with one file, which is mounted at `/s3`.
struct Scene {
    origin: Arc<FakeOrigin>,
    client: Client,
    links: Vec<Arc<FakeTransport>>,
    questions: AtomicU64,
}

impl Scene {
    async fn new(hedge: Option<HedgeOptions>) -> Self {
        let origin = origin();
        origin.put("f", pattern(BYTES, 7));
        let (names, mut links) = (["a", "b", "c"], Vec::new());
        for name in names {
            let link = FakeTransport::new(name, worker(&origin).await as Arc<dyn Service>);
            link.delay(Delay::Fixed(TRAVEL));
            links.push(Arc::new(link));
        }
        let backoff = Backoff { initial: SECOND, max: 10 * SECOND };
        let (request_timeout, small_file_size) = (20 * SECOND, 0);
        let options = ClientOptions { backoff, request_timeout, small_file_size, hedge, ..ClientOptions::default() };
        let (members, all) = (Arc::new(StaticMembership::new(names)), links.clone());
        let (buffers, runtime) = (store(64, None).await, tokio::runtime::Handle::current());
        let client = Client::new(members, Arc::new(Links(links)), buffers, options, runtime);
        Self { origin, client, links: all, questions: AtomicU64::new(0) }
    }

    async fn size(&self, name: &str) -> Result<usize, FailureKind> {
        self.questions.fetch_add(1, Ordering::Relaxed);
        let found = self.client.stat(&path(name), false).await;
        found.map(|found| found.attr.size() as usize).map_err(|failure| failure.kind())
    }

    /// Asks about a name, about one that there is not, and for all names. The longest time that one of these took.
    async fn ask_all(&self) -> Duration {
        let mut longest = Duration::ZERO;
        for question in 0..3 {
            let began = Instant::now();
            match question {
                0 => assert_eq!(self.size("/s3/f").await, Ok(BYTES)),
                1 => assert_eq!(self.size("/s3/none").await, Err(FailureKind::NotFound)),
                _ => {
                    self.questions.fetch_add(1, Ordering::Relaxed);
                    let page = self.client.list(&path("/s3"), None, 100, false).await.unwrap();
                    assert_eq!(page.entries.len(), 1);
                }
            }
            longest = longest.max(began.elapsed());
        }
        longest
    }

    /// Until it is known how long it takes.
    async fn warm_up(&self) {
        for _ in 0..100 {
            self.ask_all().await;
        }
    }

    /// The link to the worker that owns the directory.
    fn owner(&self) -> &Arc<FakeTransport> {
        self.links.iter().max_by_key(|link| link.calls(Op::Stat)).unwrap()
    }

    fn calls(&self, op: Op) -> u64 {
        self.links.iter().map(|link| link.calls(op)).sum()
    }

    fn count(&self, of: impl Fn(&ClientStats) -> &AtomicU64) -> u64 {
        of(self.client.stats()).load(Ordering::Relaxed)
    }

    fn assert_within_budget(&self) {
        let (sent, questions) = (self.count(|stats| &stats.hedges_sent), self.questions.load(Ordering::Relaxed));
        assert!(sent <= questions / 20 + BURST, "{sent} hedges for {questions} questions");
        let ended = self.count(|stats| &stats.hedges_won) + self.count(|stats| &stats.hedges_wasted);
        assert_eq!(ended, sent, "each was for something or for nothing");
    }
}

#[tokio::test(start_paused = true)]
async fn names_whose_worker_stands_still_are_told_by_another_within_a_second_and_by_it_when_it_goes_on() {
    let scene = Scene::new(Some(HedgeOptions::default())).await;
    scene.warm_up().await;
    let still = scene.owner();
    still.hang(true);
    let first = scene.ask_all().await;
    assert!(first <= Duration::from_millis(20), "{first:?}");
    let mut longest = Duration::ZERO;
    for _ in 0..300 {
        longest = longest.max(scene.ask_all().await);
    }
    // When the budget is used up, until it is clear that the worker is slow.
    assert!(longest < SECOND, "{longest:?}");
    assert_eq!(scene.count(|stats| &stats.slow_workers), 1);
    assert!(scene.count(|stats| &stats.avoided_reads) > 500);
    scene.assert_within_budget();
    still.hang(false);
    let asked = still.calls(Op::Stat);
    for _ in 0..60 {
        scene.ask_all().await;
        tokio::time::sleep(SECOND).await;
    }
    assert!(still.calls(Op::Stat) > asked + 80, "it owns the directory as before");
}

#[tokio::test(start_paused = true)]
async fn without_hedges_who_asks_about_a_name_waits_for_a_worker_that_stands_still() {
    let scene = Scene::new(None).await;
    scene.warm_up().await;
    scene.owner().hang(true);
    assert!(timeout(5 * SECOND, scene.size("/s3/f")).await.is_err());
    assert_eq!(scene.count(|stats| &stats.hedges_sent), 0);
}

#[tokio::test(start_paused = true)]
async fn because_a_worker_is_late_nobody_hears_what_is_older_than_what_it_would_say() {
    let scene = Scene::new(Some(HedgeOptions::default())).await;
    scene.warm_up().await;
    let owner = scene.owner();
    owner.hang(true);
    // Another worker remembers this for longer than the test takes, and is told of no change.
    assert_eq!((scene.size("/s3/f").await, scene.size("/s3/new").await), (Ok(BYTES), Err(FailureKind::NotFound)));
    assert_eq!(scene.count(|stats| &stats.hedges_won), 2);
    owner.hang(false);
    scene.client.put(&path("/s3/new"), pattern(10, 1).into()).await.unwrap();
    // Somebody else does this, and the owner hears of it.
    scene.origin.put("f", pattern(BYTES + 1, 8));
    assert_eq!(scene.client.stat(&path("/s3/f"), true).await.unwrap().attr.size() as usize, BYTES + 1);
    assert_eq!((scene.size("/s3/f").await, scene.size("/s3/new").await), (Ok(BYTES + 1), Ok(10)));
    owner.hang(true);
    assert_eq!((scene.size("/s3/f").await, scene.size("/s3/new").await), (Ok(BYTES + 1), Ok(10)));
    assert_eq!(scene.count(|stats| &stats.hedges_won), 4);
}

#[tokio::test(start_paused = true)]
async fn who_changes_a_name_while_its_worker_is_slow_sees_the_change_whoever_answers() {
    let scene = Scene::new(Some(HedgeOptions::default())).await;
    scene.warm_up().await;
    let owner = Arc::clone(scene.owner());
    owner.delay(Delay::Fixed(Duration::from_millis(200)));
    let mut asked = 0;
    while scene.count(|stats| &stats.slow_workers) == 0 {
        assert!(asked < 200, "it is not found slow");
        assert_eq!(scene.size("/s3/new").await, Err(FailureKind::NotFound));
        asked += 1;
    }
    // In whose memory it is not there, either.
    for _ in 0..10 {
        assert_eq!(scene.size("/s3/new").await, Err(FailureKind::NotFound));
    }
    let avoided = scene.count(|stats| &stats.avoided_reads);
    assert!(avoided > 0);
    scene.client.put(&path("/s3/new"), pattern(10, 1).into()).await.unwrap();
    assert_eq!((owner.calls(Op::Upload), scene.calls(Op::Upload)), (1, 1), "changes go to the owner");
    for _ in 0..50 {
        assert_eq!(scene.size("/s3/new").await, Ok(10));
    }
    assert!(scene.count(|stats| &stats.avoided_reads) > avoided + 40);
    scene.assert_within_budget();
}

#[tokio::test(start_paused = true)]
async fn who_changes_a_name_sees_the_change_also_of_another_that_is_asked_again_over_another_path() {
    let scene = Scene::new(Some(HedgeOptions::default())).await;
    scene.warm_up().await;
    let owner = scene.owner();
    owner.hang(true);
    assert_eq!(scene.size("/s3/new").await, Err(FailureKind::NotFound));
    owner.hang(false);
    let others: Vec<_> = scene.links.iter().filter(|link| !Arc::ptr_eq(link, owner)).collect();
    let asked = others.iter().position(|link| link.calls(Op::Stat) > 0).expect("one was asked as well");
    // One remembers that there is no such name.
    let (another, third) = (others[asked], others[1 - asked]);
    scene.client.put(&path("/s3/new"), pattern(10, 1).into()).await.unwrap();
    let (peer, reason) = (another.peer().to_owned(), "the path is down".to_owned());
    another.fail_next(1, &LinkError::OtherPath { peer, reason }.into());
    let (peer, reason) = (third.peer().to_owned(), "for the test".to_owned());
    third.fail_next(1, &LinkError::Lost { peer, reason }.into());
    owner.hang(true);
    let calls = || (another.calls(Op::Stat), third.calls(Op::Stat));
    let before = calls();
    let dies = async {
        tokio::time::sleep(SECOND / 2).await;
        assert_eq!(calls(), (before.0 + 1, before.1 + 1), "both were asked as well");
        owner.kill();
    };
    let (size, ()) = tokio::join!(scene.size("/s3/new"), dies);
    assert_eq!(size, Ok(10));
    assert!(calls().0 > before.0 + 1, "it was asked again");
}

#[tokio::test(start_paused = true)]
async fn changes_and_questions_that_insist_on_what_the_origin_says_are_for_the_owner_alone() {
    let scene = Scene::new(Some(HedgeOptions::default())).await;
    scene.warm_up().await;
    let owner = scene.owner();
    owner.hang(true);
    let (before, sent) = ((scene.calls(Op::Stat), scene.calls(Op::List)), scene.count(|stats| &stats.hedges_sent));
    let (file, directory, new) = (path("/s3/f"), path("/s3"), path("/s3/new"));
    assert!(timeout(5 * SECOND, scene.client.stat(&file, true)).await.is_err());
    assert!(timeout(5 * SECOND, scene.client.list(&directory, None, 100, true)).await.is_err());
    assert!(timeout(5 * SECOND, scene.client.put(&new, pattern(10, 1).into())).await.is_err());
    assert_eq!((scene.calls(Op::Stat), scene.calls(Op::List)), (before.0 + 1, before.1 + 1));
    assert_eq!((owner.calls(Op::Upload), scene.calls(Op::Upload)), (1, 1));
    assert_eq!(scene.count(|stats| &stats.hedges_sent), sent);
}

#[tokio::test(start_paused = true)]
async fn while_nothing_is_wrong_hardly_any_question_about_a_name_is_sent_twice() {
    let scene = Scene::new(Some(HedgeOptions::default())).await;
    for (seed, link) in scene.links.iter().enumerate() {
        let (least, most) = (Duration::from_micros(100), Duration::from_millis(20));
        link.delay(Delay::Random { seed: seed as u64, least, most });
    }
    for _ in 0..1000 {
        scene.ask_all().await;
    }
    let (sent, questions) = (scene.count(|stats| &stats.hedges_sent), scene.questions.load(Ordering::Relaxed));
    assert!(sent <= questions / 100, "{sent} hedges for {questions} questions");
    assert_eq!(scene.count(|stats| &stats.slow_workers), 0);
}
