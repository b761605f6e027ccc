//! Threads that wait for the answers to their reads themselves: what is so over UCX and over verbs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_memory::Pool;
use forebay_rdma::{IoThread, Listening, RdmaTransport};
use forebay_transport::conformance::{
    Behaviour, Driven, Scripted, assert_bytes, is_link_error, pool, read, slowness, until, within,
};
use forebay_transport::driving::DriveOptions;
use forebay_transport::{CallError, Reply, Request, Service, Transport};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::LONG;

/// How long a thread waits here: longer than an answer takes most of the time, also where others have the processors.
pub(crate) fn drive() -> DriveOptions {
    DriveOptions { wait: Duration::from_millis(20) * slowness(), spin: Duration::from_micros(50) }
}

/// What comes with the message, and what may be fetched, is written through a window, or comes before the message.
const LENGTHS: [u32; 3] = [100, 4096, 64 << 10];

/// Both ends, over one library.
#[async_trait::async_trait]
pub(crate) trait Ends: Sync {
    /// A server at this port; 0 takes a free one.
    async fn serve(&self, port: u16, service: Arc<dyn Service>) -> Arc<dyn Listening>;

    /// Threads that call it.
    fn threads(&self, server: SocketAddr) -> Threads;
}

/// Threads that call by one link, and may wait whatever other tests' threads do.
pub(crate) struct Threads {
    pub(crate) link: Arc<RdmaTransport>,
    pub(crate) driven: Arc<Driven>,
    /// Over UCX: what counts the answers that they received themselves.
    io_thread: Option<Arc<IoThread>>,
}

impl Threads {
    pub(crate) fn new(link: Arc<RdmaTransport>, io_thread: Option<Arc<IoThread>>) -> Self {
        let driven = Arc::new(Driven::new(link.clone(), usize::MAX));
        Self { link, driven, io_thread }
    }

    /// Has a thread call that is none of the runtime's, with a buffer of `memory`.
    pub(crate) fn begin(&self, request: Request, memory: &Pool) -> JoinHandle<Result<Reply, CallError>> {
        let (driven, runtime) = (Arc::clone(&self.driven), Handle::current());
        let into = memory.try_alloc(request.length as usize);
        tokio::task::spawn_blocking(move || runtime.block_on(driven.call(request, into)))
    }

    /// The same, and waits for the answer.
    pub(crate) async fn ask(&self, request: Request) -> Result<Reply, CallError> {
        within("an answer", self.begin(request, &pool(1))).await.unwrap()
    }

    /// How many answers threads received themselves, as far as that shows.
    fn received(&self, server: &dyn Listening) -> u64 {
        match &self.io_thread {
            Some(io_thread) => io_thread.driven(),
            // Those that the I/O thread received are counted, too.
            None if server.stats().connections < 2 => 0,
            None => self.driven.answered(),
        }
    }

    /// Reads until so many more answers were received by the threads that asked.
    pub(crate) async fn until_driven(&self, server: &dyn Listening, times: u64) {
        let (begun, goal) = (Instant::now(), self.received(server) + times);
        for index in 0.. {
            let received = self.received(server);
            if received >= goal {
                return;
            }
            assert!(begun.elapsed() < 4 * LONG * slowness(), "no thread has its answers itself: {received} did");
            let length = LENGTHS[index % LENGTHS.len()];
            let request = read(Behaviour::AtOnce, index as u64, 5, length, LONG);
            assert_bytes(&self.ask(request.clone()).await.unwrap(), &request, length as usize);
        }
    }

    /// Closes the link, and waits until the server has nothing of it.
    pub(crate) async fn end(self, server: &dyn Listening) {
        within("close", self.link.close()).await;
        until("the worker has no connection", || server.stats().connections == 0).await;
    }
}

pub(crate) async fn an_answer_that_is_late_comes_all_the_same_and_others_do_not_wait_for_it(ends: &impl Ends) {
    let service = Scripted::new();
    let server = ends.serve(0, service.clone()).await;
    for length in LENGTHS {
        let threads = ends.threads(server.local_addr());
        threads.until_driven(&*server, 1).await;
        let started = service.started();
        let late = read(Behaviour::Gated, 7, 0, length, LONG);
        let waiting = threads.begin(late.clone(), &pool(1));
        until("the read reaches the service", || service.started() > started).await;
        for index in 0..20 {
            let request = read(Behaviour::AtOnce, index, 0, length, LONG);
            assert_bytes(&threads.ask(request.clone()).await.unwrap(), &request, length as usize);
        }
        assert!(!waiting.is_finished());
        service.open(1);
        let reply = within("the late answer", waiting).await.unwrap().unwrap();
        assert_bytes(&reply, &late, length as usize);
        threads.until_driven(&*server, 2).await;
        threads.end(&*server).await;
    }
    server.close().await;
}

pub(crate) async fn a_read_that_is_never_answered_gives_its_memory_back(ends: &impl Ends) {
    let server = ends.serve(0, Scripted::new()).await;
    let memory = pool(1);
    for length in LENGTHS {
        let threads = ends.threads(server.local_addr());
        threads.until_driven(&*server, 1).await;
        let request = read(Behaviour::Never, 0, 0, length, 4 * drive().wait);
        let result = within("the deadline", threads.begin(request, &memory)).await.unwrap();
        assert!(result.is_err(), "{result:?}");
        until("the memory is free", || memory.used() == 0).await;
        threads.end(&*server).await;
    }
    server.close().await;
}

pub(crate) async fn a_link_that_is_closed_ends_what_a_thread_has_asked_for(ends: &impl Ends) {
    let service = Scripted::new();
    let server = ends.serve(0, service.clone()).await;
    let threads = ends.threads(server.local_addr());
    threads.until_driven(&*server, 1).await;
    let (started, memory) = (service.started(), pool(1));
    let waiting = threads.begin(read(Behaviour::Gated, 7, 0, 64 << 10, LONG), &memory);
    until("the read reaches the service", || service.started() > started).await;
    within("close", threads.link.close()).await;
    let result = within("its end", waiting).await.unwrap();
    assert!(is_link_error(&result), "{result:?}");
    assert_eq!(memory.used(), 0, "no card has it any more");
    until("the worker has no connection", || server.stats().connections == 0).await;
    server.close().await;
}

pub(crate) async fn connections_that_the_worker_has_ended_meanwhile_are_not_asked(ends: &impl Ends) {
    let service = Scripted::new();
    let mut server = ends.serve(0, service.clone()).await;
    let address = server.local_addr();
    let threads = ends.threads(address);
    for _ in 0..2 {
        threads.until_driven(&*server, 5).await;
        server.close().await;
        server = ends.serve(address.port(), service.clone()).await;
        let begun = Instant::now();
        // The end of a connection may be in the midst of a call, as without threads that wait.
        loop {
            let request = read(Behaviour::AtOnce, 3, 0, 64 << 10, LONG);
            match threads.ask(request.clone()).await {
                Ok(reply) => break assert_bytes(&reply, &request, 64 << 10),
                Err(error) => assert!(begun.elapsed() < 4 * LONG, "{error}"),
            }
        }
    }
    server.close().await;
}
