//! Peers that speak the protocol by hand, and so can break it.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_memory::{FRAME_SIZE, Pool, SpanMut};
use forebay_rdma::wire;
use forebay_transport::wire::{HEADER_LEN, ReplyHeader};
use forebay_ucx::{Context, Data, Endpoint, Library, Listener, Message, Options, Payload, Protocol, Version, Worker};
use tokio::task::JoinHandle;

use super::{ours, setting, transports};

/// What a peer has received.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    /// The number of the active message.
    pub(crate) message: u16,
    pub(crate) header: Vec<u8>,
    /// Data that came with the message; none for data that was only announced.
    pub(crate) data: Vec<u8>,
    pub(crate) from: Option<Endpoint>,
}

impl Heard {
    /// The header and body of a reply.
    pub(crate) fn reply(&self) -> (ReplyHeader, Vec<u8>) {
        let (header, inline) = self.header.split_first_chunk::<HEADER_LEN>().unwrap();
        (ReplyHeader::decode(header).unwrap(), inline.to_vec())
    }
}

/// A peer on this thread, which needs a [`tokio::task::LocalSet`]. It hears the messages that it is made for, and takes
/// none of the data that it is offered.
pub(crate) struct Raw {
    pub(crate) worker: Worker,
    driver: JoinHandle<()>,
    heard: Rc<RefCell<Vec<Heard>>>,
}

/// A worker with the settings of the I/O threads, and with a client id for [`Worker::connect_with_id`].
pub(crate) fn worker(library: &'static Library, client_id: Option<NonZeroU64>) -> Worker {
    let transports = transports();
    let mut options = Options::tuned().transports(transports.iter().map(String::as_str));
    let devices = setting("FOREBAY_TEST_UCX_CLIENT", "");
    if !devices.is_empty() {
        options = options.devices(devices.iter().map(String::as_str));
    }
    Worker::with_client_id(&Context::new(library, &options).unwrap(), client_id).unwrap()
}

impl Raw {
    pub(crate) fn new(library: &'static Library, hears: &[u16]) -> Self {
        Self::with_client_id(library, hears, None)
    }

    /// The same with a client id, for [`Worker::connect_with_id`].
    pub(crate) fn with_client_id(library: &'static Library, hears: &[u16], client_id: Option<NonZeroU64>) -> Self {
        let worker = worker(library, client_id);
        let heard: Rc<RefCell<Vec<Heard>>> = Rc::default();
        for &id in hears {
            let heard = Rc::clone(&heard);
            let handler = move |message: Message<'_>| {
                let data = match &message.data {
                    Data::Eager(bytes) => bytes.to_vec(),
                    Data::Rendezvous(_) => Vec::new(),
                };
                let header = message.header.to_vec();
                heard.borrow_mut().push(Heard { message: id, header, data, from: message.from.clone() });
            };
            worker.on_message(id, handler).unwrap();
        }
        let driver = tokio::task::spawn_local({
            let worker = worker.clone();
            async move {
                let ended = worker.drive().await;
                panic!("the worker is not driven any more: {ended:?}");
            }
        });
        Self { worker, driver, heard }
    }

    pub(crate) fn version(&self) -> Version {
        self.worker.context().library().version()
    }

    /// The first message that has come and was not taken yet.
    pub(crate) async fn next(&self, what: &str) -> Heard {
        let start = Instant::now();
        loop {
            {
                let mut heard = self.heard.borrow_mut();
                if !heard.is_empty() {
                    return heard.remove(0);
                }
            }
            assert!(start.elapsed() < Duration::from_secs(20), "waited in vain for {what}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// How many messages have come and were not taken.
    pub(crate) fn unheard(&self) -> usize {
        self.heard.borrow().len()
    }

    /// A connection to a server, before any hello.
    pub(crate) fn connect(&self, server: SocketAddr) -> Endpoint {
        self.worker.connect(server, None).unwrap()
    }

    /// A connection to a server that has taken our hello.
    pub(crate) async fn greet(&self, server: SocketAddr) -> Endpoint {
        let endpoint = self.connect(server);
        send(&endpoint, wire::HELLO, &wire::hello(&ours(), self.version()), Payload::None);
        assert_eq!(self.next("a welcome").await.message, wire::WELCOME);
        endpoint
    }

    /// The next connection of a client to our listener, and its hello answered; with the request that follows.
    pub(crate) async fn serve_one(&self, listener: &Listener) -> (Endpoint, Heard) {
        let endpoint = listener.accept().await.accept().unwrap();
        assert_eq!(self.next("a hello").await.message, wire::HELLO);
        send(&endpoint, wire::WELCOME, &wire::hello(&ours(), self.version()), Payload::None);
        let request = self.next("a request").await;
        assert_eq!(request.message, wire::REQUEST);
        (endpoint, request)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Sends in the way that UCX chooses.
pub(crate) fn send(endpoint: &Endpoint, id: u16, header: &[u8], data: impl Into<Payload>) {
    endpoint.am_send(id, header, data, None, Protocol::Auto).detach();
}

/// Sends `length` bytes that the receiver has to fetch.
pub(crate) fn announce(endpoint: &Endpoint, id: u16, header: &[u8], pool: &Pool, length: usize) {
    let payload = Payload::Spans(spans(pool, length).into_iter().map(SpanMut::freeze).collect());
    endpoint.am_send(id, header, payload, None, Protocol::Rendezvous).detach();
}

fn spans(pool: &Pool, length: usize) -> Vec<SpanMut> {
    let parts = (0..length).step_by(FRAME_SIZE).map(|at| FRAME_SIZE.min(length - at));
    parts.map(|part| pool.try_alloc(part).expect("the pool is large enough for the test")).collect()
}

/// Bytes outside of any pool.
pub(crate) fn noise(length: usize) -> Bytes {
    (0..length).map(|at| (at * 31) as u8).collect()
}

/// Runs `test` on a thread that may have workers of its own.
pub(crate) fn by_hand<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(100), test).await.expect("the test ends");
    });
}
