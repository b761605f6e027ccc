//! Threads that receive the answers to their reads themselves, in the place of the session's task. The suite (`conformance.rs`) runs
//! over such threads, too.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use forebay_shm::NearTransport;
use forebay_transport::conformance::{Behaviour, Driven, Scripted, assert_bytes, until, within};
use forebay_transport::driving::DriveOptions;
use forebay_transport::{CallError, PeerMemory as _, Reply, Request, Service, Transport};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

const LENGTH: u32 = 4096;

/// A worker whose service does what its requests say, and a client that sees its memory, whose threads wait for longer than an answer
/// takes on a busy machine, most of the time.
async fn start() -> (Worker, Arc<Scripted>, Arc<NearTransport>, Arc<Driven>) {
    let (pool, scripted) = (shared_pool(4), Scripted::new());
    let service: Arc<dyn Service> = Arc::new(Copied { service: scripted.clone(), pool: pool.clone() });
    let worker = Worker::start(&pool, service);
    let drive = DriveOptions { wait: Duration::from_millis(5), ..DriveOptions::default() };
    let near = near_with(worker.tcp.local_addr(), forebay_shm::ClientOptions { drive, ..client_options() });
    until_open(&near).await;
    let threads = Arc::new(Driven::new(near.clone(), usize::MAX));
    (worker, scripted, near, threads)
}

fn request(behaviour: Behaviour, index: u64) -> Request {
    forebay_transport::conformance::read(behaviour, index, 0, LENGTH, LONG)
}

/// A call by a thread that is none of the runtime's.
fn asking(link: &Arc<Driven>, request: Request) -> JoinHandle<Result<Reply, CallError>> {
    let (link, runtime) = (Arc::clone(link), Handle::current());
    tokio::task::spawn_blocking(move || runtime.block_on(link.call(request, None)))
}

async fn ask(link: &Arc<Driven>, request: Request) -> Result<Reply, CallError> {
    within("an answer", asking(link, request)).await.unwrap()
}

/// Reads until so many answers came to the threads that asked.
async fn until_driven(link: &Arc<Driven>, times: u64) {
    let begun = std::time::Instant::now();
    for index in 0.. {
        if link.answered() >= times {
            return;
        }
        assert!(begun.elapsed() < 2 * LONG, "no thread has its answers itself: {} did", link.answered());
        let request = request(Behaviour::AtOnce, index);
        assert_bytes(&ask(link, request.clone()).await.unwrap(), &request, LENGTH as usize);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_has_the_answers_to_its_reads_itself_and_the_worker_has_its_memory_back() {
    let (worker, _, near, threads) = start().await;
    until_driven(&threads, 200).await;
    assert!(near.report().reads >= 200, "{:?}", near.report());
    // No request takes along what was read last: the task looks for that.
    worker.until_free().await;
    assert_eq!((near.report().state, worker.window.connections()), ("open", 1));
}

/// Reads all the time, by a thread of its own, until it is told to stop.
fn reading_on(threads: &Arc<Driven>, is_over: &Arc<AtomicBool>) -> JoinHandle<u64> {
    let (threads, is_over, runtime) = (Arc::clone(threads), Arc::clone(is_over), Handle::current());
    tokio::task::spawn_blocking(move || {
        let mut reads = 0;
        while !is_over.load(Ordering::Relaxed) {
            let request = request(Behaviour::AtOnce, reads);
            let reply = runtime.block_on(threads.call(request.clone(), None)).unwrap();
            assert_bytes(&reply, &request, LENGTH as usize);
            reads += 1;
        }
        reads
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_drive_is_answered_while_a_thread_drives_all_the_time() {
    let (_worker, _, near, threads) = start().await;
    until_driven(&threads, 1).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let reader = reading_on(&threads, &is_over);
    for index in 0..200 {
        let request = request(if index % 2 == 0 { Behaviour::AtOnce } else { Behaviour::Later }, index);
        let reply = within("an answer to who does not drive", near.call(request.clone(), None)).await.unwrap();
        assert_bytes(&reply, &request, LENGTH as usize);
    }
    is_over.store(true, Ordering::Relaxed);
    assert!(within("the thread that drives", reader).await.unwrap() > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_threads_that_read_all_the_time_are_both_answered() {
    let (worker, _, near, threads) = start().await;
    until_driven(&threads, 1).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let readers = [reading_on(&threads, &is_over), reading_on(&threads, &is_over)];
    let before = near.report().reads;
    until("both have read on", || near.report().reads > before + 2000).await;
    is_over.store(true, Ordering::Relaxed);
    for reader in readers {
        assert!(within("a reader", reader).await.unwrap() > 0);
    }
    worker.until_free().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_late_comes_all_the_same() {
    let (_worker, scripted, _, threads) = start().await;
    until_driven(&threads, 1).await;
    let (started, late) = (scripted.started(), request(Behaviour::Gated, 7));
    let waiting = asking(&threads, late.clone());
    until("the read reaches the service", || scripted.started() > started).await;
    for index in 0..50 {
        let request = request(Behaviour::AtOnce, index);
        assert_bytes(&ask(&threads, request.clone()).await.unwrap(), &request, LENGTH as usize);
    }
    assert!(!waiting.is_finished());
    scripted.open(1);
    assert_bytes(&within("the late answer", waiting).await.unwrap().unwrap(), &late, LENGTH as usize);
    until_driven(&threads, threads.answered() + 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_goes_away_is_noticed_though_nobody_asks_it_any_more() {
    let (worker, _, near, threads) = start().await;
    until_driven(&threads, 5).await;
    within("the worker's close", worker.window.close()).await;
    until("the client sees that it is gone", || !near.is_open()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_goes_away_under_a_thread_that_drives_costs_it_no_wait() {
    let (worker, _, near, threads) = start().await;
    until_driven(&threads, 5).await;
    let (asked, runtime) = (Arc::clone(&threads), Handle::current());
    let reader = tokio::task::spawn_blocking(move || {
        for index in 0.. {
            if let Err(error) = runtime.block_on(asked.call(request(Behaviour::AtOnce, index), None)) {
                return error;
            }
        }
        unreachable!()
    });
    within("the worker's close", worker.window.close()).await;
    // It is to ask again, with a buffer.
    let error = within("the reader", reader).await.unwrap();
    assert!(matches!(error, CallError::Link(_)), "{error:?}");
    within("close", near.close()).await;
}
