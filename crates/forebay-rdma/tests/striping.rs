//! Large reads over two I/O threads with a connection each, as over two cards, one of which goes away.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::*;
use forebay_client::paths::{
    CardTraffic, Fallback, Path, PathKind, PathOptions, PathPolicy, PathStats, PathsTransport,
};
use forebay_memory::Pool;
use forebay_rdma::{IoThread, RdmaServer, RdmaTransport};
use forebay_transport::conformance::{Behaviour, Scripted, assert_bytes, read, until, within};
use forebay_transport::{CallError, LinkError, Service, Transport};
use tokio_util::task::TaskTracker;

struct Scene {
    servers: [RdmaServer; 2],
    io_threads: [Arc<IoThread>; 2],
    traffic: [Arc<CardTraffic>; 2],
    stats: Arc<PathStats>,
    pool: Pool,
    link: PathsTransport,
}

impl Scene {
    /// Two servers of one service, and a link over both; nothing where there is no UCX.
    async fn new(silence: Duration) -> Option<Self> {
        let library = library()?;
        let service = Scripted::new();
        let server = || serve(library, 0, Arc::clone(&service) as Arc<dyn Service>);
        let servers = [server().await, server().await];
        let pool = pool(64);
        let io_threads = [(); 2].map(|()| io_thread_of(library, "client", pool.clone()));
        let traffic = [(); 2].map(|()| Arc::new(CardTraffic::next_to(None)));
        let path = |number: usize| {
            let (address, io_thread) = (servers[number].local_addr().to_string(), Arc::clone(&io_threads[number]));
            let link = Arc::new(RdmaTransport::new(address, io_thread, client_options())) as Arc<dyn Transport>;
            let card = Some(Arc::clone(&traffic[number]));
            Path { name: format!("card{number}"), kind: PathKind::Rdma, link, card }
        };
        let policy = PathPolicy { fallback: Fallback::Auto, retry_after: 100 * LONG, silence };
        let options = PathOptions { policy, operation_timeout: LONG, striping: Some(pool.clone()) };
        let stats = Arc::new(PathStats::default());
        let paths = vec![path(0), path(1)];
        let link = PathsTransport::new("worker", paths, options, Arc::clone(&stats), TaskTracker::new());
        Some(Self { servers, io_threads, traffic, stats, pool, link })
    }

    /// Reads a block and compares it; once more where another path is to be asked, as a client does.
    async fn read(&self, index: u64) {
        for _ in 0..8 {
            let request = read(Behaviour::AtOnce, index, 0, BLOCK_SIZE, LONG);
            let room = self.pool.alloc(BLOCK_SIZE as usize, LONG).await.expect("memory for a reader");
            match within("an answer", self.link.call(request.clone(), Some(room))).await {
                Err(CallError::Link(LinkError::OtherPath { .. })) => {}
                answer => return assert_bytes(&answer.unwrap(), &request, BLOCK_SIZE as usize),
            }
        }
        panic!("no path answers");
    }

    fn divided(&self) -> u64 {
        self.stats.striping.reads.load(Ordering::Relaxed)
    }

    async fn end(self) {
        within("the link to close", self.link.close()).await;
        for io_thread in &self.io_threads {
            within("an I/O thread to end", io_thread.close()).await;
        }
        until("all memory is back", || self.pool.used() == 0).await;
        assert!(self.traffic.iter().all(|card| card.in_flight() == 0));
        for server in &self.servers {
            within("a server to close", server.close()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_reads_come_over_both_connections_and_every_byte_is_in_its_place() {
    // A server that is without a processor for a while is not left out.
    let Some(scene) = Scene::new(LONG).await else { return };
    for index in 0..20 {
        scene.read(index).await;
    }
    let received = [0, 1].map(|card| scene.traffic[card].received());
    assert!(scene.divided() > 0 && received.iter().all(|bytes| *bytes > 0), "{} {received:?}", scene.divided());
    assert_eq!(scene.stats.left_out.load(Ordering::Relaxed), 0);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_lost_in_the_middle_of_reads_costs_no_reader_an_error() {
    let Some(scene) = Scene::new(Duration::from_secs(1)).await else { return };
    let readers = async {
        for round in 0..10 {
            tokio::join!(scene.read(4 * round), scene.read(4 * round + 1), scene.read(4 * round + 2));
        }
    };
    let goes = async {
        until("reads are divided", || scene.divided() > 0).await;
        within("a server to close", scene.servers[1].close()).await;
    };
    tokio::join!(readers, goes);
    // Reads may have ended before, and one that goes as a whole goes over either.
    for index in 100.. {
        scene.read(index).await;
        if scene.stats.left_out.load(Ordering::Relaxed) > 0 {
            break;
        }
        assert!(index < 10_000, "what is lost is not used any more");
    }
    scene.end().await;
}
