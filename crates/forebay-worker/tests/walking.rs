//! Files that are opened in the order of their directory's listing: how many waits for the origin they cost, in virtual
//! time, and what is fetched in vain.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::*;
use forebay_client::{Client, ClientOptions, ClientStats, Connector};
use forebay_cluster::{Backoff, Member, Membership, StaticMembership};
use forebay_memory::Spans;
use forebay_origin::FakeOrigin;
use forebay_transport::fake::FakeTransport;
use forebay_transport::{LocalTransport, Service, Transport};
use forebay_types::{FailureKind, FileVersion};
use forebay_worker::Worker;
use tokio::time::Instant;

/// What a request takes at the origin.
const AWAY: Duration = Duration::from_millis(100);

/// Where the worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the client's process.
    Here,
    /// In another one.
    Elsewhere,
}

const PLACES: [Place; 2] = [Place::Here, Place::Elsewhere];

struct Link(Arc<dyn Transport>);

impl Connector for Link {
    fn connect(&self, _member: &Member) -> Arc<dyn Transport> {
        Arc::clone(&self.0)
    }
}

/// A worker on an origin that is far away, mounted at `/s3`, and a client.
struct Scene {
    origin: Arc<FakeOrigin>,
    worker: Arc<Worker>,
    client: Client,
}

impl Scene {
    async fn new(place: Place, directory_budget: u64) -> Self {
        let origin = origin();
        let worker = worker(&origin).await;
        let client = client(&worker, place, directory_budget).await;
        Self { origin, worker, client }
    }

    /// Files of `/s3/DIRECTORY`, some of which are longer than others. It takes time to ask for them.
    fn put(&self, directory: &str, count: usize) -> Vec<Vec<u8>> {
        let contents: Vec<_> = (0..count).map(|at| pattern(20_000 + (at * 7919) % 12_000, at as u8)).collect();
        for (at, content) in contents.iter().enumerate() {
            self.origin.put(name(directory, at), content.clone());
        }
        self.origin.set_delay(AWAY);
        contents
    }

    /// Lists all of a directory, as a program does before it opens what is there. The versions of its files.
    async fn list(&self, directory: &str) -> Vec<FileVersion> {
        let (mut token, mut versions) = (None, Vec::new());
        loop {
            let page = self.client.list(&path(&format!("/s3/{directory}")), token, 1000, false).await.unwrap();
            versions.extend(page.entries.iter().filter_map(|entry| entry.attr.version().cloned()));
            token = page.next;
            if token.is_none() {
                return versions;
            }
        }
    }

    /// Reads files whole, one after the other, as a mount does for a program. How long that takes.
    async fn read(&self, files: impl IntoIterator<Item = (FileVersion, &Vec<u8>)>) -> Duration {
        let began = Instant::now();
        for (version, content) in files {
            assert!(read(&self.client, version).await == *content);
        }
        began.elapsed()
    }

    fn count(&self, of: impl Fn(&ClientStats) -> &AtomicU64) -> u64 {
        of(self.client.stats()).load(Ordering::Relaxed)
    }

    /// The files that the origin was asked for.
    fn asked_for(&self) -> Vec<String> {
        self.origin.reads().into_iter().map(|(path, _)| String::from_utf8(path).unwrap()).collect()
    }
}

fn name(directory: &str, at: usize) -> String {
    format!("{directory}/{at:05}.bin")
}

async fn client(worker: &Arc<Worker>, place: Place, directory_budget: u64) -> Client {
    let service = Arc::clone(worker) as Arc<dyn Service>;
    let link: Arc<dyn Transport> = match place {
        Place::Here => Arc::new(LocalTransport::new(service)),
        Place::Elsewhere => Arc::new(FakeTransport::new("w", service)),
    };
    let membership: Arc<dyn Membership> = Arc::new(StaticMembership::new(["w"]));
    let backoff = Backoff { initial: SECOND, max: 5 * SECOND };
    let options = ClientOptions { backoff, request_timeout: 20 * SECOND, directory_budget, ..ClientOptions::default() };
    let runtime = tokio::runtime::Handle::current();
    Client::new(membership, Arc::new(Link(link)), store(64, None).await, options, runtime)
}

async fn read(client: &Client, version: FileVersion) -> Vec<u8> {
    let size = version.size as u32;
    let file = client.open(version);
    let spans: Spans = match file.try_read(0, size) {
        Some(spans) => spans,
        None => file.read(0, size).await.unwrap(),
    };
    spans.iter().flat_map(|span| span.iter().copied()).collect()
}

#[tokio::test(start_paused = true)]
async fn files_in_the_order_of_their_listing_are_there_before_they_are_opened_and_each_is_fetched_once() {
    for place in PLACES {
        let scene = Scene::new(place, 32 << 20).await;
        let contents = scene.put("d", 400);
        let versions = scene.list("d").await;
        let took = scene.read(versions.into_iter().zip(&contents)).await;
        assert!(took < AWAY * 400 / 8, "{place:?}: {took:?}, where one after the other takes 40 s");
        assert_eq!(scene.origin.counts().gets, 400, "{place:?}");
        assert!(scene.count(|stats| &stats.files_ahead_used) >= 390, "{place:?}");
        assert_eq!(scene.count(|stats| &stats.files_ahead_wasted), 0, "{place:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn with_a_budget_of_nothing_each_file_is_waited_for() {
    let scene = Scene::new(Place::Here, 0).await;
    let contents = scene.put("d", 50);
    let versions = scene.list("d").await;
    let took = scene.read(versions.into_iter().zip(&contents)).await;
    assert!(took >= AWAY * 50, "{took:?}");
    assert_eq!(scene.count(|stats| &stats.files_ahead), 0);
}

#[tokio::test(start_paused = true)]
async fn wrong_guesses_are_given_up() {
    for place in PLACES {
        let scene = Scene::new(place, 32 << 20).await;
        let contents = scene.put("d", 3000);
        let versions = scene.list("d").await;
        // Every fourth, and then in an order that is none.
        let fourths = (0..250).map(|at| at * 4);
        let others = (0..500).map(|at| 1001 + (at * 617) % 1900);
        let mut opened = 0;
        for at in fourths.chain(others) {
            assert!(read(&scene.client, versions[at].clone()).await == contents[at]);
            opened += 1;
        }
        // What is on its way arrives.
        tokio::time::sleep(10 * AWAY).await;
        let (ahead, used) = (scene.count(|stats| &stats.files_ahead), scene.count(|stats| &stats.files_ahead_used));
        assert!(ahead <= 100, "{place:?}: {ahead} of {opened} files, {used} of them used");
        assert!(scene.origin.counts().gets <= opened + ahead - used, "{place:?}: {:?}", scene.origin.counts());
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_is_fetched_ahead_than_the_budget_allows() {
    const BUDGET: u64 = 1 << 20;
    for place in PLACES {
        let scene = Scene::new(place, BUDGET).await;
        let contents = scene.put("d", 1000);
        let versions = scene.list("d").await;
        scene.read(versions[..300].iter().cloned().zip(&contents)).await;
        // The reader stops. What was fetched and not opened by then is all that there is.
        tokio::time::sleep(10 * AWAY).await;
        let opened: u64 = versions[..300].iter().map(|version| version.size).sum();
        let asked: u64 = scene.origin.reads().iter().map(|(_, range)| range.end - range.start).sum();
        assert!(asked > opened, "{place:?}: something is fetched ahead");
        assert!(asked - opened <= BUDGET, "{place:?}: {} bytes", asked - opened);
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_that_was_replaced_since_the_listing_is_read_as_it_is_and_never_as_it_was() {
    for place in PLACES {
        let scene = Scene::new(place, 32 << 20).await;
        let contents = scene.put("d", 100);
        let versions = scene.list("d").await;
        let replaced = pattern(25_000, 200);
        scene.origin.put(name("d", 50), replaced.clone());
        scene.read(versions[..50].iter().cloned().zip(&contents)).await;
        let old = scene.client.open(versions[50].clone());
        assert_eq!(old.read(0, 100).await.unwrap_err().kind(), FailureKind::VersionChanged, "{place:?}");
        let now = scene.client.stat(&path(&format!("/s3/{}", name("d", 50))), false).await.unwrap();
        assert!(read(&scene.client, now.attr.version().unwrap().clone()).await == replaced, "{place:?}");
        scene.read(versions[51..].iter().cloned().zip(&contents[51..])).await;
        assert!(scene.count(|stats| &stats.files_ahead_wasted) >= 1, "{place:?}: the guess was wrong");
    }
}

#[tokio::test(start_paused = true)]
async fn the_directory_after_one_that_was_walked_is_fetched_with_its_listing() {
    for place in PLACES {
        let scene = Scene::new(place, 32 << 20).await;
        let first = scene.put("data/1", 50);
        let second = scene.put("data/2", 50);
        let versions = scene.list("data/1").await;
        scene.read(versions.into_iter().zip(&first)).await;
        let versions = scene.list("data/2").await;
        tokio::time::sleep(AWAY / 2).await;
        for at in 0..4 {
            assert!(scene.asked_for().contains(&name("data/2", at)), "{place:?}: {:?}", scene.asked_for());
        }
        scene.read(versions.into_iter().zip(&second)).await;
        assert_eq!(scene.origin.counts().gets, 100, "{place:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_data_set_that_a_worker_nearby_has_costs_few_requests_more() {
    let scene = Scene::new(Place::Here, 32 << 20).await;
    let contents = scene.put("d", 1000);
    let versions = scene.list("d").await;
    scene.read(versions.iter().cloned().zip(&contents)).await;
    let again = client(&scene.worker, Place::Here, 32 << 20).await;
    again.list(&path("/s3/d"), None, 1000, false).await.unwrap();
    for (version, content) in versions.into_iter().zip(&contents) {
        assert!(read(&again, version).await == *content);
    }
    assert_eq!(again.stats().files_ahead.load(Ordering::Relaxed), 0);
    assert_eq!(scene.origin.counts().gets, 1000);
}
