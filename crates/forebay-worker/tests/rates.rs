//! Attacks with what costs everybody: one caller asks for it as fast as it can, and the others go on.

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use forebay_client::{Client, ClientOptions, Connector};
use forebay_cluster::{Member, StaticMembership};
use forebay_transport::fake::FakeTransport;
use forebay_transport::message::{FreeRequest, ListRequest};
use forebay_transport::{CallError, Caller, Flags, Op, Request, Response, Service, Transport};
use forebay_types::{Failure, FailureKind, Role};
use forebay_worker::{LimitedCounts, Worker};
use tokio::time::Instant;

/// More than any bucket holds.
const FLOOD: usize = 5000;

fn writer(name: &str) -> Caller {
    Caller::proved(Role::Writer, name, &format!("spiffe://example.org/forebay/prod/writer/{name}"))
}

fn refresh(name: &str, flags: Flags, caller: &Caller) -> Request {
    let request = Request::on_path(Op::Refresh, path(name).as_bytes().to_vec().into(), 10 * SECOND);
    request.with_flags(flags).by(caller.clone())
}

fn free(caller: &Caller) -> Request {
    let body = FreeRequest { files: Vec::new(), below: Some(b"/s3/none".to_vec()) }.encode();
    Request::on_path(Op::Free, body, 10 * SECOND).by(caller.clone())
}

/// Asks for it so many times at once, in a task of its own.
fn flood(
    worker: &Arc<Worker>,
    request: &Request,
    times: usize,
) -> tokio::task::JoinHandle<Vec<Result<Response, Failure>>> {
    let (worker, request) = (Arc::clone(worker), request.clone());
    tokio::spawn(async move {
        let asks = (0..times).map(|_| ask(&worker, request.clone()));
        futures::future::join_all(asks).await
    })
}

/// Lets others run, in no time, until somebody is over a rate.
async fn until_limited(worker: &Worker) {
    while worker.counts().rate_limited == LimitedCounts::default() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_floods_keeps_nobody_from_refreshing_freeing_and_reading() {
    let (mallory, other) = (writer("mallory"), writer("team-a"));
    for request in
        [refresh("/s3", Flags::BELOW, &mallory), refresh("/s3/f", Flags::default(), &mallory), free(&mallory)]
    {
        let origin = origin();
        let worker = worker(&origin).await;
        let version = origin.put("f", pattern(100_000, 1));
        read(&worker, &version, 0, 0, 100_000).await.unwrap();
        let flooding = flood(&worker, &request, FLOOD);
        until_limited(&worker).await;
        let began = Instant::now();
        let hit = Request::on_block(Op::Read, block(&version, 0), 0, 100_000, SECOND).by(other.clone());
        assert!(worker.try_handle(&hit).is_some(), "{request:?}");
        for flags in [Flags::BELOW, Flags::default()] {
            assert_eq!(stat(&worker, "/s3/f").await.unwrap().attr.size(), 100_000);
            origin.put("f", pattern(50_000, 2));
            ask(&worker, refresh("/s3/f", flags, &other)).await.unwrap();
            assert_eq!(stat(&worker, "/s3/f").await.unwrap().attr.size(), 50_000, "{request:?}");
            origin.put("f", pattern(100_000, 1));
            ask(&worker, refresh("/s3/f", flags, &other)).await.unwrap();
        }
        ask(&worker, free(&other)).await.unwrap();
        assert!(began.elapsed() <= SECOND / 10, "{request:?}: {:?}", began.elapsed());
        flooding.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn everything_is_forgotten_a_few_times_however_often_somebody_asks_for_it() {
    let origin = origin();
    let worker = worker(&origin).await;
    let below = refresh("/s3", Flags::BELOW, &writer("mallory"));
    origin.put("f", pattern(1, 1));
    assert_eq!(stat(&worker, "/s3/f").await.unwrap().attr.size(), 1);
    let began = Instant::now();
    // Of those that come at once, the ones that have to wait share what is forgotten next.
    let answers = flood(&worker, &below, FLOOD).await.unwrap();
    assert!(answers.iter().all(Result::is_ok), "it is never refused");
    assert!(began.elapsed() <= SECOND, "{:?}", began.elapsed());
    let limited = worker.counts().rate_limited.refresh_below;
    assert!(limited > FLOOD as u64 - 50, "{limited}");
    // Those that come one after the other each wait, and are each as good as ever.
    let began = Instant::now();
    for size in 2..50 {
        origin.put("f", pattern(size, 1));
        ask(&worker, below.clone()).await.unwrap();
        assert_eq!(stat(&worker, "/s3/f").await.unwrap().attr.size(), size as u64);
    }
    assert!(began.elapsed() > 20 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn whoever_frees_and_refreshes_without_end_is_refused_for_a_while() {
    let worker = worker(&origin()).await;
    let mallory = writer("mallory");
    for request in [free(&mallory), refresh("/s3/f", Flags::default(), &mallory)] {
        let answers = flood(&worker, &request, FLOOD).await.unwrap();
        let refused: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
        assert!(!refused.is_empty(), "{request:?}");
        for failure in refused {
            assert_eq!(failure.kind(), FailureKind::Unavailable, "{failure}");
            assert!(failure.message().contains("mallory` asks too often"), "{failure}");
        }
        // A second passes while those wait that are not refused.
        ask(&worker, request).await.unwrap();
    }
    let LimitedCounts { refresh, free, refresh_below, scrub } = worker.counts().rate_limited;
    assert!(refresh > 0 && free > 0 && (refresh_below, scrub) == (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_changes_passes_at_once_also_without_an_identity() {
    let worker = worker(&origin()).await;
    let began = Instant::now();
    for caller in [writer("team-a"), Caller::Unproved] {
        for number in 0..200 {
            let name = format!("/s3/{number}");
            ask(&worker, refresh(&name, Flags::default(), &caller)).await.unwrap();
        }
        // And what a mount asks that has lost its connection, and is back.
        for _ in 0..10 {
            ask(&worker, refresh("/", Flags::BELOW, &caller)).await.unwrap();
        }
    }
    assert_eq!((began.elapsed(), worker.counts().rate_limited), (Duration::ZERO, LimitedCounts::default()));
    assert_eq!((worker.counts().requests.refresh, worker.counts().failures), (420, 0));
}

/// A check costs more than the read that it comes with: it is not had for each of them.
#[tokio::test(start_paused = true)]
async fn a_block_is_checked_on_demand_only_so_often() {
    let origin = origin();
    let worker = worker(&origin).await;
    let version = origin.put("f", pattern(100_000, 1));
    let bytes = read(&worker, &version, 0, 0, 100_000).await.unwrap();
    let fetched = origin.counts().gets;
    let checked = |caller: &Caller| {
        let request = Request::on_block(Op::Read, block(&version, 0), 0, 100_000, SECOND).by(caller.clone());
        request.with_flags(Flags::CHECKSUMS.and(Flags::SCRUB))
    };
    let answer = ask(&worker, checked(&writer("team-a"))).await.unwrap();
    assert_eq!(bytes_of(&answer), bytes);
    let answers = flood(&worker, &checked(&writer("mallory")), FLOOD).await.unwrap();
    let served = answers.iter().filter(|answer| answer.is_ok()).count();
    assert!((100..=300).contains(&served), "{served}");
    let answer = ask(&worker, checked(&writer("team-a"))).await.unwrap();
    assert_eq!(bytes_of(&answer), bytes);
    assert_eq!(origin.counts().gets, fetched, "all of it came from the cache");
}

/// A question with which `caller` insists on what the origin says now.
fn insisting(op: Op, name: &str, caller: &Caller) -> Request {
    let name = path(name).as_bytes().to_vec();
    let body = match op {
        Op::List => ListRequest { path: name, token: None, max: 100 }.encode(),
        _ => name.into(),
    };
    Request::on_path(op, body, 10 * SECOND).with_flags(Flags::REVALIDATE).by(caller.clone())
}

/// There is no rate for them: one name costs its origin one request at a time.
#[tokio::test(start_paused = true)]
async fn however_often_somebody_insists_on_a_name_its_origin_is_asked_twice_and_others_wait_for_two_answers() {
    let (mallory, other, latency) = (writer("mallory"), writer("team-a"), SECOND / 10);
    for op in [Op::Stat, Op::StatRead, Op::List] {
        let origin = origin();
        let worker = worker(&origin).await;
        origin.put("d/f", pattern(1, 1));
        origin.set_delay(latency);
        let name = if op == Op::List { "/s3/d" } else { "/s3/d/f" };
        let asked = || origin.counts().stats + origin.counts().lists;
        let flooding = flood(&worker, &insisting(op, name, &mallory), FLOOD);
        while asked() == 0 {
            tokio::task::yield_now().await;
        }
        let began = Instant::now();
        ask(&worker, insisting(op, name, &other)).await.unwrap();
        assert!(began.elapsed() >= latency, "{op:?}: the answer may be older than the question");
        assert!(began.elapsed() <= 2 * latency + SECOND / 100, "{op:?}: {:?}", began.elapsed());
        assert!(flooding.await.unwrap().iter().all(Result::is_ok), "{op:?}");
        assert_eq!((asked(), worker.counts().rate_limited), (2, LimitedCounts::default()), "{op:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_that_insist_on_the_same_files_at_once_cost_their_origin_two_requests_for_each_file() {
    const NODES: u64 = 20;
    const FILES: u64 = 200;
    let origin = origin();
    let worker = worker(&origin).await;
    for file in 0..FILES {
        origin.put(format!("d/{file}"), pattern(1, 1));
    }
    origin.set_delay(SECOND / 50);
    let began = Instant::now();
    let nodes: Vec<_> = (0..NODES)
        .map(|node| {
            let (worker, caller) = (Arc::clone(&worker), writer(&format!("node{node}")));
            tokio::spawn(async move {
                let insist = |file: u64| ask(&worker, insisting(Op::Stat, &format!("/s3/d/{file}"), &caller));
                let answers = futures::future::join_all((0..FILES).map(insist)).await;
                assert!(answers.iter().all(Result::is_ok));
            })
        })
        .collect();
    for node in nodes {
        node.await.unwrap();
    }
    assert!(began.elapsed() <= SECOND / 20, "{:?}", began.elapsed());
    assert_eq!((origin.counts().stats, worker.counts().rate_limited), (2 * FILES, LimitedCounts::default()));
}

struct Links(HashMap<String, Arc<FakeTransport>>);

impl Connector for Links {
    fn connect(&self, member: &Member) -> Arc<dyn Transport> {
        Arc::clone(&self.0[&*member.name]) as Arc<dyn Transport>
    }
}

/// A client of two workers, where `/s3/f` was changed by one while the other, which owns it and knew it, refused to
/// hear of that; what that one is asked next ends with `then`. Returns the owner, too.
async fn client_whose_change_was_missed(then: Option<CallError>) -> (Client, Arc<FakeTransport>) {
    let origin = origin();
    let mut links = HashMap::new();
    for name in ["w0", "w1"] {
        let worker = worker(&origin).await as Arc<dyn Service>;
        links.insert(name.to_owned(), Arc::new(FakeTransport::new(name, worker)));
    }
    let fakes: Vec<_> = links.values().map(Arc::clone).collect();
    let (members, connector) = (Arc::new(StaticMembership::new(["w0", "w1"])), Arc::new(Links(links)));
    let (buffers, runtime) = (store(64, None).await, tokio::runtime::Handle::current());
    let client = Client::new(members, connector, buffers, ClientOptions::default(), runtime);
    origin.put("f", pattern(1, 1));
    assert_eq!(client.stat(&path("/s3/f"), false).await.unwrap().attr.size(), 1);
    let owner = fakes.into_iter().find(|fake| fake.calls(Op::Stat) > 0).unwrap();
    // The change, which the other worker makes, and the word of it.
    owner.fail_next(2, &CallError::Service(Failure::new(FailureKind::Unavailable, "somebody asks too often")));
    then.iter().for_each(|error| owner.fail_next(1, error));
    client.put(&path("/s3/f"), pattern(2, 1).into()).await.unwrap();
    assert_eq!(owner.calls(Op::Refresh), 1);
    (client, owner)
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_hears_of_no_more_changes_for_now_costs_their_author_neither_an_error_nor_the_sight_of_them() {
    let (client, owner) = client_whose_change_was_missed(None).await;
    assert_eq!(client.stat(&path("/s3/f"), false).await.unwrap().attr.size(), 2);
    assert_eq!((owner.calls(Op::Refresh), owner.calls(Op::Stat)), (2, 2), "it forgets what it knew, and is asked");
}

#[tokio::test(start_paused = true)]
async fn who_may_not_have_everything_forgotten_goes_on_asking() {
    let denied = Failure::new(FailureKind::PermissionDenied, "a reader may not write");
    let (client, owner) = client_whose_change_was_missed(Some(CallError::Service(denied))).await;
    for asked in 2..4 {
        client.stat(&path("/s3/f"), false).await.unwrap();
        assert_eq!((owner.calls(Op::Refresh), owner.calls(Op::Stat)), (2, asked));
    }
}
