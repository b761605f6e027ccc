//! What a client writes, through several workers of which some fail.

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use common::*;
use forebay_client::{Client, ClientOptions, Connector};
use forebay_cluster::{Backoff, Member, Membership, StaticMembership, Topology};
use forebay_locks::Mutex;
use forebay_origin::FakeOrigin;
use forebay_staging::Remote;
use forebay_tcp::{ServerOptions, TcpServer, TcpTransport};
use forebay_transport::fake::{Delay, FakeTransport};
use forebay_transport::{LinkError, Op, Service, Transport};
use forebay_types::{Failure, FailureKind};
use forebay_worker::Worker;

/// Links by member name.
struct Links(HashMap<String, Arc<dyn Transport>>);

impl Connector for Links {
    fn connect(&self, member: &Member) -> Arc<dyn Transport> {
        Arc::clone(&self.0[&*member.name])
    }
}

/// Members that come and go as a test wants.
struct Changing(ArcSwap<Topology>);

impl Changing {
    fn become_only(&self, names: &[&str]) {
        self.0.store(StaticMembership::new(names).topology());
    }
}

impl Membership for Changing {
    fn topology(&self) -> Arc<Topology> {
        self.0.load_full()
    }
}

async fn client(links: impl IntoIterator<Item = (String, Arc<dyn Transport>)>) -> Client {
    let links: HashMap<_, _> = links.into_iter().collect();
    let membership: Arc<dyn Membership> = Arc::new(StaticMembership::new(links.keys()));
    client_of(membership, Arc::new(Links(links))).await
}

async fn client_of(membership: Arc<dyn Membership>, connector: Arc<dyn Connector>) -> Client {
    let backoff = Backoff { initial: SECOND, max: 5 * SECOND };
    let options = ClientOptions { backoff, request_timeout: 20 * SECOND, ..ClientOptions::default() };
    Client::new(membership, connector, store(64, None).await, options, tokio::runtime::Handle::current())
}

/// Workers on one origin, mounted at `/s3`, behind fakes.
struct Scene {
    origin: Arc<FakeOrigin>,
    fakes: Vec<Arc<FakeTransport>>,
    client: Client,
}

impl Scene {
    async fn new(workers: usize) -> Self {
        let origin = origin();
        let mut fakes = Vec::new();
        for number in 0..workers {
            let worker = worker(&origin).await as Arc<dyn Service>;
            fakes.push(Arc::new(FakeTransport::new(format!("w{number}"), worker)));
        }
        let links = fakes.iter().map(|fake| (fake.peer().to_owned(), Arc::clone(fake) as Arc<dyn Transport>));
        let client = client(links.collect::<Vec<_>>()).await;
        Self { origin, fakes, client }
    }

    /// The workers that have been asked for `op`.
    fn asked(&self, op: Op) -> Vec<&Arc<FakeTransport>> {
        self.fakes.iter().filter(|fake| fake.calls(op) > 0).collect()
    }

    async fn size(&self, name: &str) -> Result<u64, FailureKind> {
        let reply = self.client.stat(&path(name), false).await;
        reply.map(|reply| reply.attr.size()).map_err(|failure| failure.kind())
    }

    async fn names(&self, name: &str) -> Vec<String> {
        let page = self.client.list(&path(name), None, 100, false).await.unwrap();
        page.entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect()
    }
}

fn bytes(length: usize) -> Bytes {
    pattern(length, 3).into()
}

/// A worker that does not own a name is not told of its changes, and remembers what it heard when it was asked in the
/// owner's place.
#[tokio::test(start_paused = true)]
async fn a_worker_that_was_asked_in_the_place_of_the_owner_does_not_tell_what_it_heard_then() {
    let scene = Scene::new(2).await;
    assert_eq!(scene.size("/s3/new").await, Err(FailureKind::NotFound));
    let owner = Arc::clone(scene.asked(Op::Stat)[0]);
    let long = 10 * SECOND;
    owner.kill();
    assert_eq!(scene.size("/s3/new").await, Err(FailureKind::NotFound));
    assert_eq!(scene.names("/s3").await, Vec::<String>::new());
    assert_eq!(scene.asked(Op::Stat).len(), 2, "the other one was asked, too");
    owner.revive();
    tokio::time::sleep(long).await;
    scene.client.put(&path("/s3/new"), bytes(10)).await.unwrap();
    owner.kill();
    assert_eq!((scene.size("/s3/new").await, scene.names("/s3").await), (Ok(10), vec!["new".to_owned()]));
}

/// Begins `change` and lets the worker that makes it die when it has made it and before it can say so.
async fn answer_lost<T: Send + 'static>(scene: &Scene, change: impl Future<Output = T> + Send + 'static) -> T {
    scene.fakes.iter().for_each(|fake| fake.delay(Delay::Fixed(2 * SECOND)));
    let before: Vec<_> = scene.fakes.iter().map(|fake| fake.calls(Op::Change)).collect();
    let changing = tokio::spawn(change);
    tokio::time::sleep(3 * SECOND / 2).await;
    let maker = scene.fakes.iter().zip(before).find(|(fake, before)| fake.calls(Op::Change) > *before);
    maker.unwrap().0.kill();
    let outcome = changing.await.unwrap();
    maker.unwrap().0.revive();
    scene.fakes.iter().for_each(|fake| fake.delay(Delay::None));
    outcome
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_file_goes_through_all_workers_over_tcp_and_is_read_back() {
    let origin = origin();
    let (mut workers, mut servers, mut links) = (Vec::<Arc<Worker>>::new(), Vec::new(), Vec::new());
    for number in 0..3 {
        let worker = worker(&origin).await;
        let options = ServerOptions::new(([127, 0, 0, 1], 0).into(), "test", BLOCK);
        let server = TcpServer::bind(options, Arc::clone(&worker) as Arc<dyn Service>).unwrap();
        let options = forebay_tcp::ClientOptions::new("test", BLOCK);
        let link: Arc<dyn Transport> = Arc::new(TcpTransport::new(server.local_addr().to_string(), options));
        links.push((format!("w{number}"), link));
        workers.push(worker);
        servers.push(server);
    }
    let client = client(links).await;
    let remote: Arc<dyn Remote> = Arc::new(client.clone());
    let file = path("/s3/d/large");
    let whole = bytes(11 * (5 << 20) + 12_345);
    let parts: Vec<Bytes> =
        (0..whole.len()).step_by(5 << 20).map(|at| whole.slice(at..whole.len().min(at + (5 << 20)))).collect();
    let upload = remote.begin(&file).await.unwrap();
    let sends = parts.iter().zip(1..).map(|(part, number)| remote.part(&file, &upload, number, part.clone()));
    let tags = futures::future::try_join_all(sends).await.unwrap();
    assert!(workers.iter().all(|worker| worker.counts().requests.upload > 0), "every worker took parts");
    let attr = remote.complete(&file, &upload, whole.len() as u64, &tags).await.unwrap();
    assert_eq!(attr.version(), origin.version("d/large").as_ref());
    assert_eq!(client.stat(&file, false).await.unwrap().attr, attr);
    let base = remote.open(attr.version().unwrap().clone());
    for at in (0..whole.len()).step_by(3_000_001) {
        let read = base.read(at as u64, 100_000).await.unwrap();
        let read: Vec<u8> = read.iter().flat_map(|span| span.iter().copied()).collect();
        assert!(read == whole[at..whole.len().min(at + 100_000)], "at {at}");
    }
    let small = remote.put(&path("/s3/d/small"), bytes(3)).await.unwrap();
    assert_eq!(client.stat(&path("/s3/d/small"), false).await.unwrap().attr, small);
    let other = remote.begin(&file).await.unwrap();
    remote.abort(&file, &other).await.unwrap();
    assert_eq!(origin.uploads().len(), 0);
    let (stats, ordering) = (client.stats(), Ordering::Relaxed);
    assert_eq!(stats.uploads.load(ordering), parts.len() as u64 + 1);
    assert_eq!(stats.uploaded.load(ordering), whole.len() as u64 + 3);
    assert_eq!(stats.changes.load(ordering), 4);
    client.close().await;
    for server in servers {
        server.close().await;
    }
}

#[tokio::test]
async fn a_change_is_seen_at_once_by_whoever_made_it_whichever_workers_are_asked() {
    let scene = Scene::new(4).await;
    let client = &scene.client;
    for number in 0..30 {
        let (parent, other) = (format!("/s3/p{number}"), format!("/s3/o{number}"));
        let (directory, file, copy) = (format!("{parent}/d"), format!("{parent}/d/f"), format!("{other}/f"));
        for directory in [&parent, &other] {
            client.make_directory(&path(directory)).await.unwrap();
        }
        // What is known of a name before it is there, by all workers that may be asked about it.
        assert_eq!(
            (scene.size(&directory).await, scene.size(&file).await),
            (Err(FailureKind::NotFound), Err(FailureKind::NotFound))
        );
        assert!(client.list(&path(&directory), None, 10, false).await.is_err());
        assert_eq!((scene.names(&parent).await.len(), scene.names(&other).await.len()), (0, 0));
        client.make_directory(&path(&directory)).await.unwrap();
        assert_eq!((scene.size(&directory).await, scene.names(&parent).await), (Ok(0), vec!["d".to_owned()]));
        assert!(scene.names(&directory).await.is_empty());
        let attr = client.put(&path(&file), bytes(number)).await.unwrap();
        assert!(attr.writable);
        assert_eq!((scene.size(&file).await, scene.names(&directory).await), (Ok(number as u64), vec!["f".to_owned()]));
        client.copy(&path(&file), &path(&copy)).await.unwrap();
        client.remove(&path(&file)).await.unwrap();
        assert_eq!((scene.size(&copy).await, scene.size(&file).await), (Ok(number as u64), Err(FailureKind::NotFound)));
        assert_eq!((scene.names(&other).await.len(), scene.names(&directory).await.len()), (1, 0));
        client.remove_directory(&path(&directory)).await.unwrap();
        assert_eq!((scene.size(&directory).await, scene.names(&parent).await.len()), (Err(FailureKind::NotFound), 0));
        assert!(client.list(&path(&directory), None, 10, false).await.is_err());
        assert!(
            client.make_directory(&path(&parent)).await.is_err_and(|failure| failure.kind() == FailureKind::Exists)
        );
    }
    assert_eq!(scene.asked(Op::Change).len(), 4, "all of them own something");
}

#[tokio::test(start_paused = true)]
async fn workers_that_die_between_parts_cost_no_error() {
    let scene = Scene::new(3).await;
    let file = path("/s3/f");
    let upload = scene.client.begin_upload(&file).await.unwrap();
    let mut tags = Vec::new();
    for number in 0..12u32 {
        let dead = &scene.fakes[number as usize % 3];
        // Dies between two parts, or in the middle of one.
        scene.fakes.iter().for_each(|fake| fake.delay(Delay::Fixed(SECOND)));
        let sending = scene.client.upload_part(&file, &upload, number + 1, bytes(1000 + number as usize));
        let killing = async {
            tokio::time::sleep(Duration::from_millis(250 * u64::from(number % 4))).await;
            dead.kill();
        };
        let (tag, ()) = tokio::join!(sending, killing);
        tags.push(tag.unwrap());
        dead.revive();
    }
    let size = (0..12).map(|number| 1000 + number).sum();
    let attr = scene.client.complete_upload(&file, &upload, size, &tags).await.unwrap();
    assert_eq!((attr.size(), scene.size("/s3/f").await), (size, Ok(size)));
    assert!(scene.client.stats().failovers.load(Ordering::Relaxed) > 0);
}

#[tokio::test(start_paused = true)]
async fn a_change_whose_answer_was_lost_is_told_as_made() {
    let scene = Scene::new(3).await;
    let client = || scene.client.clone();
    let directory = path("/s3/d");
    let make = {
        let (client, directory) = (client(), directory.clone());
        async move { client.make_directory(&directory).await }
    };
    assert!(answer_lost(&scene, make).await.unwrap().version().is_none());
    let remove = {
        let (client, directory) = (client(), directory.clone());
        async move { client.remove_directory(&directory).await }
    };
    answer_lost(&scene, remove).await.unwrap();
    assert_eq!(scene.size("/s3/d").await, Err(FailureKind::NotFound));
    scene.origin.put("a", bytes(5));
    let copy = {
        let client = client();
        async move { client.copy(&path("/s3/a"), &path("/s3/b")).await }
    };
    assert_eq!(answer_lost(&scene, copy).await.unwrap().size(), 5);
    let remove = {
        let client = client();
        async move { client.remove(&path("/s3/a")).await }
    };
    answer_lost(&scene, remove).await.unwrap();
    let upload = client().begin_upload(&path("/s3/c")).await.unwrap();
    let tag = client().upload_part(&path("/s3/c"), &upload, 1, bytes(9)).await.unwrap();
    let complete = {
        let client = client();
        async move { client.complete_upload(&path("/s3/c"), &upload, 9, &[tag]).await }
    };
    assert_eq!(answer_lost(&scene, complete).await.unwrap().size(), 9);
    assert_eq!(scene.names("/s3").await, ["b", "c"]);
    // One that was sent once says what it found.
    client().make_directory(&directory).await.unwrap();
    assert_eq!(client().make_directory(&directory).await.unwrap_err().kind(), FailureKind::Exists);
    client().remove_directory(&directory).await.unwrap();
    assert_eq!(client().remove_directory(&directory).await.unwrap_err().kind(), FailureKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_being_restarted_costs_a_writer_time_and_no_error() {
    let scene = Scene::new(1).await;
    scene.fakes[0].kill();
    let began = tokio::time::Instant::now();
    let file = path("/s3/f");
    let put = scene.client.put(&file, bytes(7));
    let revive = async {
        tokio::time::sleep(8 * SECOND).await;
        scene.fakes[0].revive();
    };
    let (attr, ()) = tokio::join!(put, revive);
    assert_eq!((attr.unwrap().size(), scene.size("/s3/f").await), (7, Ok(7)));
    assert!(began.elapsed() < 20 * SECOND, "{:?}", began.elapsed());
    scene.fakes[0].kill();
    let began = tokio::time::Instant::now();
    let failure = scene.client.put(&path("/s3/f"), bytes(8)).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Unavailable, "{failure}");
    assert!(began.elapsed() <= 20 * SECOND, "no longer than a question: {:?}", began.elapsed());
    scene.fakes[0].revive();
    let refused = Failure::new(FailureKind::Unavailable, "the origin is down");
    scene.origin.fail_next_changes(1, &refused);
    let began = tokio::time::Instant::now();
    assert_eq!(scene.client.put(&path("/s3/f"), bytes(8)).await.unwrap_err(), refused);
    assert_eq!(began.elapsed(), Duration::ZERO, "the worker has tried for as long as it is worth");
}

#[tokio::test(start_paused = true)]
async fn a_writer_waits_for_a_worker_for_as_long_as_a_question_may_take() {
    let scene = Scene::new(1).await;
    scene.client.put(&path("/s3/first"), bytes(1)).await.unwrap();
    scene.fakes[0].kill();
    let fake = Arc::clone(&scene.fakes[0]);
    // Of the 20 s that a question may take.
    tokio::spawn(async move {
        tokio::time::sleep(19 * SECOND).await;
        fake.revive();
    });
    scene.client.put(&path("/s3/second"), bytes(2)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_missed_a_change_does_not_tell_of_what_was_before() {
    let scene = Scene::new(2).await;
    scene.origin.put("f", bytes(1));
    assert_eq!((scene.size("/s3/f").await, scene.names("/s3").await.len()), (Ok(1), 1));
    let owner = Arc::clone(scene.asked(Op::Stat)[0]);
    // It is cut off for a moment, and remembers all it knew.
    let lost = LinkError::Lost { peer: "w".into(), reason: "scripted".into() }.into();
    owner.fail_next(1, &lost);
    scene.client.put(&path("/s3/f"), bytes(2)).await.unwrap();
    assert_eq!(scene.size("/s3/f").await, Ok(2));
    let asked = owner.calls(Op::Stat);
    // It is asked again when it has been left out for long enough.
    let deadline = tokio::time::Instant::now() + 30 * SECOND;
    while owner.calls(Op::Stat) == asked {
        assert!(tokio::time::Instant::now() < deadline, "the owner is not asked again");
        assert_eq!(scene.size("/s3/f").await, Ok(2));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(owner.calls(Op::Refresh), 1);
}

#[tokio::test(start_paused = true)]
async fn telling_a_worker_what_it_missed_is_a_part_of_the_time_that_a_question_may_take() {
    let scene = Scene::new(2).await;
    assert_eq!(scene.size("/s3/f").await, Err(FailureKind::NotFound));
    let owner = Arc::clone(scene.asked(Op::Stat)[0]);
    let other = scene.fakes.iter().find(|fake| !Arc::ptr_eq(fake, &owner)).map(Arc::clone).unwrap();
    owner.kill();
    scene.client.put(&path("/s3/f"), bytes(1)).await.unwrap();
    owner.revive();
    tokio::time::sleep(10 * SECOND).await;
    other.kill();
    owner.delay(Delay::Fixed(4 * SECOND));
    let stands_still = Arc::clone(&owner);
    tokio::spawn(async move {
        tokio::time::sleep(5 * SECOND).await;
        stands_still.hang(true);
    });
    let began = tokio::time::Instant::now();
    assert!(scene.size("/s3/f").await.is_err());
    assert_eq!(owner.calls(Op::Refresh), 1);
    assert!(began.elapsed() <= 20 * SECOND + SECOND / 10, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_asked_last_is_told_what_it_missed_in_the_time_that_is_left() {
    let scene = Scene::new(2).await;
    assert_eq!(scene.size("/s3/f").await, Err(FailureKind::NotFound));
    let owner = Arc::clone(scene.asked(Op::Stat)[0]);
    owner.kill();
    scene.client.put(&path("/s3/f"), bytes(1)).await.unwrap();
    owner.revive();
    owner.hang(true);
    // It failed a moment ago, so the other one is asked first, and says no when little time is left.
    scene.origin.set_delay(18 * SECOND);
    scene.origin.fail_next(1, &Failure::new(FailureKind::Unavailable, "scripted"));
    let began = tokio::time::Instant::now();
    assert!(scene.size("/s3/f").await.is_err());
    assert!(began.elapsed() > 18 * SECOND && began.elapsed() <= 20 * SECOND + SECOND / 10, "{:?}", began.elapsed());
    assert_eq!(owner.calls(Op::Refresh), 1);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_missed_a_change_and_cannot_be_told_of_it_is_not_asked() {
    let scene = Scene::new(2).await;
    scene.origin.put("f", bytes(1));
    assert_eq!(scene.size("/s3/f").await, Ok(1));
    let owner = Arc::clone(scene.asked(Op::Stat)[0]);
    let lost = LinkError::Lost { peer: "w".into(), reason: "scripted".into() }.into();
    // The change does not reach it, nor does the first word of it later, and whatever else it is asked it answers.
    owner.fail_next(2, &lost);
    scene.client.put(&path("/s3/f"), bytes(2)).await.unwrap();
    let deadline = tokio::time::Instant::now() + 30 * SECOND;
    while owner.calls(Op::Refresh) < 2 {
        assert!(tokio::time::Instant::now() < deadline, "the owner is not told again");
        assert_eq!(scene.size("/s3/f").await, Ok(2), "told of what was before");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(scene.size("/s3/f").await, Ok(2));
}

/// A new link to a worker whenever it comes, as real ones are; the latest can be asked for.
struct Fresh {
    workers: HashMap<String, Arc<Worker>>,
    links: Mutex<HashMap<String, Arc<FakeTransport>>>,
}

impl Fresh {
    fn link(&self, name: &str) -> Arc<FakeTransport> {
        Arc::clone(&self.links.lock()[name])
    }
}

impl Connector for Fresh {
    fn connect(&self, member: &Member) -> Arc<dyn Transport> {
        let name = member.name.to_string();
        let link = Arc::new(FakeTransport::new(name.clone(), Arc::clone(&self.workers[&name]) as Arc<dyn Service>));
        self.links.lock().insert(name, Arc::clone(&link));
        link
    }
}

#[tokio::test]
async fn what_a_worker_missed_is_not_forgotten_with_its_place_in_the_ring() {
    let origin = origin();
    let workers = HashMap::from([("w0".to_owned(), worker(&origin).await), ("w1".to_owned(), worker(&origin).await)]);
    let connector = Arc::new(Fresh { workers, links: Mutex::default() });
    let members = Arc::new(Changing(ArcSwap::from(StaticMembership::new(["w0", "w1"]).topology())));
    let client = client_of(Arc::clone(&members) as _, Arc::clone(&connector) as _).await;
    let size = async || client.stat(&path("/s3/f"), false).await.unwrap().attr.size();
    origin.put("f", bytes(1));
    assert_eq!(size().await, 1);
    let (owner, other) = if connector.link("w0").calls(Op::Stat) > 0 { ("w0", "w1") } else { ("w1", "w0") };
    // It leaves the ring with all that it remembers, and is back when the file has changed.
    members.become_only(&[other]);
    client.put(&path("/s3/f"), bytes(2)).await.unwrap();
    assert_eq!(size().await, 2);
    members.become_only(&["w0", "w1"]);
    assert_eq!(size().await, 2, "whoever owns the name again tells of what was before");
    assert_eq!(connector.link(owner).calls(Op::Refresh), 1);
    // It is not told of a change, as it cannot be reached, and is gone before it can be.
    let lost = LinkError::Lost { peer: owner.to_owned(), reason: "scripted".into() }.into();
    connector.link(owner).fail_next(1, &lost);
    client.put(&path("/s3/f"), bytes(3)).await.unwrap();
    members.become_only(&[other]);
    assert_eq!(size().await, 3);
    members.become_only(&["w0", "w1"]);
    assert_eq!(size().await, 3, "what it missed went with its link");
    assert_eq!(connector.link(owner).calls(Op::Refresh), 1);
}

#[tokio::test]
async fn a_refresh_reaches_all_workers_and_names_those_that_it_does_not() {
    let scene = Scene::new(3).await;
    let refreshed = scene.client.refresh(&path("/s3"), true).await.unwrap();
    assert_eq!((refreshed.workers, refreshed.unreached.len()), (3, 0));
    scene.origin.put("f", bytes(1));
    assert_eq!(scene.size("/s3/f").await, Ok(1));
    scene.origin.put("f", bytes(2));
    assert_eq!(scene.size("/s3/f").await, Ok(1));
    scene.fakes[1].kill();
    let refreshed = scene.client.refresh(&path("/s3/f"), false).await.unwrap();
    assert_eq!((refreshed.workers, &*refreshed.unreached[0].0), (2, "w1"));
    assert_eq!(scene.size("/s3/f").await, Ok(2));
    scene.fakes.iter().for_each(|fake| fake.kill());
    assert_eq!(scene.client.refresh(&path("/s3/f"), false).await.unwrap_err().kind(), FailureKind::Unavailable);
}

#[tokio::test]
async fn what_the_workers_refuse_is_told_as_they_say_it() {
    let scene = Scene::new(3).await;
    let kind = |failure: Failure| failure.kind();
    let client = &scene.client;
    assert_eq!(client.make_directory(&path("/s3")).await.map_err(kind), Err(FailureKind::Exists));
    assert_eq!(client.remove_directory(&path("/s3")).await.map_err(kind), Err(FailureKind::NotPermitted));
    assert_eq!(client.put(&path("/f"), bytes(1)).await.map_err(kind), Err(FailureKind::ReadOnly));
    assert_eq!(client.remove_directory(&path("/s3/none")).await.map_err(kind), Err(FailureKind::NotFound));
    let late = client.upload_part(&path("/s3/f"), "no such upload", 1, bytes(1)).await;
    assert_eq!(late.map_err(kind), Err(FailureKind::NotFound));
    let over = client.put(&path("/s3/f"), bytes((64 << 20) + 1)).await;
    assert_eq!(over.map_err(kind), Err(FailureKind::InvalidArgument));
    assert_eq!(scene.asked(Op::Refresh).len(), 0, "nothing was changed");
}
