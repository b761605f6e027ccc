//! Small files: how many trips they cost, to workers and to the origin, and what is read of them.

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::*;
use forebay_client::{Client, ClientOptions, Connector};
use forebay_cluster::{Backoff, Member, Membership, StaticMembership};
use forebay_memory::Spans;
use forebay_origin::FakeOrigin;
use forebay_transport::fake::FakeTransport;
use forebay_transport::message::StatReadReply;
use forebay_transport::{Flags, Op, Request, Service, Transport};
use forebay_types::{Failure, FailureKind, SectorChecksums};
use forebay_worker::Worker;

/// Links by member name.
struct Links(HashMap<String, Arc<dyn Transport>>);

impl Connector for Links {
    fn connect(&self, member: &Member) -> Arc<dyn Transport> {
        Arc::clone(&self.0[&*member.name])
    }
}

/// Workers on one origin, mounted at `/s3`, in other processes as far as their client can tell.
struct Scene {
    origin: Arc<FakeOrigin>,
    workers: Vec<Arc<Worker>>,
    links: Vec<Arc<FakeTransport>>,
}

impl Scene {
    async fn new(workers: usize) -> Self {
        let origin = origin();
        let mut scene = Self { origin, workers: Vec::new(), links: Vec::new() };
        for number in 0..workers {
            let worker = worker(&scene.origin).await;
            let link = FakeTransport::new(format!("w{number}"), Arc::clone(&worker) as Arc<dyn Service>);
            scene.links.push(Arc::new(link));
            scene.workers.push(worker);
        }
        scene
    }

    async fn client(&self, small_file_size: u32) -> Client {
        let link = |link: &Arc<FakeTransport>| (link.peer().to_owned(), Arc::clone(link) as Arc<dyn Transport>);
        let links: HashMap<_, _> = self.links.iter().map(link).collect();
        let membership: Arc<dyn Membership> = Arc::new(StaticMembership::new(links.keys()));
        let backoff = Backoff { initial: SECOND, max: 5 * SECOND };
        let options =
            ClientOptions { backoff, request_timeout: 20 * SECOND, small_file_size, ..ClientOptions::default() };
        let runtime = tokio::runtime::Handle::current();
        Client::new(membership, Arc::new(Links(links)), store(64, None).await, options, runtime)
    }

    fn put(&self, count: usize) -> Vec<Vec<u8>> {
        let contents: Vec<_> = (0..count).map(|at| pattern(20_000 + (at * 7919) % 12_000, at as u8)).collect();
        for (at, content) in contents.iter().enumerate() {
            self.origin.put(format!("d/{at:05}"), content.clone());
        }
        contents
    }

    fn calls(&self, op: Op) -> u64 {
        self.links.iter().map(|link| link.calls(op)).sum()
    }
}

fn joined(spans: &Spans) -> Vec<u8> {
    spans.iter().flat_map(|span| span.iter().copied()).collect()
}

/// As a mount does for a program that reads a file once: look up, open, read at once if possible.
async fn read(client: &Client, name: &str) -> Result<Vec<u8>, Failure> {
    let stat = client.stat(&path(name), false).await?;
    let file = client.open_replicated(stat.attr.version().unwrap().clone(), stat.attr.replicas);
    let size = stat.attr.size() as u32;
    let spans = match file.try_read(0, size) {
        Some(spans) => spans,
        None => file.read(0, size).await?,
    };
    Ok(joined(&spans))
}

async fn read_all(client: &Client, contents: &[Vec<u8>]) {
    for (at, content) in contents.iter().enumerate() {
        let name = format!("/s3/d/{:05}", (at * 37) % contents.len());
        let expected = &contents[(at * 37) % contents.len()];
        assert!(read(client, &name).await.unwrap() == *expected, "{name} of {} bytes", content.len());
    }
}

#[tokio::test]
async fn a_small_file_costs_one_trip_to_a_single_worker() {
    let scene = Scene::new(1).await;
    let contents = scene.put(100);
    let first = scene.client(256 << 10).await;
    read_all(&first, &contents).await;
    let client = scene.client(256 << 10).await;
    let before = [Op::Stat, Op::StatRead, Op::Read].map(|op| scene.calls(op));
    read_all(&client, &contents).await;
    let trips: Vec<_> =
        [Op::Stat, Op::StatRead, Op::Read].iter().zip(before).map(|(op, n)| scene.calls(*op) - n).collect();
    // The first two are to show that the directory is worth it.
    assert_eq!(trips, [2, 98, 2]);
    assert_eq!(client.stats().corrupt_sectors.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn cold_small_files_cost_the_origin_one_request_each_and_a_few_for_all() {
    let scene = Scene::new(1).await;
    let contents = scene.put(3000);
    let client = scene.client(256 << 10).await;
    let client = &client;
    let readers = (0..8).map(|reader| {
        let contents = &contents;
        async move {
            for at in (reader..contents.len()).step_by(8) {
                let at = (at * 1789) % contents.len();
                assert!(read(client, &format!("/s3/d/{at:05}")).await.unwrap() == contents[at]);
            }
        }
    });
    futures::future::join_all(readers).await;
    let counts = scene.origin.counts();
    assert_eq!(counts.gets, 3000);
    assert!(counts.stats + counts.lists <= 3 * (3 + 8), "{counts:?}");
}

#[tokio::test]
async fn of_several_workers_only_those_that_own_the_bytes_fetch_and_keep_them() {
    let scene = Scene::new(3).await;
    let contents = scene.put(60);
    let client = scene.client(256 << 10).await;
    read_all(&client, &contents).await;
    assert_eq!(scene.origin.counts().gets, 60);
    let second = scene.client(256 << 10).await;
    read_all(&second, &contents).await;
    assert_eq!(scene.origin.counts().gets, 60);
    let held = scene.workers.iter().map(|worker| worker.store().held(None, 1000).len());
    assert_eq!(held.sum::<usize>(), 60, "each file is on one worker");
    assert!(scene.calls(Op::StatRead) > 50);
}

#[tokio::test]
async fn who_only_looks_at_names_gets_names_and_zero_turns_it_off() {
    let scene = Scene::new(1).await;
    let contents = scene.put(50);
    let client = scene.client(256 << 10).await;
    read_all(&client, &contents[..10]).await;
    for at in 10..50 {
        client.stat(&path(&format!("/s3/d/{at:05}")), false).await.unwrap();
    }
    assert!(scene.calls(Op::StatRead) < 16, "{}", scene.calls(Op::StatRead));
    let before = scene.calls(Op::StatRead);
    read_all(&scene.client(0).await, &contents).await;
    assert_eq!(scene.calls(Op::StatRead), before);
}

#[tokio::test]
async fn a_file_that_changed_under_its_name_is_answered_as_it_is_now() {
    let scene = Scene::new(1).await;
    scene.put(10);
    let worker = &scene.workers[0];
    let ask = async |name: &str, length: u32, flags: Flags| {
        let mut request =
            Request::on_path(Op::StatRead, path(name).as_bytes().to_vec().into(), SECOND).with_flags(flags);
        request.length = length;
        let response = ask(worker, request).await?;
        let reply = StatReadReply::decode(&response.body).unwrap();
        let bytes = match response.payload.is_empty() {
            true => None,
            false => Some(bytes_of(&response)),
        };
        Ok::<_, Failure>((reply, bytes))
    };
    // What is known of the name is older than what the origin has.
    stat(worker, "/s3/d/00003").await.unwrap();
    scene.origin.put("d/00003", pattern(5000, 77));
    let (reply, bytes) = ask("/s3/d/00003", 1 << 18, Flags::CHECKSUMS).await.unwrap();
    assert_eq!((reply.stat.attr.size(), bytes), (5000, None));
    let (reply, bytes) = ask("/s3/d/00003", 1 << 18, Flags::CHECKSUMS).await.unwrap();
    assert_eq!(bytes.as_deref(), Some(&pattern(5000, 77)[..]));
    assert_eq!(reply.stat.attr.version().cloned(), scene.origin.version("d/00003"));
    let (reply, bytes) = ask("/s3/d/00003", 1 << 18, Flags::CHECKSUMS).await.unwrap();
    let checksums = SectorChecksums::from_bytes(reply.checksums).unwrap();
    assert_eq!((checksums.len(), checksums.check(&bytes.unwrap())), (1, Ok(())));
    // Too large for the caller, not cached, not there, a directory.
    assert_eq!(ask("/s3/d/00003", 4999, Flags::CHECKSUMS).await.unwrap().1, None);
    let gets = scene.origin.counts().gets;
    assert_eq!(ask("/s3/d/00005", 1 << 18, Flags::CHECKSUMS.and(Flags::CACHED)).await.unwrap().1, None);
    assert_eq!(scene.origin.counts().gets, gets);
    assert_eq!(ask("/s3/d/nothing", 1 << 18, Flags::CHECKSUMS).await.unwrap_err().kind(), FailureKind::NotFound);
    assert!(ask("/s3/d", 1 << 18, Flags::CHECKSUMS).await.unwrap().0.stat.attr.version().is_none());
    assert!(ask("/s3/d/00006", u32::MAX, Flags::default()).await.unwrap().1.is_some(), "no more than a block");
}

#[tokio::test]
async fn bytes_that_would_not_fit_beside_a_long_name_are_not_fetched() {
    let scene = Scene::new(1).await;
    let name = format!("{}/file", vec!["x".repeat(200); 5].join("/"));
    scene.origin.put(&name, pattern(500, 1));
    let name = path(&format!("/s3/{name}"));
    let mut request =
        Request::on_path(Op::StatRead, name.as_bytes().to_vec().into(), SECOND).with_flags(Flags::CHECKSUMS);
    request.length = 1 << 18;
    let response = ask(&scene.workers[0], request).await.unwrap();
    assert!(response.payload.is_empty());
    assert_eq!(StatReadReply::decode(&response.body).unwrap().stat.attr.size(), 500);
    assert_eq!(scene.origin.counts().gets, 0);
}

#[tokio::test]
async fn an_origin_that_fails_a_read_does_not_fail_the_question_about_the_name() {
    let scene = Scene::new(1).await;
    let contents = scene.put(10);
    let client = scene.client(256 << 10).await;
    read_all(&client, &contents[..5]).await;
    scene.origin.fail_next_reads(1, 0, &Failure::new(FailureKind::PermissionDenied, "no leave to read"));
    let stat = client.stat(&path("/s3/d/00007"), false).await.unwrap();
    assert_eq!(stat.attr.size(), contents[7].len() as u64);
    assert!(read(&client, "/s3/d/00007").await.unwrap() == contents[7]);
}

#[tokio::test]
async fn opening_a_small_file_starts_to_fetch_it_and_its_reader_joins_in() {
    let scene = Scene::new(1).await;
    let contents = scene.put(3);
    let client = scene.client(256 << 10).await;
    let stat = client.stat(&path("/s3/d/00001"), false).await.unwrap();
    let stall = scene.origin.stall();
    let file = client.open(stat.attr.version().unwrap().clone());
    scene.origin.wait_for_stalled(1).await;
    let (early, ()) = tokio::join!(file.read(0, 4096), async { drop(stall) });
    assert!(joined(&early.unwrap()) == contents[1][..contents[1].len().min(4096)]);
    assert_eq!(scene.calls(Op::Read), 1, "with its description, so that it is not sent twice");
}
